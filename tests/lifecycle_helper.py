"""Short ways to drive a lifecycle table."""

from __future__ import annotations

import math

from buffers.lifecycle import Lifecycle
from buffers.samples import Admission

MANY = 10**6


def admission_limit(needed: int, budget: float) -> int:
    return math.floor((1 + budget) * needed)


def make_table(*, reuse_limit: int = 1, longest: int = 1) -> Lifecycle:
    return Lifecycle(reuse_limit, longest)


def admit(table: Lifecycle, wanted: int, *, needed: int = MANY, budget: float = 0.0) -> list[int]:
    return [sample.sample_id for sample in table.admit(wanted, Admission(admission_limit(needed, budget)))]


def room(table: Lifecycle, needed: int, budget: float) -> int:
    return table.room(Admission(admission_limit(needed, budget)))


def store_all(table: Lifecycle, ids: list[int], decisions: int = 1) -> None:
    for key in ids:
        table.store(key, decisions)


def train(table: Lifecycle, ids: list[int], asked: int = MANY) -> None:
    table.commit(table.lease(ids, asked=asked))
