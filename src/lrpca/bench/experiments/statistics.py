"""Means, medians and counts, and how they are rounded and written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence


def mean_and_deviation(values: Iterable[float]) -> tuple[float, float]:
    """Return mean and standard deviation; the latter is 0 for a single value."""
    numbers = list(values)
    return statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else 0.0


def iterations_to(errors: Sequence[float], goal: float) -> float:
    """Return after how many iterations the error was below the goal; inf if never.

    Examples
    --------
    >>> iterations_to((1e-2, 1e-3, 1e-5), 1e-4)
    3
    """
    return next((k for k, error in enumerate(errors, start=1) if error < goal), math.inf)


def typical(values: Iterable[float]) -> float:
    """Return the median; of an even number of values the larger middle one, inf of none."""
    return statistics.median_high(list(values) or [math.inf])


def as_count(value: float) -> int | None:
    """Return a count for a table, None for never."""
    return int(value) if math.isfinite(value) else None


def in_words(value: float) -> str:
    """Return a count for a sentence."""
    return f"{value:g}" if math.isfinite(value) else "never"


def scientific(error: float | None) -> str | None:
    """Return an error for a table."""
    return None if error is None else f"{error:.1e}"


def digits(value: float, count: int = 4) -> float | None:
    """Return a number with so many digits, None if it is not finite."""
    return float(f"{value:.{count}g}") if math.isfinite(value) else None
