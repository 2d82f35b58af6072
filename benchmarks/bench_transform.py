"""Robust coefficients of new rows: against reading them and against least squares; how many outliers a row may hold.

    python benchmarks/bench_transform.py [--n 8000] [--repeats 7]

A thousand rows of n columns with three outliers in ten entries, all on one side. A read-time is the time of a plain
parallel sum over the same rows, measured directly before. Recovery is counted on shorter rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from lrpca.bench.measuring import Table, arguments, interleave, number, publish
from lrpca.bench.probes import Machine
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.rows import robust_coefficients

ROWS, RANKS, NOISES = 1000, (1, 2, 5, 10, 20), (0.0, 0.05)
# Rows that recovery is counted on; recovered is a row so close to the truth, or to least squares on clean entries.
SHORT, SHORT_ROWS, SHORT_RANK = 1000, 40, 5
EXACT, NOISY = 1e-8, 2.5
FRACTIONS = (0.1, 0.3, 0.4, 0.45)


@dataclass(frozen=True)
class Outliers:
    """Share of a row, size in units of its root mean square, and whether they are on one side."""

    fraction: float = 0.3
    size: float = 100.0
    one_sided: bool = True


class Rows:
    """Rows of known coefficients on known components, with the same share of outliers in every row."""

    def __init__(self, shape: tuple[int, int], rank: int, noise: float, law: Outliers, positive: bool = False) -> None:
        rng = np.random.default_rng([rank, shape[1]])
        self.R, self.truth = rng.standard_normal((shape[1], rank)), rng.standard_normal((shape[0], rank))
        if positive:
            self.R, self.truth = np.abs(self.R), np.abs(self.truth)
        self.Y = self.truth @ self.R.T
        typical = float(np.sqrt(np.mean(self.Y[:50] ** 2)))
        self.noise = noise * typical
        self.Y += self.noise * rng.standard_normal(shape)
        self.outliers, count = np.zeros(shape, bool), round(law.fraction * shape[1])
        for row, hit in zip(self.Y, self.outliers, strict=True):
            where = rng.choice(shape[1], count, replace=False)
            hit[where] = True
            sign = 1 if law.one_sided else rng.choice([-1, 1], count)
            row[where] += law.size * typical * sign * rng.uniform(0.2, 1, count)

    def solve(self) -> Any:
        """Return the coefficients (m, r), given the noise level as `transform` has it."""
        return robust_coefficients(DenseMatrix(self.Y), self.R, self.noise)

    def recovered(self) -> float:
        """Return the share of rows that are recovered."""
        errors = np.linalg.norm((self.solve() - self.truth) @ self.R.T, axis=1)
        if self.noise == 0:
            return float(np.mean(errors < EXACT * np.linalg.norm(self.truth @ self.R.T, axis=1)))
        pairs = zip(self.Y, self.outliers, strict=True)
        clean = [np.linalg.lstsq(self.R[~hit], row[~hit], rcond=None)[0] for row, hit in pairs]
        return float(np.mean(errors < NOISY * np.linalg.norm((np.array(clean) - self.truth) @ self.R.T, axis=1)))


def race(n: int, machine: Machine, repeats: int) -> Table:
    """Time the regression at every rank, with and without noise, beside least squares."""
    cells = []
    for rank, noise in product(RANKS, NOISES):
        rows = Rows((ROWS, n), rank, noise, Outliers())
        plain = partial(np.matmul, rows.Y, np.linalg.pinv(rows.R).T)
        calls: dict[str, Callable[[], object]] = {"ours": rows.solve, "least squares": plain}
        times = interleave(calls, repeats, probes={"read": partial(machine.read, rows.Y)})
        ours, other = times["ours"], times["least squares"].median
        worst = np.linalg.norm(rows.solve() - rows.truth, axis=1).max() / np.linalg.norm(rows.truth, axis=1).mean()
        speeds = [number(ours.median * 1e3), ours.spread, number(ours.reads), number(other * 1e3)]
        cells.append([rank, f"{noise:.0%}", *speeds, float(f"{worst:.1e}")])
    columns = ["rank", "noise", "ms", "quartiles", "read-times", "least squares, ms", "worst error"]
    return Table(f"{ROWS} rows of {n} columns, float64, 30% outliers of size 100", columns, cells)


def breakdown() -> Table:
    """Count recovered rows by the share of outliers."""
    cells = []
    for positive, one_sided, size, noise in product((False, True), (False, True), (10.0, 1000.0), NOISES):
        laws = [Outliers(fraction, size, one_sided) for fraction in FRACTIONS]
        shares = [Rows((SHORT_ROWS, SHORT), SHORT_RANK, noise, law, positive=positive).recovered() for law in laws]
        about = ["positive" if positive else "of both signs", "one" if one_sided else "both", size, f"{noise:.0%}"]
        cells.append([*about, *(number(100 * share) for share in shares)])
    columns = ["components", "sides of outliers", "size", "noise", *(f"{share:.0%} outliers" for share in FRACTIONS)]
    return Table(f"Recovered rows in %, {SHORT_ROWS} rows of {SHORT} columns, rank {SHORT_RANK}", columns, cells)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write transform.json."""
    options = {"n": (8000, "columns of the rows"), "repeats": (7, "rounds of timing")}
    chosen = arguments(__file__, __doc__, given, command="make bench", **options)
    machine = Machine()
    notes = [
        f"{machine.threads} threads. Medians of {chosen.repeats} rounds; read-times are those measured directly before "
        "each call.",
        f"Recovered is a row within {EXACT:g} of the truth, with noise within {NOISY:g} times the error of least "
        "squares on the entries without outliers. The noise level is given, as `transform` has it.",
    ]
    publish(chosen, "Robust coefficients of new rows", [race(chosen.n, machine, chosen.repeats), breakdown()], notes)


if __name__ == "__main__":
    main()
