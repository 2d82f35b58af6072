"""The convergence checks of a batch: problems that a check objects to are solved again by the single solver.

The checks are those of `lrpca.solvers.checks.convergence`. Here they only object, rather too often than too seldom:
refits, trials and second initialisations are left to the single solver.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from lrpca.batch.algebra import leading_vectors
from lrpca.batch.refit import alternatives
from lrpca.batch.scale import inlier_scales
from lrpca.batch.stack import Stack, medians
from lrpca.solvers import thresholds
from lrpca.solvers.checks import convergence as single
from lrpca.solvers.checks import inconsistent_scaling as two_fits
from lrpca.solvers.checks import low_inlier_rows as rows
from lrpca.solvers.checks import residual_structure as structure

# Entries of residuals that are squared in double precision at a time.
_PIECE = 1 << 27
# Structure of a residual: its first singular value over the one that two more components would leave first.
_MORE = 2


def keep_less(
    kept: Any,  # (b, n) counts
    observed: Any,  # (b, n) counts
    than: float,
    surely: Any = math.inf,  # number or (b, 1)
) -> Any:
    """Return which observed rows (or columns) keep less `than` this times the median share, (b, n).

    Also those that keep less than the median by more than `surely` standard deviations of chance.
    """
    share = kept / torch.clamp(observed, min=1)
    typical = medians(torch.where(observed > 0, share, math.nan))
    chance = torch.sqrt(typical * (1 - typical) / torch.clamp(observed, min=1)) + 1 / torch.clamp(observed, min=1)
    return ((share < than * typical) | (share < typical - surely * chance)) & (observed > 0)


def any_low_inlier(stack: Stack, by_row: Any, by_column: Any) -> Any:  # (b, n1) kept, (b, n2) kept
    """Return which problems have a row or column that keeps far less than the others, (b,)."""
    parts = ((by_row, stack.by_row), (by_column, stack.by_column))
    return torch.stack([keep_less(kept, observed, rows._LAGGING).any(dim=1) for kept, observed in parts]).any(dim=0)


def low_inlier(
    stack: Stack,
    by_row: Any,  # (b, n1) kept
    by_column: Any,  # (b, n2) kept
    thorough: Any,  # (b,) bool
) -> tuple[Any, Any]:
    """Return the low-inlier rows and columns to refit, (b, n1) and (b, n2)."""
    surely = torch.where(thorough, rows._SURELY[0], math.inf)[:, None].double()
    return (
        keep_less(by_row, stack.by_row, rows._LOST, surely),
        keep_less(by_column, stack.by_column, rows._LOST, surely),
    )


def unreliable(
    stack: Stack,
    by_row: Any,  # (b, n1) kept
    by_column: Any,  # (b, n2) kept
    D: Any,  # (b, n1, n2) residuals at the end
    sigma: Any,  # (b,) their noise level
    change: Any,  # (b,)
    rounding: Any,  # (b,)
    least: float,
) -> Any:
    """Return which results are unreliable: low-inlier rows, structure in a noisy residual, two peaks, skewness."""
    exact = torch.maximum(single._ABOVE_ROUNDING * rounding, single._MOVING * change * stack.typical)
    noisy = sigma > torch.clamp(exact, min=least)
    doubt = ~noisy & (
        keep_less(by_row, stack.by_row, rows._LEFT_BEHIND).any(dim=1)
        | keep_less(by_column, stack.by_column, rows._LEFT_BEHIND).any(dim=1)
    )
    some = torch.nonzero(noisy)[:, 0]
    if len(some) == 0:
        return doubt
    part = stack.only(some)
    suspicious = _structure(D[some], sigma[some]) > structure.SUSPICIOUS
    residuals, tells = part.sampled(D[some])
    skewness, bimodality, share = _distribution(residuals, tells, sigma[some])
    loud = sigma[some] > single._LOUD * part.typical
    one_sided = (bimodality > single._TWO_PEAKS) & (share > single._NO_OUTLIERS)
    doubt[some] = suspicious | (loud & (one_sided | (skewness > single._LEANS)))
    return doubt


def inconsistent_scaling(
    stack: Stack,
    L: Any,  # (b, n1, r)
    R: Any,  # (b, n2, r)
    there: Any,  # (b, r) bool: components that are present
    D: Any,  # (b, n1, n2) residuals of these
    kept: Any,  # (b,) share of observed entries
    cutoff: Any,  # (b,)
) -> Any:
    """Return which fits have an inconsistent scaling, (b,); see `lrpca.solvers.checks.inconsistent_scaling`."""
    found = torch.zeros_like(kept, dtype=torch.bool)
    some = torch.nonzero(kept < two_fits.MAY_BE_DIVIDED)[:, 0]
    if len(some) == 0:
        return found
    part, D, there, cutoff = stack.only(some), D[some], there[some], cutoff[some, None]
    sampled, counted = part.sampled(D)
    sizes = sampled.abs()
    beyond = sizes > cutoff if counted is None else (sizes > cutoff) & counted
    typical = torch.nan_to_num(medians(torch.where(beyond, sizes, math.nan)), nan=0.0).double()
    limit = torch.maximum(cutoff, single.FITTED_TO * typical)[:, 0]
    chance = 2 * there.sum(dim=1, keepdim=True) + two_fits.BY_CHANCE
    for axis, other in ((1, R[some]), (2, L[some])):
        lines, entries = _spread(D.shape[axis], two_fits.LINES, D), _spread(D.shape[3 - axis], two_fits.ENTRIES, D)
        residuals = _crossing(D, axis, lines, entries)
        within = residuals.abs() <= limit[:, None, None].to(D.dtype)
        rejected = ~within
        if part.observed is not None:
            seen = _crossing(part.observed, axis, lines, entries)
            within, rejected = within & seen, rejected & seen
        explained = alternatives(residuals, rejected, other[:, entries], there, limit)
        tells = (explained > two_fits.EXPLAINED * within.sum(dim=2)) & (explained > chance)
        found[some] |= tells.double().mean(dim=1) > two_fits.PART
    return found


def _spread(n: int, count: int, example: Any) -> Any:
    """Return about so many of n places, evenly spread."""
    return torch.arange(0, n, -(-n // count), device=example.device)


def _crossing(M: Any, axis: int, lines: Any, entries: Any) -> Any:  # (b, n1, n2); (m,) int; (k,) int
    """Return some entries of some rows (axis 1) or columns (axis 2), as rows, (b, m, k)."""
    return M[:, lines][:, :, entries] if axis == 1 else M[:, entries][:, :, lines].transpose(1, 2)


def _structure(D: Any, sigma: Any) -> Any:  # (b, n1, n2); (b,)
    """Return the first over the third singular value of residuals without their outliers, (b,).

    Two more components cannot lower the first one further than to the third.
    """
    b, n1, n2 = D.shape
    if min(n1, n2) < structure.LEAST_SIDE:
        return torch.zeros_like(sigma)
    count = max(1, _PIECE // (n1 * n2))
    found = []
    for first in range(0, b, count):
        part = slice(first, first + count)
        limit = (structure.CORE * sigma[part]).to(D.dtype)[:, None, None]
        core = torch.where(D[part].abs() <= limit, D[part], 0.0).double() / sigma[part, None, None]
        short = core if n1 <= n2 else core.transpose(1, 2)
        values = leading_vectors(torch.bmm(short, short.transpose(1, 2)), _MORE + 1)[0]
        found.append(torch.sqrt(values[:, 0] / torch.clamp(values[:, _MORE], min=1e-300)))
    return torch.cat(found)


def _distribution(
    residuals: Any,  # (b, m) signed
    counted: Any,  # (b, m) bool, or None
    sigma: Any,  # (b,)
) -> tuple[Any, Any, Any]:
    """Return skewness, bimodality and share of the residuals within five σ, (b,) each."""
    standard = residuals.double() / sigma[:, None]
    inside = standard.abs() <= single._WITHIN
    counts = torch.ones_like(inside) if counted is None else counted
    inside = inside & counts
    count = torch.clamp(inside.sum(dim=1), min=1)
    core = torch.where(inside, standard, 0.0)
    mean = core.sum(dim=1) / count
    core = torch.where(inside, standard - mean[:, None], 0.0)
    spread = torch.clamp((core**2).sum(dim=1) / count, min=1e-300)
    skewness = ((core**3).sum(dim=1) / count / spread**1.5).abs()
    kurtosis = (core**4).sum(dim=1) / count / spread**2
    return skewness, (skewness**2 + 1) / kurtosis, count / torch.clamp(counts.sum(dim=1), min=1)


def refined_cutoff(stack: Stack, D: Any, sigma: Any, present: Any) -> Any:  # (b, n1, n2); (b,) at the pass before; (b,)
    """Return the factor of thresholds at the noise floor, (b,): lower, or out of the way where nothing is beyond."""
    n1, n2 = stack.shape
    fitted = torch.clamp(present * (n1 + n2 - present) / (stack.share * n1 * n2), max=thresholds._MOST_FITTED)
    limit = sigma / torch.sqrt(1 - fitted)
    residuals, tells = stack.sampled(D)
    sizes = residuals.abs()
    entries = sizes.shape[1] if tells is None else torch.clamp(tells.sum(dim=1), min=1)
    gaussian = torch.ones_like(sigma, dtype=torch.bool)
    for k, share in thresholds._GAUSSIAN_TAILS:
        beyond = sizes > (k * limit).to(sizes.dtype)[:, None]
        beyond = beyond if tells is None else beyond & tells
        gaussian &= beyond.sum(dim=1) / entries <= share
    return torch.where(gaussian, thresholds._OPEN, thresholds._SHARP).to(sigma.dtype)


def measured(
    stack: Stack,
    D: Any,  # (b, n1, n2)
    rounding: Any,  # (b,)
    before: Any = None,  # (b,) σ of the last pass; None: measured anew, from more entries
) -> Any:
    """Return the noise level of residuals, (b,)."""
    residuals, tells = stack.sampled(D, last=before is None)
    return inlier_scales(residuals.abs(), tells, rounding, before)
