"""Writing a clip, as a video file or as numbered pictures; it appears when it is finished."""

from __future__ import annotations

import math
import os
import re
import secrets
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from lrpca.files.atomic import cannot_write, check_folder, exchange, remove, replacing
from lrpca.video.codec import BT601, Frame, describe_error, require_av
from lrpca.video.pictures import check_frame, encode_picture, save_picture, to_frame
from lrpca.video.sources import FASTEST, SLOWEST

__all__ = ["PictureFolder", "VideoFile", "encode_picture", "save_picture"]

VIDEO_ENDINGS = (".mp4", ".m4v", ".mov", ".mkv")
BT709 = 1  # the colours of high definition, as FFmpeg numbers them
LIMITED, FULL = 1, 2  # ranges of brightness: 16 to 235 and 0 to 255
NUMBERED = re.compile(r"\d{6,}\.png")


class ClipWriter:
    """What the writers have in common: they take frames in order, and are closed or discarded once.

    In a ``with`` statement the clip is finished at the end, also when an exception ends it: what was written until then
    stays usable. Where no frame was written there is nothing to keep, and no file appears.

    Parameters
    ----------
    path : str or path-like
        Where the finished clip belongs. Folders above it are made if need be.
    height, width : int
        Size of a frame.
    channels : int
        1 for grey frames only, 3 for RGB or grey ones.

    Attributes
    ----------
    path : pathlib.Path
        Where the finished clip belongs.
    n_frames : int
        How many frames were written.
    """

    def __init__(self, path: str | os.PathLike[str], height: int, width: int, channels: int) -> None:
        if height < 1 or width < 1:
            raise ValueError(f"height={height}, width={width} is no size of a frame; use at least 1 pixel each")
        if channels not in (1, 3):
            raise ValueError(f"channels={channels} is not written; use 1 for grey or 3 for RGB")
        self.path = Path(path)
        self.n_frames = 0
        self._shape = (height, width)
        self._channels = channels
        self._done = False

    def write(self, frame: Any) -> None:  # (height, width) or (height, width, 3)
        """Write the next frame.

        Parameters
        ----------
        frame : ndarray of uint8 or bool, (height, width) or (height, width, 3)
            Grey or RGB; True is white.

        Raises
        ------
        OSError
            The disk is full or went away; nothing is left of the clip.
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
        """Finish the clip and put it in its place; calling it again does nothing.

        Raises
        ------
        OSError
            It cannot be written; nothing is left of it.
        """
        if self._done:
            return
        if not self.n_frames:
            self.discard()
            return
        try:
            self._finish()
        except OSError as error:
            self.discard()
            raise cannot_write(self.path, error) from error
        except BaseException:
            self.discard()
            raise
        self._done = True

    def discard(self) -> None:
        """Remove what was written; a clip that was there before stays, and so does one that is closed."""
        if not self._done:
            self._done = True
            self._abandon()

    def _add(self, picture: Frame) -> None:
        """Write a frame that has been checked."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Complete the clip and rename it."""
        raise NotImplementedError

    def _abandon(self) -> None:
        """Remove the temporary files."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except OSError:
            if error is None:  # otherwise the first error says more
                raise


class VideoFile(ClipWriter):
    """A video file in H.264, which browsers and players show; written beside its place and renamed when finished.

    Frames of odd height or width are padded by repeating the last row or column: the format wants even ones.

    Parameters
    ----------
    path : str or path-like
        Ends in ``.mp4``, ``.m4v``, ``.mov`` or ``.mkv``. A file there is replaced; folders
        are made if need be.
    height, width : int
        Size of a frame.
    rate : float
        Frames a second.
    channels : int
        1 for grey frames only, 3 for RGB or grey ones.
    lossless : bool
        Keep every value. Such files are large, and some players and browsers do not show them.
    keyframes : int, optional
        The most frames from one keyframe to the next; few make seeking smooth and the file larger. By default 250.
    crf : float
        Quality (x264's constant rate factor): lower is better and larger; 18 can hardly be told from the original.

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
        keyframes: int | None = None,
        crf: float = 20.0,
    ) -> None:
        super().__init__(path, height, width, channels)
        if not (math.isfinite(rate) and SLOWEST <= rate <= FASTEST):
            raise ValueError(f"rate={rate} is not between {SLOWEST:g} and {FASTEST:g} frames a second; use 25")
        if self.path.suffix.lower() not in VIDEO_ENDINGS:
            raise ValueError(f"path={str(path)!r} does not end in {' or '.join(VIDEO_ENDINGS)}; use .mp4")
        if self.path.is_dir():
            raise IsADirectoryError(f"path={str(path)!r} is a folder where a file belongs; choose another name")
        if keyframes is not None and keyframes < 1:
            raise ValueError(f"keyframes={keyframes} is not a number of frames; use at least 1")
        self._av = require_av()
        self._rate = Fraction(rate).limit_denominator(100_000)
        self._lossless = lossless
        self._converter = self._av.video.reformatter.VideoReformatter()
        self._place = ExitStack()
        _make_folder(self.path)
        self._temporary = self._place.enter_context(replacing(self.path))
        try:
            self._open(keyframes, crf)
        except BaseException as error:
            self._place.__exit__(type(error), error, None)
            raise

    def _open(self, keyframes: int | None, crf: float) -> None:
        """Open the encoder and the file."""
        height, width = self._shape
        faststart = {"movflags": "+faststart"} if self.path.suffix.lower() != ".mkv" else {}
        options = {"preset": "superfast"} | ({"qp": "0"} if self._lossless else {"crf": f"{crf:g}"})
        # Looking a few frames ahead makes files of still scenes two thirds smaller; many frames would cost memory.
        options["x264-params"] = "mbtree=1:rc-lookahead=5:sync-lookahead=0"
        if keyframes is not None:
            options["g"] = str(keyframes)
        exact_colour = self._lossless and self._channels == 3
        self._container = self._av.open(str(self._temporary), "w", options=faststart)
        self._stream = self._container.add_stream(
            "libx264rgb" if exact_colour else "libx264", rate=self._rate, options=options
        )
        context = self._stream.codec_context
        context.height, context.width = height + height % 2, width + width % 2
        context.pix_fmt = "rgb24" if exact_colour else "yuv420p"
        context.time_base = 1 / self._rate
        context.thread_count = 2  # each thread holds frames of its own
        if not exact_colour:
            context.colorspace = context.color_primaries = context.color_trc = BT709
            context.color_range = FULL if self._lossless else LIMITED

    def _add(self, picture: Frame) -> None:
        """Encode a frame and write what the encoder has finished."""
        frame = self._converted(picture)
        frame.pts = self.n_frames
        frame.time_base = 1 / self._rate
        try:
            self._container.mux(self._stream.encode(frame))
        except self._av.error.FFmpegError as error:
            raise OSError(describe_error(error)) from error

    def _converted(self, picture: Frame) -> Any:
        """Return a frame of even size in the encoder's pixel format."""
        height, width = self._shape
        if height % 2 or width % 2:
            rest = ((0, height % 2), (0, width % 2), (0, 0))
            picture = np.pad(picture, rest[: picture.ndim], mode="edge")
        if self._lossless and self._channels == 3:
            coloured = picture if picture.ndim == 3 else np.repeat(picture[:, :, None], 3, axis=2)
            return to_frame(self._av, coloured)  # the encoder copies it at once
        # Grey is the same in all colours; between those of one kind FFmpeg does not go through RGB.
        colours = BT709 if picture.ndim == 3 else BT601
        frame = self._converter.reformat(
            to_frame(self._av, picture),
            format="yuv420p",
            src_colorspace=None if picture.ndim == 3 else BT601,
            dst_colorspace=colours,
            dst_color_range=FULL if self._lossless else LIMITED,
            interpolation="AREA",
        )
        frame.colorspace = BT709
        return frame

    def _finish(self) -> None:
        """Write what the encoder still holds and the index, and rename the file."""
        try:
            self._container.mux(self._stream.encode(None))
            self._container.close()
        except self._av.error.FFmpegError as error:
            raise OSError(describe_error(error)) from error
        self._place.close()

    def _abandon(self) -> None:
        """Close and remove the file."""
        try:
            self._container.close()
        except (self._av.error.FFmpegError, OSError):
            pass  # it is removed anyway
        self._place.__exit__(InterruptedError, InterruptedError(), None)


class PictureFolder(ClipWriter):
    """A folder of numbered pictures, ``000001.png`` and so on; they appear in it when the clip is finished.

    Parameters
    ----------
    path : str or path-like
        The folder. It is made if need be; in one that exists, numbered pictures are replaced, other files stay.
    height, width : int
        Size of a frame.
    rate : float, optional
        Not kept by pictures; taken so that both writers are made alike.
    channels : int
        1 for grey frames only, 3 for RGB or grey ones.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        height: int,
        width: int,
        rate: float | None = None,
        *,
        channels: int = 3,
    ) -> None:
        super().__init__(path, height, width, channels)
        require_av()
        self._target = Path(os.path.realpath(path))
        _make_folder(self._target)
        check_folder(self._target)
        beside = self._target if self._target.is_dir() else self._target.parent
        self._staging = beside / f".{self._target.name[:40]}.{secrets.token_hex(6)}"
        try:
            self._staging.mkdir()
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _add(self, picture: Frame) -> None:
        """Write one picture."""
        (self._staging / f"{self.n_frames + 1:06d}.png").write_bytes(encode_picture(picture, "png"))

    def _finish(self) -> None:
        """Let the whole folder appear, or exchange the pictures in the one that is there."""
        # An interrupt may have left half a picture.
        (self._staging / f"{self.n_frames + 1:06d}.png").unlink(missing_ok=True)
        if self._staging.parent != self._target:
            os.replace(self._staging, self._target)
            return
        exchange(self._staging, self._target, numbered_pictures(self._target))
        self._staging.rmdir()

    def _abandon(self) -> None:
        """Remove the pictures written so far."""
        remove(self._staging)


def numbered_pictures(folder: Path) -> list[str]:
    """Return the names of the pictures that a `PictureFolder` there would replace.

    Parameters
    ----------
    folder : pathlib.Path
        It need not exist.
    """
    return [file.name for file in folder.glob("*.png") if NUMBERED.fullmatch(file.name)]


def _make_folder(path: Path) -> None:
    """Make the folder that a file or a folder is to be in, and check that it takes new files."""
    parent = Path(os.path.realpath(path)).parent
    check_folder(parent)
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
