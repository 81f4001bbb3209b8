"""The optional package ``dm-reverb``, which brings its own TensorFlow: imported late, and explained where it is missing."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any

from configs.errors import ConfigError

NEWEST_PYTHON = (3, 11)
"""Newest Python for which dm-reverb 0.14 has a wheel."""
SUPPORTED = "dm-reverb 0.14 with tensorflow 2.15, on Linux with Python 3.9 to 3.11"


def require_reverb() -> None:
    """ConfigError unless the package is installed for this Python; imports nothing."""
    if sys.version_info[:2] > NEWEST_PYTHON or not sys.platform.startswith("linux"):
        raise _missing(
            f"dm-reverb has no wheel for Python {sys.version_info[0]}.{sys.version_info[1]} on {sys.platform}"
        )
    for module, package in (("reverb", "dm-reverb"), ("tensorflow", "tensorflow")):
        if find_spec(module) is None:
            raise _missing(f"{package} is not installed")


def load_reverb() -> Any:
    """The module. ConfigError when it, or a TensorFlow that it was built for, is not there."""
    require_reverb()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import reverb
    except (ImportError, AttributeError) as error:
        # A TensorFlow of another version shows as a missing symbol or attribute.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise _missing(f"dm-reverb cannot be imported: {reason}") from error
    return reverb


def _missing(what: str) -> ConfigError:
    return ConfigError(
        what,
        where="buffers.backend=reverb",
        remedy=f"pip install 'reverie-rl[reverb]' ({SUPPORTED}), or use buffers.backend=memory",
    )
