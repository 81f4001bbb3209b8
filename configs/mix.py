"""Configs of the mixing schedule: what a turn of the policy learner is made of in ``real+imagined``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.fields import PositiveInt, component

Share = Annotated[float, Field(gt=0, lt=1)]


@component
class ConstantMixConfig:
    """The same throughout."""

    kind: Literal["constant"] = "constant"
    real_fraction: Share = 0.125
    """Share of its decisions that come from ``B_real``."""


@component
class LinearMixConfig:
    """From ``start`` to ``end`` in turns of the policy learner."""

    kind: Literal["linear"] = "linear"
    start: Share = 0.5
    """Share of the first turn's decisions that come from ``B_real``."""
    end: Share = 0.125
    """That share after ``turns`` turns, and from then on; it may be larger than ``start``."""
    turns: PositiveInt = 1000
    """Turns from start to end."""


MixConfig = Annotated[ConstantMixConfig | LinearMixConfig, Field(discriminator="kind")]
