"""``python -m platform.demos inspect``: what is in a dataset, in words and in a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from buffers.exchange.formats import open_source
from buffers.exchange.source import Choices, Source
from buffers.exchange.survey import Glimpse, Survey, glimpses_of, spread, survey_text
from configs.exchange import InspectConfig
from configs.loader import load_config

from .datasets import Ours, action_range, ours_in, reported
from .storage import disk_errors


def run_inspect(argv: list[str]) -> int:
    """Say what is in a dataset."""
    config = load_config(InspectConfig, argv)
    folder = Path(config.data)
    survey, facts = survey_of(folder, config)
    found = {**facts, **survey.to_json()}
    if config.out is not None and survey.sheet:
        from buffers.exchange.contact_sheet import contact_sheet

        with disk_errors(Path(config.out)):
            contact_sheet(survey.sheet, Path(config.out))
    if config.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    cameras = ", ".join(f"{name} {h}x{w}" for name, (h, w) in facts["cameras"].items()) or "none"
    rate = "" if facts["fps"] is None else f", {facts['fps']:g} env steps a second"
    head = f"{folder}: {facts['format']}{rate}\ncameras: {cameras}; proprio: {facts['proprio_dim']}"
    sheet = "" if config.out is None else f"\ncontact sheet: {config.out}"
    sys.stdout.write(f"{head}\n{survey_text(found)}{sheet}\n")
    return 0


def survey_of(folder: Path, config: InspectConfig) -> tuple[Survey, dict[str, Any]]:
    """Every episode of a dataset looked at once, and what its header says."""
    shown = config.shown if config.out is not None else 0
    ours = ours_in(folder)
    if ours is not None:
        return _survey_records(ours, config.noop_below, shown, folder)
    return _survey_source(open_source(folder, Choices()), config.noop_below, shown)


def _survey_records(ours: Ours, below: float, shown: int, folder: Path) -> tuple[Survey, dict[str, Any]]:
    from policies.tokens import ActionTokenizer

    spec = ours.spec
    low, high = action_range(ours.info, folder)
    survey = Survey(max(below, 1 / spec.bins), shown, (np.array(low, np.float32), np.array(high, np.float32)))
    for glimpse in glimpses_of(ours.records, ActionTokenizer(low, high, spec.bins).decode):
        survey.add(glimpse)
    return survey, {
        "format": ours.kind, "cameras": spec.cameras, "proprio_dim": spec.proprio_dim, "fps": ours.info.get("fps"),
    }  # fmt: skip


def _survey_source(source: Source, below: float, shown: int) -> tuple[Survey, dict[str, Any]]:
    survey = Survey(below, shown)
    for each in reported(source.trajectories(), source.contents.episodes):
        frames = {name: frames[spread(len(frames))] for name, frames in each.images.items()}
        survey.add(Glimpse(each.instruction, each.task, each.success, each.terminated, each.actions, frames))
    contents = source.contents
    return survey, {
        "format": contents.format, "cameras": contents.cameras, "proprio_dim": contents.proprio_dim, "fps": contents.fps,
    }  # fmt: skip
