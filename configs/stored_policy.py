"""What a policy's folder says of itself, as far as a config wants to know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

UNCHANGED = 1.0
"""The temperature of logits as they are."""


def stored_model_type(folder: Path) -> str | None:
    """What ``folder`` says, in transformers' way, that it holds: "openvla", say; None where it says nothing."""
    found = _stored(folder).get("model_type")
    return found if isinstance(found, str) else None


def temperature_of(given: float | None, path: str | None) -> float | None:
    """The ``given`` one, else that of the weights at ``path``; None where there are none: defaults are written out before a path
    is known, and a number among them would pass for given.
    """
    if given is not None or path is None:
        return given
    config = _stored(Path(path)).get("config")
    found = config.get("temperature") if isinstance(config, dict) else None
    return UNCHANGED if found is None else float(found)


def _stored(folder: Path) -> dict[str, Any]:
    """Empty where the folder holds no readable config: whoever loads the weights says so."""
    try:
        stored = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return stored if isinstance(stored, dict) else {}
