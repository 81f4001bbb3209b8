"""Reads a command line over the YAML in this folder into a typed config, and writes typed configs back as YAML.

Hydra composes the YAML and the overrides; pydantic judges types, ranges and unknown keys. Every mistake is one
``ConfigError`` of one line.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from configs import introspect
from configs.errors import ConfigError
from configs.exchange import ExportConfig, ImportConfig, InspectConfig
from configs.fresh import FreshConfig
from configs.horizon import HorizonConfig
from configs.mistakes import foreign_key, from_validation, nearest, unknown_key
from configs.schema import DemosConfig, EvaluateConfig, PretrainConfig, TrainConfig

C = TypeVar("C")
FOLDER = Path(__file__).parent


@dataclasses.dataclass(frozen=True)
class Command:
    """How a config class is written on a command line."""

    base: str
    """The YAML file that it starts from."""
    word: str | None = None
    """The field that the first argument sets by its bare word."""
    spoken: str = ""
    """What is typed after ``platform.``, where that is not ``base``."""


COMMANDS: dict[type, Command] = {
    TrainConfig: Command("train", word="mode"),
    DemosConfig: Command("demos"),
    PretrainConfig: Command("pretrain", word="what"),
    EvaluateConfig: Command("evaluate"),
    ExportConfig: Command("export", spoken="demos export"),
    ImportConfig: Command("import", spoken="demos import"),
    InspectConfig: Command("inspect", spoken="demos inspect"),
    HorizonConfig: Command("horizon"),
    FreshConfig: Command("fresh"),
}


def load_config(kind: type[C], argv: list[str], *, base: str | None = None) -> C:
    """Config of class ``kind`` from command-line arguments.

    Args:
        kind: A root config of ``configs.schema``.
        argv: Overrides: ``key=value`` with dotted keys, and ``group=choice`` for the folders of YAML. For configs with
            a leading word (``train``'s mode, ``pretrain``'s model) that word comes first.
        base: YAML file in this folder to start from, without suffix; by default the command's own.

    Raises:
        ConfigError: Whatever is wrong with the arguments, in one line with the remedy.
    """
    command = COMMANDS.get(kind, Command(base or ""))
    start = base or command.base
    choices = groups(start)
    overrides = [_override(kind, choices, text) for text in _with_word(kind, command.word, argv)]
    return config_from_dict(kind, _compose(start, overrides))


def config_from_dict(kind: type[C], values: Mapping[str, Any]) -> C:
    """Config of class ``kind`` from plain values (strings, numbers, lists, dictionaries), defaults filled in.

    Raises:
        ConfigError: A value that does not fit the schema.
    """
    complete = _fill(kind, values)
    try:
        return TypeAdapter(kind).validate_json(json.dumps(complete))
    except ValidationError as error:
        raise from_validation(kind, error) from None
    except TypeError as error:
        raise ConfigError(
            f"a value is not plain data: {error}", remedy="use text, numbers, lists and mappings"
        ) from None


def config_from_yaml(kind: type[C], path: Path) -> C:
    """Config of class ``kind`` from a file that ``to_yaml`` wrote.

    Raises:
        ConfigError: The file is missing, is no YAML, or does not fit the schema.
    """
    try:
        values = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(
            "no config file", where=str(path), remedy="name a folder that a run wrote"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(
            f"not YAML: {error}", where=str(path), remedy="restore the file as it was written"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError("not a mapping", where=str(path), remedy="restore the file as it was written")
    return config_from_dict(kind, values)


def config_to_dict(config: object) -> dict[str, Any]:
    """Plain values of ``config``, every default included; ``config_from_dict`` reads them back."""
    values: dict[str, Any] = TypeAdapter(type(config)).dump_python(config, mode="json")
    return values


def to_yaml(config: object) -> str:
    """``config`` as YAML, every default included."""
    return str(yaml.safe_dump(config_to_dict(config), sort_keys=False, allow_unicode=True))


def groups(base: str) -> dict[str, list[str]]:
    """Choices of each folder of YAML that ``base``.yaml draws on, by the folder's name on a command line."""
    listed = yaml.safe_load((FOLDER / f"{base}.yaml").read_text())["defaults"]
    names = [name for entry in listed if isinstance(entry, dict) for name in entry]
    return {name: sorted(path.stem for path in (FOLDER / name).glob("*.yaml")) for name in names}


def _with_word(kind: type, word: str | None, argv: list[str]) -> list[str]:
    """``argv`` with a leading bare word turned into an override."""
    if word is None:
        return argv
    if argv and "=" not in argv[0]:
        return [f"{word}={argv[0]}", *argv[1:]]
    if any(text.split("=", 1)[0] == word for text in argv):
        return argv
    allowed = introspect.choices(introspect.fields_of(kind)[word].annotation)
    raise ConfigError(f"{word} is missing", remedy="put one of " + ", ".join(allowed) + " first")


def _override(kind: type, choices: dict[str, list[str]], text: str) -> str:
    """One argument as Hydra understands it: group choices as they are, keys allowed whether in the YAML or not."""
    key, equals, value = text.partition("=")
    key = key.lstrip("+")
    if key.startswith("~"):
        raise ConfigError(f"{text} deletes a key", remedy="leave it out: what is not set keeps its default")
    if not equals or not key:
        raise ConfigError(f"cannot read the argument {text!r}", remedy="write key=value or group=choice")
    if key in choices:
        if value not in choices[key]:
            allowed = ", ".join(choices[key])
            hint = nearest(value, choices[key])
            raise ConfigError(f"{key}={value} is no choice", remedy=f"{hint}choices: {allowed}")
        return f"{key}={value}"
    group = key.replace(".", "/")
    if group in choices:
        raise ConfigError(f"{key} is a group", remedy=f"write {group}=<{'|'.join(choices[group])}>")
    root = key.split(".")[0]
    if root not in introspect.fields_of(kind):
        raise foreign_key(kind, key) or unknown_key(kind, root)
    return f"++{key}={value}"


def parsed(text: str) -> Any:
    """The value of one ``key=value`` as a command line means it. ConfigError when it cannot be read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return _parse(OverridesParser.create(), text).value()


def _parse(parser: Any, text: str) -> Any:
    from hydra.errors import HydraException

    shown = text.lstrip("+")
    key = shown.partition("=")[0]
    try:
        return parser.parse_override(text)
    except HydraException as error:
        reason = str(error).splitlines()[0]
        remedy = f"quote special characters: '{key}=\"…\"'"
        raise ConfigError(f"cannot read {shown!r}, {reason}", remedy=remedy) from None


def _compose(base: str, overrides: list[str]) -> dict[str, Any]:
    """Values of ``base``.yaml with its groups and ``overrides``."""
    from hydra import compose, initialize_config_dir
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    parser = OverridesParser.create()
    for text in overrides:
        if _parse(parser, text).is_sweep_override():
            raise ConfigError(
                f"{text.lstrip('+')} gives several values", remedy="give one, or write a list as [a,b]"
            )
    try:
        with initialize_config_dir(config_dir=str(FOLDER), version_base="1.3"):
            composed = OmegaConf.to_container(compose(config_name=base, overrides=overrides), resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"cannot compose the config, {reason}", remedy="correct or drop that argument"
        ) from None
    assert isinstance(composed, dict)
    return {str(key): value for key, value in composed.items()}


def _fill(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` over the defaults of ``kind``.

    A section's default may have values other than its class's (``buffers.imagined``): a partial section means the
    rest of *that* default. A section of another kind than the default's stands alone.
    """
    filled = dict(values)
    for name, item in introspect.fields_of(kind).items():
        given, default = values.get(name), item.default
        if isinstance(given, Mapping) and dataclasses.is_dataclass(default) and not isinstance(default, type):
            filled[name] = _over(config_to_dict(default), given, type(default))
    return filled


def _over(default: dict[str, Any], given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    chosen = introspect.tag(kind)
    if chosen is not None and given.get(chosen[0], chosen[1]) != chosen[1]:
        return dict(given)
    merged = {**default, **given}
    for name, item in introspect.fields_of(kind).items():
        inner = item.default
        if (
            isinstance(given.get(name), Mapping)
            and isinstance(default.get(name), dict)
            and dataclasses.is_dataclass(inner)
        ):
            merged[name] = _over(default[name], given[name], type(inner))
    return merged
