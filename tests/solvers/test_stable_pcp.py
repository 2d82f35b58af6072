"""Stable principal component pursuit: its fixed points, its noise level, and what debiasing brings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.testing import planted


def make(**changes: Any) -> Any:
    return planted(
        **{"shape": (150, 120), "rank": 3, "outlier_fraction": 0.05, "noise": 0.05, "outlier_size": 5.0}
        | {"random_state": 1}
        | changes
    )


def solve(Y: Any, rank: Any = None, **arguments: Any) -> Any:
    return lrpca.decompose(Y, rank, method="stable_pcp", **arguments)


def moved(Y: Any, X: Any, weight: float, mu: float) -> float:
    """Return by how much a proximal step moves X, in units of μ: 0 at the minimum, where X is a fixed point."""
    D = np.where(np.isnan(Y), 0, Y - X)
    size = np.abs(D)
    clipped = D * np.minimum(1, weight * mu / np.where(size > 0, size, 1))
    U, values, Vh = np.linalg.svd(X + clipped, full_matrices=False)
    return float(np.linalg.norm((U * np.maximum(values - mu, 0)) @ Vh - X)) / mu


@pytest.mark.parametrize(
    "changes",
    [{}, {"noise": 0.3}, {"missing": 0.2}, {"dtype": np.complex128}, {"shape": (80, 200)}, {"outlier_fraction": 0.2}],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")
def test_is_a_fixed_point(changes: dict[str, Any]) -> None:
    problem = make(**changes)
    d = solve(problem.Y)
    assert d.reason == "tol"
    longest = max(problem.Y.shape)
    share = float(np.mean(problem.observed))
    weight, mu = d.settings["weight"], math.sqrt(2 * longest) * d.settings["noise_level"]
    assert weight == pytest.approx(1 / math.sqrt(share * longest))
    assert moved(problem.Y, d.low_rank, weight, mu) < 2e-3
    assert moved(problem.Y, problem.X, weight, mu) > 0.3


@pytest.mark.parametrize("noise", (0.02, 0.2))
@pytest.mark.parametrize("missing", (0.0, 0.2))
def test_the_noise_level_is_estimated(noise: float, missing: float) -> None:
    problem = make(noise=noise, missing=missing, shape=(250, 200))
    d = solve(problem.Y, tol=1e-3)
    assert d.estimated == ("noise_level",)
    assert d.settings["noise_level"] == pytest.approx(noise * np.abs(problem.X).mean(), rel=0.25)


def test_a_given_noise_level_is_used() -> None:
    problem = make()
    level = 2 * 0.05 * float(np.abs(problem.X).mean())
    d = solve(problem.Y, options={"noise_level": level, "weight": 0.2})
    assert d.estimated == () and (d.settings["noise_level"], d.settings["weight"]) == (level, 0.2)
    assert moved(problem.Y, d.low_rank, 0.2, math.sqrt(300) * level) < 1e-2


@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")
def test_noise_is_not_fitted_as_pcp_does() -> None:
    problem = make(noise=0.1)
    d = solve(problem.Y)
    exact = lrpca.decompose(problem.Y, method="pcp")
    assert 3 * d.rank < exact.rank
    assert problem.error(d.low_rank) < 0.8 * problem.error(exact.low_rank)


@pytest.mark.parametrize("missing", (0.0, 0.1))
def test_debiasing_removes_the_shrinkage(missing: float) -> None:
    problem = make(noise=0.1, missing=missing, shape=(250, 200))
    biased, fitted = (solve(problem.Y, options={"debias": debias}) for debias in (False, True))
    assert problem.error(fitted.low_rank) < 1.7 * problem.oracle_error
    assert problem.error(fitted.low_rank) < 0.9 * problem.error(biased.low_rank)
    assert fitted.rank == problem.rank < biased.rank


def test_without_noise_it_is_pcp() -> None:
    """A small μ makes small steps: that X hardly moves does not mean that it has arrived."""
    for changes in ({}, {"missing": 0.2}, {"outlier_fraction": 0.3}):
        problem = make(**{"noise": 0.0, "outlier_size": 1.0, "shape": (120, 120), "rank": 2} | changes)
        d = solve(problem.Y)
        assert d.reason == "tol"
        exact = lrpca.decompose(problem.Y, method="pcp").low_rank
        assert np.linalg.norm(d.low_rank - exact) < 1e-6 * np.linalg.norm(exact)


def test_a_rank_cuts() -> None:
    problem = make()
    with pytest.warns(lrpca.DiagnosisWarning, match="has [0-9]+ components, of which the 1 asked for"):
        d = solve(problem.Y, 1)
    assert d.rank == 1
