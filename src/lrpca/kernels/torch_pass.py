"""The pass over a tensor in plain torch: any device, any number type, in blocks; see `lrpca.kernels.reference`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lrpca.core.devices import rounds_products
from lrpca.core.influence import Levels
from lrpca.core.linalg import upper_triangle

# Entries of a block, and its most columns: sums along longer rows are of sums in double precision.
_BLOCK, _COLUMNS = 1 << 22, 1 << 14


@dataclass(frozen=True)
class TensorPass:
    """What one read of Y gives, as tensors on its device; sums are float64 or complex128, counts int64."""

    CA: Any  # (n1, ka)
    CtB: Any  # (n2, kb)
    kept_by_row: Any  # (n1,)
    kept_by_column: Any  # (n2,)
    norms: Any  # (3,) ‖C‖², ‖D‖² (only when asked), and how many entries are kept
    row_grams: Any = None  # (n1, r, r), when asked
    column_grams: Any = None  # (n2, r, r), when asked

    def transposed(self) -> TensorPass:
        """Return the same pass seen from Yᵀ."""
        return TensorPass(
            *(self.CtB, self.CA, self.kept_by_column, self.kept_by_row),
            *(self.norms, self.column_grams, self.row_grams),
        )


def plain_pass(
    Y: Any,  # (n1, n2)
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    level: Levels,
    *,
    A: Any,  # (n2, ka)
    B: Any,  # (n1, kb)
    mask: Any = None,  # (n1, n2) bool, True = observed
    arithmetic: Any = torch.float32,
    energy: bool = False,
    grams: bool = False,
    fast: bool = False,
) -> TensorPass:
    """Return the pass over a tensor, in rectangles of some millions of entries.

    Factors and test matrices are in double precision, residuals are computed in `arithmetic` (float32, float64,
    complex64 or complex128). Grams are taken to be Hermitian: A = R̄, B = W L̄. With `fast`, products of float32 may be
    rounded more than float32 is (TF32), where torch is set to do so.
    """
    if not fast and rounds_products(Y.device):
        arithmetic = torch.promote_types(arithmetic, torch.float64)
    sums = _zeros(Y, L.shape[1], A.shape[1], B.shape[1], arithmetic, grams)
    near = _same_again([L, R, A, B], arithmetic)
    levels = _rounded(level, arithmetic)
    pairs = (pair_products(near[3], near[0]), pair_products(near[2], near[1])) if grams else None
    for rows, columns in _rectangles(*Y.shape):
        D = _residual(Y, near[0], near[1], mask, (rows, columns))
        size = D.abs()
        if energy:
            sums.norms[1] += _square(torch.nan_to_num(size, nan=0.0, posinf=math.inf))
        C = _influence(D, size, levels)
        kept = (size <= levels.keep).to(arithmetic)
        sums.norms[0] += _square(C)
        sums.CA[rows] += C @ near[2][columns]
        sums.CtB[columns] += C.T @ near[3][rows]
        # As products, which are faster than sums of booleans; exact for so few ones.
        sums.kept_by_row[rows] += _counts(kept)
        sums.kept_by_column[columns] += _counts(kept.T)
        if pairs is not None:
            sums.row_grams[rows] += kept @ pairs[1][columns]
            sums.column_grams[columns] += kept.T @ pairs[0][rows]
    sums.norms[2] = sums.kept_by_row.sum()
    if not grams:
        return sums
    row_grams, column_grams = (unpack_pairs(packed, L.shape[1]) for packed in (sums.row_grams, sums.column_grams))
    return replace(sums, row_grams=row_grams, column_grams=column_grams)


def plain_change(
    Y: Any,  # (n1, n2)
    old: tuple[Any, Any, Levels],
    new: tuple[Any, Any, Levels],
    *,
    mask: Any = None,  # (n1, n2) bool, True = observed
    arithmetic: Any = torch.float32,
) -> Any:
    """Return ‖S' - S‖² and ‖S‖², a tensor (2,), of what ``S = D - ψ(D)`` was and is, each with its L, R and levels."""
    sums = torch.zeros(2, dtype=torch.float64, device=Y.device)
    if rounds_products(Y.device):
        arithmetic = torch.promote_types(arithmetic, torch.float64)
    sides = [(L.to(arithmetic), R.to(arithmetic), _rounded(level, arithmetic)) for L, R, level in (old, new)]
    for place in _rectangles(*Y.shape):
        residuals = [_residual(Y, L, R, mask, place) for L, R, _ in sides]
        before, after = (D - _influence(D, D.abs(), level) for D, (_, _, level) in zip(residuals, sides, strict=True))
        sums[0] += _square(torch.nan_to_num((after - before).abs(), nan=0.0))
        sums[1] += _square(torch.nan_to_num(before.abs(), nan=0.0))
    return sums


def _zeros(Y: Any, rank: int, ka: int, kb: int, arithmetic: Any, grams: bool) -> TensorPass:
    """Return what rectangles add to, in double precision; Grams, when asked, by pairs of components."""
    n1, n2 = Y.shape
    wide, pairs = torch.promote_types(arithmetic, torch.float64), rank * (rank + 1) // 2

    def zeros(*shape: int, dtype: Any = wide) -> Any:
        return torch.zeros(shape, dtype=dtype, device=Y.device)

    counts = (zeros(n, dtype=torch.int64) for n in (n1, n2))
    both = (zeros(n1, pairs), zeros(n2, pairs)) if grams else ()
    return TensorPass(zeros(n1, ka), zeros(n2, kb), *counts, zeros(3, dtype=torch.float64), *both)


def unpack_pairs(
    packed: Any,  # (n, r (r + 1) / 2), the upper triangles by rows
    rank: int,
) -> Any:
    """Return Hermitian matrices (n, r, r) from their upper triangles."""
    k, h = upper_triangle(rank)
    place = np.zeros((rank, rank), np.int64)
    place[k, h] = place[h, k] = np.arange(len(k))
    full = packed[:, torch.from_numpy(place.ravel()).to(packed.device)].reshape(len(packed), rank, rank)
    if not full.is_complex():
        return full
    below = torch.from_numpy(np.tri(rank, k=-1, dtype=bool)).to(packed.device)
    return torch.where(below, full.conj(), full)


def _rectangles(n1: int, n2: int) -> Iterator[tuple[slice, slice]]:
    width = min(n2, _COLUMNS)
    height = max(1, _BLOCK // width)
    for top in range(0, n1, height):
        for left in range(0, n2, width):
            yield slice(top, min(n1, top + height)), slice(left, min(n2, left + width))


def _residual(Y: Any, L: Any, R: Any, mask: Any, place: tuple[slice, slice]) -> Any:
    """Return a rectangle of Y - L Rᵀ, NaN where Y is missing."""
    rows, columns = place
    D = torch.addmm(Y[rows, columns].to(L.dtype), L[rows], R[columns].T, alpha=-1)
    return D if mask is None else D.masked_fill_(~mask[rows, columns], math.nan)


def _same_again(factors: list[Any], dtype: Any) -> list[Any]:
    """Return factors in another type; those that are one and the same stay so."""
    done = {id(factor): factor.to(dtype) for factor in factors}
    return [done[id(factor)] for factor in factors]


def _rounded(level: Levels, arithmetic: Any) -> Levels:
    """Return levels as the arithmetic rounds them: beyond the range of single precision is as good as infinite."""
    if arithmetic in (torch.float64, torch.complex128):
        return level
    with np.errstate(over="ignore"):
        return Levels(*(float(np.float32(value)) for value in level))


def _influence(D: Any, size: Any, level: Levels) -> Any:
    """Return C = ψ(D), 0 where D is missing."""
    if D.is_complex():
        shrunk = D if math.isinf(level.clip) else D * torch.where(size > level.clip, level.clip / size, 1.0)
    else:
        shrunk = D if math.isinf(level.clip) else D.clamp(-level.clip, level.clip)
    return torch.where(size <= level.cutoff, shrunk, 0.0)


def _counts(kept: Any) -> Any:  # kept (n1, n2) of ones and zeros
    """Return how many ones each row has."""
    found = kept @ torch.ones(kept.shape[1], dtype=kept.dtype, device=kept.device)
    return (found.real if found.is_complex() else found).long()


def _square(values: Any) -> Any:
    """Return Σ|x|² in double precision."""
    return torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float64)).square()


def pair_products(first: Any, second: Any) -> Any:  # first (n, r); second (n, r)
    """Return the products of two components of every row, (n, r (r + 1) / 2), as upper triangles by rows."""
    k, h = torch.triu_indices(second.shape[1], second.shape[1], device=second.device)
    return first[:, k] * second[:, h]
