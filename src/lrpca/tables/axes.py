"""From a low-rank part to principal axes: centre, orthonormal components, singular values.

A centre that is estimated first (a mean, a median) does not lie in the affine space of the clean rows, and taking it
off leaves one component more than there was. So nothing is taken off: the low-rank part is given one component more,
which the centre may use, and the mean of its *clean* rows is the centre. With X = 1 μᵀ + A Vᵀ this is exact.
"""

from __future__ import annotations

import math
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


@dataclass(frozen=True)
class PrincipalAxes:
    """The affine space of the clean rows.

    Attributes
    ----------
    mean : ndarray (n2,)
        Centre; zero where none was asked for.
    components : ndarray (k, n2)
        Orthonormal rows, strongest first; the entry of largest modulus of each is positive.
    singular_values : ndarray (k,)
        Of the centred clean rows.
    scores : ndarray (n1, k)
        Coefficients of the clean rows: ``X = mean + scores @ components``.
    """

    mean: Any
    components: Any
    singular_values: Any
    scores: Any

    def first(self, count: int) -> PrincipalAxes:
        """Return the strongest axes."""
        return PrincipalAxes(self.mean, self.components[:count], self.singular_values[:count], self.scores[:, :count])


def principal_axes(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    *,
    center: bool,
    weight: Any = None,  # (n1,)
) -> PrincipalAxes:
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


def with_fixed_signs(
    components: Any,  # (k, n2)
) -> tuple[Any, Any]:
    """Return the components with the entry of largest modulus of each positive, and the signs (k,)."""
    if not len(components):
        return components, np.ones(0)
    peak = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    signs = np.where(peak < 0, -1.0, 1.0)
    return components * signs[:, None], signs


def extended_axes(
    matrix: DenseMatrix,
    axes: PrincipalAxes,
    count: int,
    threshold: float,
    *,
    weight: Any = None,  # (n1,)
) -> PrincipalAxes:
    """Return `count` axes where fewer stand out of the noise: the next ones are those of the cleaned residual.

    Outliers (beyond `threshold`) and missing entries of the residual count as zero. What scikit-learn's PCA returns
    beyond the structure of the data is the same for data without outliers.
    """
    n1, n2 = matrix.shape
    missing = count - len(axes.components)
    if missing <= 0:
        return axes
    L = np.column_stack([np.ones(n1), axes.scores])
    R = np.column_stack([axes.mean, axes.components.T])
    root = np.ones(n1) if weight is None else np.sqrt(weight)
    if n1 * n2 < EXACT_BELOW:
        V = _residual_axes(matrix, L, R, threshold, axes.components, root, missing)
    else:
        V = _residual_axes_by_passes(matrix, L, R, threshold, axes.components, root, missing)
    along = matrix.run_pass(L, R, levels("hard", threshold), A=V, B=np.zeros((n1, 0))).CA
    scores = np.column_stack([axes.scores, along])
    _, values, turn = thin_svd(root[:, None] * scores)
    components, signs = with_fixed_signs(turn @ np.vstack([axes.components, V.T]))
    return PrincipalAxes(axes.mean, components, values, (scores @ turn.T) * signs)


def _residual_axes(matrix: DenseMatrix, L: Any, R: Any, threshold: float, found: Any, root: Any, count: int) -> Any:
    """Return (n2, count) directions by an exact decomposition of a small matrix."""
    matrix.reads += 1
    Y = np.asarray(matrix.dense_rows(slice(0, matrix.shape[0])), np.float64)
    D = Y - L @ R.T
    D = np.where((np.abs(D) <= threshold) & (True if matrix.mask is None else matrix.mask), D, 0.0)
    D = root[:, None] * (D - (D @ found.T) @ found)
    vectors = eigh(D.T @ D)[1][:, ::-1]
    # Directions without any residual are as good as any other, if only they are new.
    return _beside(np.column_stack([vectors[:, :count], np.eye(len(R))]), found, count)


def _residual_axes_by_passes(
    matrix: DenseMatrix, L: Any, R: Any, threshold: float, found: Any, root: Any, count: int
) -> Any:
    """Return (n2, count) directions by a power iteration that reads Y a few times."""
    n1, n2 = matrix.shape
    level = levels("hard", threshold)
    width = min(count + _SPARE, n2 - len(found))
    V = _beside(np.random.default_rng(0).standard_normal((n2, width)), found, width)
    for _ in range(_ROUNDS):
        U = orthonormal(root[:, None] * matrix.run_pass(L, R, level, A=V, B=np.zeros((n1, 0))).CA)
        V = _beside(matrix.run_pass(L, R, level, A=np.zeros((n2, 0)), B=root[:, None] * U).CtB, found, width)
    along = root[:, None] * matrix.run_pass(L, R, level, A=V, B=np.zeros((n1, 0))).CA
    return V @ thin_svd(along)[2][:count].T


def _beside(
    V: Any,  # (n2, k)
    found: Any,  # (m, n2) orthonormal rows
    count: int,
) -> Any:
    """Return `count` orthonormal columns that are orthogonal to what was found, the first of V first."""
    for _ in range(2):
        V = V - found.T @ (found @ V)
    # Householder's QR keeps the order of the columns, and goes on beside those that are not there.
    Q = np.linalg.qr(np.column_stack([found.T, V]))[0]
    return Q[:, len(found) : len(found) + count]
