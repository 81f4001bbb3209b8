"""Frames to video files and back, through the ffmpeg that imageio-ffmpeg brings."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from configs.errors import DataError, ResourceError

Frames = NDArray[np.uint8]

CODEC, PIXELS = "h264", "yuv420p"
QUALITY = ["-crf", "12", "-preset", "medium"]
"""Of 0 (exact) to 51: blocks of a few pixels must survive, and the files are small anyway."""
SEEKING = ["-g", "2", "-bf", "0"]
"""A key frame every other frame, as LeRobot's own recorder does: trainers read single frames in random order."""


class VideoWriter:
    """An mp4 of even height and width, ``fps`` frames a second."""

    def __init__(self, path: Path, size: tuple[int, int], fps: int) -> None:
        """``size`` is (height, width)."""
        import imageio_ffmpeg

        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = size
        self._path, self._written = path, 0
        self._pipe: Generator[None, Frames | bytes | None, None] = imageio_ffmpeg.write_frames(
            path, (width, height), fps=fps, codec="libx264", pix_fmt_in="rgb24", pix_fmt_out=PIXELS, quality=None,
            macro_block_size=2, output_params=[*QUALITY, *SEEKING], ffmpeg_log_level="error",
        )  # fmt: skip
        self._pipe.send(None)

    def write(self, frames: Frames) -> None:
        """Append ``[n, H, W, 3]``."""
        for frame in frames:
            self._pipe.send(np.ascontiguousarray(frame))
        self._written += len(frames)

    def close(self) -> None:
        """Finish the file. ResourceError when not every frame is in it: ffmpeg tells nobody of a full disk."""
        import imageio_ffmpeg

        self.abort()
        try:
            there = imageio_ffmpeg.count_frames_and_secs(self._path)[0]
        except RuntimeError:
            there = 0
        if there != self._written:
            raise ResourceError(
                f"{there} of {self._written} frames were written", where=str(self._path),
                remedy="free space there, or choose another folder",
            )  # fmt: skip

    def abort(self) -> None:
        """End the encoder, whatever it has written."""
        self._pipe.close()


class VideoReader:
    """Frames of a video file in order, one decoder for all of them."""

    def __init__(self, path: Path) -> None:
        """DataError when the file is missing or no video."""
        import imageio_ffmpeg

        self._path = path
        if not path.is_file():
            raise _torn(path, "is missing")
        # Each frame as it is stored: else ffmpeg repeats and drops some to keep a clock.
        self._pipe: Iterator[Any] = imageio_ffmpeg.read_frames(
            path, pix_fmt="rgb24", output_params=["-fps_mode", "passthrough"]
        )
        try:
            width, height = next(self._pipe)["size"]
        except (OSError, StopIteration) as error:
            raise _torn(path, "is no video that ffmpeg can read") from error
        self._shape = (int(height), int(width), 3)
        self._next = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def position(self) -> int:
        """Index of the frame that comes next."""
        return self._next

    def read(self, first: int, count: int) -> Iterator[Frames]:
        """Frames ``first`` to ``first + count - 1``, each ``[H, W, 3]``; ``first`` is not before ``position``."""
        assert first >= self._next, f"frame {first} is behind {self._next}"
        for _ in range(first - self._next):
            self._frame()
        for _ in range(count):
            yield self._frame()

    def _frame(self) -> Frames:
        try:
            data = next(self._pipe)
        except (StopIteration, RuntimeError) as error:
            raise _torn(self._path, f"ends after {self._next} frames") from error
        self._next += 1
        return np.frombuffer(data, np.uint8).reshape(self._shape)

    def close(self) -> None:
        """End the decoder."""
        close = getattr(self._pipe, "close", None)
        if close is not None:
            close()


def _torn(path: Path, what: str) -> DataError:
    return DataError(
        f"{path.name} {what}", where=str(path.parent), remedy="copy or download the dataset again"
    )
