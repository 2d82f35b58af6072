"""How good an answer is: against the truth where it is known, against the data where it is not.

The truth is kept as factors where it has low rank, so that an iterate given as factors is compared with it in
O((n1 + n2) r²), and one given as a matrix block by block: scoring needs next to no memory beside the answer.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.bench.contest.methods import floating
from lrpca.kernels.scale import outlier_threshold, residual_core, rounding_level
from lrpca.metrics import precision_recall_f

# Factors of the truth that leave more than this of it are not used.
_EXACT = 1e-11
_BLOCK = 1 << 20
_SAMPLE = 100_000
# A singular value this much below the first is none, and so many are looked for beyond those expected.
_ABSENT = 1e-6
_SPARE = 50


def factored(X: Any, rank: int) -> Any:  # X (n1, n2)
    """Return the true low-rank matrix as factors (A, B) if it has that rank, else as it is."""
    wide = np.complex128 if np.iscomplexobj(X) else np.float64
    # Twice X on a random sketch spans its columns to rounding even where it is ill-conditioned.
    sketch = np.random.default_rng(0).standard_normal((X.shape[1], min(rank, *X.shape)))
    for _ in range(2):
        A = np.linalg.qr(np.asarray(X @ sketch, wide))[0]
        sketch = np.asarray(X.conj().T @ A, wide)
    B = sketch.conj()
    squares = [np.linalg.norm(np.asarray(X[rows], wide) - A[rows] @ B.T) ** 2 for rows in row_blocks(X.shape)]
    return (A, B) if math.sqrt(sum(squares)) <= _EXACT * float(np.linalg.norm(B)) else X


def factored_error(L: Any, R: Any, A: Any, B: Any) -> float:  # A (n1, k); B (n2, k)
    """Return ‖L Rᵀ - A Bᵀ‖ / ‖A Bᵀ‖ by QR: a difference of Gram matrices would lose half of the digits."""
    sides = ((np.hstack([L, -A]), np.hstack([R, B])), (A, B))
    difference, size = (np.linalg.norm(np.linalg.qr(a)[1] @ np.linalg.qr(b)[1].T) for a, b in sides)
    return float(difference / size)


def relative_error(answer: Any, truth: Any) -> float:
    """Return ‖X - truth‖ / ‖truth‖; both are factors (L, R) or a matrix."""
    if isinstance(truth, tuple) and isinstance(answer, tuple):
        return factored_error(*answer, *truth)
    shape = (len(truth[0]), len(truth[1])) if isinstance(truth, tuple) else truth.shape
    squares = np.zeros(2)
    for rows in row_blocks(shape):
        exact = rows_of(truth, rows)
        difference = rows_of(answer, rows) - exact.astype(np.promote_types(exact.dtype, np.float64))
        squares += np.linalg.norm(difference) ** 2, np.linalg.norm(exact) ** 2
    return float(np.sqrt(squares[0] / squares[1]))


def row_blocks(shape: tuple[int, int]) -> list[slice]:
    """Return ranges of rows of about a million entries."""
    step = max(1, _BLOCK // shape[1])
    return [slice(first, first + step) for first in range(0, shape[0], step)]


def rows_of(answer: Any, rows: slice) -> Any:
    """Return some rows of X, given as factors or as a matrix."""
    return answer[0][rows] @ answer[1].T if isinstance(answer, tuple) else answer[rows]


class Probe:
    """A fixed sample of observed entries of Y on which residuals are measured."""

    def __init__(self, Y: Any) -> None:
        rng = np.random.default_rng(0)
        take = np.arange(Y.size) if Y.size <= _SAMPLE else rng.integers(Y.size, size=_SAMPLE)
        rows, columns = np.divmod(take, Y.shape[1])
        values = Y[rows, columns].astype(np.complex128 if np.iscomplexobj(Y) else np.float64)
        seen = np.isfinite(values)
        self._rows, self._columns, self._values = rows[seen], columns[seen], values[seen]
        sizes = np.abs(self._values)
        self.typical = float(np.median(sizes)) or float(sizes.max(initial=0.0))

    def residuals(self, answer: Any) -> Any:
        """Return |Y - X| at the sampled entries, (m,)."""
        if isinstance(answer, tuple):
            fit = np.einsum("ik,ik->i", answer[0][self._rows], answer[1][self._columns])
        else:
            fit = answer[self._rows, self._columns]
        return np.abs(self._values - fit)

    def residual(self, answer: Any) -> float:
        """Return median|Y - X| / median|Y|."""
        median = float(np.median(self.residuals(answer)))
        return median / self.typical if self.typical else median

    def outlier_threshold(self, answer: Any, Y: Any, moving: float) -> float:
        """Return the residual beyond which an entry is an outlier, by the rule of `Decomposition.outlier_threshold`.

        `moving` is the relative change of X at which the method stopped.
        """
        result = floating(Y.dtype)
        least = rounding_level(result, self.typical)
        sigma = residual_core(self.residuals(answer), least, is_complex=np.iscomplexobj(Y)).sigma
        rounding = rounding_level(result, float(np.abs(self._values).max(initial=0.0)))
        return outlier_threshold(sigma, Y.dtype, rounding, moving * self.typical, max(Y.shape))


def count_outliers(Y: Any, answer: Any, threshold: Any, truth: Any) -> dict[str, float | None]:
    """Return the share of observed entries beyond a threshold and, where the true ones are known, how many it found.

    `threshold` is a number or broadcasts to Y; `truth` (n1, n2) is of bool, or None.
    """
    beyond, observed = np.zeros(Y.shape, bool), 0
    limits = np.broadcast_to(threshold, Y.shape)
    for rows in row_blocks(Y.shape):
        seen = np.isfinite(Y[rows])
        beyond[rows] = seen & (np.abs(np.where(seen, Y[rows], 0) - rows_of(answer, rows)) > limits[rows])
        observed += int(seen.sum())
    scores: dict[str, float | None] = {"outlier_fraction": float(beyond.sum()) / max(1, observed)}
    score = None if truth is None else precision_recall_f(beyond, truth)
    for name, share in (("precision", "precision"), ("recall", "recall"), ("f_measure", "f")):
        found = math.nan if score is None else getattr(score, share)
        scores[name] = None if math.isnan(found) else found
    return scores


def numerical_rank(X: Any, expected: int) -> int:  # X (n1, n2)
    """Return how many singular values of a matrix are not negligible; at most a few more than expected are counted."""
    width = min(*X.shape, 2 * expected + _SPARE)
    sketch = np.random.default_rng(0).standard_normal((X.shape[1], width))
    Q = np.linalg.qr(X @ sketch)[0]
    values = np.linalg.svd(Q.conj().T @ X, compute_uv=False)
    return int(np.count_nonzero(values > _ABSENT * values[0])) if values[0] else 0
