"""The pass in plain torch equals the specification, for every influence, number type, mask and layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lrpca.core.influence import Levels, apply, everything, levels
from lrpca.core.passes import Pass
from lrpca.kernels import torch_pass
from lrpca.kernels.reference import dense_pass
from lrpca.kernels.torch_pass import TensorPass, plain_change, plain_pass

SHAPE = (60, 45)
LEVELS = {
    "soft": levels("soft", 1.0),
    "hard": levels("hard", 1.5),
    "redescending": levels("redescending", 0.7),
    "everything": everything(),
    "clipped": everything(0.6),
    "counted": Levels(1.0, 2.0, np.inf),
    "huge": Levels(1e300, np.inf, 1e300),
}


def problem(rank: int = 5, *, dtype: Any = np.float64, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return Y with missing entries, and factors in double precision."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        real = rng.standard_normal(shape)
        return real + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else real

    L, R = draw(SHAPE[0], rank), draw(SHAPE[1], rank)
    Y = (L @ R.T + draw(*SHAPE)).astype(dtype)
    if np.dtype(dtype).kind in "fc":
        Y[rng.random(SHAPE) < 0.1] = np.nan
    return Y, L, R


def both(
    Y: Any,
    L: Any,
    R: Any,
    level: Levels,
    *,
    A: Any = None,
    B: Any = None,
    mask: Any = None,
    tensor: Any = None,
    arithmetic: Any = None,
    grams: bool = True,
) -> tuple[TensorPass, Pass]:
    """Return the pass of torch and the one of the specification."""
    A, B = R.conj() if A is None else A, L.conj() if B is None else B
    want = dense_pass(np.asarray(Y), L, R, level, A=A, B=B, mask=mask, grams=grams)
    expanded = None if mask is None else torch.from_numpy(np.ascontiguousarray(mask)).expand(Y.shape)
    got = plain_pass(
        torch.from_numpy(Y) if tensor is None else tensor,
        *map(torch.from_numpy, (L, R)),
        level,
        A=torch.from_numpy(np.ascontiguousarray(A)),
        B=torch.from_numpy(np.ascontiguousarray(B)),
        mask=expanded,
        arithmetic=getattr(torch, str(Y.dtype)) if arithmetic is None else arithmetic,
        energy=True,
        grams=grams,
    )
    return got, want


def assert_equal(got: TensorPass, want: Pass, within: float) -> None:
    for name in ("CA", "CtB", "row_grams", "column_grams"):
        ours, theirs = getattr(got, name), getattr(want, name)
        if theirs is None:
            assert ours is None
            continue
        assert ours.dtype in (torch.float64, torch.complex128)
        size = max(float(np.abs(theirs).max(initial=0.0)), 1e-300)
        np.testing.assert_allclose(ours.resolve_conj().numpy(), theirs, rtol=0, atol=within * size, err_msg=name)
    for name in ("kept_by_row", "kept_by_column"):
        assert getattr(got, name).dtype == torch.int64
        np.testing.assert_array_equal(getattr(got, name).numpy(), getattr(want, name), err_msg=name)
    np.testing.assert_allclose(got.norms[:2].sqrt().numpy(), (want.norm_C, want.norm_D), rtol=within)
    assert got.norms[2] == want.kept_by_row.sum()


@pytest.mark.parametrize("name", LEVELS)
@pytest.mark.parametrize(
    ("dtype", "within"), [(np.float64, 1e-13), (np.complex128, 1e-13), (np.float32, 1e-6), (np.complex64, 1e-6)]
)
def test_equals_the_specification(name: str, dtype: Any, within: float) -> None:
    assert_equal(*both(*problem(dtype=dtype), LEVELS[name]), within=within)


@pytest.mark.parametrize("rank", [0, 1, 20])
def test_ranks(rank: int) -> None:
    assert_equal(*both(*problem(rank), levels("redescending", 0.7)), within=1e-13)


def test_test_matrices_of_other_widths() -> None:
    Y, L, R = problem()
    rng = np.random.default_rng(1)
    for ka, kb in ((0, 7), (3, 0), (0, 0)):
        A, B = rng.standard_normal((SHAPE[1], ka)), rng.standard_normal((SHAPE[0], kb))
        got, want = both(Y, L, R, levels("hard", 1.0), A=A, B=B, grams=False)
        assert_equal(got, want, within=1e-13)


@pytest.mark.parametrize("shape", [SHAPE, (SHAPE[0], 1), (1, SHAPE[1])])
def test_masks(shape: tuple[int, int]) -> None:
    mask = np.random.default_rng(2).random(shape) < 0.7
    assert_equal(*both(*problem(), levels("redescending", 0.7), mask=mask), within=1e-13)


def test_row_weights_in_the_grams() -> None:
    Y, L, R = problem(dtype=np.complex128)
    weight = np.random.default_rng(3).random(SHAPE[0])
    assert_equal(*both(Y, L, R, levels("hard", 1.5), B=L.conj() * weight[:, None]), within=1e-13)


def test_strides() -> None:
    Y, L, R = problem()
    level = levels("redescending", 0.7)
    assert_equal(*both(Y, L, R, level, tensor=torch.from_numpy(np.asfortranarray(Y))), within=1e-13)
    spread = torch.zeros(2 * SHAPE[0], 3 * SHAPE[1], dtype=torch.float64)[::2, ::3]
    spread[...] = torch.from_numpy(Y)
    assert_equal(*both(Y, L, R, level, tensor=spread), within=1e-13)
    row = np.broadcast_to(np.nan_to_num(Y[:1]), SHAPE)
    expanded = torch.from_numpy(row[:1].copy()).expand(SHAPE)
    assert expanded.stride(0) == 0
    assert_equal(*both(row, L, R, level, tensor=expanded, arithmetic=torch.float64), within=1e-13)


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64", "bool"])
def test_integers(name: str) -> None:
    Y = np.random.default_rng(4).integers(0, 2 if name == "bool" else 100, SHAPE).astype(name)
    _, L, R = problem()
    assert_equal(*both(Y, 0.1 * L, R, levels("redescending", 40.0), arithmetic=torch.float64), within=1e-13)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_precision_is_read_as_it_is(name: str) -> None:
    Y, L, R = problem(dtype=np.float32)
    tensor = torch.from_numpy(Y).to(getattr(torch, name))
    assert_equal(*both(tensor.float().numpy(), L, R, levels("hard", 1.5), tensor=tensor), within=1e-6)


def test_blocks_change_nothing_but_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (*problem(), levels("redescending", 0.7))
    whole = both(*arguments)[0]
    monkeypatch.setattr(torch_pass, "_BLOCK", 100)
    monkeypatch.setattr(torch_pass, "_COLUMNS", 7)
    got, want = both(*arguments)
    assert_equal(got, want, within=1e-13)
    assert not torch.equal(got.CA, whole.CA)  # it was cut


def test_the_same_bits_again() -> None:
    arguments = (*problem(dtype=np.float32), levels("redescending", 0.7))
    first, second = both(*arguments)[0], both(*arguments)[0]
    for name in ("CA", "CtB", "norms", "row_grams"):
        assert torch.equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_change_of_what_is_left_out(dtype: Any) -> None:
    """‖S' - S‖² and ‖S‖² over observed entries."""
    Y, L, R = problem(dtype=dtype)
    mask = np.random.default_rng(5).random(SHAPE) < 0.8
    sides = [(L, R, levels("redescending", 0.7)), (1.1 * L, R, levels("soft", 0.5))]
    seen = mask & (Y == Y)
    old, new = (Y - L @ R.T - apply(Y - L @ R.T, level) for L, R, level in sides)
    want = np.linalg.norm((new - old)[seen]) ** 2, np.linalg.norm(old[seen]) ** 2
    tensors = [(torch.from_numpy(L), torch.from_numpy(R), level) for L, R, level in sides]
    arithmetic = torch.from_numpy(Y).dtype
    got = plain_change(torch.from_numpy(Y), *tensors, mask=torch.from_numpy(mask), arithmetic=arithmetic)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)


def test_rough_products_are_not_taken_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = (*problem(dtype=np.float32), levels("soft", 1.0))
    monkeypatch.setattr(torch_pass, "rounds_products", lambda device: True)
    got, want = both(*arguments)
    # In double precision: closer than single could be.
    np.testing.assert_allclose(got.CA.numpy(), want.CA, rtol=0, atol=1e-12 * np.abs(want.CA).max())
