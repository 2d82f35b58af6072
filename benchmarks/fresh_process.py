"""What can only be measured in a process of its own: start-up, compilation and peak memory.

    python benchmarks/fresh_process.py start            seconds of importing, of the first call and of the second
    python benchmarks/fresh_process.py memory N RANK    bytes that one default call needs beside Y

Each prints one line of JSON. `ask` runs one of them from another process.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path


def ask(*command: str, environment: dict[str, str] | None = None) -> dict[str, float]:
    """Run this file in a new process and return what it printed."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), *command],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def start() -> dict[str, float]:
    """Return the seconds a new process spends until its first result, step by step."""
    marks = [time.perf_counter()]
    import numpy as np

    marks.append(time.perf_counter())
    import lrpca

    marks.append(time.perf_counter())
    import numba  # noqa: F401

    marks.append(time.perf_counter())
    rng = np.random.default_rng(0)
    Y = (rng.standard_normal((300, 3)) @ rng.standard_normal((3, 200))).astype(np.float32)
    Y[rng.random(Y.shape) < 0.1] += 5
    for _ in range(2):
        marks.append(time.perf_counter())
        lrpca.decompose(Y, rank=3)
        marks.append(time.perf_counter())
    return {
        "numpy": marks[1] - marks[0],
        "lrpca": marks[2] - marks[1],
        "numba": marks[3] - marks[2],
        "first": marks[5] - marks[4],
        "second": marks[7] - marks[6],
    }


def memory(n: int, rank: int) -> dict[str, float]:
    """Return the bytes of Y and how far a default call raised the resident memory above what it was with Y alone.

    The kernels are loaded by a small call before. The heap is trimmed, so that the call finds no memory that was left
    over from making Y.
    """
    from problems import planted

    import lrpca

    lrpca.decompose(planted(400, rank=rank, outlier_fraction=0.1).Y, rank=rank)
    problem = planted(n, rank=rank, outlier_fraction=0.1)
    Y = problem.Y
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    before = _reset_peak()
    d = lrpca.decompose(Y, rank=rank)
    return {"Y": Y.nbytes, "beside": _peak() - before, "error": problem.error(d.L, d.R)}


def _reset_peak() -> int:
    """Return the resident memory in bytes, and let the peak begin there where the system can."""
    clear = Path("/proc/self/clear_refs")
    if not clear.exists():
        return _peak()
    clear.write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    # ru_maxrss begins with the peak of the process that started this one; Linux also has the peak of this one alone.
    if Path("/proc/self/status").exists():
        return _status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}; memory cannot be measured on this system")


if __name__ == "__main__":
    what, *numbers = sys.argv[1:]
    print(json.dumps(start() if what == "start" else memory(*map(int, numbers))))
