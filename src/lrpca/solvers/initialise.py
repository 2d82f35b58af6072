"""Where the iteration starts: a randomised SVD of the clipped data, made of passes.

The test matrices are Gaussian, sums beyond a tile are float64 (float32 would lose the weak directions of an
ill-conditioned X), and the data are clipped on the fly so that gross outliers do not decide the subspace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lrpca.core.factors import (
    normal_form,
    orthonormal,
    thin_svd,
)
from lrpca.core.influence import Levels, everything
from lrpca.core.linalg import some_eigh
from lrpca.core.passes import Pass
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import EXACT_BELOW, refuse_largest

_OVERSAMPLING = 5
# Components of a given start this much weaker than the strongest are absent; those put in their place are this weak.
_ABSENT = 1e-12
_WEAK = 1e-2


@dataclass(frozen=True)
class ObservationCounts:
    """Counts of observed entries and the norm of Y, from the first pass over it."""

    observed_by_row: Any  # (n1,) int, on the host
    observed_by_column: Any  # (n2,) int, on the host
    norm: float  # ‖Y‖ over observed entries

    @classmethod
    def of(cls, first: Pass, norm: float) -> ObservationCounts:
        """Return the counts of a first pass, which keeps what is observed."""
        n1, n2 = len(first.kept_by_row), len(first.kept_by_column)
        if first.counted == n1 * n2:
            return cls(np.full(n1, n2), np.full(n2, n1), norm)
        return cls(np.asarray(first.kept_by_row), np.asarray(first.kept_by_column), norm)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of Y."""
        return len(self.observed_by_row), len(self.observed_by_column)

    def without_rows(
        self,
        left_out: Any,  # (n1,) bool
    ) -> ObservationCounts:
        """Return the counts in which some rows count as not observed."""
        return ObservationCounts(
            np.where(np.asarray(left_out), 0, self.observed_by_row), self.observed_by_column, self.norm
        )

    def relative(self, result: Pass) -> tuple[float, float]:
        """Return ‖C‖ / ‖Y‖ of a pass, and the share of observed entries that it kept."""
        kept = result.n_kept / max(1.0, self.entries)
        return (result.norm_C / self.norm if self.norm else 0.0), kept

    @cached_property
    def entries(self) -> float:
        """How many entries are observed."""
        return float(self.observed_by_row.sum())

    @cached_property
    def is_complete(self) -> bool:
        """Whether every entry is observed."""
        n1, n2 = self.shape
        return self.entries == n1 * n2

    @cached_property
    def least_observed_count(self) -> int:
        """The fewest observed entries of a row or column: 0 if some row or column is all gap."""
        return int(min(self.observed_by_row.min(), self.observed_by_column.min()))

    @cached_property
    def least_observed(self) -> float:
        """Observed fraction of the row or column with the most gaps, those that are all gap aside."""
        shares = [
            seen[seen > 0].min(initial=length) / length
            for seen, length in zip((self.observed_by_row, self.observed_by_column), self.shape[::-1], strict=True)
        ]
        return float(min(shares))

    @cached_property
    def observed(self) -> float:
        """Observed fraction p."""
        return self.entries / (len(self.observed_by_row) * len(self.observed_by_column))


def spectral_start(
    matrix: DenseMatrix,
    rank: int,
    clip: float,
    *,
    power_steps: int,
    rng: np.random.Generator,
    weight: Any = None,  # (n1,)
) -> tuple[Any, Any, ObservationCounts]:
    """Return L = U Σ^½, R = V Σ^½ of SVD_r(clip(Y) / p), and the observation counts.

    Reads Y 1 + 2 `power_steps` times (twice without power steps): the last product with Y is also the projection.
    """
    n1, n2 = matrix.shape
    width = min(rank + _OVERSAMPLING, n1, n2)
    root = None if weight is None else np.sqrt(weight)[:, None]
    level = everything(clip)
    first = _multiply(matrix, matrix.draw_normal((n2, width), rng), None, level, energy=True)
    counts = checked_counts(matrix, first)
    Z = _weighted(root, first.CA)
    for _ in range(power_steps):
        Q = _weighted(root, orthonormal(Z, rough=True).conj())
        P = orthonormal(_multiply(matrix, None, Q, level).CtB, rough=True)
        Z = _weighted(root, _multiply(matrix, P.conj(), None, level).CA)
    if power_steps:
        # W^½ Y is close to W^½ Y P̄ Pᵀ = Z Pᵀ.
        U, values, Vh = thin_svd(Z)
        V = P @ Vh.T
    else:
        Q = orthonormal(Z)
        V, values, Uh = thin_svd(_multiply(matrix, None, _weighted(root, Q.conj()), level).CtB)
        U = Q @ Uh.T
    scale = np.sqrt(values[:rank] / counts.observed)
    L = U[:, :rank]
    if root is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            L = np.where(root > 0, L / root, 0.0)
    return L * scale, V[:, :rank] * scale, counts


def _weighted(
    root: Any,  # (n, 1), or None
    M: Any,  # (n, k)
) -> Any:
    return M if root is None else root * M


def first_factors(
    matrix: DenseMatrix,
    rank: int,
    clip: float,
    *,
    power_steps: int,
    rng: np.random.Generator,
    weight: Any = None,  # (n1,)
) -> tuple[Any, Any, ObservationCounts]:
    """Return the exact start of a small matrix, the randomised one of a larger."""
    if math.prod(matrix.shape) < EXACT_BELOW:
        return exact_start(matrix, rank, clip, weight=weight)
    return spectral_start(matrix, rank, clip, power_steps=power_steps, rng=rng, weight=weight)


def exact_start(
    matrix: DenseMatrix,
    rank: int,
    clip: float,
    *,
    weight: Any = None,  # (n1,)
) -> tuple[Any, Any, ObservationCounts]:
    """Return what `spectral_start` approximates, for small matrices: nothing in it is random.

    The right singular vectors are eigenvectors of the smaller Gram matrix, which is good to half the digits: enough for
    a start.
    """
    counts = count_observed(matrix)
    matrix.reads += 1
    Y = np.asarray(matrix.dense_rows(slice(0, matrix.shape[0])), np.promote_types(matrix.arithmetic, np.float64))
    mask = matrix.mask_of(slice(0, matrix.shape[0]))
    observed = Y == Y if mask is None else (Y == Y) & mask
    size = np.where(observed, np.abs(Y), 0.0)
    Y = np.where(observed, Y, 0.0) * np.divide(clip, size, out=np.ones(Y.shape), where=size > clip)
    root = np.ones((len(Y), 1)) if weight is None else np.sqrt(np.asarray(weight))[:, None]
    weighted = root * Y
    n1, n2 = matrix.shape
    # By a power of two, so that scaled data give the same bits.
    unit = 2.0 ** math.floor(math.log2(np.abs(weighted).max(initial=0.0) or 1.0))
    short = (weighted if n1 <= n2 else weighted.T) / unit
    vectors = some_eigh(short @ short.conj().T, len(short) - rank, len(short) - 1)[1][:, ::-1]
    # W^½ Y = U Σ Vᵀ: from either side's vectors the other side's products follow, and with them the values.
    V = orthonormal(weighted.T @ vectors.conj()) if n1 <= n2 else vectors.conj()
    U, values, Vh = thin_svd(weighted @ V.conj())
    scale = np.sqrt(values / max(counts.observed, np.finfo(float).tiny))
    with np.errstate(divide="ignore", invalid="ignore"):
        L = np.where(root > 0, U / root, 0.0)
    return matrix.place(L * scale), matrix.place((V @ Vh.T) * scale), counts


def completed(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    rng: np.random.Generator,
) -> tuple[Any, Any]:
    """Return factors of full rank: weak random components where a start has none, which no update could ever create."""
    L, R, values = normal_form(L, R)
    absent = np.flatnonzero(values <= _ABSENT * values[0])
    if len(absent):
        weak = np.sqrt(_WEAK * values[values > _ABSENT * values[0]].min())
        for factor in (L, R):
            fresh = rng.standard_normal((len(factor), len(absent)))
            factor[:, absent] = fresh * (weak / np.sqrt(len(factor)))
    return L, R


def count_observed(matrix: DenseMatrix) -> ObservationCounts:
    """Read Y once for its norm, counts and finiteness (a warm start has no sketch to fuse this into)."""
    return checked_counts(matrix, _multiply(matrix, None, None, everything(), energy=True))


def checked_counts(matrix: DenseMatrix, first: Pass) -> ObservationCounts:
    """Return the counts of a first pass, or raise where Y has infinite entries."""
    norm = first.norm_D
    if norm is None or not np.isfinite(norm):
        if matrix.compute_exactly():
            # The square of an outlier may be too large for single precision only.
            return count_observed(matrix)
        place = matrix.find_largest()
        values, _ = matrix.entries(*(np.array([index]) for index in place))
        refuse_largest(*place, values[0] * matrix.unit)
    return ObservationCounts.of(first, float(norm or 0.0))


def _multiply(matrix: DenseMatrix, A: Any, B: Any, level: Levels, *, energy: bool = False) -> Pass:
    n1, n2 = matrix.shape
    none_1, none_2 = np.zeros((n1, 0)), np.zeros((n2, 0))
    return matrix.run_pass(
        none_1,
        none_2,
        level,
        A=none_2 if A is None else A,
        B=none_1 if B is None else B,
        energy=energy,
    )
