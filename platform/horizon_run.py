"""One run of an experiment, in a process of its own: python -m platform.horizon_run <run directory>

``platform.horizon`` starts it with the run's ``config.yaml`` in place. A directory with checkpoints is continued. When
whoever holds the other end of standard input goes, the run ends in order, with a checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from configs.errors import ConfigError
from configs.loader import config_from_yaml
from configs.schema import TrainConfig

from .checkpoint import complete, read_checkpoint
from .command import main
from .run_folder import require_run
from .train import run_in


def run(argv: list[str]) -> int:
    """Start or continue the run in the given directory."""
    if len(argv) != 1:
        raise ConfigError("one run directory is wanted", remedy="use python -m platform.horizon")
    folder = Path(argv[0])
    require_run(folder)
    config = config_from_yaml(TrainConfig, folder / "config.yaml")
    checkpoints = folder / "checkpoints"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return run_in(folder, config, read_checkpoint(checkpoints) if complete(checkpoints) else None)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(run, __doc__ or ""))
