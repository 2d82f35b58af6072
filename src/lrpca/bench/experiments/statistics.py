"""Means, medians and counts, and how they are rounded and written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np


def mean_and_deviation(values: Iterable[float]) -> tuple[float, float]:
    """Return mean and standard deviation (of a sample: n - 1 in the denominator; 0 for a single value).

    Examples
    --------
    >>> mean_and_deviation([1.0, 2.0, 3.0])
    (2.0, 1.0)
    """
    numbers = np.fromiter(values, float)
    return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0


def iterations_to(errors: Sequence[float] | None, goal: float) -> float:
    """Return after how many iterations the error was below the goal; inf if never.

    Examples
    --------
    >>> iterations_to((1e-2, 1e-3, 1e-5), 1e-4)
    3
    """
    return next((k for k, error in enumerate(errors or (), start=1) if error < goal), math.inf)


def typical(values: Iterable[float]) -> float:
    """Return the median; of an even number of values the larger middle one, inf of none.

    Examples
    --------
    >>> typical([4.0, 3.0, 9.0, 5.0])
    5.0
    """
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else math.inf


def as_count(value: float) -> int | None:
    """Return a count for a table, None for never."""
    return int(value) if math.isfinite(value) else None


def in_words(value: float) -> str:
    """Return a count for a sentence."""
    return f"{value:g}" if math.isfinite(value) else "never"


def three_digits(value: float) -> float:
    """Return a number as tables show it.

    Examples
    --------
    >>> three_digits(0.0123456)
    0.0123
    """
    return float(f"{value:.3g}")


def rounded(value: float) -> float | None:
    """Return a number with four digits, as results are stored; None for one that is not finite.

    Examples
    --------
    >>> rounded(1.23456e-7), rounded(float("nan"))
    (1.235e-07, None)
    """
    return float(f"{value:.4g}") if math.isfinite(value) else None
