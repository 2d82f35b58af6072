"""Fits that are at rest and wrong are found out by the fits of other starts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lrpca import Decomposition, decompose
from lrpca.solvers.block import Block, Fit, anneal, fits, from_half
from lrpca.solvers.checks.other_fits import OtherFits
from lrpca.solvers.rank.selection import doubled, improved, select_fit
from lrpca.testing import random_problem

Planted = tuple[Any, Any, int]


def quiet(Y: Any, rank: int | None, **options: Any) -> Decomposition:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return decompose(Y, rank, **options)


def error(found: Any, X: Any) -> float:
    return float(np.linalg.norm(found - X) / np.linalg.norm(X))


def whole(Y: Any) -> Block:
    return Block(Y, np.ones(Y.shape, bool))


def scored(block: Block, X: Any, rank: int) -> Fit:
    U, s, Vt = np.linalg.svd(X, full_matrices=False)
    return block.scored(U[:, :rank] * s[:rank], Vt[:rank].T)


def gaussian(rng: np.random.Generator, shape: tuple[int, int], rank: int) -> Any:
    return rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1])) / np.sqrt(rank)


def level_shifts(rng: np.random.Generator) -> Planted:
    X = gaussian(rng, (300, 100), 3)
    Y = X + 0.02 * rng.standard_normal(X.shape)
    for j in rng.choice(100, 30, replace=False):
        first = rng.integers(210)
        Y[first : first + 90, j] += 10 * rng.choice([-1, 1])
    return Y, X, 3


def stripes(rng: np.random.Generator) -> Planted:
    X = gaussian(rng, (200, 200), 4)
    i, j = np.indices(X.shape)
    return X + 10.0 * ((i - j) % 10 < 3), X, 4


def moving_blocks(rng: np.random.Generator) -> Planted:
    X = gaussian(rng, (200, 400), 3)
    Y = X.reshape(200, 20, 20).copy()
    for k in range(3):
        speed, start = rng.uniform(-1, 1, 2), rng.uniform(0, 20, 2)
        for t in range(200):
            rows, columns = ((np.arange(6) + int(start[a] + speed[a] * t)) % 20 for a in range(2))
            Y[t][np.ix_(rows, columns)] += 10.0 * (k + 1)
    return Y.reshape(X.shape), X, 3


def clipped(rng: np.random.Generator) -> Planted:
    X = gaussian(rng, (300, 250), 3)
    return np.clip(X, *np.quantile(X, [0.2, 0.8])), X, 3


def checkerboard(rng: np.random.Generator) -> Planted:
    X = gaussian(rng, (300, 200), 3)
    i, j = np.indices(X.shape)
    seen = ((i // 20 + j // 20) % 2 == 0) | (rng.random(X.shape) < 0.1)
    Y = X + (rng.random(X.shape) < 0.1) * rng.uniform(-5, 5, X.shape)
    return np.where(seen, Y, np.nan), X, 3


@pytest.mark.parametrize("make", (level_shifts, stripes, moving_blocks, clipped, checkerboard))
def test_structured_outliers_and_gaps(make: Callable[[np.random.Generator], Planted]) -> None:
    """Without the comparison, all of these come to rest at an error of 0.03 to 9."""
    Y, X, rank = make(np.random.default_rng(0))
    d = quiet(Y, rank)
    assert error(d.low_rank, X) < 1e-2
    assert d.converged or make is clipped
    alone = quiet(Y, rank, options={"without": ["other_fits"]})
    assert error(alone.low_rank, X) > 2e-2


@pytest.mark.parametrize("given", (1, 2, 3, 4))
def test_a_rank_too_small_is_said(given: int) -> None:
    X = gaussian(np.random.default_rng(0), (300, 200), 5)
    d = quiet(X, given)
    assert not d.converged and d.reason == "stalled"
    assert quiet(X, 5).converged


def test_the_truth_has_the_shortest_description() -> None:
    Y, X, rank = stripes(np.random.default_rng(1))
    block = whole(Y)
    truth, svd = scored(block, X, rank), scored(block, Y, rank)
    wrong = anneal(block, svd.L, svd.R, 10.0)
    found = select_fit(block, [rank])
    assert truth.score < wrong.score < svd.score
    assert abs(found.score - truth.score) < 1e-3 * abs(truth.score)


def test_numbers_of_a_fit_have_a_price() -> None:
    """A surplus component does not pay for itself, a missing one would."""
    rng = np.random.default_rng(0)
    X = gaussian(rng, (120, 100), 3)
    Y = X + (rng.random(X.shape) < 0.1) * rng.uniform(-5, 5, X.shape) + 0.01 * rng.standard_normal(X.shape)
    found = select_fit(whole(Y), doubled(25))
    assert found.L.shape[1] == 3 and error(found.L @ found.R.T, X) < 1e-2


@pytest.mark.parametrize("make", (level_shifts, stripes, moving_blocks, clipped))
def test_outliers_do_not_become_components(make: Callable[[np.random.Generator], Planted]) -> None:
    """Their pattern is of low rank, and would be described more briefly as components; they are a minority, though."""
    Y, X, rank = make(np.random.default_rng(0))
    found = select_fit(whole(Y), doubled(16))
    assert found.L.shape[1] == rank and error(found.L @ found.R.T, X) < 1e-2
    assert error(quiet(Y, rank + 3).low_rank, X) < 1e-2


def test_what_few_rows_share_is_a_component() -> None:
    """A component that explains the majority of its rows counts, however few these are."""
    rng = np.random.default_rng(0)
    centres, cluster = rng.standard_normal((6, 200)), np.minimum(np.arange(300) // 55, 5)
    X = centres[cluster]
    Y = X + (rng.random(X.shape) < 0.2) * rng.uniform(-5, 5, X.shape)
    d = quiet(Y, 6)
    assert d.converged and error(d.low_rank, X) < 1e-6
    assert select_fit(whole(Y), doubled(25)).L.shape[1] == 6


def test_large_matrices_are_compared_on_a_block() -> None:
    """What the block finds is extended to all rows and columns."""
    rng = np.random.default_rng(0)
    X = gaussian(rng, (900, 700), 4)
    i, j = np.indices(X.shape)
    Y = X + 10.0 * ((i - j) % 10 < 3)
    d = quiet(Y, 4)
    assert d.converged and error(d.low_rank, X) < 1e-6


def test_complex_numbers() -> None:
    rng = np.random.default_rng(0)
    X = gaussian(rng, (150, 120), 3) + 1j * gaussian(rng, (150, 120), 3)
    i, j = np.indices(X.shape)
    Y = X + 12.0 * ((i - j) % 10 < 3)
    fit = select_fit(whole(Y), [6])
    assert error(fit.L @ fit.R.T, X) < 1e-3


@pytest.mark.parametrize("seed", (59, 71))
def test_a_fit_that_no_half_finds_again_is_not_called_converged(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Structured outliers: many fits are at rest, and this one is wrong."""
    problem = random_problem(seed)
    d = quiet(problem.Y, problem.given)
    assert problem.error(d.low_rank) > 0.5 and d.reason == "stalled"
    monkeypatch.setattr(OtherFits, "from_halves", lambda *_: (None, True))
    assert quiet(problem.Y, problem.given).converged


@pytest.mark.parametrize("of_rows", (True, False))
def test_a_right_fit_is_found_again(of_rows: bool) -> None:
    Y, X, rank = stripes(np.random.default_rng(1))
    rng = np.random.default_rng(0)
    again = [from_half(whole(Y), rank, rng, start, of_rows=of_rows) for start in (0, 1)]
    assert min(error(fit.L @ fit.R.T, X) for fit in again) < 1e-3


@pytest.mark.parametrize("of_rows", (True, False))
def test_halves_of_blocks_with_hardly_any_rows(of_rows: bool) -> None:
    Y = gaussian(np.random.default_rng(0), (20, 20), 2)
    observed = np.zeros(Y.shape, bool)
    observed[3] = True
    for seed in range(4):
        fit = from_half(Block(Y * observed, observed), 2, np.random.default_rng(seed), 1, of_rows=of_rows)
        assert np.isfinite(fit.score)


def test_components_of_a_minority_count_where_the_rank_is_given() -> None:
    """Most entries are explained without the second component, which few rows and columns share."""
    rng = np.random.default_rng(0)
    few, some = np.arange(80) < 30, np.arange(60) < 25
    X = np.outer(rng.standard_normal(80), rng.standard_normal(60))
    X += 3 * np.outer(rng.standard_normal(80) * few, rng.standard_normal(60) * some)
    Y = X + (rng.random(X.shape) < 0.05) * rng.uniform(-5, 5, X.shape)
    given = replace(whole(Y), rank_is_given=True)
    one, two = (min(fits(given, rank), key=lambda fit: fit.score) for rank in (1, 2))
    assert error(two.L @ two.R.T, X) < 1e-6 < error(one.L @ one.R.T, X)
    assert given.prefers(two, one) and not whole(Y).prefers(two, one)
    assert error(select_fit(given, [2]).L @ select_fit(given, [2]).R.T, X) < 1e-6


@pytest.mark.parametrize("rank", (4, None))
@pytest.mark.parametrize("columns", (False, True))
def test_random_rows_are_no_reason_for_doubt(rank: int | None, columns: bool) -> None:
    """Nothing explains some rows (or columns): the others are exact, and these are not fitted by huge coefficients."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4)) @ rng.standard_normal((4, 200))
    Y = X.copy()
    Y[:6] = 3 * rng.standard_normal((6, 200))
    if columns:
        X, Y = X.T, Y.T
    d = quiet(Y, rank)
    found, truth = (d.low_rank.T, X.T) if columns else (d.low_rank, X)
    assert d.converged and d.rank == 4
    assert error(found[6:], truth[6:]) < 1e-6
    assert np.abs(found[:6]).max() < 3 * np.abs(Y).max()


def test_moves_do_not_go_in_circles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit may be preferred to another, and that one to the first, where both have outliers of their own."""
    compared = []

    def other_rank(self: Block, one: Fit, other: Fit) -> bool:
        compared.append((one.L.shape[1], other.L.shape[1]))
        assert len(compared) < 50
        return one.L.shape[1] != other.L.shape[1]

    Y = gaussian(np.random.default_rng(0), (40, 30), 3)
    fit = next(fits(whole(Y), 2))
    monkeypatch.setattr(Block, "is_better", other_rank)
    improved(whole(Y), fit, 4)
    assert (1, 2) in compared
