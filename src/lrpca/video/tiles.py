"""Four views in one picture, and the small video of such pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lrpca.video.codec import require_av

if TYPE_CHECKING:
    from av import VideoFrame

# Tiny frames are enlarged: the blocks of an encoder are larger than they are.
MIN_TILE = 96
# Frames from one keyframe to the next: a seek decodes at most so many.
KEYFRAMES = 20
# Over so many frames a burst may take more bytes than its share.
BUFFER = 2 * KEYFRAMES
# Numbers of the standard (ITU-T H.273): red, green and blue as on screens, YUV by BT.601 within 16...235.
SCREEN_PRIMARIES, SCREEN_CURVE, SMPTE170M, LIMITED = 1, 13, 6, 1


def tile_size(height: int, width: int, box: tuple[int, int]) -> tuple[int, int]:
    """Return the size of a tile: the frame's own, or smaller to fit into a box, or larger if tiny; always even.

    Parameters
    ----------
    height, width : int
        Of the frame.
    box : (int, int)
        Largest height and width.

    Returns
    -------
    (int, int)
        Height and width.

    Examples
    --------
    >>> from lrpca.video.tiles import tile_size
    >>> tile_size(240, 320, (480, 640)), tile_size(1080, 1920, (480, 640)), tile_size(9, 15, (480, 640))
    ((240, 320), (360, 640), (72, 120))
    """
    scale = min(1.0, box[0] / height, box[1] / width)
    if max(height, width) < MIN_TILE:
        scale = 2.0 * math.ceil(MIN_TILE / 2 / max(height, width))
    # Chroma has half the resolution: even sizes keep the colours of one tile out of the next.
    even_height, even_width = (max(16, 2 * round(side * scale / 2)) for side in (height, width))
    return even_height, even_width


class Tiler:
    """Scales views by averaging and puts four of them into one picture, all in YUV 4:2:0.

    Parameters
    ----------
    shape : (int, int)
        Height and width of the views.
    tile : (int, int)
        Height and width they get.
    """

    def __init__(self, shape: tuple[int, int], tile: tuple[int, int]) -> None:
        self.tile = tile
        self._av = require_av()
        self._interpolation = "POINT" if tile[0] > shape[0] and tile[1] > shape[1] else "AREA"
        # One for each kind of picture: it keeps its tables as long as the kind stays the same.
        self._scalers = {kind: self._av.video.reformatter.VideoReformatter() for kind in ("gray", "rgb24")}

    def scale(self, *views: NDArray[np.uint8]) -> list[VideoFrame]:
        """Return each view as a tile.

        Parameters
        ----------
        *views : ndarray of uint8, (height, width) or (height, width, 3)

        Returns
        -------
        list of av.VideoFrame
            New pictures, which do not share memory with the views.
        """
        height, width = self.tile
        tiles = []
        for view in views:
            kind = "gray" if view.ndim == 2 else "rgb24"
            if view.flags.c_contiguous and view.flags.writeable:
                picture = self._av.VideoFrame.from_numpy_buffer(view, kind)  # without a copy
            else:
                picture = self._av.VideoFrame.from_ndarray(view, kind)
            tiles.append(
                self._scalers[kind].reformat(
                    picture, width, height, "yuv420p", interpolation=self._interpolation, threads=1
                )
            )
        return tiles

    def join(self, tiles: list[VideoFrame]) -> VideoFrame:
        """Return one picture of four tiles, two and two.

        Parameters
        ----------
        tiles : list of av.VideoFrame
            As `scale` returns them.

        Returns
        -------
        av.VideoFrame
        """
        height, width = self.tile
        joined: VideoFrame = self._av.VideoFrame(2 * width, 2 * height, "yuv420p")
        targets = _planes(joined)
        for number, tile in enumerate(tiles):
            row, column = divmod(number, 2)
            for target, source in zip(targets, _planes(tile), strict=True):
                h, w = source.shape
                target[row * h : (row + 1) * h, column * w : (column + 1) * w] = source
        return joined


class Encoder:
    """A video file in the making that is quick to seek in and bounded in bytes.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    shape : (int, int)
        Height and width of the pictures, even.
    rate : Fraction
        Pictures per second.
    quality : float
        x264's rate factor; smaller is better.
    bytes_a_frame : float
        What a picture may take on average; where `quality` would need more, it gives way.
    """

    def __init__(
        self, path: Path, shape: tuple[int, int], rate: Fraction, quality: float, bytes_a_frame: float
    ) -> None:
        self.path = path
        self._n_frames = 0
        self._open = True
        self._container = require_av().open(str(path), "w", format="mp4", options={"movflags": "+faststart"})
        self._stream: Any = self._container.add_stream("libx264", rate=rate)
        self._stream.height, self._stream.width = shape
        self._stream.pix_fmt = "yuv420p"
        context = self._stream.codec_context
        context.time_base = self._time_base = 1 / rate
        context.color_primaries, context.color_trc = SCREEN_PRIMARIES, SCREEN_CURVE
        context.colorspace, context.color_range = SMPTE170M, LIMITED
        kilobits = max(1, int(8e-3 * bytes_a_frame * rate))
        self._stream.options = {
            "preset": "veryfast",
            "x264-params": "subme=1:me=dia:rc-lookahead=5",  # a third less time, for 3 % more bytes and 0.6 dB
            "crf": f"{quality:.1f}",
            "maxrate": f"{kilobits}k",
            "bufsize": f"{max(1, int(8e-3 * bytes_a_frame * BUFFER))}k",
            "g": str(KEYFRAMES),
            "bf": "0",  # frames in the order in which they are shown: times are exact in every browser
            "threads": "2",
        }

    def write(self, picture: VideoFrame) -> None:
        """Append a picture.

        Parameters
        ----------
        picture : av.VideoFrame
            In YUV 4:2:0; its time is set here.
        """
        picture.pts, picture.time_base = self._n_frames, self._time_base
        self._n_frames += 1
        self._container.mux(self._stream.encode(picture))

    def close(self) -> int:
        """Complete the file, once.

        Returns
        -------
        int
            Its size in bytes.
        """
        if self._open:
            self._open = False
            try:
                self._container.mux(self._stream.encode(None))
            finally:
                self._container.close()
        return self.path.stat().st_size

    def discard(self) -> None:
        """Remove the file, complete or not."""
        try:
            if self._open:
                self._open = False
                self._container.close()
        except (require_av().error.FFmpegError, OSError):
            pass  # it is removed anyway
        finally:
            self.path.unlink(missing_ok=True)


def decode(path: Path) -> Iterator[VideoFrame]:
    """Yield the pictures of a video, ready to be encoded again.

    Parameters
    ----------
    path : pathlib.Path

    Yields
    ------
    av.VideoFrame
    """
    av = require_av()
    with av.open(str(path)) as container:
        for picture in container.decode(video=0):
            picture.pict_type = av.video.frame.PictureType.NONE  # the new encoder places its own keyframes
            yield picture


def _planes(picture: VideoFrame) -> list[NDArray[np.uint8]]:
    """Return the planes as arrays onto the picture's memory, without the padding of their lines."""
    return [
        np.frombuffer(memoryview(plane), np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width]
        for plane in picture.planes
    ]
