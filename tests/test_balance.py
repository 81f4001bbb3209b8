"""Which worker gets how many slots."""

from __future__ import annotations

from platform.balance import LEAST, MARGIN, Balancer, rebalance
from platform.weights import WeightStore

from hypothesis import given
from hypothesis import strategies as st

NAMES = ("rollout_0", "rollout_1", "rollout_2")


def test_one_slot_moves_from_the_busiest_to_the_idlest() -> None:
    slots = dict.fromkeys(NAMES, 4)
    busy = {"rollout_0": 0.5, "rollout_1": 0.9, "rollout_2": 0.3}
    assert rebalance(slots, busy, most=8) == {"rollout_0": 4, "rollout_1": 3, "rollout_2": 5}


def test_nothing_moves_within_the_margin_or_before_all_have_told() -> None:
    slots = {"rollout_0": 4, "rollout_1": 4}
    assert rebalance(slots, {"rollout_0": 0.5, "rollout_1": 0.5 + MARGIN}, most=8) == slots
    assert rebalance(slots, {"rollout_0": 0.9}, most=8) == slots


def test_who_is_full_takes_nothing_and_who_has_the_least_gives_nothing() -> None:
    busy = {"rollout_0": 0.9, "rollout_1": 0.1}
    full = {"rollout_0": 4, "rollout_1": 6}
    assert rebalance(full, busy, most=6) == full
    least = {"rollout_0": LEAST, "rollout_1": 4}
    assert rebalance(least, busy, most=6) == least


@given(
    st.lists(st.tuples(st.integers(1, 8), st.floats(0, 1)), min_size=1, max_size=6),
)
def test_the_sum_and_the_bounds_hold_and_at_most_one_slot_moves(loads: list[tuple[int, float]]) -> None:
    slots = {f"rollout_{number}": count for number, (count, _) in enumerate(loads)}
    busy = {f"rollout_{number}": share for number, (_, share) in enumerate(loads)}
    after = rebalance(slots, busy, most=8)
    assert sum(after.values()) == sum(slots.values())
    assert all(LEAST <= count <= 8 for count in after.values())
    assert sum(abs(after[name] - slots[name]) for name in slots) in (0, 2)


@given(st.floats(1.2, 8.0))
def test_the_slower_worker_ends_with_fewer_slots_and_the_moving_stops(slowness: float) -> None:
    # A worker that steps its slots in turn is busy in proportion to slots times step time.
    step_s = {"rollout_0": 0.02 * slowness, "rollout_1": 0.02}
    slots = {"rollout_0": 6, "rollout_1": 6}

    def busy() -> dict[str, float]:
        return {name: min(1.0, slots[name] * step_s[name]) for name in slots}

    for _ in range(40):
        slots = rebalance(slots, busy(), most=11)
    assert slots == rebalance(slots, busy(), most=11)
    assert slots["rollout_0"] <= slots["rollout_1"]
    if 6 * 0.02 * (slowness - 1) > MARGIN and slowness < 8:
        assert slots["rollout_0"] < slots["rollout_1"]


def test_the_first_worker_decides_and_all_obey() -> None:
    board = WeightStore()
    slow, fast = (Balancer(board, name, list(NAMES[:2]), envs=4, most=6) for name in NAMES[:2])
    assert slow.allotted(board.read()) == fast.allotted(board.read()) == 4
    assert slow.due(0.0)
    slow.tell(0.0, 0.9)
    assert not slow.due(0.0)
    assert fast.allotted(board.read()) == 4, "the other one has not told yet"
    fast.tell(0.0, 0.2)
    slow.tell(5.0, 0.9)
    assert (slow.allotted(board.read()), fast.allotted(board.read())) == (3, 5)
    for now in (10.0, 15.0, 20.0):
        slow.tell(now, 0.9)
    assert (slow.allotted(board.read()), fast.allotted(board.read())) == (2, 6)
