"""A whole default call: time, passes, memory beside Y, and what the first call costs.

    python benchmarks/bench_call.py [--n 8000] [--repeats 9]

The problem is the paper's: rank 5, one entry in ten an outlier, float32, to a relative error of 1e-6.
"""

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

import lrpca
from lrpca.bench import measuring
from lrpca.bench.measuring import Table, Timing, begin_peak, call_fresh, interleave, number, peak_memory, publish
from lrpca.bench.probes import Machine, Planted, planted

FULL, RANK, OUTLIERS, ERROR = 8000, 5, 0.1, 1e-6
# Goals the project sets itself for this problem, Y of full size: read-times, % of Y, seconds.
CALL_READ_TIMES, MEMORY, SECOND_PROCESS = 30.0, 10.0, 1.0
MOST_PASSES, SECOND_PROCESSES = 60, 3
START = """
import json, time
marks = [time.perf_counter()]
import numpy as np; marks.append(time.perf_counter())
import lrpca; marks.append(time.perf_counter())
import numba; marks.append(time.perf_counter())
rng = np.random.default_rng(0)
Y = (rng.standard_normal((300, 3)) @ rng.standard_normal((3, 200))).astype(np.float32)
Y[rng.random(Y.shape) < 0.1] += 5
marks[-1:] = [marks[-1], time.perf_counter()]
for _ in range(2):
    lrpca.decompose(Y, rank=3); marks.append(time.perf_counter())
print(json.dumps([b - a for a, b in zip(marks, marks[1:])]))
"""
STEPS = ("import numpy", "import lrpca, beyond numpy", "import numba", "")
STEPS += ("first call, beyond import numba", "second call")


def decompose(problem: Planted, schedule: Any, passes: int | None, note: Any = None) -> lrpca.Decomposition:
    """Run the default call, or `passes` iterations exactly."""
    exactly: dict[str, Any] = {} if passes is None else {"tol": 0, "max_iter": passes}
    with warnings.catch_warnings(action="ignore", category=lrpca.ConvergenceWarning):
        return lrpca.decompose(problem.Y, rank=RANK, schedule=schedule, callback=note, **exactly)


def passes_needed(problem: Planted, schedule: lrpca.Schedule | None) -> int:
    """Return after how many passes the error is at most 1e-6; the most that are tried, for never."""
    errors: list[float] = []

    def note(state: Any) -> bool:
        errors.append(problem.error(state.L, state.R))
        return errors[-1] <= ERROR

    decompose(problem, schedule, MOST_PASSES, note)
    return len(errors)


def time_calls(problem: Planted, machine: Machine, repeats: int) -> Table:
    """Time the default call and the paper's form in common rounds with reading Y."""
    n = len(problem.Y)
    numbers = [6 * problem.typical, 0.3 * problem.typical], [0, 0.8]
    by_hand = lrpca.Schedule(*numbers, shape=(n, n), rank=RANK, tail=(1.0, 0.6))
    runs: dict[str, tuple[lrpca.Schedule | None, int | None]] = {
        "default call": (None, None),
        "default, ended at 1e-6": (None, passes_needed(problem, None)),
        "paper's form, set by hand": (by_hand, passes_needed(problem, by_hand)),
    }
    calls = {name: partial(decompose, problem, *how) for name, how in runs.items()}
    times = interleave(calls, repeats, probes={"read": partial(machine.read, problem.Y)})
    return calls_table(problem, times, {name: call() for name, call in calls.items()})


def calls_table(problem: Planted, times: dict[str, Timing], results: dict[str, lrpca.Decomposition]) -> Table:
    n = len(problem.Y)
    read = Timing([second for timing in times.values() for second in timing.probes["read"]])
    rows: list[list[Any]] = [["reading Y once", number(read.median * 1e3), read.spread, 1.0, None, None, 1, None, None]]
    for name, d in results.items():
        goal = CALL_READ_TIMES if name == "default call" and n == FULL else None
        cells = [number(times[name].median * 1e3), times[name].spread, number(times[name].reads), goal]
        rows.append([name, *cells, d.n_iter, d.n_reads, float(f"{problem.error(d.L, d.R):.2g}"), d.reason])
    columns = ["call", "ms", "quartiles", "read-times", "goal, at most", "iterations", "reads of Y"]
    caption = f"Whole calls, Y {n} x {n}, float32, rank {RANK}, {OUTLIERS:.0%} outliers"
    return Table(caption, [*columns, "relative error", "reason"], rows)


def memory(n: int) -> list[int]:
    """Return the bytes of Y and how far a default call raised the resident memory above what it was with Y alone."""
    lrpca.decompose(planted(400, rank=RANK, outlier_fraction=OUTLIERS).Y, rank=RANK)
    problem = planted(n, rank=RANK, outlier_fraction=OUTLIERS)
    before = begin_peak()
    lrpca.decompose(problem.Y, rank=RANK)
    return [problem.Y.nbytes, peak_memory() - before]


def memory_table(n: int) -> Table:
    """Return the table of the memory one default call needs beside Y."""
    size, beside = call_fresh(memory, n)
    row = [number(size / 1e6), number(beside / 1e6), number(100 * beside / size), MEMORY if n == FULL else None]
    columns = ["Y, MB", "beside Y, MB", "% of Y", "goal, at most"]
    return Table("Peak memory of the default call beside Y (resident, kernels already loaded)", columns, [row])


def start_table() -> Table:
    """Return the table of the first call of a process, with an empty and with a filled cache of compiled code."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CACHE_DIR": folder}
        command = [sys.executable, "-c", START]
        runs = [json.loads(subprocess.check_output(command, env=variables)) for _ in range(1 + SECOND_PROCESSES)]
    later = np.median(runs[1:], axis=0)
    goals = {STEPS[4]: SECOND_PROCESS}
    steps = zip(STEPS, runs[0], later, strict=True)
    rows = [[name, number(a), number(float(b)), goals.get(name)] for name, a, b in steps]
    columns = ["step", "nothing compiled yet, s", "later processes, s", "goal, at most"]
    return Table("Start of a process, float32 300 x 200", columns, [row for row in rows if row[0]])


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write call.json."""
    options = {"n": (FULL, "rows and columns of Y"), "repeats": (9, "rounds of timing")}
    chosen = measuring.arguments(__file__, __doc__, given, command="make bench", **options)
    start, beside, machine = start_table(), memory_table(chosen.n), Machine()
    problem = planted(chosen.n, rank=RANK, outlier_fraction=OUTLIERS)
    notes = [
        f"{machine.threads} threads. Medians of {chosen.repeats} rounds; each round times everything once, in shuffled "
        "order. Read-times are those measured directly before each call.",
        "The default call is given the rank only and ends by its own rule; the paper's form is given the number of "
        f"iterations at which its error falls below {ERROR:g} (at most {MOST_PASSES}), which is not known in practice.",
    ]
    publish(chosen, "A whole call", [time_calls(problem, machine, chosen.repeats), beside, start], notes)


if __name__ == "__main__":
    main()
