"""Writing a clip, as a video file or as numbered pictures; it appears when it is finished."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import numpy as np

from lrpca.files.atomic import cannot_write, check_folder, replacing, replacing_files
from lrpca.video.pictures import (
    BT601,
    BT709,
    FULL,
    LIMITED,
    Frame,
    check_frame,
    describe_error,
    encode_picture,
    require_av,
    to_frame,
)
from lrpca.video.reading import FASTEST, SLOWEST

VIDEO_ENDINGS = (".mp4", ".m4v", ".mov", ".mkv")
NUMBERED = re.compile(r"\d{6,}\.png")


class Encoder:
    """An H.264 file of frames in the pixel format of the encoder. FFmpeg's errors are raised as OSError."""

    def __init__(
        self,
        path: Path,
        size: tuple[int, int],  # height and width
        rate: Fraction,
        options: dict[str, str],  # of x264
        *,
        pixels: str = "yuv420p",
    ) -> None:
        self._av = require_av()
        self.path = path
        faststart = {"movflags": "+faststart"} if path.suffix.lower() != ".mkv" else {}
        self._container = self._av.open(str(path), "w", options=faststart)
        codec = "libx264rgb" if pixels == "rgb24" else "libx264"
        self._stream = self._container.add_stream(codec, rate=rate, options=options)
        self.context = self._stream.codec_context
        self.context.height, self.context.width = size
        self.context.pix_fmt = pixels
        self.context.time_base = self._time_base = 1 / rate
        self.context.thread_count = 2  # each thread holds frames of its own
        self._n_frames = 0
        self._open = True

    def write(self, frame: Any) -> None:
        """Encode the next frame, whose time is set here, and write what is finished."""
        frame.pts, frame.time_base = self._n_frames, self._time_base
        self._n_frames += 1
        try:
            self._container.mux(self._stream.encode(frame))
        except self._av.error.FFmpegError as error:
            raise OSError(describe_error(error)) from error

    def close(self) -> None:
        """Complete the file, once."""
        if self._open:
            try:
                self._container.mux(self._stream.encode(None))
                self._container.close()
            except self._av.error.FFmpegError as error:
                raise OSError(describe_error(error)) from error
            self._open = False

    def abandon(self) -> None:
        """Close the file, which may be incomplete."""
        if self._open:
            self._open = False
            try:
                self._container.close()
            except (self._av.error.FFmpegError, OSError):
                pass  # the caller removes it anyway


class ClipWriter:
    """What the writers have in common: they take frames in order, and are closed or discarded once.

    In a ``with`` statement the clip is finished at the end, also after an exception: the frames written until then can
    be used. If no frame was written, no file appears.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        height: int,
        width: int,
        channels: int,
        place: AbstractContextManager[Path],  # a temporary path, moved to its place at the end
    ) -> None:
        if height < 1 or width < 1:
            raise ValueError(f"height={height}, width={width} is no size of a frame; use at least 1 pixel each")
        if channels not in (1, 3):
            raise ValueError(f"channels={channels} is not written; use 1 for grey or 3 for RGB")
        require_av()
        self.path = Path(path)
        self.n_frames = 0
        self._shape, self._channels = (height, width), channels
        self._done = False
        parent = Path(os.path.realpath(self.path)).parent
        check_folder(parent)
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._place = ExitStack()
        self._temporary = self._place.enter_context(place)

    def write(self, frame: Any) -> None:  # (height, width) or (height, width, 3)
        """Write the next frame.

        Parameters
        ----------
        frame : ndarray of uint8 or bool, (height, width) or (height, width, 3)
            Grey or RGB; True is white.

        Raises
        ------
        OSError
            The frame cannot be written, for example on a full disk. The unfinished clip is removed.
        """
        if self._done:
            raise ValueError(f"path={str(self.path)!r} is closed; make another writer")
        picture = check_frame(frame)
        if picture.shape[:2] != self._shape or (picture.ndim == 3 and self._channels == 1):
            expected = self._shape if self._channels == 1 else (*self._shape, 3)
            raise ValueError(f"frame has shape {picture.shape}; this clip takes {expected}")
        try:
            self._add(picture)
        except OSError as error:
            self.discard()
            raise cannot_write(self.path, error) from error
        self.n_frames += 1

    def close(self) -> None:
        """Finish the clip and move it to its place; another call does nothing.

        Raises
        ------
        OSError
            It cannot be written. The unfinished clip is removed.
        """
        if self._done:
            return
        if not self.n_frames:
            self.discard()
            return
        try:
            self._finish()
            self._place.close()
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise cannot_write(self.path, error) from error
            raise
        self._done = True

    def discard(self) -> None:
        """Remove what was written; an earlier clip and a closed one stay."""
        if not self._done:
            self._done = True
            self._abandon()
            self._release(InterruptedError())

    def _release(self, error: BaseException) -> None:
        """Remove the temporary files."""
        self._place.__exit__(type(error), error, None)

    def _add(self, picture: Frame) -> None:
        """Write a frame that has been checked."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Complete the temporary files."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """Close the temporary files."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except OSError:
            if error is None:  # otherwise the first error is the cause
                raise


class VideoFile(ClipWriter):
    """A video file in H.264, which browsers and players show; it appears when it is finished.

    The format needs an even height and width, so an odd last row or column is repeated.

    Parameters
    ----------
    path : str or path-like
        Ends in ``.mp4``, ``.m4v``, ``.mov`` or ``.mkv``. An existing file is replaced; missing folders are made.
    height, width : int
        Size of a frame.
    rate : float
        Frames a second.
    channels : int
        1 for grey frames only, 3 for RGB or grey ones.
    lossless : bool
        Keep every value. Such files are large, and some players and browsers do not show them.

    Attributes
    ----------
    path : pathlib.Path
        Where the finished clip is.
    n_frames : int
        Number of frames written.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from lrpca.video.writing import VideoFile
    >>> path = Path(tempfile.mkdtemp()) / "clip.mp4"
    >>> with VideoFile(path, 48, 64, rate=25.0, channels=1) as clip:
    ...     for brightness in range(0, 250, 25):
    ...         clip.write(np.full((48, 64), brightness, np.uint8))
    >>> clip.n_frames, path.stat().st_size > 1000
    (10, True)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        height: int,
        width: int,
        rate: float,
        *,
        channels: int = 3,
        lossless: bool = False,
    ) -> None:
        target = Path(path)
        if not (math.isfinite(rate) and SLOWEST <= rate <= FASTEST):
            raise ValueError(f"rate={rate} is not between {SLOWEST:g} and {FASTEST:g} frames a second; use 25")
        if target.suffix.lower() not in VIDEO_ENDINGS:
            raise ValueError(f"path={str(path)!r} does not end in {' or '.join(VIDEO_ENDINGS)}; use .mp4")
        if target.is_dir():
            raise IsADirectoryError(f"path={str(path)!r} is a folder where a file belongs; choose another name")
        super().__init__(path, height, width, channels, replacing(target))
        self._lossless = lossless
        self._exact_colour = lossless and channels == 3
        self._converter = require_av().video.reformatter.VideoReformatter()
        try:
            self._encoder = self._open_encoder(Fraction(rate).limit_denominator(100_000))
        except BaseException as error:
            self._release(error)
            raise

    def _open_encoder(self, rate: Fraction) -> Encoder:
        height, width = self._shape
        options = {"preset": "superfast"} | ({"qp": "0"} if self._lossless else {"crf": "20"})
        # A lookahead of a few frames makes files of still scenes two thirds smaller; many frames would cost memory.
        options["x264-params"] = "mbtree=1:rc-lookahead=5:sync-lookahead=0"
        pixels = "rgb24" if self._exact_colour else "yuv420p"
        encoder = Encoder(self._temporary, (height + height % 2, width + width % 2), rate, options, pixels=pixels)
        if not self._exact_colour:
            context = encoder.context
            context.colorspace = context.color_primaries = context.color_trc = BT709
            context.color_range = FULL if self._lossless else LIMITED
        return encoder

    def _add(self, picture: Frame) -> None:
        height, width = self._shape
        if height % 2 or width % 2:
            rest = ((0, height % 2), (0, width % 2), (0, 0))
            picture = np.pad(picture, rest[: picture.ndim], mode="edge")
        if self._exact_colour:
            return self._encoder.write(to_frame(picture if picture.ndim == 3 else np.stack([picture] * 3, axis=2)))
        # Grey is the same in all colours; between those of one kind FFmpeg does not go through RGB.
        frame = self._converter.reformat(
            to_frame(picture),
            format="yuv420p",
            src_colorspace=None if picture.ndim == 3 else BT601,
            dst_colorspace=BT709 if picture.ndim == 3 else BT601,
            dst_color_range=FULL if self._lossless else LIMITED,
            interpolation="AREA",
        )
        frame.colorspace = BT709
        self._encoder.write(frame)

    def _finish(self) -> None:
        self._encoder.close()

    def _abandon(self) -> None:
        self._encoder.abandon()


class PictureFolder(ClipWriter):
    """A folder of numbered pictures, ``000001.png`` and so on; they appear in it when the clip is finished.

    Parameters
    ----------
    path : str or path-like
        The folder. It is made if necessary; in an existing one, numbered pictures are replaced and other files stay.
    height, width : int
        Size of a frame.
    rate : float, optional
        Pictures do not store it; it is accepted so that both writers have the same arguments.
    channels : int
        1 for grey frames only, 3 for RGB or grey ones.
    """

    def __init__(
        self, path: str | os.PathLike[str], height: int, width: int, rate: float | None = None, *, channels: int = 3
    ) -> None:
        folder = Path(path)
        check_folder(folder)
        super().__init__(path, height, width, channels, replacing_files(folder, numbered_pictures(folder)))

    @property
    def _next(self) -> Path:
        return self._temporary / f"{self.n_frames + 1:06d}.png"

    def _add(self, picture: Frame) -> None:
        self._next.write_bytes(encode_picture(picture))

    def _finish(self) -> None:
        self._next.unlink(missing_ok=True)  # an interrupt may have left half a picture


def numbered_pictures(folder: Path) -> Iterator[str]:
    """Yield the names of the pictures that a `PictureFolder` there would replace."""
    return (file.name for file in folder.glob("*.png") if NUMBERED.fullmatch(file.name))
