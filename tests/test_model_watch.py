"""What a run measures of its models: means over looks, what the horizon's row says, film strips by way of the store."""

from __future__ import annotations

from pathlib import Path
from platform.context import FILM
from platform.model_watch import FilmShelf, believed, mean_rows, mean_steps
from platform.weights import WeightStore

import numpy as np
import pytest


def row(horizon: int, agreement: float) -> dict[str, float]:
    """Of a report."""
    return {
        "horizon": horizon, "windows": 10, "agreement": agreement, "false_success": 0.0, "missed_success": 0.0,
        "real_success": 0.5, "imagined_success": 0.5,
    }  # fmt: skip


def test_means_over_looks() -> None:
    """Shares are averaged, windows add up, steps go as far as every look does."""
    rows = mean_rows([[row(1, 0.9), row(2, 0.8)], [row(1, 0.7), row(2, 0.6)]])
    assert [(each["horizon"], each["windows"]) for each in rows] == [(1, 20), (2, 20)]
    assert [each["agreement"] for each in rows] == pytest.approx([0.8, 0.7])
    assert mean_steps([[30.0, 20.0, 10.0], [20.0, 10.0]]) == [25.0, 15.0]


def test_what_the_horizon_is_believed_to_be_worth() -> None:
    """Of the row at that horizon; nothing where nothing was measured, nor at horizon 0."""
    board = {"quality/by_horizon": [row(1, 0.9), row(2, 0.8)], "quality/psnr_by_step": [30.0, 20.0]}
    assert believed(board, 2) == {
        "imagine/agreement": 0.8, "imagine/false_success": 0.0, "imagine/missed_success": 0.0, "imagine/psnr": 20.0,
    }  # fmt: skip
    assert believed(board, 3) == believed(board, 0) == believed({}, 1) == {}


def test_film_strips_travel_by_the_store(tmp_path: Path) -> None:
    """One file per look, named by the policy's version; nothing new writes nothing."""
    from PIL import Image

    store, shelf = WeightStore(), FilmShelf(tmp_path / "films")
    shelf.collect(store)
    assert not (tmp_path / "films").exists()
    for look, version in ((1, 0), (2, 20)):
        sheet = np.full((4, 6, 3), look, np.uint8)
        store.publish(FILM, look, {"sheet": sheet, "policy_version": np.asarray(version)})
        shelf.collect(store)
        shelf.collect(store)
    assert sorted(path.name for path in (tmp_path / "films").iterdir()) == ["000000.png", "000020.png"]
    assert (np.asarray(Image.open(tmp_path / "films" / "000020.png")) == 2).all()
