"""The passes over blocks of Y added up: the pass over all of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from lrpca.core.passes import Pass
from lrpca.matrices.chunked.grid import Grid, Place


class PassSums:
    """Sums over some blocks, by stripes of the grid: ``O((n1 + n2) r)`` numbers that travel between processes."""

    def __init__(self) -> None:
        # By axis and number of the stripe: a product, the counts of kept entries, and Grams where they were asked for.
        self._sums: dict[tuple[str, int], list[Any]] = {}

    @classmethod
    def of(cls, place: Place, result: Pass) -> PassSums:
        """Return the sums of one block."""
        sums = cls()
        grams = ([], []) if result.row_grams is None else ([result.row_grams], [result.column_grams])
        sums._sums["rows", place.i] = [result.CA, result.kept_by_row, *grams[0]]
        sums._sums["columns", place.j] = [result.CtB, result.kept_by_column, *grams[1]]
        sums._sums["squares", 0] = [norm**2 for norm in (result.norm_C, result.norm_D) if norm is not None]
        return sums

    def add(self, other: PassSums) -> None:
        """Add the sums of further blocks."""
        for key, more in other._sums.items():
            own = self._sums.get(key)
            self._sums[key] = more if own is None else [a + b for a, b in zip(own, more, strict=True)]

    def finish(self, grid: Grid) -> Pass:
        """Return the pass over the whole matrix."""
        CA, by_row, *row_grams = self._joined("rows", len(grid.rows))
        CtB, by_column, *column_grams = self._joined("columns", len(grid.columns))
        norm_C, *norm_D = (math.sqrt(square) for square in self._sums["squares", 0])
        return Pass(
            CA=CA,
            CtB=CtB,
            kept_by_row=by_row,
            kept_by_column=by_column,
            norm_C=norm_C,
            norm_D=norm_D[0] if norm_D else None,
            row_grams=row_grams[0] if row_grams else None,
            column_grams=column_grams[0] if column_grams else None,
        )

    def _joined(self, axis: str, count: int) -> list[Any]:
        """Return the sums of all stripes of an axis, one below the other."""
        stripes = [self._sums[axis, k] for k in range(count)]
        return [np.concatenate(parts) for parts in zip(*stripes, strict=True)]


def total(parts: Iterable[PassSums]) -> PassSums:
    """Return the sum of some, added in their order."""
    sums = PassSums()
    for part in parts:
        sums.add(part)
    return sums
