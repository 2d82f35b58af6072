import io
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lrpca.video.pictures import encode_picture
from lrpca.video.reading import open_frames
from lrpca.video.writing import PictureFolder, VideoFile
from tests.helpers.full_disk import full_disk

av = pytest.importorskip("av", reason="needs the extra video")


def scene(n=20, height=48, width=64, channels=3):
    """A still coloured background with a bright square that moves."""
    y, x = np.mgrid[:height, :width]
    background = np.stack([40 + 2 * y, 30 + 2 * x, 150 - y], -1).clip(0, 255).astype(np.uint8)
    frames = np.repeat(background[None], n, 0)
    for index, frame in enumerate(frames):
        frame[8:20, 2 * index : 2 * index + 12] = (230, 60, 30)
    return frames if channels == 3 else frames[..., 0]


def read(path, **options):
    with open_frames(path, **options) as clip:
        frames = np.array(list(clip))
    assert clip.problem is None
    return clip, frames


def write_all(clip, frames):
    for frame in frames:
        clip.write(frame)


def write(path, frames, rate=25.0, **options):
    with VideoFile(path, *frames.shape[1:3], rate, **options) as clip:
        write_all(clip, frames)
    return path


def error_of(frames, expected):
    return float(np.abs(frames.astype(float) - expected).mean())


def atoms(path):
    """Names of the boxes of an mp4 file, in order."""
    data, at, names = path.read_bytes(), 0, []
    while at < len(data):
        names.append(data[at + 4 : at + 8].decode())
        at += int.from_bytes(data[at : at + 4], "big")
    return names


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("ending", [".mp4", ".mov", ".m4v", ".mkv"])
def test_a_clip_comes_back(tmp_path, channels, ending):
    frames = scene(channels=channels)
    clip, found = read(write(tmp_path / f"clip{ending}", frames, channels=channels), grey=channels == 1)
    assert found.shape == frames.shape and error_of(found, frames) < 3 and clip.rate == 25.0
    assert np.allclose(clip.times, np.arange(20) / 25, atol=0.002)
    assert [file.name for file in tmp_path.iterdir()] == [f"clip{ending}"]


def test_browsers_can_play_it(tmp_path):
    path = write(tmp_path / "clip.mp4", scene())
    names = atoms(path)
    assert names.index("moov") < names.index("mdat")
    with av.open(str(path)) as file:
        (stream,) = file.streams
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        frame = next(file.decode(stream))
        assert (frame.colorspace, frame.color_range) == (1, 1)  # BT.709, limited: as players assume


def test_colours_are_right(tmp_path):
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [0, 0, 0], [200, 120, 40]], np.uint8)
    frames = np.repeat(np.repeat(colours[None, None], 32, 1), 16, 2).repeat(5, 0)
    _, found = read(write(tmp_path / "clip.mp4", frames))
    assert np.abs(found[:, 16, 8::16].astype(int) - frames[:, 16, 8::16]).max() <= 6


@pytest.mark.parametrize("height, width", [(32, 48), (33, 48), (32, 47), (33, 47), (1, 1), (2, 2), (1, 50), (17, 3)])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("lossless", [False, True])
def test_odd_sizes_repeat_the_last_row_and_column(tmp_path, height, width, channels, lossless):
    frames = scene(6, height, width, channels)
    path = write(tmp_path / "clip.mp4", frames, channels=channels, lossless=lossless)
    _, found = read(path, grey=channels == 1)
    rest = ((0, 0), (0, height % 2), (0, width % 2), (0, 0))[: frames.ndim]
    padded = np.pad(frames, rest, mode="edge")
    assert found.shape == padded.shape
    assert np.array_equal(found, padded) if lossless else error_of(found, padded) < 12


@pytest.mark.parametrize("channels", [1, 3])
def test_lossless_keeps_every_value(tmp_path, channels):
    frames = np.random.default_rng(0).integers(0, 256, (5, 32, 48, 3), dtype=np.uint8)
    frames = frames if channels == 3 else frames[..., 0]
    _, found = read(write(tmp_path / "clip.mp4", frames, channels=channels, lossless=True), grey=channels == 1)
    assert np.array_equal(found, frames)


def test_frames_may_be_reused_by_the_caller(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (8, 32, 48, 3), dtype=np.uint8)
    buffer = np.empty((32, 48, 3), np.uint8)
    with VideoFile(tmp_path / "clip.mp4", 32, 48, 25.0, lossless=True) as clip:
        for frame in frames:
            buffer[...] = frame
            clip.write(buffer)
            buffer[...] = 0
    assert np.array_equal(read(tmp_path / "clip.mp4")[1], frames)


def test_masks_grey_frames_and_odd_layouts(tmp_path):
    frames = scene(4)
    mask = frames[..., 0] > 128
    _, found = read(write(tmp_path / "mask.mp4", mask, channels=1), grey=True)
    assert np.array_equal(found > 128, mask) and error_of(found, 255.0 * mask) < 3
    _, found = read(write(tmp_path / "grey.mp4", frames[..., 0], channels=3), grey=True)
    assert error_of(found, frames[..., 0]) < 3
    _, found = read(write(tmp_path / "order.mp4", np.asfortranarray(frames)[:, ::-1]))
    assert error_of(found, frames[:, ::-1]) < 3
    frames.flags.writeable = False
    assert error_of(read(write(tmp_path / "fixed.mp4", frames))[1], frames) < 3
    assert np.array_equal(read(write(tmp_path / "fixed.mp4", frames, lossless=True))[1], frames)
    assert encode_picture(frames[0]) and encode_picture(frames[0], "jpeg")


@pytest.mark.parametrize("rate", [25, 30000 / 1001, 12.5, 1 / 3, 0.01, 1000, 23.9743])
def test_rates(tmp_path, rate):
    clip, found = read(write(tmp_path / "clip.mp4", scene(5, 32, 32), rate))
    assert len(found) == 5 and clip.rate == pytest.approx(rate, rel=1e-3)
    assert np.allclose(np.array(clip.times) * rate, np.arange(5), rtol=1e-3)


def test_one_frame_and_black_frames(tmp_path):
    assert len(read(write(tmp_path / "one.mp4", scene(1)))[1]) == 1
    _, found = read(write(tmp_path / "black.mp4", np.zeros((9, 32, 32), np.uint8), channels=1))
    assert len(found) == 9 and not found.any()


def test_folders_are_made_and_files_replaced_only_when_finished(tmp_path):
    path = tmp_path / "new" / "folder" / "clip.mp4"
    write(path, scene(4))
    old = path.read_bytes()
    clip = VideoFile(path, 48, 64, 25.0)
    for frame in scene(30):
        clip.write(frame)
        assert path.read_bytes() == old
    clip.close()
    clip.close()
    clip.discard()
    assert len(read(path)[1]) == 30
    assert [file.name for file in path.parent.iterdir()] == ["clip.mp4"]
    with pytest.raises(ValueError, match="is closed; make another"):
        clip.write(scene(1)[0])


def test_discard_leaves_what_was_there(tmp_path):
    path = write(tmp_path / "clip.mp4", scene(4))
    clip = VideoFile(path, 48, 64, 25.0)
    for frame in scene(30):
        clip.write(frame)
    assert len(list(tmp_path.iterdir())) == 2  # the temporary file
    clip.discard()
    clip.close()
    assert [file.name for file in tmp_path.iterdir()] == ["clip.mp4"] and len(read(path)[1]) == 4


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("writer", [VideoFile, PictureFolder])
def test_an_exception_finishes_the_clip(tmp_path, writer, kind):
    path = tmp_path / "clip.mp4"
    for n_frames in (0, 7):  # without frames there is no clip
        with pytest.raises(kind), writer(path, 48, 64, 25.0) as clip:
            write_all(clip, scene(n_frames))
            raise kind
        assert path.exists() == (n_frames > 0)
    assert error_of(read(path)[1], scene(7)) < 3
    assert [file.name for file in tmp_path.iterdir()] == ["clip.mp4"]


@pytest.mark.parametrize("writer", [VideoFile, PictureFolder])
def test_an_interrupt_while_finishing_leaves_nothing(tmp_path, monkeypatch, writer):
    def interrupt():
        raise KeyboardInterrupt

    clip = writer(tmp_path / "clip.mp4", 48, 64, 25.0)
    write_all(clip, scene(30))
    monkeypatch.setattr(clip, "_finish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        clip.close()
    assert list(tmp_path.iterdir()) == []


ENDLESS = """
import itertools, sys
import numpy as np
from lrpca.video.writing import VideoFile
frame = np.zeros((240, 320, 3), np.uint8)
with VideoFile(sys.argv[1], 240, 320, 25.0) as clip:
    for index in itertools.count():
        frame[:] = index % 200
        clip.write(frame)
        if index == 50:
            print("running", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal of Unix")
def test_ctrl_c_leaves_a_whole_file(tmp_path):
    command = [sys.executable, "-c", ENDLESS, str(tmp_path / "clip.mp4")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"running\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode != 0
    assert [file.name for file in tmp_path.iterdir()] == ["clip.mp4"]
    _, found = read(tmp_path / "clip.mp4", grey=True)
    assert len(found) >= 51 and np.abs(found[:, 0, 0].astype(int) - np.arange(len(found)) % 200).max() <= 3


@pytest.mark.parametrize("writer", [VideoFile, PictureFolder])
def test_without_frames_there_is_no_clip(tmp_path, writer):
    with writer(tmp_path / "clip.mp4", 48, 64, 25.0):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lossless", [False, True])
@pytest.mark.parametrize("n_bytes", [10, 3000, 20000])
def test_a_full_disk(tmp_path, n_bytes, lossless):
    path = write(tmp_path / "clip.mp4", scene(4))
    old = path.read_bytes()
    frames = np.random.default_rng(0).integers(0, 256, (60, 48, 64, 3), dtype=np.uint8)
    with full_disk(n_bytes), pytest.raises(OSError, match=r"path='.*' cannot be written \(File too large\); choose"):
        write(path, frames, lossless=lossless)
    with full_disk(10), pytest.raises(OSError, match=r"path='.*masks' cannot be written \(File too large\)"):
        PictureFolder(tmp_path / "masks", 48, 64).write(frames[0])
    with full_disk(10), pytest.raises(RuntimeError, match="mine"), VideoFile(path, 48, 64, 25.0) as clip:
        clip.write(frames[0])
        raise RuntimeError("mine")  # the first error is the one that is raised
    assert path.read_bytes() == old and [file.name for file in tmp_path.iterdir()] == ["clip.mp4"]


def test_a_full_disk_without_a_with_statement(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (60, 48, 64, 3), dtype=np.uint8)
    clip = VideoFile(tmp_path / "clip.mp4", 48, 64, 25.0, lossless=True)  # soon more than FFmpeg holds back
    with full_disk(20000), pytest.raises(OSError, match="cannot be written"):
        for frame in frames:
            clip.write(frame)
    assert 0 < clip.n_frames < 60 and list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_at_the_very_end(tmp_path):
    size = write(tmp_path / "clip.mp4", scene(30)).stat().st_size
    (tmp_path / "clip.mp4").unlink()
    for n_bytes in range(200, size, max(1, size // 25)):
        with full_disk(n_bytes), pytest.raises(OSError, match="cannot be written"):
            write(tmp_path / "clip.mp4", scene(30))
        assert list(tmp_path.iterdir()) == []


def test_places_that_take_no_file(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "clip.mp4").mkdir()
    for path in (tmp_path / "file" / "clip.mp4", tmp_path / "clip.mp4", "/proc/clip.mp4"):
        with pytest.raises(OSError, match="path='.*'.*; choose another"):
            VideoFile(path, 48, 64, 25.0)
    for path in (tmp_path / "file", tmp_path / "file" / "masks", "/proc/masks"):
        with pytest.raises(OSError, match="path='.*'.*; choose another"):
            PictureFolder(path, 48, 64)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["clip.mp4", "file"]


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        (("clip.mp4", 0, 64, 25), {}, "height=0, width=64 is no size"),
        (("clip.mp4", 48, 64, 0), {}, "rate=0 is not between"),
        (("clip.mp4", 48, 64, float("nan")), {}, "rate=nan is not between"),
        (("clip.mp4", 48, 64, 25), {"channels": 2}, "channels=2 is not written; use"),
        (("clip.gif", 48, 64, 25), {}, "path='.*clip.gif' does not end in .mp4 .*; use .mp4"),
        (("clip", 48, 64, 25), {}, "path='.*clip' does not end in .mp4 .*; use .mp4"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        VideoFile(tmp_path / arguments[0], *arguments[1:], **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("writer", [VideoFile, PictureFolder])
def test_wrong_frames_are_refused_and_the_clip_goes_on(tmp_path, writer):
    with writer(tmp_path / "clip.mp4", 48, 64, 25.0, channels=1) as clip:
        for wrong, message in [
            (np.zeros((48, 65), np.uint8), r"frame has shape \(48, 65\); this clip takes \(48, 64\)"),
            (np.zeros((48, 64, 3), np.uint8), r"frame has shape \(48, 64, 3\); this clip takes \(48, 64\)"),
            (np.zeros((48, 64, 4), np.uint8), r"frame has shape \(48, 64, 4\); use"),
            (np.zeros((48, 64)), "frame has dtype float64; use uint8"),
        ]:
            with pytest.raises(ValueError, match=message):
                clip.write(wrong)
        clip.write(np.zeros((48, 64), np.uint8))
    assert len(read(tmp_path / "clip.mp4")[1]) == 1


def test_a_folder_of_pictures_appears_when_finished(tmp_path):
    frames = scene(12)
    with PictureFolder(tmp_path / "new" / "masks", 48, 64) as clip:
        for frame in frames:
            clip.write(frame)
            assert not (tmp_path / "new" / "masks").exists()
    assert clip.n_frames == 12 and [file.name for file in (tmp_path / "new").iterdir()] == ["masks"]
    names = sorted(file.name for file in (tmp_path / "new" / "masks").iterdir())
    assert names == [f"{index:06d}.png" for index in range(1, 13)]
    assert np.array_equal(read(tmp_path / "new" / "masks")[1], frames)


def test_pictures_of_an_earlier_clip_are_replaced_and_other_files_stay(tmp_path):
    for n_frames in (12, 5):
        with PictureFolder(tmp_path, 48, 64, channels=1) as clip:
            write_all(clip, scene(n_frames, channels=1))
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / "mine.png.bak").write_text("mine")
    assert np.array_equal(read(tmp_path)[1], scene(5, channels=1))
    assert len(list(tmp_path.iterdir())) == 7
    clip = PictureFolder(tmp_path, 48, 64)
    clip.write(scene(1)[0])
    clip.discard()
    assert len(list(tmp_path.iterdir())) == 7


def test_an_interrupt_leaves_no_half_picture(tmp_path, monkeypatch):
    write_bytes = Path.write_bytes

    def interrupt(path, data):
        write_bytes(path, data[: len(data) // 2])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), PictureFolder(tmp_path / "masks.mp4", 48, 64) as clip:
        clip.write(scene(3)[0])
        clip.write(scene(3)[1])
        monkeypatch.setattr(Path, "write_bytes", interrupt)
        clip.write(scene(3)[2])
    assert np.array_equal(read(tmp_path / "masks.mp4")[1], scene(3)[:2])


def test_a_full_disk_leaves_no_pictures(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (3, 48, 64, 3), dtype=np.uint8)
    frames[0] = 0  # small enough
    with full_disk(2000), pytest.raises(OSError, match=r"path='.*masks' cannot be written \(File too large\)"):
        with PictureFolder(tmp_path / "masks", 48, 64) as clip:
            for frame in frames:
                clip.write(frame)
    assert clip.n_frames == 1 and list(tmp_path.iterdir()) == []


def test_other_programs_read_the_pictures():
    image = pytest.importorskip("PIL.Image", reason="compares with pillow")
    picture = scene(1)[0]
    assert np.array_equal(np.asarray(image.open(io.BytesIO(encode_picture(picture)))), picture)
    mask = picture[..., 0] > 100
    assert np.array_equal(np.asarray(image.open(io.BytesIO(encode_picture(mask)))), np.where(mask, 255, 0))
    noisy = np.random.default_rng(0).integers(0, 80, (96, 128, 3), dtype=np.uint8) + scene(1, 96, 128)[0] // 2
    jpegs = [encode_picture(noisy, "jpeg", quality=quality) for quality in (90, 75, 50, 20, 1)]
    assert all(len(better) > 1.1 * len(worse) for better, worse in zip(jpegs, jpegs[1:], strict=False))
    assert error_of(np.asarray(image.open(io.BytesIO(encode_picture(picture, "jpeg")))), picture) < 4


@pytest.mark.parametrize(
    "arguments, options, message",
    [
        ((scene(1)[0], "gif"), {}, "kind='gif' is not written; use"),
        ((scene(1)[0], "jpeg"), {"quality": 0}, "quality=0 is not between 1 and 100; use"),
        ((np.zeros(4, np.uint8),), {}, r"frame has shape \(4,\); use"),
    ],
)
def test_pictures_that_are_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        encode_picture(*arguments, **options)


def test_without_pyav(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    for make in (VideoFile, PictureFolder):
        with pytest.raises(ImportError, match=r"pip install lrpca\[video\]"):
            make(tmp_path / "clip.mp4", 48, 64, 25.0)
    assert list(tmp_path.iterdir()) == []
