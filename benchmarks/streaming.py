"""How well a stream of rows is followed: beside the batch solution, when it turns, when it changes, by batch size.

python benchmarks/streaming.py [--seeds N]
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

import lrpca
from lrpca.bench.measuring import Table, arguments, number, publish
from lrpca.tables.streaming import SubspaceTracker

OUTLIERS, OUTLIER_SIZE = 0.1, 10.0
STATIONARY_ROWS, TURNING_ROWS, CHANGE_ROWS, CHANGE_AT = 3000, 5000, 2600, 2000


@dataclass(frozen=True)
class Stream:
    """A stream whose clean entries are about 1: every basis vector turns in its own plane."""

    columns: int
    k: int
    noise: float
    missing: float
    one_sided: bool = False
    mean: float = 1.0
    turn: float = 0.0  # angle in all
    change: int | None = None  # row at which the basis turns at once by 90 degrees

    def rows(self, n1: int, seed: int = 0) -> tuple[Any, Callable[[int], Any]]:
        """Return rows (n1, n2), and the true subspace (n2, k) as a function of the row."""
        rng, k, n2 = np.random.default_rng(seed), self.k, self.columns
        Q = np.linalg.qr(rng.standard_normal((n2, 2 * k)))[0]
        coefficients = rng.standard_normal((n1, k)) * np.linspace(1.5, 0.7, k) * np.sqrt(n2 / k)

        def angles(row: Any) -> Any:
            return self.turn * row / n1 if self.change is None else np.where(row < self.change, 0.0, np.pi / 2)

        def truth(row: int) -> Any:
            return np.cos(angles(row)) * Q[:, :k] + np.sin(angles(row)) * Q[:, k:]

        angle = angles(np.arange(n1))[:, None]
        Y = self.mean * rng.standard_normal(n2) + self.noise * rng.standard_normal((n1, n2))
        Y += np.cos(angle) * (coefficients @ Q[:, :k].T) + np.sin(angle) * (coefficients @ Q[:, k:].T)
        hit = rng.random(Y.shape) < OUTLIERS
        Y[hit] += rng.uniform(0 if self.one_sided else -OUTLIER_SIZE, OUTLIER_SIZE, hit.sum())
        Y[rng.random(Y.shape) < self.missing] = np.nan
        return Y, truth

    def cells(self) -> list[Any]:
        """Return the first columns of a table."""
        return [self.columns, self.k, self.noise, self.missing]


STATIONARY = (
    Stream(50, 1, 0.0, 0.0),
    Stream(50, 5, 0.0, 0.2, one_sided=True),
    Stream(50, 10, 0.05, 0.0),
    Stream(50, 5, 0.05, 0.2, one_sided=True),
    Stream(200, 3, 0.01, 0.0, one_sided=True),
    Stream(200, 5, 0.05, 0.2),
    Stream(200, 10, 0.01, 0.5),
    Stream(1000, 5, 0.0, 0.0),
    Stream(1000, 10, 0.05, 0.2, one_sided=True),
)
TURNING = (
    Stream(50, 1, 0.0, 0.0),
    Stream(50, 5, 0.01, 0.2, mean=0.0),
    Stream(50, 10, 0.01, 0.0),
    Stream(200, 3, 0.0, 0.0, mean=0.0),
    Stream(200, 5, 0.01, 0.2),
    Stream(200, 10, 0.0, 0.0),
    Stream(1000, 5, 0.01, 0.0),
)
CHANGING = (Stream(50, 1, 0.0, 0.0), Stream(50, 5, 0.05, 0.2), Stream(200, 5, 0.01, 0.0), Stream(100, 10, 0.01, 0.2))
FACTORS: tuple[str | float, ...] = ("auto", 1.0, 0.99)
BATCHES = (1, 7, 64, 1000)
SETTLED, FEW_DEGREES, FLOOR = 300, 1.0, 1e-6


def angle_to(truth: Any, components: Any) -> float:
    """Return the largest principal angle in radians, accurate when small too."""
    rest = truth - components.T @ (components @ truth)
    return float(np.arcsin(min(1.0, float(np.linalg.norm(rest, 2)))))


def batch_components(Y: Any, k: int) -> Any:
    """Return the components of all rows at once, centred by one more component."""
    with warnings.catch_warnings(action="ignore"):
        X = lrpca.decompose(Y, k + 1).low_rank
    return np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:k]


def plain_components(Y: Any, k: int) -> Any:
    """Return the components of scikit-learn's IncrementalPCA, or None where entries are missing."""
    from sklearn.decomposition import IncrementalPCA

    return None if np.isnan(Y).any() else IncrementalPCA(k, batch_size=100).fit(Y).components_


def measure_stationary(seeds: int) -> Table:
    """Compare the angle after all rows with that of the batch."""
    rows = []
    for kind in STATIONARY:
        found = []
        for seed in range(seeds):
            Y, truth = kind.rows(STATIONARY_ROWS, seed)
            tracker = SubspaceTracker(kind.columns, kind.k)
            tracker.update(Y)
            components = (tracker.components, batch_components(Y, kind.k), plain_components(Y, kind.k))
            angles = [np.nan if each is None else angle_to(truth(0), each) for each in components]
            found.append([*angles, tracker.effective_rows])
        ours, batch, plain, kept = np.array(found).T
        ratio = float(np.max(np.maximum(ours, FLOOR) / np.maximum(batch, FLOOR)))
        cells = [None if np.isnan(a).any() else float(f"{np.median(a):.2g}") for a in (ours, batch, plain)]
        sides = "one-sided" if kind.one_sided else "both signs"
        rows.append([*kind.cells(), sides, *cells, number(ratio), number(float(kept.min()))])
    columns = ["columns", "k", "noise", "missing", "outliers", "stream", "batch", "IncrementalPCA", "worst ratio"]
    caption = f"Stationary stream, {STATIONARY_ROWS} rows: angle to the truth in rad (medians over {seeds} seeds)"
    return Table(caption, [*columns, "least rows kept"], rows)


def follow(tracker: SubspaceTracker, Y: Any, truth: Callable[[int], Any], step: int = 20) -> dict[int, float]:
    """Return the angle in degrees after every few rows."""
    angles = {}
    for start in range(0, len(Y), step):
        tracker.update(Y[start : start + step])
        end = min(start + step, len(Y))
        angles[end] = float(np.degrees(angle_to(truth(end - 1), tracker.components)))
    return angles


def measure_turning(seeds: int) -> Table:
    """Follow a subspace that turns by 90 degrees."""
    rows = []
    for kind in TURNING:
        worst, typical = [], []
        for seed in range(seeds):
            Y, truth = replace(kind, turn=np.pi / 2).rows(TURNING_ROWS, seed)
            angles = follow(SubspaceTracker(kind.columns, kind.k), Y, truth)
            settled = [angle for row, angle in angles.items() if row >= SETTLED]
            worst.append(max(settled))
            typical.append(float(np.median(settled)))
        rows.append([*kind.cells(), kind.mean, number(float(np.median(typical))), number(max(worst))])
    caption = f"Subspace turning by 90 degrees in {TURNING_ROWS} rows: largest angle in degrees from row {SETTLED} on"
    return Table(caption, ["columns", "k", "noise", "missing", "mean", "median", "worst"], rows)


def measure_change(seeds: int) -> Table:
    """Count the rows until a suddenly changed subspace is found again."""
    rows = []
    for kind, factor in product(CHANGING, FACTORS):
        late, end = [], []
        for seed in range(seeds):
            at = CHANGE_AT + 7 * seed
            Y, truth = replace(kind, change=at).rows(CHANGE_ROWS, seed)
            angles = follow(SubspaceTracker(kind.columns, kind.k, forgetting_factor=factor), Y, truth)
            late.append(max([at, *(row for row, angle in angles.items() if row > at and angle > FEW_DEGREES)]) - at)
            end.append(angles[CHANGE_ROWS])
        rows.append([*kind.cells(), str(factor), max(late), number(max(end))])
    caption = f"Another subspace after {CHANGE_AT} rows: last row, counted from there, with an angle above 1 degree"
    return Table(caption, ["columns", "k", "noise", "missing", "factor", "worst rows", "worst at the end"], rows)


def measure_batches() -> Table:
    """Compare results and times of one stream in batches of several sizes; components are read after each."""
    n1, n2, k = 1100, 1000, 5
    Y, _ = Stream(n2, k, 0.01, 0.1).rows(n1)
    rows, first = [], None
    # Compiled before the clock runs.
    SubspaceTracker(n2, k).update(Y[:200])
    for size in (*BATCHES, n1):
        tracker, seconds = SubspaceTracker(n2, k), []
        for start in range(0, n1, size):
            began = time.process_time()
            tracker.update(Y[start : start + size])
            tracker.components  # noqa: B018
            seconds.append(time.process_time() - began)
        first = tracker if first is None else first
        apart = float(np.abs(tracker.components - first.components).max())
        later = sum(seconds[len(seconds) // 5 :]) / (n1 - size * (len(seconds) // 5))
        rows.append([size, float(f"{apart:.1g}"), number(1e3 * sum(seconds) / n1), number(1e3 * later)])
    columns = ["rows by batch", "difference of components", "CPU ms by row", "after the first fifth"]
    return Table(f"Batches of several sizes, {n1} rows of {n2} columns, k = {k}", columns, rows)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write streaming.json."""
    chosen = arguments(__file__, __doc__, given, seeds=(2, "seeds of every problem"))
    notes = [
        f"{100 * OUTLIERS:.0f}% of the entries have outliers of up to {OUTLIER_SIZE:.0f} added; clean entries are "
        "about 1, and noise and mean are in the same unit. The mean is learned too.",
        f"Angles are the largest principal angle. Ratios take angles below {FLOOR:g} rad for that.",
        "The batch solution is lrpca.decompose of all rows with one more component, then centred. IncrementalPCA is "
        "not robust, and takes no missing entries.",
        "Times are of the process (other work on the machine slows them less than those of the clock), components "
        "asked for after every batch.",
    ]
    tables = [make(chosen.seeds) for make in (measure_stationary, measure_turning, measure_change)]
    publish(chosen, "Streams of rows", [*tables, measure_batches()], notes)


if __name__ == "__main__":
    main()
