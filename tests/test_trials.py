"""Evaluation trial by trial: what it counts, that nobody's company changes a trial, that it goes on where it stopped."""

from __future__ import annotations

import json
from pathlib import Path
from platform.evaluate import run
from platform.metrics import read_rows
from platform.trial_pool import TrialPool
from platform.trial_table import by_suite, table_markdown
from platform.trials import Outcome, Trial
from typing import Any

import pytest

from configs.errors import CheckpointError, ConfigError, EnvError
from configs.loader import load_config
from configs.schema import EvaluateConfig
from tests.run_helper import POLICY, write_demos

REACH = ["env=tabletop_reach", "env.max_episode_steps=16"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained policy of ``REACH``."""
    from platform.context import Context
    from platform.models import save_model
    from platform.weights import module_arrays

    from configs.world_model import WorldModelConfig

    config = load_config(EvaluateConfig, [*REACH, *POLICY])
    context = Context(config.env, config.policy, WorldModelConfig(), 0, "cpu")
    folder = tmp_path_factory.mktemp("model") / "policy"
    save_model(folder, context.describe("policy"), module_arrays(context.make_policy()), {})
    return folder


def evaluated(folder: Path, *overrides: str, code: int = 0) -> dict[str, Any]:
    """``table.json`` of an evaluation."""
    assert run([f"run.dir={folder}", *overrides]) == code
    table: dict[str, Any] = json.loads((folder / "table.json").read_text())
    return table


def test_the_number_of_workers_and_an_interruption_change_no_trial(policy: Path, tmp_path: Path) -> None:
    argv = [
        *REACH,
        *POLICY,
        f"policy.path={policy}",
        "evaluation.trials=5",
        "evaluation.choices=[greedy,sampled]",
    ]
    one = evaluated(tmp_path / "one", *argv)
    two = evaluated(tmp_path / "two", *argv, "evaluation.workers=2")
    assert one["trials"] == two["trials"]
    assert len({trial["digest"] for trial in one["trials"]}) == 10
    rows = (tmp_path / "two" / "trials.jsonl").read_text().splitlines()
    torn = "\n".join([*rows[:4], rows[4][:30]])
    (tmp_path / "two" / "trials.jsonl").write_text(torn)
    kept = {row["digest"] for row in read_rows(tmp_path / "two" / "trials.jsonl")}
    assert run([f"run.resume={tmp_path / 'two'}"]) == 0
    again = json.loads((tmp_path / "two" / "table.json").read_text())
    assert again["trials"] == one["trials"]
    assert len(read_rows(tmp_path / "two" / "trials.jsonl")) == 10
    assert len(kept) == 4


def test_what_never_moves_and_the_expert_have_known_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    far = ["env=tabletop", "env.tasks=[pick_place,reach]", "evaluation.trials=6", "evaluation.videos=false"]
    still = evaluated(tmp_path / "still", *far, "evaluation.actor=still", "evaluation.tasks=[0]")
    assert (still["suites"][0]["successes"], still["suites"][0]["trials"]) == (0, 6)
    expert = evaluated(tmp_path / "expert", *far, "evaluation.actor=expert")
    assert [(task["task"], task["successes"]) for task in expert["suites"][0]["tasks"]] == [
        ("pick_place", 6),
        ("reach", 6),
    ]
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["greedy"]["rate"] == 1.0
    assert line["env"] == "tabletop"


def test_each_trial_has_a_film_and_none_is_overwritten(tmp_path: Path) -> None:
    argv = [*REACH, "evaluation.actor=still", "evaluation.trials=2"]
    evaluated(tmp_path / "run", *argv)
    films = sorted((tmp_path / "run" / "videos").rglob("*.mp4"))
    assert [film.name for film in films] == ["task_00_trial_00.mp4", "task_00_trial_01.mp4"]
    first = films[0].read_bytes()
    (tmp_path / "run" / "trials.jsonl").write_text("")
    assert run([f"run.resume={tmp_path / 'run'}"]) == 0
    assert films[0].read_bytes() == first
    assert (films[0].parent / "task_00_trial_00_2.mp4").is_file()
    with pytest.raises(CheckpointError, match="never overwritten"):
        run([f"run.dir={tmp_path / 'run'}", *argv])


def test_an_environment_that_crashes_is_an_error_and_no_failure(tmp_path: Path) -> None:
    """Forty steps are good: the first trial of a worker ends, the second one breaks, a new environment goes on."""
    crash = [
        "env=gymnasium", "env.id=tests.crashing_env:Crash-v0", "env.max_episode_steps=24", "env.camera_size=32",
        "evaluation.actor=still", "evaluation.trials=4", "evaluation.videos=false",
    ]  # fmt: skip
    table = evaluated(tmp_path / "run", *crash, code=3)
    assert [trial["outcome"] for trial in table["trials"]] == ["failure", "error", "failure", "error"]
    assert "the simulator fell over" in table["trials"][1]["error"]
    suite = table["suites"][0]
    assert (suite["trials"], suite["errors"], suite["rate"]) == (4, 2, 0.0)
    assert "the simulator fell over" in (tmp_path / "run" / "table.md").read_text()
    # What ended in an error is tried again, in an environment of its own: that is its third and fourth trial.
    assert run([f"run.resume={tmp_path / 'run'}"]) == 3
    rows = json.loads((tmp_path / "run" / "table.json").read_text())["trials"]
    assert [row["outcome"] for row in rows] == ["failure", "failure", "failure", "error"]


def test_another_policy_cannot_continue(policy: Path, tmp_path: Path) -> None:
    argv = [*REACH, *POLICY, f"policy.path={policy}", "evaluation.trials=1", "evaluation.videos=false"]
    evaluated(tmp_path / "run", *argv)
    (tmp_path / "run" / "policy.json").write_text(json.dumps({"sha256": "another"}))
    with pytest.raises(CheckpointError, match="policy has changed"):
        run([f"run.resume={tmp_path / 'run'}"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["env=tabletop_reach", "evaluation.tasks=[1]"], "has no task 1"),
        (["env=tabletop_reach", "evaluation.perturbations=[swap]"], "no perturbed suites"),
        (["env=gymnasium", "env.id=Pendulum-v1"], "no scripted expert"),
    ],
)
def test_mistakes_are_seen_before_anything_is_made(overrides: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        run([f"run.dir={tmp_path / 'run'}", "evaluation.actor=expert", *overrides])
    assert not list(tmp_path.iterdir())


def test_a_dataset_is_nothing_to_be_evaluated_in(tmp_path: Path) -> None:
    demos = write_demos(tmp_path / "demos", episodes=2)
    with pytest.raises(EnvError, match="nothing can act in it"):
        run([f"run.dir={tmp_path / 'run'}", "evaluation.actor=still", "env=recorded", f"env.data={demos}"])
    assert not (tmp_path / "run").exists()


def test_an_evaluation_that_cannot_begin_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise EnvError("a package is missing")

    monkeypatch.setattr(TrialPool, "run", fail)
    with pytest.raises(EnvError, match="a package is missing"):
        run([f"run.dir={tmp_path / 'run'}", *REACH, "evaluation.actor=still"])
    assert not (tmp_path / "run").exists()


def test_an_evaluation_is_continued_as_it_was_begun(tmp_path: Path) -> None:
    evaluated(
        tmp_path / "run", *REACH, "evaluation.actor=still", "evaluation.trials=1", "evaluation.videos=false"
    )
    for other in ("evaluation.trials=3", "env=tabletop", "run.device=cpu"):
        with pytest.raises(ConfigError, match=rf"continued as it was begun \({other}\)"):
            run([f"run.resume={tmp_path / 'run'}", other, "evaluation.workers=2"])
    assert run([f"run.resume={tmp_path / 'run'}", "evaluation.workers=2"]) == 0


def rows(suite: str, successes: int, failures: int, errors: int) -> list[tuple[Trial, Outcome]]:
    kinds = ["success"] * successes + ["failure"] * failures + ["error"] * errors
    return [(Trial(suite, 0, "lift", k, "greedy", k), Outcome(kind)) for k, kind in enumerate(kinds)]


def test_counts_rates_and_differences_by_hand() -> None:
    """8 of 10 judged: Wilson gives 49.0 to 94.3 %; the error counts in neither."""
    table = [*rows("easy", 8, 2, 1), *rows("hard", 3, 7, 0)]
    (easy, tasks), (hard, _) = by_suite(table)
    assert (easy.trials, easy.successes, easy.errors, len(tasks)) == (11, 8, 1, 1)
    assert easy.rate is not None
    assert (round(easy.rate.low, 3), round(easy.rate.high, 3)) == (0.49, 0.943)
    assert hard.to_json()["rate"] == 0.3
    text = table_markdown(table, {"actor": "still", "env": "easy", "conditions": {}})
    assert "| **all** | 11 | 8 | 1 | 80.0 % | 49.0 to 94.3 |" in text
    assert "| hard, greedy | 30.0 % | 10.8 to 60.3 | -50.0 |" in text


def test_a_task_that_is_named_twice_counts_once() -> None:
    """Its trials twice would make the interval narrower than it is."""
    given = load_config(EvaluateConfig, ["env=tabletop", "evaluation.tasks=[1,0,1]"])
    assert given.evaluation.tasks == [1, 0]
