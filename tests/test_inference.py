"""The inference service: what batches hold, which weights they use."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from platform.inference import Decisions
from platform.weights import Published, WeightStore
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inference_helper import (
    MarkContext,
    check,
    observation,
    service,
    store_with,
    weights_of,
)

LONG_S = 60.0


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


def test_what_waited_on_the_serial_host_is_asked_anew_on_another() -> None:
    serial, context = service(MarkContext(), store_with(0)), MarkContext()
    serial.submit(observation(1.0))
    other = service(context, store_with(0), exact=False)
    other.load(serial.state())
    ticket = other.submit(observation(2.0))
    while (answer := other.wait_for(ticket, 0.1)) is None:
        other.step()
    other.close()
    check(answer, 2.0, version=0)
    assert context.sizes() == [1], "nobody holds the other host's ticket"
