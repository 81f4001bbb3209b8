"""LIBERO-PRO's perturbed suites: what is perturbed, what is not, and the table of robustness."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from platform.command import main  # isort: skip

pytest.importorskip("libero", reason="pip install 'reverie-rl[libero]'")


@pytest.mark.parametrize("suite", ["libero_spatial", "libero_object", "libero_goal", "libero_10"])
def test_every_perturbed_suite_has_the_tasks_of_its_own(suite: str) -> None:
    from platform.envs.libero_suites import PERTURBATIONS, suite_tasks

    plain = suite_tasks(suite)
    for name in PERTURBATIONS:
        perturbed = suite_tasks(f"{suite}_{name}")
        assert len(perturbed) == len(plain) == 10
        for task in perturbed:
            assert Path(task.problem_file).is_file()
    words = [task.instruction for task in suite_tasks(f"{suite}_lan")]
    assert all(one != task.instruction for one, task in zip(words, plain, strict=True))
    swapped = [task.instruction for task in suite_tasks(f"{suite}_swap")]
    assert swapped == [task.instruction for task in plain]


def test_an_instruction_with_a_typographic_apostrophe_is_in_the_observation_space() -> None:
    from platform.envs.libero import observation_space
    from platform.envs.libero_suites import libero_spec

    from configs.libero import LiberoConfig

    spec = libero_spec(LiberoConfig(suite="libero_goal_lan"))
    assert "open the cabinet's middle drawer" in spec.instructions
    space = observation_space(spec)["instruction"]
    assert all(space.contains(text) for text in spec.instructions)


def test_a_perturbed_suite_starts_elsewhere_and_stands_in_the_table_of_robustness(tmp_path: Path) -> None:
    from platform.envs.libero_suites import init_states, suite_tasks
    from platform.evaluate import run

    plain, swapped = (init_states(suite_tasks(name)[0]) for name in ("libero_object", "libero_object_swap"))
    assert plain.shape[1] == swapped.shape[1]
    assert np.abs(plain[0] - swapped[0]).max() > 0.05
    argv = [
        "env=libero_object", f"run.dir={tmp_path / 'run'}", "evaluation.actor=still", "evaluation.tasks=[0]",
        "evaluation.trials=1", "evaluation.perturbations=[swap]", "evaluation.videos=false", "env.camera_size=16",
        "env.max_episode_steps=8", "policy=small_vla_libero",
    ]  # fmt: skip
    assert main(run, "usage", argv=argv) == 0
    table = json.loads((tmp_path / "run" / "table.json").read_text())
    assert [suite["suite"] for suite in table["suites"]] == ["libero_object", "libero_object_swap"]
    assert [trial["outcome"] for trial in table["trials"]] == ["failure", "failure"]
    assert table["trials"][0]["digest"] != table["trials"][1]["digest"]
    page = (tmp_path / "run" / "table.md").read_text()
    assert "| libero_object_swap, greedy | 0.0 % |" in page.split("## Robustness")[1]
