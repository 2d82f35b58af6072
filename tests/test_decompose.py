"""The one verb: planted problems are recovered."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from lrpca import DiagnosisWarning, decompose
from lrpca.testing import Problem, planted

RANK = 3
SHAPES = {"square": (200, 200), "tall": (400, 100), "wide": (100, 400)}


def small(**changes: Any) -> Problem:
    return planted(**{"shape": (120, 100), "rank": RANK, "outlier_fraction": 0.1, "random_state": 1, **changes})


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dtype", "within"), [("float64", 1e-7), ("float32", 3e-6)])
def test_recovers_planted_problems(shape: str, dtype: str, within: float) -> None:
    case = planted(SHAPES[shape], rank=RANK, outlier_fraction=0.1, dtype=dtype, random_state=1)
    d = decompose(case.Y, RANK)
    assert d.converged
    assert case.error(d.low_rank) < within
    assert d.L.dtype == d.R.dtype == dtype


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "changes",
    [
        {"outlier_size": 10},
        {"outlier_size": 10, "one_sided": True},
        {"outlier_fraction": 0.3},
        {"missing": 0.3},
        {"outlier_size": 1e4, "missing": 0.2},
        {"condition": 20},
    ],
    ids=lambda changes: "-".join(f"{key}={value}" for key, value in changes.items()),
)
def test_recovers_harder_ones(shape: str, changes: dict[str, Any]) -> None:
    case = planted(**{"shape": SHAPES[shape], "rank": RANK, "outlier_fraction": 0.1, "random_state": 1, **changes})
    d = decompose(case.Y, RANK)
    assert d.converged
    assert case.error(d.low_rank) < 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_recovers_other_draws(seed: int) -> None:
    case = small(random_state=seed, outlier_fraction=0.2, outlier_size=3)
    d = decompose(case.Y, RANK, random_state=seed)
    assert d.converged
    assert case.error(d.low_rank) < 1e-6


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("missing", (0.0, 0.2))
def test_noise_costs_no_more_than_twice_the_oracle(shape: str, missing: float) -> None:
    """The oracle is told where the outliers are and what they added, and nothing is missing for it."""
    case = planted(
        SHAPES[shape], rank=RANK, outlier_fraction=0.1, outlier_size=10, noise=0.05, missing=missing, random_state=2
    )
    full = planted(SHAPES[shape], rank=RANK, outlier_fraction=0.1, outlier_size=10, noise=0.05, random_state=2)
    U, values, Vt = np.linalg.svd(full.Y - full.S, full_matrices=False)
    oracle = full.error((U[:, :RANK] * values[:RANK]) @ Vt[:RANK])
    d = decompose(case.Y, RANK)
    assert d.converged and d.reason == "noise_floor"
    assert case.error(d.low_rank) < 2 * oracle
    assert d.noise_level == pytest.approx(0.05 * np.abs(case.X).mean(), rel=0.1)
    assert d.outlier_threshold == pytest.approx(5 * d.noise_level)
    assert np.mean(d.outliers & ~case.outliers) < 1e-4


def test_bytes_are_recovered_below_a_grey_level() -> None:
    rng = np.random.default_rng(0)
    X = 60 + 80 * rng.random((200, 2)) @ rng.random((2, 150))
    Y = np.rint(X).astype(np.uint8)
    hit = rng.random(Y.shape) < 0.1
    Y[hit] = rng.integers(0, 255, int(hit.sum()))
    d = decompose(Y, 3)
    assert d.converged and d.L.dtype == np.float32
    # Rounding to whole numbers is noise of 0.29.
    assert np.sqrt(np.mean((d.low_rank - X) ** 2)) < 0.1
    assert d.outlier_threshold >= 1
    assert not np.any(d.outliers & ~hit)


@pytest.mark.parametrize("extra", (1, 3))
def test_a_rank_too_large_is_graceful(extra: int) -> None:
    """Surplus components can take up outliers of a few rows and columns; they stay small, and the rest stays right."""
    case = planted((400, 400), rank=RANK, outlier_fraction=0.1, random_state=1)
    d = decompose(case.Y, RANK + extra)
    assert d.rank == RANK + extra
    assert case.error(d.low_rank) < 5e-3
    strengths = np.linalg.norm(d.R, axis=0) ** 2
    assert np.all(strengths[RANK:] < 0.01 * strengths[RANK - 1])
    assert np.mean(np.abs(d.low_rank - case.X) < 1e-3 * np.abs(case.X).mean()) > 0.9


def test_a_rank_too_small_is_said_and_shows_in_the_noise_level() -> None:
    case = small()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        d = decompose(case.Y, RANK - 1)
    assert any("rank" in str(warning.message) for warning in caught)
    assert d.reason != "tol"
    assert d.noise_level > 0.1 * np.abs(case.X).mean()


def test_missing_entries_cost_few_reads() -> None:
    """Rows have their own normal equations: these four need 94 reads, and 123 with one common step."""
    problems = [planted((300, 250), rank=RANK, missing=0.4, outlier_fraction=0.1, random_state=k) for k in range(4)]
    assert sum(decompose(case.Y, RANK).n_reads for case in problems) < 102


def test_default_needs_few_reads(problem: Problem) -> None:
    d = decompose(problem.Y, RANK)
    assert d.n_reads <= 30
    # Counting observed entries and the exact start of a small matrix come on top of the iterations, and refits.
    assert d.n_reads >= d.n_iter + 2


def projector(R: Any) -> Any:
    Q = np.linalg.qr(R)[0]
    return Q @ Q.conj().T


def test_rows_of_weight_zero_have_no_say() -> None:
    case = small(noise=0.05, outlier_size=5)
    weight = np.ones(120)
    weight[:40] = 0
    junk = case.Y.copy()
    junk[:40] = 100 * np.random.default_rng(0).standard_normal((40, 100))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosisWarning)
        clean, dirty = decompose(case.Y, RANK, row_weight=weight), decompose(junk, RANK, row_weight=weight)
    alone = decompose(case.Y[40:], RANK)
    scale = np.linalg.norm(projector(alone.R) - projector(np.linalg.svd(case.X)[2][:RANK].T))
    for d in (clean, dirty):
        assert np.linalg.norm(projector(d.R) - projector(alone.R)) < 0.2 * scale
    # They are fitted all the same.
    assert np.linalg.norm(clean.low_rank[:40] - case.X[:40]) < 0.1 * np.linalg.norm(case.X[:40])


def test_integer_weights_are_like_repeated_rows() -> None:
    case = small(noise=0.05, outlier_size=5)
    weight = np.random.default_rng(0).integers(1, 5, 120)
    weighted = decompose(case.Y, RANK, row_weight=weight)
    repeated = decompose(np.repeat(case.Y, weight, axis=0), RANK)
    plain = decompose(case.Y, RANK)
    near = np.linalg.norm(projector(weighted.R) - projector(repeated.R))
    far = np.linalg.norm(projector(plain.R) - projector(repeated.R))
    assert near < 0.2 * far
    assert weighted.L.shape == (120, RANK)


def test_equal_weights_change_nothing(problem: Problem) -> None:
    weighted = decompose(problem.Y, RANK, row_weight=np.full(120, 7))
    assert problem.error(weighted.low_rank) < 1e-7


def test_options(problem: Problem) -> None:
    few = decompose(problem.Y, RANK, tol=0, max_iter=2, options={"power_steps": 0})
    many = decompose(problem.Y, RANK, tol=0, max_iter=2, options={"power_steps": 4})
    assert (few.n_reads, many.n_reads) == (4, 11)
    many = decompose(problem.Y, RANK, options={"power_steps": 4, "sample_size": 500})
    assert problem.error(many.low_rank) < 1e-6


def test_extreme_outliers_in_single_precision() -> None:
    """Outliers may have any size, also one whose square overflows."""
    case = small(dtype=np.float32)
    Y = case.Y.copy()
    Y[np.random.default_rng(0).random(Y.shape) < 0.02] = 1e25
    d = decompose(Y, RANK)
    assert d.converged
    assert case.error(d.low_rank) < 1e-5


@pytest.mark.parametrize("column", (np.ones(1), np.zeros(1)), ids=("repeated", "zero"))
def test_a_start_that_lacks_components_is_completed(column: Any) -> None:
    """No update creates a direction that a start does not have; a weak random one is put in its place."""
    case = small()
    d = decompose(case.Y, RANK)
    L, R = d.L.copy(), d.R.copy()
    L[:, -1:] = L[:, :1] * column
    R[:, -1:] = R[:, :1] * column
    again = decompose(case.Y, RANK, start=(L, R))
    assert case.error(again.low_rank) < 1e-5
