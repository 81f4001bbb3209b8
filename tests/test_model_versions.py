"""Imagined samples expire with the versions of the models that made them."""

from __future__ import annotations

from platform.policy_learner import model_versions
from platform.staleness import ModelVersions, Rules

from buffers.samples import Gate
from configs.system import StalenessConfig, SyncConfig
from tests.buffer_helper import SPEC, make_buffer
from tests.records_helper import make_record


def filled():
    """Four samples of two decisions: imagined by versions (obs, reward) 0 0, 3 1, 3 4, and a real one."""
    buffer = make_buffer()
    for number, versions in enumerate([(0, 0), (3, 1), (3, 4), None]):
        record = make_record(SPEC, number, 2)
        if versions is not None:
            record.source = "imagined"
            record.obs_model_version, record.reward_model_version = versions
        buffer.append(record)
    return buffer


def leased(gate: Gate) -> tuple[list[int], int, int]:
    lease = filled().lease(2, gate=gate)
    assert lease is not None
    return lease.ids, lease.traffic.outdated, lease.traffic.dropped


def test_either_model_can_be_too_old() -> None:
    """The first that is left is lent; two decisions left with each sample. Real ones are of no model."""
    assert leased(Gate(oldest=0)) == ([0], 0, 0)
    assert leased(Gate(oldest=0, oldest_obs_model=1)) == ([1], 2, 0)
    assert leased(Gate(oldest=0, oldest_reward_model=2)) == ([2], 4, 0)
    assert leased(Gate(oldest=0, oldest_obs_model=4)) == ([3], 6, 0)


def test_what_left_gives_its_place_back_and_is_told_once() -> None:
    buffer = filled()
    gate = Gate(oldest=0, oldest_obs_model=4)
    lease = buffer.lease(2, gate=gate)
    assert lease is not None
    assert buffer.stock().available == 0
    assert buffer.lease(2, gate=gate) is None
    buffer.append(make_record(SPEC, 9, 2))
    again = buffer.lease(2, gate=gate)
    assert again is not None
    assert again.traffic.outdated == 0


def test_the_bound_is_a_lag_in_versions() -> None:
    rules = Rules.of(StalenessConfig(model_bound=2), SyncConfig(), turn=32, group=1)
    models = ModelVersions(obs_model=5, reward_model=1)
    gate = rules.gate(7, 10, real=False, models=models)
    assert (gate.oldest_obs_model, gate.oldest_reward_model) == (3, 0)
    never = Rules.of(StalenessConfig(model_bound=None), SyncConfig(), turn=32, group=1)
    gate = never.gate(7, 10, real=False, models=models)
    assert (gate.oldest_obs_model, gate.oldest_reward_model) == (0, 0)
    assert (
        Rules.of(StalenessConfig(model_bound=0), SyncConfig(), turn=1, group=1)
        .gate(7, 10, real=False, models=models)
        .oldest_obs_model
        == 5
    )


def test_the_newest_versions_stand_on_the_board() -> None:
    assert model_versions({}) == ModelVersions(0, 0)
    assert model_versions({"obs_model/version": 3, "reward_model/version": 7}) == ModelVersions(3, 7)
