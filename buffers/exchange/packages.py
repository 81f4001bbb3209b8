"""Packages that only the exchange with other formats needs, imported when it does."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from configs.errors import ResourceError


def exchange_package(name: str) -> Any:
    """The module ``name``. Raises ResourceError when its package is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ResourceError(
            f"the package {name.partition('.')[0]} is not installed", where="dataset exchange",
            remedy="pip install 'reverie-rl[exchange]'",
        ) from error  # fmt: skip
