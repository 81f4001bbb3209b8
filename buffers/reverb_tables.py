"""Which tables of a Reverb server a replay buffer uses, and what an item in each holds.

Every item is a stretch of rows of one record (see ``buffers.columns``), with the record's serial number and the row that
the item is about. Tables of a buffer begin with its name:

    samples                 whole records, taken once each by the policy learner, in the order of storing
    records                 whole records by number, newest first until the server has told their keys
    episodes/<split>        whole records, drawn in proportion to their decisions, for long windows
    decision/<split>        a window around each decision        first/<split>      around decision 0 of each episode
    success/<split>         last observation of a success         failure/<split>    every other observation
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from buffers.columns import columns
from buffers.index import SPLITS, RowIndex
from buffers.records import RecordSpec
from buffers.rows import row_bytes
from configs.errors import ConfigError
from configs.replay import PrioritySamplingConfig, RecencySamplingConfig
from configs.system import BufferConfig

ITEM_BYTES = 1024
"""Estimate of what the items of one row cost the server, and its record this process, beside the row's own bytes."""

SERIAL, ROW, AT = "serial", "row", "at"
"""Columns that every item has beside those of the record; ``AT`` has one row."""

Order = Literal["oldest", "highest", "uniform", "weighted"]


@dataclass(frozen=True)
class TableSpec:
    """One table."""

    name: str
    order: Order
    """Which item is drawn."""
    max_size: int
    """Items; beyond, the oldest leaves."""
    times_sampled: int = 0
    """Draws after which an item leaves; 0 is never."""
    exponent: float = 1.0
    """Of the priorities, where the order is weighted."""

    def to_json(self) -> dict[str, Any]:
        """As JSON types; ``TableSpec(**data)`` is the inverse."""
        return asdict(self)


def record_capacity(spec: RecordSpec, config: BufferConfig, *, name: str) -> int:
    """Records that fit, each taken for the longest, since Reverb counts items and not bytes."""
    longest = spec.max_decisions + 1
    record = longest * stored_row_bytes(spec)
    if config.max_bytes < record:
        raise ConfigError(
            f"max_bytes={config.max_bytes} has no room for one episode",
            where=f"buffers.{name}.max_bytes",
            remedy=f"give at least {record}",
        )
    return config.max_bytes // record


def stored_row_bytes(spec: RecordSpec) -> int:
    """What one row costs before the server compresses it."""
    return row_bytes(spec) + ITEM_BYTES


def table_specs(spec: RecordSpec, config: BufferConfig, *, name: str, modelled: bool) -> list[TableSpec]:
    """The tables of a buffer; ``modelled``: the models draw from it. ConfigError for what Reverb cannot do."""
    if isinstance(config.sampling, RecencySamplingConfig):
        raise ConfigError(
            "a Reverb table cannot draw by recency",
            where=f"buffers.{name}.sampling",
            remedy="use sampling.kind=uniform or priority, or buffers.backend=memory",
        )
    if config.memory_bytes is not None:
        raise ConfigError(
            "a Reverb server keeps everything in memory",
            where=f"buffers.{name}.memory_bytes",
            remedy="drop it, or use buffers.backend=memory",
        )
    records = record_capacity(spec, config, name=name)
    tables = [
        TableSpec(f"{name}/samples", "oldest", records, times_sampled=1),
        TableSpec(f"{name}/records", "highest", records),
    ]
    if not modelled:
        return tables
    weighted = isinstance(config.sampling, PrioritySamplingConfig)
    exponent = config.sampling.exponent if isinstance(config.sampling, PrioritySamplingConfig) else 1.0
    shares = {"train": 1 - config.held_out, "held_out": config.held_out}
    for split in SPLITS:
        # Where hardly anything is held out, chance must still find room for one record.
        kept = max(1, round(records * shares[split]))
        sizes = {"decision": kept * spec.max_decisions, "failure": kept * (spec.max_decisions + 1)}
        tables.append(TableSpec(f"{name}/episodes/{split}", "weighted", kept))
        for kind in RowIndex.KINDS:
            order: Order = "weighted" if weighted and kind == "decision" else "uniform"
            tables.append(
                TableSpec(f"{name}/{kind}/{split}", order, sizes.get(kind, kept), exponent=exponent)
            )
    return tables


def whole_columns(spec: RecordSpec) -> list[str]:
    """Columns of an item with a whole record, in the order in which Reverb hands them out."""
    return sorted([*(column.name for column in columns(spec)), SERIAL, ROW, AT])


def window_columns(spec: RecordSpec) -> list[str]:
    """The same of an item that the models draw."""
    unseen = {"log_probs", "rewards", "values", "version"}
    return [name for name in whole_columns(spec) if name not in unseen]
