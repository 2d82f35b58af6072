"""LRPCA as published, in plain torch: every matrix of the paper's algorithm formed as the paper writes it.

Single precision, a dense S and a dense X in every iteration. It is what the published program does, on a video, with
the paper's stopping rule for videos; this library's solvers are held against it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.schedule import Schedule

# Power steps of the published program's first SVD.
_POWER_STEPS = 4


@dataclass(frozen=True)
class PlainRun:
    """What the plain iteration came to."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    iterations: int
    seconds: float  # of the whole call, Y being in memory in single precision
    seconds_per_iteration: float  # median, stopping rule included
    stopped: bool  # whether the rule was met


def solve_plainly(
    Y: Any,  # (n1, n2) float32 tensor
    rank: int,
    schedule: Schedule,
    *,
    limit: float,
    max_iter: int,
    seed: int = 0,
) -> PlainRun:
    """Run the paper's algorithm until X and S both change by less than a part `limit` of themselves."""
    import torch

    torch.manual_seed(seed)
    began = time.perf_counter()
    times, stopped = [], False
    with torch.inference_mode():
        S = _soft(Y, schedule.thresholds[0])
        U, values, V = torch.svd_lowrank(Y - S, q=rank, niter=_POWER_STEPS)
        L, R = U * values.sqrt(), V * values.sqrt()
        X = L @ R.T
        for k in range(1, max_iter + 1):
            numbers = schedule.at(k)
            if numbers is None:
                break
            start = time.perf_counter()
            threshold, step = numbers
            S_new = _soft(Y - X, threshold)
            gradient = X + S_new - Y
            L_new = L - step * gradient @ R @ torch.inverse(R.T @ R)
            R_new = R - step * gradient.T @ L @ torch.inverse(L.T @ L)
            X_new = L_new @ R_new.T
            stopped = max(_change(X, X_new), _change(S, S_new)) < limit
            L, R, X, S = L_new, R_new, X_new, S_new
            times.append(time.perf_counter() - start)
            if stopped:
                break
    seconds = time.perf_counter() - began
    return PlainRun(L.numpy(), R.numpy(), len(times), seconds, float(np.median(times)), stopped)


def _soft(D: Any, threshold: float) -> Any:
    import torch

    return torch.sign(D) * torch.relu(torch.abs(D) - threshold)


def _change(before: Any, after: Any) -> float:
    """Return ‖after - before‖ / ‖before‖; where nothing was before, it is not small."""
    import torch

    size = float(torch.linalg.matrix_norm(before))
    return float(torch.linalg.matrix_norm(after - before)) / size if size else float("inf")
