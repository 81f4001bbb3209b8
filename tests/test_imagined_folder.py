"""The registered environment: from folders of models and episodes to steps."""

from __future__ import annotations

import warnings
from pathlib import Path
from platform.context import OBS_MODEL, REWARD_MODEL, make_context
from platform.envs.imagined import ENV_ID, make_imagined_vector_env
from platform.models import save_model
from platform.weights import module_arrays

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from configs.errors import CheckpointError, DataError, EnvError, ReplayError
from configs.loader import to_yaml
from tests.run_helper import config, write_demos
from world_models.imagined_vector_env import ImaginedVectorEnv

NAME = f"platform.envs.imagined:{ENV_ID}"


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demos(tmp_path_factory.mktemp("demos") / "reach", episodes=8)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, demos: Path) -> Path:
    """As a pretraining leaves it, of models that were never trained."""
    folder = tmp_path_factory.mktemp("models")
    settings = config("real+imagined", f"data={demos}")
    context = make_context(settings, seed=0, device="cpu")
    made = {OBS_MODEL: context.make_obs_model(), REWARD_MODEL: context.make_reward_model()}
    for name, model in made.items():
        card = {
            "data": {},
            "updates": 0,
            "first_val_loss": 1.0,
            "best_val_loss": 1.0,
            "history": [],
            "quality": {},
        }
        save_model(folder / name, context.describe(name), module_arrays(model), card)
    (folder / "config.yaml").write_text(to_yaml(settings))
    return folder


def test_make_vec_gives_worlds_that_start_where_episodes_were(models: Path, demos: Path) -> None:
    """Same seed, same starts and frames; every start is a stored observation."""
    from buffers.dataset import read_dataset

    stored = {
        image.tobytes() for record in read_dataset(demos).records for image in record.images["top"][:-1]
    }
    observations = []
    for _ in range(2):
        env = gymnasium.make_vec(
            NAME, num_envs=3, models=str(models), horizon=2, starts={"first": 1, "late": 1}
        )
        assert isinstance(env.unwrapped, ImaginedVectorEnv)
        assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        observation, _ = env.reset(seed=3)
        assert {frame.tobytes() for frame in observation["top"]} <= stored
        env.action_space.seed(3)
        after, _, _, _, info = env.step(env.action_space.sample())
        assert after in env.observation_space
        assert info["_stepped"].all()
        observations.append((observation["top"], after["top"]))
    for one, two in zip(*observations, strict=True):
        np.testing.assert_array_equal(one, two)


def test_make_gives_one_world_that_gymnasiums_checker_accepts(models: Path) -> None:
    env = gymnasium.make(NAME, models=str(models), horizon=2, actions="continuous", render_mode="rgb_array")
    with warnings.catch_warnings():
        # Gymnasium's own are of this kind; other libraries' notices while models are made are not.
        warnings.simplefilter("error", UserWarning)
        # Proprio has no known bounds.
        warnings.filterwarnings("ignore", message=".*(minimum|maximum) value.*infinity")
        check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)
    env.reset(seed=0)
    assert env.render().shape == (32, 32, 3)


def test_held_out_starts_are_other_ones(models: Path) -> None:
    """One of eight episodes at an eighth; of none there is nothing to start from."""
    env = make_imagined_vector_env(2, models=models, split="held_out", held_out=0.125)
    env.reset(seed=0)
    none = make_imagined_vector_env(2, models=models, split="held_out", held_out=0.0)
    with pytest.raises(ReplayError, match="held_out split"):
        none.reset(seed=0)


def test_mistakes_are_one_line(models: Path, tmp_path: Path, demos: Path) -> None:
    wrong = {
        "no world models there": (CheckpointError, {"models": tmp_path}),
        "actions='torque' is unknown": (EnvError, {"models": models, "actions": "torque"}),
        "reward='dense' is unknown": (EnvError, {"models": models, "reward": "dense"}),
        "horizon=0": (EnvError, {"models": models, "horizon": 0}),
    }
    for text, (error, settings) in wrong.items():
        with pytest.raises(error, match=text):
            make_imagined_vector_env(2, **settings)
    other = write_demos(tmp_path / "small", episodes=2, overrides=["env.camera_size=64"])
    with pytest.raises(DataError, match="cameras is"):
        make_imagined_vector_env(2, models=models, data=other)
