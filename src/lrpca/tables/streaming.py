"""Robust PCA of a stream of rows: cleaned row by row, summarised in a few directions.

A row is fitted to the present components by robust regression. The fit replaces outliers and missing entries. The
cleaned rows are merged with a summary of the past, diag(s) Vᵀ about the mean, as in incremental PCA. Rows come in
blocks whose ends depend on the number of rows alone, so how the stream is cut into batches does not matter.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lrpca.core.units import unit_of
from lrpca.schedule import Schedule
from lrpca.solvers.options import is_integer
from lrpca.tables.axes import count_explaining, with_fixed_signs
from lrpca.tables.fit import NARROW, ROWS_PER_COLUMN, Settings, robust_fit
from lrpca.tables.input import checked_n_components
from lrpca.tables.summary import (
    ABSENT,
    Rows,
    Summary,
    Typical,
    check_rows,
    clean,
    clean_first,
    compare,
    fill_gaps,
    row_levels,
)

# Rows of a block, and of the first one, which is solved as a batch: long enough for 20% one-sided outliers.
_BLOCK, _BLOCK_PER_RANK = 64, 5
_FIRST_PER_RANK = 10
_FIRST_UNKNOWN_RANK = 128
# Missing entries may make the first block this many times as long, and not to have converged once more.
_LONGEST_FIRST = 2
# Fewer rows than this times the rank cannot tell outliers from the others.
_LEAST_PER_RANK = 4
_LEAST_ROWS = 16
_EARLY_ITERATIONS = 60
# Later rows with fewer observed entries by component than this are left out.
_LEAST_ENTRIES = 3
# Directions kept beside the components: what truncation loses must not matter, and a new direction must be seen.
_SPARE = 5
# Rows that "auto" remembers in its short summary, at least and per component.
_SHORT, _SHORT_PER_COMPONENT = 50, 5
# The short summary replaces the long one where the squares it leaves are this much smaller over a few blocks, by so
# many standard errors.
_BETTER, _BY_CHANCE = 1.05, 3.0
_EVIDENCE_KEPT = 0.6
# Residuals of new rows this many times the noise, and this part of the rows themselves: the subspace has changed.
_CHANGE_SIGMAS, _CHANGE_PART = 5.0, 0.25
_MUCH_LESS = 0.5
_NOISE_GAIN = 0.2
# By how much a component has to exceed what noise alone would make, where their number is asked for.
_EXCEEDS = 1.1


class SubspaceTracker:
    """Robust PCA of a stream of rows: mean, components and singular values, whatever the size of the batches.

    ``rows = mean + A @ components + outliers + noise``, with mean and components that may change slowly or suddenly.

    Parameters
    ----------
    n_features : int
        Number of columns n2.
    n_components : int, "auto" or float in (0, 1)
        Number of components k. "auto": as many as exceed the noise in the first rows; a float: the fewest of those
        that explain that share of the variance.
    center : bool
        Whether the components are about the mean; otherwise the mean is zero.
    forgetting_factor : "auto" or float in (0, 1]
        Weight that a row keeps with every later row; 1 forgets nothing. "auto" remembers as much as helps to predict
        later rows.
    schedule, tol, max_iter, random_state
        Of `lrpca.decompose`, which solves the first rows.

    Attributes
    ----------
    mean, components, singular_values : ndarray (n2,), (k, n2), (k,)
        Of the cleaned, weighted rows; fewer components than requested while there are too few rows.
    n_rows_seen, effective_rows : float
        Sum of the weights of all rows, and of what is not forgotten of it.
    noise_level : float
        Robust standard deviation of what the components leave.
    converged : bool or None
        Whether the first block was solved; None until there is one.

    Notes
    -----
    Memory is O(n2 (k + block)), whatever the number of rows; a block has 64 rows, or five per component. Left out are
    rows of weight zero or without any observed entry, and, once the first block is solved, rows with fewer than 3 k
    observed entries (but n2 / 2 always suffice): what they say of the components is mostly noise.

    The same rows give the same result however they are cut into batches: to the last bit at the ends of blocks, to
    rounding between them.

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.tables.streaming import SubspaceTracker
    >>> rng = np.random.default_rng(0)
    >>> rows = 3 + rng.normal(size=(500, 2)) @ rng.normal(size=(2, 40))
    >>> rows[rng.random(rows.shape) < 0.1] += 50
    >>> tracker = SubspaceTracker(40, 2)
    >>> for row in rows:
    ...     tracker.update(row[None])
    >>> tracker.components.shape, bool(np.abs(tracker.mean - 3).max() < 0.5)
    ((2, 40), True)
    """

    def __init__(
        self,
        n_features: int,
        n_components: int | str | float,
        *,
        center: bool = True,
        forgetting_factor: str | float = "auto",
        schedule: Schedule | str | Path | None = None,
        tol: float | None = None,
        max_iter: int | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> None:
        if not is_integer(n_features) or n_features < 1:
            raise ValueError(f"n_features={n_features!r} is not a positive integer; pass the number of columns")
        self.n_features, self.center = int(n_features), bool(center)
        self.n_components = checked_n_components(n_components, "n_features", self.n_features)
        self._forgets_by_itself = isinstance(forgetting_factor, str) and forgetting_factor == "auto"
        self._factor = 1.0 if self._forgets_by_itself else _checked_factor(forgetting_factor)
        # A generator's state would make the result depend on how often the components are read.
        if isinstance(random_state, np.random.Generator):
            random_state = int(random_state.integers(2**31))
        rank = self.n_components if isinstance(self.n_components, int) else "auto"
        solver: dict[str, Any] = {"tol": tol, "max_iter": max_iter, "random_state": random_state, "schedule": schedule}
        self._settings = Settings(n_components=rank, center=self.center, **solver)
        self.n_rows_seen = 0.0
        self.converged: bool | None = None
        # The published summary, the short one of "auto" and its length, and the noise level, at the end of a block.
        self._long: Summary | None = None
        self._short: Summary | None = None
        self._short_rows = 0
        self._noise = 0.0
        self._typical: Typical | None = None
        # How much worse the long summary predicted the last blocks: number of rows, sum, sum of squares.
        self._evidence = np.zeros(3)
        # Rows since then; before the first block is solved: all rows.
        self._rows = np.empty((0, self.n_features))
        self._weight = np.empty(0)
        self._goal = self._first_length()
        self._early: tuple[int, Summary, float] | None = None
        # What rows are divided by, so that their squares are numbers; known once there are rows.
        self._unit: float | None = None
        # Pending rows that are cleaned already, and the summary with them.
        self._pending: Rows | None = None
        self._present: Summary | None = None

    def start_from(
        self,
        mean: Any,  # (n2,)
        components: Any,  # (k, n2) orthonormal rows
        singular_values: Any,  # (k,)
        n_rows: float,
        noise_level: float,
    ) -> None:
        """Continue from a model that was fitted to `n_rows` rows (the sum of their weights)."""
        V, values = np.array(components, dtype=np.float64, ndmin=2), np.array(singular_values, dtype=np.float64)
        centre = np.array(mean, dtype=np.float64) if self.center else np.zeros(self.n_features)
        if (*V.shape, *centre.shape) != (*values.shape, self.n_features, self.n_features):
            raise ValueError(
                f"mean.shape={centre.shape}, components.shape={V.shape}, singular_values.shape={values.shape} do not "
                f"belong together; pass (n2,), (k, n2) and (k,) for n2={self.n_features}"
            )
        unit = unit_of(max(np.abs(centre).max(), values.max(initial=0.0) / math.sqrt(max(n_rows, 1.0))))
        summary = Summary(centre / unit, values / unit, V, float(n_rows), np.ones(self.n_features))
        self._start(summary, float(noise_level) / unit)
        self._unit, self.n_rows_seen, self.converged = unit, float(n_rows), True

    @property
    def mean(self) -> Any:
        """Centre of the rows, (n2,)."""
        return self._now().mean * (self._unit or 1.0)

    @property
    def components(self) -> Any:
        """Orthonormal components (k, n2), strongest first, the largest entry of each positive."""
        components, _ = with_fixed_signs(self._now().V[: self._count()])
        return components

    @property
    def singular_values(self) -> Any:
        """Singular values of the centred, cleaned, weighted rows, (k,)."""
        return self._now().values[: self._count()] * (self._unit or 1.0)

    @property
    def effective_rows(self) -> float:
        """Sum of the weights of all rows, as far as they are not forgotten."""
        return self._now().weight

    @property
    def noise_level(self) -> float:
        """Robust standard deviation of what the components leave."""
        now, noise = self._now(), self._followed_noise()
        # With a share asked for, components are followed that are not shown.
        hidden = now.values[self._count() : self._rank(now)]
        level = math.sqrt(noise**2 + float(hidden @ hidden) / (max(now.weight, 1.0) * self.n_features))
        return level * (self._unit or 1.0)

    def _followed_noise(self) -> float:
        return self._noise if self._long is not None or self._early is None else self._early[2]

    def update(self, rows: Any, weight: Any = None) -> None:
        """Learn from more rows, of any number.

        Parameters
        ----------
        rows : array-like (m, n2)
            New rows, the oldest first; NaN is missing.
        weight : array-like (m,), optional
            How many times each row counts.
        """
        rows, weight = check_rows(rows, weight, self.n_features)
        if self._unit is None and np.nan_to_num(rows).any():
            self._unit = unit_of(rows[rows == rows])
        rows *= 1 / (self._unit or 1.0)
        self.n_rows_seen += float(weight.sum())
        while len(rows):
            count = self._goal - len(self._rows)
            # The first rows are solved together, whatever they hold.
            useful = ... if self._long is None else self._is_useful(rows[:count], self._rank(self._long))
            self._rows = np.concatenate([self._rows, rows[:count][useful]])
            self._weight = np.concatenate([self._weight, weight[:count][useful]])
            self._present = None
            if len(self._rows) == self._goal:
                self._finish_block()
            rows, weight = rows[count:], weight[count:]

    def _is_useful(self, rows: Any, rank: int) -> Any:
        """Return which rows have enough entries to say something of the components."""
        return np.sum(rows == rows, axis=1) >= min(_LEAST_ENTRIES * rank, self.n_features / 2)

    def _first_length(self) -> int:
        if not isinstance(self.n_components, int):
            return _FIRST_UNKNOWN_RANK
        narrow = ROWS_PER_COLUMN * self.n_features if self.n_features <= NARROW else 0
        return max(_BLOCK, narrow, _FIRST_PER_RANK * (self.n_components + self.center))

    def _count(self) -> int:
        """Return how many components are published."""
        now = self._now()
        s = now.values[: self._rank(now)]
        if not isinstance(self.n_components, float):
            return len(s)
        # All that exceed the noise are followed; shown are the fewest that explain the share asked for.
        variance = s @ s + self._followed_noise() ** 2 * now.weight * self.n_features
        return count_explaining(s**2, self.n_components * variance)

    def _rank(self, summary: Summary) -> int:
        return int(self.n_components) if summary.rank is None else summary.rank

    def _now(self) -> Summary:
        if self._present is None:
            self._present = self._fold_pending()
        return self._present

    def _fold_pending(self) -> Summary:
        base, noise, first = self._long, self._noise, 0
        if base is None:
            if not len(self._rows):
                return Summary.empty(self.n_features)
            # The first rows are solved anew at a few counts only.
            count = len(self._rows)
            first = count - count % (1 << max(0, count.bit_length() - 2))
            if self._early is None or self._early[0] != first:
                limit = min(self._settings.max_iter or _EARLY_ITERATIONS, _EARLY_ITERATIONS)
                self._early = (first, *self._solve(self._rows[:first], self._weight[:first], limit)[:2])
                self._pending = None
            _, base, noise = self._early
        values, kept = self._pending or Rows(self._rows[:0], np.zeros((0, self.n_features), bool))
        start = first + len(values)
        if start < len(self._rows):
            typical = self._typical or Typical(math.inf, np.ones(self.n_features), base.share)
            fresh = clean(self._rows[start:], base, noise, self._rank(base), typical).rows
            values, kept = np.concatenate([values, fresh.values]), np.concatenate([kept, fresh.kept])
            self._pending = Rows(values, kept)
        if not len(values):
            return base
        # For show only: the directions to spare are not needed.
        return self._fold(base, Rows(values, kept), self._weight[first:], size=self._rank(base))

    def _fold(self, summary: Summary, rows: Rows, weight: Any, factor: float | None = None, size: int = 0) -> Summary:
        size = size or 2 * self._rank(summary) + _SPARE
        return summary.fold(rows, weight, factor or self._factor, center=self.center, size=size)

    def _finish_block(self) -> None:
        rows, weight = self._rows, self._weight
        if self._long is None:
            # What is missing must be made up for by more rows.
            wanted = math.ceil(self._first_length() / max(np.mean(rows == rows), 1 / _LONGEST_FIRST))
            if len(rows) < wanted:
                self._goal = wanted
                return
            summary, noise, converged = self._solve(rows, weight, self._settings.max_iter)
            if not converged and len(rows) < _LONGEST_FIRST * self._first_length():
                self._goal = 2 * len(rows)
                return
            self._start(summary, noise)
            self.converged = converged
            self._rows, self._weight = rows[:0], weight[:0]
        else:
            self._learn(rows, weight)
        self._pending = self._present = None

    def _start(self, summary: Summary, noise: float) -> None:
        self._long, self._noise, self._early, self._typical = summary, noise, None, None
        self._short_rows = max(_SHORT, _SHORT_PER_COMPONENT * self._rank(summary))
        self._short = summary.shortened(self._short_rows) if self._forgets_by_itself else None
        self._evidence = np.zeros(3)
        self._goal = max(_BLOCK, _BLOCK_PER_RANK * (self._rank(summary) + self.center))

    def _learn(self, rows: Any, weight: Any) -> None:
        """Learn a whole block: predict it, compare the summaries, see whether the subspace has changed, fold it in."""
        self._rows, self._weight = rows[:0], weight[:0]
        assert self._long is not None
        rank = self._rank(self._long)
        size = float(np.median(row_levels(np.abs(rows - self._long.mean), 0)))
        predicted = clean(rows, self._long, self._noise, rank)
        if self._short is not None:
            other = clean(rows, self._short, self._noise, rank)
            excess = compare(predicted, other, size)
            self._evidence = _EVIDENCE_KEPT * self._evidence + [len(rows), excess.sum(), excess @ excess]
            if self._is_short_better():
                self._long, predicted, self._evidence = self._short, other, np.zeros(3)
        # Far above the noise when predicted, and near the size of the rows themselves.
        strange = predicted.levels > max(_CHANGE_SIGMAS * self._noise, _CHANGE_PART * size)
        if strange.mean() > 0.5 and self._is_enough(rows[strange]):
            rest, rest_weight = rows[strange], weight[strange]
            # Do they have a subspace of their own that leaves much less?
            if self._solve(rest, rest_weight, self._settings.max_iter)[1] < _MUCH_LESS * predicted.typical.level:
                # The subspace has changed: these rows are the first of a new stream.
                self._long = self._short = self._typical = None
                self._rows, self._weight = rest, rest_weight
                self._goal = max(self._first_length(), len(rest) + 1)
                return
        # Cleaned once more, with what was learned from the block itself.
        cleaned = clean(rows, self._fold(self._long, predicted.rows, weight), self._noise, rank)
        self._long = self._fold(self._long, cleaned.rows, weight)
        if self._short is not None:
            self._short = self._fold(self._short, cleaned.rows, weight, 1 - 1 / self._short_rows)
        self._typical = cleaned.typical
        self._noise = math.sqrt((1 - _NOISE_GAIN) * self._noise**2 + _NOISE_GAIN * cleaned.noise() ** 2)

    def _is_short_better(self) -> bool:
        """Return whether the short summary predicts clearly better: by enough, and not by chance."""
        count, total, squares = self._evidence
        mean = total / count
        error = math.sqrt(max(squares / count - mean**2, 0.0) / count)
        return bool(mean > max(math.log(_BETTER), _BY_CHANCE * error))

    def _is_enough(self, rows: Any) -> bool:
        """Return whether there are rows and columns enough to tell outliers from the others."""
        if not isinstance(self.n_components, int):
            return self.n_features > 1 and len(rows) >= _LEAST_ROWS
        rank = self.n_components + self.center
        return (rank < self.n_features or self.n_features <= NARROW) and len(rows) >= _LEAST_PER_RANK * rank

    def _solve(self, rows: Any, weight: Any, max_iter: int | None) -> tuple[Summary, float, bool]:
        """Return the summary of some rows solved as a batch, its noise level, and whether that can be relied on."""
        known = isinstance(self.n_components, int)
        # The mean is one more component: its row of the factor need not be the mean of anything.
        rank = int(self.n_components) + self.center if known else 1
        noise, converged = 0.0, False
        if self._is_enough(rows):
            settings = replace(self._settings, max_iter=max_iter)
            fit = robust_fit(rows, settings, weight, allow_empty=True)
            cleaned = clean_first(rows, fit.decomposition.low_rank, fit.outlier_threshold)
            noise, converged = fit.noise_level, fit.converged
        else:
            cleaned = fill_gaps(rows, weight)
        size = 2 * rank + _SPARE if known else min(rows.shape)
        useful = self._is_useful(rows, rank)
        if useful.any():
            cleaned, weight = Rows(cleaned.values[useful], cleaned.kept[useful]), weight[useful]
        summary = Summary.empty(self.n_features).fold(cleaned, weight, 1.0, center=self.center, size=size)
        if not known:
            least = max(_EXCEEDS * summary.noise_edge(noise), ABSENT * summary.values.max(initial=0.0))
            found = max(1, int(np.count_nonzero(summary.values > least)))
            size = 2 * found + _SPARE
            summary = replace(summary, values=summary.values[:size], V=summary.V[:size], rank=found)
        return summary, noise, converged


def _checked_factor(factor: Any) -> float:
    if isinstance(factor, bool | str) or not isinstance(factor, int | float | np.number) or not 0 < factor <= 1:
        raise ValueError(f"forgetting_factor={factor!r} is not above 0 and at most 1; 1 forgets nothing, or use 'auto'")
    return float(factor)
