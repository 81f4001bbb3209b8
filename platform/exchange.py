"""Datasets between Reverie and other programs: ``python -m platform.demos {export,import,inspect}``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from buffers.dataset import DatasetWriter
from buffers.exchange.formats import OURS, open_source
from buffers.exchange.source import Choices, Contents, Source
from buffers.records import Record, RecordSpec
from configs.errors import ConfigError, DataError
from configs.exchange import ExportConfig, ImportConfig, InspectConfig
from configs.loader import config_to_dict, load_config
from configs.mistakes import nearest
from configs.world_model import WorldModelConfig

from .context import Context
from .datasets import action_range, ours_in, reported, source_records, warn_of_clipping
from .storage import new_folder
from .survey import run_inspect


@dataclass(frozen=True)
class Verb:
    """A command of its own under ``platform.demos``."""

    config: type
    run: Callable[[list[str]], int]
    usage: str


def run_export(argv: list[str]) -> int:
    """Write a LeRobot dataset."""
    config = load_config(ExportConfig, argv)
    folder, out = Path(config.data), Path(config.out)
    ours = ours_in(folder)
    if ours is None:
        raise DataError(
            "it is another program's dataset",
            where=config.data,
            remedy="python -m platform.demos import it first",
        )
    records = reported(ours.records, ours.count)
    count = export(records, ours.spec, ours.info, out, env_fps=config.fps, lossless=config.lossless)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    sys.stdout.write(f"{count} episodes, {size / 1e6:.1f} MB, LeRobot v3.0: {out}\n")
    return 0


def export(
    records: Iterable[Record],
    spec: RecordSpec,
    info: dict[str, Any],
    out: Path,
    *,
    env_fps: int,
    lossless: bool,
) -> int:
    """Write ``out``, whole or nothing of it; how many episodes.

    Raises DataError for what the format cannot express, ResourceError for the disk, CheckpointError where ``out`` exists.
    """
    from buffers.exchange.lerobot_writer import LeRobotWriter
    from policies.action_tokens import dataset_tokenizer

    tokenizer = dataset_tokenizer(info, *action_range(info, "data"), spec.bins)
    with new_folder(out) as partial:
        writer = LeRobotWriter(partial, spec, info, tokenizer.decode, env_fps=env_fps, lossless=lossless)
        try:
            for record in records:
                writer.add(record)
            writer.close()
        finally:
            writer.abort()
    return writer.episodes


def run_import(argv: list[str]) -> int:
    """Write a dataset folder."""
    config = load_config(ImportConfig, argv)
    folder, out = Path(config.data), Path(config.out)
    ours = ours_in(folder)
    if ours is not None and ours.kind == OURS:
        raise DataError("it is a dataset of Reverie already", where=config.data, remedy="use it as it is")
    if ours is not None:
        count = _write(out, ours.spec, ours.info, reported(ours.records, ours.count))
    else:
        choices = Choices(config.success, dict(config.cameras), config.camera_size)
        count = import_source(open_source(folder, choices), config, out)
    sys.stdout.write(f"{count} episodes: {out}\n")
    return 0


def import_source(source: Source, config: ImportConfig, out: Path) -> int:
    """Write another program's episodes as a dataset folder; how many. DataError as ``platform.pretrain`` would."""
    from policies.action_tokens import action_tokenizer

    contents = source.contents
    low, high = _range(source, config)
    if len(low) != contents.action_dim or len(high) != contents.action_dim:
        raise DataError(
            f"actions have {contents.action_dim} dimensions, the range has {len(low)} and {len(high)}",
            where="action_low, action_high", remedy="give one number per dimension, or another env",
        )  # fmt: skip
    tokenizer = action_tokenizer(config.policy, low, high)
    warn_of_clipping(source, tokenizer.low, tokenizer.high)
    spec = _record_spec(contents, config)
    info = {
        "env": None if config.env is None else config_to_dict(config.env),
        "format": contents.format,
        "fps": contents.fps,
        "episodes": contents.episodes,
        "gamma": config.gamma,
        "action_low": list(low),
        "action_high": list(high),
        "action_tokens": tokenizer.to_json(),
        "instructions": list(contents.instructions),
    }
    records = source_records(source, spec, tokenizer.encode, gamma=config.gamma)
    return _write(out, spec, info, reported(records, contents.episodes))


def _write(out: Path, spec: RecordSpec, info: dict[str, Any], records: Iterator[Record]) -> int:
    count = 0
    with DatasetWriter(out, spec, info) as writer:
        for record in records:
            writer.add(record)
            count += 1
    return count


def _range(source: Source, config: ImportConfig) -> tuple[list[float], list[float]]:
    """Given, the env's, or the bulk of what occurs; a dimension that hardly changes gets a range of 1 around it."""
    if config.action_low is not None and config.action_high is not None:
        return config.action_low, config.action_high
    if config.env is not None:
        spec = _context(config).env_spec
        return list(spec.action_low), list(spec.action_high)
    actions = np.concatenate(list(source.actions())).astype(np.float64)
    low, high = np.quantile(actions, 0.01, axis=0), np.quantile(actions, 0.99, axis=0)
    still = high - low < 1e-6
    return (low - 0.5 * still).tolist(), (high + 0.5 * still).tolist()


def _context(config: ImportConfig) -> Context:
    assert config.env is not None
    return Context(config.env, config.policy, WorldModelConfig(), 0, "cpu")


def _record_spec(contents: Contents, config: ImportConfig) -> RecordSpec:
    if config.env is not None:
        return _context(config).record_spec
    policy = config.policy
    return RecordSpec(
        cameras=contents.cameras,
        proprio_dim=contents.proprio_dim,
        chunk=policy.chunk,
        replan=policy.replan,
        action_dim=contents.action_dim,
        bins=policy.bins,
        max_decisions=max(1, -(-contents.longest // policy.replan)),
    )


VERBS: dict[str, Verb] = {
    "export": Verb(
        ExportConfig,
        run_export,
        "Export to LeRobot: python -m platform.demos export data=<folder> out=<folder>",
    ),
    "import": Verb(
        ImportConfig, run_import, "Import: python -m platform.demos import data=<folder> out=<folder>"
    ),
    "inspect": Verb(
        InspectConfig, run_inspect, "Look into a dataset: python -m platform.demos inspect <folder>"
    ),
}


def verb_of(argv: list[str]) -> tuple[Verb, list[str]]:
    """The verb that ``argv`` begins with, and its arguments; a bare second word is ``data``.

    Raises ConfigError for another word.
    """
    word, *rest = argv
    if word not in VERBS:
        raise ConfigError(
            f"cannot read the argument {word!r}", remedy=f"{nearest(word, list(VERBS))}write key=value, or first {', '.join(VERBS)}"
        )  # fmt: skip
    if rest and "=" not in rest[0]:
        rest[0] = f"data={rest[0]}"
    return VERBS[word], rest
