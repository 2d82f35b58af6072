"""Numbers at the ends of their range: in schedules, in options, and in the data."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lrpca
from lrpca import ConvergenceWarning, Decomposition, Schedule, decompose
from lrpca.solvers.methods import METHODS
from lrpca.testing import planted

PROBLEM = planted((70, 60), rank=2, outlier_fraction=0.1, outlier_size=5, random_state=0)
GAPPY = planted((70, 60), rank=2, outlier_fraction=0.1, outlier_size=5, missing=0.2, noise=0.01, random_state=1)


def assert_runaway(d: Decomposition) -> None:
    """A run that left the range of numbers ends with the last factors that were numbers, and says so."""
    assert d.reason == "runaway" and not d.converged
    assert np.isfinite(d.low_rank).all() and np.isfinite(d.noise_level)


EXTREME: dict[str, dict[str, Any]] = {
    "a later step": {"thresholds": [5, 1, 1, 1], "steps": [0, 1, 1e308, 1], "tail": (1, 0.9)},
    "the first step": {"thresholds": [5, 1, 1], "steps": [0, 1e308, 1], "tail": (1, 0.9)},
    "the tail": {"thresholds": [5, 1], "steps": [0, 1], "tail": (1e308, 0.5)},
}


@pytest.mark.parametrize("numbers", EXTREME.values(), ids=EXTREME)
@pytest.mark.parametrize("update", ("scaled", "tangent", "own_gram"))
@pytest.mark.parametrize("kind", ("absolute", "adaptive"))
def test_steps_that_leave_the_range(kind: str, update: str, numbers: dict[str, Any]) -> None:
    schedule = Schedule(kind=kind, update=update, influence="hard", **numbers)
    with pytest.warns(ConvergenceWarning, match=r"^not converged: runaway .*steps grew until numbers left their range"):
        d = decompose(PROBLEM.Y, 2, schedule=schedule)
    assert_runaway(d)


@pytest.mark.parametrize("numbers", EXTREME.values(), ids=EXTREME)
def test_steps_of_a_batch_that_leave_the_range(numbers: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from tests.helpers.batch_stacks import solve_as_on_a_gpu, stack_of

    schedule = Schedule(kind="adaptive", update="tangent", influence="hard", **numbers)
    batch, warned = solve_as_on_a_gpu(stack_of(2), 2, schedule=schedule)
    assert list(batch.reason) == ["runaway", "runaway"] and warned


@pytest.mark.parametrize(
    ("method", "options"), [("scaledgd", {"step": 1e308}), ("gd", {"step": 1e200}), ("gd", {"balance": 1e308})]
)
@pytest.mark.parametrize("dtype", (np.float64, np.float32))
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_options_that_lead_out_of_the_range(method: str, options: dict[str, float], dtype: type) -> None:
    with pytest.warns(ConvergenceWarning, match="^not converged: runaway"):
        d = decompose(PROBLEM.Y.astype(dtype), 2, method=method, options=options)
    assert_runaway(d)


def test_options_that_are_no_floating_point_numbers() -> None:
    with pytest.raises(ValueError, match=r"^options\['step'\]=1000+ is not a number above 0; give one that is$"):
        decompose(PROBLEM.Y, 2, method="gd", options={"step": 10**400})


def test_more_samples_than_rows() -> None:
    assert decompose(PROBLEM.Y, 2, method="ircur", options={"oversampling": 1e308}).converged


def equivariant(method: str, power: int, problem: Any = PROBLEM, **keywords: Any) -> None:
    """Data times 4**power give the same to the last bit, in their own units."""
    factor, root = math.ldexp(1.0, 2 * power), math.ldexp(1.0, power)
    Y = problem.Y
    d, scaled = (decompose(data, 2, method=method, **keywords) for data in (Y, Y * factor))
    assert (scaled.reason, scaled.n_iter, scaled.rank) == (d.reason, d.n_iter, d.rank)
    np.testing.assert_array_equal(scaled.L, d.L * root)
    np.testing.assert_array_equal(scaled.R, d.R * root)
    np.testing.assert_array_equal(scaled.outliers, d.outliers)
    assert (scaled.noise_level, scaled.outlier_threshold) == (d.noise_level * factor, d.outlier_threshold * factor)
    thresholds = [[record.threshold for record in one.history] for one in (scaled, d)]
    assert thresholds[0] == [None if one is None else one * factor for one in thresholds[1]]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(power=st.integers(-480, 500), missing=st.booleans())
def test_the_default_at_any_scale(power: int, missing: bool) -> None:
    """From 1e-289 on; entries of smaller data lose digits themselves."""
    equivariant("lrpca", power, GAPPY if missing else PROBLEM)


@pytest.mark.parametrize("power", (-480, 250, 500))
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore::lrpca.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")
def test_every_method_at_the_ends_of_the_range(method: str, power: int) -> None:
    equivariant(method, power)


def test_rank_of_data_at_the_ends_of_the_range() -> None:
    d, scaled = decompose(PROBLEM.Y), decompose(PROBLEM.Y * 2.0**900)
    assert d.rank_choice is not None and scaled.rank_choice is not None
    assert scaled.rank_choice == d.rank_choice.in_units(2.0**-900)
    assert scaled.rank_choice.edge == d.rank_choice.edge * 2.0**900


@pytest.mark.parametrize(
    ("method", "option", "value", "power"),
    [("pcp", "mu", 0.01, -1), ("stable_pcp", "noise_level", 1e-3, 1), ("ircur", "threshold", 2.0, 1)],
)
def test_options_are_in_units_of_the_data(method: str, option: str, value: float, power: int) -> None:
    unit = 2.0**800
    asked: dict[str, Any] = {"method": method, "max_iter": 5, "rank": 2, "tol": 0}
    d = decompose(PROBLEM.Y, options={option: value}, **asked)
    scaled = decompose(PROBLEM.Y * unit, options={option: value * unit**power}, **asked)
    np.testing.assert_array_equal(scaled.L, d.L * 2.0**400)
    assert scaled.settings[option] == value * unit**power
    step = d.history[-1].step
    assert scaled.history[-1].step == (step if method != "pcp" or step is None else step / unit)


@pytest.mark.filterwarnings("ignore::lrpca.ConvergenceWarning")
def test_schedules_starts_and_callbacks_are_in_units_of_the_data() -> None:
    schedule = Schedule([0.1, 0.05, 0.02], [0, 1, 1], tail=(1, 0.9))
    unit, start = 2.0**900, decompose(PROBLEM.Y, 2, max_iter=2, tol=0)
    seen: dict[float, list[Any]] = {1.0: [], unit: []}
    for factor, states in seen.items():
        absolute = replace(schedule, thresholds=[factor * threshold for threshold in schedule.thresholds])
        root = math.sqrt(factor)
        for keywords in ({"schedule": absolute}, {"start": (start.L * root, start.R * root)}):
            decompose(PROBLEM.Y * factor, 2, max_iter=4, callback=states.append, **keywords)
    assert len(seen[1.0]) == len(seen[unit]) == 8
    for ours, theirs in zip(seen[unit], seen[1.0], strict=True):
        np.testing.assert_array_equal(ours.L, theirs.L * math.sqrt(unit))
        assert (ours.threshold, ours.change) == (theirs.threshold * unit, theirs.change)


@pytest.mark.parametrize("kind", ("sparse", "tensor", "fortran", "complex"))
def test_other_kinds_of_matrices(kind: str) -> None:
    unit = 2.0**800

    def made(Y: Any) -> Any:
        if kind == "sparse":
            return pytest.importorskip("scipy.sparse").csr_array(Y)
        if kind == "tensor":
            return pytest.importorskip("torch").from_numpy(Y)
        return np.asfortranarray(Y) if kind == "fortran" else Y + 0j

    d, scaled = (decompose(made(PROBLEM.Y * factor), 2) for factor in (1.0, unit))
    np.testing.assert_array_equal(np.asarray(scaled.L), np.asarray(d.L) * 2.0**400)
    np.testing.assert_array_equal(np.asarray(scaled.outliers), np.asarray(d.outliers))
    new = made(PROBLEM.Y[:5] * unit)
    np.testing.assert_allclose(np.asarray(scaled.transform(new)), np.asarray(scaled.L)[:5], rtol=1e-6)


def test_batches() -> None:
    pytest.importorskip("torch")
    from tests.helpers.batch_stacks import solve_as_on_a_gpu, stack_of

    Ys = stack_of(2, dtype=np.float64)
    batch, _ = solve_as_on_a_gpu(Ys * 2.0**800, 2)
    for i, Y in enumerate(Ys):
        np.testing.assert_array_equal(batch.L[i].numpy(), decompose(Y, 2).L * 2.0**400)


def test_data_that_are_not_copied_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = r"^median\|Y\|=.*e\+1.., about, is beyond what can be squared, .* too large to be copied; rescale Y, e\.g"
    Y = PROBLEM.Y * 1e200
    chunked = pytest.importorskip("dask.array").from_array(Y, chunks=(20, 60))
    with pytest.raises(ValueError, match=message):
        decompose(chunked, 2)
    assert decompose(chunked, 2, method="pcp").converged, "this one reads Y into memory"
    np.save(tmp_path / "Y.npy", Y)
    monkeypatch.setattr("lrpca.matrices.dense._LARGE_FILE", 1)
    with pytest.raises(ValueError, match=message):
        decompose(np.load(tmp_path / "Y.npy", mmap_mode="r"), 2)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("factor", (1.0, 2.0**-700))
def test_one_entry_that_is_too_large_is_named(method: str, factor: float) -> None:
    """To rescale all of Y would not help."""
    Y = PROBLEM.Y * factor
    Y[3, 4] = -1e160 * factor
    said = r"-1e\+160" if factor == 1 else r"-1\.9e-51"
    with pytest.raises(ValueError, match=rf"^Y\[3, 4\]={said} is too large beside the others .*; mark it as missing"):
        decompose(Y, 2, method=method)


def test_a_large_entry_beside_large_data() -> None:
    """Data of 1e100 with an entry of 1e170 are those of 1 with one of 1e70."""
    Y = PROBLEM.Y.copy()
    Y[3, 4] = 1e70
    d, scaled = decompose(Y, 2), decompose(Y * 2.0**334, 2)
    np.testing.assert_array_equal(scaled.L, d.L * 2.0**167)


def table(columns: int, dtype: type = np.float64) -> Any:
    Y = planted((160, columns), rank=2, outlier_fraction=0.1, outlier_size=5, noise=0.02, scale=1.0, random_state=1).Y
    Y = Y + 3.0
    Y[::17, 3] = np.nan
    return Y.astype(dtype)


@pytest.mark.parametrize("way", ("fit", "partial_fit"))
@pytest.mark.parametrize("columns", (60, 8), ids=("wide", "narrow"))
@pytest.mark.parametrize(
    ("dtype", "power"),
    [(np.float64, power) for power in (-480, -265, 23, 480)] + [(np.float32, power) for power in (-55, -23, 50, 58)],
)
@pytest.mark.filterwarnings("ignore:explained_variance_ leaves:lrpca.DiagnosisWarning")
def test_tables_at_any_scale(dtype: type, power: int, columns: int, way: str) -> None:
    Y, factor = table(columns, dtype), dtype(2.0 ** (2 * power))
    usual, model = (getattr(lrpca.RobustPCA(2), way)(data) for data in (Y, Y * factor))
    within = 1e-6 if dtype is np.float32 else 1e-12
    for name in ("components_", "explained_variance_ratio_"):
        np.testing.assert_allclose(getattr(model, name), getattr(usual, name), rtol=0, atol=within)
    np.testing.assert_allclose(model.mean_, usual.mean_ * factor, rtol=within)
    assert model.outlier_threshold_ == pytest.approx(usual.outlier_threshold_ * float(factor), rel=1e-12)
    new = Y[:20]
    np.testing.assert_allclose(model.transform(new * factor) / factor, usual.transform(new), rtol=within, atol=within)
    # A density is one over the unit of every feature.
    likelihood = model.score_samples(new * factor) + columns * math.log(float(factor))
    np.testing.assert_allclose(likelihood, usual.score_samples(new), rtol=within, atol=1e-9)
    np.testing.assert_array_equal(model.outlier_mask(new * factor), usual.outlier_mask(new))
    both = (usual, dtype(1)), (model, factor)
    rows = [one.inverse_transform(one.transform(new * scale)) / scale for one, scale in both]
    np.testing.assert_allclose(*rows, rtol=0, atol=10 * within)
    clean = [one.decompose(new * scale).low_rank / scale for one, scale in both]
    np.testing.assert_allclose(*clean, rtol=0, atol=10 * within)
    if way == "fit":
        np.testing.assert_allclose(model.low_rank_ / factor, usual.low_rank_, rtol=0, atol=10 * within)
        np.testing.assert_array_equal(model.outliers_, usual.outliers_)
    # A stream goes on from either.
    model.partial_fit(Y * factor)
    assert np.isfinite(model.components_).all()


@pytest.mark.parametrize(
    ("dtype", "power"), [(np.float64, 265), (np.float64, -280), (np.float32, 50), (np.float32, -50)]
)
def test_variances_beyond_the_range_are_told(dtype: type, power: int) -> None:
    Y, name = table(60, dtype) * dtype(2.0 ** (2 * power)), np.dtype(dtype).name
    with pytest.warns(lrpca.DiagnosisWarning, match=f"^explained_variance_ leaves the range of {name}, .* rescale X, "):
        model = lrpca.RobustPCA(2).fit(Y)
    assert (model.explained_variance_ == (np.inf if power > 0 else 0.0)).all()
    assert 0.9 < model.explained_variance_ratio_.sum() < 1


@pytest.mark.parametrize("size", (1e16, 1e130, 1e300))
def test_a_wild_row_leaves_the_others_alone(size: float) -> None:
    Y = table(60)
    model = lrpca.RobustPCA(2).fit(Y)
    wild = Y[:20].copy()
    wild[7] = size
    rows = np.arange(20) != 7
    d = model.decompose(wild)
    np.testing.assert_allclose(d.low_rank[rows], model.decompose(Y[:20]).low_rank[rows], rtol=1e-12)
    assert np.isfinite(d.low_rank).all()
    likelihood = model.score_samples(wild)
    np.testing.assert_allclose(likelihood[rows], model.score_samples(Y[:20])[rows], rtol=1e-12)
    assert likelihood[7] < -1e20


def test_narrow_tables_that_are_not_copied_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrpca.tables.bands.LOADED_BELOW", 1)
    X = pytest.importorskip("dask.array").from_array(table(8) * 1e200, chunks=(40, 8))
    with pytest.raises(ValueError, match=r"^median\|X\|=.*X is too large to be copied; rescale X, e\.g\. X / "):
        lrpca.RobustPCA(2).fit(X)
