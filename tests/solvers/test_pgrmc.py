"""PG-RMC: recovery from all, some and few entries."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lrpca
from lrpca.testing import planted


def solve(Y, rank=5, **arguments):
    return lrpca.decompose(Y, rank, method="pgrmc", **arguments)


def test_gross_outliers():
    """σ_1 of Y is then a hundred times that of X; the tolerance is relative to Y."""
    problem = planted((300, 300), outlier_fraction=0.1, outlier_size=1000)
    assert problem.error(solve(problem.Y).low_rank) < 1e-5


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_sample(dtype):
    problem = planted((600, 500), rank=3, outlier_fraction=0.1, dtype=dtype)
    d = solve(problem.Y, 3, options={"sample": 0.3})
    assert problem.error(d.low_rank) < 1e-6
    assert d.n_reads == 1


def test_lists_and_passes_go_the_same_way(monkeypatch):
    problem = planted((200, 150), rank=3, outlier_fraction=0.1, missing=0.2)
    d = solve(problem.Y, 3)
    monkeypatch.setattr("lrpca.solvers.residuals.FEW", 1.1)
    listed = solve(problem.Y, 3)
    assert listed.n_iter == d.n_iter
    np.testing.assert_allclose([r.threshold for r in listed.history], [r.threshold for r in d.history], rtol=1e-3)
    np.testing.assert_allclose(listed.low_rank, d.low_rank, atol=1e-6 * np.abs(d.low_rank).max())


def test_rank_grows_from_one():
    problem = planted((200, 200), rank=4, outlier_fraction=0.05)
    ranks = []

    def watch(state):
        ranks.append(int(np.linalg.matrix_rank(state.L, tol=1e-8 * np.linalg.norm(state.L))))

    solve(problem.Y, 4, callback=watch)
    assert ranks[0] == 1 and ranks[-1] == 4 and sorted(ranks) == ranks


def test_threshold_falls_no_faster_than_asked():
    problem = planted((300, 300), outlier_fraction=0.3)
    d = solve(problem.Y, options={"decay": 0.8})
    thresholds = [record.threshold for record in d.history]
    assert min(later / earlier for earlier, later in zip(thresholds, thresholds[1:], strict=False)) > 0.799
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        free = solve(problem.Y, options={"decay": 0.0})
    # Rows whose error falls more slowly than σ stay unexplained.
    assert problem.error(free.low_rank) > 10 * problem.error(d.low_rank)


def test_too_small_a_mu_rejects_entries_of_X():
    problem = planted((300, 300), outlier_fraction=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = solve(problem.Y, options={"mu": 0.5, "decay": 0.0})
    assert problem.error(d.low_rank) > 1e-2
