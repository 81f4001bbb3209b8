"""The Ray host: one actor per role and per service, on this machine or on a cluster that is there."""

from __future__ import annotations

import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from configs.errors import ResourceError, RoleFailure
from configs.system import RayHostConfig

from ..ranks import Colleague, RankWorker
from ..role import Role, State
from .base import ANSWER_S, Health
from .proxies import INFER, InferenceProxy, RankProxy, ServiceProxy, answers
from .seat import Seat
from .spares import Recover, Spares, wait_for

log = logging.getLogger(__name__)
T = TypeVar("T")

REQUESTS_AT_ONCE = 64
"""Threads of an inference replica for the requests that wait; calls of the host have threads of their own."""
CALLS_AT_ONCE = 4
LEARNER = "policy_learner"
POLL_S = 0.25
CONNECT_TIMEOUT_S = 5.0
PATIENCE_S = {False: 5.0, True: 0.5}
"""By haste: how long a pause waits for roles that a checkpoint can do without, once the others stand."""


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
        self._spares = Spares(config.restarts)
        self._working = False
        self._begin()

    def _begin(self) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")
        # Ray's own 15 of 19 leaves roles no room to yield to one another.
        os.environ.setdefault("RAY_worker_niceness", "0")
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
        actor = options.remote(build, Seat(learner_cores=self._config.learner_cores))
        self._services[name] = actor
        self._answer_s = max(self._answer_s, answer_s)
        return cast(T, ServiceProxy(name, actor, answer_s))

    def place_role(
        self,
        name: str,
        build: Callable[[], Role],
        *,
        serves: bool = False,
        own_gpu: bool = False,
        recover: Recover | None = None,
    ) -> Any:
        """An actor with a loop of its own."""
        import ray

        from .actors import RoleActor, StoredBuild

        groups = {INFER: REQUESTS_AT_ONCE} if serves else {}
        # Ray's types know nothing of what only actors take.
        remote: Any = ray.remote
        kind = remote(
            num_cpus=0,
            num_gpus=int(own_gpu),
            max_restarts=0 if recover is None else self._config.restarts,
            max_concurrency=CALLS_AT_ONCE,
            concurrency_groups=groups,
        )
        # Kept in the store for those alone that may need it again.
        kept = build if recover is None else StoredBuild.of(build)
        actor = kind(RoleActor).remote(name, kept, self._seat(name))
        self._roles[name] = actor
        if recover is not None:
            self._spares.add(name, actor, recover)
        if not serves:
            return ServiceProxy(name, actor)
        self._serving.add(name)
        return InferenceProxy(name, actor)

    def place_rank(self, name: str, build: Callable[[], RankWorker], *, own_gpu: bool) -> Colleague:
        """An actor that trains in one call while it answers others."""
        import ray

        from .actors import RankActor

        options = ray.remote(RankActor).options(
            num_cpus=0, num_gpus=int(own_gpu), max_restarts=0, max_concurrency=2
        )
        self._ranks[name] = options.remote(build, self._seat(name))
        return RankProxy(name, self._ranks[name])

    def _seat(self, name: str) -> Seat:
        """Of a role by its name, whose number does not count."""
        config, role = self._config, re.sub(r"_\d+$", "", name)
        return Seat(
            config.threads, getattr(config.niceness, role), config.learner_cores, learns=role == LEARNER
        )

    def start(self) -> None:
        """Wait for every constructor; the first failure is told by its role's name."""
        for name, process in wait_for(self._services | self._ranks | self._roles).items():
            self._spares.started(name, process)

    def resume(self) -> None:
        """Let every loop work."""
        self._working = True
        self._let_work(self._present())

    def pump(self) -> None:
        """Wait a moment, then look after every actor."""
        time.sleep(POLL_S)
        if time.monotonic() - self._last_look >= 2 * POLL_S:
            self._look()
            self._last_look = time.monotonic()

    def _look(self) -> None:
        self._welcome()
        asked = {name: actor.health.remote() for name, actor in self._present().items()}
        asked |= {name: actor.error.remote() for name, actor in self._ranks.items()}
        asked |= {name: actor.ready.remote() for name, actor in self._services.items()}
        found = self._of_roles(asked)
        failures = {name: found[name] for name in self._ranks}
        for name in [name for name in self._roles if name in found]:
            self._health[name], failures[name] = found[name]
            self._spares.look(name, self._health[name].process)
        for name, failure in failures.items():
            if failure is not None:
                log.error("%s", failure[1].rstrip())
                raise RoleFailure(f"{name} failed: {failure[0]}", where=name)

    def _present(self) -> dict[str, Any]:
        """Roles that are not being built again."""
        return {name: actor for name, actor in self._roles.items() if name not in self._spares.away}

    def _welcome(self) -> None:
        """Roles that were built again work on."""
        for name, error in self._spares.welcome():
            if error is None and self._working:
                self._let_work({name: self._roles[name]})
            elif error is not None and not self._let_go(name):
                raise error

    def _let_work(self, roles: dict[str, Any]) -> None:
        """Each in the process that is known; one that took its place meanwhile is held until it is welcomed."""
        asked = {name: actor.resume.remote(self._spares.process(name)) for name, actor in roles.items()}
        for name, process in self._of_roles(asked).items():
            self._spares.look(name, process)

    def _let_go(self, name: str) -> bool:
        """Go on without a dead replica while another serves; its clients ask that one."""
        if name not in self._serving or len(self._serving) == 1:
            return False
        self._serving.discard(name)
        self._spares.drop(name)
        self._roles.pop(name, None)
        self._health.pop(name, None)
        log.warning(
            "%s died; still serving, and asked what it left unanswered: %s",
            name, ", ".join(sorted(self._serving)),
        )  # fmt: skip
        return True

    def _lost(self, name: str, error: Exception) -> bool:
        self._health.pop(name, None)
        return self._spares.lost(name, error) or self._let_go(name)

    def pause(self, timeout_s: float, *, haste: bool = False) -> list[str]:
        """Hold every loop; the names of those still inside a step after ``timeout_s``."""
        import ray

        self._working = False
        asked = {actor.pause.remote(haste): name for name, actor in self._present().items()}
        vital = [ref for ref, name in asked.items() if name not in self._spares]
        if vital:
            ray.wait(vital, num_returns=len(vital), timeout=timeout_s)
        patience = min(timeout_s, PATIENCE_S[haste])
        done, late = ray.wait(list(asked), num_returns=len(asked), timeout=patience)
        self._of_roles({asked[ref]: ref for ref in done})
        return [asked[ref] for ref in late]

    def is_spare(self, name: str) -> bool:
        """Whether a checkpoint can do without ``name``."""
        return name in self._spares

    def restarts(self) -> dict[str, int]:
        """Times that roles were built again, by name."""
        return dict(self._spares.restarts)

    def states(self, skip: list[str]) -> dict[str, State]:
        """Of roles, then of services: roles tell them the last, and what a dead one had is given back."""
        asked = {name: actor.state.remote() for name, actor in self._present().items() if name not in skip}
        found = {}
        for name, (process, state) in self._of_roles(asked, self._state_s).items():
            self._spares.look(name, process)
            # One that was built again has not been given yet what its predecessor kept.
            if name not in self._spares.away:
                found[name] = state
        asked = {name: actor.call.remote("state") for name, actor in self._services.items()}
        return found | answers(asked, answer_s=self._state_s)

    def load(self, states: dict[str, State]) -> None:
        """Services first: roles look into them."""
        asked = {name: actor.call.remote("load", states[name]) for name, actor in self._services.items()}
        answers(asked, answer_s=self._state_s)
        states = self._spares.load(states)
        asked = {
            name: actor.load.remote(states[name]) for name, actor in self._roles.items() if name in states
        }
        answers(asked, answer_s=self._state_s)

    def metrics(self) -> dict[str, dict[str, float]]:
        """Each role's metrics and clock."""
        return self._of_roles({name: actor.metrics.remote() for name, actor in self._present().items()})

    @property
    def _state_s(self) -> float:
        """Longest wait for a state to be told or taken over."""
        return max(self._answer_s, self._config.state_s)

    def _of_roles(self, asked: dict[str, Any], answer_s: float | None = None) -> dict[str, Any]:
        """Answers of those that live; the death of one that is not spare ends the run by its name."""
        return answers(asked, self._lost, answer_s=answer_s or self._answer_s)

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
