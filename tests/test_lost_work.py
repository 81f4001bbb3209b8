"""What a run tells of what it lost."""

from __future__ import annotations

from platform.lost_work import LostWork
from typing import Any

import pytest


def stats(*deaths: str, lost: int = 0) -> dict[str, Any]:
    return {"server_deaths": list(deaths), "lost_items": lost, "items": 7}


def test_work_since_the_checkpoint_is_counted() -> None:
    lost = LostWork({"store": {"board": {"policy/turns": 4, "real_steps/rollout_0": 100}}})
    assert lost.since_checkpoint() == ""
    lost.see({"policy/turns": 6, "real_steps/rollout_0": 130, "real_steps/rollout_1": 12})
    assert lost.since_checkpoint() == "; lost since then: 2 policy turns, 42 real steps"
    lost.saved({"policy/turns": 6, "real_steps/rollout_0": 130, "real_steps/rollout_1": 10})
    lost.see({"policy/turns": 6, "real_steps/rollout_0": 130, "real_steps/rollout_1": 12})
    assert lost.since_checkpoint() == "; lost since then: 2 real steps"


def test_each_loss_of_a_buffer_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    lost = LostWork({"store": {"board": {}}, "b_real": {"lost": 3}, "b_img": {}})
    lost.look({"real": stats(lost=3), "img": stats()})
    assert not caplog.records
    for _ in range(2):
        lost.look({"real": stats("it was killed", lost=5), "img": stats()})
    lost.look({"real": stats("it was killed", "it fell over", lost=5), "img": stats()})
    assert [record.getMessage() for record in caplog.records] == [
        "buffer real: it was killed; another one was started, from its last checkpoint if it had any",
        "buffer real: lost 2 records, 7 are there",
        "buffer real: it fell over; another one was started, from its last checkpoint if it had any",
    ]
