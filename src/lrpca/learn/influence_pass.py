"""The pass of the solver as one differentiable operation: ``C = ψ(Y - L Rᵀ)``, ``C R`` and ``Cᵀ L``.

C is never stored. Going back, its adjoint is ``C̄ = Ā Rᵀ + L B̄ᵀ`` with the adjoints Ā of C R and B̄ of Cᵀ L, of rank 2r:
it is made again together with the residual. A layer so costs two reads of Y and keeps nothing but its factors, where
plain automatic differentiation keeps half a dozen matrices of the size of Y.

On the CPU the two reads are the solver's fused kernels (`lrpca.matrices.differentiable`). On a device they are
torch, block of rows by block of rows; the factors come from the CPU and the products go back there, in one
transfer each way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from lrpca.core.influence import Levels
from lrpca.learn.transfer import send
from lrpca.matrices.differentiable import DifferentiableMatrix

# Entries of one block of rows: its temporaries stay in the second-level cache of a CPU. On a device, where every
# operation is a call, they are to be few and to fit beside Y: six or seven temporaries of 128 MiB.
_BLOCK, _BLOCK_ON_DEVICE = 1 << 17, 1 << 24


class _FusedPass(torch.autograd.Function):
    """See `influence_pass`; Y is a `DifferentiableMatrix`."""

    @staticmethod
    def forward(
        ctx: Any, matrix: DifferentiableMatrix, L: Any, R: Any, clip: Any, level: Levels
    ) -> tuple[Any, Any, Any, Any]:
        left, right = L.detach().numpy(), R.detach().numpy()
        result = matrix.run_pass(left, right, level, A=right, B=left)
        by_row, by_column = torch.from_numpy(result.kept_by_row), torch.from_numpy(result.kept_by_column)
        ctx.save_for_backward(L, R, clip)
        ctx.matrix, ctx.level = matrix, level
        ctx.mark_non_differentiable(by_row, by_column)
        return torch.from_numpy(result.CA).to(L.dtype), torch.from_numpy(result.CtB).to(R.dtype), by_row, by_column

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, A_bar: Any, B_bar: Any, *_: Any) -> Any:
        L, R, clip = ctx.saved_tensors
        result = ctx.matrix.run_adjoint(
            L.detach().numpy(), R.detach().numpy(), ctx.level, A_bar=A_bar.numpy(), B_bar=B_bar.numpy()
        )
        L_bar, R_bar = torch.from_numpy(result.L).to(L.dtype), torch.from_numpy(result.R).to(R.dtype)
        return None, L_bar, R_bar, torch.as_tensor(result.clip, dtype=clip.dtype), None


class _PlainPass(torch.autograd.Function):
    """See `influence_pass`; Y is a tensor anywhere, in whose type the sums are."""

    @staticmethod
    def forward(ctx: Any, Y: Any, observed: Any, L: Any, R: Any, clip: Any, level: Levels) -> tuple[Any, Any, Any, Any]:
        place, (L, R) = L, send((L, R), Y)
        CA = torch.empty_like(L)
        CtB = torch.zeros_like(R)
        by_row = torch.empty(Y.shape[0], dtype=torch.int64, device=Y.device)
        by_column = torch.zeros(Y.shape[1], dtype=torch.int64, device=Y.device)
        for rows in _blocks(Y):
            D = torch.addmm(Y[rows], L[rows], R.T, alpha=-1)
            C = _clipped(D, level)
            outside = _not_counted(D, observed, rows, level)
            if outside is not None:
                C.masked_fill_(outside, 0.0)
            kept = D.abs_() <= level.keep
            if observed is not None:
                kept &= observed[rows]
            by_row[rows] = kept.sum(dim=1)
            by_column += kept.sum(dim=0)
            CA[rows] = C @ R
            CtB.addmm_(C.T, L[rows])
        ctx.save_for_backward(Y, observed, L, R, clip)
        ctx.level = level
        CA, CtB, by_row, by_column = send((CA, CtB, by_row, by_column), place)
        ctx.mark_non_differentiable(by_row, by_column)
        return CA, CtB, by_row, by_column

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, A_bar: Any, B_bar: Any, *_: Any) -> Any:
        Y, observed, L, R, clip = ctx.saved_tensors
        place, (A_bar, B_bar) = A_bar, send((A_bar, B_bar), Y)
        L_bar, R_bar = torch.empty_like(L), torch.zeros_like(R)
        clip_bar = torch.zeros((), dtype=Y.dtype, device=Y.device)
        right = torch.cat([R, B_bar], dim=1)
        for rows in _blocks(Y):
            D = torch.addmm(Y[rows], L[rows], R.T, alpha=-1)
            C_bar = torch.cat([A_bar[rows], L[rows]], dim=1) @ right.T
            C = _clipped(D, ctx.level)
            outside = _not_counted(D, observed, rows, ctx.level)
            if outside is not None:
                C.masked_fill_(outside, 0.0)
                C_bar.masked_fill_(outside, 0.0)
            R_bar.addmm_(C.T, A_bar[rows])
            block_bar = C @ B_bar
            clipped = D.abs() > ctx.level.clip
            clip_bar += (torch.where(clipped, C_bar, 0.0) * torch.sign(D)).sum()
            D_bar = C_bar.masked_fill_(clipped, 0.0)
            L_bar[rows] = block_bar.addmm_(D_bar, R, alpha=-1)
            R_bar.addmm_(D_bar.T, L[rows], alpha=-1)
        L_bar, R_bar, clip_bar = send((L_bar, R_bar, clip_bar), place)
        return None, None, L_bar, R_bar, clip_bar.to(clip.dtype), None


def influence_pass(
    Y: Any,  # (n1, n2), anything finite where missing
    observed: Any,  # (n1, n2) bool, or None
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    clip: Any,  # ()
    cutoff: Any,  # (), inf for a ψ that does not redescend
    *,
    matrix: DifferentiableMatrix | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Return ``C R`` (n1, r), ``Cᵀ L`` (n2, r), and how many entries were kept by row (n1,) and by column (n2,).

    Parameters
    ----------
    Y, observed : Tensor
        On any device.
    L, R : Tensor
        On the same one or on the CPU; what is returned is beside them.
    clip, cutoff : Tensor
        ψ clips at `clip` and is zero beyond `cutoff`. Entries up to `cutoff` are kept, up to `clip` if that is
        infinite.
    matrix : DifferentiableMatrix, optional
        Y and `observed` as the solver's kernels read them, see `matrix_of`: several times as fast.

    The gradient is that of a single finite problem, in which no entry crosses the cutoff: the cutoff has none.
    """
    low, high = torch.stack((clip.detach(), cutoff.detach())).tolist()
    level = Levels(low, high, high if high < float("inf") else low)
    # Training may make a threshold negative or NaN, which the solver does not know.
    if matrix is not None and level.clip >= 0:
        return _FusedPass.apply(matrix, L, R, clip, level)  # type: ignore[no-any-return, no-untyped-call]
    return _PlainPass.apply(Y, observed, L, R, clip, level)  # type: ignore[no-any-return, no-untyped-call]


def matrix_of(
    Y: Any,  # (n1, n2)
    observed: Any,  # (n1, n2) bool, or None
) -> DifferentiableMatrix | None:
    """Return tensors as a matrix on the same memory; None where the solver's kernels cannot read them."""
    if Y.device.type != "cpu" or Y.dtype not in (torch.float32, torch.float64):
        return None
    return DifferentiableMatrix(Y.numpy(), None if observed is None else observed.numpy())


def _clipped(D: Any, level: Levels) -> Any:
    # A threshold that training has made negative: D - soft(D, ζ) = sign(D) ζ everywhere.
    return torch.clamp(D, -level.clip, level.clip) if level.clip >= 0 else torch.sign(D) * level.clip


def _blocks(Y: Any) -> Iterator[slice]:
    entries = _BLOCK if Y.device.type == "cpu" else _BLOCK_ON_DEVICE
    size = max(1, entries // max(1, Y.shape[1]))
    for start in range(0, Y.shape[0], size):
        yield slice(start, min(start + size, Y.shape[0]))


def _not_counted(D: Any, observed: Any, rows: slice, level: Levels) -> Any:
    """Return which entries ψ takes to zero: missing ones and those beyond the cutoff; None if there are none."""
    missing = None if observed is None else ~observed[rows]
    if level.cutoff == float("inf"):
        return missing
    beyond = D.abs() > level.cutoff
    return beyond if missing is None else beyond | missing
