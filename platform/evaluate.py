"""Success of a policy in the real environment: python -m platform.evaluate policy.path=<folder> [key=value ...]

Prints greedy and sampled success on the held-out starts with a Wilson 95 % interval, and one JSON object as the last
line.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from configs.errors import ConfigError
from configs.loader import load_config
from configs.schema import EvaluateConfig

from .command import main
from .context import POLICY, Context
from .models import read_model
from .weights import load_arrays

log = logging.getLogger("reverie.evaluate")


def run(argv: list[str]) -> int:
    """Evaluate."""
    from configs.world_model import WorldModelConfig

    from .envs import make_env
    from .evaluation import evaluate_policy
    from .report import hardware, versions

    config = load_config(EvaluateConfig, argv)
    if config.policy.path is None:
        raise ConfigError("which policy?", where="policy.path", remedy="give policy.path=<folder>")
    context = Context(config.env, config.policy, WorldModelConfig(), config.run.seed, config.run.device)
    arrays = read_model(Path(config.policy.path), POLICY, context)
    policy = context.make_policy()
    load_arrays(policy, arrays)
    evaluation = config.evaluation
    env = make_env(config.env, evaluation.envs, chunk=config.policy.chunk, replan=config.policy.replan)
    result: dict[str, object] = {"env": context.env_spec.name, "first_seed": evaluation.seed}
    for name in ("greedy", "sampled"):
        rate = evaluate_policy(
            context,
            env,
            policy,
            trials=evaluation.trials,
            first_seed=evaluation.seed,
            greedy=name == "greedy",
        ).rate
        sys.stdout.write(f"{name}: {rate} of {rate.trials} trials\n")
        sys.stdout.flush()
        result[name] = rate.to_json()
    env.close()
    sys.stdout.write(json.dumps({**result, "hardware": hardware(), "versions": versions()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(run, __doc__ or "", config=EvaluateConfig))
