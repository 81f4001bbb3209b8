"""The root configs: one per command."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from configs.algorithm import AlgorithmConfig, DecoupledPPOConfig, GIPOConfig
from configs.env import EnvConfig, TabletopConfig
from configs.errors import ConfigError
from configs.evaluation import TrialsConfig
from configs.fields import Fraction, NaturalFloat, PositiveFloat, PositiveInt, Seed, component
from configs.mix import ConstantMixConfig, MixConfig
from configs.obs_model import Optimizer
from configs.policy import PolicyConfig, SmallVLAConfig
from configs.system import (
    BuffersConfig,
    EvaluationConfig,
    HostConfig,
    InferenceConfig,
    LearnerConfig,
    RayHostConfig,
    RolloutConfig,
    RunConfig,
    SerialHostConfig,
    StalenessConfig,
    SyncConfig,
    TrackConfig,
)
from configs.world_model import ImaginationConfig, WorldModelConfig

Mode = Literal["real", "imagined", "real+imagined"]


@component
class TrainConfig:
    """``python -m platform.train``."""

    mode: Mode
    data: str | None = None
    """Dataset folder whose episodes stand in ``B_real`` when the run starts (offline data, listed apart)."""
    env: EnvConfig = field(default_factory=TabletopConfig)
    policy: PolicyConfig = field(default_factory=SmallVLAConfig)
    algorithm: AlgorithmConfig = field(default_factory=GIPOConfig)
    world_model: WorldModelConfig = field(default_factory=WorldModelConfig)
    imagination: ImaginationConfig = field(default_factory=ImaginationConfig)
    buffers: BuffersConfig = field(default_factory=BuffersConfig)
    mix: MixConfig = field(default_factory=ConstantMixConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    staleness: StalenessConfig = field(default_factory=StalenessConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    host: HostConfig = field(default_factory=RayHostConfig)
    run: RunConfig = field(default_factory=RunConfig)
    track: TrackConfig = field(default_factory=TrackConfig)

    def __post_init__(self) -> None:
        if self.world_model.frozen and self.mode != "imagined":
            raise ConfigError(
                f"world_model.frozen=true has no real environment, but the mode is {self.mode}",
                where="world_model.frozen",
                remedy="use the mode imagined, or drop world_model.frozen",
            )
        if self.world_model.frozen and self.data is None:
            raise ConfigError(
                "world_model.frozen=true needs real start states",
                where="data",
                remedy="give data=<folder> written by python -m platform.demos",
            )
        if self.run.stop.success is not None and not self.evaluation.every:
            raise ConfigError(
                "run.stop.success needs evaluations during the run, but evaluation.every=0",
                where="evaluation.every",
                remedy="set evaluation.every above 0, or drop run.stop.success",
            )
        _require_correction(self.algorithm, self.staleness, self.sync)
        self._check_ranks()

    def _check_ranks(self) -> None:
        ranks, batch = self.learner.ranks, self.algorithm.batch
        if ranks > 1 and isinstance(self.host, SerialHostConfig):
            raise ConfigError(
                f"learner.ranks={ranks} needs a process per rank, the serial host has one",
                where="learner.ranks",
                remedy="use host=ray, or learner.ranks=1",
            )
        if batch % (self.algorithm.micro_batch * ranks):
            raise ConfigError(
                f"algorithm.batch={batch} does not divide by algorithm.micro_batch={self.algorithm.micro_batch} "
                f"times learner.ranks={ranks}",
                where="learner.ranks",
                remedy="choose a micro_batch that divides each rank's share"
                if batch % ranks == 0
                else "choose a batch that divides by learner.ranks",
            )


def _require_correction(algorithm: AlgorithmConfig, staleness: StalenessConfig, sync: SyncConfig) -> None:
    """A proximal policy without its weight takes stale data for its own; only data that cannot be stale may be.

    Even with budget 0 some decisions wait for the next version, since episodes end when they end: the bound rules that out.
    """
    if not isinstance(algorithm, DecoupledPPOConfig) or algorithm.behave_weight:
        return
    if algorithm.anchor == "behaviour" or (staleness.bound == 0 and sync.updates_per_publish == 1):
        return
    raise ConfigError(
        f"algorithm.behave_weight=false leaves stale data uncorrected: staleness.bound={staleness.bound} and "
        f"sync.updates_per_publish={sync.updates_per_publish} let decisions of older weights train",
        where="algorithm.behave_weight",
        remedy="drop it, or set staleness.bound=0 and sync.updates_per_publish=1",
    )


@component
class NoiseLevel:
    """One kind of demonstrator."""

    share: PositiveFloat
    """Relative share of the episodes."""
    action_noise: NaturalFloat
    """Deviation of Gaussian noise on each action, in units of the action range's half."""
    random_decisions: Fraction = 0.0
    """Probability that a whole decision is random."""
    speed: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the arm's speed that the demonstrator uses: people who teach a robot move it with care."""


@component
class DemosConfig:
    """``python -m platform.demos``: episodes of the scripted expert, written as a dataset folder."""

    out: str = "outputs/demos"
    """Dataset folder; never overwritten."""
    episodes: PositiveInt = 2500
    """How many."""
    seed: Seed = 0
    """First seed; held-out evaluation starts lie elsewhere (``evaluation.seed``)."""
    envs: PositiveInt = 64
    """Environment slots."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Discount per env step with which the rewards inside a chunk are summed: ``algorithm.gamma`` of the training."""
    noise: Annotated[list[NoiseLevel], Field(min_length=1)] = field(
        default_factory=lambda: [
            NoiseLevel(share=2.0, action_noise=0.2, speed=0.5),
            NoiseLevel(share=1.0, action_noise=0.4, random_decisions=0.1),
            NoiseLevel(share=1.0, action_noise=0.5, random_decisions=0.5),
        ]
    )
    """Mixture of demonstrators: models need failures and odd states as much as successes."""
    frames_between: bool = False
    """Keep what the env steps inside a decision showed too, for ``world_model.obs_model.step=env_step``: ``policy.replan``
    times the size. Other models leave it out."""
    env: EnvConfig = field(default_factory=TabletopConfig)
    policy: PolicyConfig = field(default_factory=SmallVLAConfig)
    """Only the action tokens (chunk, replan, bins) are used."""


@component
class PretrainBudget:
    """How long one model is pretrained."""

    updates: PositiveInt = 1000
    """Most updates."""
    batch: PositiveInt | None = None
    """Samples per update; none uses the model's own."""
    learning_rate: PositiveFloat | None = None
    """Peak rate; none uses the model's own."""
    validate_every: PositiveInt = 100
    """Updates between two looks at the held-out loss."""
    patience: PositiveInt = 5
    """Looks without a better held-out loss before it stops early."""
    wall_s: PositiveFloat | None = None
    """Most seconds."""


@component
class CloningBudget(PretrainBudget):
    """How long the policy is cloned, and by which optimizer."""

    optimizer: Optimizer = "adamw"
    """``soap`` (the extra ``kronecker``) takes a transformer without pretrained weights further in the same time, at two to
    three times the rate."""
    select_by: Literal["bin_error", "cloning_loss"] = "bin_error"
    """Which weights count as the best on held-out episodes, and when to stop: those whose likeliest token is nearest to the
    demonstrator's, or (``cloning_loss``) those whose probabilities fit it. A policy that shall learn from what it samples needs the
    latter where it goes on from calmer demonstrators: how they vary is then all that is new."""


@component
class PretrainConfig:
    """``python -m platform.pretrain {policy,obs_model,reward_model,all}``."""

    what: Literal["policy", "obs_model", "reward_model", "all"]
    data: str
    """Dataset folder, LeRobot dataset of version 3, folder of LIBERO's HDF5 files, or the directory of a run, whose real episodes
    count: which one is seen by what is in it."""
    out: str = "outputs/pretrained"
    """Folder for the models; a model in it is never overwritten. ``run.resume=<that folder>`` goes on with what is
    missing there, under the configuration it was begun with."""
    success_only: bool = False
    """Clone only successful episodes. A calm demonstrator who runs out of time still shows what to do."""
    clone_noise: NaturalFloat = 0.2
    """Clone only demonstrations whose action noise was at most this, where the dataset says how noisy each was."""
    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of episodes kept for the quality report."""
    parallel: bool = True
    """``all``: one process per model, as far as there are cores."""
    env: EnvConfig = field(default_factory=TabletopConfig)
    policy: PolicyConfig = field(default_factory=SmallVLAConfig)
    world_model: WorldModelConfig = field(default_factory=WorldModelConfig)
    imagination: ImaginationConfig = field(default_factory=ImaginationConfig)
    algorithm: AlgorithmConfig = field(default_factory=GIPOConfig)
    """Only the discount is used, for the critic's first returns."""
    policy_budget: CloningBudget = field(
        default_factory=lambda: CloningBudget(updates=600, batch=128, learning_rate=1.5e-3)
    )
    obs_model_budget: PretrainBudget = field(default_factory=lambda: PretrainBudget(updates=1300))
    reward_model_budget: PretrainBudget = field(default_factory=lambda: PretrainBudget(updates=500))
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    run: RunConfig = field(default_factory=RunConfig)


@component
class EvaluateConfig:
    """``python -m platform.evaluate``: a table of success by task in the real environment, with Wilson intervals."""

    env: EnvConfig = field(default_factory=TabletopConfig)
    policy: PolicyConfig = field(default_factory=SmallVLAConfig)
    evaluation: TrialsConfig = field(default_factory=TrialsConfig)
    run: RunConfig = field(default_factory=lambda: RunConfig(name="evaluation"))
    """Only ``name``, ``dir``, ``resume``, ``seed`` and ``device`` are used."""
