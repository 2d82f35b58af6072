"""`lrpca.video.separate`: what is marked and what is not, windows, memory, files, bad input."""

import json
import os
import tracemalloc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from lrpca.datasets import street_scene
from lrpca.video import open_frames, separate
from lrpca.video.pictures import encode_picture
from lrpca.video.writing import VideoFile
from tests.helpers.video_scenes import Box, Clip, crossing, f_score, ground, interior, one_by_one, render, staying

av = pytest.importorskip("av", reason="needs the extra video")

VIDEOS = ("background.mp4", "foreground.mp4", "mask.mp4", "overlay.mp4")
WALKER = Box(crossing(20, 0.8), size=(20, 16))


def colour_of(channels, grey, colour):
    return grey if channels == 1 else colour


@pytest.fixture(scope="module")
def walk():
    return render(120, boxes=[WALKER])


@pytest.fixture(scope="module")
def coloured():
    """Odd sizes, three channels."""
    return render(70, 45, 61, channels=3, boxes=[Box(crossing(15, 1.0), size=(16, 14), colour=(250, 190, 60))])


# --- what is marked ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("channels", "noise"), [(1, 0.0), (1, 2.0), (1, 5.0), (3, 0.0), (3, 5.0)])
def test_a_moving_thing_is_found(channels, noise):
    box = replace(WALKER, colour=colour_of(channels, 225, (210, 70, 60)))
    clip = render(110, channels=channels, boxes=[box], noise=noise)
    result = separate(clip.frames)
    assert result.masks.dtype == bool and result.masks.shape == clip.truth.shape
    assert f_score(result.masks, clip.truth) > 0.9
    assert result.masks[interior(clip.truth)].mean() > 0.99
    assert (result.n_frames, result.height, result.width, result.channels) == (110, 60, 80, channels)
    assert result.complete and result.notes == [] and result.folder is None and result.files == []
    assert np.allclose(result.area, result.masks.mean(axis=(1, 2)), atol=1e-6)


def test_several_things_in_the_street_are_found():
    clip = street_scene(n_frames=240)
    result = separate(clip.frames)
    assert f_score(result.masks, clip.foreground) > 0.75
    assert result.masks[~clip.foreground].mean() < 0.005  # the tree waves all the time


@pytest.mark.parametrize("channels", [1, 3])
def test_the_empty_scene_is_empty(channels):
    assert separate(render(100, channels=channels, noise=4.0).frames).area.max() == 0


GAINS = {
    "gradual": np.linspace(0.7, 1.25, 120),
    "sudden": np.where(np.arange(120) < 60, 1.0, 1.35),
    "dark": np.where(np.arange(120) < 70, 1.0, 0.6),
    "lamp": 1 + 0.1 * np.sin(np.arange(120)),
}


@pytest.mark.parametrize(("name", "channels"), [*((name, 1) for name in GAINS), ("gradual", 3), ("sudden", 3)])
def test_a_change_of_light_is_no_object(name, channels):
    gains = GAINS[name]
    clip = render(120, channels=channels, boxes=[replace(WALKER, colour=30)], gains=gains)
    result = separate(clip.frames)
    assert result.masks[~clip.truth].mean() < 0.002
    assert f_score(result.masks, clip.truth) > 0.9
    for frame in (5, 115):  # the background follows the light
        expected = np.clip(ground(60, 80, channels) * gains[frame], 0, 255)
        assert np.abs(result.background(frame) - expected).mean() < 2.5


@pytest.mark.parametrize("channels", [1, 3])
def test_leaves_are_background_and_what_passes_them_is_not(channels):
    leaves = np.zeros((60, 80), bool)
    leaves[5:45, 40:75] = True
    box = replace(WALKER, path=crossing(15, 0.6), colour=20)
    clip = render(160, channels=channels, flicker=leaves, boxes=[box])
    masks = separate(clip.frames).masks
    assert masks[:, leaves][~clip.truth[:, leaves]].mean() < 0.005
    assert masks[interior(clip.truth) & leaves].mean() > 0.9
    assert f_score(masks, clip.truth) > 0.85


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("first", "last"), [(30, 134), (56, 160)])
def test_who_stays_for_most_of_the_clip_stays_marked(first, last, channels):
    box = Box(staying(20, 30, first, last), size=(20, 12), colour=colour_of(channels, 215, (200, 80, 60)))
    clip = render(160, 60, 80, channels=channels, boxes=[box])
    result = separate(clip.frames)
    assert f_score(result.masks, clip.truth) > 0.9
    assert result.area[: first - 5].max() == 0
    inside = interior(clip.truth)[80]
    assert np.abs(result.background(80)[inside] - ground(60, 80, channels)[inside]).mean() < 4


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("last", [50, 104])
def test_who_was_there_at_the_start_leaves_no_ghost(last, channels):
    clip = render(160, channels=channels, boxes=[Box(staying(20, 30, 0, last), size=(20, 12), colour=215)])
    result = separate(clip.frames)
    assert result.area[last + 2 :].max() == 0
    assert result.masks[interior(clip.truth)].mean() > 0.9


@pytest.mark.parametrize("channels", [1, 3])
def test_a_soft_shadow_is_no_object_and_a_dark_thing_is(channels):
    shadows = np.zeros((100, 60, 80), bool)
    for t, shadow in enumerate(shadows):
        shadow[32:52, max(t - 18, 0) : max(t - 2, 0)] = True
    box = replace(WALKER, path=crossing(5, 1.0), colour=15)
    clip = render(100, channels=channels, boxes=[box], shade=lambda t: np.where(shadows[t], 0.8, 1.0))
    masks = separate(clip.frames).masks
    assert masks[shadows].mean() < 0.1
    assert masks[interior(clip.truth)].mean() > 0.95


def test_specks_are_cleaned_up(walk):
    frames = walk.frames.copy()
    specks = np.random.default_rng(0).random(frames.shape) < 0.001
    specks &= ~walk.truth
    frames[specks] = 250
    clean, raw = separate(frames), separate(frames, clean=False)
    assert raw.masks[specks].mean() > 0.8
    assert clean.masks[specks].mean() < 0.05  # beside the walker one may be voted in
    assert f_score(clean.masks, walk.truth) > 0.9


def test_more_sensitive_marks_more():
    clip = render(100, boxes=[Box(crossing(8, 1.0), size=(18, 14), colour=150), Box(crossing(34, 1.0), size=(18, 14))])
    areas = [separate(clip.frames, sensitivity=s).area.mean() for s in (0.2, 0.5, 1.0, 2.0, 5.0)]
    assert np.all(np.diff(areas) > -1e-4) and areas[-1] > 1.3 * areas[0] > 0


def test_regions(walk, tmp_path):
    left = np.zeros((60, 80), bool)
    left[:, :40] = True
    patch = np.zeros((60, 80), bool)
    patch[29:32, 18:21] = True  # would be filled like any hole
    (tmp_path / "left.png").write_bytes(encode_picture(left))
    for roi in (left, (0, 0, 40, 60), tmp_path / "left.png"):
        result = separate(walk.frames, roi=roi, ignore=patch)
        looked_at = left & ~patch
        assert not result.masks[:, ~looked_at].any()
        assert result.masks[:, looked_at][walk.truth[:, looked_at]].mean() > 0.85
        assert np.allclose(result.area, result.masks.sum(axis=(1, 2)) / looked_at.sum(), atol=1e-6)
    assert np.array_equal(separate(walk.frames, ignore=~left | patch).masks, result.masks)


@pytest.mark.parametrize("grey", [True, False])
def test_colour_may_be_dropped_or_made(grey, walk, coloured):
    source = coloured if grey else walk
    result = separate(source.frames, grey=grey)
    assert result.channels == (1 if grey else 3)
    assert result.background(0).shape == source.frames.shape[1:3] + (() if grey else (3,))
    assert f_score(result.masks, source.truth) > 0.85


# --- windows, memory -----------------------------------------------------------------------------------------------


def test_windows_give_what_one_window_gives():
    clip = render(230, boxes=[Box(crossing(20, 0.8, turn=115), size=(20, 16))], gains=np.linspace(0.8, 1.2, 230))
    whole, parts = separate(clip.frames), separate(clip.frames, window=50)
    assert len(parts.masks) == 230 and parts.complete
    assert f_score(parts.masks, clip.truth) > 0.88
    assert f_score(parts.masks, whole.masks) > 0.93
    for frame in (0, 60, 120, 229, -1):
        assert np.abs(parts.background(frame).astype(int) - whole.background(frame)).mean() < 2.5


def test_a_stay_outlasts_windows():
    clip = render(240, boxes=[Box(staying(20, 30, 70, 200), size=(20, 12), colour=215)])
    assert f_score(separate(clip.frames, window=60).masks, clip.truth) > 0.9


@pytest.mark.parametrize("window", [2, 7, 59, 60, 61])
def test_no_frame_is_lost_at_the_edge_of_a_window(window):
    frames = render(60, 20, 30).frames
    calls = []
    result = separate(one_by_one(frames), window=window, callback=calls.append)
    assert result.masks.shape == (60, 20, 30) and len(result.area) == 60
    assert [call.done for call in calls] == sorted({call.done for call in calls}) and calls[-1].done == 60
    assert all(call.n_frames is None and call.seconds >= 0 for call in calls)
    assert result.background(0).shape == result.background(59).shape == (20, 30)


def test_frames_of_a_generator_are_let_go():
    alive, most = weakref.WeakSet(), 0
    picture = render(1).frames[0]

    class Frame(np.ndarray):  # one that can be counted
        __hash__ = object.__hash__

    def camera():
        nonlocal most
        for _ in range(300):
            frame = picture.copy().view(Frame)
            alive.add(frame)
            most = max(most, len(alive))
            yield frame

    assert separate(camera(), window=40).n_frames == 300
    assert most <= 4


def test_frames_do_not_pile_up_in_memory():
    frames = render(60, channels=3, boxes=[WALKER]).frames

    def peak(n):
        tracemalloc.start()
        separate((frames[t % 60].copy() for t in range(n)), window=40)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(50)
    growth = (peak(280) - peak(160)) / (120 * 60 * 80)  # after the window that takes most memory
    assert growth < 2.5  # bytes per pixel: masks, and now and then a scene; the frames would be 3 more


def test_the_array_is_read_as_bytes_in_place(tmp_path):
    frames = np.tile(render(60, 60, 80, channels=3, boxes=[WALKER]).frames, (12, 1, 1, 1))
    path = tmp_path / "frames.npy"
    np.save(path, frames)
    mapped = np.load(path, mmap_mode="r")
    separate(mapped[:60])
    tracemalloc.start()
    result = separate(mapped)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Masks are a third, twice while they are joined; then the samples. One copy more would be too much.
    assert peak < 1.6 * frames.nbytes
    assert result.n_frames == 720 and np.array_equal(mapped, frames)


@pytest.mark.parametrize("make", [np.asfortranarray, lambda a: a[::-1], lambda a: np.flip(a, 2), list])
def test_views_are_read_as_they_are(make, walk):
    source = make(walk.frames)
    before = [np.array(frame) for frame in source]
    result = separate(source)
    assert np.array_equal(result.masks, separate(np.array(before)).masks)
    assert all(np.array_equal(a, b) for a, b in zip(source, before, strict=True))


def test_the_number_of_threads_changes_no_bit(monkeypatch, coloured):
    import numba

    results = []
    for count in (1, 3):
        monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", count)
        results.append(separate(coloured.frames, window=30))
    assert np.array_equal(results[0].masks, results[1].masks)
    assert np.array_equal(results[0].coefficients, results[1].coefficients)


@pytest.mark.parametrize("downscale", [2, 3])
def test_downscaled_masks_and_backgrounds_have_full_size(downscale, tmp_path):
    clip = render(100, 96, 121, boxes=[Box(crossing(30, 1.2), size=(36, 30))], noise=1.0)
    fine = 12 * (-1) ** np.add(*np.mgrid[:96, :121])  # a chequered ground, which averages wipe out
    clip = Clip(np.clip(clip.frames + np.where(clip.truth, 0, fine), 0, 255).astype(np.uint8), clip.truth)
    ignored = np.zeros((96, 121), bool)
    ignored[40, 40] = True
    result = separate(clip.frames, downscale=downscale, ignore=ignored)
    assert result.downscale == downscale and result.masks.shape == clip.truth.shape
    assert not result.masks[:, ignored].any()
    assert f_score(result.masks, clip.truth) > 0.88
    separate(clip.frames, tmp_path, downscale=downscale, window=40)
    with open_frames(tmp_path / "background.mp4", grey=True) as background:
        pictures = np.array(list(background))[:, :96, :121]
    assert len(pictures) == 100 and np.abs(pictures - (ground(96, 121) + fine)).mean() < 8
    contrast = np.mean((pictures - ground(96, 121)) * fine, axis=(1, 2)) / 12**2
    assert contrast.min() > 0.4  # the codec takes some; of averages a ninth at most is left


def test_backgrounds_of_all_windows_can_be_asked_for():
    clip = render(200, 48, 60, boxes=[WALKER])
    result = separate(clip.frames, downscale=2, window=40)
    for frame in (0, 50, 199, -200):
        assert result.background(frame).shape == (48, 60)
    for frame in (200, -201):
        with pytest.raises(IndexError, match=f"frame={frame} is not in a clip of 200 frames; "):
            result.background(frame)


def test_large_frames_are_downscaled_unasked():
    result = separate(np.full((3, 700, 900), 90, np.uint8))
    assert result.downscale == 2 and result.masks.shape == (3, 700, 900)


# --- files ---------------------------------------------------------------------------------------------------------


def decode(path):
    with av.open(str(path)) as file:
        return np.array([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)])


def check_files(folder, n_frames, height, width):
    """All files are there and whole, and nothing else is."""
    assert sorted(file.name for file in folder.rglob("*")) == sorted([*VIDEOS, "report.html", "result.json"])
    for name in VIDEOS:
        assert decode(folder / name).shape == (n_frames, height + height % 2, width + width % 2, 3), name
    figures = json.loads((folder / "result.json").read_text())
    assert figures["frames"] == len(figures["area"]) == n_frames
    assert (figures["height"], figures["width"]) == (height, width)
    page = (folder / "report.html").read_text()
    assert page.lstrip().lower().startswith("<!doctype html") and all(name in page for name in VIDEOS)
    return figures


@pytest.mark.parametrize("window", [None, 16])
def test_the_files_of_a_run(window, tmp_path, coloured):
    folder = tmp_path / "new" / "folder"
    result = separate(coloured.frames, folder, window=window)
    figures = check_files(folder, 70, 45, 61)
    assert result.masks is None and result.folder == folder
    assert sorted(result.files) == sorted([*VIDEOS, "report.html", "result.json"])
    assert figures["complete"] is True and figures["notes"] == [] and figures["colour"] is True
    assert np.allclose(figures["area"], result.area, atol=1e-5)
    assert figures["seconds"] > 0 and figures["sensitivity"] == 1.0
    masks = separate(coloured.frames, window=window).masks
    found = decode(folder / "mask.mp4")[:, :45, :61]
    assert np.array_equal(found > 127, np.repeat(masks[..., None], 3, 3)) and set(np.unique(found)) == {0, 255}
    away = decode(folder / "foreground.mp4")[:, :45, :61][~masks]
    assert np.percentile(away, 95) < 30  # black but for what the codec smears
    background = decode(folder / "background.mp4")[:, :45, :61]
    assert np.abs(background - ground(45, 61, 3)).mean() < 5


def test_masks_as_pictures_and_another_run_into_the_same_folder(tmp_path, coloured, walk):
    (tmp_path / "mine.txt").write_text("stays")
    separate(walk.frames, tmp_path)
    result = separate(coloured.frames, tmp_path, masks="pictures", overwrite=True)
    pictures = sorted((tmp_path / "mask").iterdir())
    assert [file.name for file in pictures] == [f"{k:06d}.png" for k in range(1, 71)]
    with open_frames(tmp_path / "mask", grey=True) as clip:
        found = np.array(list(clip))
    assert np.array_equal(found, separate(coloured.frames).masks * np.uint8(255))
    assert decode(tmp_path / "overlay.mp4").shape == (70, 46, 62, 3)
    assert json.loads((tmp_path / "result.json").read_text())["frames"] == 70
    assert "mask" in result.files and "mask.mp4" not in result.files
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {*result.files, "mine.txt"}  # no mask.mp4 of another clip
    result = separate(coloured.frames[:60], tmp_path, overwrite=True)
    assert {file.name for file in tmp_path.iterdir()} == {*result.files, "mine.txt"}  # nor a folder of masks


class BrokenCameraError(Exception):
    pass


def camera(frames, error):
    """Give some frames, then fail."""
    yield from frames
    raise error


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_an_earlier_result_is_not_replaced_without_being_told(tmp_path, coloured):
    separate(coloured.frames[:20], tmp_path, masks="pictures")
    for name in ("report.html", "result.json", *VIDEOS[:2], "overlay.mp4"):
        before = contents(tmp_path)
        with pytest.raises(FileExistsError, match=r"exists; choose another folder or .* \(overwrite=True, --force\)"):
            separate(coloured.frames[:20], tmp_path, masks="pictures")
        assert contents(tmp_path) == before
        (tmp_path / name).unlink()
    with pytest.raises(FileExistsError, match=r"mask/0000\d\d.png' exists"):
        separate(coloured.frames[:20], tmp_path, masks="pictures")
    separate(coloured.frames[:20], tmp_path)  # these pictures are not in its way, and not known as ours
    assert len(list((tmp_path / "mask").iterdir())) == 20


@pytest.mark.parametrize(
    ("error", "masks"), [(KeyboardInterrupt, "pictures"), (SystemExit, "video"), (BrokenCameraError, "video")]
)
def test_a_complete_result_outlives_an_interrupted_run(error, masks, tmp_path, coloured, monkeypatch):
    separate(coloured.frames, tmp_path, masks=masks)
    before = contents(tmp_path)
    for n_frames, place in ((20, "partial"), (33, "partial-2")):
        with pytest.raises(error) as caught:
            separate(camera(coloured.frames[:n_frames], error), tmp_path, masks=masks, window=16, overwrite=True)
        after = contents(tmp_path)
        assert {name: content for name, content in after.items() if not name.startswith("partial")} == before
        figures = json.loads(after[f"{place}/result.json"])
        assert figures["complete"] is False and 16 <= figures["frames"] <= n_frames
        assert {file.name for file in (tmp_path / place).iterdir()} == {*figures["files"], "result.json"}
        left = f"the first {figures['frames']} frames are finished, in {str(tmp_path / place)!r}"
        assert caught.value.__notes__ == [f"{left}; what was in {str(tmp_path)!r} stays"]


def test_what_a_part_may_replace(tmp_path, coloured):
    def stopped(n_frames):
        return separate(coloured.frames, tmp_path, window=16, overwrite=True, callback=lambda now: now.done >= n_frames)

    assert stopped(48).folder == tmp_path  # nothing was there
    with pytest.raises(KeyboardInterrupt):  # an accident, not to be put in the place of more
        separate(camera(coloured.frames[:20], KeyboardInterrupt), tmp_path, window=16, overwrite=True)
    assert json.loads((tmp_path / "result.json").read_text())["frames"] == 48
    result = stopped(32)  # a part that was wanted, in the place of a part
    assert result.folder == tmp_path and json.loads((tmp_path / "result.json").read_text())["frames"] == 32
    separate(coloured.frames, tmp_path, overwrite=True)
    result = stopped(32)
    assert result.folder == tmp_path / "partial-2" and not result.complete
    assert json.loads((tmp_path / "result.json").read_text())["frames"] == 70
    assert json.loads((result.folder / "result.json").read_text())["frames"] == 32


def test_files_that_cannot_all_be_put_in_place_leave_the_earlier_ones(tmp_path, coloured, monkeypatch):
    separate(coloured.frames, tmp_path, masks="pictures")
    before = contents(tmp_path)
    usual = os.replace

    def failing(source, destination):
        if destination == tmp_path / "report.html":
            monkeypatch.undo()
            raise OSError(28, "No space left on device")
        usual(source, destination)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OSError, match=f"path={str(tmp_path)!r} cannot be written .No space left on device.; choose"):
        separate(coloured.frames[:50], tmp_path, overwrite=True)
    assert contents(tmp_path) == before and not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


@pytest.mark.parametrize(("error", "n_frames"), [(BrokenCameraError, 40), (KeyboardInterrupt, 32)])
def test_finished_windows_stay_usable(error, n_frames, tmp_path, coloured):
    with pytest.raises(error):  # an error lets the window be finished, an interrupt does not
        separate(camera(coloured.frames[:40], error), tmp_path, window=16)
    figures = check_files(tmp_path, n_frames, 45, 61)
    assert figures["complete"] is False and error.__name__ in figures["notes"][0]


def test_what_came_before_a_change_of_size_is_kept(tmp_path, coloured):
    frames = [*coloured.frames[:25], *coloured.frames[:3, :40]]
    with pytest.raises(ValueError, match="source has frames of several shapes: frame 25 "):
        separate(frames, tmp_path)
    assert check_files(tmp_path, 25, 45, 61)["complete"] is False


@pytest.mark.parametrize("error", [BrokenCameraError, KeyboardInterrupt])
def test_an_interrupt_while_writing_leaves_whole_files(error, tmp_path, coloured, monkeypatch):
    from lrpca.video.preview import Preview

    add = Preview.add

    def interrupted(self, index, *arguments):
        if index == 20:
            raise error
        add(self, index, *arguments)

    monkeypatch.setattr(Preview, "add", interrupted)
    with pytest.raises(error):
        separate(coloured.frames, tmp_path)
    assert sorted(file.name for file in tmp_path.rglob("*")) == sorted([*VIDEOS, "report.html", "result.json"])
    assert json.loads((tmp_path / "result.json").read_text())["complete"] is False
    for name in VIDEOS:
        assert len(decode(tmp_path / name)) in (20, 21)


def test_nothing_is_left_of_a_run_without_a_frame(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        separate(camera(np.zeros((1, 20, 30), np.uint8), KeyboardInterrupt), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("with_folder", [False, True])
def test_a_callback_may_stop_the_run(with_folder, tmp_path, coloured):
    folder = tmp_path if with_folder else None
    result = separate(coloured.frames, folder, window=16, callback=lambda progress: progress.done >= 32)
    assert (result.n_frames, result.complete, len(result.area), len(result.coefficients)) == (32, False, 32, 32)
    assert "32 frames" in result.notes[0]
    if with_folder:
        assert check_files(tmp_path, 32, 45, 61)["complete"] is False
    else:
        assert len(result.masks) == 32


@pytest.mark.parametrize("window", [None, 20])
def test_a_truncated_file_gives_what_it_holds(window, tmp_path, coloured):
    path = tmp_path / "clip.mp4"
    with VideoFile(path, 45, 61, 25.0) as clip:
        for frame in coloured.frames:
            clip.write(frame)
    whole = separate(path, tmp_path / "whole", window=window)
    assert whole.complete and whole.n_frames == 70 and whole.name == "clip.mp4" and whole.rate == 25.0
    path.write_bytes(path.read_bytes()[: int(0.6 * path.stat().st_size)])
    result = separate(path, tmp_path / "cut", window=window)
    assert 5 < result.n_frames < 70 and not result.complete and result.notes
    figures = check_files(tmp_path / "cut", result.n_frames, result.height, result.width)
    assert figures["complete"] is False and figures["notes"] == result.notes


# --- bad input, small input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, 255])
@pytest.mark.parametrize("shape", [(50, 20, 30), (1, 20, 30), (50, 1, 1), (40, 12, 16, 3)])
def test_black_and_white_clips(value, shape):
    result = separate(np.full(shape, value, np.uint8))
    assert result.masks.shape == shape[:3] and not result.masks.any()
    assert np.array_equal(result.background(0), np.full(shape[1:], value))


@pytest.mark.parametrize("window", [None, 30])
def test_a_clip_that_is_black_for_a_while(window):
    scene, black = render(60, boxes=[WALKER]), np.zeros((50, 60, 80), np.uint8)
    for frames in ([scene.frames, black], [black, scene.frames], [scene.frames, black[:3], scene.frames]):
        result = separate(np.concatenate(frames), window=window)
        assert result.n_frames == sum(map(len, frames)) and np.isfinite(result.coefficients).all()
        assert np.isfinite(result.area).all()


@pytest.mark.parametrize("n_frames", [1, 2, 3, 8, 12])
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (3, 2), (20, 30)])
def test_short_clips_and_small_frames(n_frames, shape):
    frames = np.random.default_rng(0).integers(100, 104, (n_frames, *shape), dtype=np.uint8)
    for source in (frames, np.repeat(frames[..., None], 3, 3)):
        result = separate(source)
        assert result.masks.shape == frames.shape and not result.masks.any()
        assert np.abs(result.background(0) - 101.5).max() <= 2.5


@pytest.mark.parametrize("rank", [1, 3, 10])
@pytest.mark.parametrize("n_frames", [3, 30])
def test_any_rank_goes_with_any_length(rank, n_frames):
    assert separate(render(n_frames, 20, 30).frames, rank=rank).masks.shape == (n_frames, 20, 30)


HOUSE_FORM = r"^[a-z_.]+( |=).*; "
FRAMES = np.full((6, 8, 9), 90, np.uint8)
# Of the others see test_reading.py.
NO_CLIPS = (FRAMES / 255.0, FRAMES[:0], FRAMES[:, :0], [FRAMES[0], FRAMES[0, :5]], [FRAMES[0], FRAMES[:3].T])


@pytest.mark.parametrize("source", NO_CLIPS)
def test_what_is_no_clip_is_refused(source):
    with pytest.raises(ValueError, match=HOUSE_FORM):
        separate(source)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("rank", value) for value in (0, -1, 2.0, True, "2", 11, None)],
        *[("sensitivity", value) for value in (0, -1, np.nan, np.inf, "1", None, True)],
        *[("window", value) for value in (0, 1, 2.5, "9", True)],
        *[("downscale", value) for value in (0, -2, 1.5, 99, True)],
        *[("masks", value) for value in ("png", None)],
        *[("roi", value) for value in ((0, 0, 0, 5), (0, 0, 100, 5), 3, np.ones((3, 3)), np.zeros((8, 9)), (1, 2))],
        *[("ignore", value) for value in (np.ones((8, 9)), (0, 0, 9, 8), "x" * 3)],
        ("grey", "yes"),
    ],
)
def test_wrong_requests_are_refused_by_name(name, value, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=HOUSE_FORM) as caught:
        separate(FRAMES, tmp_path / "out", **{name: value})
    assert name in str(caught.value).partition(";")[0]
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    read = []

    def camera():
        for frame in FRAMES:
            read.append(1)
            yield frame

    with pytest.raises(OSError, match="file"):
        separate(camera(), tmp_path / "file" / "folder")
    assert len(read) <= 1
