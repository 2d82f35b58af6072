"""GoDec: recovery, the exact cardinality of S, and its estimate."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import lrpca.kernels.threads
from lrpca import Decomposition, decompose
from lrpca.testing import Problem, planted

RANK = 5


def make(shape: tuple[int, int] = (300, 300), share: float = 0.1, **changes: Any) -> Problem:
    return planted(shape, **{"rank": RANK, "outlier_fraction": share, "random_state": 3, **changes})


def solve(Y: Any, rank: int = RANK, **arguments: Any) -> Decomposition:
    return decompose(Y, rank, method="godec", **arguments)


PROBLEM = make()


@pytest.mark.parametrize("size", (1, 10))
@pytest.mark.parametrize("share", (0.1, 0.3))
def test_recovers_the_standard_problem(share: float, size: float) -> None:
    problem = make((400, 400), share, outlier_size=size)
    d = solve(problem.Y)
    assert d.converged
    assert problem.error(d.low_rank) < 1e-5
    assert d.estimated == ("alpha",)
    assert d.settings["alpha"] == pytest.approx(share, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "rank", "within"),
    [
        ({"shape": (500, 150)}, RANK, 1e-4),
        ({"shape": (150, 500)}, RANK, 1e-4),
        ({"missing": 0.3}, RANK, 1e-6),
        ({"condition": 10}, RANK, 1e-6),
    ],
    ids=str,
)
def test_recovers(changes: dict[str, Any], rank: int, within: float) -> None:
    problem = make(**changes)
    d = solve(problem.Y, rank)
    assert d.converged
    assert problem.error(d.low_rank) < within
    assert d.L.shape[1] == rank and d.L.dtype == problem.Y.dtype


def test_components_to_spare_are_fitted_to_outliers() -> None:
    with pytest.warns(lrpca.ConvergenceWarning, match="stalled"):
        d = solve(PROBLEM.Y, RANK + 2)
    assert d.L.shape[1] == RANK + 2 and PROBLEM.error(d.low_rank) < 2e-2


@pytest.mark.parametrize("options", ({}, {"warm": False, "power_steps": 3}), ids=("warm", "fresh"))
def test_given_share_is_exact(options: dict[str, Any]) -> None:
    d = solve(PROBLEM.Y, options={"alpha": 0.1, **options})
    assert PROBLEM.error(d.low_rank) < 1e-6
    assert d.estimated == ()
    # k (1 - 0.7^j) entries in the j-th S after the first, one of them more or less by rounding.
    kept = np.array([record.kept for record in d.history[1:]]) * PROBLEM.Y.size
    wanted = PROBLEM.Y.size - np.round(9000 * (1 - 0.7 ** np.arange(1, d.n_iter)))
    assert np.abs(kept - wanted).max() <= 2


def test_without_ramp_rows_are_left_behind() -> None:
    problem = make((400, 400), 0.3, outlier_size=10)
    assert problem.error(solve(problem.Y, options={"alpha": 0.3}).low_rank) < 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = solve(problem.Y, options={"alpha": 0.3, "ramp": 0})
    assert not plain.converged
    assert problem.error(plain.low_rank) > 1e-4


def test_rows_of_outliers_do_not_spoil_the_others() -> None:
    rng = np.random.default_rng(2)
    Y, bad = PROBLEM.Y.copy(), np.arange(0, 300, 20)
    Y[bad] = rng.uniform(-3, 3, (len(bad), 300)) * np.abs(Y).max()
    good = np.setdiff1d(np.arange(300), bad)
    with pytest.warns(lrpca.ConvergenceWarning, match="stalled"), pytest.warns(lrpca.DiagnosisWarning, match="15 row"):
        d = solve(Y)
    assert np.linalg.norm(d.low_rank[good] - PROBLEM.X[good]) < 1e-4 * np.linalg.norm(PROBLEM.X[good])


def test_noise() -> None:
    noisy = make(noise=0.05, outlier_size=10)
    d = solve(noisy.Y)
    assert d.reason == "noise_floor"
    assert noisy.error(d.low_rank) < 1.6 * noisy.oracle_error
