"""The published method in plain torch, as code that comes with papers has it: what ours is compared with."""

from typing import Any

import torch

from lrpca.schedule import Schedule

# Rows of a block, the best of 32, 128 and 512: with 8000 columns 16 MB, for the last-level cache.
_ROWS = 512
# Iterations at most, and those without a smaller error after which it has come to a stand.
_MOST, _PATIENCE = 60, 6


def plain(Y: Any, L: Any, R: Any, threshold: Any, kept: Any = None) -> tuple[Any, Any]:
    """Return C R and Cᵀ L as published code computes them: every matrix as a whole."""
    D = Y - L @ R.T
    C = D - torch.sign(D) * torch.relu(torch.abs(D) - threshold)
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


def solve(problem: Any, rank: int, schedule: Schedule, iterations: int = _MOST, target: float = -1.0) -> list[float]:
    """Run the iteration, to an error or until it is stationary if a `target` is given; then return the errors."""
    torch.manual_seed(0)
    first = torch.clamp(problem.Y, -schedule.thresholds[0], schedule.thresholds[0])
    U, sizes, V = torch.svd_lowrank(first, q=rank, niter=4)
    L, R = U * sizes.sqrt(), V * sizes.sqrt()
    errors = [problem.error(L, R)] if target >= 0 else []
    for k in range(1, iterations + 1):
        numbers = schedule.at(k)
        if numbers is None or (errors and (min(errors) <= target or min(errors) < min(errors[-_PATIENCE:]))):
            break
        CR, CtL = plain(problem.Y, L, R, numbers[0])
        L, R = L + numbers[1] * CR @ torch.inverse(R.T @ R), R + numbers[1] * CtL @ torch.inverse(L.T @ L)
        errors += [problem.error(L, R)] if target >= 0 else []
    return errors
