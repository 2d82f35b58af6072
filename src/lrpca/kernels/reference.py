"""The pass in plain NumPy: the specification that every fast kernel is tested against.

One read of Y gives, for the residual ``D = Y - L Rᵀ`` on observed entries and ``C = ψ(D)``,

    C A (n1, ka),  Cᵀ B (n2, kb),  kept counts by row and column,  Σ|C|²,  Σ|D|²,
    and, when asked, the kept-entry Grams  Σ_{kept j} A_j R_jᵀ  of every row and  Σ_{kept i} B_i L_iᵀ  of every column.

The iteration uses A = R̄ and B = W L̄ (conjugates for complex data, row weights W), the sketches of the initialisation
use rank-0 factors and test matrices A or B.

Training needs the adjoint of a pass, too: `dense_adjoint`, for real data, A = R and B = L.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.core.influence import Levels, apply
from lrpca.core.passes import Pass


def dense_pass(
    Y: Any,  # (n1, n2), NaN where missing
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    level: Levels,
    *,
    A: Any,  # (n2, ka)
    B: Any,  # (n1, kb)
    mask: Any = None,  # broadcastable to (n1, n2), True = observed
    grams: bool = False,
) -> Pass:
    """Return the pass over a dense matrix, in float64 or complex128.

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.core.influence import levels
    >>> Y = np.array([[1.0, 2.0], [3.0, 40.0]])
    >>> zero, one = np.zeros((2, 1)), np.ones((2, 1))
    >>> result = dense_pass(Y, zero, zero, levels("hard", 5.0), A=one, B=one)
    >>> result.CA.ravel(), result.kept_by_column
    (array([3., 3.]), array([2, 1]))
    """
    wide = np.complex128 if np.iscomplexobj(Y) else np.float64
    D = np.asarray(Y).astype(wide) - L.astype(wide) @ R.astype(wide).T
    if mask is not None:
        D = np.where(mask, D, np.nan)
    C = apply(D, level)
    kept = np.abs(D) <= level.keep
    pairs = {}
    if grams:
        pairs["row_grams"] = np.einsum("ij,jk,jh->ikh", kept, A, R)
        pairs["column_grams"] = np.einsum("ij,ik,ih->jkh", kept, B, L)
    return Pass(
        CA=C @ A,
        CtB=C.T @ B,
        kept_by_row=kept.sum(axis=1),
        kept_by_column=kept.sum(axis=0),
        norm_C=float(np.linalg.norm(C)),
        norm_D=float(np.sqrt(np.nansum(np.abs(D) ** 2))),
        **pairs,
    )


@dataclass(frozen=True)
class Adjoint:
    """What the adjoint of a pass gives: the derivatives of a number by the arguments of the pass."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    clip: float


def dense_adjoint(
    Y: Any,  # (n1, n2), NaN where missing
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    level: Levels,
    *,
    A_bar: Any,  # (n1, r) derivative by C R
    B_bar: Any,  # (n2, r) derivative by Cᵀ L
    mask: Any = None,  # broadcastable to (n1, n2), True = observed
) -> Adjoint:
    """Return the adjoint of the pass of a real matrix with A = R and B = L, in float64.

    With ``C̄ = Ā Rᵀ + L B̄ᵀ`` and ``D̄ = C̄`` where ψ is the identity, 0 elsewhere,

        L̄ = C B̄ - D̄ R,   R̄ = Cᵀ Ā - D̄ᵀ L,   and for the clip  Σ sign(D) C̄  over clip < |D| <= cutoff.

    The cutoff has no derivative: no entry crosses it.

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.core.influence import levels
    >>> Y, one = np.array([[1.0, 7.0]]), np.ones((1, 1))
    >>> result = dense_adjoint(Y, one, np.ones((2, 1)), levels("soft", 5.0), A_bar=one, B_bar=np.zeros((2, 1)))
    >>> result.L, result.R.ravel(), result.clip
    (array([[-1.]]), array([-1.,  5.]), 1.0)
    """
    Y, L, R, A_bar, B_bar = (np.asarray(M, np.float64) for M in (Y, L, R, A_bar, B_bar))
    D = Y - L @ R.T
    if mask is not None:
        D = np.where(mask, D, np.nan)
    C = apply(D, level)
    C_bar = np.where(np.abs(D) <= level.cutoff, A_bar @ R.T + L @ B_bar.T, 0.0)
    clipped = np.abs(D) > level.clip
    D_bar = np.where(clipped, 0.0, C_bar)
    return Adjoint(
        L=C @ B_bar - D_bar @ R,
        R=C.T @ A_bar - D_bar.T @ L,
        clip=float(np.sum(np.sign(D[clipped]) * C_bar[clipped])),
    )
