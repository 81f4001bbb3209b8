"""The inference service: when batches leave, what they hold, which weights they use."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from platform.batching import Batcher, Histogram, Request, buckets
from platform.envs.base import Observation
from platform.inference import Decisions, InferenceService
from platform.weights import Published, WeightStore
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.system import InferenceConfig
from policies.base import Choice, ObservationTensors

LONG_S = 60.0


def observation(*marks: float) -> Observation:
    """One row per mark; its proprio is the mark."""
    count = len(marks)
    return Observation(
        {"top": np.zeros((count, 2, 2, 3), np.uint8)},
        np.array(marks, np.float32)[:, None],
        ["reach"] * count,
    )


class MarkPolicy(torch.nn.Module):
    """Answers with its two weights, which every version sets to its number, and with the observation's mark."""

    def __init__(self, beside: Callable[[], None]) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.tensor(-1.0))
        self.second = torch.nn.Parameter(torch.tensor(-1.0))
        self.sizes: list[int] = []
        self._beside = beside

    def act(
        self,
        obs: ObservationTensors,
        *,
        greedy: bool,
        generator: torch.Generator | None = None,
        noise: torch.Tensor | None = None,
    ) -> Choice:
        first = self.first.detach().clone()
        self._beside()
        tokens = first.long().expand(len(obs), 1, 1)
        log_probs = self.second.detach().expand(len(obs), 1, 1)
        self.sizes.append(len(obs))
        return Choice(tokens, log_probs, obs.proprio[:, 0])


class MarkContext:
    """As much of a context as the service asks for."""

    seed = 0
    record_spec = SimpleNamespace(chunk=1, action_dim=1, bins=2)

    def __init__(self, beside: Callable[[], None] = lambda: None) -> None:
        self._beside = beside
        self.policies: list[MarkPolicy] = []

    def make_policy(self) -> MarkPolicy:
        self.policies.append(MarkPolicy(self._beside))
        return self.policies[-1]

    def tensors(self, seen: Observation) -> ObservationTensors:
        return ObservationTensors(
            {}, torch.from_numpy(seen.proprio), torch.zeros(len(seen.proprio), 1, dtype=torch.int64)
        )

    def sizes(self) -> list[int]:
        return [size for policy in self.policies for size in policy.sizes]


def weights_of(version: int) -> dict[str, Any]:
    return {"first": np.float32(version), "second": np.float32(version)}


def store_with(version: int) -> WeightStore:
    store = WeightStore()
    store.publish("policy", version, weights_of(version))
    return store


def service(
    context: MarkContext,
    store: Any,
    *,
    exact: bool = True,
    max_batch: int = 4,
    max_wait_ms: float = 0.0,
    running: Any = None,
) -> InferenceService:
    config = InferenceConfig(max_batch=max_batch, max_wait_ms=max_wait_ms)
    return InferenceService(cast(Any, context), config, store, running, exact=exact)


def check(decisions: Decisions | None, *marks: float, version: int) -> None:
    """Whole: rows of the question, every weight of one version, and that version named."""
    assert decisions is not None
    assert decisions.version == version
    assert decisions.values.tolist() == list(marks)
    assert decisions.tokens.tolist() == [[[version]]] * len(marks)
    assert decisions.log_probs.tolist() == [[[version]]] * len(marks)


# When a batch leaves


def request(ticket: int, size: int, arrived: float = 0.0) -> Request:
    return Request(ticket, observation(*range(size)), arrived)


def test_a_batch_is_due_when_its_first_request_has_waited() -> None:
    batcher = Batcher(max_batch=10, max_wait_s=5.0)
    assert batcher.due_in(0.0) is None
    batcher.add(request(0, 2, arrived=100.0))
    assert batcher.due_in(101.0) == 4.0
    batcher.add(request(1, 2, arrived=103.0))
    assert batcher.due_in(103.0) == 2.0, "a later request does not extend the wait"
    assert batcher.due_in(107.0) == 0.0
    assert [r.ticket for r in batcher.take()] == [0, 1]
    assert batcher.due_in(107.0) is None


def test_a_batch_is_due_when_it_is_full() -> None:
    batcher = Batcher(max_batch=4, max_wait_s=5.0)
    batcher.add(request(0, 3, arrived=100.0))
    assert batcher.due_in(100.0) == 5.0
    batcher.add(request(1, 1, arrived=100.0))
    assert batcher.due_in(100.0) == 0.0


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), max_size=30), st.integers(1, 6))
def test_no_batch_is_too_large_and_no_request_is_lost_or_overtaken(sizes: list[int], largest: int) -> None:
    batcher = Batcher(largest, max_wait_s=0.0)
    for ticket, size in enumerate(sizes):
        batcher.add(request(ticket, size))
    left = []
    while batch := batcher.take():
        assert len(batch) == 1 or sum(r.size for r in batch) <= largest
        left += [r.ticket for r in batch]
    assert left == list(range(len(sizes)))
    assert batcher.due_in(0.0) is None


@pytest.mark.parametrize(
    ("largest", "expected"), [(1, (1,)), (2, (1, 2)), (5, (1, 2, 4, 5)), (8, (1, 2, 4, 8))]
)
def test_buckets_are_powers_of_two_and_the_largest_batch(largest: int, expected: tuple[int, ...]) -> None:
    assert buckets(largest) == expected


def test_a_histogram_counts_up_to_each_bound_once() -> None:
    histogram = Histogram("x", (1, 2, 4), "_ms")
    for value in (0.0, 1.0, 1.5, 3.0, 4.0, 4.1):
        histogram.add(value)
    assert histogram.take() == {"x/up_to_1_ms": 2, "x/up_to_2_ms": 1, "x/up_to_4_ms": 2, "x/longer": 1}
    assert histogram.take() == {}


# What a batch holds


def test_each_collector_gets_the_rows_that_it_asked_for() -> None:
    served = service(MarkContext(), store_with(0))
    tickets = [served.submit(observation(1.0)), served.submit(observation(2.0, 3.0))]
    assert served.poll(tickets[0]) is None
    assert served.step()
    assert not served.step(), "nobody waits any more"
    check(served.poll(tickets[0]), 1.0, version=0)
    check(served.poll(tickets[1]), 2.0, 3.0, version=0)
    assert served.poll(tickets[1]) is None, "an answer is given once"


def test_a_request_larger_than_a_batch_is_computed_in_parts_under_one_version() -> None:
    context = MarkContext()
    served = service(context, store_with(0), max_batch=4)
    marks = [float(i) for i in range(10)]
    ticket = served.submit(observation(*marks))
    assert served.step()
    check(served.poll(ticket), *marks, version=0)
    assert context.sizes() == [4, 4, 2]


def test_requests_are_accepted_while_a_batch_computes() -> None:
    computing, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        computing.set()
        assert go_on.wait(LONG_S)

    context = MarkContext(hold)
    served = service(context, store_with(0))
    first = served.submit(observation(1.0))
    loop = threading.Thread(target=served.step)
    loop.start()
    assert computing.wait(LONG_S)
    later = [served.submit(observation(2.0)), served.submit(observation(3.0))]
    assert served.poll(first) is None, "still computing"
    go_on.set()
    loop.join(LONG_S)
    assert served.step(), "both that arrived meanwhile leave as one batch"
    check(served.poll(first), 1.0, version=0)
    check(served.poll(later[0]), 2.0, version=0)
    check(served.poll(later[1]), 3.0, version=0)
    assert context.sizes() == [1, 2]


def test_a_waiting_loop_wakes_for_a_full_batch_and_waits_for_one_that_is_not() -> None:
    served = service(MarkContext(), store_with(0), exact=False, max_batch=2, max_wait_ms=60_000)
    try:
        served.submit(observation(1.0))
        served.wait_for_work(0.0)
        assert not served.step(), "half a batch, and its minute is not over"
        waiting = threading.Thread(target=lambda: served.wait_for_work(LONG_S))
        waiting.start()
        ticket = served.submit(observation(2.0))
        waiting.join(LONG_S)
        assert not waiting.is_alive()
        assert served.step()
        check(served.poll(ticket), 2.0, version=0)
    finally:
        served.close()


def test_counts_of_batches_and_waits() -> None:
    served = service(MarkContext(), store_with(0), max_batch=4)
    for marks in ((1.0,), (1.0, 2.0), (1.0, 2.0, 3.0)):
        served.submit(observation(*marks))
    while served.step():
        pass
    row = served.metrics()
    assert row["inference/batches/up_to_4"] == 2, "1 + 2 fit together, 3 more do not"
    assert row["inference/batch_size"] == 3.0
    assert sum(value for name, value in row.items() if name.startswith("inference/waits/")) == 3
    assert row["inference/replicas"] == 1


# Which weights serve


class HeldStore(WeightStore):
    """Its ``fetch`` hangs, once there is something newer, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.hanging, self.let_go = threading.Event(), threading.Event()

    def fetch(self, name: str, newer_than: int) -> Published | None:
        found = super().fetch(name, newer_than)
        if found is not None and newer_than >= 0:
            self.hanging.set()
            assert self.let_go.wait(LONG_S)
        return found


def test_a_slow_fetch_holds_up_no_batch() -> None:
    store = HeldStore()
    store.publish("policy", 0, weights_of(0))
    served = service(MarkContext(), store, exact=False)

    def decide() -> Decisions:
        ticket = served.submit(observation(1.0))
        assert served.step()
        decisions = served.poll(ticket)
        assert decisions is not None
        check(decisions, 1.0, version=decisions.version)
        return decisions

    try:
        assert decide().version == 0
        store.publish("policy", 1, weights_of(1))
        assert store.hanging.wait(LONG_S)
        assert [decide().version for _ in range(5)] == [0] * 5
        store.let_go.set()
        versions = [0]
        while versions[-1] == 0:
            versions.append(decide().version)
        assert versions[-1] == 1
    finally:
        served.close()


def test_a_failed_fetch_ends_the_next_step_with_its_error() -> None:
    class BrokenStore(WeightStore):
        def fetch(self, name: str, newer_than: int) -> Published | None:
            if newer_than >= 0:
                raise OSError("the store is gone")
            return super().fetch(name, newer_than)

    store = BrokenStore()
    store.publish("policy", 0, weights_of(0))
    served = service(MarkContext(), store, exact=False)

    def work_on() -> None:
        while True:
            served.submit(observation(1.0))
            served.step()

    try:
        with pytest.raises(OSError, match="the store is gone"):
            work_on()
    finally:
        served.close()


class LoaderByHand:
    """Looks while the batch after a nudge computes, as a loader does that is as fast as a batch."""

    def __init__(self) -> None:
        self.nudged = False
        self.buffer: Any = None

    def __call__(self, buffer: Any) -> LoaderByHand:
        self.buffer = buffer
        return self

    def nudge(self) -> None:
        self.nudged = True

    def beside(self) -> None:
        if self.nudged:
            self.nudged = False
            self.buffer.look()


@settings(deadline=None)
@given(st.lists(st.sampled_from(["0", "1", "2", "batch", "publish"]), max_size=40))
def test_after_a_publish_a_collector_makes_at_most_one_decision_under_old_weights(events: list[str]) -> None:
    loader = LoaderByHand()
    store = store_with(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("platform.inference.Loader", loader)
        served = service(MarkContext(loader.beside), store, exact=False, max_batch=8)
    newest, asked = 0, {}
    old_since_publish: dict[str, int] = {}
    for event in events:
        if event == "publish":
            newest += 1
            store.publish("policy", newest, weights_of(newest))
            old_since_publish = {}
        elif event == "batch":
            served.step()
            for collector, ticket in list(asked.items()):
                decisions = served.poll(ticket)
                if decisions is None:
                    continue
                del asked[collector]
                check(decisions, float(collector), version=decisions.version)
                old_since_publish[collector] = old_since_publish.get(collector, 0) + (
                    decisions.version < newest
                )
        elif event not in asked:
            asked[event] = served.submit(observation(float(event)))
    assert all(count <= 1 for count in old_since_publish.values())


def test_the_serial_host_loads_in_line_and_continues_from_a_checkpoint() -> None:
    store = store_with(0)
    served = service(MarkContext(), store)
    answered, waiting = served.submit(observation(1.0)), None
    assert served.step()
    waiting = served.submit(observation(2.0))
    store.publish("policy", 1, weights_of(1))
    resumed = service(MarkContext(), store)
    resumed.load(served.state())
    check(resumed.poll(answered), 1.0, version=0)
    assert resumed.step()
    check(resumed.poll(waiting), 2.0, version=1)


def test_the_report_adds_up_the_counts_of_a_run(tmp_path: Path) -> None:
    from platform.report import inference_counts

    rows = [
        {"inference/batches/up_to_4": 2.0, "inference/waits/longer": 1.0, "inference/batch_size": 3.0},
        {"inference/batches/up_to_4": 5.0, "inference/batches/up_to_8": 1.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert inference_counts(tmp_path / "metrics.jsonl") == {
        "batches": {"up_to_4": 7, "up_to_8": 1},
        "waits": {"longer": 1},
    }


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
