"""Robust moments of narrow tables: mean and covariance that outlying cells and outlying rows do not move.

In a table of few columns a low-rank part takes a large share of every row, and half of the entries can be fitted
exactly whatever they are: the size of the residuals tells nothing. A covariance uses the rows together. The model is
normal. Cells that do not fit the others of their row are flagged and count as missing:

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

from lrpca.core.linalg import eigh
from lrpca.core.units import unit_of
from lrpca.kernels.threads import Threads
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix
from lrpca.tables.axes import with_fixed_signs
from lrpca.tables.bands import each_band, with_gaps
from lrpca.tables.centre import GOLDEN, MEDIAN_NORMAL, column_medians

# Rows that the flags are searched on; of a longer table so many, evenly spread. All rows take part at the end.
ENOUGH_ROWS = 10000
# Cells beyond this many robust deviations of their column are flagged for good.
_GROSS = 1e3
# Rows of a long table that are standardised at a time, and steps with all of them.
_BLOCK, _LAST_STEPS = 1 << 16, 2
# Rows of one piece of work, and multiply-adds of a row by squared number of columns, roughly.
_PIECE, _STEPS = 512, 4.0
# Cells beyond this many robust deviations of their column are flagged at the start.
_START = 4.0
# Wrapping of the columns for the first correlations: linear up to the first, zero beyond the second.
_LINEAR, _ZERO_BEYOND = 1.5, 4.0
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
# Rows that do not fit stay in where those that do are fewer than this part.
_LEAST_USED = 0.5
# Variances of standardised columns are taken for at least this: where all that differs is flagged.
_TINY = 1e-12
# States of a cell, and the kind of a row that takes part, as in `lrpca.kernels.cells`.
_IN, _FLAGGED, _FOR_GOOD, _MISSING, _USED = 0, 1, 2, 3, 0


@dataclass(frozen=True)
class CellwiseMoments:
    """Mean and covariance without outlying cells and rows."""

    mean: Any  # (n2,), zero without a centre, and for columns without any observed cell
    covariance: Any  # (n2, n2), divided by n - 1, or by n without a centre; zero for constant and empty columns
    rows_used: Any  # (n1,) bool, False: an outlying row, one of weight 0, or one without observed cells
    converged: bool  # whether flags and moments no longer changed
    n_iter: int

    def axes(self) -> tuple[Any, Any]:
        """Return all principal axes (n2, n2), largest variance first, and the variances (n2,) along them."""
        values, vectors = eigh(self.covariance)
        return with_fixed_signs(vectors.T[::-1])[0], np.maximum(values[::-1], 0.0)


@dataclass(frozen=True)
class _Cells:
    """Standardised rows; states and kinds change from round to round, see the kernel."""

    Z: Any  # (m, p), 0 where no cell is to be used
    states: Any  # (m, p), of the cells
    kinds: Any  # (m,), of the rows
    weight: Any  # (m,)
    tied: Any  # (p,)


@dataclass(frozen=True)
class _Columns:
    """Robust centre and scale of the columns."""

    centre: Any  # (n2,)
    scale: Any  # (n2,), 0: constant, or without any observed cell
    tied: Any  # (n2,) bool: most cells are equal, as of an indicator, and there is no typical residual

    def standardised(self, Y: Any, weight: Any) -> _Cells:
        """Return rows Y (m, n2) of some weights (m,), without constant and empty columns."""
        live = self.scale > 0
        Z = (Y[:, live] - self.centre[live]) / self.scale[live]
        missing, gross = Z != Z, np.abs(Z) > _GROSS
        states = np.where(missing, _MISSING, np.where(gross, _FOR_GOOD, _IN)).astype(np.uint8)
        Z[missing | gross] = 0.0
        return _Cells(np.ascontiguousarray(Z), states, np.zeros(len(Z), np.uint8), weight, self.tied[live])


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


def cellwise_moments(matrix: DenseMatrix, *, center: bool = True, weight: Any = None) -> CellwiseMoments:
    """Return mean and covariance of the clean cells of a table with few columns; without `center`, about zero.

    Each row counts as `weight` (n1,) equal rows; whole numbers do the same as repeated rows, up to the choice of rows.
    No randomness is involved. Of a table with many rows the flags are found on evenly spread ones, and all rows take
    part in the last two steps.
    """
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
    used = np.zeros(n1, bool)
    if not len(live):
        for part, found in each_band(matrix, _has_cells, rows=_BLOCK):
            used[part] = found
        return CellwiseMoments(mean, covariance, (weight > 0) & used, True, 0)
    threads = Threads()
    wide = _wide_limits(float(weight.sum()), columns.tied[live])
    cells = columns.standardised(values, counts)
    model, converged, rounds = _run_rounds(cells, wide, center, threads)
    used[rows] = cells.kinds == _USED
    if len(rows) < np.count_nonzero(weight):
        for _ in range(_LAST_STEPS):
            sums: Any = 0.0
            work = partial(_band_moments, columns=columns, model=model, limits=wide, threads=threads)
            for part, (here, kinds) in each_band(matrix, work, weight, rows=_BLOCK):
                sums = sums + here
                used[part] = (kinds == _USED) & (weight[part] > 0)
            model = _updated(model, sums, center)
    threads.close()
    mean[live] += columns.scale[live] * model.mean
    degrees = model.total / max(model.total - 1, 1) if center else 1.0
    covariance[np.ix_(live, live)] = degrees * model.covariance * np.outer(columns.scale[live], columns.scale[live])
    return CellwiseMoments(mean, covariance, used, converged, rounds)


def _finite(part: DenseMatrix) -> Any:
    """Return the numbers of some rows, NaN where missing; raise ValueError where one is infinite."""
    values = with_gaps(part.array, part.mask)
    if np.isinf(values).any():
        raise ValueError("Y contains inf; mark missing entries with NaN")
    return values


def _has_cells(part: DenseMatrix) -> Any:
    values = _finite(part)
    return (values == values).any(axis=1)


def _as_counts(weight: Any) -> Any:
    """Return the weights (n1,), scaled so that shares sum to the number of equal rows that they stand for."""
    total, squares = float(weight.sum()), float((weight**2).sum())
    return weight * max(1.0, total / squares) if squares > 0 else weight


def _chosen_rows(weight: Any) -> tuple[Any, Any]:
    """Return the indices of the rows to search on, and how often each counts, given the weights (n1,)."""
    rows = np.flatnonzero(weight > 0)
    if len(rows) <= ENOUGH_ROWS:
        return rows, weight[rows]
    # One from each stretch of equal weight, its place within the stretch from a sequence that fits no period.
    steps = np.arange(ENOUGH_ROWS)
    heap = np.cumsum(weight)
    places = (steps + steps * GOLDEN % 1.0) * (heap[-1] / ENOUGH_ROWS)
    chosen, counts = np.unique(np.minimum(np.searchsorted(heap, places, side="right"), rows[-1]), return_counts=True)
    return chosen, counts.astype(np.float64)


def _columns(Y: Any, weight: Any, center: bool) -> _Columns:
    """Return medians and median absolute deviations of rows Y (m, n2) of some weights (m,)."""
    Y = np.asarray(Y, np.float64)
    centre = column_medians(Y, weight) if center else np.zeros(Y.shape[1])
    size = np.abs(Y - centre)
    scale = column_medians(size, weight) / MEDIAN_NORMAL
    there, tied = np.isfinite(size), scale == 0
    for j in np.flatnonzero(tied):
        # The cells that differ are what varies; one of them must not be all there is.
        observed, apart = there[:, j], there[:, j] & (size[:, j] > 0)
        if apart.any():
            most = _ZERO_BEYOND * column_medians(size[apart, j, None], weight[apart])[0]
            bounded = np.minimum(size[observed, j], most)
            scale[j] = np.sqrt(np.average(bounded**2, weights=weight[observed]))
    return _Columns(centre, scale, tied)


def _band_moments(
    band: DenseMatrix, weight: Any, *, columns: _Columns, model: _Model, limits: _Limits, threads: Threads
) -> tuple[Any, Any]:
    total: Any = 0.0
    kinds = []
    for start, block, mask in band.blocks(_BLOCK):
        part = slice(start, start + len(block))
        cells = columns.standardised(_finite(DenseMatrix(block, mask)), weight[part])
        sums, _ = _moment_sums(cells, model, limits, threads)
        total = total + sums
        kinds.append(cells.kinds)
    return total, np.concatenate(kinds)


def _wide_limits(total: float, tied: Any) -> _Limits:
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


def _run_rounds(cells: _Cells, wide: _Limits, center: bool, threads: Threads) -> tuple[_Model, bool, int]:
    """Return the model where the rounds end, whether they converged, and their number."""
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
            # Flags that come and go would never settle: from now on they are only removed.
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
    return model, converged, rounds


def _typical(residuals: Any, weight: Any) -> Any:
    """Return the typical size (p,) of the residuals (m, p) of each column: 1 for normal ones, wherever their median."""
    middle = column_medians(np.where(np.isinf(residuals), np.nan, residuals), weight)
    return column_medians(np.abs(residuals - middle), weight) / MEDIAN_NORMAL


def _first_model(cells: _Cells, center: bool) -> _Model:
    """Return the correlations of wrapped columns."""
    size, weight = np.abs(cells.Z), cells.weight
    falling = _LINEAR * (_ZERO_BEYOND - size) / (_ZERO_BEYOND - _LINEAR)
    wrapped = np.sign(cells.Z) * np.clip(np.minimum(size, falling), 0.0, None)
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
    sums, residuals = _moment_sums(cells, model, limits, threads, search=search)
    if sums[0] < _LEAST_USED * cells.weight.sum():
        cells.states[:], cells.kinds[:] = states, kinds
        sums, residuals = _moment_sums(cells, model, limits, threads, search=search, keep=True)
    return _updated(model, sums, center), residuals


def _moment_sums(
    cells: _Cells, model: _Model, limits: _Limits, threads: Threads, *, search: bool = True, keep: bool = False
) -> tuple[Any, Any]:
    """Return weight, first and second moments (1 + p + p²,) of the rows that take part, and the residuals (m, p)."""
    from lrpca.kernels.cells import row_moments

    m, p = cells.Z.shape
    precision, residuals = _precision(model), np.empty((m, p))

    def work(start: int) -> Any:
        part, sums = slice(start, start + _PIECE), np.zeros(1 + p + p * p)
        moments = sums[1 : 1 + p], sums[1 + p :].reshape(p, p)
        rows = cells.Z[part], cells.states[part], cells.kinds[part], cells.weight[part]
        bounds = limits.cell, limits.row, limits.inside, limits.outside
        sums[0] = row_moments(*rows, model.mean, precision, *bounds, search, keep, residuals[part], *moments)
        return sums

    return sum(threads.map(work, range(0, m, _PIECE), work=_STEPS * m * p * p)), residuals


def _updated(model: _Model, sums: Any, center: bool) -> _Model:
    """Return the step of expectation maximisation."""
    p, total = len(model.mean), float(sums[0])
    if total <= 0:
        return model
    shift = sums[1 : 1 + p] / total if center else np.zeros(p)
    covariance = sums[1 + p :].reshape(p, p) / total - np.outer(shift, shift)
    return _Model(model.mean + shift, (covariance + covariance.T) / 2, total)


def _precision(model: _Model) -> Any:
    """Return the inverse, with a ridge that lets a table without noise have one."""
    root = np.sqrt(np.maximum(np.diag(model.covariance), _TINY))
    values, vectors = eigh(model.covariance / np.outer(root, root))
    values = np.maximum(values, 0.0)
    # Of few rows the smallest come out too small.
    ridge = max(_RIDGE, _FEW_ROWS * len(values) / max(model.total, 1.0) * values[len(values) // 4])
    inverse = (vectors / (values + ridge)) @ vectors.T
    return inverse / np.outer(root, root)
