"""One training step in plain torch, as code that comes with papers has it, in a process of its own.

    python benchmarks/torch_training.py N THREADS

makes a problem and then does what it is told by lines on standard input, ``NAME RANK``, answering each with one line of
JSON: the loss and its derivatives.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from problems import Planted, factors, planted

LAYERS = 15
# Derivatives by the thresholds are compared where entries still differ by more than rounding.
_FIRST, _SECOND, _DECAY, _STEP = 1e-2, 5e-4, 0.6, 0.7
_POWER_STEPS = 4


def numbers(n: int, rank: int) -> tuple[list[float], list[float]]:
    """Return thresholds and steps of a network that makes progress in every layer."""
    unit = 1000 / n * (rank / 5) ** 0.5
    thresholds = [unit * _FIRST, *(unit * _SECOND * _DECAY**k for k in range(LAYERS))]
    return thresholds, [0.0, *[_STEP] * LAYERS]


def problem_of(n: int, rank: int) -> Planted:
    """Return the problem, in single precision."""
    return planted(n, rank=rank, outlier_fraction=0.1)


def near(problem: Planted) -> tuple[Any, Any]:
    """Return factors (n, r) near the truth, to start layers from that are timed without the initialisation."""
    n, rank = problem.U.shape
    return tuple(
        (truth + 0.05 * other).astype(np.float32)
        for truth, other in zip((problem.U, problem.V), factors(n, rank), strict=True)
    )  # type: ignore[return-value]


def soft(D: Any, threshold: Any) -> Any:
    """Return the soft threshold of D."""
    import torch

    return torch.sign(D) * torch.relu(torch.abs(D) - threshold)


def initialise(Y: Any, threshold: Any, rank: int) -> tuple[Any, Any]:
    """Return factors of the best approximation of clipped data, by a randomised SVD that is differentiated through."""
    import torch

    U, values, V = torch.svd_lowrank(Y - soft(Y, threshold), q=rank, niter=_POWER_STEPS)
    root = torch.sqrt(values)
    return U * root, V * root


def step(Y: Any, X: Any, thresholds: Any, steps: Any, rank: int, start: tuple[Any, Any] | None) -> Any:
    """Return the loss after all layers, and leave its derivatives in the numbers."""
    import torch

    thresholds.grad = steps.grad = None
    L, R = initialise(Y, thresholds[0], rank) if start is None else start
    for k in range(1, len(thresholds)):
        D = Y - L @ R.T
        E = D - soft(D, thresholds[k])
        L, R = (
            L + steps[k] * (E @ R) @ torch.inverse(R.T @ R),
            R + steps[k] * (E.T @ L) @ torch.inverse(L.T @ L),
        )
    loss = torch.norm(L @ R.T - X)
    loss.backward()
    return loss


def serve(n: int, threads: int) -> None:
    """Answer requests until standard input ends."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    made: dict[int, tuple[Any, ...]] = {}
    print(json.dumps({"ready": 1}), flush=True)
    for line in sys.stdin:
        name, word = line.split()
        rank = int(word)
        if rank not in made:
            problem = problem_of(n, rank)
            X = torch.from_numpy((problem.U @ problem.V.T).astype(np.float32))
            start = tuple(torch.from_numpy(factor) for factor in near(problem))
            values = tuple(torch.tensor(row, dtype=torch.float32, requires_grad=True) for row in numbers(n, rank))
            made[rank] = (torch.from_numpy(problem.Y), X, *values, start)
        Y, X, thresholds, steps, start = made[rank]
        loss = step(Y, X, thresholds, steps, rank, start if name == "layers" else None)
        answer = {"loss": loss.item(), "thresholds": thresholds.grad.tolist(), "steps": steps.grad.tolist()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
