"""The formulas of one iteration on small matrices: updates of the factors, measures of change, the normal form.

Complex data need conjugates and X = L Rᵀ has none, so Grams are written ``G_R = Rᵀ R̄`` and ``G_L = Lᵀ W L̄`` with
the row weights W (the identity unless given). Everything here is float64 or complex128.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.core.linalg import eigh, svd
from lrpca.core.passes import Pass

# Directions whose share of a Gram is below this are treated as absent (over-specified rank).
_NEGLIGIBLE = 1e-13
# A direction this much shorter than the longest is rounding.
_ABSENT = 1e-14
# Columns whose cosines are below this are orthogonal.
_ORTHOGONAL = 1e-11
_TINY = float(np.finfo(float).tiny)
# Weight of the common Gram in a row's or column's own one: enough to solve for rows that lost all their entries.
OWN_GRAM_DAMPING = 1e-3


def _overridden(array: Any, name: str, *arguments: Any, **named: Any) -> Any:
    """Return what arrays of another kind than NumPy's compute by formulas of their own, None where they have none."""
    algebra = getattr(array, "algebra", None)
    return None if algebra is None else getattr(algebra, name)(*arguments, **named)


def pseudo_inverse(
    gram: Any,  # (r, r) Hermitian, positive semi-definite
) -> Any:
    """Return the inverse of a Gram matrix, zero along directions that are not there."""
    if len(gram) == 1:
        size = gram[0, 0].real
        return np.full_like(gram, 1.0 / size if size > _NEGLIGIBLE * _TINY else 0.0)
    values, vectors = eigh(gram)
    good = values > _NEGLIGIBLE * max(values[-1], _TINY)
    inverse = np.where(good, 1.0 / np.where(good, values, 1.0), 0.0)
    return (vectors * inverse) @ vectors.conj().T


def gram(M: Any, weight: Any = None) -> Any:  # M (n, r); weight (n,)
    """Return Mᵀ W M̄, (r, r)."""
    weighted = M if weight is None else M * weight[:, None]
    return weighted.T @ M.conj()


def inverse_grams(L: Any, R: Any, weight: Any = None) -> tuple[Any, Any]:
    """Return (Lᵀ W L̄)⁻¹ and (Rᵀ R̄)⁻¹."""
    return pseudo_inverse(np.asarray(gram(L, weight))), pseudo_inverse(np.asarray(gram(R)))


def scaled_directions(L: Any, R: Any, result: Pass, weight: Any = None, inverses: Any = None) -> tuple[Any, Any]:
    """Return C R̄ (Rᵀ R̄)⁻¹ and Cᵀ W L̄ (Lᵀ W L̄)⁻¹, the paper's scaled gradient directions (lines 8 and 9)."""
    inverse_L, inverse_R = inverses or inverse_grams(L, R, weight)
    return result.CA @ inverse_R, result.CtB @ inverse_L


def own_gram_directions(
    L: Any, R: Any, result: Pass, weight: Any = None, present: int | None = None
) -> tuple[Any, Any]:
    """Return the directions with each row and column solved by the Gram of its own kept entries.

    ``ΔL_i = (Σ_{kept j} R̄_j R_jᵀ + δ k p R^H R)⁻¹ (C R̄)_i``: a row that lost many entries takes a longer
    step, where one common step would never correct it. Only the first `present` components (all if None) are
    solved so; the others are too weak to be told from noise, and a row of few entries would be fitted to that.
    """
    share = kept_share(result)
    dL, dR = (direction / max(share, _NEGLIGIBLE) for direction in scaled_directions(L, R, result, weight))
    m = L.shape[1] if present is None else present
    damping = share * OWN_GRAM_DAMPING
    rows = result.row_grams[:, :m, :m] + damping * gram(R[:, :m]).conj()
    columns = result.column_grams[:, :m, :m] + damping * gram(L[:, :m], weight).conj()
    dL[:, :m], dR[:, :m] = solve_each(rows, result.CA[:, :m]), solve_each(columns, result.CtB[:, :m])
    return dL, dR


def kept_share(result: Pass) -> float:
    """Return kept entries over all entries, k p: what fraction of the gradient a pass has seen."""
    n1, n2 = len(result.kept_by_row), len(result.kept_by_column)
    return result.n_kept / (n1 * n2)


def without_double_counting(
    L: Any, R: Any, dL: Any, dR: Any, weight: Any = None, inverses: Any = None
) -> tuple[Any, Any]:
    """Return the tangent step: half of what lies in both the column and the row space is taken off each side.

    ``ΔL ← ΔL - ½ L (L^H W L)⁻¹ L^H W ΔL``, same for R. A full step is then stable.
    """
    inverse_L, inverse_R = inverses or inverse_grams(L, R, weight)
    weighted = dL if weight is None else dL * weight[:, None]
    along_L = 0.5 * inverse_L.conj() @ (L.conj().T @ weighted)
    along_R = 0.5 * inverse_R.conj() @ (R.conj().T @ dR)
    return dL - L @ along_L, dR - R @ along_R


def tangent_change(L0: Any, R0: Any, L: Any, R: Any, weight: Any = None) -> tuple[Any, Any]:
    """Return ΔL and ΔR of the change from ``L0 R0ᵀ`` to ``L Rᵀ``, as far as it lies in the tangent space there."""
    seen = L.conj() if weight is None else L.conj() * weight[:, None]
    inverse_L, inverse_R = inverses = inverse_grams(L, R, weight)
    dL = L - L0 @ (np.asarray(R0.T @ R.conj()) @ inverse_R)
    dR = R - R0 @ (np.asarray(L0.T @ seen) @ inverse_L)
    return without_double_counting(L, R, dL, dR, weight, inverses)


def tangent_product(L: Any, R: Any, one: tuple[Any, Any], other: tuple[Any, Any]) -> float:
    """Return the inner product of two steps ``ΔL Rᵀ + L ΔRᵀ``."""
    (aL, aR), (bL, bR) = one, other
    pairs = (((aL, bL), (R, R)), ((aL, L), (R, bR)), ((L, bL), (aR, R)), ((L, L), (aR, bR)))
    return sum(float(np.sum(np.asarray(a.T @ b.conj()) * np.asarray(c.T @ d.conj())).real) for (a, b), (c, d) in pairs)


@dataclass(frozen=True)
class Retracted:
    """The best matrix of the same rank after a step."""

    U: Any  # (n1, r) left singular vectors
    values: Any  # (r,) singular values
    V: Any  # (n2, r) right singular vectors
    # The same in the coordinates of the bases of L, ΔL, R and ΔR, and X before the step.
    core_U: Any  # (2r, r)
    core_Vt: Any  # (r, 2r)
    before: Any  # (2r, 2r)
    next_value: float  # σ_{r+1}, what the return to rank r has left out

    def factors(self) -> tuple[Any, Any]:
        """Return L = U Σ^½ and R = V Σ^½."""
        root = np.sqrt(self.values)
        return self.U * root, self.V * root

    def vectors(self) -> tuple[Any, Any]:
        """Return U and V."""
        return self.U, self.V

    def moved(self, absent: Any) -> float:  # absent (r,) bool
        """Return how far X moves in this step if some components are left out of it."""
        values = np.where(absent, 0.0, self.values)
        return float(np.linalg.norm((self.core_U * values) @ self.core_Vt - self.before))


def retract(L: Any, R: Any, dL: Any, dR: Any, weight: Any = None) -> Retracted:
    """Return the best rank-r approximation of ``L Rᵀ + ΔL Rᵀ + L ΔRᵀ``.

    ``(L + ΔL)(R + ΔR)ᵀ`` has one term more, ΔL ΔRᵀ, which is huge along components that are hardly there. What is new
    in ΔL is split off before it is orthonormalised, so that steps of 1e-9 keep their digits.

    With weights, U is orthonormal and the approximation best in the weighted rows (U of weight 0 follows from V).
    """
    found: Retracted | None = _overridden(dL, "retract", L, R, dL, dR, weight)
    if found is not None:
        return found
    root = None if weight is None else np.sqrt(weight)[:, None]
    left, d_left = (L, dL) if root is None else (root * L, root * dL)
    r = L.shape[1]
    U, Q_U, old_L, along_L, new_L = _split(left, d_left)
    V, Q_V, old_R, along_R, new_R = _split(R, dR)
    P, values, Zh, before = retracted_core(old_L, along_L, new_L, old_R, along_R, new_R)
    V_new = np.concatenate([V, Q_V], axis=1) @ Zh[:r].T
    if root is None:
        U_new = np.concatenate([U, Q_U], axis=1) @ P[:, :r]
    else:
        inverse = np.divide(1.0, values[:r], out=np.zeros(r), where=values[:r] > _ABSENT * values[0])
        U_new = ((L + dL) @ (R.T @ V_new.conj()) + L @ (dR.T @ V_new.conj())) * inverse
    return Retracted(U_new, values[:r], V_new, P[:, :r], Zh[:r], before, float(values[r]))


def retracted_core(
    old_L: Any, along_L: Any, new_L: Any, old_R: Any, along_R: Any, new_R: Any
) -> tuple[Any, Any, Any, Any]:
    """Return the SVD of X after a step, and X before it, in the coordinates of `_split` (all of them (r, r))."""
    r = len(old_L)
    before = np.zeros((2 * r, 2 * r), np.result_type(old_L, old_R))
    before[:r, :r] = old_L @ old_R.T
    after = before.copy()
    after[:r, :r] += along_L @ old_R.T + old_L @ along_R.T
    after[:r, r:], after[r:, :r] = old_L @ new_R.T, new_L @ old_R.T
    return *svd(after), before


def _split(M: Any, dM: Any) -> tuple[Any, Any, Any, Any, Any]:  # M (n, r); dM (n, r)
    """Return orthonormal bases Q of M and P of what is new in ΔM, and M = Q a, ΔM = Q b + P c as (Q, P, a, b, c)."""
    Q = _normalised(M)
    along = Q.conj().T @ dM
    rest = dM - Q @ along
    again = Q.conj().T @ rest
    rest = rest - Q @ again
    P = orthonormal(rest)
    return Q, P, Q.conj().T @ M, along + again, P.conj().T @ rest


def all_finite(dL: Any, dR: Any) -> bool:
    """Tell whether all entries of both are finite."""
    if not isinstance(dL, np.ndarray):
        # Squares of entries that lead anywhere stay far within the range of numbers.
        return (dL.surely_finite and dR.surely_finite) or math.isfinite(dL.energy_with(dR))
    return bool(np.isfinite(dL).all() and np.isfinite(dR).all())


def change_of_product(L: Any, R: Any, dL: Any, dR: Any) -> float:  # L (n1, r) before; R (n2, r) before
    """Return ‖(L + ΔL)(R + ΔR)ᵀ - L Rᵀ‖ from Grams of the changes; a difference of norms would drown in rounding."""
    left = np.concatenate([dL, L + dL], axis=1)
    right = np.concatenate([R, dR], axis=1)
    return product_norm(left, right)


def product_norm(L: Any, R: Any) -> float:
    """Return ‖L Rᵀ‖ without forming it."""
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(L, np.ndarray):
            square = float(np.sum(gram(L) * gram(R)).real)
        else:
            square = L.product_energy(R)
    return math.sqrt(max(0.0, square)) if square == square else math.inf


def product_distance(L: Any, R: Any, M: Any, N: Any) -> float:
    """Return ‖L Rᵀ - M Nᵀ‖ of products that may differ in width."""
    return product_norm(np.concatenate([L, -M], axis=1), np.concatenate([R, N], axis=1))


def longest_rows(L: Any, R: Any) -> float:
    """Return max_i |L_i| max_j |R_j|, which no entry of L Rᵀ exceeds."""
    if not isinstance(L, np.ndarray):
        return float(L.longest_rows_with(R))
    return float(np.linalg.norm(L, axis=1).max() * np.linalg.norm(R, axis=1).max())


def orthonormal(M: Any, *, rough: bool = False) -> Any:  # M (n, k)
    """Return an orthonormal basis of the columns of M, (n, k), with zero columns for directions that are not there.

    Twice "rotate to the eigenvectors of the Gram matrix and normalise": matrix products only. A Householder QR of a
    tall thin matrix takes longer than a pass where BLAS threads have to wait for a core. On a device a basis may be
    `rough`, good to eight digits, where that is enough; of arrays it never is.
    """
    found = _overridden(M, "orthonormal", M, rough=rough)
    if found is not None:
        return found
    for _ in range(2 if M.shape[1] > 1 else 1):
        if M.shape[1] > 1:
            M = M @ eigh(M.conj().T @ M)[1]
        size = np.sqrt((np.abs(M) ** 2).sum(axis=0))
        there = size > _ABSENT * size.max(initial=0.0)
        # Products with all of M: what is not finite stays so, and components that are absent change no bit of others.
        M = M * (1.0 / size if there.all() else np.where(there, 1.0 / np.where(there, size, 1.0), 0.0))
    return M


def _normalised(M: Any) -> Any:  # M (n, r)
    """Return an orthonormal basis of the columns of M, which is quick where they are orthogonal already."""
    products = M.conj().T @ M
    size = np.sqrt(products.diagonal().real)
    if size.min() > 0:
        cosines = np.abs(products) / (size[:, None] * size)
        np.fill_diagonal(cosines, 0.0)
        if cosines.max() <= _ORTHOGONAL:
            return M / size
    return orthonormal(M)


def thin_svd(M: Any) -> tuple[Any, Any, Any]:  # M (n, k)
    """Return U (n, k), the singular values (k,) and V^H (k, k) of a tall thin matrix."""
    found: tuple[Any, Any, Any] | None = _overridden(M, "thin_svd", M)
    if found is not None:
        return found
    Q = orthonormal(M)
    U, values, Vh = svd(Q.conj().T @ M)
    return Q @ U, values, Vh


def normal_form(L: Any, R: Any) -> tuple[Any, Any, Any]:
    """Return L = U Σ^½, R = V Σ^½ with the same product, and the singular values.

    Largest first; the entry of largest modulus in each column of R is positive.
    """
    Q_L, Q_R = orthonormal(L), orthonormal(R)
    U, values, Vt = svd((Q_L.conj().T @ L) @ (Q_R.conj().T @ R).T)
    left, right = Q_L @ U, Q_R @ Vt.T
    peak = right[np.abs(right).argmax(axis=0), np.arange(right.shape[1])]
    phase = np.where(peak == 0, 1.0, peak / np.where(peak == 0, 1.0, np.abs(peak)))
    root = np.sqrt(values)
    return left * (phase * root), right * (phase.conj() * root), values


def solve_each(grams: Any, sides: Any) -> Any:  # grams (n, r, r); sides (n, r)
    """Return the solutions of n small systems, scaled so that weak components count, with a ridge that is rounding."""
    diagonal = np.einsum("nkk->k", grams).real
    scale = 1.0 / np.sqrt(np.maximum(diagonal / max(1, len(grams)), np.finfo(float).tiny))
    grams = grams * (scale[:, None] * scale)
    trace = np.einsum("nkk->n", grams).real
    grams = grams + (1e-12 * trace + np.finfo(float).tiny)[:, None, None] * np.eye(grams.shape[1])
    return np.linalg.solve(grams, (sides * scale)[:, :, None])[:, :, 0] * scale
