"""The inlier scale of many problems at once: `lrpca.kernels.scale.residual_core`, batched on any torch device."""

from __future__ import annotations

import math
from typing import Any

import torch

from lrpca.batch.stack import pieces
from lrpca.kernels import scale as single
from lrpca.kernels.gpu import has_triton

# Bins are twice as wide as those of one problem; the other numbers are the same. Of 400 peaks with up to half of the
# entries outliers, σ differs by 0.04% in the median and 0.5% at most.
_BINS = 256
# Shares of an entry between two bins are counted in whole numbers: sums of these do not depend on their order.
_PARTS = 256
_ABOVE = 1 << 32
_SMALLEST = 1e-100
# Steps between two tests of what has converged: a test waits for the device.
_UNSEEN = 5
# In units of the last σ: where a peak is searched first.
_NEAR = 16.0
# Entries that are put into bins at a time.
_PIECE = 1 << 26


def inlier_scales(
    sizes: Any,  # (b, m) |D| at sampled entries
    counted: Any,  # (b, m) bool: which of them count; None for all
    rounding: Any,  # (b,)
    last: Any = None,  # (b,) σ of the pass before, 0 where not known
) -> Any:
    """Return σ of the Gaussian peak of residuals at zero of every problem, on a flat background, (b,)."""
    most = torch.where(rounding > 0, single.most_counted(rounding), math.inf)
    sizes = torch.clamp(sizes, *(level[:, None].to(sizes.dtype) for level in (rounding, most)))
    top = (sizes if counted is None else torch.where(counted, sizes, 0.0)).amax(dim=1)
    entries = torch.full_like(top, sizes.shape[1]) if counted is None else counted.sum(dim=1).to(top.dtype)
    unit = torch.exp2(torch.floor(torch.log2(torch.clamp(top, min=torch.finfo(top.dtype).tiny)))).double()
    histogram = _Histogram(sizes, counted, unit, entries)
    sigma, members = _fit_all(histogram, None if last is None else last / unit)
    least = single._LEAST_SHARE * entries
    # Where no peak is found, all residuals are inliers.
    spread = histogram.spread()
    found = (members > 0) & (members >= least)
    return torch.where(top <= rounding, rounding, torch.where(found, sigma, spread) * unit)


class _Histogram:
    """Residuals in bins of equal logarithmic width, in units of a power of two near the largest."""

    def __init__(self, sizes: Any, counted: Any, unit: Any, entries: Any) -> None:
        b, m = sizes.shape
        logs_low, logs_high = unit.float(), unit.float()
        # Both neighbours of an entry in one number, one of them above 32 bits: one sum instead of two.
        both = torch.zeros(b, _BINS + 2, dtype=torch.int64, device=sizes.device)
        for part in pieces(b, m, _PIECE):
            logs = torch.clamp((sizes[part] / unit[part, None].to(sizes.dtype)).float(), min=single.TINY).log_()
            there = None if counted is None else counted[part]
            low = (logs if there is None else torch.where(there, logs, math.inf)).amin(dim=1)
            high = (logs if there is None else torch.where(there, logs, -math.inf)).amax(dim=1)
            low = torch.minimum(low, high)
            width = torch.clamp((high - low) / _BINS, min=1e-6)
            place = logs.sub_(low[:, None]).div_(width[:, None]).clamp_(0, _BINS)
            left = place.floor().clamp_(max=_BINS - 1)
            right_part = place.sub_(left).mul_(_PARTS).round_().to(torch.int64)
            shares = right_part * _ABOVE - right_part + _PARTS
            if there is not None:
                shares *= there
            both[part].scatter_add_(1, left.long(), shares)
            logs_low[part], logs_high[part] = low, low + width * _BINS
        first, second = both % _ABOVE, both // _ABOVE
        first[:, 1:] += second[:, :-1]
        steps = torch.arange(_BINS + 1, device=sizes.device) / _BINS
        centres = torch.exp(logs_low[:, None] + (logs_high - logs_low)[:, None] * steps).double()
        self.counts = first[:, : _BINS + 1].double() / _PARTS  # (b, bins + 1)
        self.squares = centres * centres
        self.top, self.entries = centres[:, -1], entries.double()

    def spread(self) -> Any:
        """Return the root mean square of the entries, (b,)."""
        return torch.sqrt((self.counts * self.squares).sum(dim=1) / torch.clamp(self.entries, min=1))


def _fit_all(histogram: _Histogram, last: Any) -> tuple[Any, Any]:
    """Return σ in units of the histogram, and the number of entries of the peak (0: no fit), (b,) each."""
    sigma, members = torch.zeros_like(histogram.top), torch.zeros_like(histogram.top)
    cold = torch.arange(len(sigma), device=sigma.device)
    if last is not None:
        # Residuals shrink from pass to pass: the peak is searched where it was, and everywhere if it is not there.
        guess = torch.clamp(last[:, None], min=_SMALLEST)
        _narrow_down(histogram, cold, torch.minimum(histogram.top, _NEAR * last), guess, sigma, members)
        cold = torch.nonzero(members == 0)[:, 0]
        if len(cold) == 0:
            return sigma, members
    _narrow_down(histogram, cold, histogram.top[cold], None, sigma, members)
    return sigma, members


def _narrow_down(
    histogram: _Histogram,
    active: Any,  # (a,) int: which problems
    window: Any,  # (a,) where to begin
    guess: Any,  # (a, 1) σ to begin with, or None for those of a single problem
    sigma: Any,  # (b,) filled in
    members: Any,  # (b,) filled in
) -> None:
    """Fit the peak in a window that is narrowed to eight σ; with a guess, only what is surely a peak is taken."""
    guesses = torch.tensor(single._GUESSES, dtype=window.dtype, device=window.device)
    counts, squares = histogram.counts[active], histogram.squares[active]
    least = single._LEAST_SHARE * histogram.entries[active]
    for _ in range(single._REFINEMENTS):
        first = window[:, None] / guesses if guess is None else guess
        fits, sizes = (_fit_by_kernel if has_triton(counts.device) else _fit)(counts, squares, window, first)
        is_peak = (sizes > least[:, None]) & (fits <= window[:, None] / single._PEAK)
        found = is_peak.any(dim=1)
        # The first guess that finds a peak; where none ever did, the first that could be fitted at all.
        chosen = torch.where(found, is_peak.int().argmax(dim=1), (sizes > 0).int().argmax(dim=1))[:, None]
        new_sigma, new_members = fits.gather(1, chosen)[:, 0], sizes.gather(1, chosen)[:, 0]
        take = found if guess is not None else found | (members[active] == 0)
        sigma[active] = torch.where(take, new_sigma, sigma[active])
        members[active] = torch.where(take, new_members, members[active])
        narrowed = single._WINDOW * new_sigma
        going_on = torch.nonzero(found & (narrowed < 0.95 * window))[:, 0]
        if len(going_on) == 0:
            break
        active, window, least = active[going_on], narrowed[going_on], least[going_on]
        counts, squares = counts[going_on], squares[going_on]
        guess = None if guess is None else new_sigma[going_on, None]


def _fit(
    counts: Any,  # (b, k)
    squares: Any,  # (b, k)
    window: Any,  # (b,)
    sigma: Any,  # (b, g) first guesses
) -> tuple[Any, Any]:
    """Return σ and the members of the peak among the entries below a window by EM, (b, g); members 0: no fit."""
    counts = torch.where(squares <= (window * (1 + 1e-6))[:, None] ** 2, counts, 0.0)
    total = counts.sum(dim=1, keepdim=True)  # (b, 1)
    moments = torch.stack([counts, counts * squares], dim=2)  # (b, k, 2)
    spread = squares[:, None, :]
    height = 0.5 * math.log(2 / math.pi) + torch.log(window[:, None])
    enough, total = total >= 10, torch.clamp(total, min=1.0)
    odds = torch.zeros_like(sigma)  # log of share / (1 - share)
    members = total.expand_as(sigma)
    moving = torch.ones_like(sigma, dtype=torch.bool)
    for step in range(single._EM_STEPS):
        # Density of the peak over that of the background: half-normal over flat.
        level = odds + height - torch.log(sigma)
        peak = torch.sigmoid_(torch.addcmul(level[:, :, None], spread, (-0.5 / sigma**2)[:, :, None]))
        sums = torch.bmm(peak, moments)  # (b, g, 2)
        # Fits that have converged stay as they are, so no result depends on the other problems.
        members = torch.where(moving, sums[:, :, 0], members)
        fresh = torch.sqrt(sums[:, :, 1] / torch.clamp(members, min=single.TINY)).clamp_(min=_SMALLEST)
        moved = (fresh - sigma).abs() > single._EM_TOLERANCE * sigma
        sigma = torch.where(moving, fresh, sigma)
        odds = torch.logit(members / total, eps=1e-9)
        moving = moving & moved & enough
        if step % _UNSEEN == _UNSEEN - 1 and not bool(moving.any()):
            break
    return sigma, torch.where(enough & (members > 1e-9 * total), members, 0.0)


def _fit_by_kernel(
    counts: Any,  # (b, k)
    squares: Any,  # (b, k)
    window: Any,  # (b,)
    sigma: Any,  # (b, g) first guesses
) -> tuple[Any, Any]:
    """Return what `_fit` returns, by a kernel in which every fit stops when it is done."""
    from lrpca.kernels.triton.peaks import fit_peaks

    b, k = counts.shape
    sigma = sigma.contiguous().clone()
    members = torch.empty_like(sigma)
    fit_peaks[(b, sigma.shape[1])](
        *(counts.contiguous(), squares.contiguous(), window.contiguous(), sigma, members),
        *(k, sigma.shape[1], single._EM_TOLERANCE, single._EM_STEPS),
        WIDTH=1 << (k - 1).bit_length(),
    )
    return sigma, members
