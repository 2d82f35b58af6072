"""A robust fit of one small dense block: several starts, reweighted alternation, one score.

The block is all of Y where that is small, else random rows and columns of it. Each start is annealed: rows and columns
are solved in turn by weighted least squares, with Tukey's weights ``(1 - (D / t)²)²`` and a threshold t that falls to
five times the noise. Fits are compared by their description length. So a wrong fit is told from a right one by one
number, whatever the outliers look like, and a surplus component has to pay for itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lrpca.solvers.refit import LAD_DECAY, LAD_ITERATIONS, RIDGE, least_absolute_rows, refit_rows, solve_rows

# Outliers are coded as uniform over this many times the scale of the entries.
_RANGE = 10.0
# Fits closer than this part of a typical entry are equally good: the passes over Y do the rest.
_FINEST = 1e-4
# The threshold ends at so many σ, and falls by no more than this factor at a time.
_CUTOFF, _DECAY, _SLOW_DECAY = 5.0, 0.7, 0.85
_ITERATIONS, _REFITS, _REANNEALINGS = 60, 3, 4
# A better fit is shorter by this many nats for each entry of the block.
_CLEARLY = 1e-3
# Price of a number beyond its digits, in nats: a component pays from 1.3 times the largest singular value of noise on.
_PRICE = 1.5
# Entries whose leading singular value is so far above that of independent ones form a pattern.
ALIGNED = 4.0
# More than this share of a row is its majority; entries below so many σ are zero.
_MAJORITY, _NOT_ZERO = 0.5, 0.5
# Where the rank is given, a component that saves so many nats for each entry counts if the fit rejects no larger part
# of what was kept.
_FAR_SHORTER, _NESTED = 0.05, 0.005
# Residuals within so many σ are no outliers.
_WITHIN = 3.0
# Rows that keep less than this part of what the median row keeps are refitted.
_FEW_INLIERS = 0.8
_SAMPLED = 5000
_NEARLY_ALL = 0.97
# The alternation is at rest when the description length improves by less than this part.
_AT_REST = 1e-4
# The starts of halves, by number: winsorised, without large entries, and without values that many entries share.
HALF_STARTS = 0, 1, 2
# A start is winsorised at so many typical entries.
_WINSORISED = 1.5
# A value that more than this share of the entries have may be a code; so much has to be left without it.
_COMMON, _LEAST_USED = 0.02, 0.05
_IMPUTATIONS, _SLOWLY, _IMPUTATION_RIDGE, _LAD_FINEST = 60, 0.97, 1e-3, 1e-2


class Fit(NamedTuple):
    """A fit of a block; `score` is its description length in nats, smaller is better."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    score: float
    sigma: float
    kept: float


@dataclass(frozen=True)
class Block:
    """Entries of Y at some rows and columns."""

    values: Any  # (n1, n2), 0 where missing
    observed: Any  # (n1, n2)
    least: float = 0.0  # quantisation step
    price: float = 1.0  # of the numbers of a fit
    rank_is_given: bool = False

    @cached_property
    def typical(self) -> float:
        """Median modulus of the entries that are not zero."""
        sizes = np.abs(self.values[self.observed])
        sizes = sizes[sizes > 0]
        return float(np.median(sizes)) if sizes.size else 1.0

    @cached_property
    def scale(self) -> float:
        """Root mean square of the entries, the largest of them cut to five typical ones."""
        sizes = np.minimum(np.abs(self.values[self.observed]), 5 * self.typical)
        return float(np.sqrt(np.mean(sizes**2))) or 1.0

    @cached_property
    def uncoded(self) -> Any:
        """Which observed entries have no value that many others have: such may stand for missing or clipped entries.

        Zeros count where they are scattered: those that fill blocks may be those of X. None where there are no such
        values, or hardly any others, or where all values are whole numbers.
        """
        values, counts = np.unique(self.values[self.observed], return_counts=True)
        entries = int(counts.sum())
        codes = values[counts > _COMMON * entries]
        if 0 in codes and alignment(self.values == 0, self.observed) > ALIGNED:
            codes = codes[codes != 0]
        other = self.observed & ~np.isin(self.values, codes)
        few = len(values) < _COMMON * entries or np.mean(other) < _LEAST_USED
        return None if len(codes) == 0 or few else other

    def without_codes(self) -> Block | None:
        """Return the block of the uncoded entries, if there are others."""
        used = self.uncoded
        return None if used is None else replace(self, values=self.values * used, observed=used)

    def residuals(self, L: Any, R: Any) -> Any:
        """Return |Y - L Rᵀ|, (n1, n2)."""
        return np.abs(self.values - L @ R.T)

    @cached_property
    def sampled(self) -> Any:
        """Flat indices of some observed entries, all where these are few: sorting them all would take the most time."""
        seen = np.flatnonzero(self.observed)
        return seen if len(seen) <= _SAMPLED else np.random.default_rng(0).choice(seen, _SAMPLED, replace=False)

    def scored(self, L: Any, R: Any, among: Any = None) -> Fit:
        """Return factors, of orthogonal columns, with their score; that of the entries `among` others if given.

        Each entry is either noise, coded by a Gaussian of width σ, or an outlier, coded by a uniform law. σ minimises
        the sum of these codes and of that of the factors.
        """
        return self._fit(L, R, self.residuals(L, R)[self.observed if among is None else among])

    def roughly_scored(self, L: Any, R: Any, D: Any) -> Fit:
        """Return factors with the score of a sample of their residuals."""
        return self._fit(L, R, D.ravel()[self.sampled], self.entries)

    @cached_property
    def entries(self) -> int:
        """How many entries are observed."""
        return int(np.count_nonzero(self.observed))

    def _fit(
        self,
        L: Any,
        R: Any,
        D: Any,  # (m,) moduli of residuals, a sample of so many
        entries: int | None = None,
    ) -> Fit:
        D = np.sort(D)
        n, squares, scale = len(D), np.cumsum(D * D), self.scale
        least = max(_FINEST * self.typical, 0.3 * self.least)
        kept = np.unique(np.linspace(0.05, 1, 60) * n).astype(int).clip(1)
        sigma = np.maximum(np.sqrt(squares[kept - 1] / kept), least)
        for _ in range(3):
            kept = np.searchsorted(D, self.limit(sigma), "right").clip(1)
            sigma = np.maximum(np.sqrt(squares[kept - 1] / kept), least)
        outliers = n - kept
        length = kept * (np.log(sigma / scale) + 0.5 * math.log(2 * math.pi)) + 0.5 * squares[kept - 1] / sigma**2
        length += outliers * math.log(_RANGE) - kept * np.log(kept / n)
        length -= outliers * np.log(np.maximum(outliers / n, 1 / n))
        length *= (entries or n) / n
        # Numbers of a common size are decisive for σ, and quicker.
        (n1, rank), n2 = L.shape, len(R)
        common = rank * (n1 + n2) * (np.maximum(np.log(scale / sigma), 0.0) + 0.25 * math.log(n1 * n2))
        best = int(np.argmin(length + common))
        numbers = self.price * _length_of_numbers(L, R, float(sigma[best]))
        return Fit(L, R, float(length[best]) + numbers, float(sigma[best]), float(kept[best] / n))

    def limit(self, sigma: Any) -> Any:
        """Return the residual at which both codes cost the same."""
        return sigma * np.sqrt(2 * np.log(np.maximum(0.4 * _RANGE * self.scale / sigma, 1.5)))

    def is_better(self, one: Fit, other: Fit) -> bool:
        """Tell whether one fit is clearly better than another: of two that are alike, the one of fewer components."""
        if one.L.shape[1] >= other.L.shape[1]:
            return self.prefers(one, other)
        return not self.prefers(other, one)

    def prefers(self, more: Fit, fewer: Fit) -> bool:
        """Tell whether a fit is better than one of no more components.

        Outliers are a minority of their row and of their column. So to explain what `fewer` rejects earns nothing where
        it explains the majority of the row and of the column: such a component is made of outliers, whatever pattern
        they form. Entries that are zero, but for the noise, do not make a majority: no component explains them. But a
        component that the given rank allows counts if it saves much, and `more` keeps what `fewer` keeps.
        """
        margin = _CLEARLY * self.values.size
        if more.L.shape == fewer.L.shape:
            return bool(more.score < fewer.score - margin)
        D = self.residuals(fewer.L, fewer.R)
        kept = self.observed & (D <= self.limit(fewer.sigma))
        saved = (fewer.score - more.score) / self.values.size
        if self.rank_is_given and saved > _FAR_SHORTER * (more.L.shape[1] - fewer.L.shape[1]):
            dropped = kept & (self.residuals(more.L, more.R) > self.limit(more.sigma))
            if dropped.sum() <= _NESTED * kept.sum():
                return True
        explained = kept & (np.abs(fewer.L @ fewer.R.T) > _NOT_ZERO * fewer.sigma)
        rows, columns = (explained.sum(axis) > _MAJORITY * self.observed.sum(axis) for axis in (1, 0))
        counted = kept | (self.observed & ~(rows[:, None] & columns))
        return bool(self.scored(*more[:2], counted).score < self.scored(*fewer[:2], counted).score - margin)


def _length_of_numbers(L: Any, R: Any, sigma: float) -> float:
    """Return the description length of factors, each number coded to the precision that the noise allows.

    A coefficient below the noise, as most are in sparse factors, costs next to nothing.
    """
    total = 0.0
    for factor, other in ((L, R), (R, L)):
        ratios = np.abs(factor) ** 2 * np.sum(np.abs(other) ** 2, axis=0) / sigma**2
        total += float(np.sum(0.5 * np.log1p(ratios) + _PRICE * ratios / (1 + ratios)))
    return total


def reannealed(block: Block, fit: Fit) -> Fit:
    """Return a fit annealed again, more slowly, from a threshold above nearly all residuals, while it improves.

    Parts of X that few entries tie together agree only after many iterations: a threshold that falls faster rejects
    these entries.
    """
    for _ in range(_REANNEALINGS):
        threshold = 2 * float(np.quantile(block.residuals(fit.L, fit.R)[block.observed], _NEARLY_ALL))
        other = anneal(block, fit.L, fit.R, threshold, _SLOW_DECAY)
        if other.score > fit.score - _AT_REST * abs(fit.score):
            return min(fit, other, key=lambda one: one.score)
        fit = other
    return fit


def refitted(block: Block, fit: Fit) -> Fit:
    """Return a fit with all its rows and columns refitted, then annealed, while it improves."""
    for _ in range(_REFITS):
        cutoff = min(_CUTOFF * fit.sigma, block.limit(fit.sigma))
        L, _ = refit_rows(block.values, block.observed, fit.R, fit.L, cutoff)
        R, _ = refit_rows(block.values.T, block.observed.T, L, fit.R, cutoff)
        other = anneal(block, *_balanced(L, R), _CUTOFF * fit.sigma)
        if other.score > fit.score - _AT_REST * block.values.size:
            return min(fit, other, key=lambda one: one.score)
        fit = other
    return fit


def polished(block: Block, fit: Fit) -> Fit:
    """Return what a fit leads to at the threshold of the noise: fits of one block are compared at rest."""
    return min(fit, anneal(block, fit.L, fit.R, _CUTOFF * fit.sigma), key=lambda one: one.score)


def fits(block: Block, rank: int, count: int | None = None) -> Iterator[Fit]:
    """Return the annealed starts, or so many of them, one after the other."""
    for L, R, trusted in itertools.islice(_starts(block, rank), count):
        yield annealed_from(block, L, R, trusted)


def from_half(block: Block, rank: int, rng: np.random.Generator, start: int, *, of_rows: bool) -> Fit:
    """Return the fit that the numbered start of a random half of the rows (or columns) leads to.

    The other half is regressed on it by least absolute deviations. A right fit is found again from most halves; a wrong
    one, which owes its place to the start, from hardly any.
    """
    # In place of the last start, values that many entries share are left out.
    uncoded = block.uncoded if start == HALF_STARTS[-1] else None
    start, used = (start, block.observed) if uncoded is None else (0, uncoded)
    Y, observed = (block.values, used) if of_rows else (block.values.T, used.T)
    # Of rows that hold something, by what they hold, so that their order does not matter.
    there = np.flatnonzero(observed.any(axis=1))
    order = there[np.argsort(np.cos(np.abs(Y[there]) / block.typical).sum(axis=1), kind="stable")]
    half = order[rng.choice(len(order), max(len(order) // 2, min(len(order), 2 * rank + 2)), replace=False)]
    part = replace(block, values=Y[half] * observed[half], observed=observed[half])
    *_, first = fits(part, min(rank, *part.values.shape), start + 1)
    mine = least_absolute_rows(Y, observed, first.R)
    L, R = _balanced(*((mine, first.R) if of_rows else (first.R, mine)))
    # Above most residuals of what the first fit explains.
    D = block.residuals(L, R)[used]
    return anneal(block, L, R, max(_CUTOFF * first.sigma, 2 * float(np.quantile(D, 0.8 * first.kept))))


def annealed_from(block: Block, L: Any, R: Any, trusted: Any = None, least: float = 0.0) -> Fit:
    """Return the fit that a start leads to, from a threshold of at least so much, above most `trusted` residuals.

    Zeros do not count: most entries of sparse data are zero, and most fits explain them.
    """
    counted = (block.observed if trusted is None else trusted) & (block.values != 0)
    D = block.residuals(L, R)[counted if counted.any() else block.observed]
    return anneal(block, L, R, max(least, 2 * float(np.quantile(D, 0.8))))


def widened(block: Block, fit: Fit, rank: int) -> Fit:
    """Return the best fit that leading components of the residual lead to as additional ones.

    The residual is winsorised at the noise, where weak components show, and at the typical size of what is rejected,
    where those of rejected rows do.
    """
    D = np.where(block.observed, block.values - fit.L @ fit.R.T, 0)
    sizes = np.abs(D)
    rejected = sizes[sizes > block.limit(fit.sigma)]
    wide = []
    for level in (_WITHIN * fit.sigma, *([float(np.median(rejected))] if rejected.size else [])):
        clipped = D * np.minimum(1.0, level / np.maximum(sizes, 1e-300)) / float(np.mean(block.observed))
        L, R = _spectral(clipped, rank - fit.L.shape[1])
        wide.append(annealed_from(block, np.hstack([fit.L, L]), np.hstack([fit.R, R]), least=2 * level))
    return min(wide, key=lambda one: one.score)


def narrowed(block: Block, fit: Fit, rank: int) -> Fit:
    """Return the fit that the strongest components lead to without the others."""
    L, R = _balanced(fit.L, fit.R)
    return annealed_from(block, L[:, :rank], R[:, :rank])


def anneal(
    block: Block,
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    threshold: float,
    decay: float = _DECAY,
) -> Fit:
    """Return the fit that reweighted alternation leads to, while the threshold falls to a multiple of the noise."""
    Y, observed = block.values, block.observed
    D, last, refits = block.residuals(L, R), math.inf, 0
    best: Fit | None = None
    for _ in range(_ITERATIONS):
        threshold = max(threshold, 1e-300)
        L = solve_rows(Y, _tukey(D, threshold, observed), R, RIDGE, L)
        R = solve_rows(Y.T, _tukey(block.residuals(L, R), threshold, observed).T, L, RIDGE, R)
        L, R = _balanced(L, R)
        D = block.residuals(L, R)
        fit = block.roughly_scored(L, R, D)
        if best is None or fit.score < best.score:
            best = fit
        lower = max(decay * threshold, min(threshold, _CUTOFF * fit.sigma))
        if lower > 0.99 * threshold and last - fit.score < _AT_REST * abs(fit.score):
            if refits == _REFITS:
                break
            refits += 1
            L, R, better = _refitted(block, L, R, threshold)
            if not better:
                break
            D = block.residuals(L, R)
        threshold, last = lower, fit.score
    assert best is not None
    return block.scored(best.L, best.R)


def alignment(
    A: Any,  # (n1, n2)
    counted: Any,  # (n1, n2) bool
) -> float:
    """Return how far the leading singular value of entries, less their mean, is above that of independent ones.

    In units of ``n^(-2/3)``, in which the largest one of random matrices varies (Tracy and Widom).
    """
    A = np.where(counted, A - np.mean(A, where=counted), 0) if counted.any() else np.zeros(A.shape)
    power = float(np.vdot(A, A).real) / A.size
    if power == 0:
        return 0.0
    n1, n2 = A.shape
    gram = A.T @ A.conj() if n1 > n2 else A @ A.conj().T
    leading = math.sqrt(float(np.linalg.eigvalsh(gram)[-1]))
    excess = leading / (math.sqrt(power) * (math.sqrt(n1) + math.sqrt(n2))) - 1
    return float(excess * min(n1, n2) ** (2 / 3))


def _tukey(D: Any, threshold: float, observed: Any) -> Any:
    return observed * (1 - np.minimum(D / threshold, 1.0) ** 2) ** 2


def _balanced(L: Any, R: Any) -> tuple[Any, Any]:
    """Return the same product as UΣ^½, V̄Σ^½."""
    (QL, TL), (QR, TR) = np.linalg.qr(L), np.linalg.qr(R)
    U, s, Vt = np.linalg.svd(TL @ TR.T)
    return QL @ U * np.sqrt(s), QR @ Vt.T * np.sqrt(s)


def _spectral(Z: Any, rank: int) -> tuple[Any, Any]:
    U, s, Vt = np.linalg.svd(Z, full_matrices=False)
    return U[:, :rank] * np.sqrt(s[:rank]), Vt[:rank].T * np.sqrt(s[:rank])


def _starts(block: Block, rank: int) -> Iterator[tuple[Any, Any, Any]]:
    """Yield factors and the entries that they were made from."""
    Y, observed = block.values, block.observed
    share, uncoded = float(np.mean(observed)), block.uncoded
    winsorised = Y * np.minimum(1.0, _WINSORISED * block.typical / np.maximum(np.abs(Y), 1e-300))
    yield *(start := _spectral(winsorised / share, rank)), observed
    small = observed & (np.abs(Y) <= block.typical)
    yield *_imputed(Y, small, rank), small
    yield *(_spectral(Y, rank) if share == 1 else _imputed(Y, observed, rank)), observed
    if uncoded is not None:
        yield *_imputed(Y, uncoded, rank), uncoded
    yield *_least_absolute(block, *start), observed


def _imputed(Y: Any, used: Any, rank: int) -> tuple[Any, Any]:
    """Return a least-squares fit of the used entries."""
    L, R = _spectral(np.where(used, Y, 0) / max(float(np.mean(used)), 0.05), rank)
    weights = used.astype(float)
    last = math.inf
    for _ in range(_IMPUTATIONS):
        L = solve_rows(Y, weights, R, _IMPUTATION_RIDGE, L)
        R = solve_rows(Y.T, weights.T, L, _IMPUTATION_RIDGE, R)
        L, R = _balanced(L, R)
        loss = float(np.linalg.norm((Y - L @ R.T) * weights))
        if loss > _SLOWLY * last:
            break
        last = loss
    return L, R


def _least_absolute(block: Block, L: Any, R: Any) -> tuple[Any, Any]:
    """Return a fit of least absolute deviations."""
    Y, observed = block.values, block.observed
    floor = float(np.median(block.residuals(L, R)[observed])) or block.typical
    for _ in range(LAD_ITERATIONS):
        L = solve_rows(Y, observed * (floor / np.maximum(block.residuals(L, R), floor)), R, RIDGE, L)
        R = solve_rows(Y.T, (observed * (floor / np.maximum(block.residuals(L, R), floor))).T, L, RIDGE, R)
        L, R = _balanced(L, R)
        floor = max(LAD_DECAY * floor, _LAD_FINEST * block.typical)
    return L, R


def _refitted(block: Block, L: Any, R: Any, threshold: float) -> tuple[Any, Any, bool]:
    """Return factors with low-inlier rows and columns of least absolute deviations where these keep more entries."""
    Y, observed, better = block.values, block.observed, False
    for _ in range(2):
        kept = np.sum((np.abs(Y - L @ R.T) <= threshold) & observed, axis=1)
        share = kept / np.maximum(observed.sum(axis=1), 1)
        few = np.flatnonzero(share < _FEW_INLIERS * np.median(share))
        if len(few):
            new = least_absolute_rows(Y[few], observed[few], R)
            wins = np.sum((np.abs(Y[few] - new @ R.T) <= threshold) & observed[few], axis=1) > kept[few]
            better |= bool(wins.any())
            L = L.copy()
            L[few[wins]] = new[wins]
        Y, observed, L, R = Y.T, observed.T, R, L
    return L, R, better
