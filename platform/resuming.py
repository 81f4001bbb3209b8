"""Under which configuration a run goes on: its own, but for what may change from one machine or day to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.errors import ConfigError
from configs.loader import config_from_dict, config_from_yaml, config_to_dict, load_config, parsed
from configs.schema import TrainConfig

RESUME = "run.resume"
FREE = ("run.stop", "host", "learner", "buffers.reverb.address")
"""Where and how long it runs."""
WITHOUT_MEANING = (RESUME, "run.dir")
"""A run goes on in its own directory."""
_NOTHING = object()


def resumed_folder(argv: list[str]) -> Path | None:
    """The folder that a command line wants to go on with."""
    named = [parsed(text) for text in argv if _key(text) == RESUME]
    return Path(str(named[-1])) if named and named[-1] else None


def resumed_config(folder: Path, argv: list[str]) -> TrainConfig:
    """The run's configuration with what ``argv`` gives of ``FREE``.

    Raises:
        ConfigError: ``argv`` gives something else, and another value than the run has.
    """
    stored = config_from_yaml(TrainConfig, folder / "config.yaml")
    named = bool(argv) and "=" not in argv[0]
    mode = argv[0] if named else stored.mode
    if mode != stored.mode:
        raise _other("mode", mode, stored.mode, folder)
    given = {_key(text): text for text in argv if "=" in text and _key(text) not in WITHOUT_MEANING}
    values = config_to_dict(stored)
    # Choices among files first: what is said of their parts counts on top.
    for key in sorted(given, key=len):
        path = _path(key)
        has, wanted = _at(values, path), _wanted(key, given, _at(values, path), mode)
        if _is_free(key):
            _at(values, path[:-1])[path[-1]] = wanted
        elif wanted != has:
            raise _other(key, wanted, has, folder)
    return config_from_dict(TrainConfig, values)


def _wanted(key: str, given: dict[str, str], has: Any, mode: str) -> Any:
    """What ``given[key]`` says."""
    if not isinstance(has, dict) and has is not _NOTHING:
        return parsed(given[key])
    # A choice among YAML files: what it means, with what else is said of its section, or that there is none of the name.
    path = _path(key)
    section = [text for name, text in given.items() if _path(name)[: len(path)] == path]
    return _at(config_to_dict(load_config(TrainConfig, [mode, *section])), path)


def _path(key: str) -> list[str]:
    """Groups of YAML files are written with a slash."""
    return key.replace("/", ".").split(".")


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE)


def _key(text: str) -> str:
    return text.lstrip("+").partition("=")[0]


def _at(values: Any, path: list[str]) -> Any:
    """The entry at ``path``; ``_NOTHING`` where there is none, as for the name of a preset."""
    for part in path:
        if not isinstance(values, dict) or part not in values:
            return _NOTHING
        values = values[part]
    return values


def _other(key: str, wanted: Any, has: Any, folder: Path) -> ConfigError:
    return ConfigError(
        f"{key} is {'not set' if has is _NOTHING else has} in the run, {wanted} on the command line",
        where=f"{RESUME}={folder}",
        remedy=f"drop it: of a run that goes on only {', '.join(FREE)} may change",
    )
