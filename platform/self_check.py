"""The start-up self-check: without learning and without lag, off-policy correction must be the identity."""

from __future__ import annotations

import numpy as np

from configs.algorithm import AlgorithmConfig
from configs.errors import ConfigError

from .context import Context
from .envs.base import Observation
from .weights import Arrays, load_arrays

TOLERANCE = 1e-5
ROWS = 8


def self_check(context: Context, arrays: Arrays, algorithm: AlgorithmConfig) -> dict[str, float]:
    """Act and recompute with the same weights in other batch shapes: ratio 1, KL 0, GIPO weight 1, clip fraction 0.

    Returns the statistics. Raises ConfigError naming the one that is off: then behaviour and learner disagree about
    what the policy is, and no importance ratio of the run would mean anything.
    """
    import torch

    from policies.base import token_log_probs
    from policies.objectives import policy_loss
    from policies.proximal import Age

    policy = context.make_policy()
    load_arrays(policy, arrays)
    observation = context.tensors(_noise(context))
    tokens, behaviour, _ = policy.act(observation, greedy=False, generator=torch.Generator().manual_seed(0))
    half = ROWS // 2
    with torch.no_grad():
        logits = torch.cat(
            [
                policy(observation.take(slice(0, half)), tokens[:half]).logits,
                policy(observation.take(slice(half, None)), tokens[half:]).logits,
            ]
        )
    valid = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    advantages = torch.linspace(-1, 1, ROWS, device=tokens.device)
    current, _ = token_log_probs(logits, tokens)
    age = Age(torch.zeros(ROWS, dtype=torch.int64, device=tokens.device), current)
    result = policy_loss(algorithm, logits, tokens, behaviour, advantages, valid, age=age)
    statistics = {name: float(value) for name, value in result.statistics.items()}
    expected = {
        "ratio_mean": 1.0,
        "behav_approx_kl": 0.0,
        "gipo_weight_mean": 1.0,
        "clip_fraction": 0.0,
        "dual_clip_fraction": 0.0,
        "proximal_approx_kl": 0.0,
        "behav_clip_fraction": 0.0,
    }
    for name, value in expected.items():
        if name in statistics and abs(statistics[name] - value) > TOLERANCE:
            raise ConfigError(
                f"self-check: {name} is {statistics[name]:.6f} without learning or lag, not {value:g}",
                where="policy", remedy="the policy is not a function of its observation alone (dropout? precision?)",
            )  # fmt: skip
    return statistics


def _noise(context: Context) -> Observation:
    rng = np.random.default_rng(0)
    spec = context.env_spec
    return Observation(
        {name: rng.integers(0, 256, (ROWS, *size, 3), np.uint8) for name, size in spec.cameras.items()},
        rng.random((ROWS, spec.proprio_dim), np.float32),
        [spec.instructions[i % len(spec.instructions)] for i in range(ROWS)],
    )
