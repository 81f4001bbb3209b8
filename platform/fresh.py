"""Write a fresh checkpoint in OpenVLA's format: python -m platform.fresh out=<folder> [key=value ...]

Random weights of the sizes in policy.*, a tokenizer of the environment's instructions, its action range as statistics. The
folder is then policy.base of platform.pretrain, train and evaluate, as a published checkpoint's would be:

  python -m platform.fresh out=tiny env=tabletop_reach policy=openvla_tiny
  python -m platform.pretrain policy env=tabletop_reach policy=openvla_tiny policy.base=tiny data=<folder> out=<folder>
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from configs.errors import ConfigError
from configs.fresh import FreshConfig
from configs.loader import load_config, to_yaml
from configs.openvla import OpenVLAConfig
from configs.world_model import WorldModelConfig

from .command import main

log = logging.getLogger("reverie.fresh")


def run(argv: list[str]) -> int:
    """Write it."""
    config, policy = _read(argv)
    from policies.openvla.writing import write_fresh

    from .context import Context
    from .storage import new_folder

    context = Context(config.env, policy, WorldModelConfig(), config.seed, "cpu")
    key = context.env_spec.name
    with new_folder(Path(config.out)) as folder:
        count = write_fresh(folder, policy, context.policy_spec, key=key, seed=config.seed)
    log.info("%s: %.2f M weights, action statistics %s", config.out, count / 1e6, key)
    return 0


def dry_run(argv: list[str]) -> int:
    """Show the configuration."""
    sys.stdout.write(to_yaml(_read(argv)[0]))
    return 0


def _read(argv: list[str]) -> tuple[FreshConfig, OpenVLAConfig]:
    config = load_config(FreshConfig, argv)
    policy = config.policy
    if not isinstance(policy, OpenVLAConfig):
        raise ConfigError(
            f"policy={policy.kind} has no such format",
            where="policy",
            remedy="use policy=openvla_tiny or openvla",
        )
    if policy.base is not None or policy.path is not None:
        raise ConfigError(
            "a fresh checkpoint starts from no other",
            where="policy.base",
            remedy="drop policy.base and policy.path",
        )
    return config, policy


if __name__ == "__main__":
    sys.exit(main(run, __doc__ or "", config=FreshConfig, dry_run=dry_run))
