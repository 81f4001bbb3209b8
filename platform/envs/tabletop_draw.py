"""The tabletop's picture, drawn with array operations over all worlds and all things at once.

Every thing is a rounded box with a border. Its edge is anti-aliased by the signed distance of the pixel's centre
(coverage = 1/2 - distance, clipped), so a move by a fraction of a pixel shows. Only a small patch around a thing is
computed. Shape letters: n worlds, S things, p pixels of a patch's side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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
def _background(size: int, margin: int) -> Floats:
    """An empty table with a darker edge, ``[3, size + 2 margin, size + 2 margin]``."""
    picture = np.empty((3, size + 2 * margin, size + 2 * margin), np.float32)
    picture[:] = np.array(EDGE, np.float32)[:, None, None]
    rim = max(1, size // 32)
    inside = slice(margin + rim, margin + size - rim)
    picture[:, inside, inside] = np.array(TABLE, np.float32)[:, None, None]
    return picture


def paint(things: Things, size: int) -> NDArray[np.uint8]:
    """``[n, size, size, 3]`` frames."""
    n, count = things.radius.shape
    reach = (things.half + things.radius[..., None]) * things.visible[..., None]
    sides = 2 * np.ceil(reach.max(axis=0, initial=0) * size).astype(np.int64) + 2
    margin = int(sides.max())
    background = _background(size, margin)
    width = background.shape[1]
    canvas = np.empty((3, n, width, width), np.float32)
    canvas[:] = background[:, None]
    planes = canvas.reshape(3, n * width * width)
    for thing in range(count):
        shown = np.flatnonzero(things.visible[:, thing])
        if len(shown):
            _paint_one(
                planes, things, thing, shown, size, margin, (int(sides[thing, 0]), int(sides[thing, 1]))
            )
    inside = slice(margin, margin + size)
    frames = np.empty((n, size, size, 3), np.uint8)
    for channel in range(3):
        np.add(canvas[channel, :, inside, inside], 0.5, out=frames[..., channel], casting="unsafe")
    return frames


def _paint_one(
    planes: Floats,
    things: Things,
    thing: int,
    shown: NDArray[np.int64],
    size: int,
    margin: int,
    sides: tuple[int, int],
) -> None:
    """Blend one thing of every world where it shows into ``planes`` ``[3, n * width * width]``."""
    centre = things.centre[shown, thing] * np.float32(size)
    corner = np.floor(centre - np.array(sides, np.float32) / 2 + np.float32(0.5)).astype(np.int64)
    np.clip(corner, -margin, size, out=corner)
    rim, inner = _coverage(things, thing, shown, corner - centre, size, sides)
    width = size + 2 * margin
    patch = np.arange(sides[1])[:, None] * width + np.arange(sides[0])
    first = (corner[:, 1] + margin + shown * width) * width + corner[:, 0] + margin
    index = first[:, None] + patch.reshape(-1)
    under = 1 - rim - inner
    rim_colour, fill_colour = things.border_colour[shown, thing], things.fill_colour[shown, thing]
    for channel, plane in enumerate(planes):
        ink = rim * rim_colour[:, channel, None]
        ink += inner * fill_colour[:, channel, None]
        ink += under * plane.take(index)
        plane[index] = ink


def _coverage(
    things: Things,
    thing: int,
    shown: NDArray[np.int64],
    offset: NDArray[np.floating[Any]],
    size: int,
    sides: tuple[int, int],
) -> tuple[Floats, Floats]:
    """Opacity ``[n, w * h]`` of a thing's border and of its inside on its patch, whose corner is ``offset`` from it."""
    scale = np.float32(size)
    half, radius = things.half[shown, thing] * scale, things.radius[shown, thing] * scale
    beyond = [
        np.abs((offset[:, axis, None] + np.arange(sides[axis]) + 0.5).astype(np.float32))
        - half[:, axis, None]
        for axis in (0, 1)
    ]
    outside = [np.maximum(each, 0) ** 2 for each in beyond]
    signed = np.sqrt(outside[0][:, None, :] + outside[1][:, :, None])
    signed += np.minimum(np.maximum(beyond[0][:, None, :], beyond[1][:, :, None]), 0)
    depth = (radius + np.float32(0.5))[:, None] - signed.reshape(len(shown), -1)
    outer = np.clip(depth, 0, 1)
    depth -= (things.border[shown, thing] * scale)[:, None]
    inner = np.clip(depth, 0, 1)
    return outer - inner, inner * things.filled[shown, thing, None]
