"""Checkpoints in OpenVLA's format: what is read, what it means, and what is refused, naming both sides."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("transformers")

from configs.errors import CheckpointError, ConfigError
from configs.openvla import OpenVLAConfig
from policies.openvla.actions import OpenVLATokenizer
from policies.openvla.building import checkpoint_of
from tests.openvla_helper import (
    BINS,
    VOCABULARY,
    checkpoint_config,
    checkpoint_weights,
    make,
    make_spec,
    observe,
    write_checkpoint,
    write_tokenizer,
)


@pytest.fixture(autouse=True)
def _forget() -> None:
    checkpoint_of.cache_clear()


def config(base: Path, **changes: Any) -> OpenVLAConfig:
    return OpenVLAConfig(**{"base": str(base), "unnorm_key": "bridge", "chunk": 2, "replan": 2, **changes})


def test_a_folder_of_that_format_given_as_path_is_the_base(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base")
    given = OpenVLAConfig(path=str(base))
    assert (given.path, given.base) == (None, str(base))
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "config.json").write_text(json.dumps({"model": "policy"}))
    ours = OpenVLAConfig(path=str(tmp_path / "ours"))
    assert (ours.path, ours.base) == (str(tmp_path / "ours"), None)


def test_one_file_is_read_like_shards(tmp_path: Path) -> None:
    shards = write_checkpoint(tmp_path / "shards")
    single = write_checkpoint(tmp_path / "single")
    for path in [*single.glob("model-*.safetensors"), single / "model.safetensors.index.json"]:
        path.unlink()
    save_file(checkpoint_weights(), single / "model.safetensors")
    one, two = make(config(shards)), make(config(single))
    assert all(torch.equal(x, two.network.state_dict()[name]) for name, x in one.network.state_dict().items())


def test_prompts_begin_and_end_as_in_training(tmp_path: Path) -> None:
    policy = make(config(write_checkpoint(tmp_path / "base")))
    for ids, kept in zip(policy.prompt_ids, policy.prompt_kept, strict=True):
        inside = ids[kept].tolist()
        assert inside[0] == 1
        assert inside[-1] == 99
        assert inside.count(99) == 1
    assert int(policy.prompt_ids.max()) < VOCABULARY - BINS


def test_actions_are_unnormalised_as_published(tmp_path: Path) -> None:
    """Against the published rule, worked out per token id: ``vocab - id``, minus one, clipped, bin centre, q01 to q99."""
    write_checkpoint(tmp_path / "base")
    _, statistics = checkpoint_of(str(tmp_path / "base")).statistics("bridge")
    tokenizer = OpenVLATokenizer(statistics.low, statistics.high, BINS)
    centres = (np.linspace(-1, 1, 256)[:-1] + np.linspace(-1, 1, 256)[1:]) / 2
    for token in (0, 1, 100, 254, 255):
        token_id = 32000 - 1 - token
        n = centres[np.clip(32000 - token_id - 1, 0, 254)]
        expected = [0.5 * (n + 1) * 1.0 - 0.5, 0.5 * (n + 1) * 4.0 - 1.0, n]
        assert np.allclose(tokenizer.decode(np.full(3, token)), expected, atol=1e-6)
    tokens = np.stack([np.arange(255)] * 3, axis=-1)
    assert (tokenizer.encode(tokenizer.decode(tokens)) == tokens).all()
    assert tokenizer.encode(np.array([0.5, 3.0, 1.0])).tolist() == [255] * 3
    assert tokenizer.encode(np.array([-9.0, -9.0, -9.0])).tolist() == [0] * 3


def test_the_gripper_of_libero_is_turned_round() -> None:
    tokenizer = OpenVLATokenizer([-1.0, -1.0], [1.0, 1.0], BINS, libero_gripper=True)
    opened, closed = tokenizer.encode(np.array([[0.0, -1.0], [0.0, 1.0]]))
    assert tokenizer.decode(np.stack([opened, closed]))[:, 1].tolist() == [-1.0, 1.0]
    raw = OpenVLATokenizer([-1.0, -1.0], [1.0, 1.0], BINS)
    assert raw.decode(opened)[1] == pytest.approx(1.0, abs=0.01)
    assert raw.decode(closed)[1] == pytest.approx(0.0, abs=0.01)


def test_only_what_is_trained_is_published(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    from platform.weights import load_arrays, module_arrays

    base = write_checkpoint(tmp_path / "base")
    settings = config(base, lora_rank=2, freeze_vision=True)
    one, two = make(settings), make(settings, seed=1)
    arrays = module_arrays(one)
    assert all(
        "lora_" in n or n.startswith(("value_head", "network.projector")) or "lm_head" in n for n in arrays
    )
    assert sum(x.size for x in arrays.values()) < sum(x.numel() for x in one.parameters()) / 2
    obs = observe(one, 2)
    assert not torch.allclose(one.value(one.features(obs)), two.value(two.features(obs)))
    load_arrays(two, arrays)
    assert torch.equal(one.value(one.features(obs)), two.value(two.features(obs)))
    with pytest.raises(RuntimeError, match="one side only"):
        load_arrays(two, dict(list(arrays.items())[1:]))


def broken(folder: Path, what: str) -> OpenVLAConfig:
    """A checkpoint with one thing wrong."""
    weights, described, settings = checkpoint_weights(), checkpoint_config(), {}
    action: dict[str, Any] = {
        "missing tensor": lambda: weights.pop("projector.fc3.bias"),
        "extra tensor": lambda: weights.update({"action_head.weight": torch.zeros(2)}),
        "another width": lambda: weights.update({"projector.fc2.bias": torch.zeros(31)}),
        "another vocabulary": lambda: described["text_config"].update(vocab_size=704),
        "another image size": lambda: described.update(image_sizes=[64, 32]),
        "unknown tower": lambda: described.update(timm_model_ids=["vit_large_patch14_clip_224.openai"] * 2),
        "another language model": lambda: described["text_config"].update(model_type="mistral"),
        "no statistics": lambda: settings.update(unnorm_key="libero"),
        "several statistics": lambda: settings.update(unnorm_key=None),
        "other action dimension": lambda: settings.update(unnorm_key="seven"),
        "other bins": lambda: described.update(n_action_bins=128),
        "no text config": lambda: described.pop("text_config"),
    }
    action.get(what, lambda: None)()
    base = write_checkpoint(folder, weights, described)
    files: dict[str, Any] = {
        "other tokenizer": lambda: write_tokenizer(base, VOCABULARY + 1),
        "no tokenizer": lambda: (base / "tokenizer.json").unlink(),
        "missing shard": lambda: (base / "model-00002-of-00002.safetensors").unlink(),
        "torn shard": lambda: (base / "model-00001-of-00002.safetensors").write_bytes(b"123456789"),
        "torn config": lambda: (base / "config.json").write_text("{"),
    }
    files.get(what, lambda: None)()
    return config(base, **settings)


REFUSED = {
    "missing tensor": "1 tensors are missing, the first is projector.fc3.bias",
    "extra tensor": "1 tensors have no place in the model, the first is action_head.weight",
    "another width": r"projector.fc2.bias is \[31\], the model wants \[32\]",
    "another vocabulary": "has 640 rows, config.json's vocab_size is 704",
    "another image size": "pos_embed is of 16 patches, image_sizes=64 makes 64",
    "unknown tower": "vit_large_patch14_clip_224.openai is none that Reverie builds",
    "another language model": "is a mistral, Reverie reads llama",
    "no statistics": "unnorm_key=libero is not one of its, statistics are there for bridge, seven",
    "several statistics": "unnorm_key is not set, statistics are there for bridge, seven",
    "other action dimension": "seven are of 7 action dimensions, the environment has 3",
    "other bins": "has 128 action tokens, policy.bins=256",
    "no text config": "config.json has no text_config",
    "other tokenizer": "tokenizer.json has 577 tokens, the weights are of a vocabulary of 576",
    "no tokenizer": "tokenizer.json is missing",
    "missing shard": "model-00002-of-00002.safetensors is missing",
    "torn shard": "model-00001-of-00002.safetensors is torn",
    "torn config": "config.json is torn",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path: Path, what: str) -> None:
    settings = broken(tmp_path / "base", what)
    with pytest.raises(CheckpointError, match=REFUSED[what]) as refusal:
        make(settings)
    assert "\n" not in str(refusal.value)


def test_no_folder_and_no_hub_name() -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        make(OpenVLAConfig(base="/nowhere/at/all"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"replan": 5}, "replan=5"), ({"width": 30}, "width=30"), ({"image_size": 30}, "image_size=30")],
)
def test_sizes_that_do_not_go_together(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        OpenVLAConfig(**changes)


def test_statistics_beside_the_config(tmp_path: Path) -> None:
    """OpenVLA-OFT writes them as dataset_statistics.json."""
    described = checkpoint_config()
    found = {"libero_spatial_no_noops": described.pop("norm_stats")["bridge"]}
    base = write_checkpoint(tmp_path / "base", config=described)
    (base / "dataset_statistics.json").write_text(json.dumps(found))
    key, statistics = checkpoint_of(str(base)).statistics(None)
    assert key == "libero_spatial_no_noops"
    assert statistics.low == (-0.5, -1.0, -1.0)
    make(config(base, unnorm_key=None), make_spec())
