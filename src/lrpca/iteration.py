"""The formulas of one iteration on small matrices: updates of the factors, measures of change, the normal form.

Complex data need conjugates and X = L Rᵀ has none, so Grams are written ``G_R = Rᵀ R̄`` and ``G_L = Lᵀ W L̄`` with
the row weights W (the identity unless given). Everything here is float64 or complex128.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.kernels.reference import Pass

# Directions whose share of a Gram is below this are treated as absent (over-specified rank).
_NEGLIGIBLE = 1e-13
# A direction this much shorter than the longest is rounding.
_ABSENT = 1e-14
# Weight of the common Gram in a row's or column's own one: enough to solve for rows that lost all their entries.
_OWN_GRAM_DAMPING = 1e-3


def pseudo_inverse(
    gram: Any,  # (r, r) Hermitian, positive semi-definite
) -> Any:
    """Return the inverse of a Gram matrix, zero along directions that are not there."""
    values, vectors = np.linalg.eigh(gram)
    good = values > _NEGLIGIBLE * max(values[-1], np.finfo(float).tiny)
    inverse = np.where(good, 1.0 / np.where(good, values, 1.0), 0.0)
    return (vectors * inverse) @ vectors.conj().T


def gram(
    M: Any,  # (n, r)
    weight: Any = None,  # (n,)
) -> Any:
    """Return Mᵀ W M̄, (r, r)."""
    weighted = M if weight is None else M * weight[:, None]
    return weighted.T @ M.conj()


def scaled_directions(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    result: Pass,
    weight: Any = None,  # (n1,)
) -> tuple[Any, Any]:
    """Return C R̄ (Rᵀ R̄)⁻¹ and Cᵀ W L̄ (Lᵀ W L̄)⁻¹, the paper's scaled gradient directions (lines 8 and 9)."""
    return result.CA @ pseudo_inverse(gram(R)), result.CtB @ pseudo_inverse(gram(L, weight))


def own_gram_directions(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    result: Pass,
    weight: Any = None,  # (n1,)
) -> tuple[Any, Any]:
    """Return the directions with each row and column solved by the Gram of its own kept entries.

    ``ΔL_i = (Σ_{kept j} R̄_j R_jᵀ + δ k p R^H R)⁻¹ (C R̄)_i``: a row that lost many entries takes a longer
    step, where one common step would leave it behind for ever.
    """
    share = kept_share(result) * _OWN_GRAM_DAMPING
    rows = result.row_grams + share * gram(R).conj()
    columns = result.column_grams + share * gram(L, weight).conj()
    return solve_each(rows, result.CA), solve_each(columns, result.CtB)


def kept_share(result: Pass) -> float:
    """Return kept entries over all entries, k p: what fraction of the gradient a pass has seen."""
    n1, n2 = len(result.kept_by_row), len(result.kept_by_column)
    return float(result.kept_by_row.sum()) / (n1 * n2)


def without_double_counting(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    dL: Any,  # (n1, r)
    dR: Any,  # (n2, r)
    weight: Any = None,  # (n1,)
) -> tuple[Any, Any]:
    """Return the tangent step: half of what lies in both the column and the row space is taken off each side.

    ``ΔL ← ΔL - ½ L (L^H W L)⁻¹ L^H W ΔL``, same for R. A full step is then stable.
    """
    return dL - 0.5 * _project(L, dL, weight), dR - 0.5 * _project(R, dR, None)


def change_of_product(
    L: Any,  # (n1, r) before
    R: Any,  # (n2, r) before
    dL: Any,  # (n1, r)
    dR: Any,  # (n2, r)
) -> float:
    """Return ‖(L + ΔL)(R + ΔR)ᵀ - L Rᵀ‖ from Grams of the changes; a difference of norms would drown in rounding."""
    left = np.concatenate([dL, L + dL], axis=1)
    right = np.concatenate([R, dR], axis=1)
    return product_norm(left, right)


def product_norm(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
) -> float:
    """Return ‖L Rᵀ‖ without forming it."""
    return float(np.sqrt(max(0.0, np.sum(gram(L) * gram(R)).real)))


def smallest_singular_value(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
) -> float:
    """Return σ_r of L Rᵀ, from Grams; 0 below a hundred-millionth of σ_1."""
    values = np.linalg.eigvals(gram(L) @ gram(R).T).real
    return float(np.sqrt(max(0.0, values.min())))


def orthonormal(
    M: Any,  # (n, k)
) -> Any:
    """Return an orthonormal basis of the columns of M, (n, k), with zero columns for directions that are not there.

    Twice "rotate to the eigenvectors of the Gram matrix and normalise": matrix products only. A Householder QR of a
    tall thin matrix takes longer than a pass where BLAS threads have to wait for a core.
    """
    for _ in range(2):
        M = M @ np.linalg.eigh(M.conj().T @ M)[1]
        size = np.linalg.norm(M, axis=0)
        M = M * np.where(size > _ABSENT * size.max(initial=0.0), 1.0 / np.where(size > 0, size, 1.0), 0.0)
    return M


def thin_svd(
    M: Any,  # (n, k)
) -> tuple[Any, Any, Any]:
    """Return U (n, k), the singular values (k,) and V^H (k, k) of a tall thin matrix."""
    Q = orthonormal(M)
    U, values, Vh = np.linalg.svd(Q.conj().T @ M)
    return Q @ U, values, Vh


def normal_form(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
) -> tuple[Any, Any, Any]:
    """Return L = U Σ^½, R = V Σ^½ with the same product, and the singular values.

    Largest first; the entry of largest modulus in each column of R is positive.
    """
    Q_L, Q_R = orthonormal(L), orthonormal(R)
    U, values, Vt = np.linalg.svd((Q_L.conj().T @ L) @ (Q_R.conj().T @ R).T)
    left, right = Q_L @ U, Q_R @ Vt.T
    peak = right[np.abs(right).argmax(axis=0), np.arange(right.shape[1])]
    phase = np.where(peak == 0, 1.0, peak / np.where(peak == 0, 1.0, np.abs(peak)))
    root = np.sqrt(values)
    return left * (phase * root), right * (phase.conj() * root), values


def _project(
    M: Any,  # (n, r)
    dM: Any,  # (n, r)
    weight: Any,  # (n,)
) -> Any:
    weighted = dM if weight is None else dM * weight[:, None]
    return M @ (pseudo_inverse(gram(M, weight).conj()) @ (M.conj().T @ weighted))


def solve_each(
    grams: Any,  # (n, r, r)
    sides: Any,  # (n, r)
) -> Any:
    """Return the solutions of n small systems; a scaled identity keeps over-specified ranks solvable."""
    trace = np.einsum("nkk->n", grams).real
    grams = grams + (1e-12 * trace + np.finfo(float).tiny)[:, None, None] * np.eye(grams.shape[1])
    return np.linalg.solve(grams, sides[:, :, None])[:, :, 0]
