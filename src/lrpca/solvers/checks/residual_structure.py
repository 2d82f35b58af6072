"""Does the residual still hold low-rank structure? The singular values of a block of it have a gap then."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.core.factors import orthonormal
from lrpca.solvers.components import noise_edge

# The least side worth testing.
LEAST_SIDE = 10
# Residuals are winsorised at so many medians, and left out beyond so many: structured outliers show in the first only,
# missing components in both.
_WINSORISED, _TRIMMED, _TRIMMED_GAP = 3.0, 5.0, 1.4
# After the gap there is noise: the next singular value is at most so many times the noise's edge.
_AT_EDGE = 1.5
# Singular values below this part of the largest are rounding.
_LEAST = 1e-8
# Residuals that count as noise, in σ.
CORE = 4.0
# Power iteration for the largest singular value of a residual.
_VECTORS, _POWERS = 4, 12
# From this gap on, the rank is called too small: planted problems of rank r solved with less give 1.88 to 7; with the
# right rank, and spectra that decay as a power law, at most 1.7.
STRUCTURED = 1.8
# Enough to try another start.
SUSPICIOUS = 1.5


def structure_left(
    values: Any,  # (m, n), 0 where missing
    observed: Any,  # (m, n)
    L: Any,  # (m, r)
    R: Any,  # (n, r)
) -> float:
    """Return the largest gap, a ratio, between singular values of the residual that ends at the edge of its noise.

    1 where there is none, outliers aside.
    """
    if min(values.shape) < LEAST_SIDE or not observed.any():
        return 0.0
    residual = np.where(observed, values - L @ R.T, 0)
    sizes = np.abs(residual)
    median = float(np.median(sizes[observed]))
    if median == 0:
        return 0.0
    if _gap(np.where(sizes <= _TRIMMED * median, residual, 0.0))[0] < _TRIMMED_GAP:
        return 1.0
    winsorised = residual * np.minimum(1.0, _WINSORISED * median / np.maximum(sizes, median))
    gap, following = _gap(winsorised)
    return gap if following <= _AT_EDGE else 1.0


def _gap(
    residual: Any,  # (m, n)
) -> tuple[float, float]:
    """Return the largest ratio of successive singular values, and what follows it in units of the noise's edge."""
    m, n = residual.shape
    # Eigenvalues of the smaller Gram take half the time, and half the digits are enough.
    gram = residual @ residual.conj().T if m <= n else residual.conj().T @ residual
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0.0))
    most = max(1, min(m, n) // 4)
    ratios = values[:most] / np.maximum(values[1 : most + 1], max(_LEAST * values[0], np.finfo(float).tiny))
    k = int(np.argmax(ratios))
    edge = float(np.linalg.norm(residual)) * (1 / math.sqrt(m) + 1 / math.sqrt(n))
    return float(ratios[k]), float(values[k + 1]) / edge if edge else 0.0


def leading_over_edge(
    residual: Any,  # (m, n), 0 where it does not count
    share: float,
    rng: np.random.Generator,
) -> float:
    """Return the leading singular value of a residual of which a `share` counts, in units of the noise's edge.

    Gaussian noise gives 1; by power iteration, which is quick.
    """
    size = float(np.linalg.norm(residual))
    basis = rng.standard_normal((residual.shape[1], _VECTORS))
    for _ in range(_POWERS):
        basis = orthonormal(residual.conj().T @ orthonormal(residual @ basis))
    leading = float(np.linalg.norm(residual @ basis, 2))
    # Both as seen with these entries missing, so that their share cancels but for a root.
    return leading / (noise_edge(size, residual.shape, share) * share) if size else 0.0
