"""A clip window by window: the scene is learned from each, starting from the last one; then its frames are marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.video.reading import FrameReader
from lrpca.video.request import Request
from lrpca.video.resolution import FullSize
from lrpca.video.scene import Bytes, Floats, Scene

# Bytes of frames in memory at a time; fewer for large frames, which are kept twice.
_WINDOW_BYTES, _LARGE_WINDOW_BYTES = 512 << 20, 160 << 20
_LEAST_WINDOW = 16
# Frames that are marked, written and reported at a time.
_PART = 64


@dataclass(frozen=True)
class Part:
    """Some consecutive separated frames."""

    frames: Bytes  # (n, height, width[, 3])
    masks: Bytes  # (n, height, width), 0 or 1
    area: list[float]  # share of the region that is marked
    background: Callable[[int], Bytes]  # from a number in this part to the background (height, width[, 3])


class Windows:
    """The windows of a clip; iterating over them gives their parts, and stores here what was found.

    `source` is what the `reader` was opened from: an array of bytes is read in place. With `keep_scenes`, all scenes
    are kept, otherwise only the last one.
    """

    def __init__(self, reader: FrameReader, source: Any, request: Request, *, keep_scenes: bool) -> None:
        size = (reader.height, reader.width, reader.channels)
        self.resolution, self._region, self._learner = request.begin(*size)
        self.done = 0  # finished frames, and for these:
        self.area: list[float] = []
        self.coefficients: list[Floats] = []  # (n, r) each
        self.scenes: list[tuple[int, Scene]] = []  # first frame, and what was learned
        self._reader, self._clean, self._keep_scenes = reader, request.clean, keep_scenes
        self._array = _in_place(source, reader)
        self._window = request.window or self._fitting_window()
        self._full_size = FullSize(self.resolution, reader.channels)

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
        count = size
        while count == size:
            count, failure = self._fill(block)
            if count:
                yield from self._separate(block[:count])
            if failure is not None:
                raise failure

    def close(self) -> None:
        """End the threads."""
        self._learner.threads.close()

    def _fitting_window(self) -> int:
        pixels, budget = self._reader.height * self._reader.width, _WINDOW_BYTES
        if self.resolution.factor > 1:
            pixels, budget = pixels + math.prod(self.resolution.solved_size), _LARGE_WINDOW_BYTES
        return max(_LEAST_WINDOW, budget // (pixels * self._reader.channels))

    def _fill(self, block: Bytes) -> tuple[int, Exception | None]:
        """Fill the block; return the number of frames, which are still separated, and the error that ended it."""
        before = len(self._reader.times)
        try:
            return self._reader.read_into(block), None
        except Exception as error:
            return len(self._reader.times) - before, error

    def _separate(self, frames: Bytes) -> Iterator[Part]:
        """Learn from a window and mark its frames."""
        n = len(frames)
        small = frames if self.resolution.factor == 1 else np.stack([self.resolution.reduce(f) for f in frames])
        rows = small.reshape(n, -1)
        scene = self._learner.take_window(rows, self.done)
        if not self.scenes or self.scenes[-1][1] is not scene:
            self.scenes = [*(self.scenes if self._keep_scenes else []), (self.done, scene)]
        self._full_size.take_window(frames.reshape(n, -1), self.done, scene, self._learner.threads)
        for first in range(0, n, _PART):
            yield self._mark(frames[first : first + _PART], rows[first : first + _PART], scene)

    def _mark(self, frames: Bytes, rows: Bytes, scene: Scene) -> Part:
        coefficients = scene.coefficients(rows)
        masks = scene.masks(rows, coefficients, self._learner.threads, clean=self._clean)
        if self.resolution.factor > 1 or self._region is not None:
            masks = np.stack([self.resolution.enlarge_mask(mask, self._region) for mask in masks])
        pixels = masks[0].size if self._region is None else int(self._region.sum())
        area = [float(np.count_nonzero(mask)) / pixels for mask in masks]
        self.area += area
        self.coefficients.append(coefficients)
        self.done += len(frames)
        return Part(frames, masks, area, lambda i: self._full_size.background(coefficients[i], scene))


def _in_place(source: Any, reader: FrameReader) -> Bytes | None:
    """Return the source itself if it is an array of suitable frames: its bytes are then read in place."""
    fits = isinstance(source, np.ndarray) and source.dtype == np.uint8 and source.shape[1:] == reader.shape
    return source if fits and source.flags.c_contiguous else None
