"""Compare horizon schedules: python -m platform.horizon [real+imagined|imagined] [key=value ...] [key=a,b ...]

Every key of platform.train is a key here, and a comma list (also choice(...), range(...)) gives one run for each value,
as in Hydra's multirun; --multirun may be written and changes nothing. Without lists all schedules run with seeds 0, 1, 2:

  python -m platform.horizon data=<folder> policy.path=<folder> world_model.path=<folder> host=serial
  python -m platform.horizon imagination/schedule=fixed,drift run.seed=0,1,2,3,4 imagination.schedule.end=10,20 ...

imagination.schedule.* counts for the schedules that have the key. On the serial host one run per core goes side by side,
on Ray one after another. The same command again keeps finished runs, continues cut ones and tries failed ones again; it
ends with experiment.dir=<folder>/{report.md,curves.png,results.json}: success against real steps, horizon, model error at
the horizon, wall time, and which schedule wins, if any does.

--dry-run says which runs there are and what would be done.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.errors import CheckpointError, ConfigError, ResourceError
from configs.horizon import HorizonConfig
from configs.loader import config_from_yaml, config_to_dict, to_yaml
from configs.schema import TrainConfig
from configs.system import RayHostConfig

from .checkpoint import complete
from .command import main
from .plan import check_plan, memory_bytes, planned_bytes
from .side_by_side import Crew, Job
from .storage import disk_errors
from .sweep import Plan, Run, make_plan

log = logging.getLogger("reverie.horizon")

FINISHED, CUT, NEW = "finished", "cut", "new"
INTERRUPTED, FAILED = 130, 3
TO_DO = {FINISHED: "is kept", CUT: "is continued", NEW: "starts"}


def run(argv: list[str]) -> int:
    """Check everything, run what is missing, compare what there is."""
    plan = make_plan(argv)
    states, parallel = _checked(plan)
    folder = Path(plan.experiment.dir)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder) as lock:
        crew = Crew(parallel, lock)
        # Seed by seed: whoever stops early has every arm with as many seeds.
        missing = sorted((each for each in plan.runs if states[each.folder] != FINISHED), key=plan.round_of)
        jobs = [_prepare(each, states[each.folder]) for each in missing]
        finished = len(plan.runs) - len(jobs)
        log.info("%d runs, %d of them finished before, %d side by side", len(plan.runs), finished, parallel)
        ended = crew.run(jobs)
        _compare(plan, folder)
        if not ended:
            log.warning("interrupted: the same command goes on from here")
            return INTERRUPTED
        failed = [name for name, code in crew.codes.items() if code]
        for name in failed:
            log.error("%s failed; the same command tries it again", name)
        return FAILED if failed else 0


def _checked(plan: Plan) -> tuple[dict[Path, str], int]:
    """State of every run, and how many go side by side. One line for what cannot be run."""
    for arm in plan.arms:
        check_plan(next(each.config for each in plan.runs if each.arm == arm))
    states = {each.folder: _state(each) for each in plan.runs}
    on_ray = isinstance(plan.runs[0].config.host, RayHostConfig)
    parallel = plan.experiment.parallel or (1 if on_ray else len(os.sched_getaffinity(0)))
    parallel = min(parallel, len(plan.runs))
    if on_ray and parallel > 1:
        raise ConfigError(
            f"experiment.parallel={parallel}, but a run on Ray takes all cores itself",
            where="experiment.parallel", remedy="drop it, or use host=serial",
        )  # fmt: skip
    needed, there = parallel * max(planned_bytes(each.config) for each in plan.runs), memory_bytes()
    if needed > there:
        raise ResourceError(
            f"{parallel} runs side by side may take {needed / 1e9:.1f} GB, the machine has {there / 1e9:.1f} GB",
            where="experiment.parallel", remedy="lower it, or buffers.real.max_bytes and buffers.imagined.max_bytes",
        )  # fmt: skip
    return states, parallel


def _state(run: Run) -> str:
    """CheckpointError where a run with other settings is in the way."""
    stored = run.folder / "config.yaml"
    if not stored.is_file():
        return NEW
    other = _first_difference(
        config_to_dict(config_from_yaml(TrainConfig, stored)), config_to_dict(run.config)
    )
    if other:
        raise CheckpointError(
            f"{run.name} was run with another {other}", where=str(run.folder),
            remedy="choose another experiment.dir, or delete that folder",
        )  # fmt: skip
    summary = run.folder / "summary.json"
    if summary.is_file() and not json.loads(summary.read_text())["interrupted"]:
        return FINISHED
    return CUT if complete(run.folder / "checkpoints") else NEW


def _first_difference(one: Any, two: Any, path: str = "") -> str:
    """Dotted key of the first value that differs; the folder itself may be named otherwise."""
    if path == "run.dir" or one == two:
        return ""
    if not (isinstance(one, dict) and isinstance(two, dict)):
        return path
    keys = [*one, *(key for key in two if key not in one)]
    found = (_first_difference(one.get(key), two.get(key), f"{path}.{key}".lstrip(".")) for key in keys)
    return next((each for each in found if each), "")


@contextmanager
def _alone(folder: Path) -> Iterator[int]:
    """Hold the experiment's lock, which its runs inherit: nobody else works on them meanwhile."""
    with disk_errors(folder):
        lock = (folder / ".lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError(
                "another command is at work on this experiment, or its runs are still ending",
                where=str(folder), remedy="wait for it, or choose another experiment.dir",
            ) from None  # fmt: skip
        yield lock.fileno()


def _prepare(run: Run, state: str) -> Job:
    """What starts or continues the run. A run without a checkpoint has nothing to continue and begins anew."""
    with disk_errors(run.folder):
        if state == NEW:
            if run.folder.exists():
                shutil.rmtree(run.folder)
            run.folder.mkdir(parents=True)
            (run.folder / "config.yaml").write_text(to_yaml(run.config))
    command = [sys.executable, "-m", "platform.horizon_run", str(run.folder)]
    return Job(run.name, command, run.folder.with_suffix(".txt"))


def _compare(plan: Plan, folder: Path) -> None:
    """Report on the runs that are finished, if any are."""
    done = [each for each in plan.runs if _state(each) == FINISHED]
    if not done:
        return
    from .comparison import compare, report_text
    from .comparison_plot import draw

    comparison = compare(done, plan.experiment)
    text = report_text(comparison)
    if len(done) < len(plan.runs):
        text += f"\n{len(done)} of {len(plan.runs)} runs are finished.\n"
    with disk_errors(folder):
        (folder / "report.md").write_text(text)
        (folder / "results.json").write_text(json.dumps(comparison.to_json(), indent=1))
        draw(comparison, folder / "curves.png")
    sys.stdout.write(text)


def dry_run(argv: list[str]) -> int:
    """Every run with its state."""
    plan = make_plan(argv)
    states, parallel = _checked(plan)
    lines = [f"# plan: {len(plan.runs)} runs, {parallel} side by side, in {plan.experiment.dir}"]
    for arm in plan.arms:
        of_arm = [each for each in plan.runs if each.arm == arm]
        schedule = config_to_dict(of_arm[0].config)["imagination"]["schedule"]
        lines.append(
            f"{arm}: " + ", ".join(f"{key} {value}" for key, value in schedule.items() if key != "kind")
        )
        lines += [f"  seed {each.seed}: {TO_DO[states[each.folder]]} ({each.folder})" for each in of_arm]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def without_multirun(argv: list[str]) -> list[str]:
    """Hydra's flag says what this command does anyway."""
    return [text for text in argv if text not in ("--multirun", "-m")]


if __name__ == "__main__":
    sys.exit(
        main(run, __doc__ or "", config=HorizonConfig, dry_run=dry_run, argv=without_multirun(sys.argv[1:]))
    )
