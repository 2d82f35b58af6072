"""Accelerated alternating projections: every iterate is that of the paper's equations, written out densely."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.testing import planted

RANK = 3


def make(**changes: Any) -> Any:
    return planted(**{"shape": (110, 90), "rank": RANK, "outlier_fraction": 0.1, "random_state": 1} | changes)


def solve(Y: Any, rank: int = RANK, **arguments: Any) -> Any:
    return lrpca.decompose(Y, rank, method="accaltproj", **arguments)


def dense_iterates(Y: Any, L: Any, R: Any, gamma: float, beta: float, count: int) -> tuple[list[Any], list[float]]:
    """Return X_1, X_2, ... and the thresholds, with S, the projection on the tangent space and its SVD in full."""
    X, r = L @ R.T, L.shape[1]
    threshold = beta * np.linalg.norm(X, 2)
    iterates, thresholds = [], []
    for k in range(1, count + 1):
        D = Y - X
        # Y - S is X where S is not zero. With a share p observed, what is seen of the residual counts 1 / p times.
        Z = X + np.where(np.abs(D) <= threshold, D, 0) / np.mean(Y == Y)
        U, _, Vh = np.linalg.svd(X, full_matrices=False)
        P, Q = U[:, :r] @ U[:, :r].conj().T, Vh[:r].conj().T @ Vh[:r]
        tangent = P @ Z + Z @ Q - P @ Z @ Q
        U, values, Vh = np.linalg.svd(tangent)
        X = (U[:, :r] * values[:r]) @ Vh[:r]
        iterates.append(X)
        thresholds.append(threshold)
        threshold = beta * (values[r] + gamma**k * values[0])
    return iterates, thresholds


@pytest.mark.parametrize("gamma", (0.5, 0.8))
@pytest.mark.parametrize("changes", [{}, {"missing": 0.2}, {"dtype": np.complex128}, {"shape": (60, 140)}], ids=str)
@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")
def test_iterates_are_those_of_the_paper(changes: dict[str, Any], gamma: float) -> None:
    problem = make(**changes)
    n1, n2 = problem.Y.shape
    U, values, Vh = np.linalg.svd(np.nan_to_num(problem.Y), full_matrices=False)
    L, R = U[:, :RANK] * values[:RANK], Vh[:RANK].T
    beta = 1 / (2 * (n1 * n2) ** 0.25)
    seen: list[Any] = []
    d = solve(
        problem.Y,
        start=(L, R),
        tol=0,
        max_iter=8,
        options={"gamma": gamma, "floor": 0},
        callback=lambda state: seen.append(state.L @ state.R.T),
    )
    iterates, thresholds = dense_iterates(problem.Y, L, R, gamma, beta, 8)
    assert d.settings["beta"] == pytest.approx(beta)
    np.testing.assert_allclose([record.threshold for record in d.history], thresholds, rtol=1e-8)
    for mine, theirs in zip(seen, iterates, strict=True):
        assert np.linalg.norm(mine - theirs) < 1e-9 * np.linalg.norm(theirs)


@pytest.mark.parametrize("share", (0.1, 0.3))
@pytest.mark.parametrize("gamma", (0.5, 0.7, 0.9))
def test_recovers(share: float, gamma: float) -> None:
    problem = make(shape=(250, 250), outlier_fraction=share)
    d = solve(problem.Y, options={"gamma": gamma})
    assert d.reason == "tol" and problem.error(d.low_rank) < 3e-7
    assert d.history[-1].residual <= 1e-7 < d.history[-2].residual


def test_more_patience_withstands_more_outliers() -> None:
    """At γ = 0.9 it recovers a share of outliers at which it fails with 0.5, and takes longer for fewer."""
    hard = make(shape=(250, 250), outlier_fraction=0.5)
    with pytest.warns(lrpca.DiagnosisWarning, match="S holds"):
        assert hard.error(solve(hard.Y, options={"gamma": 0.9}).low_rank) < 1e-6
    with pytest.warns(lrpca.ConvergenceWarning), pytest.warns(lrpca.DiagnosisWarning):
        assert hard.error(solve(hard.Y, options={"gamma": 0.5}).low_rank) > 1e-3
    easy = make()
    counts = [solve(easy.Y, options={"gamma": gamma}).n_iter for gamma in (0.5, 0.7, 0.9)]
    assert counts == sorted(counts) and counts[2] > 2 * counts[0]


def test_an_iteration_is_one_read() -> None:
    problem = make()
    assert solve(problem.Y).settings["beta_init"] == pytest.approx(2 / (110 * 90) ** 0.25)
    reads = [solve(problem.Y, tol=0, max_iter=count).n_reads for count in (5, 9)]
    assert reads[1] - reads[0] == 4
