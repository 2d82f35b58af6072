"""The fused pass on the CPU: one read of a rectangle of Y, compiled by numba.

`rectangle_pass` is serial and releases the GIL; threads come on top, over a fixed partition of the matrix, so the bits
of the result do not depend on their number (see `lrpca.matrices.dense`). It is `lrpca.kernels.reference.dense_pass`
at the speed of the memory or of the multiply-adds (three per entry and component), whichever is slower.
"""

from __future__ import annotations

import numpy as np

from lrpca.kernels.tiles import (
    TILE,
    ask_for,
    columns_times,
    energy,
    influence,
    jit,
    kept_indicator,
    residual,
    rows_times,
)

# The panels of R and CᵀB for one stretch of columns stay in the second-level cache.
_STRETCH_BYTES = 384 * 1024


@jit
def _fill_panel(panel, source, j0, m):
    for k in range(source.shape[0]):
        for j in range(m):
            panel[k * TILE + j] = source[k, j0 + j]


@jit
def _pair_panel(pairs, left, right, rank, m):
    """Set row (k, h), k <= h, of `pairs` to left[k] * right[h]: the entries of the outer products R̄_j R_jᵀ."""
    row = 0
    for k in range(rank):
        for h in range(k, rank):
            for j in range(m):
                pairs[row * TILE + j] = left[k * TILE + j] * right[h * TILE + j]
            row += 1


@jit
def _pair_rows(pairs, left, right, rank):
    row = 0
    for k in range(rank):
        for h in range(k, rank):
            for q in range(4):
                pairs[q, row] = left[q, k] * right[q, h]
            row += 1


@jit
def _fill_rows(L_rows, L, B_rows, B, i, rows):
    for q in range(rows):
        for k in range(L.shape[1]):
            L_rows[q, k] = L[i + q, k]
        for k in range(B.shape[1]):
            B_rows[q, k] = B[i + q, k]


@jit
def _add_rows(target, four, i, rows):
    for q in range(rows):
        for k in range(four.shape[1]):
            target[i + q, k] += four[q, k]


@jit
def _add_panel(target, panel, j0, m):
    for k in range(target.shape[0]):
        for j in range(m):
            target[k, j0 + j] += panel[k * TILE + j]


@jit
def _blank_missing(tile, mask, mask_row, mask_column, i, j0, rows, m):
    for q in range(rows):
        for j in range(m):
            if not mask[(i + q) * mask_row + (j0 + j) * mask_column]:
                tile[q * TILE + j] = np.nan


@jit
def rectangle_pass(
    flat,  # (size,) the stored numbers of the rectangle, row i at i * stride
    stride,
    shape,  # (n1, n2)
    mask,  # (size,) bool, entry (i, j) at i * mask_row + j * mask_column, or None
    mask_row,
    mask_column,
    L,  # (n1, r)
    Rt,  # (r, n2)
    B,  # (n1, kb) multiplier for Cᵀ B
    At,  # (ka, n2) multiplier for C A, transposed
    same,  # At is Rt
    clip,
    cutoff,
    keep,
    want_energy,
    want_grams,
    CA,  # (n1, ka), added to
    BtC,  # (kb, n2), added to
    row_kept,  # (n1,), added to
    column_kept,  # (n2,), added to
    row_grams,  # (n1, r (r + 1) / 2), added to
    column_grams,  # (r (r + 1) / 2, n2), added to
):
    """Add one rectangle's share of the pass to the outputs; return (Σ|C|², Σ|D|² or 0).

    Rows are walked four at a time along a stretch of columns, so memory is read in long runs.
    """
    n1, n2 = shape
    rank, ka, kb, pairs = L.shape[1], At.shape[0], B.shape[1], row_grams.shape[1]
    per_tile = (rank + ka + kb + 2 * pairs + 1) * TILE * L.itemsize
    tiles = max(1, min(-(-n2 // TILE), _STRETCH_BYTES // per_tile))
    tile = np.zeros(4 * TILE, L.dtype)
    R_panels = np.zeros((tiles, rank * TILE), L.dtype)
    A_panels = np.zeros((tiles, 0 if same else ka * TILE), L.dtype)
    if same:
        A_panels = R_panels
    CtB_panels = np.zeros((tiles, kb * TILE), L.dtype)
    L_rows, B_rows = np.zeros((4, rank), L.dtype), np.zeros((4, kb), L.dtype)
    CA_rows = np.zeros((4, ka), L.dtype)
    kept_columns, sums = np.zeros((tiles, TILE), row_kept.dtype), np.zeros(5, row_kept.dtype)
    kept = np.zeros(4 * TILE, L.dtype)
    R_pairs, gram_panels = np.zeros((tiles, pairs * TILE), L.dtype), np.zeros((tiles, pairs * TILE), L.dtype)
    L_pairs, gram_rows = np.zeros((4, pairs), L.dtype), np.zeros((4, pairs), L.dtype)
    norm_C, norm_D = 0.0, 0.0
    for first in range(0, n2, tiles * TILE):
        here = min(tiles, -(-(n2 - first) // TILE))
        for t in range(here):
            j0 = first + t * TILE
            m = min(TILE, n2 - j0)
            _fill_panel(R_panels[t], Rt, j0, m)
            if not same:
                _fill_panel(A_panels[t], At, j0, m)
            if want_grams:
                _pair_panel(R_pairs[t], A_panels[t], R_panels[t], rank, m)
        CtB_panels[:] = 0
        kept_columns[:] = 0
        gram_panels[:] = 0
        for i in range(0, n1, 4):
            rows = min(4, n1 - i)
            _fill_rows(L_rows, L, B_rows, B, i, rows)
            if want_grams:
                _pair_rows(L_pairs, B_rows, L_rows, rank)
            for t in range(here):
                j0 = first + t * TILE
                m = min(TILE, n2 - j0)
                # Rows past the end repeat the last one and are then blanked: missing entries have no influence.
                o0 = i * stride + j0
                o1 = min(i + 1, n1 - 1) * stride + j0
                o2 = min(i + 2, n1 - 1) * stride + j0
                o3 = min(i + 3, n1 - 1) * stride + j0
                y0, y1, y2, y3 = flat[o0 : o0 + m], flat[o1 : o1 + m], flat[o2 : o2 + m], flat[o3 : o3 + m]
                residual(tile, y0, y1, y2, y3, L_rows, R_panels[t], rank, m)
                tile[rows * TILE :] = np.nan
                if mask is not None:
                    _blank_missing(tile, mask, mask_row, mask_column, i, j0, rows, m)
                # The next four rows of the same columns are asked for between the loops, a row at a time.
                ahead = i + 8 <= n1
                if ahead:
                    ask_for(flat, o0 + 4 * stride, m)
                if want_energy:
                    norm_D += energy(tile, rows, m)
                if want_grams:
                    kept_indicator(tile, keep, kept, m)
                influence(tile, clip, cutoff, keep, kept_columns[t], sums, m)
                norm_C += sums[0]
                if ahead:
                    ask_for(flat, o1 + 4 * stride, m)
                rows_times(tile, A_panels[t], ka, CA_rows, m)
                _add_rows(CA, CA_rows, i, rows)
                if ahead:
                    ask_for(flat, o2 + 4 * stride, m)
                columns_times(tile, B_rows, kb, CtB_panels[t], m)
                if ahead:
                    ask_for(flat, o3 + 4 * stride, m)
                for q in range(rows):
                    row_kept[i + q] += sums[q + 1]
                if want_grams:
                    rows_times(kept, R_pairs[t], pairs, gram_rows, m)
                    _add_rows(row_grams, gram_rows, i, rows)
                    columns_times(kept, L_pairs, pairs, gram_panels[t], m)
        for t in range(here):
            j0 = first + t * TILE
            m = min(TILE, n2 - j0)
            _add_panel(BtC, CtB_panels[t], j0, m)
            _add_panel(column_grams, gram_panels[t], j0, m)
            for j in range(m):
                column_kept[j0 + j] += kept_columns[t, j]
    return norm_C, norm_D
