"""Real environments. ``make_env`` builds one from its config, ``env_spec`` tells what it offers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from configs.env import EnvConfig, GymnasiumConfig, RecordedConfig, TabletopConfig

from .base import DecisionEnv, EnvSpec
from .recorded import recorded_spec, refuse


@dataclass(frozen=True)
class _Kind:
    make: Callable[..., DecisionEnv]
    spec: Callable[..., EnvSpec]


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


_KINDS: dict[type[Any], _Kind] = {
    TabletopConfig: _Kind(_make_tabletop, _tabletop_spec),
    GymnasiumConfig: _Kind(_make_gymnasium, _gymnasium_spec),
    RecordedConfig: _Kind(refuse, recorded_spec),
}


def make_env(config: EnvConfig, num_slots: int, *, chunk: int, replan: int) -> DecisionEnv:
    """N slots that execute ``replan`` of ``chunk`` actions per decision.

    Raises:
        EnvError: the environment cannot be made, or does not fit the contract.
    """
    return _KINDS[type(config)].make(config, num_slots, chunk=chunk, replan=replan)


def env_spec(config: EnvConfig) -> EnvSpec:
    """What ``make_env(config, …)`` would offer; EnvError as there."""
    return _KINDS[type(config)].spec(config)
