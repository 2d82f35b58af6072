"""Rows that are half outliers, or lost to an earlier fit, are fitted anew; what any fit explains is not counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.core.passes import Pass
from lrpca.matrices.accept import accept
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.checks.low_inlier_rows import BETTER, rescue_lost
from lrpca.solvers.checks.minimal_subsets import consensus
from lrpca.solvers.initialise import Survey
from lrpca.testing import planted

CUTOFF = 1e-9


@pytest.mark.parametrize("dtype", (float, complex))
@pytest.mark.parametrize(("rank", "outliers"), ((1, 0.55), (3, 0.45), (6, 0.25)))
def test_consensus_fits_rows_that_are_half_outliers(rank: int, outliers: float, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    L, R = (rng.standard_normal((n, rank)).astype(dtype) for n in (200, 40))
    if dtype is complex:
        R += 1j * rng.standard_normal(R.shape)
    Y = L @ R.T
    # On one side, and where they weigh the most.
    heavy = np.argsort(-np.abs(R).sum(axis=1))[: round(outliers * len(R))]
    Y[:, heavy] += rng.uniform(1, 10, (len(L), len(heavy)))
    Y[:, 3], Y[5] = np.nan, np.nan
    found = consensus(DenseMatrix(Y), R, CUTOFF)
    right = np.abs(found - L).max(axis=1) < 1e-9
    assert right.mean() > 0.95 and not found[5].any()
    assert np.array_equal(found, consensus(DenseMatrix(Y), R, CUTOFF))


@pytest.mark.parametrize("seed", (2, 10, 27))
def test_short_rows_that_are_half_outliers_are_right_in_noise(seed: int) -> None:
    problem = planted((1024, 40), rank=1, outlier_fraction=0.3, missing=0.3, noise=0.01, random_state=seed)
    found = lrpca.decompose(problem.Y, 1)
    assert found.converged
    assert problem.error(found.low_rank) < 1.6 * problem.oracle_error


@pytest.mark.parametrize("seed", (10, 73))
def test_rows_lost_to_a_divided_fit_are_found_again(seed: int) -> None:
    problem = planted((1024, 40), rank=1, outlier_fraction=0.1, missing=0.3, random_state=seed)
    found = lrpca.decompose(problem.Y, 1)
    assert found.converged
    assert problem.error(found.low_rank) < 1e-7


def test_rows_of_nothing_but_outliers_are_not_believed() -> None:
    rng = np.random.default_rng(0)
    L, R = rng.standard_normal((120, 3)), rng.standard_normal((100, 3))
    Y = L @ R.T + 0.05 * rng.standard_normal((120, 100))
    Y[:40] = 10 * rng.standard_normal((40, 100))
    start = L.copy()
    start[:40] = 0.0
    kept = np.abs(Y - start @ R.T) <= 0.25
    last = Pass(np.zeros((120, 0)), np.zeros((100, 0)), kept.sum(axis=1), kept.sum(axis=0), 0.0)
    facts = Survey(np.full(120, 100), np.full(100, 120), 1.0)
    rescue_lost(accept(Y), start, R, last, facts, 0.25, thorough=False)
    assert np.array_equal(start[40:], L[40:])
    # Some explain six entries by three of them.
    explained = np.sum(np.abs(Y - consensus(DenseMatrix(Y), R, 0.25) @ R.T) <= 0.25, axis=1)[:40]
    assert np.sum(explained > BETTER * kept.sum(axis=1)[:40] + 1) > 30
    assert np.mean(start[:40].any(axis=1)) < 0.5
