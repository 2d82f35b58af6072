"""The stationarity test of each problem: `lrpca.solvers.stopping`, batched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from lrpca.batch.stack import Stack, Table
from lrpca.solvers import stopping as single

# Verdicts, as numbers on the device.
GOING_ON, TOL, NOISE_FLOOR, STALLED, RUNAWAY, MAX_ITER = range(6)
NAMES = ("", "tol", "noise_floor", "stalled", "runaway", "max_iter")


@dataclass
class Changes(Table):
    """The last changes of X and noise levels of each problem, the newest last, NaN where there was none."""

    last: Any  # (b, patience)
    sigmas: Any  # (b, patience)
    least_before: Any  # (b,) the least change before those
    before: Any  # (b,) how many there were before those

    @classmethod
    def none(cls, example: Any) -> Changes:  # (b,)
        """Return the changes of problems that have not begun."""
        blank = torch.full((len(example), single._PATIENCE), math.nan, dtype=torch.float64, device=example.device)
        return cls(blank, blank.clone(), torch.full_like(example, math.inf), torch.zeros_like(example))

    def add(self, change: Any, sigma: Any) -> None:
        """Write down a pass."""
        oldest = self.last[:, 0]
        there = oldest == oldest
        self.least_before = torch.where(there, torch.minimum(self.least_before, oldest), self.least_before)
        self.before = self.before + there
        self.last = torch.cat([self.last[:, 1:], change[:, None]], dim=1)
        self.sigmas = torch.cat([self.sigmas[:, 1:], sigma[:, None]], dim=1)

    def forget(self, which: Any) -> None:  # (b,) bool
        """Begin anew for some problems."""
        self.last = torch.where(which[:, None], math.nan, self.last)
        self.sigmas = torch.where(which[:, None], math.nan, self.sigmas)
        self.least_before = torch.where(which, math.inf, self.least_before)
        self.before = torch.where(which, 0.0, self.before)

    def to_go(self) -> Any:
        """Return how far X still is from where it goes, by the rate of the last changes; inf where not known."""
        over, last = single._RATE_OVER, self.last[:, -1]
        before, first = (torch.clamp(self.last[:, -1 - k], min=single._TINY) for k in (1, over))
        rate = torch.clamp(torch.maximum(last / before, (last / first) ** (1 / over)), max=single._SLOWEST)
        return torch.nan_to_num(last * rate / (1 - rate), nan=math.inf)

    def are_slow(self) -> Any:
        """Return where the last two passes changed X by hardly less than those before."""
        known = ~torch.isnan(self.last[:, -1 - single._RATE_OVER])
        return known & (self.last[:, -1] > single._SLOW**2 * self.last[:, -3])

    def fallen(self) -> Any:
        """Return by which part of it the energy of the residual fell in the last pass; inf where not known."""
        fall = (self.sigmas[:, -2] / self.sigmas[:, -1]) ** 2 - 1
        return torch.nan_to_num(fall, nan=math.inf)

    def stalled(self) -> Any:
        """Return where the change of X has not fallen over the last passes, nor the noise level."""
        change = (self.before >= single._PATIENCE) & (self.last.amin(dim=1) > 0.9 * self.least_before)
        return change & ~(self.sigmas[:, -1] < single._STILL_BETTER * self.sigmas[:, 0])


def verdicts(
    changes: Changes,
    *,
    stack: Stack,
    parts: Any,  # `lrpca.batch.loop.Problems`
    values: Any,  # (b, r) of present components, 0 for the others
    settled: Any,  # (b,) bool
    tol: float,
) -> Any:
    """Return the verdict on each problem, (b,)."""
    eps, kept, present = torch.finfo(stack.Y.dtype).eps, parts.kept, parts.present
    change = changes.last[:, -1]
    size = torch.linalg.vector_norm(values, dim=1)
    weakest = values.gather(1, (present - 1)[:, None])[:, 0]
    weak = torch.clamp(single._WEAK * weakest / torch.clamp(size, min=single._TINY), single._LOWERED, 1.0)
    limit = torch.clamp(torch.where(size > 0, tol * weak, tol), min=min(tol, single._ROUNDINGS * eps))
    share = torch.clamp(kept, min=1e-6) * stack.share
    floor = parts.sigma * torch.sqrt(present * sum(stack.shape) / share) / torch.clamp(size, min=single._TINY)
    converged = (change <= single._JITTER * eps) | (settled & (change <= single._FLICKER * floor))
    verdict = torch.where(changes.stalled(), torch.where(converged, NOISE_FLOOR, STALLED), GOING_ON)
    verdict = torch.where(settled & (changes.to_go() <= single._NOISE_SHARE * floor), NOISE_FLOOR, verdict)
    noisy = parts.sigma * math.sqrt(math.prod(stack.shape)) >= single._NOISY * tol * size
    slow, refined = changes.are_slow(), parts.refined_passes > 0
    in_vain = torch.where(refined, slow & (changes.fallen().abs() < single._FALLEN), slow | (change < floor))
    verdict = torch.where(settled & noisy & in_vain, NOISE_FLOOR, verdict)
    verdict = torch.where(change <= limit, TOL, verdict)
    diverged = (kept < single._HARDLY_ANY) | ((size == 0) & (stack.norm > 0)) | ~torch.isfinite(change)
    return torch.where(diverged, RUNAWAY, verdict)
