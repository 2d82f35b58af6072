"""Grey clips of the paper's sizes, cut, scaled and looped from real footage, one frame per row, uint8."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lrpca

Frames = NDArray[np.uint8]


@dataclass(frozen=True)
class Clip:
    """A video of the paper's table, and what stands in for it."""

    name: str  # as the paper calls it
    width: int
    height: int
    n_frames: int
    footage: str  # file or folder in ``LRPCA_DATA/video`` that it is made of, where no other is given

    def __str__(self) -> str:
        return f"{self.width}x{self.height}x{self.n_frames}"

    @property
    def size(self) -> str:
        """Width, height and number of frames, in words."""
        return f"{self.width} x {self.height}, {self.n_frames} frames"


def find_footage(clips: Sequence[Clip], videos: Sequence[str]) -> list[Path]:
    """Return the file or folder of every clip: the given ones in turn, else those of ``LRPCA_DATA/video``."""
    if videos:
        paths = [Path(videos[k % len(videos)]) for k in range(len(clips))]
        for path in paths:
            if not path.exists():
                raise ValueError(f"video={str(path)!r} does not exist; give a video file, or a folder of pictures")
        return paths
    folder = os.environ.get("LRPCA_DATA")
    paths = [Path(folder or "", "video", clip.footage) for clip in clips]
    for path in paths:
        if not folder or not path.exists():
            where = f"LRPCA_DATA={folder!r} has no {path.relative_to(folder)}" if folder else "LRPCA_DATA is not set"
            raise ValueError(f"{where}; set it to the folder that has video/, or give footage with --video FILE")
    return paths


def load_clip(
    path: Path,
    clip: Clip,
) -> Frames:  # (n_frames, height * width)
    """Return a clip of the asked size as a matrix, one frame per row.

    Frames are cropped to the aspect ratio around their middle and scaled by averaging. What is longer than needed is
    cut; what is shorter is played forward and backward in turn, so that there is no jump.
    """
    frames = np.empty((clip.n_frames, clip.height, clip.width), np.uint8)
    with lrpca.video.open_frames(path, grey=True) as reader:
        count = 0
        for frame in _scaled(reader, clip):
            frames[count] = frame
            count += 1
            if count == clip.n_frames:
                break
    for k in range(count, clip.n_frames):
        frames[k] = frames[there_and_back(k, count)]
    return frames.reshape(clip.n_frames, -1)


def there_and_back(k: int, count: int) -> int:
    """Return which of `count` frames is shown as the k-th when they are played forward and backward in turn.

    Examples
    --------
    >>> [there_and_back(k, 4) for k in range(10)]
    [0, 1, 2, 3, 2, 1, 0, 1, 2, 3]
    """
    period = max(1, 2 * count - 2)
    return min(k % period, period - k % period)


def _scaled(reader: Any, clip: Clip) -> Iterator[Frames]:
    av = lrpca.video.pictures.require_av()
    rows, columns = _middle(reader.height, reader.width, clip)
    for frame in reader:
        cut = np.ascontiguousarray(frame[rows, columns])
        if cut.shape == (clip.height, clip.width):
            yield cut
            continue
        picture = av.VideoFrame.from_ndarray(cut, format="gray")
        yield picture.reformat(width=clip.width, height=clip.height, interpolation="AREA").to_ndarray()


def _middle(height: int, width: int, clip: Clip) -> tuple[slice, slice]:
    """Return the largest part around the middle of a frame that has the shape of the clip."""
    rows = min(height, max(1, width * clip.height // clip.width))
    columns = min(width, max(1, height * clip.width // clip.height))
    top, left = (height - rows) // 2, (width - columns) // 2
    return slice(top, top + rows), slice(left, left + columns)
