"""Fits that are right up to a factor that is not the same everywhere are found out, and brought together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.decompose import Arguments, decompose_quietly
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.checks.inconsistent_scaling import divided, reconcile
from lrpca.testing import planted

SHAPE, RANK, CUTOFF = (200, 60), 2, 1e-9


def factors_of(X: Any, rank: int = RANK) -> tuple[Any, Any]:
    """Return L and R of the same size with L Rᵀ = X."""
    U, values, Vt = np.linalg.svd(X, full_matrices=False)
    root = np.sqrt(values[:rank])
    return U[:, :rank] * root, Vt[:rank].T * root


def split(L: Any, R: Any, rows: int, columns: int) -> tuple[Any, Any]:
    """Return factors that are right where the first rows meet the first columns, and the others the others."""
    L, R = L.copy(), R.copy()
    L[:rows], R[:columns] = 1.03 * L[:rows], R[:columns] / 1.03
    return L, R


@pytest.mark.parametrize(("rows", "columns"), [(70, 40), (140, 40), (70, 20)])
@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_divided_fits_are_brought_together(rows: int, columns: int, missing: float) -> None:
    problem = planted(SHAPE, rank=RANK, outlier_fraction=0.1, missing=missing, random_state=0)
    L, R = split(*factors_of(problem.X), rows, columns)
    matrix = DenseMatrix(problem.Y)
    assert divided(matrix, L, R, CUTOFF)
    assert reconcile(matrix, L, R, CUTOFF)
    assert np.linalg.norm(L @ R.T - problem.X) < 1e-8 * np.linalg.norm(problem.X)
    assert not divided(matrix, L, R, CUTOFF)


@pytest.mark.parametrize(("rows", "columns"), [(70, 40), (140, 40), (70, 20), (90, 30), (100, 25)])
def test_runs_do_not_end_divided(rows: int, columns: int) -> None:
    problem = planted(SHAPE, rank=RANK, outlier_fraction=0.1, random_state=0)
    found = lrpca.decompose(problem.Y, RANK, start=split(*factors_of(problem.X), rows, columns))
    assert found.converged
    assert np.linalg.norm(found.low_rank - problem.X) < 1e-6 * np.linalg.norm(problem.X)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.7])
def test_right_fits_are_not_divided_however_many_outliers(share: float) -> None:
    problem = planted(SHAPE, rank=RANK, outlier_fraction=share, random_state=0)
    L, R = factors_of(problem.X)
    before = L.copy(), R.copy()
    assert not divided(DenseMatrix(problem.Y), L, R, CUTOFF)
    assert not reconcile(DenseMatrix(problem.Y), L, R, CUTOFF)
    assert np.array_equal(L, before[0]) and np.array_equal(R, before[1])


def test_halves_that_explain_the_same_are_not_called_converged() -> None:
    problem = planted(SHAPE, rank=RANK, outlier_fraction=0.1, random_state=0)
    found, _ = decompose_quietly(problem.Y, RANK, Arguments(start=split(*factors_of(problem.X), 100, 30)))
    assert not found.converged
