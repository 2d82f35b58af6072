"""Small work on tall factors between two passes, one Triton kernel each: a dozen calls of torch take longer than it."""

# Triton reads annotations as its own: only its own are here.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, assignment"
from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from lrpca.kernels.scale import BINS, Core, bins_between, core_of_bins, unit_of
from lrpca.kernels.triton.launch import Kernel, padded

# Entries, or rows, of a program.
_ENTRIES, _ROWS = 64, 64
# An entry counts so much, shared by two bins: a million of them stay within 64 bits.
_PARTS = 1 << 40


@triton.jit(do_not_specialize=["m", "r", "blocks"])
def _sizes_at(
    L,  # (n1, r) float64
    R,  # (n2, r) float64
    rows,  # (m,) int64
    columns,  # (m,) int64
    values,  # (m,) float64
    bounds,  # (2,) float64: least and largest size to count; numbers beside tensors are of single precision
    sizes,  # (m,) float64
    extremes,  # (2, blocks) float64: least and largest by program
    counts,  # (BINS + 1,) int64, cleared for the next kernel
    m,
    r,
    blocks,
    BINS: tl.constexpr,
    CLEARED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write |values - (L Rᵀ)[rows, columns]| within bounds."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    here = at < m
    k = tl.arange(0, WIDTH)
    inside = here[:, None] & (k < r)[None, :]
    i, j = tl.load(rows + at, mask=here, other=0), tl.load(columns + at, mask=here, other=0)
    left = tl.load(L + i[:, None] * r + k[None, :], mask=inside, other=0.0)
    right = tl.load(R + j[:, None] * r + k[None, :], mask=inside, other=0.0)
    residual = tl.load(values + at, mask=here, other=0.0) - tl.sum(left * right, 1)
    size = tl.minimum(tl.maximum(tl.abs(residual), tl.load(bounds)), tl.load(bounds + 1))
    tl.store(sizes + at, size, mask=here)
    tl.store(extremes + block, tl.min(tl.where(here, size, float("inf"))))
    tl.store(extremes + blocks + block, tl.max(tl.where(here, size, 0.0)))
    if block == 0:
        bins = tl.arange(0, CLEARED)
        tl.store(counts + bins, tl.zeros((CLEARED,), tl.int64), mask=bins <= BINS)


@triton.jit(do_not_specialize=["m", "blocks"])
def _count_sizes(
    sizes,  # (m,) float64
    extremes,  # (2, blocks) float64
    counts,  # (BINS + 1,) int64, zeros
    ends,  # (2,) float64: the least size and the largest
    m,
    blocks,
    BINS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count sizes in the bins of `lrpca.kernels.scale.bins_between`, each by the two nearest.

    In whole parts of an entry: whole numbers add up to the same in any order.
    """
    block = tl.program_id(0)
    some = tl.arange(0, BLOCKS)
    least = tl.min(tl.load(extremes + some, mask=some < blocks, other=float("inf")))
    most = tl.max(tl.load(extremes + blocks + some, mask=some < blocks, other=0.0))
    # The power of two below the largest: its bits without those of the fraction.
    unit = (most.to(tl.int64, bitcast=True) & 0x7FF0000000000000).to(tl.float64, bitcast=True)
    low = tl.log(least / unit)
    width = tl.maximum((tl.log(most / unit) - low) / BINS, 1e-12) * (1 + 1e-9)
    at = block * BLOCK + tl.arange(0, BLOCK)
    here = at < m
    size = tl.load(sizes + at, mask=here, other=1.0)
    place = tl.maximum((tl.log(size / unit) - low) / width, 0.0)
    left = tl.minimum(place.to(tl.int64), BINS - 1)
    share = tl.minimum(place - left.to(tl.float64), 1.0)
    right_part = (share * PARTS + 0.5).to(tl.int64)
    tl.atomic_add(counts + left, PARTS - right_part, mask=here)
    tl.atomic_add(counts + left + 1, right_part, mask=here)
    if block == 0:
        tl.store(ends, least)
        tl.store(ends + 1, most)


@triton.jit(do_not_specialize=["n1", "n2", "row_blocks", "r"])
def _combined(
    left,  # (n1, 2r) float64
    right,  # (n2, 2r)
    coefficients,  # (2, 2r, r)
    L,  # (n1, r)
    R,  # (n2, r)
    n1,
    n2,
    row_blocks,
    r,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    is_left = block < row_blocks
    at = (block if is_left else block - row_blocks) * BLOCK + tl.arange(0, BLOCK)
    n = n1 if is_left else n2
    source = left if is_left else right
    mix = coefficients if is_left else coefficients + 2 * r * r
    k = tl.arange(0, WIDTH)
    inside = (at < n)[:, None] & (k < r)[None, :]
    total = tl.zeros((BLOCK, WIDTH), tl.float64)
    for c in range(2 * r):
        column = tl.load(source + at.to(tl.int64) * (2 * r) + c, mask=at < n, other=0.0)
        total += column[:, None] * tl.load(mix + c * r + k, mask=k < r, other=0.0)[None, :]
    tl.store((L if is_left else R) + at.to(tl.int64)[:, None] * r + k[None, :], total, mask=inside)


def core_at(
    L: Any,  # (n1, r) float64
    R: Any,  # (n2, r) float64
    rows: Any,  # (m,) int64
    columns: Any,  # (m,) int64
    values: Any,  # (m,) float64
    rounding: float,  # above zero
    bounds: Any,  # (2,) float64 on the device: the rounding, and what larger residuals are counted as
) -> Core:
    """Return the peak of clean residuals of tensors on a GPU at some entries; see `lrpca.kernels.scale.residual_core`.

    They are counted there, those beyond the bounds as these, and only the bins come to the host.
    """
    L, R = L.contiguous(), R.contiguous()
    m, r = len(values), L.shape[1]
    blocks = -(-m // _ENTRIES)
    sizes, extremes = torch.empty(m + 2 * blocks, dtype=torch.float64, device=L.device).split([m, 2 * blocks])
    counted = torch.empty(BINS + 3, dtype=torch.int64, device=L.device)
    counts, extreme = counted[: BINS + 1], counted[BINS + 1 :].view(torch.float64)
    first, second = _counting_kernels(L.device, blocks, padded(r))
    tensors = (L, R, rows, columns, values, bounds, sizes, extremes, counts)
    first.start(Kernel.alignment(tensors), *tensors, m, r, blocks)
    tensors = (sizes, extremes, counts, extreme)
    second.start(Kernel.alignment(tensors), *tensors, m, blocks)
    found = counted.cpu().numpy()
    least, most = found[BINS + 1 :].view(np.float64).tolist()
    if most <= rounding:
        return Core(rounding, 1.0)
    unit = unit_of(most)
    numbers, ends = found[: BINS + 1] / _PARTS, (least / unit, most / unit)
    core = core_of_bins(numbers, *ends, m)
    if core is not None:
        return Core(unit * core.sigma, core.share)
    low, width = bins_between(*ends)
    squares = np.exp(2 * (low + width * np.arange(BINS + 1)))
    return Core(unit * math.sqrt(float(numbers @ squares) / m), 1.0)


def combined(
    left: Any,  # (n1, 2r) float64
    right: Any,  # (n2, 2r) float64
    coefficients: Any,  # (2, 2r, r) float64
) -> tuple[Any, Any]:
    """Return combinations of the columns of two tall matrices on a GPU, without waiting for it."""
    (n1, width), n2 = left.shape, len(right)
    r = width // 2
    L, R = left.new_empty(n1, r), right.new_empty(n2, r)
    row_blocks = -(-n1 // _ROWS)
    tensors = (left, right, coefficients, L, R)
    kernel = _combining_kernel(left.device, row_blocks + -(-n2 // _ROWS), padded(r))
    kernel.start(Kernel.alignment(tensors), *tensors, n1, n2, row_blocks, r)
    return L, R


# Compiled kernels are those of one device.
@lru_cache
def _counting_kernels(device: Any, programs: int, width: int) -> tuple[Kernel, Kernel]:
    bins, block, grid = {"BINS": BINS}, {"BLOCK": _ENTRIES}, (programs, 1, 1)
    cleared = 1 << BINS.bit_length()
    blocks = 1 << (programs - 1).bit_length()
    return (
        Kernel(_sizes_at, grid, bins | block | {"CLEARED": cleared, "WIDTH": width}),
        Kernel(_count_sizes, grid, bins | block | {"PARTS": _PARTS, "BLOCKS": blocks}),
    )


@lru_cache
def _combining_kernel(device: Any, programs: int, width: int) -> Kernel:
    return Kernel(_combined, (programs, 1, 1), {"WIDTH": width, "BLOCK": _ROWS})
