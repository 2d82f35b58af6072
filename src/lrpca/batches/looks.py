"""What a batched problem is asked before it may end; whoever cannot answer is solved again by itself.

The questions are those of `lrpca.solvers.second_looks`. Here they are only asked, and rather too often than too seldom:
the answers (new fits of lost rows, trials, second starts) are found one problem at a time.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from lrpca.batches.algebra import leading_vectors
from lrpca.batches.peaks import residual_cores
from lrpca.batches.stack import Stack, medians
from lrpca.solvers import lagging as rows
from lrpca.solvers import second_looks as single
from lrpca.solvers import structure, thresholds

# Entries of residuals that are squared in double precision at a time.
_PIECE = 1 << 27
# A residual is asked for structure: its first singular value over the one that two more components would leave first.
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


def lagging(
    stack: Stack,
    by_row: Any,  # (b, n1) kept
    by_column: Any,  # (b, n2) kept
) -> Any:
    """Return which problems have a row or column that keeps far less than the others, (b,)."""
    parts = ((by_row, stack.by_row), (by_column, stack.by_column))
    return torch.stack([keep_less(kept, observed, rows._LAGGING).any(dim=1) for kept, observed in parts]).any(dim=0)


def lost(
    stack: Stack,
    by_row: Any,  # (b, n1) kept
    by_column: Any,  # (b, n2) kept
    thorough: Any,  # (b,) bool
) -> tuple[Any, Any]:
    """Return which rows and columns are lost, (b, n1) and (b, n2)."""
    surely = torch.where(thorough, rows._SURELY, math.inf)[:, None].double()
    return (
        keep_less(by_row, stack.by_row, rows._LOST, surely),
        keep_less(by_column, stack.by_column, rows._LOST, surely),
    )


def in_doubt(
    stack: Stack,
    by_row: Any,  # (b, n1) kept
    by_column: Any,  # (b, n2) kept
    D: Any,  # (b, n1, n2) residuals at the end
    sigma: Any,  # (b,) their noise level
    change: Any,  # (b,)
    rounding: Any,  # (b,)
    least: float,
) -> Any:
    """Return which ends deserve a second look: rows left behind, structure in a noisy residual, two peaks, a lean."""
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


def _structure(
    D: Any,  # (b, n1, n2)
    sigma: Any,  # (b,)
) -> Any:
    """Return the first over the third singular value of residuals without their outliers, (b,).

    Two more components cannot lower the first one further than to the third.
    """
    b, n1, n2 = D.shape
    if min(n1, n2) < structure._LEAST:
        return torch.zeros_like(sigma)
    count = max(1, _PIECE // (n1 * n2))
    found = []
    for first in range(0, b, count):
        part = slice(first, first + count)
        limit = (structure._CORE * sigma[part]).to(D.dtype)[:, None, None]
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
    everyone = torch.ones_like(inside) if counted is None else counted
    inside = inside & everyone
    count = torch.clamp(inside.sum(dim=1), min=1)
    core = torch.where(inside, standard, 0.0)
    mean = core.sum(dim=1) / count
    core = torch.where(inside, standard - mean[:, None], 0.0)
    spread = torch.clamp((core**2).sum(dim=1) / count, min=1e-300)
    skewness = ((core**3).sum(dim=1) / count / spread**1.5).abs()
    kurtosis = (core**4).sum(dim=1) / count / spread**2
    return skewness, (skewness**2 + 1) / kurtosis, count / torch.clamp(everyone.sum(dim=1), min=1)


def sharpened(
    stack: Stack,
    D: Any,  # (b, n1, n2)
    sigma: Any,  # (b,) at the pass before
    present: Any,  # (b,)
) -> Any:
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
    return residual_cores(residuals.abs(), tells, rounding, before).sigma
