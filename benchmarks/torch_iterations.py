"""One iteration in torch, four ways, in a process of its own: allocator settings are read when a process starts.

    python benchmarks/torch_iterations.py N THREADS

makes Y and then does what it is told by lines on standard input, ``NAME RANK``, answering each with one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from problems import factors, planted

# Temporaries as large as Y stay in the heap instead of being mapped, and faulted in, anew each time.
TUNED = {"MALLOC_MMAP_THRESHOLD_": str(1 << 40), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
# Rows per block of the blocked form, the best of 32, 128 and 512: with 8000 columns 16 MB, for the last-level cache.
_ROWS = 512


class Torch:
    """A process that runs torch iterations on request.

    Parameters
    ----------
    n : int
        Rows and columns of Y.
    threads : int
        Threads torch may use.
    environment : dict, optional
        Additions to the environment of the process.
    script : Path, optional
        What it runs, if not the iterations of this file.
    """

    def __init__(
        self, n: int, threads: int, environment: dict[str, str] | None = None, script: Path = Path(__file__)
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(n), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._answer()

    def iterate(self, name: str, rank: int) -> dict[str, Any]:
        """Run one iteration; return the norms of C R and Cᵀ L and the number of page faults it took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {rank}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the torch process ended with status {self._process.wait()}; see its message above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Torch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def plain(Y: Any, L: Any, R: Any, z: float, kept: dict[str, Any]) -> tuple[Any, Any]:
    """Return C R and Cᵀ L as everyone writes it."""
    import torch

    D = Y - L @ R.T
    S = torch.sign(D) * torch.relu(torch.abs(D) - z)
    E = D - S
    return E @ R, E.T @ L


def best(Y: Any, L: Any, R: Any, z: float, kept: dict[str, Any]) -> tuple[Any, Any]:
    """Return C R and Cᵀ L without a single allocation: one buffer as large as Y, kept between iterations."""
    import torch

    D = torch.addmm(Y, L, R.T, alpha=-1, out=kept["buffer"])
    D.clamp_(-z, z)
    return torch.mm(D, R, out=kept["CR"]), torch.mm(D.T, L, out=kept["CtL"])


def blocked(Y: Any, L: Any, R: Any, z: float, kept: dict[str, Any]) -> tuple[Any, Any]:
    """Return C R and Cᵀ L by blocks of rows that stay in the cache: more than torch users do."""
    import torch

    CtL = kept["CtL"].zero_()
    for start in range(0, len(Y), _ROWS):
        rows = slice(start, start + _ROWS)
        D = kept["buffer"][: len(Y[rows])]
        torch.addmm(Y[rows], L[rows], R.T, alpha=-1, out=D)
        D.clamp_(-z, z)
        torch.mm(D, R, out=kept["CR"][rows])
        CtL.addmm_(D.T, L[rows])
    return kept["CR"], CtL


ITERATIONS: dict[str, Callable[[Any, Any, Any, float, dict[str, Any]], tuple[Any, Any]]] = {
    "plain": plain,
    "best": best,
    "blocked": blocked,
}


def threshold(n: int, rank: int) -> float:
    """Return a ζ that leaves most residuals of the benchmark's problem unclipped."""
    return float((5 + rank) ** 0.5 / n)


def serve(n: int, threads: int) -> None:
    """Answer requests until standard input ends."""
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    Y = torch.from_numpy(planted(n, rank=5, outlier_fraction=0.1).Y)
    # NumPy asks the system for large pages, torch does not: the kept buffer is given that advantage too.
    buffer = torch.from_numpy(np.zeros((n, n), np.float32))
    pairs: dict[int, tuple[Any, Any, dict[str, Any]]] = {}
    print(json.dumps({"ready": 1}), flush=True)
    for line in sys.stdin:
        name, word = line.split()
        rank = int(word)
        if rank not in pairs:
            L, R = (torch.from_numpy(factor.astype(np.float32)) for factor in factors(n, rank))
            pairs[rank] = (L, R, {"buffer": buffer, "CR": torch.zeros_like(L), "CtL": torch.zeros_like(R)})
        L, R, kept = pairs[rank]
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        with torch.inference_mode():
            CR, CtL = ITERATIONS[name](Y, L, R, threshold(n, rank), kept)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        answer = {"CR": float(CR.norm()), "CtL": float(CtL.norm()), "faults": faults}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
