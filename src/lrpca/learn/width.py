"""The width of the peak of clean residuals at sampled entries, differentiable in the factors.

The value is the solver's own estimate (`lrpca.kernels.scale`), on the CPU. Its derivative holds the posterior
probabilities w of being clean fixed, with which σ² is a weighted mean of squares: with the residual D at the entries

    dσ = σ / Σ w D² · Σ w D dD,    exact for changes that scale all residuals alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from lrpca.kernels.scale import Core, residual_core
from lrpca.learn.transfer import send

# The background of outliers is flat over this many widths of the peak (`lrpca.kernels.scale`).
_WINDOW = 8.0


class Entries(NamedTuple):
    """Sampled entries of Y, on its device."""

    rows: Any  # (m,) int
    columns: Any  # (m,) int
    values: Any  # (m,)

    def residuals(
        self,
        L: Any,  # (n1, r)
        R: Any,  # (n2, r)
    ) -> Any:
        """Return Y - L Rᵀ at the entries, for factors on the same device."""
        return self.values - (L[self.rows] * R[self.columns]).sum(dim=1)


class _Width(torch.autograd.Function):
    """See `width_on_device`."""

    @staticmethod
    def forward(ctx: Any, entries: Entries, rounding: float, L: Any, R: Any) -> Any:
        here_L, here_R = send((L, R), entries.values)
        D = entries.residuals(here_L, here_R)
        sizes = D.abs().cpu().to(torch.float64).numpy()
        core = residual_core(sizes, rounding)
        ctx.save_for_backward(D, here_L, here_R)
        ctx.entries, ctx.core = entries, core
        ctx.share = _share_inside(core, float(np.mean(sizes <= _WINDOW * core.sigma)))
        return torch.tensor(core.sigma, dtype=L.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, bar: Any) -> Any:
        D, L, R = ctx.saved_tensors
        rows, columns, _ = ctx.entries
        pull = _clean_probability(D.abs(), ctx.core, ctx.share) * D
        square = torch.clamp((pull * D).sum(), min=torch.finfo(D.dtype).tiny)
        pull = (pull * (-ctx.core.sigma / square))[:, None]
        # `index_put_` sums in a fixed order, `index_add_` does not.
        L_bar = torch.zeros_like(L).index_put_((rows,), pull * R[columns], accumulate=True)
        R_bar = torch.zeros_like(R).index_put_((columns,), pull * L[rows], accumulate=True)
        L_bar, R_bar = send((L_bar, R_bar), bar)
        return None, None, bar * L_bar, bar * R_bar


def width_on_device(
    entries: Entries,
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    rounding: float,
) -> Any:
    """Return σ as a number beside the factors, which may be elsewhere than the entries: one transfer each way."""
    return _Width.apply(entries, rounding, L, R)  # type: ignore[no-untyped-call]


def width(
    entries: Entries,
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    rounding: float,
) -> Any:
    """Return σ, for factors and entries in the same place."""
    with torch.no_grad():
        sizes = entries.residuals(L, R).abs()
    core = residual_core(sizes.cpu().to(torch.float64).numpy(), rounding)
    if not (torch.is_grad_enabled() and (L.requires_grad or R.requires_grad)):
        return torch.tensor(core.sigma, dtype=L.dtype, device=L.device)
    inside = float((sizes <= _WINDOW * core.sigma).to(torch.float64).mean())
    weights = _clean_probability(sizes, core, _share_inside(core, inside)).to(L.dtype)
    squares = entries.residuals(L, R).abs() ** 2
    root = torch.sqrt(torch.clamp((weights * squares).sum(), min=torch.finfo(L.dtype).tiny))
    return core.sigma * root / root.detach()


def _share_inside(core: Core, inside: float) -> float:
    """Return the share of the peak among the entries of the window."""
    return min(core.share / max(inside, 1e-12), 1 - 1e-9)


def _clean_probability(sizes: Any, core: Core, share: float) -> Any:
    """Return the probability of each entry to belong to the peak rather than to the flat background."""
    ratio = (2 / np.pi) ** 0.5 * _WINDOW * torch.exp(-0.5 * (sizes / max(core.sigma, 1e-300)) ** 2)
    clean = share * ratio / (share * ratio + 1 - share)
    return torch.where(sizes <= _WINDOW * core.sigma, clean, 0.0)
