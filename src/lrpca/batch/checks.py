"""The convergence checks of a batch: problems that a check objects to are solved again by the single solver.

The checks are those of `lrpca.solvers.checks.convergence`. Here they only object, rather too often than too seldom:
other fits are left to the single solver.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from lrpca.batch.algebra import leading_vectors
from lrpca.batch.scale import inlier_scales
from lrpca.batch.stack import Stack, medians, pieces
from lrpca.solvers import block, thresholds
from lrpca.solvers.checks import low_inlier_rows as rows
from lrpca.solvers.checks import other_fits
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
    return torch.stack([keep_less(kept, observed, rows.FEW_INLIERS).any(dim=1) for kept, observed in parts]).any(dim=0)


def low_inlier(
    stack: Stack,
    by_row: Any,  # (b, n1) kept
    by_column: Any,  # (b, n2) kept
    exact: Any,  # (b,) bool: there is no noise
) -> tuple[Any, Any]:
    """Return the low-inlier rows and columns to refit, (b, n1) and (b, n2)."""
    surely = torch.where(exact, rows.SURELY, math.inf)[:, None].double()
    return (
        keep_less(by_row, stack.by_row, rows.REFITTED, surely),
        keep_less(by_column, stack.by_column, rows.REFITTED, surely),
    )


def unreliable(
    stack: Stack,
    by_row: Any,  # (b, n1) kept
    by_column: Any,  # (b, n2) kept
    D: Any,  # (b, n1, n2) residuals at the end
    sigma: Any,  # (b,) their noise level
    exact: Any,  # (b,) bool: there is no noise
    cutoff: Any,  # (b,) residuals beyond are rejected
) -> Any:
    """Return which results are unreliable, (b,).

    Those with unexplained rows or structure in a noisy residual, and those that the single solver would compare with
    other fits (`lrpca.solvers.checks.other_fits`).
    """
    counts = ((by_row, stack.by_row), (by_column, stack.by_column))
    few = exact & torch.cat([keep_less(*pair, rows.UNEXPLAINED) for pair in counts], dim=1).any(dim=1)
    structured = ~exact & (_structure(D, sigma) > structure.SUSPICIOUS)
    sizes, tells = stack.sampled(stack.Y)
    sizes = torch.minimum(sizes.abs().double(), 5 * stack.typical[:, None])
    squares = sizes**2 if tells is None else torch.where(tells, sizes**2, math.nan)
    loud = sigma > other_fits.QUIET * torch.sqrt(torch.nanmean(squares, dim=1))
    total = torch.clamp(stack.by_row.sum(dim=1), min=1)
    rejects = by_row.sum(dim=1) <= (1 - other_fits.RARE) * total
    uneven = torch.stack([_dispersion(*pair) > other_fits.DISPERSED for pair in counts]).any(dim=0)
    return few | structured | loud | (rejects & (uneven | (_alignment(D, cutoff) > block.ALIGNED)))


def _dispersion(kept: Any, observed: Any) -> Any:  # (b, n) counts; (b, n) counts
    """Return by how many standard errors kept counts vary more than binomial ones, (b,)."""
    share = kept.sum(dim=1, keepdim=True) / torch.clamp(observed.sum(dim=1, keepdim=True), min=1)
    variance = observed * share * (1 - share)
    seen = variance > 0
    count = torch.clamp(seen.sum(dim=1), min=1)
    squares = torch.where(seen, (kept - share * observed) ** 2 / torch.where(seen, variance, 1.0), 0.0)
    return (squares.sum(dim=1) / count - 1) / torch.sqrt(2 / count)


def _alignment(D: Any, cutoff: Any) -> Any:  # (b, n1, n2); (b,)
    """Return how far the leading singular value of the rejected entries' signs is above that of independent ones."""
    b, n1, n2 = D.shape
    found = []
    for part in pieces(b, n1 * n2, _PIECE):
        rejected = D[part].abs() > cutoff[part].to(D.dtype)[:, None, None]
        signs = torch.where(rejected, torch.sign(D[part]), 0.0).double()
        mean = signs.sum(dim=(1, 2)) / torch.clamp(rejected.sum(dim=(1, 2)), min=1)
        signs = torch.where(rejected, signs - mean[:, None, None], 0.0)
        power = (signs**2).sum(dim=(1, 2)) / (n1 * n2)
        leading = torch.sqrt(torch.clamp(leading_vectors(_gram(signs), 1)[0][:, 0], min=0.0))
        excess = leading / (torch.sqrt(torch.clamp(power, min=1e-300)) * (math.sqrt(n1) + math.sqrt(n2))) - 1
        found.append(torch.where(power > 0, excess * min(n1, n2) ** (2 / 3), 0.0))
    return torch.cat(found)


def _gram(M: Any) -> Any:  # (b, n1, n2)
    """Return the Gram matrices of the shorter side."""
    short = M if M.shape[1] <= M.shape[2] else M.transpose(1, 2)
    return torch.bmm(short, short.transpose(1, 2))


def _structure(D: Any, sigma: Any) -> Any:  # (b, n1, n2); (b,)
    """Return the first over the third singular value of residuals without their outliers, (b,).

    Two more components cannot lower the first one further than to the third.
    """
    b, n1, n2 = D.shape
    if min(n1, n2) < structure.LEAST_SIDE:
        return torch.zeros_like(sigma)
    found = []
    for part in pieces(b, n1 * n2, _PIECE):
        limit = (structure.CORE * sigma[part]).to(D.dtype)[:, None, None]
        core = (
            torch.where(D[part].abs() <= limit, D[part], 0.0).double()
            / torch.clamp(sigma[part], min=1e-300)[:, None, None]
        )
        values = leading_vectors(_gram(core), _MORE + 1)[0]
        found.append(torch.sqrt(values[:, 0] / torch.clamp(values[:, _MORE], min=1e-300)))
    return torch.cat(found)


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
    return torch.where(gaussian, thresholds._OPEN, thresholds._REFINED).to(sigma.dtype)


def measured(
    stack: Stack,
    D: Any,  # (b, n1, n2)
    rounding: Any,  # (b,)
    before: Any = None,  # (b,) σ of the last pass; None: measured anew, from more entries
) -> Any:
    """Return the noise level of residuals, (b,)."""
    residuals, tells = stack.sampled(D, last=before is None)
    return inlier_scales(residuals.abs(), tells, rounding, before)
