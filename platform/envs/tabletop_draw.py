"""The tabletop's picture, drawn with array operations over all worlds and all things at once.

Every thing is a rounded box with a border. Its edge is anti-aliased by the signed distance of the pixel's centre
(coverage = 1/2 - distance, clipped), so a move by a fraction of a pixel shows. Only a small patch around a thing is
computed. Shape letters: n worlds, S things, p pixels of a patch's side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from configs.env import TabletopConfig

from .tabletop_tasks import PALETTE, TASK_NAMES, TASKS, Floats, pad_half

TABLE = (231, 221, 203)
EDGE = (190, 172, 145)
PAD_FILL = (196, 204, 216)
PAD_BORDER = (96, 100, 112)
ARM = (38, 40, 48)
LIFTED = (255, 255, 255)
JAW = (0.008, 0.036)
"""Half extents of a jaw before rounding, in table widths."""
JAW_RADIUS = 0.018
PUSHER_RADIUS = 0.045
"""Radius of the pusher's contact disc."""
RAISED_PUSHER = 0.065
"""Radius of the ring that a raised pusher shows."""
LIFT_SCALE = 1.3
AT_ONCE = 64
"""Worlds whose arrays stay in the processor's cache together."""
ROUNDING = np.float32(0.5)
"""Added to every colour, so that cutting off the fraction at the end rounds it."""
_COLOURS = np.array(list(PALETTE.values()), np.float32)


@dataclass
class Things:
    """What to paint in n worlds, in painter's order along S. Lengths in table widths, colours 0..255."""

    centre: Floats
    """``[n, S, 2]``"""
    half: Floats
    """``[n, S, 2]``: half extents before rounding."""
    radius: Floats
    """``[n, S]``"""
    border: Floats
    """``[n, S]``: width of the border."""
    border_colour: Floats
    """``[n, S, 3]``"""
    fill_colour: Floats
    """``[n, S, 3]``"""
    filled: Floats
    """``[n, S]``: 1 solid, 0 a ring."""
    visible: Floats
    """``[n, S]``: 1 or 0."""


def _empty(n: int, count: int) -> Things:
    zeros = np.zeros
    return Things(
        centre=zeros((n, count, 2), np.float32),
        half=zeros((n, count, 2), np.float32),
        radius=zeros((n, count), np.float32),
        border=zeros((n, count), np.float32),
        border_colour=zeros((n, count, 3), np.float32),
        fill_colour=zeros((n, count, 3), np.float32),
        filled=np.ones((n, count), np.float32),
        visible=np.ones((n, count), np.float32),
    )


def arrange(
    config: TabletopConfig,
    task: NDArray[np.int64],
    gripper: Floats,
    opening: Floats,
    held: NDArray[np.int64],
    blocks: Floats,
    colours: NDArray[np.int64],
    pad: Floats,
) -> Things:
    """Turn world states into things: pad, blocks, the held block again on top, two jaws, a palm."""
    n, count = blocks.shape[:2]
    things = _empty(n, count + 5)
    _arrange_pad(config, things, pad)
    body = slice(1, count + 1)
    things.centre[:, body] = blocks
    things.radius[:, body] = config.block_radius
    things.fill_colour[:, body] = _COLOURS[colours]
    things.border[:, body] = 0.018
    things.border_colour[:, body] = _COLOURS[colours] * np.float32(0.62)
    things.visible[:, body] = np.arange(count) != held[:, None]
    holding = held >= 0
    rows, lifted = np.arange(n), count + 1
    things.centre[:, lifted] = blocks[rows, held]
    things.radius[:, lifted] = config.block_radius * LIFT_SCALE
    things.fill_colour[:, lifted] = _COLOURS[colours[rows, held]]
    things.border[:, lifted] = 0.03
    things.border_colour[:, lifted] = LIFTED
    things.visible[:, lifted] = holding
    pushes = np.array([TASKS[name].pushes for name in TASK_NAMES])[task]
    _arrange_arm(config, things, gripper, opening, holding, pushes)
    return things


def _arrange_pad(config: TabletopConfig, things: Things, pad: Floats) -> None:
    corner = 0.03
    things.centre[:, 0] = pad
    things.half[:, 0] = pad_half(config) - corner
    things.radius[:, 0] = corner
    things.border[:, 0] = 0.028
    things.border_colour[:, 0] = PAD_BORDER
    things.fill_colour[:, 0] = PAD_FILL
    things.visible[:, 0] = pad[:, 0] >= 0


def _arrange_arm(
    config: TabletopConfig,
    things: Things,
    gripper: Floats,
    opening: Floats,
    holding: NDArray[np.bool_],
    pushes: NDArray[np.bool_],
) -> None:
    """A gripper is two jaws and a palm that spread with the opening; a pusher is a ring (raised) or a disc (lowered)."""
    left, right, palm = -3, -2, -1
    things.border_colour[:, left:] = ARM
    things.fill_colour[:, left:] = ARM
    wide = config.block_radius + 0.03
    spread = np.where(holding, config.block_radius * np.float32(LIFT_SCALE), 0.02 + (wide - 0.02) * opening)
    spread = spread.astype(np.float32)
    for slot, side in ((left, -1), (right, 1)):
        things.centre[:, slot, 0] = gripper[:, 0] + side * spread
        things.centre[:, slot, 1] = gripper[:, 1]
        things.half[:, slot] = JAW
        things.radius[:, slot] = JAW_RADIUS
        things.visible[:, slot] = ~pushes
    things.centre[:, palm, 0] = gripper[:, 0]
    things.centre[:, palm, 1] = gripper[:, 1] - np.where(pushes, 0, JAW[1] + JAW_RADIUS)
    things.half[:, palm, 0] = np.where(pushes, 0, spread)
    ring = PUSHER_RADIUS + (RAISED_PUSHER - PUSHER_RADIUS) * opening
    things.radius[:, palm] = np.where(pushes, ring, JAW_RADIUS)
    things.border[:, palm] = 0.03
    things.filled[:, palm] = np.where(pushes & (opening > 0), 0, 1)


@lru_cache(maxsize=8)
def _background(size: int) -> Floats:
    """An empty table with a darker edge, ``[3, 1, size * size]``, plus ROUNDING."""
    picture = np.empty((3, size, size), np.float32)
    picture[:] = np.array(EDGE, np.float32)[:, None, None]
    rim = max(1, size // 32)
    inside = slice(rim, size - rim)
    picture[:, inside, inside] = np.array(TABLE, np.float32)[:, None, None]
    return picture.reshape(3, 1, size * size) + ROUNDING


def paint(things: Things, size: int) -> NDArray[np.uint8]:
    """``[n, size, size, 3]`` frames."""
    n = len(things.visible)
    frames = np.empty((n, size * size, 3), np.uint8)
    for first in range(0, n, AT_ONCE):
        rows = slice(first, first + AT_ONCE)
        for channel, plane in enumerate(_canvas(things, rows, size).astype(np.uint8)):
            frames[rows, :, channel] = plane
    return frames.reshape(n, size, size, 3)


def _canvas(things: Things, rows: slice, size: int) -> Floats:
    """Colours 0..255 plus ROUNDING of the worlds in ``rows``, ``[3, n, size * size]``."""
    canvas = np.empty((3, len(things.visible[rows]), size * size), np.float32)
    canvas[:] = _background(size)
    planes = canvas.reshape(3, -1)
    reach = (things.half[rows] + things.radius[rows, :, None]) * things.visible[rows, :, None]
    sides = 2 * np.ceil(reach.max(axis=0) * np.float32(size)).astype(np.int64) + 2
    shown = np.flatnonzero(things.visible[rows].any(axis=0)).tolist()
    for side, group in groupby(shown, key=sides.tolist().__getitem__):
        for index, under, ink in zip(*_inks(things, rows, list(group), size, side), strict=True):
            for plane, colour in zip(planes, ink, strict=True):
                colour += under * plane.take(index)
                plane[index] = colour
    return canvas


def _inks(
    things: Things, rows: slice, group: list[int], size: int, side: list[int]
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """How each of the S things of a ``group`` changes its patch of p pixels, ``side`` = (width, height): where those lie
    among all pixels ``[S, n, p]``, the share of what was there that stays ``[S, n, p]``, what is added ``[S, 3, n, p]``.
    """

    def of(values: Floats) -> Floats:
        return values[rows, group].swapaxes(0, 1)

    scale, visible = np.float32(size), of(things.visible)
    half, radius = of(things.half) * scale, of(things.radius) * scale
    wide, high = (min(pixels, size) for pixels in side)
    centre = of(things.centre) * scale
    corner = np.floor(centre - np.array(side, np.float32) / 2 + np.float32(0.5)).astype(np.int64)
    # A patch that is moved inside the picture still holds all that shows of its thing.
    np.clip(corner, 0, (size - wide, size - high), out=corner)
    beyond_x, beyond_y = (
        np.abs((corner[..., axis] - centre[..., axis]).astype(np.float32)[..., None] + _middles(pixels))
        - half[..., axis, None]
        for axis, pixels in enumerate((wide, high))
    )
    depth = _depth(beyond_x, beyond_y, radius)
    outer = np.minimum(np.maximum(depth, 0), visible[..., None])
    depth -= (of(things.border) * scale)[..., None]
    inner = np.minimum(np.maximum(depth, 0), visible[..., None])
    outer -= inner
    inner *= of(things.filled)[..., None]
    ink = outer[:, None] * (of(things.border_colour) + ROUNDING).transpose(0, 2, 1)[..., None]
    ink += inner[:, None] * (of(things.fill_colour) + ROUNDING).transpose(0, 2, 1)[..., None]
    under = 1 - outer
    under -= inner
    first = (np.arange(visible.shape[1]) * size + corner[..., 1]) * size + corner[..., 0]
    patch = np.arange(high)[:, None] * size + np.arange(wide)
    return first[..., None] + patch.reshape(-1), under, ink


@lru_cache(maxsize=64)
def _middles(side: int) -> Floats:
    """Where a patch's pixels have their middles, from its corner."""
    return np.arange(side, dtype=np.float32) + np.float32(0.5)


def _depth(beyond_x: Floats, beyond_y: Floats, radius: Floats) -> Floats:
    """How deep each pixel ``[n, S, h * w]`` lies inside a rounded box, in pixels; 1/2 is on its edge."""
    signed: Floats = np.add(
        np.maximum(beyond_x, 0)[:, :, None, :] ** 2, np.maximum(beyond_y, 0)[:, :, :, None] ** 2
    )
    np.sqrt(signed, out=signed)
    signed += np.minimum(np.maximum(beyond_x[:, :, None, :], beyond_y[:, :, :, None]), 0)
    depth: Floats = (radius + np.float32(0.5))[..., None] - signed.reshape(*radius.shape, -1)
    return depth
