"""The method "sampled" against IRCUR and the full default: seconds, errors, and how much of Y is read.

    python benchmarks/bench_sampled.py [--n 12000] [--repeats 3]

Rank 5, float32, outliers of up to five times the size of an entry, with and without noise. A second table finds the
size from which sampling is the faster way, which is what "auto" goes by.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import lrpca
from lrpca.bench.measuring import Table, arguments, interleave, number, publish
from lrpca.bench.probes import Planted, planted
from lrpca.solvers.methods import pays_to_sample

RANK = 5
FULL = 12_000
METHODS = ("sampled", "ircur", "lrpca")
# Outlier fraction, and noise in units of a typical entry.
PROBLEMS = ((0.1, 0.0), (0.1, 0.01), (0.3, 0.0), (0.3, 0.01))
# Largest outlier, in units of a typical entry.
OUTLIER_SIZE = 5.0
SIZES = (1500, 2000, 3000, 4000, 6000)
# Goals the project sets itself: faster than IRCUR, three times as fast as the default, and less than half of Y read
# where there is no noise.
FASTER, READS = 3.0, 0.5
_ROWS = 256


def problem_of(n: int, outliers: float, noise: float) -> Planted:
    """Return a problem with gross outliers and noise, made in place."""
    problem = planted(n, rank=RANK, outlier_fraction=0.0)
    rng = np.random.default_rng(1)
    for start in range(0, n, _ROWS):
        block = problem.Y[start : start + _ROWS]
        block += noise * problem.typical * rng.standard_normal(block.shape, dtype=np.float32)
        hit = rng.random(block.shape, dtype=np.float32) < outliers
        block[hit] += problem.typical * OUTLIER_SIZE * rng.uniform(-1, 1, np.count_nonzero(hit)).astype(np.float32)
    return problem


def compare(n: int, outliers: float, noise: float, repeats: int) -> list[list[Any]]:
    """Return the rows of one problem, one for each method."""
    problem = problem_of(n, outliers, noise)
    results: dict[str, lrpca.Decomposition] = {}

    def run(method: str) -> None:
        results[method] = lrpca.decompose(problem.Y, RANK, method=method)

    times = interleave({method: partial(run, method) for method in METHODS}, repeats)
    rows = []
    for method in METHODS:
        d, ratio = results[method], 1 / times["sampled"].relative_to(times[method].seconds)
        cells = [f"{outliers:.0%}", f"{noise:.0%}", method, number(times[method].median), number(ratio)]
        rows.append([*cells, number(problem.error(d.L, d.R)), d.n_reads, d.n_iter, d.reason])
    return rows


def crossover(sizes: Sequence[int], repeats: int) -> Table:
    """Return from which size on sampling is the faster way, with noise and without."""
    rows = []
    for n in sizes:
        cells: list[Any] = [n]
        for noise in (0.0, 0.01):
            problem = problem_of(n, 0.1, noise)
            calls = {name: partial(lrpca.decompose, problem.Y, RANK, method=name) for name in ("sampled", "lrpca")}
            times = interleave(calls, repeats)
            cells += [number(1e3 * times[name].median) for name in calls]
            cells.append(number(1 / times["sampled"].relative_to(times["lrpca"].seconds)))
        rows.append([*cells, "sampled" if pays_to_sample((n, n), RANK) else "lrpca"])
    columns = ["n", "sampled, ms", "lrpca, ms", "ratio", "noise: sampled, ms", "lrpca, ms", "ratio", "auto"]
    return Table("From which size sampling is faster, 10% outliers, without noise and with 1%", columns, rows)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write sampled.json."""
    options = {"n": (FULL, "rows and columns of Y, 1500 at least"), "repeats": (3, "rounds of timing")}
    chosen = arguments(__file__, __doc__, given, **options)
    rows = [row for problem in PROBLEMS for row in compare(chosen.n, *problem, chosen.repeats)]
    columns = ["outliers", "noise", "method", "seconds", "times sampled's", "relative error", "reads of Y"]
    table = Table(f"Y {chosen.n} x {chosen.n}, float32, rank {RANK}", [*columns, "iterations", "reason"], rows)
    notes = [
        f"Medians of {chosen.repeats} rounds; each round times every method once, in shuffled order, and ratios are "
        "those within a round.",
        f"Goals: faster than ircur at an error no larger, at least {FASTER:g} times as fast as lrpca at the same "
        f"error, and less than {READS:g} reads of Y without noise.",
    ]
    publish(chosen, "Sampling", [table, crossover([n for n in SIZES if n <= chosen.n], chosen.repeats)], notes)


if __name__ == "__main__":
    main()
