"""The method "sampled": what it finds, what it reads, when it falls back; samples in groups; the choice of "auto"."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lrpca.kernels.threads
from lrpca import Decomposition, decompose
from lrpca.matrices import sample as sampling
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import choose_block, draw_sample, observed_share
from lrpca.solvers.cross import Band, Peak, cross_sides, read_cross, regress
from lrpca.solvers.methods import pays_to_sample
from lrpca.testing import Problem, planted

RANK, SHAPE, SIDE = 4, (1000, 900), 120
# Rows and columns of this side, which both have the block.
SHARE = SIDE / SHAPE[0] + SIDE / SHAPE[1]
fallback = pytest.mark.filterwarnings("ignore:the sampled solution was not used:lrpca.DiagnosisWarning")


def make(shape: tuple[int, int] = SHAPE, **changes: Any) -> Problem:
    return planted(
        shape, **{"rank": RANK, "outlier_size": 3.0, "dtype": np.float32, "scale": 1.0, "random_state": 2, **changes}
    )


def solve(
    Y: Any, rank: Any = RANK, *, side: int | None = SIDE, passes: int | None = None, **more: Any
) -> Decomposition:
    return decompose(Y, rank, method="sampled", options={"side": side, "passes": passes}, **more)


PLAIN, NOISY = make(), make(noise=0.01)


@pytest.mark.parametrize(
    ("changes", "accuracy"),
    [
        ({}, 3e-7),
        ({"outlier_fraction": 0.3}, 5e-7),
        ({"one_sided": True}, 3e-7),
        ({"condition": 100.0}, 5e-7),
        ({"dtype": np.float64}, 1e-8),
        ({"dtype": np.complex64}, 5e-7),
        ({"missing": 0.3}, 5e-7),
        ({"scale": 1e-30}, 3e-7),
    ],
    ids=str,
)
def test_without_noise_less_than_half_of_y_is_read(changes: dict[str, Any], accuracy: float) -> None:
    problem = make(**changes)
    d = solve(problem.Y)
    assert d.reason == "tol" and "fallback" not in d.settings
    assert d.n_iter == 1 and d.n_reads == pytest.approx(SHARE, abs=1e-3) and d.n_reads < 0.5
    assert problem.error(d.low_rank) < accuracy


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"noise": 0.05, "one_sided": True},
        {"outlier_fraction": 0.3},
        {"missing": 0.3},
        {"dtype": np.complex64},
        {"dtype": np.float64, "outlier_fraction": 0.0},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:S is empty")
def test_with_noise_two_passes_lead_where_the_full_method_does(changes: dict[str, Any]) -> None:
    problem = make(**{"noise": 0.01, **changes})
    states: list[Any] = []
    d, full = solve(problem.Y, callback=states.append), decompose(problem.Y, RANK)
    assert d.reason == "noise_floor" and "fallback" not in d.settings
    assert d.n_reads == pytest.approx(2 + SHARE, abs=1e-3)
    assert problem.error(d.low_rank) < 1.03 * problem.error(full.low_rank)
    # What the passes are for: the sampled answer alone is worse.
    assert problem.error(states[0].L @ states[0].R.T) > 1.5 * problem.error(full.low_rank)


def test_the_diagnosis_counts_every_entry_once_y_was_read() -> None:
    assert np.isnan(solve(PLAIN.Y).diagnosis.kept_by_row).all()
    d = solve(NOISY.Y)
    assert d.diagnosis.kept_by_row.shape == (SHAPE[0],)
    assert d.diagnosis.kept_by_row.mean() == pytest.approx(0.9, abs=0.01)
    assert d.outlier_fraction == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("problem", (PLAIN, NOISY), ids=("exact", "noise"))
def test_a_rank_too_large(problem: Problem) -> None:
    d = solve(problem.Y, RANK + 2)
    assert d.converged and d.diagnosis.components == RANK and d.L.shape[1] == RANK + 2
    assert problem.error(d.low_rank) < (3e-7 if problem is PLAIN else 0.0011)


def test_the_rank_is_found_in_the_block() -> None:
    d = solve(PLAIN.Y, None)
    assert d.rank == RANK and d.rank_choice is not None and d.rank_choice.tried[0].shape == (SIDE, SIDE)
    assert d.n_reads < 0.5 and PLAIN.error(d.low_rank) < 3e-7
    half = solve(NOISY.Y, 0.5)
    assert half.rank == 2 and half.converged
    full = decompose(NOISY.Y, RANK)
    best = full.L[:, :2] @ full.R[:, :2].T
    assert np.linalg.norm(half.low_rank - best) < 2e-3 * np.linalg.norm(best)


@fallback
@pytest.mark.filterwarnings("ignore::lrpca.ConvergenceWarning", "ignore::lrpca.DiagnosisWarning")
def test_a_rank_too_small_is_not_called_converged() -> None:
    assert solve(NOISY.Y, RANK - 1, max_iter=60).converged is False


def test_a_component_that_the_noise_of_the_block_hides_is_found() -> None:
    problem = make(noise=0.2)
    rng = np.random.default_rng(0)
    u, v = (rng.standard_normal(n) / np.sqrt(n) for n in SHAPE)
    # Twice the noise's largest singular value; in the block, less than its edge.
    weak = 2 * 0.2 * np.outer(u, v) * (np.sqrt(SHAPE[0]) + np.sqrt(SHAPE[1]))
    Y = (problem.Y + weak).astype(np.float32)
    d, full = solve(Y, RANK + 1), decompose(Y, RANK + 1)
    errors = [np.linalg.norm(one.low_rank - problem.X - weak) for one in (d, full)]
    assert d.diagnosis.components == RANK + 1 and errors[0] < 1.02 * errors[1] < np.linalg.norm(weak)
    assert [record.iteration for record in d.history] == list(range(1, d.n_iter + 1)) and d.n_iter > 2


def drawn_rows(monkeypatch: pytest.MonkeyPatch, Y: Any) -> Any:
    """Return the rows that are sampled of data of this shape."""
    found: list[Any] = []
    with monkeypatch.context() as patch:

        def recorded(*arguments: Any) -> Any:
            cross = read_cross(*arguments)
            found.append(cross.rows.indices)
            return cross

        patch.setattr("lrpca.solvers.sampled.read_cross", recorded)
        solve(Y)
    return found[0]


@pytest.mark.parametrize("noise", (0.0, 0.01))
@fallback
def test_a_component_in_rows_that_were_not_drawn_makes_it_fall_back(
    noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make(noise=noise)
    rows = np.setdiff1d(np.arange(SHAPE[0]), drawn_rows(monkeypatch, PLAIN.Y))[:30]
    rng = np.random.default_rng(1)
    truth = problem.X.copy()
    truth[rows] += 2 * np.outer(rng.standard_normal(30), rng.standard_normal(SHAPE[1]))
    Y = (truth + (problem.Y - problem.X)).astype(np.float32)
    d, full = solve(Y, RANK + 1), decompose(Y, RANK + 1)
    assert "row" in d.settings["fallback"] and any(d.settings["fallback"] in text for text in d.diagnosis.messages)
    assert d.reason == full.reason and d.n_reads > 3
    errors = [np.linalg.norm(one.low_rank - truth) / np.linalg.norm(truth) for one in (d, full)]
    assert errors[0] < max(1.02 * errors[1], 1e-6) < 0.03


@fallback
def test_held_out_entries_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regressions that went wrong everywhere leave no row behind the others."""

    def wrong(*arguments: Any) -> Any:
        fit = regress(*arguments)
        return replace(fit, coefficients=1.02 * fit.coefficients)

    monkeypatch.setattr("lrpca.solvers.sampled.regress", wrong)
    for problem, accuracy in ((PLAIN, 5e-7), (NOISY, 1.1e-3)):
        d = solve(problem.Y)
        assert "held-out entries" in d.settings["fallback"] and problem.error(d.low_rank) < accuracy


@fallback
def test_rows_without_sampled_entries_make_it_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    Y = PLAIN.Y.copy()
    Y[::7, ::2] = np.nan
    Y[3, 30:] = np.nan
    d = solve(Y)
    assert "a row has only" in d.settings["fallback"] and PLAIN.error(d.low_rank) < 1e-6


def test_outliers_in_blocks_are_no_component() -> None:
    Y = NOISY.Y.copy()
    Y[300:420, 200:420] += 4
    d = solve(Y)
    assert d.reason == "noise_floor" and "fallback" not in d.settings and NOISY.error(d.low_rank) < 1.2e-3


def test_small_matrices_are_solved_by_the_full_method() -> None:
    problem = planted((300, 200), rank=3, random_state=1)
    d, full = decompose(problem.Y, 3, method="sampled"), decompose(problem.Y, 3)
    np.testing.assert_array_equal(d.L, full.L)
    assert d.method == "sampled" and d.settings["side"] is None and "fallback" not in d.settings


def test_a_side_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match=r"options\['side'\]=15 is too small for rank=4; give at least 16"):
        solve(PLAIN.Y, side=15)


@pytest.mark.parametrize("passes", (0, 1))
def test_fewer_passes_than_the_noise_asks_for(passes: int) -> None:
    with pytest.warns(lrpca.ConvergenceWarning, match="not converged: max_iter"):
        d = solve(NOISY.Y, passes=passes)
    assert d.n_iter == 1 + passes and d.n_reads == pytest.approx(passes + SHARE, abs=1e-3)
    assert solve(PLAIN.Y, passes=passes).converged
    # A tolerance that the sampled answer meets.
    assert solve(NOISY.Y, tol=0.05).n_iter == 1


def test_no_tolerance_passes_on() -> None:
    d = solve(NOISY.Y, tol=0, max_iter=6)
    assert d.n_iter == 6 and d.reason == "max_iter" and d.n_reads == pytest.approx(5 + SHARE, abs=1e-3)
    changes = [record.change for record in d.history]
    assert changes[0] is None and all(b < 0.5 * a for a, b in zip(changes[1:4], changes[2:5], strict=True))


def test_large_matrices_are_sampled_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = DenseMatrix(np.random.default_rng(1).standard_normal((900, 800)))
    few = draw_sample(matrix, np.random.default_rng(0))
    assert matrix.reads == 0 and len(np.unique(few.rows)) > 800
    monkeypatch.setattr(sampling, "LARGE", 900 * 800)
    sample = draw_sample(matrix, np.random.default_rng(0))
    rows, columns = np.unique(sample.rows), np.unique(sample.columns)
    assert len(sample.values) == len(rows) * len(columns) and matrix.reads == len(sample.values) / 720_000
    assert 20_000 <= len(sample.values) < 24_000
    assert np.array_equal(matrix.array[sample.rows, sample.columns], sample.values)
    # In groups, and all over the matrix.
    for indices, n in ((rows, 900), (columns, 800)):
        assert 10 <= np.count_nonzero(np.diff(indices) > 1) <= 15
        assert indices[0] < n / 10 and indices[-1] > 0.9 * n
    block = choose_block(matrix.shape, (64, 48), np.random.default_rng(0))
    assert [np.count_nonzero(np.diff(indices) > 1) for indices in block] <= [3, 2]


def test_tiles_follow_row_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = DenseMatrix(np.ones((900, 800)))
    monkeypatch.setattr(sampling, "LARGE", 900 * 800)
    weight = np.where(np.arange(900) < 300, 3.0, 0.0) + np.where(np.arange(900) >= 600, 1.0, 0.0)
    shares = [np.mean(draw_sample(matrix, np.random.default_rng(k), row_weight=weight).rows < 300) for k in range(40)]
    assert np.mean(shares) == pytest.approx(0.75, abs=0.1)
    rows = draw_sample(matrix, np.random.default_rng(0), row_weight=weight).rows
    assert (weight[rows] > 0).all()


def test_missing_entries_of_large_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    Y = np.random.default_rng(1).standard_normal((900, 800))
    Y[np.random.default_rng(2).random(Y.shape) < 0.6] = np.nan
    monkeypatch.setattr(sampling, "LARGE", Y.size)
    assert len(draw_sample(DenseMatrix(Y), np.random.default_rng(0)).values) >= 20_000
    assert observed_share(DenseMatrix(Y), np.random.default_rng(0)) == pytest.approx(0.4, abs=0.08)


def test_solutions_of_large_matrices_are_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that looks at samples of a large matrix, with the bound lowered."""
    monkeypatch.setattr(sampling, "LARGE", 900 * 800)
    for rank in (RANK, None):
        d = decompose(NOISY.Y, rank)
        assert d.converged and d.rank == RANK and NOISY.error(d.low_rank) < 1.1e-3
    d = decompose(PLAIN.Y, RANK, method="accaltproj")
    assert d.converged and PLAIN.error(d.low_rank) < 3e-6


def test_the_rule_of_auto() -> None:
    assert cross_sides((12000, 9000), 5, 1.0) == (400, 400) and cross_sides((12000, 9000), 20, 0.5) == (1280, 1280)
    assert cross_sides((1000, 1000), 5, 1.0) is None and cross_sides((10**6, 50), 5, 1.0) is None
    assert pays_to_sample((12000, 12000), 5) and not pays_to_sample((12000, 12000), 100)
    assert not pays_to_sample((2000, 2000), 5) and not pays_to_sample((10**6, 60), 3)


def test_auto_is_one_of_the_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decompose(PLAIN.Y, RANK, method="auto").method == "lrpca"
    monkeypatch.setattr(sys.modules["lrpca.decompose"], "pays_to_sample", lambda shape, rank: True)
    monkeypatch.setattr("lrpca.solvers.cross._LEAST", SIDE)
    d = decompose(PLAIN.Y, RANK, method="auto")
    assert d.method == "sampled" and d.n_reads < 0.5
    assert decompose(PLAIN.Y, None, method="auto").method == "sampled"
    unsampled: dict[str, Any] = {"start": (d.L, d.R), "row_weight": np.ones(SHAPE[0]), "schedule": "default"}
    for name, value in (*unsampled.items(), ("options", {"power_steps": 1})):
        assert decompose(PLAIN.Y, RANK, method="auto", **{name: value}).method == "lrpca"
    with pytest.raises(ValueError, match="unknown to method='lrpca'"):
        decompose(PLAIN.Y, RANK, method="auto", options={"side": 200})


def test_a_direction_that_few_rows_support_is_fitted() -> None:
    """The second direction lives on 16 of 400 rows: a column that is wrong in it keeps all the others."""
    rng = np.random.default_rng(0)
    known = np.stack([rng.standard_normal(400), np.r_[rng.standard_normal(16), np.zeros(384)]], axis=1)
    coefficients = rng.standard_normal((50, 2))
    Y = known @ coefficients.T
    Y[rng.random(Y.shape) < 0.1] += 4.0
    fit = regress(Band(DenseMatrix(Y), np.arange(400), True), known, Peak(1e-3, 0.9, 1.0, 1e-9), 1e-8)
    assert fit.lacking == 0 and np.abs(fit.coefficients - coefficients).max() < 1e-6
