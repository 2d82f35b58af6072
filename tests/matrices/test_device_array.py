"""What happens between two passes on a device: arrays that do what NumPy does, steps and bases from Grams, samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lrpca.core import factors as iteration
from lrpca.core.influence import levels
from lrpca.core.passes import Pass
from lrpca.solvers import step
from lrpca.solvers.step import directions
from lrpca.testing import planted

torch = pytest.importorskip("torch")

from lrpca.kernels.step_core import tangent_step  # noqa: E402
from lrpca.matrices.dense import DenseMatrix  # noqa: E402
from lrpca.matrices.device import step as device_step  # noqa: E402
from lrpca.matrices.device.array import DeviceArray  # noqa: E402
from lrpca.matrices.tensor import TensorMatrix  # noqa: E402

SHAPE, RANK = (300, 200), 4


def draw(*shape: int, seed: int = 0, dtype: Any = np.float64) -> Any:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 9, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def on_device(array: Any) -> DeviceArray:
    return DeviceArray(torch.from_numpy(np.array(array)))


def step_of(rank: int, *, seed: int = 0, dtype: Any = np.float64, size: float = 1.0) -> tuple[Any, ...]:
    """Return orthogonal factors of very different strength, and a pass over them."""
    n1, n2 = 70, 50
    scales = np.logspace(0, -4, rank)
    L, S = (np.linalg.qr(draw(n, rank, seed=seed + n, dtype=dtype))[0] * np.sqrt(scales) for n in (n1, n2))
    C = size * draw(n1, n2, seed=seed, dtype=dtype)
    kept = np.full(n1, n2), np.full(n2, n1)
    return L, S, Pass(C @ S.conj(), C.T @ L.conj(), *kept, 1.0)


def moved_to_device(L: Any, S: Any, result: Pass) -> tuple[Any, ...]:
    grams = (None if part is None else on_device(part) for part in (result.row_grams, result.column_grams))
    parts = (on_device(part) for part in (result.CA, result.CtB, *result.kept))
    return on_device(L), on_device(S), Pass(*parts, result.norm_C, None, *grams)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("update", ["scaled", "tangent"])
@pytest.mark.parametrize("weighted", [False, True])
def test_directions(dtype: Any, update: str, weighted: bool) -> None:
    L, S, result = step_of(5, dtype=dtype)
    weight = np.linspace(0.0, 2.0, len(L)) if weighted else None
    want = directions(L, S, result, update, weight)
    got = directions(*moved_to_device(L, S, result), update, None if weight is None else on_device(weight))
    for ours, theirs in zip(got, want, strict=True):
        sizes = np.linalg.norm(theirs, axis=0)
        np.testing.assert_allclose(np.asarray(ours) / sizes, theirs / sizes, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("present", [None, 3])
def test_directions_by_own_grams(dtype: Any, present: int | None) -> None:
    L, S, result = step_of(5, dtype=dtype)
    kept = np.random.default_rng(3).random((len(L), len(S))) < 0.6
    pairs = {
        "row_grams": np.einsum("ij,jk,jh->ikh", kept, S.conj(), S),
        "column_grams": np.einsum("ij,ik,ih->jkh", kept, L.conj(), L),
    }
    result = Pass(result.CA, result.CtB, kept.sum(1), kept.sum(0), 1.0, **pairs)
    want = directions(L, S, result, "tangent", None, present)
    got = directions(*moved_to_device(L, S, result), "tangent", None, present)
    for ours, theirs in zip(got, want, strict=True):
        sizes = np.linalg.norm(theirs, axis=0)
        np.testing.assert_allclose(np.asarray(ours) / sizes, theirs / sizes, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("size", [1.0, 1e-9, 0.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_return_to_the_rank(dtype: Any, size: float, weighted: bool) -> None:
    """A step of 1e-9 keeps its digits."""
    L, S, result = step_of(5, dtype=dtype, size=size)
    weight = np.linspace(0.0, 2.0, len(L)) if weighted else None
    if weight is not None:
        # Orthogonal as weights see it, like those of a run.
        root = np.sqrt(weight)[:, None]
        L = np.linalg.qr(root * L)[0] * np.linalg.norm(L, axis=0) / np.where(root > 0, root, 1.0)
    dL, dR = directions(L, S, result, "tangent", weight)
    want = iteration.retract(L, S, dL, dR, weight)
    got = iteration.retract(*map(on_device, (L, S, dL, dR)), None if weight is None else on_device(weight))
    np.testing.assert_allclose(got.values, want.values, rtol=1e-11)
    (U, V), (ours_L, ours_R) = want.factors(), map(np.asarray, got.factors())
    X, moved = U @ V.T, want.moved(np.zeros(5, bool))
    # What it changed is right to ten digits, but for rounding of X itself.
    assert np.linalg.norm(ours_L @ ours_R.T - X) <= 1e-10 * moved + 1e-14 * np.linalg.norm(X)
    np.testing.assert_allclose(got.moved(np.zeros(5, bool)), moved, rtol=1e-6, atol=1e-15)
    vectors = np.asarray(got.vectors()[1])
    np.testing.assert_allclose(vectors.conj().T @ vectors, np.eye(5), atol=1e-9)


def test_return_to_the_rank_without_some_directions() -> None:
    """Nothing new on one side, one component absent: zero columns, no division by zero."""
    L, S, _ = step_of(3)
    L[:, 2] = S[:, 2] = 0.0
    dL, dR = L @ draw(3, 3), draw(50, 3)
    want, got = iteration.retract(L, S, dL, dR), iteration.retract(*map(on_device, (L, S, dL, dR)))
    np.testing.assert_allclose(got.values, want.values, atol=1e-12)
    U, V = want.factors()
    ours, theirs = map(np.asarray, got.factors())
    np.testing.assert_allclose(ours @ theirs.T, U @ V.T, atol=1e-10)


def test_return_to_the_rank_of_columns_that_nearly_depend_on_each_other() -> None:
    """What a Gram does not show must not be lost."""
    L, S, result = step_of(4, size=1e-6)
    S[:, 3] = S[:, 0] + 1e-8 * S[:, 3]
    dL, dR = directions(L, S, result, "tangent", None)
    want, got = iteration.retract(L, S, dL, dR), iteration.retract(*map(on_device, (L, S, dL, dR)))
    U, V = want.factors()
    ours, theirs = map(np.asarray, got.factors())
    assert np.linalg.norm(ours @ theirs.T - U @ V.T) <= 1e-14 * np.linalg.norm(U @ V.T)


def test_norms_of_products_and_of_steps() -> None:
    L, S, _ = step_of(4)
    x, y = on_device(L), on_device(S)
    assert iteration.product_norm(x, y) == pytest.approx(float(np.linalg.norm(L @ S.T)), rel=1e-12)
    assert iteration.all_finite(x, y)
    L[3, 1] = np.inf
    assert not iteration.all_finite(on_device(L), y) and not iteration.all_finite(y, on_device(L))


def fit(off: float, seed: int = 0) -> tuple[Any, Any, Any, float]:
    """Return Y, factors in normal form that are off by so much, and a threshold."""
    problem, rng = planted(SHAPE, rank=RANK, outlier_fraction=0.1, random_state=seed), np.random.default_rng(seed)
    typical = np.abs(problem.X).mean()
    U, values, Vt = np.linalg.svd(problem.X + off * typical * rng.standard_normal(SHAPE), full_matrices=False)
    root = np.sqrt(values[:RANK])
    return problem.Y, U[:, :RANK] * root, Vt[:RANK].T * root, 3 * off * typical


@pytest.mark.parametrize("off", (1e-1, 1e-4, 1e-8))
def test_a_compiled_step_is_that_of_numpy(off: float) -> None:
    Y, L, R, threshold = fit(off)
    level, length = levels("redescending", threshold), 1.1
    want = step.stepped(L, R, step.take_pass(DenseMatrix(Y), L, R, level, None), "tangent", None, RANK, length)
    matrix = TensorMatrix(torch.from_numpy(Y))
    on = on_device(L), on_device(R)
    result = step.take_pass(matrix, *on, level, None)
    usual = device_step.stepped(*on, result, "tangent", None, RANK, length)
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
