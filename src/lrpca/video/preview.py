"""One small video that shows a clip and its parts side by side: original | background / foreground | mask.

Being one video, the four views cannot get out of step. It is encoded while the frames go by and stays within a fixed
number of bytes however long the clip is: of a long clip only every ``step``-th frame is kept.
"""

from __future__ import annotations

import math
import os
import secrets
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.video.moments import BusiestMoments, Moment
from lrpca.video.tiles import BUFFER, Encoder, Tiler, decode, tile_size

__all__ = ["Moment", "Preview", "PreviewContents"]

MAX_BYTES = 13_000_000
MAX_FRAMES = 3000
# As long as the announced length is not borne out, so many frames are kept: a wrong one then costs little.
EARLY_FRAMES = 600
# A tile fits into this box, or the smaller one where there are too many frames for the bytes.
LARGE_TILE, SMALL_TILE = (480, 640), (360, 480)
LARGE_UP_TO = 1200
MIN_RATE, MAX_RATE = 0.01, 1000.0
# Fewer frames per second look like a slide show.
SMOOTH_RATE = 8
QUALITY, WORST_QUALITY = 26.0, 44.0  # x264's rate factor; smaller is better


@dataclass(frozen=True)
class PreviewContents:
    """A finished preview.

    Attributes
    ----------
    video : bytes
        An MP4 file, H.264, at most 13 MB; empty where there was no frame.
    rate : float
        Its frames per second when played at its own speed.
    height, width : int
        Of one of the four tiles.
    step : int
        The preview holds every `step`-th frame of the clip, from the first.
    frame_indices : list of int
        Which frames these are.
    moments : list of Moment
        The busiest frames, in the order of time.
    """

    video: bytes
    rate: float
    height: int
    width: int
    step: int
    frame_indices: list[int]
    moments: list[Moment] = field(default_factory=list)


class Preview:
    """A preview in the making. Needs the extra ``video``.

    Parameters
    ----------
    height, width : int
        Of the frames.
    channels : int
        1 for grey, 3 for colour.
    rate : float
        Frames per second of the clip.
    n_frames : int or None
        Expected length of the clip; it may turn out wrong.
    folder : path-like
        Where a temporary file may live until `finish` or `discard`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from lrpca.video.preview import Preview
    >>> preview = Preview(60, 80, 1, 25.0, 3, tempfile.mkdtemp())
    >>> grey = np.full((60, 80), 99, np.uint8)
    >>> for index in range(3):
    ...     preview.add(index, grey, grey, grey, grey > 100, 0.0)
    >>> contents = preview.finish()
    >>> contents.frame_indices, contents.video[4:8]
    ([0, 1, 2], b'ftyp')
    """

    def __init__(
        self,
        height: int,
        width: int,
        channels: int,
        rate: float,
        n_frames: int | None,
        folder: str | os.PathLike[str],
    ) -> None:
        if channels not in (1, 3):
            raise ValueError(f"channels={channels} is neither 1 nor 3; give grey frames or colour")
        self._rate = min(max(float(rate), MIN_RATE), MAX_RATE) if math.isfinite(rate) else 25.0
        # Without an announced length, half of what fits: encoded again at the end if that was too generous.
        self._expected = min(n_frames or MAX_FRAMES // 2, MAX_FRAMES)
        self._last_step = 2 ** max(0, math.ceil(math.log2((n_frames or 1) / MAX_FRAMES)))
        tile = tile_size(height, width, LARGE_TILE if self._expected <= LARGE_UP_TO else SMALL_TILE)
        self._tiler = Tiler((height, width), tile)
        self._folder = Path(folder)
        self._step, self._n_added = 1, 0
        self._indices: list[int] = []
        self._moments = BusiestMoments()
        self._encoder: Encoder | None = None

    def add(
        self,
        index: int,
        frame: NDArray[np.uint8],  # (height, width) or (height, width, 3)
        background: NDArray[np.uint8],
        foreground: NDArray[np.uint8],
        mask: NDArray[Any],  # (height, width)
        area: float,
    ) -> None:
        """Show the next frame; whether it is used is decided here.

        Parameters
        ----------
        index : int
            Number of the frame, ascending without gaps from 0.
        frame, background, foreground : ndarray of uint8, (height, width) or (height, width, 3)
            The views.
        mask : ndarray of bool or integer, (height, width)
            Not zero where there is foreground.
        area : float
            Share of the pixels that are foreground.
        """
        self._n_added = index + 1
        if index % self._step:
            return
        if len(self._indices) >= (MAX_FRAMES if self._step >= self._last_step else EARLY_FRAMES):
            self._thin(QUALITY, self._expected)  # the limits are even, so this frame is still one to keep
        if self._encoder is None:
            self._encoder = self._new_encoder(self._expected, QUALITY)
        tiles = self._tiler.scale(frame, background, foreground, (mask != 0).view(np.uint8) * np.uint8(255))
        self._encoder.write(self._tiler.join(tiles))
        self._indices.append(index)
        self._moments.offer(index, area, tiles[0], tiles[3])

    def finish(self) -> PreviewContents:
        """Complete the video and remove the temporary file.

        Returns
        -------
        PreviewContents
        """
        try:
            quality = QUALITY
            while self._encoder is not None and (size := self._encoder.close()) > MAX_BYTES:
                quality += 1 + 3 * math.log2(size / MAX_BYTES)  # six steps halve the bytes; the cap does the rest
                if quality <= WORST_QUALITY:
                    self._encode_again(1, quality, len(self._indices))
                else:
                    quality = WORST_QUALITY
                    self._thin(quality, len(self._indices) // 2)
            video = b"" if self._encoder is None else self._encoder.path.read_bytes()
        finally:
            self.discard()
        moments = self._moments.choose(self._n_added)
        rate = float(self._preview_rate())
        return PreviewContents(video, rate, *self._tiler.tile, self._step, self._indices, moments)

    def discard(self) -> None:
        """Remove the temporary file; `finish` does so by itself."""
        if self._encoder is not None:
            self._encoder.discard()
            self._encoder = None

    def _preview_rate(self) -> Fraction:
        """Return the preview's frames per second: a long clip plays faster than it was, by a power of two."""
        rate = Fraction(self._rate).limit_denominator(1001)
        pace = rate / self._step
        while pace < SMOOTH_RATE and pace < rate:
            pace *= 2
        return pace

    def _new_encoder(self, n_frames: int, quality: float) -> Encoder:
        path = self._folder / f".preview.{secrets.token_hex(6)}.mp4"
        height, width = self._tiler.tile
        # A little for the index; and the encoder may overdraw its account by what `BUFFER` frames take.
        bytes_a_frame = 0.98 * MAX_BYTES / (max(n_frames, EARLY_FRAMES // 2) + BUFFER)
        return Encoder(path, (2 * height, 2 * width), self._preview_rate(), quality, bytes_a_frame)

    def _thin(self, quality: float, n_frames: int) -> None:
        """Keep every second of the frames that were kept so far."""
        self._step *= 2
        self._indices = self._indices[::2]
        self._encode_again(2, quality, n_frames)

    def _encode_again(self, stride: int, quality: float, n_frames: int) -> None:
        """Encode every ``stride``-th frame of what is encoded now; more may follow, up to ``n_frames``."""
        assert self._encoder is not None
        old = self._encoder
        try:
            old.close()
            self._encoder = self._new_encoder(n_frames, quality)
            for k, picture in enumerate(decode(old.path)):
                if k % stride == 0:
                    self._encoder.write(picture)
        finally:
            old.discard()
