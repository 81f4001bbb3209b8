"""Without ``sync.partial`` an episode ends under the version that it began with."""

from __future__ import annotations

from dataclasses import replace
from platform.envs.base import Observation
from platform.inference import Decisions, InferenceService

import numpy as np
import pytest

from tests.inference_helper import (
    MarkContext,
    check,
    observation,
    service,
    store_with,
    weights_of,
)


class Episodes:
    """Running samples by the version that they were started under, and how often they were asked for."""

    def __init__(self) -> None:
        self.started: dict[int, int] = {}
        self.asked = 0

    def running_before(self, version: int) -> int:
        self.asked += 1
        return sum(started < version for started in self.started.values())


def asks(sample: int, decision: int, mark: float) -> Observation:
    """A collector's question with the key of its decision."""
    return replace(observation(mark), keys=np.array([[sample, 0, decision]], np.int64))


def answer(served: InferenceService, question: Observation) -> Decisions | None:
    ticket = served.submit(question)
    assert served.step()
    return served.poll(ticket)


@pytest.mark.parametrize("exact", [True, False])
def test_an_episode_ends_under_the_version_that_it_began_with(exact: bool) -> None:
    store, running = store_with(0), Episodes()
    served = service(MarkContext(), store, exact=exact, running=running)
    running.started = {7: 0}
    check(answer(served, asks(7, 0, 1.0)), 1.0, version=0)
    store.publish("policy", 1, weights_of(1))
    check(answer(served, asks(7, 1, 2.0)), 2.0, version=0)
    served.close()


@pytest.mark.parametrize("exact", [True, False])
def test_an_episode_that_began_under_a_new_version_never_sees_the_old_one(exact: bool) -> None:
    store, running = store_with(0), Episodes()
    served = service(MarkContext(), store, exact=exact, running=running)
    running.started = {7: 0}
    check(answer(served, asks(7, 0, 1.0)), 1.0, version=0)
    # Both appear before anyone looks: the service may not wait for its next look.
    store.publish("policy", 1, weights_of(1))
    store.publish("policy", 2, weights_of(2))
    running.started = {8: 2}
    check(answer(served, asks(8, 0, 3.0)), 3.0, version=2)
    before = running.asked
    check(answer(served, asks(8, 1, 4.0)), 4.0, version=2)
    assert running.asked == before, "who was answered under the serving version still runs"
    served.close()


def test_old_weights_outlive_a_checkpoint_while_episodes_of_them_run() -> None:
    store, running = store_with(0), Episodes()
    served = service(MarkContext(), store, running=running)
    running.started = {7: 0}
    answer(served, asks(7, 0, 1.0))
    store.publish("policy", 1, weights_of(1))
    state = served.state()

    again = service(MarkContext(), store, running=running)
    again.load(state)
    check(answer(again, asks(7, 1, 2.0)), 2.0, version=0)
    running.started = {8: 1}
    check(answer(again, asks(8, 0, 3.0)), 3.0, version=1)
