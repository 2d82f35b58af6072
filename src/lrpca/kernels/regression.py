"""Robust regression of rows on fixed components, compiled: every row is fitted independently of the others.

A row is first fitted on a sample of its entries: x ≈ c P, with P (r, m) held in the cache. Least absolute deviations by
re-weighting, which a minority of gross outliers cannot move, come first; then redescending steps at the noise level of
the entries themselves. One to three redescending steps over all entries follow. Such a step reads the row once and
keeps nothing but sums: no array of the size of Y is made.

All sums of a row run over the same tiles in the same order, whatever its neighbours: its bits depend on it alone.
Serial, releasing the GIL; threads come on top. NaN marks a missing entry, and every comparison with it is False.
"""

from __future__ import annotations

import numba
import numpy as np

from lrpca.kernels.cpu import four_of, jit, outer, view_of
from lrpca.kernels.trimmed import kth_smallest

TILE = 768
# Rows that visit a tile together: its components come from the second-level cache once for them.
GROUP = 4
# Gathered entries are filled up to a multiple of this, so that vector loops leave no rest.
PADDING = 32
# What is known of a row: its level, the least and a good one, kept entries, whether the fit is to be trusted, whether
# the sample held all its entries, and whether its Gram is about that of all columns.
LEVEL, FLOOR, GOOD, KEPT, TRUSTED, SEEN_ALL, EVEN = range(7)
SUMMARY = 7

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

# Numba writes these out where they are called, and compiles them once.
_written_out = numba.njit(inline="always")


# ------------------------------------------------------------------------------------------ small systems


@jit
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


@jit
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


@jit
def _minus(d, P, width, c, m):
    """Set d -= c P, of which row k begins at k * width."""
    rank = len(c)
    k = rank % 4
    for h in range(k):
        a, p = c[h], view_of(P, h * width, m)
        for t in range(m):
            d[t] -= a * p[t]
    for chunk in range(rank // 4):
        h = k + 4 * chunk
        a0, a1, a2, a3 = four_of(c, h, 1)
        at = h * width
        p0, p1, p2 = view_of(P, at, m), view_of(P, at + width, m), view_of(P, at + 2 * width, m)
        p3 = view_of(P, at + 3 * width, m)
        for t in range(m):
            d[t] -= (a0 * p0[t] + a1 * p1[t]) + (a2 * p2[t] + a3 * p3[t])


@jit
def _set_products(e, P, width, m, rank, sums):
    """Set sums = P[:rank] @ e."""
    k = rank % 4
    for h in range(k):
        p = view_of(P, h * width, m)
        total = 0.0
        for t in range(m):
            total += e[t] * p[t]
        sums[h] = total
    for chunk in range(rank // 4):
        h = k + 4 * chunk
        at = h * width
        p0, p1, p2 = view_of(P, at, m), view_of(P, at + width, m), view_of(P, at + 2 * width, m)
        p3 = view_of(P, at + 3 * width, m)
        s0 = s1 = s2 = s3 = 0.0
        for t in range(m):
            x = e[t]
            s0 += x * p0[t]
            s1 += x * p1[t]
            s2 += x * p2[t]
            s3 += x * p3[t]
        sums[h], sums[h + 1], sums[h + 2], sums[h + 3] = s0, s1, s2, s3


@jit
def _factorise_weighted(P, width, m, w, spare, gram, factor):
    """Set `gram` to the lower triangle of P W Pᵀ, and `factor` to its factor."""
    rank = len(gram)
    for k in range(rank):
        p = view_of(P, k * width, m)
        for t in range(m):
            spare[t] = w[t] * p[t]
        _set_products(spare, P, width, m, k + 1, view_of(gram, k * rank, rank))
    _factorise(gram, factor)


# ------------------------------------------------------------------------------------------ fits of m entries x by c P


@_written_out
def _take_steps(x, P, width, m, common, floor, good, attempt, c, factor, scratch):
    """Set c to a fit by re-weighted least squares; return (level, kept).

    It begins with large entries counted like typical ones. Then come weights 1 / |d|, least absolute deviations, and
    redescending steps until they rest. A quick attempt takes its first steps with the Gram of all entries: weights that
    have nothing to do with the components change it by a factor, which is their mean. `factor` is that of the Gram of
    the kept entries.
    """
    d, size, w, spare, gram, side, step = scratch
    rank = len(c)
    quick = attempt == 0
    absolute = 0 if quick else _ABSOLUTE_STEPS
    start = -1 - _APPROACH_STEPS if quick else -1
    cut = _APPROACH_CUT if quick else (_ABSOLUTE_CUT if attempt == 1 else np.inf)
    fall = 1.0
    level, kept, resting = 0.0, 0, False
    for h in range(rank):
        c[h] = 0.0
    for k in range(start, absolute + _REDESCENDING_STEPS + 1):
        for t in range(m):
            d[t] = x[t]
        _minus(d, P, width, c, m)
        for t in range(m):
            size[t] = abs(d[t])
        scale = kth_smallest(size, m, int((0.5 if k < absolute else _LOW) * m), spare)
        if k == start:
            bound, limit = _TYPICAL * scale if scale > 0 else np.inf, np.inf
        elif k < absolute:
            # The bound of the weights falls as the fit settles.
            bound, limit = max(scale * fall, _TINY), cut * scale
            fall *= _APPROACH_FALL if quick else _ABSOLUTE_FALL
        else:
            level = max(scale / _LOW_NORMAL, floor)
            bound, limit = np.inf, _KEEP_LEVELS * level
        changed, kept, total = 0, 0, 0.0
        for t in range(m):
            weight = min(1.0, bound / size[t]) if size[t] <= limit else 0.0
            changed += 1 if weight != w[t] else 0
            kept += 1 if weight > 0 else 0
            total += weight
            w[t] = weight
        approaching = quick and k < 0
        if k > absolute and changed == 0:
            # One more step takes off what the ridge has left.
            if resting or level <= good:
                break
            resting = True
        elif not approaching:
            _factorise_weighted(P, width, m, w, spare, gram, factor)
        for t in range(m):
            spare[t] = w[t] * d[t]
        _set_products(spare, P, width, m, rank, side)
        if approaching and k > start:
            for h in range(rank):
                side[h] /= total / m
        _advance(common if approaching else factor, side, step, c)
    return level, kept


@_written_out
def _keeps_components(factor, shares):
    """Tell whether the kept entries hold enough of every component: pivots against the sums of squares of all."""
    good = True
    for k in range(len(shares)):
        good &= factor[k, k] * factor[k, k] >= _COMPONENT_SHARE * shares[k]
    return good


# ------------------------------------------------------------------------------------------ reading rows


@_written_out
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
def _load(y, offset, m, d):
    """Set d to entries; return how many are infinite."""
    infinite = 0
    for t in range(m):
        d[t] = np.float64(y[t])
    if len(offset):
        for t in range(m):
            d[t] -= offset[t]
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
def _gather_some(d, m, limit, others, tile, width, rank, places, panel):
    """Set a panel to the components of a tile where |d| <= limit, or of the `others`; return how many, and zeros."""
    count = 0
    for t in range(m):
        places[count] = t
        count += 1 if (abs(d[t]) <= limit) != others else 0
    # Vector loops have no rest to do one by one.
    padded = -(-count // PADDING) * PADDING
    for k in range(rank):
        q, p = view_of(tile, k * width, m), view_of(panel, k * (TILE + PADDING), padded)
        for t in range(count):
            p[t] = q[places[t]]
        for t in range(count, padded):
            p[t] = 0.0
    return padded


@jit
def _observed_square(d, q, m):
    """Return Σ q² over the observed entries."""
    total = 0.0
    for t in range(m):
        total += q[t] * q[t] if d[t] == d[t] else 0.0
    return total


@_written_out
def _trusted(level, good, noise, kept, seen):
    """Tell whether a fit explains enough of the observed entries, and not too badly, where the noise is known."""
    far = level > _FAR_LEVEL * good and noise > 0
    return kept >= (_GOOD_KEPT_SHARE if level <= good else _KEPT_SHARE) * seen and not far


# ------------------------------------------------------------------------------------------ what Python calls


@outer
def fit_samples(
    values,  # (m, n2) float32 or float64, NaN where missing
    offset,  # (n2,) taken off every row, or (0,)
    Qt,  # (r, n2 or more) orthonormal components
    order,  # (n2,) int: a sample of the entries of a row is the first observed ones in this order
    first,  # attempt: 0 is quick, 1 least absolute deviations below a cut, 2 the same without, for components on few
    last,  # columns
    noise,
    rounding,  # of the stored numbers, relative
    c,  # (m, r), set
    summary,  # (m, SUMMARY), set
    places,  # (sample,) int, and the rest: work memory
    P,  # (r, sample)
    vectors,  # (5, sample)
    squares,  # (3, r, r)
    shorts,  # (4, r)
):
    """Set c so that c Qt fits a sample of the uncorrupted entries of each row; return False if one is infinite."""
    rank, sample, n2 = len(Qt), len(places), values.shape[1]
    x, d, size, w, spare = vectors[0], vectors[1], vectors[2], vectors[3], vectors[4]
    gram, factor, common = squares[0], squares[1], squares[2]
    side, step, trial, shares = shorts[0], shorts[1], shorts[2], shorts[3]
    scratch = (d, size, w, spare, gram, side, step)
    flat = view_of(P, 0, rank * sample)
    complete = False
    for i in range(len(values)):
        about, own = summary[i], c[i]
        m, visited, infinite = _gather(view_of(values, i * n2, n2), offset, order, sample, x, size, places)
        if infinite:
            return False
        about[TRUSTED], about[SEEN_ALL] = 1.0, 1.0 if visited == len(order) else 0.0
        if m == 0:
            continue
        typical = kth_smallest(size, m, m // 2, spare)
        floor = max(noise, _ROUNDING * _TYPICAL * typical)
        good = _GOOD_LEVEL * max(floor, rounding * typical)
        # Rows without missing entries in the sample have its components in common.
        if not (complete and visited == m == sample):
            for k in range(rank):
                for t in range(m):
                    P[k, t] = Qt[k, places[t]]
            for t in range(m):
                w[t] = 1.0
            _factorise_weighted(flat, sample, m, w, spare, gram, common)
            for k in range(rank):
                shares[k] = gram[k, k]
            complete = visited == m == sample
        if m <= 2 * rank and visited == len(order):
            # Too few entries to tell outliers from the others: all count.
            _set_products(x, flat, sample, m, rank, side)
            _advance(common, side, step, own)
            continue
        best, most, whole = np.inf, 0, False
        for attempt in range(first, last + 1):
            level, kept = _take_steps(x, flat, sample, m, common, floor, good, attempt, trial, factor, scratch)
            here = _keeps_components(factor, shares)
            fine = here and level <= good
            if fine or level < SAME_LEVEL * best or (SAME_LEVEL * level <= best and kept >= most):
                best, most, whole = level, kept, here
                for k in range(rank):
                    own[k] = trial[k]
            if fine:
                break
        about[LEVEL], about[FLOOR], about[GOOD], about[KEPT] = best, floor, good, most
        about[TRUSTED] = 1.0 if whole and _trusted(best, good, noise, most, m) else 0.0
        about[EVEN] = 1.0 if most >= _EVEN_SHARE * visited else 0.0
    return True


@outer
def finish_fits(
    values,  # (m, n2) as above
    offset,  # (n2,) or (0,)
    Qt,  # (r, n2 or more)
    tile_grams,  # (tiles, r, r)
    order,  # (n2,) int
    sample,
    noise,  # 0 where it is not known
    c,  # (m, r), changed
    summary,  # (m, SUMMARY), changed
    places,  # (TILE or sample,) int, and the rest: work memory
    vectors,  # (2, TILE or sample)
    panel,  # (r, TILE + PADDING)
    sums,  # (2, r)
    factor,  # (r, r)
    by_row,  # (GROUP, 5)
    products,  # (GROUP, 2, r)
    grams,  # (GROUP, r, r)
):
    """Take redescending steps over all entries of rows fitted on a sample; return False if some entry is infinite.

    At most three. Q is orthonormal, so kept entries all over the row have the Gram (kept / n2) I, nearly; where steps
    with that do not converge, the last one has the normal equations of the row.
    """
    rank, width = Qt.shape
    n2 = values.shape[1]
    d, e, step, some = vectors[0], vectors[1], sums[0], sums[1]
    panel_width = panel.shape[1]
    pieces = view_of(panel, 0, rank * panel_width)
    for first in range(0, len(values), GROUP):
        rows = min(GROUP, len(values) - first)
        # By row: whether it goes on, trust, the length of the last step, and of this turn kept and observed entries.
        for g in range(rows):
            by_row[g, 0], by_row[g, 1] = 1.0 - summary[first + g, SEEN_ALL], summary[first + g, TRUSTED]
        for turn in range(3):
            left = 0.0
            for g in range(rows):
                left += by_row[g, 0]
                by_row[g, 3], by_row[g, 4] = 0.0, 0.0
                for k in range(rank):
                    products[g, 0, k], products[g, 1, k] = 0.0, 0.0
                    for h in range(rank):
                        grams[g, k, h] = 0.0
            if left == 0:
                break
            # The rows of a group visit a tile together. Added up are Q W d and, for some, Q W Qᵀ and the squares of Q.
            for tile in range(-(-n2 // TILE)):
                j0 = tile * TILE
                m = min(TILE, n2 - j0)
                Q = view_of(Qt, j0, rank * width - j0)
                tile_gram = tile_grams[tile]
                shift = view_of(offset, j0, m if len(offset) else 0)
                for g in range(rows):
                    if by_row[g, 0] == 0:
                        continue
                    i = first + g
                    limit = _KEEP_LEVELS * summary[i, LEVEL]
                    if _load(view_of(values, i * n2 + j0, m), shift, m, d) > 0:
                        return False
                    _minus(d, Q, width, c[i], m)
                    kept, seen = _keep(d, m, limit, e)
                    by_row[g, 3] += kept
                    by_row[g, 4] += seen
                    _set_products(e, Q, width, m, rank, some)
                    for k in range(rank):
                        products[g, 0, k] += some[k]
                    if turn < 2 and summary[i, EVEN] > 0:
                        continue
                    # The Gram of the kept entries is their sum, or the tile's less the sum of the others.
                    others = 2 * kept >= m
                    count = _gather_some(d, m, limit, others, Q, width, rank, places, pieces)
                    for k in range(rank):
                        _set_products(view_of(panel, k * panel_width, count), pieces, panel_width, count, k + 1, some)
                        for h in range(k + 1):
                            grams[g, k, h] += tile_gram[k, h] - some[h] if others else some[h]
                        square = tile_gram[k, k]
                        if seen < m:
                            square = _observed_square(d, view_of(Qt, k * width + j0, m), m)
                        products[g, 1, k] += square
            for g in range(rows):
                if by_row[g, 0] == 0:
                    continue
                own, about = c[first + g], summary[first + g]
                kept, seen, level = by_row[g, 3], by_row[g, 4], about[LEVEL]
                side = products[g, 0]
                whole = True
                if turn == 2 or about[EVEN] == 0:
                    _factorise(grams[g], factor)
                    whole = _keeps_components(factor, products[g, 1])
                else:
                    for k in range(rank):
                        for h in range(k):
                            factor[k, h] = 0.0
                        factor[k, k] = np.sqrt(max(kept / n2, _TINY))
                # By entry: how far the fit has moved, what there is still to come, and the error that noise leaves.
                moved = _advance(factor, side, step, own) / np.sqrt(n2)
                rest = moved * moved / max(by_row[g, 2], moved, _TINY) if turn > 0 else np.inf
                error = level * np.sqrt(rank / max(kept, 1.0))
                by_row[g, 2] = moved
                about[KEPT] = kept
                trusted = whole and _trusted(level, about[GOOD], noise, kept, seen)
                about[TRUSTED] = by_row[g, 1] if trusted else 0.0
                by_row[g, 0] = 0.0
                if turn < 2 and moved > _SMALL_STEP * level and rest > _SMALL_REST * error:
                    by_row[g, 0] = 1.0
                    row = view_of(values, (first + g) * n2, n2)
                    m, _, _ = _gather(row, offset, order, sample, d, e, places)
                    for k in range(rank):
                        for t in range(m):
                            d[t] -= own[k] * Qt[k, places[t]]
                    for t in range(m):
                        d[t] = abs(d[t])
                    about[LEVEL] = max(kth_smallest(d, m, int(_LOW * m), e) / _LOW_NORMAL, about[FLOOR])
    return True


@outer
def multiply_rows(c, back, out):  # c (m, r); back (r, k); out (m, k), set
    """Set out = c back; the bits of a row depend on nothing else, which BLAS does not promise."""
    for i in range(len(c)):
        for k in range(back.shape[1]):
            total = 0.0
            for h in range(len(back)):
                total += c[i, h] * back[h, k]
            out[i, k] = total
