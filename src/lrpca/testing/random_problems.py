"""Random problems: every law of low-rank parts, outliers, noise and gaps is combined with every other.

A problem is ``Y = corrupt(X + noise)`` where observed. The four parts are drawn independently from the tables at the
end of this file, so methods are measured on kinds of data that they were not tuned to. To add a kind, add a function to
one of the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lrpca.testing.problems import Problem, column_space, row_grams

Rng = np.random.Generator
Shape = tuple[int, ...]

# Shapes: each side is drawn from a log-uniform law between these.
SIDES = (8, 2000)
LARGEST_RANK = 15
# What a solver is told: the rank of X plus so many, or nothing (None).
SURPLUS: Sequence[int | None] = (0, 0, 1, 3, None)
# A row (or column) determines its coefficients if it has more clean entries than this many times the rank, and if
# these hold this share of what all entries say of the least determined one.
_CLEAN_PER_RANK, _LEAST_KNOWN = 3, 0.05
_TRIES = 50


def random_problem(random_state: int, **fixed: Any) -> Problem:
    """Return a problem of random shape, rank, low-rank part, outliers, noise and gaps.

    The clean entries of every row and column determine its coefficients well. Where they do not, outliers and gaps are
    drawn again, half as many.

    Parameters
    ----------
    random_state : int
        The seed; the same seed gives the same problem.
    **fixed
        What is not to be random: `shape` (pair of int), `rank` (int), `surplus` (int or None: the rank to give is that
        of X plus this, or none), `low_rank`, `outliers`, `noise` and `gaps` (names of `LOW_RANK_LAWS`, `OUTLIER_LAWS`,
        `NOISE_LAWS` and `GAP_LAWS`).

    Returns
    -------
    Problem
        Its `given` is the rank to tell a solver, its `name` says what was drawn.

    Examples
    --------
    >>> problem = random_problem(3, shape=(60, 40), outliers="stripes", noise="none", gaps="none")
    >>> problem.Y.shape, problem.name
    ((60, 40), 'clusters, stripes, noise none, gaps none')
    """
    unknown = set(fixed) - {"shape", "rank", "surplus", "low_rank", "outliers", "noise", "gaps"}
    if unknown:
        raise ValueError(f"{min(unknown)}={fixed[min(unknown)]!r} is no part of a random problem; e.g. shape=(60, 40)")
    rng = np.random.default_rng(random_state)
    sides = np.exp(rng.uniform(np.log(SIDES[0]), np.log(SIDES[1]), 2)).astype(int)
    n1, n2 = (int(n) for n in fixed.get("shape", sides))
    shape = (n1, n2)
    most = max(1, min(LARGEST_RANK, min(shape) // 6))
    rank = int(fixed.get("rank", 1 + np.floor(most * rng.random() ** 2)))
    surplus = fixed.get("surplus", SURPLUS[int(rng.integers(len(SURPLUS)))])
    tables = {"low_rank": LOW_RANK_LAWS, "outliers": OUTLIER_LAWS, "noise": NOISE_LAWS, "gaps": GAP_LAWS}
    laws = {part: _chosen(part, table, fixed.get(part), rng) for part, table in tables.items()}
    X = LOW_RANK_LAWS[laws["low_rank"]](rng, *shape, rank)
    X = X / np.sqrt(np.mean(X**2))
    # Some laws have one component more or fewer than asked for.
    rank = int(np.linalg.matrix_rank(X @ rng.standard_normal((shape[1], min(rank + 2, shape[1])))))
    level, unit_noise = NOISE_LAWS[laws["noise"]]
    sigma = level(rng, shape) * 10 ** rng.uniform(-3, -1)
    Z = X + sigma * unit_noise(rng, shape)
    share, missing, size = rng.uniform(0.02, 0.3), rng.uniform(0.05, 0.5), 10 ** rng.uniform(-0.3, 1.5)
    for _ in range(_TRIES):
        Y = OUTLIER_LAWS[laws["outliers"]](rng, Z, share, size)
        observed = GAP_LAWS[laws["gaps"]](rng, X, missing)
        clean = observed & (Y == Z)
        if _determined(X, clean, rank) and _determined(X.T, clean.T, rank):
            break
        share, missing = share / 2, missing / 2
    else:
        Y, observed = Z, np.ones(shape, bool)
    return Problem(
        np.where(observed, Y, np.nan),
        X,
        Y - Z,
        observed,
        rank,
        noise_level=sigma,
        given=None if surplus is None else min(rank + surplus, min(shape)),
        name=f"{laws['low_rank']}, {laws['outliers']}, noise {laws['noise']}, gaps {laws['gaps']}",
    )


def _determined(X: Any, clean: Any, rank: int) -> bool:  # X (n1, n2); clean (n1, n2) bool
    """Tell whether the clean entries of every row determine its coefficients."""
    if clean.sum(1).min() <= min(_CLEAN_PER_RANK * rank, X.shape[1] // 2):
        return False
    known = np.linalg.eigvalsh(row_grams(clean.astype(float), column_space(X.T, rank)))
    return bool(known.min() > _LEAST_KNOWN)


def _chosen(part: str, table: Mapping[str, Any], name: str | None, rng: Rng) -> str:
    drawn = str(rng.choice(list(table)))
    if name is not None and name not in table:
        raise ValueError(f"{part}={name!r} is unknown; use one of {', '.join(table)}")
    return name or drawn


# Low-rank parts (rng, n1, n2, rank) -> X (n1, n2)


def _factors(rng: Rng, n1: int, n2: int, rank: int) -> Any:
    return rng.standard_normal((n1, rank)) @ rng.standard_normal((rank, n2))


def _ill_conditioned(rng: Rng, n1: int, n2: int, rank: int) -> Any:
    spectrum = np.geomspace(1, 10 ** rng.uniform(-2.5, 0), rank)
    return rng.standard_normal((n1, rank)) * spectrum @ rng.standard_normal((rank, n2))


def _smooth(rng: Rng, n1: int, n2: int, rank: int) -> Any:
    def waves(n: int) -> Any:
        return np.cos(np.pi * np.linspace(0, 1, n)[:, None] * np.arange(rank))

    return waves(n1) @ rng.standard_normal((rank, rank)) @ waves(n2).T


def _offset(rng: Rng, n1: int, n2: int, rank: int) -> Any:
    """Columns with a mean of their own, one of the components."""
    rest = _factors(rng, n1, n2, rank - 1) if rank > 1 else np.zeros((n1, n2))
    return rest + 10 ** rng.uniform(0, 2) * rng.standard_normal(n2)


def _clusters(rng: Rng, n1: int, n2: int, rank: int) -> Any:
    """Rows that repeat one of a few centres, the last of them rarely."""
    weights = rng.choice([1.0, 0.6]) ** np.arange(rank)
    labels = rng.choice(rank, n1, p=weights / weights.sum())
    labels[: 2 * rank] = np.tile(np.arange(rank), 2)[:n1]
    return rng.standard_normal((rank, n2))[labels]


def _blocks(rng: Rng, n1: int, n2: int, rank: int) -> Any:
    """Diagonal blocks of rank 1, zero elsewhere."""
    rows, columns = (np.arange(n) * rank // n for n in (n1, n2))
    return _factors(rng, n1, n2, 1) * (rows[:, None] == columns)


def _sparse_factors(rng: Rng, n1: int, n2: int, rank: int) -> Any:
    """Components that most rows and columns do not have."""
    L, R = rng.standard_normal((n1, rank)), rng.standard_normal((rank, n2))
    L, R = L * (rng.random(L.shape) < 0.4), R * (rng.random(R.shape) < 0.4)
    return L @ R + 0.3 * np.outer(rng.standard_normal(n1), rng.standard_normal(n2))


# Outliers (rng, Z, share, size) -> Y; what differs from Z is an outlier


def _in_rows(rng: Rng, Z: Any, share: float, size: float) -> Any:
    """Half of the entries of some rows, which are so many that `share` of all entries are outliers."""
    where = (rng.random((len(Z), 1)) < 2 * share) & (rng.random(Z.shape) < 0.5)
    return Z + size * where * rng.standard_normal(Z.shape)


def _moving_blocks(rng: Rng, Z: Any, share: float, size: float) -> Any:
    """Objects of one value that move over the columns, as seen in the rows of a video."""
    Y, (n1, n2) = Z.copy(), Z.shape
    objects = int(rng.integers(1, 5))
    width = max(1, round(share * n2 / objects))
    for _ in range(objects):
        first = rng.integers(n2) + rng.uniform(0.2, 2) * np.arange(n1)
        columns = (first.astype(int)[:, None] + np.arange(width)) % n2
        Y[np.arange(n1)[:, None], columns] = size * rng.uniform(0.3, 1) * rng.choice([-1, 1])
    return Y


def _stripes(rng: Rng, Z: Any, share: float, size: float) -> Any:
    i, j = np.indices(Z.shape)
    period = int(rng.integers(8, 60))
    where = (i + rng.choice([-1, 1]) * j) % period < share * period
    return Z + size * where


def _bursts(rng: Rng, Z: Any, share: float, size: float) -> Any:
    """Stretches of columns (in time), each with noise of its own."""
    length = max(2, Z.shape[0] // 20)
    starts = rng.random((Z.shape[0] + length, Z.shape[1])) < share / length
    within = np.cumsum(starts, 0)
    return Z + size * (within[length:] > within[:-length]) * rng.standard_normal(Z.shape)


def _level_shifts(rng: Rng, Z: Any, share: float, size: float) -> Any:
    """Shift some columns by a constant of their own for a third of the rows."""
    n1, n2 = Z.shape
    begins = rng.integers(0, n1 - n1 // 3, n2)
    rows = np.arange(n1)[:, None]
    within = (rows >= begins) & (rows < begins + n1 // 3) & (rng.random(n2) < 3 * share)
    return Z + within * size * rng.uniform(0.5, 1, n2) * rng.choice([-1, 1], n2)


def _saturated(rng: Rng, Z: Any, share: float, size: float) -> Any:
    low, high = np.quantile(Z, [share / 2, 1 - share / 2])
    return np.clip(Z, low if rng.random() < 0.5 else -np.inf, high)


# Noise: its level for every entry (rng, shape) -> broadcastable, and noise of unit level (rng, shape) -> (n1, n2)


def _autoregressive(rng: Rng, shape: Shape) -> Any:
    """AR(1) down the columns, correlation 0.5 to 0.95."""
    from scipy.signal import lfilter

    rho = rng.uniform(0.5, 0.95)
    return np.sqrt(1 - rho**2) * lfilter([1.0], [1.0, -rho], rng.standard_normal(shape), axis=0)


# Gaps (rng, X, share) -> observed (n1, n2)


def _row_stretches(rng: Rng, X: Any, share: float) -> Any:
    n1, n2 = X.shape
    return (np.arange(n2) - rng.integers(n2, size=(n1, 1))) % n2 >= share * n2


def _staircase(rng: Rng, X: Any, share: float) -> Any:
    """Columns that begin later and later, as sensors that were added one by one."""
    n1, n2 = X.shape
    begins = rng.permutation(n2) * 2 * share / n2 * n1
    return np.arange(n1)[:, None] >= np.minimum(begins, n1 - 1)


def _two_surveys(rng: Rng, X: Any, share: float) -> Any:
    """Two groups of rows that share only some of their columns."""
    n1, n2 = X.shape
    observed = np.ones((n1, n2), bool)
    half, left = n1 // 2, round((1 - share) * n2)
    observed[:half, left:] = False
    observed[half:, : n2 - left] = False
    return observed[rng.permutation(n1)]


LOW_RANK_LAWS: Mapping[str, Callable[[Rng, int, int, int], Any]] = {
    "gaussian factors": _factors,
    "ill-conditioned": _ill_conditioned,
    "nonnegative": lambda rng, n1, n2, rank: rng.gamma(1.0, 1.0, (n1, rank)) @ rng.gamma(1.0, 1.0, (rank, n2)),
    "smooth": _smooth,
    "offset": _offset,
    "clusters": _clusters,
    "diagonal blocks": _blocks,
    "sparse factors": _sparse_factors,
    "signs": lambda rng, n1, n2, rank: np.outer(rng.choice([-1.0, 1.0], n1), rng.choice([-1.0, 1.0], n2)),
}
OUTLIER_LAWS: Mapping[str, Callable[[Rng, Any, float, float], Any]] = {
    "anywhere": lambda rng, Z, share, size: Z + size * (rng.random(Z.shape) < share) * rng.uniform(-1, 1, Z.shape),
    "one-sided": lambda rng, Z, share, size: Z + size * (rng.random(Z.shape) < share) * rng.random(Z.shape),
    "in rows": _in_rows,
    "in columns": lambda rng, Z, share, size: _in_rows(rng, Z.T, share, size).T,
    "moving blocks": _moving_blocks,
    "stripes": _stripes,
    "bursts": _bursts,
    "level shifts": _level_shifts,
    "saturated": _saturated,
    "sign flips": lambda rng, Z, share, size: np.where(rng.random(Z.shape) < share, -Z, Z),
    "multiplied": lambda rng, Z, share, size: np.where(
        rng.random(Z.shape) < share, rng.choice([0.0, 0.5, 2.0, 10.0]) * Z, Z
    ),
    # Missing entries coded as one number, which may lie within the data.
    "fill value": lambda rng, Z, share, size: np.where(rng.random(Z.shape) < share, rng.choice([0.0, size, -999.0]), Z),
}
NOISE_LAWS: Mapping[str, tuple[Callable[[Rng, Shape], Any], Callable[[Rng, Shape], Any]]] = {
    "none": (lambda rng, shape: np.zeros((1, 1)), Rng.standard_normal),
    "gaussian": (lambda rng, shape: np.ones((1, 1)), Rng.standard_normal),
    "by column": (lambda rng, shape: 10 ** rng.uniform(-1.5, 0, (1, shape[1])), Rng.standard_normal),
    "by row": (lambda rng, shape: 10 ** rng.uniform(-1.5, 0, (shape[0], 1)), Rng.standard_normal),
    "t3": (lambda rng, shape: np.ones((1, 1)), lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3)),
    "AR(1)": (lambda rng, shape: np.ones((1, 1)), _autoregressive),
}
GAP_LAWS: Mapping[str, Callable[[Rng, Any, float], Any]] = {
    "none": lambda rng, X, share: np.ones(X.shape, bool),
    "at random": lambda rng, X, share: rng.random(X.shape) >= share,
    "row stretches": _row_stretches,
    "column stretches": lambda rng, X, share: _row_stretches(rng, X.T, share).T,
    # Not at random: most of the largest values are missing.
    "large values": lambda rng, X, share: (np.abs(X) < np.quantile(np.abs(X), 1 - share)) | (rng.random(X.shape) < 0.2),
    "staircase": _staircase,
    "two surveys": _two_surveys,
}
