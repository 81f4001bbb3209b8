"""How one process reaches another on Ray: services, inference replicas, ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from configs.errors import ReverieError, RoleFailure

from ..replicas import ReplicaLost
from .base import ANSWER_S

INFER = "infer"
GUESSES = "Some common causes include"
"""What Ray's text on a dead process goes on with, the same for every death."""


class ServiceProxy:
    """Has the methods of the service that lives in an actor; each call waits for its answer."""

    def __init__(self, name: str, actor: Any, answer_s: float = ANSWER_S) -> None:
        self._name, self._actor, self._answer_s = name, actor, answer_s

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)

        def call(*args: Any, **kwargs: Any) -> Any:
            asked = {self._name: self._actor.call.remote(method, *args, **kwargs)}
            return answers(asked, answer_s=self._answer_s)[self._name]

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
            raise ReplicaLost(f"the process of {self._name} died: {cause(error)}") from error

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
            raise died(self._name, error) from error
        except ray.exceptions.RayTaskError as error:
            raise RoleFailure(f"{self._name} failed: {cause(error)}", where=self._name) from error


def answers(
    asked: dict[str, Any],
    spare: Callable[[str, Exception], bool] = lambda *_: False,
    *,
    answer_s: float = ANSWER_S,
) -> dict[str, Any]:
    """Wait for each; a dead or silent actor ends the run by its name, unless it is dead and ``spare``."""
    import ray

    found = {}
    for name, ref in asked.items():
        try:
            found[name] = ray.get(ref, timeout=answer_s)
        except ray.exceptions.RayActorError as error:
            if not spare(name, error):
                raise died(name, error) from error
        except ray.exceptions.GetTimeoutError as error:
            raise RoleFailure(f"{name} does not answer", where=name) from error
        except ray.exceptions.RayTaskError as error:
            # What Ray makes of it says a whole traceback.
            raise (error.cause if isinstance(error.cause, ReverieError) else error) from error
    return found


def died(name: str, error: BaseException) -> RoleFailure:
    """What tells of the death of ``name``."""
    return RoleFailure(f"the process of {name} died: {cause(error)}", where=name)


def cause(error: BaseException) -> str:
    """Its last line, which says most, without what Ray guesses whenever a process is gone."""
    first = getattr(error, "cause", None) or error
    told = str(first).partition(GUESSES)[0]
    lines = [line.strip() for line in told.strip().splitlines() if line.strip()]
    return f"{type(first).__name__}: {lines[-1]}" if lines else type(first).__name__
