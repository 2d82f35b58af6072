"""Robust refits of low-inlier rows and columns of many problems, with the other factor fixed.

See `lrpca.solvers.checks.low_inlier_rows`: a row whose residuals are all beyond the cutoff gets no gradient and would
stay wrong for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from lrpca.batch.algebra import orthonormal, solve_each
from lrpca.batch.stack import Stack, medians, pieces
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


def refit_low_inlier(
    stack: Stack,
    L: Any,  # (b, n1, r)
    R: Any,  # (b, n2, r)
    there: Any,  # (b, r) bool: components that are present
    low_inlier: tuple[Any, Any],  # (b, n1), (b, n2) bool
    cutoff: Any,  # (b,)
) -> tuple[Any, Any, Any]:
    """Return L and R with low-inlier rows and columns refitted where that explains more, and which improved, (b,).

    The columns of what comes back are orthogonal again.
    """
    L, R = L.clone(), R.clone()
    better = torch.zeros(len(L), dtype=torch.bool, device=L.device)
    better |= _refit(stack.Y, stack.observed, L, R * there[:, None, :], there, low_inlier[0], cutoff)
    flipped = None if stack.observed is None else stack.observed.transpose(1, 2)
    better |= _refit(stack.Y.transpose(1, 2), flipped, R, L * there[:, None, :], there, low_inlier[1], cutoff)
    if bool(better.any()):
        at = torch.nonzero(better)[:, 0]
        L[at], R[at] = _orthogonal(L[at], R[at])
    return L, R, better


def _refit(Y: Any, observed: Any, factor: Any, other: Any, there: Any, low_inlier: Any, cutoff: Any) -> Any:
    """Refit the low-inlier rows (b, n) of `factor` (b, n, r) in place; return which problems improved, (b,)."""
    better = torch.zeros(len(Y), dtype=torch.bool, device=Y.device)
    problem, row = torch.nonzero(low_inlier, as_tuple=True)
    for part in pieces(len(problem), other.shape[1] * max(_TRIES, other.shape[2]), _PIECE):
        p, i = problem[part], row[part]
        values = Y[p, i].double()
        seen = torch.ones_like(values, dtype=torch.bool) if observed is None else observed[p, i]
        rows = _Rows(values, seen, other[p], there[p], cutoff[p, None])
        old, fresh = factor[p, i], rows.robust_fit()
        improved = rows.inliers(fresh) > _BETTER * rows.inliers(old * there[p]) + 1
        factor[p, i] = torch.where(improved[:, None] & there[p], fresh, old)
        better[p[improved]] = True
    return better


@dataclass(frozen=True)
class _Rows:
    """Rows to fit with the other factor fixed; coefficients are (m, r)."""

    values: Any  # (m, n)
    seen: Any  # (m, n) bool
    other: Any  # (m, n, r)
    there: Any  # (m, r) bool: components that are present
    limit: Any  # (m, 1) residuals up to it are inliers

    def sizes(self, coefficients: Any) -> Any:
        """Return the absolute residuals, (m, n)."""
        return (self.values - torch.bmm(self.other, coefficients[:, :, None])[:, :, 0]).abs()

    def inliers(self, coefficients: Any) -> Any:
        """Return how many entries of each row are within the limit, (m,)."""
        return ((self.sizes(coefficients) <= self.limit) & self.seen).sum(dim=1)

    def robust_fit(self) -> Any:
        """Return coefficients that explain many entries, by least squares on these.

        Begun from least absolute deviations and, since more than half of a short row may be outliers, from the best
        minimal-subset fit.
        """
        starts = self.absolute_deviations(), self.minimal_subset()
        counts = [self.inliers(start) for start in starts]
        coefficients = torch.where((counts[1] > counts[0])[:, None], starts[1], starts[0])
        for _ in range(_CLIPPED_STEPS):
            within = (self.sizes(coefficients) <= self.limit) & self.seen
            coefficients = self.least_squares(within.to(self.values.dtype))
        return coefficients

    def absolute_deviations(self) -> Any:
        """Return coefficients of least absolute deviations."""
        coefficients = self.least_squares(self.seen.to(self.values.dtype))
        for _ in range(_ABSOLUTE_STEPS):
            sizes = self.sizes(coefficients)
            median = medians(torch.where(self.seen, sizes, math.nan))
            weight = self.seen / torch.clamp(torch.maximum(sizes, _ALIKE * median), min=_TINY)
            coefficients = self.least_squares(weight)
        return coefficients

    def minimal_subset(self) -> Any:
        """Return, of fits to as many entries as there are components, those that explain the most (RANSAC)."""
        (m, n, r), there = self.other.shape, self.there
        generator = torch.Generator().manual_seed(0)
        places = torch.rand(_TRIES, n, generator=generator, device="cpu").argsort(dim=1)[:, :r].to(self.values.device)
        few, sides = self.other[:, places] * self.seen[:, places, None], self.values[:, places]
        grams = few.transpose(2, 3) @ few + torch.diag_embed((~there).to(few.dtype))[:, None]
        found = solve_each(grams, (few.transpose(2, 3) @ sides[..., None])[..., 0]) * there[:, None]  # (m, t, r)
        sizes = (self.values[:, None, :] - found @ self.other.transpose(1, 2)).abs()
        best = ((sizes <= self.limit[:, :, None]) & self.seen[:, None, :]).sum(dim=2).argmax(dim=1)
        return found[torch.arange(m, device=self.values.device), best]

    def least_squares(self, weight: Any) -> Any:
        """Return the coefficients of least squares with weights (m, n)."""
        weight = weight / torch.clamp(weight.amax(dim=1, keepdim=True), min=_TINY)
        weighted = self.other * weight[:, :, None]
        grams = torch.bmm(weighted.transpose(1, 2), self.other)
        # Components that are not there have zeros in their Gram.
        grams = grams + torch.diag_embed((~self.there).to(grams.dtype))
        sides = torch.bmm(weighted.transpose(1, 2), self.values[:, :, None])[:, :, 0]
        return solve_each(grams[:, None], sides[:, None])[:, 0] * self.there


def _orthogonal(L: Any, R: Any) -> tuple[Any, Any]:  # (b, n1, r); (b, n2, r)
    """Return factors U Σ^½ and V Σ^½ of the same products."""
    Q_L, Q_R = orthonormal(L), orthonormal(R)
    core = torch.bmm(Q_L.transpose(1, 2), L) @ torch.bmm(Q_R.transpose(1, 2), R).transpose(1, 2)
    U, values, Vh = tensor_svd(core)
    root = torch.sqrt(values)[:, None, :]
    return torch.bmm(Q_L, U) * root, torch.bmm(Q_R, Vh.transpose(1, 2)) * root
