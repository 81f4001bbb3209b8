"""A run of a large policy goes on where its checkpoint was written, frozen base and adapters included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")

from configs.loader import load_config
from configs.schema import TrainConfig
from tests.openvla_helper import write_checkpoint
from tests.run_helper import FAST, POLICY
from tests.test_serial_run import assert_equal

pytestmark = pytest.mark.filterwarnings("ignore:.*adapter.*")
SETTINGS = [text for text in FAST if text not in POLICY]
ROLES = ("store", "b_real", "inference_0", "rollout_0", "policy_learner")


def run(folder: Path, *overrides: str, resume: bool = False) -> dict[str, Any]:
    """In this process on the serial host; the states of its last checkpoint."""
    from platform.checkpoint import read_checkpoint
    from platform.report import summary
    from platform.runner import Runner

    folder.mkdir(exist_ok=True)
    given = ["evaluation.trials=2", "evaluation.online_trials=2", "algorithm.critic_warm_up=0", *overrides]
    settings = load_config(TrainConfig, ["real", *SETTINGS, "policy=openvla", "host=serial", *given])
    resumed = read_checkpoint(folder / "checkpoints") if resume else None
    Runner(settings, folder, resumed).run(lambda outcome: summary(settings, outcome))
    return read_checkpoint(folder / "checkpoints")[1]


def test_a_resumed_run_is_the_run_that_was_never_cut(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base")
    policy = [
        f"policy.base={base}", "policy.unnorm_key=bridge", "policy.lora_rank=2", "policy.freeze_vision=true",
        "policy.frozen_dtype=bfloat16", "rollout.envs=4",
    ]  # fmt: skip
    whole = run(tmp_path / "whole", *policy, "run.stop.updates=2")
    before = run(tmp_path / "cut", *policy, "run.stop.updates=1")
    resumed = run(tmp_path / "cut", *policy, "run.stop.updates=2", resume=True)
    for name in ROLES:
        assert_equal(whole[name], resumed[name], name)
    weights = resumed["policy_learner"]["policy"]
    assert any("lora_" in name for name in weights)
    assert not any("base_layer" in name or "vision_backbone" in name for name in weights)
    moved = [name for name, x in weights.items() if (x != before["policy_learner"]["policy"][name]).any()]
    assert any("lora_" in name for name in moved)
