"""A random sample of observed entries: thresholds are read off it instead of off the whole matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

SAMPLE_SIZE = 20_000
# Below this many entries, the sample is the whole matrix ...
_WHOLE = 60_000
# ... and below this many where nothing is to be random.
EXACT_BELOW = 100_000
_MOST_DRAWS = 40


class Entries(Protocol):
    """A matrix whose single entries can be looked up."""

    shape: tuple[int, int]

    def entries(self, rows: Any, columns: Any) -> tuple[Any, Any]:
        """Return the values at some positions, and which of them are observed."""
        ...


@dataclass(frozen=True)
class Sample:
    """Positions and values of sampled observed entries."""

    rows: Any  # (m,) int
    columns: Any  # (m,) int
    values: Any  # (m,) float64 or complex128

    def residuals(
        self,
        L: Any,  # (n1, r)
        R: Any,  # (n2, r)
    ) -> Any:
        """Return |Y - L Rᵀ| at the sampled positions."""
        return np.abs(self.signed_residuals(L, R))

    def signed_residuals(
        self,
        L: Any,  # (n1, r)
        R: Any,  # (n2, r)
    ) -> Any:
        """Return Y - L Rᵀ at the sampled positions."""
        residuals = self.values.astype(np.result_type(self.values, L, R))
        # Component by component: six times as fast as gathering whole rows of L and R.
        for k in range(L.shape[1]):
            residuals -= L[:, k].take(self.rows) * R[:, k].take(self.columns)
        return residuals

    def only(
        self,
        chosen: Any,  # (m,) bool, or a slice
    ) -> Sample:
        """Return some of the sampled entries."""
        return Sample(self.rows[chosen], self.columns[chosen], self.values[chosen])


def draw_sample(
    matrix: Entries,
    rng: np.random.Generator,
    *,
    size: int = SAMPLE_SIZE,
    row_weight: Any = None,  # (n1,)
    exact: bool = False,
    allow_empty: bool = False,
) -> Sample:
    """Draw about `size` observed entries uniformly (rows in proportion to `row_weight`); few if few are observed.

    A small matrix is taken whole, also a slightly larger one for an `exact` way. Raises ValueError where nothing is
    observed, unless an empty sample is allowed.
    """
    n1, n2 = matrix.shape
    if n1 * n2 < (EXACT_BELOW if exact else _WHOLE) and row_weight is None:
        return _look_up(matrix, *np.divmod(np.arange(n1 * n2), n2), allow_empty=allow_empty)
    found: list[Sample] = []
    total = 0
    probability = None if row_weight is None else row_weight / row_weight.sum()
    for _ in range(_MOST_DRAWS):
        rows = rng.integers(n1, size=size) if probability is None else rng.choice(n1, size, p=probability)
        found.append(_look_up(matrix, rows, rng.integers(n2, size=size), allow_empty=True))
        total += len(found[-1].values)
        if total >= size:
            break
    if total == 0 and not allow_empty:
        return _scan(matrix)
    return Sample(*(np.concatenate([getattr(part, name) for part in found]) for name in ("rows", "columns", "values")))


def _look_up(matrix: Entries, rows: Any, columns: Any, *, allow_empty: bool = False) -> Sample:
    values, observed = matrix.entries(rows, columns)
    wide = np.complex128 if np.iscomplexobj(values) else np.float64
    if not allow_empty and not observed.any():
        raise ValueError("Y has no observed entry (all NaN or masked); pass data with observed entries")
    infinite = np.flatnonzero(observed & np.isinf(values))
    if len(infinite):
        i, j, value = rows[infinite[0]], columns[infinite[0]], values[infinite[0]]
        raise ValueError(f"Y[{i}, {j}]={value} is not finite; mark missing entries with NaN or mask=")
    return Sample(rows[observed], columns[observed], values[observed].astype(wide))


def _scan(matrix: Entries) -> Sample:
    """Find observed entries one row at a time, where random draws found none."""
    n1, n2 = matrix.shape
    columns = np.arange(n2)
    rows_found = []
    for i in range(n1):
        _, observed = matrix.entries(np.full(n2, i), columns)
        hits = np.flatnonzero(observed)
        rows_found.append((np.full(len(hits), i), hits))
    rows, hits = (np.concatenate(part) for part in zip(*rows_found, strict=True))
    return _look_up(matrix, rows, hits)
