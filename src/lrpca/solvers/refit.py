"""The refit of rows on a given factor: several starts, of which the one with the least bounded loss is taken.

Columns are the rows of the transposed matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

RIDGE = 1e-7
LAD_ITERATIONS, LAD_DECAY = 20, 0.7
# Sets of entries that are tried.
_SUBSETS = 64


def refit_rows(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2)
    R: Any,  # (n2, r)
    L: Any,  # (n1, r) present coefficients
    cutoff: float,
    margin: float = 0.0,
) -> tuple[Any, Any]:
    """Return coefficients of each row, (n1, r), and which rows became better, (n1,).

    The starts are the present coefficients, least absolute deviations, and the best of many minimal subsets (RANSAC).
    Each entry costs ``min(D / cutoff, 1)²``, so a row gains where more entries are within the cutoff: by more than one,
    and this `margin` of those before. The entries of its subset are no evidence for a fit.
    """
    before = bounded_loss(Y, observed, R, L, cutoff)
    entries, best, least = observed.sum(axis=1), L.copy(), before
    starts = least_absolute_rows(Y, observed, R), minimal_subset_rows(Y, observed, R, cutoff)
    for fresh, fitted in zip(starts, (0, R.shape[1]), strict=True):
        loss = bounded_loss(Y, observed, R, fresh, cutoff) + fitted
        better = (loss < least) & (entries - loss > (1 + margin) * (entries - before) + 1)
        best[better], least = fresh[better], np.where(better, loss, least)
    return best, least < before


def bounded_loss(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2)
    R: Any,  # (n2, r)
    L: Any,  # (n1, r)
    cutoff: float,
) -> Any:
    """Return the sum of ``min(D / cutoff, 1)²`` over each row, (n1,)."""
    return np.sum(observed * np.minimum(np.abs(Y - L @ R.T) / max(cutoff, 1e-300), 1.0) ** 2, axis=1)


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

    Of several such sets those of the least bounded loss (RANSAC): for rows in which outliers are the majority.
    """
    rng, (n, rank) = np.random.default_rng(0), R.shape
    best = np.zeros((len(Y), rank), np.result_type(Y, R))
    least = bounded_loss(Y, observed, R, best, cutoff)
    enough = observed.sum(axis=1) > rank
    complete = bool(observed.all())
    tiny = RIDGE**2 * np.abs(R).max(initial=0.0) * np.eye(rank)
    for _ in range(_SUBSETS if enough.any() else 0):
        if complete:
            chosen = rng.choice(n, rank, replace=False)
            fresh = np.linalg.solve(R[chosen] + tiny, Y[:, chosen].T).T
        else:
            # Every row has its own, of what is observed of it.
            chosen = np.argpartition(rng.random(Y.shape) + ~observed, rank - 1, axis=1)[:, :rank]
            fresh = np.linalg.solve(R[chosen] + tiny, np.take_along_axis(Y, chosen, 1)[:, :, None])[:, :, 0]
        loss = bounded_loss(Y, observed, R, fresh, cutoff)
        better = enough & (loss < least)
        best[better], least = fresh[better], np.where(better, loss, least)
    return best
