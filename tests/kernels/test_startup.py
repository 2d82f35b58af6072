"""The first call of a process finds its kernels on disk, and rounds as the process that compiled them did."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FIRST_CALL = """
import time
import hashlib
import lrpca
Y = lrpca.testing.planted((400, 300), rank=3, dtype="float32", random_state=1).Y
began = time.perf_counter()
d = lrpca.decompose(Y, 3)
assert d.converged
print(time.perf_counter() - began, hashlib.sha256(d.L.tobytes() + d.R.tobytes()).hexdigest())
"""
IMPORT_NUMBA = """
import time
import numpy
began = time.perf_counter()
import numba
print(time.perf_counter() - began)
"""
# The goal is one second on an idle machine; a shared one may be several times slower.
ALLOWANCE_SECONDS = 1.0
SLACK = 3.0
ATTEMPTS = 3


def printed(code: str, cache: Path) -> list[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_second_process_compiles_nothing_and_rounds_alike(tmp_path: Path) -> None:
    _, compiled = printed(FIRST_CALL, tmp_path)
    found = [printed(FIRST_CALL, tmp_path) for _ in range(ATTEMPTS)]
    assert {bits for _, bits in found} == {compiled}
    numba = min(float(printed(IMPORT_NUMBA, tmp_path)[0]) for _ in range(ATTEMPTS))
    extra = min(float(seconds) for seconds, _ in found) - numba
    # Compiling one kernel takes more than ten times the allowance.
    assert extra < SLACK * ALLOWANCE_SECONDS, f"{extra:.2f} s beyond the {numba:.2f} s of importing numba"
