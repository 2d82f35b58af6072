"""Grassmann averages: what they reach, which is no exact recovery, and the trimmed means they are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
import lrpca.kernels.threads
from lrpca import Decomposition, decompose
from lrpca.kernels.trimmed import trimmed_means
from lrpca.testing import Problem, planted

RANK = 5


def make(shape: tuple[int, int] = (300, 300), share: float = 0.1, **changes: Any) -> Problem:
    return planted(shape, **{"rank": RANK, "outlier_fraction": share, "random_state": 3, **changes})


def solve(Y: Any, rank: int = RANK, **arguments: Any) -> Decomposition:
    return decompose(Y, rank, method="grassmann", **arguments)


PROBLEM = make()


@pytest.mark.parametrize(
    ("size", "options", "reached"), [(1, {}, 2.24e-2), (10, {}, 4.10e-2), (10, {"coefficients": "projection"}, 1.07e-1)]
)
def test_reaches_what_its_docstring_says(size: float, options: dict[str, Any], reached: float) -> None:
    problem = make((1000, 1000), outlier_size=size, random_state=0)
    d = solve(problem.Y, options=options)
    assert d.converged
    assert problem.error(d.low_rank) == pytest.approx(reached, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "rank", "within"),
    [
        ({}, RANK, 3.5e-2),
        ({"shape": (500, 150)}, RANK, 3.5e-2),
        ({"shape": (150, 500)}, RANK, 4.5e-2),
        ({}, RANK + 2, 2.5e-2),
    ],
    ids=str,
)
def test_comes_close(changes: dict[str, Any], rank: int, within: float) -> None:
    problem = make(**changes)
    d = solve(problem.Y, rank)
    assert d.converged
    assert 1e-3 < problem.error(d.low_rank) < within
    assert d.L.shape[1] == rank and d.L.dtype == problem.Y.dtype


@pytest.mark.parametrize("rank", (RANK, RANK + 2))
def test_plain_averages_of_clean_rows_are_exact(rank: int) -> None:
    problem = make(share=0.0)
    with pytest.warns(lrpca.DiagnosisWarning, match="S is empty"):
        d = solve(problem.Y, rank, options={"trim": 0})
    assert d.converged
    assert problem.error(d.low_rank) < 1e-10


def test_trimming_withstands_outlying_entries_and_averages_outlying_rows() -> None:
    gross = make(outlier_size=10)
    errors = [gross.error(solve(gross.Y, options={"trim": trim}).low_rank) for trim in (0, 10)]
    assert errors[1] < 0.5 * errors[0]
    rng = np.random.default_rng(0)
    Y, bad = PROBLEM.Y.copy(), np.arange(0, 300, 20)
    Y[bad] = rng.uniform(-3, 3, (len(bad), 300)) * np.abs(Y).max()
    good = np.setdiff1d(np.arange(300), bad)
    d = solve(Y)
    assert np.linalg.norm(d.low_rank[good] - PROBLEM.X[good]) < 0.07 * np.linalg.norm(PROBLEM.X[good])
    plain = np.linalg.svd(Y)[2][:RANK]
    assert np.linalg.norm(PROBLEM.X[good] @ plain.T) < 0.9 * np.linalg.norm(PROBLEM.X[good])


def test_centre_is_one_of_the_components() -> None:
    problem = make(offset=20.0)
    d = solve(problem.Y, options={"center": True})
    assert d.rank == RANK and problem.error(d.low_rank) < 2e-2
    alone = solve(problem.Y, 1, options={"center": True, "coefficients": "projection"})
    median = np.median(problem.Y, axis=0)
    cosine = alone.R[:, 0] @ median / np.linalg.norm(alone.R) / np.linalg.norm(median)
    assert alone.n_iter == 0 and cosine == pytest.approx(1, abs=1e-9)


def test_directions_are_fixed_points() -> None:
    """The first direction is the trimmed mean of the rows with the signs of their coefficients."""
    directions: list[Any] = []
    solve(PROBLEM.Y, 1, tol=1e-9, callback=lambda state: directions.append(state.R[:, 0]))
    q = directions[-1]
    signed = np.sort(PROBLEM.Y * np.sign(PROBLEM.Y @ q)[:, None], axis=0)
    mean = signed[30:-30].mean(axis=0)
    np.testing.assert_allclose(q, mean / np.linalg.norm(mean), atol=1e-8)


def test_limits_are_for_each_direction() -> None:
    with pytest.warns(lrpca.ConvergenceWarning, match="max_iter"):
        d = solve(PROBLEM.Y, max_iter=2)
    assert d.n_iter == 2 * RANK
    assert solve(PROBLEM.Y, callback=lambda state: state.iteration == 3).reason == "callback"


@pytest.mark.parametrize("shape", ((8, 1000), (5, 1), (6, 2), (50, 13)))
@pytest.mark.parametrize("kind", ("normal", "ties", "sorted", "equal", "huge"))
def test_trimmed_means_are_those_of_sorted_numbers(shape: tuple[int, int], kind: str) -> None:
    values = np.random.default_rng(1).standard_normal(shape)
    if kind == "ties":
        values = np.round(values)
    elif kind == "sorted":
        values = np.sort(values, axis=1)
    elif kind == "equal":
        values[:] = 2.5
    elif kind == "huge":
        values[:, ::7] *= 1e200
    n, before = shape[1], values.copy()
    for cut in {0, n // 10, (n - 1) // 2}:
        means = np.empty(len(values))
        trimmed_means(values, cut, np.empty(n), means)
        middle = np.sort(values, axis=1)[:, cut : n - cut]
        np.testing.assert_allclose(means, middle.mean(axis=1), atol=1e-13 * np.abs(middle).max())
    np.testing.assert_array_equal(values, before)
