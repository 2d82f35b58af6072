"""`RobustPCA.fit` against `decompose`: what the scikit-learn front costs.

    python benchmarks/bench_estimator.py [--n 8000] [--repeats 7]

The paper's problem of rank 5 with 10% outliers, in single precision, without noise and with 1%. `fit` validates its
input, solves with one component more for the centre, and takes the principal axes of the result.
"""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from lrpca import RobustPCA, decompose
from lrpca.bench.measuring import Table, arguments, interleave, number, publish
from lrpca.bench.probes import Machine
from lrpca.testing import planted

RANK, NOISES = 5, (0.0, 0.01)


def race(n: int, machine: Machine, repeats: int) -> Table:
    """Time fits and decompositions of the same matrices."""
    rows = []
    for noise in NOISES:
        Y = planted((n, n), rank=RANK, outlier_fraction=0.1, noise=noise, dtype=np.float32, random_state=0).Y
        calls: dict[str, Any] = {
            f"decompose, rank {RANK}": partial(decompose, Y, RANK),
            f"decompose, rank {RANK + 1}": partial(decompose, Y, RANK + 1),
            f"fit, {RANK} components, center=False": partial(RobustPCA(RANK, center=False).fit, Y),
            f"fit, {RANK} components": partial(RobustPCA(RANK).fit, Y),
            "fit, automatic": partial(RobustPCA().fit, Y),
        }
        times = interleave(calls, repeats, probes={"read": partial(machine.read, Y)})
        first = times[f"decompose, rank {RANK}"].seconds
        for name, timing in times.items():
            ratios = (timing.reads, timing.relative_to(first), beside(calls[name]) / Y.nbytes)
            rows.append([f"{noise:.0%}", name, number(timing.median * 1e3), timing.spread, *map(number, ratios)])
    columns = ["noise", "call", "ms", "quartiles", "read-times", f"times decompose, rank {RANK}", "memory beside Y"]
    return Table(f"{n} x {n}, float32, {RANK} components, 10% outliers", columns, rows)


def beside(call: Any) -> int:
    """Return the most memory that a call holds beside its input, in bytes."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return int(peak)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write estimator.json."""
    warnings.simplefilter("ignore")
    options = {"n": (8000, "rows and columns of Y"), "repeats": (7, "rounds of timing")}
    chosen = arguments(__file__, __doc__, given, command="make bench", **options)
    machine = Machine()
    note = (
        f"{machine.threads} threads. Medians of {chosen.repeats} rounds; ratios are between calls of the same round. "
        "Memory beside Y is what Python and NumPy allocate at most, as a part of Y."
    )
    publish(chosen, "RobustPCA.fit against decompose", [race(chosen.n, machine, chosen.repeats)], [note])


if __name__ == "__main__":
    main()
