"""The command ``lrpca video`` as a user meets it: what is written and printed, every exit code, and Ctrl-C."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer", reason="needs the extra cli")

from lrpca.cli import ExitCode, main
from lrpca.cli.video import tell
from lrpca.video import Progress, open_frames

pytest.importorskip("av", reason="PyAV is not installed; pip install lrpca[video]")

from lrpca.video.learning import SceneLearner
from lrpca.video.preview import Preview
from lrpca.video.scene import Scene
from lrpca.video.writing import PictureFolder, VideoFile
from tests.helpers.cli import Capsys, Patch, error_line, start
from tests.helpers.full_disk import full_disk
from tests.helpers.terminal import run_in_terminal

HEIGHT, WIDTH, N_FRAMES = 48, 64, 60
VIDEOS = ["background.mp4", "foreground.mp4", "mask.mp4", "overlay.mp4"]
EVERYTHING = [*VIDEOS, "report.html", "result.json"]


def square(index: int) -> tuple[slice, slice]:
    """Where the square is in a frame: it comes in from the left and goes out to the right."""
    left = 2 * (index % 45) - 20
    return slice(16, 30), slice(max(0, left), max(0, left + 14))


def render(index: int) -> np.ndarray:
    """Return a frame: a red square before a grey slope with a little noise."""
    noise = np.random.default_rng(index).integers(-2, 3, (HEIGHT, WIDTH, 1))
    frame = np.repeat(np.linspace(60, 140, WIDTH)[None, :, None] + noise, 3, axis=2).astype(np.uint8)
    frame[square(index)] = (220, 30, 30)
    return frame


def write_clip(path: str, n_frames: int = N_FRAMES) -> None:
    with VideoFile(path, HEIGHT, WIDTH, 25.0) as clip:
        for index in range(n_frames):
            clip.write(render(index))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Return a working directory that holds a clip as clip.mp4."""
    monkeypatch.chdir(tmp_path)
    write_clip("clip.mp4")
    return tmp_path


def decoded(path: Path, *, grey: bool | None = None) -> np.ndarray:
    with open_frames(path, grey=grey) as clip:
        frames = np.stack(list(clip))
        assert clip.problem is None
        return frames


def figures(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "result.json").read_text()))


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


# --- what is written ---------------------------------------------------------------------------------------


def test_videos_page_and_figures(folder: Path, capsys: Capsys) -> None:
    assert main(["video", "clip.mp4"]) == ExitCode.DONE
    out, err = capsys.readouterr()
    assert names(folder / "clip-separated") == EVERYTHING
    for name in VIDEOS:
        assert decoded(folder / "clip-separated" / name).shape[:3] == (N_FRAMES, HEIGHT, WIDTH)
    masks = decoded(folder / "clip-separated" / "mask.mp4", grey=True) > 127
    truth = np.zeros_like(masks)
    for index in range(N_FRAMES):
        truth[index][square(index)] = True
    assert 2 * (masks & truth).sum() / (masks.sum() + truth.sum()) > 0.9
    result = figures(folder / "clip-separated")
    assert result["complete"] is True and result["frames"] == N_FRAMES and result["colour"] is True
    assert result["mean_foreground"] == pytest.approx(masks.mean(), abs=1e-3)
    busiest = int(np.argmax(masks.mean(axis=(1, 2)))) + 1
    for part in ("clip.mp4, 60 frames of 64x48, colour", "frames a second", "clip-separated/mask.mp4"):
        assert part in out
    assert f"{masks.mean():.2%} on average" in out and f"(frame {busiest}, at 0:0" in out
    assert out.rstrip().endswith("clip-separated/report.html")
    # No terminal: a line for each stage, and no control characters.
    assert [line.split()[0] for line in err.splitlines()] == ["learning", "separating,", "finishing"]
    assert "\x1b" not in err


def test_a_clip_in_which_nothing_moves(folder: Path, capsys: Capsys) -> None:
    with VideoFile("one.mp4", HEIGHT, WIDTH, 25.0) as clip:
        clip.write(render(0))
    assert main(["video", "one.mp4"]) == ExitCode.DONE
    out = capsys.readouterr().out
    assert "one.mp4, one frame of 64x48" in out and "none found" in out
    assert figures(folder / "one-separated")["frames"] == 1


def test_pictures_in_and_out(folder: Path, capsys: Capsys) -> None:
    with PictureFolder("shots", HEIGHT, WIDTH) as clip:
        for index in range(N_FRAMES):
            clip.write(render(index))
    assert main(["video", "shots", "--masks", "pictures", "--grey", "--quiet"]) == ExitCode.DONE
    assert capsys.readouterr() == ("", "")
    out = folder / "shots-separated"
    assert names(out) == sorted([*EVERYTHING[:2], "mask", *EVERYTHING[3:]])
    masks = decoded(out / "mask")
    assert masks.shape == (N_FRAMES, HEIGHT, WIDTH) and set(np.unique(masks)) == {0, 255}
    assert figures(out)["colour"] is False


def test_region_and_resolution(folder: Path) -> None:
    assert main(["video", "clip.mp4", "-o", "a/b", "--roi", "0, 0, 40,48", "--downscale", "2", "-q"]) == ExitCode.DONE
    masks = decoded(folder / "a" / "b" / "mask.mp4", grey=True)
    assert masks.shape[1:] == (HEIGHT, WIDTH) and masks[:, :, :40].any() and not masks[:, :, 40:].any()
    assert figures(folder / "a" / "b")["solved_at"] == "32x24"
    with PictureFolder("where", HEIGHT, WIDTH) as pictures:
        pictures.write(np.arange(WIDTH)[None, :].repeat(HEIGHT, axis=0) < 40)
    assert main(["video", "clip.mp4", "-o", "c", "--ignore", "where/000001.png", "-q"]) == ExitCode.DONE
    masks = decoded(folder / "c" / "mask.mp4", grey=True)
    assert masks[:, :, 40:].any() and not masks[:, :, :40].any()


def test_a_second_run_replaces_the_first_if_forced(folder: Path, capsys: Capsys) -> None:
    assert main(["video", "clip.mp4", "-o", "out", "-q"]) == ExitCode.DONE
    (folder / "out" / "notes.txt").write_text("mine")
    write_clip("clip.mp4", 30)
    assert main(["video", "clip.mp4", "-o", "out", "-q"]) == ExitCode.OUTPUT
    err = capsys.readouterr().err
    assert err.startswith("lrpca: path='out/background.mp4' exists; ") and "--force" in err and err.count("\n") == 1
    assert figures(folder / "out")["frames"] == N_FRAMES
    assert main(["video", "clip.mp4", "-o", "out", "-q", "--force"]) == ExitCode.DONE
    assert names(folder / "out") == sorted([*EVERYTHING, "notes.txt"])
    assert figures(folder / "out")["frames"] == len(decoded(folder / "out" / "mask.mp4")) == 30


# --- what is printed ---------------------------------------------------------------------------------------


def test_a_restless_background_is_warned_of(folder: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    for share, warned in ((0.4, False), (0.6, True)):
        everywhere = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) < share * HEIGHT * WIDTH
        monkeypatch.setattr(Scene, "dynamic", property(lambda _, everywhere=everywhere: everywhere))
        assert main(["video", "clip.mp4", "-o", "out", "-q", "-f"]) == ExitCode.DONE
        err = capsys.readouterr().err
        assert err.startswith("lrpca: warning: 60% of the background is moving") if warned else err == ""


def test_how_far_it_is() -> None:
    first = Progress(64, 1000, 10.0)
    assert tell(first, first) == "64 of 1000 frames"  # one moment has no pace
    assert tell(first, Progress(128, 1000, 12.0)) == "128 of 1000 frames, 32 a second, 0:27 left"
    assert tell(first, Progress(128, 200_000, 12.0)) == "128 of 200000 frames, 32 a second, 1:44:06 left"
    # No length, or one that turned out wrong, leaves nothing to tell of the end.
    for n_frames in (None, 100):
        assert tell(Progress(64, n_frames, 10.0), Progress(128, n_frames, 12.0)) == "128 frames, 32 a second"


def test_bar_on_a_terminal(folder: Path) -> None:
    write_clip("clip.mp4", 200)
    code, shown, out = run_in_terminal("video", "clip.mp4", "-o", "out", columns=100)
    assert code == ExitCode.DONE
    for part in (b"learning the background", b"200 of 200 frames", b"a second", b"0:00 left", b"\x1b["):
        assert part in shown
    assert "report.html" in out.decode() and "\x1b[" not in out.decode()


# --- exit codes --------------------------------------------------------------------------------------------


WRONG = ("--rank=0", "--rank=two", "--sensitivity=0", "--sensitivity=nan", "--window=1", "--masks=paper", "--roi=1,2,3")
WRONG += ("--roi=1,2,3,-4", "--roi=3,2,3,4", "--ignore=1,4,3,2", "--downscale=0", "--ignore=", "--frobnicate", "2.mp4")


@pytest.mark.parametrize("argument", WRONG)
def test_wrong_usage(folder: Path, argument: str, capsys: Capsys) -> None:
    assert main(["video", "clip.mp4", argument]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert out == "" and ("Error" in err or (err.startswith("lrpca: ") and err.count("\n") == 1 and ";" in err))
    assert names(folder) == ["clip.mp4"]


def test_inputs_that_are_refused(folder: Path, capsys: Capsys) -> None:
    (folder / "empty").mkdir()
    (folder / "notes.mp4").write_text("no video at all")
    write_sound(folder / "sound.wav")
    before = names(folder)
    for file in ("none.mp4", "empty", "notes.mp4", "sound.wav"):
        assert main(["video", file, "-o", "out"]) == ExitCode.INPUT
        error_line(capsys, f"source={file!r} ", ";")
    for option in ("--roi=0,0,65,48", "--roi=none.png", "--ignore=0,0,64,48", "--downscale=49"):
        assert main(["video", "clip.mp4", "-o", "out", option]) == ExitCode.INPUT
        error_line(capsys, ";")
    assert names(folder) == before


def write_sound(path: Path) -> None:
    import wave

    with wave.open(str(path), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", "not compressed"))
        sound.writeframes(bytes(8000))


def test_without_the_extra(folder: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert main(["video", "clip.mp4", "-o", "out"]) == ExitCode.USAGE
    error_line(capsys, "pip install", "lrpca[video]")
    assert names(folder) == ["clip.mp4"]


def test_outputs_that_cannot_be_written(folder: Path, capsys: Capsys) -> None:
    (folder / "file").write_text("x")
    (folder / "taken" / "mask.mp4").mkdir(parents=True)
    outputs = ["file", "file/out", "taken"] + (["/proc/out"] if Path("/proc/self").exists() else [])
    before = sorted(folder.rglob("*"))
    for output in outputs:
        assert main(["video", "clip.mp4", "-o", output]) == ExitCode.OUTPUT
        error_line(capsys, f"path='{output}", ";")
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["background.mp4", "mask"])
def test_the_input_is_never_replaced(folder: Path, name: str, capsys: Capsys) -> None:
    source = folder / name
    if source.suffix:
        (folder / "clip.mp4").rename(source)
    else:
        with PictureFolder(source, HEIGHT, WIDTH) as pictures:
            pictures.write(render(0))
    before = sorted(folder.rglob("*"))
    assert main(["video", name, "-o", "."]) == ExitCode.OUTPUT
    assert "would be replaced; choose another folder" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


def test_a_disk_that_fills_up(folder: Path, capsys: Capsys) -> None:
    assert main(["video", "clip.mp4", "-o", "old", "-q"]) == ExitCode.DONE  # also compiles, if need be
    (folder / "old" / "report.html").write_text("old")
    with full_disk(2_000):
        assert main(["video", "clip.mp4", "-o", "old", "-q", "-f"]) == ExitCode.OUTPUT
    error_line(capsys, "path='old' cannot be written (")
    assert not [name for name in names(folder / "old") if name.startswith(".")]
    assert (folder / "old" / "report.html").read_text() == "old"


def test_a_truncated_clip_keeps_its_beginning(folder: Path, capsys: Capsys) -> None:
    write_clip("long.mp4", 300)
    whole = (folder / "long.mp4").read_bytes()
    (folder / "cut.mp4").write_bytes(whole[: len(whole) // 2])
    assert main(["video", "cut.mp4", "-o", "out"]) == ExitCode.NOT_CONVERGED
    out, err = capsys.readouterr()
    result = figures(folder / "out")
    assert result["complete"] is False and 0 < result["frames"] < 300 and result["notes"]
    assert f"breaks off after {result['frames']} of 300 frames" in err and "Traceback" not in err
    assert "complete" in out and "report.html" in out and names(folder / "out") == EVERYTHING
    for name in VIDEOS:
        assert len(decoded(folder / "out" / name)) == result["frames"]
    # It does not replace a complete result.
    assert main(["video", "clip.mp4", "-o", "out", "-q", "--force"]) == ExitCode.DONE
    assert main(["video", "cut.mp4", "-o", "out", "--force"]) == ExitCode.NOT_CONVERGED
    out, err = capsys.readouterr()
    assert "separated and written, to 'out/partial': the complete result stays" in err
    assert "out/partial/mask.mp4" in out and "out/mask.mp4" not in out
    assert figures(folder / "out")["complete"] is True and figures(folder / "out" / "partial")["clip"] == "cut.mp4"


def test_a_folder_that_goes_wrong_in_the_middle(folder: Path, capsys: Capsys) -> None:
    with PictureFolder("shots", HEIGHT, WIDTH) as clip:
        for index in range(N_FRAMES):
            clip.write(render(index))
    with PictureFolder("odd", HEIGHT, WIDTH // 2) as clip:
        clip.write(render(0)[:, ::2])
    (folder / "odd" / "000001.png").replace(folder / "shots" / "000050.png")
    assert main(["video", "shots", "-o", "out", "--window", "20"]) == ExitCode.INPUT
    err = capsys.readouterr().err
    assert "pictures of several sizes: '000050.png'" in err and "Traceback" not in err
    n_frames = figures(folder / "out")["frames"]
    assert 40 <= n_frames < 50  # those of the windows before, at least
    assert f"the first {n_frames} frames are finished, in 'out'" in err
    assert figures(folder / "out")["complete"] is False
    assert len(decoded(folder / "out" / "overlay.mp4")) == n_frames


# --- interrupted -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)]
)
def test_interrupted_in_the_middle(folder: Path, number: signal.Signals, code: ExitCode) -> None:
    write_clip("clip.mp4", 3000)
    process = start("video", "clip.mp4", "-o", "out", "--window", "20")
    assert process.stderr is not None
    while not (line := process.stderr.readline()).startswith("separating"):
        assert line, process.communicate()  # ended too early
    process.send_signal(number)
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == code and time.monotonic() - began < 30
    result = figures(folder / "out")
    assert out == "" and "Traceback" not in err and err.count("lrpca: ") == 1
    assert f"the first {result['frames']} frames are finished, in 'out'" in err
    assert result["complete"] is False and 20 <= result["frames"] < 3000 and len(result["area"]) == result["frames"]
    assert names(folder / "out") == EVERYTHING
    for name in VIDEOS:  # a frame may be in some of them only
        assert len(decoded(folder / "out" / name)) - result["frames"] in (0, 1)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), ExitCode.INTERRUPTED, "interrupted, "),
        (SystemExit(ExitCode.TERMINATED), ExitCode.TERMINATED, "terminated, "),
        (ValueError("clip=0 is odd; use another"), ExitCode.INPUT, "clip=0 is odd; use another; "),
    ],
)
def test_an_interrupted_run_leaves_the_complete_result(
    folder: Path, error: BaseException, code: ExitCode, said: str, monkeypatch: Patch, capsys: Capsys
) -> None:
    assert main(["video", "clip.mp4", "-o", "out", "-q"]) == ExitCode.DONE
    before = {name: (folder / "out" / name).read_bytes() for name in EVERYTHING}
    add = Preview.add

    def interrupted(self: Preview, index: int, *arguments: Any) -> None:
        if index == 40:
            raise error
        add(self, index, *arguments)

    monkeypatch.setattr(Preview, "add", interrupted)
    assert main(["video", "clip.mp4", "-o", "out", "-q", "--force"]) == code
    assert {name: (folder / "out" / name).read_bytes() for name in EVERYTHING} == before
    left = "the first 40 frames are finished, in 'out/partial'; what was in 'out' stays"
    assert capsys.readouterr().err == f"lrpca: {said}{left}\n"
    assert names(folder / "out") == sorted([*EVERYTHING, "partial"]) and names(folder / "out" / "partial") == EVERYTHING
    assert figures(folder / "out" / "partial")["frames"] == 40


def test_interrupted_before_the_first_frame(folder: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SceneLearner, "take_window", interrupt)
    assert main(["video", "clip.mp4", "-o", "out"]) == ExitCode.INTERRUPTED
    assert "interrupted, nothing half-written is left" in capsys.readouterr().err
    assert names(folder / "out") == []
