"""A Reverb server that dies, is missing, is torn, or was started for another run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from buffers import reverb_package
from buffers.reverb_package import require_reverb
from buffers.reverb_tables import table_specs
from buffers.samples import Admission, Gate
from configs.errors import CheckpointError, ConfigError, ReplayError
from configs.replay import RecencySamplingConfig, ReverbConfig
from tests.records_helper import assert_same_record, make_record
from tests.replay_backends import REACH, SPEC, buffer_config

needs_reverb = pytest.mark.skipif(find_spec("reverb") is None, reason="dm-reverb is not installed")


def test_a_missing_package_is_one_line_with_the_supported_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reverb_package, "find_spec", lambda _: None)
    with pytest.raises(
        ConfigError, match=r"dm-reverb .*tensorflow 2\.15.*Python 3\.9 to 3\.11.*backend=memory"
    ):
        require_reverb()


def test_a_python_without_a_wheel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    with pytest.raises(ConfigError, match=r"no wheel for Python 3\.12.*backend=memory"):
        require_reverb()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampling": RecencySamplingConfig()}, r"recency.*backend=memory"),
        ({"memory_bytes": 1000}, r"everything in memory.*backend=memory"),
    ],
)
def test_what_reverb_cannot_do_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        table_specs(SPEC, buffer_config("reverb", "small", **settings), name="real", modelled=True)


def test_a_buffer_without_room_for_an_episode_is_refused() -> None:
    from configs.system import BufferConfig

    with pytest.raises(ConfigError, match=r"no room for one episode.*at least"):
        table_specs(SPEC, BufferConfig(max_bytes=5000), name="real", modelled=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reverb")


@pytest.fixture
def buffer(folder: Path) -> Iterator[object]:
    from buffers.reverb_buffer import ReverbBuffer

    made = ReverbBuffer(
        SPEC, buffer_config("reverb", "small"), ReverbConfig(history=REACH.history, steps=REACH.steps), seed=0,
        name="real", folder=folder,
    )  # fmt: skip
    yield made
    made.close()


@needs_reverb
def test_a_killed_server_is_started_again_and_says_what_was_lost(buffer: object, folder: Path) -> None:
    """Then a checkpoint of the whole is restored exactly, and a torn one is refused."""
    from buffers.reverb_buffer import ReverbBuffer

    assert isinstance(buffer, ReverbBuffer)
    kept = [make_record(SPEC, number, 4 + number, success=True) for number in range(2)]
    buffer.extend(kept)
    assert_same_record(kept[0], buffer.get(0))
    state = buffer.state()
    sample = buffer.admit(1, Admission(100))[0].sample_id
    lost = buffer.append(make_record(SPEC, 2, 8), sample)
    pid = buffer.server_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    windows = buffer.windows(32, 2, 3)
    assert set(windows.ids.tolist()) == {0, 1}
    stats = buffer.stats()
    assert stats["server_deaths"] == ["the Reverb server was killed by signal 9"]
    assert (stats["items"], stats["lost_items"], stats["lifecycle"]["expired"]) == (2, 1, 1)
    with pytest.raises(ReplayError, match="not stored"):
        buffer.get(lost)
    lease = buffer.lease(9)
    assert lease is not None
    assert lease.ids == [0, 1]
    buffer.release(lease.lease_id)
    buffer.append(make_record(SPEC, 3, 8))
    assert buffer.stats()["items"] == 3
    buffer._finder._cache.clear()
    for key, record in enumerate(kept):
        assert_same_record(record, buffer.get(key))

    buffer.state()
    buffer.load(state)
    assert buffer.ids() == [0, 1]
    assert buffer.stats()["lost_items"] == 0
    for key, record in enumerate(kept):
        assert_same_record(record, buffer.get(key))
    again = buffer.lease(9)
    assert again is not None
    np.testing.assert_array_equal(again.batch.values, lease.batch.values)

    new = buffer.append(make_record(SPEC, 4, 8, version=7))
    assert buffer.lease(8, gate=Gate(oldest=7)) is not None
    assert set(buffer._staged) == {*again.ids, new}, "what is lent stays here"
    buffer.commit(again.lease_id)
    buffer.append(make_record(SPEC, 5, 8, version=8))
    assert buffer.lease(8, gate=Gate(oldest=8)) is not None
    assert not set(buffer._staged) & set(again.ids), "what was consumed does not"

    for _ in range(2):
        state = buffer.state()
    saved = (folder / state["server"]["path"]).parent
    assert len(list(saved.iterdir())) == 2, "also those from before the resume leave"
    torn = folder / state["server"]["path"] / "chunks.tfrecord"
    torn.write_bytes(torn.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"missing or torn.*older checkpoint"):
        buffer.load(state)
