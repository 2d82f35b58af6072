"""Lost rows and columns of many problems fitted anew, robustly, with the other factor fixed.

See `lrpca.solvers.checks.low_inlier_rows`: a row whose residuals are all beyond the cutoff gets no gradient and would
stay wrong for ever.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from lrpca.batch.algebra import orthonormal, solve_each
from lrpca.batch.stack import Stack, medians
from lrpca.core.linalg import tensor_svd

# Steps of least absolute deviations, few-entry fits to try, and steps of least squares on what is explained.
_ABSOLUTE_STEPS, _TRIES, _CLIPPED_STEPS = 12, 64, 4
# Residuals below this part of the median are weighted alike.
_ALIKE = 1e-3
# A fit is better that explains a tenth more entries.
_BETTER = 1.1
# Numbers that are worked on at a time.
_PIECE = 1 << 25
_TINY = 1e-300


def rescue_lost(
    stack: Stack,
    L: Any,  # (b, n1, r)
    R: Any,  # (b, n2, r)
    there: Any,  # (b, r) bool: components that are present
    lost: tuple[Any, Any],  # (b, n1), (b, n2) bool
    cutoff: Any,  # (b,)
) -> tuple[Any, Any, Any]:
    """Return L and R with lost rows and columns fitted anew where that explains clearly more, and who got better, (b,).

    The columns of what comes back are orthogonal again.
    """
    L, R = L.clone(), R.clone()
    better = torch.zeros(len(L), dtype=torch.bool, device=L.device)
    better |= _refit(stack.Y, stack.observed, L, R * there[:, None, :], there, lost[0], cutoff)
    flipped = None if stack.observed is None else stack.observed.transpose(1, 2)
    better |= _refit(stack.Y.transpose(1, 2), flipped, R, L * there[:, None, :], there, lost[1], cutoff)
    if bool(better.any()):
        at = torch.nonzero(better)[:, 0]
        L[at], R[at] = _orthogonal(L[at], R[at])
    return L, R, better


def alternatives(
    residuals: Any,  # (b, m, n) of some rows
    rejected: Any,  # (b, m, n) bool
    other: Any,  # (b, n, r)
    there: Any,  # (b, r) bool
    cutoff: Any,  # (b,)
) -> Any:
    """Return how many of the rejected entries of each row one other fit would explain, (b, m)."""
    b, m, n = residuals.shape
    count = max(1, _PIECE // (m * n * max(_TRIES, other.shape[2])))
    found = []
    for first in range(0, b, count):
        part = slice(first, first + count)
        values, seen = residuals[part].double().flatten(0, 1), rejected[part].flatten(0, 1)
        among, among_there, limit = (
            whole[part].repeat_interleave(m, dim=0) for whole in (other * there[:, None, :], there, cutoff[:, None])
        )
        fits = _robust(values, seen, among, among_there, limit)
        found.append(_explained(values, seen, among, fits, limit).reshape(-1, m))
    return torch.cat(found)


def _refit(
    Y: Any,  # (b, n, m)
    observed: Any,  # (b, n, m) bool, or None
    factor: Any,  # (b, n, r), changed in place
    other: Any,  # (b, m, r)
    there: Any,  # (b, r) bool
    lost: Any,  # (b, n) bool
    cutoff: Any,  # (b,)
) -> Any:
    """Fit lost rows anew; return which problems got better, (b,)."""
    better = torch.zeros(len(Y), dtype=torch.bool, device=Y.device)
    problem, row = torch.nonzero(lost, as_tuple=True)
    count = max(1, _PIECE // (other.shape[1] * max(_TRIES, other.shape[2])))
    for first in range(0, len(problem), count):
        p, i = problem[first : first + count], row[first : first + count]
        values = Y[p, i].double()
        seen = torch.ones_like(values, dtype=torch.bool) if observed is None else observed[p, i]
        among, limit = other[p], cutoff[p, None]
        old = factor[p, i]
        fresh = _robust(values, seen, among, there[p], limit)
        explained = [_explained(values, seen, among, fit, limit) for fit in (fresh, old * there[p])]
        improved = explained[0] > _BETTER * explained[1] + 1
        factor[p, i] = torch.where(improved[:, None] & there[p], fresh, old)
        better[p[improved]] = True
    return better


def _robust(
    values: Any,  # (m, n)
    seen: Any,  # (m, n) bool
    among: Any,  # (m, n, r)
    there: Any,  # (m, r) bool
    limit: Any,  # (m, 1)
) -> Any:
    """Return coefficients of rows that explain many entries, by least squares on these.

    Begun from least absolute deviations and, since more than half of a short row may be outliers, from the few-entry
    fit that explains the most.
    """
    starts = _absolute(values, seen, among, there), _consensus(values, seen, among, there, limit)
    counts = [_explained(values, seen, among, start, limit) for start in starts]
    coefficients = torch.where((counts[1] > counts[0])[:, None], starts[1], starts[0])
    for _ in range(_CLIPPED_STEPS):
        within = ((values - _times(among, coefficients)).abs() <= limit) & seen
        coefficients = _weighted(values, within.to(values.dtype), among, there)
    return coefficients


def _absolute(
    values: Any,  # (m, n)
    seen: Any,  # (m, n) bool
    among: Any,  # (m, n, r)
    there: Any,  # (m, r) bool
) -> Any:
    """Return coefficients of least absolute deviations, (m, r)."""
    weight = seen.to(values.dtype)
    coefficients = _weighted(values, weight, among, there)
    for _ in range(_ABSOLUTE_STEPS):
        sizes = (values - _times(among, coefficients)).abs()
        median = medians(torch.where(seen, sizes, math.nan))
        weight = seen / torch.clamp(torch.maximum(sizes, _ALIKE * median), min=_TINY)
        coefficients = _weighted(values, weight, among, there)
    return coefficients


def _consensus(
    values: Any,  # (m, n)
    seen: Any,  # (m, n) bool
    among: Any,  # (m, n, r)
    there: Any,  # (m, r) bool
    limit: Any,  # (m, 1)
) -> Any:
    """Return, of fits to as many entries as there are components, those that explain the most, (m, r)."""
    (m, n, r), tries = among.shape, _TRIES
    generator = torch.Generator().manual_seed(0)
    places = torch.rand(tries, n, generator=generator, device="cpu").argsort(dim=1)[:, :r].to(values.device)  # (t, r)
    few, sides = among[:, places] * seen[:, places, None], values[:, places]
    grams = few.transpose(2, 3) @ few + torch.diag_embed((~there).to(few.dtype))[:, None]
    found = solve_each(grams, (few.transpose(2, 3) @ sides[..., None])[..., 0]) * there[:, None]  # (m, t, r)
    sizes = (values[:, None, :] - found @ among.transpose(1, 2)).abs()
    best = ((sizes <= limit[:, :, None]) & seen[:, None, :]).sum(dim=2).argmax(dim=1)
    return found[torch.arange(m, device=values.device), best]


def _explained(
    values: Any,  # (m, n)
    seen: Any,  # (m, n) bool
    among: Any,  # (m, n, r)
    coefficients: Any,  # (m, r)
    limit: Any,  # (m, 1)
) -> Any:
    """Return how many entries of each row are within the limit, (m,)."""
    return (((values - _times(among, coefficients)).abs() <= limit) & seen).sum(dim=1)


def _weighted(
    values: Any,  # (m, n)
    weight: Any,  # (m, n)
    among: Any,  # (m, n, r)
    there: Any,  # (m, r) bool
) -> Any:
    """Return the coefficients of weighted least squares, (m, r)."""
    weight = weight / torch.clamp(weight.amax(dim=1, keepdim=True), min=_TINY)
    weighted = among * weight[:, :, None]
    grams = torch.bmm(weighted.transpose(1, 2), among)
    # Components that are not there have zeros in their Gram.
    grams = grams + torch.diag_embed((~there).to(grams.dtype))
    sides = torch.bmm(weighted.transpose(1, 2), values[:, :, None])[:, :, 0]
    return solve_each(grams[:, None], sides[:, None])[:, 0] * there


def _times(
    among: Any,  # (m, n, r)
    coefficients: Any,  # (m, r)
) -> Any:
    return torch.bmm(among, coefficients[:, :, None])[:, :, 0]


def _orthogonal(
    L: Any,  # (b, n1, r)
    R: Any,  # (b, n2, r)
) -> tuple[Any, Any]:
    """Return factors U Σ^½ and V Σ^½ of the same products."""
    Q_L, Q_R = orthonormal(L), orthonormal(R)
    core = torch.bmm(Q_L.transpose(1, 2), L) @ torch.bmm(Q_R.transpose(1, 2), R).transpose(1, 2)
    U, values, Vh = tensor_svd(core)
    root = torch.sqrt(values)[:, None, :]
    return torch.bmm(Q_L, U) * root, torch.bmm(Q_R, Vh.transpose(1, 2)) * root
