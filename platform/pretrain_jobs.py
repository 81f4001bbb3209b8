"""The pretraining jobs of a config: which data each model learns from, which weights it starts from, what it builds on."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from buffers.dataset import Dataset
from buffers.index import is_held_out
from buffers.memory import MemoryBuffer
from buffers.records import Record
from buffers.shelf import bytes_per_row
from configs.errors import ConfigError, DataError
from configs.schema import PretrainBudget, PretrainConfig
from configs.system import BufferConfig

from .cloning import CloningJob
from .context import OBS_MODEL, POLICY, REWARD_MODEL, Context
from .held_out import WINDOWS, held_out_outcomes, measure_reward, open_loop_psnr
from .model_batches import ObsModelBatches, RewardModelBatches
from .models import read_model
from .offline_data import OfflineData
from .pretraining import ModelJob
from .weights import Arrays, load_arrays

if TYPE_CHECKING:
    from policies.base import Policy
    from world_models.obs_model import ObservationModel

log = logging.getLogger(__name__)


def _require_batch(data: MemoryBuffer, batch: int, name: str) -> None:
    """Raise DataError when a batch would hold more than there is to learn from."""
    there = data.stats()["train_decisions"]
    if batch > there:
        raise DataError(
            f"{name}_budget.batch={batch} is larger than the data ({there} decisions)",
            where=f"{name}_budget.batch", remedy="give more episodes or a smaller batch",
        )  # fmt: skip


def dataset_buffer(context: Context, dataset: Dataset, held_out: float) -> MemoryBuffer:
    """The dataset as a replay buffer: the same windows, outcomes and held-out split as in a run."""
    rows = sum(record.length + 1 for record in dataset.records)
    size = (rows + context.record_spec.max_decisions + 1) * bytes_per_row(context.record_spec)
    data = MemoryBuffer(
        context.record_spec,
        BufferConfig(max_bytes=size, held_out=held_out),
        seed=context.seed + 11,
        name="dataset",
    )
    data.extend(dataset.records)
    return data


def cloning_job(config: PretrainConfig, context: Context, dataset: Dataset) -> CloningJob:
    """The policy on the episodes that are worth cloning; it goes on from the weights at ``policy.path``, where given."""
    records = [record for record in dataset.records if _worth_cloning(record, dataset, config)]
    held = [record for record in records if is_held_out(record.episode_id, config.held_out)]
    train = [record for record in records if not is_held_out(record.episode_id, config.held_out)]
    valued = [record for record in dataset.records if not is_held_out(record.episode_id, config.held_out)]
    if not held or not train:
        raise DataError(
            f"{len(records)} episodes to clone are too few to hold some out", where=config.data,
            remedy="record more episodes",
        )  # fmt: skip
    path = config.policy.path
    return CloningJob(
        context, train, valued, held, config.policy_budget,
        discount=config.algorithm.gamma**config.policy.replan, precision=config.run.precision,
        start=None if path is None else read_model(Path(path), POLICY, context),
    )  # fmt: skip


def _worth_cloning(record: Record, dataset: Dataset, config: PretrainConfig) -> bool:
    level, levels = record.extra.get("noise_level"), dataset.info.get("noise")
    calm = level is None or levels is None or levels[int(level)]["action_noise"] <= config.clone_noise
    return calm and (record.success or not config.success_only)


def obs_model_job_of(config: PretrainConfig, context: Context, dataset: Dataset) -> ModelJob:
    """M_obs on the dataset."""
    data = dataset_buffer(context, dataset, config.held_out)
    _require_batch(data, config.obs_model_budget.batch or config.world_model.obs_model.batch, OBS_MODEL)
    return obs_model_job(context, data, config.obs_model_budget, _start(config, context, OBS_MODEL))


def _start(config: PretrainConfig, context: Context, name: str) -> Arrays | None:
    """Weights at ``world_model.path``."""
    path = config.world_model.path
    return None if path is None else read_model(Path(path) / name, name, context)


def reward_model_job_of(config: PretrainConfig, context: Context, dataset: Dataset) -> ModelJob:
    """M_reward on the dataset and on what M_obs imagines from it."""
    data = dataset_buffer(context, dataset, config.held_out)
    models = config.world_model
    batch = config.reward_model_budget.batch or models.reward_model.batch
    _require_batch(data, batch, REWARD_MODEL)
    obs_model = _obs_model(config, context)
    policy = _policy(config, context) if models.reward_model.backbone == "policy" else None
    models = replace(models, reward_model=replace(models.reward_model, batch=batch))
    return reward_model_job(
        replace(context, world_model_config=models), data, config.reward_model_budget, obs_model, policy,
        _start(config, context, REWARD_MODEL),
    )  # fmt: skip


def _obs_model(config: PretrainConfig, context: Context) -> Any:
    """The one in ``out``, else the one at ``world_model.path``, else None."""
    places = [Path(folder) for folder in (config.out, config.world_model.path) if folder is not None]
    found = next((place / OBS_MODEL for place in places if (place / OBS_MODEL).is_dir()), None)
    if found is None:
        log.warning("reward_model: no obs_model in %s, so it sees real frames alone", config.out)
        return None
    obs_model = context.make_obs_model().eval()
    load_arrays(obs_model, read_model(found, OBS_MODEL, context))
    return obs_model


def _policy(config: PretrainConfig, context: Context) -> Any:
    """The one in ``out``, else the one at ``policy.path``."""
    folder = Path(config.out) / POLICY
    if not folder.is_dir():
        if config.policy.path is None:
            raise ConfigError(
                "there is no policy to take the first layers of",
                where="world_model.reward_model.backbone=policy",
                remedy="pretrain the policy into the same out=, or give policy.path=",
            )
        folder = Path(config.policy.path)
    policy = context.make_policy()
    load_arrays(policy, read_model(folder, POLICY, context))
    return policy


def obs_model_job(
    context: Context, data: MemoryBuffer, budget: PretrainBudget, start: Arrays | None = None
) -> ModelJob:
    """Windows of the training split; the held-out loss is the mean over the steps of a chain on own predictions.

    ``start``: weights to start from; consistency training distils them.
    """
    from world_models.consistency import teacher_config
    from world_models.training import ObsModelTrainer

    config = context.world_model_config.obs_model
    model, teacher = context.make_obs_model(), None
    if start is not None:
        load_arrays(model, start)
    if config.sampler == "consistency":
        if start is None:
            raise ConfigError(
                "consistency training distils a model, and there is none to distil",
                where="world_model.obs_model.sampler",
                remedy="give world_model.path=<folder of a pretrained model>",
            )
        models = replace(context.world_model_config, obs_model=teacher_config(config))
        teacher = replace(context, world_model_config=models).make_obs_model().eval()
        load_arrays(teacher, start)
    trainer = ObsModelTrainer(
        model, config, encode=context.vocabulary.encode, seed=context.seed + 31,
        learning_rate=budget.learning_rate, total_updates=budget.updates, chains=start is not None,
        teacher=teacher,
    )  # fmt: skip
    held_out = data.windows(
        WINDOWS,
        context.history,
        context.decisions_of(config.rollout_steps + 1),
        split="held_out",
        generator=np.random.default_rng(0),
    )
    draws = OfflineData(context, data)
    batches = ObsModelBatches(draws, trainer, budget.batch or config.batch, context.history)

    def validate() -> float:
        return float(np.mean(trainer.validation_loss(held_out)))

    def measure() -> dict[str, Any]:
        untrained = trainer.untrained_loss(context.make_obs_model().eval(), held_out)
        return {
            "loss_by_step": trainer.validation_loss(held_out),
            "untrained_loss": float(np.mean(untrained)),
            **open_loop_psnr(trainer.averaged, held_out, encode=context.vocabulary.encode),
        }

    return ModelJob("obs_model", trainer, draws, batches, validate=validate, measure=measure)


def reward_model_job(
    context: Context,
    data: MemoryBuffer,
    budget: PretrainBudget,
    obs_model: ObservationModel | None,
    policy: Policy | None = None,
    start: Arrays | None = None,
) -> ModelJob:
    """Frames labelled by the real outcome, half of them imagined by ``obs_model``; held-out loss on frames of held-out
    episodes, drawn in the same way.

    ``policy``: whose first layers it looks through, where the config says so; ``start``: weights to start from.
    """
    from world_models.outcomes import OutcomeFrames
    from world_models.training import RewardModelTrainer

    encode = context.vocabulary.encode
    model = context.make_reward_model(policy)
    if start is not None:
        load_arrays(model, start)
    trainer = RewardModelTrainer(
        model, context.world_model_config.reward_model, encode=encode, seed=context.seed + 32,
        learning_rate=budget.learning_rate, total_updates=budget.updates,
    )  # fmt: skip
    parts = held_out_outcomes(context, data, obs_model)
    judged = OutcomeFrames.joined(list(parts.values()))
    draws = OfflineData(context, data)
    batches = RewardModelBatches(context, draws, obs_model, judge=trainer.averaged)

    def measure() -> dict[str, Any]:
        return measure_reward(trainer.averaged, data, parts.get("imagined"), encode=encode)

    return ModelJob(
        "reward_model", trainer, draws, batches,
        validate=lambda: trainer.validation_loss(judged), measure=measure,
    )  # fmt: skip
