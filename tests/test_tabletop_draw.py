"""The tabletop's pictures against a slow drawing of every pixel."""

from __future__ import annotations

from platform.envs.tabletop_draw import EDGE, TABLE, Things, paint

import numpy as np
import pytest


def things(n: int, count: int, seed: int) -> Things:
    """Of any size and place, over the edge, too."""
    random = np.random.default_rng(seed)

    def of(low: float, high: float, *shape: int) -> np.ndarray:
        return random.uniform(low, high, (n, count, *shape)).astype(np.float32)

    return Things(
        centre=of(-0.1, 1.1, 2),
        half=of(0, 0.15, 2),
        radius=of(0.01, 0.1),
        border=of(0, 0.05),
        border_colour=of(0, 255, 3),
        fill_colour=of(0, 255, 3),
        filled=random.integers(0, 2, (n, count)).astype(np.float32),
        visible=(random.random((n, count)) < 0.8).astype(np.float32),
    )


def drawn_slowly(given: Things, world: int, size: int) -> np.ndarray:
    """The formulas of the module's docstring over whole pictures, one thing after the other, in double precision."""
    rim = max(1, size // 32)
    picture = np.empty((size, size, 3))
    picture[:] = EDGE
    picture[rim : size - rim, rim : size - rim] = TABLE
    middles = (np.arange(size) + 0.5) / size
    for thing in range(given.radius.shape[1]):
        if not given.visible[world, thing]:
            continue
        centre, half = (values[world, thing].astype(float) for values in (given.centre, given.half))
        beyond = np.stack(
            np.broadcast_arrays(
                np.abs(middles[None, :] - centre[0]) - half[0], np.abs(middles[:, None] - centre[1]) - half[1]
            )
        )
        distance = np.hypot(*np.maximum(beyond, 0)) + np.minimum(beyond.max(axis=0), 0)
        depth = (float(given.radius[world, thing]) - distance) * size
        outer = np.clip(depth + 0.5, 0, 1)
        inner = np.clip(depth + 0.5 - float(given.border[world, thing]) * size, 0, 1)
        ink = (outer - inner)[..., None] * given.border_colour[world, thing]
        ink = ink + (inner * given.filled[world, thing])[..., None] * given.fill_colour[world, thing]
        stays = 1 - (outer - inner) - inner * given.filled[world, thing]
        picture = picture * stays[..., None] + ink
    return np.floor(picture + 0.5)


@pytest.mark.parametrize("size", [32, 64])
def test_every_pixel_is_that_of_a_slow_drawing(size: int) -> None:
    given = things(70, 7, seed=size)
    frames = paint(given, size)
    for world in range(0, 70, 7):
        gap = np.abs(frames[world] - drawn_slowly(given, world, size))
        assert gap.max() <= 1
        assert (gap > 0).mean() < 0.001


def test_an_empty_table_has_its_edge_alone() -> None:
    given = things(2, 3, seed=0)
    given.visible[:] = 0
    frames = paint(given, 32)
    assert (frames[:, 1:-1, 1:-1] == TABLE).all()
    assert (frames[:, 0] == EDGE).all()
    assert (frames[:, :, -1] == EDGE).all()
