"""Robust PCA of a stream of rows: cleaned row by row, summarised in a few directions, with a memory that fits the data.

A row is fitted to the present components by robust regression; what it has too much somewhere is an outlier and is
replaced by the fit, like what is missing. The cleaned rows are merged with a summary of the past, diag(s) Vᵀ about the
mean, as in incremental PCA. Rows are handled in blocks whose ends depend on the number of rows alone, so how the stream
is cut into batches does not matter.
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
from lrpca.tables.axes import with_fixed_signs
from lrpca.tables.fit import NARROW, ROWS_PER_COLUMN, Wanted, robust_fit
from lrpca.tables.streaming.memory import (
    ABSENT,
    Cleaned,
    Memory,
    Typical,
    check_rows,
    clean,
    clean_first,
    compare,
    fill_gaps,
    row_levels,
)

# Rows of a block, and of the first one, which is solved as a batch: long enough to survive 20% outliers on one side.
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
# Rows that "auto" remembers in its short memory, at least and per component.
_SHORT, _SHORT_PER_COMPONENT = 50, 5
# The short memory replaces the long one where the squares it leaves are this much smaller over a few blocks, by so
# many standard errors.
_BETTER, _BY_CHANCE = 1.05, 3.0
_EVIDENCE_KEPT = 0.6
# Residuals of new rows this many times the noise, and this part of the rows themselves: the subspace has changed.
_CHANGE_SIGMAS, _CHANGE_PART = 5.0, 0.25
_MUCH_LESS = 0.5
_NOISE_GAIN = 0.2


class SubspaceTracker:
    """Robust PCA of a stream of rows: mean, components and singular values, whatever the size of the batches.

    ``rows = mean + A @ components + outliers + noise``, with mean and components that may change slowly or suddenly.

    Parameters
    ----------
    n_features : int
        Number of columns n2.
    n_components : int, "auto" or float in (0, 1)
        Number of components k. "auto": as many as stand out of the noise in the first rows; a float: the fewest of
        those that explain that share of the variance.
    center : bool
        Whether the components are about the mean; otherwise the mean is zero.
    forgetting_factor : "auto" or float in (0, 1]
        Weight that a row keeps per row that comes after it; 1 forgets nothing. "auto" remembers as much as helps to
        predict the rows that come.
    schedule, tol, max_iter, random_state
        Of `lrpca.decompose`, which solves the first rows.

    Attributes
    ----------
    mean : ndarray (n2,)
    components : ndarray (k, n2)
        Orthonormal rows, the strongest first; the largest entry of each is positive. Fewer than n_components as long as
        there are too few rows.
    singular_values : ndarray (k,)
        Of the centred, cleaned, weighted rows.
    n_rows_seen, effective_rows : float
        Sum of the weights of all rows, and of what is still remembered of it.
    noise_level : float
        Robust standard deviation of what the components leave.

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
        self.n_features = _check_features(n_features)
        self.n_components = _check_components(n_components, self.n_features)
        self.center = bool(center)
        self.forgetting_factor = _check_forgetting(forgetting_factor)
        self.schedule, self.tol, self.max_iter = schedule, tol, max_iter
        # A generator's state would make the result depend on how often it is looked at.
        if isinstance(random_state, np.random.Generator):
            random_state = int(random_state.integers(2**31))
        self.random_state = random_state
        self.n_rows_seen = 0.0
        # Whether the first block was solved; None until there is one.
        self.converged: bool | None = None
        # The published memory, the short one of "auto", and the noise level, at the last end of a block.
        self._long: Memory | None = None
        self._short: Memory | None = None
        self._noise = 0.0
        self._typical: Typical | None = None
        # How much worse the long memory predicted the last blocks: number of rows, sum, sum of squares.
        self._evidence = np.zeros(3)
        # Rows since then; before the first block is solved: all rows.
        self._rows = np.empty((0, self.n_features))
        self._weight = np.empty(0)
        self._goal = self._first_length()
        self._early: tuple[int, Memory, float] | None = None
        # What rows are divided by, so that their squares are numbers; known once there are rows.
        self._unit: float | None = None
        # Pending rows that are cleaned already, and the memory with them.
        self._pending: tuple[Any, Any] | None = None
        self._present: Memory | None = None

    @classmethod
    def from_model(
        cls,
        mean: Any,  # (n2,)
        components: Any,  # (k, n2) orthonormal rows
        singular_values: Any,  # (k,)
        n_rows: float,
        noise_level: float,
        *,
        n_components: int | None = None,
        center: bool = True,
        forgetting_factor: str | float = "auto",
        schedule: Schedule | str | Path | None = None,
        tol: float | None = None,
        max_iter: int | None = None,
        random_state: int | np.random.Generator | None = None,
    ) -> SubspaceTracker:
        """Return a tracker that goes on from a model fitted to `n_rows` rows (the sum of their weights)."""
        V = np.array(components, dtype=np.float64, ndmin=2)
        tracker = cls(
            V.shape[1],
            n_components or max(1, len(V)),
            center=center,
            forgetting_factor=forgetting_factor,
            schedule=schedule,
            tol=tol,
            max_iter=max_iter,
            random_state=random_state,
        )
        values = np.array(singular_values, dtype=np.float64)
        centre = np.array(mean, dtype=np.float64) if center else np.zeros(V.shape[1])
        if values.shape != (len(V),) or centre.shape != (V.shape[1],):
            raise ValueError(
                f"mean.shape={centre.shape}, components.shape={V.shape}, singular_values.shape={values.shape} do not "
                "belong together; pass (n2,), (k, n2) and (k,)"
            )
        size = max(np.abs(centre).max(), values.max(initial=0.0) / math.sqrt(max(n_rows, 1.0)))
        unit = tracker._unit = unit_of(size)
        model = Memory(centre / unit, values / unit, V, float(n_rows), np.ones(V.shape[1]))
        tracker._start(model, float(noise_level) / unit)
        tracker.n_rows_seen = float(n_rows)
        tracker.converged = True
        return tracker

    @property
    def mean(self) -> Any:
        """Centre of the rows, (n2,)."""
        return self._now().mean * (self._unit or 1.0)

    @property
    def components(self) -> Any:
        """Orthonormal components, (k, n2)."""
        components, _ = with_fixed_signs(self._now().V[: self._count()])
        return components

    @property
    def singular_values(self) -> Any:
        """Singular values of the centred, cleaned, weighted rows, (k,)."""
        return self._now().values[: self._count()] * (self._unit or 1.0)

    @property
    def effective_rows(self) -> float:
        """Sum of the weights that rows have kept."""
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
        """Return the noise level of all components that are followed."""
        return self._noise if self._long is not None or self._early is None else self._early[2]

    def update(
        self,
        rows: Any,  # (m, n2), NaN = missing
        weight: Any = None,  # (m,)
    ) -> None:
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
            telling = ... if self._long is None else self._tell(rows[:count], self._rank(self._long))
            self._rows = np.concatenate([self._rows, rows[:count][telling]])
            self._weight = np.concatenate([self._weight, weight[:count][telling]])
            self._present = None
            if len(self._rows) == self._goal:
                self._finish_block()
            rows, weight = rows[count:], weight[count:]

    def _tell(self, rows: Any, rank: int) -> Any:
        """Return which rows have entries enough for their coefficients to say something of the components."""
        return np.sum(rows == rows, axis=1) >= min(_LEAST_ENTRIES * rank, self.n_features / 2)

    def _first_length(self) -> int:
        if not is_integer(self.n_components):
            return _FIRST_UNKNOWN_RANK
        narrow = ROWS_PER_COLUMN * self.n_features if self.n_features <= NARROW else 0
        return max(_BLOCK, narrow, _FIRST_PER_RANK * (int(self.n_components) + self.center))

    def _count(self) -> int:
        """Return how many components are published."""
        now = self._now()
        s = now.values[: self._rank(now)]
        if not isinstance(self.n_components, float):
            return len(s)
        # All that stand out are followed; shown are the fewest that explain the share asked for.
        variance = s @ s + self._followed_noise() ** 2 * now.weight * self.n_features
        return min(len(s), 1 + int(np.searchsorted(np.cumsum(s**2), self.n_components * variance)))

    def _rank(self, memory: Memory) -> int:
        return int(self.n_components) if memory.rank is None else memory.rank

    def _now(self) -> Memory:
        """Return the memory with every row seen."""
        if self._present is None:
            self._present = self._fold_pending()
        return self._present

    def _fold_pending(self) -> Memory:
        base, noise, first = self._long, self._noise, 0
        if base is None:
            if not len(self._rows):
                return Memory.empty(self.n_features)
            # The first rows are solved anew at a few counts only.
            count = len(self._rows)
            first = count - count % (1 << max(0, count.bit_length() - 2))
            if self._early is None or self._early[0] != first:
                limit = min(self.max_iter or _EARLY_ITERATIONS, _EARLY_ITERATIONS)
                self._early = (first, *self._solve(self._rows[:first], self._weight[:first], limit)[:2])
                self._pending = None
            _, base, noise = self._early
        values, kept = self._pending or (self._rows[:0], np.zeros((0, self.n_features), bool))
        start = first + len(values)
        if start < len(self._rows):
            typical = self._typical or Typical(math.inf, np.ones(self.n_features), base.share)
            fresh = clean(self._rows[start:], base, noise, self._rank(base), typical)
            values, kept = np.concatenate([values, fresh.values]), np.concatenate([kept, fresh.kept])
            self._pending = values, kept
        if not len(values):
            return base
        # For show only: the directions to spare are not needed.
        return self._fold(base, values, kept, self._weight[first:], self._factor(), self._rank(base))

    def _factor(self) -> float:
        return 1.0 if self.forgetting_factor == "auto" else float(self.forgetting_factor)

    def _fold(
        self, memory: Memory, values: Any, kept: Any, weight: Any, factor: float, size: int | None = None
    ) -> Memory:
        size = size or 2 * self._rank(memory) + _SPARE
        return memory.fold(values, kept, weight, factor, center=self.center, size=size)

    def _finish_block(self) -> None:
        rows, weight = self._rows, self._weight
        if self._long is None:
            # What is missing must be made up for by more rows.
            wanted = math.ceil(self._first_length() / max(np.mean(rows == rows), 1 / _LONGEST_FIRST))
            if len(rows) < wanted:
                self._goal = wanted
                return
            memory, noise, converged = self._solve(rows, weight, self.max_iter)
            if not converged and len(rows) < _LONGEST_FIRST * self._first_length():
                self._goal = 2 * len(rows)
                return
            self._start(memory, noise)
            self.converged = converged
            self._rows, self._weight = rows[:0], weight[:0]
        else:
            self._learn(rows, weight)
        self._pending = self._present = None

    def _start(self, memory: Memory, noise: float) -> None:
        self._long, self._noise, self._early = memory, noise, None
        self._typical = None
        self._short = memory.shortened(self._short_rows()) if self.forgetting_factor == "auto" else None
        self._evidence = np.zeros(3)
        self._goal = max(_BLOCK, _BLOCK_PER_RANK * (self._rank(memory) + self.center))

    def _short_rows(self) -> int:
        assert self._long is not None
        return max(_SHORT, _SHORT_PER_COMPONENT * self._rank(self._long))

    def _learn(self, rows: Any, weight: Any) -> None:
        """Learn a whole block: predict it, see which memory does better and whether either does, then fold it in."""
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
        strange = self._strange_rows(predicted, size)
        if strange.mean() > 0.5 and self._explains_better(rows[strange], weight[strange], predicted.typical.level):
            # Another subspace has come: its rows are the first of a new stream.
            self._long = self._short = self._typical = None
            self._rows, self._weight = rows[strange], weight[strange]
            self._goal = max(self._first_length(), len(self._rows) + 1)
            return
        # Cleaned once more with what the block itself has taught.
        factor = self._factor()
        taught = self._fold(self._long, predicted.values, predicted.kept, weight, factor)
        cleaned = clean(rows, taught, self._noise, rank)
        self._long = self._fold(self._long, cleaned.values, cleaned.kept, weight, factor)
        if self._short is not None:
            self._short = self._fold(self._short, cleaned.values, cleaned.kept, weight, 1 - 1 / self._short_rows())
        self._typical = cleaned.typical
        self._noise = math.sqrt((1 - _NOISE_GAIN) * self._noise**2 + _NOISE_GAIN * cleaned.core() ** 2)

    def _is_short_better(self) -> bool:
        """Return whether the short memory predicts clearly better: by enough, and not by chance."""
        count, total, squares = self._evidence
        mean = total / count
        error = math.sqrt(max(squares / count - mean**2, 0.0) / count)
        return bool(mean > max(math.log(_BETTER), _BY_CHANCE * error))

    def _strange_rows(self, predicted: Cleaned, size: float) -> Any:
        """Return which rows are far above the noise when predicted, and near the size of the rows themselves."""
        return predicted.levels > max(_CHANGE_SIGMAS * self._noise, _CHANGE_PART * size)

    def _explains_better(self, rows: Any, weight: Any, level: float) -> bool:
        """Return whether the rows have a subspace of their own that leaves much less than `level`."""
        if not self._is_enough(rows):
            return False
        return self._solve(rows, weight, self.max_iter)[1] < _MUCH_LESS * level

    def _is_enough(self, rows: Any) -> bool:
        """Return whether there are rows and columns enough to tell outliers from the others."""
        if not is_integer(self.n_components):
            return self.n_features > 1 and len(rows) >= _LEAST_ROWS
        rank = int(self.n_components) + self.center
        return (rank < self.n_features or self.n_features <= NARROW) and len(rows) >= _LEAST_PER_RANK * rank

    def _solve(self, rows: Any, weight: Any, max_iter: int | None) -> tuple[Memory, float, bool]:
        """Return the memory of some rows solved as a batch, its noise level, and whether that can be relied on."""
        known = is_integer(self.n_components)
        # The mean is one more component: its row of the factor need not be the mean of anything.
        rank = int(self.n_components) + self.center if known else 1
        noise, converged = 0.0, False
        if self._is_enough(rows):
            wanted = Wanted(
                self.n_components if known else "auto",
                self.center,
                schedule=self.schedule,
                tol=self.tol,
                max_iter=max_iter,
                random_state=self.random_state,
            )
            fit = robust_fit(rows, wanted, weight, allow_empty=True)
            values, kept = clean_first(rows, fit.decomposition.low_rank, fit.outlier_threshold)
            noise, converged = fit.noise_level, fit.converged
        else:
            values, kept = fill_gaps(rows, weight)
        size = 2 * rank + _SPARE if known else min(rows.shape)
        telling = self._tell(rows, rank)
        if telling.any():
            values, kept, weight = values[telling], kept[telling], weight[telling]
        memory = Memory.empty(self.n_features).fold(values, kept, weight, 1.0, center=self.center, size=size)
        if not known:
            found = self._choose(memory, noise)
            memory = replace(memory.cut(2 * found + _SPARE), rank=found)
        return memory, noise, converged

    def _choose(self, memory: Memory, noise: float) -> int:
        """Return how many components of the first rows stand out of the noise."""
        s = memory.values
        return max(1, int(np.count_nonzero(s > max(1.1 * memory.noise_edge(noise), ABSENT * s.max(initial=0.0)))))


def _check_features(n_features: Any) -> int:
    if not is_integer(n_features) or n_features < 1:
        raise ValueError(f"n_features={n_features!r} is not a positive integer; pass the number of columns")
    return int(n_features)


def _check_components(n_components: Any, n_features: int) -> int | str | float:
    if is_integer(n_components):
        if not 1 <= n_components <= n_features:
            raise ValueError(
                f"n_components={n_components} is not between 1 and n_features={n_features}; choose one in that range"
            )
        return int(n_components)
    if isinstance(n_components, str) and n_components == "auto":
        return n_components
    if isinstance(n_components, float) and 0 < n_components < 1:
        return n_components
    raise ValueError(
        f"n_components={n_components!r} is not an integer, 'auto' or a share between 0 and 1; e.g. 5 or 'auto'"
    )


def _check_forgetting(factor: Any) -> str | float:
    if isinstance(factor, str) and factor == "auto":
        return factor
    if isinstance(factor, bool | str) or not isinstance(factor, int | float | np.number) or not 0 < factor <= 1:
        raise ValueError(f"forgetting_factor={factor!r} is not above 0 and at most 1; 1 forgets nothing, or use 'auto'")
    return float(factor)
