"""A robust fit of some entries of one row by fixed components: x ≈ c P, with P (r, m) held in the cache.

Least absolute deviations by re-weighting, which a minority of gross outliers cannot move, then redescending steps at
the noise level of the entries themselves. Everything here is inlined into the kernels of `lrpca.kernels.regression`;
numba's cache on disk is renewed when *that* file changes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from lrpca.kernels.trimmed import kth_smallest

# Approximate steps of a quick fit, on the common Gram, and exact ones of a thorough fit; the bound of their weights
# falls by these factors each.
_APPROACH_STEPS, _APPROACH_FALL = 5, 0.6
_ABSOLUTE_STEPS, _ABSOLUTE_FALL = 15, 10 ** (-1 / 3)
_REDESCENDING_STEPS = 25
# Beyond so many median residuals entries have no weight at all: outliers on one side would hold the fit for long.
_APPROACH_CUT, _ABSOLUTE_CUT = 2.5, 2.0
# Kept are entries below so many levels; 35% of |N(0, 1)| lie below 0.4538, and outliers may fill the upper half.
KEEP_LEVELS = 4.0
LOW, LOW_NORMAL = 0.35, 0.4538
# Gross outliers must not decide the start: beyond so many times the median an entry counts like one there.
TYPICAL = 5.0
TINY = float(np.finfo(float).tiny)
_RIDGE = 1e-12
# A fit is trusted only if it keeps this share of each component.
_COMPONENT_SHARE = 0.45
# Levels closer than this are equal, and the fit that keeps more entries is better.
SAME_LEVEL = 0.9

FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
_INLINED: Any = {"fastmath": FASTMATH, "error_model": "numpy", "forceinline": True}
jit = numba.njit(nogil=True, **_INLINED)


# ------------------------------------------------------------------------------------------ small systems


@jit
def factorise(gram, work):
    """Set the lower triangle of `work` to Cholesky's factor of gram + ridge, of which the lower triangle is read."""
    rank = len(gram)
    trace = 0.0
    for k in range(rank):
        trace += gram[k, k]
    ridge = _RIDGE * trace + TINY
    for k in range(rank):
        for h in range(k + 1):
            total = gram[k, h] + (ridge if k == h else 0.0)
            for i in range(h):
                total -= work[k, i] * work[h, i]
            work[k, h] = np.sqrt(max(total, ridge)) if k == h else total / work[h, h]


@jit
def advance(work, side, step, c):
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
def minus(d, P, first, c, m):
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


@jit
def add_products(e, P, first, m, rank, sums):
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


@jit
def add_weighted_gram(P, m, w, spare, gram):
    """Set the lower triangle of gram = P W Pᵀ."""
    for k in range(len(P)):
        p = P[k]
        for t in range(m):
            spare[t] = w[t] * p[t]
        gram[k] = 0.0
        add_products(spare, P, 0, m, k + 1, gram[k])


@jit
def _residual(x, P, c, m, d, size):
    for t in range(m):
        d[t] = x[t]
    minus(d, P, 0, c, m)
    for t in range(m):
        size[t] = abs(d[t])


@jit
def quantile(size, m, share, spare):
    """Return the number below which this share of the first m sizes lies."""
    return kth_smallest(size[:m], min(int(share * m), m - 1), spare)


# ------------------------------------------------------------------------------------------ fits of m entries x by c P


@jit
def _approach(x, P, m, factor, c, scratch):
    """Set c to a rough fit: clipped least squares, then weights 1 / |d| below a cut, all with the Gram of all entries.

    Weights that have nothing to do with the components change the Gram by a factor, which is their mean.
    """
    d, size, _, spare, _, side, step = scratch
    c[:] = 0.0
    for k in range(_APPROACH_STEPS + 1):
        _residual(x, P, c, m, d, size)
        scale = quantile(size, m, 0.5, spare)
        bound, cut = max(scale * _APPROACH_FALL ** (k - 1), TINY), _APPROACH_CUT * scale
        if k == 0:
            # Entries beyond the bound count as if they were there.
            bound, cut = TYPICAL * scale if scale > 0 else np.inf, np.inf
        total = 0.0
        for t in range(m):
            weight = min(1.0, bound / size[t]) if size[t] <= cut else 0.0
            d[t] *= weight
            total += weight
        mean = total / m if k > 0 else 1.0
        side[:] = 0.0
        add_products(d, P, 0, m, len(c), side)
        for h in range(len(c)):
            side[h] /= mean
        advance(factor, side, step, c)


@jit
def _refine(x, P, m, floor, good, absolute, cut, c, factor, scratch):
    """Take so many `absolute` steps, least absolute deviations by re-weighting, then redescending ones until they rest.

    Return (level, kept). `factor` is that of the Gram of the kept entries.
    """
    d, size, w, spare, gram, side, step = scratch
    level, kept, resting = 0.0, 0, False
    for k in range(-1 if absolute else 0, absolute + _REDESCENDING_STEPS + 1):
        _residual(x, P, c, m, d, size)
        scale = quantile(size, m, 0.5 if k < absolute else LOW, spare)
        if k < 0:
            # The start: c = 0, and large entries count like typical ones.
            bound, limit = TYPICAL * scale if scale > 0 else np.inf, np.inf
        elif k < absolute:
            # Weights 1 / |d|, bounded; the bound falls as the fit settles.
            bound, limit = max(scale * _ABSOLUTE_FALL**k, TINY), cut * scale
        else:
            level = max(scale / LOW_NORMAL, floor)
            bound, limit = np.inf, KEEP_LEVELS * level
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
            add_weighted_gram(P, m, w, spare, gram)
            factorise(gram, factor)
        for t in range(m):
            spare[t] = w[t] * d[t]
        side[:] = 0.0
        add_products(spare, P, 0, m, len(c), side)
        advance(factor, side, step, c)
    return level, kept


@jit
def keeps_components(factor, shares):
    """Tell whether the kept entries hold enough of every component: pivots against the sums of squares of all."""
    good = True
    for k in range(len(shares)):
        good &= factor[k, k] * factor[k, k] >= _COMPONENT_SHARE * shares[k]
    return good


@jit
def fit(x, P, m, common, floor, good, attempts, shares, c, trial, factor, scratch):
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
        here = keeps_components(factor, shares)
        fine = here and level <= good
        if fine or level < SAME_LEVEL * best or (SAME_LEVEL * level <= best and kept >= most):
            best, most, whole = level, kept, here
            c[:] = trial
        if fine:
            break
    return best, most, whole
