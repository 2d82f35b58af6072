"""Robust regression of rows on fixed components, compiled: every row is fitted independently of the others.

A row is first fitted on a sample of its entries: x ≈ c P, with P (r, m) held in the cache. Least absolute deviations by
re-weighting, which a minority of gross outliers cannot move, come first; then redescending steps at the noise level of
the entries themselves. One to three redescending steps over all entries follow. Such a step reads the row once and
keeps nothing but sums: no array of the size of Y is made.

All sums of a row run over the same tiles in the same order, whatever its neighbours: its bits depend on it alone.
Serial, releasing the GIL; threads come on top. NaN marks a missing entry, and every comparison with it is False.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from lrpca.kernels.trimmed import kth_smallest

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
# Approximate steps of a quick fit, on the common Gram, and exact ones of a thorough fit; the bound of their weights
# falls by these factors each.
_APPROACH_STEPS, _APPROACH_FALL = 5, 0.6
_ABSOLUTE_STEPS, _ABSOLUTE_FALL = 15, 10 ** (-1 / 3)
_REDESCENDING_STEPS = 25
# Beyond so many median residuals entries have no weight at all: outliers on one side would hold the fit for long.
_APPROACH_CUT, _ABSOLUTE_CUT = 2.5, 2.0
# Kept are entries below so many levels; 35% of |N(0, 1)| lie below 0.4538, and outliers may fill the upper half.
_KEEP_LEVELS = 4.0
_LOW, _LOW_NORMAL = 0.35, 0.4538
# Gross outliers must not decide the start: beyond so many times the median an entry counts like one there.
_TYPICAL = 5.0
_TINY = float(np.finfo(float).tiny)
_RIDGE = 1e-12
# A fit is trusted only if it keeps this share of each component.
_COMPONENT_SHARE = 0.45
# Levels closer than this are equal, and the fit that keeps more entries is better.
SAME_LEVEL = 0.9

_FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
_INLINED: Any = {"fastmath": _FASTMATH, "error_model": "numpy", "forceinline": True}
_jit = numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, **_INLINED)
_outer = numba.njit(nogil=True, cache=True, fastmath=_FASTMATH, error_model="numpy")


# ------------------------------------------------------------------------------------------ small systems


@_jit
def _factorise(gram, work):
    """Set the lower triangle of `work` to Cholesky's factor of gram + ridge, of which the lower triangle is read."""
    rank = len(gram)
    trace = 0.0
    for k in range(rank):
        trace += gram[k, k]
    ridge = _RIDGE * trace + _TINY
    for k in range(rank):
        for h in range(k + 1):
            total = gram[k, h] + (ridge if k == h else 0.0)
            for i in range(h):
                total -= work[k, i] * work[h, i]
            work[k, h] = np.sqrt(max(total, ridge)) if k == h else total / work[h, h]


@_jit
def _advance(work, side, step, c):
    """Set c += step with the step that solves (work workᵀ) step = side; return its length."""
    rank = len(side)
    for k in range(rank):
        total = side[k]
        for i in range(k):
            total -= work[k, i] * step[i]
        step[k] = total / work[k, k]
    length = 0.0
    for k in range(rank - 1, -1, -1):
        total = step[k]
        for i in range(k + 1, rank):
            total -= work[i, k] * step[i]
        step[k] = total / work[k, k]
        c[k] += step[k]
        length += step[k] * step[k]
    return np.sqrt(length)


# ------------------------------------------------------------------------------------------ sums over entries


@_jit
def _minus(d, P, first, c, m):
    """Set d -= c P[:, first : first + m]."""
    rank = len(c)
    k = rank % 4
    for h in range(k):
        a, p = c[h], P[h, first : first + m]
        for t in range(m):
            d[t] -= a * p[t]
    while k < rank:
        a0, a1, a2, a3 = c[k], c[k + 1], c[k + 2], c[k + 3]
        p0, p1 = P[k, first : first + m], P[k + 1, first : first + m]
        p2, p3 = P[k + 2, first : first + m], P[k + 3, first : first + m]
        for t in range(m):
            d[t] -= (a0 * p0[t] + a1 * p1[t]) + (a2 * p2[t] + a3 * p3[t])
        k += 4


@_jit
def _add_products(e, P, first, m, rank, sums):
    """Add P[:rank, first : first + m] @ e to sums."""
    k = rank % 4
    for h in range(k):
        p = P[h, first : first + m]
        total = 0.0
        for t in range(m):
            total += e[t] * p[t]
        sums[h] += total
    while k < rank:
        p0, p1 = P[k, first : first + m], P[k + 1, first : first + m]
        p2, p3 = P[k + 2, first : first + m], P[k + 3, first : first + m]
        s0 = s1 = s2 = s3 = 0.0
        for t in range(m):
            x = e[t]
            s0 += x * p0[t]
            s1 += x * p1[t]
            s2 += x * p2[t]
            s3 += x * p3[t]
        sums[k] += s0
        sums[k + 1] += s1
        sums[k + 2] += s2
        sums[k + 3] += s3
        k += 4


@_jit
def _add_weighted_gram(P, m, w, spare, gram):
    """Set the lower triangle of gram = P W Pᵀ."""
    for k in range(len(P)):
        p = P[k]
        for t in range(m):
            spare[t] = w[t] * p[t]
        gram[k] = 0.0
        _add_products(spare, P, 0, m, k + 1, gram[k])


@_jit
def _residual(x, P, c, m, d, size):
    for t in range(m):
        d[t] = x[t]
    _minus(d, P, 0, c, m)
    for t in range(m):
        size[t] = abs(d[t])


@_jit
def _quantile(size, m, share, spare):
    """Return the number below which this share of the first m sizes lies."""
    return kth_smallest(size[:m], min(int(share * m), m - 1), spare)


# ------------------------------------------------------------------------------------------ fits of m entries x by c P


@_jit
def _approach(x, P, m, factor, c, scratch):
    """Set c to a rough fit: clipped least squares, then weights 1 / |d| below a cut, all with the Gram of all entries.

    Weights that have nothing to do with the components change the Gram by a factor, which is their mean.
    """
    d, size, _, spare, _, side, step = scratch
    c[:] = 0.0
    for k in range(_APPROACH_STEPS + 1):
        _residual(x, P, c, m, d, size)
        scale = _quantile(size, m, 0.5, spare)
        bound, cut = max(scale * _APPROACH_FALL ** (k - 1), _TINY), _APPROACH_CUT * scale
        if k == 0:
            # Entries beyond the bound count as if they were there.
            bound, cut = _TYPICAL * scale if scale > 0 else np.inf, np.inf
        total = 0.0
        for t in range(m):
            weight = min(1.0, bound / size[t]) if size[t] <= cut else 0.0
            d[t] *= weight
            total += weight
        mean = total / m if k > 0 else 1.0
        side[:] = 0.0
        _add_products(d, P, 0, m, len(c), side)
        for h in range(len(c)):
            side[h] /= mean
        _advance(factor, side, step, c)


@_jit
def _refine(x, P, m, floor, good, absolute, cut, c, factor, scratch):
    """Take so many `absolute` steps, least absolute deviations by re-weighting, then redescending ones until they rest.

    Return (level, kept). `factor` is that of the Gram of the kept entries.
    """
    d, size, w, spare, gram, side, step = scratch
    level, kept, resting = 0.0, 0, False
    for k in range(-1 if absolute else 0, absolute + _REDESCENDING_STEPS + 1):
        _residual(x, P, c, m, d, size)
        scale = _quantile(size, m, 0.5 if k < absolute else _LOW, spare)
        if k < 0:
            # The start: c = 0, and large entries count like typical ones.
            bound, limit = _TYPICAL * scale if scale > 0 else np.inf, np.inf
        elif k < absolute:
            # Weights 1 / |d|, bounded; the bound falls as the fit settles.
            bound, limit = max(scale * _ABSOLUTE_FALL**k, _TINY), cut * scale
        else:
            level = max(scale / _LOW_NORMAL, floor)
            bound, limit = np.inf, _KEEP_LEVELS * level
        changed = kept = 0
        for t in range(m):
            weight = min(1.0, bound / size[t]) if size[t] <= limit else 0.0
            changed += 1 if weight != w[t] else 0
            kept += 1 if weight > 0 else 0
            w[t] = weight
        if k > absolute and changed == 0:
            # One more step takes off what the ridge has left.
            if resting or level <= good:
                break
            resting = True
        else:
            _add_weighted_gram(P, m, w, spare, gram)
            _factorise(gram, factor)
        for t in range(m):
            spare[t] = w[t] * d[t]
        side[:] = 0.0
        _add_products(spare, P, 0, m, len(c), side)
        _advance(factor, side, step, c)
    return level, kept


@_jit
def _keeps_components(factor, shares):
    """Tell whether the kept entries hold enough of every component: pivots against the sums of squares of all."""
    good = True
    for k in range(len(shares)):
        good &= factor[k, k] * factor[k, k] >= _COMPONENT_SHARE * shares[k]
    return good


@_jit
def _fit(x, P, m, common, floor, good, attempts, shares, c, trial, factor, scratch):
    """Set c to the best of some attempts, until one is good; return (level, kept, whether every component is kept).

    Attempts are 0: quick, 1: least absolute deviations below a cut, 2: without it, for components on few columns.
    """
    first, last = attempts
    best, most, whole = np.inf, 0, False
    for attempt in range(first, last + 1):
        trial[:] = 0.0
        absolute = _ABSOLUTE_STEPS
        if attempt == 0:
            _approach(x, P, m, common, trial, scratch)
            absolute = 0
        cut = _ABSOLUTE_CUT if attempt < 2 else np.inf
        level, kept = _refine(x, P, m, floor, good, absolute, cut, trial, factor, scratch)
        here = _keeps_components(factor, shares)
        fine = here and level <= good
        if fine or level < SAME_LEVEL * best or (SAME_LEVEL * level <= best and kept >= most):
            best, most, whole = level, kept, here
            c[:] = trial
        if fine:
            break
    return best, most, whole


# ------------------------------------------------------------------------------------------ reading rows


@_jit
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


@_jit
def _collect(Qt, places, m, P, w, spare, gram, factor, shares):
    """Set P to the components at some places, `factor` to that of P Pᵀ and `shares` to its diagonal."""
    for k in range(len(Qt)):
        for t in range(m):
            P[k, t] = Qt[k, places[t]]
    w[:m] = 1.0
    _add_weighted_gram(P, m, w, spare, gram)
    _factorise(gram, factor)
    for k in range(len(Qt)):
        shares[k] = gram[k, k]


@_jit
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


@_jit
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


@_jit
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
        _add_products(panel[k], panel, 0, padded, k + 1, sums)
        for h in range(k + 1):
            gram[k, h] += tile_gram[k, h] - sums[h] if others else sums[h]


@_jit
def _add_observed(d, m, Qt, j0, shares):
    """Add Σ Q² over the observed entries of a tile, by component."""
    for k in range(len(Qt)):
        q = Qt[k, j0 : j0 + m]
        total = 0.0
        for t in range(m):
            total += q[t] * q[t] if d[t] == d[t] else 0.0
        shares[k] += total


@_jit
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
                _minus(d, Qt, j0, c[g], m)
                kept, seen = _keep(d, m, limits[g], e)
                counts[g, 0] += kept
                counts[g, 1] += seen
                _add_products(e, Qt, j0, m, rank, sides[g])
                if own_gram[g]:
                    _add_gram(d, m, limits[g], kept, Qt, j0, tile_grams[tile], places, panel, grams[g], sums)
                    if seen == m:
                        for k in range(rank):
                            shares[g, k] += tile_grams[tile, k, k]
                    else:
                        _add_observed(d, m, Qt, j0, shares[g])


@_jit
def _advance_evenly(share, side, c):
    """Set c += side / share; return the length of the step."""
    length = 0.0
    for k in range(len(side)):
        step = side[k] / max(share, _TINY)
        c[k] += step
        length += step * step
    return np.sqrt(length)


@_jit
def _minus_at(d, Qt, places, c, m):
    """Set d -= c Qt[:, places]."""
    for k in range(len(c)):
        for t in range(m):
            d[t] -= c[k] * Qt[k, places[t]]


@_jit
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
    attempts,  # first and last, see `_fit`
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
        typical = _quantile(size, m, 0.5, spare)
        floor = max(noise, _ROUNDING * _TYPICAL * typical)
        good = _GOOD_LEVEL * max(floor, rounding * typical)
        # Rows without missing entries in the sample have its components in common.
        if not (complete and visited == m == sample):
            _collect(Qt, places, m, P, w, spare, gram, common, shares)
            complete = visited == m == sample
        if m <= 2 * rank and visited == len(order):
            # Too few entries to tell outliers from the others: all count.
            side[:] = 0.0
            _add_products(x, P, 0, m, rank, side)
            _advance(common, side, step, c[i])
            continue
        level, kept, whole = _fit(x, P, m, common, floor, good, attempts, shares, c[i], trial, factor, scratch)
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
    with that do not converge, the last one has the row's own Gram.
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
                limits[g] = _KEEP_LEVELS * about[g, LEVEL]
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
                    _factorise(grams[g], factor)
                    whole = _keeps_components(factor, shares[g])
                    moved = _advance(factor, sides[g], step, here[g])
                else:
                    moved = _advance_evenly(kept / n2, sides[g], here[g])
                # By entry: how far the fit has moved, what there is still to come, and the error that noise leaves.
                moved /= np.sqrt(n2)
                rest = moved * moved / max(before[g], moved, _TINY) if turn > 0 else np.inf
                error = level * np.sqrt(rank / max(kept, 1.0))
                before[g] = moved
                about[g, KEPT] = kept
                about[g, TRUSTED] = trusted[g] if whole and _trusted(level, about[g, GOOD], noise, kept, seen) else 0.0
                active[g] = turn < 2 and moved > _SMALL_STEP * level and rest > _SMALL_REST * error
                if active[g]:
                    m, _, _ = _gather(values[first + g], offset, order, sample, d, e, places)
                    _minus_at(d, Qt, places, here[g], m)
                    about[g, LEVEL] = max(_quantile(np.abs(d[:m]), m, _LOW, e) / _LOW_NORMAL, about[g, FLOOR])
    return True


@_outer
def multiply_rows(c, back, out):  # c (m, r); back (r, k); out (m, k), set
    """Set out = c back; the bits of a row depend on nothing else, which BLAS does not promise."""
    for i in range(len(c)):
        for k in range(back.shape[1]):
            total = 0.0
            for h in range(len(back)):
                total += c[i, h] * back[h, k]
            out[i, k] = total
