"""The published method in plain torch, as code that comes with papers has it: what ours is compared with."""

from __future__ import annotations

from typing import Any

import torch

from lrpca.schedule import Schedule

# Rows of a block, the best of 32, 128 and 512: with 8000 columns 16 MB, for the last-level cache.
_ROWS = 512
_POWER_STEPS = 4
# Iterations at most, and those without a smaller error after which it has come to a stand.
_MOST, _PATIENCE = 60, 6


def soft(D: Any, threshold: Any) -> Any:
    """Return the soft threshold of a matrix."""
    return torch.sign(D) * torch.relu(torch.abs(D) - threshold)


def plain(Y: Any, L: Any, R: Any, threshold: Any, kept: Any = None) -> tuple[Any, Any]:
    """Return C R and Cᵀ L as published code computes them: every matrix as a whole."""
    D = Y - L @ R.T
    C = D - soft(D, threshold)
    return C @ R, C.T @ L


def kept_buffer(Y: Any, L: Any, R: Any, threshold: float, kept: Any) -> tuple[Any, Any]:
    """Return C R and Cᵀ L without a single large allocation: one buffer as large as Y, kept between iterations."""
    C = torch.addmm(Y, L, R.T, alpha=-1, out=kept).clamp_(-threshold, threshold)
    return C @ R, C.T @ L


def blocked(Y: Any, L: Any, R: Any, threshold: float, kept: Any) -> tuple[Any, Any]:
    """Return C R and Cᵀ L by blocks of rows that stay in the cache: more than torch users do."""
    CR, CtL = torch.empty_like(L), torch.zeros_like(R)
    for start in range(0, len(Y), _ROWS):
        rows = slice(start, start + _ROWS)
        C = torch.addmm(Y[rows], L[rows], R.T, alpha=-1, out=kept[: len(Y[rows])]).clamp_(-threshold, threshold)
        torch.mm(C, R, out=CR[rows])
        CtL.addmm_(C.T, L[rows])
    return CR, CtL


def start(Y: Any, rank: int, threshold: Any) -> tuple[Any, Any]:
    """Return the factors that the iteration begins with, from a randomised SVD of the clipped Y."""
    torch.manual_seed(0)
    U, sizes, V = torch.svd_lowrank(Y - soft(Y, threshold), q=rank, niter=_POWER_STEPS)
    return U * sizes.sqrt(), V * sizes.sqrt()


def iterate(Y: Any, L: Any, R: Any, threshold: Any, step: Any) -> tuple[Any, Any]:
    """Return the factors after one scaled gradient step."""
    CR, CtL = plain(Y, L, R, threshold)
    return L + step * CR @ torch.inverse(R.T @ R), R + step * CtL @ torch.inverse(L.T @ L)


def solve(Y: Any, rank: int, schedule: Schedule, iterations: int) -> tuple[Any, Any]:
    """Return the factors after so many iterations, by a schedule that is scaled to Y."""
    L, R = start(Y, rank, schedule.thresholds[0])
    for k in range(1, iterations + 1):
        if (numbers := schedule.at(k)) is None:
            break
        L, R = iterate(Y, L, R, *numbers)
    return L, R


def reach(problem: Any, rank: int, schedule: Schedule, target: float) -> tuple[int, float]:
    """Return how many iterations it takes to an error, or to the least one that there is, and that error."""
    L, R = start(problem.Y, rank, schedule.thresholds[0])
    best, least = 0, problem.error(L, R)
    for k in range(1, _MOST + 1):
        numbers = schedule.at(k)
        if numbers is None or least <= target or k - best > _PATIENCE:
            break
        L, R = iterate(problem.Y, L, R, *numbers)
        error = problem.error(L, R)
        if not error < float("inf"):
            break
        if error < least:
            best, least = k, error
    return best, least
