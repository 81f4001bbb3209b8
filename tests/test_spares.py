"""A role that was built again works, and speaks for itself, only once it has what its predecessor kept."""

from __future__ import annotations

import os
import threading
from platform.hosts.actors import RoleActor
from platform.hosts.ray_host import RayHost
from platform.hosts.seat import Seat
from types import SimpleNamespace
from typing import Any

import pytest

from configs.system import RayHostConfig


class Stepping:
    """Tells that it was stepped."""

    def __init__(self) -> None:
        self.stepped = threading.Event()

    def step(self) -> bool:
        self.stepped.set()
        return True

    def state(self) -> dict[str, Any]:
        return {"stepped": self.stepped.is_set()}


def test_a_process_is_let_work_by_its_own_number_only() -> None:
    role: Any = Stepping()
    actor = RoleActor("role", lambda: role, Seat(threads=1))
    assert actor.resume(os.getpid() + 1) == os.getpid()
    assert not actor._running.is_set()
    assert actor.state() == (os.getpid(), {"stepped": False})
    actor.resume(os.getpid())
    assert role.stepped.wait(60)
    actor.pause()


class Called:
    """An actor whose method answers at once; a call is its own answer."""

    def __init__(self, process: int, state: Any = None) -> None:
        self.asked: list[Any] = []
        self.process, self._state = process, state

    def __getattr__(self, method: str) -> Any:
        found = {"state": (self.process, self._state), "call": self._state}.get(method, self.process)

        def remote(*given: Any) -> Any:
            self.asked.append((method, *given))
            return found

        return SimpleNamespace(remote=remote)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> RayHost:
    import ray

    monkeypatch.setattr(RayHost, "_begin", lambda _: None)
    monkeypatch.setattr(ray, "get", lambda answer, timeout=None: answer)
    return RayHost(RayHostConfig())


def test_one_that_was_built_again_during_a_checkpoint_is_left_out_of_it(host: RayHost) -> None:
    """Its state would be that of a role that never did anything."""
    given_back: list[str] = []
    for name, process in (("rollout_0", 11), ("rollout_1", 12), ("policy_learner", 13)):
        host._roles[name] = Called(process, state=name)
        host._spares.started(name, process)
    for name in ("rollout_0", "rollout_1"):
        host._spares.add(name, host._roles[name], lambda name=name: given_back.append(name))  # type: ignore[misc]
    host._services["store"] = Called(14, state="facts")
    host._roles["rollout_1"].process = 99
    assert host.states([]) == {"rollout_0": "rollout_0", "policy_learner": "policy_learner", "store": "facts"}
    assert given_back == ["rollout_1"]

    host.resume()
    assert ("resume", 11) in host._roles["rollout_0"].asked
    assert not any(call[0] == "resume" for call in host._roles["rollout_1"].asked), "it is not welcome yet"


def test_one_that_was_built_again_before_it_was_let_work_is_held(host: RayHost) -> None:
    host._roles["evaluator"] = Called(99)
    host._spares.add("evaluator", host._roles["evaluator"], lambda: None)
    host._spares.started("evaluator", 11)
    host.resume()
    assert host._roles["evaluator"].asked[0] == ("resume", 11), "that number is not its own"
    assert host._spares.away == {"evaluator"}
