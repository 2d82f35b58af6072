"""Grassmann averages: robust directions one by one, plain (GA) and trimmed (TGA) [1]_.

    q ← trimmed mean of s_n x_n, normalised,   s_n = sign(x_nᵀ q),

x_n being the rows of Y without the directions found so far. The plain average withstands outlying rows, the trimmed one
(each coordinate without its `trim` per cent smallest and largest) outlying entries as well. For complex data the sign
is a phase, and real and imaginary parts are trimmed each by itself.

The method is not exact: the average of clean rows lies in their subspace only in the limit of many rows, and a trimmed
one less so. S is what the low-rank part leaves.

References
----------
.. [1] S. Hauberg, A. Feragen, M. J. Black, "Grassmann Averages for Scalable Robust PCA", CVPR 2014; extended with
   R. Enficiaud in IEEE Transactions on Pattern Analysis and Machine Intelligence 38, 2016.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.core.factors import orthonormal
from lrpca.core.influence import everything
from lrpca.kernels.threads import Threads
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.base import Solution
from lrpca.solvers.options import choice, flag, number
from lrpca.solvers.partial_svd import half_pass
from lrpca.solvers.rows import robust_coefficients
from lrpca.solvers.run import Run, padded

# Every direction starts from a random one and a few power steps.
_POWER_STEPS = 3
# Numbers that are trimmed at a time, by one thread.
_PIECE, _LEAST_COLUMNS = 1 << 16, 16
_ROUNDINGS = 64.0

OPTIONS = {"trim": number(least=0, most=50), "center": flag(), "coefficients": choice("projection", "robust")}


def solve(run: Run, *, trim: float = 10.0, center: bool = False, coefficients: str = "robust") -> Solution:
    """Find directions by Grassmann averages, and the coefficients of the rows on them.

    With 10% outliers as large as the signal, n = 1000 and rank 5, the relative error of the low-rank part is 2.2e-2
    (4.1e-2 with outliers ten times as large); projection instead of robust coefficients makes it 2.4e-2 (1.1e-1), no
    trimming 1.2e-2 (1.2e-1), the median 5.4e-2 (6.3e-2).

    Parameters
    ----------
    run : Run
        `tol` (largest change of an entry of q) and `max_iter` are for each direction by itself.
    trim : float
        Per cent of the values that are left out at either end, from 0 (the plain average) to 50 (the median).
    center : bool
        Find directions about the median row instead of zero. The median row is then one of the `rank` components.
    coefficients : {"projection", "robust"}
        Project the rows on the subspace (the paper), or regress them robustly, so that outlying entries of a row do not
        spoil its coefficients.
    """
    rows = _Rows(run, trim, center)
    reason = "tol"
    try:
        while rows.directions.shape[1] < run.rank:
            ended = _find(run, rows)
            if ended in ("callback", "runaway"):
                reason = ended
                break
            reason = "max_iter" if "max_iter" in (ended, reason) else "tol"
        R = orthonormal(rows.directions)
        if coefficients == "robust" and R.any():
            run.matrix.reads += 1
            L = robust_coefficients(run.matrix, R, 0.0)
        else:
            L = rows.project(R)
    finally:
        rows.close()
    return run.end(L, R, reason)


def _find(run: Run, rows: _Rows) -> str:
    """Find one more direction; return why its iteration ended."""
    q = rows.first_direction(run.rng)
    along = rows.times(q)
    ended = None
    for _ in run.iterations():
        new = rows.average(_phase(along).conj())
        # A direction is one whatever its phase.
        new = new * _phase(np.vdot(new, q)[None])
        change = float(np.abs(new - q).max())
        q, along = new, rows.times(new)
        ended = run.record(*rows.factors(along, q, run.rank), change=change)
        if ended is not None:
            break
    rows.add(along, q)
    return ended or "max_iter"


class _Rows:
    """The rows of Y without the directions found so far, which are taken off on the fly."""

    def __init__(self, run: Run, trim: float, center: bool) -> None:
        counts = run.counts  # raises if entries are missing or infinite
        self._matrix: DenseMatrix = run.matrix
        n1, n2 = run.matrix.shape
        self._wide = np.promote_types(run.matrix.arithmetic, np.float64)
        self._threads = Threads()
        # An average shorter than this part of a typical row is rounding: all components have been found.
        self._least = _ROUNDINGS * float(np.finfo(run.matrix.result).eps) * counts.norm / math.sqrt(n1)
        # At least one value is left, or two: the median of an even number.
        self._cut = min(math.floor(trim / 100 * n1), (n1 - 1) // 2)
        # (n2, c) directions, the centre first, and (n1, c) coefficients of the rows on them.
        self.directions = np.zeros((n2, 0), self._wide)
        self._L = np.zeros((n1, 0), self._wide)
        self._fixed = 0
        if center:
            ones = np.ones(n1, self._wide)
            middle = self._trimmed(ones, (n1 - 1) // 2)
            size = float(np.linalg.norm(middle)) or 1.0
            self.add(ones * size, middle / size)
            self._fixed = 1

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def add(self, along: Any, q: Any) -> None:
        """Take off one more component."""
        self._L, self.directions = np.column_stack([self._L, along]), np.column_stack([self.directions, q])

    def factors(self, along: Any, q: Any, rank: int) -> tuple[Any, Any]:
        """Return factors of what was found and one more component, with zeros up to the rank asked for."""
        return padded(np.column_stack([self._L, along]), np.column_stack([self.directions, q]), rank)

    def project(self, R: Any) -> Any:
        """Return the coefficients of the rows of Y on R, (n1, c)."""
        return half_pass(self._matrix, None, everything(), A=R.conj()).CA

    def times(self, q: Any) -> Any:
        """Return the coefficients x_n^T q̄ of the rows on a direction, (n1,)."""
        q = q.conj()
        return half_pass(self._matrix, None, everything(), A=q[:, None]).CA[:, 0] - self._L @ (self.directions.T @ q)

    def first_direction(self, rng: np.random.Generator) -> Any:
        """Return a random direction after a few power steps, (n2,)."""
        q = self._normalised(rng.standard_normal(self._matrix.shape[1]).astype(self._wide))
        for _ in range(_POWER_STEPS):
            q = self._normalised(self._sum(self.times(q).conj()))
        return q

    def average(self, signs: Any) -> Any:
        """Return the trimmed mean of the rows with these signs, orthogonal to what was found, of length one."""
        mean = self._trimmed(signs, self._cut) if self._cut else self._sum(signs) / len(signs)
        return self._normalised(mean, self._least)

    def _sum(self, weights: Any) -> Any:
        return half_pass(self._matrix, None, everything(), B=weights[:, None]).CtB[:, 0] - self.directions @ (
            self._L.T @ weights
        )

    def _trimmed(self, signs: Any, cut: int) -> Any:
        """Return the mean of each coordinate without its `cut` smallest and largest values: one read of Y."""
        self._matrix.reads += 1
        n1, n2 = self._matrix.shape
        width = max(_LEAST_COLUMNS, _PIECE // n1)
        pieces = [slice(start, min(start + width, n2)) for start in range(0, n2, width)]

        def work(piece: slice) -> Any:
            values = np.array(self._matrix.take_columns(piece).array, self._wide, order="C")
            values -= self.directions[piece] @ self._L.T
            values *= signs
            if np.iscomplexobj(values):
                return _trimmed_means(values.real.copy(), cut) + 1j * _trimmed_means(values.imag.copy(), cut)
            return _trimmed_means(values, cut)

        return np.concatenate(self._threads.map(work, pieces, work=10.0 * n1 * n2))

    def _normalised(self, q: Any, least: float = 0.0) -> Any:
        """Return q of length one and orthogonal to earlier directions, or zero where no more than `least` is left."""
        Q = self.directions[:, self._fixed :]
        for _ in range(2):
            q = q - Q @ (Q.conj().T @ q)
        left = float(np.linalg.norm(q))
        return q / left if left > least else np.zeros_like(q)


def _trimmed_means(values: Any, cut: int) -> Any:
    """Return the mean of each row without its `cut` smallest and largest values, (m,)."""
    from lrpca.kernels.trimmed import trimmed_means

    means = np.empty(len(values))
    trimmed_means(values, cut, np.empty(values.shape[1]), means)
    return means


def _phase(values: Any) -> Any:
    """Return the signs, or phases, of some numbers; 1 for zero."""
    size = np.abs(values)
    return np.where(size > 0, values / np.where(size > 0, size, 1.0), 1.0)
