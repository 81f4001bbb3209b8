"""Train a policy by reinforcement learning: python -m platform.train {real,imagined,real+imagined} [key=value ...]

real           in the real environment alone
imagined       in a pretrained world model, from the real start states of a dataset
real+imagined  in both, while the world model keeps learning

--dry-run shows the whole configuration and stops.
"""

from __future__ import annotations

import sys

from configs.errors import ConfigError
from configs.loader import load_config, to_yaml
from configs.schema import TrainConfig

from .command import main


def run(argv: list[str]) -> int:
    """Build the roles and run them until the run's stop."""
    load_config(TrainConfig, argv)
    raise ConfigError("training is not built yet", remedy="use --dry-run")


def dry_run(argv: list[str]) -> int:
    """Show the configuration."""
    sys.stdout.write(to_yaml(load_config(TrainConfig, argv)))
    return 0


if __name__ == "__main__":
    sys.exit(main(run, __doc__, config=TrainConfig, dry_run=dry_run))
