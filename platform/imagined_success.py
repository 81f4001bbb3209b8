"""How often a policy succeeds in imagination from where episodes begin: beside the same in the real environment it says whether
the models can tell a good policy from a bad one, which agreement on recorded actions does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from buffers.replay import Modelling
from configs.starts import StartsConfig

from .context import OBS_MODEL, REWARD_MODEL, Context
from .envs.base import Observation
from .metrics import SuccessRate
from .weights import Arrays, load_arrays

if TYPE_CHECKING:
    from policies.base import Policy

WORLDS = 64
FROM_THE_START = StartsConfig(first=1.0, recent=0.0)


def imagined_success(
    context: Context, real: Modelling, models: dict[str, Arrays], policy: Policy, *, greedy: bool
) -> SuccessRate:
    """Of one episode in each of ``WORLDS`` worlds, as long as a real one may be. A world whose models failed did not succeed.

    ``real`` gives the first observations; raises ReplayError when it is empty.
    """
    import torch

    from world_models.imagined_actions import make_actions
    from world_models.imagined_env import ImaginedWorlds
    from world_models.imagined_vector_env import ImaginedVectorEnv

    obs_model, reward_model = context.make_obs_model().eval(), context.make_reward_model().eval()
    load_arrays(obs_model, models[OBS_MODEL])
    load_arrays(reward_model, models[REWARD_MODEL])
    worlds = ImaginedWorlds(
        obs_model, reward_model, encode=context.vocabulary.encode, threshold=reward_model.threshold, reward="success",
        seed=context.seed,
    )  # fmt: skip
    spec = context.record_spec
    env = ImaginedVectorEnv(
        worlds,
        WORLDS,
        horizon=1,
        actions=make_actions("tokens", context.model_spec),
        autoreset_mode="Disabled",
    )
    starts = real.starts(
        WORLDS, context.history, mix=FROM_THE_START, horizon=0, generator=np.random.default_rng(context.seed)
    )
    seen, _ = env.reset(options={"starts": starts, "horizon": spec.max_decisions})
    generator = torch.Generator().manual_seed(context.seed)
    success = np.zeros(WORLDS, np.bool_)
    while env.running.any():
        images = {name: seen[name] for name in spec.cameras}
        observation = context.tensors(Observation(images, seen["proprio"], starts.instructions))
        with torch.inference_mode():
            tokens = policy.act(observation, greedy=greedy, generator=generator).tokens.cpu().numpy()
        seen, _, terminated, _, _ = env.step(tokens[:, : spec.replan].reshape(WORLDS, -1))
        success |= terminated
    env.close()
    return SuccessRate.of(int(success.sum()), WORLDS)
