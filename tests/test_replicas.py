"""What a collector sees when inference replicas die."""

from __future__ import annotations

from platform.envs.base import Observation
from platform.inference import Decisions
from platform.replicas import FIRST_AWAY_S, ReplicaLost, Replicas
from platform.weights import WeightStore

import numpy as np

SEEN = Observation({}, np.zeros((1, 1), np.float32), ["reach"])


class Clock:
    """Stands still."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Replica:
    """Answers at once with its version, until it dies."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.asked = 0
        self.alive = True

    def submit(self, observation: Observation) -> object:
        self.asked += 1
        return self.asked

    def poll(self, ticket: object, *, timeout_s: float = 0.0) -> Decisions | None:
        if not self.alive:
            raise ReplicaLost("killed")
        zeros = np.zeros((1, 1, 1))
        return Decisions(zeros.astype(np.int16), zeros, np.zeros(1), self.version)

    def wait(self, ticket: object, timeout_s: float) -> None:
        pass


def test_workers_are_dealt_out_in_turn() -> None:
    replicas = {"a": Replica(), "b": Replica()}
    for worker in range(4):
        client = Replicas(replicas, worker % 2, WeightStore(), f"rollout_{worker}")
        client.poll(client.submit(SEEN))
    assert [r.asked for r in replicas.values()] == [2, 2]


def test_what_a_dead_replica_was_asked_is_asked_again_elsewhere_and_counted() -> None:
    a, b, board, now = Replica(), Replica(), WeightStore(), Clock()
    client = Replicas({"a": a, "b": b}, 0, board, "rollout_3", now)
    ticket = client.submit(SEEN)
    a.alive = False
    assert client.poll(ticket) is None
    assert client.poll(ticket) is not None
    assert (a.asked, b.asked) == (1, 1)
    assert board.read() == {"inference/asked_again/rollout_3": 1}
    assert client.poll(client.submit(SEEN)) is not None
    assert (a.asked, b.asked) == (1, 2), "the dead one is not asked any more"


def test_a_replica_that_came_back_is_asked_again() -> None:
    a, b, now = Replica(), Replica(), Clock()
    client = Replicas({"a": a, "b": b}, 0, WeightStore(), "rollout_0", now)
    a.alive = False
    ticket = client.submit(SEEN)
    assert client.poll(ticket) is None
    assert client.poll(ticket) is not None
    a.alive = True
    now.seconds += FIRST_AWAY_S
    for _ in range(3):
        assert client.poll(client.submit(SEEN)) is not None
    assert (a.asked, b.asked) == (4, 1)


def test_one_that_stays_away_is_asked_ever_more_rarely() -> None:
    a, b, now = Replica(), Replica(), Clock()
    client = Replicas({"a": a, "b": b}, 0, WeightStore(), "rollout_0", now)
    a.alive = False
    tried = []
    for _ in range(3600):
        before = a.asked
        ticket = client.submit(SEEN)
        while client.poll(ticket) is None:
            pass
        tried += [now.seconds] * (a.asked - before)
        now.seconds += 1.0
    assert tried[:6] == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]
    assert tried[-1] - tried[-2] == 60.0
    assert client.asked_again == len(tried)


def test_the_only_replica_is_asked_again_once_it_is_back() -> None:
    a, now = Replica(), Clock()
    client = Replicas({"inference_0": a}, 0, WeightStore(), "rollout_0", now)
    tickets = [client.submit(SEEN), client.submit(SEEN)]
    a.alive = False
    for _ in range(5):
        assert [client.poll(ticket) for ticket in tickets] == [None, None]
    assert (a.asked, client.asked_again) == (2, 2), "nobody asks a replica that is away"
    a.alive, a.version = True, 9
    now.seconds += FIRST_AWAY_S
    assert [client.poll(ticket) for ticket in tickets] == [None, None]
    answers = [client.poll(ticket) for ticket in tickets]
    assert [answer.version for answer in answers if answer is not None] == [9, 9]


def test_two_open_requests_survive_one_death() -> None:
    a, b = Replica(), Replica()
    client = Replicas({"a": a, "b": b}, 0, WeightStore(), "rollout_0")
    tickets = [client.submit(SEEN), client.submit(SEEN)]
    a.alive = False
    assert [client.poll(ticket) for ticket in tickets] == [None, None]
    assert all(client.poll(ticket) is not None for ticket in tickets)
    assert (client.asked_again, b.asked) == (2, 2)


def test_versions_never_decrease_when_the_other_replica_is_behind() -> None:
    a, b = Replica(version=5), Replica(version=4)
    client = Replicas({"a": a, "b": b}, 0, WeightStore(), "rollout_0")
    first = client.poll(client.submit(SEEN))
    assert first is not None
    assert first.version == 5
    a.alive = False
    ticket = client.submit(SEEN)
    assert [client.poll(ticket) for _ in range(3)] == [None] * 3
    b.version = 6
    second = client.poll(ticket)
    assert second is not None
    assert second.version == 6


def test_answers_may_be_taken_in_another_order_than_they_were_given() -> None:
    a = Replica(version=4)
    client = Replicas({"a": a}, 0, WeightStore(), "rollout_0")
    early, late = client.submit(SEEN), client.submit(SEEN)
    a.version = 5
    assert client.poll(late) is not None
    a.version = 4
    older = client.poll(early)
    assert older is not None, "nothing newer had been acted with when it was asked"
    assert older.version == 4
    assert a.asked == 2
