"""The one verb: planted problems are recovered, runs end for the reason they state, any container is read."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca import ConvergenceWarning, DiagnosisWarning, Schedule, decompose
from lrpca.matrices.accept import accept
from lrpca.solvers.start import spectral_start
from lrpca.testing import Problem, planted
from lrpca.threads import thread_count

RANK = 3
SHAPES = {"square": (300, 300), "tall": (600, 120), "wide": (120, 600)}


def small(**changes: Any) -> Problem:
    return planted(**{"shape": (120, 100), "rank": RANK, "outlier_fraction": 0.1, "random_state": 1, **changes})


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small()


# ------------------------------------------------------------------------------------------ recovery


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


@pytest.mark.parametrize(("dtype", "within"), [("complex128", 1e-7), ("complex64", 3e-6)])
def test_recovers_complex_problems(dtype: str, within: float) -> None:
    case = planted((200, 150), rank=RANK, outlier_fraction=0.1, outlier_size=5, dtype=dtype, random_state=1)
    d = decompose(case.Y, RANK)
    assert d.converged and d.L.dtype == dtype
    assert case.error(d.L @ d.R.T) < within


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
        SHAPES[shape],
        rank=RANK,
        outlier_fraction=0.1,
        outlier_size=10,
        noise=0.05,
        missing=missing,
        random_state=2,
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


@pytest.mark.parametrize("missing", (0.0, 0.5))
def test_spectral_start_has_the_right_size(missing: float) -> None:
    case = planted((300, 250), rank=RANK, missing=missing, outlier_fraction=0, random_state=1)
    L, R, survey = spectral_start(accept(case.Y), RANK, np.inf, power_steps=2, rng=np.random.default_rng(0))
    assert np.sum(L @ R.T * case.X) / np.sum(case.X**2) == pytest.approx(1, abs=0.03)
    assert case.error(L @ R.T) < (0.3 if missing else 1e-12)
    assert survey.observed == np.mean(case.observed)
    assert survey.norm == pytest.approx(np.linalg.norm(case.Y[case.observed]))


def test_missing_entries_cost_few_reads() -> None:
    """Rows solved by their own Gram do not fall behind; with one common step these four need 123 reads."""
    problems = [planted((300, 250), rank=RANK, missing=0.4, outlier_fraction=0.1, random_state=k) for k in range(4)]
    assert sum(decompose(case.Y, RANK).n_reads for case in problems) < 108


def test_default_needs_few_reads(problem: Problem) -> None:
    d = decompose(problem.Y, RANK)
    assert d.n_reads <= 25
    # Two passes of the start and two per power step come on top of the iterations, unless rows had to be refitted.
    assert d.n_reads >= d.n_iter + 4


def test_same_seed_same_bits_and_other_seeds_the_same_answer(problem: Problem) -> None:
    first, again, other = (decompose(problem.Y, RANK, random_state=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.L, again.L)
    np.testing.assert_array_equal(first.R, again.R)
    np.testing.assert_allclose(other.low_rank, first.low_rank, atol=1e-6 * np.abs(problem.X).max())
    np.testing.assert_array_equal(decompose(problem.Y, RANK).L, decompose(problem.Y, RANK).L)
    generator = decompose(problem.Y, RANK, random_state=np.random.default_rng(3))
    np.testing.assert_array_equal(generator.L, first.L)


def test_Y_is_not_changed(problem: Problem) -> None:
    Y = problem.Y.copy()
    decompose(Y, RANK)
    np.testing.assert_array_equal(Y, problem.Y)


# ------------------------------------------------------------------------------------------ how runs end


@pytest.mark.parametrize("max_iter", (1, 7, 40))
def test_zero_tolerance_runs_to_max_iter(problem: Problem, max_iter: int) -> None:
    d = decompose(problem.Y, RANK, tol=0, max_iter=max_iter)
    assert (d.n_iter, d.reason, d.converged) == (max_iter, "max_iter", False)


def test_zero_tolerance_stays_at_the_solution(problem: Problem) -> None:
    """Long after convergence, with residuals at rounding, nothing drifts or fills up."""
    d = decompose(problem.Y, RANK, tol=0, max_iter=60)
    assert problem.error(d.low_rank) < 1e-12


def test_tolerance_is_the_relative_change(problem: Problem) -> None:
    for tol in (1e-3, 1e-5):
        d = decompose(problem.Y, RANK, tol=tol)
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


@pytest.mark.parametrize("stop", (True, np.True_), ids=["True", "numpy True"])
def test_callback_stops(problem: Problem, stop: Any) -> None:
    d = decompose(problem.Y, RANK, callback=lambda state: stop if state.iteration == 3 else None)
    assert (d.n_iter, d.reason, d.converged) == (3, "callback", False)


@pytest.mark.parametrize("answer", (False, None), ids=str)
def test_callback_lets_it_run(problem: Problem, answer: Any) -> None:
    seen: list[int] = []

    def watch(state: Any) -> Any:
        seen.append(state.iteration)
        return answer

    d = decompose(problem.Y, RANK, callback=watch)
    assert d.reason == "tol"
    assert seen == list(range(1, d.n_iter + 1))


def test_callback_sees_fresh_factors_and_the_record(problem: Problem) -> None:
    states: list[Any] = []

    def spoil(state: Any) -> None:
        states.append((state, state.L.copy(), state.R.copy()))
        state.L[:] = np.nan
        state.R[:] = 0

    d = decompose(problem.Y, RANK, callback=spoil)
    plain = decompose(problem.Y, RANK)
    np.testing.assert_array_equal(d.L, plain.L)
    for (state, _, _), record in zip(states, d.history, strict=True):
        for name in ("iteration", "threshold", "step", "residual", "change", "kept", "seconds"):
            assert getattr(state, name) == getattr(record, name)
    _, L, R = states[-1]
    np.testing.assert_allclose(L @ R.T, d.low_rank, atol=1e-12)


def test_error_in_the_callback_comes_out(problem: Problem) -> None:
    def fail(state: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        decompose(problem.Y, RANK, callback=fail)


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


# ------------------------------------------------------------------------------------------ absolute schedules


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


# ------------------------------------------------------------------------------------------ weights of rows


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


# ------------------------------------------------------------------------------------------ containers


def close(got: Any, want: Any, within: float = 1e-9) -> bool:
    return bool(np.linalg.norm(got.low_rank - want.low_rank) <= within * np.linalg.norm(want.low_rank))


LAYOUTS = {
    "list": lambda Y: Y.tolist(),
    "tuple of arrays": lambda Y: tuple(Y),
    "Fortran": np.asfortranarray,
    "non-contiguous": lambda Y: np.repeat(np.repeat(Y, 2, 0), 2, 1)[::2, ::2],
    "reversed": lambda Y: Y[::-1, ::-1].copy()[::-1, ::-1],
    "big-endian": lambda Y: Y.astype(">f8"),
    "extended": lambda Y: Y.astype(np.longdouble),
    "matrix": lambda Y: Y.view(type("Own", (np.ndarray,), {})),
    "unaligned": lambda Y: np.frombuffer(b"x" + Y.tobytes(), np.uint8)[1:].view(Y.dtype).reshape(Y.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_layout(problem: Problem, layout: str) -> None:
    assert close(decompose(LAYOUTS[layout](problem.Y), RANK), decompose(problem.Y, RANK))


def test_read_only_memmap(problem: Problem, tmp_path: Path) -> None:
    np.save(tmp_path / "Y.npy", problem.Y)
    Y = np.load(tmp_path / "Y.npy", mmap_mode="r")
    d = decompose(Y, RANK)
    np.testing.assert_array_equal(d.L, decompose(problem.Y, RANK).L)
    np.testing.assert_array_equal(d.outliers, decompose(problem.Y, RANK).outliers)


@pytest.mark.parametrize(
    ("dtype", "result", "within"),
    [("float16", "float32", 2e-3), ("int32", "float64", 1e-3), ("int16", "float32", 1e-3), ("uint16", "float32", 1e-3)],
)
def test_other_numbers(problem: Problem, dtype: str, result: str, within: float) -> None:
    scale = {"float16": 1.0}.get(dtype, 2000.0) / np.abs(problem.Y).max()
    shift = 3000 if dtype == "uint16" else 0
    Y, X = problem.Y * scale, problem.X * scale
    Y = Y + shift if dtype == "float16" else np.rint(Y + shift)
    d = decompose(Y.astype(dtype), RANK + (shift > 0))
    assert d.L.dtype == result
    assert np.linalg.norm(d.low_rank - X - shift) < 2 * within * np.linalg.norm(X)


def test_booleans() -> None:
    Y = np.zeros((60, 50), bool)
    Y[10:, 10:] = True
    flipped = np.random.default_rng(0).random(Y.shape) < 0.05
    d = decompose(Y ^ flipped, 1)
    assert d.L.dtype == np.float32
    np.testing.assert_array_equal(d.outliers, flipped)


@pytest.mark.parametrize("dtype", ("float64", "int64"))
def test_masked_arrays(problem: Problem, dtype: str) -> None:
    Y = (1e6 * problem.Y / np.abs(problem.Y).max()).astype(dtype)
    hidden = np.random.default_rng(0).random(Y.shape) < 0.05
    spoiled = np.where(hidden, 10**9, Y)
    d = decompose(np.ma.MaskedArray(spoiled, mask=hidden), RANK)
    assert close(d, decompose(spoiled, RANK, mask=~hidden), 1e-12)
    assert not d.outliers[hidden].any()
    assert problem.error(d.low_rank / 1e6 * np.abs(problem.Y).max()) < 1e-4
    unmasked = decompose(np.ma.MaskedArray(Y), RANK)
    assert close(unmasked, decompose(Y, RANK), 1e-12)


def test_mask_and_nan_and_masked_array_add_up(problem: Problem) -> None:
    rng = np.random.default_rng(0)
    first, second, third = (rng.random(problem.Y.shape) < 0.1 for _ in range(3))
    Y = np.where(first, np.nan, problem.Y)
    d = decompose(np.ma.MaskedArray(Y, mask=second), RANK, mask=~third)
    want = decompose(problem.Y, RANK, mask=~(first | second | third))
    assert close(d, want)


@pytest.mark.parametrize("axis", (0, 1))
def test_masks_of_whole_rows_and_columns(problem: Problem, axis: int) -> None:
    keep = np.arange(problem.Y.shape[axis]) % 10 != 0
    mask = keep[:, None] if axis == 0 else keep[None, :]
    with pytest.warns(DiagnosisWarning, match="without influence"):
        d = decompose(problem.Y, RANK, mask=mask)
    want = decompose(np.compress(keep, problem.Y, axis=axis), RANK)
    got = np.compress(keep, d.low_rank, axis=axis)
    assert np.linalg.norm(got - want.low_rank) < 1e-6 * np.linalg.norm(want.low_rank)


def test_pandas(problem: Problem) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(problem.Y, columns=[f"c{j}" for j in range(problem.Y.shape[1])])
    want = decompose(problem.Y, RANK)
    assert close(decompose(frame, RANK), want)
    assert close(decompose(frame.astype("Float64"), RANK), want)


def test_pandas_nullable_and_mixed_columns(problem: Problem) -> None:
    pd = pytest.importorskip("pandas")
    Y = np.rint(1e4 * problem.Y / np.abs(problem.Y).max())
    hidden = np.random.default_rng(0).random(Y.shape) < 0.1
    want = decompose(np.where(hidden, np.nan, Y), RANK)
    frame = pd.DataFrame(np.where(hidden, np.nan, Y))
    assert close(decompose(frame.astype("Int64"), RANK), want)
    mixed = frame.astype({j: "Int64" if j % 2 else "float64" for j in range(Y.shape[1])})
    assert close(decompose(mixed, RANK), want)


def test_polars(problem: Problem) -> None:
    pl = pytest.importorskip("polars")
    assert close(decompose(pl.DataFrame(problem.Y), RANK), decompose(problem.Y, RANK))
    Y = np.rint(1e4 * problem.Y / np.abs(problem.Y).max()).astype(int)
    columns = {f"c{j}": [None if (i + j) % 10 == 0 else int(Y[i, j]) for i in range(len(Y))] for j in range(Y.shape[1])}
    i, j = np.indices(Y.shape)
    assert close(decompose(pl.DataFrame(columns), RANK), decompose(np.where((i + j) % 10 == 0, np.nan, Y), RANK))


@pytest.mark.parametrize("form", ("csr_matrix", "csr_array", "csc_matrix", "coo_array"))
def test_scipy_sparse(problem: Problem, form: str) -> None:
    """Absent entries are zeros, here outliers among others; they are not missing."""
    sparse = pytest.importorskip("scipy.sparse")
    Y = np.where(np.random.default_rng(0).random(problem.Y.shape) < 0.1, 0.0, problem.Y)
    d, want = decompose(getattr(sparse, form)(Y), RANK), decompose(Y, RANK)
    assert problem.error(d.low_rank) < 1e-6
    assert close(d, want, 1e-7)
    np.testing.assert_allclose(d.sparse, want.sparse, atol=1e-6 * np.abs(Y).max())
    np.testing.assert_array_equal(d.outliers[Y == 0], True)


def test_sparse_with_mask(problem: Problem) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    mask = np.random.default_rng(0).random(problem.Y.shape) < 0.8
    assert close(decompose(sparse.csr_array(problem.Y), RANK, mask=mask), decompose(problem.Y, RANK, mask=mask))


def test_options(problem: Problem) -> None:
    few = decompose(problem.Y, RANK, tol=0, max_iter=2, options={"power_steps": 0})
    many = decompose(problem.Y, RANK, tol=0, max_iter=2, options={"power_steps": 4})
    assert (few.n_reads, many.n_reads) == (4, 12)
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


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_thresholds_beyond_the_range_of_single_precision(problem: Problem, dtype: Any) -> None:
    """Nothing is then an outlier: the plain low-rank fit, without a word from the arithmetic."""
    schedule = Schedule([1e300] * 4, [0.0, 0.5, 0.5, 0.5])
    d = decompose(problem.Y.astype(dtype), RANK, schedule=schedule, max_iter=3)
    U, values, Vt = np.linalg.svd(problem.Y, full_matrices=False)
    best = (U[:, :RANK] * values[:RANK]) @ Vt[:RANK]
    assert np.linalg.norm(d.low_rank - best) < 1e-2 * np.linalg.norm(best)


def test_results_do_not_hold_threads() -> None:
    Y = planted((400, 300), rank=RANK).Y
    before = threading.active_count()
    kept = [decompose(Y, RANK) for _ in range(6)]
    assert len(kept) == 6
    # A pool for everyone is fine, one per result is not.
    assert threading.active_count() <= before + thread_count()


def test_module_is_reachable_by_its_public_names() -> None:
    assert lrpca.decompose is decompose
    assert lrpca.testing.planted is planted
