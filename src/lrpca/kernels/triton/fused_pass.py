"""The pass as one fused Triton kernel, with a kernel before it that splits the factors and one after it that sums.

Tensor cores multiply numbers of eleven bits. So every factor is split into a high and a low half, ``M = h + l`` with
22 bits in all, and a product is ``h h' + h l' + l h'``. The halves are float16, by powers of two brought to just below
its largest number; those of the residual are TF32 where the rank is small, which spares the scaling of Y.

    D = Y - L Rᵀ      [l h h] [h' l' h']ᵀ in one product: small terms first, so that rounding happens once
    C = ψ(D)          split as well, into float16 in units of the clip
    C A               summed over the columns of a strip, one partial sum by row and strip
    Cᵀ B              summed over the rows of a chunk, one partial sum by column and chunk

A program takes a strip of columns and a chunk of rows. Partial sums are added in double precision and in a fixed order:
the same data give the same bits.

Kernels are compiled for every combination of constants; numbers that change nothing that matters are left out of that.
"""

# Triton reads annotations as its own: only its own are here.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, assignment"
from __future__ import annotations

import triton
import triton.language as tl

from lrpca.kernels.triton.split import exponents


@triton.jit(do_not_specialize=["n1", "chunk_rows"])
def strip_pass(
    Y,  # (n1, n2)
    mask,  # (n1, n2) uint8, not 0 = observed
    left,  # (.., K) L as `split_factors` wrote it
    right,  # (.., K) ... of R
    unit,  # (1,)
    A_high,  # (.., WA) A as `split_factors` wrote it
    A_low,  # (.., WA)
    B_high,  # (.., WB) ... of B
    B_low,  # (.., WB)
    CA,  # (strips, n1, WA)
    CtB,  # (chunks, n2, WB)
    row_kept,  # (strips, n1) int32
    column_kept,  # (chunks, n2) int32
    norms,  # (3, strips, chunks) Σ C², Σ D², and how many are kept
    n1,
    n2,
    y0,
    y1,
    m0,
    m1,
    chunk_rows,
    clip,
    cutoff,
    keep,
    scale,  # the unit that C is brought to
    K: tl.constexpr,
    WA: tl.constexpr,
    WB: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    TILES: tl.constexpr,
    HALF: tl.constexpr,
    SPLIT: tl.constexpr,
    SAME: tl.constexpr,
    KEPT: tl.constexpr,
    COUNT: tl.constexpr,
    ENERGY: tl.constexpr,
    MASKED: tl.constexpr,
    FAR: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Read one strip of columns of one chunk of rows.

    K, WA, WB are 0 where there is no factor, no A, no B. With KEPT, products are those of the indicator of kept entries
    rather than of C. SAME says that `keep` is the `cutoff`, FAR that numbers are farther apart than 32 bits
    can tell. Beyond the edges Y and the factors are zero, and entries are kept, which is taken off
    the counts in the end.
    """
    strip, chunk = tl.program_id(0), tl.program_id(1)
    first = strip * (BN * TILES) + tl.arange(0, BN)
    rights, highs, lows, sums, counts = (), (), (), (), ()
    for t in tl.static_range(TILES):
        far_columns = (first + t * BN).to(tl.int64)
        if K:
            rights = rights + (tl.load(right + far_columns[:, None] * K + tl.arange(0, K)[None, :]),)
        if WA:
            highs = highs + (tl.load(A_high + far_columns[:, None] * WA + tl.arange(0, WA)[None, :]),)
            if SPLIT:
                lows = lows + (tl.load(A_low + far_columns[:, None] * WA + tl.arange(0, WA)[None, :]),)
        if WB:
            sums = sums + (tl.zeros((BN, WB), tl.float32),)
        # Counts of one entry of a tile over a chunk: half precision counts to 2048.
        counts = counts + (tl.zeros((BM, BN), tl.float16),)
    ones = tl.full((BN, 8), 1.0, tl.float16)
    back = 1.0
    if HALF:
        back = 1.0 / tl.load(unit)
    beyond = tl.maximum((strip + 1) * (BN * TILES) - n2, 0)
    norm = tl.zeros((BM,), tl.float32)
    energy = tl.zeros((BM,), tl.float32)
    start = chunk * chunk_rows
    stop = tl.minimum(start + chunk_rows, n1)
    for top in tl.range(start, stop, BM, num_stages=STAGES):
        rows = top + tl.arange(0, BM)
        inside = rows < stop
        at = rows.to(tl.int64) if FAR else rows
        if K:
            factor = tl.load(left + at[:, None] * K + tl.arange(0, K)[None, :])
        if WB:
            b_high = tl.load(B_high + at[:, None] * WB + tl.arange(0, WB)[None, :])
            if SPLIT:
                b_low = tl.load(B_low + at[:, None] * WB + tl.arange(0, WB)[None, :])
        if WA:
            by_row = tl.zeros((BM, WA), tl.float32)
        kept_by_row = tl.zeros((BM, 8), tl.float32)
        new_sums, new_counts = (), ()
        for t in tl.static_range(TILES):
            columns = first + t * BN
            here = inside[:, None] & (columns < n2)[None, :]
            across = columns.to(tl.int64) * y1 if FAR else columns * y1
            d = tl.load(Y + rows.to(tl.int64)[:, None] * y0 + across[None, :], mask=here, other=0).to(tl.float32)
            if MASKED:
                across = columns.to(tl.int64) * m1 if FAR else columns * m1
                seen = tl.load(mask + rows.to(tl.int64)[:, None] * m0 + across[None, :], mask=here, other=1)
                d = tl.where(seen != 0, d, float("nan"))
            if K:
                product = tl.dot(factor, tl.trans(rights[t]), input_precision="tf32")
                d = d - product * back if HALF else d - product
            size = tl.abs(d)
            kept = size <= keep
            within = kept if SAME else size <= cutoff
            c = tl.where(within, tl.minimum(tl.maximum(d, -clip), clip), 0.0) * scale
            norm += tl.sum(c * c, 1)
            if ENERGY:
                energy += tl.sum(tl.where(size == size, d * d, 0.0), 1)
            k = tl.where(kept, 1.0, 0.0).to(tl.float16)
            high = k if KEPT else c.to(tl.float16)
            if SPLIT and not KEPT:
                low = (c - high.to(tl.float32)).to(tl.float16)
            # The small terms first: adding to a large sum rounds.
            if WA:
                a = tl.zeros((BM, WA), tl.float32)
                if SPLIT:
                    a = tl.dot(high, lows[t], a)
                    if not KEPT:
                        a = tl.dot(low, highs[t], a)
                by_row += tl.dot(high, highs[t], a)
            if WB:
                b = tl.zeros((BN, WB), tl.float32)
                if SPLIT:
                    b = tl.dot(tl.trans(high), b_low, b)
                    if not KEPT:
                        b = tl.dot(tl.trans(low), b_high, b)
                new_sums = new_sums + (sums[t] + tl.dot(tl.trans(high), b_high, b),)
            if COUNT:
                kept_by_row = tl.dot(k, ones, kept_by_row)
                # Two numbers of sixteen bits at a time.
                more = tl.inline_asm_elementwise(
                    "add.f16x2 $0, $1, $2;", "=r,r,r", [counts[t], k], dtype=tl.float16, is_pure=True, pack=2
                )
                new_counts = new_counts + (more,)
        if WA:
            place = (strip.to(tl.int64) * n1 + rows[:, None]) * WA + tl.arange(0, WA)[None, :]
            tl.store(CA + place, by_row, mask=inside[:, None])
        if WB:
            sums = new_sums
        if COUNT:
            counts = new_counts
            one = (tl.arange(0, 8) == 0)[None, :]
            place = strip.to(tl.int64) * n1 + rows[:, None] + tl.zeros((1, 8), tl.int32)
            tl.store(row_kept + place, kept_by_row.to(tl.int32) - beyond, mask=inside[:, None] & one)
    all_kept = 0
    for t in tl.static_range(TILES):
        columns = first + t * BN
        if WB:
            place = (chunk.to(tl.int64) * n2 + columns[:, None]) * WB + tl.arange(0, WB)[None, :]
            tl.store(CtB + place, sums[t], mask=(columns < n2)[:, None])
        if COUNT:
            total = tl.sum(counts[t].to(tl.int32), 0) - (tl.cdiv(stop - start, BM) * BM - (stop - start))
            tl.store(column_kept + chunk.to(tl.int64) * n2 + columns, total, mask=columns < n2)
            all_kept += tl.sum(tl.where(columns < n2, total, 0))
    programs = tl.num_programs(0) * tl.num_programs(1)
    program = strip * tl.num_programs(1) + chunk
    tl.store(norms + program, tl.sum(norm))
    tl.store(norms + programs + program, tl.sum(energy))
    tl.store(norms + 2 * programs + program, all_kept + 0.0)


@triton.jit
def _sum_one_side(
    parts,  # (count, n, WIDTH) partial sums
    counts,  # (count, n) int32
    peaks,  # (k,)
    out,  # (n, k) float64
    kept,  # (n,) int64
    at,  # (BLOCK,) int
    count,
    n,
    k,
    scale,
    WIDTH: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    TOP: tl.constexpr = 14
    w = tl.arange(0, WIDTH if WIDTH else 8)
    total = tl.zeros((AT_ONCE, BLOCK, WIDTH if WIDTH else 8), tl.float64)
    number = tl.zeros((AT_ONCE, BLOCK), tl.int32)
    for first in range(0, count, AT_ONCE):
        some = first + tl.arange(0, AT_ONCE)
        here = (some < count)[:, None] & (at < n)[None, :]
        place = some.to(tl.int64)[:, None] * n + at[None, :]
        if WIDTH:
            inside = here[:, :, None] & (w < k)[None, None, :]
            part = tl.load(parts + place[:, :, None] * WIDTH + w[None, None, :], mask=inside, other=0.0)
            total += part.to(tl.float64)
        if COUNT:
            number += tl.load(counts + place, mask=here, other=0)
    if WIDTH:
        back = tl.exp2(exponents(peaks, w, k) - TOP).to(tl.float64) / scale
        inside = (at < n)[:, None] & (w < k)[None, :]
        there = out + at.to(tl.int64)[:, None] * k + w[None, :]
        tl.store(there, tl.sum(total, 0) * back[None, :], mask=inside)
    if COUNT:
        tl.store(kept + at, tl.sum(number, 0).to(tl.int64), mask=at < n)


@triton.jit(do_not_specialize=["n1", "n2", "ka", "kb", "strips", "chunks", "row_blocks"])
def sum_parts(
    CA_parts,  # (strips, n1, WA)
    CtB_parts,  # (chunks, n2, WB)
    row_counts,  # (strips, n1) int32
    column_counts,  # (chunks, n2) int32
    norm_parts,  # (3, strips * chunks)
    peaks,  # (4, MOST)
    next_peaks,  # (PEAKS,) int32, to be cleared for the next pass
    CA,  # (n1, ka) float64
    CtB,  # (n2, kb) float64
    row_kept,  # (n1,) int64
    column_kept,  # (n2,) int64
    norms,  # (3,) float64
    n1,
    n2,
    ka,
    kb,
    strips,
    chunks,
    row_blocks,
    c_unit,  # the unit that C was brought to
    MOST: tl.constexpr,
    WA: tl.constexpr,
    WB: tl.constexpr,
    KEPT: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    AT_ONCE: tl.constexpr,
    NORMS: tl.constexpr,
    PEAKS: tl.constexpr,
):
    """Add partial sums in double precision, in order, and take the scales back."""
    block = tl.program_id(0)
    scale = 1.0 if KEPT else c_unit
    if block < row_blocks:
        at = block * BLOCK + tl.arange(0, BLOCK)
        _sum_one_side(
            CA_parts, row_counts, peaks + 2 * MOST, CA, row_kept, at, strips, n1, ka, scale, WA, COUNT, BLOCK, AT_ONCE
        )
    else:
        at = (block - row_blocks) * BLOCK + tl.arange(0, BLOCK)
        _sum_one_side(
            CtB_parts, column_counts, peaks + 3 * MOST, CtB, column_kept, at, chunks, n2, kb, scale, WB, COUNT, BLOCK,
            AT_ONCE,
        )  # fmt: skip
    if block == 0:
        tl.store(next_peaks + tl.arange(0, PEAKS), tl.zeros((PEAKS,), tl.int32))
        # Squares of the unit may leave the range of single precision.
        unit = c_unit.to(tl.float64)
        programs = strips * chunks
        for which in tl.static_range(3):
            total = tl.zeros((NORMS,), tl.float64)
            for first in range(0, programs, NORMS):
                some = first + tl.arange(0, NORMS)
                part = tl.load(norm_parts + which * programs + some, mask=some < programs, other=0.0)
                total += part.to(tl.float64)
            if which == 0:
                tl.store(norms, tl.sum(total) / unit / unit)
            else:
                tl.store(norms + which, tl.sum(total))
