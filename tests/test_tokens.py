import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import DataError
from policies.tokens import ActionTokenizer


def test_hand_computed() -> None:
    tokenizer = ActionTokenizer((-1.0, 0.0), (1.0, 8.0), 4)
    actions = np.array([[-1.0, 0.0], [-0.6, 1.9], [0.0, 2.0], [0.99, 7.9], [1.0, 8.0]], dtype=np.float32)
    tokens = tokenizer.encode(actions)
    assert tokens.dtype == np.int16
    assert tokens.tolist() == [[0, 0], [0, 0], [2, 1], [3, 3], [3, 3]]
    assert tokenizer.decode(np.array([[0, 0], [3, 2]])).tolist() == [[-0.75, 1.0], [0.75, 5.0]]


def test_clips_outside_the_range() -> None:
    tokenizer = ActionTokenizer((-1.0,), (1.0,), 16)
    assert tokenizer.encode(np.array([[-5.0], [5.0]])).ravel().tolist() == [0, 15]


@given(bins=st.integers(2, 1024), low=st.floats(-100, 100), span=st.floats(1, 1000), data=st.data())
def test_round_trips(bins: int, low: float, span: float, data: st.DataObject) -> None:
    tokenizer = ActionTokenizer((low,), (low + span,), bins)
    action = np.array([low + data.draw(st.floats(0, 1)) * span], dtype=np.float32)
    error = np.abs(tokenizer.decode(tokenizer.encode(action)) - action)
    assert error <= 0.51 * tokenizer.bin_width + 1e-4
    token = np.array([data.draw(st.integers(0, bins - 1))])
    assert tokenizer.encode(tokenizer.decode(token)) == token


def test_json() -> None:
    tokenizer = ActionTokenizer([-1.0, -2.0], [1.0, 2.0], 16)
    assert ActionTokenizer.from_json(json.loads(json.dumps(tokenizer.to_json()))) == tokenizer


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (1.0, -1.0), (-np.inf, 1.0), (0.0, np.nan)])
def test_bad_range_names_the_dimension(low: float, high: float) -> None:
    with pytest.raises(DataError, match="action dimension 1 has the range"):
        ActionTokenizer((0.0, low), (1.0, high), 8)


def test_decoding_a_token_outside_the_bins_is_refused() -> None:
    with pytest.raises(AssertionError):
        ActionTokenizer((0.0,), (1.0,), 8).decode(np.array([8]))
