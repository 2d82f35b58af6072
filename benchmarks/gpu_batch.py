"""`decompose_batch` on a GPU against one problem at a time on the CPU, in the same run.

    python benchmarks/gpu_batch.py [--device cuda] [--count 10000]

Clips as ultrasound scanners make them: 1024 x 40 in single precision, rank 1, 10% outliers. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from typing import Any

import numpy as np
import torch

import lrpca

SHAPE, RANK, OUTLIERS = (1024, 40), 1, 0.1
# Problems solved by the CPU for the time of one, and calls of which the median is told.
SINGLE, REPEATS = 30, 3


def run(device: str, count: int = 10_000, noise: float = 0.0, missing: float = 0.0) -> dict[str, Any]:
    """Return times, errors and shares of a batch of `count` problems on a device.

    Parameters
    ----------
    device : str
    count : int
    noise : float
        Standard deviation of Gaussian noise, in units of mean|X|.
    missing : float
        Share of entries that are NaN.

    Returns
    -------
    dict
        ``seconds`` of a call (median after one to warm up), ``cpu_ms`` per problem on the CPU, ``ratio`` of the two
        per problem, ``one_by_one``, the share of problems that the CPU was asked to solve, and errors.
    """
    Ys, X = stack_of(device, count, noise, missing)
    seconds = []
    # Clean data make "no outliers" and the like worth a warning, which is no matter of speed.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(REPEATS + 1):
            _wait(device)
            began = time.perf_counter()
            result = lrpca.decompose_batch(Ys, RANK)
            _wait(device)
            seconds.append(time.perf_counter() - began)
        alone = [Ys[i].cpu().numpy() for i in range(min(SINGLE, count))]
        singles = [lrpca.decompose(alone[0], RANK)]
        began = time.perf_counter()
        singles = [lrpca.decompose(Y, RANK) for Y in alone]
        single = (time.perf_counter() - began) / len(alone)
    median = float(np.median(seconds[1:]))
    return {
        "device": torch.cuda.get_device_name(device) if device != "cpu" else "cpu",
        "shape": [count, *SHAPE],
        "noise": noise,
        "missing": missing,
        "seconds": median,
        "first_call_seconds": seconds[0],
        "cpu_ms": 1e3 * single,
        "ratio": single * count / median,
        "one_by_one": len(result.one_by_one) / count,
        "converged": float(result.converged.double().mean()),
        "iterations_median": float(result.n_iter.double().median()),
        "iterations_most": int(result.n_iter.max()),
        "error_median": float(errors(result, X).median()),
        "error_worst": float(errors(result, X).max()),
        "difference_to_cpu": max(_difference(result, i, one) for i, one in enumerate(singles)),
    }


def stack_of(device: str, count: int, noise: float, missing: float) -> tuple[Any, Any]:
    """Return a stack of problems, made on the device, and the factors of its low-rank part."""
    torch.manual_seed(0)
    n1, n2 = SHAPE
    L, R = torch.randn(count, n1, RANK, device=device), torch.randn(count, n2, RANK, device=device)
    Ys = L @ R.transpose(1, 2)
    size = 2 / np.pi  # mean|X| of a product of two Gaussian numbers
    for part in Ys.split(1000):
        hit = torch.rand_like(part) < OUTLIERS
        part += hit * size * (2 * torch.rand_like(part) - 1)
        if noise:
            part += noise * size * torch.randn_like(part)
        if missing:
            part.masked_fill_(torch.rand_like(part) < missing, torch.nan)
    return Ys, (L, R)


def errors(result: lrpca.BatchDecomposition, X: tuple[Any, Any]) -> Any:
    """Return ‖X̂ - X‖ / ‖X‖ of every problem, from Grams."""
    left = torch.cat([result.L.double(), -X[0].double()], dim=2)
    right = torch.cat([result.R.double(), X[1].double()], dim=2)
    return _norm(left, right) / _norm(X[0].double(), X[1].double())


def _norm(left: Any, right: Any) -> Any:
    grams = (left.transpose(1, 2) @ left) * (right.transpose(1, 2) @ right)
    return grams.sum(dim=(1, 2)).clamp(min=0).sqrt()


def _difference(result: lrpca.BatchDecomposition, i: int, one: lrpca.Decomposition) -> float:
    X = one.low_rank
    return float(np.linalg.norm((result.L[i] @ result.R[i].T).cpu().numpy() - X) / np.linalg.norm(X))


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="where the stack is (default: %(default)s)")
    parser.add_argument("--count", type=int, default=10_000, help="problems (default: %(default)s)")
    parser.add_argument("--noise", type=float, default=0.0, help="of Gaussian noise (default: %(default)s)")
    parser.add_argument("--missing", type=float, default=0.0, help="share of NaN (default: %(default)s)")
    chosen = parser.parse_args()
    print(json.dumps(run(chosen.device, chosen.count, chosen.noise, chosen.missing), indent=1))
