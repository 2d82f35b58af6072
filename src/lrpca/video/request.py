"""The settings of `separate` and `Separator`, checked."""

from __future__ import annotations

import math
import numbers
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.solvers.options import is_integer, is_real
from lrpca.video.learning import SceneLearner
from lrpca.video.reading import open_frames
from lrpca.video.resolution import Resolution
from lrpca.video.sample_buffer import MOST_SAMPLES

MOST_COMPONENTS = 10
# Frames of more pixels are averaged over squares before they are solved.
MOST_PIXELS = 480_000


@dataclass(frozen=True)
class Request:
    """Settings of `separate` and `Separator`. Wrong ones raise ValueError, those that depend on the frames later."""

    rank: int = 2
    sensitivity: float = 1.0
    clean: bool = True
    downscale: int | None = None  # side of the squares that are averaged; None: as the size of the frames demands
    roi: Any = None
    ignore: Any = None
    window: int | None = None  # frames; None: as many as fit into memory

    def __post_init__(self) -> None:
        if not is_integer(self.rank) or not 1 <= self.rank <= MOST_COMPONENTS:
            raise ValueError(
                f"rank={self.rank!r} is not a whole number from 1 to {MOST_COMPONENTS}; 2 suits most scenes"
            )
        if not is_real(self.sensitivity) or not 0.1 <= self.sensitivity <= 10:
            raise ValueError(
                f"sensitivity={self.sensitivity!r} is not a number from 0.1 to 10; 1 is the default, more marks more"
            )
        if self.downscale is not None and (not is_integer(self.downscale) or self.downscale < 1):
            raise ValueError(f"downscale={self.downscale!r} is not a whole number from 1; 2 halves width and height")
        if self.window is not None and (not is_integer(self.window) or self.window < 2):
            raise ValueError(
                f"window={self.window!r} is not a whole number of frames from 2; leave it out to fit the memory"
            )

    def begin(
        self, height: int, width: int, channels: int, *, most_samples: int = MOST_SAMPLES
    ) -> tuple[Resolution, NDArray[np.bool_] | None, SceneLearner]:
        """Return the resolution of the solution, where objects are marked, and the learner, for frames of this size."""
        if self.downscale is not None and self.downscale > min(height, width):
            raise ValueError(
                f"downscale={self.downscale} leaves nothing of frames of {width}x{height}; use a smaller one"
            )
        smallest = max(1, math.ceil(math.sqrt(height * width / MOST_PIXELS)))
        resolution = Resolution(height, width, self.downscale or smallest)
        region = self.region(height, width)
        learner = SceneLearner(
            (*resolution.solved_size, channels),
            rank=self.rank,
            sensitivity=self.sensitivity,
            region=resolution.reduce_region(region),
            most_samples=most_samples,
        )
        return resolution, region, learner

    def region(self, height: int, width: int) -> NDArray[np.bool_] | None:  # (height, width)
        """Return where objects are marked, or None for everywhere."""
        if self.roi is None and self.ignore is None:
            return None
        region = np.ones((height, width), bool)
        if self.roi is not None:
            region &= _region("roi", self.roi, height, width)
        if self.ignore is not None:
            region &= ~_region("ignore", self.ignore, height, width)
        if not region.any():
            raise ValueError("roi and ignore leave no pixel; make roi larger or ignore smaller")
        return region


def check_learning_rate(rate: Any) -> float | None:
    """Return the learning rate of a live frame; None and negative numbers are automatic, as in OpenCV."""
    if rate is None:
        return None
    if not is_real(rate) or not math.isfinite(rate) or rate > 1:
        raise ValueError(f"learning_rate={rate!r} is not a number from 0 to 1; 0 freezes, None is automatic")
    return None if rate < 0 else float(rate)


def _region(name: str, region: Any, height: int, width: int) -> NDArray[np.bool_]:
    """Return a region given as a box, an array, or the path of a picture (its bright pixels)."""
    if isinstance(region, str | os.PathLike):
        mask = _read_mask(name, Path(region))
    elif isinstance(region, tuple | list) and len(region) == 4 and all(isinstance(k, numbers.Integral) for k in region):
        left, top, right, bottom = (int(k) for k in region)
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            raise ValueError(
                f"{name}={tuple(region)} is no box (left, top, right, bottom) in frames of {width}x{height}; "
                f"use 0 <= left < right <= {width} and 0 <= top < bottom <= {height}"
            )
        mask = np.zeros((height, width), bool)
        mask[top:bottom, left:right] = True
    else:
        try:
            mask = np.asarray(region)
        except ValueError as error:
            raise ValueError(
                f"{name} is no array of rows of one length ({error}); pass a box, an array or a path"
            ) from error
        if mask.dtype.kind not in "biu" and not (mask.dtype.kind == "f" and np.isfinite(mask).all()):
            raise ValueError(f"{name} is no mask of numbers without NaN; pass a box, an array or the path of a picture")
        mask = mask != 0
    if mask.shape != (height, width):
        raise ValueError(
            f"{name} has the shape {mask.shape}, not that of the frames {(height, width)}; "
            "pass a box, an array or a picture of that size"
        )
    return np.asarray(mask, bool)


def _read_mask(name: str, path: Path) -> NDArray[np.bool_]:
    """Return where a picture is bright."""
    try:
        with open_frames(path, grey=True) as reader:
            picture = next(iter(reader))
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}={str(path)!r} cannot be read as a picture ({error}); pass another") from error
    bright: NDArray[np.bool_] = picture.reshape(picture.shape[:2]) > 127
    return bright
