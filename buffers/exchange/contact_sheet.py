"""Episodes at a glance: a row each, frames from the first to the last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from buffers.exchange.survey import Glimpse

CELL = 96
"""Least height of a frame in pixels; smaller ones are repeated pixel by pixel, larger ones stay."""
MARGIN, LINE = 6, 16
INK, PAPER, SUCCESS, FAILURE = (40, 40, 40), (255, 255, 255), (20, 140, 60), (180, 40, 40)
OUTCOMES: dict[bool | None, tuple[str, tuple[int, int, int]]] = {
    True: ("success", SUCCESS), False: ("failure", FAILURE), None: ("outcome not recorded", INK),
}  # fmt: skip


def contact_sheet(episodes: Sequence[Glimpse], path: Path) -> None:
    """Write a PNG: instruction, length and outcome above each row, cameras below each other."""
    from PIL import Image

    blocks = [
        _row(glimpse, camera, frames) for glimpse in episodes for camera, frames in glimpse.frames.items()
    ]
    sheet = Image.new("RGB", (max(b.width for b in blocks), sum(b.height for b in blocks)), PAPER)
    top = 0
    for block in blocks:
        sheet.paste(block, (0, top))
        top += block.height
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)


def _row(glimpse: Glimpse, camera: str, frames: NDArray[np.uint8]) -> Any:
    from PIL import Image, ImageDraw

    times = max(1, -(-CELL // frames.shape[1]))
    cells = frames.repeat(times, axis=1).repeat(times, axis=2)
    height, width = cells.shape[1:3]
    text, colour = OUTCOMES[glimpse.success]
    label = f"{glimpse.instruction or '(no instruction)'} | {camera} | {len(glimpse.actions)} env steps | "
    size = (max(len(cells) * (width + MARGIN) + MARGIN, 7 * len(label + text)), LINE + height + 2 * MARGIN)
    row = Image.new("RGB", size, PAPER)
    draw: Any = ImageDraw.Draw(row)
    draw.text((MARGIN, 2), label, fill=INK)
    draw.text((MARGIN + draw.textlength(label), 2), text, fill=colour)
    for number, cell in enumerate(cells):
        row.paste(Image.fromarray(cell), (MARGIN + number * (width + MARGIN), LINE + MARGIN // 2))
    return row
