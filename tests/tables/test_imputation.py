"""Missing entries, at random and in stretches: what the low-rank part says of entries that were never seen."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.bench import real_matrices
from lrpca.matrices.accept import accept
from lrpca.matrices.dense import DenseMatrix
from lrpca.tables.imputation import posterior_mean
from lrpca.testing import Problem, planted

ROOT = Path(__file__).resolve().parents[2]


def stretches(shape: tuple[int, int], length: int, share: float, seed: int = 0) -> Any:
    """Return which entries are hidden (n1, n2): runs of consecutive entries of columns."""
    rng = np.random.default_rng(seed)
    hidden = np.zeros(shape, bool)
    while hidden.mean() < share:
        first = rng.integers(shape[0] - length + 1)
        hidden[first : first + length, rng.integers(shape[1])] = True
    return hidden


def oracle(problem: Problem, shown: Any) -> Any:
    """Return the least-squares fit of that rank (n1, n2) to the shown entries that are no outliers."""
    weight = (shown & (problem.S == 0)).astype(float)
    _, values, Vt = np.linalg.svd(problem.X, full_matrices=False)
    L, R = alternated(problem.Y, weight, Vt[: problem.rank].T * values[: problem.rank])
    return L @ R.T


def alternated(Y: Any, weight: Any, R: Any) -> tuple[Any, Any]:
    """Return the factors of a weighted least-squares fit after twenty alternations."""
    weighted = np.where(weight > 0, weight * Y, 0.0)
    for _ in range(20):
        L = _solve_rows(weighted, weight, R)
        R = _solve_rows(weighted.T, weight.T, L)
    return L, R


def _solve_rows(weighted: Any, weight: Any, R: Any) -> Any:
    grams = np.einsum("ij,ja,jb->iab", weight, R, R, optimize=True)
    return np.linalg.solve(grams, (weighted @ R)[:, :, None])[:, :, 0]


def rms(difference: Any, where: Any) -> float:
    return float(np.sqrt(np.mean(difference[where] ** 2)))


@pytest.mark.parametrize("outlier_fraction", [0.0, 0.1])
@pytest.mark.filterwarnings("ignore:S is empty")
def test_four_fifths_missing_at_random_are_recovered(outlier_fraction: float) -> None:
    problem = planted(
        (500, 500), rank=5, missing=0.8, outlier_fraction=outlier_fraction, outlier_size=10.0, one_sided=True
    )
    d = lrpca.decompose(problem.Y, 5)
    hidden = ~problem.observed
    assert d.converged
    assert rms(d.low_rank - problem.X, hidden) < 1e-5 * rms(problem.X, hidden)


@pytest.mark.parametrize("side", ["columns", "rows"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_stretches_are_filled_as_well_as_the_clean_entries_allow(side: str, noise: float) -> None:
    problem = planted((200, 300), rank=3, noise=noise, outlier_size=10.0, one_sided=True, random_state=2)
    # Whole stretches, up to three in a column: some columns keep fewer than half of their entries.
    hidden = stretches((200, 300), 60, 0.4) if side == "columns" else stretches((300, 200), 60, 0.4).T
    d = lrpca.decompose(np.where(hidden, np.nan, problem.Y), 3)
    best = rms(oracle(problem, ~hidden) - problem.X, hidden) if noise else 0.0
    assert d.converged
    assert rms(d.low_rank - problem.X, hidden) < max(1.1 * best, 1e-6 * rms(problem.X, hidden))


def posterior(Y: Any, d: lrpca.Decomposition) -> Any:
    """Return the posterior mean of a low-rank part (n1, n2)."""
    L, R = posterior_mean(accept(Y), d.L, d.R, d.noise_level, float(d.outlier_threshold))
    return L @ R.T


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"outlier_fraction": 0.3, "noise": 0.3},
        {"outlier_fraction": 0.0},
        # Next to the noise: to keep all that might be noise would let the noise level grow.
        {"outlier_size": 0.5, "one_sided": True},
        # Most entries of some rows are outliers, which must not pass for the noise of these rows.
        {"placement": "rows"},
        {"placement": "columns"},
        {"condition": 1000.0},
        {"dtype": np.float32, "scale": 1e6},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:S is empty")
def test_posterior_mean_is_as_good_as_the_fit_where_nothing_has_to_be_shrunk(changes: dict[str, Any]) -> None:
    settings = {"rank": 4, "noise": 0.05, "missing": 0.4, "outlier_size": 10.0, "random_state": 5} | changes
    problem = planted((200, 300), **settings)
    d = lrpca.decompose(problem.Y, 4)
    hidden = ~problem.observed
    shrunk = posterior(problem.Y, d)
    # Measured: 0.95 to 1.00.
    assert rms(shrunk - problem.X, hidden) < 1.01 * rms(d.low_rank - problem.X, hidden)
    assert np.linalg.norm(shrunk - d.low_rank) > 1e-6 * np.linalg.norm(d.low_rank)


def test_posterior_mean_without_noise_is_what_was_fitted() -> None:
    for dtype in (np.float64, np.float32):
        problem = planted((100, 120), rank=3, missing=0.4, outlier_size=10.0, dtype=dtype)
        d = lrpca.decompose(problem.Y, 3)
        L, R = posterior_mean(accept(problem.Y), d.L, d.R, d.noise_level, float(d.outlier_threshold))
        assert L is d.L and R is d.R
    nothing = np.zeros((100, 0))
    assert posterior_mean(accept(problem.Y), nothing, np.zeros((120, 0)), 1.0, 5.0)[0] is nothing


def test_components_that_fit_noise_are_shrunk_away() -> None:
    problem = planted((100, 120), rank=2, noise=0.3, missing=0.6, outlier_fraction=0.0)
    start = np.linalg.svd(np.where(problem.observed, problem.Y, 0.0), full_matrices=False)[2][:12].T
    # Least squares of rank 12 where each row has about 48 entries.
    L, R = alternated(problem.Y, problem.observed.astype(float), start)
    noise = float(np.std((problem.Y - problem.X)[problem.observed]))
    L_shrunk, R_shrunk = posterior_mean(accept(problem.Y), L, R, noise, 5 * noise)
    hidden = ~problem.observed
    best = rms(oracle(problem, problem.observed) - problem.X, hidden)
    assert L_shrunk.shape == L.shape and R_shrunk.shape == R.shape
    assert rms(L @ R.T - problem.X, hidden) > 5 * best
    assert rms(L_shrunk @ R_shrunk.T - problem.X, hidden) < 1.05 * best


@pytest.mark.parametrize("side", ["rows", "columns"])
def test_rows_and_columns_count_by_their_own_noise(side: str) -> None:
    problem = planted((200, 150), rank=3, outlier_size=10.0, outlier_fraction=0.05, missing=0.5, random_state=1)
    rng = np.random.default_rng(0)
    level = 0.1 * np.abs(problem.X).mean() * np.exp(rng.standard_normal((200, 1) if side == "rows" else (1, 150)))
    Y = problem.Y + level * rng.standard_normal((200, 150))
    d = lrpca.decompose(Y, 3)
    # The best that is possible: least squares by the true weights, without the outliers.
    weight = (problem.observed & (problem.S == 0)) / level**2
    L, R = alternated(Y, weight, np.linalg.svd(problem.X)[2][:3].T)
    hidden = ~problem.observed
    best = rms(L @ R.T - problem.X, hidden)
    assert rms(d.low_rank - problem.X, hidden) > 1.2 * best
    assert rms(posterior(Y, d) - problem.X, hidden) < 1.05 * best


def test_rows_without_entries_get_the_mean_row() -> None:
    problem = planted((200, 150), rank=3, offset=3.0, noise=0.1, missing=0.4, outlier_size=10.0, random_state=1)
    Y = problem.Y.copy()
    Y[5], Y[:, 7] = np.nan, np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one row and one column are without entries, which is what this is about
        d = lrpca.decompose(Y, 3)
    X = posterior(Y, d)
    others = np.arange(200) != 5
    np.testing.assert_allclose(X[5], X[others].mean(axis=0), atol=1e-3 * X.std())
    assert X.std() > 0.5 * problem.X.std()
    assert rms(X - problem.X, np.isnan(Y)) < 1.02 * rms(d.low_rank - problem.X, np.isnan(Y))


def test_rows_that_are_fitted_exactly_do_no_harm() -> None:
    problem = planted((200, 150), rank=3, noise=0.1, missing=0.4, outlier_fraction=0.0, random_state=1)
    # Half of the rows have no noise at all.
    Y = np.where(np.arange(200)[:, None] % 2, problem.Y, np.where(problem.observed, problem.X, np.nan))
    U, values, Vt = np.linalg.svd(problem.X, full_matrices=False)
    noise = float(np.nanstd(problem.Y - problem.X))
    L, R = posterior_mean(accept(Y), U[:, :3] * values[:3], Vt[:3].T, noise, 5 * noise)
    assert rms(L @ R.T - problem.X, np.arange(200)[:, None] % 2 == np.zeros((200, 150))) < 0.05 * noise


def test_posterior_mean_knows_no_scale_no_order_of_memory_and_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = planted((150, 200), rank=3, noise=0.2, missing=0.5, outlier_size=10.0)
    d = lrpca.decompose(problem.Y, 3)
    monkeypatch.setattr("lrpca.tables.imputation._PIECE", 4096)
    scales = d.noise_level, float(d.outlier_threshold)

    def shrink(matrix: DenseMatrix, threads: int, unit: float = 1.0) -> Any:
        monkeypatch.setattr("lrpca.kernels.threads.thread_count", lambda: threads)
        L, R = posterior_mean(matrix, d.L * unit, d.R, scales[0] * unit, scales[1] * unit)
        return L @ R.T / unit

    X = shrink(DenseMatrix(problem.Y), 1)
    np.testing.assert_array_equal(shrink(DenseMatrix(problem.Y), 3), X)
    junk = np.where(problem.observed, problem.Y, 1e300)
    masked = shrink(DenseMatrix(np.asfortranarray(junk), problem.observed), 2)
    np.testing.assert_allclose(masked, X, atol=1e-9 * X.std())
    np.testing.assert_allclose(shrink(DenseMatrix(1e5 * problem.Y), 2, 1e5), X, atol=1e-6 * X.std())
    # Rows are solved before columns; at rest that makes no difference worth speaking of.
    L, R = posterior_mean(DenseMatrix(problem.Y.T), d.R, d.L, *scales)
    assert rms(R @ L.T - X, ~problem.observed) < 0.1 * rms(X - problem.X, ~problem.observed)


@pytest.mark.parametrize(
    ("name", "pattern", "rank", "share"), [("ngsim", "column stretches", 10, 0.5), ("abilene", "random", 5, 1.0)]
)
def test_real_gaps_are_filled_better_by_the_posterior_mean_than_by_the_fit(
    monkeypatch: pytest.MonkeyPatch, name: str, pattern: str, rank: int, share: float
) -> None:
    if not real_matrices.available([name])[0]:
        pytest.skip(f"{name} is not in the data folder (set LRPCA_DATA)")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("imputation")
    task = script.make_task(script.Case(name, pattern, 0.3, 0.05, True, 0), real_matrices.load(name).Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether a run on real data converges is not tested here
        d = lrpca.decompose(task.shown, rank)
    fitted, shrunk = task.errors(d.low_rank), task.errors(posterior(task.shown, d))
    # Measured, by RMSE: 0.42 of it where roads are unseen for a while, 0.99 where pairs have noise of their own.
    assert shrunk[0] < share * fitted[0]
    assert shrunk[1] < fitted[1]
