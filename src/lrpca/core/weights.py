"""Weights of rows: what they may be."""

from __future__ import annotations

from typing import Any

import numpy as np


def as_weights(name: str, weight: Any) -> Any:  # weight (n1,) real
    """Return a copy of weights in double precision; raise ValueError for the first that is negative or not finite."""
    weight = np.array(weight, np.float64)
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if len(bad):
        raise ValueError(
            f"{name}[{bad[0]}]={weight[bad[0]]} is not a finite number of at least 0; give weights of 0 or more"
        )
    return weight
