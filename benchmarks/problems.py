"""Corrupted matrices of the paper's kind, made in place: nothing of the size of Y exists besides Y."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

_ROWS = 128


@dataclass(frozen=True)
class Planted:
    """Y = U Vᵀ + outliers, and the truth as factors."""

    Y: Any  # (n, n)
    U: Any  # (n, r) float64
    V: Any  # (n, r) float64
    typical: float  # mean|U Vᵀ|

    def error(
        self,
        L: Any,  # (n, r)
        R: Any,  # (n, r)
    ) -> float:
        """Return ‖L Rᵀ - U Vᵀ‖ / ‖U Vᵀ‖ from the factors, without cancellation: [L, -U] [R, V]ᵀ by two QRs."""
        left, right = (np.linalg.qr(np.hstack(pair))[1] for pair in ((L, -self.U), (R, self.V)))
        size = np.sqrt(np.sum((self.U.T @ self.U) * (self.V.T @ self.V)))
        return float(np.linalg.norm(left @ right.T) / size)


def planted(n: int, *, rank: int, outlier_fraction: float, random_state: int = 0) -> Planted:
    """Return a float32 problem: U and V have entries N(0, 1/n), outliers are uniform in ±mean|U Vᵀ|.

    Each entry holds an outlier with probability `outlier_fraction`.

    Examples
    --------
    >>> problem = planted(1000, rank=2, outlier_fraction=0.1)
    >>> problem.Y.dtype.name, problem.error(problem.U, problem.V) < 1e-14
    ('float32', True)
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
