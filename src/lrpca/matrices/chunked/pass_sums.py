"""The passes over blocks of Y, put together: what one pass over all of it would have given."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.passes import Pass
from lrpca.matrices.chunked.grid import Grid, Place


class _Axis(NamedTuple):
    """Sums that belong to some rows, or to some columns."""

    product: Any  # (m, k)
    kept: Any  # (m,) int
    grams: Any  # (m, r, r) or None

    def plus(self, other: _Axis) -> _Axis:
        grams = None if self.grams is None else self.grams + other.grams
        return _Axis(self.product + other.product, self.kept + other.kept, grams)


class PassSums:
    """Sums over some blocks, by stripes of the grid; they travel between processes, ``O((n1 + n2) r)`` numbers."""

    def __init__(self) -> None:
        self._rows: dict[int, _Axis] = {}
        self._columns: dict[int, _Axis] = {}
        self._squares = 0.0
        self._energy: float | None = 0.0

    @classmethod
    def of(cls, place: Place, result: Pass) -> PassSums:
        """Return the sums of one block."""
        sums = cls()
        sums._rows[place.i] = _Axis(result.CA, result.kept_by_row, result.row_grams)
        sums._columns[place.j] = _Axis(result.CtB, result.kept_by_column, result.column_grams)
        sums._squares = result.norm_C**2
        sums._energy = None if result.norm_D is None else result.norm_D**2
        return sums

    def add(self, other: PassSums) -> None:
        """Add the sums of further blocks."""
        for own, more in ((self._rows, other._rows), (self._columns, other._columns)):
            for k, part in more.items():
                own[k] = own[k].plus(part) if k in own else part
        self._squares += other._squares
        if other._energy is None or self._energy is None:
            self._energy = None
        else:
            self._energy += other._energy

    def finish(self, grid: Grid) -> Pass:
        """Return the pass over the whole matrix."""
        (CA, by_row, row_grams), (CtB, by_column, column_grams) = (
            _joined([found[k] for k in range(len(cuts))])
            for found, cuts in ((self._rows, grid.rows), (self._columns, grid.columns))
        )
        return Pass(
            CA=CA,
            CtB=CtB,
            kept_by_row=by_row,
            kept_by_column=by_column,
            norm_C=math.sqrt(self._squares),
            norm_D=None if self._energy is None else math.sqrt(self._energy),
            row_grams=row_grams,
            column_grams=column_grams,
        )


def total(parts: Iterable[PassSums]) -> PassSums:
    """Return the sum of some, in their order."""
    sums = PassSums()
    for part in parts:
        sums.add(part)
    return sums


def _joined(stripes: list[_Axis]) -> _Axis:
    product, kept = (np.concatenate([getattr(part, name) for part in stripes]) for name in ("product", "kept"))
    grams = None if stripes[0].grams is None else np.concatenate([part.grams for part in stripes])
    return _Axis(product, kept, grams)
