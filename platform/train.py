"""Train by reinforcement learning: python -m platform.train {real,imagined,real+imagined} [key=value ...]

real           the policy learns from the real environment alone
imagined       the policy learns from imagination alone; real episodes only feed the models
               (with world_model.frozen=true there is no real environment at all)
real+imagined  the policy learns from both

--dry-run prints the resolved config and the plan, and stops. run.resume=<run directory> continues a run: nothing else has to be
given, and only run.stop, host, learner and buffers.reverb.address may be.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from configs.errors import ReverieError
from configs.loader import load_config, to_yaml
from configs.schema import TrainConfig

from .checkpoint import read_checkpoint
from .command import main
from .plan import check_plan, plan_text
from .resuming import resumed_config, resumed_folder
from .run_folder import new_run_folder, remove_if_bare, require_run
from .storage import disk_errors

log = logging.getLogger("reverie.train")


def run(argv: list[str]) -> int:
    """Check everything, then run until the run's stop."""
    begun = resumed_folder(argv)
    config = _config(begun, argv)
    check_plan(config)
    if begun is not None:
        return run_in(begun, config, read_checkpoint(begun / "checkpoints"))
    folder = new_run_folder(config.run)
    try:
        with disk_errors(folder):
            (folder / "config.yaml").write_text(to_yaml(config))
        return run_in(folder, config, None)
    except (ReverieError, OSError, MemoryError):
        remove_if_bare(folder)
        raise


def _config(begun: Path | None, argv: list[str]) -> TrainConfig:
    """Of the command line, or of the run that goes on."""
    if begun is None:
        return load_config(TrainConfig, argv)
    require_run(begun)
    return resumed_config(begun, argv)


class RunLog(logging.FileHandler):
    """``log.txt``; a line that cannot be written ends the run like any other file that cannot."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Let the error through: logging calls this inside its own ``except``."""
        with disk_errors(Path(self.baseFilename)):
            raise

    def close(self) -> None:
        """Close; what a full disk refused is tried once more here."""
        with disk_errors(Path(self.baseFilename)):
            super().close()


def run_in(folder: Path, config: TrainConfig, resumed: tuple[int, dict[str, object]] | None) -> int:
    """Run in ``folder``, which holds ``config.yaml``, from the start or from (turns, states) of a checkpoint."""
    from .report import final_table, write_report
    from .runner import Runner

    handler = RunLog(folder / "log.txt")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        log.info("run directory %s", folder)
        runner = Runner(config, folder, resumed)
        result = runner.run(lambda outcome: write_report(config, outcome, folder))
        sys.stdout.write(final_table(result))
        return 130 if result["interrupted"] else 0
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def dry_run(argv: list[str]) -> int:
    """The resolved config, and what would run."""
    config = _config(resumed_folder(argv), argv)
    check_plan(config)
    sys.stdout.write(to_yaml(config) + "\n" + plan_text(config))
    return 0


if __name__ == "__main__":
    sys.exit(main(run, __doc__ or "", config=TrainConfig, dry_run=dry_run))
