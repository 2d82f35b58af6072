"""Which components of each problem exceed the noise: `lrpca.solvers.components`, batched."""

from __future__ import annotations

import math
from typing import Any

import torch

from lrpca.batch.algebra import Retracted, lengths
from lrpca.solvers import components as single


def first_components(L: Any, R: Any, edge: Any) -> tuple[Any, Any, Any]:  # (b, n1, r); (b, n2, r); (b,)
    """Return the factors of a start, components that exceed the `edge` first, and how many do, (b,)."""
    values = lengths(L) * lengths(R)
    return arranged(L, R, values, values <= single.EXCEEDS_AT_START * edge[:, None], edge)


def updated(
    new: Retracted,
    present: Any,  # (b,) int, before
    edge: Any,  # (b,)
    ahead: Any,  # (b,)
) -> tuple[Any, Any, Any, Any]:
    """Return the factors after a step, how many components are there, and how far X moved."""
    slope = single.EXCEEDS + single.EARLY_SLOPE * torch.clamp(ahead - 1.0, min=0.0)
    limit = torch.clamp(slope, max=single.EXCEEDS_EARLY)
    absent = new.values <= (limit * edge)[:, None]
    absent |= ~is_present(present, new.values.shape[1]) & (is_localised(new.U) | is_localised(new.V))
    root = torch.sqrt(new.values)[:, None, :]
    L, R, count = arranged(new.U * root, new.V * root, new.values, absent, edge)
    left_out = absent & (torch.arange(absent.shape[1], device=absent.device) >= 1)
    return L, R, count, new.moved(left_out)


def is_present(present: Any, rank: int) -> Any:  # (b,) int
    """Return which components are there, (b, r)."""
    return torch.arange(rank, device=present.device) < present[:, None]


def arranged(
    L: Any,  # (b, n1, r)
    R: Any,  # (b, n2, r)
    values: Any,  # (b, r)
    absent: Any,  # (b, r) bool
    edge: Any,  # (b,)
) -> tuple[Any, Any, Any]:
    """Return components with the absent ones last and as weak as probes are, and how many are present."""
    # The strongest stays where all would go.
    first = torch.arange(absent.shape[1], device=absent.device) == 0
    absent = absent & ~(first & absent.all(dim=1, keepdim=True))
    weak = torch.where(values > 0, single.PROBE * edge[:, None] / torch.where(values > 0, values, 1.0), 0.0)
    scale = torch.where(absent, torch.clamp(torch.sqrt(weak), max=1.0), 1.0)
    L, R = L * scale[:, None, :], R * scale[:, None, :]
    if absent.shape[1] > 1:
        order = torch.argsort(absent.int(), dim=1, stable=True)[:, None, :]
        L, R = L.gather(2, order.expand_as(L)), R.gather(2, order.expand_as(R))
    return L, R, (~absent).sum(dim=1)


def is_localised(factor: Any) -> Any:  # (b, n, r)
    """Return which columns have much of their energy in one entry, (b, r)."""
    energy = factor**2
    limit = single.LOCALISED + single.LOCALISED_SMALL / factor.shape[1]
    return energy.amax(dim=1) > limit * energy.sum(dim=1)


def noise_edges(norm: Any, shape: tuple[int, int], share: Any) -> Any:  # (b,); (b,)
    """Return the largest singular value of noise of norm ‖C‖, as a step sees it; see `lrpca.solvers.components`."""
    return norm / torch.clamp(share, min=1e-6) * sum(1.0 / math.sqrt(n) for n in shape)
