"""Frames between PyAV and arrays, and pictures as files. Needs PyAV: ``pip install lrpca[video]``."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av import VideoFormat, VideoFrame
    from av.video.reformatter import VideoReformatter

Frame: TypeAlias = NDArray[np.uint8]  # (height, width) grey or (height, width, 3) RGB

# Numbers of the standard (ITU-T H.273), which FFmpeg uses.
BT709, BT601 = 1, 5  # the colours of high and of standard definition
LIMITED, FULL = 1, 2  # ranges of brightness: 16 to 235 and 0 to 255

PICTURE_ENDINGS = (".bmp", ".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".pgm", ".ppm")

# Pixel formats whose first plane is the brightness, a byte per pixel.
_PLANAR = frozenset(
    f"{kind}{sampling}p" for kind in ("yuv", "yuvj", "yuva") for sampling in (410, 411, 420, 422, 440, 444)
) | {"nv12", "nv16", "nv21", "nv24"}
# The first bytes of a picture and its decoder: the content is more reliable than the ending.
_BEGINNINGS = (
    (b"\x89PNG", "png"),
    (b"\xff\xd8\xff", "mjpeg"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"P5", "pgm"),
    (b"P6", "ppm"),
)
_JPEG_SCAN, _JPEG_END = b"\xff\xda", b"\xff\xd9"


def require_av() -> Any:
    """Return the module ``av``, or raise ImportError with the command that installs it."""
    try:
        import av
    except ImportError as error:
        raise ImportError("video files need PyAV, which is not installed; pip install lrpca[video]") from error
    return av


def describe_error(error: BaseException) -> str:
    """Return the cause of an error in one line, without its number and the name of the file."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0].rstrip(".")


def has_colour(pixels: VideoFormat) -> bool:
    """Tell whether a pixel format has more than brightness and transparency."""
    return pixels.has_palette or not all(part.is_luma or part.is_alpha for part in pixels.components)


def to_array(frame: VideoFrame, *, channels: int, converter: VideoReformatter) -> Frame:
    """Return a decoded frame as an upright array, grey or RGB; the converter keeps its tables from frame to frame."""
    if channels == 1:
        picture = _brightness(frame, converter)
    else:
        flat = converter.reformat(frame, format="rgb24")
        picture = _lines(flat)[: flat.height, : 3 * flat.width].reshape(flat.height, flat.width, 3)
    # Cameras note by how much they were turned; slanted angles are ignored.
    return np.rot90(picture, frame.rotation // 90) if frame.rotation % 90 == 0 else picture


def _lines(frame: VideoFrame) -> NDArray[np.uint8]:
    """Return the first plane of a frame, whose lines are longer than the picture is wide."""
    plane = frame.planes[0]
    return np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)


def _brightness(frame: VideoFrame, converter: VideoReformatter) -> Frame:
    """Return the plane of brightness; FFmpeg would convert BT.709 through RGB, in three times the time."""
    name = frame.format.name
    if name in _PLANAR and frame.planes[0].line_size % 2 == 0:
        lines = _lines(frame)
        if not name.startswith("yuvj") and int(frame.color_range) != FULL:
            lines = np.take(_full_range_table(), lines.view(np.uint16)).view(np.uint8)
    else:
        # FFmpeg's grey belongs to BT.601; from other colours it would go through RGB.
        colours = None if frame.format.is_rgb else BT601
        lines = _lines(converter.reformat(frame, format="gray", src_colorspace=colours, dst_colorspace=colours))
    return lines[: frame.height, : frame.width]


@cache
def _full_range_table() -> NDArray[np.uint16]:
    """Return the table from the limited range (16 to 235) to the full one, for two neighbouring pixels at once."""
    single = np.clip(np.floor((np.arange(256) - 16) * (255 / 219) + 0.5), 0, 255).astype(np.uint8)
    pairs = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    return np.asarray(single[pairs].view(np.uint16), np.uint16)


def is_picture(file: Path) -> bool:
    """Tell whether a file is a still picture, by its ending and by its first bytes."""
    if file.suffix.lower() not in PICTURE_ENDINGS:
        return False
    with open(file, "rb") as stream:
        return _decoder_of(stream.read(12)) is not None


def _decoder_of(data: bytes) -> str | None:
    """Return the name of the decoder for a picture, None if there is none."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((name for beginning, name in _BEGINNINGS if data.startswith(beginning)), None)


class PictureDecoder:
    """Decoder of many pictures, all grey or all in colour; with ``grey=None`` as the first one is.

    Decoders are kept from picture to picture: opening each file as a video costs ten times as much.
    """

    def __init__(self, grey: bool | None) -> None:
        self._av = require_av()
        self._channels = None if grey is None else 1 if grey else 3
        self._decoders: dict[str, Any] = {}
        self._converter = self._av.video.reformatter.VideoReformatter()

    def decode(self, file: Path) -> Frame:
        """Return one picture, upright."""
        try:
            data = file.read_bytes()
        except OSError as error:
            raise OSError(
                f"source={str(file)!r} cannot be read ({describe_error(error)}); check the file and its rights"
            ) from error
        frame = self._decode(file, data)
        self._channels = self._channels or (3 if has_colour(frame.format) else 1)
        return to_array(frame, channels=self._channels, converter=self._converter)

    def _decode(self, file: Path, data: bytes) -> Any:
        """Return PyAV's frame of a picture, or raise ValueError with what is wrong with the file."""
        name = _decoder_of(data)
        if name is None:
            raise ValueError(f"source={str(file)!r} is not a picture; remove it or write it again")
        # The decoder fills up a truncated JPEG with grey and reports nothing.
        whole = name != "mjpeg" or data.rfind(_JPEG_END) > data.rfind(_JPEG_SCAN)
        reason = "it ends too early"
        if name not in self._decoders:
            self._decoders[name] = self._av.CodecContext.create(name, "r")
            self._decoders[name].thread_count = 1  # each picture comes at once, not a few pictures later
        packet = self._av.Packet(data)
        packet.is_keyframe = True  # otherwise the PNG decoder adds the picture before
        try:
            frames = self._decoders[name].decode(packet) if whole else []
        except self._av.error.FFmpegError as error:
            frames, reason = [], describe_error(error)
        if not frames:
            raise ValueError(f"source={str(file)!r} is a damaged picture ({reason}); remove it or write it again")
        return frames[0]


def encode_picture(frame: Any, kind: Literal["png", "jpeg"] = "png", *, quality: int = 85) -> bytes:
    """Return a frame, uint8 or bool, grey or RGB, as the content of a picture file; quality is that of a JPEG."""
    av = require_av()
    if kind not in ("png", "jpeg"):
        raise ValueError(f"kind={kind!r} is not written; use 'png' or 'jpeg'")
    if not 1 <= quality <= 100:
        raise ValueError(f"quality={quality} is not between 1 and 100; use about 85")
    picture = to_frame(check_frame(frame))
    encoder = av.CodecContext.create("png" if kind == "png" else "mjpeg", "w")
    if kind == "png":
        # Four times as fast as the default, for a tenth more bytes.
        encoder.options = {"compression_level": "1", "pred": "sub"}
    else:
        # A step of 8 is what others call quality 50; their rule gives the rest.
        percent = 5000 / quality if quality < 50 else 200 - 2 * quality
        encoder.qmin = encoder.qmax = int(np.clip(round(percent / 12.5), 2, 31))
        picture = picture.reformat(format="yuvj420p", dst_color_range="JPEG")
    encoder.width, encoder.height, encoder.pix_fmt = picture.width, picture.height, picture.format.name
    encoder.time_base = Fraction(1, 25)
    encoder.thread_count = 1
    picture.pts = 0
    return b"".join(bytes(packet) for packet in (*encoder.encode(picture), *encoder.encode(None)))


def check_frame(frame: Any) -> Frame:
    """Return a frame as contiguous uint8, without a copy if nothing changes; raise ValueError for anything else."""
    array = np.asarray(frame)
    if array.ndim not in (2, 3) or array.shape[2:] not in ((), (3,)) or 0 in array.shape:
        raise ValueError(f"frame has shape {array.shape}; use (height, width) or (height, width, 3)")
    if array.dtype == np.bool_:
        return np.where(array, np.uint8(255), np.uint8(0))
    if array.dtype != np.uint8:
        raise ValueError(f"frame has dtype {array.dtype}; use uint8 or bool")
    # PyAV checks strides, also along an axis of length 1, where NumPy lets them be anything.
    return array.copy() if 1 in array.shape else np.ascontiguousarray(array)


def to_frame(picture: Frame) -> VideoFrame:
    """Return a contiguous array as a frame of PyAV that shares its memory."""
    frame: VideoFrame = require_av().VideoFrame.from_numpy_buffer(picture, "gray" if picture.ndim == 2 else "rgb24")
    return frame
