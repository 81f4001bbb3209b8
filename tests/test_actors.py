"""What the process of a role does around it."""

from __future__ import annotations

import os
import time
from platform.acceleration import denormals_flushed
from platform.hosts.actors import RankActor, RoleActor
from platform.hosts.seat import Seat
from platform.hosts.serial import SerialHost
from threading import Thread
from typing import Any

import pytest
import torch

DENORMAL = 1e-39


def halve() -> float:
    return float(torch.tensor([DENORMAL]) / 2)


class Halving:
    """A role that computes with a number too small for float32's full precision."""

    def __init__(self) -> None:
        self.found: float | None = None

    def step(self) -> bool:
        self.found = halve()
        return True

    def halved(self) -> float:
        return halve()

    def metrics(self) -> dict[str, float]:
        return {}


def found_by(compute: Any) -> float:
    """In a thread of its own, which begins with the processor's own setting whatever the thread before has."""
    found: list[float] = []

    def run() -> None:
        torch.set_flush_denormal(False)
        found.append(compute())

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def by_itself() -> float:
    with denormals_flushed():
        return halve()


def in_a_role() -> float:
    role = Halving()
    actor = RoleActor("role", lambda: role, Seat(threads=1))  # type: ignore[arg-type, return-value]
    actor.resume(os.getpid())
    while role.found is None:
        time.sleep(0.001)
    actor.pause()
    return role.found


def in_a_rank() -> float:
    found: float = RankActor(Halving, Seat(threads=1)).call("halved")  # type: ignore[arg-type]
    return found


def in_the_serial_host() -> float:
    host, role = SerialHost(), Halving()
    host.place_role("role", lambda: role)  # type: ignore[arg-type, return-value]
    host.pump()
    assert role.found is not None
    return role.found


def test_a_thread_of_its_own_computes_with_denormals() -> None:
    assert found_by(halve) > 0, "else the tests below show nothing"


@pytest.mark.parametrize("compute", [by_itself, in_a_role, in_a_rank, in_the_serial_host])
def test_numbers_that_slow_the_processor_down_count_as_zero(compute: Any) -> None:
    assert found_by(compute) == 0
