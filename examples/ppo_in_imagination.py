"""Stable-Baselines3's PPO, trained in imagined worlds alone and judged in the real tabletop.

pip install stable-baselines3
python -m platform.demos out=outputs/demos
python -m platform.pretrain all data=outputs/demos out=outputs/pretrained
python examples/ppo_in_imagination.py outputs/pretrained --steps 40000
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from platform.envs.imagined import make_imagined_vector_env
from platform.envs.tabletop import TabletopVectorEnv
from typing import Any

import numpy as np
import torch
import yaml
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn

from configs.env import TabletopConfig
from configs.loader import config_from_dict

CAMERA = "top"


class SmallFrames(BaseFeaturesExtractor):
    """Frames of 32 pixels, which Stable-Baselines3's own network is too deep for, beside what is no frame."""

    def __init__(self, space: spaces.Dict) -> None:
        others = sum(get_flattened_obs_dim(space[name]) for name in space.spaces if name != CAMERA)
        side = space[CAMERA].shape[1] // 8
        super().__init__(space, features_dim=32 * side * side + others)
        channels = (3, 16, 32, 32)
        self._frames = nn.Sequential(
            *(
                layer
                for before, after in itertools.pairwise(channels)
                for layer in (nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU())
            ),
            nn.Flatten(),
        )

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """``[B, features]``."""
        others = [value.flatten(1) for name, value in observation.items() if name != CAMERA]
        return torch.cat([self._frames(observation[CAMERA]), *others], dim=1)


class Vectorised(VecEnv):
    """A Gymnasium vector environment in ``SameStep`` mode as Stable-Baselines3 wants it."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int) -> None:
        self.env, self._seed = env, seed
        self.render_mode = None
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    def reset(self) -> Any:
        """Start every world."""
        observation, _ = self.env.reset(seed=self._seed)
        self._seed += 1
        return observation

    def step_async(self, actions: Any) -> None:
        """Remember what to do."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Do it. What ended at the horizon is bootstrapped from its true last observation."""
        observation, rewards, terminated, truncated, info = self.env.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(terminated | truncated):
            infos[row]["terminal_observation"] = info["final_obs"][row]
            infos[row]["TimeLimit.truncated"] = bool(truncated[row])
        return observation, rewards.astype(np.float32), terminated | truncated, infos

    def close(self) -> None:
        """Close the worlds."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The same for all."""
        return [getattr(self.env, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """For all."""
        setattr(self.env, attr_name, value)

    def env_method(self, method_name: str, *arguments: Any, indices: Any = None, **named: Any) -> list[Any]:
        """Called once."""
        return [getattr(self.env, method_name)(*arguments, **named)] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No world is."""
        return [False] * self.num_envs


def real_success(model: PPO, worlds: Any, config: TabletopConfig, *, trials: int, replan: int) -> float:
    """Share of ``trials`` real episodes that succeed; sampled actions, starts that no demonstration had."""
    env = TabletopVectorEnv(trials, config, autoreset_mode="Disabled")
    seen, _ = env.reset(seed=1_000_000)
    done, success = np.zeros(trials, np.bool_), np.zeros(trials, np.bool_)
    while not done.all():
        observation = {
            CAMERA: seen["image"],
            "proprio": seen["proprio"],
            "instruction": worlds.encode(list(seen["instruction"])),
        }
        chosen, _ = model.predict(observation, deterministic=False)
        chunk = np.clip(chosen, -1, 1).reshape(trials, replan, -1).astype(np.float32)
        for step in range(replan):
            seen, _, terminated, truncated, _ = env.step(chunk[:, step])
            ended = terminated | truncated
            success |= terminated & ~done
            done |= ended
            if ended.any():
                # What has ended starts anew, so that the others can go on; it is not counted again.
                seen, _ = env.reset(options={"reset_mask": ended})
    env.close()
    return float(success.mean())


def main() -> None:
    """Train, and say how good it was before and after."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, help="folder of python -m platform.pretrain")
    parser.add_argument("--data", type=Path, help="dataset of the start states; by default the models' own")
    parser.add_argument("--steps", type=int, default=40_000, help="imagined decisions")
    parser.add_argument("--worlds", type=int, default=64)
    parser.add_argument("--horizon", type=int, default=6, help="decisions until an imagined episode ends")
    parser.add_argument("--trials", type=int, default=200, help="real episodes of each evaluation")
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = yaml.safe_load((given.models / "config.yaml").read_text())
    tabletop = config_from_dict(TabletopConfig, settings["env"])
    env = make_imagined_vector_env(
        given.worlds, models=given.models, data=given.data, horizon=given.horizon, actions="continuous",
        starts={"first": 1, "uniform": 1}, autoreset_mode="SameStep",
    )  # fmt: skip
    model = PPO(
        "MultiInputPolicy", Vectorised(env, seed=0), n_steps=32, batch_size=256, n_epochs=4, gamma=0.95, ent_coef=0.0,
        learning_rate=3e-4, seed=0, device="cpu", verbose=1, policy_kwargs={"features_extractor_class": SmallFrames},
    )  # fmt: skip
    judge = {"trials": given.trials, "replan": env.worlds.obs_model.spec.replan}
    before = real_success(model, env.worlds, tabletop, **judge)
    began = time.monotonic()
    model.learn(given.steps, log_interval=5)
    seconds = time.monotonic() - began
    after = real_success(model, env.worlds, tabletop, **judge)
    print(
        f"{model.num_timesteps} imagined decisions in {seconds:.0f} s; real success {before:.3f} -> {after:.3f} "
        f"({given.trials} episodes each), no real step was trained on"
    )


if __name__ == "__main__":
    main()
