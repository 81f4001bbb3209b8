"""How replay buffers draw, how they are paced, and where they keep what they hold."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.errors import ConfigError
from configs.fields import NaturalInt, PositiveFloat, PositiveInt, component


@component
class UniformSamplingConfig:
    """Every stored decision is as likely to begin a window."""

    kind: Literal["uniform"] = "uniform"


@component
class RecencySamplingConfig:
    """Newer decisions are likelier: the probability halves with every ``half_life`` rows of age."""

    kind: Literal["recency"] = "recency"
    half_life: PositiveInt = 10_000
    """Rows that were written since (a record of T decisions takes T + 1)."""


@component
class PrioritySamplingConfig:
    """In proportion to a power of the priority that the decision was given last."""

    kind: Literal["priority"] = "priority"
    exponent: Annotated[float, Field(gt=0, le=10)] = 0.6
    """Power; a small one is nearly uniform."""


SamplingConfig = Annotated[
    UniformSamplingConfig | RecencySamplingConfig | PrioritySamplingConfig, Field(discriminator="kind")
]


@component
class LimiterConfig:
    """Keeps how many training windows are drawn near a multiple of how many decisions were stored.

    Whoever is too far ahead waits: a draw for records, an insertion for draws. Nobody waits longer than ``timeout_s``.
    """

    min_size: PositiveInt = 1
    """Decisions that must have been stored before the first window is drawn."""
    samples_per_insert: PositiveFloat = 8.0
    """Windows drawn per decision stored."""
    tolerance: PositiveFloat = 10_000.0
    """Windows that either side may be ahead."""
    timeout_s: PositiveFloat = 60.0
    """Longest wait; then the call fails and says who waited for what."""


@component
class ReverbConfig:
    """The Reverb backend: tables in a server process (``pip install 'reverie-rl[reverb]'``)."""

    address: str | None = None
    """host:port of a server that ``python -m platform.replay`` runs with this run's arguments; none starts one for the
    run on this machine."""
    history: PositiveInt = 4
    """Frames up to its decision that a stored window holds; a longer window is cut from its whole record, which is slower."""
    steps: PositiveInt = 8
    """Decisions that a stored window holds; likewise."""
    chunk: PositiveInt = 4
    """Rows that are compressed together."""
    timeout_s: PositiveFloat = 30.0
    """Longest wait for an answer of the server."""
    checkpoint_every_s: PositiveFloat = 300.0
    """Seconds between the checkpoints that a server which died is restarted from, beside those of the run."""
    port: NaturalInt = 0
    """Where a server listens that is started here; 0 takes a free one."""

    def __post_init__(self) -> None:
        if self.address is not None and not self.address.rpartition(":")[2].isdigit():
            raise ConfigError(
                f"buffers.reverb.address={self.address} names no port",
                where="buffers.reverb.address",
                remedy="give host:port",
            )
