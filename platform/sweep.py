"""The runs of an experiment: Hydra's comma lists of ``platform.train``'s keys, multiplied out over seeds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs import introspect
from configs.errors import ConfigError
from configs.horizon import ExperimentConfig, HorizonConfig
from configs.loader import config_from_dict, config_to_dict, load_config
from configs.mistakes import nearest
from configs.schema import TrainConfig
from configs.world_model import ScheduleConfig

MODE = "real+imagined"
SCHEDULE, SEED = "imagination/schedule", "run.seed"
SCHEDULE_KEY = "imagination.schedule."
SEEDS = ("0", "1", "2")
OWN = {"run.dir": "experiment.dir=<folder>", "run.resume": "the same command: it continues what was cut"}
"""Keys of ``platform.train`` that an experiment sets for its runs, and what to use."""
KINDS: dict[str, type] = {
    chosen[1]: kind
    for kind in introspect.components(ScheduleConfig)
    if (chosen := introspect.tag(kind)) is not None
}
"""Schedules by name, in the order of the schema."""


@dataclass(frozen=True)
class Run:
    """One run of an experiment."""

    arm: str
    """What is compared: all runs with this name differ in their seed alone."""
    seed: int
    folder: Path
    config: TrainConfig

    @property
    def name(self) -> str:
        """As people read it."""
        return f"{self.arm} seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """Every run, and how they are run and judged."""

    experiment: ExperimentConfig
    runs: list[Run]

    @property
    def arms(self) -> list[str]:
        """Names of what is compared, in the order of the command line."""
        return list(dict.fromkeys(run.arm for run in self.runs))

    def round_of(self, run: Run) -> int:
        """Place of the run's seed among the seeds."""
        return list(dict.fromkeys(each.seed for each in self.runs)).index(run.seed)


@dataclass(frozen=True)
class _Given:
    """The command line's keys with the values that each is to take."""

    mode: str
    schedules: list[str]
    seeds: list[str]
    schedule_keys: dict[str, list[str]]
    """Keys of a schedule's own section, without its name in front."""
    others: dict[str, list[str]]


def make_plan(argv: list[str]) -> Plan:
    """Multiply the command line out.

    A key of one schedule's own section counts for the schedules that have it. What a preset says about the schedule
    counts likewise, so that all schedules run between the same ends.

    Raises:
        ConfigError: Whatever is wrong, in one line with the remedy.
    """
    own = [text for text in argv if text.lstrip("+").split("=")[0].split(".")[0] == "experiment"]
    experiment = load_config(HorizonConfig, own).experiment
    given = _read([text for text in argv if text not in own])
    bases = [(chosen, _base(given.mode, chosen)) for chosen in _product(given.others)]
    runs: list[Run] = []
    for schedule in given.schedules:
        names = introspect.fields_of(KINDS[schedule])
        of_schedule = {key: values for key, values in given.schedule_keys.items() if key in names}
        for chosen, base in bases:
            for inner in _product(of_schedule):
                arm = _arm(schedule, given, chosen | {f"{SCHEDULE_KEY}{key}": v for key, v in inner.items()})
                runs += [_run(experiment, arm, base, schedule, inner, seed) for seed in given.seeds]
    _require_distinct(runs)
    return Plan(experiment, runs)


def _read(argv: list[str]) -> _Given:
    mode = argv[0] if argv and "=" not in argv[0] else MODE
    keys: dict[str, list[str]] = {}
    for text in argv[1:] if argv and "=" not in argv[0] else argv:
        key, values = _values(text)
        if key in OWN:
            raise ConfigError(f"{key} is set by the experiment", remedy=f"use {OWN[key]}")
        keys[key] = values
    mode = keys.pop("mode", [mode])[0]
    schedules, seeds = keys.pop(SCHEDULE, list(KINDS)), keys.pop(SEED, list(SEEDS))
    for word in schedules:
        if word not in KINDS:
            raise ConfigError(
                f"{SCHEDULE}={word} is no choice", remedy=f"{nearest(word, list(KINDS))}choices: {', '.join(KINDS)}"
            )  # fmt: skip
    inner = {key.removeprefix(SCHEDULE_KEY): values for key, values in keys.items() if key.startswith(SCHEDULE_KEY)}  # fmt: skip
    _require_known(inner, schedules)
    return _Given(mode, schedules, seeds, inner, {k: v for k, v in keys.items() if not k.startswith(SCHEDULE_KEY)})  # fmt: skip


def _values(text: str) -> tuple[str, list[str]]:
    """Key and the values that Hydra reads, for example ``a,b``, ``choice(a,b)`` or ``range(0,3)``."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    plain = text.lstrip("+")
    key, equals, value = plain.partition("=")
    if not equals or not key or key.startswith("~"):
        raise ConfigError(f"cannot read the argument {text!r}", remedy="write key=value or key=a,b")
    try:
        parsed = OverridesParser.create().parse_override(plain)
        if not parsed.is_sweep_override():
            return key, [value]
        return key, list(dict.fromkeys(parsed.sweep_string_iterator()))
    except HydraException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"cannot read {plain!r}, {reason}", remedy=f"quote special characters: '{key}=\"…\"'"
        ) from None


def _require_known(keys: dict[str, list[str]], schedules: Sequence[str]) -> None:
    for key in keys:
        having = [name for name, kind in KINDS.items() if key in introspect.fields_of(kind)]
        if not set(having) & set(schedules):
            known = sorted(
                {name for each in schedules for name in introspect.fields_of(KINDS[each])} - {"kind"}
            )
            whose = f"belongs to {', '.join(having)}" if having else "is no known key"
            raise ConfigError(
                f"{SCHEDULE_KEY}{key} {whose}", remedy=f"{nearest(key, known)}keys of these schedules: {', '.join(known)}"
            )  # fmt: skip


def _product(keys: dict[str, list[str]]) -> list[dict[str, str]]:
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*keys.values())]


def _arm(schedule: str, given: _Given, chosen: dict[str, str]) -> str:
    """The schedule, and every other key that takes several values."""
    swept = {key for key, values in given.others.items() if len(values) > 1}
    swept |= {f"{SCHEDULE_KEY}{key}" for key, values in given.schedule_keys.items() if len(values) > 1}
    return " ".join([schedule, *(f"{key}={value}" for key, value in chosen.items() if key in swept)])


def _base(mode: str, chosen: dict[str, str]) -> dict[str, Any]:
    """The config without schedule and seed, as plain values."""
    return config_to_dict(
        load_config(TrainConfig, [mode, *(f"{key}={value}" for key, value in chosen.items())])
    )


def _run(
    experiment: ExperimentConfig, arm: str, base: dict[str, Any], schedule: str, inner: dict[str, str], seed: str,
) -> Run:  # fmt: skip
    values = deepcopy(base)
    names = introspect.fields_of(KINDS[schedule])
    common = {key: value for key, value in values["imagination"]["schedule"].items() if key in names}
    values["imagination"]["schedule"] = {**common, **_plain(inner), "kind": schedule}
    folder = Path(experiment.dir) / re.sub(r"[^\w.=+-]+", "_", arm) / f"seed_{seed}"
    values["run"] |= {"dir": str(folder), **_plain({"seed": seed})}
    config = config_from_dict(TrainConfig, values)
    _require_comparable(config)
    return Run(arm, config.run.seed, folder, config)


def _plain(keys: dict[str, str]) -> dict[str, Any]:
    """Values as Hydra reads them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create()
    return {key: parser.parse_override(f"{key}={value}").value() for key, value in keys.items()}


def _require_comparable(config: TrainConfig) -> None:
    if config.mode == "real":
        raise ConfigError(
            "the mode real imagines nothing", where="mode", remedy="use real+imagined or imagined"
        )
    if config.world_model.frozen:
        raise ConfigError(
            "world_model.frozen=true takes no real steps, over which success is compared",
            where="world_model.frozen", remedy="drop it",
        )  # fmt: skip


def _require_distinct(runs: list[Run]) -> None:
    seen: dict[Path, str] = {}
    for run in runs:
        if run.folder in seen:
            raise ConfigError(
                f"{seen[run.folder]} and {run.name} would share {run.folder}", remedy="give each value once"
            )
        seen[run.folder] = run.name
