"""What comes to the host along with a pass on a device: the small numbers that decisions are made of, all at once.

Every transfer waits for the device. The Grams that a step needs, and the extreme counts of kept entries, are
computed after every pass and come with its norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
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


def report_step(found: TensorPass, L: Any, R: Any) -> tuple[Any, Report]:
    """Return the norms of a pass with the products of a step, on the host, and the report that came with them."""
    left, right = Side(L, found.CA, None), Side(R, found.CtB, None)
    norms, rows, columns, grams = _brought(found, [left.gram(), right.gram()])
    return norms, Report(rows, columns, left, right, np.stack(grams))


def report_products(found: TensorPass) -> tuple[Any, Report, list[Any]]:
    """Return the norms of a pass, the report that came with them, and the Grams of C A and Cᵀ B (None of complex)."""
    products = (found.CA, found.CtB)
    if found.CA.is_complex():
        norms, rows, columns, _ = _brought(found, [])
        return norms, Report(rows, columns), [None, None]
    norms, rows, columns, grams = _brought(found, [product.T @ product for product in products])
    return norms, Report(rows, columns), grams


def _brought(found: TensorPass, small: list[Any]) -> tuple[Any, Any, Any, list[Any]]:
    """Return the norms, the extreme counts of rows and of columns, and small matrices, on the host."""
    kept = torch.stack([x for counts in (found.kept_by_row, found.kept_by_column) for x in torch.aminmax(counts)])
    parts = [found.norms, kept.to(found.norms.dtype), *(matrix.reshape(-1) for matrix in small)]
    flat, brought, place = to_host(torch.cat(parts)), [], 7
    for matrix in small:
        brought.append(flat[place : place + matrix.numel()].reshape(matrix.shape))
        place += matrix.numel()
    least_by_row, most_by_row, least_by_column, most_by_column = flat[3:7].tolist()
    return flat[:3], (least_by_row, most_by_row), (least_by_column, most_by_column), brought
