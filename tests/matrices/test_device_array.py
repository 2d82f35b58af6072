"""Tall arrays on a device do what NumPy does, and leave there what is long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lrpca.core import factors as iteration
from lrpca.core.passes import Pass
from lrpca.solvers.step import directions

torch = pytest.importorskip("torch")

from lrpca.matrices.device.array import DeviceArray, Transposed  # noqa: E402

N, R = 31, 4


def draw(*shape: int, seed: int = 0, dtype: Any = np.float64) -> Any:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 9, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def on_device(array: Any) -> DeviceArray:
    return DeviceArray(torch.from_numpy(np.array(array)))


def assert_same(got: Any, want: Any, *, here: bool) -> None:
    """The same numbers and type, on the device or on the host."""
    assert isinstance(got, DeviceArray) is not here, type(got)
    assert np.asarray(got).dtype == np.asarray(want).dtype
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-14, atol=1e-14)


ELEMENTWISE: dict[str, Callable[[Any], Any]] = {
    "scalar": lambda x: 2 * x - 1.5,
    "scalar before": lambda x: 1.0 - x,
    "numpy scalar": lambda x: np.float64(0.1) * x,
    "row": lambda x: x * np.arange(1.0, R + 1),
    "column": lambda x: x / (1.0 + np.arange(N))[:, None],
    "integers": lambda x: x * np.arange(R),
    "itself": lambda x: x + x * x,
    "division by zero": lambda x: x / np.array([0.0, 1.0, 2.0, 0.0]),
    "negative": lambda x: -x,
    "power": lambda x: np.abs(x) ** 2,
    "root": lambda x: np.sqrt(np.abs(x)),
    "where": lambda x: np.where(np.arange(R) < 2, x, 0.0),
    "where of it": lambda x: np.where(np.abs(x) > 0.5, x, 0.0),
    "product": lambda x: x @ np.arange(R * 3.0).reshape(R, 3),
    "complex product": lambda x: x @ (1j * np.eye(R)),
    "columns": lambda x: x[:, np.array([2, 0])],
    "slice": lambda x: x[:, 1:3],
    "rows": lambda x: x[np.array([5, 1, 5])],
    "new axis": lambda x: x[:, 0][:, None],
    "some rows": lambda x: x[np.arange(N) % 2 == 0],
    "side by side": lambda x: np.concatenate([x, 2 * x], axis=1),
    "with one from the host": lambda x: np.concatenate([np.ones((N, 1)), x], axis=1),
    "padded": lambda x: np.pad(x, ((0, 0), (0, 2))),
    "conjugate": lambda x: x.conj(),
    "rows' norms": lambda x: np.linalg.norm(x, axis=1),
    "rows' sums": lambda x: x.sum(axis=1),
    "products of rows": lambda x: np.einsum("mk,mk->m", x, x),
    "from the left": lambda x: (np.arange(3.0 * R).reshape(3, R) @ x.T).T,
    "copy": lambda x: x.copy(),
}
SUMMED: dict[str, Callable[[Any], Any]] = {
    "gram": lambda x: x.T @ x.conj(),
    "adjoint": lambda x: x.conj().T @ x,
    "host on the left": lambda x: np.arange(2.0 * N).reshape(2, N) @ x,
    "norm": lambda x: np.linalg.norm(x),
    "norms": lambda x: np.linalg.norm(x, axis=0),
    "sum": lambda x: x.sum(),
    "sums": lambda x: x.sum(axis=0),
    "any": lambda x: x.any(axis=0),
    "any of all": lambda x: x.any(),
    "places of the largest": lambda x: np.abs(x).argmax(axis=0),
    "entries": lambda x: x[np.array([3, 0]), np.array([1, 2])],
}
REAL: dict[str, Callable[[Any], Any]] = {
    "largest": lambda x: x.max(axis=0, initial=0.0),
    "largest of all": lambda x: x.max(),
    "smallest": lambda x: x[:, 0].min(initial=-9.0),
    "places": lambda x: np.flatnonzero((x[:, 0] > 0.2) & ~(x[:, 1] < 0) | (x[:, 2] >= 1)),
}


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.int64])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_what_is_long_stays(name: str, dtype: Any) -> None:
    x = draw(N, R, dtype=dtype)
    if dtype == np.int64 and name == "rows' norms":
        pytest.skip("counts have no norms")
    with np.errstate(divide="ignore", invalid="ignore"):
        want = ELEMENTWISE[name](x)
    assert_same(ELEMENTWISE[name](on_device(x)), want, here=False)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("name", SUMMED)
def test_what_is_summed_comes_to_the_host(name: str, dtype: Any) -> None:
    x = draw(N, R, dtype=dtype)
    assert_same(SUMMED[name](on_device(x)), SUMMED[name](x), here=True)


@pytest.mark.parametrize("name", REAL)
def test_order_of_real_numbers(name: str) -> None:
    x = draw(N, R)
    assert_same(REAL[name](on_device(x)), REAL[name](x), here=True)


def test_counts_become_double_precision() -> None:
    counts = np.array([0, 3, 2**53 + 1, 7])
    x = on_device(counts)
    for function in (lambda c: c / 3, lambda c: c / np.maximum(c, 1), lambda c: 0.1 * c, lambda c: np.sqrt(c)):
        assert_same(function(x), function(counts), here=False)
    # Single precision, which torch would take, does not tell these from each other.
    assert np.flatnonzero(x > 2.0**53 - 1.5).tolist() == [2]
    assert x.sum() == counts.sum() and x.sum().dtype == np.int64


def test_single_precision_stays_beside_numbers_only() -> None:
    x = draw(N, R, dtype=np.float32)
    for function in (lambda a: 2.5 * a, lambda a: np.float64(2.5) * a, lambda a: a * np.ones(R), lambda a: a * a):
        assert_same(function(on_device(x)), function(x), here=False)


def test_the_first_of_equal_ones() -> None:
    x = np.array([[1.0, 2.0], [3.0, 2.0], [3.0, 1.0]])
    np.testing.assert_array_equal(on_device(x).argmax(axis=0), [1, 0])


def test_changes_in_place() -> None:
    x, want = on_device(draw(N, R)), draw(N, R)
    part, same = x[:, :2], want[:, :2]  # views
    part[np.array([1, 4])] = np.ones((2, 2))
    same[np.array([1, 4])] = np.ones((2, 2))
    x[:, np.array([3])] = on_device(draw(N, 1, seed=1))
    want[:, np.array([3])] = draw(N, 1, seed=1)
    x *= 2.0
    want *= 2.0
    np.testing.assert_array_equal(np.asarray(x), want)
    np.testing.assert_array_equal(np.asarray(part), want[:, :2])


def test_looks_like_an_array() -> None:
    x = on_device(draw(N, R, dtype=np.complex128))
    assert (len(x), x.shape, x.ndim, x.dtype) == (N, (N, R), 2, np.complex128)
    assert np.iscomplexobj(x) and not np.iscomplexobj(on_device(draw(N)))
    assert x.astype(np.complex64).dtype == np.complex64
    assert isinstance(x.T, Transposed) and x.T.shape == (R, N) and x.T.T.shape == (N, R)
    assert "DeviceArray" in repr(x)
    real = on_device(draw(N))
    assert real.conj() is real  # as NumPy does: passes know equal operands by that


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.cumsum(x),
        lambda x: np.exp(x),
        lambda x: np.add.reduce(x),
        lambda x: np.multiply(x, 2.0, out=np.zeros((N, R))),
        lambda x: np.multiply(x, 2.0, where=np.ones((N, R), bool)),
        lambda x: x.T + 1.0,
        lambda x: x.argmax(axis=1),
    ],
)
def test_what_is_not_there_says_so(function: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError):
        function(on_device(draw(N, R)))


# ------------------------------------------------------------------------------ the formulas of an iteration


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
