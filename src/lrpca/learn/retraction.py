"""The return to rank r after a step, as a differentiable operation.

The best rank-r approximation has a derivative as long as σ_r > σ_{r+1}, but singular vectors have none where values
coincide. So the SVD is not differentiated: only the truncated matrix is, by its own formula, and factors are read off
it with bases that are held fixed.
"""

from __future__ import annotations

from typing import Any

import torch

from lrpca.core.linalg import tensor_svd


class _Truncate(torch.autograd.Function):
    """M ↦ its best approximation of rank r, and the singular bases of that (taken as constants)."""

    @staticmethod
    def forward(ctx: Any, M: Any, rank: int) -> tuple[Any, Any, Any, Any]:
        U, values, Vh = tensor_svd(M)
        ctx.save_for_backward(U, values, Vh)
        ctx.rank = rank
        left, right = U[:, :rank].contiguous(), Vh[:rank].T.contiguous()
        top = values[:rank].clone()
        ctx.mark_non_differentiable(left, top, right)
        return (left * top) @ right.T, left, top, right

    @staticmethod
    def backward(ctx: Any, bar: Any, *_: Any) -> Any:
        # In the singular bases the derivative couples the entries (i, j) and (j, i) only, by a symmetric 2 x 2 matrix,
        # so going back applies the same map: [[σ_i², σ_i σ_j], [σ_i σ_j, σ_i²]] / (σ_i² - σ_j²) for i <= r < j.
        U, values, Vh = ctx.saved_tensors
        r = ctx.rank
        F = U.T @ bar @ Vh.T
        top, rest = values[:r, None], values[None, r:]
        gap = torch.clamp(top**2 - rest**2, min=torch.finfo(F.dtype).tiny)
        upper, lower = F[:r, r:], F[r:, :r].T
        out = torch.zeros_like(F)
        out[:r, :r] = F[:r, :r]
        out[:r, r:] = (top**2 * upper + top * rest * lower) / gap
        out[r:, :r] = ((top**2 * lower + top * rest * upper) / gap).T
        return U @ out @ Vh, None


def retract(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    dL: Any,  # (n1, r)
    dR: Any,  # (n2, r)
) -> tuple[Any, Any]:
    """Return factors of the best rank-r approximation of ``L Rᵀ + ΔL Rᵀ + L ΔRᵀ``, as `lrpca.core.factors.retract`."""
    r = L.shape[1]
    Q_L, P_L, old_L, along_L, new_L = _split(L, dL)
    Q_R, P_R, old_R, along_R, new_R = _split(R, dR)
    core = torch.cat(
        [
            torch.cat([(old_L + along_L) @ old_R.T + old_L @ along_R.T, old_L @ new_R.T], dim=1),
            torch.cat([new_L @ old_R.T, torch.zeros(r, r, dtype=L.dtype, device=L.device)], dim=1),
        ]
    )
    M, left, values, right = _Truncate.apply(core, r)  # type: ignore[no-untyped-call]
    # M = (M V)(Uᵀ M V)⁻¹(Uᵀ M) for every matrix of rank r near this one, with U and V fixed.
    root = torch.sqrt(torch.clamp(values, min=torch.finfo(L.dtype).tiny))
    columns = M @ right
    rows = torch.linalg.solve(left.T @ columns, left.T @ M)
    return torch.cat([Q_L, P_L], dim=1) @ (columns / root), torch.cat([Q_R, P_R], dim=1) @ (rows.T * root)


def _split(M: Any, dM: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Return orthonormal bases Q of M and P of what is new in ΔM, and M = Q a, ΔM = Q b + P c as (Q, P, a, b, c)."""
    Q, a = torch.linalg.qr(M)
    b = Q.T @ dM
    rest = dM - Q @ b
    # A step of 1e-9 keeps its digits if what is new is brought to size 1 before it is orthonormalised.
    size = torch.clamp(torch.linalg.matrix_norm(rest.detach()), min=torch.finfo(M.dtype).tiny)
    P, c = torch.linalg.qr(rest / size)
    return Q, P, a, b, c * size
