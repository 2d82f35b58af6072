"""Alternating projections: the paper's stages, and the practical variant that never releases an entry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.testing import planted

RANK = 4


def make(**changes: Any) -> Any:
    return planted(
        **{"shape": (200, 180), "rank": RANK, "outlier_fraction": 0.1, "outlier_size": 3.0, "random_state": 1} | changes
    )


def solve(Y: Any, rank: int = RANK, variant: str = "paper", **arguments: Any) -> Any:
    # What the variant flags it flags for good: with its C = 1 matrices as small as these lose a column now and then.
    usual = {"incoherence": 2.0} if variant == "ncrpca" else {}
    options = {"variant": variant} | usual | arguments.pop("options", {})
    return lrpca.decompose(Y, rank, method="altproj", options=options, **arguments)


def dense(Y: Any, rank: int, beta: float, passes: int = 30) -> Any:
    """Return X of the algorithm as printed: full SVDs, a fixed number of passes per stage."""
    threshold = beta * np.linalg.norm(Y, 2)
    X = np.zeros_like(Y)
    for k in range(1, rank + 1):
        for t in range(passes):
            S = np.where(np.abs(Y - X) > threshold, Y - X, 0)
            U, values, Vh = np.linalg.svd(Y - S, full_matrices=False)
            X = (U[:, :k] * values[:k]) @ Vh[:k]
            threshold = beta * (values[k] + 0.5**t * values[k - 1])
    return X


@pytest.mark.parametrize("variant", ("paper", "ncrpca"))
@pytest.mark.parametrize(
    "changes", [{}, {"outlier_size": 1.0}, {"shape": (120, 300)}, {"dtype": np.complex128}, {"condition": 5.0}], ids=str
)
def test_recovers(variant: str, changes: dict[str, Any]) -> None:
    problem = make(**changes)
    d = solve(problem.Y, variant=variant)
    assert d.reason == "tol" and problem.error(d.low_rank) < 1e-6


def test_leads_where_the_printed_algorithm_does() -> None:
    problem = make(condition=5.0)
    n1, n2 = problem.Y.shape
    X = dense(problem.Y, RANK, 0.5 / (n1 * n2) ** 0.25)
    assert problem.error(X) < 1e-6
    assert np.linalg.norm(solve(problem.Y).low_rank - X) < 2e-6 * np.linalg.norm(X)


def test_thresholds_are_those_of_the_equation() -> None:
    """ζ = β (σ_{k+1} + 2^-t σ_k) of Y - S, which a dense SVD gives at the iterate before."""
    problem = make()
    states: list[Any] = []
    d = solve(problem.Y, 1, tol=0, max_iter=7, callback=states.append)
    beta = d.settings["beta"]
    assert beta == pytest.approx(0.5 / (200 * 180) ** 0.25)
    X = np.zeros_like(problem.Y)
    for t, (before, after) in enumerate(zip(states[:-1], states[1:], strict=True)):
        D = problem.Y - X
        kept = np.where(np.abs(D) <= before.threshold, problem.Y, X)
        values = np.linalg.svd(kept, compute_uv=False)
        # The solver has one step of subspace iteration for it.
        assert after.threshold == pytest.approx(beta * (values[1] + 0.5**t * values[0]), rel=0.02)
        X = before.L @ before.R.T


@pytest.mark.parametrize("variant", ("paper", "ncrpca"))
def test_the_rank_grows_in_stages(variant: str) -> None:
    problem = make(condition=20.0)
    ranks: list[int] = []
    d = solve(problem.Y, variant=variant, callback=lambda state: ranks.append(np.linalg.matrix_rank(state.L)))
    assert problem.error(d.low_rank) < 1e-6
    assert ranks[0] == 1 and ranks[-1] == RANK and ranks == sorted(ranks)


def test_the_variant_never_releases_an_entry() -> None:
    kept = [record.kept for record in solve(make().Y, variant="ncrpca").history]
    assert kept == sorted(kept, reverse=True) and kept[-1] < kept[0]


@pytest.mark.parametrize("variant", ("paper", "ncrpca"))
def test_missing_entries_count_as_known_outliers(variant: str) -> None:
    problem = make(shape=(250, 250), missing=0.1)
    nan = solve(problem.Y, variant=variant)
    masked = solve(np.where(problem.observed, problem.Y, -7.0), variant=variant, mask=problem.observed)
    assert problem.error(nan.low_rank) < 1e-5
    assert np.linalg.norm(nan.low_rank - masked.low_rank) < 1e-7 * np.linalg.norm(nan.low_rank)


@pytest.mark.parametrize("variant", ("paper", "ncrpca"))
def test_surplus_components_are_small(variant: str) -> None:
    problem = make()
    d = solve(problem.Y, RANK + 2, variant=variant)
    assert problem.error(d.low_rank) < 1e-5


@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")
@pytest.mark.parametrize("variant", ("paper", "ncrpca"))
def test_reads_are_counted(variant: str) -> None:
    problem = make()
    reads = [solve(problem.Y, variant=variant, tol=0, max_iter=count).n_reads for count in (6, 8)]
    # Two products, and with the variant a look for new outliers.
    assert reads[1] - reads[0] == (4 if variant == "paper" else 6)
