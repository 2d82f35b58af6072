"""The spectral initialisation, differentiable in its threshold.

One number ζ_0 goes in, so the derivative is taken forwards: beside the factors of ``A = clip(Y, ζ_0) / p`` their
derivatives by ζ_0 are computed, from products of A and of ``E = dA/dζ_0`` with a few vectors, and nothing of the size
of Y has to be kept for the way back.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from lrpca.core.influence import Levels, everything, levels
from lrpca.core.linalg import tensor_svd
from lrpca.learn.transfer import multiplied
from lrpca.matrices.differentiable import DifferentiableMatrix

# Rounds of power iteration that the derivative of singular vectors is taken from: it is off by
# (σ_{r+1} / σ_r)^(2 rounds).
_ROUNDS = 2
_OVERSAMPLING, _POWER_STEPS = 5, 5
# Entries from which on a product by the solver's kernels is faster than one by torch.
_LARGE = 1 << 16


def spectral_start(
    Y: Any,  # (n1, n2), 0 where missing
    observed_share: float,
    rank: int,
    clip: Any,  # ()
    matrix: DifferentiableMatrix | None,
    power_steps: int | None = None,
) -> tuple[Any, Any]:
    """Return factors (n1, r) and (n2, r) of ``SVD_r(clip(Y, ζ_0) / p)``, differentiable in ζ_0.

    Parameters
    ----------
    Y : Tensor
    observed_share : float
        The observed fraction p.
    rank : int
    clip : Tensor
        The threshold ζ_0. Factors are beside it and of its type, wherever Y is.
    matrix : DifferentiableMatrix, optional
        Y as the solver's kernels read it.
    power_steps : int, optional
        Rounds of the randomised SVD; enough for an exact one if not given. The gradient is that of an exact one.
    """
    with torch.no_grad():
        A: _Clipped
        level = clip.item()
        if matrix is not None and level > 0 and Y.numel() >= _LARGE:
            A = _InMemory(matrix, observed_share, level)
        else:
            A = _InTorch(Y, observed_share, level)
        V = _first_vectors(Y.shape, rank, clip)
        for _ in range(_POWER_STEPS if power_steps is None else power_steps):
            V = torch.linalg.qr(A.back(torch.linalg.qr(A.times(V))[0]))[0]
        AV = A.times(V)
        _, values, Vh = tensor_svd(AV, full_matrices=False)
        values, turn = values[:rank], Vh[:rank].T
        root = torch.sqrt(values)
        AV, V = AV @ turn, V @ turn
        L, R = AV / root, V * root
        if not clip.requires_grad:
            return L, R
        dAV, dV = _derivatives(A, V, AV, values)
        dL, dR = dAV / root, dV * root
    # The value of a first-order expansion at its own centre, and its gradient.
    moved = clip - clip.detach()
    return L + moved * dL, R + moved * dR


def _derivatives(A: _Clipped, V: Any, AV: Any, values: Any) -> tuple[Any, Any]:
    """Return the derivatives of A V and V by the threshold, V turning out of its span only.

    ``AᵀA V = V Σ²`` gives ``(σ² - AᵀA) V' = (I - V Vᵀ)(Eᵀ A + Aᵀ E) V`` column by column, solved by the first terms of
    the Neumann series.
    """
    EV, EtAV = A.by_clip(V, AV)
    new = _beside(V, EtAV + A.back(EV)) / values**2
    dV, AdV = new, A.times(new)
    for _ in range(_ROUNDS - 1):
        dV = new + _beside(V, A.back(AdV)) / values**2
        AdV = A.times(dV)
    return EV + AdV, dV


def _beside(V: Any, M: Any) -> Any:
    return M - V @ (V.T @ M)


def _first_vectors(shape: tuple[int, int], rank: int, like: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    width = min(rank + _OVERSAMPLING, *shape)
    return torch.randn(shape[1], width, generator=generator, dtype=torch.float64, device="cpu").to(like)


class _Clipped(Protocol):
    """The matrix ``A = clip(Y, ζ) / p`` as products."""

    def times(self, V: Any) -> Any:
        """Return A V."""
        ...

    def back(self, U: Any) -> Any:
        """Return Aᵀ U."""
        ...

    def by_clip(self, V: Any, U: Any) -> tuple[Any, Any]:
        """Return E V and Eᵀ U for ``E = dA/dζ``, the signs of the clipped entries."""
        ...


class _InTorch:
    def __init__(self, Y: Any, share: float, clip: float) -> None:
        # D - soft(D, ζ) is sign(D) ζ where training has made ζ negative.
        self._clipped = torch.clamp(Y, -clip, clip) if clip >= 0 else torch.sign(Y) * clip
        self._Y, self._share, self._clip = Y, share, clip

    def times(self, V: Any) -> Any:
        return self._product(self._clipped, V)

    def back(self, U: Any) -> Any:
        return self._product(self._clipped.T, U)

    def by_clip(self, V: Any, U: Any) -> tuple[Any, Any]:
        E = torch.sign(self._Y) * (self._Y.abs() > self._clip)
        return self._product(E, V), self._product(E.T, U)

    def _product(self, M: Any, thin: Any) -> Any:
        return multiplied(M, thin) / self._share


class _InMemory:
    def __init__(self, matrix: DifferentiableMatrix, share: float, clip: float) -> None:
        self._matrix, self._share, self._clip = matrix, share, clip

    def _products(self, level: Levels, V: Any, U: Any) -> tuple[Any, Any]:
        n1, n2 = self._matrix.shape
        result = self._matrix.run_pass(
            U.new_empty(n1, 0).numpy(), V.new_empty(n2, 0).numpy(), level, A=V.numpy(), B=U.numpy()
        )
        return torch.from_numpy(result.CA) / self._share, torch.from_numpy(result.CtB) / self._share

    def times(self, V: Any) -> Any:
        return self._products(everything(self._clip), V, V.new_empty(self._matrix.shape[0], 0))[0].to(V.dtype)

    def back(self, U: Any) -> Any:
        return self._products(everything(self._clip), U.new_empty(self._matrix.shape[1], 0), U)[1].to(U.dtype)

    def by_clip(self, V: Any, U: Any) -> tuple[Any, Any]:
        # clip(Y, ζ) is ζ E, and Y where that is at most ζ, which is what the hard threshold leaves.
        both = self._products(everything(self._clip), V, U)
        unclipped = self._products(levels("hard", self._clip), V, U)
        EV, EtU = ((one - other) / self._clip for one, other in zip(both, unclipped, strict=True))
        return EV.to(V.dtype), EtU.to(U.dtype)
