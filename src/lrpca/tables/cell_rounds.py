"""Rounds in which cells are flagged and moments are estimated, until both come to rest; see `lrpca.tables.cellwise`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lrpca.core.linalg import eigh
from lrpca.kernels.threads import Threads
from lrpca.tables.medians import MEDIAN_NORMAL, column_medians

# Rows of one piece of work, and multiply-adds of a row by squared number of columns, roughly.
_PIECE, _STEPS = 512, 4.0
# Cells beyond this many robust deviations of their column are flagged at the start.
_START = 4.0
# Wrapping of the columns for the first correlations: linear up to the first, zero beyond the second.
_LINEAR, ZERO_BEYOND = 1.5, 4.0
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
# States of a cell, as `lrpca.kernels.cells` has them.
IN, FLAGGED, FOR_GOOD, MISSING = 0, 1, 2, 3


@dataclass(frozen=True)
class Cells:
    """Standardised rows: Z (m, p), 0 where no cell is to be used; weight (m,); tied (p,).

    The states of the cells (m, p) and the kinds of the rows (m,) change from round to round; see the kernel.
    """

    Z: Any
    states: Any
    kinds: Any
    weight: Any
    tied: Any


@dataclass(frozen=True)
class Model:
    """Mean (p,) and covariance (p, p) of standardised cells, and the weight of the rows they come from."""

    mean: Any
    covariance: Any
    total: float

    def change(self, other: Model) -> float:
        """Return the largest change of a mean or a covariance, relative to the deviations."""
        root = np.sqrt(np.maximum(np.diag(self.covariance), _TINY))
        difference = np.abs(self.covariance - other.covariance) / np.outer(root, root)
        return float(max(difference.max(), (np.abs(self.mean - other.mean) / root).max()))


@dataclass(frozen=True)
class Limits:
    """Residuals beyond which a cell is flagged (p,), squared distances beyond which a row is outlying (p + 1,).

    Cells and rows that were in, or out, have their limit times a factor: residuals from a fit are larger outside of it.
    """

    cell: Any
    row: Any
    inside: float = 1.0
    outside: float = 1.0


def wide_limits(
    total: float,
    tied: Any,  # (p,)
) -> Limits:
    """Return limits that clean normal rows exceed next to never."""
    from scipy.special import chdtri, ndtri

    p = len(tied)
    cell = max(_WIDE, -float(ndtri(_FALSE_ALARM / (2 * max(total, 1) * p))))
    row = np.maximum(chdtri(np.arange(1, p + 1), _FALSE_ALARM / max(total, 1)), cell**2)
    # Each cell is a regression on p - 1 others and a constant; as many rows fit whatever they are.
    outside = 1 / (1 - p / total) if total > p + 1 else np.inf
    # An indicator that is rarely set is no outlier.
    row *= _RARE**2 if tied.any() else 1.0
    return Limits(np.where(tied, _RARE * cell, cell), np.concatenate([[np.inf], row]), outside=outside)


@dataclass(frozen=True)
class Rest:
    """Where the rounds came to rest."""

    model: Model
    converged: bool
    rounds: int


def settled(cells: Cells, wide: Limits, center: bool, threads: Threads) -> Rest:
    """Run the rounds: with the first flags, with the narrow limit, with the wide one."""
    model = _first_model(cells, center)
    far = np.abs(cells.Z) > np.where(cells.tied, wide.cell, _START)
    cells.states[(cells.states == IN) & far] = FLAGGED
    limits = Limits(np.where(cells.tied, wide.cell, _NARROW), np.full(len(wide.row), np.inf))
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
    return Rest(model, converged, rounds)


def _typical(
    residuals: Any,  # (m, p)
    weight: Any,  # (m,)
) -> Any:
    """Return the typical size of the residuals of each column, 1 for normal ones, wherever their middle is."""
    middle = column_medians(np.where(np.isinf(residuals), np.nan, residuals), weight)
    return column_medians(np.abs(residuals - middle), weight) / MEDIAN_NORMAL


def _first_model(cells: Cells, center: bool) -> Model:
    """Return the correlations of wrapped columns."""
    size, weight = np.abs(cells.Z), cells.weight
    falling = _LINEAR * (ZERO_BEYOND - size) / (ZERO_BEYOND - _LINEAR)
    wrapped = np.sign(cells.Z) * np.clip(np.minimum(size, falling), 0.0, None)
    total = float(weight.sum())
    p = wrapped.shape[1]
    mean = weight @ wrapped / total if center else np.zeros(p)
    wrapped = np.sqrt(weight)[:, None] * (wrapped - mean)
    covariance = wrapped.T @ wrapped / total
    root = np.sqrt(np.maximum(np.diag(covariance), _TINY))
    return Model(np.zeros(p), (1 - _SHRINK) * covariance / np.outer(root, root) + _SHRINK * np.eye(p), total)


def _round(
    cells: Cells, model: Model, limits: Limits, center: bool, threads: Threads, *, search: bool = True
) -> tuple[Model, Any]:
    """Flag cells; return the next model and the residuals (m, p)."""
    states, kinds = cells.states.copy(), cells.kinds.copy()
    sums, residuals = moment_sums(cells, model, limits, threads, search=search)
    if sums[0] < _LEAST_USED * cells.weight.sum():
        cells.states[:], cells.kinds[:] = states, kinds
        sums, residuals = moment_sums(cells, model, limits, threads, search=search, keep=True)
    return updated(model, sums, center), residuals


def moment_sums(
    cells: Cells, model: Model, limits: Limits, threads: Threads, *, search: bool = True, keep: bool = False
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


def updated(model: Model, sums: tuple[float, Any, Any], center: bool) -> Model:
    """Return the step of expectation maximisation."""
    total, first, second = sums
    if total <= 0:
        return model
    shift = first / total if center else np.zeros_like(first)
    covariance = second / total - np.outer(shift, shift)
    return Model(model.mean + shift, (covariance + covariance.T) / 2, total)


def _precision(model: Model) -> Any:
    """Return the inverse, with a ridge that lets a table without noise have one."""
    root = np.sqrt(np.maximum(np.diag(model.covariance), _TINY))
    values, vectors = eigh(model.covariance / np.outer(root, root))
    values = np.maximum(values, 0.0)
    # Of few rows the smallest come out too small.
    ridge = max(_RIDGE, _FEW_ROWS * len(values) / max(model.total, 1.0) * values[len(values) // 4])
    inverse = (vectors / (values + ridge)) @ vectors.T
    return inverse / np.outer(root, root)
