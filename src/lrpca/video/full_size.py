"""Backgrounds at full size where the solution is smaller."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lrpca.kernels.threads import Threads
from lrpca.video.coefficients import fit_panels
from lrpca.video.resolution import enlarge, reduce_frame
from lrpca.video.sample_buffer import SampleBank
from lrpca.video.scene import Scene

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Full-size frames that the full-size background is fitted to.
_SAMPLES = 24
# The fit is renewed with the scene, or when so many samples are new.
_NEW_SAMPLES = 6


class FullSize:
    """The background at the resolution of the frames, fitted under the lights of the smaller solution.

    Its details come from full-size samples, everything coarser than a square from the solution: so what the solution
    knows (a visitor who stayed is no background) holds here too.

    Parameters
    ----------
    height, width, channels, factor : int
        Of the frames, and the side of the squares that were averaged.
    """

    def __init__(self, height: int, width: int, channels: int, factor: int) -> None:
        self._shape = (height, width, channels)
        self._factor = factor
        self._bank = SampleBank(height * width * channels, most=_SAMPLES, followed=False)
        self._panels: Floats | None = None
        self._scene: Scene | None = None
        self._new = 0

    def take_window(self, frames: Bytes, first: int, scene: Scene, threads: Threads) -> None:
        """Take samples of a window (n, N) and fit the background to them."""
        if self._factor == 1:
            return
        self._new += self._bank.add_window(frames, first)
        if self._scene is not scene or self._new >= _NEW_SAMPLES:
            self._new = 0
            samples, _ = self._bank.filled
            height, width, channels = self._shape
            reduced = np.stack(
                [reduce_frame(s.reshape(height, width, channels), self._factor).reshape(-1) for s in samples]
            )
            self._scene = scene
            self._panels = fit_panels(samples, scene.lights(reduced), None, threads)

    def background(self, light: Floats, scene: Scene) -> Bytes:
        """Return the background under a light (height, width[, 3])."""
        small = scene.background(light)
        if self._panels is None:
            return small
        height, width, channels = self._shape
        sharp = (light @ self._panels).reshape(height, width, channels)
        coarse = reduce_frame(np.clip(np.rint(sharp), 0, 255).astype(np.uint8), self._factor)
        missing = small.reshape(coarse.shape).astype(np.int16) - coarse
        sharp += np.asarray(enlarge(missing, self._factor, height, width), np.int16)
        picture = np.clip(np.rint(sharp), 0, 255).astype(np.uint8)
        return np.asarray(picture if channels > 1 else picture[:, :, 0], np.uint8)
