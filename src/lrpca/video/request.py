"""What `separate` and `Separator` are asked for, checked."""

from __future__ import annotations

import math
import numbers
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_COMPONENTS = 10


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_rank(rank: Any) -> int:
    """Return the rank; refuse what is none."""
    if not _is_whole(rank) or not 1 <= rank <= MOST_COMPONENTS:
        raise ValueError(f"rank={rank!r} is not a whole number from 1 to {MOST_COMPONENTS}; 2 suits most scenes")
    return int(rank)


def check_sensitivity(sensitivity: Any) -> float:
    """Return the sensitivity; refuse what is none."""
    if not _is_real(sensitivity) or not 0.1 <= sensitivity <= 10:
        raise ValueError(
            f"sensitivity={sensitivity!r} is not a number from 0.1 to 10; 1 is the default, more marks more"
        )
    return float(sensitivity)


def check_downscale(downscale: Any, height: int, width: int) -> int | None:
    """Return the side of averaged squares; None leaves the choice."""
    if downscale is None:
        return None
    if not _is_whole(downscale) or downscale < 1:
        raise ValueError(f"downscale={downscale!r} is not a whole number from 1; 2 halves width and height")
    if downscale > min(height, width):
        raise ValueError(f"downscale={downscale} leaves nothing of frames of {width}x{height}; use a smaller one")
    return int(downscale)


def check_window(window: Any) -> int | None:
    """Return the frames of a window; None leaves the choice."""
    if window is None:
        return None
    if not _is_whole(window) or window < 2:
        raise ValueError(f"window={window!r} is not a whole number of frames from 2; leave it out to fit the memory")
    return int(window)


def check_learning_rate(rate: Any) -> float | None:
    """Return the learning rate of a live frame; None and negative numbers are automatic, as in OpenCV."""
    if rate is None:
        return None
    if not _is_real(rate) or not math.isfinite(rate) or rate > 1:
        raise ValueError(f"learning_rate={rate!r} is not a number from 0 to 1; 0 freezes, None is automatic")
    return None if rate < 0 else float(rate)


def read_regions(
    roi: Any,
    ignore: Any,
    height: int,
    width: int,
) -> NDArray[np.bool_] | None:  # (height, width)
    """Return where objects are looked for, or None for everywhere."""
    if roi is None and ignore is None:
        return None
    looked_at = np.ones((height, width), bool)
    if roi is not None:
        looked_at &= _region("roi", roi, height, width)
    if ignore is not None:
        looked_at &= ~_region("ignore", ignore, height, width)
    if not looked_at.any():
        raise ValueError("roi and ignore leave no pixel to look at; make the one larger or the other smaller")
    return looked_at


def _region(name: str, region: Any, height: int, width: int) -> NDArray[np.bool_]:
    """Return a region given as a box, an array, or the path of a picture (what is bright)."""
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
    from lrpca.video.reading import open_frames

    try:
        with open_frames(path, grey=True) as reader:
            picture = next(iter(reader))
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}={str(path)!r} cannot be read as a picture ({error}); pass another") from error
    bright: NDArray[np.bool_] = picture.reshape(picture.shape[:2]) > 127
    return bright
