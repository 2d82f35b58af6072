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

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lrpca.matrices.chunked import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix
from lrpca.tables.axes import with_fixed_signs
from lrpca.tables.bands import each_band, with_gaps
from lrpca.tables.medians import column_medians
from lrpca.threads import Threads

# Rows that the flags are searched on; of a longer table so many, evenly spread. All rows take part at the end.
_ENOUGH_ROWS = 10000
# Rows of one piece of work, and multiply-adds of a row by squared number of columns, roughly.
_PIECE, _STEPS = 512, 4.0
# Cells beyond this many robust deviations of their column are flagged at the start, and those beyond the next for good.
_START, _GROSS = 4.0, 1e3
# Wrapping of the columns for the first correlations: linear up to the first, zero beyond the second.
_LINEAR, _ZERO = 1.5, 4.0
# How much of the identity the first correlations get, and steps of expectation maximisation with the first flags.
_SHRINK, _FIRST_STEPS = 0.1, 3
# Limit of the residuals in units of what is typical of the column, and how far that may fall or rise at once.
_NARROW, _FALL, _RISE = 3.0, 0.3, 10.0
# A clean table has a flag, at the wide limit, with this probability; the limit is at least so many deviations.
_FALSE_ALARM, _WIDE = 0.01, 5.0
# ... and so many times that in columns where most cells are equal.
_RARE = 2.0
# Rounds after which the limit is wide, rounds after which no flags are set, rounds at most; changes that end them.
_NARROW_ROUNDS, _SETTLE_ROUNDS, _MOST_ROUNDS = 28, 45, 70
_NEARLY, _RESTING = 1e-3, 1e-7
# Variance of a column given the others is at least this part of its own: the noise-free table.
_RIDGE = 1e-9
# With n rows it is also so many times p / n of the lower quartile of the eigenvalues.
_FEW_ROWS = 2.0
# Median of |z| of a normal variable.
_MEDIAN_NORMAL = 0.6744897501960817
_IN, _FLAGGED, _FOR_GOOD, _MISSING = 0, 1, 2, 3
_USED, _OUTLYING = 0, 1
# Rows that do not fit stay in where those that do are fewer than this part.
_LEAST_USED = 0.5
# Rows of a long table that are standardised at a time, and steps with all of them.
_BLOCK, _LAST_STEPS = 1 << 16, 2
_GOLDEN = 0.6180339887498949
# Variances of standardised columns are taken for at least this: where all that differs is flagged.
_TINY = 1e-12


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
    values, vectors = np.linalg.eigh(cells.covariance)
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
    if not len(live):
        there = np.zeros(n1, bool)
        for part, found in each_band(matrix, _has_cells, rows=_BLOCK):
            there[part] = found
        flagged = None if isinstance(matrix, ChunkedMatrix) else np.zeros((n1, n2), bool)
        return CellwiseMoments(mean, covariance, flagged, (weight > 0) & there, True, 0)
    threads = Threads()
    wide = _wide_limits(float(weight.sum()), columns.tied[live])
    cells = columns.standardised(values, counts)
    rest = _settled(cells, wide, center, threads)
    model, flagged, used = _of_all_rows(matrix, columns, rows, weight, cells, rest.model, wide, center, threads)
    threads.close()
    mean[live] += columns.scale[live] * model.mean
    degrees = model.total / max(model.total - 1, 1) if center else 1.0
    covariance[np.ix_(live, live)] = degrees * model.covariance * np.outer(columns.scale[live], columns.scale[live])
    return CellwiseMoments(mean, covariance, flagged, used, rest.converged, rest.rounds)


# ------------------------------------------------------------------------------------------ columns and rows


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
    ) -> _Cells:
        live = self.scale > 0
        Z = (Y[:, live] - self.centre[live]) / self.scale[live]
        missing, gross = Z != Z, np.abs(Z) > _GROSS
        states = np.where(missing, _MISSING, np.where(gross, _FOR_GOOD, _IN)).astype(np.uint8)
        Z[missing | gross] = 0.0
        return _Cells(np.ascontiguousarray(Z), states, np.zeros(len(Z), np.uint8), weight, self.tied[live])


@dataclass(frozen=True)
class _Cells:
    """Standardised rows: Z (m, p), 0 where no cell is to be used; weight (m,); tied (p,).

    The states of the cells (m, p) and the kinds of the rows (m,) change from round to round; see the kernel.
    """

    Z: Any
    states: Any
    kinds: Any
    weight: Any
    tied: Any


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
    scale = column_medians(size, weight) / _MEDIAN_NORMAL
    there, tied = np.isfinite(size), scale == 0
    for j in np.flatnonzero(tied):
        # The cells that differ are what varies; one of them must not be all there is.
        observed, apart = there[:, j], there[:, j] & (size[:, j] > 0)
        if apart.any():
            bounded = np.minimum(size[observed, j], _ZERO * column_medians(size[apart, j, None], weight[apart])[0])
            scale[j] = np.sqrt(np.average(bounded**2, weights=weight[observed]))
    return _Columns(centre, scale, tied)


# ------------------------------------------------------------------------------------------ rounds


@dataclass(frozen=True)
class _Model:
    """Mean (p,) and covariance (p, p) of standardised cells, and the weight of the rows they come from."""

    mean: Any
    covariance: Any
    total: float

    def change(self, other: _Model) -> float:
        """Return the largest change of a mean or a covariance, relative to the deviations."""
        root = np.sqrt(np.maximum(np.diag(self.covariance), _TINY))
        difference = np.abs(self.covariance - other.covariance) / np.outer(root, root)
        return float(max(difference.max(), (np.abs(self.mean - other.mean) / root).max()))


@dataclass(frozen=True)
class _Limits:
    """Residuals beyond which a cell is flagged (p,), squared distances beyond which a row is outlying (p + 1,).

    Cells and rows that were in, or out, have their limit times a factor: residuals from a fit are larger outside of it.
    """

    cell: Any
    row: Any
    inside: float = 1.0
    outside: float = 1.0


def _wide_limits(
    total: float,
    tied: Any,  # (p,)
) -> _Limits:
    """Return limits that clean normal rows exceed next to never."""
    from scipy.special import chdtri, ndtri

    p = len(tied)
    cell = max(_WIDE, -float(ndtri(_FALSE_ALARM / (2 * max(total, 1) * p))))
    row = np.maximum(chdtri(np.arange(1, p + 1), _FALSE_ALARM / max(total, 1)), cell**2)
    # Each cell is a regression on p - 1 others and a constant; as many rows fit whatever they are.
    outside = 1 / (1 - p / total) if total > p + 1 else np.inf
    # An indicator that is rarely set is no outlier.
    row *= _RARE**2 if tied.any() else 1.0
    return _Limits(np.where(tied, _RARE * cell, cell), np.concatenate([[np.inf], row]), outside=outside)


@dataclass(frozen=True)
class _Rest:
    """Where the rounds came to rest."""

    model: _Model
    converged: bool
    rounds: int


def _settled(cells: _Cells, wide: _Limits, center: bool, threads: Threads) -> _Rest:
    """Run the rounds: with the first flags, with the narrow limit, with the wide one."""
    model = _first_model(cells, center)
    far = np.abs(cells.Z) > np.where(cells.tied, wide.cell, _START)
    cells.states[(cells.states == _IN) & far] = _FLAGGED
    limits = _Limits(np.where(cells.tied, wide.cell, _NARROW), np.full(len(wide.row), np.inf))
    for _ in range(_FIRST_STEPS):
        model, _ = _round(cells, model, limits, center, threads, search=False)
    at_wide, rounds, converged = False, _FIRST_STEPS, False
    while not converged and rounds < _MOST_ROUNDS:
        rounds += 1
        if rounds == _SETTLE_ROUNDS:
            # Flags that come and go would do so for ever: from now on they only go.
            wide = replace(wide, inside=np.inf)
        before, last = cells.states.copy(), model
        model, residuals = _round(cells, model, wide if at_wide else limits, center, threads)
        changed, change = float(np.mean(cells.states != before)), model.change(last)
        if at_wide:
            # Where much is missing, expectation maximisation is slow along the weak directions.
            converged = changed == 0 and change <= (_RESTING if rounds < _SETTLE_ROUNDS else _NEARLY)
        else:
            at_wide = max(changed, change) <= _NEARLY or rounds >= _NARROW_ROUNDS
            narrow = _NARROW * np.clip(_typical(residuals, cells.weight), _FALL, _RISE)
            limits = replace(limits, cell=np.where(cells.tied, wide.cell, narrow))
    return _Rest(model, converged, rounds)


def _typical(
    residuals: Any,  # (m, p)
    weight: Any,  # (m,)
) -> Any:
    """Return the typical size of the residuals of each column, 1 for normal ones, wherever their middle is."""
    middle = column_medians(np.where(np.isinf(residuals), np.nan, residuals), weight)
    return column_medians(np.abs(residuals - middle), weight) / _MEDIAN_NORMAL


def _first_model(cells: _Cells, center: bool) -> _Model:
    """Return the correlations of wrapped columns."""
    size, weight = np.abs(cells.Z), cells.weight
    wrapped = np.sign(cells.Z) * np.clip(np.minimum(size, _LINEAR * (_ZERO - size) / (_ZERO - _LINEAR)), 0.0, None)
    total = float(weight.sum())
    p = wrapped.shape[1]
    mean = weight @ wrapped / total if center else np.zeros(p)
    wrapped = np.sqrt(weight)[:, None] * (wrapped - mean)
    covariance = wrapped.T @ wrapped / total
    root = np.sqrt(np.maximum(np.diag(covariance), _TINY))
    return _Model(np.zeros(p), (1 - _SHRINK) * covariance / np.outer(root, root) + _SHRINK * np.eye(p), total)


def _round(
    cells: _Cells, model: _Model, limits: _Limits, center: bool, threads: Threads, *, search: bool = True
) -> tuple[_Model, Any]:
    """Flag cells; return the next model and the residuals (m, p)."""
    states, kinds = cells.states.copy(), cells.kinds.copy()
    sums, residuals = _sums(cells, model, limits, threads, search=search)
    if sums[0] < _LEAST_USED * cells.weight.sum():
        cells.states[:], cells.kinds[:] = states, kinds
        sums, residuals = _sums(cells, model, limits, threads, search=search, keep=True)
    return _updated(model, sums, center), residuals


def _sums(
    cells: _Cells, model: _Model, limits: _Limits, threads: Threads, *, search: bool = True, keep: bool = False
) -> tuple[tuple[float, Any, Any], Any]:
    """Return (weight, first moments, second moments) of the rows that take part, and the residuals (m, p)."""
    from lrpca.kernels.cells import row_moments

    m, p = cells.Z.shape
    precision, residuals = _precision(model), np.empty((m, p))

    def work(start: int) -> tuple[float, Any, Any]:
        part = slice(start, start + _PIECE)
        first, second = np.zeros(p), np.zeros((p, p))
        rows = cells.Z[part], cells.states[part], cells.kinds[part], cells.weight[part]
        bounds = limits.cell, limits.row, limits.inside, limits.outside
        total = row_moments(*rows, model.mean, precision, *bounds, search, keep, residuals[part], first, second)
        return total, first, second

    parts = threads.map(work, range(0, m, _PIECE), work=_STEPS * m * p * p)
    return (sum(t for t, _, _ in parts), sum(f for _, f, _ in parts), sum(s for _, _, s in parts)), residuals


def _updated(model: _Model, sums: tuple[float, Any, Any], center: bool) -> _Model:
    """Return the step of expectation maximisation."""
    total, first, second = sums
    if total <= 0:
        return model
    shift = first / total if center else np.zeros_like(first)
    covariance = second / total - np.outer(shift, shift)
    return _Model(model.mean + shift, (covariance + covariance.T) / 2, total)


def _precision(model: _Model) -> Any:
    """Return the inverse, with a ridge that lets a table without noise have one."""
    root = np.sqrt(np.maximum(np.diag(model.covariance), _TINY))
    values, vectors = np.linalg.eigh(model.covariance / np.outer(root, root))
    values = np.maximum(values, 0.0)
    # Of few rows the smallest come out too small.
    ridge = max(_RIDGE, _FEW_ROWS * len(values) / max(model.total, 1.0) * values[len(values) // 4])
    inverse = (vectors / (values + ridge)) @ vectors.T
    return inverse / np.outer(root, root)


def _of_all_rows(
    matrix: DenseMatrix,  # (n1, n2)
    columns: _Columns,
    rows: Any,  # (m,)
    weight: Any,  # (n1,)
    chosen: _Cells,  # of these rows
    model: _Model,
    wide: _Limits,
    center: bool,
    threads: Threads,
) -> tuple[_Model, Any, Any]:
    """Return the model, the flags (n1, n2; None for a table that is not in memory) and the rows used (n1,)."""
    n1, n2 = matrix.shape
    in_memory = not isinstance(matrix, ChunkedMatrix)
    states, kinds = np.full((n1, n2) if in_memory else (0, n2), _IN, np.uint8), np.zeros(n1, np.uint8)
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
        model = _updated(model, total, center) if sampled else model
    if not sampled:
        kinds[rows] = chosen.kinds
    used = (kinds == _USED) & (weight > 0)
    if not in_memory:
        return model, None, used
    if not sampled:
        states[np.ix_(rows, live)] = chosen.states
    out = (kinds == _OUTLYING)[:, None] & (states == _IN)
    return model, out | (states == _FLAGGED) | (states == _FOR_GOOD), used


def _band_moments(
    band: DenseMatrix,  # (m, n2)
    weight: Any,  # (m,)
    *,
    columns: _Columns,
    model: _Model,
    limits: _Limits,
    threads: Threads,
    flags: bool,
) -> tuple[Any, Any, Any]:
    """Return the sums over some rows, the states of their cells (None unless `flags` are wanted) and their kinds."""
    total: Any = (0.0, 0.0, 0.0)
    states, kinds = [], []
    for start, block, mask in band.blocks(_BLOCK):
        part = slice(start, start + len(block))
        cells = columns.standardised(_finite(DenseMatrix(block, mask)), weight[part])
        sums, _ = _sums(cells, model, limits, threads)
        total = tuple(a + b for a, b in zip(total, sums, strict=True))
        kinds.append(cells.kinds)
        if flags:
            states.append(cells.states)
    return total, np.concatenate(states) if flags else None, np.concatenate(kinds)
