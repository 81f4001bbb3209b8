"""When a batch leaves, and how batches and waits are counted."""

from __future__ import annotations

from platform.batching import Batcher, Histogram, Request, buckets

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inference_helper import (
    observation,
)


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
