"""Large policies through the commands: the plan, cloning, both worlds, checkpoints."""

import json
from pathlib import Path
from platform.context import Context, make_context
from platform.logprob_gap import NAME
from platform.memory_plan import check_memory, memory_lines, policy_memory
from platform.models import read_model
from typing import Any

import pytest

pytest.importorskip("transformers")

from configs.errors import CheckpointError, DataError, ResourceError
from configs.loader import load_config
from configs.schema import DemosConfig, PretrainConfig, TrainConfig
from tests.run_helper import FAST, POLICY

OPENVLA = [
    "policy=openvla", "policy.width=32", "policy.heads=2", "policy.layers=1", "policy.vision_width=32",
    "policy.vision_layers=2", "policy.bins=16", "policy.proprio=true",
]  # fmt: skip
SETTINGS = [text for text in FAST if text not in POLICY]


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from platform.demos import write_demos

    folder = tmp_path_factory.mktemp("openvla") / "demos"
    write_demos(
        load_config(DemosConfig, [f"out={folder}", "episodes=60", "policy=openvla", "policy.bins=16"])
    )
    return folder


def config(mode: str, *overrides: str) -> TrainConfig:
    return load_config(TrainConfig, [mode, *SETTINGS, *OPENVLA, "host=serial", *overrides])


@pytest.mark.parametrize("decoding", ["parallel", "autoregressive"])
def test_cloned_then_trained_in_both_worlds(demos: Path, tmp_path: Path, decoding: str) -> None:
    from platform import pretrain, train

    chosen = f"policy.decoding={decoding}"
    argv = [
        "policy", f"data={demos}", f"out={tmp_path / 'models'}", "policy_budget.updates=2", "policy_budget.batch=16",
        "policy_budget.validate_every=1", "evaluation.online_trials=4", "evaluation.envs=4", *OPENVLA, chosen,
    ]  # fmt: skip
    assert pretrain.run(argv) == 0
    assert load_config(PretrainConfig, argv).policy.decoding == decoding  # type: ignore[union-attr]
    given = [
        "real+imagined", *SETTINGS, *OPENVLA, chosen, "host=serial", f"data={demos}", "run.stop.updates=2",
        f"policy.path={tmp_path / 'models' / 'policy'}", f"run.dir={tmp_path / 'run'}", "algorithm.critic_warm_up=0",
        "evaluation.trials=4", "evaluation.online_trials=4", "run.log_every_s=0.01",
    ]  # fmt: skip
    assert train.run(given) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    gaps = [row[NAME] for row in rows if NAME in row]
    assert gaps
    assert 0 <= max(gaps) < 1e-4
    context = make_context(config("real", chosen), seed=0, device="cpu")
    assert read_model(tmp_path / "run" / "checkpoints" / "last" / "policy", "policy", context)
    with pytest.raises(CheckpointError, match="chunk=4, this run has chunk=8"):
        read_model(
            tmp_path / "models" / "policy", "policy", _context("policy.chunk=8", "policy.replan=8", chosen)
        )


def _context(*overrides: str) -> Context:
    return make_context(config("real", *overrides), seed=0, device="cpu")


def test_a_dataset_of_other_tokens_is_refused(demos: Path) -> None:
    from platform.preflight import check_inputs

    small = load_config(TrainConfig, ["real", *FAST, "host=serial", f"data={demos}"])
    with pytest.raises(DataError, match=r"its action tokens are .*openvla"):
        check_inputs(small, make_context(small, seed=0, device="cpu"))


def sizes(**shape: Any) -> TrainConfig:
    return config("real+imagined", *(f"policy.{name}={value}" for name, value in shape.items()))


def test_memory_is_counted_from_shapes() -> None:
    plain = sizes(freeze_vision="false")
    context = make_context(plain, seed=0, device="cpu")
    planned = policy_memory(plain, context)
    assert planned is not None
    size, roles = planned
    policy = context.make_policy()
    network = sum(each.numel() for each in policy.network.parameters())  # type: ignore[union-attr, operator]
    assert size.frozen == 0
    # The value head is counted with one step, since the number of its steps is nothing beside the rest.
    assert network <= size.trained <= sum(each.numel() for each in policy.parameters())
    assert size.head == 16 * 32
    assert size.head_full == 320 * 32
    by_role = {role.role: role for role in roles}
    assert by_role["inference_0"].total == 2 * 4 * size.trained
    assert by_role["policy_learner"].parts["gradients and moments"] == 3 * 4 * size.trained
    assert {"imagination", "evaluator", "store"} <= set(by_role)


def test_adapters_shrink_what_trains_and_half_precision_what_does_not() -> None:
    pytest.importorskip("peft")
    whole, adapted = (
        policy_memory(each, make_context(each, seed=0, device="cpu"))
        for each in (sizes(), sizes(lora_rank=2, freeze_vision="true", frozen_dtype="bfloat16"))
    )
    assert whole is not None
    assert adapted is not None
    assert adapted[0].trained < whole[0].trained
    assert adapted[0].frozen_bytes == 2 * adapted[0].frozen
    assert adapted[0].published_bytes == 4 * adapted[0].trained


def test_the_plan_names_the_knobs() -> None:
    pytest.importorskip("peft")
    large = sizes(slim="false")
    context = make_context(large, seed=0, device="cpu")
    text = "\n".join(memory_lines(large, context))
    for words in ("M weights", "with every token (policy.slim)", "policy_learner", "two copies"):
        assert words in text
    check_memory(large, context, 10**12)
    with pytest.raises(
        ResourceError, match=r"there are 0\.0 MB.*policy\.lora_rank=32, policy\.freeze_vision=true.*slim"
    ):
        check_memory(large, context, 1000)
    small = load_config(TrainConfig, ["real", *FAST, "host=serial"])
    assert memory_lines(small, make_context(small, seed=0, device="cpu")) == []
