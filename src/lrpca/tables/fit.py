"""Robust principal axes of a table: what `RobustPCA.fit` computes, without scikit-learn."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lrpca.core.influence import everything
from lrpca.core.units import showing_units, unit_of
from lrpca.decompose import Arguments, WarningText, decompose_with_warnings
from lrpca.decomposition.result import Decomposition
from lrpca.exceptions import ConvergenceWarning, DiagnosisWarning
from lrpca.kernels.scale import outlier_threshold, residual_core, rounding_level
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix, arithmetic_dtype
from lrpca.matrices.sample import draw_sample
from lrpca.solvers.rank.choice import CLEAR
from lrpca.tables.axes import PrincipalAxes, count_explaining, extended_axes, principal_axes
from lrpca.tables.bands import LOADED_BELOW, as_matrix, in_blocks, in_memory, only_rows
from lrpca.tables.centre import table_medians, without_centre
from lrpca.tables.row_model import RowModel

# At most one in so many entries of the shorter side is a component of the low-rank part: a row with more coefficients
# has no entries to spare that would tell an outlier.
_ENTRIES_PER_COMPONENT = 2
# Rows that keep less than this share of what the median row keeps do not count for the centre and the variances.
_LOW_INLIER = 0.5
# An outlier of new rows is at least this many tolerances of the solver away.
_ABOVE_TOL = 20.0
# A table of at most so many columns, and many times as many rows, is narrow.
NARROW, ROWS_PER_COLUMN = 40, 5
# A variance this much smaller than the largest is zero.
_NOTHING = 1e-12
# A component that is left out may raise the noise level by this factor.
_MORE_NOISE = 1.5
# Residuals beyond so many noise levels are outliers.
_OUTLYING = 5.0
# By how much an axis has to exceed the largest singular value of noise, where their number is asked for.
_EXCEEDS = 1.3
# ... and rounding, times the precision of the result: centring leaves the component that the centre used at zero.
_ABOVE_ROUNDING = 1e3


@dataclass(frozen=True)
class Settings(Arguments):
    """Parameters of a fit: those of the solver and, of `RobustPCA`, these two."""

    n_components: int | float | str = "auto"
    center: bool | str = True

    def is_narrow(self, shape: tuple[int, int]) -> bool:
        """Tell whether a table has so few columns that their covariance tells more than a low-rank part."""
        by_default = self.method in ("lrpca", "auto") and self.schedule is None
        return by_default and shape[1] <= NARROW and shape[0] >= ROWS_PER_COLUMN * shape[1]

    def subtracts_medians(self, shape: tuple[int, int]) -> bool:
        """Tell whether medians are the centre: on request, or where a table is too small for one more component."""
        small = min(shape) // _ENTRIES_PER_COMPONENT < 2 and not self.is_narrow(shape)
        return self.center == "median" or (bool(self.center) and small)


@dataclass(frozen=True)
class _Solution:
    """Axes of the rows that count, and how they were found."""

    axes: PrincipalAxes
    noise_level: float
    noise_variance: float
    outlier_threshold: float
    total_weight: float
    low_rank: Decomposition | None
    n_iter: int
    converged: bool
    warnings: list[WarningText]


@dataclass(frozen=True)
class RobustFit(_Solution):
    """Axes of the clean rows, the fitted scales, and the decomposition of the training rows.

    Where entries are missing, the low-rank part of `filled` is the better estimate of them: it is shrunk where little
    is known of a row or column. Otherwise it is that of `decomposition`. The noise variance is in units of `unit`
    squared, since it may be beyond the range of numbers.
    """

    decomposition: Decomposition
    filled: Decomposition
    unit: float = 1.0

    def of_table(self, Y: Any, unit: float) -> RobustFit:
        """Return the fit of a table Y, given that of the table divided by a power of four."""
        axes = self.axes
        return replace(
            self,
            axes=PrincipalAxes(axes.mean * unit, axes.components, axes.singular_values * unit, axes.scores * unit),
            noise_level=self.noise_level * unit,
            outlier_threshold=self.outlier_threshold * unit,
            decomposition=self.decomposition.in_units(1 / unit).with_data(as_matrix(Y)),
            filled=self.filled.in_units(1 / unit).with_data(as_matrix(Y)),
            unit=unit,
        )


def robust_fit(
    Y: Any,  # (n1, n2)
    settings: Settings,
    weight: Any = None,  # (n1,), each row as so many equal rows
    *,
    allow_empty: bool = False,
) -> RobustFit:
    """Fit ``Y = 1 meanᵀ + scores components + outliers + noise``.

    Y is an array, a CSR matrix or a chunked matrix, NaN is missing. A small chunked matrix is read into memory, a large
    one never is. Rows of weight 0 have no influence. Whole numbers repeat the rows, unless the table is large. Columns
    without any entry raise ValueError unless `allow_empty`.
    """
    from lrpca.tables.imputation import with_filled_gaps

    table = in_memory(Y)
    unit = _unit_of_table(table)
    if unit != 1:
        if settings.callback is not None:
            settings = replace(settings, callback=showing_units(settings.callback, unit))
        divided = as_matrix(table).in_units(unit).array
        return robust_fit(divided, settings, weight, allow_empty=allow_empty).of_table(Y, unit)
    rows, weight = _rows_that_count(table, weight)
    used = table
    if settings.is_narrow(table.shape) or settings.center == "median" or rows is not None:
        used = in_blocks(table)
    if rows is not None:
        used = only_rows(used, rows)
    offset = table_medians(used, weight) if settings.subtracts_medians(used.shape) else None
    matrix = as_matrix(used if offset is None else without_centre(used, offset))
    try:
        solution = (_narrow if settings.is_narrow(matrix.shape) else _wide)(matrix, settings, weight)
        if not allow_empty:
            _refuse_empty_columns(matrix, solution.low_rank)
    finally:
        matrix.close()
    if offset is not None:
        solution = replace(solution, axes=replace(solution.axes, mean=solution.axes.mean + offset))
    whole = as_matrix(Y)
    try:
        decomposition = _of_all_rows(whole, rows, solution, settings.method)
    finally:
        whole.close()
    return RobustFit(
        **vars(solution), decomposition=decomposition, filled=with_filled_gaps(as_matrix(table), decomposition)
    )


def _unit_of_table(table: Any) -> float:
    """Return the unit of a table, see `lrpca.core.units`; where it is not in memory, the solver finds it."""
    if isinstance(table, ChunkedMatrix) or table.dtype.kind != "f":
        return 1.0
    sample = draw_sample(accept(table), np.random.default_rng(0), allow_empty=True)
    return unit_of(sample.values, arithmetic_dtype(table.dtype))


def _rows_that_count(table: Any, weight: Any) -> tuple[Any, Any]:
    """Return the indices of the rows to use (None: all as they are) and their weights."""
    if weight is None or (weight == 1).all():
        return None, np.ones(table.shape[0])
    counts = np.rint(weight)
    if (counts == weight).all() and counts.sum() * table.shape[1] < LOADED_BELOW:
        return np.repeat(np.arange(table.shape[0]), counts.astype(int)), np.ones(int(counts.sum()))
    if (weight > 0).all():
        return None, weight
    rows = np.flatnonzero(weight > 0)
    return rows, weight[rows]


def _narrow(matrix: DenseMatrix, settings: Settings, weight: Any) -> _Solution:
    """Return the axes of a narrow table, from a covariance without outlying cells."""
    from lrpca.tables.cellwise import cellwise_moments

    n2 = matrix.shape[1]
    moments = cellwise_moments(matrix, center=settings.center is True, weight=weight)
    components, variances = moments.axes()
    total = float(weight[moments.rows_used].sum())
    count = _count(variances, settings.n_components, total)
    warnings = _no_gap(variances, count) if isinstance(settings.n_components, str) and count < n2 else []
    left = float(variances[count:].mean()) if count < n2 else 0.0
    components, variances = components[:count], variances[:count]
    largest = float(np.abs(moments.mean).max() + math.sqrt(variances[0]))
    noise = max(math.sqrt(left), rounding_level(matrix.result, largest))
    scores = RowModel(moments.mean, components, variances, noise).exact_scores(matrix)
    freedom = max(total - 1, 1) if settings.center is True else total
    axes = PrincipalAxes(moments.mean, components, np.sqrt(variances * freedom), scores)
    threshold = max(outlier_threshold(noise, matrix.stored, 0.0), _accuracy(matrix, axes))
    if not moments.converged:
        message = f"the cells that count as outliers kept changing for {moments.n_iter} rounds; there may be too "
        warnings.append((ConvergenceWarning, f"not converged: {message}few rows, or too many missing entries"))
    return _Solution(axes, noise, left, threshold, total, None, moments.n_iter, moments.converged, warnings)


def _no_gap(variances: Any, count: int) -> list[WarningText]:
    gap = math.sqrt(variances[count - 1] / max(float(variances[count]), float(np.finfo(float).tiny)))
    if gap >= CLEAR:
        return []
    message = f"found no gap in the spectrum: the weakest of {count} components is {gap:.2g} times what follows"
    return [(DiagnosisWarning, f"n_components='auto' {message}; look at explained_variance_ and give n_components")]


def _count(variances: Any, n_components: int | float | str, rows: float) -> int:
    """Return how many of all axes to keep: so many, those that explain a share, or those that exceed the others."""
    if isinstance(n_components, int):
        return n_components
    if not variances.any():
        return 1
    if not isinstance(n_components, str):
        return count_explaining(variances, n_components * float(variances.sum()))
    spread = (_EXCEEDS * (1 + math.sqrt(len(variances) / rows))) ** 2
    for count in range(1, len(variances)):
        if variances[count] <= max(spread * variances[count:].mean(), _NOTHING * variances[0]):
            return count
    return len(variances)


def _wide(matrix: DenseMatrix, settings: Settings, weight: Any) -> _Solution:
    """Return the axes of a table of many columns, from its low-rank part."""
    low_rank, warnings = _low_rank(matrix, settings, weight)
    axes, counted = _axes_of(matrix, low_rank, settings, weight)
    if low_rank is not None and _is_centre_idle(matrix, axes, low_rank, settings, counted):
        # The component for the centre may have gone to some outliers: does the table need it?
        without, other_warnings = _low_rank(matrix, settings, weight, for_centre=0)
        if without is not None and _explains_as_much(matrix, without, low_rank):
            low_rank, warnings = without, other_warnings
            axes, counted = _axes_of(matrix, low_rank, settings, weight)
    axes, noise, threshold = _completed(matrix, axes, low_rank, settings, counted)
    total = float(counted.sum())
    n2, free = matrix.shape[1], matrix.shape[1] - len(axes.components)
    # As PCA counts it: what is left of the variance, by direction that is left.
    left = noise**2 * total * n2 / (max(total - 1, 1) * free) if free else 0.0
    n_iter, converged = (1, True) if low_rank is None else (low_rank.n_iter, low_rank.converged)
    return _Solution(axes, noise, left, threshold, total, low_rank, n_iter, converged, warnings)


def _axes_of(
    matrix: DenseMatrix, low_rank: Decomposition | None, settings: Settings, weight: Any
) -> tuple[PrincipalAxes, Any]:
    """Return the axes of a low-rank part, and the weights of the rows that count for them."""
    if low_rank is None:
        n1, n2 = matrix.shape
        return PrincipalAxes(np.zeros(n2), np.zeros((0, n2)), np.zeros(0), np.zeros((n1, 0))), weight
    weight = _without_low_inlier_rows(low_rank, weight)
    return principal_axes(low_rank.L, low_rank.R, center=settings.center is True, weight=weight), weight


def _is_centre_idle(
    matrix: DenseMatrix, axes: PrincipalAxes, low_rank: Decomposition, settings: Settings, weight: Any
) -> bool:
    """Tell whether all components about the centre exceed the noise, though there is one more than asked for."""
    asked = settings.n_components
    if settings.center is not True or not isinstance(asked, int) or low_rank.rank <= asked:
        return False
    return _count_present(matrix, axes, low_rank.noise_level, weight) > asked


def _explains_as_much(matrix: DenseMatrix, one: Decomposition, other: Decomposition) -> bool:
    """Tell whether a fit leaves hardly more noise than another and, by the larger noise level, no more outliers."""
    if not one.converged or one.noise_level > _MORE_NOISE * other.noise_level:
        return False
    sample = draw_sample(matrix, np.random.default_rng(0), exact=True)
    limit = _OUTLYING * max(one.noise_level, other.noise_level)
    left = [int(np.count_nonzero(sample.residuals(fit.L, fit.R) > limit)) for fit in (one, other)]
    return left[0] <= left[1]


def _count_present(matrix: DenseMatrix, axes: PrincipalAxes, noise: float, weight: Any) -> int:
    """Return how many axes exceed what noise alone would make, and rounding."""
    n1, n2 = matrix.shape
    heavier = math.sqrt(weight.sum() / n1)
    edge = _EXCEEDS * noise * (math.sqrt(n1) + math.sqrt(n2)) * heavier
    rounding = _ABOVE_ROUNDING * float(np.finfo(matrix.result).eps) * float(axes.singular_values.max(initial=0.0))
    return int(np.count_nonzero(axes.singular_values > max(edge, rounding)))


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


def _without_low_inlier_rows(low_rank: Decomposition, weight: Any) -> Any:
    """Return the weights, zero for low-inlier rows: hardly anything of them is explained."""
    kept = low_rank.diagnosis.kept_by_row
    known = kept == kept
    if not known.any():
        return weight
    low = ~known | (kept < _LOW_INLIER * float(np.median(kept[known])))
    if not low.any() or low.all():
        return weight
    return np.where(low, 0.0, weight)


def _low_rank(
    matrix: DenseMatrix, settings: Settings, weight: Any, for_centre: int = 1
) -> tuple[Decomposition | None, list[WarningText]]:
    """Return the low-rank part, with a component for the centre; None where the table is too narrow to have one.

    Medians, once subtracted, leave a component of their own: the distance of the centre from them.
    """
    extra = for_centre if settings.center else 0
    most = min(matrix.shape) // _ENTRIES_PER_COMPONENT
    if most < 1 + extra:
        return None, []
    by_number = isinstance(settings.n_components, int)
    rank: Any = min(int(settings.n_components) + extra, most) if by_number else "auto"
    data = as_matrix(matrix) if isinstance(matrix, ChunkedMatrix) else matrix.array
    return decompose_with_warnings(
        data, rank, replace(settings, row_weight=None if (weight == weight[0]).all() else weight)
    )


def _completed(
    matrix: DenseMatrix, axes: PrincipalAxes, low_rank: Decomposition | None, settings: Settings, weight: Any
) -> tuple[PrincipalAxes, float, float]:
    """Return as many axes as asked for, the noise level and the outlier threshold."""
    if low_rank is None:
        noise, threshold = _scales(matrix, axes)
    else:
        noise, threshold = low_rank.noise_level, float(low_rank.outlier_threshold)
    present_count = _count_present(matrix, axes, noise, weight)
    count = _wanted_count(matrix, axes.first(present_count), noise, settings.n_components, weight)
    if count < present_count:
        # Components that are left out count as noise from here on.
        cut = axes.singular_values[count:present_count]
        noise = math.sqrt(noise**2 + float(cut @ cut) / (weight.sum() * matrix.shape[1]))
        threshold = max(threshold, _OUTLYING * noise)
    axes = axes.first(min(count, max(present_count, 1)))
    return extended_axes(matrix, axes, count, threshold, weight), noise, max(threshold, _accuracy(matrix, axes))


def _wanted_count(
    matrix: DenseMatrix, axes: PrincipalAxes, noise: float, n_components: int | float | str, weight: Any
) -> int:
    """Return how many axes to keep, given those that exceed the noise."""
    if isinstance(n_components, int):
        return n_components
    present = len(axes.components)
    if isinstance(n_components, str) or not present:
        return max(1, present)
    squares = axes.singular_values**2
    total = float(squares.sum()) + noise**2 * float(weight.sum()) * (matrix.shape[1] - present)
    return count_explaining(squares, n_components * total)


def _accuracy(matrix: DenseMatrix, axes: PrincipalAxes) -> float:
    """Return how well entries of new rows can be known: as well as the solver's tolerance lets the axes be."""
    squares = float(np.mean(axes.mean**2)) + float(np.sum(axes.singular_values**2)) / math.prod(matrix.shape)
    return _ABOVE_TOL * (1e-6 if matrix.result == np.float32 else 1e-8) * math.sqrt(squares)


def _scales(matrix: DenseMatrix, axes: PrincipalAxes) -> tuple[float, float]:
    """Return the noise level and the outlier threshold of what the axes leave."""
    sample = draw_sample(matrix, np.random.default_rng(0))
    L = np.column_stack([np.ones(matrix.shape[0]), axes.scores])
    R = np.column_stack([axes.mean, axes.components.T])
    rounding = rounding_level(matrix.result, sample.typical)
    noise = residual_core(sample.residuals(L, R), rounding).sigma
    return noise, outlier_threshold(noise, matrix.stored, rounding)


def _of_all_rows(matrix: DenseMatrix, rows: Any, solution: _Solution, method: str) -> Decomposition:
    """Return the decomposition of the table as it was given, rows without weight included."""
    axes, scores = solution.axes, solution.axes.scores
    variances = axes.singular_values**2 / max(solution.total_weight - 1, 1)
    model = RowModel(axes.mean, axes.components, variances, solution.noise_level, threshold=solution.outlier_threshold)
    if rows is not None:
        scores = np.zeros((matrix.shape[0], len(axes.components)))
        scores[rows] = axes.scores
        idle = np.setdiff1d(np.arange(len(scores)), rows)
        if len(idle):
            # What is read in blocks is read once for all rows: those without weight may be too many for memory.
            whole = isinstance(matrix, ChunkedMatrix) or in_blocks(matrix.array) is not matrix.array
            found = model.exact_scores(matrix if whole else matrix.take_rows(idle))
            scores[idle] = found[idle] if whole else found
    decomposition = model.decomposition(matrix, scores, solution.low_rank, method)
    if solution.low_rank is None and not solution.converged:
        decomposition.reason = "max_iter"
    return decomposition
