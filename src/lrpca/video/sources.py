"""Where frames come from: a video file, a folder of pictures, a single picture."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrpca.video.pictures import (
    PICTURE_ENDINGS,
    Frame,
    PictureDecoder,
    describe_error,
    has_colour,
    is_picture,
    require_av,
    to_array,
)
from lrpca.video.reading import FASTEST, RATE, SLOWEST, BrokenOffError, FrameReader

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.stream import VideoStream

COVER = 0x400  # FFmpeg's mark of a picture that belongs to a song


def open_path(path: Path, grey: bool | None) -> FrameReader:
    """Open a video file, a folder of pictures, or a picture, and decode the first frame."""
    if not path.exists():
        raise FileNotFoundError(f"source={str(path)!r} does not exist; check the name and the folder")
    if not os.access(path, os.R_OK):
        raise PermissionError(f"source={str(path)!r} may not be read; ask for the right to read it")
    if path.is_dir():
        return _open_pictures(path, _pictures_in(path), grey)
    return _open_pictures(path, [path], grey) if is_picture(path) else _open_video(path, grey)


def _pictures_in(folder: Path) -> list[Path]:
    """Return the picture files of a folder in natural order: frame2 before frame10."""
    shown = (file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    files = [file for file in shown if file.suffix.lower() in PICTURE_ENDINGS]
    if not files:
        raise ValueError(
            f"source={str(folder)!r} is a folder without pictures; name a video file, or a folder of "
            f"{', '.join(PICTURE_ENDINGS)} files"
        )
    return sorted(files, key=_natural)


def _natural(file: Path) -> tuple[list[tuple[int, str]], str]:
    """Return a key that sorts the numbers in a name by value; the name itself decides between 1 and 01."""
    parts = re.split(r"(\d+)", file.name.casefold(), flags=re.ASCII)
    return [(int(part), "") if index % 2 else (0, part) for index, part in enumerate(parts)], file.name


def _open_pictures(path: Path, files: list[Path], grey: bool | None) -> FrameReader:
    """Open a clip of one picture per frame."""
    decoder = PictureDecoder(grey)
    first = decoder.decode(files[0])
    shape = first.shape

    def decode() -> Iterator[tuple[float | None, Frame]]:
        yield None, first
        for file in files[1:]:
            picture = decoder.decode(file)
            if picture.shape != shape:
                raise ValueError(
                    f"source={str(path)!r} has pictures of several sizes: {file.name!r} is {_size(picture)} where "
                    f"{files[0].name!r} is {_size(first)}; keep pictures of one size in the folder"
                )
            yield None, picture

    channels = 1 if first.ndim == 2 else 3
    return FrameReader(path.name, shape[0], shape[1], channels, RATE, len(files), decode())


def _open_video(path: Path, grey: bool | None) -> FrameReader:
    """Open a video file and decode its first frame, which is more reliable than the header."""
    av = require_av()
    container = _open_container(av, path)
    try:
        stream = _video_stream(container, path)
        stream.thread_type = "AUTO"
        rate = _rate(stream)
        decoded = _decode(container, stream, rate)
        try:
            first = next(decoded, None)
        except BrokenOffError as error:
            reason = str(error).partition(";")[0]
            raise ValueError(f"source={str(path)!r} has no frame that is whole ({reason}); write it again") from error
        if first is None:
            raise ValueError(f"source={str(path)!r} has a video stream without frames; check how it was made")
        channels = 3 if (has_colour(first.format) if grey is None else not grey) else 1
        converter = av.video.reformatter.VideoReformatter()
        picture = to_array(first, channels=channels, converter=converter)
    except BaseException:
        container.close()
        raise

    def convert() -> Iterator[tuple[float | None, Frame]]:
        start = first.time or 0.0
        for index, frame in enumerate(chain([first], decoded)):
            if (frame.height, frame.width) != (first.height, first.width):
                raise BrokenOffError(
                    f"the size changes from {first.width}x{first.height} to {frame.width}x{frame.height} pixels "
                    f"after {index} frames; split the file there for the rest"
                )
            time = None if frame.time is None else frame.time - start
            yield time, to_array(frame, channels=channels, converter=converter)

    height, width = picture.shape[:2]
    n_frames = _announced(container, stream, rate)
    return FrameReader(path.name, height, width, channels, rate, n_frames, convert(), container.close)


def _open_container(av: Any, path: Path) -> InputContainer:
    """Open a file with PyAV, or raise an error that says why it cannot be read."""
    try:
        # An absolute path is never taken for a protocol ("a:b.mp4"); titles may be in any encoding.
        container: InputContainer = av.open(os.path.abspath(path), metadata_errors="replace")
    except Exception as error:
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(
            f"source={str(path)!r} is not a readable video ({describe_error(error)}); "
            "it is truncated, damaged or of another kind: write it again"
        ) from error
    return container


def _video_stream(container: InputContainer, path: Path) -> VideoStream:
    """Return the first stream of moving pictures, which excludes covers of songs and text drawn by FFmpeg."""
    streams = [stream for stream in container.streams.video if not int(stream.disposition) & COVER]
    if not streams or container.format.name == "tty":
        held = "only audio" if container.streams.audio else "no video stream"
        raise ValueError(f"source={str(path)!r} holds {held}; name a file with a video stream")
    if streams[0].codec_context is None:
        raise ValueError(f"source={str(path)!r} is of a kind for which PyAV has no decoder; convert it to mp4 first")
    return streams[0]


def _rate(stream: VideoStream) -> float:
    """Return the mean number of frames a second of a stream."""
    for rate in (stream.average_rate, stream.guessed_rate):
        if rate is not None and SLOWEST <= rate <= FASTEST:
            return float(rate)
    return RATE


def _duration(container: InputContainer, stream: VideoStream) -> float | None:
    """Return how many seconds a stream says it lasts; the length of the file counts only for a single stream."""
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    return container.duration / 1e6 if container.duration is not None and len(container.streams) == 1 else None


def _announced(container: InputContainer, stream: VideoStream, rate: float) -> int | None:
    """Return the expected number of frames: the count in the file, or one from its length."""
    seconds = _duration(container, stream)
    if seconds is None and container.duration is not None:
        seconds = container.duration / 1e6
    return stream.frames or (None if seconds is None else max(1, round(seconds * rate)))


def _decode(container: InputContainer, stream: VideoStream, rate: float) -> Iterator[VideoFrame]:
    """Decode frame by frame, skip what is damaged, and report it at the end."""
    n_packets = n_frames = n_damaged = 0
    end = 0.0
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except Exception as error:  # on a damaged file PyAV raises more than its own errors
            raise BrokenOffError(f"it breaks off after {n_frames} frames ({describe_error(error)})") from error
        if packet is None:
            break
        n_packets += packet.size > 0
        try:
            frames = packet.decode()
        except Exception:
            n_damaged += 1
            continue
        for frame in frames:
            n_frames += 1
            end = max(end, (frame.time or 0.0) + 1 / rate)
            yield frame
    if _is_cut(container, stream, n_packets, end, rate):
        expected = _announced(container, stream, rate)
        raise BrokenOffError(f"it breaks off after {n_frames} of {expected} frames; copy the file again for the rest")
    if n_damaged:  # with several decoding threads, not all of the last ones are reported
        raise BrokenOffError(f"at least {n_damaged} of {n_packets} packets are damaged; their frames are left out")


def _is_cut(container: InputContainer, stream: VideoStream, n_packets: int, end: float, rate: float) -> bool:
    """Tell whether clearly less came than the header says; its counts and lengths are often slightly wrong."""
    seconds = _duration(container, stream)
    if stream.frames:
        expected: float = stream.frames
        # Of a trimmed MP4 only a part is shown. FFmpeg shortens the duration of a cut AVI, but not its count.
        if seconds is not None and "mp4" in container.format.name:
            expected = min(expected, seconds * rate)
        return n_packets < 0.98 * expected - 1
    return seconds is not None and end < 0.95 * seconds - 1


def _size(picture: Frame) -> str:
    """Return the size of a picture as text, width first."""
    return f"{picture.shape[1]}x{picture.shape[0]}"
