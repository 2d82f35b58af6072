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
    STRETCH_BYTES,
    TILE,
    add_panel,
    add_rows,
    blank_missing,
    cast_like,
    columns_times,
    fill_panel,
    fill_rows,
    five_of,
    four_rows,
    jit,
    load_tile,
    one_of,
    panel_of,
    prefetch_range,
    rows_times,
    view_of,
)

# Rows whose share of the adjoint of R is summed in the arithmetic type; sums over such blocks are in double precision.
_BLOCK = 8 * GROUP
# Single-precision numbers of the longest vector registers; divides TILE.
_VECTOR = 16


@jit
def _subtract(tile, rows, panel, m):
    a, b, c, d = rows
    for j in range(m):
        s0, s1, s2, s3 = tile[j], tile[TILE + j], tile[2 * TILE + j], tile[3 * TILE + j]
        for k in range(len(a)):
            u = panel[k * TILE + j]
            s0 -= a[k] * u
            s1 -= b[k] * u
            s2 -= c[k] * u
            s3 -= d[k] * u
        tile[j] = s0
        tile[TILE + j] = s1
        tile[2 * TILE + j] = s2
        tile[3 * TILE + j] = s3


@jit
def _subtract_product(tile, rows, i, panel, rank, m):
    """Subtract rows[i : i + 4] @ panel from the tile."""
    k = 0
    while k + 5 <= rank:
        _subtract(tile, four_rows(five_of, rows, i, k), view_of(panel, k * TILE, 5 * TILE), m)
        k += 5
    while k < rank:
        _subtract(tile, four_rows(one_of, rows, i, k), view_of(panel, k * TILE, TILE), m)
        k += 1


@jit
def _set_two(tile, rows, panel, other_rows, other_panel, m):
    a, b, c, d = rows
    e, f, g, h = other_rows
    zero = cast_like(0.0, tile[0])
    for j in range(m):
        s0 = s1 = s2 = s3 = zero
        for k in range(len(a)):
            u, v = panel[k * TILE + j], other_panel[k * TILE + j]
            s0 += a[k] * u + e[k] * v
            s1 += b[k] * u + f[k] * v
            s2 += c[k] * u + g[k] * v
            s3 += d[k] * u + h[k] * v
        tile[j] = s0
        tile[TILE + j] = s1
        tile[2 * TILE + j] = s2
        tile[3 * TILE + j] = s3


@jit
def _add_two(tile, rows, panel, other_rows, other_panel, m):
    a, b, c, d = rows
    e, f, g, h = other_rows
    for j in range(m):
        s0, s1, s2, s3 = tile[j], tile[TILE + j], tile[2 * TILE + j], tile[3 * TILE + j]
        for k in range(len(a)):
            u, v = panel[k * TILE + j], other_panel[k * TILE + j]
            s0 += a[k] * u + e[k] * v
            s1 += b[k] * u + f[k] * v
            s2 += c[k] * u + g[k] * v
            s3 += d[k] * u + h[k] * v
        tile[j] = s0
        tile[TILE + j] = s1
        tile[2 * TILE + j] = s2
        tile[3 * TILE + j] = s3


@jit
def _set_two_products(tile, rows, panel, other_rows, other_panel, i, rank, m):
    """Set tile = rows[i : i + 4] @ panel + other_rows[i : i + 4] @ other_panel."""
    k = 0
    if rank >= 5:
        _set_two(tile, four_rows(five_of, rows, i, 0), panel, four_rows(five_of, other_rows, i, 0), other_panel, m)
        k = 5
    else:
        tile[:] = 0
    while k + 5 <= rank:
        these, others = four_rows(five_of, rows, i, k), four_rows(five_of, other_rows, i, k)
        _add_two(tile, these, view_of(panel, k * TILE, 5 * TILE), others, view_of(other_panel, k * TILE, 5 * TILE), m)
        k += 5
    while k < rank:
        this, other = four_rows(one_of, rows, i, k), four_rows(one_of, other_rows, i, k)
        _add_two(tile, this, view_of(panel, k * TILE, TILE), other, view_of(other_panel, k * TILE, TILE), m)
        k += 1


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
    shape,  # (n1, n2)
    mask,  # (size,) bool, entry (i, j) at i * mask_row + j * mask_column; empty: everything is observed
    mask_row,
    mask_column,
    L,  # (n1, r)
    Rt,  # (r, n2)
    A_bar,  # (n1, r) adjoint of C R
    Bt_bar,  # (r, n2) adjoint of Cᵀ L, transposed
    clip,
    cutoff,
    L_bar,  # (n1, r) float64, added to
    Rt_bar,  # (r, n2) float64, added to
):
    """Add one rectangle's share of the adjoints of L and R to the outputs; return that of the clip.

    Groups of rows are walked along a stretch of columns, as in `lrpca.kernels.cpu.rectangle_pass`.
    """
    n1, n2 = shape
    rank = L.shape[1]
    tiles = max(1, min(-(-n2 // TILE), STRETCH_BYTES // max(1, 3 * rank * TILE * L.itemsize)))
    D, G = np.zeros(4 * TILE, L.dtype), np.zeros(4 * TILE, L.dtype)
    R_panels, B_panels = np.zeros(tiles * rank * TILE, L.dtype), np.zeros(tiles * rank * TILE, L.dtype)
    R_bar_panels = np.zeros(tiles * rank * TILE, L.dtype)
    L_rows, A_rows = np.zeros((GROUP, rank), L.dtype), np.zeros((GROUP, rank), L.dtype)
    sums = np.zeros((4, rank), L.dtype)
    clip_bar = 0.0
    for first in range(0, n2, tiles * TILE):
        here = min(tiles, -(-(n2 - first) // TILE))
        for t in range(here):
            j0 = first + t * TILE
            m = min(TILE, n2 - j0)
            fill_panel(panel_of(R_panels, t, rank), Rt, j0, m)
            fill_panel(panel_of(B_panels, t, rank), Bt_bar, j0, m)
        for block in range(0, n1, _BLOCK):
            R_bar_panels[:] = 0
            for group in range(block, min(n1, block + _BLOCK), GROUP):
                quads = -(-min(GROUP, n1 - group) // 4)
                fill_rows(L_rows, L, group)
                fill_rows(A_rows, A_bar, group)
                for t in range(here):
                    j0 = first + t * TILE
                    m = min(TILE, n2 - j0)
                    padded = _VECTOR * (-(-m // _VECTOR))
                    following = m if group + 2 * GROUP <= n1 else 0
                    R_panel, B_panel = panel_of(R_panels, t, rank), panel_of(B_panels, t, rank)
                    R_bar_panel = panel_of(R_bar_panels, t, rank)
                    for quad in range(quads):
                        i = group + 4 * quad
                        rows = min(4, n1 - i)
                        # Rows past the end repeat the last one and are then blanked.
                        o0 = i * stride + j0
                        o1 = min(i + 1, n1 - 1) * stride + j0
                        o2 = min(i + 2, n1 - 1) * stride + j0
                        o3 = min(i + 3, n1 - 1) * stride + j0
                        load_tile(
                            D, view_of(flat, o0, m), view_of(flat, o1, m), view_of(flat, o2, m), view_of(flat, o3, m), m
                        )
                        _blank(D, rows, m, padded)
                        if len(mask):
                            blank_missing(D, mask, mask_row, mask_column, i, j0, rows, m)
                        prefetch_range(flat, o0 + GROUP * stride, following)
                        _subtract_product(D, L_rows, 4 * quad, R_panel, rank, padded)
                        prefetch_range(flat, o1 + GROUP * stride, following)
                        _set_two_products(G, A_rows, R_panel, L_rows, B_panel, 4 * quad, rank, padded)
                        clip_bar += _through_influence(D, G, clip, cutoff, padded)
                        prefetch_range(flat, o2 + GROUP * stride, following)
                        rows_times(D, B_panel, rank, sums, padded)
                        add_rows(L_bar, sums, i, rows)
                        rows_times(G, R_panel, rank, sums, padded)
                        add_rows(L_bar, sums, i, rows)
                        prefetch_range(flat, o3 + GROUP * stride, following)
                        columns_times(D, A_rows, 4 * quad, rank, R_bar_panel, padded)
                        columns_times(G, L_rows, 4 * quad, rank, R_bar_panel, padded)
            for t in range(here):
                j0 = first + t * TILE
                add_panel(Rt_bar, panel_of(R_bar_panels, t, rank), j0, min(TILE, n2 - j0))
    return clip_bar
