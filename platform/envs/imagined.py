"""World models as Gymnasium environments; importing this module registers ``reverie/Imagined-v0``.

    gymnasium.make_vec("platform.envs.imagined:reverie/Imagined-v0", num_envs=64, models="outputs/pretrained")
    gymnasium.make("platform.envs.imagined:reverie/Imagined-v0", models="outputs/pretrained", horizon=20)

One step is one decision: an action is the executed actions of a chunk, one after the other. See
``ImaginedVectorEnv`` for episodes, and ``docs/imagination.md`` for an example.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import yaml

from buffers.start_states import UNIFORM_STARTS
from configs.errors import CheckpointError, DataError, EnvError
from configs.loader import config_from_dict
from configs.models import ModelsConfig
from configs.starts import StartsConfig
from world_models.imagined_actions import ACTIONS, make_actions
from world_models.imagined_env import REWARDS, ImaginedWorlds, Starts
from world_models.imagined_single_env import ImaginedEnv
from world_models.imagined_vector_env import ImaginedVectorEnv

from ..context import OBS_MODEL, REWARD_MODEL, Context, make_context
from ..datasets import read_any
from ..models import read_model
from ..preflight import check_dataset
from ..pretrain_jobs import dataset_buffer
from ..weights import load_arrays

if TYPE_CHECKING:
    from buffers.index import Split
    from buffers.replay import Modelling

ENV_ID = "reverie/Imagined-v0"


@dataclass(frozen=True)
class BufferStarts:
    """Start states of a replay buffer: a run's, or a dataset in one."""

    buffer: Modelling
    history: int
    """Frames that M_obs looks back."""
    mix: StartsConfig
    split: Split = "train"

    def __call__(self, count: int, generator: np.random.Generator) -> Starts:
        """``count`` states. ReplayError when there is none."""
        return self.buffer.starts(
            count, self.history, horizon=0, mix=self.mix, split=self.split, generator=generator
        )


def make_imagined_vector_env(
    num_envs: int = 1,
    *,
    models: str | Path,
    data: str | Path | None = None,
    horizon: int = 10,
    actions: str = "tokens",
    reward: str = "success",
    starts: StartsConfig | dict[str, Any] | None = None,
    split: Split = "train",
    held_out: float = 0.1,
    max_disagreement: float | None = None,
    device: str = "cpu",
    seed: int = 0,
    autoreset_mode: Any = "NextStep",
    render_mode: str | None = None,
) -> ImaginedVectorEnv:
    """``num_envs`` imagined worlds.

    Args:
        num_envs: Worlds stepped together.
        models: Folder that ``platform.pretrain`` wrote, or the directory of a run: its newest checkpoint.
        data: Dataset whose episodes give the start states; by default the one that ``models`` came from.
        horizon: Decisions until an episode is truncated.
        actions: ``tokens`` (MultiDiscrete) or ``continuous`` (a Box from -1 to 1).
        reward: ``success`` or ``change``, as ``imagination.reward``.
        starts: Kinds of start states, as ``imagination.starts``; by default any decision of any episode.
        split: ``train``, or ``held_out``: the share ``held_out`` of the episodes, by their ids.
        held_out: That share.
        max_disagreement: Ends a world where two draws of its next frame differ more; see the schedule ``uncertain``.
        device: ``cpu`` or ``cuda``.
        seed: Of the models' noise until ``reset`` is given one.
        autoreset_mode: Gymnasium's three modes.
        render_mode: ``rgb_array`` lets ``render`` return the frames.

    Raises:
        CheckpointError: there are no such models, or they are torn.
        DataError: the episodes do not fit the models.
        EnvError: an unknown kind of actions or reward, a horizon below 1.
    """
    _check(actions=actions, reward=reward, horizon=horizon, num_envs=num_envs)
    folder, values = _models_of(Path(models))
    context = _context(values, seed=seed, device=device)
    source = BufferStarts(
        _buffer(context, data or values.get("data"), held_out),
        context.history,
        _mix(starts),
        split,
    )
    return ImaginedVectorEnv(
        _worlds(context, folder, reward=reward, max_disagreement=max_disagreement), num_envs, horizon=horizon,
        actions=make_actions(actions, context.model_spec), starts=source, autoreset_mode=autoreset_mode,
        render_mode=render_mode,
    )  # fmt: skip


def make_imagined_env(*, render_mode: str | None = None, **settings: Any) -> ImaginedEnv:
    """One imagined world; ``settings`` as ``make_imagined_vector_env``."""
    worlds = make_imagined_vector_env(1, **{**settings, "autoreset_mode": "Disabled"})
    return ImaginedEnv(worlds, render_mode=render_mode)


def _check(*, actions: str, reward: str, horizon: int, num_envs: int) -> None:
    for name, value, known in (("actions", actions, ACTIONS), ("reward", reward, REWARDS)):
        if value not in known:
            raise EnvError(
                f"{name}={value!r} is unknown", where=ENV_ID, remedy=f"use one of {', '.join(known)}"
            )
    for name, number in (("horizon", horizon), ("num_envs", num_envs)):
        if number < 1:
            raise EnvError(f"{name}={number}", where=ENV_ID, remedy="give at least 1")


def _models_of(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where the models lie, and the configuration that they were made under."""
    newest = folder / "checkpoints" / "last"
    place = newest if newest.is_dir() else folder
    written = folder / "config.yaml"
    if not written.is_file() or not (place / OBS_MODEL).is_dir():
        raise CheckpointError(
            "no world models there", where=f"models={folder}",
            remedy="give the out= of python -m platform.pretrain, or the directory of a run with models",
        )  # fmt: skip
    values = yaml.safe_load(written.read_text())
    if not isinstance(values, dict):
        raise CheckpointError(
            "not a configuration", where=str(written), remedy="restore the file as it was written"
        )
    return place, values


def _context(values: dict[str, Any], *, seed: int, device: str) -> Context:
    shapes: dict[str, Any] = {
        name: values[name] for name in ("env", "policy", "world_model") if name in values
    }
    return make_context(config_from_dict(ModelsConfig, shapes), seed=seed, device=device)


def _worlds(context: Context, folder: Path, *, reward: str, max_disagreement: float | None) -> ImaginedWorlds:
    obs_model, reward_model = context.make_obs_model().eval(), context.make_reward_model().eval()
    load_arrays(obs_model, read_model(folder / OBS_MODEL, OBS_MODEL, context))
    load_arrays(reward_model, read_model(folder / REWARD_MODEL, REWARD_MODEL, context))
    return ImaginedWorlds(
        obs_model, reward_model, encode=context.vocabulary.encode, threshold=reward_model.threshold, reward=reward,
        seed=context.seed, max_disagreement=max_disagreement,
    )  # fmt: skip


def _buffer(context: Context, data: str | Path | None, held_out: float) -> Modelling:
    if data is None:
        raise DataError(
            "imagined worlds start from real states, and the models name no dataset", where=ENV_ID,
            remedy="give data=<dataset folder>",
        )  # fmt: skip
    dataset = read_any(data, context, gamma=1.0)
    check_dataset(dataset, context, f"data={data}")
    return dataset_buffer(context, dataset, held_out)


def _mix(starts: StartsConfig | dict[str, Any] | None) -> StartsConfig:
    if isinstance(starts, StartsConfig):
        return starts
    if starts is None:
        return UNIFORM_STARTS
    return config_from_dict(StartsConfig, {"first": 0.0, "recent": 0.0, **starts})


if ENV_ID not in gymnasium.registry:
    gymnasium.register(
        ENV_ID,
        entry_point="platform.envs.imagined:make_imagined_env",
        vector_entry_point="platform.envs.imagined:make_imagined_vector_env",
    )
