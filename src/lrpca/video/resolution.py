"""Between the resolution of the frames and that of the solution: averages down, repeated pixels and masks up."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# Frames of more pixels are averaged over squares before they are solved.
MOST_PIXELS = 480_000


def choose_factor(height: int, width: int, asked: int | None) -> int:
    """Return the side of the squares that are averaged: as asked, or the least that leaves `MOST_PIXELS`."""
    if asked is not None:
        return asked
    return max(1, math.ceil(math.sqrt(height * width / MOST_PIXELS)))


def reduced_size(height: int, width: int, factor: int) -> tuple[int, int]:
    """Return height and width after averaging; a cut-off square at the edge counts."""
    return -(-height // factor), -(-width // factor)


def reduce_frame(
    frame: Bytes,  # (height, width[, channels])
    factor: int,
) -> Bytes:
    """Return the frame averaged over squares of `factor` pixels; one cut off at the edge averages what is there."""
    if factor == 1:
        return frame
    from lrpca.kernels.pictures import average_squares

    picture = frame.reshape(*frame.shape[:2], -1)
    height, width = frame.shape[:2]
    out = np.empty((*reduced_size(height, width, factor), picture.shape[2]), np.uint8)
    average_squares(np.ascontiguousarray(picture), factor, out)
    return out.reshape(*out.shape[:2], *frame.shape[2:])


def reduce_region(region: NDArray[np.bool_], factor: int) -> NDArray[np.bool_]:
    """Return the squares that hold some of the region."""
    some: NDArray[np.bool_] = reduce_frame(region.astype(np.uint8) * 255, factor) > 0
    return some


def enlarge(
    picture: NDArray[np.generic],  # (h, w[, channels])
    factor: int,
    height: int,
    width: int,
) -> NDArray[np.generic]:
    """Return the picture with every pixel repeated `factor` times both ways, cut to size."""
    if factor == 1:
        return picture
    return np.ascontiguousarray(picture.repeat(factor, axis=0).repeat(factor, axis=1)[:height, :width])


def enlarge_mask(mask: Bytes, factor: int, height: int, width: int) -> Bytes:
    """Return the mask at full size, its steps smoothed by a vote."""
    from lrpca.kernels.binary import square_vote

    if factor == 1:
        return mask
    large = np.asarray(enlarge(mask, factor, height, width), np.uint8)
    smooth = np.empty_like(large)
    square_vote(large, factor // 2 + 1, 0.5, smooth)
    return smooth
