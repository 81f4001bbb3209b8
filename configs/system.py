"""Configs of the running system: buffers, roles, pacing, hosts, the run itself."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from configs.errors import ConfigError
from configs.fields import Fraction, NaturalFloat, NaturalInt, PositiveFloat, PositiveInt, Seed, component
from configs.replay import LimiterConfig, ReverbConfig, SamplingConfig, UniformSamplingConfig

Niceness = Annotated[int, Field(ge=0, le=19)]


@component
class BufferConfig:
    """One replay buffer."""

    max_bytes: PositiveInt = 1_000_000_000
    """Bytes that the buffer may take, in memory and on disk together."""
    memory_bytes: PositiveInt | None = None
    """Of them in memory; frames beyond lie in a memory-mapped file. None keeps all in memory."""
    reuse_limit: PositiveInt = 2
    """Times a sample may be committed by the policy learner."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of episodes that the models never train on."""
    sampling: SamplingConfig = field(default_factory=UniformSamplingConfig)
    """How decisions are drawn to begin a window."""
    limiter: LimiterConfig | None = None
    """Paces draws of training windows against insertions. None lets neither wait for the other."""

    def __post_init__(self) -> None:
        if self.memory_bytes is not None and self.memory_bytes > self.max_bytes:
            raise ConfigError(
                f"memory_bytes={self.memory_bytes} is more than max_bytes={self.max_bytes}",
                where="buffers",
                remedy="give at most max_bytes, or drop memory_bytes",
            )


@component
class BuffersConfig:
    """``B_real`` and ``B_img``."""

    backend: Literal["memory", "reverb"] = "memory"
    """Arrays in this run's own process, or tables of a Reverb server."""
    reverb: ReverbConfig = field(default_factory=ReverbConfig)
    spill_dir: str | None = None
    """Folder of the memory-mapped files; none takes the system's folder for temporary files."""
    real: BufferConfig = field(default_factory=BufferConfig)
    imagined: BufferConfig = field(default_factory=lambda: BufferConfig(reuse_limit=1, held_out=0.0))


@component
class SyncConfig:
    """How learning and publishing are paced."""

    batches_per_update: PositiveInt = 1
    """Batches gathered before the policy learner takes a turn."""
    updates_per_publish: PositiveInt = 1
    """Turns of the policy learner between two published versions, K."""
    store_size: NaturalInt = 0
    """Decisions that lie in store before a turn begins, where that is more than the turn takes; buffers hold their
    shares of it."""
    partial: bool = True
    """Running episodes go on under a new version. Without it they end under the old one first, and none starts until
    then; publishing waits for none of this."""
    ordered: bool = False
    """Real samples train in the order in which they were started, whoever finishes first, and how many a version has
    does not depend on that either: the same seed then gives the same training on any host."""


OnViolation = Literal["cut", "wait", "mask", "drop"]


@component
class StalenessConfig:
    """How far collectors may run ahead, and how old a decision may be when it trains."""

    budget: NaturalFloat = 1.0
    """Extra samples of one version that may be started, as a fraction; 0 is synchronous."""
    bound: NaturalInt = 16
    """Largest lag, in versions, at which a decision trains."""
    on_violation: OnViolation = "mask"
    """What becomes of a sample with decisions beyond the bound: these are cut off, masked in the losses, or the sample is
    dropped; or there are none, since publishing waits for samples that would be, which are trained first."""
    model_bound: NaturalInt | None = 4
    """Largest lag, in versions of either world model, at which an imagined sample trains; older ones are dropped. None
    never drops one for its models' age."""
    on_policy_min_ratio: Fraction = 0.0
    """Least share of a turn's real decisions that the learner's own version made; it waits for more."""


Sharing = Literal["nothing", "moments", "weights"]


@component
class LearnerConfig:
    """The policy learner."""

    ranks: PositiveInt = 1
    """Processes that share each of its turns (on GPUs one each); they learn what one process would."""
    shard: Sharing = "nothing"
    """What ranks share out among them. ``moments``: each holds the optimizer's moments of a share of the weights (ZeRO's
    first stage), 8 bytes a trained weight divided by the ranks. ``weights``: of everything in a large policy's blocks (weights,
    anchor, gradients, moments) each holds a piece, and a block's weights are gathered when it runs (FSDP)."""
    offload: bool = False
    """Hold the moments, and a whole anchor between its uses, in the CPU's memory: for GPUs. Each update then waits for two copies
    of the weights and one of the gradients, and for a step on the CPU."""

    def __post_init__(self) -> None:
        if self.shard != "nothing" and self.ranks == 1:
            raise ConfigError(
                f"learner.shard={self.shard} has nobody to share with at learner.ranks=1",
                where="learner.shard", remedy="raise learner.ranks, or use learner.offload=true",
            )  # fmt: skip


@component
class RolloutConfig:
    """The rollout role."""

    workers: PositiveInt = 1
    """Rollout workers."""
    envs: PositiveInt = 32
    """Environment slots per worker."""
    spare_envs: NaturalInt = 0
    """Slots that each worker builds beside these, to take over from workers whose environments are slower. As many as
    ``workers * envs`` are used in all. 0 turns load balance off; on the serial host nothing is ever moved."""
    task_sampling: Literal["uniform", "failures"] = "uniform"
    """Task of an episode where the environment offers several: each as often, or with a probability proportional to 1 +
    its recent failures."""
    group: PositiveInt = 1
    """Episodes of the same task and start that are trained together."""
    segment: PositiveInt | None = None
    """Decisions after which a running episode is cut: what it has so far is a sample of its own, which trains at once, with
    the critic's value of the observation at the cut. None trains whole episodes."""

    def __post_init__(self) -> None:
        if self.spare_envs and self.workers == 1:
            raise ConfigError(
                f"rollout.spare_envs={self.spare_envs} has nobody to take over from with rollout.workers=1",
                where="rollout.spare_envs",
                remedy="raise rollout.workers, or raise rollout.envs instead",
            )
        if self.group > 1 and self.task_sampling == "failures":
            raise ConfigError(
                f"rollout.group={self.group} needs one task per group, but rollout.task_sampling=failures chooses anew for"
                " each episode",
                where="rollout.task_sampling",
                remedy="set rollout.task_sampling=uniform, or rollout.group=1",
            )


@component
class InferenceConfig:
    """The inference service."""

    max_batch: PositiveInt = 256
    """A batch leaves when it holds this many observations."""
    max_wait_ms: Annotated[float, Field(ge=0, le=60_000)] = 5.0
    """Or when its first request has waited this long."""
    replicas: PositiveInt = 1
    """Copies of the service; rollout workers are dealt out to them in turn, and ask another while theirs is away."""


@component
class EvaluationConfig:
    """Evaluation in the real environment, apart from training; its steps are not training data."""

    trials: PositiveInt = 256
    """Held-out starts for the table before and after."""
    online_trials: PositiveInt = 128
    """Held-out starts for the evaluations during a run."""
    every: NaturalInt = 20
    """Versions between two evaluations during a run; 0 turns them off."""
    quality_every: NaturalInt = 20
    """Versions between two measurements of the models' outcome agreement; 0 turns them off."""
    envs: PositiveInt = 64
    """Environment slots."""
    seed: Seed = 1_000_000
    """First seed of the held-out starts of the table before and after."""
    online_seed: Seed = 2_000_000
    """First seed of the starts of evaluations during a run: what a run is steered by is not what it is judged by."""


@component
class SerialHostConfig:
    """All roles round robin in one process: deterministic, for debugging and tests."""

    kind: Literal["serial"] = "serial"


@component
class NicenessConfig:
    """How far each role yields a CPU that others want, too: 0 (not at all) to 19, as the system's ``nice`` counts. What the
    policy waits for goes first.
    """

    rollout: Niceness = 0
    """Rollout workers."""
    inference: Niceness = 0
    """Inference replicas."""
    imagination: Niceness = 0
    """The imaginer."""
    policy_learner: Niceness = 0
    """Rank 0."""
    obs_model_learner: Niceness = 5
    """The learner of ``M_obs``."""
    reward_model_learner: Niceness = 5
    """The learner of ``M_reward``."""
    evaluator: Niceness = 10
    """Evaluations during the run."""


@component
class RayHostConfig:
    """One Ray actor per role."""

    kind: Literal["ray"] = "ray"
    address: str | None = None
    """An existing cluster; none starts one on this machine."""
    object_store_bytes: Annotated[int, Field(ge=80_000_000)] = 500_000_000
    """Shared memory for a cluster started here; Ray itself wants about 80 MB."""
    threads: PositiveInt = 1
    """Torch threads per role; more only where a role has cores of its own."""
    learner_cores: NaturalInt = 0
    """Cores that the policy learner has to itself; all other roles keep to the rest. 0: all share all. For runs whose
    learner is the bottleneck: it computes faster undisturbed, and the others more slowly."""
    niceness: NicenessConfig = field(default_factory=NicenessConfig)
    """Who goes first where roles outnumber the cores: let those yield that have work ahead."""
    restarts: NaturalInt = 3
    """Times that each rollout worker, inference replica, imagination and evaluator is built again after its process died.
    One more death ends the run, as that of a learner does at once."""
    state_s: PositiveFloat = 600.0
    """Longest wait for one role or buffer to tell its state for a checkpoint, or to take it over when a run is resumed."""


HostConfig = Annotated[SerialHostConfig | RayHostConfig, Field(discriminator="kind")]


@component
class StopConfig:
    """The run ends at whichever comes first."""

    updates: NaturalInt = 200
    """Turns of the policy learner."""
    real_steps: NaturalInt | None = None
    """Online real steps."""
    wall_s: PositiveFloat | None = None
    """Seconds."""
    success: Fraction | None = None
    """Greedy success of an evaluation during the run."""


@component
class RunConfig:
    """The run: where it writes, what it repeats, when it ends."""

    name: str = "run"
    """Folder under ``outputs/``."""
    dir: str | None = None
    """Run directory; none makes ``outputs/<name>/<date>_<time>``. Never overwritten."""
    resume: str | None = None
    """Run directory to continue."""
    seed: Seed = 0
    """Seeds every generator of the run."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where models live."""
    precision: Literal["auto", "no", "bf16"] = "auto"
    """Mixed precision of the policy in training (accelerate's names). ``auto``: bf16 where the device computes in it, no
    elsewhere."""
    stop: StopConfig = field(default_factory=StopConfig)
    log_every_s: PositiveFloat = 5.0
    """Seconds between progress lines and metric rows."""
    checkpoint_every: NaturalInt = 50
    """Policy turns between checkpoints; 0 writes only the last."""
    keep_checkpoints: PositiveInt = 2
    """Older ones are deleted."""
    stall_s: PositiveFloat = 120.0
    """Seconds without progress in any loop after which the run ends with an error."""


@component
class TrackConfig:
    """Trackers beside ``metrics.jsonl``."""

    tensorboard: bool = False
    """Write TensorBoard events into the run directory."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Weights & Biases."""
    wandb_project: str = "reverie"
    """Project name there."""
