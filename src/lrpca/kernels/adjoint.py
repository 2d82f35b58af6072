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
    columns_times_1,
    columns_times_5,
    five_of,
    four_of,
    jit,
    minus_1,
    minus_5,
    prefetch_range,
    rows_times_1,
    rows_times_5,
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
def _add_two_1(tile, rows, panel, other_rows, other_panel, i, k, m):
    """Add the products of column k of four rows from i on and the panel of that component, twice."""
    width = rows.shape[1]
    a, b, c, d = four_of(rows, i * width + k, width)
    e, f, g, h = four_of(other_rows, i * width + k, width)
    for j in range(m):
        u, v = panel[j], other_panel[j]
        tile[j] += a * u + e * v
        tile[TILE + j] += b * u + f * v
        tile[2 * TILE + j] += c * u + g * v
        tile[3 * TILE + j] += d * u + h * v


@jit
def _add_two_5(tile, rows, panel, other_rows, other_panel, i, k, m):
    """Add the products of five columns from k on, twice."""
    width = rows.shape[1]
    at = i * width + k
    a, b = five_of(rows, at, 1), five_of(rows, at + width, 1)
    c, d = five_of(rows, at + 2 * width, 1), five_of(rows, at + 3 * width, 1)
    e, f = five_of(other_rows, at, 1), five_of(other_rows, at + width, 1)
    g, h = five_of(other_rows, at + 2 * width, 1), five_of(other_rows, at + 3 * width, 1)
    for j in range(m):
        u, v, w = panel[j], panel[TILE + j], panel[2 * TILE + j]
        x, z = panel[3 * TILE + j], panel[4 * TILE + j]
        s0 = tile[j] + (a[0] * u + a[1] * v + a[2] * w + a[3] * x + a[4] * z)
        s1 = tile[TILE + j] + (b[0] * u + b[1] * v + b[2] * w + b[3] * x + b[4] * z)
        s2 = tile[2 * TILE + j] + (c[0] * u + c[1] * v + c[2] * w + c[3] * x + c[4] * z)
        s3 = tile[3 * TILE + j] + (d[0] * u + d[1] * v + d[2] * w + d[3] * x + d[4] * z)
        u, v, w = other_panel[j], other_panel[TILE + j], other_panel[2 * TILE + j]
        x, z = other_panel[3 * TILE + j], other_panel[4 * TILE + j]
        tile[j] = s0 + (e[0] * u + e[1] * v + e[2] * w + e[3] * x + e[4] * z)
        tile[TILE + j] = s1 + (f[0] * u + f[1] * v + f[2] * w + f[3] * x + f[4] * z)
        tile[2 * TILE + j] = s2 + (g[0] * u + g[1] * v + g[2] * w + g[3] * x + g[4] * z)
        tile[3 * TILE + j] = s3 + (h[0] * u + h[1] * v + h[2] * w + h[3] * x + h[4] * z)


@jit
def _through_influence(D, G, clip, cutoff, m):
    """Replace D by C = ψ(D) and G = C̄ by the adjoint of L Rᵀ, -C̄ where ψ is the identity; return that of the clip."""
    zero = cast_like(0.0, clip)
    free = min(clip, cutoff)
    s0 = s1 = s2 = s3 = zero
    for j in range(m):
        x0, x1, x2, x3 = D[j], D[TILE + j], D[2 * TILE + j], D[3 * TILE + j]
        g0, g1, g2, g3 = G[j], G[TILE + j], G[2 * TILE + j], G[3 * TILE + j]
        t0 = g0 if x0 > zero else -g0
        t1 = g1 if x1 > zero else -g1
        t2 = g2 if x2 > zero else -g2
        t3 = g3 if x3 > zero else -g3
        t0 = zero if abs(x0) <= free else t0
        t1 = zero if abs(x1) <= free else t1
        t2 = zero if abs(x2) <= free else t2
        t3 = zero if abs(x3) <= free else t3
        # Every comparison with NaN, a missing entry, is False.
        D[j] = min(max(x0, -clip), clip) if abs(x0) <= cutoff else zero
        D[TILE + j] = min(max(x1, -clip), clip) if abs(x1) <= cutoff else zero
        D[2 * TILE + j] = min(max(x2, -clip), clip) if abs(x2) <= cutoff else zero
        D[3 * TILE + j] = min(max(x3, -clip), clip) if abs(x3) <= cutoff else zero
        s0 += t0 if abs(x0) <= cutoff else zero
        s1 += t1 if abs(x1) <= cutoff else zero
        s2 += t2 if abs(x2) <= cutoff else zero
        s3 += t3 if abs(x3) <= cutoff else zero
        G[j] = -g0 if abs(x0) <= free else zero
        G[TILE + j] = -g1 if abs(x1) <= free else zero
        G[2 * TILE + j] = -g2 if abs(x2) <= free else zero
        G[3 * TILE + j] = -g3 if abs(x3) <= free else zero
    return (s0 + s1) + (s2 + s3)


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
                        for chunk in range(rank // 5):
                            k = 5 * chunk
                            at = (t * rank + k) * TILE
                            R_panel, B_panel = view_of(R, at, 5 * TILE), view_of(B_bar, at, 5 * TILE)
                            minus_5(D, L, i, k, R_panel, padded)
                            _add_two_5(G, A_bar, R_panel, L, B_panel, i, k, padded)
                        for k in range(rank - rank % 5, rank):
                            at = (t * rank + k) * TILE
                            R_panel, B_panel = view_of(R, at, TILE), view_of(B_bar, at, TILE)
                            minus_1(D, L, i, k, R_panel, padded)
                            _add_two_1(G, A_bar, R_panel, L, B_panel, i, k, padded)
                        prefetch_range(flat, o1 + GROUP * stride, following)
                        clip_bar += _through_influence(D, G, clip, cutoff, padded)
                        prefetch_range(flat, o2 + GROUP * stride, following)
                        for chunk in range(rank // 5):
                            k = 5 * chunk
                            at = (t * rank + k) * TILE
                            rows_times_5(D, view_of(B_bar, at, 5 * TILE), L_bar, i, k, padded)
                            rows_times_5(G, view_of(R, at, 5 * TILE), L_bar, i, k, padded)
                            columns_times_5(D, A_bar, i, k, view_of(R_sums, at, 5 * TILE), padded)
                            columns_times_5(G, L, i, k, view_of(R_sums, at, 5 * TILE), padded)
                        for k in range(rank - rank % 5, rank):
                            at = (t * rank + k) * TILE
                            rows_times_1(D, view_of(B_bar, at, TILE), L_bar, i, k, padded)
                            rows_times_1(G, view_of(R, at, TILE), L_bar, i, k, padded)
                            columns_times_1(D, A_bar, i, k, view_of(R_sums, at, TILE), padded)
                            columns_times_1(G, L, i, k, view_of(R_sums, at, TILE), padded)
                        prefetch_range(flat, o3 + GROUP * stride, following)
            for j in range(first * rank * TILE, last * rank * TILE):
                R_bar[j] += R_sums[j]
                R_sums[j] = 0
    return clip_bar
