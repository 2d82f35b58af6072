"""Threads change the time, never the bits; calls from several threads and after a fork work."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrpca import decompose
from lrpca.kernels.threads import Threads
from lrpca.matrices.partition import partition
from lrpca.testing import planted
from tests.helpers.python import run_python


@given(n1=st.integers(1, 5000), n2=st.integers(1, 5000), width=st.integers(0, 40), by_rows=st.booleans())
def test_partition_covers_every_entry_once_in_multiples_of_four(n1: int, n2: int, width: int, by_rows: bool) -> None:
    parts = partition((n1, n2), width, by_rows=by_rows)
    cuts = [rows if by_rows else columns for rows, columns in parts]
    wholes = [columns if by_rows else rows for rows, columns in parts]
    cut_length, whole_length = (n1, n2) if by_rows else (n2, n1)
    assert cuts[0].start == 0 and cuts[-1].stop == cut_length
    assert all(a.stop == b.start for a, b in zip(cuts, cuts[1:], strict=False))
    assert all(cut.start < cut.stop and cut.start % 4 == 0 for cut in cuts)
    assert all(whole == slice(0, whole_length) for whole in wholes)


def test_counts_of_a_part_are_exact_in_single_precision() -> None:
    longest = max(rows.stop - rows.start for rows, _ in partition((50_000_000, 4), 40, by_rows=True))
    assert longest <= 2**24


def test_map_keeps_order_and_passes_errors_on() -> None:
    threads = Threads()
    assert threads.map(lambda x: x * x, range(50)) == [x * x for x in range(50)]
    with pytest.raises(ZeroDivisionError):
        threads.map(lambda x: 1 // x, [1, 0, 1])
    assert threads.map(lambda x: x, [7]) == [7]
    assert threads.map(lambda x: x, []) == []


DIGEST = """
import hashlib, warnings
import numpy as np
from lrpca import decompose
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
digest = hashlib.sha256()
def make(n1, n2, rank):
    # Without matrix products: these would depend on the threads of BLAS.
    Y = sum(np.outer(rng.standard_normal(n1), rng.standard_normal(n2)) for _ in range(rank))
    return Y + 5 * (rng.random((n1, n2)) < 0.1)
def add(d):
    for array in (d.L, d.R, d.outliers):
        digest.update(np.ascontiguousarray(array).tobytes())
    for r in d.history:
        digest.update(repr((r.threshold, r.step, r.residual, r.change, r.kept)).encode())
single = make(700, 500, 5).astype(np.float32)
single[rng.random(single.shape) < 0.1] = np.nan
add(decompose(single, 5))
double = make(500, 700, 5)
add(decompose(double, 5))
add(decompose(np.asfortranarray(double)[::-1], 5, row_weight=np.arange(500)))
print(digest.hexdigest())
"""


def test_same_bits_whatever_the_number_of_threads() -> None:
    """Of our kernels, and of the linear algebra."""
    counts = (("1", "1"), ("3", "1"), ("1", "2"))
    digests = [run_python(DIGEST, NUMBA_NUM_THREADS=n, OPENBLAS_NUM_THREADS=m, OMP_NUM_THREADS=m) for n, m in counts]
    assert len(set(digests)) == 1, digests


def digest(d: Any) -> str:
    return hashlib.sha256(d.L.tobytes() + d.R.tobytes() + repr([r.change for r in d.history]).encode()).hexdigest()


def test_concurrent_calls_give_the_sequential_bits() -> None:
    """Also calls on the same array."""
    problems = [planted((320, 260), rank=3, dtype=dtype, random_state=k) for k, dtype in enumerate(["f4", "f8"] * 2)]
    sequential = [digest(decompose(problem.Y, 3)) for problem in problems]
    with ThreadPoolExecutor(4) as pool:
        concurrent = list(pool.map(lambda problem: digest(decompose(problem.Y, 3)), problems * 2))
    assert concurrent == sequential * 2


FORK = """
import multiprocessing, numpy as np
from lrpca import decompose
from lrpca.testing import planted
problem = planted((500, 400), rank=3)
d = decompose(problem.Y, 3)
def child(queue):
    again = decompose(problem.Y, 3)
    queue.put((np.array_equal(again.L, d.L), int(d.outliers.sum())))
context = multiprocessing.get_context("fork")
queue = context.Queue()
workers = [context.Process(target=child, args=(queue,)) for _ in range(2)]
for worker in workers: worker.start()
answers = [queue.get(timeout=120) for _ in workers]
for worker in workers: worker.join(60)
assert all(same and count == int(d.outliers.sum()) for same, count in answers), answers
assert np.array_equal(decompose(problem.Y, 3).L, d.L)
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_after_use() -> None:
    assert run_python(FORK, NUMBA_NUM_THREADS="3") == "fine"


SPAWN_FIRST_USE = """
import threading
import numpy as np
from lrpca import decompose
from lrpca.testing import planted
Y = planted((300, 280), rank=2).Y
results = [None] * 4
def work(k): results[k] = decompose(Y, 2).L
threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert all(np.array_equal(L, results[0]) for L in results)
print("fine")
"""


def test_first_use_from_several_threads_at_once() -> None:
    assert run_python(SPAWN_FIRST_USE) == "fine"
