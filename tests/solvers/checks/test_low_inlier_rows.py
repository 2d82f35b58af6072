"""Lost rows and columns are fitted anew; where Y is read in blocks, each of them is read once for that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca.solvers.checks.low_inlier_rows
from lrpca.core.passes import Pass
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked.dask_blocks import DaskBlocks
from lrpca.solvers.checks.low_inlier_rows import _median_share, given_up, rescue_lost
from lrpca.solvers.initialise import Survey
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


def last_pass(Y: Any, L: Any, R: Any, cutoff: float) -> tuple[Pass, Survey]:
    """Return what a pass would say of the factors."""
    kept = np.abs(Y - L @ R.T) <= cutoff
    nothing = np.zeros((SHAPE[0], 0)), np.zeros((SHAPE[1], 0))
    counts = kept.sum(axis=1), kept.sum(axis=0)
    return Pass(*nothing, *counts, 0.0), Survey(np.full(SHAPE[0], SHAPE[1]), np.full(SHAPE[1], SHAPE[0]), 1.0)


def off(problem: Any, L: Any, R: Any) -> float:
    """Return the largest error of X."""
    return float(np.abs(L @ R.T - problem.X).max() / np.abs(problem.X).max())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of blocks that were asked for, one for every look at Y."""
    looks: list[int] = []
    each = DaskBlocks.each

    def watched(self: Any, work: Any, *, places: Any = None, **rest: Any) -> Any:
        looks.append(len(self.grid) if places is None else len(places))
        return each(self, work, places=places, **rest)

    monkeypatch.setattr(DaskBlocks, "each", watched)
    # In memory, a few rows at a time: of blocks that would be a look at Y each.
    monkeypatch.setattr(lrpca.solvers.checks.low_inlier_rows, "_CHUNK", 1 << 10)
    return looks


@pytest.mark.parametrize("thorough", (False, True))
def test_blocks_are_read_once_for_all_lost_rows(problem: Any, asked: list[int], thorough: bool) -> None:
    truth, L, R = problem
    cutoff = 1e-6 * float(np.abs(truth.X).max())
    last, survey = last_pass(truth.Y, L, R, cutoff)
    blocks = accept(da.from_array(truth.Y, chunks=(100, 100)))
    in_memory = L.copy(), R.copy()
    assert off(truth, L, R) > 0.1
    assert rescue_lost(accept(truth.Y), *in_memory, last, survey, cutoff, thorough=thorough)
    assert rescue_lost(blocks, L, R, last, survey, cutoff, thorough=thorough)
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
    last, survey = last_pass(truth.Y, L, R, cutoff)
    assert given_up(accept(da.from_array(truth.Y, chunks=(100, 100))), L, R, last.kept, survey, cutoff)
    taken = []
    held = lrpca.solvers.checks.low_inlier_rows._held

    def watched(matrix: Any, axis: int, indices: Any) -> Any:
        part, chosen = held(matrix, axis, indices)
        taken.append(part.array.size)
        return part, chosen

    monkeypatch.setattr(lrpca.solvers.checks.low_inlier_rows, "_held", watched)
    assert rescue_lost(accept(da.from_array(truth.Y, chunks=(100, 100))), L, R, last, survey, cutoff, thorough=True)
    assert off(truth, L, R) < 1e-9
    assert max(taken) <= 100 * 40


def test_nothing_is_given_up_where_residuals_are_small(problem: Any) -> None:
    truth, L, R = problem
    cutoff = 1e-6 * float(np.abs(truth.X).max())
    last, survey = last_pass(truth.Y, L, R, cutoff)
    for matrix in (accept(truth.Y), accept(da.from_array(truth.Y, chunks=(100, 100)))):
        assert given_up(matrix, L, R, last.kept, survey, cutoff)
        assert not given_up(matrix, L, R, last.kept, survey, 1e9)


@pytest.mark.parametrize("length, taken", [(3000, 3000), (9000, 4096)])
def test_long_rows_are_fitted_to_some_of_their_entries_and_annealed_only_if_need_be(
    length: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    L, R = rng.standard_normal((30, 2)), rng.standard_normal((length, 2))
    Y = L @ R.T
    Y[rng.random(Y.shape) < 0.1] += 10
    start = L.copy()
    start[3] *= -1
    kept = np.abs(Y - start @ R.T) <= 1e-6
    last = Pass(np.zeros((30, 0)), np.zeros((length, 0)), kept.sum(axis=1), kept.sum(axis=0), 0.0)
    facts = Survey(np.full(30, length), np.full(length, 30), float(np.linalg.norm(Y)))
    fits: list[tuple[tuple[int, int], bool]] = []
    fit = lrpca.solvers.checks.low_inlier_rows.robust_coefficients

    def spy(part: Any, among: Any, noise: float, *, annealed: bool, by_blocks: bool) -> Any:
        fits.append((part.shape, annealed))
        return fit(part, among, noise, annealed=annealed, by_blocks=by_blocks)

    monkeypatch.setattr(lrpca.solvers.checks.low_inlier_rows, "robust_coefficients", spy)
    assert rescue_lost(accept(Y), start, R, last, facts, 1e-6, thorough=True)
    np.testing.assert_allclose(start, L, atol=1e-9)
    # The first fit explained the row as well as others are.
    assert fits == [((1, taken), False)]


@pytest.mark.parametrize("n", (1, 2, 7, 100))
def test_the_median_of_counts(n: int) -> None:
    count = np.random.default_rng(n).integers(3, 40, n)
    assert _median_share(count, np.int64(40)) == np.median(count / 40)
    # Far apart, too.
    count[0] = 10**9
    assert _median_share(count, np.int64(10**9)) == np.median(count / 10**9)
    observed = np.random.default_rng(0).integers(0, 50, n)
    observed[0] = 50
    assert _median_share(count, observed) == np.median((count / np.maximum(observed, 1))[observed > 0])
