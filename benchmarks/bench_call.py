"""A whole default call: time by stages, passes, memory beside Y, and what the first call costs.

    python benchmarks/bench_call.py [--n 8000] [--repeats 9] [--results FOLDER]

The problem is the paper's: rank 5, one entry in ten an outlier, float32, to a relative error of 1e-6. With LRPCA_DATA
set to a folder that holds ``published-lrpca/lrpcanet_alpha0.1.mat``, the published model runs too.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from fresh_process import ask
from limits import Machine
from measure import FULL, Table, Timing, arguments, interleave, load_note, number, pooled, publish
from problems import Planted, planted

import lrpca
from lrpca.matrices.dense import DenseMatrix

RANK = 5
OUTLIERS = 0.1
ERROR = 1e-6
# Goals the project sets itself for this problem, Y of full size: read-times, % of Y, seconds.
CALL_READ_TIMES = 30.0
MEMORY = 10.0
SECOND_PROCESS = 1.0
_MOST_PASSES = 60
_SECOND_PROCESSES = 3
STAGES = (
    "checks, sample",
    "initialisation: passes",
    "initialisation: small matrices",
    "iteration: passes",
    "iteration: small matrices",
    "normal form, noise level, result",
)


class Stages:
    """Clocks around every pass of a call; the gaps between them are the work on small matrices."""

    def __init__(self) -> None:
        self.runs: list[dict[str, float]] = []
        self.counts: dict[str, int] = {}

    def call(self, function: Callable[[], object]) -> None:
        """Run a call with clocks around `DenseMatrix.run_pass`."""
        spans: list[tuple[str, float, float]] = []
        original = DenseMatrix.run_pass

        def timed(matrix: DenseMatrix, L: Any, *rest: Any, **named: Any) -> Any:
            # The sketches of the initialisation are passes with factors of rank 0.
            stage = "iteration" if L.shape[1] else "initialisation"
            began = time.perf_counter()
            result = original(matrix, L, *rest, **named)
            spans.append((stage, began, time.perf_counter()))
            return result

        with mock.patch.object(DenseMatrix, "run_pass", timed):
            began = time.perf_counter()
            function()
            ended = time.perf_counter()
        self._record(began, spans, ended)

    def _record(self, began: float, spans: list[tuple[str, float, float]], ended: float) -> None:
        seconds = dict.fromkeys(STAGES, 0.0)
        seconds[STAGES[0]] = spans[0][1] - began
        for i, (stage, start, end) in enumerate(spans):
            seconds[f"{stage}: passes"] += end - start
            if i + 1 < len(spans):
                seconds[f"{stage}: small matrices"] += spans[i + 1][1] - end
        seconds[STAGES[-1]] = ended - spans[-1][2]
        self.runs.append(seconds)
        self.counts = {
            f"{stage}: passes": sum(span[0] == stage for span in spans) for stage in ("initialisation", "iteration")
        }


def published_form(problem: Planted) -> dict[str, lrpca.Schedule]:
    """Return schedules of the paper's form: one set by hand, and the published one where it is at hand."""
    n = len(problem.Y)
    found = {
        "paper's form, set by hand": lrpca.Schedule(
            [6 * problem.typical, 0.3 * problem.typical], [0, 0.8], shape=(n, n), rank=RANK, tail=(1.0, 0.6)
        )
    }
    data = os.environ.get("LRPCA_DATA")
    file = Path(data or "") / "published-lrpca" / "lrpcanet_alpha0.1.mat"
    if data and file.is_file():
        found["paper's published model"] = lrpca.Schedule.from_mat(file, shape=(1000, 1000), rank=5)
    return found


def decompose(
    problem: Planted, schedule: lrpca.Schedule | None, passes: int | None, note: Callable[[Any], bool] | None = None
) -> lrpca.Decomposition:
    """Run the default call, or `passes` iterations exactly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lrpca.ConvergenceWarning)
        if passes is None:
            return lrpca.decompose(problem.Y, rank=RANK, schedule=schedule, callback=note)
        return lrpca.decompose(problem.Y, rank=RANK, schedule=schedule, tol=0, max_iter=passes, callback=note)


def passes_needed(problem: Planted, schedule: lrpca.Schedule | None) -> tuple[int | None, list[list[Any]]]:
    """Return after how many passes the error is at most 1e-6 (None: never), and the course of the iteration."""
    course: list[list[Any]] = []

    def note(state: Any) -> bool:
        error = problem.error(state.L, state.R)
        course.append(
            [state.iteration, *(float(f"{x:.3g}") for x in (state.threshold, state.kept, state.change, error))]
        )
        return error <= ERROR

    decompose(problem, schedule, _MOST_PASSES, note)
    return (len(course) if course[-1][-1] <= ERROR else None), course


def time_calls(problem: Planted, machine: Machine, repeats: int) -> list[Table]:
    """Time the default call and the paper's form in common rounds with reading Y."""
    stages = Stages()
    needed, course = passes_needed(problem, None)
    forms = published_form(problem)
    counts = {name: passes_needed(problem, schedule)[0] for name, schedule in forms.items()}
    contestants: dict[str, Callable[[], object]] = {
        "default call": partial(stages.call, partial(decompose, problem, None, None)),
    }
    runs: dict[str, tuple[lrpca.Schedule | None, int | None]] = {"default call": (None, None)}
    if needed is not None:
        runs["default, ended at 1e-6"] = (None, needed)
    runs.update({name: (schedule, counts[name] or _MOST_PASSES) for name, schedule in forms.items()})
    for name, (schedule, passes) in runs.items():
        contestants.setdefault(name, partial(decompose, problem, schedule, passes))
    times = interleave(contestants, repeats, probes={"read": partial(machine.read, problem.Y)})
    results = {name: decompose(problem, *numbers) for name, numbers in runs.items()}
    return [
        _calls_table(problem, times, results),
        _stages_table(stages, times["default call"], results["default call"]),
        Table(
            f"Course of the default, up to an error of {ERROR:g}",
            ["iteration", "threshold", "kept", "relative change", "relative error"],
            course,
        ),
    ]


def _calls_table(problem: Planted, times: dict[str, Timing], results: dict[str, lrpca.Decomposition]) -> Table:
    n = len(problem.Y)
    read = pooled(times, "read")
    rows: list[list[Any]] = [["reading Y once", number(read.median * 1e3), read.spread, 1.0, None, None, 1, None, None]]
    for name, d in results.items():
        timing = times[name]
        error = problem.error(d.L, d.R)
        goal = CALL_READ_TIMES if name == "default call" and n == FULL else None
        cells = [number(timing.median * 1e3), timing.spread, number(timing.relative_to(timing.probes["read"])), goal]
        rows.append([name, *cells, d.n_iter, d.n_reads, float(f"{error:.2g}"), d.reason])
    columns = [
        "call",
        "ms",
        "quartiles",
        "read-times",
        "goal, at most",
        "iterations",
        "reads of Y",
        "relative error",
        "reason",
    ]
    return Table(f"Whole calls, Y {n} x {n}, float32, rank {RANK}, {OUTLIERS:.0%} outliers", columns, rows)


def _stages_table(stages: Stages, timing: Timing, d: lrpca.Decomposition) -> Table:
    # One round's own numbers, so that they add up; the first recorded call was the untimed one.
    middle = int(np.argsort(timing.seconds)[len(timing.seconds) // 2])
    run, read = stages.runs[1 + middle], timing.probes["read"][middle]
    total = sum(run.values())
    rows = []
    for stage in STAGES:
        count = stages.counts.get(stage)
        each = number(run[stage] / count / read) if count else None
        cells = [number(run[stage] * 1e3), number(run[stage] / read), number(100 * run[stage] / total)]
        rows.append([stage, count, *cells, each])
    rows.append(["all", d.n_reads, number(total * 1e3), number(total / read), 100, None])
    columns = ["stage", "reads of Y", "ms", "read-times", "% of the call", "read-times per pass"]
    return Table("Where the median default call spends its time", columns, rows)


def measure_memory(n: int) -> Table:
    """Return the table of the memory one default call needs beside Y."""
    answer = ask("memory", str(n), str(RANK))
    share = 100 * answer["beside"] / answer["Y"]
    goal = MEMORY if n == FULL else None
    return Table(
        "Peak memory of the default call beside Y (resident, kernels already loaded)",
        ["Y, MB", "beside Y, MB", "% of Y", "goal, at most"],
        [[number(answer["Y"] / 1e6), number(answer["beside"] / 1e6), number(share), goal]],
    )


def measure_start() -> Table:
    """Return the table of the first call of a process, with an empty and with a filled cache of compiled code."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {"NUMBA_CACHE_DIR": folder}
        empty = ask("start", environment=environment)
        filled = [ask("start", environment=environment) for _ in range(_SECOND_PROCESSES)]
    later = {name: float(np.median([answer[name] for answer in filled])) for name in empty}
    labels = {
        "numpy": "import numpy",
        "lrpca": "import lrpca, beyond numpy",
        "numba": "import numba",
        "first": "first call, beyond import numba",
        "second": "second call",
    }
    goals = {"first": SECOND_PROCESS}
    rows = [[labels[name], number(empty[name]), number(later[name]), goals.get(name)] for name in labels]
    columns = ["step", "nothing compiled yet, s", "later processes, s", "goal, at most"]
    return Table("Start of a process, float32 300 x 200", columns, rows)


def main() -> None:
    """Measure, print and write call.json."""
    chosen = arguments(__doc__ or "", repeats=9)
    load = load_note()
    start, memory = measure_start(), measure_memory(chosen.n)
    machine = Machine()
    problem = planted(chosen.n, rank=RANK, outlier_fraction=OUTLIERS)
    tables = time_calls(problem, machine, chosen.repeats)
    publish(
        chosen.results / "call.json",
        title="A whole call",
        command="make bench",
        tables=[*tables, memory, start],
        notes=[
            f"{machine.threads} threads. Medians of {chosen.repeats} rounds; each round times everything once, in "
            "shuffled order. Read-times are those measured directly before each call.",
            "The default call is told the rank only and ends by its own rule; the paper's form is given the number of "
            f"iterations at which its error falls below {ERROR:g} (at most {_MOST_PASSES}), which nobody can know.",
            load,
        ],
    )


if __name__ == "__main__":
    main()
