"""What the command line of an experiment is multiplied out to, and what is wrong with it in one line."""

from __future__ import annotations

from pathlib import Path
from platform.sweep import KINDS, make_plan

import pytest

from configs.errors import ConfigError


def names(*argv: str) -> list[str]:
    """Runs in order."""
    return [run.name for run in make_plan(list(argv)).runs]


def test_nothing_said_is_every_schedule_with_three_seeds() -> None:
    """In the order of the schema, in both worlds."""
    plan = make_plan([])
    assert plan.arms == ["fixed", "linear", "validated", "drift", "uncertain"] == list(KINDS)
    assert [run.seed for run in plan.runs] == [0, 1, 2] * 5
    assert {run.config.mode for run in plan.runs} == {"real+imagined"}
    assert [run.config.imagination.schedule.kind for run in plan.runs[::3]] == plan.arms
    assert [run.config.run.seed for run in plan.runs] == [0, 1, 2] * 5


def test_lists_multiply_and_name_the_arms() -> None:
    """Hydra's comma lists, choices and ranges; only what takes several values is in the name."""
    assert names("imagined", "imagination/schedule=fixed,drift", "run.seed=range(4,6)", "algorithm.sigma=0.3") == [
        "fixed seed 4", "fixed seed 5", "drift seed 4", "drift seed 5",
    ]  # fmt: skip
    assert names("imagination/schedule=drift", "run.seed=1", "algorithm.sigma=choice(0.3,0.5)") == [
        "drift algorithm.sigma=0.3 seed 1", "drift algorithm.sigma=0.5 seed 1",
    ]  # fmt: skip
    assert names("imagination/schedule=drift", "run.seed=1,2", "run.seed=3") == ["drift seed 3"]
    assert make_plan(["mode=imagined"]).runs[0].config.mode == "imagined"


def test_a_schedule_takes_the_keys_that_it_has(tmp_path: Path) -> None:
    """Horizon is fixed's, updates are linear's, start and end belong to both linear and drift."""
    plan = make_plan(
        [
            "imagination/schedule=fixed,linear,drift", "run.seed=0", "imagination.schedule.horizon=3,7",
            "imagination.schedule.end=9", "imagination.schedule.updates=50", f"experiment.dir={tmp_path}",
        ]
    )  # fmt: skip
    schedules = [run.config.imagination.schedule for run in plan.runs]
    assert [getattr(each, "horizon", None) for each in schedules] == [3, 7, None, None]
    assert [getattr(each, "end", None) for each in schedules] == [None, None, 9, 9]
    assert [getattr(each, "updates", None) for each in schedules] == [None, None, 50, None]
    assert [run.folder.relative_to(tmp_path).as_posix() for run in plan.runs] == [
        "fixed_imagination.schedule.horizon=3/seed_0", "fixed_imagination.schedule.horizon=7/seed_0",
        "linear/seed_0", "drift/seed_0",
    ]  # fmt: skip
    assert plan.runs[0].config.run.dir == str(plan.runs[0].folder)


def test_a_preset_gives_all_schedules_the_same_ends() -> None:
    """The quick start runs from 4 to 6 decisions."""
    plan = make_plan(["preset=quickstart", "run.seed=0", "imagination.schedule.start=2"])
    assert [getattr(run.config.imagination.schedule, "end", 6) for run in plan.runs] == [6] * 5
    assert [getattr(run.config.imagination.schedule, "start", 2) for run in plan.runs] == [2] * 5


MISTAKES: dict[str, tuple[list[str], str]] = {
    "schedule": (["imagination/schedule=fixed,liner"], "did you mean linear?"),
    "key of no schedule": (["imagination.schedule.horizn=3"], "did you mean horizon?"),
    "key of another": (
        ["imagination/schedule=fixed", "imagination.schedule.end=3"],
        "belongs to linear, validated",
    ),
    "key": (["algorithm.bacth=3,4"], "did you mean algorithm.batch?"),
    "value": (["algorithm.batch=512,many"], "algorithm.batch=many does not fit"),
    "range": (["imagination.schedule.start=9", "imagination.schedule.end=8"], "raise end"),
    "folder": (["run.dir=x"], "experiment.dir"),
    "resume": (["run.resume=x"], "the same command"),
    "own key": (["experiment.paralel=2"], "did you mean experiment.parallel?"),
    "own value": (["experiment.parallel=0"], "above 0"),
    "mode": (["rael"], "did you mean real?"),
    "real": (["real"], "imagines nothing"),
    "frozen": (["imagined", "world_model.frozen=true", "data=x"], "no real steps"),
    "syntax": (["run.seed=1,"], "cannot read"),
    "word": (["imagined", "fast"], "write key=value"),
    "same folder": (["imagination/schedule=fixed", "run.name=a/b,a:b"], "would share"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_line(case: str) -> None:
    """With what is wrong and a remedy."""
    argv, words = MISTAKES[case]
    with pytest.raises(ConfigError) as caught:
        make_plan(argv)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
