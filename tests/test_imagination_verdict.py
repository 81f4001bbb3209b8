"""When imagination says that it is shut, so that real data train the policy alone."""

from __future__ import annotations

from platform.context import make_context
from platform.imagination import Imagination
from platform.weights import WeightStore
from typing import Any

import pytest

from buffers.samples import Admission
from tests.run_helper import config

ROW = {
    "horizon": 1, "windows": 10, "agreement": 0.5, "false_success": 0.4, "missed_success": 0.1,
    "real_success": 0.5, "imagined_success": 0.8,
}  # fmt: skip


def imagination(store: WeightStore) -> Imagination:
    """With a gate; nothing gets as far as its buffers."""
    settings = config(
        "real+imagined", "imagination.gate.enabled=true", "imagination.gate.min_agreement=0.9",
        "evaluation.quality_every=1",
    )  # fmt: skip
    context = make_context(settings, seed=0, device="cpu")
    nothing: Any = None
    return Imagination(
        context,
        settings.imagination,
        nothing,
        nothing,
        store,
        store,
        admission=lambda _turns: Admission(limit=10),
    )


@pytest.mark.parametrize("first_is_due", [True, False])
def test_models_that_are_about_to_be_measured_are_not_judged(first_is_due: bool) -> None:
    """Shut only once the measurement is there, or where none is to come."""
    store = WeightStore()
    store.put({"quality/first_is_due": first_is_due})
    role = imagination(store)
    assert not role.step()
    assert store.read().get("imagination/open") is (None if first_is_due else False)
    store.put({"quality/by_horizon": [ROW]})
    assert not role.step()
    assert store.read()["imagination/open"] is False
