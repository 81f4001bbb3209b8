"""The tabletop's picture, drawn with array operations over all worlds and all things at once.

Every thing is a rounded box with a border. Its edge is anti-aliased by the signed distance of the pixel's centre
(coverage = 1/2 - distance, clipped), so a move by a fraction of a pixel shows. Only a small patch around a thing is
computed. Shape letters: n worlds, S things, p pixels of a patch's side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from configs.env import TabletopConfig

from .tabletop_tasks import PALETTE, TASK_NAMES, TASKS, Floats, pad_half

TABLE = (231, 221, 203)
EDGE = (190, 172, 145)
PAD_FILL = (252, 252, 250)
PAD_BORDER = (96, 100, 112)
ARM = (38, 40, 48)
LIFTED = (255, 255, 255)
JAW = (0.008, 0.036)
"""Half extents of a jaw before rounding, in table widths."""
JAW_RADIUS = 0.018
PUSHER_RADIUS = 0.035
"""Radius of the pusher's contact disc."""
RAISED_PUSHER = 0.055
"""Radius of the ring that a raised pusher shows."""
LIFT_SCALE = 1.15
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
    things.border[:, lifted] = 0.026
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
def _background(size: int, margin: int) -> NDArray[np.uint8]:
    """An empty table with a darker edge, ``[size + 2 margin, size + 2 margin, 3]``."""
    picture = np.empty((size + 2 * margin, size + 2 * margin, 3), np.uint8)
    picture[:] = EDGE
    rim = max(1, size // 32)
    picture[margin + rim : margin + size - rim, margin + rim : margin + size - rim] = TABLE
    return picture


def paint(things: Things, size: int) -> NDArray[np.uint8]:
    """``[n, size, size, 3]`` frames."""
    n, count = things.radius.shape
    extent = float((things.half.max(axis=2) + things.radius).max(initial=0.0))
    patch = 2 * int(np.ceil(extent * size)) + 2
    margin = patch
    background = _background(size, margin)
    width = background.shape[1]
    canvas = np.repeat(background[None], n, axis=0).reshape(n * width * width, 3)

    centre = things.centre * np.float32(size)
    corner = np.floor(centre - (patch / 2 - 0.5)).astype(np.int64)
    np.clip(corner, -margin, size, out=corner)
    alpha, colour = _coverage(things, centre, corner, size, patch)
    span = np.arange(patch)
    first = (corner[..., 1] + margin) * width + corner[..., 0] + margin + np.arange(n)[:, None] * width * width
    pixels = first[:, :, None, None] + (span[:, None] * width + span)
    for thing in range(count):
        index = pixels[:, thing]
        under = canvas[index]
        canvas[index] = under * (1 - alpha[:, thing, ..., None]) + colour[:, thing] + np.float32(0.5)
    framed = canvas.reshape(n, width, width, 3)
    return np.ascontiguousarray(framed[:, margin : margin + size, margin : margin + size])


def _coverage(
    things: Things, centre: Floats, corner: NDArray[np.int64], size: int, patch: int
) -> tuple[Floats, Floats]:
    """Opacity ``[n, S, p, p]`` and colour times opacity ``[n, S, p, p, 3]`` of each thing on its patch."""
    grid = np.arange(patch, dtype=np.float32) + np.float32(0.5)
    scale = np.float32(size)
    offset = corner[..., None].astype(np.float32) + grid - centre[..., None]
    beyond = np.abs(offset) - things.half[..., None] * scale
    qx, qy = beyond[:, :, 0, None, :], beyond[:, :, 1, :, None]
    px, py = np.maximum(qx, 0), np.maximum(qy, 0)
    signed = np.sqrt(px * px + py * py) + np.minimum(np.maximum(qx, qy), 0)
    signed -= (things.radius * scale)[..., None, None]
    outer = np.clip(0.5 - signed, 0, 1)
    inner = np.clip(0.5 - signed - (things.border * scale)[..., None, None], 0, 1)
    rim = (outer - inner) * things.visible[..., None, None]
    inner *= (things.filled * things.visible)[..., None, None]
    colour = rim[..., None] * things.border_colour[:, :, None, None]
    colour += inner[..., None] * things.fill_colour[:, :, None, None]
    return rim + inner, colour
