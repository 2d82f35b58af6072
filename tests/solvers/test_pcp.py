"""Principal component pursuit solves the convex program: optimality conditions, and agreement with pyrpca."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.testing import pcp_violation, planted

# Between what solvers leave (1e-8 and below) and what wrong answers show (1e-2 and above).
OPTIMAL, WRONG = 1e-6, 1e-2

RECOVERABLE: list[dict[str, Any]] = [
    {"shape": (100, 100)},
    {"shape": (150, 100)},
    {"shape": (100, 200), "rank": 3},
    {"shape": (100, 100), "outlier_fraction": 0.1, "outlier_size": 5.0},
    {"shape": (120, 120), "missing": 0.1},
    {"shape": (100, 90), "dtype": np.complex128},
]


def make(**changes: Any) -> Any:
    return planted(**{"shape": (100, 100), "rank": 2, "outlier_fraction": 0.05, "random_state": 2} | changes)


def solve(Y: Any, rank: Any = None, **arguments: Any) -> Any:
    return lrpca.decompose(Y, rank, method="pcp", **arguments)


@pytest.mark.parametrize(
    ("changes", "algorithm"), [*((c, "ialm") for c in RECOVERABLE), *((c, "admm") for c in RECOVERABLE[3:])], ids=str
)
def test_optimality_conditions_hold(changes: dict[str, Any], algorithm: str) -> None:
    problem = make(**changes)
    d = solve(problem.Y, options={"algorithm": algorithm})
    assert d.reason == "tol" and d.rank == problem.rank
    assert problem.error(d.low_rank) < 1e-6
    assert pcp_violation(problem.Y, d.low_rank) < OPTIMAL


@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")
@pytest.mark.parametrize("shape", ((100, 100), (100, 70)))
def test_optimality_conditions_hold_in_noise(shape: tuple[int, int]) -> None:
    """A growing penalty ends before the solution is reached; a fixed one, or one that grows slowly, gets there."""
    problem = make(shape=shape, noise=0.1)
    fixed = solve(problem.Y, options={"algorithm": "admm"}).low_rank
    assert pcp_violation(problem.Y, fixed) < OPTIMAL
    fast, slow = (solve(problem.Y, options={"growth": growth}).low_rank for growth in (1.5, 1.05))
    assert pcp_violation(problem.Y, slow, tolerance=1e-4) < WRONG < pcp_violation(problem.Y, fast)
    assert np.linalg.norm(slow - fixed) < 1e-3 * np.linalg.norm(fixed) < np.linalg.norm(fast - fixed)


@pytest.mark.parametrize("changes", RECOVERABLE[2:6:2] + RECOVERABLE[-1:], ids=str)
def test_what_is_no_solution_violates_them(changes: dict[str, Any]) -> None:
    problem = make(**changes)
    X, weight = problem.X, 1 / math.sqrt(max(problem.Y.shape))
    assert pcp_violation(problem.Y, X) < OPTIMAL
    size = np.abs(X).mean()
    dense = 1e-3 * size * np.random.default_rng(0).standard_normal(X.shape)
    entry = np.zeros(X.shape)
    entry[3, 4] = size
    for wrong in (1.001 * X, X + dense, X + entry, np.zeros_like(X)):
        assert pcp_violation(problem.Y, wrong) > WRONG
    for factor in (0.2, 5.0):
        assert pcp_violation(problem.Y, X, factor * weight) > WRONG


def test_a_given_sparse_part_has_to_add_up() -> None:
    problem = make()
    assert pcp_violation(problem.Y, problem.X, S=problem.S) < OPTIMAL
    assert pcp_violation(problem.Y, problem.X, S=1.1 * problem.S) > 1e-3
    with pytest.raises(ValueError, match=r"X\.shape=\(100, 99\) is not Y\.shape=\(100, 100\)"):
        pcp_violation(problem.Y, problem.X[:, 1:])


@pytest.mark.parametrize("factor", (0.7, 1.5))
def test_a_given_weight_is_that_of_the_program(factor: float) -> None:
    problem = make(noise=0.1)
    weight = factor / 10
    d = solve(problem.Y, options={"algorithm": "admm", "weight": weight})
    assert d.settings["weight"] == weight
    assert pcp_violation(problem.Y, d.low_rank, weight) < OPTIMAL
    assert pcp_violation(problem.Y, d.low_rank) > WRONG


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shape": (120, 80), "rank": 3},
        {"shape": (80, 130), "noise": 0.05},
        {"noise": 0.3, "outlier_fraction": 0.1},
        {"outlier_fraction": 0.4},
        {"outlier_size": 100.0, "scale": 1e4},
        {"offset": 5.0, "one_sided": True},
        {"shape": (300, 40)},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")
def test_agrees_with_pyrpca(changes: dict[str, Any]) -> None:
    pyrpca = pytest.importorskip("pyrpca")
    problem = make(**changes)
    weight = 1 / math.sqrt(max(problem.Y.shape))
    theirs, S = pyrpca.rpca_pcp_ialm(problem.Y, weight, verbose=False)
    d = solve(problem.Y)
    assert np.linalg.norm(d.low_rank - theirs) < 1e-5 * np.linalg.norm(theirs)
    assert np.linalg.norm(problem.Y - d.low_rank - S) < 1e-5 * np.linalg.norm(problem.Y)


@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning", "ignore::lrpca.ConvergenceWarning")
def test_partial_svds_lead_where_full_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise raises the rank beyond what partial SVDs are for: full ones take over."""
    problem = make(shape=(260, 240), rank=4, outlier_fraction=0.1, noise=0.1)
    partial = solve(problem.Y, max_iter=15)
    monkeypatch.setattr("lrpca.solvers.shrinkage._FEW", 10_000)
    full = solve(problem.Y, max_iter=15)
    assert 0 < np.linalg.norm(partial.low_rank - full.low_rank) < 1e-5 * np.linalg.norm(full.low_rank)


def test_settings_as_used() -> None:
    problem = make(shape=(60, 140))
    d = solve(problem.Y)
    assert d.settings["weight"] == pytest.approx(1 / math.sqrt(140))
    assert d.settings["mu"] == pytest.approx(1.25 / np.linalg.norm(problem.Y, 2), rel=1e-4)
    assert d.settings["growth"] == 1.5 and d.settings["algorithm"] == "ialm"
    fixed = solve(problem.Y, options={"algorithm": "admm"})
    assert fixed.settings["mu"] == pytest.approx(60 * 140 / (4 * np.abs(problem.Y).sum()))
    assert fixed.settings["growth"] == 1
    assert {record.step for record in fixed.history} == {fixed.settings["mu"]}


def test_the_rank_is_found_and_a_given_one_cuts_or_pads() -> None:
    problem = make(rank=3)
    found = solve(problem.Y)
    assert found.rank == found.diagnosis.components == 3
    padded = solve(problem.Y, 5)
    assert padded.rank == 5 and not padded.L[:, 3:].any()
    # Products of other widths may be rounded differently.
    np.testing.assert_allclose(padded.low_rank, found.low_rank, rtol=0, atol=1e-14)
    with pytest.warns(lrpca.DiagnosisWarning, match="has 3 components, of which the 2 asked for are returned"):
        cut = solve(problem.Y, 2)
    np.testing.assert_allclose(cut.L, found.L[:, :2], atol=1e-12)


def test_the_dual_is_seen_in_the_history() -> None:
    problem = make()
    history = solve(problem.Y).history
    steps = np.array([record.step for record in history])
    np.testing.assert_allclose(steps[1:] / steps[:-1], 1.5)
    np.testing.assert_allclose([record.threshold for record in history], 0.1 / steps)
    assert history[-1].residual <= 1e-7 < history[-2].residual
