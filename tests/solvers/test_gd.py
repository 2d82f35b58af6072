"""Gradient descent on the factors: recovery, balance, projection, and a random part of the entries."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lrpca
from lrpca.solvers.gd import balancing
from lrpca.testing import planted


def solve(Y, rank=5, **arguments):
    return lrpca.decompose(Y, rank, method="gd", **arguments)


def test_sample_recovers_from_a_part_of_the_entries():
    problem = planted((600, 500), rank=3, outlier_fraction=0.05)
    d = solve(problem.Y, 3, options={"sample": 0.2, "alpha": 0.05})
    assert problem.error(d.low_rank) < 1e-6
    # Of Y, a fifth is looked at once, and never again.
    assert d.n_reads == 1


@pytest.mark.parametrize("is_complex", [False, True])
def test_balance_is_the_gradient_of_its_formula(is_complex):
    rng = np.random.default_rng(0)

    def normal(*size):
        return rng.standard_normal(size) + (1j * rng.standard_normal(size) if is_complex else 0)

    L, R, P, Q = normal(7, 3), normal(5, 3), normal(7, 3), normal(5, 3)

    def height(t):
        A, B = L + t * P, R + t * Q
        return np.linalg.norm(A.conj().T @ A - B.T @ B.conj()) ** 2 / 4

    slope = (height(1e-5) - height(-1e-5)) / 2e-5
    dL, dR = balancing(L, R)
    assert slope == pytest.approx((np.vdot(dL, P) + np.vdot(dR, Q)).real, rel=1e-6)
    # Singular factors are balanced.
    U, values, Vh = np.linalg.svd(L @ R.T, full_matrices=False)
    for tilt in balancing(U[:, :3] * np.sqrt(values[:3]), Vh.T[:, :3] * np.sqrt(values[:3])):
        assert np.abs(tilt).max() < 1e-12 * values[0] ** 1.5


@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_any_weight_of_the_balance(balance):
    problem = planted((150, 150), rank=3, outlier_fraction=0.05, dtype=np.complex128)
    assert problem.error(solve(problem.Y, 3, options={"balance": balance}).low_rank) < 1e-6


def test_projection_limits_the_rows_of_the_factors():
    problem = planted((300, 200), rank=3, outlier_fraction=0.05)
    seen = []

    def watch(state):
        largest = np.linalg.norm(state.L, 2) * np.linalg.norm(state.R, 2)
        limit = np.sqrt(4 * 0.3 * 3 * largest / 300)
        seen.append(np.linalg.norm(state.L, axis=1).max() / limit)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = solve(problem.Y, 3, options={"incoherence": 0.3, "alpha": 0.05}, callback=watch, max_iter=30)
    # σ_1 of the factors before the projection is not that after it.
    assert max(seen) < 1.3
    assert problem.error(d.low_rank) > 1e-3
    loose = solve(problem.Y, 3, options={"incoherence": 10.0, "alpha": 0.05})
    assert problem.error(loose.low_rank) < 1e-6


def test_a_rising_residual_does_not_end_the_run():
    problem = planted((300, 300), outlier_fraction=0.1, outlier_size=10, noise=0.05)
    d = solve(problem.Y)
    residuals = [record.residual for record in d.history]
    rises = [k for k in range(1, len(residuals)) if residuals[k] > residuals[k - 1]]
    assert rises and rises[0] < d.n_iter - 5
    assert d.reason == "noise_floor"
    assert problem.error(d.low_rank) < 2 * problem.oracle_error


def test_ill_conditioned_takes_longer_than_scaledgd():
    problem = planted((200, 200), rank=3, outlier_fraction=0.05, condition=10)
    d = solve(problem.Y, 3, tol=1e-5)
    scaled = lrpca.decompose(problem.Y, 3, method="scaledgd", tol=1e-5)
    assert problem.error(d.low_rank) < 1e-4
    assert d.n_iter > 3 * scaled.n_iter


def test_single_precision_is_not_called_stalled_on_its_way():
    """The change is below four roundings while the residual still falls by a tenth."""
    problem = planted((120, 500), outlier_fraction=0.1, dtype=np.float32)
    assert solve(problem.Y).reason == "tol"


def test_a_sample_without_observed_entries_is_refused():
    Y = np.full((30, 20), np.nan)
    Y[3, 4] = 1.0
    with pytest.raises(ValueError, match="sample"):
        solve(Y, 1, options={"sample": 0.01, "alpha": 0.1})
