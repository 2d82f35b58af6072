"""Frames that are in memory already, or come from a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.video.codec import Frame
from lrpca.video.sources import RATE, Source, do_nothing

# How bright red, green and blue are (ITU-R BT.601, as in FFmpeg), in 65536ths.
LUMA = (19595, 38470, 7471)


def open_array(source: Any, grey: bool | None) -> Source:
    """Read the frames of an array one after another.

    Parameters
    ----------
    source : array, (n, height, width) or (n, height, width, 1, 3 or 4)
        Anything with a shape whose first index gives a frame: an array, a memory map, an HDF5 dataset, a tensor.
    grey : bool or None
        Whether frames are to be grey; None: where there is no axis of channels, or one channel.

    Returns
    -------
    Source
    """
    shape = tuple(source.shape)
    if len(shape) == 3 and shape[2] in (3, 4):
        raise ValueError(f"source has shape {shape}, which is one frame in colour; use source[None] for a clip of it")
    if len(shape) not in (3, 4):
        raise ValueError(f"source has shape {shape}; use (frames, height, width) or (frames, height, width, 3)")
    return _open((source[index] for index in range(shape[0])), shape[0], grey)


def open_iterable(source: Iterable[Any], grey: bool | None) -> Source:
    """Read the frames that a list or a generator gives.

    Parameters
    ----------
    source : iterable of array, (height, width) or (height, width, 1, 3 or 4)
        The frames, all of one shape.
    grey : bool or None
        Whether frames are to be grey; None: as the first one is.

    Returns
    -------
    Source
    """
    return _open(iter(source), len(source) if isinstance(source, Sized) else None, grey)


def _open(frames: Iterator[Any], n_frames: int | None, grey: bool | None) -> Source:
    """Look at the first frame, and convert each as it is asked for."""
    nothing = object()
    first = next(frames, nothing)
    if first is nothing:
        raise ValueError("source has no frames; give at least one")
    start = _check(first, 0)
    channels = 1 if (start.ndim == 2 if grey is None else grey) else 3

    def convert() -> Iterator[tuple[float | None, Frame]]:
        for index, frame in enumerate(chain([first], frames)):
            picture = _check(frame, index)
            if picture.shape != start.shape:
                raise ValueError(
                    f"source has frames of several shapes: frame {index} has {picture.shape} where the first has "
                    f"{start.shape}; give frames of one shape"
                )
            yield None, _with_channels(_to_uint8(picture, index), channels)

    _to_uint8(start, 0)  # a wrong dtype is refused at once
    return Source("frames", start.shape[0], start.shape[1], channels, RATE, n_frames, convert(), do_nothing)


def _check(frame: Any, index: int) -> NDArray[Any]:
    """Return a frame as an array (height, width) or (height, width, 3), without transparency."""
    picture = np.asarray(frame)
    if picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[2] not in (1, 3, 4)) or 0 in picture.shape:
        found = f"shape {picture.shape}" if picture.dtype.kind in "biuf" else f"type {type(frame).__name__}"
        raise ValueError(f"source has a frame {index} of {found}; use (height, width) or (height, width, 3)")
    if picture.ndim == 2:
        return picture
    return picture[:, :, 0] if picture.shape[2] == 1 else picture[:, :, :3]


def _to_uint8(picture: NDArray[Any], index: int) -> Frame:
    """Return a frame as uint8: False and True as black and white, integers as they are, nothing else."""
    if picture.dtype == np.uint8:
        return picture
    if picture.dtype == np.bool_:
        return np.where(picture, np.uint8(255), np.uint8(0))
    if picture.dtype.kind not in "iu":
        raise ValueError(
            f"source has dtype {picture.dtype}; scale it to 0 ... 255 and convert it with .astype(numpy.uint8)"
        )
    low, high = int(picture.min()), int(picture.max())
    if low < 0 or high > 255:
        raise ValueError(
            f"source has values from {low} to {high} in frame {index}; scale it to 0 ... 255 and convert it with "
            ".astype(numpy.uint8)"
        )
    return picture.astype(np.uint8)


def _with_channels(picture: Frame, channels: int) -> Frame:
    """Make a frame grey or coloured."""
    if channels == 3:
        return picture if picture.ndim == 3 else np.broadcast_to(picture[:, :, None], (*picture.shape, 3))
    if picture.ndim == 2:
        return picture
    bright = sum(np.multiply(picture[:, :, k], LUMA[k], dtype=np.uint32) for k in range(3))
    return np.asarray((bright + 32768) >> 16, np.uint8)
