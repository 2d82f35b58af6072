"""One small video that shows a clip and its parts side by side: original | background / foreground | mask.

In one video, the four views stay in step. It is encoded while the frames pass and stays within a fixed number of bytes:
of a long clip only every ``step``-th frame is kept. The busiest moments are pictures of it.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lrpca.video.pictures import LIMITED, check_frame, encode_picture, require_av, to_frame
from lrpca.video.writing import Encoder

if TYPE_CHECKING:
    from av import VideoFrame

MAX_BYTES = 13_000_000
MAX_FRAMES = 3000
# Number of frames kept until the clip has shown that it is as long as announced: a wrong length then costs little.
EARLY_FRAMES = 600
# A tile fits into this box, or the smaller one if there are many frames.
LARGE_TILE, SMALL_TILE = (480, 640), (360, 480)
LARGE_UP_TO = 1200
# Tiny frames are enlarged: the blocks of an encoder are larger than they are.
MIN_TILE = 96
MIN_RATE, MAX_RATE = 0.01, 1000.0
# Fewer frames per second look like a slide show.
SMOOTH_RATE = 8
QUALITY, WORST_QUALITY = 26.0, 44.0  # x264's rate factor; smaller is better
# Frames from one keyframe to the next: a seek decodes at most so many.
KEYFRAMES = 20
# Over so many frames a burst may take more bytes than its share.
BUFFER = 2 * KEYFRAMES
# Numbers of the standard (ITU-T H.273): red, green and blue as on screens, YUV by BT.601.
SCREEN_PRIMARIES, SCREEN_CURVE, SMPTE170M = 1, 13, 6

MOMENTS = 8
THUMBNAIL = 320
OUTLINE = (255, 92, 20)
# A thin limb that covers a third of a small pixel still belongs to its outline.
COVERED = 85


@dataclass(frozen=True)
class Moment:
    """A busy frame."""

    index: int  # number of the frame in the clip, from 0
    area: float  # share of its pixels that are foreground
    jpeg: bytes  # the frame, small, with the outline of its mask


@dataclass(frozen=True)
class PreviewContents:
    """A finished preview."""

    video: bytes  # an MP4 file, H.264, at most 13 MB; empty if there was no frame
    rate: float  # its frames per second at normal speed
    height: int  # of one of the four tiles
    width: int
    step: int  # the preview holds every `step`-th frame of the clip, from the first
    frame_indices: list[int]  # these frames
    moments: list[Moment] = field(default_factory=list)  # the busiest frames, in the order of time


class Preview:
    """An unfinished preview; `n_frames` is the expected length of the clip, `folder` is for a temporary file."""

    def __init__(
        self, height: int, width: int, rate: float, n_frames: int | None, folder: str | os.PathLike[str]
    ) -> None:
        self._rate = min(max(float(rate), MIN_RATE), MAX_RATE) if math.isfinite(rate) else 25.0
        # Without an announced length, half of what fits; encoded again at the end if that was too much.
        self._expected = min(n_frames or MAX_FRAMES // 2, MAX_FRAMES)
        self._last_step = 2 ** max(0, math.ceil(math.log2((n_frames or 1) / MAX_FRAMES)))
        tile = tile_size(height, width, LARGE_TILE if self._expected <= LARGE_UP_TO else SMALL_TILE)
        self._tiler = Tiler((height, width), tile)
        self._folder = Path(folder)
        self._step, self._n_added = 1, 0
        self._indices: list[int] = []
        self._areas: list[float] = []  # of these frames
        self._encoder: Encoder | None = None

    def add(
        self,
        index: int,  # number of the frame, ascending without gaps from 0
        frame: NDArray[np.uint8],  # (height, width) or (height, width, 3)
        background: NDArray[np.uint8],
        foreground: NDArray[np.uint8],
        mask: NDArray[Any],  # (height, width), not zero where there is foreground
        area: float,  # share of the pixels that are foreground
    ) -> None:
        """Take the next frame if it is one of those that are kept."""
        self._n_added = index + 1
        if index % self._step:
            return
        if len(self._indices) >= (MAX_FRAMES if self._step >= self._last_step else EARLY_FRAMES):
            self._thin(QUALITY, self._expected)  # the limits are even, so this frame is still one to keep
        if self._encoder is None:
            self._encoder = self._new_encoder(self._expected, QUALITY)
        self._encoder.write(self._tiler.join(self._tiler.scale(frame, background, foreground, mask != 0)))
        self._indices.append(index)
        self._areas.append(area)

    def finish(self) -> PreviewContents:
        """Complete the video and remove the temporary file."""
        video, moments, quality = b"", [], QUALITY
        try:
            while self._encoder is not None:
                self._encoder.close()
                size = self._encoder.path.stat().st_size
                if size <= MAX_BYTES:
                    video, moments = self._encoder.path.read_bytes(), self._busiest_moments(self._encoder.path)
                    break
                quality += 1 + 3 * math.log2(size / MAX_BYTES)  # six steps halve the bytes; the cap does the rest
                if quality <= WORST_QUALITY:
                    self._encode_again(1, quality, len(self._indices))
                else:
                    quality = WORST_QUALITY
                    self._thin(quality, len(self._indices) // 2)
        finally:
            self.discard()
        rate = float(self._preview_rate())
        return PreviewContents(video, rate, *self._tiler.tile, self._step, self._indices, moments)

    def discard(self) -> None:
        """Remove the temporary file; `finish` does so by itself."""
        if self._encoder is not None:
            self._encoder.abandon()
            self._encoder.path.unlink(missing_ok=True)
            self._encoder = None

    def _busiest_moments(self, path: Path) -> list[Moment]:
        """Return at most `MOMENTS` moments with foreground in the order of time, none close to another."""
        distance = self._n_added / (2.5 * MOMENTS * self._step)
        chosen: list[int] = []
        for k in sorted(np.flatnonzero(self._areas).tolist(), key=lambda k: -self._areas[k]):
            if len(chosen) < MOMENTS and all(abs(k - other) >= distance for other in chosen):
                chosen.append(k)
        chosen.sort()
        pictures = _pictures_at(path, chosen, self._preview_rate())
        return [
            Moment(self._indices[k], self._areas[k], _thumbnail(picture))
            for k, picture in zip(chosen, pictures, strict=True)
        ]

    def _preview_rate(self) -> Fraction:
        """Return the preview's frames per second: a long clip is played faster, by a power of two."""
        rate = Fraction(self._rate).limit_denominator(1001)
        pace = rate / self._step
        while pace < SMOOTH_RATE and pace < rate:
            pace *= 2
        return pace

    def _new_encoder(self, n_frames: int, quality: float) -> Encoder:
        """Open a file that is quick to seek in and bounded in bytes; where they are few, the quality is lower."""
        path = self._folder / f".preview.{secrets.token_hex(6)}.mp4"
        height, width = self._tiler.tile
        rate = self._preview_rate()
        # The index needs a little, and the encoder may exceed its limit by what `BUFFER` frames take.
        bytes_a_frame = 0.98 * MAX_BYTES / (max(n_frames, EARLY_FRAMES // 2) + BUFFER)
        options = {
            "preset": "veryfast",
            "x264-params": "subme=1:me=dia:rc-lookahead=5",  # a third less time, for 3 % more bytes and 0.6 dB
            "crf": f"{quality:.1f}",
            "maxrate": f"{max(1, int(8e-3 * bytes_a_frame * rate))}k",
            "bufsize": f"{max(1, int(8e-3 * bytes_a_frame * BUFFER))}k",
            "g": str(KEYFRAMES),
            "bf": "0",  # frames in the order in which they are shown: times are exact in every browser
        }
        encoder = Encoder(path, (2 * height, 2 * width), rate, options)
        encoder.context.color_primaries, encoder.context.color_trc = SCREEN_PRIMARIES, SCREEN_CURVE
        encoder.context.colorspace, encoder.context.color_range = SMPTE170M, LIMITED
        return encoder

    def _thin(self, quality: float, n_frames: int) -> None:
        """Keep every second of the frames that were kept so far."""
        self._step *= 2
        self._indices, self._areas = self._indices[::2], self._areas[::2]
        self._encode_again(2, quality, n_frames)

    def _encode_again(self, stride: int, quality: float, n_frames: int) -> None:
        """Encode every ``stride``-th frame of the present video; more may follow, up to ``n_frames``."""
        old = self._encoder
        assert old is not None
        try:
            old.close()
            self._encoder = self._new_encoder(n_frames, quality)
            for k, picture in enumerate(_decode(old.path)):
                if k % stride == 0:
                    self._encoder.write(picture)
        finally:
            old.abandon()
            old.path.unlink(missing_ok=True)


def _decode(path: Path) -> Iterator[VideoFrame]:
    """Yield the pictures of a video, ready to be encoded again."""
    av = require_av()
    with av.open(str(path)) as container:
        for picture in container.decode(video=0):
            picture.pict_type = av.video.frame.PictureType.NONE  # the new encoder chooses its own keyframes
            yield picture


def tile_size(height: int, width: int, box: tuple[int, int]) -> tuple[int, int]:
    """Return the size of a tile: that of the frame, smaller to fit into a box, or larger if tiny; always even."""
    scale = min(1.0, box[0] / height, box[1] / width)
    if max(height, width) < MIN_TILE:
        scale = 2.0 * math.ceil(MIN_TILE / 2 / max(height, width))
    # Chroma has half the resolution: even sizes keep the colours of one tile out of the next.
    even_height, even_width = (max(16, 2 * round(side * scale / 2)) for side in (height, width))
    return even_height, even_width


class Tiler:
    """Scales views of one shape to tiles and joins four of them into one picture, all in YUV 4:2:0."""

    def __init__(self, shape: tuple[int, int], tile: tuple[int, int]) -> None:
        self.tile = tile
        self._interpolation = "POINT" if tile[0] > shape[0] and tile[1] > shape[1] else "AREA"
        # One for each number of axes: it keeps its tables as long as the kind of picture stays the same.
        self._scalers = {ndim: require_av().video.reformatter.VideoReformatter() for ndim in (2, 3)}

    def scale(self, *views: NDArray[Any]) -> list[VideoFrame]:
        """Return each view as a tile of its own memory."""
        height, width = self.tile
        return [
            self._scalers[view.ndim].reformat(
                to_frame(check_frame(view)), width, height, "yuv420p", interpolation=self._interpolation, threads=1
            )
            for view in views
        ]

    def join(self, tiles: list[VideoFrame]) -> VideoFrame:
        """Return one picture of four tiles, in two rows."""
        height, width = self.tile
        joined: VideoFrame = require_av().VideoFrame(2 * width, 2 * height, "yuv420p")
        targets = _planes(joined)
        for number, tile in enumerate(tiles):
            row, column = divmod(number, 2)
            for target, source in zip(targets, _planes(tile), strict=True):
                h, w = source.shape
                target[row * h : (row + 1) * h, column * w : (column + 1) * w] = source
        return joined


def _planes(picture: VideoFrame) -> list[NDArray[np.uint8]]:
    """Return the planes as arrays that share the picture's memory, without the padding of their lines."""
    return [
        np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]
        for plane in picture.planes
    ]


def _pictures_at(path: Path, numbers: list[int], rate: Fraction) -> Iterator[VideoFrame]:
    """Yield the pictures with these numbers, each searched from the keyframe before it."""
    with require_av().open(str(path)) as container:
        stream = container.streams.video[0]
        for number in numbers:
            container.seek(round(number / rate / stream.time_base), stream=stream)
            yield next(picture for picture in container.decode(stream) if round(picture.time * rate) >= number)


def _thumbnail(tiles: VideoFrame) -> bytes:
    """Return the original, small and with the outline of the mask, as JPEG."""
    width = min(THUMBNAIL, tiles.width // 2)
    height = max(1, round(tiles.height * width / tiles.width))
    small = tiles.reformat(2 * width, 2 * height, "rgb24", interpolation="AREA", threads=1).to_ndarray()
    picture = small[:height, :width].copy()
    picture[outline(small[height:, width:, 1] > COVERED)] = OUTLINE
    return encode_picture(picture, "jpeg")


def outline(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:  # mask (height, width)
    """Return the pixels on both sides of the border of a mask; the edge of the picture is no border."""
    border = np.zeros_like(mask)
    across, down = mask[:, 1:] != mask[:, :-1], mask[1:] != mask[:-1]
    border[:, 1:] |= across
    border[:, :-1] |= across
    border[1:] |= down
    border[:-1] |= down
    return border
