"""The kernels under `lrpca.video` against slow references in NumPy and SciPy."""

import numpy as np
import pytest
from scipy import ndimage

from lrpca.kernels import binary, scene

SHAPES = [(1, 1), (1, 17), (13, 1), (2, 2), (9, 70), (23, 31)]


def random_mask(shape, density, seed=0):
    return (np.random.default_rng(seed).random(shape) < density).astype(np.uint8)


def random_bytes(shape, seed=0, low=0, high=256):
    return np.random.default_rng(seed).integers(low, high, shape, dtype=np.uint8)


# --- binary pictures -----------------------------------------------------------------------------------------------


def vote(mask, reach, share):
    out = np.full_like(mask, 9)
    binary.square_vote(mask, reach, share, out)
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reach", [1, 2, 5])
def test_the_vote_counts_the_part_of_the_square_that_is_in_the_picture(shape, reach):
    mask, square = random_mask(shape, 0.5), np.ones((2 * reach + 1, 2 * reach + 1), int)
    marked = ndimage.convolve(mask.astype(int), square, mode="constant")
    there = ndimage.convolve(np.ones(shape, int), square, mode="constant")
    for share in (0.2, 0.5, 0.7):
        assert np.array_equal(vote(mask, reach, share), marked > share * there)


@pytest.mark.parametrize("reach", [20, 100, 200])
def test_large_squares_do_not_overflow(reach):
    mask = np.ones((420, 410), np.uint8)
    assert vote(mask, reach, 0.5).all()
    mask[:, :230] = 0
    assert not vote(mask, reach, 0.5)[:, :10].any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reach", [1, 2, 3])
@pytest.mark.parametrize("density", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_vote_erodes_dilates_and_takes_medians(shape, reach, density):
    mask, square = random_mask(shape, density), np.ones((2 * reach + 1, 2 * reach + 1), bool)
    assert np.array_equal(vote(mask, reach, 0.0), ndimage.binary_dilation(mask, square))
    assert np.array_equal(vote(mask, reach, 0.999), ndimage.binary_erosion(mask, square, border_value=1))
    inner = (slice(reach, shape[0] - reach), slice(reach, shape[1] - reach))  # empty in small pictures
    assert np.array_equal(vote(mask, reach, 0.5)[inner], ndimage.median_filter(mask, 2 * reach + 1)[inner])


def tidy_slowly(mask, weight, smallest, largest_hole):
    pieces, count = ndimage.label(mask, np.ones((3, 3)))
    weights = ndimage.sum_labels(weight, pieces, np.arange(count + 1))
    kept = (pieces > 0) & (weights[pieces] >= smallest)
    holes, count = ndimage.label(~kept)
    sizes = np.bincount(holes.ravel(), minlength=count + 1)
    edge = np.concatenate([holes[0], holes[-1], holes[:, 0], holes[:, -1]])
    filled = (holes > 0) & (sizes[holes] <= largest_hole) & ~np.isin(holes, edge)
    return kept | filled


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
@pytest.mark.parametrize(("smallest", "largest_hole"), [(0.0, 0), (3.0, 2), (8.0, 40), (1e9, 10**6)])
def test_tidying_drops_small_objects_and_fills_small_holes(shape, density, smallest, largest_hole):
    mask = random_mask(shape, density, seed=int(10 * density))
    largest_hole = min(largest_hole, mask.size - 1)  # a hole that is all of the picture is none
    weight = np.where(random_mask(shape, 0.3, seed=5), np.float32(0.25), np.float32(1.0))  # exact sums
    expected = tidy_slowly(mask, weight, smallest, largest_hole)
    binary.tidy(mask, weight, smallest, largest_hole)
    assert np.array_equal(mask, expected)


def test_a_spiral_is_one_component():
    # Its arms are joined only at the very end: many runs have been given numbers of their own before.
    n = 31
    mask, y, x, dy, dx = np.zeros((n, n), np.uint8), 0, 0, 0, 1
    mask[0, 0] = 1
    for length in [n - 1] + [k for k in range(n - 1, 0, -2) for _ in range(2)]:
        for _ in range(length):
            y, x = y + dy, x + dx
            mask[y, x] = 1
        dy, dx = dx, -dy
    spiral, weight = mask.copy(), np.ones(mask.shape, np.float32)
    binary.tidy(mask, weight, spiral.sum(), 0)
    assert np.array_equal(mask, spiral)
    binary.tidy(mask, weight, spiral.sum() + 1, 0)
    assert not mask.any()


# --- averages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 1), (8, 9, 3), (5, 16, 3)])
@pytest.mark.parametrize("side", [1, 2, 3, 7])
def test_squares_are_averaged_over_what_is_there(shape, side):
    picture = random_bytes(shape)
    out = np.zeros((-(-shape[0] // side), -(-shape[1] // side), shape[2]), np.uint8)
    scene.average_squares(picture, side, out)
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            square = picture[i * side : i * side + side, j * side : j * side + side]
            assert np.array_equal(out[i, j], np.floor(square.mean(axis=(0, 1)) + 0.5))


# --- medians, fits, light ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5, 8, 120])
def test_medians_of_columns(count):
    samples = random_bytes((count, 200))
    middle, spread = np.full(200, 7, np.uint8), np.full(200, 7, np.uint8)
    scene.middle_values(samples, 30, 190, middle, spread)
    expected = np.sort(samples, axis=0)[(count - 1) // 2]  # of an even number the lower one
    distance = np.sort(np.abs(samples.astype(int) - expected), axis=0)[(count - 1) // 2]
    assert np.array_equal(middle[30:190], expected[30:190])
    assert np.array_equal(spread[30:190], distance[30:190])
    outside = np.r_[0:30, 190:200]  # belongs to other threads
    assert np.all(middle[outside] == 7) and np.all(spread[outside] == 7)


def fit_slowly(samples, coefficients, start, cut, steps, ridge):
    fit = start.astype(float)
    for x, begin, sample in zip(fit.T, start.T, samples.T, strict=True):
        for _ in range(steps):
            e = sample - coefficients @ x
            w = np.where(np.abs(e) < cut, 1 - (e / cut) ** 2, 0)
            A = coefficients.T @ (w[:, None] * coefficients) + np.diag(ridge) + 1e-3 * np.eye(coefficients.shape[1])
            x += np.linalg.solve(A, coefficients.T @ (w * e) + ridge * (begin - x))
    return fit


def some_coefficients(count, rank, seed=0):
    coefficients = np.random.default_rng(seed).standard_normal((count, rank))
    coefficients[:, 0] = 1 + 0.1 * coefficients[:, 0]
    return coefficients.astype(np.float32)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_columns_are_fitted_by_weighted_least_squares(rank):
    rng = np.random.default_rng(1)
    coefficients = some_coefficients(40, rank)
    samples, start = random_bytes((40, 150)), rng.uniform(-20, 60, (rank, 150)).astype(np.float32)
    start[0] += 90
    ridge = np.r_[0.0, np.full(rank - 1, 4.0)].astype(np.float32)
    out = np.full_like(start, -1)
    scene.fit_columns(samples, coefficients, start, 20, 140, 60.0, 3, ridge, out)
    expected = fit_slowly(samples, coefficients.astype(float), start, 60.0, 3, ridge.astype(float))
    assert np.abs(out - expected)[:, 20:140].max() < 0.05  # grey levels
    assert np.all(out[:, np.r_[0:20, 140:150]] == -1)


def test_the_fit_is_blind_to_outliers():
    coefficients = some_coefficients(60, 2)
    truth = np.stack([np.linspace(60, 150, 100), np.linspace(-8, 8, 100)])
    samples = np.rint(coefficients @ truth)
    samples[random_mask(samples.shape, 0.25) > 0] = 250
    out, start = np.empty((2, 100), np.float32), np.zeros((2, 100), np.float32)
    start[0] = np.median(samples, axis=0)
    scene.fit_columns(samples.astype(np.uint8), coefficients, start, 0, 100, 24.0, 6, np.zeros(2, np.float32), out)
    assert np.abs(out - truth).max() < 0.5


@pytest.mark.parametrize("size", [1, 5, 1024, 2500])
def test_relighting_adds_rounds_and_clips(size):
    rng = np.random.default_rng(0)
    frames = random_bytes((4, size))
    changes = (rng.integers(-8, 9, (4, 2)) / 4).astype(np.float32)  # exact in any order of summing
    basis = (rng.integers(-400, 400, (2, size)) / 4).astype(np.float32)
    out = np.empty_like(frames)
    scene.relight(frames, changes, basis, out)
    exact = frames + changes.astype(float) @ basis
    assert np.array_equal(out, np.clip(np.floor(exact + 0.5), 0, 255))
    assert {0, 255} <= set(out.ravel()) or size < 10
