"""Cells of a row against the others: flags and expected moments under a normal model, compiled by numba.

A row z with precision matrix Θ = Σ⁻¹ is one small symmetric matrix

    M = [ Θ    Θ z  ]
        [ zᵀΘ  zᵀΘz ]

Sweeping index j takes cell j out. With f the cells taken out and u those left, M then holds everything at once: the
precision of u without f in the block (u, u), minus the covariance of f given u in the block (f, f), and in the last
column ``Θ z`` of u alone (so ``M[j, -1] / sqrt(M[j, j])`` is the standardised residual of cell j given the others of
u), ``z - E(z | u)`` for f, and in the corner the squared distance of u. A sweep costs ``n2²`` multiply-adds, and can
be undone. The caller runs threads over a fixed partition of the rows.
"""

from __future__ import annotations

import numba
import numpy as np

from lrpca.kernels.cpu import FASTMATH, jit

# What is left of a diagonal entry below this part of it is rounding: the cell is a function of others.
_ROUNDING = 1e-13
# Steps of the search for the flags of a row, in numbers of columns: each lowers the penalised distance, so it ends.
_STEPS = 4
# Kinds of a row: used, left out because too few of its cells agree, or empty.
USED, OUTLYING, EMPTY = 0, 1, 2


@jit
def _sweep(M, j, sign):
    """Take cell j out (`sign` 1) or put it back (-1)."""
    size = M.shape[0]
    pivot = M[j, j]
    for i in range(size):
        if i != j and M[i, j] != 0.0:
            share = M[i, j] / pivot
            for h in range(size):
                M[i, h] -= share * M[j, h]
            M[i, j] = sign * share
    for i in range(size):
        M[j, i] = M[i, j]
    M[j, j] = -1.0 / pivot


@jit
def _fill(M, precision, z, p):
    """Set M for all cells; missing ones are zero in z."""
    corner = 0.0
    for i in range(p):
        total = 0.0
        for h in range(p):
            M[i, h] = precision[i, h]
            total += precision[i, h] * z[h]
        M[i, p] = total
        M[p, i] = total
        corner += total * z[i]
    M[p, p] = corner


@jit
def _residual(M, j, p, least):
    """Return the standardised residual of cell j given the others that are in."""
    spread = abs(M[j, j])
    return M[j, p] / np.sqrt(spread) if spread > least else 0.0


@jit
def _search(M, precision, state, limit, most, count, p):
    """Flag cells, the largest residual first, and take flags back; return (flags, whether more would be needed).

    A flag is worth ``limit²`` of squared distance, so the sum of distance and flags falls with every step.
    `state` of a cell is 0: in, 1: flagged, 2: flagged for good, 3: missing.
    """
    for _ in range(_STEPS * p + 4):
        worst, at = 1.0, -1
        for j in range(p):
            if state[j] == 0:
                ratio = abs(_residual(M, j, p, _ROUNDING * precision[j, j])) / limit[j]
                if ratio > worst:
                    worst, at = ratio, j
        if at >= 0 and count < most:
            _sweep(M, at, 1.0)
            state[at] = 1
            count += 1
            continue
        best, back = 1.0, -1
        for j in range(p):
            if state[j] == 1:
                ratio = abs(_residual(M, j, p, 0.0)) / limit[j]
                if ratio < best:
                    best, back = ratio, j
        if back < 0:
            return count, at >= 0
        _sweep(M, back, -1.0)
        state[back] = 0
        count -= 1
    return count, False


@jit
def _add_moments(M, z, state, w, p, full, first, second):
    """Add the expected ``z`` and ``z zᵀ`` given the cells that are in."""
    for j in range(p):
        full[j] = z[j] if state[j] == 0 else z[j] - M[j, p]
    for i in range(p):
        first[i] += w * full[i]
        share = w * full[i]
        for j in range(p):
            second[i, j] += share * full[j]
        if state[i] != 0:
            for j in range(p):
                if state[j] != 0:
                    second[i, j] -= w * M[i, j]


@numba.njit(cache=True, nogil=True, fastmath=FASTMATH, error_model="numpy")
def row_moments(
    Z,  # (m, p) float64, standardised; 0 where missing or flagged for good
    states,  # (m, p) uint8, see `_search`; changed in place
    kinds,  # (m,) uint8: USED, OUTLYING or EMPTY; changed in place
    weight,  # (m,)
    mean,  # (p,)
    precision,  # (p, p)
    limit,  # (p,) residuals beyond which a cell is flagged
    row_limit,  # (p + 1,) squared distance, by the number of cells, beyond which a row is outlying
    inside,  # factor of both for those that were in ...
    outside,  # ... and for those that were out
    search,  # bool: look for flags, or keep those that are given
    keep,  # bool: outlying rows take part
    residuals,  # (m, p) standardised residuals given the other cells; NaN where missing, inf where not used
    first,  # (p,) += expected z - mean
    second,  # (p, p) += expected (z - mean)(z - mean)ᵀ
):
    """Flag the cells of rows, add their expected moments; return the weight of the rows that took part."""
    m, p = Z.shape
    M = np.zeros((p + 1, p + 1))
    z, full, own = np.zeros(p), np.zeros(p), np.zeros(p)
    total = 0.0
    for i in range(m):
        state = states[i]
        count, observed = 0, 0
        for j in range(p):
            z[j] = Z[i, j] - mean[j] if state[j] < 2 else 0.0
            observed += 1 if state[j] != 3 else 0
            count += 1 if state[j] == 1 or state[j] == 2 else 0
            own[j] = limit[j] * (outside if state[j] == 1 else inside)
            residuals[i, j] = np.nan if state[j] == 3 else np.inf
        most = observed // 2
        was_out = kinds[i] == OUTLYING
        kinds[i] = EMPTY if observed == 0 else OUTLYING
        if observed == 0:
            continue
        if search and (was_out or count > most):
            # Flags that did not lead to a majority are no place to start from.
            for j in range(p):
                if state[j] == 1:
                    state[j] = 0
                    count -= 1
        _fill(M, precision, z, p)
        for j in range(p):
            if state[j] != 0:
                _sweep(M, j, 1.0)
        more = count > most
        if search and count <= most:
            count, more = _search(M, precision, state, own, most, count, p)
        if not more and M[p, p] <= row_limit[observed - count] * (outside if was_out else inside) ** 2:
            kinds[i] = USED
        elif not keep:
            continue
        for j in range(p):
            if state[j] < 2:
                residuals[i, j] = _residual(M, j, p, _ROUNDING * precision[j, j] if state[j] == 0 else 0.0)
        if observed > count:
            total += weight[i]
            _add_moments(M, z, state, weight[i], p, full, first, second)
    return total
