"""Planted problems with their truth, to test and compare solvers on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.metrics import relative_error


@dataclass(frozen=True)
class Problem:
    """A corrupted matrix and what it was made from: ``Y = X + S + noise`` where observed, NaN elsewhere.

    Attributes
    ----------
    Y : ndarray (n1, n2)
        The data.
    X : ndarray (n1, n2)
        The low-rank part.
    S : ndarray (n1, n2)
        The outliers; zero where none was planted.
    observed : ndarray of bool (n1, n2)
        Which entries of Y are not missing.
    rank : int
    """

    Y: Any
    X: Any
    S: Any
    observed: Any
    rank: int

    @property
    def outliers(self) -> Any:
        """Where an outlier was planted and observed."""
        return (self.S != 0) & self.observed

    def error(self, low_rank: Any) -> float:
        """Return ‖low_rank - X‖ / ‖X‖."""
        return relative_error(low_rank, self.X)


def planted(
    shape: tuple[int, int] = (300, 300),
    *,
    rank: int = 5,
    outlier_fraction: float = 0.1,
    outlier_size: float = 1.0,
    one_sided: bool = False,
    noise: float = 0.0,
    missing: float = 0.0,
    condition: float = 1.0,
    scale: float | None = None,
    dtype: Any = np.float64,
    random_state: int = 0,
) -> Problem:
    """Return a seeded problem with known low-rank part and outliers.

    X = U Vᵀ with Gaussian U and V, as in the paper: entries N(0, 1/n1) and N(0, 1/n2). At ``outlier_fraction`` of the
    positions, drawn without replacement, uniform numbers in ±`outlier_size` mean|X| are added.

    Parameters
    ----------
    shape : tuple of int
    rank : int
    outlier_fraction, missing : float
        Shares of all entries.
    outlier_size : float
        Largest outlier, in units of mean|X|.
    one_sided : bool
        Outliers are positive.
    noise : float
        Standard deviation of Gaussian noise, in units of mean|X|.
    condition : float
        σ_1 / σ_r of X, the singular values being equally spaced; 1 leaves the Gaussian factors as drawn.
    scale : float, optional
        mean|X| of the returned problem; as drawn if not given.
    dtype : dtype
        Of Y; complex ones get complex factors, noise and outliers.
    random_state : int

    Returns
    -------
    Problem

    Examples
    --------
    >>> problem = planted((50, 40), rank=2, outlier_fraction=0.2, random_state=1)
    >>> problem.Y.shape, int(problem.outliers.sum())
    ((50, 40), 400)
    """
    for name, share in (("outlier_fraction", outlier_fraction), ("missing", missing)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name}={share} is not between 0 and 1; e.g. 0.1")
    n1, n2 = shape
    rng = np.random.default_rng(random_state)
    is_complex = np.dtype(dtype).kind == "c"

    def normal(*size: int) -> Any:
        real = rng.standard_normal(size)
        return (real + 1j * rng.standard_normal(size)) / np.sqrt(2) if is_complex else real

    U, V = normal(n1, rank) / np.sqrt(n1), normal(n2, rank) / np.sqrt(n2)
    if condition != 1.0:
        values = np.linspace(1.0, 1.0 / condition, rank)
        U, V = np.linalg.qr(U)[0] * values, np.linalg.qr(V)[0]
    X = U @ V.T
    typical = float(np.abs(X).mean())
    if scale is not None:
        X, typical = X * (scale / typical), scale
    S = np.zeros_like(X)
    where = rng.choice(n1 * n2, int(outlier_fraction * n1 * n2), replace=False)
    size = rng.uniform(0.0 if one_sided else -1.0, 1.0, len(where)) * outlier_size * typical
    phase = np.exp(2j * np.pi * rng.random(len(where))) if is_complex else 1.0
    S.flat[where] = size * phase
    Y = X + S + noise * typical * normal(n1, n2)
    observed = np.ones(shape, bool)
    if missing:
        observed = rng.random(shape) >= missing
        Y = np.where(observed, Y, np.nan)
    return Problem(Y.astype(dtype), X, S, observed, rank)
