"""What happens between two passes on a device: steps and bases from Grams, and what comes along with a pass."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lrpca.core import factors as iteration
from lrpca.core.influence import levels
from lrpca.solvers import step
from lrpca.testing import planted

torch = pytest.importorskip("torch")

from lrpca.kernels.step_core import tangent_step  # noqa: E402
from lrpca.matrices.dense import DenseMatrix  # noqa: E402
from lrpca.matrices.device import bases as device_bases  # noqa: E402
from lrpca.matrices.device import step as device_step  # noqa: E402
from lrpca.matrices.device.array import DeviceArray  # noqa: E402
from lrpca.matrices.sample import Sample, draw_sample  # noqa: E402
from lrpca.matrices.tensor import TensorMatrix  # noqa: E402
from lrpca.solvers.checks.low_inlier_rows import lagging  # noqa: E402
from lrpca.solvers.components import Components  # noqa: E402
from lrpca.solvers.initialise import Survey  # noqa: E402

SHAPE, RANK = (300, 200), 4


def on_device(array: Any) -> DeviceArray:
    return DeviceArray(torch.from_numpy(np.array(array)))


def fit(off: float, seed: int = 0) -> tuple[Any, Any, Any, float]:
    """Return Y, factors in normal form that are off by so much, and a threshold."""
    problem, rng = planted(SHAPE, rank=RANK, outlier_fraction=0.1, random_state=seed), np.random.default_rng(seed)
    typical = np.abs(problem.X).mean()
    U, values, Vt = np.linalg.svd(problem.X + off * typical * rng.standard_normal(SHAPE), full_matrices=False)
    root = np.sqrt(values[:RANK])
    return problem.Y, U[:, :RANK] * root, Vt[:RANK].T * root, 3 * off * typical


# ------------------------------------------------------------------------------------------ steps


@pytest.mark.parametrize("off", (1e-1, 1e-4, 1e-8))
def test_a_compiled_step_is_that_of_numpy(off: float) -> None:
    Y, L, R, threshold = fit(off)
    level, length = levels("redescending", threshold), 1.1
    want = step.stepped(L, R, step.take_pass(DenseMatrix(Y), L, R, level, None), "tangent", None, RANK, length)
    matrix = TensorMatrix(torch.from_numpy(Y))
    on = on_device(L), on_device(R)
    result = step.take_pass(matrix, *on, level, None)
    usual = device_step._usual_step(*on, result, None, length)
    general = device_step.stepped(*on, replace(result, report=None), "tangent", None, RANK, length)
    assert want is not None and usual is not None and general is not None
    nothing = np.zeros(RANK, bool)
    X = np.asarray(want.factors()[0]) @ np.asarray(want.factors()[1]).T
    for got in (usual, general):
        left, right = (np.asarray(factor) for factor in got.factors())
        np.testing.assert_allclose(left @ right.T, X, rtol=0, atol=1e-15)
        np.testing.assert_allclose(got.values, want.values, rtol=1e-12)
        assert got.moved(nothing) == pytest.approx(want.moved(nothing), rel=1e-6)
        assert got.next_value == pytest.approx(want.next_value, rel=1e-4)
        np.testing.assert_allclose(left.T @ left, np.diag(got.values), rtol=0, atol=1e-12)


def grams_of(*columns: Any) -> Any:
    return np.stack([both.T @ both for both in columns])


def test_steps_that_grams_do_not_show_are_left_to_the_general_way() -> None:
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((50, 8)))[0]
    plain = np.hstack([2 * Q[:, :2], rng.standard_normal((50, 2))])
    assert tangent_step(grams_of(plain, plain), 1.0) is not None
    slanted = plain.copy()
    slanted[:, 1] += 1e-9 * slanted[:, 0]
    within = plain.copy()
    # Nearly all of it lies in the columns of L.
    within[:, 2:] = plain[:, :2] + 1e-5 * plain[:, 2:]
    absent = plain.copy()
    absent[:, 0] = 0
    unknown = plain.copy()
    unknown[3, 2] = np.nan
    for odd in (slanted, within, absent, unknown):
        assert tangent_step(grams_of(odd, plain), 1.0) is None
        assert tangent_step(grams_of(plain, odd), 1.0) is None


def test_what_came_with_a_pass_is_used_for_its_own_factors_only() -> None:
    Y, L, R, threshold = fit(1e-2)
    matrix, on = TensorMatrix(torch.from_numpy(Y)), (on_device(L), on_device(R))
    result = step.take_pass(matrix, *on, levels("hard", threshold), None)
    report = result.report
    assert report.sides_of(*on, None) is not None
    assert report.sides_of(on[0], on_device(R), None) is None
    assert report.sides_of(*on, on_device(np.ones(SHAPE[0]))) is None
    weighted = step.take_pass(matrix, *on, levels("hard", threshold), on_device(np.ones(SHAPE[0])))
    assert weighted.report.sides_of(*on, None) is None


def test_who_kept_least_and_most_comes_with_a_pass() -> None:
    Y, L, R, threshold = fit(1e-2)
    Y[7] += 100
    for given in (torch.from_numpy(Y), torch.from_numpy(Y.T.copy()).T):
        result = step.take_pass(TensorMatrix(given), on_device(L), on_device(R), levels("hard", threshold), None)
        for extremes, counts in zip((result.report.by_row, result.report.by_column), result.kept, strict=True):
            assert extremes == (np.asarray(counts).min(), np.asarray(counts).max())
        survey = Survey(np.full(SHAPE[0], SHAPE[1]), np.full(SHAPE[1], SHAPE[0]), 1.0)
        assert survey.is_complete and lagging(result, survey)
        assert lagging(replace(result, report=None), survey)
    Y[7] -= 100
    result = step.take_pass(TensorMatrix(torch.from_numpy(Y)), on_device(L), on_device(R), levels("hard", 1e9), None)
    assert not lagging(result, survey) and not lagging(replace(result, report=None), survey)


# ------------------------------------------------------------------------------------------ bases


MATRICES = {
    "plain": lambda rng: rng.standard_normal((60, 4)),
    "weak columns": lambda rng: rng.standard_normal((60, 4)) * [1, 1e-5, 1e-9, 1e3],
    "nearly dependent": lambda rng: rng.standard_normal((60, 1)) + 1e-7 * rng.standard_normal((60, 4)),
    "a zero column": lambda rng: rng.standard_normal((60, 4)) * [1, 1, 0, 1],
    "complex": lambda rng: rng.standard_normal((60, 4)) + 1j * rng.standard_normal((60, 4)),
    "one column": lambda rng: rng.standard_normal((60, 1)),
}
UNSEEN = ("nearly dependent", "a zero column", "complex")


@pytest.mark.parametrize("name", MATRICES)
def test_bases_by_a_gram(name: str) -> None:
    M = MATRICES[name](np.random.default_rng(0))
    found = device_bases.orthonormal(on_device(M))
    assert (found is None) == (name in UNSEEN)
    Q = np.asarray(iteration.orthonormal(on_device(M)))
    there = np.abs(Q).sum(axis=0) > 0
    np.testing.assert_allclose(Q[:, there].conj().T @ Q[:, there], np.eye(there.sum()), rtol=0, atol=1e-12)
    np.testing.assert_allclose(Q @ (Q.conj().T @ M), M, rtol=0, atol=1e-12 * np.abs(M).max())


@pytest.mark.parametrize("name", MATRICES)
def test_singular_values_by_a_gram(name: str) -> None:
    M = MATRICES[name](np.random.default_rng(1))
    U, values, Vh = iteration.thin_svd(on_device(M))
    np.testing.assert_allclose(np.asarray(U) * values @ Vh, M, rtol=0, atol=1e-12 * np.abs(M).max())
    np.testing.assert_allclose(values, np.linalg.svd(M, compute_uv=False), rtol=1e-7, atol=1e-13 * np.abs(M).max())


def test_a_known_gram_is_believed_until_the_matrix_changes() -> None:
    M = np.random.default_rng(2).standard_normal((30, 3))
    # Four times too large, to see that it is used.
    known = DeviceArray(torch.from_numpy(M.copy()), gram=4 * M.T @ M)
    Q = np.asarray(device_bases.orthonormal(known))
    np.testing.assert_allclose(Q.T @ Q, 0.25 * np.eye(3), rtol=0, atol=1e-14)
    known[np.array([0])] = np.ones((1, 3))
    assert known.gram is None
    doubled = DeviceArray(torch.from_numpy(M.copy()), gram=M.T @ M)
    np.multiply(doubled, 2.0, out=doubled)
    assert doubled.gram is None
    assert (2.0 * DeviceArray(torch.from_numpy(M), gram=M.T @ M)).gram is None


def test_sketches_bring_their_grams() -> None:
    from lrpca.core.influence import everything

    Y, *_ = fit(1e-2)
    rng = np.random.default_rng(0)
    A, none = on_device(rng.standard_normal((SHAPE[1], 3))), [np.zeros((n, 0)) for n in SHAPE]
    result = TensorMatrix(torch.from_numpy(Y)).run_pass(*none, everything(1.0), A=A, B=none[0])
    CA = np.asarray(result.CA)
    np.testing.assert_allclose(result.CA.gram, CA.T @ CA, rtol=1e-12)
    assert result.CtB.gram.shape == (0, 0)


@pytest.mark.parametrize("form", ("normal", "any", "a component that is not there"))
def test_normal_forms_by_grams(form: str) -> None:
    _, L, R, _ = fit(1e-2)
    rng = np.random.default_rng(0)
    if form == "any":
        mix = rng.standard_normal((RANK, RANK))
        L, R = L @ mix, R @ np.linalg.inv(mix).T
    elif form == "a component that is not there":
        L[:, -1] = R[:, -1] = 0
    want, got = iteration.normal_form(L, R), iteration.normal_form(on_device(L), on_device(R))
    assert (device_bases.normal_form(on_device(L), on_device(R)) is None) == ("not there" in form)
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=1e-13)


def test_nothing_to_make_a_basis_of() -> None:
    assert np.asarray(iteration.orthonormal(on_device(np.zeros((5, 0))))).shape == (5, 0)


# ------------------------------------------------------------------------------------------ what stays


def test_a_step_that_is_made_leaves_counts_only() -> None:
    Y, L, R, threshold = fit(1e-2)
    result = step.take_pass(
        TensorMatrix(torch.from_numpy(Y)), on_device(L), on_device(R), levels("hard", threshold), None
    )
    spent = step.without_sides(result)
    assert result.report.left is not None and spent.report.left is None and spent.report.grams is None
    assert (spent.report.by_row, spent.report.by_column) == (result.report.by_row, result.report.by_column)
    on_host = step.take_pass(DenseMatrix(Y), L, R, levels("hard", threshold), None)
    assert step.without_sides(on_host) is on_host


def test_samples_are_freed_at_once() -> None:
    rng = np.random.default_rng(0)
    places = np.arange(1000)
    for values in (rng.standard_normal(1000), np.where(rng.random(1000) < 0.5, 0.0, rng.standard_normal(1000))):
        sample = Sample(places, places, values)
        telling = sample.telling
        assert telling is sample.telling and (telling is sample) == (values != 0).all()
        sample.residuals(on_device(np.ones((1000, 1))), on_device(np.ones((1000, 1))))
        gone = weakref.ref(sample)
        gc.disable()
        try:
            del sample, telling
            assert gone() is None
        finally:
            gc.enable()


# ------------------------------------------------------------------------------------------ factors


@pytest.mark.parametrize("present", (2, RANK))
def test_factors_of_the_components_that_are_there(present: int) -> None:
    _, L, R, _ = fit(1e-2)
    on = on_device(L), on_device(R)
    got = Components(*on, present=present).factors()
    for ours, theirs, given in zip(got, Components(L, R, present=present).factors(), on, strict=True):
        assert isinstance(ours, DeviceArray) and (ours is given) == (present == RANK)
        np.testing.assert_array_equal(np.asarray(ours), theirs)
        assert not np.asarray(ours)[:, present:].any() and np.asarray(ours)[:, :present].all()


def test_longest_rows() -> None:
    _, L, R, _ = fit(1e-2)
    L[7] *= 50
    R[11] *= 20
    want = np.linalg.norm(L[7]) * np.linalg.norm(R[11])
    assert iteration.longest_rows(L, R) == pytest.approx(want, rel=1e-14)
    assert iteration.longest_rows(on_device(L), on_device(R)) == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize(
    ("made", "changed"), ((False, False), (False, True), (True, True)), ids=("usual", "changed inside", "made inside")
)
def test_what_is_known_of_factors_ends_when_they_change(made: bool, changed: bool) -> None:
    """Also where they are made or changed inside of `torch.inference_mode`, which does not count changes."""
    Y, L, R, _ = fit(1e-2)
    sample, rows = draw_sample(DenseMatrix(Y), np.random.default_rng(0)), np.arange(100)
    with torch.inference_mode(made):
        on = on_device(L), on_device(R)
    assert on[0].tensor.is_inference() == made
    for factor, ours in zip((L, R), on, strict=True):
        with torch.inference_mode(changed):
            before, core = sample.residuals(*on), sample.core(*on, 1e-15)
            ours[rows] = factor[rows] + 1
            after, changed_core = sample.residuals(*on), sample.core(*on, 1e-15)
        assert np.abs(after - before).max() > 0.01 and abs(core.share - changed_core.share) > 0.1
        assert core == pytest.approx(sample.core(L, R, 1e-15), rel=1e-6)
        factor[rows] += 1
        np.testing.assert_allclose(after, sample.residuals(L, R), rtol=0, atol=1e-12)
        assert changed_core == pytest.approx(sample.core(L, R, 1e-15), rel=1e-6)
