"""pi0 as a policy: the flow is transformers', its log-probabilities are exact, checkpoints that do not fit are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "PI0ForConditionalGeneration"):
    pytest.skip("this transformers has no PI0", allow_module_level=True)

from configs.errors import CheckpointError, ConfigError  # noqa: E402
from configs.pi0 import PI0Config  # noqa: E402
from policies.base import PolicySpec, make_policy, token_log_probs  # noqa: E402
from policies.cloning import cloning_loss  # noqa: E402
from policies.gaussian import gaussian_logits, openvla_centres, uniform_centres  # noqa: E402
from policies.openvla.actions import OpenVLATokenizer  # noqa: E402
from policies.pi0.policy import PI0Policy  # noqa: E402
from policies.tokens import ActionTokenizer  # noqa: E402
from tests.openvla_helper import make_spec, observe  # noqa: E402


def make(config: PI0Config | None = None, spec: PolicySpec | None = None) -> PI0Policy:
    torch.manual_seed(0)
    policy = make_policy(config or PI0Config(chunk=2, replan=2), spec or make_spec())
    assert isinstance(policy, PI0Policy)
    torch.nn.init.normal_(policy.value_head.out.weight, std=0.3)
    return policy.eval()


def test_tokens_stand_for_the_middles_that_the_logits_are_at() -> None:
    tokens = torch.arange(16).numpy()[:, None]
    assert torch.allclose(
        uniform_centres(16), torch.from_numpy(ActionTokenizer([-1.0], [1.0], 16).decode(tokens))[:, 0]
    )
    published = torch.from_numpy(OpenVLATokenizer([-1.0], [1.0], 16).decode(tokens))[:, 0]
    assert torch.allclose(openvla_centres(16)[:15], published[:15])


def test_the_distribution_is_a_gaussian_over_the_bins() -> None:
    """Three bins at -2/3, 0, 2/3 and sigma 2/3 around 0: weights e^-1/2, 1, e^-1/2; many bins: a Gaussian's entropy."""
    log_p = gaussian_logits(torch.zeros(1), uniform_centres(3), 2 / 3).log_softmax(dim=-1)[0]
    total = 1 + 2 * math.exp(-0.5)
    assert log_p.exp().tolist() == pytest.approx([math.exp(-0.5) / total, 1 / total, math.exp(-0.5) / total])
    logits = gaussian_logits(torch.tensor([0.1]), uniform_centres(1000), 0.05)
    _, entropy = token_log_probs(logits, torch.zeros(1, dtype=torch.int64))
    assert float(entropy) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 0.05**2 / 0.002**2), abs=1e-3)  # fmt: skip
    far = gaussian_logits(torch.tensor([9.0]), uniform_centres(1000), 0.05).log_softmax(dim=-1)
    assert torch.isfinite(far).all()


def test_the_gradient_is_the_score() -> None:
    mean = torch.tensor([0.2], requires_grad=True)
    centres = uniform_centres(64)
    logits = gaussian_logits(mean, centres, 0.1)
    log_p, _ = token_log_probs(logits, torch.tensor([40]))
    log_p.sum().backward()
    expected = (centres[40] - (logits.softmax(dim=-1) * centres).sum()) / 0.1**2
    assert mean.grad is not None
    assert float(mean.grad) == pytest.approx(float(expected.detach()), rel=1e-4)


def test_the_flow_is_that_of_transformers() -> None:
    policy = make(PI0Config(chunk=2, replan=2, steps=5), make_spec(cameras=("top", "wrist")))
    obs = observe(policy, 3)
    frames = torch.stack([policy.prepare(obs.images[name])[0] for name in ("top", "wrist")], dim=1)
    rows = torch.tensor([0, 1, 0])
    expected = policy.network.sample_actions(
        state=obs.proprio, input_ids=policy.prompt_ids[rows], pixel_values=frames,
        noise=policy.start_noise.expand(3, -1, -1), attention_mask=policy.prompt_kept[rows].long(),
        pixel_attention_mask=torch.ones(3, 2, dtype=torch.bool), num_steps=5,
    )  # fmt: skip
    logits = policy(obs).logits
    wanted = gaussian_logits(expected, policy.centres, policy.sigma)
    assert torch.allclose(logits, wanted, atol=1e-2)
    assert torch.equal(logits.argmax(dim=-1), wanted.argmax(dim=-1))
    assert not torch.allclose(expected[0], expected[2], atol=1e-3)


def test_recorded_log_probs_are_recomputed_in_other_batches_and_beside_padding() -> None:
    policy = make()
    assert not policy.prompt_kept.all()
    obs = observe(policy, 6)
    tokens, log_probs, values = policy.act(obs, greedy=False, generator=torch.Generator().manual_seed(1))
    assert tokens.shape == (6, 2, 3)
    policy.train()
    whole, _ = policy.log_probs(obs, tokens)
    assert torch.allclose(whole, log_probs, atol=1e-4)
    assert torch.allclose(policy.value(policy.features(obs)), values, atol=1e-4)
    for part in (slice(0, 1), slice(1, 4), slice(5, 6)):
        again, _ = policy.log_probs(obs.take(part), tokens[part])
        assert torch.allclose(again, log_probs[part], atol=1e-4)
    own = [row for row in range(6) if row % 2 == 0]
    kept = policy.prompt_kept[0]
    policy.prompt_ids, policy.prompt_kept = policy.prompt_ids[:1, kept], policy.prompt_kept[:1, kept]
    policy.known_rows = policy.known_rows[:1]
    alone, _ = policy.log_probs(obs.take(torch.tensor(own)), tokens[own])
    assert torch.allclose(alone, log_probs[own], atol=1e-4)


@pytest.mark.parametrize("frozen", [False, True])
def test_losses_train_their_own_part(frozen: bool) -> None:
    policy = make(PI0Config(chunk=2, replan=2, freeze_vlm=frozen))
    obs, tokens = observe(policy, 2), torch.zeros(2, 2, 3, dtype=torch.int64)
    policy.log_probs(obs, tokens)[0].sum().backward()
    reached = {name for name, each in policy.network.named_parameters() if each.grad is not None}
    assert any(name.startswith("action_out_proj") for name in reached)
    assert any("vlm" in name for name in reached) != frozen
    assert all(each.grad is None for each in policy.critic_parameters())
    policy.zero_grad(set_to_none=True)
    policy.value(policy(obs, tokens).features).sum().backward()
    assert all(each.grad is None for each in policy.actor_parameters())


def test_cloning_moves_the_flow_to_the_actions() -> None:
    policy = make().train()
    obs = observe(policy, 8)
    tokens = torch.randint(100, 156, (8, 1, 1), generator=torch.Generator().manual_seed(0)).expand(-1, 2, 3)
    valid = torch.ones(8, 2, dtype=torch.bool)
    optimizer = torch.optim.Adam(policy.actor_parameters(), lr=5e-3)
    errors = []
    for _ in range(60):
        result = cloning_loss(policy(obs).logits, tokens, valid)
        errors.append(float(result.statistics["bin_error"]))
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
    assert errors[-1] < errors[0] / 8


def write_base(folder: Path, spec: PolicySpec, **changes: Any) -> Path:
    """What transformers writes of a tiny model, its processor's statistics, and a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    source = make(PI0Config(chunk=4, replan=4), spec)
    source.network.save_pretrained(folder)
    stored = {
        "processor_class": "PI0Processor", "actions_mean": [0.5, 0.0, 0.0], "actions_std": [0.5, 1.0, 0.25],
        "state_mean": [0.1, 0.2, 0.3], "state_std": [0.5, 1.0, 2.0],
    } | changes  # fmt: skip
    (folder / "processor_config.json").write_text(json.dumps(stored))
    words = sorted({word for text in spec.instructions for word in text.split()})
    vocabulary = {word: i for i, word in enumerate(["<unk>", "<bos>", "<eos>", "\n", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_base(tmp_path / "base", make_spec(chunk=4))


def test_a_checkpoint_of_transformers_acts_in_its_own_units(base: Path) -> None:
    spec = make_spec(chunk=2)
    policy = make(PI0Config(base=str(base), chunk=2, replan=2), spec)
    assert policy.network.config.chunk_size == 4
    assert policy.action_scale.tolist() == pytest.approx([0.5, 1.0, 0.25])
    assert policy.action_offset.tolist() == pytest.approx([0.5, 0.0, 0.0])
    obs = observe(policy, 2)
    state = (obs.proprio - torch.tensor([0.1, 0.2, 0.3])) / torch.tensor([0.5, 1.0, 2.0])
    assert torch.allclose(policy._state(obs), state, atol=1e-5)
    logits = policy(obs).logits
    assert logits.shape == (2, 2, 3, 256)
    assert policy.prompt_ids[0, 16:].tolist()[0] == 1
    frozen = make(PI0Config(base=str(base), chunk=2, replan=2, freeze_vlm=True), spec)
    assert any(name.startswith("network.model.vlm") for name in frozen.frozen_names)
    assert not any("action_out_proj" in name for name in frozen.frozen_names)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "chunk": ({"chunk": 6, "replan": 6}, "the checkpoint has 4 actions a chunk, policy.chunk has 6"),
    "dimensions": ({"action_dim": 4}, "the checkpoint has 3 action dimensions, the environment has 4"),
    "missing": ({"drop": "action_out_proj.bias"}, "1 tensors are missing, the first is action_out_proj.bias"),
    "extra": ({"add": "head.weight"}, "1 tensors have no place in the model, the first is head.weight"),
    "shape": ({"resize": "action_out_proj.bias"}, "1 tensors have another shape than the model's"),
    "another model": ({"config": {"model_type": "openvla"}}, "config.json is of a openvla, policy=pi0 reads"),
    "no statistics": ({"processor": {"actions_mean": None}}, "has no actions_mean and actions_std"),
    "few statistics": ({"processor": {"state_mean": [0.0]}}, "state statistics are of 1 dimensions, the environment has 3"),
    "no tokenizer": ({"remove": "tokenizer.json"}, "tokenizer.json is missing"),
    "no weights": ({"remove": "model.safetensors"}, "its weights cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path: Path, what: str) -> None:
    from safetensors.torch import load_file, save_file

    changes, words = REFUSED[what]
    folder = write_base(tmp_path / "base", make_spec(chunk=4), **changes.get("processor", {}))
    described = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(described | changes.get("config", {})))
    if "remove" in changes:
        (folder / changes["remove"]).unlink()
    else:
        weights = load_file(folder / "model.safetensors")
        weights.pop(changes.get("drop", ""), None)
        weights |= {changes[key]: torch.zeros(2) for key in ("add", "resize") if key in changes}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    chunk = changes.get("chunk", 2)
    config = PI0Config(base=str(folder), chunk=chunk, replan=chunk)
    with pytest.raises(CheckpointError, match=words) as refusal:
        make(config, make_spec(chunk=chunk, action_dim=changes.get("action_dim", 3)))
    assert "\n" not in str(refusal.value)


def test_sizes_that_do_not_go_together() -> None:
    for changes, words in (({"replan": 5}, "replan=5"), ({"width": 30, "heads": 4}, "width=30"), ({"image_size": 30}, "image_size=30")):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            PI0Config(**changes)  # type: ignore[arg-type]
    wide = PolicySpec({"top": (32, 48)}, 3, 4, 4, 3, 256, (-1.0,) * 3, (1.0,) * 3, ("reach the red block",))
    with pytest.raises(ConfigError, match="32 x 48 pixels, pi0 reads squares"):
        make(PI0Config(), wide)


def test_memory_is_counted_from_shapes() -> None:
    from policies.sizes import policy_size

    for frozen in (False, True):
        config = PI0Config(chunk=2, replan=2, freeze_vlm=frozen)
        policy, size = make(config), policy_size(config, make_spec())
        assert size is not None
        counts = {train: sum(x.numel() for x in policy.parameters() if x.requires_grad == train) for train in (True, False)}  # fmt: skip
        assert size.frozen == counts[False]
        # Proprio's part of the value head's input is not counted.
        assert size.trained == pytest.approx(counts[True], rel=0.01)


def test_a_folder_of_transformers_given_as_path_is_the_base(base: Path) -> None:
    given = PI0Config(path=str(base))
    assert (given.path, given.base) == (None, str(base))


def test_a_run_trains_it(tmp_path: Path) -> None:
    from platform import train

    from tests.run_helper import FAST, POLICY

    settings = [text for text in FAST if text not in POLICY]
    given = [
        "real", *settings, "policy=pi0", "policy.width=16", "policy.expert_width=16", "policy.layers=1", "policy.bins=16",
        "policy.vision_layers=1", "host=serial", "run.stop.updates=2", f"run.dir={tmp_path / 'run'}", "rollout.envs=4",
        "algorithm.critic_warm_up=0", "evaluation.trials=2", "evaluation.online_trials=2", "run.log_every_s=0.01",
    ]  # fmt: skip
    assert train.run(given) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    gaps = [
        row["policy/rollout_train_logprob_gap"] for row in rows if "policy/rollout_train_logprob_gap" in row
    ]
    assert gaps
    assert max(gaps) < 1e-4
