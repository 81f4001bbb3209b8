"""Real environments. ``make_env`` builds one from its config, ``env_spec`` tells what it offers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from configs.env import EnvConfig, GymnasiumConfig, RecordedConfig, TabletopConfig
from configs.libero import LiberoConfig

from .base import DecisionEnv, EnvSpec
from .recorded import recorded_spec, refuse


@dataclass(frozen=True)
class _Kind:
    make: Callable[..., DecisionEnv]
    spec: Callable[..., EnvSpec]
    make_here: Callable[..., DecisionEnv]
    trial_seed: Callable[[int, int], int]
    most_trials: Callable[..., int | None]


def _make_tabletop(config: TabletopConfig, num_slots: int, *, chunk: int, replan: int) -> DecisionEnv:
    from .decision import TabletopDecisionEnv

    return TabletopDecisionEnv(config, num_slots, chunk=chunk, replan=replan)


def _tabletop_spec(config: TabletopConfig) -> EnvSpec:
    from .decision import tabletop_spec

    return tabletop_spec(config)


def _make_gymnasium(config: GymnasiumConfig, num_slots: int, *, chunk: int, replan: int) -> DecisionEnv:
    from .gymnasium_env import GymnasiumDecisionEnv, gymnasium_spec

    if config.overlap == "none":
        return GymnasiumDecisionEnv(config, num_slots, chunk=chunk, replan=replan)
    from .lanes import OverlappedEnv

    spec = gymnasium_spec(config)
    one = partial(GymnasiumDecisionEnv, config, 1, chunk=chunk, replan=replan, spec=spec)
    return OverlappedEnv(partial(_LANES[config.overlap], one, spec), spec, num_slots, chunk=chunk)


_BUILDING = threading.Lock()
"""Importing and registering environments is not made for several threads."""


def _in_thread(build: Callable[[], DecisionEnv], _spec: EnvSpec) -> DecisionEnv:
    with _BUILDING:
        return build()


def _in_process(build: Callable[[], DecisionEnv], spec: EnvSpec) -> DecisionEnv:
    from .remote import RemoteEnv

    return RemoteEnv(build, spec, 1)


_LANES = {"threads": _in_thread, "processes": _in_process}
"""``env.overlap`` to what holds the environment of one slot."""


def _gymnasium_spec(config: GymnasiumConfig) -> EnvSpec:
    from .gymnasium_env import gymnasium_spec

    return gymnasium_spec(config)


def _make_gymnasium_here(config: GymnasiumConfig, num_slots: int, *, chunk: int, replan: int) -> DecisionEnv:
    from .gymnasium_env import GymnasiumDecisionEnv

    return GymnasiumDecisionEnv(config, num_slots, chunk=chunk, replan=replan)


def _make_libero(config: LiberoConfig, num_slots: int, *, chunk: int, replan: int) -> DecisionEnv:
    from .libero_env import make_libero

    return make_libero(config, num_slots, chunk=chunk, replan=replan)


def _make_libero_here(config: LiberoConfig, num_slots: int, *, chunk: int, replan: int) -> DecisionEnv:
    from .libero_env import LiberoDecisionEnv

    return LiberoDecisionEnv(config, num_slots, chunk=chunk, replan=replan)


def _libero_spec(config: LiberoConfig) -> EnvSpec:
    from .libero_suites import libero_spec

    return libero_spec(config)


def _libero_trial_seed(_first_seed: int, trial: int) -> int:
    from .libero_env import trial_seed

    return trial_seed(trial)


def _most_libero_trials(config: LiberoConfig) -> int | None:
    from .libero_env import most_trials

    return most_trials(config)


def _next_seed(first_seed: int, trial: int) -> int:
    return first_seed + trial


def _no_limit(_config: EnvConfig) -> int | None:
    return None


_KINDS: dict[type[Any], _Kind] = {
    TabletopConfig: _Kind(_make_tabletop, _tabletop_spec, _make_tabletop, _next_seed, _no_limit),
    GymnasiumConfig: _Kind(_make_gymnasium, _gymnasium_spec, _make_gymnasium_here, _next_seed, _no_limit),
    LiberoConfig: _Kind(
        _make_libero, _libero_spec, _make_libero_here, _libero_trial_seed, _most_libero_trials
    ),
    RecordedConfig: _Kind(refuse, recorded_spec, refuse, _next_seed, refuse),
}


def make_env(
    config: EnvConfig, num_slots: int, *, chunk: int, replan: int, between: bool = False
) -> DecisionEnv:
    """N slots that execute ``replan`` of ``chunk`` actions per decision; ``between`` keeps what is seen inside a chunk.

    Raises:
        EnvError: the environment cannot be made, or does not fit the contract.
    """
    return _made(_KINDS[type(config)].make, config, num_slots, chunk, replan, between)


def make_env_here(
    config: EnvConfig, num_slots: int, *, chunk: int, replan: int, between: bool = False
) -> DecisionEnv:
    """As ``make_env``, with every slot in this process and thread, for who has processes of their own."""
    return _made(_KINDS[type(config)].make_here, config, num_slots, chunk, replan, between)


def _made(
    make: Callable[..., DecisionEnv],
    config: EnvConfig,
    num_slots: int,
    chunk: int,
    replan: int,
    between: bool,
) -> DecisionEnv:
    if not between:
        return make(config, num_slots, chunk=chunk, replan=replan)
    from .between import FramesBetween

    return FramesBetween(make(config, num_slots, chunk=1, replan=1), chunk=chunk, replan=replan)


def env_spec(config: EnvConfig) -> EnvSpec:
    """What ``make_env(config, …)`` would offer; EnvError as there."""
    return _KINDS[type(config)].spec(config)


def trial_seed(config: EnvConfig, first_seed: int, trial: int) -> int:
    """The seed with which trial ``trial`` of an evaluation starts."""
    return _KINDS[type(config)].trial_seed(first_seed, trial)


def most_trials(config: EnvConfig) -> int | None:
    """Trials that each task has starts for; None where there is no end of them."""
    return _KINDS[type(config)].most_trials(config)
