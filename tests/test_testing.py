"""Planted problems are what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.testing import Problem, planted


def test_reachable_from_the_package() -> None:
    assert lrpca.testing.planted is planted


def test_seeded() -> None:
    a, b, c = planted((30, 20), random_state=1), planted((30, 20), random_state=1), planted((30, 20), random_state=2)
    np.testing.assert_array_equal(a.Y, b.Y)
    assert not np.array_equal(a.Y, c.Y)


def test_parts_add_up() -> None:
    problem = planted((50, 40), rank=3, outlier_fraction=0.2, random_state=0)
    np.testing.assert_allclose(problem.Y, problem.X + problem.S, atol=1e-15)
    assert problem.X.shape == problem.S.shape == problem.observed.shape == (50, 40)
    assert problem.rank == 3
    assert np.linalg.matrix_rank(problem.X) == 3
    assert problem.observed.all()


@pytest.mark.parametrize("size", (0.5, 1.0, 20.0))
def test_outliers(size: float) -> None:
    problem = planted((100, 90), outlier_fraction=0.15, outlier_size=size, random_state=0)
    planted_ones = problem.S[problem.S != 0]
    assert len(planted_ones) == int(0.15 * 9000)
    limit = size * np.abs(problem.X).mean()
    assert 0.9 * limit < np.abs(planted_ones).max() <= limit
    assert 0.4 < np.mean(planted_ones > 0) < 0.6
    np.testing.assert_array_equal(problem.outliers, problem.S != 0)


def test_one_sided_outliers() -> None:
    assert planted((40, 40), one_sided=True).S.min() == 0


def test_missing_entries_are_nan_and_no_outliers() -> None:
    problem = planted((80, 70), missing=0.3, outlier_fraction=0.2)
    np.testing.assert_array_equal(np.isnan(problem.Y), ~problem.observed)
    assert np.mean(problem.observed) == pytest.approx(0.7, abs=0.03)
    assert not problem.outliers[~problem.observed].any()
    assert problem.outliers.sum() == np.sum((problem.S != 0) & problem.observed)


def test_noise_and_scale_are_in_units_of_the_mean() -> None:
    problem = planted((120, 110), noise=0.1, outlier_fraction=0.0, scale=50.0)
    assert np.abs(problem.X).mean() == pytest.approx(50)
    assert np.std(problem.Y - problem.X) == pytest.approx(5, rel=0.05)
    assert not problem.outliers.any()


def test_entries_as_in_the_paper() -> None:
    """N(0, 1/n1) and N(0, 1/n2) factors: σ_1 of X is near 1, entries have variance r / (n1 n2)."""
    problem = planted((400, 300), rank=4, outlier_fraction=0)
    assert np.linalg.norm(problem.X, 2) == pytest.approx(1, rel=0.25)
    assert np.var(problem.X) == pytest.approx(4 / (400 * 300), rel=0.2)


@pytest.mark.parametrize("condition", (5.0, 1000.0))
def test_condition(condition: float) -> None:
    values = np.linalg.svd(planted((60, 50), rank=4, condition=condition).X, compute_uv=False)
    assert values[0] / values[3] == pytest.approx(condition)
    np.testing.assert_allclose(np.diff(values[:4]), np.diff(values[:4])[0], rtol=1e-6)
    assert values[4] < 1e-12 * values[0]


@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.complex64, np.complex128))
def test_dtypes(dtype: Any) -> None:
    problem = planted((40, 30), rank=2, noise=0.1, missing=0.1, dtype=dtype)
    assert problem.Y.dtype == dtype
    if np.dtype(dtype).kind == "c":
        assert np.abs(problem.X.imag).mean() == pytest.approx(np.abs(problem.X.real).mean(), rel=0.3)
        assert np.abs(problem.S.imag).max() > 0


def test_error_is_relative() -> None:
    problem = planted((20, 20))
    assert problem.error(problem.X) == 0
    assert problem.error(1.01 * problem.X) == pytest.approx(0.01)
    assert problem.error(np.zeros_like(problem.X)) == 1


def test_frozen() -> None:
    problem = planted((10, 10), rank=1)
    assert isinstance(problem, Problem)
    with pytest.raises(AttributeError):
        problem.rank = 2  # type: ignore[misc]
