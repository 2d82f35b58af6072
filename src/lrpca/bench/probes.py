"""What the machine can do at most, and matrices to measure with.

Reading Y once, and multiply-adds on data in the first-level cache: both are kernels of the form the library uses
(serial, GIL released, one task per thread), so they measure the machine and not a way of making threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from lrpca.bench.contest.scoring import factored_error
from lrpca.kernels.cpu import TILE, rows_times
from lrpca.kernels.threads import thread_count

# Multiply-adds of the library's innermost loop: four rows of a tile, as wide as the first-level cache likes, by five
# components.
_WIDTH = 512
_PRODUCTS = 4 * 5 * _WIDTH
# Rows of a planted problem that are made at a time.
_ROWS = 128


@numba.njit(nogil=True, fastmath=True)
def _sum(flat):
    total = np.float32(0)
    for j in range(flat.size):
        total += flat[j]
    return total


@numba.njit(nogil=True, fastmath=True)
def _products(tile, panel, out, times):
    for _ in range(times):
        rows_times(tile, panel, 0, out, 0, _WIDTH)
        # Without a change of the data the compiler would do the work once.
        tile[0] = np.float32(1e-3) * out[0, 0]


class Machine:
    """A pool of as many threads as the library uses, and the two limits measured with it."""

    def __init__(self) -> None:
        self.threads = thread_count()
        self._pool = ThreadPoolExecutor(self.threads)

    def read(self, Y: Any) -> float:  # Y (n1, n2) float32, C order
        """Return the sum of Y: every number is read once, in order, one contiguous range of rows per thread."""
        edges = np.linspace(0, len(Y), self.threads + 1).astype(int)
        flats = [Y[a:b].reshape(-1) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        return float(sum(self._pool.map(_sum, flats)))

    def multiply_add(self, count: float) -> int:
        """Do about `count` float32 multiply-adds, all threads together; return how many exactly."""
        times = max(1, round(count / (self.threads * _PRODUCTS)))

        def work(thread: int) -> bool:
            out = np.zeros((4, 5), np.float32)
            _products(np.full(4 * TILE, 1e-3, np.float32), np.full(5 * TILE, 1e-3, np.float32), out, times)
            return bool(np.isfinite(out).all())

        if not all(self._pool.map(work, range(self.threads))):
            raise RuntimeError("multiply_add left the range of float32; its time would mean nothing")
        return self.threads * times * _PRODUCTS


@dataclass(frozen=True)
class Planted:
    """Y = U Vᵀ + outliers, and the truth as factors."""

    Y: Any  # (n, n)
    U: Any  # (n, r) float64
    V: Any  # (n, r) float64
    typical: float  # mean|U Vᵀ|

    def error(self, L: Any, R: Any) -> float:  # L (n, r); R (n, r)
        """Return ‖L Rᵀ - U Vᵀ‖ / ‖U Vᵀ‖."""
        return factored_error(L, R, self.U, self.V)


def planted(n: int, *, rank: int, outlier_fraction: float, random_state: int = 0) -> Planted:
    """Return a float32 problem: U and V have entries N(0, 1/n), outliers are uniform in ±mean|U Vᵀ|.

    Each entry holds an outlier with probability `outlier_fraction`.
    """
    rng = np.random.default_rng(random_state)
    U, V = (rng.standard_normal((n, rank)) / np.sqrt(n) for _ in range(2))
    typical = float(np.abs(U[:_ROWS] @ V.T).mean())
    Y = np.empty((n, n), np.float32)
    for start in range(0, n, _ROWS):
        block = U[start : start + _ROWS] @ V.T
        hit = rng.random(block.shape, dtype=np.float32) < outlier_fraction
        block[hit] += rng.uniform(-typical, typical, np.count_nonzero(hit))
        Y[start : start + _ROWS] = block
    return Planted(Y, U, V, typical)


def factors(n: int, rank: int, random_state: int = 1) -> tuple[Any, Any]:
    """Return some float64 factors L, R (n, rank) whose product is of the size of a planted problem's."""
    rng = np.random.default_rng([random_state, rank])
    L, R = (rng.standard_normal((n, rank)) / np.sqrt(n) for _ in range(2))
    return L, R
