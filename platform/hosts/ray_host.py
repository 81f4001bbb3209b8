"""The Ray host: one actor per role and per service, on this machine or on a cluster that is there."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from configs.errors import ResourceError, RoleFailure
from configs.system import RayHostConfig

from ..metrics import Averages
from ..ranks import Colleague, RankWorker
from ..replicas import ReplicaLost
from ..role import Role, State
from .base import ANSWER_S, Health

log = logging.getLogger(__name__)
T = TypeVar("T")

INFER = "infer"
REQUESTS_AT_ONCE = 64
"""Threads of an inference replica for the requests that wait; calls of the host have threads of their own."""
CALLS_AT_ONCE = 4
POLL_S = 0.25
START_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 5.0


class ServiceProxy:
    """Has the methods of the service that lives in an actor; each call waits for its answer."""

    def __init__(self, name: str, actor: Any, answer_s: float = ANSWER_S) -> None:
        self._name, self._actor, self._answer_s = name, actor, answer_s

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)

        def call(*args: Any, **kwargs: Any) -> Any:
            asked = {self._name: self._actor.call.remote(method, *args, **kwargs)}
            return _answers(asked, answer_s=self._answer_s)[self._name]

        return call

    def __reduce__(self) -> tuple[Any, ...]:
        return (ServiceProxy, (self._name, self._actor, self._answer_s))


class InferenceProxy:
    """An inference replica as a collector sees it; a ticket is Ray's reference to the answer."""

    def __init__(self, name: str, actor: Any) -> None:
        self._name, self._actor = name, actor

    def submit(self, observation: Any) -> Any:
        """Ask."""
        return self._actor.infer.options(concurrency_group=INFER).remote(observation)

    def poll(self, ticket: Any, *, timeout_s: float = 0.0) -> Any:
        """Look, waiting at most ``timeout_s``. Raises ReplicaLost when the process that was asked has died."""
        import ray

        done, _ = ray.wait([ticket], timeout=timeout_s)
        try:
            return ray.get(done[0]) if done else None
        except ray.exceptions.RayActorError as error:
            raise ReplicaLost(f"the process of {self._name} died: {_cause(error)}") from error

    def wait(self, ticket: Any, timeout_s: float) -> None:
        """Until there is an answer, or none to be expected."""
        import ray

        ray.wait([ticket], timeout=timeout_s)


class RankProxy:
    """Another rank of a role, as rank 0 sees it; a ticket is Ray's reference to the answer."""

    def __init__(self, name: str, actor: Any) -> None:
        self._name, self._actor = name, actor

    def begin(self, method: str, *args: Any) -> Any:
        """Start a call."""
        return self._actor.call.remote(method, *args)

    def finish(self, ticket: Any, timeout_s: float | None = None) -> Any:
        """The answer. RoleFailure when the rank died or failed, TimeoutError after ``timeout_s``."""
        import ray

        try:
            return ray.get(ticket, timeout=timeout_s)
        except ray.exceptions.RayActorError as error:
            raise RoleFailure(
                f"the process of {self._name} died: {_cause(error)}", where=self._name
            ) from error
        except ray.exceptions.RayTaskError as error:
            raise RoleFailure(f"{self._name} failed: {_cause(error)}", where=self._name) from error


class RayHost:
    """Starts Ray unless an address is given; ends what it started."""

    exact = False

    def __init__(self, config: RayHostConfig) -> None:
        self._config = config
        self._services: dict[str, Any] = {}
        self._ranks: dict[str, Any] = {}
        self._roles: dict[str, Any] = {}
        self._serving: set[str] = set()
        self._answer_s = ANSWER_S
        """Of the slowest service."""
        self._health: dict[str, Health] = {}
        self._last_look = 0.0
        self._averages = Averages()
        self._begin()

    def _begin(self) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")
        if self._config.address is None:
            # A cluster that is there has a token of its own, or none: the user's environment knows it.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        import ray

        began = time.monotonic()
        if self._config.address is not None:
            require_cluster(self._config.address)
            try:
                ray.init(address=self._config.address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ResourceError(
                    f"no Ray cluster answers: {str(error).splitlines()[0]}", where=f"host.address={self._config.address}",
                    remedy="start one with ray start --head, or drop host.address",
                ) from error  # fmt: skip
        else:
            ray.init(
                num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False,
                logging_level=logging.ERROR, object_store_memory=self._config.object_store_bytes,
            )  # fmt: skip
        log.info("Ray is up after %.1f s", time.monotonic() - began)

    def place_service(
        self, name: str, build: Callable[[], T], *, calls_at_once: int = 1, answer_s: float = ANSWER_S
    ) -> T:
        """An actor."""
        import ray

        from .actors import ServiceActor

        options = ray.remote(ServiceActor).options(num_cpus=0, max_restarts=0, max_concurrency=calls_at_once)
        actor = options.remote(build)
        self._services[name] = actor
        self._answer_s = max(self._answer_s, answer_s)
        return cast(T, ServiceProxy(name, actor, answer_s))

    def place_role(
        self, name: str, build: Callable[[], Role], *, serves: bool = False, own_gpu: bool = False
    ) -> Any:
        """An actor with a loop of its own."""
        import ray

        from .actors import RoleActor

        groups = {INFER: REQUESTS_AT_ONCE} if serves else {}
        # Ray's types know nothing of what only actors take.
        remote: Any = ray.remote
        kind = remote(
            num_cpus=0,
            num_gpus=int(own_gpu),
            max_restarts=0,
            max_concurrency=CALLS_AT_ONCE,
            concurrency_groups=groups,
        )
        actor = kind(RoleActor).remote(name, build, self._config.threads)
        self._roles[name] = actor
        if not serves:
            return ServiceProxy(name, actor)
        self._serving.add(name)
        return InferenceProxy(name, actor)

    def _let_go(self, name: str) -> bool:
        """Go on without a dead replica while another serves; its clients ask that one."""
        if name not in self._serving or len(self._serving) == 1:
            return False
        self._serving.discard(name)
        self._roles.pop(name, None)
        self._health.pop(name, None)
        log.warning(
            "%s died; still serving, and asked what it left unanswered: %s",
            name, ", ".join(sorted(self._serving)),
        )  # fmt: skip
        return True

    def place_rank(self, name: str, build: Callable[[], RankWorker], *, own_gpu: bool) -> Colleague:
        """An actor that trains in one call while it answers others."""
        import ray

        from .actors import RankActor

        options = ray.remote(RankActor).options(
            num_cpus=0, num_gpus=int(own_gpu), max_restarts=0, max_concurrency=2
        )
        self._ranks[name] = options.remote(build, self._config.threads)
        return RankProxy(name, self._ranks[name])

    def start(self) -> None:
        """Wait for every constructor; the first failure is told by its role's name."""
        import ray

        for name, actor in (self._services | self._ranks | self._roles).items():
            try:
                pid = ray.get(actor.ready.remote(), timeout=START_TIMEOUT_S)
                log.debug("%s is process %d", name, pid)
            except ray.exceptions.GetTimeoutError as error:
                raise RoleFailure(
                    f"{name} did not start within {START_TIMEOUT_S:.0f} s", where=name,
                    remedy="is the machine overloaded or short of memory?",
                ) from error  # fmt: skip
            except ray.exceptions.RayError as error:
                raise RoleFailure(f"{name} could not start: {_cause(error)}", where=name) from error

    def resume(self) -> None:
        """Let every loop work."""
        self._of_roles({name: actor.resume.remote() for name, actor in self._roles.items()})

    def pump(self) -> None:
        """Wait a moment, then look after every actor."""
        time.sleep(POLL_S)
        if time.monotonic() - self._last_look >= 2 * POLL_S:
            self._look()
            self._last_look = time.monotonic()

    def _look(self) -> None:
        asked = {name: actor.health.remote() for name, actor in self._roles.items()}
        asked |= {name: actor.error.remote() for name, actor in self._ranks.items()}
        asked |= {name: actor.ready.remote() for name, actor in self._services.items()}
        answers = self._of_roles(asked)
        failures = {name: answers[name] for name in self._ranks}
        for name in self._roles:
            self._health[name], failures[name] = answers[name]
        for name, failure in failures.items():
            if failure is not None:
                log.error("%s", failure[1].rstrip())
                raise RoleFailure(f"{name} failed: {failure[0]}", where=name)

    def pause(self, timeout_s: float) -> list[str]:
        """Hold every loop; the names of those still inside a step after ``timeout_s``."""
        import ray

        asked = {actor.pause.remote(): name for name, actor in self._roles.items()}
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
        self._of_roles({asked[ref]: ref for ref in done})
        return [asked[ref] for ref in late]

    def states(self, skip: list[str]) -> dict[str, State]:
        """Of services and roles."""
        asked = {
            name: actor.call.remote("state") for name, actor in self._services.items() if name not in skip
        }
        asked |= {name: actor.state.remote() for name, actor in self._roles.items() if name not in skip}
        return self._of_roles(asked)

    def load(self, states: dict[str, State]) -> None:
        """Services first: roles look into them."""
        asked = {name: actor.call.remote("load", states[name]) for name, actor in self._services.items()}
        _answers(asked, answer_s=self._answer_s)
        for name in [name for name in self._serving if name not in states]:
            log.warning(
                "%s has no state in the checkpoint, since it had died: it starts its noise anew", name
            )
        known = {
            name: actor for name, actor in self._roles.items() if name in states or name not in self._serving
        }
        _answers({name: actor.load.remote(states[name]) for name, actor in known.items()})

    def metrics(self) -> dict[str, dict[str, float]]:
        """Each role's metrics and clock."""
        return self._of_roles({name: actor.metrics.remote() for name, actor in self._roles.items()})

    def _of_roles(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Answers of those that live; the death of one that is not spare ends the run by its name."""
        return _answers(asked, self._let_go, answer_s=self._answer_s)

    def health(self) -> list[Health]:
        """As of the last look."""
        return list(self._health.values())

    def close(self) -> None:
        """Kill the actors; end Ray if it was started here."""
        import ray

        if not ray.is_initialized():
            return
        for actor in [*self._roles.values(), *self._ranks.values(), *self._services.values()]:
            ray.kill(actor, no_restart=True)
        ray.shutdown()


def require_cluster(address: str) -> None:
    """Raise ResourceError when ``address`` names a host and port where nothing listens.

    Ray itself tries for two minutes and then ends the process.
    """
    host, colon, port = (
        address.partition("://")[2].rpartition(":") if "://" in address else address.rpartition(":")
    )
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ResourceError(
            f"nothing listens there: {error}", where=f"host.address={address}",
            remedy="start a cluster with ray start --head, or drop host.address",
        ) from error  # fmt: skip


def _answers(
    asked: dict[str, Any], spare: Callable[[str], bool] = lambda _: False, *, answer_s: float = ANSWER_S
) -> dict[str, Any]:
    """Wait for each; a dead or silent actor ends the run by its name, unless it is dead and ``spare``."""
    import ray

    answers = {}
    for name, ref in asked.items():
        try:
            answers[name] = ray.get(ref, timeout=answer_s)
        except ray.exceptions.RayActorError as error:
            if not spare(name):
                raise RoleFailure(f"the process of {name} died: {_cause(error)}", where=name) from error
        except ray.exceptions.GetTimeoutError as error:
            raise RoleFailure(f"{name} does not answer", where=name) from error
    return answers


def _cause(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).strip().splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[-1]}" if lines else type(cause).__name__
