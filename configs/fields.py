"""Annotated number types, so that a range is written once and checked when the configuration is read."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, TypeVar, cast

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as _pydantic_dataclass
from typing_extensions import dataclass_transform

PositiveInt = Annotated[int, Field(gt=0)]
NaturalInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NaturalFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
"""Seeds are multiplied and added to in 64-bit integers."""

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, field_specifiers=(field,))
def component(cls: type[T]) -> type[T]:
    """Make a typed config: keyword-only dataclass, unknown keys refused, no silent conversion between types."""
    decorate = _pydantic_dataclass(config=ConfigDict(extra="forbid", strict=True), kw_only=True)
    return cast(type[T], decorate(cls))
