"""IRCUR: recovery from a few rows and columns, and what it reads."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import lrpca.kernels.threads
from lrpca import Decomposition, decompose
from lrpca.testing import Problem, planted

RANK = 5
# Of the low-rank part, with the default tolerance of 1e-7.
EXACT = 1e-6


def make(shape: tuple[int, int] = (300, 300), share: float = 0.1, **changes: Any) -> Problem:
    return planted(shape, **{"rank": RANK, "outlier_fraction": share, "random_state": 3, **changes})


def solve(Y: Any, rank: int = RANK, **arguments: Any) -> Decomposition:
    return decompose(Y, rank, method="ircur", **arguments)


PROBLEM = make()


@pytest.mark.parametrize("sampling", ("fixed", "resample"))
@pytest.mark.parametrize(
    ("changes", "rank", "within"),
    [
        ({"dtype": np.float32}, RANK, 2e-6),
        ({"shape": (400, 120)}, RANK, EXACT),
        ({"missing": 0.3}, RANK, EXACT),
        ({"dtype": np.complex128}, RANK, EXACT),
        ({}, RANK + 2, EXACT),
        ({"rank": 1}, 1, EXACT),
        ({"condition": 100}, RANK, EXACT),
        ({"outlier_fraction": 0.0}, RANK, 1e-12),
    ],
    ids=str,
)
def test_recovers(changes: dict[str, Any], rank: int, within: float, sampling: str) -> None:
    problem = make(**changes)
    with warnings.catch_warnings():
        if changes.get("outlier_fraction") == 0:
            warnings.filterwarnings("ignore", "S is empty")
        d = solve(problem.Y, rank, options={"sampling": sampling})
    assert d.reason == "tol"
    assert problem.error(d.low_rank) < within
    assert d.L.shape[1] == rank and d.L.dtype == problem.Y.dtype


def test_entries_outside_the_sampled_rows_and_columns_are_not_read() -> None:
    """An infinite entry is located where it is read, and changes no bit where it is not."""
    Y = make((300, 300)).Y
    d, unread = solve(Y), 0
    for i in range(0, 300, 25):
        changed = Y.copy()
        changed[i, 299 - i] = np.inf
        try:
            np.testing.assert_array_equal(solve(changed).L, d.L)
            unread += 1
        except ValueError as error:
            assert f"Y[{i}, {299 - i}]=inf is not finite" in str(error)
    assert 2 <= unread < 12


def test_resampling_reads_more() -> None:
    fixed, resampled = (solve(PROBLEM.Y, options={"sampling": name}) for name in ("fixed", "resample"))
    assert 0 < fixed.n_reads < 1
    assert resampled.n_reads > 0.5 * resampled.n_iter


def test_the_threshold_falls_by_gamma_and_stops_at_the_noise() -> None:
    d = solve(PROBLEM.Y, options={"gamma": 0.7, "threshold": 0.5, "floor": 0})
    levels = np.array([record.threshold for record in d.history])
    np.testing.assert_allclose(levels, 0.5 * 0.7 ** np.arange(len(levels)))
    noisy = make(noise=0.05, outlier_size=10)
    d = solve(noisy.Y)
    assert d.reason == "noise_floor"
    assert noisy.error(d.low_rank) < 3 * noisy.oracle_error
    sigma = 0.05 * np.abs(noisy.X).mean()
    assert d.history[-1].threshold == pytest.approx(3 * sigma, rel=0.3)


def test_unexplained_rows_are_refitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a threshold that falls too fast, some rows lose all their entries, for ever."""
    import lrpca.solvers.ircur as module

    problem, options = make((400, 400), 0.3, outlier_size=10), {"gamma": 0.35}
    assert problem.error(solve(problem.Y, options=options).low_rank) < EXACT
    monkeypatch.setattr(module, "_REFITS", 0)
    assert problem.error(solve(problem.Y, options=options).low_rank) > 1e-5


def test_hopeless_is_not_called_converged() -> None:
    problem = make((300, 300), 0.5, outlier_size=10)
    with pytest.warns(lrpca.ConvergenceWarning, match="stalled"):
        d = solve(problem.Y)
    assert not d.converged


def test_scale_does_not_matter() -> None:
    d, scaled = solve(PROBLEM.Y), solve(PROBLEM.Y * 4.0**20)
    assert scaled.n_iter == d.n_iter
    np.testing.assert_allclose(scaled.low_rank, d.low_rank * 4.0**20, rtol=0, atol=1e-8 * 4.0**20)
