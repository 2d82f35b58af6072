"""Reading a clip frame by frame, wherever it comes from."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.video.pictures import Frame

RATE = 25.0  # frames a second if the source does not say
SLOWEST, FASTEST = 1e-3, 1e4  # a rate beyond these is an error in the file
# Brightness of red, green and blue (ITU-R BT.601, as in FFmpeg), in 65536ths.
_LUMA = (19595, 38470, 7471)


def open_frames(source: Any, *, grey: bool | None = None, rate: float | None = None) -> FrameReader:
    """Open a clip.

    Parameters
    ----------
    source : str, path-like, array or iterable
        One of:

        - a video file: anything PyAV reads; the first video stream in it;
        - a folder of pictures (bmp, png, jpg, tif, webp, pgm, ppm), in the order of the numbers in their names:
          ``frame2`` comes before ``frame10``. Other files are ignored;
        - a picture: a clip of one frame;
        - an array (n, height, width) or (n, height, width, 1, 3 or 4), read frame by frame, so that a memory map
          or an HDF5 dataset will do;
        - a list or any other iterable of frames (height, width) or (height, width, 1, 3 or 4).

        Arrays hold uint8, integers from 0 to 255 or booleans (False is 0, True is 255), in RGB order; a fourth
        channel is dropped. Floating-point numbers raise ValueError, because white may be 1 or 255.
    grey : bool, optional
        Whether to return grey frames. By default, frames are grey if the source has no colour.
    rate : float, optional
        Frames a second, instead of those of the source; the times of the frames follow it.

    Returns
    -------
    FrameReader
        The first frame is decoded already, so most unreadable sources raise an error here.

    Raises
    ------
    OSError
        The file does not exist or may not be read.
    ValueError
        It is damaged, holds no video stream or no frames, or the array is of another shape or dtype.
    ImportError
        A file is to be read without PyAV (``pip install lrpca[video]``).

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.video.reading import open_frames
    >>> with open_frames(np.zeros((5, 4, 6), np.uint8)) as clip:
    ...     block = np.empty((3, clip.height, clip.width), np.uint8)
    ...     clip.read_into(block), clip.read_into(block), clip.times
    (3, 2, [0.0, 0.04, 0.08, 0.12, 0.16])
    """
    if grey not in (None, False, True):
        raise ValueError(f"grey={grey!r} is not a yes or no; use True, False or None")
    if rate is not None and not (math.isfinite(rate) and SLOWEST <= rate <= FASTEST):
        raise ValueError(f"rate={rate} is not between {SLOWEST:g} and {FASTEST:g} frames a second; use 25, or None")
    if isinstance(source, str | os.PathLike):
        from lrpca.video.sources import open_path

        reader = open_path(Path(source), grey)
    elif hasattr(source, "shape"):
        reader = _open_frames(*_frames_of_array(source), grey)
    elif isinstance(source, Iterable) and not isinstance(source, bytes | bytearray | dict):
        reader = _open_frames(iter(source), len(source) if isinstance(source, Sized) else None, grey)
    else:
        raise ValueError(f"source={type(source).__name__} is not a clip; use a path, an array or a list of frames")
    if rate is not None:
        reader.rate, reader._keeps_time = float(rate), False
    return reader


class BrokenOffError(Exception):
    """A source ends too early; the frames before are valid."""


@dataclass(eq=False, repr=False)
class FrameReader:
    """A clip that is read once, from its first frame to its last; see `open_frames`.

    Use it in a ``with`` statement. Loop over it, or fill blocks with `read_into`; both continue at the same place.

    Attributes
    ----------
    name : str
        Name of the file or the folder; ``"frames"`` for arrays.
    height, width, channels : int
        Shape of a frame: (height, width) where channels is 1, (height, width, 3) where it is 3.
    rate : float
        Mean number of frames a second; 25 if unknown.
    n_frames : int or None
        Number of frames that the source announces, which may be wrong; None if it announces none.
    times : list of float
        Seconds from the first frame to each of those delivered so far.
    problem : str or None
        Why the source ended too early, or what was left out. The delivered frames are valid.
    """

    name: str
    height: int
    width: int
    channels: int
    rate: float
    n_frames: int | None
    _frames: Iterator[tuple[float | None, Frame]]  # time in seconds, if known, and frame, valid until the next one
    _close: Callable[[], object] | None = None
    _keeps_time: bool = field(default=True, init=False)
    _closed: bool = field(default=False, init=False)
    times: list[float] = field(default_factory=list, init=False)
    problem: str | None = field(default=None, init=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a frame."""
        return (self.height, self.width) if self.channels == 1 else (self.height, self.width, 3)

    def __iter__(self) -> Iterator[Frame]:
        while (frame := self._next()) is not None:
            yield np.array(frame, order="C")

    def read_into(self, block: Frame) -> int:  # (m, height, width[, 3])
        """Fill a block with the next frames.

        Parameters
        ----------
        block : ndarray of uint8, (m, height, width) or (m, height, width, 3)
            Filled from the front.

        Returns
        -------
        int
            How many frames came; fewer than m at the end of the clip.
        """
        if block.dtype != np.uint8 or block.shape[1:] != self.shape:
            raise ValueError(f"block has shape {block.shape} and dtype {block.dtype}; use (m, {self.shape}) and uint8")
        for index in range(len(block)):
            frame = self._next()
            if frame is None:
                return index
            block[index] = frame
        return len(block)

    def close(self) -> None:
        """Close the file; nothing can be read afterwards."""
        self._closed = True
        self._frames = iter(())
        if self._close is not None:
            self._close()

    def __enter__(self) -> FrameReader:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def _next(self) -> Frame | None:
        """Return the next frame, valid until the one after it, or None at the end."""
        if self._closed:
            raise ValueError("clip is closed; open it again to read it")
        try:
            time, frame = next(self._frames)
        except StopIteration:
            return None
        except BrokenOffError as error:
            self.problem = str(error)
            return None
        if time is None or not self._keeps_time:
            time = len(self.times) / self.rate
        if self.times and time <= self.times[-1]:
            time = self.times[-1] + 1 / self.rate  # a time that goes backwards is wrong
        self.times.append(time)
        return frame


def _frames_of_array(source: Any) -> tuple[Iterator[Any], int]:
    """Return the frames of an array, a memory map, an HDF5 dataset or a tensor, and their number."""
    shape = tuple(source.shape)
    if len(shape) == 3 and shape[2] in (3, 4):
        raise ValueError(f"source has shape {shape}, which is one frame in colour; use source[None] for a clip of it")
    if len(shape) not in (3, 4):
        raise ValueError(f"source has shape {shape}; use (frames, height, width) or (frames, height, width, 3)")
    return (source[index] for index in range(shape[0])), shape[0]


def _open_frames(frames: Iterator[Any], n_frames: int | None, grey: bool | None) -> FrameReader:
    """Check the first frame, and convert each frame when it is read."""
    try:
        first = next(frames)
    except StopIteration:
        raise ValueError("source has no frames; give at least one") from None
    start = _check_frame(first, 0)
    channels = 1 if (start.ndim == 2 if grey is None else grey) else 3

    def convert() -> Iterator[tuple[float | None, Frame]]:
        for index, frame in enumerate(chain([first], frames)):
            picture = _check_frame(frame, index)
            if picture.shape != start.shape:
                raise ValueError(
                    f"source has frames of several shapes: frame {index} has {picture.shape} where the first has "
                    f"{start.shape}; give frames of one shape"
                )
            yield None, _with_channels(_to_uint8(picture, index), channels)

    _to_uint8(start, 0)  # a wrong dtype raises an error at once
    return FrameReader("frames", start.shape[0], start.shape[1], channels, RATE, n_frames, convert())


def _check_frame(frame: Any, index: int) -> NDArray[Any]:
    """Return a frame as an array (height, width) or (height, width, 3), without transparency."""
    picture = np.asarray(frame)
    if picture.ndim not in (2, 3) or picture.shape[2:] not in ((), (1,), (3,), (4,)) or 0 in picture.shape:
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
        found = f"values from {low} to {high} in frame {index}"
        raise ValueError(f"source has {found}; scale it to 0 ... 255 and convert it with .astype(numpy.uint8)")
    return picture.astype(np.uint8)


def _with_channels(picture: Frame, channels: int) -> Frame:
    """Make a frame grey or coloured."""
    if picture.ndim == (2 if channels == 1 else 3):
        return picture
    if channels == 3:
        return np.broadcast_to(picture[:, :, None], (*picture.shape, 3))
    bright = sum(np.multiply(picture[:, :, k], _LUMA[k], dtype=np.uint32) for k in range(3))
    return np.asarray((bright + 32768) >> 16, np.uint8)
