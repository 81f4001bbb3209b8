"""From a train config to services and roles placed on a host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buffers.backends import answer_s, calls_at_once, make_buffer
from buffers.replay import ReplayBuffer
from configs.schema import TrainConfig
from configs.system import RayHostConfig, SerialHostConfig

from .balance import Balancer
from .checkpoint import SERVERS
from .context import ANCHOR, OBS_MODEL, POLICY, REWARD_MODEL, Context
from .hosts.base import ANSWER_S, Host
from .hosts.serial import SerialHost
from .mixing import make_mix
from .policy_learner import Pacing
from .ranks import LOOPBACK, Colleague, RankWorker, gather
from .role import State
from .shares import Shares, imagined_admission, needed_alone, real_admission, shares, staleness_rules
from .task_sampling import TaskSampler
from .weights import Arrays, WeightStore

if TYPE_CHECKING:
    from .envs.base import DecisionEnv


def _serial_host(_: Any) -> Host:
    return SerialHost()


def _ray_host(config: Any) -> Host:
    from .hosts.ray_host import RayHost

    return RayHost(config)


HOSTS = {SerialHostConfig: _serial_host, RayHostConfig: _ray_host}
"""Class of the host's config to what makes it."""


@dataclass
class Services:
    """Where the shared objects are: themselves on the serial host, proxies of actors on Ray."""

    store: WeightStore
    real: ReplayBuffer
    imagined: ReplayBuffer


def place_services(host: Host, config: TrainConfig, context: Context, folder: Path) -> Services:
    """Weight store and both buffers; ``folder``: of the run, for what a backend keeps on disk."""
    buffers = config.buffers
    calls, wait_s = calls_at_once(buffers), max(ANSWER_S, answer_s(buffers))
    # One more than the run keeps, and one that was written while a role did not pause.
    make = partial(
        make_buffer, context.record_spec, buffers,
        folder=folder / SERVERS, keep=config.run.keep_checkpoints + 2,
    )  # fmt: skip
    real = partial(make, "real", seed=context.seed + 11)
    imagined = partial(make, "imagined", seed=context.seed + 12)
    return Services(
        host.place_service("store", WeightStore),
        host.place_service("b_real", real, calls_at_once=calls, answer_s=wait_s),
        host.place_service("b_img", imagined, calls_at_once=calls, answer_s=wait_s),
    )


def publish_first(services: Services, first: dict[str, Arrays]) -> None:
    """Version 0 of every model, and the anchor: the policy that the run started from. Version 0's budget begins."""
    for name, arrays in first.items():
        services.store.publish(name, 0, arrays)
    services.store.publish(ANCHOR, 0, first[POLICY])
    for buffer in (services.real, services.imagined):
        buffer.advance(0)


def place_roles(host: Host, config: TrainConfig, context: Context, services: Services) -> None:
    """Every role of the mode, in the serial host's round order."""
    part = shares(config)
    rules = staleness_rules(config)
    if part.collects:
        replicas = _place_inference(host, config, context, services)
        for index in range(config.rollout.workers):
            client = _client(replicas, index, services, exact=host.exact)
            rollout = partial(
                _rollout, context, config, services, client, index,
                admission=partial(real_admission, config),
                admission_alone=rules.admission(needed_alone(config, context)), gamma=config.algorithm.gamma,
                exact=host.exact,
            )  # fmt: skip
            _place_spare(host, services, f"rollout_{index}", rollout)
    if part.imagines:
        _place_spare(host, services, "imagination", partial(_imagination, context, config, services))
    _place_policy_learner(host, config, context, services, part)
    if part.trains_models:
        host.place_role("obs_model_learner", partial(_model_learner, "obs_model", context, services))
        host.place_role("reward_model_learner", partial(_model_learner, "reward_model", context, services))
    if part.collects or part.imagines:
        evaluator = partial(_evaluator, context, config, services, part.imagines)
        _place_spare(host, services, "evaluator", evaluator)


def _place_spare(
    host: Host, services: Services, name: str, build: Callable[[], Any], *, serves: bool = False
) -> Any:
    """A role that trains nothing: the run goes on when it dies."""
    return host.place_role(name, build, serves=serves, recover=partial(recover, services, name))


def recover(services: Services, name: str) -> State | None:
    """A dead role's running samples may be started again; what it kept for its successor."""
    services.real.reissue_of(name)
    return services.store.kept(name)


def rank_names(config: TrainConfig) -> list[str]:
    """Names of the policy learner's ranks above 0."""
    return [f"policy_learner_{rank}" for rank in range(1, config.learner.ranks)]


def _place_policy_learner(
    host: Host, config: TrainConfig, context: Context, services: Services, part: Shares
) -> None:
    own_gpu = config.learner.ranks > 1 and context.device == "cuda"
    train = partial(_policy_trainer, context, config, services)
    ranks = [
        host.place_rank(name, partial(RankWorker, train), own_gpu=own_gpu) for name in rank_names(config)
    ]
    build = partial(_policy_learner, context, config, services, part, ranks)
    host.place_role("policy_learner", build, own_gpu=own_gpu)


def _env(context: Context, slots: int, *, between: bool = False) -> DecisionEnv:
    from .envs import make_env

    policy = context.policy_config
    return make_env(context.env_config, slots, chunk=policy.chunk, replan=policy.replan, between=between)


def _place_inference(host: Host, config: TrainConfig, context: Context, services: Services) -> dict[str, Any]:
    """The replicas by name."""
    return {
        f"inference_{replica}": _place_spare(
            host,
            services,
            f"inference_{replica}",
            partial(_inference, context, config, services, exact=host.exact, replica=replica),
            serves=True,
        )
        for replica in range(config.inference.replicas)
    }


def _client(replicas: dict[str, Any], worker: int, services: Services, *, exact: bool) -> Any:
    """What worker ``worker`` asks: replicas are dealt out in turn. In one process none can die alone."""
    from .replicas import Replicas

    own = worker % len(replicas)
    if exact:
        return list(replicas.values())[own]
    return Replicas(replicas, own, services.store, f"rollout_{worker}")


def _inference(
    context: Context, config: TrainConfig, services: Services, *, exact: bool, replica: int
) -> Any:
    from .inference import InferenceService

    # Who lets episodes go on under a new version asks nobody before it takes one.
    running = None if config.sync.partial else services.real
    return InferenceService(context, config.inference, services.store, running, exact=exact, replica=replica)


def _rollout(
    context: Context, config: TrainConfig, services: Services, inference: Any, index: int, **pacing: Any
) -> Any:
    from .rollout import Rollout

    settings = config.rollout
    balanced = settings.spare_envs > 0 and not pacing["exact"]
    most = settings.envs + (settings.spare_envs if balanced else 0)
    env = _env(context, most, between=context.record_spec.between)
    workers = [f"rollout_{number}" for number in range(settings.workers)]
    balancer = Balancer(services.store, workers[index], workers, envs=settings.envs, most=most)
    return Rollout(
        context, env, services.real, inference, services.store, index=index,
        max_steps=config.run.stop.real_steps, segment=config.rollout.segment, stall_s=config.run.stall_s,
        balancer=balancer if balanced else None,
        sampler=TaskSampler(env.spec.tasks) if settings.task_sampling == "failures" else None, **pacing,
    )  # fmt: skip


def _imagination(context: Context, config: TrainConfig, services: Services) -> Any:
    from .imagination import Imagination

    return Imagination(
        context, config.imagination, services.real, services.imagined, services.store, services.store,
        admission=partial(imagined_admission, config),
    )  # fmt: skip


def _policy_trainer(context: Context, config: TrainConfig, services: Services) -> Any:
    """Of one rank; whoever is one of several has joined the others before."""
    from .lean_optimizer import Lean
    from .policy_trainer import PolicyTrainer

    learner = config.learner
    lean = Lean(shard=learner.shard, offload=learner.offload)

    return PolicyTrainer(
        context, config.algorithm, services.store, bound=staleness_rules(config).bound,
        discount=config.algorithm.gamma**config.policy.replan, max_turns=config.run.stop.updates,
        precision=config.run.precision, lean=lean if lean != Lean() else None,
    )  # fmt: skip


def _policy_learner(
    context: Context, config: TrainConfig, services: Services, part: Shares, colleagues: Sequence[Colleague]
) -> Any:
    from .policy_learner import PolicyLearner

    team = gather(colleagues, address=_own_address(config), device=context.device)
    pacing = Pacing(
        real_decisions=part.real_decisions,
        mix=make_mix(config.mix) if part.real_decisions and part.imagined_decisions else None,
        imagined_decisions=part.imagined_decisions,
        retired_decisions=part.retired_decisions,
        turns_per_publish=config.sync.updates_per_publish,
        rules=staleness_rules(config),
        max_turns=config.run.stop.updates,
    )
    return PolicyLearner(
        _policy_trainer(context, config, services), pacing, services.real, services.imagined, services.store,
        services.store, team=team,
    )  # fmt: skip


def _own_address(config: TrainConfig) -> str:
    """Where the other roles reach this process: nowhere but on this machine, unless it is one of a cluster."""
    if not isinstance(config.host, RayHostConfig) or config.host.address is None:
        return LOOPBACK
    import ray

    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def _model_learner(name: str, context: Context, services: Services) -> Any:
    from .learners import obs_model_learner, reward_model_learner

    build = {OBS_MODEL: obs_model_learner, REWARD_MODEL: reward_model_learner}[name]
    return build(context, services.real, services.store, services.store)


def _evaluator(context: Context, config: TrainConfig, services: Services, imagines: bool) -> Any:
    from .evaluation import Evaluator

    return Evaluator(
        context, config.evaluation, _env(context, config.evaluation.envs), services.real, services.store,
        services.store, quality_horizon=quality_horizon(config, context) if imagines else 0,
    )  # fmt: skip


def quality_horizon(config: TrainConfig, context: Context) -> int:
    """The longest horizon that the schedule can ask for, or an episode can have."""
    schedule = config.imagination.schedule
    longest = int(getattr(schedule, "end", 0) or getattr(schedule, "horizon", 0))
    return min(longest, context.record_spec.max_decisions)
