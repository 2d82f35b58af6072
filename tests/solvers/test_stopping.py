"""Runs end for the reason they state, and say so."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrpca import ConvergenceWarning, DiagnosisWarning, Schedule, decompose
from lrpca.solvers import adaptive
from lrpca.testing import Problem, planted

RANK = 3


def small(**changes: Any) -> Problem:
    return planted(**{"shape": (120, 100), "rank": RANK, "outlier_fraction": 0.1, "random_state": 1, **changes})


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small()


def test_zero_tolerance_stays_at_the_solution(problem: Problem) -> None:
    """Long after convergence, with residuals at rounding, nothing drifts or fills up."""
    d = decompose(problem.Y, RANK, tol=0, max_iter=60)
    assert problem.error(d.low_rank) < 1e-12


def test_tolerance_is_the_relative_change(problem: Problem) -> None:
    """Of the iteration itself; a run whose unexplained rows are refitted after that goes on."""
    for tol in (1e-3, 1e-5):
        d = decompose(problem.Y, RANK, tol=tol, options={"without": ["low_inlier_rows", "unsupported_directions"]})
        assert d.reason == "tol"
        assert d.history[-1].change is not None and d.history[-1].change <= tol
        assert all(record.change is not None and record.change > tol for record in d.history[:-1])


def test_max_iter_reached_warns_with_the_numbers(problem: Problem) -> None:
    with pytest.warns(ConvergenceWarning, match=r"max_iter after 2 iterations.*asked for 1\.0e-08.*raise max_iter"):
        d = decompose(problem.Y, RANK, max_iter=2)
    assert (d.n_iter, d.reason, d.converged) == (2, "max_iter", False)


def test_warning_points_at_the_caller(problem: Problem) -> None:
    with pytest.warns(ConvergenceWarning) as caught:
        decompose(problem.Y, RANK, max_iter=2)
    assert caught[0].filename == __file__


def test_history(problem: Problem) -> None:
    d = decompose(problem.Y, RANK)
    assert [record.iteration for record in d.history] == list(range(1, d.n_iter + 1))
    for record in d.history:
        assert not hasattr(record, "L")
        for name in ("threshold", "step", "residual", "change", "kept", "seconds"):
            assert type(getattr(record, name)) is float, name
            assert np.isfinite(getattr(record, name))
        assert 0 < record.kept <= 1
        assert record.seconds > 0
        with pytest.raises(AttributeError):
            record.change = 0.0
    thresholds = [record.threshold for record in d.history]
    assert all(later <= earlier for earlier, later in zip(thresholds, thresholds[1:], strict=False))
    assert d.history[-1].kept == pytest.approx(0.9, abs=0.03)


def test_first_record_against_the_definition(problem: Problem) -> None:
    """residual = ‖C‖ / ‖Y‖ at the iterate entering the pass; kept = share of observed entries within 2 ζ."""
    factors = []
    d = decompose(problem.Y, RANK, max_iter=2, tol=0, callback=lambda state: factors.append((state.L, state.R)))
    L, R = factors[0]
    D = np.abs(problem.Y - L @ R.T)
    record = d.history[1]
    C = np.where(D <= 2 * record.threshold, np.minimum(D, record.threshold), 0)
    assert record.residual == pytest.approx(np.linalg.norm(C) / np.linalg.norm(problem.Y), rel=1e-9)
    assert record.kept == pytest.approx(np.mean(D <= 2 * record.threshold), rel=1e-9)
    after = factors[1][0] @ factors[1][1].T
    assert record.change == pytest.approx(np.linalg.norm(after - L @ R.T) / np.linalg.norm(after), rel=1e-6)


def test_warm_start_needs_fewer_iterations(problem: Problem) -> None:
    cold = decompose(problem.Y, RANK)
    rng = np.random.default_rng(5)
    Y = problem.Y.copy()
    hit = rng.random(Y.shape) < 0.03
    Y[hit] += rng.standard_normal(int(hit.sum()))
    warm, again = decompose(Y, RANK, start=(cold.L, cold.R)), decompose(Y, RANK)
    assert warm.converged
    assert warm.n_iter <= again.n_iter // 2
    assert problem.error(warm.low_rank) < 1e-7
    # The start is an argument, not scratch space.
    np.testing.assert_array_equal(cold.L, decompose(problem.Y, RANK).L)


def test_warm_start_of_bytes_and_complex() -> None:
    case = small(dtype=complex)
    d = decompose(case.Y, RANK)
    assert case.error(decompose(case.Y, RANK, start=(d.L, d.R)).low_rank) < 1e-7
    # Real factors are a legitimate start for complex data.
    assert case.error(decompose(case.Y, RANK, start=(d.L.real, d.R.real)).low_rank) < 1e-6


def typical(Y: Any) -> float:
    return float(np.median(np.abs(Y)))


def decreasing(Y: Any, layers: int = 60, **fields: Any) -> Schedule:
    """Return thresholds that fall slowly enough for 10% outliers."""
    scale = typical(Y)
    thresholds = [4 * scale * 0.8**k for k in range(layers + 1)]
    return Schedule(thresholds, [0.0] + [0.7] * layers, **fields)


def test_absolute_schedule_stops_by_the_papers_rule(problem: Problem) -> None:
    d = decompose(problem.Y, RANK, schedule=decreasing(problem.Y))
    assert d.reason == "tol" and d.converged
    residuals = [record.residual for record in d.history]
    assert residuals[-1] < 1e-4 <= min(residuals[:-1])
    assert problem.error(d.low_rank) < 1e-3
    assert [record.step for record in d.history] == [0.7] * d.n_iter


@pytest.mark.parametrize("influence", ("soft", "hard", "redescending"))
@pytest.mark.parametrize("update", ("scaled", "tangent", "own_gram"))
def test_every_influence_and_update(problem: Problem, influence: str, update: str) -> None:
    schedule = decreasing(problem.Y, layers=80, influence=influence, update=update)
    d = decompose(problem.Y, RANK, schedule=schedule, tol=1e-6)
    assert d.converged
    assert problem.error(d.low_rank) < 1e-4


def test_schedule_end_warns_unless_max_iter_was_given(problem: Problem) -> None:
    schedule = decreasing(problem.Y, layers=5)
    with pytest.warns(ConvergenceWarning, match="schedule_end after 5 iterations.*tail"):
        d = decompose(problem.Y, RANK, schedule=schedule)
    assert (d.n_iter, d.reason, d.converged) == (5, "schedule_end", False)
    for max_iter, reason in ((50, "schedule_end"), (5, "max_iter"), (3, "max_iter")):
        d = decompose(problem.Y, RANK, schedule=schedule, max_iter=max_iter)
        assert (d.n_iter, d.reason, d.converged) == (min(5, max_iter), reason, False)


def test_tail_goes_on(problem: Problem) -> None:
    schedule = decreasing(problem.Y, layers=5, tail=(1.0, 0.8))
    d = decompose(problem.Y, RANK, schedule=schedule)
    assert d.converged and d.n_iter > 5
    ratios = [b.threshold / a.threshold for a, b in zip(d.history[4:], d.history[5:], strict=False)]
    np.testing.assert_allclose(ratios, 0.8)
    with pytest.warns(ConvergenceWarning, match="max_iter after 6"):
        decompose(problem.Y, RANK, schedule=schedule, max_iter=6)


def test_schedule_is_scaled_by_the_papers_rule(problem: Problem) -> None:
    base = decreasing(problem.Y, shape=(240, 200), rank=6)
    d = decompose(problem.Y, RANK, schedule=base, tol=0, max_iter=2)
    # n is half as large and r too: 2 x 1/2.
    assert d.history[0].threshold == pytest.approx(base.thresholds[1])
    other = decreasing(problem.Y, shape=(240, 200), rank=3)
    d = decompose(problem.Y, RANK, schedule=other, tol=0, max_iter=2)
    assert d.history[0].threshold == pytest.approx(2 * other.thresholds[1])


def test_schedule_by_name_and_by_path(problem: Problem, tmp_path: Path) -> None:
    named = decompose(problem.Y, RANK, schedule="default")
    np.testing.assert_array_equal(named.L, decompose(problem.Y, RANK).L)
    decreasing(problem.Y).save(tmp_path / "mine.json")
    for path in (tmp_path / "mine.json", str(tmp_path / "mine.json")):
        d = decompose(problem.Y, RANK, schedule=path)
        np.testing.assert_array_equal(d.L, decompose(problem.Y, RANK, schedule=decreasing(problem.Y)).L)


@pytest.mark.parametrize("first", (1.0, 1e-9), ids=["fair start", "tiny from the start"])
def test_thresholds_far_too_small_are_called_runaway(problem: Problem, first: float) -> None:
    """‖C‖ / ‖Y‖ is then below any tolerance, which proves nothing: S took in everything."""
    scale = typical(problem.Y)
    schedule = Schedule([4 * scale * first] + [1e-9 * scale] * 5, [0.0] + [1.0] * 5, tail=(1.0, 0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosisWarning)
        with pytest.warns(ConvergenceWarning, match="runaway.*thresholds"):
            d = decompose(problem.Y, RANK, schedule=schedule)
    assert (d.reason, d.converged) == ("runaway", False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiagnosisWarning)
        with pytest.warns(ConvergenceWarning, match="runaway"):
            decompose(problem.Y, RANK, schedule=schedule, max_iter=50)


@pytest.mark.parametrize("factor", (2.0, 10.0, 100.0, 1e4))
def test_schedule_made_for_another_scale_is_no_success(problem: Problem, factor: float) -> None:
    schedule = decreasing(problem.Y / factor)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = decompose(problem.Y, RANK, schedule=schedule)
    assert not d.converged or problem.error(d.low_rank) < 1e-2


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_thresholds_beyond_the_range_of_single_precision(problem: Problem, dtype: Any) -> None:
    """Nothing is then an outlier: the plain low-rank fit, without a word from the arithmetic."""
    schedule = Schedule([1e300] * 4, [0.0, 0.5, 0.5, 0.5])
    d = decompose(problem.Y.astype(dtype), RANK, schedule=schedule, max_iter=3)
    U, values, Vt = np.linalg.svd(problem.Y, full_matrices=False)
    best = (U[:, :RANK] * values[:RANK]) @ Vt[:RANK]
    assert np.linalg.norm(d.low_rank - best) < 1e-2 * np.linalg.norm(best)


def test_momentum_where_progress_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Singular values without a gap: each pass takes a small part of the way."""
    rng = np.random.default_rng(0)
    U, V = (np.linalg.qr(rng.standard_normal((n, 150)))[0] for n in (200, 150))
    Y = U / np.arange(1.0, 151) @ V.T
    limit = decompose(Y, 4, tol=0, max_iter=200).low_rank

    def left(passes: int) -> float:
        return float(np.linalg.norm(decompose(Y, 4, tol=0, max_iter=passes).low_rank - limit))

    accelerated = left(20)
    monkeypatch.setattr(adaptive, "is_slow", lambda history: False)
    assert accelerated < 0.1 * left(20)
