"""What one pass over Y gives; `lrpca.kernels.reference` says how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# How many entries count as clean, by row (n1,) and by column (n2,).
Kept = tuple[Any, Any]


@dataclass(frozen=True)
class Pass:
    """What one read of Y gives; arrays of sums are float64 or complex128."""

    CA: Any  # (n1, ka)
    CtB: Any  # (n2, kb)
    kept_by_row: Any  # (n1,) int64
    kept_by_column: Any  # (n2,) int64
    norm_C: float  # ‖C‖, over observed entries
    norm_D: float | None = None  # ‖D‖, over observed entries, when asked
    row_grams: Any = None  # (n1, r, r), when asked
    column_grams: Any = None  # (n2, r, r), when asked
    counted: float | None = None  # all kept entries, where they were counted with the rest
    report: Any = None  # what a device tells along with it (`lrpca.matrices.device.report.Report`)

    @property
    def n_kept(self) -> float:
        """How many entries were kept in all."""
        return float(self.kept_by_row.sum()) if self.counted is None else self.counted

    @property
    def kept(self) -> Kept:
        """How many entries were kept, by row and by column."""
        return self.kept_by_row, self.kept_by_column

    def transposed(self) -> Pass:
        """Return the same pass seen from Yᵀ."""
        sums, kept = (self.CtB, self.CA), (self.kept_by_column, self.kept_by_row)
        return Pass(*sums, *kept, self.norm_C, self.norm_D, self.column_grams, self.row_grams, self.counted)
