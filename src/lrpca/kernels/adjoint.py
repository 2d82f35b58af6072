"""The adjoint of the fused pass on the CPU: one read of a rectangle of Y, compiled by numba.

`rectangle_adjoint` is to `lrpca.kernels.reference.dense_adjoint` what `lrpca.kernels.cpu.rectangle_pass` is to
`dense_pass`: serial, the GIL released, over tiles of four rows, with the same helpers. The residual D and C = ψ(D) are
made again, not kept; it does seven multiply-adds per entry and component where the pass does three.

Loops run over a multiple of `_VECTOR` columns, those past the end being missing entries: with numbers left over LLVM
keeps all factors in registers twice, for them and for the vectors, and runs out of registers.

The cache on disk of what is compiled here is renewed when this file changes. After a change of a helper in `cpu`, touch
this file too.
"""

from __future__ import annotations

import numba
import numpy as np

from lrpca.kernels.cpu import (
    GROUP,
    INLINED,
    TILE,
    blank_missing,
    cast_like,
    columns_times,
    jit,
    minus,
    prefetch_range,
    rows_times,
    view_of,
)

# Rows whose share of the adjoint of R is summed in the arithmetic type; sums over such blocks are in double precision.
_BLOCK = 8 * GROUP
# Single-precision numbers of the longest vector registers; divides TILE.
_VECTOR = 16


@jit
def _load(tile, flat, o0, o1, o2, o3, m):
    """Set the tile to four stored rows of Y, of which these are the offsets."""
    y0, y1, y2, y3 = view_of(flat, o0, m), view_of(flat, o1, m), view_of(flat, o2, m), view_of(flat, o3, m)
    for j in range(m):
        tile[j] = y0[j]
        tile[TILE + j] = y1[j]
        tile[2 * TILE + j] = y2[j]
        tile[3 * TILE + j] = y3[j]


@jit
def _through_influence(D, G, clip, cutoff, m):
    """Replace D by C = ψ(D), and G = -C̄ by the adjoint of L Rᵀ, 0 where ψ is not the identity; return the clip's."""
    zero = cast_like(0.0, clip)
    free = min(clip, cutoff)
    total = zero
    for q in range(4):
        residuals, adjoints = view_of(D, q * TILE, m), view_of(G, q * TILE, m)
        for j in range(m):
            # Every comparison with NaN, a missing entry, is False.
            x, g = residuals[j], adjoints[j]
            beyond = abs(x) <= cutoff and not abs(x) <= free
            total += (-g if x > zero else g) if beyond else zero
            residuals[j] = min(max(x, -clip), clip) if abs(x) <= cutoff else zero
            adjoints[j] = g if abs(x) <= free else zero
    return total


@jit
def _blank(tile, rows, m, padded):
    """Mark what lies past the last row and the last column as missing."""
    tile[rows * TILE :] = np.nan
    for q in range(rows):
        tile[q * TILE + m : q * TILE + padded] = np.nan


@numba.njit(nogil=True, cache=True, **INLINED)
def rectangle_adjoint(
    flat,  # (size,) the stored numbers of the rectangle, row i at i * stride
    stride,
    n1,
    n2,
    mask,  # (size,) bool, entry (i, j) at i * mask_row + j * mask_column; empty: everything is observed
    mask_row,
    mask_column,
    L,  # (n1 + 3, r)
    R,  # (tiles r TILE,) panels, see `lrpca.kernels.cpu`
    A_bar,  # (n1 + 3, r) adjoint of C R
    B_bar,  # panels, adjoint of Cᵀ L
    stretch,  # tiles of columns that are walked together
    clip,
    cutoff,
    D,  # (4 TILE,) work memory
    G,  # (4 TILE,) work memory
    R_sums,  # panels, work memory
    L_bar,  # (n1 + 3, r) float64, added to
    R_bar,  # panels, float64, added to
):
    """Add one rectangle's share of the adjoints of L and R to the outputs; return that of the clip.

    Groups of rows are walked along a stretch of columns, as in `lrpca.kernels.cpu.rectangle_pass`.
    """
    rank, tiles = L.shape[1], -(-n2 // TILE)
    clip_bar = 0.0
    for first in range(0, tiles, stretch):
        last = min(first + stretch, tiles)
        for block in range(0, n1, _BLOCK):
            for group in range(block, min(n1, block + _BLOCK), GROUP):
                for t in range(first, last):
                    j0 = t * TILE
                    m = min(TILE, n2 - j0)
                    padded = _VECTOR * (-(-m // _VECTOR))
                    following = m if group + 2 * GROUP <= n1 else 0
                    for i in range(group, min(group + GROUP, n1), 4):
                        rows = min(4, n1 - i)
                        # Rows past the end repeat the last one and are then blanked.
                        o0 = i * stride + j0
                        o1 = min(i + 1, n1 - 1) * stride + j0
                        o2 = min(i + 2, n1 - 1) * stride + j0
                        o3 = min(i + 3, n1 - 1) * stride + j0
                        _load(D, flat, o0, o1, o2, o3, m)
                        _blank(D, rows, m, padded)
                        if len(mask):
                            blank_missing(D, mask, mask_row, mask_column, i, j0, rows, m)
                        prefetch_range(flat, o0 + GROUP * stride, following)
                        G[:] = 0
                        at = t * rank * TILE
                        minus(D, L, i, R, at, 0, padded)
                        minus(G, A_bar, i, R, at, 0, padded)
                        minus(G, L, i, B_bar, at, 0, padded)
                        prefetch_range(flat, o1 + GROUP * stride, following)
                        clip_bar += _through_influence(D, G, clip, cutoff, padded)
                        prefetch_range(flat, o2 + GROUP * stride, following)
                        rows_times(D, B_bar, at, L_bar, i, padded)
                        rows_times(G, R, at, L_bar, i, padded)
                        columns_times(D, A_bar, i, R_sums, at, padded)
                        columns_times(G, L, i, R_sums, at, padded)
                        prefetch_range(flat, o3 + GROUP * stride, following)
            for j in range(first * rank * TILE, last * rank * TILE):
                R_bar[j] += R_sums[j]
                R_sums[j] = 0
    return clip_bar
