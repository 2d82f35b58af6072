"""From a low-rank part to principal axes: centre, orthonormal components, singular values.

A centre that is estimated first (a mean, a median) does not lie in the affine space of the clean rows, and subtracting
it leaves one more component than there was. So nothing is subtracted: the low-rank part gets one more component, which
the centre may use, and the mean of its *clean* rows is the centre. With X = 1 μᵀ + A Vᵀ this is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.core.factors import orthonormal, thin_svd
from lrpca.core.influence import levels
from lrpca.core.linalg import eigh
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import EXACT_BELOW

# A singular value this much smaller than the largest is rounding.
_ABSENT = 1e-12
# Rounds of power iteration that find further axes, and how many directions are carried along to make them converge.
_ROUNDS, _SPARE = 4, 5

Product = Callable[[Any], Any]


@dataclass(frozen=True)
class PrincipalAxes:
    """The affine space of the clean rows: ``X = mean + scores @ components``."""

    mean: Any  # (n2,), zero where no centre was asked for
    components: Any  # (k, n2) orthonormal rows, strongest first; the entry of largest modulus of each is positive
    singular_values: Any  # (k,), of the centred clean rows
    scores: Any  # (n1, k)

    def first(self, count: int) -> PrincipalAxes:
        """Return the strongest axes."""
        return PrincipalAxes(self.mean, self.components[:count], self.singular_values[:count], self.scores[:, :count])


def principal_axes(L: Any, R: Any, *, center: bool, weight: Any = None) -> PrincipalAxes:
    """Return the principal axes of the rows of L Rᵀ, as many as there are."""
    Q = orthonormal(R)
    along = L @ (R.T @ Q)
    weight = np.ones(len(L)) if weight is None else weight
    middle = weight @ along / weight.sum() if center else np.zeros(along.shape[1])
    along = along - middle
    _, values, turn = thin_svd(np.sqrt(weight)[:, None] * along)
    there = values > _ABSENT * max(values.max(initial=0.0), float(np.linalg.norm(middle)) * math.sqrt(weight.sum()))
    turn, values = turn[there], values[there]
    components, signs = with_fixed_signs(turn @ Q.T)
    return PrincipalAxes(Q @ middle, components, values, (along @ turn.T) * signs)


def count_explaining(squares: Any, wanted: float) -> int:
    """Return how many of some variances, the largest first, it takes for a wanted sum; all where that is beyond it."""
    return min(len(squares), int(np.count_nonzero(np.cumsum(squares) < wanted)) + 1)


def with_fixed_signs(components: Any) -> tuple[Any, Any]:  # components (k, n2)
    """Return the components with the entry of largest modulus of each positive, and the signs (k,)."""
    if not len(components):
        return components, np.ones(0)
    peak = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    signs = np.where(peak < 0, -1.0, 1.0)
    return components * signs[:, None], signs


def extended_axes(
    matrix: DenseMatrix, axes: PrincipalAxes, count: int, threshold: float, weight: Any
) -> PrincipalAxes:  # weight (n1,)
    """Return `count` axes where fewer exceed the noise: the next ones are those of the cleaned residual.

    Outliers (beyond `threshold`) and missing entries of the residual count as zero. What scikit-learn's PCA returns
    beyond the structure of the data is the same for data without outliers.
    """
    n1, n2 = matrix.shape
    found = axes.components
    missing = count - len(found)
    if missing <= 0:
        return axes
    L = np.column_stack([np.ones(n1), axes.scores])
    R = np.column_stack([axes.mean, found.T])
    root = np.sqrt(weight)[:, None]
    level = levels("hard", threshold)

    def along(V: Any) -> Any:
        return matrix.run_pass(L, R, level, A=V, B=np.zeros((n1, 0))).CA

    def across(U: Any) -> Any:
        return matrix.run_pass(L, R, level, A=np.zeros((n2, 0)), B=root * U).CtB

    if n1 * n2 < EXACT_BELOW:
        matrix.reads += 1
        D = np.asarray(matrix.dense_rows(slice(0, n1)), np.float64) - L @ R.T
        D = np.where((np.abs(D) <= threshold) & (True if matrix.mask is None else matrix.mask), D, 0.0)
        D = root * (D - (D @ found.T) @ found)
        vectors = eigh(D.T @ D)[1][:, ::-1]
        # Directions without any residual are as good as any other, if only they are new.
        V = _beside(np.column_stack([vectors[:, :missing], np.eye(n2)]), found, missing)
    else:
        V = _residual_axes(along, across, found, root, missing)
    scores = np.column_stack([axes.scores, along(V)])
    _, values, turn = thin_svd(root * scores)
    components, signs = with_fixed_signs(turn @ np.vstack([found, V.T]))
    return PrincipalAxes(axes.mean, components, values, (scores @ turn.T) * signs)


def _residual_axes(along: Product, across: Product, found: Any, root: Any, count: int) -> Any:
    """Return (n2, count) directions by a power iteration, of a few passes over the data."""
    n2 = found.shape[1]
    width = min(count + _SPARE, n2 - len(found))
    V = _beside(np.random.default_rng(0).standard_normal((n2, width)), found, width)
    for _ in range(_ROUNDS):
        V = _beside(across(orthonormal(root * along(V))), found, width)
    return V @ thin_svd(root * along(V))[2][:count].T


def _beside(V: Any, found: Any, count: int) -> Any:
    """Return `count` orthonormal columns, the first of V (n2, k) first, orthogonal to the rows `found` (m, n2)."""
    for _ in range(2):
        V = V - found.T @ (found @ V)
    # Householder's QR keeps the order of the columns, and completes those that are zero.
    Q = np.linalg.qr(np.column_stack([found.T, V]))[0]
    return Q[:, len(found) : len(found) + count]
