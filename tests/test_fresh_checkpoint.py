"""Fresh checkpoints in OpenVLA's format: written by the command, read like published ones."""

import json
from pathlib import Path
from platform import fresh
from platform.command import main
from platform.context import Context, make_context

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")

from configs.errors import CheckpointError
from configs.loader import load_config
from configs.schema import TrainConfig
from policies.openvla.actions import OpenVLATokenizer
from policies.openvla.policy import OpenVLA
from policies.openvla.prompts import checkpoint_encoder, prompt_text
from policies.openvla.writing import fresh_tokenizer
from tests.openvla_helper import observe

ENV = "env=tabletop_reach"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh") / "tiny"
    assert fresh.run([f"out={folder}", ENV, "seed=3"]) == 0
    return folder


def context(folder: Path, *overrides: str) -> Context:
    config = load_config(
        TrainConfig, ["real", ENV, "policy=openvla_tiny", f"policy.base={folder}", *overrides]
    )
    return make_context(config, seed=0, device="cpu")


def test_it_loads_and_acts(written: Path) -> None:
    policy = context(written).make_policy()
    assert isinstance(policy, OpenVLA)
    assert sum(each.numel() for each in policy.parameters()) < 3_000_000
    choice = policy.act(observe(policy, 5), greedy=True)
    assert choice.tokens.shape == (5, 4, 3)
    assert bool(torch.isfinite(choice.log_probs).all())


def test_the_weights_are_those_of_the_file(written: Path) -> None:
    """The output layer is stored whole, and its last rows are the action tokens'."""
    from safetensors.torch import load_file

    stored = load_file(written / "model.safetensors")
    policy = context(written).make_policy()
    assert isinstance(policy, OpenVLA)
    vocabulary = policy.network.shape.vocabulary
    head = stored["language_model.lm_head.weight"]
    assert head.shape[0] == vocabulary + 64
    assert torch.equal(policy.network.language_model.lm_head.weight, head[vocabulary - 16 : vocabulary])
    blocks = {name.split(".")[3] for name in stored if ".blocks." in name}
    assert len(blocks) == 1 + len(policy.network.vision_backbone.featurizer.blocks)  # type: ignore[arg-type, union-attr]


def test_the_seed_alone_decides(written: Path, tmp_path: Path) -> None:
    for name, seed in (("same", 3), ("other", 4)):
        assert fresh.run([f"out={tmp_path / name}", ENV, f"seed={seed}"]) == 0
    weights, same, other = (
        (folder / "model.safetensors").read_bytes()
        for folder in (written, tmp_path / "same", tmp_path / "other")
    )
    assert weights == same
    assert weights != other
    assert (written / "tokenizer.json").read_bytes() == (tmp_path / "other" / "tokenizer.json").read_bytes()


def test_actions_mean_what_a_fresh_model_without_checkpoint_means(written: Path) -> None:
    """So demonstrations that were recorded with ``policy.bins`` alone fit."""
    tokenizer = context(written).tokenizer
    assert tokenizer == OpenVLATokenizer([-1.0] * 3, [1.0] * 3, 16)
    assert np.allclose(tokenizer.decode(np.array([0, 7, 15])), [-14 / 15, 0.0, 14 / 15])


def test_known_words_are_one_token_each_and_others_are_bytes(written: Path, tmp_path: Path) -> None:
    tokenizer = fresh_tokenizer(
        [prompt_text("reach the red block"), prompt_text("reach the tall cup")], bins=4
    )
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=False)
    assert vocabulary % 64 == 0
    assert [tokenizer.id_to_token(vocabulary - 1 - action) for action in range(4)] == [
        f"<action_{action}>" for action in range(4)
    ]
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encode = checkpoint_encoder(tmp_path, vocabulary)
    words = prompt_text("reach the red block").replace("\n", " ").split(" ")
    # The question mark, the line's end and "Out:" are one word; the begin token and the blank stand around.
    assert len(encode(prompt_text("reach the red block"))) == len(words) - 1 + 2
    odd = encode("\u00e9")
    assert 0 not in odd
    assert [tokenizer.id_to_token(number) for number in odd if 3 <= number < 259] == ["<0xC3>", "<0xA9>"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("policy=small_vla", "policy=small_vla has no such format"),
        ("policy.base=elsewhere", "a fresh checkpoint starts from no other"),
        ("policy.heads=4", "policy.heads=4, but in this format the name of a tower says"),
    ],
)
def test_what_it_cannot_write_is_refused(
    tmp_path: Path, argument: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = [f"out={tmp_path / 'new'}", ENV, argument]
    assert main(fresh.run, "", argv=given) == 2
    assert message in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_never_overwritten(written: Path) -> None:
    with pytest.raises(CheckpointError, match="never overwritten"):
        fresh.run([f"out={written}", ENV])
    stored = json.loads((written / "config.json").read_text())
    assert stored["n_action_bins"] == 16
    assert list(stored["norm_stats"]) == ["tabletop"]
