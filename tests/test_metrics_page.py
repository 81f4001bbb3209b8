"""``docs/metrics.md`` names what a run writes, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from tests.run_helper import FAST, write_demos

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
TEXT_ONLY = {"obs_model/first_val_loss"}
"""Known only where pretraining wrote a card."""


def documented() -> set[str]:
    names: set[str] = set()
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            names |= set(re.findall(r"`([a-z0-9_/<>]+)`", line.split("|")[1]))
    return names


def written(folder: Path, mode: str, *overrides: str) -> set[str]:
    from platform.metrics import read_rows
    from platform.train import run

    argv = [mode, *FAST, "host=serial", f"run.dir={folder}", "run.log_every_s=0.001", *overrides]
    assert run(argv) == 0
    rows = read_rows(folder / "metrics.jsonl")
    return {pattern(name) for row in rows for name in row}


def pattern(name: str) -> str:
    """As the page writes it."""
    name = re.sub(r"^(policy/\w+)/lag_.*", r"\1/lag_<range>", name)
    name = re.sub(r"^idle_ratio/.*", "idle_ratio/<role>", name.replace("rollout_0", "rollout_<i>"))
    name = re.sub(r"^imagine/starts/.*", "imagine/starts/<kind>", name)
    return re.sub(r"up_to_\d+", "up_to_<n>", name)


def test_the_page_names_every_metric(tmp_path: Path) -> None:
    data = write_demos(tmp_path / "demos", 60)
    names = written(
        tmp_path / "gipo", "real+imagined", f"data={data}", "run.stop.updates=6", "evaluation.every=4",
        "evaluation.quality_every=20", "world_model.obs_model.every=1", "world_model.reward_model.every=1",
        "world_model.reward_model.calibration=platt", "world_model.reward_model.hard_negatives=0.25",
    )  # fmt: skip
    names |= written(tmp_path / "ppo", "real", "run.stop.updates=2", "algorithm=ppo")
    names |= written(
        tmp_path / "decoupled",
        "real",
        "run.stop.updates=3",
        "algorithm=decoupled_ppo",
        "algorithm.anchor=interpolate",
    )
    # A gap needs starts in the policy's own episodes, a line of the guard something to tell.
    needs_luck = {"imagine/gap_to_real", "guard/last"}
    # Slow machines have long waits, replicas die on Ray.
    needs_luck |= {"inference/waits/longer", "inference/asked_again/rollout_<i>"}
    assert names <= documented()
    needs_deaths = {"host/restarts/<role>"}
    needs_workers = {"rollout/busy/rollout_<i>", "rollout/slots/rollout_<i>"}
    assert documented() - names <= TEXT_ONLY | needs_luck | needs_workers | needs_deaths
