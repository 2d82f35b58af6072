"""The way from PyAV's frames to arrays. Needs PyAV: ``pip install lrpca[video]``."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av import VideoFormat, VideoFrame
    from av.video.reformatter import VideoReformatter

Frame: TypeAlias = NDArray[np.uint8]  # (height, width) grey or (height, width, 3) RGB

# As FFmpeg numbers them.
FULL_RANGE = 2  # brightness from 0 to 255
BT601 = 5  # the colours of standard definition

# Pixel formats whose first plane is the brightness, a byte per pixel.
PLANAR = frozenset(
    f"{kind}{sampling}p" for kind in ("yuv", "yuvj", "yuva") for sampling in (410, 411, 420, 422, 440, 444)
) | {"nv12", "nv16", "nv21", "nv24"}


def require_av() -> Any:
    """Return the module ``av``.

    Returns
    -------
    module
        PyAV.

    Raises
    ------
    ImportError
        It is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise ImportError("video files need PyAV, which is not installed; pip install lrpca[video]") from error
    return av


def describe_error(error: BaseException) -> str:
    """Return what went wrong in a few words, without numbers of errors and without the name of the file.

    Parameters
    ----------
    error : BaseException

    Returns
    -------
    str
        One line without a full stop.
    """
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return str(text).splitlines()[0].rstrip(".")


def has_colour(pixels: VideoFormat) -> bool:
    """Tell whether a pixel format has more than brightness (and transparency).

    Parameters
    ----------
    pixels : av.VideoFormat

    Returns
    -------
    bool
        False for ``gray``, ``gray10le``, ``ya8``, ``monob`` and their like.
    """
    return pixels.has_palette or not all(part.is_luma or part.is_alpha for part in pixels.components)


def to_array(frame: VideoFrame, *, channels: int, converter: VideoReformatter) -> Frame:
    """Show a decoded frame as an array, upright.

    Parameters
    ----------
    frame : av.VideoFrame
        In any pixel format. Of formats with a plane of brightness, grey takes only that one; its limited range
        (16 to 235) is spread to 0 to 255.
    channels : int
        1 for grey, 3 for RGB.
    converter : av.video.reformatter.VideoReformatter
        Keeps its tables from frame to frame of a clip.

    Returns
    -------
    ndarray of uint8, (height, width) or (height, width, 3)
        A view into memory of its own; not contiguous.
    """
    if channels == 1:
        picture = _brightness(frame, converter)
    else:
        flat = converter.reformat(frame, format="rgb24")
        picture = _lines(flat)[: flat.height, : 3 * flat.width].reshape(flat.height, flat.width, 3)
    return _turn(picture, frame.rotation)


def _lines(frame: VideoFrame) -> NDArray[np.uint8]:
    """Show the first plane of a frame; its lines are longer than the picture is wide."""
    plane = frame.planes[0]
    return np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)


def _brightness(frame: VideoFrame, converter: VideoReformatter) -> Frame:
    """Return the plane of brightness; left to itself, FFmpeg makes grey of BT.709 from RGB, in three times the time."""
    name = frame.format.name
    if name in PLANAR and frame.planes[0].line_size % 2 == 0:
        lines = _lines(frame)
        if not name.startswith("yuvj") and int(frame.color_range) != FULL_RANGE:
            lines = np.take(_spreading(), lines.view(np.uint16)).view(np.uint8)
    else:
        # FFmpeg's grey belongs to BT.601; from other colours it would go through RGB.
        colours = None if frame.format.is_rgb else BT601
        lines = _lines(converter.reformat(frame, format="gray", src_colorspace=colours, dst_colorspace=colours))
    return lines[: frame.height, : frame.width]


@cache
def _spreading() -> NDArray[np.uint16]:
    """Return the table from the limited range (16 to 235) to the full one, for two neighbouring pixels at once."""
    single = np.clip(np.floor((np.arange(256) - 16) * (255 / 219) + 0.5), 0, 255).astype(np.uint8)
    pairs = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    return np.asarray(single[pairs].view(np.uint16), np.uint16)


def _turn(picture: Frame, degrees: int) -> Frame:
    """Turn a picture counterclockwise, as cameras that were held sideways ask for; slanted angles are ignored."""
    return np.rot90(picture, degrees // 90) if degrees % 90 == 0 else picture
