"""`converged` is True only when it is: wrong ranks, dense outliers, and every kind of problem of the grid."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from lrpca import ConvergenceWarning, Decomposition, decompose
from lrpca.testing import Case, Problem, grid, planted, recovered, wrong

RANK = 5
SHAPES = [(150, 150), (1000, 60)]
NOISE = (0.0, 0.05)
# A third of the grid, other problems of the same cases than those the default was made with.
REPEAT, EVERY = 7, 3


def solved_without_warnings(Y: Any, rank: int) -> Decomposition:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return decompose(Y, rank)


def problem_of(shape: tuple[int, int], noise: float, *, hard: bool) -> Problem:
    outliers = {"outlier_fraction": 0.3, "outlier_size": 10.0} if hard else {"outlier_fraction": 0.1}
    return planted(shape, rank=RANK, noise=noise, random_state=100 + hard, **outliers)


@pytest.mark.parametrize(
    ("missing", "noise", "hard"),
    [*((1, noise, hard) for noise in NOISE for hard in (False, True)), (2, NOISE[-1], True)],
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rank_too_small_is_said(missing: int, shape: tuple[int, int], noise: float, hard: bool) -> None:
    problem = problem_of(shape, noise, hard=hard)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        d = decompose(problem.Y, RANK - missing)
    assert wrong(problem, problem.error(d.low_rank))
    assert not d.converged and d.reason == "stalled"
    assert any("rank is probably too small" in message for message in d.diagnosis.messages)
    assert any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    assert any("rank is probably too small" in str(warning.message) for warning in caught)


@pytest.mark.parametrize(("shape", "seed"), [((1000, 60), 1001), ((60, 1000), 104)], ids=str)
def test_rank_too_small_for_a_narrow_matrix(shape: tuple[int, int], seed: int) -> None:
    problem = planted(shape, rank=RANK, outlier_fraction=0.3, outlier_size=10.0, random_state=seed)
    assert not solved_without_warnings(problem.Y, RANK - 1).converged


@pytest.mark.parametrize("hard", (False, True), ids=["10% outliers", "30% outliers x10"])
@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("given", (RANK + 1, 2 * RANK))
def test_rank_too_large_costs_no_accuracy(given: int, shape: tuple[int, int], noise: float, hard: bool) -> None:
    problem = problem_of(shape, noise, hard=hard)
    d = decompose(problem.Y, given)
    assert d.converged
    assert recovered(problem, problem.error(d.low_rank))
    assert d.diagnosis.components == RANK
    # The others are zero, not noise.
    assert not d.L[:, RANK:].any() and not d.R[:, RANK:].any()
    assert not any("rank" in message for message in d.diagnosis.messages)


@pytest.mark.parametrize(("shape", "seed"), [((200, 200), 0), ((60, 300), 1), ((60, 300), 2)], ids=str)
def test_rank_too_large_and_outliers_gathered_in_few_rows(shape: tuple[int, int], seed: int) -> None:
    problem = planted(shape, rank=3, outlier_fraction=0.02, outlier_size=100.0, placement="rows", random_state=seed)
    d = solved_without_warnings(problem.Y, 4)
    assert d.converged and not wrong(problem, problem.error(d.low_rank))


@pytest.mark.parametrize("fraction", (0.65, 0.8))
def test_most_entries_are_outliers(fraction: float) -> None:
    problem = planted((600, 600), rank=RANK, outlier_fraction=fraction, random_state=11)
    # 65% and more in S deserve a word.
    d = solved_without_warnings(problem.Y, RANK)
    assert problem.error(d.low_rank) < 1e-3
    assert d.converged and d.n_iter < 60
    assert d.outlier_fraction == pytest.approx(fraction, abs=0.02)


def one_of_each_kind() -> list[Case]:
    """Return the middle case of each kind."""
    cases = grid()
    kinds = dict.fromkeys(case.kind for case in cases)
    of_kind = {kind: [case for case in cases if case.kind == kind] for kind in kinds}
    return [these[len(these) // 2] for these in of_kind.values()]


@pytest.mark.parametrize("case", one_of_each_kind(), ids=lambda case: f"{case.kind}: {case.name}")
def test_every_kind_of_problem_is_recovered(case: Case) -> None:
    problem = case.problem()
    d = solved_without_warnings(problem.Y, case.rank)
    assert recovered(problem, problem.error(d.low_rank))
    assert d.converged


@pytest.mark.parametrize("case", grid()[::EVERY], ids=lambda case: case.name)
def test_converged_is_never_wrong(case: Case) -> None:
    problem = case.problem(REPEAT)
    d = solved_without_warnings(problem.Y, case.rank)
    assert not (d.converged and wrong(problem, problem.error(d.low_rank)))


def test_a_solver_that_always_says_converged_would_be_caught() -> None:
    """The rules of the grid call a wrong answer wrong: half the rank, and outliers fitted."""
    problem = problem_of((150, 150), 0.05, hard=True)
    assert wrong(problem, problem.error(problem.Y))
    assert wrong(problem, problem.error(solved_without_warnings(problem.Y, 2).low_rank))


def test_a_noise_floor_that_gives_way_is_none() -> None:
    """Small one-sided outliers pass for noise until the cutoff is refined; then there is none left."""
    arguments = {"rank": 5, "outlier_fraction": 0.4, "one_sided": True, "condition": 100.0}
    problem = planted((600, 600), **arguments, random_state=1037)  # type: ignore[arg-type]
    d = solved_without_warnings(problem.Y, 5)
    assert d.converged and recovered(problem, problem.error(d.low_rank))
