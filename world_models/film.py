"""Real and imagined episodes side by side: a picture to look at, a video to play."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

MARGIN = 6
HEADER = 16
LABELS = 72
"""Pixels left of a row for its name."""
INK = (40, 40, 40)
PAPER = (255, 255, 255)
COLUMNS = 11
"""Most steps of a strip: what is wider cannot be read on a page."""
CELL = 128
"""Most pixels a side of an enlarged frame."""
SUCCESS = (20, 140, 60)
"""Colour of a probability at or above the threshold."""


@dataclass(frozen=True)
class Film:
    """One episode in both worlds under the same actions; index 0 is the common start."""

    real: NDArray[np.uint8]
    """``[T, H, W, 3]``"""
    imagined: NDArray[np.uint8]
    """``[T, H, W, 3]``"""
    probabilities: NDArray[np.float32]
    """``[T]`` success probability of the imagined frames."""
    title: str = ""


def film_strip(
    films: Sequence[Film], path: Path, *, enlarge: int | None = None, threshold: float = 0.5
) -> None:
    """Write ``film_sheet`` as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sheet(film_sheet(films, enlarge=enlarge, threshold=threshold), path)


def write_sheet(sheet: NDArray[np.uint8], path: Path) -> None:
    """Write ``[H, W, 3]`` as a PNG."""
    from PIL import Image

    Image.fromarray(sheet).save(path)


def film_sheet(
    films: Sequence[Film], *, enlarge: int | None = None, threshold: float = 0.5
) -> NDArray[np.uint8]:
    """``[H, W, 3]``: per film the real row above the imagined one, step numbers above, probabilities below. A long film
    shows steps at even distances, the first and the last among them.

    Pixels are enlarged by nearest neighbour, so that nothing is smoothed over; none makes frames about as large as a page
    has room for.
    """
    from PIL import Image

    enlarge = enlarge or min(3, max(1, CELL // films[0].real.shape[1]))
    blocks = [_strip(film, enlarge, threshold) for film in films]
    width, height = max(b.width for b in blocks), sum(b.height for b in blocks)
    sheet = Image.new("RGB", (width, height), PAPER)
    top = 0
    for block in blocks:
        sheet.paste(block, (0, top))
        top += block.height
    return np.asarray(sheet)


def _strip(film: Film, enlarge: int, threshold: float) -> Image.Image:
    from PIL import Image, ImageDraw

    length, height, width = film.real.shape[:3]
    steps = np.unique(np.linspace(0, length - 1, min(length, COLUMNS)).round().astype(np.int64)).tolist()
    cell_w, cell_h = width * enlarge, height * enlarge
    rows = [HEADER * 2, HEADER * 2 + cell_h + MARGIN]
    bottom = rows[1] + cell_h + 2
    size = (LABELS + len(steps) * (cell_w + MARGIN) + MARGIN, bottom + HEADER + 2 * MARGIN)
    sheet = Image.new("RGB", size, PAPER)
    draw: Any = ImageDraw.Draw(sheet)
    draw.text((MARGIN, 2), film.title, fill=INK)
    for name, top in zip(("real", "imagined"), rows, strict=True):
        draw.text((MARGIN, top + cell_h // 2 - 6), name, fill=INK)
    draw.text((MARGIN, bottom), "p(success)", fill=INK)
    for column, step in enumerate(steps):
        left = LABELS + column * (cell_w + MARGIN)
        draw.text((left + cell_w // 2 - 4, HEADER), str(step), fill=INK)
        for frames, top in zip((film.real, film.imagined), rows, strict=True):
            sheet.paste(Image.fromarray(enlarged(frames[step], enlarge)), (left, top))
        probability = float(film.probabilities[step])
        colour = SUCCESS if probability >= threshold else INK
        draw.text((left + cell_w // 2 - 12, bottom), f"{probability:.2f}", fill=colour)
    return sheet


def enlarged(frame: NDArray[np.uint8], times: int) -> NDArray[np.uint8]:
    """``[H, W, 3]`` to ``[times H, times W, 3]`` by repeating pixels."""
    return frame.repeat(times, axis=0).repeat(times, axis=1)


def film_video(films: Sequence[Film], path: Path, *, enlarge: int = 8, fps: int = 4) -> None:
    """Write an mp4 with the real frame above the imagined one; films follow each other with a short still between."""
    import imageio.v2 as imageio

    gap = np.full((2 * enlarge, films[0].real.shape[2] * enlarge, 3), 255, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Video codecs want even sizes; an even enlargement gives them.
    writer: Any = imageio.get_writer(path, fps=fps, codec="libx264", macro_block_size=2)
    with writer:
        for film in films:
            pairs = [
                np.vstack([enlarged(real, enlarge), gap, enlarged(imagined, enlarge)])
                for real, imagined in zip(film.real, film.imagined, strict=True)
            ]
            for picture in [*pairs, *pairs[-1:] * fps]:
                writer.append_data(picture)
