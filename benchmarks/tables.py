"""How many entries of a table may be missing, and whether the number of components is found: planted tables, counted.

    python benchmarks/tables.py [--seeds 3]

Tables have a centre, Gaussian scores and components, noise of 5% and one-sided outliers of 5 to 50 in 10% of the
entries. An angle is the largest between true and found components.
"""

import warnings
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from lrpca import RobustPCA, decompose
from lrpca.bench.measuring import Table, arguments, number, publish
from lrpca.testing import planted

SHAPES = ((2000, 300), (500, 100), (1000, 40))
MISSING = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
COMPONENTS, NOISE, OUTLIERS, CENTRE = 3, 0.05, 0.1, 3.0
RANK_SHAPES = ((300, 300), (500, 500), (1000, 200), (200, 1000), (2000, 60))
RANKS = (1, 2, 5, 10, 20, 40)
KINDS: dict[str, dict[str, Any]] = {
    "10% outliers x1": {"outlier_fraction": 0.1},
    "30% outliers x10": {"outlier_fraction": 0.3, "outlier_size": 10.0},
    "30% outliers x1000": {"outlier_fraction": 0.3, "outlier_size": 1000.0},
    "30% one-sided x10": {"outlier_fraction": 0.3, "outlier_size": 10.0, "one_sided": True},
    "no outliers": {"outlier_fraction": 0.0},
    "10% x10, condition 20": {"outlier_fraction": 0.1, "outlier_size": 10.0, "condition": 20.0},
    "10% x10, 50% missing": {"outlier_fraction": 0.1, "outlier_size": 10.0, "missing": 0.5},
}
NOISES = (0.0, 0.05)


def table(shape: tuple[int, int], missing: float, seed: int) -> tuple[Any, Any]:
    """Return a table (n1, n2) with gaps, and its components (3, n2)."""
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((COMPONENTS, shape[1]))
    X = rng.standard_normal((shape[0], COMPONENTS)) @ V + CENTRE * rng.standard_normal(shape[1])
    Y = X + NOISE * rng.standard_normal(shape)
    Y = np.where(rng.random(shape) < OUTLIERS, Y + rng.uniform(5, 50, shape), Y)
    return np.where(rng.random(shape) < missing, np.nan, Y), V


def angle(model: RobustPCA, V: Any) -> float:
    """Return the largest angle to the true components, in degrees."""
    from scipy.linalg import subspace_angles

    return float(np.degrees(subspace_angles(model.components_.T, V.T).max()))


def with_gaps(seeds: int) -> Table:
    """Fit tables with more and more missing."""
    cells = []
    for shape in SHAPES:
        row: list[Any] = [f"{shape[0]} x {shape[1]}"]
        for missing in MISSING:
            models = [(RobustPCA(COMPONENTS).fit(Y), V) for Y, V in (table(shape, missing, s) for s in range(seeds))]
            worst = max(models, key=lambda pair: angle(*pair))
            row.append(f"{number(angle(*worst))}{'' if worst[0].converged_ else ', warned'}")
        cells.append(row)
    columns = ["shape", *(f"{share:.0%} missing" for share in MISSING)]
    return Table(f"Worst angle in degrees of {seeds} tables, {COMPONENTS} components", columns, cells)


def ranks() -> Table:
    """Count how often the rank is found where the problem is solved with the rank given."""
    cells = []
    for kind, law in KINDS.items():
        found, solvable, missed = 0, 0, []
        for shape, rank, noise in product(RANK_SHAPES, RANKS, NOISES):
            if rank > min(shape) // 8:
                continue
            problem = planted(shape, rank=rank, noise=noise, random_state=rank + 7 * shape[0], **law)
            if problem.error(decompose(problem.Y, rank).low_rank) > max(1e-5, 2 * problem.oracle_error):
                continue
            result = decompose(problem.Y)
            solvable, found = solvable + 1, found + (result.rank == rank)
            if result.rank != rank:
                missed.append(f"{shape[0]} x {shape[1]}, noise {noise:.0%}: {rank} → {result.rank}")
        cells.append([kind, solvable, found, "; ".join(missed) or "–"])
    caption = f"Ranks {', '.join(map(str, RANKS))}, at most an eighth of the shorter side; noise 0 and 5%"
    return Table(caption, ["kind", "solved with the rank given", "rank found", "missed"], cells)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write tables.json."""
    chosen = arguments(__file__, __doc__, given, seeds=(3, "tables of each kind"))
    warnings.simplefilter("ignore")
    publish(chosen, "Missing entries and ranks of planted tables", [with_gaps(chosen.seeds), ranks()])


if __name__ == "__main__":
    main()
