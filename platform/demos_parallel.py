"""Demonstrations of an environment that fills a core: episodes in processes of their own, handed over in order."""

from __future__ import annotations

import atexit
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING

from buffers.records import Record
from configs.errors import RoleFailure
from configs.schema import DemosConfig

if TYPE_CHECKING:
    from .demos import DemosCollector

_COLLECTORS: list[DemosCollector] = []
"""The one of this process: made for its first episode."""
_FINISHED: list[tuple[Record, int]] = []


def collected_in_processes(config: DemosConfig, processes: int) -> Iterator[tuple[Record, int]]:
    """Every episode of ``config`` with its noise level, in the order of their numbers.

    Raises:
        ReverieError: as ``DemosCollector``.
        RoleFailure: a process died.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, config.episodes), mp_context=context) as pool:
        try:
            yield from pool.map(partial(_episode, config), range(config.episodes))
        except BrokenProcessPool as error:
            raise RoleFailure(
                "a process that demonstrates died", where="demos", remedy="see its own output; was it short of memory?"
            ) from error  # fmt: skip
        finally:
            pool.shutdown(cancel_futures=True)


def _episode(config: DemosConfig, number: int) -> tuple[Record, int]:
    from .demos import DemosCollector

    if not _COLLECTORS:
        collector = DemosCollector(config, 1, _finish)
        _COLLECTORS.append(collector)
        atexit.register(collector.close)
    _COLLECTORS[0].run([number])
    return _FINISHED.pop()


def _finish(record: Record, level: int) -> None:
    _FINISHED.append((record, level))
