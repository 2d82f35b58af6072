"""Factors as the fused kernel multiplies them: split into halves of eleven bits, each by a power of two.

See `lrpca.kernels.triton.fused_pass`.
"""

# Triton reads annotations as its own: only its own are here.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, assignment"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exponents(
    peaks,  # (width,) int32, the bits of the largest moduli
    k,  # (width,) int
    count,
):
    """Return ⌊log2⌋ of the largest modulus of every column; of zeros and absent ones, one whose inverse is a number."""
    peak = tl.load(peaks + k, mask=k < count, other=0).to(tl.float32, bitcast=True)
    return tl.floor(tl.log2(tl.maximum(peak, 1e-30)))


@triton.jit
def _as_tf32(x):
    """Round a float32 number to the eleven bits that tensor cores take of it."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def _rows(M, at, k, n, count):  # M (n, count) float64; at (BLOCK,) int; k (width,) int
    """Return some columns of some rows, 0 beyond the edges."""
    inside = (at < n)[:, None] & ((k >= 0) & (k < count))[None, :]
    return tl.load(M + at.to(tl.int64)[:, None] * count + k[None, :], mask=inside, other=0.0)


@triton.jit(do_not_specialize=["n1", "n2", "r", "ka", "kb"])
def find_peaks(
    L,  # (n1, r) float64
    R,  # (n2, r)
    A,  # (n2, ka)
    B,  # (n1, kb)
    peaks,  # (4, MOST) int32, zeros: the bits of the largest moduli of the columns of L, R, A, B
    n1,
    n2,
    r,
    ka,
    kb,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the largest modulus of every column; positive numbers are ordered as their bits are."""
    which = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, MOST)
    if which == 0:
        x, count = _rows(L, at, k, n1, r), r
    elif which == 1:
        x, count = _rows(R, at, k, n2, r), r
    elif which == 2:
        x, count = _rows(A, at, k, n2, ka), ka
    else:
        x, count = _rows(B, at, k, n1, kb), kb
    bits = tl.max(tl.abs(x).to(tl.float32), 0).to(tl.int32, bitcast=True)
    tl.atomic_max(peaks + which * MOST + k, bits, mask=k < count)


@triton.jit
def _residual_halves(
    M,  # (n, r) float64
    at,  # (BLOCK,) int
    n,
    r,
    own_peaks,  # (r,)
    other_peaks,  # (r,)
    out,  # (rows, WIDTH)
    IS_LEFT: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Write [l h h] of the left factor, [h l h] of the right one, just h if they are not split; return the scale.

    The last of the WIDTH columns hold the large terms.
    """
    TOP: tl.constexpr = 14
    # Factors so much smaller than Y that their scale would leave the range are as good as zero.
    MOST_SCALED: tl.constexpr = 90
    place = tl.arange(0, WIDTH)
    parts: tl.constexpr = 3 if SPLIT else 1
    k = place - (WIDTH - parts * r)
    part = tl.where(k < 0, -1, k // r)
    k = tl.where(k < 0, -1, k % r)
    x = _rows(M, at, k, n, r)
    scale = 1.0
    if HALF:
        k = tl.maximum(k, 0)
        own, other = exponents(own_peaks, k, r), exponents(other_peaks, k, r)
        both = tl.minimum(2 * TOP - tl.max(own + other), MOST_SCALED)
        # Left columns reach to just below the largest number, right ones have the rest of the common scale.
        left = TOP - (own if IS_LEFT else other)
        x = x * tl.exp2(left if IS_LEFT else both - left)[None, :].to(tl.float64)
        high = x.to(tl.float16)
        low = (x - high.to(tl.float64)).to(tl.float16)
        scale = tl.exp2(both)
    else:
        high = _as_tf32(x.to(tl.float32))
        low = _as_tf32((x - high.to(tl.float64)).to(tl.float32))
    if SPLIT:
        high = tl.where((part == (0 if IS_LEFT else 1))[None, :], low, high)
    tl.store(out + at.to(tl.int64)[:, None] * WIDTH + place[None, :], high)
    return scale


@triton.jit
def _product_halves(
    M,  # (n, count) float64
    at,  # (BLOCK,) int
    n,
    count,
    peaks,  # (count,)
    high_out,  # (rows, WIDTH) float16
    low_out,  # (rows, WIDTH) float16
    WIDTH: tl.constexpr,
):
    """Write the halves of a factor, each column by a power of two brought to just below the largest number."""
    TOP: tl.constexpr = 14
    k = tl.arange(0, WIDTH)
    x = _rows(M, at, k, n, count) * tl.exp2(TOP - exponents(peaks, k, count))[None, :].to(tl.float64)
    high = x.to(tl.float16)
    low = (x - high.to(tl.float64)).to(tl.float16)
    tl.store(high_out + at.to(tl.int64)[:, None] * WIDTH + k[None, :], high)
    tl.store(low_out + at.to(tl.int64)[:, None] * WIDTH + k[None, :], low)


@triton.jit(do_not_specialize=["n1", "n2", "r", "ka", "kb", "row_blocks"])
def split_factors(
    L,  # (n1, r) float64
    R,  # (n2, r)
    A,  # (n2, ka)
    B,  # (n1, kb)
    peaks,  # (4, MOST)
    left,  # (rows, K)
    right,  # (columns, K)
    unit,  # (1,) the power of two that the product L Rᵀ is scaled by
    A_high,  # (columns, WA) float16
    A_low,
    B_high,  # (rows, WB) float16
    B_low,
    n1,
    n2,
    r,
    ka,
    kb,
    row_blocks,
    MOST: tl.constexpr,
    K: tl.constexpr,
    WA: tl.constexpr,
    WB: tl.constexpr,
    HALF: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Split all factors: the first blocks do the rows, the others the columns."""
    block = tl.program_id(0)
    if block < row_blocks:
        at = block * BLOCK + tl.arange(0, BLOCK)
        if K:
            scale = _residual_halves(L, at, n1, r, peaks, peaks + MOST, left, True, HALF, K, SPLIT)
            if block == 0:
                tl.store(unit, scale)
        if WB:
            _product_halves(B, at, n1, kb, peaks + 3 * MOST, B_high, B_low, WB)
    else:
        at = (block - row_blocks) * BLOCK + tl.arange(0, BLOCK)
        if K:
            _residual_halves(R, at, n2, r, peaks + MOST, peaks, right, False, HALF, K, SPLIT)
        if WA:
            _product_halves(A, at, n2, ka, peaks + 2 * MOST, A_high, A_low, WA)
