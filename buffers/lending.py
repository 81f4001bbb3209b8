"""What the policy learner is lent: which samples leave because of their age, and which of the others are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from buffers.lifecycle import Lifecycle
from buffers.samples import Gate
from buffers.shelf import Item


class Holdings(Protocol):
    """What is known of stored records, wherever they lie."""

    items: dict[int, Item]

    def made_since(self, item: Item, version: int) -> int:
        """Decisions of ``item``, those that were cut off left out, that ``version`` or a later one made."""
        ...

    def cut(self, item: Item, oldest: int) -> int:
        """Cut off the decisions that versions before ``oldest`` made; how many."""
        ...


@dataclass(frozen=True)
class Candidate:
    """A sample that could be lent."""

    id: int
    decisions: int
    on_policy: int
    """Of them made by the learner's own version."""
    group: int
    due: bool = False
    """The next version waits for it."""


def choose(candidates: list[Candidate], decisions: int, on_policy: float) -> list[int] | None:
    """Samples with at least ``decisions`` decisions together, whole groups, in the order of the candidates; None when
    there are too few.

    What is due comes first, as far as the share ``on_policy`` leaves room for it, but one sample at least.
    At least the share ``on_policy`` of what is chosen is on-policy. Where the first candidates do not give that, later
    ones are taken in their place, those with the largest on-policy share first.
    """
    groups = _by_group(candidates)
    fresh = sorted((g for g in groups if g.on_policy), key=lambda g: -g.on_policy / g.decisions)
    chosen: set[int] = set()
    total = on_policy_total = 0

    def take(group: _Group) -> None:
        nonlocal total, on_policy_total
        if group.number not in chosen:
            chosen.add(group.number)
            total += group.decisions
            on_policy_total += group.on_policy

    for group in groups if on_policy < 1 else ():
        if total >= (1 - on_policy) * decisions:
            break
        if group.due:
            take(group)
    for group in fresh:
        if on_policy_total >= on_policy * decisions:
            break
        take(group)
    for group in groups:
        if total >= decisions:
            break
        take(group)
    # Whole samples are lent, so there may be more than was asked for, and the share is of all of it.
    for group in fresh:
        if on_policy_total >= on_policy * total:
            break
        take(group)
    if total < decisions or on_policy_total < on_policy * total:
        return None
    return [key for group in groups if group.number in chosen for key in group.ids]


@dataclass(frozen=True)
class _Group:
    number: int
    ids: list[int]
    decisions: int
    on_policy: int
    due: bool


def _by_group(candidates: list[Candidate]) -> list[_Group]:
    members: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        members.setdefault(candidate.group, []).append(candidate)
    return [
        _Group(
            number,
            [c.id for c in group],
            sum(c.decisions for c in group),
            sum(c.on_policy for c in group),
            any(c.due for c in group),
        )
        for number, group in members.items()
    ]


def candidates(shelf: Holdings, lifecycle: Lifecycle, gate: Gate, *, prefer_recent: bool) -> list[Candidate]:
    """What could be lent, the least used first and the first (or last) admitted among those."""
    ids = lifecycle.buffered_ids(ordered=gate.ordered)
    if prefer_recent:
        ids.reverse()
    ids.sort(key=lifecycle.uses)
    offered = []
    for key in ids:
        item = shelf.items[key]
        fresh = shelf.made_since(item, gate.current) if gate.on_policy else 0
        due = gate.due is not None and item.oldest_version <= gate.due
        offered.append(Candidate(key, item.length - item.cut, fresh, lifecycle.group_of(key), due))
    return offered


def expire_stale(shelf: Holdings, lifecycle: Lifecycle, gate: Gate) -> int:
    """What the gate does not let through leaves: whole samples, or their first decisions; and what holds up the next version
    though it may never train. Decisions that left.
    """
    items = [shelf.items[key] for key in lifecycle.buffered_ids()]
    stale = [item for item in items if item.oldest_version < gate.oldest]
    partly = [item for item in stale if item.newest_version >= gate.oldest]
    dropped = 0
    for item in partly if gate.partly_stale == "cut" else ():
        gone = shelf.cut(item, gate.oldest)
        lifecycle.cut(item.id, gone, version=item.oldest_version)
        dropped += gone
    expiring = stale if gate.partly_stale == "expire" else [item for item in stale if item not in partly]
    if gate.due is not None and gate.on_policy == 1:
        expiring = [item for item in items if item in expiring or item.oldest_version <= gate.due]
    return dropped + _expire(shelf, lifecycle, [item.id for item in expiring])


def expire_outdated(shelf: Holdings, lifecycle: Lifecycle, gate: Gate) -> int:
    """Imagined samples leave whose observation or reward model the gate does not let through. Decisions that left."""
    if not (gate.oldest_obs_model or gate.oldest_reward_model):
        return 0
    items = [shelf.items[key] for key in lifecycle.buffered_ids()]
    outdated = [
        item.id
        for item in items
        if item.facts.source == "imagined"
        and (
            item.facts.obs_model_version < gate.oldest_obs_model
            or item.facts.reward_model_version < gate.oldest_reward_model
        )
    ]
    return _expire(shelf, lifecycle, outdated)


def make_room(shelf: Holdings, lifecycle: Lifecycle, offered: Sequence[Candidate], missing: int) -> int:
    """Where nothing is under way and older samples fill every place, as many of them leave, oldest first, as the missing
    on-policy decisions need: else these would never come. Decisions that left.
    """
    lacking = missing - sum(candidate.on_policy for candidate in offered)
    older = sorted(c.id for c in offered if c.on_policy < c.decisions)
    return _expire(shelf, lifecycle, lifecycle.surplus(older, max(1, lacking))) if missing else 0


def _expire(shelf: Holdings, lifecycle: Lifecycle, ids: list[int]) -> int:
    """Decisions that left."""
    items = [shelf.items[key] for key in lifecycle.expire(ids)]
    return sum(item.length - item.cut for item in items)
