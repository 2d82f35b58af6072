"""Stacks of planted problems, and the path of GPUs on tensors of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lrpca.batch.sequential import Request
from lrpca.schedule import default_schedule
from lrpca.testing import planted


def stack_of(count: int, shape: tuple[int, int] = (60, 40), dtype: Any = np.float32, **planting: Any) -> Any:
    """Return a stack (count, n1, n2) of planted problems."""
    planting = {"rank": 2, "outlier_fraction": 0.1} | planting
    return np.stack([planted(shape, random_state=i, **planting).Y for i in range(count)]).astype(dtype)


def truth_of(count: int, shape: tuple[int, int], **planting: Any) -> Any:
    """Return the low-rank parts of `stack_of`."""
    planting = {"rank": 2, "outlier_fraction": 0.1} | planting
    return np.stack([planted(shape, random_state=i, **planting).X for i in range(count)])


def solve_as_on_a_gpu(Ys: Any, rank: int, mask: Any = None, **asked: Any) -> tuple[Any, Any]:
    """Return the batch that the batched loop makes of an array, on the CPU, and what it would warn of."""
    from lrpca.batch.batched import solve_batched

    asked = {"tol": None, "max_iter": None, "schedule": default_schedule()} | asked
    request = Request(rank, asked["schedule"], asked["tol"], asked["max_iter"], 0, None)
    observed = None if mask is None else torch.from_numpy(mask).expand(Ys.shape)
    return solve_batched(torch.from_numpy(Ys), observed, request)


def distance(one: Any, other: Any) -> Any:
    """Return ‖X - X'‖ / ‖X'‖ of every problem."""
    one, other = (np.asarray(X, np.float64) for X in (one, other))
    return np.linalg.norm(one - other, axis=(1, 2)) / np.linalg.norm(other, axis=(1, 2))


def solve_alone(Ys: Any, rank: int, **options: Any) -> list[Any]:
    """Return the decompositions of a stack, whatever they would warn of."""
    from lrpca.decompose import Arguments, decompose_with_warnings

    given = Arguments(options=options)
    return [decompose_with_warnings(Y, rank, given)[0] for Y in Ys]
