"""Rows and columns with few inliers are refitted; where Y is read in blocks, each of them is read once for that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca.solvers.checks.low_inlier_rows
from lrpca.core.passes import Pass
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked.dask_blocks import DaskBlocks
from lrpca.solvers.checks.low_inlier_rows import refit_low_inlier_rows, unexplained_by_more_than
from lrpca.solvers.initialise import ObservationCounts
from lrpca.testing import planted

da = pytest.importorskip("dask.array")

SHAPE = (400, 300)
ROWS, COLUMNS = np.arange(5, 395, 10), np.arange(3, 300, 40)


@pytest.fixture
def problem() -> tuple[Any, Any, Any]:
    """Return Y, and factors of which some rows are wrong."""
    rng = np.random.default_rng(0)
    truth = planted(SHAPE, rank=3, outlier_fraction=0.1, random_state=0)
    U, values, Vh = np.linalg.svd(truth.X, full_matrices=False)
    L, R = U[:, :3] * values[:3] ** 0.5, Vh[:3].T * values[:3] ** 0.5
    L[ROWS], R[COLUMNS] = rng.permuted(L[ROWS]), rng.permuted(R[COLUMNS])
    return truth, L, R


def last_pass(Y: Any, L: Any, R: Any, cutoff: float) -> tuple[Pass, ObservationCounts]:
    """Return what a pass would say of the factors."""
    kept = np.abs(Y - L @ R.T) <= cutoff
    nothing = np.zeros((SHAPE[0], 0)), np.zeros((SHAPE[1], 0))
    counts = kept.sum(axis=1), kept.sum(axis=0)
    return Pass(*nothing, *counts, 0.0), ObservationCounts(
        np.full(SHAPE[0], SHAPE[1]), np.full(SHAPE[1], SHAPE[0]), 1.0
    )


def off(problem: Any, L: Any, R: Any) -> float:
    """Return the largest error of X."""
    return float(np.abs(L @ R.T - problem.X).max() / np.abs(problem.X).max())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of blocks that were asked for, one for every look at Y."""
    looks: list[int] = []
    each = DaskBlocks.each

    def watched(self: Any, work: Any, blocks: Any) -> Any:
        looks.append(len(blocks))
        return each(self, work, blocks)

    monkeypatch.setattr(DaskBlocks, "each", watched)
    # In memory, a few rows at a time: of blocks that would be a look at Y each.
    monkeypatch.setattr(lrpca.solvers.checks.low_inlier_rows, "_PIECE", 1 << 10)
    return looks


@pytest.mark.parametrize("exact", (False, True))
def test_blocks_are_read_once_for_all_lost_rows(problem: Any, asked: list[int], exact: bool) -> None:
    truth, L, R = problem
    cutoff = 1e-6 * float(np.abs(truth.X).max())
    last, counts = last_pass(truth.Y, L, R, cutoff)
    blocks = accept(da.from_array(truth.Y, chunks=(100, 100)))
    in_memory = L.copy(), R.copy()
    assert off(truth, L, R) > 0.1
    assert refit_low_inlier_rows(accept(truth.Y), *in_memory, last, counts, cutoff, exact=exact)
    assert refit_low_inlier_rows(blocks, L, R, last, counts, cutoff, exact=exact)
    assert off(truth, L, R) < 1e-9
    assert np.abs(L - in_memory[0]).max() < 1e-9 and np.abs(R - in_memory[1]).max() < 1e-9
    # Twelve blocks, each at most once for the rows and once for the columns.
    assert len(asked) == 2 and sum(asked) <= 24


def test_rows_too_long_for_memory_are_fitted_to_some_of_their_entries(
    problem: Any, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lrpca.solvers.checks.low_inlier_rows, "_HELD", 100 * 40)
    monkeypatch.setattr(lrpca.solvers.checks.low_inlier_rows, "_LEAST_TAKEN", 100)
    truth, L, R = problem
    cutoff = 1e-6 * float(np.abs(truth.X).max())
    last, counts = last_pass(truth.Y, L, R, cutoff)
    assert unexplained_by_more_than(accept(da.from_array(truth.Y, chunks=(100, 100))), L, R, last.kept, counts, cutoff)
    assert refit_low_inlier_rows(
        accept(da.from_array(truth.Y, chunks=(100, 100))), L, R, last, counts, cutoff, exact=True
    )
    assert off(truth, L, R) < 1e-9


def test_nothing_is_lost_where_residuals_are_small(problem: Any) -> None:
    truth, L, R = problem
    cutoff = 1e-6 * float(np.abs(truth.X).max())
    last, counts = last_pass(truth.Y, L, R, cutoff)
    for matrix in (accept(truth.Y), accept(da.from_array(truth.Y, chunks=(100, 100)))):
        assert unexplained_by_more_than(matrix, L, R, last.kept, counts, cutoff)
        assert not unexplained_by_more_than(matrix, L, R, last.kept, counts, 1e9)
