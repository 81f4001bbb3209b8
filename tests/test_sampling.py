"""Limiter, sum tree, samplings and spilled columns, against values worked out by hand or a plain reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffers.limiter import Limiter, check_limiter
from buffers.memory import MemoryBuffer
from buffers.shelf import bytes_per_row
from buffers.spill import SpilledColumn, free_bytes
from buffers.sum_tree import SumTree
from configs.errors import ConfigError, ResourceError
from configs.replay import LimiterConfig, PrioritySamplingConfig, RecencySamplingConfig
from configs.system import BufferConfig
from tests.buffer_helper import SPEC, fill
from tests.records_helper import assert_same_record, make_record, make_spec

# --- limiter


def test_the_limiter_keeps_both_sides_within_its_tolerance() -> None:
    limiter = Limiter(LimiterConfig(min_size=10, samples_per_insert=2.0, tolerance=6.0))
    assert not limiter.may_sample(1)
    assert limiter.may_insert(10), "nobody waits for draws before these are allowed"
    limiter.inserted = 10
    assert limiter.may_sample(6)
    assert not limiter.may_sample(7)
    assert limiter.may_insert(3)
    assert not limiter.may_insert(4), "4 * 2 is more than 6 ahead of the draws"
    limiter.sampled = 6
    assert limiter.may_insert(6)
    assert limiter.describe() == "inserted 10 decisions, sampled 6 windows, allowed 0 to 6 after 10 decisions"


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=200))
def test_somebody_may_always_go_on(moves: list[tuple[bool, int]]) -> None:
    config = LimiterConfig(min_size=3, samples_per_insert=2.5, tolerance=20.0)
    check_limiter(config, longest=8, capacity=100, where="buffers.real.limiter")
    limiter = Limiter(config)
    for insert, count in moves:
        if insert and limiter.may_insert(count):
            limiter.inserted += count
        elif not insert and limiter.may_sample(count):
            limiter.sampled += count
        assert limiter.may_insert(8) or limiter.may_sample(8)


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"min_size": 101}, r"min_size=101 is more than the 100 decisions.*max_bytes"),
        ({"samples_per_insert": 4.0, "tolerance": 31.0}, r"tolerance=31 is less than the 32 windows.*at least 32"),
    ],
)  # fmt: skip
def test_limits_that_can_only_block_are_refused(settings_: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_limiter(LimiterConfig(**settings_), longest=8, capacity=100, where="buffers.real.limiter")  # type: ignore[arg-type]


# --- sum tree


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.data())
def test_the_sum_tree_equals_a_plain_array(capacity: int, data: st.DataObject) -> None:
    tree, plain = SumTree(capacity), np.zeros(capacity)
    for _ in range(data.draw(st.integers(1, 6))):
        rows = np.array(data.draw(st.lists(st.integers(0, capacity - 1), unique=True, max_size=12)), np.int64)
        weights = np.array(data.draw(st.lists(st.floats(0, 5), min_size=len(rows), max_size=len(rows))))
        tree.set(rows, weights)
        plain[rows] = weights
    np.testing.assert_array_equal(tree.get(np.arange(capacity)), plain)
    assert tree.total == pytest.approx(plain.sum())
    if tree.total > 0:
        assert (plain[tree.draw(200, np.random.default_rng(0))] > 0).all()


def test_the_sum_tree_draws_in_proportion() -> None:
    tree = SumTree(11)
    weights = np.arange(11, dtype=np.float64)
    tree.set(np.arange(11), weights)
    counts = np.bincount(tree.draw(55_000, np.random.default_rng(1)), minlength=11)
    assert np.abs(counts - 1000 * weights).max() < 5 * np.sqrt(10_000)


# --- recency


def recent_buffer(rows: int, half_life: int) -> MemoryBuffer:
    sampling = RecencySamplingConfig(half_life=half_life)
    config = BufferConfig(max_bytes=rows * bytes_per_row(SPEC, sampling), held_out=0.0, sampling=sampling)
    return MemoryBuffer(SPEC, config, seed=0, name="real")


@pytest.mark.parametrize("filled", [4, 60])
def test_the_probability_halves_with_the_age(filled: int) -> None:
    """Before and after the ring is full: rows of 5 records of 4 decisions in 25 rows."""
    buffer = recent_buffer(25, half_life=5)
    fill(buffer, [4] * filled)
    counts = np.bincount(buffer.windows(40_000, 1, 1).ids, minlength=filled)[buffer.ids()]
    stored = min(filled, 5)
    assert len(counts) == stored
    weights = 0.5 ** np.arange(stored)[::-1]
    np.testing.assert_allclose(counts / 40_000, weights / weights.sum(), atol=0.015)


def test_an_old_split_is_still_drawn_from() -> None:
    """Where nothing of the split is young enough to be met by chance."""
    buffer = recent_buffer(2000, half_life=2)
    buffer.append(make_record(SPEC, 0, 3))
    assert buffer.windows(8, 1, 1).ids.tolist() == [0] * 8
    with_held_out = BufferConfig(
        max_bytes=2000 * bytes_per_row(SPEC, RecencySamplingConfig(half_life=2)), held_out=0.3,
        sampling=RecencySamplingConfig(half_life=2),
    )  # fmt: skip
    split = MemoryBuffer(SPEC, with_held_out, seed=0, name="real")
    split.append(make_record(SPEC, 1, 3, episode_id=1))
    split.extend([make_record(SPEC, 2, 8, episode_id=0)] * 40)
    assert set(split.windows(20, 1, 1, split="held_out").ids.tolist()) == {0}


@pytest.mark.parametrize(
    "sampling", [RecencySamplingConfig(half_life=7), PrioritySamplingConfig(exponent=0.7)]
)
def test_a_loaded_buffer_draws_the_same(sampling: RecencySamplingConfig | PrioritySamplingConfig) -> None:
    config = BufferConfig(max_bytes=60 * bytes_per_row(SPEC, sampling), held_out=0.2, sampling=sampling)
    buffer = MemoryBuffer(SPEC, config, seed=3, name="real")
    fill(buffer, [4, 8, 3, 5, 6, 2, 7, 1, 8, 8, 8])
    seen = buffer.windows(16, 1, 1)
    if sampling.kind == "priority":
        buffer.prioritise(seen.ids, seen.t, np.linspace(0, 2, 16))
    twin = MemoryBuffer(SPEC, config, seed=9, name="real")
    twin.load(buffer.state())
    for each in (buffer, twin):
        fill(each, [3, 3])
    one, two = buffer.windows(64, 1, 1), twin.windows(64, 1, 1)
    np.testing.assert_array_equal(one.ids, two.ids)
    np.testing.assert_array_equal(one.t, two.t)


# --- spilling to disk


@pytest.mark.parametrize("in_memory", [0, 3, 7])
def test_a_spilled_column_is_an_array(tmp_path: Path, in_memory: int) -> None:
    column = SpilledColumn(7, (2,), np.uint8, in_memory=in_memory, folder=tmp_path)
    plain = np.zeros((7, 2), np.uint8)
    plain[:] = np.arange(14).reshape(7, 2)
    column[0:7] = plain
    column[2:5] = plain[4:1:-1]
    plain[2:5] = plain[4:1:-1].copy()
    rows = np.array([[0, 6, 3], [2, 2, 5]])
    np.testing.assert_array_equal(column[rows], plain[rows])
    np.testing.assert_array_equal(column[1:6], plain[1:6])
    column[np.array([6, 0])] = 9
    assert column[np.array([0, 6])].tolist() == [[9, 9], [9, 9]]
    assert not list(tmp_path.iterdir()), "the file has no name, so nothing is left behind"


def test_frames_beyond_the_second_bound_lie_on_disk(tmp_path: Path) -> None:
    spec = make_spec(size=16)
    row, total = bytes_per_row(spec), 200 * bytes_per_row(spec)
    config = BufferConfig(max_bytes=total, memory_bytes=total - 150 * 16 * 16 * 3, held_out=0.0)
    buffer = MemoryBuffer(spec, config, seed=0, name="real", spill_dir=str(tmp_path))
    plain = MemoryBuffer(spec, BufferConfig(max_bytes=total, held_out=0.0), seed=0, name="real")
    store = buffer._shelf.rows
    assert store.spilled_bytes == 150 * 16 * 16 * 3
    assert buffer._shelf.nbytes - store.spilled_bytes <= config.memory_bytes  # type: ignore[operator]
    records = [make_record(spec, number, 1 + number % 8) for number in range(90)]
    for each in (buffer, plain):
        each.extend(records)
    assert buffer.ids() == plain.ids()
    for key in buffer.ids():
        assert_same_record(plain.get(key), buffer.get(key))
    np.testing.assert_array_equal(
        buffer.windows(64, 2, 3).frames["camera0"], plain.windows(64, 2, 3).frames["camera0"]
    )
    twin = MemoryBuffer(spec, config, seed=0, name="real", spill_dir=str(tmp_path))
    twin.load(buffer.state())
    assert_same_record(twin.get(buffer.ids()[0]), buffer.get(buffer.ids()[0]))
    with pytest.raises(ConfigError, match=r"never leave memory.*at least"):
        MemoryBuffer(
            spec,
            BufferConfig(max_bytes=total, memory_bytes=row),
            seed=0,
            name="real",
            spill_dir=str(tmp_path),
        )


def test_a_disk_without_room_is_told_before_anything_is_stored(tmp_path: Path) -> None:
    rows = free_bytes(tmp_path) // 1_000_000 + 1_000
    with pytest.raises(ResourceError, match=r"cannot spill to disk.*spill_dir") as caught:
        SpilledColumn(rows, (1_000_000,), np.uint8, in_memory=0, folder=tmp_path)
    assert str(tmp_path) in caught.value.where
    assert not list(tmp_path.iterdir())
