"""The formulas of `lrpca.core.factors` for many problems at once, in torch.

Factors have orthogonal columns throughout, so their Grams are diagonal and what is a pseudo-inverse there is a division
here. Everything is float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lrpca.core.factors import OWN_GRAM_DAMPING
from lrpca.core.linalg import tensor_eigh, tensor_svd

_NEGLIGIBLE = 1e-13
_ABSENT = 1e-14
_TINY = 1e-300
# Vectors to spare and power steps of subspace iterations.
_SPARE, _POWERS = 5, 12
# Ranks up to which small systems are solved by formulas, entry by entry.
_BY_FORMULA = 8


def lengths(M: Any) -> Any:  # (b, n, r)
    """Return the lengths of columns, (b, r)."""
    return torch.linalg.vector_norm(M, dim=1)


def scaled_direction(product: Any, other: Any) -> Any:  # (b, n, r) C R or Cᵀ L; (b, m, r) R or L
    """Return C R (RᵀR)⁻¹ for an R of orthogonal columns, zero along those that are not there."""
    return product * _inverse_squares(other)[:, None, :]


def own_gram_direction(
    product: Any,  # (b, n, r), C R
    grams: Any,  # (b, n, r, r) of the kept entries of every row
    other: Any,  # (b, m, r), R
    is_present: Any,  # (b, r)
    share: Any,  # (b,) kept entries over all
) -> Any:
    """Return the direction with each row solved by the Gram of its own kept entries; absent components as above."""
    there = is_present.to(product.dtype)
    damping = (share * OWN_GRAM_DAMPING)[:, None] * lengths(other) ** 2
    grams = grams + torch.diag_embed(damping)[:, None]
    pairs = there[:, :, None] * there[:, None, :]
    # Those that are not present are solved as if alone, and not used.
    grams = grams * pairs[:, None] + torch.diag_embed(1 - there)[:, None]
    own = solve_each(grams, product * there[:, None, :])
    common = scaled_direction(product, other) / torch.clamp(share, min=_NEGLIGIBLE)[:, None, None]
    return torch.where(is_present[:, None, :], own, common)


def without_double_counting(M: Any, dM: Any) -> Any:  # (b, n, r); (b, n, r)
    """Return ΔL - ½ L (LᵀL)⁻¹ Lᵀ ΔL."""
    along = torch.bmm(M.transpose(1, 2), dM) * _inverse_squares(M)[:, :, None]
    return dM - 0.5 * torch.bmm(M, along)


@dataclass
class Retracted:
    """The best matrices of the same rank after a step; see `lrpca.core.factors.Retracted`."""

    U: Any  # (b, n1, r)
    values: Any  # (b, r)
    V: Any  # (b, n2, r)
    core_U: Any  # (b, 2r, r)
    core_Vt: Any  # (b, r, 2r)
    before: Any  # (b, 2r, 2r)

    def moved(self, absent: Any) -> Any:  # (b, r) bool
        """Return how far X moves in this step if some components are left out of it, (b,)."""
        values = torch.where(absent, 0.0, self.values)
        return torch.linalg.vector_norm((self.core_U * values[:, None, :]) @ self.core_Vt - self.before, dim=(1, 2))


def retract(L: Any, R: Any, dL: Any, dR: Any) -> Retracted:  # (b, n1, r); (b, n2, r); (b, n1, r); (b, n2, r)
    """Return the best rank-r approximations of ``L Rᵀ + ΔL Rᵀ + L ΔRᵀ``."""
    r = L.shape[2]
    U, Q_U, old_L, along_L, new_L = _split(L, dL)
    V, Q_V, old_R, along_R, new_R = _split(R, dR)
    before = L.new_zeros(len(L), 2 * r, 2 * r)
    before[:, :r, :r] = torch.diag_embed(old_L * old_R)
    after = before.clone()
    after[:, :r, :r] += along_L * old_R[:, None, :] + old_L[:, :, None] * along_R.transpose(1, 2)
    after[:, :r, r:] = old_L[:, :, None] * new_R.transpose(1, 2)
    after[:, r:, :r] = new_L * old_R[:, None, :]
    P, values, Zh = tensor_svd(after)
    P, values, Zh = P[:, :, :r], values[:, :r], Zh[:, :r]
    U_new = torch.bmm(U, P[:, :r]) + torch.bmm(Q_U, P[:, r:])
    Z = Zh.transpose(1, 2)
    V_new = torch.bmm(V, Z[:, :r]) + torch.bmm(Q_V, Z[:, r:])
    return Retracted(U_new, values, V_new, P, Zh, before)


def orthonormal(M: Any) -> Any:  # (b, n, k)
    """Return orthonormal bases of the columns, with zero columns for directions that are not there."""
    for _ in range(2):
        if M.shape[2] > 1:
            gram = torch.bmm(M.transpose(1, 2), M)
            M = torch.bmm(M, tensor_eigh(gram)[1])
        size = lengths(M)
        there = size > _ABSENT * size.amax(dim=1, keepdim=True)
        M = M * torch.where(there, 1.0 / torch.where(size > 0, size, 1.0), 0.0)[:, None, :]
    return M


def thin_svd(M: Any) -> tuple[Any, Any, Any]:  # (b, n, k)
    """Return U (b, n, k), the singular values (b, k) and Vᵀ (b, k, k)."""
    Q = orthonormal(M)
    U, values, Vh = tensor_svd(torch.bmm(Q.transpose(1, 2), M))
    return torch.bmm(Q, U), values, Vh


def leading_vectors(gram: Any, count: int) -> tuple[Any, Any]:  # (b, s, s)
    """Return the largest eigenvalues (b, count) and their vectors (b, s, count): exact where s is small.

    Larger ones by subspace iteration: batched eigensolvers of GPUs are made for 32 rows at most.
    """
    s = gram.shape[1]
    width = min(count + _SPARE, s)
    if s <= 32:
        values, vectors = tensor_eigh(gram)
        return values.flip(1)[:, :count], vectors.flip(2)[:, :, :count]
    basis = random_basis(len(gram), s, width, gram)
    for _ in range(_POWERS):
        basis = orthonormal(torch.bmm(gram, basis))
    values, rotation = tensor_eigh(torch.bmm(basis.transpose(1, 2), torch.bmm(gram, basis)))
    return values.flip(1)[:, :count], torch.bmm(basis, rotation).flip(2)[:, :, :count]


def random_basis(count: int, n: int, width: int, like: Any) -> Any:
    """Return the same random vectors for every problem, (count, n, width)."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(n, width, generator=generator, dtype=like.dtype, device="cpu")
    return basis.to(like.device).expand(count, n, width)


def _inverse_squares(M: Any) -> Any:  # (b, n, r)
    squares = lengths(M) ** 2
    good = squares > _NEGLIGIBLE * torch.clamp(squares.amax(dim=1, keepdim=True), min=_TINY)
    return torch.where(good, 1.0 / torch.where(good, squares, 1.0), 0.0)


def _split(M: Any, dM: Any) -> tuple[Any, Any, Any, Any, Any]:  # (b, n, r); (b, n, r)
    """Return orthonormal bases Q of M and P of what is new in ΔM, and M = Q diag(a), ΔM = Q b + P c."""
    size = lengths(M)
    Q = M / torch.where(size > 0, size, 1.0)[:, None, :]
    along = torch.bmm(Q.transpose(1, 2), dM)
    rest = dM - torch.bmm(Q, along)
    again = torch.bmm(Q.transpose(1, 2), rest)
    rest = rest - torch.bmm(Q, again)
    P = orthonormal(rest)
    return Q, P, size, along + again, torch.bmm(P.transpose(1, 2), rest)


def solve_each(grams: Any, sides: Any) -> Any:  # (b, n, r, r); (b, n, r)
    """Return the solutions of small systems, scaled so that weak components count, with a ridge that is rounding."""
    r = grams.shape[-1]
    diagonal = torch.diagonal(grams, dim1=2, dim2=3)
    scale = torch.rsqrt(torch.clamp(diagonal.mean(dim=1), min=1e-290))  # (b, r)
    if r == 1:
        return sides * (scale**2)[:, None] / ((1 + 1e-12) * diagonal * (scale**2)[:, None] + _TINY)
    grams = grams * (scale[:, :, None] * scale[:, None, :])[:, None]
    ridge = 1e-12 * torch.diagonal(grams, dim1=2, dim2=3).sum(dim=2) + _TINY
    grams = grams + ridge[:, :, None, None] * torch.eye(r, dtype=grams.dtype, device=grams.device)
    sides = sides * scale[:, None, :]
    if r <= _BY_FORMULA:
        return _solve_by_formula(grams, sides) * scale[:, None, :]
    return torch.linalg.solve_ex(grams, sides[..., None])[0][..., 0] * scale[:, None, :]


def _solve_by_formula(grams: Any, sides: Any) -> Any:  # (b, n, r, r); (b, n, r)
    """Return the solutions of positive systems by L D Lᵀ, unrolled: libraries solve them one after the other."""
    r = grams.shape[-1]
    rows = [[grams[..., i, j] for j in range(i + 1)] for i in range(r)]
    side = [sides[..., i] for i in range(r)]
    for j in range(r):
        for i in range(j + 1, r):
            factor = rows[i][j] / rows[j][j]
            for k in range(j + 1, i + 1):
                rows[i][k] = rows[i][k] - factor * rows[k][j]
            side[i] = side[i] - factor * side[j]
    solution: list[Any] = [None] * r
    for i in reversed(range(r)):
        value = side[i]
        for k in range(i + 1, r):
            value = value - rows[k][i] * solution[k]
        solution[i] = value / rows[i][i]
    return torch.stack(solution, dim=-1)
