"""Pictures as files, read and written with PyAV."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from lrpca.files.atomic import cannot_write, replacing
from lrpca.video.codec import Frame, describe_error, has_colour, require_av, to_array

PictureKind: TypeAlias = Literal["png", "jpeg"]

PICTURE_ENDINGS = (".bmp", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
SAVED_ENDINGS: dict[str, PictureKind] = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg"}

# What a picture starts with, and the decoder for it: content is surer than the ending.
BEGINNINGS = (
    (b"\x89PNG", "png"),
    (b"\xff\xd8\xff", "mjpeg"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"P5", "pgm"),
    (b"P6", "ppm"),
)
JPEG_SCAN, JPEG_END = b"\xff\xda", b"\xff\xd9"


def is_picture(file: Path) -> bool:
    """Tell whether a file is a still picture, by its ending and by its first bytes.

    Parameters
    ----------
    file : pathlib.Path
        A file that may be read.

    Returns
    -------
    bool
    """
    if file.suffix.lower() not in PICTURE_ENDINGS:
        return False
    with open(file, "rb") as stream:
        return _decoder_of(stream.read(12)) is not None


def _decoder_of(data: bytes) -> str | None:
    """Return the name of the decoder for a picture, None where there is none."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((name for beginning, name in BEGINNINGS if data.startswith(beginning)), None)


class PictureDecoder:
    """Decoder of many pictures, all grey or all in colour.

    Decoders are kept from picture to picture: opening each file as a video costs ten times as much.

    Parameters
    ----------
    grey : bool or None
        Whether pictures are to be grey; None: as the first one is.
    """

    def __init__(self, grey: bool | None) -> None:
        self._av = require_av()
        self._channels = None if grey is None else 1 if grey else 3
        self._decoders: dict[str, Any] = {}
        self._converter = self._av.video.reformatter.VideoReformatter()

    def decode(self, file: Path) -> Frame:
        """Decode one picture.

        Parameters
        ----------
        file : pathlib.Path

        Returns
        -------
        ndarray of uint8, (height, width) or (height, width, 3)
            Turned upright where the camera noted how it was held.

        Raises
        ------
        OSError
            The file may not be read.
        ValueError
            It is damaged, or no picture.
        """
        try:
            data = file.read_bytes()
        except OSError as error:
            raise OSError(
                f"source={str(file)!r} cannot be read ({describe_error(error)}); check the file and its rights"
            ) from error
        frame = self._decode(file, data)
        if self._channels is None:
            self._channels = 3 if has_colour(frame.format) else 1
        return to_array(frame, channels=self._channels, converter=self._converter)

    def _decode(self, file: Path, data: bytes) -> Any:
        """Return PyAV's frame of a picture, or say what is wrong with the file."""
        name = _decoder_of(data)
        if name is None:
            raise ValueError(f"source={str(file)!r} is not a picture; remove it or write it again")
        # The decoder fills up a JPEG that was cut off with grey, without a word.
        whole = name != "mjpeg" or data.rfind(JPEG_END) > data.rfind(JPEG_SCAN)
        reason = "it ends too early"
        if name not in self._decoders:
            self._decoders[name] = self._av.CodecContext.create(name, "r")
            self._decoders[name].thread_count = 1  # each picture comes at once, not a few pictures later
        packet = self._av.Packet(data)
        packet.is_keyframe = True  # or else the PNG decoder adds the picture before
        try:
            frames = self._decoders[name].decode(packet) if whole else []
        except self._av.error.FFmpegError as error:
            frames, reason = [], describe_error(error)
        if not frames:
            raise ValueError(f"source={str(file)!r} is a damaged picture ({reason}); remove it or write it again")
        return frames[0]


def encode_picture(frame: Any, kind: PictureKind = "png", *, quality: int = 85) -> bytes:
    r"""Encode a frame as the content of a picture file.

    Parameters
    ----------
    frame : ndarray of uint8 or bool, (height, width) or (height, width, 3)
        Grey or RGB; True is white.
    kind : {"png", "jpeg"}
        PNG keeps every value, JPEG is smaller.
    quality : int
        Of a JPEG, from 1 to 100; the files are about as large as other programs make them.

    Returns
    -------
    bytes

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.video.pictures import encode_picture
    >>> encode_picture(np.zeros((4, 6), np.uint8))[:4]
    b'\x89PNG'
    """
    av = require_av()
    if kind not in ("png", "jpeg"):
        raise ValueError(f"kind={kind!r} is not written; use 'png' or 'jpeg'")
    if not 1 <= quality <= 100:
        raise ValueError(f"quality={quality} is not between 1 and 100; use about 85")
    picture = to_frame(av, check_frame(frame))
    if kind == "png":
        encoder = av.CodecContext.create("png", "w")
        # Four times as fast as the default, for a tenth more bytes.
        encoder.options = {"compression_level": "1", "pred": "sub"}
    else:
        encoder = av.CodecContext.create("mjpeg", "w")
        # A step of 8 is what others call quality 50; their rule gives the rest.
        percent = 5000 / quality if quality < 50 else 200 - 2 * quality
        encoder.qmin = encoder.qmax = int(np.clip(round(percent / 12.5), 2, 31))
        picture = picture.reformat(format="yuvj420p", dst_color_range="JPEG")
    encoder.width, encoder.height, encoder.pix_fmt = picture.width, picture.height, picture.format.name
    encoder.time_base = Fraction(1, 25)
    encoder.thread_count = 1
    picture.pts = 0
    return b"".join(bytes(packet) for packet in (*encoder.encode(picture), *encoder.encode(None)))


def save_picture(path: str | os.PathLike[str], frame: Any, *, quality: int = 85) -> None:
    """Write a frame to a picture file; a file of that name is replaced at once.

    Parameters
    ----------
    path : str or path-like
        Ends in ``.png``, ``.jpg`` or ``.jpeg``. Its folder is made if need be.
    frame : ndarray of uint8 or bool, (height, width) or (height, width, 3)
        Grey or RGB.
    quality : int
        Of a JPEG, from 1 to 100.

    Raises
    ------
    OSError
        The file cannot be written.
    ValueError
        The name ends otherwise.
    """
    target = Path(path)
    if target.suffix.lower() not in SAVED_ENDINGS:
        raise ValueError(f"path={str(target)!r} does not end in {' or '.join(SAVED_ENDINGS)}; choose one of them")
    data = encode_picture(frame, SAVED_ENDINGS[target.suffix.lower()], quality=quality)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(target, error) from error
    with replacing(target) as temporary:
        temporary.write_bytes(data)


def check_frame(frame: Any) -> Frame:
    """Return a frame as contiguous uint8, or refuse it.

    Parameters
    ----------
    frame : ndarray of uint8 or bool, (height, width) or (height, width, 3)

    Returns
    -------
    ndarray of uint8, same shape
        Without a copy where there is nothing to change.
    """
    array = np.asarray(frame)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] != 3) or 0 in array.shape:
        raise ValueError(f"frame has shape {array.shape}; use (height, width) or (height, width, 3)")
    if array.dtype == np.bool_:
        return np.where(array, np.uint8(255), np.uint8(0))
    if array.dtype != np.uint8:
        raise ValueError(f"frame has dtype {array.dtype}; use uint8 or bool")
    # PyAV looks at strides, also along an axis of length 1, where NumPy lets them be anything.
    return array.copy() if 1 in array.shape else np.ascontiguousarray(array)


def to_frame(av: Any, picture: Frame) -> Any:
    """Show an array to PyAV as a frame, without a copy.

    Parameters
    ----------
    av : module
        PyAV.
    picture : ndarray of uint8, (height, width) or (height, width, 3)
        Contiguous.

    Returns
    -------
    av.VideoFrame
    """
    return av.VideoFrame.from_numpy_buffer(picture, format="gray" if picture.ndim == 2 else "rgb24")
