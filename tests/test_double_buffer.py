"""Two copies of the policy: whole or not at all, and never touched while they serve."""

from __future__ import annotations

from platform.double_buffer import NEVER, Copy, DoubleBuffer
from platform.weights import WeightStore
from typing import Any, cast

import numpy as np
import pytest
import torch


def make() -> Copy:
    policy = torch.nn.Linear(2, 2)
    return Copy(cast(Any, policy), cast(Any, policy.forward))


def arrays(version: float) -> dict[str, Any]:
    return {"weight": np.full((2, 2), version, np.float32), "bias": np.full(2, version, np.float32)}


def served(buffer: DoubleBuffer) -> set[float]:
    return {float(x) for tensor in buffer.serving.policy.state_dict().values() for x in tensor.flatten()}


@pytest.fixture
def store() -> WeightStore:
    store = WeightStore()
    store.publish("policy", 0, arrays(0))
    return store


@pytest.fixture
def buffer(store: WeightStore) -> DoubleBuffer:
    buffer = DoubleBuffer(make, store)
    assert buffer.serving.version == NEVER
    assert buffer.look()
    assert buffer.swap()
    return buffer


def test_new_weights_serve_from_the_swap_on(store: WeightStore, buffer: DoubleBuffer) -> None:
    assert (buffer.serving.version, served(buffer)) == (0, {0.0})
    assert not buffer.look()
    assert not buffer.swap()
    store.publish("policy", 1, arrays(1))
    assert not buffer.swap(), "nobody has looked yet"
    assert buffer.look()
    assert (buffer.serving.version, served(buffer)) == (0, {0.0}), "loaded, but not serving"
    assert buffer.swap()
    assert (buffer.serving.version, served(buffer)) == (1, {1.0})


def test_weights_that_never_served_are_overtaken(store: WeightStore, buffer: DoubleBuffer) -> None:
    for version in (1, 2):
        store.publish("policy", version, arrays(version))
        assert buffer.look()
    assert not buffer.look(), "what is ready is not fetched again"
    assert buffer.swap()
    assert (buffer.serving.version, served(buffer)) == (2, {2.0})
    assert not buffer.swap()


def test_weights_that_do_not_fit_never_serve(store: WeightStore, buffer: DoubleBuffer) -> None:
    store.publish("policy", 1, {**arrays(1), "bias": np.zeros(3, np.float32)})
    with pytest.raises(RuntimeError, match="bias"):
        buffer.look()
    assert not buffer.swap()
    assert (buffer.serving.version, served(buffer)) == (0, {0.0})
    store.publish("policy", 2, arrays(2))
    assert buffer.look()
    assert buffer.swap()
    assert (buffer.serving.version, served(buffer)) == (2, {2.0})


def test_a_run_that_continues_takes_older_weights(store: WeightStore, buffer: DoubleBuffer) -> None:
    older = store.state()
    store.publish("policy", 5, arrays(5))
    assert buffer.look()
    assert buffer.swap()
    store.load(older)
    assert not buffer.look()
    buffer.forget()
    assert buffer.look()
    assert buffer.swap()
    assert (buffer.serving.version, served(buffer)) == (0, {0.0})
