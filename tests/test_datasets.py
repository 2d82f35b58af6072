import numpy as np
import pytest

from lrpca import datasets


@pytest.fixture(scope="module")
def scene():
    return datasets.street_scene(n_frames=60, height=80, width=120)


def test_types_and_shapes(scene):
    arrays = (scene.frames, scene.background, scene.foreground)
    assert [array.dtype for array in arrays] == [np.uint8, np.float32, np.bool_]
    assert [array.shape for array in arrays] == [(60, 80, 120)] * 3


def test_frames_are_background_plus_noise_where_nothing_passes(scene):
    clear = ~_grown(scene.foreground, 5)  # away from figures, their soft edges and contact shadows
    noise = scene.frames.astype(np.float32)[clear] - scene.background[clear]
    expected = np.sqrt(datasets.NOISE_LEVEL**2 + 1 / 12)  # sensor noise and rounding to whole grey levels
    assert abs(noise.mean()) < 0.02
    assert noise.std() == pytest.approx(expected, rel=0.02)
    assert np.mean(np.abs(noise) > 6 * expected) < 1e-4  # a fingertip may cover less than half a pixel


def test_foreground_differs_from_the_background(scene):
    contrast = np.abs(scene.frames.astype(np.float32) - scene.background)[scene.foreground]
    assert np.median(contrast) > 20 * datasets.NOISE_LEVEL
    assert np.mean(contrast > 5 * datasets.NOISE_LEVEL) > 0.9


def test_full_size_scene_has_a_twentieth_of_foreground_and_little_clipping():
    full = datasets.street_scene(n_frames=100)
    assert full.frames.shape == (100, 160, 240)
    assert 0.04 < full.foreground.mean() < 0.06
    assert np.mean((full.frames == 0) | (full.frames == 255)) < 2e-3


def test_background_is_nearly_of_low_rank(scene):
    values = np.linalg.svd(scene.background.reshape(60, -1), compute_uv=False)
    energy = np.cumsum(values**2) / np.sum(values**2)
    assert 1 - energy[0] > 1e-5  # light and tree do move
    assert 1 - energy[1] < 3e-4  # two components carry the light
    assert 1 - energy[7] < 1e-6  # a few more carry the tree


def test_same_seed_same_clip_and_another_seed_another(scene):
    again = datasets.street_scene(n_frames=60, height=80, width=120)
    assert np.array_equal(again.frames, scene.frames)
    assert np.array_equal(again.background, scene.background)
    other = datasets.street_scene(n_frames=60, height=80, width=120, random_state=1)
    assert not np.array_equal(other.background[0], scene.background[0])


@pytest.mark.parametrize(("height", "width"), [(32, 32), (45, 150), (200, 101)])
def test_other_sizes(height, width):
    clip = datasets.street_scene(n_frames=40, height=height, width=width)
    assert clip.frames.shape == (40, height, width)
    assert 0.01 < clip.foreground.mean() < 0.15


@pytest.mark.parametrize("bad", [{"n_frames": 0}, {"height": 31}, {"width": 100.0}, {"n_frames": True}])
def test_bad_sizes_are_refused_by_name(bad):
    (name, value) = next(iter(bad.items()))
    with pytest.raises(ValueError, match=f"^{name}={value!r} "):
        datasets.street_scene(**bad)


def _grown(mask, steps):
    for _ in range(steps):
        wider = mask.copy()
        wider[:, 1:] |= mask[:, :-1]
        wider[:, :-1] |= mask[:, 1:]
        wider[:, :, 1:] |= mask[:, :, :-1]
        wider[:, :, :-1] |= mask[:, :, 1:]
        mask = wider
    return mask
