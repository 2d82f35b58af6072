"""The published problems: the published models show their own counts, the default needs about half of them.

The files are looked for under the folder named by the environment variable LRPCA_DATA.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrpca import Decomposition, DiagnosisWarning, Schedule, decompose

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("LRPCA_DATA", ROOT.parent / "shared" / "data")) / "published-lrpca"
CASES = [(5, 0.1), (5, 0.2), (5, 0.3), (10, 0.1), (15, 0.1)]

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the published problems are not here; set LRPCA_DATA to the folder of published-lrpca"
)


@pytest.fixture(scope="module", params=CASES, ids=[f"r={rank}-alpha={alpha}" for rank, alpha in CASES])
def problem(request: pytest.FixtureRequest) -> tuple[int, float, Any, Any]:
    """Return rank, outlier fraction, Y and X."""
    from scipy.io import loadmat

    rank, alpha = request.param
    content = loadmat(FOLDER / f"n1000_r{rank}_alpha{alpha}.mat")
    return rank, alpha, content["Y_star"], content["U_star"].astype(float) @ content["V_star"].astype(float).T


def run(Y: Any, rank: int, X: Any, **keywords: Any) -> tuple[Decomposition, list[float]]:
    """Return the decomposition and the relative error after every iteration."""
    errors: list[float] = []
    norm = np.linalg.norm(X)

    def watch(state: Any) -> None:
        errors.append(float(np.linalg.norm(state.L @ state.R.T - X) / norm))

    return decompose(Y, rank, callback=watch, **keywords), errors


def passes_to(errors: list[float], goal: float) -> int:
    return 1 + next(k for k, error in enumerate(errors) if error < goal)


PUBLISHED_COUNTS = {(5, 0.1): 7, (5, 0.2): 9, (5, 0.3): 11, (10, 0.1): 9, (15, 0.1): 10}


def test_published_models_show_their_own_counts(problem: Any) -> None:
    rank, alpha, Y, X = problem
    schedule = Schedule.from_mat(FOLDER / f"lrpcanet_alpha{alpha}.mat", shape=(1000, 1000), rank=5)
    assert schedule.layers == 16
    d, errors = run(Y, rank, X, schedule=schedule)
    assert passes_to(errors, 1e-4) == PUBLISHED_COUNTS[rank, alpha]
    assert d.converged and d.reason == "tol"


MOST_PASSES = {0.1: 4, 0.2: 5, 0.3: 6}


def test_default_told_nothing_but_the_rank(problem: Any) -> None:
    rank, alpha, Y, X = problem
    d, errors = run(Y, rank, X)
    assert passes_to(errors, 1e-4) <= MOST_PASSES[alpha]
    assert d.converged
    assert np.linalg.norm(d.L.astype(float) @ d.R.astype(float).T - X) < 1e-6 * np.linalg.norm(X)
    assert d.outlier_fraction == pytest.approx(alpha, abs=0.02)


@pytest.mark.parametrize("factor", (2.0, 100.0))
def test_published_model_on_another_scale_is_no_success(factor: float) -> None:
    """Its thresholds are plain numbers; too small ones let S take in everything, which must not look converged."""
    from scipy.io import loadmat

    Y = loadmat(FOLDER / "n1000_r5_alpha0.1.mat")["Y_star"]
    schedule = Schedule.from_mat(FOLDER / "lrpcanet_alpha0.1.mat", shape=(1000, 1000), rank=5)
    with pytest.warns(UserWarning):
        d = decompose(factor * Y, 5, schedule=schedule)
    assert not d.converged and d.reason == "runaway"


def test_the_model_trained_on_small_problems_needs_no_rule_for_others(problem: tuple[int, float, Any, Any]) -> None:
    rank, alpha, Y, X = problem
    d, errors = run(Y, rank, X, schedule="fast")
    assert d.converged
    assert passes_to(errors, 1e-4) <= 3 and passes_to(errors, 1e-6) <= 5


@pytest.mark.parametrize("name", ["fnn", "frmnn"])
def test_models_of_the_papers_form_are_better_than_the_published_ones(
    problem: tuple[int, float, Any, Any], name: str
) -> None:
    rank, alpha, Y, X = problem
    if rank != 5:
        pytest.skip("the models are for rank 5")
    published = Schedule.from_mat(FOLDER / f"lrpcanet_alpha{alpha}.mat", shape=(1000, 1000), rank=5)
    theirs = run(Y, rank, X, schedule=published, tol=0, max_iter=16)[1]
    with warnings.catch_warnings():
        # The last thresholds are below the rounding of single precision, which is said.
        warnings.simplefilter("ignore", DiagnosisWarning)
        ours = run(Y, rank, X, schedule=f"{name}-{alpha}", tol=0, max_iter=16)[1]
    assert len(ours) == len(theirs) == 16
    assert all(mine <= other for mine, other in zip(ours, theirs, strict=True))
