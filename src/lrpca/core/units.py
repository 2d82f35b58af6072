"""Units in which data are computed: powers of four, so that nothing is rounded, where squares would leave their range.

A power of four, since half of it goes into either factor of the low-rank part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from lrpca.solvers.base import State

# Typical sizes that are left alone, by precision: LAPACK takes sums of many squares of them as they are.
_LEFT_ALONE = {np.dtype(np.float32): (1e-12, 1e12), np.dtype(np.float64): (1e-50, 1e50)}
# Beside larger entries than the last, sizes are left alone if they are between the first two.
_USUAL, _LARGE = (1e-12, 1e12), 1e140
# Powers of two whose reciprocals are numbers, too.
_MOST_POWER = 1020


def unit_of(
    values: Any, precision: Any = np.float64
) -> float:  # values (m,): some entries, or a number; none of them NaN
    """Return what data should be divided by before their squares are taken in some precision: 1 in ordinary cases."""
    sizes = np.atleast_1d(np.abs(values))
    low, high = _LEFT_ALONE[np.dtype(precision)]
    if not sizes.any() or (sizes.min() > _USUAL[0] and sizes.max() < _USUAL[1]):
        return 1.0
    typical = float(np.median(sizes[sizes > 0]))
    if low < typical < high and (sizes.max() < _LARGE or _USUAL[0] < typical < _USUAL[1]):
        return 1.0
    power = 2 * round(math.log2(typical) / 2)
    return math.ldexp(1.0, max(-_MOST_POWER, min(_MOST_POWER, power)))


def showing_units(callback: Callable[[State], object], unit: float) -> Callable[[State], object]:
    """Return a callback for the states of a run on divided data, which shows another one those of the data."""
    root = math.sqrt(unit)

    def show(state: State) -> object:
        threshold = state.threshold_in_units(1 / unit)
        return callback(replace(state, threshold=threshold, L=state.L * root, R=state.R * root))

    return show
