"""What comes to the host along with a pass on a device: the small numbers that decisions are made of, all at once.

Every transfer waits for the device. The Grams that a step needs, and the extreme counts of kept entries, are
computed after every pass and come with its norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lrpca.kernels.torch_pass import TensorPass
from lrpca.matrices.device.array import DeviceArray, to_device, to_host


class Side:
    """A factor and what is to be added to it, (n, 2 r), with the weights of its rows."""

    def __init__(self, factor: Any, added: Any, weight: Any) -> None:  # factor (n, r); added (n, r); weight (n,)
        self.factor, self.weight = factor, weight
        self.added = added.tensor if isinstance(added, DeviceArray) else added
        own = factor.tensor if isinstance(factor, DeviceArray) else to_device(factor, self.added.device)
        self.own = own.to(self.added.dtype)
        self.both = torch.cat([self.own, self.added], 1)

    def gram(self) -> Any:
        """Return [M ΔM]^H W [M ΔM], (2 r, 2 r)."""
        weighted = self.both if self.weight is None else self.both * self.weight.tensor[:, None]
        return weighted.mH @ self.both

    def upload(self, small: Any) -> Any:
        """Return a small matrix on the same device."""
        return to_device(small, self.both.device).to(self.both.dtype)


@dataclass(frozen=True)
class Report:
    """The extreme counts of kept entries of a pass and, where it made the products of a step, their Grams."""

    by_row: tuple[float, float]  # fewest and most kept entries
    by_column: tuple[float, float]
    left: Side | None = None  # [L, C R]
    right: Side | None = None  # [R, Cᵀ L]
    grams: Any = None  # (2, 2r, 2r) of both

    def sides_of(self, L: Any, R: Any, weight: Any) -> tuple[Side, Side, Any] | None:
        """Return both sides and their Grams if they are those of these factors, without weights."""
        if self.left is None or self.right is None or weight is not None:
            return None
        return (self.left, self.right, self.grams) if self.left.factor is L and self.right.factor is R else None

    def counts_only(self) -> Report:
        """Return the same without what is as long as Y."""
        return Report(self.by_row, self.by_column)


def report(found: TensorPass, factors: tuple[Any, Any] | None) -> tuple[Any, Report]:
    """Return the norms of a pass, on the host, and the report that comes with them.

    `factors` are L and R where the products are those of a step, of real numbers and without weights.
    """
    L, R = factors or (None, None)
    sides = () if factors is None else (Side(L, found.CA, None), Side(R, found.CtB, None))
    kept = torch.stack([x for counts in (found.kept_by_row, found.kept_by_column) for x in torch.aminmax(counts)])
    parts = [found.norms, kept.to(found.norms.dtype), *(side.gram().reshape(-1) for side in sides)]
    flat = to_host(torch.cat(parts))
    least_by_row, most_by_row, least_by_column, most_by_column = flat[3:7].tolist()
    counts = (least_by_row, most_by_row), (least_by_column, most_by_column)
    if not sides:
        return flat[:3], Report(*counts)
    width = sides[0].both.shape[1]
    return flat[:3], Report(*counts, *sides, flat[7:].reshape(2, width, width))
