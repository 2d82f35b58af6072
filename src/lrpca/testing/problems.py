"""Planted problems: a low-rank matrix, corrupted in a known way."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.metrics import relative_error
from lrpca.solvers.options import is_integer

PLACEMENTS = ("uniform", "rows", "columns", "blocks")
LAWS = ("uniform", "constant")
# Share of outliers in the rows (or columns) they are gathered in.
_GATHERED = 0.6
# Rounds of alternating least squares, which start at the truth.
_ALTERNATIONS = 8


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
        Rank of X.
    noise_level : ndarray
        Standard deviation of the noise, broadcastable to Y.
    given : int or None
        The rank to tell a solver, None for none.
    name : str
        What it is made of.
    """

    Y: Any
    X: Any
    S: Any
    observed: Any
    rank: int
    noise_level: Any = 0.0
    given: int | None = None
    name: str = ""

    @property
    def outliers(self) -> Any:
        """Where an outlier was planted and observed."""
        return (self.S != 0) & self.observed

    def error(self, low_rank: Any) -> float:
        """Return ‖low_rank - X‖ / ‖X‖."""
        return relative_error(low_rank, self.X)

    def explained(self, low_rank: Any) -> int:
        """Return how many observed entries a low-rank part explains: within 3 σ, or 0.001 of the size of X."""
        size = np.sqrt(np.mean(np.abs(self.X) ** 2))
        near = np.abs(np.nan_to_num(self.Y) - low_rank) <= np.maximum(3 * self.noise_level, 1e-3 * size)
        return int(np.count_nonzero(near & self.observed))

    @functools.cached_property
    def least_squares_error(self) -> float:
        """The error of least squares on the clean entries: alternating fits of rows and columns, from the truth."""
        clean = (self.observed & (self.S == 0)).astype(float)
        if not np.any(self.noise_level):
            return 0.0
        R, Y = column_space(self.X.T, self.rank), np.where(clean, np.nan_to_num(self.Y), 0.0)
        for _ in range(_ALTERNATIONS):
            L = _weighted_rows(Y, clean, R)
            R = _weighted_rows(Y.T, clean.T, L)
        return self.error(L @ R.T)

    @functools.cached_property
    def oracle_error(self) -> float:
        """The error that knowing the outliers' support would leave: ``‖P_T(noise on clean entries) / p‖ / ‖X‖``.

        P_T projects on the tangent space of the rank-r matrices at X, and p is the share of clean observed entries.
        """
        clean = self.observed & (self.S == 0)
        noise = np.where(clean, np.nan_to_num(self.Y) - self.X, 0.0)
        U, V = column_space(self.X, self.rank), column_space(self.X.T, self.rank)
        left = U @ (U.conj().T @ noise)
        tangent = left + (noise - left) @ V.conj() @ V.T
        share = float(clean.mean())
        return float(np.linalg.norm(tangent) / share / np.linalg.norm(self.X)) if share else np.inf


def row_grams(weights: Any, R: Any) -> Any:  # weights (n1, n2)
    """Return the Gram matrix of R over the weighted entries of each row, (n1, r, r)."""
    r = R.shape[1]
    return (weights @ np.einsum("jk,jl->jkl", R, R).reshape(len(R), r * r)).reshape(-1, r, r)


def _weighted_rows(Y: Any, clean: Any, R: Any) -> Any:
    """Return the coefficients (n1, r) of least squares on the clean entries (1, others 0) of each row of Y."""
    ridge = 1e-12 * np.trace(R.T @ R) * np.eye(R.shape[1])
    return np.linalg.solve(row_grams(clean, R) + ridge, (Y @ R)[..., None])[..., 0]


def planted(
    shape: tuple[int, int] = (300, 300),
    *,
    rank: int = 5,
    outlier_fraction: float = 0.1,
    outlier_size: float = 1.0,
    one_sided: bool = False,
    placement: str = "uniform",
    law: str = "uniform",
    noise: float = 0.0,
    missing: float = 0.0,
    condition: float = 1.0,
    offset: float = 0.0,
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
        Rank of X, the offset included.
    outlier_fraction, missing : float
        Shares of all entries.
    outlier_size : float
        Largest outlier, in units of mean|X| (without the offset).
    one_sided : bool
        Outliers are positive.
    placement : {"uniform", "rows", "columns", "blocks"}
        uniform: anywhere. rows, columns: only in some of them, 60% of the entries there (or `outlier_fraction`, if
        more). blocks: a stretch of every row, moving on from row to row as an object does in a video.
    law : {"uniform", "constant"}
        Sizes of the outliers: anything up to `outlier_size`, or all of that size.
    noise : float
        Standard deviation of Gaussian noise, in units of mean|X| (without the offset).
    condition : float
        σ_1 / σ_r of X, the singular values being equally spaced; 1 leaves the Gaussian factors as drawn.
    offset : float
        A constant added to X, in units of mean|X|; it is one of the `rank` components.
    scale : float, optional
        mean|X| of the returned problem (without the offset); as drawn if not given.
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
    for name, value, known in (("placement", placement, PLACEMENTS), ("law", law, LAWS)):
        if value not in known:
            raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(known)}")
    if not isinstance(shape, tuple | list) or len(shape) != 2 or not all(is_integer(n) and n > 0 for n in shape):
        raise ValueError(f"shape={shape!r} is not a pair of positive integers; e.g. (200, 150)")
    if not is_integer(rank):
        raise ValueError(f"rank={rank!r} is not an integer; e.g. 5")
    (n1, n2), least = shape, 2 if offset else 1
    if not least <= rank <= min(shape):
        raise ValueError(f"rank={rank} is not between {least} and min(shape)={min(shape)}; an offset counts as one")
    for name, number, low in (("noise", noise, 0), ("condition", condition, 1), ("outlier_size", outlier_size, 0)):
        if not number >= low:
            raise ValueError(f"{name}={number} is below {low:g}; give at least that")
    if scale is not None and not scale > 0:
        raise ValueError(f"scale={scale} is not positive; leave it out for the scale as drawn")
    rng = np.random.default_rng(random_state)
    is_complex = np.dtype(dtype).kind == "c"

    def normal(*size: int) -> Any:
        real = rng.standard_normal(size)
        return (real + 1j * rng.standard_normal(size)) / np.sqrt(2) if is_complex else real

    free = rank - (offset != 0)
    U, V = normal(n1, free) / np.sqrt(n1), normal(n2, free) / np.sqrt(n2)
    if condition != 1.0:
        values = np.linspace(1.0, 1.0 / condition, free)
        U, V = np.linalg.qr(U)[0] * values, np.linalg.qr(V)[0]
    X = U @ V.T
    typical = float(np.abs(X).mean())
    if scale is not None:
        X, typical = X * (scale / typical), scale
    X = X + offset * typical
    S = np.zeros_like(X)
    where = _positions(placement, shape, outlier_fraction, rng)
    size = rng.uniform(0.0 if one_sided else -1.0, 1.0, len(where))
    if law == "constant":
        size = np.where(size < 0, -1.0, 1.0)
    phase = np.exp(2j * np.pi * rng.random(len(where))) if is_complex else 1.0
    S.flat[where] = size * phase * outlier_size * typical
    Y = X + S + noise * typical * normal(n1, n2)
    observed = rng.random(shape) >= missing if missing else np.ones(shape, bool)
    Y = np.where(observed, Y, np.nan)
    return Problem(Y.astype(dtype), X, S, observed, rank)


def _positions(placement: str, shape: tuple[int, int], share: float, rng: np.random.Generator) -> Any:
    """Return the flat indices of the outliers."""
    n1, n2 = shape
    if placement == "uniform":
        return rng.choice(n1 * n2, int(share * n1 * n2), replace=False)
    if placement == "blocks":
        # The stretch advances by its own width within a dozen rows, and comes back in at the other side.
        width = round(share * n2)
        first = np.arange(n1) * max(1, width // 12)
        return (np.arange(n1)[:, None] * n2 + (first[:, None] + np.arange(width)) % n2).ravel()
    if placement == "columns":
        rows, columns = np.divmod(_positions("rows", (n2, n1), share, rng), n1)
        return columns * n2 + rows
    density = max(_GATHERED, share)
    chosen = rng.choice(n1, round(share / density * n1), replace=False)
    rows = [i * n2 + rng.choice(n2, int(density * n2), replace=False) for i in chosen]
    return np.concatenate(rows or [[]]).astype(int)


def column_space(X: Any, rank: int) -> Any:  # X (n1, n2)
    """Return an orthonormal basis (n1, rank) of the columns of a matrix of that rank."""
    sketch = X @ np.random.default_rng(0).standard_normal((X.shape[1], rank))
    return np.linalg.qr(X @ (X.conj().T @ np.linalg.qr(sketch)[0]))[0]
