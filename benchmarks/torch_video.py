"""The published method on a video in torch, in a process of its own: allocator settings are read when a process starts.

    BENCH_CLIP=FILE.npy python benchmarks/torch_video.py FRAMES THREADS

reads the clip and then does what it is told by lines on standard input, ``NAME RANK``, answering each with one line of
JSON. The numbers are those of the shipped video model, the stopping rule is the paper's for videos.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from lrpca import Schedule
from lrpca.bench.experiments.video_torch import PlainRun, solve_plainly

MODEL = "video"
LIMIT, MAX_ITER = 1e-3, 200
CLIP = "BENCH_CLIP"


class Buffers:
    """Four matrices of the size of Y that are kept from call to call, so that an iteration allocates nothing large."""

    def __init__(self, Y: Any) -> None:
        import numpy as np
        import torch

        # NumPy asks the system for large pages, torch does not: kept buffers are given that advantage.
        self.D, self.C, self.S, self.S_new = (torch.from_numpy(np.zeros(Y.shape, np.float32)) for _ in range(4))


def solve_carefully(Y: Any, rank: int, schedule: Schedule, buffers: Buffers) -> PlainRun:
    """Run the same iteration without large temporaries: X is never formed, its change comes from the factors."""
    import numpy as np
    import torch

    D, C, S, S_new = buffers.D, buffers.C, buffers.S, buffers.S_new
    began, times, stopped = time.perf_counter(), [], False
    with torch.inference_mode():
        torch.manual_seed(0)
        zeta = schedule.thresholds[0]
        torch.clamp(Y, -zeta, zeta, out=C)
        torch.sub(Y, C, out=S)
        U, values, V = torch.svd_lowrank(C, q=rank, niter=4)
        L, R = U * values.sqrt(), V * values.sqrt()
        for k in range(1, MAX_ITER + 1):
            start = time.perf_counter()
            numbers = schedule.at(k)
            assert numbers is not None
            threshold, step = numbers
            torch.addmm(Y, L, R.T, alpha=-1, out=D)
            torch.clamp(D, -threshold, threshold, out=C)
            torch.sub(D, C, out=S_new)
            L_new = L + step * (C @ R) @ torch.inverse(R.T @ R)
            R_new = R + step * (C.T @ L) @ torch.inverse(L.T @ L)
            size = float(torch.linalg.vector_norm(S))
            moved = float(torch.linalg.vector_norm(S.sub_(S_new)))
            change = _distance(L, R, L_new, R_new) / _distance(L, R, 0 * L, 0 * R)
            stopped = change < LIMIT and moved < LIMIT * size
            L, R, S, S_new = L_new, R_new, S_new, S
            times.append(time.perf_counter() - start)
            if stopped:
                break
    seconds = time.perf_counter() - began
    return PlainRun(L.numpy(), R.numpy(), len(times), seconds, float(np.median(times)), stopped)


def _distance(L: Any, R: Any, L_new: Any, R_new: Any) -> float:
    """Return ‖L Rᵀ - L' R'ᵀ‖ by Grams, in double precision."""
    import torch

    left, right = torch.cat([L, -L_new], 1).double(), torch.cat([R, R_new], 1).double()
    return float(torch.sum((left.T @ left) * (right.T @ right)).clamp(min=0).sqrt())


def serve(threads: int) -> None:
    """Answer requests until standard input ends."""
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    Y = torch.from_numpy(np.load(os.environ[CLIP]).astype(np.float32))
    schedule = Schedule.load(MODEL)
    buffers: Buffers | None = None
    print(json.dumps({"ready": 1}), flush=True)
    for line in sys.stdin:
        name, word = line.split()
        rank = int(word)
        if name == "plain":
            run = solve_plainly(Y, rank, schedule, limit=LIMIT, max_iter=MAX_ITER)
        else:
            buffers = buffers or Buffers(Y)
            run = solve_carefully(Y, rank, schedule, buffers)
        answer = {
            "seconds": run.seconds,
            "each": run.seconds_per_iteration,
            "iterations": run.iterations,
            "stopped": run.stopped,
            "size": float(np.linalg.norm(run.L.T @ run.L) * np.linalg.norm(run.R.T @ run.R)),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(int(sys.argv[2]))
