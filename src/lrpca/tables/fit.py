"""Robust principal axes of a table: what `RobustPCA.fit` computes, without scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.influence import everything
from lrpca.core.units import showing_units, unit_of
from lrpca.decompose import Arguments, Complaint, decompose_quietly
from lrpca.decomposition.result import Decomposition
from lrpca.exceptions import ConvergenceWarning, DiagnosisWarning
from lrpca.kernels.scale import outlier_threshold, residual_core, rounding_level
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix, arithmetic_dtype
from lrpca.matrices.sample import draw_sample
from lrpca.solvers.base import State
from lrpca.solvers.rank.choice import CLEAR
from lrpca.tables.axes import PrincipalAxes, extended_axes, principal_axes
from lrpca.tables.bands import (
    as_matrix,
    fresh,
    in_blocks,
    in_memory,
    is_elsewhere,
    only_rows,
    rows_of,
    spread_rows,
    without_centre,
)
from lrpca.tables.decompositions import assembled, filled
from lrpca.tables.medians import column_medians
from lrpca.tables.scores import row_scores

# The low-rank part takes at most one in so many of the shorter side: a row with more coefficients than that has no
# entries to spare which would tell an outlier.
_ENTRIES_PER_COMPONENT = 2
# Rows that keep less than this share of what the median row keeps have no say in the centre and the variances.
_LOST = 0.5
# Whole-number weights repeat the rows of a table that has less than this many entries then.
_REPEATED_BELOW = 1 << 22
# An outlier of new rows is at least so many tolerances of the solver away.
_ABOVE_TOL = 20.0
# A table of at most so many columns, and many times as many rows, is narrow.
NARROW, ROWS_PER_COLUMN = 40, 5
# A variance this much smaller than the largest is none.
_NOTHING = 1e-12
# A component that is left out may raise the noise level by this factor.
_MORE_NOISE = 1.5
# Residuals beyond so many noise levels are outliers.
_OUTLYING = 5.0
# How far an axis has to stand out of the largest singular value of noise to be one, where their number is asked for.
_STANDS_OUT = 1.3
# ... and of rounding, times the precision of the result: centring leaves the component that the centre used at zero.
_ABOVE_ROUNDING = 1e3


@dataclass(frozen=True)
class Wanted:
    """What `decompose` is to be asked for; see there."""

    n_components: int | float | str
    center: bool | str
    schedule: Any = None
    method: str = "lrpca"
    tol: float | None = None
    max_iter: int | None = None
    random_state: Any = None
    callback: Callable[[State], object] | None = None


@dataclass(frozen=True)
class RobustFit:
    """Axes of the clean rows, the fitted scales, and the decomposition of the training rows.

    Where entries are missing, the low-rank part of `filled` is the better guess at them: it is shrunk by as little as
    is known of a row or column. It is that of `decomposition` else. The noise variance is in units of `unit` squared,
    since it may be beyond the range of numbers.
    """

    axes: PrincipalAxes
    noise_level: float
    outlier_threshold: float
    noise_variance: float
    total_weight: float
    decomposition: Decomposition
    filled: Decomposition
    n_iter: int
    converged: bool
    complaints: list[Complaint]
    unit: float = 1.0

    def of_table(self, Y: Any, unit: float) -> RobustFit:
        """Return the fit of a table Y, given that of the table divided by a power of four."""
        axes = self.axes
        decompositions = [part.in_units(1 / unit).with_data(as_matrix(Y)) for part in (self.decomposition, self.filled)]
        return replace(
            self,
            axes=PrincipalAxes(axes.mean * unit, axes.components, axes.singular_values * unit, axes.scores * unit),
            noise_level=self.noise_level * unit,
            outlier_threshold=self.outlier_threshold * unit,
            decomposition=decompositions[0],
            filled=decompositions[1],
            unit=unit,
        )


class _Solution(NamedTuple):
    """Axes of the rows that count, and how they were found."""

    axes: PrincipalAxes
    noise: float
    noise_variance: float
    threshold: float
    total_weight: float
    low_rank: Decomposition | None
    n_iter: int
    converged: bool
    complaints: list[Complaint]


def robust_fit(
    Y: Any,  # (n1, n2)
    wanted: Wanted,
    weight: Any = None,  # (n1,), each row as so many equal rows
    *,
    allow_empty: bool = False,
) -> RobustFit:
    """Fit ``Y = 1 meanᵀ + scores components + outliers + noise``.

    Parameters
    ----------
    Y : ndarray, CSR matrix or ChunkedMatrix
        NaN is missing. A small chunked matrix is read into memory, a large one never is.
    wanted : Wanted
    weight : ndarray, optional
        Rows of weight 0 have no say. Whole numbers repeat the rows, unless the table is large.
    allow_empty : bool
        Whether columns may be without any entry.

    Returns
    -------
    RobustFit
    """
    table = in_memory(Y)
    unit = _unit_of_table(table)
    if unit != 1:
        if wanted.callback is not None:
            wanted = replace(wanted, callback=showing_units(wanted.callback, unit))
        divided = as_matrix(table).in_units(unit).array
        return robust_fit(divided, wanted, weight, allow_empty=allow_empty).of_table(Y, unit)
    rows, weight = _rows_that_count(table, weight)
    used = table
    if is_elsewhere(table) and (_is_narrow(table.shape, wanted) or wanted.center == "median" or rows is not None):
        used = in_blocks(table)
    if rows is not None:
        repeated = weight is None
        used = only_rows(used, rows) if isinstance(used, ChunkedMatrix) and not repeated else rows_of(used, rows)
    offset = _median(used, weight) if wanted.center == "median" or _is_thin(used.shape, wanted) else None
    if offset is not None:
        used = _taken_off(used, offset)
    matrix = as_matrix(used)
    try:
        solution = (_narrow if _is_narrow(matrix.shape, wanted) else _wide)(matrix, wanted, weight)
        if not allow_empty:
            _refuse_empty_columns(matrix, solution.low_rank)
    finally:
        matrix.close()
    axes = solution.axes
    if offset is not None:
        axes = PrincipalAxes(axes.mean + offset, axes.components, axes.singular_values, axes.scores)
    whole = as_matrix(Y)
    try:
        decomposition = _of_all_rows(whole, axes, rows, solution, wanted)
    finally:
        whole.close()
    return RobustFit(
        axes,
        solution.noise,
        solution.threshold,
        solution.noise_variance,
        solution.total_weight,
        decomposition,
        filled(as_matrix(table), decomposition),
        solution.n_iter,
        solution.converged,
        solution.complaints,
    )


def _unit_of_table(table: Any) -> float:
    """Return the unit of a table, see `lrpca.core.units`; where it is not in memory, the solver finds it."""
    if isinstance(table, ChunkedMatrix) or table.dtype.kind != "f":
        return 1.0
    sample = draw_sample(accept(table), np.random.default_rng(0), allow_empty=True)
    return unit_of(sample.values, arithmetic_dtype(table.dtype))


def _rows_that_count(
    table: Any,  # (n1, n2)
    weight: Any,  # (n1,)
) -> tuple[Any, Any]:
    """Return the indices of the rows to use (None: all as they are) and their weights (None: all equal)."""
    if weight is None or (weight == 1).all():
        return None, None
    counts = np.rint(weight)
    if (counts == weight).all() and counts.sum() * table.shape[1] < _REPEATED_BELOW:
        return np.repeat(np.arange(table.shape[0]), counts.astype(int)), None
    if (weight > 0).all():
        return None, weight
    rows = np.flatnonzero(weight > 0)
    return rows, weight[rows]


def _is_thin(shape: tuple[int, int], wanted: Wanted) -> bool:
    """Tell whether a table is too small for a low-rank part with a centre: then medians are its centre."""
    return bool(wanted.center) and min(shape) // _ENTRIES_PER_COMPONENT < 2 and not _is_narrow(shape, wanted)


def _is_narrow(shape: tuple[int, int], wanted: Wanted) -> bool:
    """Tell whether a table has so few columns that their covariance tells more than a low-rank part."""
    n1, n2 = shape
    by_default = wanted.method in ("lrpca", "auto") and wanted.schedule is None
    return by_default and n2 <= NARROW and n1 >= ROWS_PER_COLUMN * n2


def _narrow(matrix: DenseMatrix, wanted: Wanted, weight: Any) -> _Solution:
    """Return the axes of a narrow table, from a covariance without outlying cells."""
    from lrpca.tables.cellwise import narrow_axes

    n1, n2 = matrix.shape
    found = narrow_axes(matrix, center=wanted.center is True, weight=weight)
    total = float((np.ones(n1) if weight is None else weight)[found.cells.rows_used].sum())
    count = _count(found.variances, wanted.n_components, total)
    complaints = _no_gap(found.variances, count) if isinstance(wanted.n_components, str) and count < n2 else []
    components = found.components[:count]
    left = float(found.variances[count:].mean()) if count < n2 else 0.0
    noise = max(
        math.sqrt(left), rounding_level(matrix.result, float(np.abs(found.mean).max() + math.sqrt(found.variances[0])))
    )
    scores = row_scores(matrix, found.mean, components, found.variances[:count], noise)
    freedom = max(total - 1, 1) if wanted.center is True else total
    axes = PrincipalAxes(found.mean, components, np.sqrt(found.variances[:count] * freedom), scores)
    threshold = max(outlier_threshold(noise, matrix.stored, 0.0), _accuracy(matrix, axes))
    if not found.cells.converged:
        message = f"the cells that count as outliers kept changing for {found.cells.n_iter} rounds; there may be too "
        complaints.append((ConvergenceWarning, f"not converged: {message}few rows, or too many missing entries"))
    cells = found.cells
    return _Solution(axes, noise, left, threshold, total, None, cells.n_iter, cells.converged, complaints)


def _no_gap(
    variances: Any,  # (n2,)
    count: int,
) -> list[Complaint]:
    gap = math.sqrt(variances[count - 1] / max(float(variances[count]), float(np.finfo(float).tiny)))
    if gap >= CLEAR:
        return []
    message = f"found no gap in the spectrum: the weakest of {count} components is {gap:.2g} times what follows"
    return [(DiagnosisWarning, f"n_components='auto' {message}; look at explained_variance_ and give n_components")]


def _count(
    variances: Any,  # (n2,)
    n_components: int | float | str,
    rows: float,
) -> int:
    """Return how many axes to keep: so many, those that explain a share, or those that stand out of the others."""
    if isinstance(n_components, int):
        return n_components
    if not variances.any():
        return 1
    shares = np.cumsum(variances) / float(variances.sum())
    if not isinstance(n_components, str):
        return min(len(variances), int(np.count_nonzero(shares < n_components)) + 1)
    spread = (_STANDS_OUT * (1 + math.sqrt(len(variances) / rows))) ** 2
    for count in range(1, len(variances)):
        if variances[count] <= max(spread * variances[count:].mean(), _NOTHING * variances[0]):
            return count
    return len(variances)


def _wide(matrix: DenseMatrix, wanted: Wanted, weight: Any) -> _Solution:
    """Return the axes of a table of many columns, from its low-rank part."""
    low_rank, complaints = _low_rank(matrix, wanted, weight)
    axes, counted = _axes_of(matrix, low_rank, wanted, weight)
    if low_rank is not None and _is_centre_idle(matrix, axes, low_rank, wanted, counted):
        # The component for the centre may have gone to some outliers: does the table need it?
        without, other_complaints = _low_rank(matrix, wanted, weight, for_centre=0)
        if without is not None and _explains_as_much(matrix, without, low_rank):
            low_rank, complaints = without, other_complaints
            axes, counted = _axes_of(matrix, low_rank, wanted, weight)
    axes, noise, threshold = _completed(matrix, axes, low_rank, wanted, counted)
    total = _total(matrix, counted)
    n2, free = matrix.shape[1], matrix.shape[1] - len(axes.components)
    # As PCA counts it: what is left of the variance, by direction that is left.
    left = noise**2 * total * n2 / (max(total - 1, 1) * free) if free else 0.0
    n_iter, converged = (1, True) if low_rank is None else (low_rank.n_iter, low_rank.converged)
    return _Solution(axes, noise, left, threshold, total, low_rank, n_iter, converged, complaints)


def _axes_of(
    matrix: DenseMatrix, low_rank: Decomposition | None, wanted: Wanted, weight: Any
) -> tuple[PrincipalAxes, Any]:
    """Return the axes of a low-rank part, and the weights of the rows that have a say in them."""
    if low_rank is None:
        n1, n2 = matrix.shape
        return PrincipalAxes(np.zeros(n2), np.zeros((0, n2)), np.zeros(0), np.zeros((n1, 0))), weight
    weight = _without_lost_rows(low_rank, weight)
    return principal_axes(low_rank.L, low_rank.R, center=wanted.center is True, weight=weight), weight


def _is_centre_idle(
    matrix: DenseMatrix, axes: PrincipalAxes, low_rank: Decomposition, wanted: Wanted, weight: Any
) -> bool:
    """Tell whether all components stand out about the centre, though there is one more than asked for."""
    asked = wanted.n_components
    if wanted.center is not True or not isinstance(asked, int) or low_rank.rank <= asked:
        return False
    return _standing_out(matrix, axes, low_rank.noise_level, weight) > asked


def _explains_as_much(matrix: DenseMatrix, one: Decomposition, other: Decomposition) -> bool:
    """Tell whether a fit leaves hardly more noise than another and, by the larger noise level, no more outliers."""
    if not one.converged or one.noise_level > _MORE_NOISE * other.noise_level:
        return False
    sample = draw_sample(matrix, np.random.default_rng(0), exact=True)
    limit = _OUTLYING * max(one.noise_level, other.noise_level)
    left = [int(np.count_nonzero(sample.residuals(fit.L, fit.R) > limit)) for fit in (one, other)]
    return left[0] <= left[1]


def _standing_out(matrix: DenseMatrix, axes: PrincipalAxes, noise: float, weight: Any) -> int:
    """Return how many axes stand out of what noise alone would make, and of rounding."""
    n1, n2 = matrix.shape
    heavier = math.sqrt(_total(matrix, weight) / n1)
    edge = _STANDS_OUT * noise * (math.sqrt(n1) + math.sqrt(n2)) * heavier
    rounding = _ABOVE_ROUNDING * float(np.finfo(matrix.result).eps) * float(axes.singular_values.max(initial=0.0))
    return int(np.count_nonzero(axes.singular_values > max(edge, rounding)))


def _total(matrix: DenseMatrix, weight: Any) -> float:
    return float(matrix.shape[0] if weight is None else weight.sum())


def _refuse_empty_columns(matrix: DenseMatrix, low_rank: Decomposition | None) -> None:
    """Raise ValueError for columns without any entry; of a low-rank part only those without influence can be such."""
    known = low_rank is not None and not np.isnan(low_rank.diagnosis.kept_by_row).all()
    suspects = low_rank.diagnosis.columns_without_influence if known and low_rank else np.arange(matrix.shape[1])
    if not len(suspects):
        return
    none_1, none_2 = (np.zeros((n, 0)) for n in matrix.shape)
    observed = matrix.run_pass(none_1, none_2, everything(), A=none_2, B=none_1).kept_by_column
    for j in suspects[observed[suspects] == 0]:
        raise ValueError(
            f"X[:, {j}] has no observed entry (all NaN); drop the column, or fill it with what it should be"
        )


def _without_lost_rows(low_rank: Decomposition, weight: Any) -> Any:
    """Return the weights with zero for rows of which hardly anything is explained: their scores rest on nothing."""
    kept = low_rank.diagnosis.kept_by_row
    known = kept == kept
    if not known.any():
        return weight
    lost = ~known | (kept < _LOST * float(np.median(kept[known])))
    if not lost.any() or lost.all():
        return weight
    return np.where(lost, 0.0, 1.0 if weight is None else weight)


def _low_rank(
    matrix: DenseMatrix, wanted: Wanted, weight: Any, for_centre: int = 1
) -> tuple[Decomposition | None, list[Complaint]]:
    """Return the low-rank part, with a component for the centre; None where the table is too narrow to have one.

    Medians, once taken off, leave a component of their own: the distance of the centre from them.
    """
    extra = for_centre if wanted.center else 0
    most = min(matrix.shape) // _ENTRIES_PER_COMPONENT
    if most < 1 + extra:
        return None, []
    by_number = isinstance(wanted.n_components, int)
    rank: Any = min(int(wanted.n_components) + extra, most) if by_number else "auto"
    arguments = Arguments(
        wanted.method,
        wanted.schedule,
        wanted.tol,
        wanted.max_iter,
        wanted.random_state,
        wanted.callback,
        row_weight=weight,
    )
    return decompose_quietly(fresh(matrix), rank, arguments)


def _completed(
    matrix: DenseMatrix, axes: PrincipalAxes, low_rank: Decomposition | None, wanted: Wanted, weight: Any
) -> tuple[PrincipalAxes, float, float]:
    """Return as many axes as wanted, the noise level and the outlier threshold."""
    if low_rank is None:
        noise, threshold = _scales(matrix, axes)
    else:
        noise, threshold = low_rank.noise_level, float(low_rank.outlier_threshold)
    standing_out = _standing_out(matrix, axes, noise, weight)
    count = _wanted_count(matrix, axes.first(standing_out), noise, wanted.n_components, weight)
    if count < standing_out:
        # What is cut off belongs to what is left over from now on.
        cut = axes.singular_values[count:standing_out]
        noise = math.sqrt(noise**2 + float(cut @ cut) / (_total(matrix, weight) * matrix.shape[1]))
        threshold = max(threshold, _OUTLYING * noise)
    axes = axes.first(min(count, max(standing_out, 1)))
    return extended_axes(matrix, axes, count, threshold, weight=weight), noise, max(threshold, _accuracy(matrix, axes))


def _wanted_count(
    matrix: DenseMatrix, axes: PrincipalAxes, noise: float, n_components: int | float | str, weight: Any
) -> int:
    """Return how many axes to keep, given those that stand out."""
    if isinstance(n_components, int):
        return n_components
    present = len(axes.components)
    if isinstance(n_components, str) or not present:
        return max(1, present)
    energy = np.cumsum(axes.singular_values**2)
    total = float(energy[-1]) + noise**2 * _total(matrix, weight) * (matrix.shape[1] - present)
    return min(present, int(np.count_nonzero(energy < n_components * total)) + 1)


def _accuracy(matrix: DenseMatrix, axes: PrincipalAxes) -> float:
    """Return how well entries of new rows can be known: as well as the solver's tolerance lets the axes be."""
    squares = float(np.mean(axes.mean**2)) + float(np.sum(axes.singular_values**2)) / math.prod(matrix.shape)
    return _ABOVE_TOL * (1e-6 if matrix.result == np.float32 else 1e-8) * math.sqrt(squares)


def _scales(matrix: DenseMatrix, axes: PrincipalAxes) -> tuple[float, float]:
    """Return the noise level and the outlier threshold of what the axes leave."""
    sample = draw_sample(matrix, np.random.default_rng(0))
    L = np.column_stack([np.ones(matrix.shape[0]), axes.scores])
    R = np.column_stack([axes.mean, axes.components.T])
    scale = sample.typical
    rounding = rounding_level(matrix.result, scale)
    noise = residual_core(sample.residuals(L, R), rounding).sigma
    return noise, outlier_threshold(noise, matrix.stored, rounding)


def _of_all_rows(
    matrix: DenseMatrix, axes: PrincipalAxes, rows: Any, solution: _Solution, wanted: Wanted
) -> Decomposition:
    """Return the decomposition of the table as it was given, rows without weight included."""
    noise, scores = solution.noise, axes.scores
    if rows is not None:
        scores = np.zeros((matrix.shape[0], len(axes.components)))
        scores[rows] = axes.scores
        idle = np.setdiff1d(np.arange(len(scores)), rows)
        if len(idle):
            variances = axes.singular_values**2 / max(solution.total_weight - 1, 1)
            # What is read in blocks is read once for all rows: those without weight may be too many for memory.
            whole = is_elsewhere(matrix.array) or isinstance(matrix, ChunkedMatrix)
            some = matrix if whole else matrix.take_rows(idle)
            found = row_scores(some, axes.mean, axes.components, variances, noise)
            scores[idle] = found[idle] if whole else found
    low_rank = solution.low_rank
    decomposition = assembled(
        matrix, axes.mean, axes.components, scores, noise, solution.threshold, low_rank, wanted.method
    )
    if low_rank is None and not solution.converged:
        decomposition.reason = "max_iter"
    return decomposition


def _median(
    Y: Any,  # (n1, n2)
    weight: Any,  # (n1,)
) -> Any:
    """Return the medians of the columns; where the table is not in memory, those of some of its rows."""
    if isinstance(Y, ChunkedMatrix):
        rows = spread_rows(Y.shape)
        Y, weight = rows_of(Y, rows), None if weight is None else weight[rows]
    dense = np.asarray(Y.toarray() if hasattr(Y, "toarray") else Y, np.float64)
    return column_medians(dense, np.ones(len(dense)) if weight is None else weight)


def _taken_off(Y: Any, offset: Any) -> Any:
    """Return Y without a centre: a copy, in floating point, unless it is not in memory."""
    if isinstance(Y, ChunkedMatrix):
        return without_centre(Y, offset)
    dense = Y.toarray() if hasattr(Y, "toarray") else Y
    dtype = dense.dtype if dense.dtype.kind == "f" and dense.dtype.itemsize >= 4 else np.float64
    return np.subtract(dense, offset, dtype=dtype)
