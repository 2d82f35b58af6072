"""The benchmarks of video: scenes are read as CDnet means them, methods are scored, stages and memory are counted."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lrpca

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    names = ("measure", "real_matrices", "fresh_process", "limits", "video_process", "video_quality", "bench_video")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        names = (*names, "make_benchmarks_page")
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def street() -> SimpleNamespace:
    """A square that crosses a textured ground: (n, height, width) frames and codes."""
    rng = np.random.default_rng(0)
    ground = rng.integers(60, 140, (72, 96))
    frames = np.clip(ground + rng.normal(0, 2, (40, 72, 96)).round(), 0, 255).astype(np.uint8)
    truth = np.zeros(frames.shape, np.uint8)
    for i in range(len(frames)):
        truth[i, 20:44, 2 * i : 2 * i + 14] = 255
    frames[truth == 255] = 230
    return SimpleNamespace(frames=frames, truth=truth)


def _store(path: Path, street: SimpleNamespace, **changes: Any) -> Path:
    np.savez(path, **{"frames": street.frames, "truth": street.truth, "first": np.array(10), **changes})
    return path


def _cdnet_folder(folder: Path, frames: Any, truth: Any, span: str) -> Path:
    pytest.importorskip("av")
    from lrpca.video.writing import save_picture

    for part, prefix, pictures in (("input", "in", frames), ("groundtruth", "gt", truth)):
        (folder / part).mkdir(parents=True)
        for i, picture in enumerate(pictures):
            save_picture(folder / part / f"{prefix}{i + 1:06d}.png", picture)
    (folder / "temporalROI.txt").write_text(span)
    return folder


def test_cdnet_folder_counts_frames_from_one(scripts: SimpleNamespace, street: SimpleNamespace, tmp_path: Path) -> None:
    folder = _cdnet_folder(tmp_path / "street", street.frames[:6], street.truth[:6], "3 5\n")
    scene = scripts.video_quality.load_scene(folder)
    assert (scene.name, scene.first, scene.last, scene.kind) == ("street", 2, 5, "grey")
    assert np.array_equal(scene.frames, street.frames[:6]) and np.array_equal(scene.truth, street.truth[:6])
    masks = street.truth[:6] == 255
    masks[[0, 1, 5]] ^= True  # wrong only where nothing is scored
    assert scene.score(masks).f == 1
    masks[4] ^= True
    assert scene.score(masks).f < 0.9


def test_region_of_interest_of_a_folder(scripts: SimpleNamespace, street: SimpleNamespace, tmp_path: Path) -> None:
    from lrpca.video.writing import save_picture

    folder = _cdnet_folder(tmp_path / "street", street.frames[:4], street.truth[:4], "1 4")
    region = np.zeros(street.truth.shape[1:], np.uint8)
    region[:, :48] = 255  # whole blocks of the compression
    save_picture(folder / "ROI.jpg", region)
    scene = scripts.video_quality.load_scene(folder)
    masks = street.truth[:4] == 255
    masks[:, :, 48:] = True
    score = scene.score(masks)
    assert score.false_positives == 0 and score.true_positives > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"truth": np.zeros((39, 72, 96), np.uint8)}, "a truth for every frame"),
        ({"first": np.array(40)}, "scored from 40 to 40"),
    ],
)
def test_scenes_that_cannot_be_scored(
    scripts: SimpleNamespace, street: SimpleNamespace, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        scripts.video_quality.load_scene(_store(tmp_path / "a.npz", street, **changes))


def test_scenes_that_are_none(scripts: SimpleNamespace, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", frames=np.zeros((2, 3, 4), np.uint8))
    with pytest.raises(ValueError, match="lacks first, truth"):
        scripts.video_quality.load_scene(tmp_path / "a.npz")
    with pytest.raises(ValueError, match="has no input"):
        scripts.video_quality.load_scene(tmp_path)
    with pytest.raises(SystemExit, match="is not there"):
        pytest.importorskip("cv2")
        scripts.video_quality.main(["--scene", str(tmp_path / "b.npz"), "--results", str(tmp_path)])


def test_quality_script_scores_all_methods(
    scripts: SimpleNamespace,
    street: SimpleNamespace,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("cv2")
    monkeypatch.setattr(scripts.video_quality, "WARM_FRAMES", 2)
    colour = np.repeat(street.frames[..., None], 3, axis=3)
    paths = [_store(tmp_path / "one.npz", street, frames=colour), _store(tmp_path / "two.npz", street, frames=colour)]
    given = [word for path in paths for word in ("--scene", str(path))]
    scripts.video_quality.main([*given, "--results", str(tmp_path / "out")])
    result = scripts.make_benchmarks_page.load_result(tmp_path / "out" / "video_quality.json")
    captions = [table["caption"].partition(":")[0] for table in result["tables"]]
    assert captions[:2] == ["F on every scene, colour", "F on every scene, grey"]
    assert captions[2:] == ["one, colour", "two, colour", "one, grey", "two, grey"]
    methods = ["ours", "ours, live", "MOG2", "MOG2, 5x5 median", "KNN", "KNN, 5x5 median"]
    methods += ["temporal median", "temporal median, 5x5 median"]
    for mean, tables in zip(result["tables"][:2], (result["tables"][2:4], result["tables"][4:]), strict=True):
        assert [row[0] for row in mean["rows"]] == methods
        for row, first, second in zip(mean["rows"], tables[0]["rows"], tables[1]["rows"], strict=True):
            assert row[1:3] == [first[1], second[1]]
            assert row[3] == pytest.approx((first[1] + second[1]) / 2, abs=1e-4)
    # The same scene twice: the same scores, but for KNN, which draws its samples. Precision and recall give F.
    one, two = ([row[:6] for row in table["rows"] if "KNN" not in row[0]] for table in result["tables"][2:4])
    assert one == two
    f, precision, recall = one[0][1:4]
    assert f == pytest.approx(2 * precision * recall / (precision + recall), abs=2e-4) and f > 0.5
    assert "temporal median" in capsys.readouterr().out


def test_without_opencv_scripts_say_so(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(SystemExit, match="OpenCV is missing.*pip install"):
        scripts.video_quality.main([])


def test_selections_do_not_overwrite_published_results(scripts: SimpleNamespace) -> None:
    parse = scripts.video_quality.arguments
    assert parse([]).results == scripts.measure.RESULTS
    for given in (["--scene", "a"], ["--only", "ours"], ["--frames", "grey"]):
        assert parse(given).results == scripts.video_quality.SCRATCH


def test_stages_are_counted_once_each(
    scripts: SimpleNamespace, street: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Work:
        def outer(self) -> None:
            self.inner()

        def inner(self) -> None:
            time.sleep(0.02)

    monkeypatch.setattr(scripts.bench_video, "STAGES", {"outer": (Work, "outer"), "inner": (Work, "inner")})
    work = Work()
    with scripts.bench_video.timed_stages() as seconds:
        work.outer()
        assert seconds["inner"] == 0 and seconds["outer"] >= 0.02
        work.inner()
    assert seconds["inner"] >= 0.02
    before = dict(seconds)
    work.inner()  # outside nothing is counted
    assert seconds == before


def test_stages_are_those_of_a_separation(scripts: SimpleNamespace, street: SimpleNamespace) -> None:
    """If the library's methods are renamed, the table must follow."""
    with scripts.bench_video.timed_stages() as seconds:
        lrpca.video.separate(street.frames)
    assert set(seconds) == set(scripts.bench_video.STAGES) and min(seconds.values()) > 0


def test_quick_looks_are_short(scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = scripts.bench_video
    for name in ("CLIP", "FOOTAGE"):
        monkeypatch.setattr(bench, name, tmp_path)
    assert (bench.arguments([]).n, bench.arguments([]).minutes) == (1700, 10)
    assert (bench.arguments(["--n", "50"]).n, bench.arguments(["--n", "50"]).minutes) == (50, 0.5)
    assert bench.arguments(["--n", "50", "--minutes", "2"]).minutes == 2
    monkeypatch.setattr(bench, "FOOTAGE", tmp_path / "absent")
    assert bench.arguments(["--minutes", "0"]).minutes == 0
    with pytest.raises(SystemExit):
        bench.arguments(["--minutes", "1"])


def test_long_file_repeats_the_footage_in_step(scripts: SimpleNamespace, tmp_path: Path) -> None:
    av = pytest.importorskip("av")
    from lrpca.video.writing import VideoFile

    greys = [30, 80, 130, 180, 230]
    with VideoFile(tmp_path / "short.mp4", 48, 64, 10.0) as file:
        for grey in greys:
            file.write(np.full((48, 64, 3), grey, np.uint8))
    count = scripts.video_process.make_long(tmp_path / "short.mp4", tmp_path / "long.mp4", 12 / 1800)
    assert count == 12
    with av.open(str(tmp_path / "long.mp4")) as source:
        frames = list(source.decode(video=0))
    assert [(frame.width, frame.height) for frame in frames] == [(1280, 720)] * 12
    seen = [float(frame.to_ndarray(format="gray").mean()) for frame in frames]
    assert seen == pytest.approx([greys[i % 5] for i in range(12)], abs=6)
    assert np.diff([frame.time for frame in frames]) == pytest.approx(1 / 30, abs=1e-3)
    assert not (tmp_path / "once.mp4").exists()


def test_files_are_separated_in_a_process_of_its_own(scripts: SimpleNamespace, tmp_path: Path) -> None:
    pytest.importorskip("av")
    from lrpca.video.writing import VideoFile

    frames = lrpca.datasets.street_scene(n_frames=30, height=48, width=80).frames
    with VideoFile(tmp_path / "street.mp4", 48, 80, 25.0, channels=1) as file:
        for frame in frames:
            file.write(frame)
    found = scripts.video_process.ask(tmp_path / "street.mp4", tmp_path / "out")
    assert found["frames"] == 30 and found["complete"] is True
    assert 5e7 < found["peak"] < 2e9  # bytes, not kilobytes
    assert found["size"] == sum(file.stat().st_size for file in (tmp_path / "out").rglob("*") if file.is_file())


def test_everybody_gets_the_same_frames(scripts: SimpleNamespace, street: SimpleNamespace) -> None:
    cv2 = pytest.importorskip("cv2")
    moving = scripts.bench_video.subtract(cv2, "MOG2", False, street.frames)
    cleaned = scripts.bench_video.subtract(cv2, "MOG2", True, street.frames)
    expected = cv2.createBackgroundSubtractorMOG2(detectShadows=False)
    for frame, mask, clean in zip(street.frames, moving, cleaned, strict=True):
        assert np.array_equal(expected.apply(frame), mask)
        assert np.array_equal(cv2.medianBlur(mask, 5), clean)


def test_processor_seconds_leave_the_first_call_out(scripts: SimpleNamespace) -> None:
    counted = scripts.bench_video.Counted(lambda: None)
    for _ in range(4):
        counted()
    counted.seconds[0] = 99.0
    assert len(counted.last(3)) == 3 and max(counted.last(3)) < 1
