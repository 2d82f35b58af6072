"""The mixture of a peak and a flat background, fitted to many histograms at once: one program for each and guess.

In plain torch every step of the fits is a dozen kernels over all histograms, and there are thousands of steps; here a
histogram stays in the registers of one program until its fit is done.
"""

# Triton reads annotations as its own: only its own are here.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, assignment"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fit_peaks(
    counts,  # (b, bins) float64
    squares,  # (b, bins) float64, of the centres of bins
    windows,  # (b,) float64
    sigmas,  # (b, g) float64: first guesses; σ when it is done
    members,  # (b, g) float64: entries of the peak; 0 where there is no fit
    bins,
    guesses,
    tolerance,
    steps,
    WIDTH: tl.constexpr,
):
    """Fit one histogram from one guess by EM; see `lrpca.batch.scale`, which does the same in plain torch."""
    problem, guess = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, WIDTH)
    place = problem.to(tl.int64) * bins + at
    window = tl.load(windows + problem)
    limit = window + window * 1e-6
    square = tl.load(squares + place, mask=at < bins, other=0.0)
    count = tl.load(counts + place, mask=(at < bins) & (square <= limit * limit), other=0.0)
    moment = count * square
    entries = tl.sum(count)
    enough = entries >= 10.0
    total = tl.maximum(entries, 1.0)
    sigma = tl.load(sigmas + problem * guesses + guess)
    # Logarithms of √(2/π) window, and of share / (1 - share).
    height = tl.log(window) - 0.2257913526447274
    odds = height * 0.0
    found = total
    step = 0
    moving = enough
    while moving:
        # Density of the peak over that of the background: half-normal over flat.
        level = odds + height - tl.log(sigma)
        peak = 1.0 / (1.0 + tl.exp(0.5 * square / (sigma * sigma) - level))
        found = tl.sum(peak * count)
        fresh = tl.sqrt(tl.sum(peak * moment) / tl.maximum(found, 1e-30))
        fresh = tl.maximum(fresh, 1e-100)
        share = tl.maximum(found / total, 1e-9)
        odds = tl.log(share / tl.maximum(1.0 - share, 1e-9))
        step += 1
        moving = (tl.abs(fresh - sigma) > tolerance * sigma) & (step < steps)
        sigma = fresh
    tl.store(sigmas + problem * guesses + guess, sigma)
    tl.store(members + problem * guesses + guess, tl.where(enough & (found > 1e-9 * total), found, 0.0))
