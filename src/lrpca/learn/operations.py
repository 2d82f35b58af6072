"""The operations of a layer that automatic differentiation cannot take apart, or could only with copies of Y.

`influence_pass` reads Y: ``C = ψ(Y - L Rᵀ)``, ``C R`` and ``Cᵀ L``. C is never stored. Its adjoint is
``C̄ = Ā Rᵀ + L B̄ᵀ`` with the adjoints Ā of C R and B̄ of Cᵀ L, and is computed again together with the residual. A layer
costs two passes over Y and keeps only its factors. On the CPU both passes are the solver's fused kernels
(`lrpca.matrices.differentiable`); on a device they are torch, block of rows by block of rows.

`retract`, `spectral_start` and `inlier_scale` are the return to rank r, the initialisation and σ of the residuals.

Where Y is on a device, the factors stay on the CPU; `send` moves them, in one transfer each way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from lrpca.core.influence import Levels
from lrpca.core.linalg import tensor_svd
from lrpca.kernels.scale import Core, residual_core
from lrpca.matrices.differentiable import DifferentiableMatrix

# Entries of one block of rows: its temporaries stay in the second-level cache of a CPU. On a device, where every
# operation is a call, blocks are few and fit beside Y: six or seven temporaries of 128 MiB.
_BLOCK, _BLOCK_ON_DEVICE = 1 << 17, 1 << 24
# Rounds of power iteration in the derivative of singular vectors: its error is (σ_{r+1} / σ_r)^(2 rounds).
_ROUNDS = 2
_OVERSAMPLING, _POWER_STEPS = 5, 5
# The background of outliers is flat over this many widths of the peak (`lrpca.kernels.scale`).
_WINDOW = 8.0


# ------------------------------------------------------------------------------------------ transfers


def send(tensors: Sequence[Any], like: Any) -> list[Any]:
    """Return tensors where `like` is and real ones of its type, in one transfer; integers are below 2**24."""
    types = [like.dtype if tensor.is_floating_point() else tensor.dtype for tensor in tensors]
    if not _apart(tensors, like):
        return [tensor.to(dtype) for tensor, dtype in zip(tensors, types, strict=True)]
    # A transfer to a device does not block; one from a device does.
    packed = torch.cat([tensor.reshape(-1) for tensor in tensors]).to(like.device, non_blocking=like.is_cuda)
    parts = torch.split(packed, [tensor.numel() for tensor in tensors])
    return [part.to(dtype).view(tensor.shape) for part, dtype, tensor in zip(parts, types, tensors, strict=True)]


def _apart(tensors: Sequence[Any], like: Any) -> bool:
    return any(tensor.device != like.device for tensor in tensors)


def multiply(M: Any, thin: Any) -> Any:  # M (n, m), beside Y; thin (m, k), beside the factors
    """Return M times a thin matrix, computed beside Y and sent to the factors."""
    (there,) = send((thin,), M)
    (back,) = send((M @ there,), thin)
    return back


# ------------------------------------------------------------------------------------------ the pass


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
            D, C, _ = _influence(Y, observed, L, R, rows, level)
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
            D, C, rejected = _influence(Y, observed, L, R, rows, ctx.level)
            C_bar = torch.cat([A_bar[rows], L[rows]], dim=1) @ right.T
            if rejected is not None:
                C_bar.masked_fill_(rejected, 0.0)
            R_bar.addmm_(C.T, A_bar[rows])
            block_bar = C @ B_bar
            beyond = D.abs() > ctx.level.clip
            clip_bar += (torch.where(beyond, C_bar, 0.0) * torch.sign(D)).sum()
            D_bar = C_bar.masked_fill_(beyond, 0.0)
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

    ψ clips at `clip` and is zero beyond `cutoff`. Entries up to `cutoff` are kept, up to `clip` if that is infinite.
    The cutoff has no gradient: in a single finite problem no entry crosses it. Y may be on a device, and L and R on
    the CPU; the results are beside them. A `matrix` (see `matrix_of`) is read several times as fast as Y.
    """
    low, high = torch.stack((clip.detach(), cutoff.detach())).tolist()
    level = Levels(low, high, high if high < float("inf") else low)
    # Training may make a threshold negative or NaN, which the solver's kernels do not take.
    if matrix is not None and level.clip >= 0:
        return _FusedPass.apply(matrix, L, R, clip, level)  # type: ignore[no-any-return, no-untyped-call]
    return _PlainPass.apply(Y, observed, L, R, clip, level)  # type: ignore[no-any-return, no-untyped-call]


def matrix_of(Y: Any, observed: Any) -> DifferentiableMatrix | None:  # observed (n1, n2) bool, or None
    """Return tensors as a matrix on the same memory; None where the solver's kernels cannot read them."""
    if Y.device.type != "cpu" or Y.dtype not in (torch.float32, torch.float64):
        return None
    return DifferentiableMatrix(Y.numpy(), None if observed is None else observed.numpy())


def _blocks(Y: Any) -> Iterator[slice]:
    entries = _BLOCK if Y.device.type == "cpu" else _BLOCK_ON_DEVICE
    size = max(1, entries // max(1, Y.shape[1]))
    for start in range(0, Y.shape[0], size):
        yield slice(start, min(start + size, Y.shape[0]))


def _influence(Y: Any, observed: Any, L: Any, R: Any, rows: slice, level: Levels) -> tuple[Any, Any, Any]:
    """Return D = Y - L Rᵀ, C = ψ(D) and which entries ψ takes to zero (None: none) in a block of rows."""
    D = torch.addmm(Y[rows], L[rows], R.T, alpha=-1)
    C = _clipped(D, level.clip)
    rejected = None if observed is None else ~observed[rows]
    if level.cutoff < float("inf"):
        beyond = D.abs() > level.cutoff
        rejected = beyond if rejected is None else beyond | rejected
    if rejected is not None:
        C.masked_fill_(rejected, 0.0)
    return D, C, rejected


def _clipped(D: Any, clip: float) -> Any:
    # D - soft(D, ζ) = sign(D) ζ where training has made ζ negative.
    return torch.clamp(D, -clip, clip) if clip >= 0 else torch.sign(D) * clip


# ------------------------------------------------------------------------------------------ the retraction


class _Truncate(torch.autograd.Function):
    """M ↦ its best approximation of rank r, and the singular bases of that (taken as constants).

    The best rank-r approximation has a derivative as long as σ_r > σ_{r+1}, but singular vectors have none where values
    coincide. So the SVD is not differentiated: only the truncated matrix is.
    """

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


def retract(L: Any, R: Any, dL: Any, dR: Any) -> tuple[Any, Any]:
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


# ------------------------------------------------------------------------------------------ the initialisation


def spectral_start(
    Y: Any,  # (n1, n2), 0 where missing
    observed_share: float,  # p
    rank: int,
    clip: Any,  # () ζ_0
    power_steps: int | None = None,  # None: enough for an exact SVD
) -> tuple[Any, Any]:
    """Return factors (n1, r) and (n2, r) of ``SVD_r(clip(Y, ζ_0) / p)``, differentiable in ζ_0.

    The derivative is taken forwards, as one number goes in: from products of ``A = clip(Y, ζ_0) / p`` and of
    ``E = dA/dζ_0`` with a few vectors. Nothing of the size of Y is kept. The gradient is that of an exact SVD, whatever
    the number of power steps. Torch with one thread takes as long as the solver's kernels with two.
    """
    with torch.no_grad():
        A = _clipped(Y, clip.item()).div_(observed_share)
        width = min(rank + _OVERSAMPLING, *Y.shape)
        seeded = torch.Generator().manual_seed(0)
        V = torch.randn(Y.shape[1], width, generator=seeded, dtype=torch.float64, device="cpu").to(clip)
        for _ in range(_POWER_STEPS if power_steps is None else power_steps):
            V = torch.linalg.qr(multiply(A.T, torch.linalg.qr(multiply(A, V))[0]))[0]
        AV = multiply(A, V)
        _, values, Vh = tensor_svd(AV, full_matrices=False)
        values, turn = values[:rank], Vh[:rank].T
        root = torch.sqrt(values)
        AV, V = AV @ turn, V @ turn
        L, R = AV / root, V * root
        if not clip.requires_grad:
            return L, R
        E = (torch.sign(Y) * (Y.abs() > clip.item())).div_(observed_share)
        dAV, dV = _derivatives(A, E, V, AV, values)
        dL, dR = dAV / root, dV * root
    # The value of a first-order expansion at its own centre, and its gradient.
    moved = clip - clip.detach()
    return L + moved * dL, R + moved * dR


def _derivatives(A: Any, E: Any, V: Any, AV: Any, values: Any) -> tuple[Any, Any]:
    """Return the derivatives of A V and V by the threshold, V turning out of its span only.

    ``AᵀA V = V Σ²`` gives ``(σ² - AᵀA) V' = (I - V Vᵀ)(Eᵀ A + Aᵀ E) V`` column by column, solved by the first terms of
    the Neumann series.
    """
    EV = multiply(E, V)
    new = _beside(V, multiply(E.T, AV) + multiply(A.T, EV)) / values**2
    dV = new
    for _ in range(_ROUNDS - 1):
        dV = new + _beside(V, multiply(A.T, multiply(A, dV))) / values**2
    return EV + multiply(A, dV), dV


def _beside(V: Any, M: Any) -> Any:
    return M - V @ (V.T @ M)


# ------------------------------------------------------------------------------------------ the inlier scale


class Entries(NamedTuple):
    """Sampled entries of Y, on its device."""

    rows: Any  # (m,) int
    columns: Any  # (m,) int
    values: Any  # (m,)

    def residuals(self, L: Any, R: Any) -> Any:
        """Return Y - L Rᵀ at the entries, for factors on the same device."""
        return self.values - (L[self.rows] * R[self.columns]).sum(dim=1)


def inlier_scale(entries: Entries, L: Any, R: Any, rounding: float) -> Any:
    """Return σ of the clean residuals at sampled entries, beside the factors and differentiable in them.

    The value is the solver's own estimate (`lrpca.kernels.scale`), on the CPU. Its derivative holds the posterior
    probabilities w of being clean fixed, with which σ² is a weighted mean of squares: with the residual D at the
    entries

        dσ = σ / Σ w D² · Σ w D dD,    exact for changes that scale all residuals alike.
    """
    return _InlierScale.apply(entries, L, R, rounding)  # type: ignore[no-untyped-call]


class _InlierScale(torch.autograd.Function):
    """See `inlier_scale`; with one transfer each way where Y is on a device."""

    @staticmethod
    def forward(ctx: Any, entries: Entries, L: Any, R: Any, rounding: float) -> Any:
        here_L, here_R = send((L, R), entries.values)
        D = entries.residuals(here_L, here_R)
        sizes = D.abs().cpu().to(torch.float64).numpy()
        ctx.core = residual_core(sizes, rounding)
        ctx.inside = float(np.mean(sizes <= _WINDOW * ctx.core.sigma))
        ctx.save_for_backward(D, here_L, here_R)
        ctx.entries = entries
        return torch.tensor(ctx.core.sigma, dtype=L.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, bar: Any) -> Any:
        D, L, R = ctx.saved_tensors
        rows, columns, _ = ctx.entries
        pull = _clean_probability(D.abs(), ctx.core, ctx.inside) * D
        square = torch.clamp((pull * D).sum(), min=torch.finfo(D.dtype).tiny)
        pull = (pull * (-ctx.core.sigma / square))[:, None]
        # `index_put_` sums in a fixed order, `index_add_` does not.
        L_bar = torch.zeros_like(L).index_put_((rows,), pull * R[columns], accumulate=True)
        R_bar = torch.zeros_like(R).index_put_((columns,), pull * L[rows], accumulate=True)
        L_bar, R_bar = send((L_bar, R_bar), bar)
        return None, bar * L_bar, bar * R_bar, None


def _clean_probability(sizes: Any, core: Core, inside: float) -> Any:
    """Return each entry's probability of being clean; `inside` is the share of entries in the window of the peak."""
    share = min(core.share / max(inside, 1e-12), 1 - 1e-9)
    ratio = (2 / np.pi) ** 0.5 * _WINDOW * torch.exp(-0.5 * (sizes / max(core.sigma, 1e-300)) ** 2)
    clean = share * ratio / (share * ratio + 1 - share)
    return torch.where(sizes <= _WINDOW * core.sigma, clean, 0.0)
