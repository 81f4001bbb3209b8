"""Episodes for training and pretraining from a folder of any format, or from what a run collected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from buffers.dataset import Dataset, read_dataset
from buffers.exchange.formats import EXPORT, OURS, detect, open_source
from buffers.exchange.lerobot import ExportedRecords
from buffers.exchange.source import Choices, Source
from buffers.records import Record, RecordSpec
from configs.errors import DataError
from configs.loader import config_from_yaml, config_to_dict
from configs.schema import TrainConfig

from .checkpoint import SERVERS, read_checkpoint
from .context import Context, make_context
from .counting import counted
from .storage import MANIFEST, verify_folder

log = logging.getLogger("reverie.datasets")

T = TypeVar("T")
CLIPPED = 0.05
"""Share of a dimension's actions outside its range above which it is worth a warning: percentiles leave out 0.02."""


def read_any(folder: str | Path, context: Context, *, gamma: float) -> Dataset:
    """All episodes of a folder: ours, what a run collected, a LeRobot dataset of version 3, or LIBERO's HDF5 files.

    Args:
        folder: Where they lie.
        context: What other programs' episodes must fit, and the tokens that their actions become.
        gamma: Discount per env step with which rewards inside a decision are summed.

    Raises:
        DataError: no such format, torn, or of another env; what only ``platform.demos import`` can settle says so.
    """
    folder = Path(folder)
    if is_run(folder):
        collected = ours_in(folder)
        assert collected is not None
        return Dataset(collected.spec, collected.info, list(collected.records))
    kind = detect(folder)
    if kind == OURS:
        return read_dataset(folder, between=context.record_spec.between)
    if kind == EXPORT:
        exported = open_export(folder)
        return Dataset(exported.spec, exported.info, list(exported.records()))
    source = open_source(folder, Choices())
    spec = context.env_spec
    encode = context.tokenizer.encode
    # Other programs keep no frames between what they call steps.
    record_spec = replace(context.record_spec, between=False)
    records = list(source_records(source, record_spec, encode, gamma=gamma))
    warn_of_clipping(source, spec.action_low, spec.action_high)
    info = {
        "instructions": list(source.contents.instructions),
        "format": source.contents.format,
        "action_tokens": context.tokenizer.to_json(),
    }
    return Dataset(record_spec, info, records)


def open_export(folder: Path) -> ExportedRecords:
    """A LeRobot dataset that we exported, its files verified where their hashes are there."""
    if (folder / MANIFEST).is_file():
        verify_folder(folder)
    return ExportedRecords(folder)


def source_records(
    source: Source,
    spec: RecordSpec,
    encode: Callable[[NDArray[np.float32]], NDArray[np.int16]],
    *,
    gamma: float,
) -> Iterator[Record]:
    """Records of another program's episodes."""
    for number, trajectory in enumerate(source.trajectories()):
        yield trajectory.to_record(spec, encode, gamma=gamma, episode_id=number)


def warn_of_clipping(source: Source, low: tuple[float, ...], high: tuple[float, ...]) -> None:
    """Say which dimensions' actions lie outside the range that tokens can express."""
    actions = np.concatenate(list(source.actions()))
    outside = ((actions < np.array(low)) | (actions > np.array(high))).mean(axis=0)
    for dimension in np.flatnonzero(outside > CLIPPED):
        log.warning(
            "%.0f %% of the actions of dimension %d lie outside [%g, %g] and are clipped",
            100 * outside[dimension], dimension, low[dimension], high[dimension],
        )  # fmt: skip


def run_episodes(folder: Path) -> tuple[Context, list[Record]]:
    """What ``B_real`` of a run's newest checkpoint holds, oldest first.

    Raises CheckpointError when there is none that verifies, DataError when its episodes lie elsewhere.
    """
    from buffers.backends import make_buffer

    config = config_from_yaml(TrainConfig, folder / "config.yaml")
    context = make_context(config, seed=config.run.seed, device="cpu")
    _, states = read_checkpoint(folder / "checkpoints")
    if "address" in states["b_real"].get("server", {}):
        raise DataError(
            "the run's episodes lie on a Reverb server elsewhere", where=str(folder),
            remedy="take those of a run that started its servers itself, or of one with buffers.backend=memory",
        )  # fmt: skip
    buffer = make_buffer(
        context.record_spec, config.buffers, "real", seed=0, folder=folder.absolute() / SERVERS,
        keep=config.run.keep_checkpoints + 2,
    )  # fmt: skip
    try:
        buffer.load(states["b_real"])
        return context, buffer.episodes()
    finally:
        buffer.close()


def is_run(folder: Path) -> bool:
    """Whether ``folder`` is a run's directory."""
    return (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir()


def action_range(info: dict[str, Any], where: str | Path) -> tuple[list[float], list[float]]:
    """The range that a dataset's tokens stand for. DataError when it does not say."""
    try:
        return [float(x) for x in info["action_low"]], [float(x) for x in info["action_high"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            "the dataset does not say which actions its tokens stand for", where=str(where), remedy="record it again"
        ) from error  # fmt: skip


@dataclass(frozen=True)
class Ours:
    """Records from wherever they lie."""

    kind: str
    spec: RecordSpec
    info: dict[str, Any]
    count: int
    records: Iterable[Record]


def ours_in(folder: Path) -> Ours | None:
    """What a run, a dataset folder or an export holds; None for another program's dataset."""
    if is_run(folder):
        context, collected = run_episodes(folder)
        env = context.env_spec
        info = {
            "env": config_to_dict(context.env_config),
            "action_low": list(env.action_low),
            "action_high": list(env.action_high),
            "instructions": list(env.instructions),
            "action_tokens": context.tokenizer.to_json(),
        }
        return Ours("run", context.record_spec, info, len(collected), collected)
    kind = detect(folder)
    if kind == OURS:
        dataset = read_dataset(folder)
        return Ours(kind, dataset.spec, dataset.info, len(dataset.records), dataset.records)
    if kind == EXPORT:
        exported = open_export(folder)
        return Ours(kind, exported.spec, exported.info, len(exported), exported.records())
    return None


def reported(episodes: Iterable[T], total: int) -> Iterator[T]:
    """Show how far it is."""
    with counted("episodes", total) as finished:
        for number, episode in enumerate(episodes, 1):
            yield episode
            finished(number)
