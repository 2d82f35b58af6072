"""Following a stream of rows: as good as a batch fit, with a subspace that turns, in batches of any size."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.tables.streaming import SubspaceTracker

Truth = Callable[[int], Any]


def stream(
    n1: int,
    n2: int,
    k: int,
    *,
    noise: float = 0.0,
    outliers: float = 0.1,
    one_sided: bool = False,
    missing: float = 0.0,
    mean: float = 1.0,
    turn: float = 0.0,
    change: int | None = None,
    seed: int = 0,
) -> tuple[Any, Truth]:
    """Return rows of entries of about unit size with outliers up to 10, and the subspace (n2, k) at each row."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((n2, 2 * k)))[0]
    coefficients = rng.standard_normal((n1, k)) * np.linspace(1.5, 0.7, k) * np.sqrt(n2 / k)

    def angles(row: Any) -> Any:
        return turn * row / n1 if change is None else np.where(row < change, 0.0, np.pi / 2)

    def truth(row: int) -> Any:
        return np.cos(angles(row)) * Q[:, :k] + np.sin(angles(row)) * Q[:, k:]

    angle = angles(np.arange(n1))[:, None]
    Y = mean * rng.standard_normal(n2) + noise * rng.standard_normal((n1, n2))
    Y += np.cos(angle) * (coefficients @ Q[:, :k].T) + np.sin(angle) * (coefficients @ Q[:, k:].T)
    hit = rng.random(Y.shape) < outliers
    Y[hit] += rng.uniform(0 if one_sided else -10, 10, hit.sum())
    Y[rng.random(Y.shape) < missing] = np.nan
    return Y, truth


def angle_to(truth: Any, components: Any) -> float:
    """Return the largest principal angle, in radians, accurate when small too."""
    rest = truth - components.T @ (components @ truth)
    return float(np.arcsin(min(1.0, float(np.linalg.norm(rest, 2)))))


def batch_components(Y: Any, k: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        X = lrpca.decompose(Y, k + 1).low_rank
    return np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:k]


def follow(tracker: SubspaceTracker, Y: Any, truth: Truth, step: int) -> dict[int, float]:
    """Return the angle in degrees after every `step` rows."""
    angles = {}
    for start in range(0, len(Y), step):
        tracker.update(Y[start : start + step])
        end = min(start + step, len(Y))
        angles[end] = np.degrees(angle_to(truth(end - 1), tracker.components))
    return angles


@pytest.mark.parametrize(
    ("n2", "k", "noise", "missing", "one_sided"),
    [(50, 1, 0.0, 0.0, False), (50, 5, 0.05, 0.2, True), (150, 3, 0.05, 0.7, False)],
)
def test_stationary_stream_is_as_good_as_the_batch(
    n2: int, k: int, noise: float, missing: float, one_sided: bool
) -> None:
    Y, truth = stream(1500, n2, k, noise=noise, missing=missing, one_sided=one_sided, seed=1)
    tracker = SubspaceTracker(n2, k)
    tracker.update(Y)
    # Forgetting all but 200 rows would be 2.7 times the batch, imputing without correction 2 times.
    assert angle_to(truth(0), tracker.components) < 1.3 * max(angle_to(truth(0), batch_components(Y, k)), 1e-6)
    assert tracker.effective_rows == tracker.n_rows_seen == 1500
    if noise:
        assert tracker.noise_level == pytest.approx(noise, rel=0.05)


def test_mean_and_singular_values_are_those_of_the_clean_rows() -> None:
    Y, _ = stream(1000, 60, 3, seed=2)
    clean, _ = stream(1000, 60, 3, seed=2, outliers=0.0)
    tracker = SubspaceTracker(60, 3)
    tracker.update(Y)
    np.testing.assert_allclose(tracker.mean, clean.mean(axis=0), atol=1e-7)
    expected = np.linalg.svd(clean - clean.mean(axis=0), compute_uv=False)[:3]
    np.testing.assert_allclose(tracker.singular_values, expected, rtol=1e-7)


@pytest.mark.parametrize(("n2", "k", "noise", "mean"), [(50, 1, 0.0, 1.0), (50, 5, 0.01, 0.0)])
def test_turning_subspace_is_followed(n2: int, k: int, noise: float, mean: float) -> None:
    Y, truth = stream(5000, n2, k, noise=noise, mean=mean, turn=np.pi / 2, seed=1)
    angles = follow(SubspaceTracker(n2, k), Y, truth, 100)
    assert max(angle for row, angle in angles.items() if row >= 300) < 3


def test_without_forgetting_a_turning_subspace_is_lost() -> None:
    Y, truth = stream(1500, 50, 2, turn=0.3 * np.pi / 2, seed=1)
    angles = follow(SubspaceTracker(50, 2, forgetting_factor=1.0), Y, truth, 500)
    assert angles[1500] > 10
    angles = follow(SubspaceTracker(50, 2, forgetting_factor=0.98), Y, truth, 500)
    assert angles[1500] < 3


@pytest.mark.parametrize("factor", ["auto", 1.0, 0.99])
def test_sudden_change_is_recovered_from_in_two_blocks(factor: str | float) -> None:
    Y, truth = stream(1000, 60, 3, noise=0.01, change=700, seed=3)
    angles = follow(SubspaceTracker(60, 3, forgetting_factor=factor), Y, truth, 20)
    assert max(angle for row, angle in angles.items() if row <= 700 and row >= 100) < 1.5
    assert max(angle for row, angle in angles.items() if row >= 700 + 2 * 64 + 20) < 1.5


def test_batches_do_not_matter() -> None:
    Y, _ = stream(300, 40, 2, noise=0.05, missing=0.1, seed=4)
    results = []
    for size in (1, 7, 64, 300):
        tracker = SubspaceTracker(40, 2, random_state=np.random.default_rng(0))
        for start in range(0, len(Y), size):
            tracker.update(Y[start : start + size])
            if start % 5 == 0:
                # Looking must not change what comes.
                assert len(tracker.components) <= 2
        results.append((tracker.mean, tracker.components, tracker.singular_values, tracker.noise_level))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-12)


def test_components_grow_with_the_rows() -> None:
    Y, _ = stream(100, 30, 4, outliers=0.0, seed=6)
    tracker = SubspaceTracker(30, 4)
    assert tracker.components.shape == (0, 30)
    for row in range(8):
        tracker.update(Y[row : row + 1])
        V = tracker.components
        assert V.shape == (min(4, row), 30)
        np.testing.assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-12)
        assert (V[np.arange(len(V)), np.abs(V).argmax(axis=1)] > 0).all()
    tracker = SubspaceTracker(30, 4)
    tracker.update(Y[:1])
    np.testing.assert_array_equal(tracker.mean, Y[0])
    uncentred = SubspaceTracker(30, 4, center=False)
    uncentred.update(Y[:1])
    assert uncentred.components.shape == (1, 30)
    assert not uncentred.mean.any()


def test_weight_counts_like_equal_rows() -> None:
    Y, _ = stream(60, 40, 2, noise=0.01, seed=7)
    weight = np.where(np.arange(60) % 3 == 0, 2.0, 1.0)
    weighted, repeated = SubspaceTracker(40, 2), SubspaceTracker(40, 2)
    weighted.update(Y, weight)
    repeated.update(np.repeat(Y, weight.astype(int), axis=0))
    assert weighted.n_rows_seen == repeated.n_rows_seen == 80
    # Solved in two ways: equal within the noise of the rows, far below what the weights change.
    np.testing.assert_allclose(weighted.singular_values, repeated.singular_values, rtol=2e-3)
    unweighted = SubspaceTracker(40, 2)
    unweighted.update(Y)
    assert weighted.singular_values[0] > 1.05 * unweighted.singular_values[0]
    silent = SubspaceTracker(40, 2)
    silent.update(np.concatenate([Y, 100 * Y]), np.repeat([1.0, 0.0], 60))
    np.testing.assert_array_equal(silent.components, unweighted.components)


def test_going_on_from_a_model() -> None:
    Y, truth = stream(1200, 50, 3, noise=0.02, seed=9)
    first = SubspaceTracker(50, 3)
    first.update(Y[:600])
    model = (first.mean, first.components, first.singular_values, first.n_rows_seen, first.noise_level)
    tracker = SubspaceTracker(50, 3)
    tracker.start_from(*model)
    np.testing.assert_allclose(tracker.components, first.components, atol=1e-12)
    tracker.update(Y[600:])
    assert tracker.n_rows_seen == tracker.effective_rows == 1200
    assert angle_to(truth(0), tracker.components) < 0.85 * angle_to(truth(0), first.components)


def test_rows_that_say_nothing_change_nothing() -> None:
    Y, truth = stream(600, 50, 4, noise=0.05, seed=11)
    tracker = SubspaceTracker(50, 4)
    tracker.update(Y)
    before = tracker.components
    tracker.update(np.full((3, 50), np.nan))
    np.testing.assert_array_equal(tracker.components, before)
    assert tracker.n_rows_seen == 600
    # Rows of five entries fit four components whatever they are.
    thin = np.where(np.arange(50) < 5, Y, np.nan)
    tracker.update(thin)
    assert angle_to(truth(0), tracker.components) < 1.2 * angle_to(truth(0), before)


def test_rows_of_nothing_but_outliers_do_little() -> None:
    Y, truth = stream(1000, 50, 3, noise=0.01, seed=12)
    Y[100::10] = 30 * np.random.default_rng(0).standard_normal((90, 50))
    tracker = SubspaceTracker(50, 3)
    tracker.update(Y)
    assert angle_to(truth(0), tracker.components) < 0.01


def test_columns_of_much_noise_do_not_become_components() -> None:
    Y, truth = stream(400, 40, 3, seed=0)
    Y += np.random.default_rng(0).standard_normal(Y.shape) * np.where(np.arange(40) < 8, 0.5, 0.02)
    tracker = SubspaceTracker(40, 3)
    tracker.update(Y)
    # Measured 0.05; a component that consists of one such column makes it 1.
    assert angle_to(truth(0), tracker.components) < 0.1


def test_too_many_components_do_no_harm() -> None:
    Y, truth = stream(800, 60, 2, seed=13)
    tracker = SubspaceTracker(60, 5)
    tracker.update(Y)
    assert angle_to(truth(0), tracker.components) < 1e-6
    assert tracker.singular_values[2] < 1e-4 * tracker.singular_values[1]


def test_number_of_components_is_found() -> None:
    Y, truth = stream(400, 60, 3, noise=0.02, seed=14)
    tracker = SubspaceTracker(60, "auto")
    tracker.update(Y)
    assert tracker.components.shape == (3, 60)
    assert angle_to(truth(0), tracker.components) < 0.01
    # The first two of them hold 86% of the variance.
    share = SubspaceTracker(60, 0.8)
    share.update(Y)
    np.testing.assert_allclose(share.components, tracker.components[:2], atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forgetting_factor": 0.0}, r"forgetting_factor=0.0 is not above 0 and at most 1"),
        ({"forgetting_factor": "none"}, r"forgetting_factor='none' is not"),
        ({"n_components": 0}, r"n_components=0 is not between 1 and n_features=5"),
        ({"n_components": "some"}, r"n_components='some' is unknown; use 'auto'"),
        ({"n_components": 1.5}, r"n_components=1.5 is not"),
        ({"n_features": 0}, r"n_features=0 is not a positive integer"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SubspaceTracker(**({"n_features": 5, "n_components": 2} | arguments))


@pytest.mark.parametrize(
    ("rows", "weight", "message"),
    [
        (np.zeros((2, 4)), None, r"rows.shape=\(2, 4\) does not fit; pass \(m, 5\)"),
        (np.zeros(5), None, r"rows.shape=\(5,\) does not fit"),
        (np.zeros((0, 5)), None, r"rows.shape=\(0, 5\) has no rows"),
        (np.full((1, 5), np.inf), None, "rows contains inf"),
        (np.zeros((1, 5), complex), None, "rows.dtype=complex128 is not real"),
        (np.zeros((2, 5)), [1.0], r"weight.shape=\(1,\) does not fit"),
        (np.zeros((2, 5)), [1.0, -1.0], r"^weight\[1\]=-1\.0 is not .* at least 0; give weights of 0 or more$"),
    ],
)
def test_bad_rows_are_refused_and_leave_the_tracker_alone(rows: Any, weight: Any, message: str) -> None:
    tracker = SubspaceTracker(5, 2)
    with pytest.raises(ValueError, match=message):
        tracker.update(rows, weight)
    assert tracker.n_rows_seen == 0
