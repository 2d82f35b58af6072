"""`lrpca.video.Separator`: live masks, the frozen state, save and load, bad input."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lrpca.video import Separator, separate
from tests.helpers.video_scenes import Box, crossing, f_score, ground, interior, render, staying

WALKER = Box(crossing(20, 0.8, turn=112), size=(20, 16))


def state_of(separator):
    """All that was learnt, copied."""
    return {name: np.array(value) for name, value in separator._learner.state().items()}


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]), name


def feed(separator, frames, **options):
    return np.array([separator.apply(frame, **options) for frame in frames])


@pytest.fixture(scope="module")
def clip():
    return render(110, boxes=[WALKER], gains=np.linspace(0.9, 1.1, 110))


@pytest.fixture(scope="module")
def learnt(clip):
    """A separator that has seen the first 60 frames, its masks; copy it before use."""
    separator = Separator()
    masks = feed(separator, clip.frames[:60])
    return separator, masks


# --- masks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_a_scene_is_learnt_live(channels):
    clip = render(100, channels=channels, boxes=[Box(crossing(20, 0.8, start=-30), size=(20, 16))])
    separator = Separator()
    masks = feed(separator, clip.frames)
    assert masks.shape == clip.truth.shape and masks.dtype == np.uint8 and set(np.unique(masks)) == {0, 255}
    assert not masks[0].any()
    assert separator.n_frames == 100
    assert f_score(masks[40:], clip.truth[40:]) > 0.88
    background = separator.background()
    assert background.dtype == np.uint8 and background.shape == clip.frames.shape[1:]
    assert np.abs(background - ground(60, 80, channels)).mean() < 2.5


def test_the_first_frame_is_background_whatever_it_shows(clip):
    for frame in (clip.frames[50], np.zeros((5, 7), np.uint8), np.full((1, 1, 3), 255, np.uint8)):
        separator = Separator()
        assert not separator.apply(frame).any()
        assert np.array_equal(separator.background(), frame)


def test_what_stood_there_at_first_is_forgotten():
    clip = render(100, boxes=[Box(staying(20, 30, 0, 15), size=(20, 12), colour=220)])
    masks = feed(Separator(), clip.frames)
    assert masks[16:20].any()  # the ghost: nothing else was seen yet
    assert not masks[80:].any()


def test_light_may_change_live():
    gains = np.where(np.arange(110) < 60, 1.0, 1.4)
    clip = render(110, boxes=[Box(crossing(20, 0.8, start=-30), size=(20, 16), colour=40)], gains=gains)
    separator = Separator()
    masks = feed(separator, clip.frames)
    assert masks[~clip.truth].mean() / 255 < 0.004
    assert masks[60:][interior(clip.truth[60:])].mean() / 255 > 0.95
    assert np.abs(separator.background() - np.minimum(1.4 * ground(60, 80), 255)).mean() < 2.5


def test_leaves_are_learnt_live():
    leaves = np.zeros((60, 80), bool)
    leaves[5:45, 40:75] = True
    masks = feed(Separator(), render(220, flicker=leaves).frames)
    assert masks[180:].mean() / 255 < 0.002


def test_live_masks_are_those_of_the_whole_clip(clip):
    live, whole = feed(Separator(), clip.frames)[70:] > 0, separate(clip.frames).masks[70:]
    assert f_score(live, whole) > 0.9


def test_options_reach_the_masks(clip):
    right = np.zeros((60, 80), bool)
    right[:, 40:] = True
    patch = np.zeros((60, 80), bool)
    patch[29:32, 18:21] = True
    masks = feed(Separator(roi=~right, ignore=patch), clip.frames[:60])
    assert not masks[:, right | patch].any() and masks.any()
    areas = [feed(Separator(sensitivity=s, clean=False), clip.frames[:40]).mean() for s in (0.2, 5.0)]
    assert areas[0] < areas[1]


def test_downscaled_masks_have_full_size():
    clip = render(90, 97, 121, boxes=[Box(crossing(30, 1.2, start=-40), size=(36, 30))])
    ignored = np.zeros((97, 121), bool)
    ignored[50, :] = True
    separator = Separator(downscale=3, ignore=ignored)
    masks = feed(separator, clip.frames)
    assert masks.shape == clip.truth.shape and separator.background().shape == (97, 121)
    assert not masks[:, ignored].any()
    assert masks[40:][interior(clip.truth[40:]) & ~ignored].mean() / 255 > 0.9


def test_a_higher_rate_forgets_sooner():
    clip = render(80, boxes=[Box(staying(20, 30, 40), size=(20, 12), colour=220)])
    times = []
    for rate in (1.0, 0.05):
        separator = Separator()
        feed(separator, clip.frames[:40])
        assert separator.apply(clip.frames[40], learning_rate=rate).any()
        feed(separator, clip.frames[41:], learning_rate=rate)
        times.append(state_of(separator)["times"])
    assert np.mean(times[0] > 40) > np.mean(times[1] > 40)  # more of what is known is new


def test_black_frames_come_and_go(clip):
    black = np.zeros((12, 60, 80), np.uint8)
    for frames in ([black, clip.frames[:30]], [clip.frames[:30], black, clip.frames[30:60]]):
        separator = Separator()
        for part in frames:
            feed(separator, part)
        assert all(np.isfinite(value).all() or name == "scene_limit" for name, value in state_of(separator).items())


# --- frozen --------------------------------------------------------------------------------------------------------


def test_rate_zero_freezes_to_the_bit(clip, learnt):
    separator = copy.deepcopy(learnt[0])
    before = state_of(separator)
    first = feed(separator, clip.frames[60:90], learning_rate=0)
    again = feed(separator, clip.frames[60:90], learning_rate=0.0)
    assert_same_state(before, state_of(separator))
    assert separator.n_frames == 60
    assert np.array_equal(first, again) and first.any()
    # Order does not matter either, and afterwards learning goes on as if nothing had been.
    assert np.array_equal(feed(separator, clip.frames[89:59:-1], learning_rate=0)[::-1], first)
    assert np.array_equal(feed(separator, clip.frames[60:90]), feed(copy.deepcopy(learnt[0]), clip.frames[60:90]))


def test_frozen_from_the_first_frame(clip):
    separator = Separator()
    masks = feed(separator, clip.frames[:40], learning_rate=0)
    assert not masks[0].any()
    # There is no scene without a frame, so one is taken; no more.
    assert separator.n_frames == 1 and len(state_of(separator)["times"]) == 1


def test_the_frame_is_neither_changed_nor_kept(clip):
    separator, frame = Separator(), clip.frames[0].copy()
    for _ in range(5):
        separator.apply(frame)
    assert np.array_equal(frame, clip.frames[0])
    before = state_of(separator)
    frame[:] = 0  # a camera fills the same buffer again and again
    assert_same_state(before, state_of(separator))
    mask, background = separator.apply(clip.frames[1]), separator.background()
    before = state_of(separator)
    mask[:], background[:] = 77, 77
    assert_same_state(before, state_of(separator))
    assert not np.array_equal(separator.background(), background)


# --- save, load, copies --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"downscale": 2}, {"roi": (10, 5, 70, 55), "sensitivity": 2.0, "clean": False, "rank": 1}]
)
def test_what_was_saved_goes_on_as_if_never_stopped(options, tmp_path, clip):
    separator = Separator(**options)
    feed(separator, clip.frames[:40])
    separator.save(tmp_path / "state.npz")
    loaded = Separator.load(tmp_path / "state.npz")
    assert [file.name for file in tmp_path.iterdir()] == ["state.npz"]
    for name in ("n_frames", "rank", "sensitivity", "clean"):
        assert getattr(loaded, name) == getattr(separator, name)
    assert_same_state(state_of(separator), state_of(loaded))
    assert np.array_equal(separator.background(), loaded.background())
    assert np.array_equal(feed(separator, clip.frames[40:70]), feed(loaded, clip.frames[40:70]))
    assert_same_state(state_of(separator), state_of(loaded))
    assert separator.n_frames == loaded.n_frames == 70


def test_the_ending_is_added_and_the_file_replaced(tmp_path, clip):
    separator = Separator()
    separator.apply(clip.frames[0])
    (tmp_path / "state.npz").write_text("old")
    separator.save(str(tmp_path / "state"))
    assert [file.name for file in tmp_path.iterdir()] == ["state.npz"]
    assert Separator.load(str(tmp_path / "state")).n_frames == 1
    with pytest.raises(ValueError, match=r"state\.dat'"):
        separator.save(tmp_path / "state.dat")


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_are_independent(duplicate, clip, learnt):
    original = copy.deepcopy(learnt[0])
    other = duplicate(original)
    before = state_of(original)
    masks = feed(other, clip.frames[60:90])
    assert_same_state(before, state_of(original))
    assert np.array_equal(masks, feed(original, clip.frames[60:90]))


def test_separators_do_not_disturb_each_other(clip):
    """Several at once, each in its own thread, give what they give alone."""
    expected = feed(Separator(), clip.frames[:22])
    barrier = threading.Barrier(3)

    def work(_):
        barrier.wait()
        return feed(Separator(), clip.frames[:22])

    with ThreadPoolExecutor(3) as pool:
        for masks in pool.map(work, range(3)):
            assert np.array_equal(masks, expected)


def test_files_that_are_none_are_refused(tmp_path, learnt):
    learnt[0].save(tmp_path / "whole.npz")
    data = (tmp_path / "whole.npz").read_bytes()
    with np.load(tmp_path / "whole.npz") as file:
        arrays = dict(file)
    (tmp_path / "text.npz").write_bytes(b"hello")
    (tmp_path / "cut.npz").write_bytes(data[: len(data) // 2])
    np.savez(tmp_path / "newer.npz", **arrays | {"version": np.array(999)})
    np.savez(tmp_path / "lacking.npz", **{k: v for k, v in arrays.items() if k != "learner_times"})
    np.savez(tmp_path / "unfit.npz", **arrays | {"learner_scene_limit": np.zeros(3, np.float32)})
    for name in ("text", "cut", "newer", "lacking", "unfit"):
        with pytest.raises(ValueError, match=r"^path=.* is no saved Separator; "):
            Separator.load(tmp_path / f"{name}.npz")
    with pytest.raises(FileNotFoundError):
        Separator.load(tmp_path / "nothing.npz")


# --- bad input -----------------------------------------------------------------------------------------------------


def test_nothing_is_known_before_the_first_frame(tmp_path):
    for ask in (Separator().background, lambda: Separator().save(tmp_path / "state.npz")):
        with pytest.raises(ValueError, match=r"no frame was seen yet; call apply\(frame\) first"):
            ask()
    assert list(tmp_path.iterdir()) == []


SHAPES = ((60, 81), (60, 80, 3), (60, 80, 4), (60, 80, 2), (2, 60, 80, 3), (0, 80), (80,))
NO_FRAMES = [*(np.zeros(shape, np.uint8) for shape in SHAPES), np.full((60, 80), np.nan), "frame.png", None]


@pytest.mark.parametrize("frame", [*NO_FRAMES, *(np.zeros((60, 80), dtype) for dtype in (float, bool, np.int64))])
def test_what_is_no_frame_is_refused_and_nothing_learnt(frame, learnt):
    separator = copy.deepcopy(learnt[0])
    before = state_of(separator)
    with pytest.raises(ValueError, match=r"^frame\.(shape|dtype)=.*; "):
        separator.apply(frame)
    assert_same_state(before, state_of(separator))
    assert separator.n_frames == 60


def test_a_refused_first_frame_leaves_a_fresh_separator():
    separator = Separator(roi=(0, 0, 30, 20))
    with pytest.raises(ValueError, match="frame.dtype="):
        separator.apply(np.zeros((20, 30)))
    with pytest.raises(ValueError, match="roi="):
        separator.apply(np.zeros((10, 10), np.uint8))
    assert separator.apply(np.zeros((20, 30), np.uint8)).shape == (20, 30)


@pytest.mark.parametrize("rate", [1.5, 2, np.nan, np.inf, "auto", True, [0.1]])
def test_wrong_learning_rates_are_refused(rate, learnt, clip):
    separator = copy.deepcopy(learnt[0])
    with pytest.raises(ValueError, match=r"^learning_rate=.* is not a number from 0 to 1; "):
        separator.apply(clip.frames[0], learning_rate=rate)
    assert separator.n_frames == 60


@pytest.mark.parametrize(
    ("name", "value"),
    [("rank", 0), ("rank", 2.5), ("sensitivity", 0), ("sensitivity", "1"), ("downscale", 0), ("downscale", 99)],
)
def test_wrong_requests_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"^{name}=.*; "):
        Separator(**{name: value}).apply(np.zeros((8, 9), np.uint8))


@pytest.mark.parametrize("shape", [(1, 1), (1, 30), (30, 1), (3, 2), (4, 4, 1), (4, 4, 3)])
def test_small_frames(shape):
    separator, rng = Separator(), np.random.default_rng(0)
    for _ in range(20):
        mask = separator.apply(rng.integers(100, 103, shape, dtype=np.uint8))
    assert mask.shape == shape[:2] and not mask.any()
    assert np.abs(separator.background() - 101.0).max() <= 2


def test_views_are_taken(clip):
    one, other = Separator(), Separator()
    wide = np.zeros((60, 160, 3), np.uint8)
    for frame in clip.frames[:20]:
        wide[:, ::2] = frame[:, :, None]
        strided = wide[:, ::2, 1]
        strided.flags.writeable = False
        assert np.array_equal(one.apply(frame), other.apply(strided))
