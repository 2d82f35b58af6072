"""Robust principal axes of narrow tables: a covariance that outlying cells and outlying rows do not move.

In a table of few columns a low-rank part takes a large share of every row, and half of the entries can be fitted
exactly whatever they are: the size of the residuals tells nothing. A covariance uses the rows together. Its model is a
normal one, cells that do not fit the others of their row are flagged and count as missing:

    repeat   flag cells by their residual given the unflagged cells of their row, under (mean, Σ)
             mean, Σ = one step of expectation maximisation with flagged cells missing

first with a narrow limit, in units of what is typical of each column, then with one so wide that clean normal data
flag nothing: then the result is the sample mean and covariance. The ideas are those of [1]_ and [2]_.

References
----------
.. [1] J. Raymaekers and P. J. Rousseeuw, "The cellwise minimum covariance determinant estimator", JASA, 2023.
.. [2] M. Hubert, P. J. Rousseeuw and W. Van den Bossche, "MacroPCA", Technometrics, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lrpca.core.linalg import eigh
from lrpca.core.units import unit_of
from lrpca.kernels.threads import Threads
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix
from lrpca.tables.axes import with_fixed_signs
from lrpca.tables.bands import each_band, with_gaps
from lrpca.tables.cell_rounds import (
    FLAGGED,
    FOR_GOOD,
    IN,
    MISSING,
    ZERO_BEYOND,
    Cells,
    Limits,
    Model,
    moment_sums,
    settled,
    updated,
    wide_limits,
)
from lrpca.tables.medians import MEDIAN_NORMAL, column_medians

# Rows that the flags are searched on; of a longer table so many, evenly spread. All rows take part at the end.
_ENOUGH_ROWS = 10000
# Cells beyond this many robust deviations of their column are flagged for good.
_GROSS = 1e3
# Rows of a long table that are standardised at a time, and steps with all of them.
_BLOCK, _LAST_STEPS = 1 << 16, 2
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class CellwiseMoments:
    """Mean and covariance without outlying cells and rows.

    Attributes
    ----------
    mean : ndarray (n2,)
        Zero where none was asked for, and for columns without any observed cell.
    covariance : ndarray (n2, n2)
        Divided by ``n - 1``, as ever, or by ``n`` without a centre; zero for constant and empty columns.
    flagged : ndarray (n1, n2) or None
        True: the cell does not fit the others of its row. All observed cells of rows that are not used are flagged.
        None for a table that is not in memory.
    rows_used : ndarray (n1,)
        False: an outlying row, one of weight 0, or one without observed cells.
    converged : bool
        Whether the flags and the moments came to rest.
    n_iter : int
        Rounds.
    """

    mean: Any
    covariance: Any
    flagged: Any
    rows_used: Any
    converged: bool
    n_iter: int


@dataclass(frozen=True)
class NarrowAxes:
    """All principal axes of a table, largest variance first.

    Attributes
    ----------
    mean : ndarray (n2,)
        Centre.
    components : ndarray (n2, n2)
        Orthonormal rows; the entry of largest modulus of each is positive.
    variances : ndarray (n2,)
        Along the components.
    cells : CellwiseMoments
        What they come from.
    """

    mean: Any
    components: Any
    variances: Any
    cells: CellwiseMoments


def narrow_axes(
    Y: Any,  # (n1, n2), NaN = missing
    *,
    center: bool = True,
    weight: Any = None,  # (n1,)
) -> NarrowAxes:
    """Return all principal axes of the clean cells of a table with few columns.

    Parameters
    ----------
    Y : array_like or DenseMatrix (n1, n2)
        Real; NaN is missing.
    center : bool, default True
        Whether a mean is estimated.
    weight : array_like (n1,), optional
        Each row counts as so many equal rows.

    Returns
    -------
    NarrowAxes

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.tables.cellwise import narrow_axes
    >>> along = np.random.default_rng(0).standard_normal((200, 1))
    >>> Y = along @ np.array([[3.0, 4.0, 0.0, 0.0]]) + 1.0
    >>> Y[::20, 1] = 1e3
    >>> narrow_axes(Y).components[0].round(6)
    array([0.6, 0.8, 0. , 0. ])
    """
    cells = cellwise_moments(Y, center=center, weight=weight)
    values, vectors = eigh(cells.covariance)
    components, _ = with_fixed_signs(vectors.T[::-1])
    return NarrowAxes(cells.mean, components, np.maximum(values[::-1], 0.0), cells)


def cellwise_moments(
    Y: Any,  # (n1, n2), NaN = missing
    *,
    center: bool = True,
    weight: Any = None,  # (n1,)
) -> CellwiseMoments:
    """Return mean and covariance of the clean cells; see `narrow_axes` for the arguments.

    No randomness is involved. Of a table with many rows the flags are found on evenly spread ones, and all rows take
    part in the last two steps. Whole-number weights do the same as repeated rows, up to the choice of these rows.
    """
    matrix = Y if isinstance(Y, DenseMatrix) else _checked(Y)
    n1, n2 = matrix.shape
    weight = np.ones(n1) if weight is None else _as_counts(np.asarray(weight, np.float64))
    rows, counts = _chosen_rows(weight)
    values = _finite(matrix.take_rows(rows))
    columns = _columns(values, counts, center)
    mean, covariance = columns.centre.copy(), np.zeros((n2, n2))
    live = np.flatnonzero(columns.scale)
    if isinstance(matrix, ChunkedMatrix):
        # Tables in memory are divided by their unit before.
        matrix.in_units(unit_of(columns.scale))
    if not len(live):
        there = np.zeros(n1, bool)
        for part, found in each_band(matrix, _has_cells, rows=_BLOCK):
            there[part] = found
        flagged = None if isinstance(matrix, ChunkedMatrix) else np.zeros((n1, n2), bool)
        return CellwiseMoments(mean, covariance, flagged, (weight > 0) & there, True, 0)
    threads = Threads()
    wide = wide_limits(float(weight.sum()), columns.tied[live])
    cells = columns.standardised(values, counts)
    rest = settled(cells, wide, center, threads)
    model, flagged, used = _of_all_rows(matrix, columns, rows, weight, cells, rest.model, wide, center, threads)
    threads.close()
    mean[live] += columns.scale[live] * model.mean
    degrees = model.total / max(model.total - 1, 1) if center else 1.0
    covariance[np.ix_(live, live)] = degrees * model.covariance * np.outer(columns.scale[live], columns.scale[live])
    return CellwiseMoments(mean, covariance, flagged, used, rest.converged, rest.rounds)


@dataclass(frozen=True)
class _Columns:
    """Robust centre and scale of the columns (n2,); scale 0: constant, or without any observed cell.

    Most cells of `tied` columns are equal: a count, an indicator. There is no such thing as a typical residual then.
    """

    centre: Any
    scale: Any
    tied: Any

    def standardised(
        self,
        Y: Any,  # (m, n2)
        weight: Any,  # (m,)
    ) -> Cells:
        live = self.scale > 0
        Z = (Y[:, live] - self.centre[live]) / self.scale[live]
        missing, gross = Z != Z, np.abs(Z) > _GROSS
        states = np.where(missing, MISSING, np.where(gross, FOR_GOOD, IN)).astype(np.uint8)
        Z[missing | gross] = 0.0
        return Cells(np.ascontiguousarray(Z), states, np.zeros(len(Z), np.uint8), weight, self.tied[live])


def _checked(Y: Any) -> DenseMatrix:
    """Return an array as a matrix of floating-point numbers."""
    Y = np.asarray(Y)
    if Y.ndim != 2:
        raise ValueError(f"Y.ndim={Y.ndim} is not 2; pass a table")
    return DenseMatrix(Y if Y.dtype.kind == "f" else Y.astype(np.float64))


def _finite(part: DenseMatrix) -> Any:
    """Return the numbers of some rows, NaN where missing; raise ValueError where one is infinite."""
    values = with_gaps(part.array, part.mask)
    if np.isinf(values).any():
        raise ValueError("Y contains inf; mark missing entries with NaN")
    return values


def _has_cells(part: DenseMatrix) -> Any:
    """Tell of each row whether any cell is observed."""
    values = _finite(part)
    return (values == values).any(axis=1)


def _as_counts(
    weight: Any,  # (n1,)
) -> Any:
    """Return the weights so that they sum to a number of rows: shares become what so many equal rows have."""
    total, squares = float(weight.sum()), float((weight**2).sum())
    return weight * max(1.0, total / squares) if squares > 0 else weight


def _chosen_rows(
    weight: Any,  # (n1,)
) -> tuple[Any, Any]:
    """Return the indices of the rows to search on, and how often each counts."""
    rows = np.flatnonzero(weight > 0)
    if len(rows) <= _ENOUGH_ROWS:
        return rows, weight[rows]
    # One from each stretch of equal weight, its place within the stretch from a sequence that fits no period.
    steps = np.arange(_ENOUGH_ROWS)
    heap = np.cumsum(weight)
    places = (steps + steps * _GOLDEN % 1.0) * (heap[-1] / _ENOUGH_ROWS)
    chosen, counts = np.unique(np.minimum(np.searchsorted(heap, places, side="right"), rows[-1]), return_counts=True)
    return chosen, counts.astype(np.float64)


def _columns(
    Y: Any,  # (m, n2)
    weight: Any,  # (m,)
    center: bool,
) -> _Columns:
    """Return medians and median absolute deviations."""
    Y = np.asarray(Y, np.float64)
    centre = column_medians(Y, weight) if center else np.zeros(Y.shape[1])
    size = np.abs(Y - centre)
    scale = column_medians(size, weight) / MEDIAN_NORMAL
    there, tied = np.isfinite(size), scale == 0
    for j in np.flatnonzero(tied):
        # The cells that differ are what varies; one of them must not be all there is.
        observed, apart = there[:, j], there[:, j] & (size[:, j] > 0)
        if apart.any():
            most = ZERO_BEYOND * column_medians(size[apart, j, None], weight[apart])[0]
            bounded = np.minimum(size[observed, j], most)
            scale[j] = np.sqrt(np.average(bounded**2, weights=weight[observed]))
    return _Columns(centre, scale, tied)


def _of_all_rows(
    matrix: DenseMatrix,  # (n1, n2)
    columns: _Columns,
    rows: Any,  # (m,)
    weight: Any,  # (n1,)
    chosen: Cells,  # of these rows
    model: Model,
    wide: Limits,
    center: bool,
    threads: Threads,
) -> tuple[Model, Any, Any]:
    """Return the model, the flags (n1, n2; None for a table that is not in memory) and the rows used (n1,)."""
    from lrpca.kernels.cells import OUTLYING, USED

    n1, n2 = matrix.shape
    in_memory = not isinstance(matrix, ChunkedMatrix)
    states, kinds = np.full((n1, n2) if in_memory else (0, n2), IN, np.uint8), np.zeros(n1, np.uint8)
    live = np.flatnonzero(columns.scale)
    sampled = len(rows) < np.count_nonzero(weight)
    steps = _LAST_STEPS if sampled else int(len(rows) < n1)
    for _ in range(steps):
        total: Any = (0.0, 0.0, 0.0)
        work = partial(_band_moments, columns=columns, model=model, limits=wide, threads=threads, flags=in_memory)
        for part, (sums, found, kinds[part]) in each_band(matrix, work, weight, rows=_BLOCK):
            total = tuple(a + b for a, b in zip(total, sums, strict=True))
            if found is not None:
                states[part, live] = found
        model = updated(model, total, center) if sampled else model
    if not sampled:
        kinds[rows] = chosen.kinds
    used = (kinds == USED) & (weight > 0)
    if not in_memory:
        return model, None, used
    if not sampled:
        states[np.ix_(rows, live)] = chosen.states
    out = (kinds == OUTLYING)[:, None] & (states == IN)
    return model, out | (states == FLAGGED) | (states == FOR_GOOD), used


def _band_moments(
    band: DenseMatrix,  # (m, n2)
    weight: Any,  # (m,)
    *,
    columns: _Columns,
    model: Model,
    limits: Limits,
    threads: Threads,
    flags: bool,
) -> tuple[Any, Any, Any]:
    """Return the sums over some rows, the states of their cells (None unless `flags` are wanted) and their kinds."""
    total: Any = (0.0, 0.0, 0.0)
    states, kinds = [], []
    for start, block, mask in band.blocks(_BLOCK):
        part = slice(start, start + len(block))
        cells = columns.standardised(_finite(DenseMatrix(block, mask)), weight[part])
        sums, _ = moment_sums(cells, model, limits, threads)
        total = tuple(a + b for a, b in zip(total, sums, strict=True))
        kinds.append(cells.kinds)
        if flags:
            states.append(cells.states)
    return total, np.concatenate(states) if flags else None, np.concatenate(kinds)
