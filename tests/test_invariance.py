"""What must not matter: scale, order of rows and columns, orientation, sign."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrpca import Decomposition, decompose
from lrpca.testing import Problem, planted

RANK = 3
# Small enough that thresholds are read off every entry, so nothing depends on which entries were drawn.
SHAPE = (130, 110)


def make(seed: int = 1, **changes: Any) -> Problem:
    fields = {"shape": SHAPE, "rank": RANK, "outlier_fraction": 0.1, "outlier_size": 5, "random_state": seed}
    return planted(**{**fields, **changes})


PROBLEM = make()
NOISY = make(noise=0.02, missing=0.1)


def assert_close(got: Any, want: Any, within: float) -> None:
    assert np.linalg.norm(got - want) <= within * np.linalg.norm(want)


def numbers(d: Decomposition) -> list[tuple[Any, ...]]:
    return [(record.step, record.residual, record.change, record.kept) for record in d.history]


@settings(max_examples=15, deadline=None, derandomize=True)
@given(power=st.integers(-30, 30), dtype=st.sampled_from((np.float64, np.float32)))
def test_scaling_by_powers_of_four_is_exact(power: int, dtype: type) -> None:
    """√Σ goes into each factor, so powers of four keep every bit of them (but for what leaves single precision)."""
    if dtype is np.float32:
        power = max(-10, min(10, power))
    Y = make(seed=abs(power)).Y.astype(dtype)
    factor = math.ldexp(1.0, 2 * power)
    d, scaled = decompose(Y, RANK), decompose(Y * dtype(factor), RANK)
    root = math.ldexp(1.0, power)
    np.testing.assert_array_equal(scaled.L, d.L * dtype(root))
    np.testing.assert_array_equal(scaled.R, d.R * dtype(root))
    assert numbers(scaled) == numbers(d)
    assert scaled.outlier_threshold == factor * d.outlier_threshold
    assert scaled.noise_level == factor * d.noise_level
    np.testing.assert_array_equal(scaled.outliers, d.outliers)


@pytest.mark.parametrize("power", (-210, 210))
def test_noise_may_be_smaller_than_what_data_may_be(power: int) -> None:
    d, scaled = decompose(NOISY.Y, RANK), decompose(NOISY.Y * math.ldexp(1.0, 2 * power), RANK)
    assert (scaled.reason, scaled.n_iter) == (d.reason, d.n_iter)
    assert_close(scaled.L, d.L * math.ldexp(1.0, power), 1e-12)
    assert scaled.noise_level == pytest.approx(d.noise_level * math.ldexp(1.0, 2 * power), rel=1e-9)


@pytest.mark.parametrize("problem", (PROBLEM, NOISY), ids=["exact", "noisy"])
@pytest.mark.parametrize("factor", (1e-8, 1e5, -3.7))
def test_scaling_by_any_number(problem: Problem, factor: float) -> None:
    d, scaled = decompose(problem.Y, RANK), decompose(problem.Y * factor, RANK)
    assert_close(scaled.low_rank, factor * d.low_rank, 1e-9)
    assert (scaled.reason, scaled.n_iter) == (d.reason, d.n_iter)
    assert scaled.outlier_threshold == pytest.approx(abs(factor) * d.outlier_threshold, rel=1e-5)


@pytest.mark.parametrize("factor", (1e-30, 1e-13, 1e13, 1e30))
def test_single_precision_at_extreme_scales(factor: float) -> None:
    """Squares of such numbers leave single precision, so they are computed in double."""
    problem = make()
    d = decompose((problem.Y * factor).astype(np.float32), RANK)
    assert d.converged and d.L.dtype == np.float32
    assert_close(d.low_rank.astype(float), factor * problem.X, 3e-6)


def test_sign_flip_is_exact() -> None:
    d, flipped = decompose(NOISY.Y, RANK), decompose(-NOISY.Y, RANK)
    np.testing.assert_array_equal(flipped.low_rank, -d.low_rank)
    assert numbers(flipped) == numbers(d)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), noisy=st.booleans())
def test_order_of_rows_and_columns(seed: int, noisy: bool) -> None:
    problem = NOISY if noisy else PROBLEM
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(SHAPE[0]), rng.permutation(SHAPE[1])
    d, moved = decompose(problem.Y, RANK), decompose(problem.Y[rows][:, columns], RANK)
    # The spectral start multiplies by the same test matrix in another order: another start, the same answer.
    assert_close(moved.low_rank, d.low_rank[rows][:, columns], 1e-3 if noisy else 1e-6)
    assert moved.converged
    differ = np.mean(moved.outliers != d.outliers[rows][:, columns])
    assert differ < 2e-3


@pytest.mark.parametrize("dtype", (np.float64, np.complex128))
def test_permutation_of_a_warm_start_is_exact_to_rounding(dtype: Any) -> None:
    """Without the random start, permuting is only another order of the same sums."""
    problem = make(noise=0.02, dtype=dtype)
    start = decompose(problem.Y, RANK)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(SHAPE[0]), rng.permutation(SHAPE[1])
    keywords: dict[str, Any] = {"tol": 0, "max_iter": 3}
    d = decompose(problem.Y, RANK, start=(start.L, start.R), **keywords)
    moved = decompose(problem.Y[rows][:, columns], RANK, start=(start.L[rows], start.R[columns]), **keywords)
    assert_close(moved.low_rank, d.low_rank[rows][:, columns], 1e-12)


@pytest.mark.parametrize("problem", (PROBLEM, NOISY), ids=["exact", "noisy"])
def test_transposition(problem: Problem) -> None:
    d, turned = decompose(problem.Y, RANK), decompose(problem.Y.T, RANK)
    assert_close(turned.low_rank.T, d.low_rank, 1e-3 if problem is NOISY else 1e-6)
    assert_close(np.abs(turned.L), np.abs(d.R), 1e-2 if problem is NOISY else 1e-5)


def test_transposition_of_a_warm_start_is_exact_to_rounding() -> None:
    start = decompose(NOISY.Y, RANK)
    d = decompose(NOISY.Y, RANK, start=(start.L, start.R), tol=0, max_iter=3)
    turned = decompose(NOISY.Y.T, RANK, start=(start.R, start.L), tol=0, max_iter=3)
    assert_close(turned.low_rank.T, d.low_rank, 1e-12)


@pytest.mark.parametrize("factor", (1e-3, 1e3))
def test_balance_of_the_start_does_not_matter(factor: float) -> None:
    start = decompose(NOISY.Y, RANK, tol=0, max_iter=2)
    d = decompose(NOISY.Y, RANK, start=(start.L, start.R))
    other = decompose(NOISY.Y, RANK, start=(start.L * factor, start.R / factor))
    assert_close(other.low_rank, d.low_rank, 1e-9)


def test_phase_and_conjugation_of_complex_data_do_not_matter() -> None:
    Y, phase = make(dtype=complex).Y, np.exp(0.7j)
    want = decompose(Y, RANK).low_rank
    assert_close(decompose(Y * phase, RANK).low_rank, phase * want, 1e-7)
    assert_close(decompose(Y.conj(), RANK).low_rank, want.conj(), 1e-7)
    assert_close(decompose(PROBLEM.Y.astype(complex), RANK).low_rank, decompose(PROBLEM.Y, RANK).low_rank, 1e-7)


def test_nan_and_mask_say_the_same() -> None:
    hidden = np.isnan(NOISY.Y)
    d, masked = decompose(NOISY.Y, RANK), decompose(np.nan_to_num(NOISY.Y, nan=1e6), RANK, mask=~hidden)
    np.testing.assert_array_equal(d.L, masked.L)
    np.testing.assert_array_equal(d.outliers, masked.outliers)
