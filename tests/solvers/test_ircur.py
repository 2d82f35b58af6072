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
EXACT, SINGLE = 1e-6, 2e-6


def make(shape: tuple[int, int] = (300, 300), share: float = 0.1, **changes: Any) -> Problem:
    return planted(shape, **{"rank": RANK, "outlier_fraction": share, "random_state": 3, **changes})


def solve(Y: Any, rank: int = RANK, **arguments: Any) -> Decomposition:
    return decompose(Y, rank, method="ircur", **arguments)


PROBLEM = make()


@pytest.mark.parametrize("size", (1, 10))
@pytest.mark.parametrize("share", (0.1, 0.3))
def test_recovers_the_standard_problem(share: float, size: float) -> None:
    problem = make((1000, 1000), share, outlier_size=size)
    d = solve(problem.Y)
    assert d.converged and d.n_reads < 1
    assert problem.error(d.low_rank) < EXACT
    assert d.estimated == ("threshold",)


@pytest.mark.parametrize("sampling", ("fixed", "resample"))
@pytest.mark.parametrize(
    ("changes", "rank", "within"),
    [
        ({"dtype": np.float32}, RANK, SINGLE),
        ({"shape": (500, 150)}, RANK, EXACT),
        ({"shape": (150, 500)}, RANK, EXACT),
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


def test_layouts_give_the_same_answer() -> None:
    wide = np.full((600, 900), 1e3)
    wide[::2, ::3] = PROBLEM.Y
    d = solve(PROBLEM.Y)
    for Y in (np.asfortranarray(PROBLEM.Y), wide[::2, ::3]):
        np.testing.assert_allclose(solve(Y).low_rank, d.low_rank, rtol=0, atol=1e-9 * np.abs(d.low_rank).max())


def test_mask_is_as_good_as_nan() -> None:
    problem = make(missing=0.3)
    Y = np.where(problem.observed, problem.Y, 1e3)
    assert problem.error(solve(Y, mask=problem.observed).low_rank) < 1e-6


def test_bytes() -> None:
    rng = np.random.default_rng(5)
    X = rng.integers(0, 8, (300, 3)) @ rng.integers(0, 8, (3, 280))
    Y = np.where(rng.random(X.shape) < 0.1, rng.integers(0, 255, X.shape), X).astype(np.uint8)
    d = solve(Y, 3)
    assert d.L.dtype == np.float32
    assert np.linalg.norm(d.low_rank - X) < SINGLE * np.linalg.norm(X)


def test_rows_of_outliers_do_not_spoil_the_others() -> None:
    rng = np.random.default_rng(0)
    Y, bad = PROBLEM.Y.copy(), np.arange(0, 300, 20)
    Y[bad] = rng.uniform(-3, 3, (len(bad), 300)) * np.abs(Y).max()
    good = np.setdiff1d(np.arange(300), bad)
    d = solve(Y)
    assert np.linalg.norm(d.low_rank[good] - PROBLEM.X[good]) < EXACT * np.linalg.norm(PROBLEM.X[good])


def test_reads_nothing_else() -> None:
    """Entries outside the sampled rows and columns may be anything, even infinite."""
    Y = make((400, 400)).Y
    drawn: list[Any] = []
    import lrpca.solvers.ircur as module

    original = module._Cross.drawn.__func__

    def spy(*arguments: Any) -> Any:
        drawn.append(original(module._Cross, *arguments))
        return drawn[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Cross, "drawn", spy)
        d = solve(Y)
    (cross,) = drawn
    elsewhere = np.setdiff1d(np.arange(400), cross.rows)[0], np.setdiff1d(np.arange(400), cross.columns)[0]
    share = 1 - (1 - len(cross.rows) / 400) * (1 - len(cross.columns) / 400)
    assert cross.share == pytest.approx(share) and share < 0.6
    # The same seed samples the same entries for thresholds, too; where it does not look, infinity goes unseen.
    changed = Y.copy()
    changed[elsewhere] = np.inf
    np.testing.assert_array_equal(solve(changed).L, d.L)
    changed = Y.copy()
    changed[cross.rows[2], 7] = -np.inf
    with pytest.raises(ValueError, match=rf"Y\[{cross.rows[2]}, 7\]=-inf is not finite"):
        solve(changed)


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


def test_lost_rows_are_fitted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_threads_do_not_change_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    Y = make((700, 500)).Y
    d = solve(Y)
    monkeypatch.setattr(lrpca.kernels.threads, "thread_count", lambda: 1)
    one = solve(Y)
    np.testing.assert_array_equal(one.L, d.L)
    np.testing.assert_array_equal(one.R, d.R)


def test_scale_does_not_matter() -> None:
    d, scaled = solve(PROBLEM.Y), solve(PROBLEM.Y * 4.0**20)
    assert scaled.n_iter == d.n_iter
    np.testing.assert_allclose(scaled.low_rank, d.low_rank * 4.0**20, rtol=0, atol=1e-8 * 4.0**20)


@pytest.mark.parametrize("Y", (np.zeros((30, 20)), np.ones((1, 1)), np.full((60, 50), 7.0)), ids=("0", "1x1", "7"))
def test_degenerate(Y: Any) -> None:
    with pytest.warns(lrpca.exceptions.DiagnosisWarning, match="S is empty"):
        d = solve(Y, 1)
    assert d.converged
    np.testing.assert_allclose(d.low_rank, Y, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": "both"}, r"options\['sampling'\]='both' is unknown; use one of fixed, resample"),
        ({"gamma": 1}, r"options\['gamma'\]=1 is not a number above 0 and below 1"),
        ({"oversampling": 0}, r"options\['oversampling'\]=0 is not a number above 0"),
        ({"beta": 1}, "is unknown to method='ircur'; use sampling, oversampling, gamma, threshold, floor"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve(PROBLEM.Y, options=options)


def test_callback_and_limits() -> None:
    seen: list[int] = []
    d = solve(PROBLEM.Y, callback=lambda state: seen.append(state.iteration) or state.iteration == 3)
    assert d.reason == "callback" and seen == [1, 2, 3]
    with pytest.warns(lrpca.ConvergenceWarning, match="max_iter after 4 iterations"):
        solve(PROBLEM.Y, max_iter=4)
    with pytest.raises(ValueError, match="start is not used by method='ircur'"):
        solve(PROBLEM.Y, start=(np.ones((300, RANK)), np.ones((300, RANK))))
