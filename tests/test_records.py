"""Records: what is refused, and taking them apart."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from buffers.columns import Facts, columns, holds_frames, join_record, split_record
from buffers.records import Record, RecordBatch, RecordSpec
from configs.errors import DataError
from tests.records_helper import assert_same_record, make_record, make_spec

SPEC = make_spec()


def test_spec_survives_json() -> None:
    assert RecordSpec.from_json(SPEC.to_json()) == SPEC


def test_require_names_the_first_difference() -> None:
    with pytest.raises(DataError, match=r"action_dim is 5, expected 2 \(here\): re-tokenise"):
        SPEC.require(replace(SPEC, action_dim=5), where="here", remedy="re-tokenise")


def test_a_good_record_passes() -> None:
    record = make_record(SPEC, 1, 8)
    record.check(SPEC)
    assert (record.length, record.env_steps) == (8, 16)


def _with_nan(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array = array.copy()
    array.flat[0] = np.nan
    return array


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "float images": ({"images": {"camera0": np.zeros((4, 4, 4, 3), np.float32)}}, r"images\[camera0\]"),
    "no bootstrap frame": ({"images": {"camera0": np.zeros((3, 4, 4, 3), np.uint8)}}, r"images\[camera0\]"),
    "other camera": ({"images": {"wrist": np.zeros((4, 4, 4, 3), np.uint8)}}, "cameras"),
    "proprio shape": ({"proprio": np.zeros((4, 3), np.float32)}, "proprio"),
    "proprio NaN": ({"proprio": _with_nan(np.zeros((4, 2), np.float32))}, "proprio has NaN"),
    "rewards infinite": ({"rewards": np.full(3, np.inf, np.float32)}, "rewards has NaN or infinite"),
    "rewards dtype": ({"rewards": np.zeros(3, np.float64)}, "rewards is float64"),
    "version falls": ({"version": np.array([2, 1, 1], np.int32)}, "versions decrease"),
    "token too large": ({"tokens": np.full((3, 3, 2), 16, np.int16)}, "tokens outside 0..15"),
    "token negative": ({"tokens": np.full((3, 3, 2), -1, np.int16)}, "tokens outside 0..15"),
    "token dtype": ({"tokens": np.zeros((3, 3, 2), np.int64)}, "tokens is int64"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_refused_by_name(name: str) -> None:
    change, message = BAD[name]
    with pytest.raises(DataError, match=message) as caught:
        replace(make_record(SPEC, 1, 3), **change).check(SPEC, where="buffer real")
    assert "buffer real" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [0, 9])
def test_length_is_bounded(length: int) -> None:
    record = make_record(make_spec(max_decisions=9), 1, max(length, 1))
    if length == 0:
        record = replace(record, tokens=record.tokens[:0])
    with pytest.raises(DataError, match=f"record has {length} decisions"):
        record.check(SPEC)


def test_columns_and_facts_cover_every_field() -> None:
    names = {column.name for column in columns(replace(SPEC, between=True)) if not holds_frames(column.name)}
    assert names | {"images", "between"} | {f.name for f in fields(Facts)} == {f.name for f in fields(Record)}


def test_splitting_and_joining_is_the_identity() -> None:
    record = make_record(
        make_spec(cameras=2), 3, 4, success=True, source="imagined", horizon=4, attempt=2, extra={"gap": 0.5}
    )
    arrays, facts = split_record(record)
    assert_same_record(record, join_record(arrays, Facts(**facts.to_json())))


def test_batch_knows_its_decisions() -> None:
    blank = {f.name: np.zeros((2, 3)) for f in fields(RecordBatch)}
    batch = RecordBatch(**(blank | {"tokens": np.zeros((2, 3, 1, 1)), "lengths": np.array([1, 3])}))
    np.testing.assert_array_equal(batch.decisions, [[True, False, False], [True, True, True]])
