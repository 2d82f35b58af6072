"""Robust coefficients of new rows: against reading them, against the same regression in NumPy, against least squares.

    python benchmarks/bench_transform.py [--n 8000] [--repeats 7]

A thousand rows of n columns with three outliers in ten entries, all on one side. A read-time is the time of a plain
parallel sum over the same rows, measured directly before. How many outliers a row may hold is counted on shorter rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from lrpca.bench.measuring import Table, arguments, clock, interleave, number, publish
from lrpca.bench.probes import Machine
from lrpca.core.factors import thin_svd
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.rows import _by_blocks, robust_coefficients

ROWS = 1000
# NumPy takes so long that it gets a part of the rows; times are by row.
FEW_ROWS = 20
RANKS = (1, 2, 5, 10, 20)
NOISES = (0.0, 0.05)
FRACTION, SIZE = 0.3, 100.0
# Recovery is counted on rows of this length, and means so close to the truth, or to least squares on clean entries.
SHORT, SHORT_ROWS, SHORT_RANK = 1000, 40, 5
EXACT, NOISY = 1e-8, 2.5
FRACTIONS = (0.1, 0.3, 0.4, 0.45)


@dataclass(frozen=True)
class Rows:
    """Rows of known coefficients on known components, with outliers in the same share of every row."""

    Y: Any  # (m, n)
    R: Any  # (n, r)
    truth: Any  # (m, r)
    outliers: Any  # (m, n) bool
    noise: float

    def error(
        self,
        got: Any,  # (m, r)
    ) -> float:
        """Return the largest error of a row, relative to the typical size of coefficients."""
        return float(
            np.linalg.norm(got - self.truth[: len(got)], axis=1).max() / np.linalg.norm(self.truth, axis=1).mean()
        )


def corrupted(
    shape: tuple[int, int],
    rank: int,
    *,
    noise: float,
    fraction: float = FRACTION,
    size: float = SIZE,
    one_sided: bool = True,
    positive: bool = False,
) -> Rows:
    """Return rows with `fraction` outliers each, of 0.2 to 1 times `size` times the root mean square of the rows."""
    rng = np.random.default_rng([rank, shape[1]])
    R, truth = rng.standard_normal((shape[1], rank)), rng.standard_normal((shape[0], rank))
    if positive:
        R, truth = np.abs(R), np.abs(truth)
    Y = truth @ R.T
    typical = float(np.sqrt(np.mean(Y[:50] ** 2)))
    Y += noise * typical * rng.standard_normal(shape)
    outliers = np.zeros(shape, bool)
    count = round(fraction * shape[1])
    for row, hit in zip(Y, outliers, strict=True):
        where = rng.choice(shape[1], count, replace=False)
        hit[where] = True
        sign = 1 if one_sided else rng.choice([-1, 1], count)
        row[where] += size * typical * sign * rng.uniform(0.2, 1, count)
    return Rows(Y, R, truth, outliers, noise * typical)


def in_numpy(
    Y: Any,  # (m, n)
    R: Any,  # (n, r)
    noise: float,
) -> Any:
    """Return the coefficients by forty re-weighted least squares in NumPy, the way complex rows still go."""
    U, sizes, Vh = thin_svd(R)
    return _by_blocks(DenseMatrix(Y), U, Vh / sizes[:, None], noise, None, False)


def race(n: int, machine: Machine, repeats: int) -> Table:
    """Time the regression at every rank, with and without noise, beside NumPy and least squares."""
    cells = []
    for rank, noise in product(RANKS, NOISES):
        rows = corrupted((ROWS, n), rank, noise=noise)
        few = rows.Y[:FEW_ROWS]
        calls: dict[str, Callable[[], object]] = {
            "ours": partial(robust_coefficients, DenseMatrix(rows.Y), rows.R, rows.noise),
            "least squares": partial(np.matmul, rows.Y, np.linalg.pinv(rows.R).T),
        }
        times = interleave(calls, repeats, probes={"read": partial(machine.read, rows.Y)})
        slow, theirs = clock(partial(in_numpy, few, rows.R, rows.noise))
        ours = times["ours"]
        speeds = (ours.reads, times["least squares"].median * 1e3, slow / FEW_ROWS / (ours.median / ROWS))
        errors = [float(f"{rows.error(got):.1e}") for got in (calls["ours"](), theirs)]
        cells.append([rank, f"{noise:.0%}", number(ours.median * 1e3), ours.spread, *map(number, speeds), *errors])
    columns = ["rank", "noise", "ms", "quartiles", "read-times", "least squares, ms"]
    columns += ["NumPy takes, times as long", "worst error", f"worst of {FEW_ROWS} rows, NumPy"]
    return Table(f"{ROWS} rows of {n} columns, float64, {FRACTION:.0%} outliers of size {SIZE:g}", columns, cells)


def recovered(rows: Rows, got: Any) -> float:
    """Return the share of rows that are recovered."""
    errors = np.linalg.norm((got - rows.truth) @ rows.R.T, axis=1)
    if rows.noise == 0:
        return float(np.mean(errors < EXACT * np.linalg.norm(rows.truth @ rows.R.T, axis=1)))
    clean = [
        np.linalg.lstsq(rows.R[~hit], row[~hit], rcond=None)[0] for row, hit in zip(rows.Y, rows.outliers, strict=True)
    ]
    best = np.linalg.norm((np.array(clean) - rows.truth) @ rows.R.T, axis=1)
    return float(np.mean(errors < NOISY * best))


def breakdown() -> Table:
    """Count recovered rows by the share of outliers, ours and NumPy's."""
    cells = []
    for positive, one_sided, size, noise in product((False, True), (False, True), (10.0, 1000.0), NOISES):
        shares = []
        for fraction in FRACTIONS:
            kind: dict[str, Any] = {"fraction": fraction, "size": size, "one_sided": one_sided, "positive": positive}
            rows = corrupted((SHORT_ROWS, SHORT), SHORT_RANK, noise=noise, **kind)
            ours = recovered(rows, robust_coefficients(DenseMatrix(rows.Y), rows.R, rows.noise))
            shares += [number(100 * ours), number(100 * recovered(rows, in_numpy(rows.Y, rows.R, rows.noise)))]
        components = "positive" if positive else "of both signs"
        cells.append([components, "one" if one_sided else "both", size, f"{noise:.0%}", *shares])
    columns = ["components", "sides of outliers", "size", "noise"]
    columns += [f"{fraction:.0%}, {who}" for fraction in FRACTIONS for who in ("ours", "NumPy")]
    return Table(f"Recovered rows in %, {SHORT_ROWS} rows of {SHORT} columns, rank {SHORT_RANK}", columns, cells)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write transform.json."""
    options = {"n": (8000, "columns of the rows"), "repeats": (7, "rounds of timing")}
    chosen = arguments(__file__, __doc__, given, command="make bench", **options)
    machine = Machine()
    notes = [
        f"{machine.threads} threads. Medians of {chosen.repeats} rounds; read-times are those measured directly before "
        f"each call. NumPy is timed once, on {FEW_ROWS} rows, and compared by row.",
        f"Recovered is a row within {EXACT:g} of the truth, with noise within {NOISY:g} times the error of least "
        "squares on the entries without outliers. The noise level is given, as `transform` does.",
    ]
    publish(chosen, "Robust coefficients of new rows", [race(chosen.n, machine, chosen.repeats), breakdown()], notes)


if __name__ == "__main__":
    main()
