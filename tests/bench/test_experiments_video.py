"""Table 2 of the paper: clips of its sizes, the rule for all methods, claims from numbers, a figure from JSON."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lrpca.bench.experiments import video
from lrpca.bench.experiments.measurement import Measurement, Run
from lrpca.bench.experiments.methods import ALTPROJ, OURS, SCALEDGD
from lrpca.bench.experiments.reproduce import EXPERIMENTS, compose
from lrpca.bench.experiments.video import VIDEO, Clip, VideoSetup, find_footage, load_clip, met, there_and_back
from lrpca.cli import main
from lrpca.cli.exit_codes import ExitCode

av = pytest.importorskip("av", reason="needs the extra video")
TINY = VideoSetup((Clip("ParkingLot1", 48, 27, 30, "street.npy"),), repeat=1, max_iter=40, limit=0.02)


@pytest.fixture
def footage(tmp_path: Path) -> Path:
    """Return a short clip of a rendered street, 64 x 48 pixels, as a folder of pictures."""
    from lrpca.datasets import street_scene
    from lrpca.video.pictures import encode_picture

    folder = tmp_path / "street"
    folder.mkdir()
    for k, frame in enumerate(street_scene(20, 48, 64, random_state=0).frames):
        (folder / f"{k}.png").write_bytes(encode_picture(frame))
    return folder


# --- clips -------------------------------------------------------------------------------------------------


def test_looped_forward_and_backward_without_a_jump(footage: Path) -> None:
    Y = load_clip(footage, Clip("", 32, 24, 50, ""))
    assert Y.shape == (50, 32 * 24) and Y.dtype == np.uint8
    assert (Y[20] == Y[18]).all() and (Y[38] == Y[0]).all() and (Y[39] == Y[1]).all()
    assert not (Y[0] == Y[1]).all()
    steps = np.diff([there_and_back(k, 20) for k in range(200)])
    assert set(np.abs(steps)) == {1}
    assert [there_and_back(k, 1) for k in range(3)] == [0, 0, 0]


def test_cut_around_the_middle_and_scaled_by_averaging(footage: Path) -> None:
    whole = load_clip(footage, Clip("", 64, 48, 3, "")).reshape(3, 48, 64)
    cut = load_clip(footage, Clip("", 64, 36, 3, "")).reshape(3, 36, 64)
    assert (cut == whole[:, 6:42]).all()
    narrow = load_clip(footage, Clip("", 32, 48, 3, "")).reshape(3, 48, 32)
    assert (narrow == whole[:, :, 16:48]).all()
    half = load_clip(footage, Clip("", 32, 24, 3, "")).reshape(3, 24, 32)
    means = whole.reshape(3, 24, 2, 32, 2).astype(float).mean(axis=(2, 4))
    assert np.abs(half - means).max() <= 1


def test_footage_is_taken_in_turn(footage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.avi"
    other.touch()
    assert find_footage(video.CLIPS, [str(footage), str(other)]) == [footage, other, footage, other]
    with pytest.raises(ValueError, match="does not exist; give a video file"):
        find_footage(video.CLIPS, [str(tmp_path / "nothing.mp4")])
    monkeypatch.setenv("LRPCA_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"has no video/vtest.avi; set it .* or give footage with --video FILE"):
        find_footage(video.CLIPS, [])
    monkeypatch.delenv("LRPCA_DATA")
    with pytest.raises(ValueError, match="LRPCA_DATA is not set"):
        find_footage(video.CLIPS, [])


# --- methods -----------------------------------------------------------------------------------------------


def test_measures_every_method_to_the_rule(footage: Path) -> None:
    said: list[str] = []
    m = video.measure(replace(TINY, videos=(str(footage),)), said.append)
    assert list(m.contestants) == [OURS, VIDEO, SCALEDGD, ALTPROJ] and {run.label for run in m.runs} == set(
        m.contestants
    )
    for run in m.runs:
        assert met(run) or run.iterations == 40
        assert (run.seconds or 0) > 0 and 0 < (run.residual or 0) < 20
    by_label = {run.label: run for run in m.runs}
    assert by_label[ALTPROJ].distance == 0 and 0 < (by_label[OURS].distance or 0) < 0.2
    assert len(m.pictures) == 1 + 2 * len(video.SHOWN)
    assert all(base64.b64decode(jpeg)[:2] == b"\xff\xd8" for jpeg in m.pictures.values())
    assert any(VIDEO in text for text in said)
    again = video.EXPERIMENT.read(json.loads(json.dumps(m.as_dict())))
    assert again == replace(m, trainings=[]) and again.setup.videos == [str(footage)]


# --- claims ------------------------------------------------------------------------------------------------


def made_up(times: dict[str, float], *, met: bool = True) -> Measurement:
    """Return a measurement of all clips in which every method takes a multiple of the paper's LRPCA."""
    runs = []
    for clip in video.CLIPS:
        for label, factor in times.items():
            total = factor * video.PAPER[clip.name]["LRPCA"]
            reason = "tol" if met or label != VIDEO else "max_iter"
            runs.append(Run(label, clip, 0, reason, total, 20, total / 20, residual=0.8, distance=1e-3))
    return Measurement(video.EXPERIMENT.full, dict.fromkeys(times, ""), runs)


@pytest.mark.parametrize(
    ("times", "met", "expected"),
    [
        ({OURS: 0.4, VIDEO: 0.1, SCALEDGD: 4.0, ALTPROJ: 1.0}, True, [True, True, True, True, None]),
        ({OURS: 0.6, VIDEO: 0.1, SCALEDGD: 1.5, ALTPROJ: 1.0}, True, [False, True, False, True, None]),
        ({OURS: 0.4, VIDEO: 0.3, SCALEDGD: 9.0, ALTPROJ: 1.0}, False, [True, False, True, False, None]),
    ],
)
def test_claims_follow_from_the_numbers(times: dict[str, float], met: bool, expected: list[bool | None]) -> None:
    m = made_up(times, met=met)
    assert [claim.confirmed for claim in video.EXPERIMENT.judge(m)] == expected
    assert [claim.of for claim in video.claims(m)] == [OURS, VIDEO, VIDEO, VIDEO, VIDEO]
    small = replace(m, setup=replace(m.setup, max_iter=3))
    assert all(claim.confirmed is None for claim in video.EXPERIMENT.judge(small))


# --- command -----------------------------------------------------------------------------------------------


def test_writes_numbers_and_a_page_with_the_figure(
    footage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    monkeypatch.setitem(EXPERIMENTS, "video", replace(video.EXPERIMENT, quick=TINY))
    out = tmp_path / "out"
    assert main(["reproduce", "video", "--quick", "--video", str(footage), "-o", str(out)]) == ExitCode.DONE
    printed = capsys.readouterr().out
    assert "paper's seconds" in printed and "cannot tell: small version" in printed
    record = json.loads((out / "video.json").read_text(encoding="utf-8"))
    assert record["command"] == f"lrpca reproduce video --quick --video {footage}"
    page = (out / "video.html").read_text(encoding="utf-8")
    assert "data:image/png" in page and "street" in page and page.count("LRPCA, video model") > 2
    # The same page from what was stored.
    compose(video.EXPERIMENT, record).save(out / "again.html")
    assert (out / "again.html").read_text(encoding="utf-8").count("data:image/png") == page.count("data:image/png")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["video", "--video", "nothing.mp4"], ExitCode.INPUT, "video='nothing.mp4' does not exist"),
        (["video"], ExitCode.INPUT, "LRPCA_DATA is not set"),
        (["recovery", "--video", "a.mp4"], ExitCode.USAGE, "--video=a.mp4 is not used by 'recovery'"),
    ],
)
def test_bad_footage_ends_with_one_line(
    arguments: list[str],
    code: ExitCode,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRPCA_DATA", raising=False)
    assert main(["reproduce", *arguments]) == code
    assert message in capsys.readouterr().err and not os.listdir(tmp_path)
