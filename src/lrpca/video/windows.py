"""A clip taken window by window: each is learnt from, starting from what was learnt before, and then marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.video.full_size import FullSize
from lrpca.video.learning import SceneLearner
from lrpca.video.reading import FrameReader
from lrpca.video.resolution import choose_factor, enlarge_mask, reduce_frame, reduce_region, reduced_size
from lrpca.video.scene import Scene

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Frames in memory at a time: a whole short clip, less where the frames are large and are kept twice.
_WINDOW_BYTES, _LARGE_WINDOW_BYTES = 512 << 20, 160 << 20
_LEAST_WINDOW = 16
# Frames that are marked, written and reported at a time.
_PART = 64


@dataclass(frozen=True)
class Part:
    """Some separated frames in a row.

    Attributes
    ----------
    frames : ndarray (n, height, width[, 3])
    masks : ndarray of 0 and 1 (n, height, width)
    area : list of float
        Share of the pixels looked at that are marked.
    background : callable
        From a number in this part to the background (height, width[, 3]).
    """

    frames: Bytes
    masks: Bytes
    area: list[float]
    background: Callable[[int], Bytes]


class Windows:
    """The windows of a clip; iterating over them gives their parts, and leaves here what was found.

    Parameters
    ----------
    reader : FrameReader
        The clip.
    source : array, path or iterable
        What it was opened from: an array of bytes is read in place.
    rank, sensitivity, clean, downscale, window
        See `lrpca.video.separate`.
    looked_at : ndarray of bool (height, width), optional
        Where objects are looked for.
    keep_scenes : bool
        Whether all scenes are kept, or the last one only.

    Attributes
    ----------
    done : int
        Frames finished.
    area, lights : list of float, list of ndarray (n, r)
        Of the frames so far.
    scenes : list of (int, Scene)
        From which frame on, and what was learnt.
    """

    def __init__(
        self,
        reader: FrameReader,
        source: Any,
        *,
        rank: int,
        sensitivity: float,
        clean: bool,
        downscale: int | None,
        looked_at: NDArray[np.bool_] | None,
        window: int | None,
        keep_scenes: bool,
    ) -> None:
        self.factor = choose_factor(reader.height, reader.width, downscale)
        self.done = 0
        self.area: list[float] = []
        self.lights: list[Floats] = []
        self.scenes: list[tuple[int, Scene]] = []
        self._reader, self._looked_at, self._clean, self._keep_scenes = reader, looked_at, clean, keep_scenes
        self._array = _in_place(source, reader)
        small = reduced_size(reader.height, reader.width, self.factor)
        self._window = window or self._fitting_window(small[0] * small[1])
        self._learner = SceneLearner(
            *small,
            reader.channels,
            rank=rank,
            sensitivity=sensitivity,
            looked_at=None if looked_at is None else reduce_region(looked_at, self.factor),
        )
        self._full_size = FullSize(reader.height, reader.width, reader.channels, self.factor)

    def __iter__(self) -> Iterator[Part]:
        if self._array is not None:
            for first in range(0, len(self._array), self._window):
                yield from self._separate(self._array[first : first + self._window])
            return
        announced = self._reader.n_frames
        size = self._window if announced is None else min(self._window, max(2, announced + 1))
        try:
            block = np.empty((size, *self._reader.shape), np.uint8)
        except MemoryError as error:
            raise ValueError(
                f"window={size} frames do not fit into memory; leave it out, or use a smaller one"
            ) from error
        count, trouble = size, None
        while count == size:
            count, trouble = self._fill(block)
            if count:
                yield from self._separate(block[:count])
            if trouble is not None:
                raise trouble

    def close(self) -> None:
        """End the threads."""
        self._learner.close()

    def _fitting_window(self, solved_pixels: int) -> int:
        pixels = self._reader.height * self._reader.width + (solved_pixels if self.factor > 1 else 0)
        budget = _WINDOW_BYTES if self.factor == 1 else _LARGE_WINDOW_BYTES
        return max(_LEAST_WINDOW, budget // (pixels * self._reader.channels))

    def _fill(self, block: Bytes) -> tuple[int, Exception | None]:
        """Read frames into the block; return how many came, and what ended it: those are separated first."""
        for count in range(len(block)):
            try:
                if not self._reader.read_into(block[count : count + 1]):
                    return count, None
            except Exception as error:
                return count, error
        return len(block), None

    def _separate(self, frames: Bytes) -> Iterator[Part]:
        """Learn from a window and mark its frames."""
        n = len(frames)
        small = frames if self.factor == 1 else np.stack([reduce_frame(frame, self.factor) for frame in frames])
        rows = small.reshape(n, -1)
        self._learner.take_window(rows, self.done)
        scene = self._learner.scene
        assert scene is not None
        if not self.scenes or self.scenes[-1][1] is not scene:
            self.scenes = [*(self.scenes if self._keep_scenes else []), (self.done, scene)]
        self._full_size.take_window(frames.reshape(n, -1), self.done, scene, self._learner.threads)
        for first in range(0, n, _PART):
            yield self._mark(frames[first : first + _PART], rows[first : first + _PART], scene)

    def _mark(self, frames: Bytes, rows: Bytes, scene: Scene) -> Part:
        lights = scene.lights(rows)
        masks = scene.masks(rows, lights, self._learner.threads, clean=self._clean)
        if self.factor > 1:
            size = (self._reader.height, self._reader.width)
            masks = np.stack([enlarge_mask(mask, self.factor, *size) for mask in masks])
        if self._looked_at is not None:
            masks &= self._looked_at
        pixels = masks[0].size if self._looked_at is None else int(self._looked_at.sum())
        area = [float(np.count_nonzero(mask)) / pixels for mask in masks]
        self.area += area
        self.lights.append(lights)
        self.done += len(frames)
        return Part(frames, masks, area, lambda i: self._full_size.background(lights[i], scene))


def _in_place(source: Any, reader: FrameReader) -> Bytes | None:
    """Return the source itself where it is an array of frames as they are needed: its bytes are then read in place."""
    fits = isinstance(source, np.ndarray) and source.dtype == np.uint8 and source.shape[1:] == reader.shape
    return source if fits and source.flags.c_contiguous else None
