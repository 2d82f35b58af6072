"""Ways in which a matrix and its mask may lie in memory."""

from collections.abc import Callable
from typing import Any

import numpy as np

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "C": lambda Y: np.ascontiguousarray(Y),
    "Fortran": lambda Y: np.asfortranarray(Y),
    "rows reversed": lambda Y: Y[::-1].copy()[::-1],
    "columns reversed": lambda Y: Y[:, ::-1].copy()[:, ::-1],
    "both reversed": lambda Y: Y[::-1, ::-1].copy()[::-1, ::-1],
    "Fortran reversed": lambda Y: np.asfortranarray(Y[::-1, ::-1])[::-1, ::-1],
    "every second row": lambda Y: np.repeat(Y, 2, axis=0)[::2],
    "every third column": lambda Y: np.repeat(Y, 3, axis=1)[:, ::3],
    "window": lambda Y: np.pad(Y, ((3, 1), (2, 5)), constant_values=77)[3:-1, 2:-5],
    "Fortran window": lambda Y: np.asfortranarray(np.pad(Y, 3, constant_values=77))[3:-3, 3:-3],
    "slice of three axes": lambda Y: np.stack([Y, Y + 1], axis=2)[:, :, 0],
}

MASKS: dict[str, Callable[[tuple[int, int], np.random.Generator], Any]] = {
    "entries": lambda shape, rng: rng.random(shape) < 0.7,
    "rows": lambda shape, rng: rng.random((shape[0], 1)) < 0.7,
    "columns": lambda shape, rng: rng.random((1, shape[1])) < 0.7,
    "Fortran": lambda shape, rng: np.asfortranarray(rng.random(shape) < 0.7),
    "reversed": lambda shape, rng: (rng.random(shape) < 0.7)[::-1, ::-1],
    "all": lambda shape, rng: np.ones(shape, bool),
    "none": lambda shape, rng: np.zeros(shape, bool),
}
