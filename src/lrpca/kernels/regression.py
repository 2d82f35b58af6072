"""Robust regression of rows on fixed components, compiled: one row at a time, each on its own.

A row is first fitted on a sample of its entries (`lrpca.kernels.row_fit`), then by one to three redescending steps over
all of them. A step is one read of the row, and leaves no trace but sums: nothing of the size of Y is made.

All sums of a row run over the same tiles in the same order, whatever its neighbours: its bits depend on it alone.
Serial, releasing the GIL; threads come on top. NaN marks a missing entry, and every comparison with it is False.
"""

from __future__ import annotations

import numba
import numpy as np

from lrpca.kernels.row_fit import (
    FASTMATH,
    KEEP_LEVELS,
    LOW,
    LOW_NORMAL,
    TINY,
    TYPICAL,
    add_products,
    add_weighted_gram,
    advance,
    factorise,
    fit,
    jit,
    keeps_components,
    minus,
    quantile,
)

TILE = 768
# Rows that visit a tile together: its components come from the second-level cache once for them.
_GROUP = 4
# Gathered entries are filled up to a multiple of this, so that vector loops leave no rest.
_PADDING = 32
# What is known of a row: its level, the least and a good one, kept entries, whether the fit is to be trusted, whether
# the sample held all its entries, and whether its Gram is about that of all columns.
LEVEL, FLOOR, GOOD, KEPT, TRUSTED, SEEN_ALL, EVEN = range(7)
FACTS = 7

_ROUNDING = 64 * float(np.finfo(float).eps)
# A level of so many times the noise is good: outliers in the upper half of |d| raise it by less.
_GOOD_LEVEL = 2.5
# One this many times worse is hardly that of a good fit.
_FAR_LEVEL = 10.0
# A fit is trusted that keeps this share of the observed entries, or this one at a good level.
_KEPT_SHARE, _GOOD_KEPT_SHARE = 0.62, 0.45
# Steps with the Gram of all columns do not lengthen the error, whatever is kept, if it is at least this share of them.
_EVEN_SHARE = 0.55
# A step that moves the fit by less than this share of the level changes nothing in what is kept.
_SMALL_STEP = 0.02
# What further steps would add may be this share of the error that noise leaves.
_SMALL_REST = 0.1

_outer = numba.njit(nogil=True, cache=True, fastmath=FASTMATH, error_model="numpy")


# ------------------------------------------------------------------------------------------ reading rows


@jit
def _gather(row, offset, order, want, x, raw, places):
    """Collect the first `want` observed entries of a row in the given order, and where they are.

    `raw` receives their moduli before the offset is taken off. Return (how many, after how many entries, whether any is
    infinite).
    """
    m, t, infinite = 0, 0, False
    while t < len(order) and m < want:
        j = order[t]
        y = np.float64(row[j])
        x[m] = y - offset[j] if len(offset) else y
        raw[m] = abs(y)
        places[m] = j
        m += 1 if y == y else 0
        infinite |= abs(y) == np.inf
        t += 1
    return m, t, infinite


@jit
def _collect(Qt, places, m, P, w, spare, gram, factor, shares):
    """Set P to the components at some places, `factor` to that of P Pᵀ and `shares` to its diagonal."""
    for k in range(len(Qt)):
        for t in range(m):
            P[k, t] = Qt[k, places[t]]
    w[:m] = 1.0
    add_weighted_gram(P, m, w, spare, gram)
    factorise(gram, factor)
    for k in range(len(Qt)):
        shares[k] = gram[k, k]


@jit
def _load(row, offset, j0, m, d):
    """Set d to the entries from j0 on; return how many are infinite."""
    y = row[j0 : j0 + m]
    if len(offset):
        o = offset[j0 : j0 + m]
        for t in range(m):
            d[t] = np.float64(y[t]) - o[t]
    else:
        for t in range(m):
            d[t] = np.float64(y[t])
    infinite = 0
    for t in range(m):
        infinite += 1 if abs(d[t]) == np.inf else 0
    return infinite


@jit
def _keep(d, m, limit, e):
    """Set e = d where |d| <= limit, else 0; return how many are kept and how many observed."""
    kept, seen = 0.0, 0.0
    for t in range(m):
        x = d[t]
        inside = abs(x) <= limit
        e[t] = x if inside else 0.0
        kept += 1.0 if inside else 0.0
        seen += 1.0 if x == x else 0.0
    return kept, seen


@jit
def _add_gram(d, m, limit, kept, Qt, j0, tile_gram, places, panel, gram, sums):
    """Add the Gram of the entries |d| <= limit of a tile: their sum, or the tile's less the sum of the others."""
    rank = len(Qt)
    others = 2 * kept >= m
    count = 0
    for t in range(m):
        places[count] = t
        count += 1 if (abs(d[t]) <= limit) != others else 0
    # Vector loops have no rest to do one by one.
    padded = -(-count // _PADDING) * _PADDING
    for k in range(rank):
        q = Qt[k, j0 : j0 + m]
        for t in range(count):
            panel[k, t] = q[places[t]]
        panel[k, count:padded] = 0.0
    for k in range(rank):
        sums[: k + 1] = 0.0
        add_products(panel[k], panel, 0, padded, k + 1, sums)
        for h in range(k + 1):
            gram[k, h] += tile_gram[k, h] - sums[h] if others else sums[h]


@jit
def _add_observed(d, m, Qt, j0, shares):
    """Add Σ Q² over the observed entries of a tile, by component."""
    for k in range(len(Qt)):
        q = Qt[k, j0 : j0 + m]
        total = 0.0
        for t in range(m):
            total += q[t] * q[t] if d[t] == d[t] else 0.0
        shares[k] += total


@jit
def _full_step(values, first, active, offset, Qt, c, limits, own_gram, tile_grams, scratch, found):
    """Add up what a redescending step needs over all entries of a group of rows, tile by tile.

    `found` receives, by row: how many entries are kept, observed and infinite, Q W d, and where `own_gram` is wanted
    Q W Qᵀ and the sums of squares of the observed components.
    """
    counts, sides, grams, shares = found
    d, e, places, panel, sums = scratch
    rank, n2 = len(Qt), values.shape[1]
    counts[:] = 0.0
    sides[:] = 0.0
    grams[:] = 0.0
    shares[:] = 0.0
    for tile in range(-(-n2 // TILE)):
        j0 = tile * TILE
        m = min(TILE, n2 - j0)
        for g in range(len(active)):
            if active[g]:
                counts[g, 2] += _load(values[first + g], offset, j0, m, d)
                minus(d, Qt, j0, c[g], m)
                kept, seen = _keep(d, m, limits[g], e)
                counts[g, 0] += kept
                counts[g, 1] += seen
                add_products(e, Qt, j0, m, rank, sides[g])
                if own_gram[g]:
                    _add_gram(d, m, limits[g], kept, Qt, j0, tile_grams[tile], places, panel, grams[g], sums)
                    if seen == m:
                        for k in range(rank):
                            shares[g, k] += tile_grams[tile, k, k]
                    else:
                        _add_observed(d, m, Qt, j0, shares[g])


@jit
def _advance_evenly(share, side, c):
    """Set c += side / share; return the length of the step."""
    length = 0.0
    for k in range(len(side)):
        step = side[k] / max(share, TINY)
        c[k] += step
        length += step * step
    return np.sqrt(length)


@jit
def _minus_at(d, Qt, places, c, m):
    """Set d -= c Qt[:, places]."""
    for k in range(len(c)):
        for t in range(m):
            d[t] -= c[k] * Qt[k, places[t]]


@jit
def _trusted(level, good, noise, kept, seen):
    """Tell whether a fit explains enough of the observed entries, and not too badly, where the noise is known."""
    far = level > _FAR_LEVEL * good and noise > 0
    return kept >= (_GOOD_KEPT_SHARE if level <= good else _KEPT_SHARE) * seen and not far


# ------------------------------------------------------------------------------------------ what Python calls


@_outer
def fit_samples(
    values,  # (m, n2) float32 or float64, NaN where missing
    offset,  # (n2,) taken off every row, or (0,)
    Qt,  # (r, n2 or more) orthonormal components
    order,  # (n2,) int: a sample of the entries of a row is the first observed ones in this order
    sample,
    attempts,  # first and last, see `lrpca.kernels.row_fit.fit`
    noise,
    rounding,  # of the stored numbers, relative
    c,  # (m, r), set
    facts,  # (m, FACTS), set
):
    """Set c so that c Qt fits a sample of the uncorrupted entries of each row; return False if one is infinite."""
    rank = len(Qt)
    gram, side, step, trial = np.zeros((rank, rank)), np.zeros(rank), np.zeros(rank), np.zeros(rank)
    x, d, size, w, spare = np.zeros(sample), np.zeros(sample), np.zeros(sample), np.zeros(sample), np.zeros(sample)
    scratch = (d, size, w, spare, gram, side, step)
    places, factor = np.zeros(sample, np.int64), np.zeros((rank, rank))
    P, common, shares = np.zeros((rank, sample)), np.zeros((rank, rank)), np.zeros(rank)
    complete = False
    for i in range(len(values)):
        c[i] = 0.0
        m, visited, infinite = _gather(values[i], offset, order, sample, x, size, places)
        if infinite:
            return False
        facts[i, TRUSTED], facts[i, SEEN_ALL] = 1.0, 1.0 if visited == len(order) else 0.0
        if m == 0:
            continue
        typical = quantile(size, m, 0.5, spare)
        floor = max(noise, _ROUNDING * TYPICAL * typical)
        good = _GOOD_LEVEL * max(floor, rounding * typical)
        # Rows without missing entries in the sample have its components in common.
        if not (complete and visited == m == sample):
            _collect(Qt, places, m, P, w, spare, gram, common, shares)
            complete = visited == m == sample
        if m <= 2 * rank and visited == len(order):
            # Too few entries to tell outliers from the others: all count.
            side[:] = 0.0
            add_products(x, P, 0, m, rank, side)
            advance(common, side, step, c[i])
            continue
        level, kept, whole = fit(x, P, m, common, floor, good, attempts, shares, c[i], trial, factor, scratch)
        facts[i, LEVEL], facts[i, FLOOR], facts[i, GOOD], facts[i, KEPT] = level, floor, good, kept
        facts[i, TRUSTED] = 1.0 if whole and _trusted(level, good, noise, kept, m) else 0.0
        facts[i, EVEN] = 1.0 if kept >= _EVEN_SHARE * visited else 0.0
    return True


@_outer
def finish_fits(
    values,  # (m, n2) as above
    offset,  # (n2,) or (0,)
    Qt,  # (r, n2 or more)
    tile_grams,  # (tiles, r, r)
    order,  # (n2,) int
    sample,
    noise,  # 0 where it is not known
    c,  # (m, r), changed
    facts,  # (m, FACTS), changed
):
    """Take redescending steps over all entries of rows fitted on a sample; return False if some entry is infinite.

    At most three. Q is orthonormal, so kept entries all over the row have the Gram (kept / n2) I, nearly; where steps
    with that do not come to rest, the last one has the row's own Gram.
    """
    rank, n2 = len(Qt), values.shape[1]
    step, factor = np.zeros(rank), np.zeros((rank, rank))
    counts, sides = np.zeros((_GROUP, 3)), np.zeros((_GROUP, rank))
    grams, shares = np.zeros((_GROUP, rank, rank)), np.zeros((_GROUP, rank))
    found = (counts, sides, grams, shares)
    width = max(TILE, sample)
    d, e, places = np.zeros(width), np.zeros(width), np.arange(width)
    scratch = (d, e, places, np.zeros((rank, TILE + _PADDING)), np.zeros(rank))
    limits, before, trusted = np.zeros(_GROUP), np.zeros(_GROUP), np.zeros(_GROUP)
    active, own_gram = np.zeros(_GROUP, np.bool_), np.zeros(_GROUP, np.bool_)
    for first in range(0, len(values), _GROUP):
        rows = min(_GROUP, len(values) - first)
        here, about = c[first : first + rows], facts[first : first + rows]
        active[:] = False
        for g in range(rows):
            active[g], trusted[g] = about[g, SEEN_ALL] == 0, about[g, TRUSTED]
        for turn in range(3):
            if not active.any():
                break
            for g in range(rows):
                limits[g] = KEEP_LEVELS * about[g, LEVEL]
                own_gram[g] = turn == 2 or about[g, EVEN] == 0
            _full_step(values, first, active, offset, Qt, here, limits, own_gram, tile_grams, scratch, found)
            for g in range(rows):
                if not active[g]:
                    continue
                kept, seen, level = counts[g, 0], counts[g, 1], about[g, LEVEL]
                if counts[g, 2] > 0:
                    return False
                whole = True
                if own_gram[g]:
                    factorise(grams[g], factor)
                    whole = keeps_components(factor, shares[g])
                    moved = advance(factor, sides[g], step, here[g])
                else:
                    moved = _advance_evenly(kept / n2, sides[g], here[g])
                # By entry: how far the fit has moved, what there is still to come, and the error that noise leaves.
                moved /= np.sqrt(n2)
                rest = moved * moved / max(before[g], moved, TINY) if turn > 0 else np.inf
                error = level * np.sqrt(rank / max(kept, 1.0))
                before[g] = moved
                about[g, KEPT] = kept
                about[g, TRUSTED] = trusted[g] if whole and _trusted(level, about[g, GOOD], noise, kept, seen) else 0.0
                active[g] = turn < 2 and moved > _SMALL_STEP * level and rest > _SMALL_REST * error
                if active[g]:
                    m, _, _ = _gather(values[first + g], offset, order, sample, d, e, places)
                    _minus_at(d, Qt, places, here[g], m)
                    about[g, LEVEL] = max(quantile(np.abs(d[:m]), m, LOW, e) / LOW_NORMAL, about[g, FLOOR])
    return True


@_outer
def multiply_rows(
    c,  # (m, r)
    back,  # (r, k)
    out,  # (m, k), set
):
    """Set out = c back; the bits of a row depend on nothing else, which BLAS does not promise."""
    for i in range(len(c)):
        for k in range(back.shape[1]):
            total = 0.0
            for h in range(len(back)):
                total += c[i, h] * back[h, k]
            out[i, k] = total
