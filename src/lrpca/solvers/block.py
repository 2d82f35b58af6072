"""A robust fit of one small dense block: several starts, reweighted alternation, one score.

The block is all of Y where that is small, else random rows and columns of it. Each start is annealed: rows and columns
are solved in turn by weighted least squares, with Tukey's weights ``(1 - (D / t)²)²`` and a threshold t that falls to
five times the noise. Fits are compared by their description length. So a wrong fit is told from a right one by one
number, whatever the outliers look like, and a surplus component has to pay for itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

# Outliers are coded as uniform over this many times the scale of the entries.
_RANGE = 10.0
# Fits closer than this part of a typical entry are equally good: the passes over Y do the rest.
_FINEST = 1e-4
# The threshold ends at so many σ, and falls by no more than this factor at a time.
_CUTOFF, _DECAY, _SLOW_DECAY = 5.0, 0.7, 0.85
_ITERATIONS, _REFITS, _REANNEALINGS = 60, 3, 4
_SAMPLED = 5000
_NEARLY_ALL = 0.97
# The alternation is at rest when the description length improves by less than this part.
_AT_REST = 1e-4
# Starts: winsorised at so many typical entries, or without entries above these quantiles.
_WINSORISED, _TRIMMED = (math.inf, 1.5), (0.5, 0.7)
# A value that more than this share of the entries have may be a code; so much has to be left without it.
_COMMON, _LEAST_USED = 0.02, 0.05
_IMPUTATIONS, _IMPUTATION_RIDGE, _RIDGE = 8, 1e-3, 1e-7
_LAD_ITERATIONS, _LAD_DECAY, _LAD_FINEST = 20, 0.7, 1e-2


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

    def residuals(self, L: Any, R: Any) -> Any:
        """Return |Y - L Rᵀ|, (n1, n2)."""
        return np.abs(self.values - L @ R.T)

    @cached_property
    def sampled(self) -> Any:
        """Flat indices of some observed entries, all where these are few: sorting them all would take the most time."""
        seen = np.flatnonzero(self.observed)
        return seen if len(seen) <= _SAMPLED else np.random.default_rng(0).choice(seen, _SAMPLED, replace=False)

    def description_length(
        self,
        D: Any,  # (n1, n2) moduli of residuals
        rank: int,
        *,
        exact: bool = True,
    ) -> tuple[float, float, float]:
        """Return the description length of residuals and rank, with the noise level and the kept share it implies.

        Each entry is either noise, coded by a Gaussian of width σ, or an outlier, coded by a uniform law; numbers of
        the fit are coded to the precision that the noise allows. σ minimises the sum.
        """
        D = np.sort(D[self.observed] if exact else D.ravel()[self.sampled])
        weight = float(np.count_nonzero(self.observed)) / len(D)
        n, squares, scale = len(D), np.cumsum(D * D), self.scale
        least = max(_FINEST * self.typical, 0.3 * self.least)
        kept = np.unique(np.linspace(0.05, 1, 60) * n).astype(int).clip(1)
        sigma = np.maximum(np.sqrt(squares[kept - 1] / kept), least)
        for _ in range(3):
            # Where both codes cost the same.
            limit = sigma * np.sqrt(2 * np.log(np.maximum(0.4 * _RANGE * scale / sigma, 1.5)))
            kept = np.searchsorted(D, limit, "right").clip(1)
            sigma = np.maximum(np.sqrt(squares[kept - 1] / kept), least)
        outliers = n - kept
        length = kept * (np.log(sigma / scale) + 0.5 * math.log(2 * math.pi)) + 0.5 * squares[kept - 1] / sigma**2
        length += outliers * math.log(_RANGE) - kept * np.log(kept / n)
        length -= outliers * np.log(np.maximum(outliers / n, 1 / n))
        length *= weight
        n1, n2 = self.values.shape
        numbers = rank * (n1 + n2 - rank)
        length += numbers * (np.maximum(np.log(scale / sigma), 0.0) + 0.25 * math.log(n1 * n2))
        best = int(np.argmin(length))
        return float(length[best]), float(sigma[best]), float(kept[best] / n)

    def scored(self, L: Any, R: Any) -> Fit:
        """Return factors with their score."""
        return Fit(L, R, *self.description_length(self.residuals(L, R), L.shape[1]))


def best_fit(block: Block, rank: int) -> Fit:
    """Return the best of all annealed starts, annealed again as long as that improves it."""
    return reannealed(block, min(fits(block, rank), key=lambda fit: fit.score))


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


def fits(block: Block, rank: int) -> Iterator[Fit]:
    """Return the annealed starts, one after the other."""
    for L, R, trusted in _starts(block, rank):
        yield anneal(block, L, R, 2 * float(np.quantile(block.residuals(L, R)[trusted], 0.8)))


def anneal(
    block: Block,
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    threshold: float,
    decay: float = _DECAY,
) -> Fit:
    """Return the fit that reweighted alternation leads to, while the threshold falls to a multiple of the noise."""
    Y, observed, rank = block.values, block.observed, L.shape[1]
    D, last, refits = block.residuals(L, R), math.inf, 0
    best: Fit | None = None
    for _ in range(_ITERATIONS):
        threshold = max(threshold, 1e-300)
        L = solve_rows(Y, _tukey(D, threshold, observed), R, _RIDGE, L)
        R = solve_rows(Y.T, _tukey(block.residuals(L, R), threshold, observed).T, L, _RIDGE, R)
        L, R = _balanced(L, R)
        D = block.residuals(L, R)
        fit = Fit(L, R, *block.description_length(D, rank, exact=False))
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


def solve_rows(
    Y: Any,  # (n1, n2)
    W: Any,  # (n1, n2) weights
    R: Any,  # (n2, r)
    ridge: float,
    L: Any = None,  # (n1, r) to lean on where weights say nothing; zero if not given
) -> Any:
    """Return each row's weighted least-squares coefficients, (n1, r)."""
    rank = R.shape[1]
    i, j = np.triu_indices(rank)
    products = W @ (R[:, i].conj() * R[:, j])
    grams = np.empty((len(Y), rank, rank), products.dtype)
    grams[:, j, i] = products.conj()
    grams[:, i, j] = products
    weight = ridge * float(np.vdot(R, R).real) / rank * max(float(np.mean(W)), 1e-3) + 1e-300
    grams[:, np.arange(rank), np.arange(rank)] += weight
    right = (W * Y) @ R.conj()
    if L is not None:
        right = right + weight * L
    return np.linalg.solve(grams, right[:, :, None])[:, :, 0]


def least_absolute_rows(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2)
    R: Any,  # (n2, r)
) -> Any:
    """Return each row's coefficients of least absolute deviations, (n1, r), by reweighting."""
    D, L = np.abs(Y), None
    floor = np.nanmedian(np.where(observed, D, np.nan), axis=1, keepdims=True)
    floor = np.where(floor > 0, floor, 1e-300)
    for _ in range(_LAD_ITERATIONS):
        L = solve_rows(Y, observed * (floor / np.maximum(D, floor)), R, _RIDGE, L)
        D = np.abs(Y - L @ R.T)
        floor = floor * _LAD_DECAY
    return L


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
    sizes, share = np.abs(Y), float(np.mean(observed))
    subsets = [observed & (sizes <= np.quantile(sizes[observed], quantile)) for quantile in _TRIMMED]
    common = _repeated(Y, observed)
    if common.any() and np.mean(observed & ~common) > _LEAST_USED:
        # Numbers that stand for missing or clipped entries.
        subsets.append(observed & ~common)
    for used in subsets:
        yield *_imputed(Y, used, rank), used
    L, R = None, None
    for limit in _WINSORISED:
        shrunk = Y if limit == math.inf else Y * np.minimum(1.0, limit * block.typical / np.maximum(sizes, 1e-300))
        L, R = _spectral(shrunk / share, rank)
        yield L, R, observed
    yield *_least_absolute(block, L, R), observed


def _repeated(Y: Any, observed: Any) -> Any:
    """Return which entries have a value that many others have too; none where all values are whole numbers."""
    values, counts = np.unique(Y[observed], return_counts=True)
    common = values[counts > _COMMON * observed.sum()]
    if len(values) < _COMMON * observed.sum():
        return np.zeros(Y.shape, bool)
    return observed & np.isin(Y, common)


def _imputed(Y: Any, used: Any, rank: int) -> tuple[Any, Any]:
    """Return a least-squares fit of the used entries."""
    L, R = _spectral(np.where(used, Y, 0) / max(float(np.mean(used)), 0.05), rank)
    weights = used.astype(float)
    for _ in range(_IMPUTATIONS):
        L = solve_rows(Y, weights, R, _IMPUTATION_RIDGE, L)
        R = solve_rows(Y.T, weights.T, L, _IMPUTATION_RIDGE, R)
        L, R = _balanced(L, R)
    return L, R


def _least_absolute(block: Block, L: Any, R: Any) -> tuple[Any, Any]:
    """Return a fit of least absolute deviations."""
    Y, observed = block.values, block.observed
    floor = float(np.median(block.residuals(L, R)[observed])) or block.typical
    for _ in range(_LAD_ITERATIONS):
        L = solve_rows(Y, observed * (floor / np.maximum(block.residuals(L, R), floor)), R, _RIDGE, L)
        R = solve_rows(Y.T, (observed * (floor / np.maximum(block.residuals(L, R), floor))).T, L, _RIDGE, R)
        L, R = _balanced(L, R)
        floor = max(_LAD_DECAY * floor, _LAD_FINEST * block.typical)
    return L, R


def _refitted(block: Block, L: Any, R: Any, threshold: float) -> tuple[Any, Any, bool]:
    """Return factors with rows and columns of least absolute deviations where these keep more entries."""
    Y, observed, better = block.values, block.observed, False
    for _ in range(2):
        new = least_absolute_rows(Y, observed, R)
        kept, was = (np.sum((np.abs(Y - F @ R.T) <= threshold) & observed, axis=1) for F in (new, L))
        wins = kept > was
        better |= bool(wins.any())
        L = np.where(wins[:, None], new, L)
        Y, observed, L, R = Y.T, observed.T, R, L
    return L, R, better
