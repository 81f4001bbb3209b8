"""A turn of the policy learner that is told to hurry ends at a border: nothing half done, nothing lost."""

from __future__ import annotations

import os
import threading
from platform.hosts.actors import RoleActor
from platform.hosts.seat import Seat
from typing import Any

import numpy as np
import pytest

from tests.ranks_helper import make_learner

MANY = (
    "algorithm.epochs=3",
    "algorithm.critic_epochs=2",
    "algorithm.batch=16",
    "algorithm.micro_batch=16",
    "algorithm.critic_warm_up=0",
)


def weights(learner: Any) -> dict[str, Any]:
    state: dict[str, Any] = learner.state()["policy"]
    return state


def changed(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return any(not np.array_equal(before[name], after[name]) for name in before)


def hurried_after(learner: Any, updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``cut_short`` comes in the middle of actor update ``updates`` (from 1)."""
    update = learner.trainer.update_actor

    def watched(pieces: Any) -> None:
        if learner.trainer.updates + 1 == updates:
            learner.cut_short()
        update(pieces)

    monkeypatch.setattr(learner.trainer, "update_actor", watched)


def test_a_turn_ends_after_the_update_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(MANY)
    hurried_after(learner, 2, monkeypatch)
    before = weights(learner)
    assert learner.step()
    assert (learner.trainer.updates, learner.turns, learner.version) == (2, 1, 1)
    assert changed(before, weights(learner))
    counts = learner._buffers["real"].stats()
    assert counts["lifecycle"]["leased"] == 0
    assert counts["uses_per_sample"] > 0, "a shorter turn is a turn"
    assert learner.step()
    assert learner.turns == 2
    assert learner.trainer.updates > 4, "the next one is whole"


def test_a_turn_without_an_update_is_given_up() -> None:
    learner = make_learner(MANY)
    before, lifecycle = learner.state(), learner._buffers["real"].state()["lifecycle"]["samples"]
    learner.cut_short()
    assert learner.step()
    after = learner.state()
    assert not changed(before["policy"], after["policy"])
    assert not changed(before["anchor"], after["anchor"])
    assert (learner.trainer.updates, learner.turns, learner.version) == (0, 0, 0)
    assert after["shuffle"] == before["shuffle"]
    assert learner._buffers["real"].state()["lifecycle"]["samples"] == lifecycle
    assert learner.step()
    assert learner.turns == 1


class Long:
    """A role whose step lasts until it is cut short."""

    name = "long"

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def step(self) -> bool:
        self.begun.set()
        assert self.end.wait(60)
        return True

    def cut_short(self) -> None:
        self.end.set()

    def metrics(self) -> dict[str, float]:
        return {}


def test_a_hasty_pause_cuts_the_step_short_and_a_patient_one_waits() -> None:
    role: Any = Long()
    actor = RoleActor("long", lambda: role, Seat(threads=1))
    actor.resume(os.getpid())
    assert role.begun.wait(60)
    patient = threading.Thread(target=actor.pause)
    patient.start()
    patient.join(0.2)
    assert patient.is_alive()
    assert actor.pause(True)
    patient.join(60)
    assert not patient.is_alive()
    assert actor.health()[0].progress == 1
