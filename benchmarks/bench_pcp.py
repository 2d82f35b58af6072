"""Principal component pursuit: ours against pyrpca's and tensorly's, per iteration and in total.

    python benchmarks/bench_pcp.py [--n 1000,3000] [--repeats 3] [--limit 300]

Rank 5, one entry in ten an outlier, float64. The settings are those of `lrpca bench` (docs/arena.md): each method runs
in its own process to its own tolerance, and one that takes longer than the limit is a row that says so.
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
METHODS = (OURS, "pyrpca", "tensorly")
TARGET = 1e-4
# The project's goals: faster than both, and the same answer as pyrpca, also with another growth of the penalty.
AGREEMENT, OTHER_GROWTH = 1e-5, 1.6
TIMES = {"seconds_per_iteration": "per iteration", "seconds": "in total", "seconds_to_target": "to 1e-4"}
# No further round is begun when those before it took longer; answers are compared where pyrpca takes below a minute.
PATIENCE, COMPARED = 60.0, 1000


def problem_of(n: int) -> Problem:
    """Return the problem of a size."""
    return planted((n, n), rank=5, outlier_fraction=0.1, random_state=0)


def run_rounds(n: int, chosen: argparse.Namespace) -> list[Contest]:
    """Run all methods once in every round; slow sizes get one round."""
    problem, contests, began = problem_of(n), [], time.perf_counter()
    conditions = Conditions(target=TARGET, time_limit=chosen.limit)
    while len(contests) < chosen.repeats and time.perf_counter() - began < (PATIENCE if contests else np.inf):
        progress = lambda text: print(f"n = {n}, {text}", file=sys.stderr, flush=True)  # noqa: E731
        contests.append(compete(problem, METHODS, conditions, progress=progress))
    return contests


def is_cut(contests: Sequence[Contest], spec: str, quantity: str) -> bool:
    """Tell whether the limit came before the quantity was there."""
    entries = [contest[spec] for contest in contests]
    late = any(entry.status == "time limit" for entry in entries)
    return late and (quantity == "seconds" or any(getattr(entry, quantity) is None for entry in entries))


def ratio(contests: Sequence[Contest], spec: str, quantity: str) -> float | None:
    """Return how many times as long as ours a method takes: the median over the rounds of ratios within a round.

    Where the limit came first it is the time until then, while ours is whole: a lower bound.
    """
    theirs = "seconds" if is_cut(contests, spec, quantity) else quantity
    pairs = [(getattr(contest[spec], theirs), getattr(contest[OURS], quantity)) for contest in contests]
    ratios = [other / ours for other, ours in pairs if other and ours]
    return median(ratios) if ratios else None


def cell(contests: Sequence[Contest], spec: str, quantity: str) -> Any:
    """Return a ratio as a cell, called a bound where it is one."""
    if (found := ratio(contests, spec, quantity)) is None:
        return None
    return f"at least {number(found)}" if is_cut(contests, spec, quantity) else number(found)


def time_cell(contests: Sequence[Contest], spec: str, quantity: str) -> Any:
    """Return a median time, or that the limit came first."""
    entries = [contest[spec] for contest in contests]
    if is_cut(contests, spec, quantity):
        return f"over the limit after {max(entry.iterations or 0 for entry in entries)} iterations"
    there = [value for entry in entries if (value := getattr(entry, quantity)) is not None]
    return number(median(there)) if there else None


def speed_table(results: dict[int, list[Contest]]) -> Table:
    """Return seconds and ratios of all methods on all sizes."""
    rows: list[list[Any]] = []
    for n, contests in results.items():
        for spec in METHODS:
            entry = next((c[spec] for c in contests if c[spec].seconds is not None), None)
            if entry is None:
                first = contests[0][spec]
                rows.append([n, spec, *[None] * 8, f"{first.status}: {first.note}"])
                continue
            times = [time_cell(contests, spec, name) for name in TIMES]
            error = None if entry.error is None else number(entry.error)
            ratios = [cell(contests, spec, name) for name in TIMES]
            rows.append([n, spec, entry.iterations, *times, error, *ratios, entry.status])
    columns = ["n", "method", "iterations", "s per iteration", "seconds", "seconds to 1e-4", "error"]
    columns += [f"{words}, times ours" for words in TIMES.values()]
    return Table("Principal component pursuit to its tolerance (1e-7 of ‖Y‖), float64", [*columns, "status"], rows)


def goal_rows(results: dict[int, list[Contest]]) -> list[list[Any]]:
    """Return whether ours is faster than each other method, per iteration and in total."""
    rows: list[list[Any]] = []
    for n, contests in results.items():
        for spec in METHODS[1:]:
            for quantity in list(TIMES)[:2]:
                found = ratio(contests, spec, quantity)
                # A lower bound below 1 says nothing.
                known = found is not None and (found > 1 or not is_cut(contests, spec, quantity))
                cells = [cell(contests, spec, quantity), "> 1", found > 1 if known else None]
                rows.append([f"n = {n}: faster than {spec} {TIMES[quantity]}", *cells])
    return rows


def agreement(n: int) -> list[list[Any]]:
    """Return rows of ‖X - X_pyrpca‖ / ‖X_pyrpca‖; with its defaults ours takes the same steps."""
    Y = problem_of(n).Y
    theirs = solve(Task("pyrpca", 5), Y, lambda answer: False).low_rank
    rows = []
    for words, settings in (("", {}), (f", with growth={OTHER_GROWTH}", {"growth": OTHER_GROWTH})):
        L, R = solve(Task("pcp", 5, {"algorithm": "ialm", **settings}), Y, lambda answer: False).low_rank
        size = float(np.linalg.norm(L @ R.T - theirs) / np.linalg.norm(theirs))
        rows.append([f"n = {n}: difference to pyrpca's X{words}", number(size), "< 1e-5", size < AGREEMENT])
    return rows


def main(given: Sequence[str] | None = None) -> None:
    """Measure all sizes, print the tables and write pcp.json."""
    options = {
        "n": ((1000, 3000), "sizes"),
        "repeats": (3, "maximum number of rounds of each size"),
        "limit": (300.0, "seconds of a call"),
    }
    chosen = arguments(__file__, __doc__, given, command="make bench", **options)
    results = {n: run_rounds(n, chosen) for n in chosen.n}
    first, least = next(iter(results.values()))[0], min(chosen.n)
    compared = agreement(least) if least <= COMPARED and first["pyrpca"].seconds is not None else []
    goals = Table("The goals", ["", "measured", "goal", "met"], [*goal_rows(results), *compared])
    rounds = ", ".join(f"{len(contests)} for n = {n}" for n, contests in results.items())
    notes = [
        "Ratios are taken within a round, every method once, and the median over the rounds counts (rounds: "
        f"{rounds}). Compilation and measuring errors are not timed.",
        f"A method that the limit of {chosen.limit:g} s stopped has a lower bound in place of its ratio.",
        f"Settings, for n = {chosen.n[0]}: { ({entry.spec: entry.settings for entry in first.entries}) }.",
        f"Threads for each method: {first.conditions['threads']}.",
    ]
    tables = [speed_table(results), goals]
    publish(chosen, "Principal component pursuit", tables, notes, packages=("pyrpca", "tensorly"))


if __name__ == "__main__":
    main()
