"""Principal component pursuit: ours against pyrpca's and tensorly's, per iteration and in total.

    python benchmarks/bench_pcp.py [--n 1000,3000] [--repeats 3] [--limit 300] [--threads N] [--results FOLDER]

Rank 5, one entry in ten an outlier, float64. The contestants and their settings are the arena's (docs/arena.md): each
runs in a process of its own to its own tolerance, and one that takes longer than the limit is a row that says so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measure import RESULTS, Table, load_note, number, publish

from lrpca.bench.contest import Contest, Entry, compete
from lrpca.bench.contest.calls import Task, solve
from lrpca.testing import Problem, planted

OURS = "pcp:algorithm=ialm"
CONTESTANTS = (OURS, "pyrpca", "tensorly")
SIZES = (1000, 3000)
RANK, OUTLIERS, TARGET = 5, 0.1, 1e-4
# Goals the project sets itself: faster than both, and the same answer as pyrpca.
AGREEMENT = 1e-5
OTHER_GROWTH = 1.6
# No further round is begun when those before it took longer than this.
_PATIENCE = 60.0
# Answers are compared where pyrpca takes well below a minute.
_COMPARED = 1000


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", default=",".join(map(str, SIZES)), help="sizes, comma-separated (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="most rounds of each size (default: %(default)s)")
    parser.add_argument("--limit", type=float, help="seconds of a call (default: 300; 60 for sizes of your own)")
    parser.add_argument("--threads", type=int, help="for each contestant (default: as OMP_NUM_THREADS says, or all)")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the result file (default: benchmarks/results)"
    )
    chosen = parser.parse_args(given)
    try:
        chosen.sizes = [int(word) for word in chosen.n.split(",")]
    except ValueError:
        parser.error(f"--n={chosen.n} is not a list of sizes; use e.g. 1000,3000")
    if chosen.limit is None:
        chosen.limit = 300.0 if chosen.sizes == list(SIZES) else 60.0
    for name, value, least in (
        ("n", min(chosen.sizes), 50),
        ("repeats", chosen.repeats, 1),
        ("limit", chosen.limit, 1),
    ):
        if value < least:
            parser.error(f"--{name}={value} is below {least}; use at least that")
    if chosen.threads is not None and chosen.threads < 1:
        parser.error(f"--threads={chosen.threads} is not positive; use e.g. 2")
    return chosen


def problem_of(n: int) -> Problem:
    """Return the problem of a size."""
    return planted((n, n), rank=RANK, outlier_fraction=OUTLIERS, random_state=0)


def run_rounds(n: int, chosen: argparse.Namespace) -> list[Contest]:
    """Run all contestants once in every round; slow ones get one round."""
    problem, contests, began = problem_of(n), [], time.perf_counter()
    while len(contests) < chosen.repeats and time.perf_counter() - began < (_PATIENCE if contests else np.inf):
        contests.append(
            compete(
                problem,
                CONTESTANTS,
                target=TARGET,
                time_limit=chosen.limit,
                threads=chosen.threads,
                progress=lambda text: print(f"n = {n}, {text}", file=sys.stderr, flush=True),
            )
        )
    return contests


def is_over(entry: Entry) -> bool:
    """Return whether a contestant was stopped by the limit."""
    return entry.status == "time limit"


def ratio(contests: Sequence[Contest], spec: str, quantity: str) -> float | None:
    """Return how many times as long as ours a contestant takes: the median over the rounds of ratios within a round."""
    pairs = [(getattr(contest[spec], quantity), getattr(contest[OURS], quantity)) for contest in contests]
    ratios = [theirs / ours for theirs, ours in pairs if theirs and ours]
    return median(ratios) if ratios else None


def time_cell(contests: Sequence[Contest], spec: str, quantity: str, limit: float) -> Any:
    """Return a median time, or that the limit came first."""
    entries = [contest[spec] for contest in contests]
    values = [getattr(entry, quantity) for entry in entries]
    if any(is_over(entry) for entry in entries) and (quantity == "seconds" or None in values):
        return f"over {limit:g} s after {max(entry.iterations or 0 for entry in entries)} iterations"
    there = [value for value in values if value is not None]
    return number(median(there)) if there else None


def ratio_cell(contests: Sequence[Contest], spec: str, quantity: str) -> Any:
    """Return a ratio, as a lower bound where the contestant was stopped before it arrived."""
    stopped = any(is_over(contest[spec]) for contest in contests)
    there = all(getattr(contest[spec], quantity) is not None for contest in contests)
    if stopped and (quantity == "seconds" or not there):
        # What it had spent by then; ours is whole.
        bounds = [
            contest[spec].seconds / getattr(contest[OURS], quantity)
            for contest in contests
            if contest[spec].seconds and getattr(contest[OURS], quantity)
        ]
        return f"at least {number(median(bounds))}" if bounds else None
    found = ratio(contests, spec, quantity)
    return None if found is None else number(found)


def speed_table(results: dict[int, list[Contest]], limit: float) -> Table:
    """Return seconds and ratios of all contestants on all sizes."""
    rows: list[list[Any]] = []
    for n, contests in results.items():
        for spec in CONTESTANTS:
            entries = [contest[spec] for contest in contests]
            done = [entry for entry in entries if entry.seconds is not None]
            if not done:
                rows.append([n, spec, *[None] * 8, f"{entries[0].status}: {entries[0].note}"])
                continue
            each = median(entry.seconds_per_iteration or 0.0 for entry in done)
            rows.append(
                [
                    *(n, spec, done[0].iterations, number(1e3 * each)),
                    *(time_cell(contests, spec, name, limit) for name in ("seconds", "seconds_to_target")),
                    number(done[0].error) if done[0].error is not None else None,
                    *(ratio_cell(contests, spec, name) for name in _TIMES),
                    done[0].status,
                ]
            )
    columns = ["n", "contestant", "iterations", "ms per iteration", "seconds", f"seconds to {TARGET:.0e}", "error"]
    columns += ["per iteration, times ours", "in total, times ours", f"to {TARGET:.0e}, times ours", "status"]
    return Table("Principal component pursuit to its tolerance (1e-7 of ‖Y‖), float64", columns, rows)


_TIMES = ("seconds_per_iteration", "seconds", "seconds_to_target")


def goal_rows(results: dict[int, list[Contest]]) -> list[list[Any]]:
    """Return whether ours is faster than each rival, per iteration and in total."""
    rows: list[list[Any]] = []
    for n, contests in results.items():
        for spec in CONTESTANTS[1:]:
            for quantity, words in zip(_TIMES[:2], ("per iteration", "in total"), strict=True):
                # A total that was cut short is a lower bound: below 1 it says nothing.
                found = ratio(contests, spec, quantity)
                cut = quantity == "seconds" and any(is_over(contest[spec]) for contest in contests)
                met = None if found is None or (cut and found <= 1) else found > 1
                rows.append([f"n = {n}: faster than {spec} {words}", ratio_cell(contests, spec, quantity), "> 1", met])
    return rows


def agreement(n: int) -> dict[str, float]:
    """Return ‖X - X_pyrpca‖ / ‖X_pyrpca‖, all solved to a tolerance of 1e-7; nothing without pyrpca.

    With its defaults ours goes the same way as pyrpca, step by step; with another growth of the penalty it does not.
    """
    try:
        import pyrpca  # noqa: F401
    except ImportError:
        return {}
    Y = problem_of(n).Y
    theirs = solve(Task("pyrpca", RANK), Y, lambda answer: False).low_rank
    found = {}
    for words, settings in (("", {}), (f", by another way (growth={OTHER_GROWTH})", {"growth": OTHER_GROWTH})):
        L, R = solve(Task("pcp", RANK, {"algorithm": "ialm", **settings}), Y, lambda answer: False).low_rank
        found[words] = float(np.linalg.norm(L @ R.T - theirs) / np.linalg.norm(theirs))
    return found


def main(given: Sequence[str] | None = None) -> None:
    """Measure all sizes, print the tables and write pcp.json."""
    chosen = arguments(given)
    load, began = load_note(), time.perf_counter()
    results = {n: run_rounds(n, chosen) for n in chosen.sizes}
    goals = goal_rows(results)
    compared = min(chosen.sizes)
    differences = agreement(compared) if compared <= _COMPARED else {}
    for words, size in differences.items():
        goals.append([f"n = {compared}: difference to pyrpca's X{words}", number(size), "< 1e-5", size < AGREEMENT])
    tables = [speed_table(results, chosen.limit), Table("The goals", ["", "measured", "goal", "met"], goals)]
    first = next(iter(results.values()))[0]
    settings = {entry.spec: entry.settings for entry in first.entries if entry.seconds is not None}
    rounds = ", ".join(f"{len(contests)} for n = {n}" for n, contests in results.items())
    notes = [
        "Ratios are taken within a round, every contestant once, and the median over the rounds counts "
        f"(rounds: {rounds}). Compilation and the measuring of errors are not on the clock.",
        "A contestant that the limit stopped has a lower bound in place of its ratio.",
        f"Settings, for n = {chosen.sizes[0]}: "
        + "; ".join(f"{spec}: {_settings(settings[spec])}" for spec in CONTESTANTS if spec in settings),
        f"Threads for each contestant: {first.conditions['threads']}. Versions: "
        + ", ".join(f"{name} {first.conditions['versions'][name]}" for name in ("pyrpca", "tensorly"))
        + ".",
        f"The whole run took {time.perf_counter() - began:.0f} s. {load}",
    ]
    command = "make bench" if chosen.sizes == list(SIZES) else f"python benchmarks/bench_pcp.py --n {chosen.n}"
    publish(
        chosen.results / "pcp.json", title="Principal component pursuit", command=command, tables=tables, notes=notes
    )


def _settings(settings: dict[str, Any]) -> str:
    shown = {name: value for name, value in settings.items() if value is not None}
    return ", ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in shown.items()
    )


if __name__ == "__main__":
    main()
