"""The root configs of ``python -m platform.demos {export,import,inspect}``."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from configs.env import EnvConfig
from configs.errors import ConfigError
from configs.fields import FiniteFloat, Fraction, NaturalInt, PositiveInt, component
from configs.policy import PolicyConfig, SmallVLAConfig


@component
class ExportConfig:
    """``python -m platform.demos export``: a dataset, or the real episodes of a run, as a LeRobot dataset."""

    data: str
    """Dataset folder, or the directory of a run with a checkpoint: then what ``B_real`` held."""
    out: str
    """Folder of the LeRobot dataset; never overwritten."""
    to: Literal["lerobot"] = "lerobot"
    """LeRobot's dataset format, version 3.0."""
    fps: PositiveInt = 20
    """Env steps per second, a multiple of ``policy.replan``: frames are kept at decisions. LIBERO runs at 20; a tabletop has
    no clock."""
    lossless: bool = False
    """Frames as PNG instead of H.264 video: exact, and about ten times larger."""


@component
class ImportConfig:
    """``python -m platform.demos import``: another program's demonstrations as a dataset folder."""

    data: str
    """LeRobot dataset of version 3, folder of LIBERO's HDF5 files, or a dataset that was exported."""
    out: str = "outputs/imported"
    """Dataset folder; never overwritten."""
    success: Literal["recorded", "all", "none"] = "recorded"
    """Which episodes succeeded; ``all`` or ``none`` where the dataset does not record it."""
    cameras: dict[str, str] = field(default_factory=dict)
    """Cameras to take, our name to the dataset's, as ``{top: front}``; empty takes all under their own names."""
    camera_size: PositiveInt | None = None
    """Frames are resized to this height and width; null keeps theirs."""
    action_low: list[FiniteFloat] | None = None
    """Lowest action per dimension, for the tokens; null takes that of ``env`` or, without one, the 1st percentile."""
    action_high: list[FiniteFloat] | None = None
    """Highest action per dimension; null takes that of ``env`` or the 99th percentile. Actions beyond are clipped."""
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Discount per env step with which rewards inside a chunk are summed: ``algorithm.gamma`` of the training."""
    env: EnvConfig | None = None
    """The environment that the dataset must fit; null checks nothing and keeps what the dataset has."""
    policy: PolicyConfig = field(default_factory=SmallVLAConfig)
    """Only the action tokens (chunk, replan, bins) are used."""

    def __post_init__(self) -> None:
        if (self.action_low is None) != (self.action_high is None):
            raise ConfigError(
                "one end of the action range is missing", where="action_low, action_high", remedy="give both or none"
            )  # fmt: skip


@component
class InspectConfig:
    """``python -m platform.demos inspect <folder>``: what is in a dataset of any of these formats."""

    data: str
    """Dataset folder, ours, LeRobot's or LIBERO's; or the directory of a run: then what ``B_real`` held."""
    out: str | None = None
    """PNG file for the contact sheet; null writes none."""
    shown: NaturalInt = 8
    """Episodes on the contact sheet, of every task alike."""
    noop_below: Fraction = 0.01
    """Share of half the action range under which a dimension does not move; at least half a token's width."""
    json: bool = False
    """Print one JSON object instead of a table."""
