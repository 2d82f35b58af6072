import os
import struct
import sys
from fractions import Fraction

import numpy as np
import pytest

from lrpca.video.reading import FrameReader, open_frames

av = pytest.importorskip("av", reason="needs the extra video")


def ramp(n=12, height=48, width=64):
    """Smooth coloured frames, each brighter than the one before, with one bright corner: survives any codec."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    frames = [np.stack([60 * y + 5 * i + 40, 60 * x + 5 * i + 40, 60 * (1 - y) + 5 * i + 40], -1) for i in range(n)]
    clip = np.array(frames).clip(0, 255)
    clip[:, : height // 4, : width // 4] = 230
    return clip.astype(np.uint8)


def make_clip(path, frames, codec="libx264", pixels="yuv420p", *, rate=25, times=None, **container):
    """Encode RGB frames; times are in hundredths of a second."""
    with av.open(str(path), "w", **container) as file:
        stream = file.add_stream(codec, rate=rate)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], pixels
        stream.codec_context.thread_count = 1
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 100)
        for index, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24").reformat(format=pixels)
            frame.time_base = Fraction(1, 100) if times is not None else Fraction(1, rate)
            frame.pts = index if times is None else times[index]
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return path


def read(source, **options):
    with open_frames(source, **options) as clip:
        frames = list(clip)
    return clip, np.array(frames)


def error_of(frames, expected):
    return float(np.abs(frames.astype(float) - expected).mean())


def test_a_coloured_file(tmp_path):
    frames = ramp()
    clip, found = read(make_clip(tmp_path / "clip.mp4", frames))
    assert (clip.name, clip.height, clip.width, clip.channels, clip.rate) == ("clip.mp4", 48, 64, 3, 25.0)
    assert clip.n_frames == 12 and clip.problem is None
    assert found.shape == frames.shape and found.dtype == np.uint8 and error_of(found, frames) < 3
    assert np.allclose(clip.times, np.arange(12) / 25)


@pytest.mark.parametrize("colours", [1, 2, 5])  # BT.709, unknown, BT.470
@pytest.mark.parametrize("pixels", ["yuv420p", "yuv444p", "yuv420p10le", "yuv422p10le"])
@pytest.mark.parametrize("full", [False, True])
def test_grey_is_the_plane_of_brightness_spread_to_the_full_range(tmp_path, full, pixels, colours):
    luma = np.arange(256, dtype=np.uint8)[None].repeat(16, 0)
    deep = "10" in pixels
    frame = av.VideoFrame(256, 16, pixels)
    for plane, content in zip(frame.planes, (luma, 90, 170), strict=True):
        lines = np.frombuffer(memoryview(plane), np.uint16 if deep else np.uint8)
        lines = lines.reshape(-1, plane.line_size // (2 if deep else 1))
        lines[:, : plane.width] = np.multiply(content, 4 if deep else 1, dtype=np.uint16)
    frame.pts, frame.time_base, frame.color_range = 0, Fraction(1, 25), 2 if full else 1
    frame.colorspace = colours
    path = tmp_path / "clip.mkv"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("ffv1", rate=25)
        stream.height, stream.width, stream.pix_fmt = 16, 256, pixels
        stream.codec_context.color_range = 2 if full else 1
        stream.codec_context.colorspace = colours
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    found = read(path, grey=True)[1]
    spread = luma if full else np.clip(np.round((luma - 16.0) * 255 / 219), 0, 255)
    assert np.abs(found[0].astype(float) - spread).max() <= (1 if deep else 0)


@pytest.mark.parametrize(
    "codec, pixels, channels",
    [
        ("libx264", "yuv420p10le", 3),
        ("libx264", "yuv422p", 3),
        ("libx264", "yuv422p10le", 3),
        ("libx264", "yuv444p", 3),
        ("ffv1", "gray10le", 1),
        ("ffv1", "gray16le", 1),
        ("ffv1", "yuva420p", 3),
        ("ffv1", "bgra", 3),
        ("mjpeg", "yuvj420p", 3),
        ("mpeg4", "yuv420p", 3),
        ("gif", "rgb8", 3),
    ],
)
def test_pixel_formats(tmp_path, codec, pixels, channels):
    frames = ramp()
    path = make_clip(tmp_path / ("clip.gif" if codec == "gif" else "clip.mkv"), frames, codec, pixels)
    clip, found = read(path)
    bright = frames @ np.array([0.299, 0.587, 0.114])
    tolerance = {"gif": 25, "mpeg4": 8}.get(codec, 4)  # a gif has 4 to 8 levels a channel
    assert clip.channels == channels and clip.problem is None and len(found) == 12
    assert error_of(found, frames if channels == 3 else bright) < tolerance
    clip, found = read(path, grey=True)
    assert clip.channels == 1 and found.shape == (12, 48, 64) and error_of(found, bright) < tolerance
    clip, found = read(path, grey=False)
    assert clip.channels == 3 and found.shape == (12, 48, 64, 3)


@pytest.mark.parametrize("codec, pixels", [("ffv1", "yuv420p"), ("libx264", "yuv444p"), ("mpeg4", "yuv420p")])
def test_odd_sizes(tmp_path, codec, pixels):
    frames = ramp(height=33, width=47)
    _, found = read(make_clip(tmp_path / "clip.mkv", frames, codec, pixels))
    assert found.shape == frames.shape and error_of(found, frames) < 8
    assert read(tmp_path / "clip.mkv", grey=True)[1].shape == frames.shape[:3]


@pytest.mark.parametrize("ending", [".mp4", ".mkv"])
def test_a_variable_frame_rate_gives_the_times(tmp_path, ending):
    times = np.array([0, 4, 8, 40, 44, 100, 101, 150, 190, 200])
    clip, found = read(make_clip(tmp_path / f"clip{ending}", ramp(10), times=times + 50))
    assert len(found) == 10 and np.allclose(clip.times, times / 100, atol=0.002) and clip.problem is None


def test_a_given_rate_wins(tmp_path):
    clip, _ = read(make_clip(tmp_path / "clip.mp4", ramp(5)), rate=10)
    assert clip.rate == 10.0 and np.allclose(clip.times, [0, 0.1, 0.2, 0.3, 0.4])
    for rate in (0, -5, float("nan"), float("inf"), 1e6):
        with pytest.raises(ValueError, match="rate=.* frames a second; use"):
            open_frames(tmp_path / "clip.mp4", rate=rate)


@pytest.mark.parametrize(
    "ending, codec", [(".mp4", "libx264"), (".mkv", "libx264"), (".avi", "mpeg4"), (".mov", "mjpeg")]
)
def test_a_truncated_file_gives_the_frames_before(tmp_path, ending, codec):
    noise = np.random.default_rng(0).integers(0, 60, (40, 48, 64, 3), dtype=np.uint8)
    faststart = {"movflags": "+faststart"} if ending in (".mp4", ".mov") else {}
    pixels = "yuvj420p" if codec == "mjpeg" else "yuv420p"
    path = make_clip(tmp_path / f"clip{ending}", noise + ramp(40) // 2, codec, pixels, rate=10, options=faststart)
    clip, whole = read(path)
    assert len(whole) == 40 and clip.problem is None
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    clip, found = read(path)
    assert 1 <= len(found) < 32
    assert "breaks off after" in clip.problem and f"{len(found)} of 40" in clip.problem
    assert len(clip.times) == len(found)
    assert np.array_equal(found[:-1], whole[: len(found) - 1])  # the last may be cut in its middle


def test_what_cannot_be_opened_says_so(tmp_path):
    data = make_clip(tmp_path / "clip.mp4", ramp()).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) // 2])  # the index is at the end
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "noise.avi").write_bytes(np.random.default_rng(0).bytes(5000))
    (tmp_path / "text.txt").write_text("a text\nin lines\n" * 500)
    (tmp_path / "data.json").write_text('{"a": 1}')
    for name in ("cut.mp4", "empty.mp4", "noise.avi", "text.txt", "data.json"):
        with pytest.raises(ValueError, match=rf"source='.*{name}' (is not a readable video|holds no).*; "):
            open_frames(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="source='.*absent.mp4' does not exist; check"):
        open_frames(tmp_path / "absent.mp4")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = make_clip(tmp_path / "clip.mp4", ramp())
    path.chmod(0)
    with pytest.raises(PermissionError, match="may not be read; ask"):
        open_frames(path)


def make_song(path, cover):
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mp3", rate=44100)
        if cover:
            picture = file.add_stream("png", rate=1)
            picture.height, picture.width, picture.pix_fmt = 20, 20, "rgb24"
            picture.disposition = av.stream.Disposition.attached_pic
        sound = av.AudioFrame.from_ndarray(np.zeros((2, 44100), np.float32), format="fltp", layout="stereo")
        sound.rate = 44100
        if cover:
            frame = av.VideoFrame.from_ndarray(np.zeros((20, 20, 3), np.uint8), format="rgb24")
            file.mux([*picture.encode(frame), *picture.encode(None)])
        file.mux([*stream.encode(sound), *stream.encode(None)])
    return path


@pytest.mark.parametrize("cover", [False, True])
def test_sound_alone_is_refused_also_with_a_cover(tmp_path, cover):
    path = make_song(tmp_path / "song.mp3", cover)
    with av.open(str(path)) as file:
        assert len(file.streams.video) == cover
    with pytest.raises(ValueError, match="source='.*song.mp3' holds only audio; name a file"):
        open_frames(path)


def test_a_kind_of_video_nobody_knows(tmp_path):
    data = make_clip(tmp_path / "clip.avi", ramp(), "mpeg4").read_bytes()
    assert data.count(b"FMP4") == 2
    (tmp_path / "clip.avi").write_bytes(data.replace(b"FMP4", b"zzzz"))
    with pytest.raises(ValueError, match="source='.*clip.avi' is of a kind for which PyAV has no decoder; convert"):
        open_frames(tmp_path / "clip.avi")


def test_a_stream_without_frames(tmp_path):
    path = tmp_path / "clip.mkv"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=25)
        stream.height, stream.width, stream.pix_fmt = 32, 32, "yuv420p"
        file.start_encoding()
    with pytest.raises(ValueError, match="source='.*clip.mkv' .*; "):
        open_frames(path)


def test_a_change_of_size_ends_the_clip(tmp_path):
    first = make_clip(tmp_path / "a.h264", ramp(10)).read_bytes()
    second = make_clip(tmp_path / "b.h264", ramp(10, 32, 40)).read_bytes()
    (tmp_path / "ab.h264").write_bytes(first + second)
    clip, found = read(tmp_path / "ab.h264")
    assert found.shape == (10, 48, 64, 3) and error_of(found, ramp(10)) < 3
    assert "changes from 64x48 to 40x32 pixels after 10 frames" in clip.problem
    assert np.allclose(clip.times, np.arange(10) / 25)


def test_damaged_packets_are_left_out(tmp_path):
    frames = ramp(20)
    path = make_clip(tmp_path / "clip.mov", frames, "png", "rgb24")
    data = path.read_bytes()
    starts = [i for i in range(len(data)) if data.startswith(b"\x89PNG", i)]
    assert len(starts) == 20
    damaged = bytearray(data)
    damaged[starts[7] + 16 : starts[7] + 24] = bytes(8)  # a picture of no size
    path.write_bytes(damaged)
    clip, found = read(path)
    assert np.array_equal(found, np.delete(frames, 7, axis=0))
    assert "at least 1 of 20 packets are damaged" in clip.problem
    path.write_bytes(data.replace(b"\x89PNG", b"\x00PNG"))
    with pytest.raises(ValueError, match=r"no frame that is whole \(at least \d+ of 20 packets are damaged\); write"):
        open_frames(path)
    assert np.allclose(clip.times, np.delete(np.arange(20) / 25, 7), atol=0.002)


@pytest.mark.parametrize("degrees, turns", [(90, 1), (180, 2), (270, 3)])
def test_a_camera_held_sideways(tmp_path, degrees, turns):
    frames = ramp(3)
    path = make_clip(tmp_path / "clip.mp4", frames)
    data = bytearray(path.read_bytes())
    at = data.find(b"tkhd") + 44  # of the box of version 0
    cos, sin = (round(65536 * f(np.radians(degrees))) for f in (np.cos, np.sin))
    assert struct.unpack(">9i", data[at : at + 36]) == (65536, 0, 0, 0, 65536, 0, 0, 0, 1 << 30)
    data[at : at + 36] = struct.pack(">9i", cos, sin, 0, -sin, cos, 0, 0, 0, 1 << 30)  # turns clockwise
    path.write_bytes(data)
    clip, found = read(path)
    turned = np.rot90(frames, -turns, axes=(1, 2))
    assert (clip.height, clip.width) == turned.shape[1:3] and found.flags.c_contiguous
    assert error_of(found, turned) < 3


def test_odd_names_and_titles(tmp_path, monkeypatch):
    frames = ramp(3)
    monkeypatch.chdir(tmp_path)
    for name in ("a:b.mp4", "http:x.mp4", "100%d.mp4", " ü .mp4"):
        make_clip(tmp_path / "clip.mp4", frames).rename(name)
        assert len(read(name)[1]) == 3
    path = tmp_path / "clip.avi"
    with av.open(str(path), "w") as file:
        file.metadata["title"] = "Uebung"
        stream = file.add_stream("mpeg4", rate=25)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        file.mux([*stream.encode(av.VideoFrame.from_ndarray(frames[0], format="rgb24")), *stream.encode(None)])
    data = path.read_bytes()
    assert data.count(b"Uebung") == 1
    path.write_bytes(data.replace(b"Uebung", b"\xdcbung."))  # Latin-1
    assert len(read(path)[1]) == 1


def test_without_pyav(tmp_path, monkeypatch):
    path = make_clip(tmp_path / "clip.mp4", ramp(2))
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"pip install lrpca\[video\]"):
        open_frames(path)
    assert len(read(np.zeros((2, 4, 6), np.uint8))[1]) == 2


def test_read_into_fills_blocks_from_the_front(tmp_path):
    path = make_clip(tmp_path / "clip.mov", ramp(11), "png", "rgb24")
    with open_frames(path) as clip:
        block = np.full((4, 48, 64, 3), 7, np.uint8)
        assert clip.read_into(block) == 4 and np.array_equal(block, ramp(11)[:4])
        assert np.array_equal(next(iter(clip)), ramp(11)[4])
        wide = np.zeros((4, 48, 70, 3), np.uint8)
        assert clip.read_into(wide[:, :, 3:67]) == 4 and np.array_equal(wide[:, :, 3:67], ramp(11)[5:9])
        before = block.copy()
        assert clip.read_into(block) == 2
        assert np.array_equal(block[:2], ramp(11)[9:]) and np.array_equal(block[2:], before[2:])
        assert clip.read_into(block) == 0 and list(clip) == [] and len(clip.times) == 11
        for wrong in (np.zeros((4, 48, 64), np.uint8), np.zeros((4, 48, 64, 3), np.int8)):
            with pytest.raises(ValueError, match="block has shape"):
                clip.read_into(wrong)
    with pytest.raises(ValueError, match="closed; open it again"):
        clip.read_into(block)
    clip.close()


def test_times_go_forward_whatever_the_source_says():
    frame = np.zeros((4, 5), np.uint8)
    times = [0.0, 0.5, 0.5, None, 0.1, 2.0]
    frames = iter([(time, frame) for time in times])
    with FrameReader("clip", 4, 5, 1, 10.0, None, frames) as clip:
        assert len(list(clip)) == 6
    assert np.allclose(clip.times, [0.0, 0.5, 0.6, 0.7, 0.8, 2.0])


def test_frames_are_fresh(tmp_path):
    source = np.zeros((3, 4, 6), np.uint8)
    for frame in open_frames(source):
        assert frame.flags.owndata and frame.flags.writeable and frame.flags.c_contiguous
        frame += 1
    assert not source.any()
    first, second, *_ = open_frames(make_clip(tmp_path / "clip.mov", ramp(), "png", "rgb24"))
    assert np.array_equal(first, ramp()[0]) and np.array_equal(second, ramp()[1])


# Folders


def write_picture(path, picture):
    from PIL import Image

    Image.fromarray(picture).save(path)
    return path


@pytest.fixture
def pictures():
    pytest.importorskip("PIL", reason="pictures are made with pillow")
    return ramp(12)


@pytest.mark.parametrize("ending", [".png", ".bmp", ".tif", ".ppm", ".jpg", ".webp", ".JPG"])
def test_a_folder_of_pictures(tmp_path, pictures, ending):
    for index, picture in enumerate(pictures):
        write_picture(tmp_path / f"frame{index}{ending}", picture)
    (tmp_path / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "._frame0.png").write_bytes(b"x")
    (tmp_path / "more.png").mkdir()
    clip, found = read(tmp_path)
    exact = ending in (".png", ".bmp", ".tif", ".ppm")
    assert (clip.n_frames, clip.rate, clip.name, clip.channels) == (12, 25.0, tmp_path.name, 3)
    assert found.shape == pictures.shape and error_of(found, pictures) <= (0 if exact else 4)
    assert np.allclose(clip.times, np.arange(12) / 25)


def test_grey_pictures(tmp_path, pictures):
    for index, picture in enumerate(pictures):
        write_picture(tmp_path / f"{index:03d}.png", picture[:, :, 0])
    clip, found = read(tmp_path)
    assert clip.channels == 1 and np.array_equal(found, pictures[..., 0])
    assert np.array_equal(read(tmp_path, grey=False)[1], pictures[..., :1].repeat(3, 3))


def test_one_picture_of_any_kind_and_name(tmp_path, pictures):
    path = write_picture(tmp_path / "3.bmp", pictures[3]).rename(tmp_path / "100%d.png")
    clip, found = read(str(path))
    assert clip.n_frames == 1 and np.array_equal(found, pictures[3:4])


def test_a_palette_and_a_photo_taken_sideways(tmp_path, pictures):
    from PIL import Image

    Image.fromarray(pictures[0]).quantize(256).save(tmp_path / "picture.png")
    clip, found = read(tmp_path / "picture.png")
    assert clip.channels == 3 and error_of(found[0], pictures[0]) < 4
    turned = Image.Exif()
    turned[0x112] = 6  # to be turned clockwise
    Image.fromarray(pictures[0]).save(tmp_path / "photo.jpg", quality=95, exif=turned)
    assert error_of(read(tmp_path / "photo.jpg")[1][0], np.rot90(pictures[0], -1)) < 3


def test_numbers_in_names_sort_by_value(tmp_path, pictures):
    names = ["a1.png", "a2.png", "a10.png", "a10b2.png", "a10b11.png", "b01.png", "b1.png", "c.png"]
    for index, name in reversed(list(enumerate(names))):
        write_picture(tmp_path / name, np.full((4, 4), index, np.uint8))
    assert read(tmp_path)[1][:, 0, 0].tolist() == list(range(8))


def test_folders_that_are_refused(tmp_path, pictures):
    (tmp_path / "clip.mp4").write_bytes(b"x")
    with pytest.raises(ValueError, match="source='.*' is a folder without pictures; name a video"):
        open_frames(tmp_path)
    write_picture(tmp_path / "0.png", pictures[0])
    write_picture(tmp_path / "1.png", pictures[1, :40])
    clip = open_frames(tmp_path)
    with pytest.raises(ValueError, match="several sizes: '1.png' is 64x40 where '0.png' is 64x48; keep"):
        list(clip)
    (tmp_path / "1.png").write_bytes((tmp_path / "0.png").read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"source='.*1.png' is a damaged picture \(.*\); remove it"):
        list(open_frames(tmp_path))
    (tmp_path / "1.png").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="source='.*1.png' is not a picture; remove it"):
        list(open_frames(tmp_path))


@pytest.mark.parametrize("ending", [".png", ".bmp", ".tif", ".jpg", ".webp"])
def test_a_truncated_picture_is_refused(tmp_path, pictures, ending):
    path = write_picture(tmp_path / f"picture{ending}", pictures[0])
    whole = path.read_bytes()
    assert len(read(path)[1]) == 1
    path.write_bytes(whole[: len(whole) * 9 // 10])
    with pytest.raises(ValueError, match=r"picture.* is a damaged picture \(.*\); remove it"):
        open_frames(path)


# Arrays


def mapped(folder, frames):
    np.save(folder / "frames.npy", frames)
    return np.load(folder / "frames.npy", mmap_mode="r")


LAYOUTS = {
    "C": lambda _, frames: frames,
    "F": lambda _, frames: np.asfortranarray(frames),
    "view": lambda _, frames: np.repeat(frames, 2, axis=2)[:, :, ::2][::-1][::-1],
    "readonly": lambda _, frames: np.frombuffer(frames.tobytes(), np.uint8).reshape(frames.shape),
    "memmap": mapped,
    "list": lambda _, frames: list(frames),
    "generator": lambda _, frames: (frame for frame in frames),
    "int64": lambda _, frames: frames.astype(np.int64),
}


@pytest.mark.parametrize("shape", [(5, 7, 9), (5, 7, 9, 1), (5, 7, 9, 3), (5, 7, 9, 4)])
@pytest.mark.parametrize("order", LAYOUTS)
def test_arrays_of_any_layout(tmp_path, shape, order):
    frames = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    clip, found = read(LAYOUTS[order](tmp_path, frames))
    expected = frames if len(shape) == 3 else frames[..., 0] if shape[3] == 1 else frames[..., :3]
    assert np.array_equal(found, expected) and found.dtype == np.uint8
    assert clip.n_frames == (None if order == "generator" else 5)
    assert (clip.height, clip.width, clip.channels) == (7, 9, 1 if expected.ndim == 3 else 3)
    assert (clip.name, clip.rate, clip.problem) == ("frames", 25.0, None)


def test_arrays_become_grey_or_coloured():
    frames = np.random.default_rng(0).integers(0, 256, (4, 7, 9, 3), dtype=np.uint8)
    found = read(frames, grey=True)[1]
    assert np.array_equal(found, np.floor(frames @ np.array([19595, 38470, 7471]) / 65536 + 0.5))
    assert np.array_equal(read(np.full((1, 2, 2, 3), 255, np.uint8), grey=True)[1], np.full((1, 2, 2), 255))
    assert np.array_equal(read(frames[..., 0], grey=False)[1], frames[..., :1].repeat(3, 3))
    mask = frames[..., 0] > 127
    assert np.array_equal(read(mask)[1], np.where(mask, 255, 0))
    with pytest.raises(ValueError, match="grey='yes' is not a yes or no; use"):
        open_frames(frames, grey="yes")


@pytest.mark.parametrize(
    "source, message",
    [
        (np.zeros((0, 4, 5), np.uint8), "source has no frames; give"),
        ([], "source has no frames; give"),
        (np.zeros((4, 5), np.uint8), r"source has shape \(4, 5\); use"),
        (np.zeros((4, 0, 5), np.uint8), r"source has a frame 0 of shape \(0, 5\); use"),
        (np.zeros((4, 5, 3), np.uint8), r"one frame in colour; use source\[None\]"),
        (np.zeros((2, 4, 5, 2), np.uint8), r"source has a frame 0 of shape \(4, 5, 2\); use"),
        (np.zeros((2, 4, 5)), "source has dtype float64; scale"),
        (np.zeros((2, 4, 5), complex), "source has dtype complex128; scale"),
        (np.full((2, 4, 5), 256), "source has values from 256 to 256 in frame 0; scale"),
        (np.full((2, 4, 5), -1), "source has values from -1 to -1 in frame 0; scale"),
        (["a.png", "b.png"], "source has a frame 0 of type str; use"),
        (5, "source=int is not a clip; use"),
        (b"clip.mp4", "source=bytes is not a clip; use"),
        (None, "source=NoneType is not a clip; use"),
    ],
)
def test_arrays_that_are_refused(source, message):
    with pytest.raises(ValueError, match=message):
        open_frames(source)


def test_what_is_wrong_with_a_later_frame_is_said_there():
    frame = np.zeros((4, 5), np.uint8)
    for wrong, message in [
        (np.zeros((4, 6), np.uint8), r"several shapes: frame 2 has \(4, 6\) where the first has \(4, 5\); give"),
        (np.full((4, 5), 300), "values from 300 to 300 in frame 2; scale"),
        (None, "a frame 2 of type NoneType; use"),
    ]:
        clip = open_frames([frame, frame, wrong])
        with pytest.raises(ValueError, match=message):
            list(clip)
        assert len(clip.times) == 2
