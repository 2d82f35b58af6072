"""Between the resolution of the frames and that of the solution: averages down, repeated pixels and masks up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lrpca.kernels.threads import Threads
from lrpca.video.coefficients import fit_basis
from lrpca.video.sample_buffer import SampleBuffer
from lrpca.video.scene import Bytes, Floats, Scene

# Full-size frames that the full-size background is fitted to.
_SAMPLES = 24
# It is fitted again with the scene, or when so many samples are new.
_NEW_SAMPLES = 6


@dataclass(frozen=True)
class Resolution:
    """Size of the frames, and the side of the squares that are averaged for the solution."""

    height: int
    width: int
    factor: int

    @property
    def solved_size(self) -> tuple[int, int]:
        """Height and width of the solution; an incomplete square at the edge counts."""
        return -(-self.height // self.factor), -(-self.width // self.factor)

    def reduce(self, frame: Bytes) -> Bytes:  # frame (height, width[, channels])
        """Return the frame averaged over squares; an incomplete one averages the pixels it has."""
        if self.factor == 1:
            return frame
        from lrpca.kernels.scene import average_squares

        picture = frame.reshape(*frame.shape[:2], -1)
        out = np.empty((*self.solved_size, picture.shape[2]), np.uint8)
        average_squares(np.ascontiguousarray(picture), self.factor, out)
        return out.reshape(*out.shape[:2], *frame.shape[2:])

    def reduce_region(self, region: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        """Return the squares that hold some of the region; None stands for everything."""
        return None if region is None else np.asarray(self.reduce(region.astype(np.uint8) * 255) > 0)

    def enlarge(self, picture: NDArray[np.generic]) -> NDArray[np.generic]:  # picture (h, w[, channels])
        """Return the picture with every pixel repeated in both directions, cut to size."""
        if self.factor == 1:
            return picture
        large = picture.repeat(self.factor, axis=0).repeat(self.factor, axis=1)
        return np.ascontiguousarray(large[: self.height, : self.width])

    def enlarge_mask(self, mask: Bytes, region: NDArray[np.bool_] | None) -> Bytes:
        """Return the mask at full size inside the region, its steps smoothed by a vote."""
        from lrpca.kernels.binary import square_vote

        large = mask
        if self.factor > 1:
            large = np.empty((self.height, self.width), np.uint8)
            square_vote(np.asarray(self.enlarge(mask), np.uint8), self.factor // 2 + 1, 0.5, large)
        return large if region is None else large & region


class FullSize:
    """The background at the resolution of the frames, fitted with the coefficients of the smaller solution.

    Details come from full-size samples, everything coarser than a square from the solution. So what the solution knows
    (a stationary object is no background) also holds here.
    """

    def __init__(self, resolution: Resolution, channels: int) -> None:
        self._resolution = resolution
        self._shape = (resolution.height, resolution.width, channels)
        self._buffer = SampleBuffer(math.prod(self._shape), most=_SAMPLES, followed=False)
        self._basis: Floats | None = None
        self._scene: Scene | None = None
        self._new = 0

    def take_window(self, frames: Bytes, first: int, scene: Scene, threads: Threads) -> None:
        """Take samples of a window (n, N) and fit the background to them."""
        if self._resolution.factor == 1:
            return
        self._new += self._buffer.add_window(frames, first)
        if self._scene is not scene or self._new >= _NEW_SAMPLES:
            self._new = 0
            samples, _ = self._buffer.filled
            reduced = np.stack([self._resolution.reduce(s.reshape(self._shape)).reshape(-1) for s in samples])
            self._scene = scene
            self._basis = fit_basis(samples, scene.coefficients(reduced), None, threads)

    def background(self, coefficients: Floats, scene: Scene) -> Bytes:
        """Return the background for the coefficients of a frame (height, width[, 3])."""
        small = scene.background(coefficients)
        if self._basis is None:
            return small
        sharp = (coefficients @ self._basis).reshape(self._shape)
        coarse = self._resolution.reduce(np.clip(np.rint(sharp), 0, 255).astype(np.uint8))
        missing = small.reshape(coarse.shape).astype(np.int16) - coarse
        sharp += np.asarray(self._resolution.enlarge(missing), np.int16)
        picture = np.clip(np.rint(sharp), 0, 255).astype(np.uint8)
        return np.asarray(picture.reshape(*picture.shape[:2], *small.shape[2:]), np.uint8)
