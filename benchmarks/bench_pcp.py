"""Principal component pursuit: ours against pyrpca's and tensorly's, per iteration and in total.

    python benchmarks/bench_pcp.py [--n 1000,3000] [--repeats 3] [--limit 300]

Rank 5, one entry in ten an outlier, float64. The contestants and their settings are the arena's (docs/arena.md): each
runs in a process of its own to its own tolerance, and one that takes longer than the limit is a row that says so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from lrpca.bench.contest import Conditions, Contest, compete
from lrpca.bench.contest.methods import Task, solve
from lrpca.bench.measuring import Table, arguments, number, publish
from lrpca.testing import Problem, planted

OURS = "pcp:algorithm=ialm"
CONTESTANTS = (OURS, "pyrpca", "tensorly")
RANK, OUTLIERS, TARGET = 5, 0.1, 1e-4
# Goals the project sets itself: faster than both, and the same answer as pyrpca, also by another way.
AGREEMENT, OTHER_GROWTH = 1e-5, 1.6
TIMES = ("seconds_per_iteration", "seconds", "seconds_to_target")
# No further round is begun when those before it took longer; answers are compared where pyrpca takes below a minute.
PATIENCE, COMPARED = 60.0, 1000


def problem_of(n: int) -> Problem:
    """Return the problem of a size."""
    return planted((n, n), rank=RANK, outlier_fraction=OUTLIERS, random_state=0)


def run_rounds(n: int, chosen: argparse.Namespace) -> list[Contest]:
    """Run all contestants once in every round; slow ones get one round."""
    problem, contests, began = problem_of(n), [], time.perf_counter()
    conditions = Conditions(target=TARGET, time_limit=chosen.limit)
    while len(contests) < chosen.repeats and time.perf_counter() - began < (PATIENCE if contests else np.inf):
        progress = lambda text: print(f"n = {n}, {text}", file=sys.stderr, flush=True)  # noqa: E731
        contests.append(compete(problem, CONTESTANTS, conditions, progress=progress))
    return contests


def is_cut(contests: Sequence[Contest], spec: str, quantity: str) -> bool:
    """Tell whether the limit came before the quantity was there."""
    entries = [contest[spec] for contest in contests]
    late = any(entry.status == "time limit" for entry in entries)
    return late and (quantity == "seconds" or any(getattr(entry, quantity) is None for entry in entries))


def ratio(contests: Sequence[Contest], spec: str, quantity: str) -> float | None:
    """Return how many times as long as ours a contestant takes: the median over the rounds of ratios within a round.

    Where the limit came first it is what it had spent by then, while ours is whole: a lower bound.
    """
    theirs = "seconds" if is_cut(contests, spec, quantity) else quantity
    pairs = [(getattr(contest[spec], theirs), getattr(contest[OURS], quantity)) for contest in contests]
    ratios = [other / ours for other, ours in pairs if other and ours]
    return median(ratios) if ratios else None


def ratio_cell(contests: Sequence[Contest], spec: str, quantity: str) -> Any:
    """Return a ratio as a cell, called a bound where it is one."""
    if (found := ratio(contests, spec, quantity)) is None:
        return None
    return f"at least {number(found)}" if is_cut(contests, spec, quantity) else number(found)


def time_cell(contests: Sequence[Contest], spec: str, quantity: str, limit: float) -> Any:
    """Return a median time, or that the limit came first."""
    entries = [contest[spec] for contest in contests]
    if is_cut(contests, spec, quantity):
        return f"over {limit:g} s after {max(entry.iterations or 0 for entry in entries)} iterations"
    there = [value for entry in entries if (value := getattr(entry, quantity)) is not None]
    return number(median(there)) if there else None


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
            error = None if done[0].error is None else number(done[0].error)
            seconds = [time_cell(contests, spec, name, limit) for name in TIMES[1:]]
            ratios = [ratio_cell(contests, spec, name) for name in TIMES]
            rows.append([n, spec, done[0].iterations, number(1e3 * each), *seconds, error, *ratios, done[0].status])
    columns = ["n", "contestant", "iterations", "ms per iteration", "seconds", f"seconds to {TARGET:.0e}", "error"]
    columns += ["per iteration, times ours", "in total, times ours", f"to {TARGET:.0e}, times ours", "status"]
    return Table("Principal component pursuit to its tolerance (1e-7 of ‖Y‖), float64", columns, rows)


def goal_rows(results: dict[int, list[Contest]]) -> list[list[Any]]:
    """Return whether ours is faster than each rival, per iteration and in total."""
    rows: list[list[Any]] = []
    for n, contests in results.items():
        for spec in CONTESTANTS[1:]:
            for quantity, words in zip(TIMES[:2], ("per iteration", "in total"), strict=True):
                found = ratio(contests, spec, quantity)
                # A lower bound below 1 says nothing.
                known = found is not None and (found > 1 or not is_cut(contests, spec, quantity))
                cells = [ratio_cell(contests, spec, quantity), "> 1", found > 1 if known else None]
                rows.append([f"n = {n}: faster than {spec} {words}", *cells])
    return rows


def agreement(n: int) -> list[list[Any]]:
    """Return rows of ‖X - X_pyrpca‖ / ‖X_pyrpca‖; with its defaults ours goes the same way, step by step."""
    Y = problem_of(n).Y
    theirs = solve(Task("pyrpca", RANK), Y, lambda answer: False).low_rank
    rows = []
    for words, settings in (("", {}), (f", by another way (growth={OTHER_GROWTH})", {"growth": OTHER_GROWTH})):
        L, R = solve(Task("pcp", RANK, {"algorithm": "ialm", **settings}), Y, lambda answer: False).low_rank
        size = float(np.linalg.norm(L @ R.T - theirs) / np.linalg.norm(theirs))
        rows.append([f"n = {n}: difference to pyrpca's X{words}", number(size), "< 1e-5", size < AGREEMENT])
    return rows


def main(given: Sequence[str] | None = None) -> None:
    """Measure all sizes, print the tables and write pcp.json."""
    options = {
        "n": ((1000, 3000), "sizes"),
        "repeats": (3, "most rounds of each size"),
        "limit": (300.0, "seconds of a call"),
    }
    chosen = arguments(__file__, __doc__, given, command="make bench", **options)
    results = {n: run_rounds(n, chosen) for n in chosen.n}
    first, least = next(iter(results.values()))[0], min(chosen.n)
    compared = agreement(least) if least <= COMPARED and first["pyrpca"].seconds is not None else []
    goals = Table("The goals", ["", "measured", "goal", "met"], [*goal_rows(results), *compared])
    rounds = ", ".join(f"{len(contests)} for n = {n}" for n, contests in results.items())
    notes = [
        "Ratios are taken within a round, every contestant once, and the median over the rounds counts "
        f"(rounds: {rounds}). Compilation and the measuring of errors are not on the clock.",
        "A contestant that the limit stopped has a lower bound in place of its ratio.",
        f"Settings, for n = {chosen.n[0]}: { ({entry.spec: entry.settings for entry in first.entries}) }.",
        f"Threads for each contestant: {first.conditions['threads']}.",
    ]
    tables = [speed_table(results, chosen.limit), goals]
    publish(chosen, "Principal component pursuit", tables, notes, packages=("pyrpca", "tensorly"))


if __name__ == "__main__":
    main()
