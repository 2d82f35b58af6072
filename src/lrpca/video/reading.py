"""Reading a clip frame by frame, wherever it comes from."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from lrpca.video.arrays import open_array, open_iterable
from lrpca.video.codec import Frame
from lrpca.video.sources import FASTEST, SLOWEST, BrokenOffError, Source, open_path

__all__ = ["FrameReader", "open_frames"]


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
        channel is dropped. Floating-point numbers are refused, since nothing says whether white is 1 or 255.
    grey : bool, optional
        Whether frames are to be grey. By default they are where the source has no colour.
    rate : float, optional
        Frames a second, where you know better than the source; the times of the frames follow it.

    Returns
    -------
    FrameReader
        With the first frame decoded already, so that most bad sources are refused here.

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
        return FrameReader(open_path(Path(source), grey), rate)
    if hasattr(source, "shape"):
        return FrameReader(open_array(source, grey), rate)
    if isinstance(source, Iterable) and not isinstance(source, bytes | bytearray | dict):
        return FrameReader(open_iterable(source, grey), rate)
    raise ValueError(f"source={type(source).__name__} is not a clip; use a path, an array or a list of frames")


class FrameReader:
    """A clip that is read once, from its first frame to its last; see `open_frames`.

    Use it in a ``with`` statement. Loop over it, or fill blocks with `read_into`; both go on where the other left off.

    Parameters
    ----------
    source : Source
        What was opened.
    rate : float, optional
        Frames a second, instead of the source's.

    Attributes
    ----------
    name : str
        Name of the file or the folder; ``"frames"`` for arrays.
    height, width, channels : int
        Shape of a frame: (height, width) where channels is 1, (height, width, 3) where it is 3.
    rate : float
        Frames a second, in the mean; 25 where unknown.
    n_frames : int or None
        How many frames the source announces, which may be wrong; None where it does not.
    times : list of float
        Seconds from the first frame to each of those delivered so far.
    problem : str or None
        Why the source broke off before its end, or what of it was left out. The frames delivered are valid.
    """

    def __init__(self, source: Source, rate: float | None = None) -> None:
        self.name = source.name
        self.height = source.height
        self.width = source.width
        self.channels = source.channels
        self.rate = source.rate if rate is None else float(rate)
        self.n_frames = source.n_frames
        self.times: list[float] = []
        self.problem: str | None = None
        self._frames = source.frames
        self._close = source.close
        self._keeps_time = rate is None
        self._closed = False

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
        """Let go of the file; nothing can be read afterwards."""
        self._closed = True
        self._frames = iter(())
        self._close()

    def __enter__(self) -> FrameReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        self._note(time)
        return frame

    def _note(self, time: float | None) -> None:
        """Note the time of a frame; where it is unknown or goes backwards, one step on from the last."""
        index = len(self.times)
        if time is None or not self._keeps_time:
            follows = index / self.rate
        else:
            follows = time
        if index and follows <= self.times[-1]:
            follows = self.times[-1] + 1 / self.rate
        self.times.append(follows)
