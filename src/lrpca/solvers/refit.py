"""The refit of rows on a given factor: several starts, of which the one that costs least is taken.

Columns are the rows of the transposed matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.core.linalg import upper_triangle

RIDGE = 1e-7
LAD_ITERATIONS, LAD_DECAY = 20, 0.7
# Sets of entries that are tried, and how many residuals are held for some of them.
_SUBSETS, _TOGETHER = 64, 1 << 17
# Entries that are exchanged for others: the rejected ones of most leverage, so many of a row, in so many rounds. One is
# tried if no more than five kept entries say what it does.
_EXCHANGED, _ROUNDS, LEVERAGE = 6, 3, 0.2
# A fit is better if it costs less by so many nats. Residuals of so many cutoffs, and beyond, are gross.
_LESS, _GROSS = 0.1, 10.0


def refit_rows(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2)
    R: Any,  # (n2, r)
    L: Any,  # (n1, r) present coefficients
    cutoff: float,
) -> tuple[Any, Any]:
    """Return coefficients of each row, (n1, r), and which rows became better, (n1,).

    Rows that reject entries have three starts: the present coefficients, least absolute deviations, and the best of
    many minimal subsets (RANSAC). The fit that `costs` least, and so explains most, is taken. At last, rejected entries
    are exchanged for those that stand against them (`exchanged_rows`).
    """
    rows = np.flatnonzero((observed & (np.abs(Y - L @ R.T) > cutoff)).any(axis=1))
    best, better = L.copy(), np.zeros(len(L), bool)
    for refit in (_restarted_rows, exchanged_rows) if len(rows) else ():
        best[rows], improved = refit(Y[rows], observed[rows], R, best[rows], cutoff)
        better[rows] |= improved
    return best, better


def _restarted_rows(Y: Any, observed: Any, R: Any, L: Any, cutoff: float) -> tuple[Any, Any]:
    """Return the coefficients of each row that cost least, and which are better than the present ones."""
    before = costs(Y, observed, R, L, cutoff)
    best, least = L.copy(), before - _LESS
    for fresh in (least_absolute_rows(Y, observed, R), minimal_subset_rows(Y, observed, R, cutoff)):
        inliers = observed & (np.abs(Y - fresh @ R.T) <= cutoff)
        for start in (fresh, solve_rows(Y, inliers, R, RIDGE, fresh)):
            loss = costs(Y, observed, R, start, cutoff)
            better = loss < least
            best[better], least = start[better], np.where(better, loss, least)
    return best, least < before - _LESS


def exchanged_rows(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2)
    R: Any,  # (n2, r)
    L: Any,  # (n1, r) present coefficients
    cutoff: float,
) -> tuple[Any, Any]:
    """Return coefficients of each row, (n1, r), with rejected entries of high leverage fitted, and which are better.

    A component of few columns has few entries in a row. If outliers among them were fitted, clean ones are rejected,
    and the row's other entries do not show it. The coefficients change by ``G⁻¹ R_j D_j / (R_jᵀ G⁻¹ R_j)``: they fit
    entry j, and move the kept entries, whose normal equations are G, as little as possible.
    """
    L = L.copy()
    better, active = np.zeros(len(L), bool), np.arange(len(L))
    for _ in range(_ROUNDS):
        Ya, seen = Y[active], observed[active]
        D = Ya - L[active] @ R.T
        kept = seen & (np.abs(D) <= cutoff)
        inverse = np.linalg.pinv(_grams(kept, R, RIDGE**2), hermitian=True)
        leverage = np.sum((R @ inverse) * R.conj(), axis=2).real
        leverage = np.where(seen & ~kept, leverage, 0)
        if leverage.max(initial=0.0) <= LEVERAGE:
            break
        pivots = np.argpartition(-leverage, min(_EXCHANGED, leverage.shape[1]) - 1, axis=1)[:, :_EXCHANGED]
        before = costs(Ya, seen, R, L[active], cutoff)
        least = before - _LESS
        best = L[active]
        rows = np.arange(len(active))
        for j in pivots.T:
            high = leverage[rows, j]
            exposed = high > LEVERAGE
            length = np.where(exposed, D[rows, j], 0) / np.where(exposed, high, 1)
            fresh = L[active] + np.einsum("ikl,il->ik", inverse, R[j].conj()) * length[:, None]
            inliers = seen & (np.abs(Ya - fresh @ R.T) <= cutoff)
            fresh = solve_rows(Ya, inliers, R, RIDGE, fresh)
            loss = costs(Ya, seen, R, fresh, cutoff)
            wins = exposed & (loss < least)
            best, least = np.where(wins[:, None], fresh, best), np.where(wins, loss, least)
        won = least < before - _LESS
        L[active[won]], better[active[won]] = best[won], True
        active = active[won]
        if not len(active):
            break
    return L, better


def costs(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2)
    R: Any,  # (n2, r)
    L: Any,  # (..., n1, r)
    cutoff: float,
) -> Any:
    """Return the sum of ``½ log(1 + (D / cutoff)²)`` of each row, with the price of its coefficients, (..., n1).

    An outlier costs the logarithm of its distance: little where it is hardly beyond the cutoff, as in rows of more
    noise than others have. All gross ones cost the same. A coefficient costs the logarithm of how many times as large
    as the row the fit is: what explains a few outliers is often huge elsewhere.
    """
    D = np.minimum(np.abs(Y - L @ R.T) / max(cutoff, 1e-150), _GROSS)
    there = np.sum(observed * np.abs(Y) ** 2, axis=1) / np.maximum(observed.sum(axis=1), 1)
    fitted = np.sum((L @ (R.T @ R.conj())) * L.conj(), axis=-1).real / len(R)
    there = np.maximum(there, 1e-300)
    price = 0.5 * R.shape[1] * (np.log(there + fitted) - np.log(there))
    return 0.5 * np.sum(observed * np.log1p(D * D), axis=-1) + price


def solve_rows(
    Y: Any,  # (n1, n2)
    W: Any,  # (n1, n2) weights
    R: Any,  # (n2, r)
    ridge: float,
    L: Any = None,  # (n1, r) to lean on where weights say nothing; zero if not given
) -> Any:
    """Return each row's weighted least-squares coefficients, (n1, r)."""
    weight = _ridge(W, R, ridge)
    right = (W * Y) @ R.conj()
    if L is not None:
        right = right + weight * L
    return np.linalg.solve(_grams(W, R, ridge), right[:, :, None])[:, :, 0]


def _grams(W: Any, R: Any, ridge: float) -> Any:
    """Return the normal equations of each row, (n1, r, r)."""
    rank = R.shape[1]
    i, j = upper_triangle(rank)
    products = W @ (R[:, i].conj() * R[:, j])
    grams = np.empty((len(W), rank, rank), products.dtype)
    grams[:, j, i] = products.conj()
    grams[:, i, j] = products
    grams[:, np.arange(rank), np.arange(rank)] += _ridge(W, R, ridge)
    return grams


def _ridge(W: Any, R: Any, ridge: float) -> float:
    size = float(np.vdot(R, R).real)
    return ridge * size / int(R.shape[1]) * max(float(np.mean(W)), 1e-3) + 1e-300


def least_absolute_rows(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2)
    R: Any,  # (n2, r)
    iterations: int = LAD_ITERATIONS,
) -> Any:
    """Return each row's coefficients of least absolute deviations, (n1, r), by reweighting."""
    D, L = np.abs(Y), None
    seen = observed | ~observed.any(axis=1, keepdims=True)
    floor = np.nanmedian(np.where(seen, D, np.nan), axis=1, keepdims=True)
    floor = np.where(floor > 0, floor, 1e-300)
    for _ in range(iterations):
        L = solve_rows(Y, observed * (floor / np.maximum(D, floor)), R, RIDGE, L)
        D = np.abs(Y - L @ R.T)
        floor = floor * LAD_DECAY ** (LAD_ITERATIONS / iterations)
    return L


def minimal_subset_rows(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2)
    R: Any,  # (n2, r)
    cutoff: float,
) -> Any:
    """Return coefficients of each row, (n1, r), that interpolate as many of its entries as there are components.

    Of several such sets those that cost least (RANSAC): for rows in which outliers are the majority.
    """
    rng, (n, rank) = np.random.default_rng(0), R.shape
    best = np.zeros((len(Y), rank), np.result_type(Y, R))
    least = costs(Y, observed, R, best, cutoff)
    enough = observed.sum(axis=1) > rank
    complete, rows = bool(observed.all()), np.arange(len(Y))
    together = max(1, _TOGETHER // max(1, Y.size))
    for first in range(0, _SUBSETS if enough.any() else 0, together):
        count = min(together, _SUBSETS - first)
        if complete:
            chosen = np.array([rng.choice(n, rank, replace=False) for _ in range(count)])
            fresh = np.swapaxes(_interpolating(R[chosen], Y[:, chosen].transpose(1, 2, 0)), 1, 2)
        else:
            # Every row has its own, of what is observed of it.
            chosen = np.argpartition(rng.random((count, *Y.shape)) + ~observed, rank - 1, axis=2)[..., :rank]
            fresh = _interpolating(R[chosen], np.take_along_axis(Y[None], chosen, 2)[..., None])[..., 0]
        loss = costs(Y, observed, R, fresh, cutoff)
        best_of = loss.argmin(axis=0)
        better = enough & (loss[best_of, rows] < least)
        best[better], least = fresh[best_of, rows][better], np.where(better, loss[best_of, rows], least)
    return best


def _interpolating(A: Any, Y: Any) -> Any:  # A (..., r, r); Y (..., r, m)
    """Return the solution of A x = Y, by normal equations with a ridge: A may be singular."""
    adjoint = np.swapaxes(A.conj(), -1, -2)
    gram = adjoint @ A
    gram += (RIDGE**2 * np.trace(gram, axis1=-2, axis2=-1).real + 1e-300)[..., None, None] * np.eye(A.shape[-1])
    x = np.linalg.solve(gram, adjoint @ Y)
    return x + np.linalg.solve(gram, adjoint @ (Y - A @ x))
