"""The grid of planted problems: our default, PCP and others on every case, dense outliers, the published problems.

    python benchmarks/grid.py [--cases WORD] [--solvers lrpca,pyrpca,svd] [--repeats 1] [--ablation]

Solvers are told Y and the rank, nothing else. The rules of recovery are those of `lrpca.testing`. With --ablation
only our default runs: once whole, and once without each of its rules.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import grid_tables

from lrpca.bench.judging import (
    DEFAULT,
    DENSE,
    PCP,
    PUBLISHED_MODEL,
    SVD,
    WITHOUT,
    GridJob,
    PublishedRecord,
    Record,
    dense_cases,
    published_jobs,
    run_case,
    run_published,
    solvers,
)
from lrpca.bench.measuring import arguments, publish, run_jobs
from lrpca.solvers.rules import RULES
from lrpca.testing import Case, grid

PUBLISHED = "published problems"
DENSITIES, DENSE_PROBLEMS = (0.65, 0.7, 0.75, 0.8, 0.85, 0.9), 10
# The ablation is content with fewer of them.
ABLATION_DENSITIES, ABLATION_PROBLEMS = (0.65, 0.7, 0.75, 0.8), 2
ABSENT = "The published problems are not here and were left out; set LRPCA_DATA to the folder of published-lrpca."


def choose(cases: Sequence[Case], word: str | None) -> list[Case]:
    """Return the cases with a word in their kind or name, in whatever case."""
    return [case for case in cases if (word or "").lower() in f"{case.kind}: {case.name}".lower()]


def run_cases(cases: Sequence[Case], repeats: int, names: Sequence[str], chosen: Any, title: str) -> list[Record]:
    """Run solvers on as many problems of each case."""
    jobs = [GridJob(case, repeat, names, chosen.limit) for case in cases for repeat in range(repeats)]
    return run_jobs(run_case, jobs, chosen.workers, title)


def run_published_problems(names: Sequence[str], chosen: Any) -> list[PublishedRecord]:
    """Run methods on the published problems, unless the word asks for others."""
    return run_jobs(run_published, published_jobs(names) if _is_published(chosen) else [], chosen.workers, PUBLISHED)


def _is_published(chosen: argparse.Namespace) -> bool:
    return (chosen.cases or "").lower() in PUBLISHED


def measure_grid(chosen: argparse.Namespace) -> None:
    """Run every solver, print and write grid.json."""
    whole = chosen.solvers == tuple(solvers())
    names = [name for name in (DEFAULT, PCP, SVD) if name in solvers()] if whole else chosen.solvers
    few = [DEFAULT] if whole else chosen.solvers
    repeats = int(chosen.repeats or 0)
    records = run_cases(choose(grid(), chosen.cases), repeats or 1, names, chosen, "grid")
    many = run_cases(choose(dense_cases(DENSITIES), chosen.cases), repeats or DENSE_PROBLEMS, few, chosen, DENSE)
    known = run_published_problems([*few, *([PUBLISHED_MODEL] if whole else [])], chosen)
    tables = [grid_tables.summary(records), grid_tables.by_kind(records)] if records else []
    tables += ([grid_tables.dense(many)] if many else []) + ([grid_tables.published(known)] if known else [])
    publish(chosen, "What was recovered", [*tables, *grid_tables.details(records)], _notes(records, known, chosen))
    for line in grid_tables.verdict({"grid": records, DENSE: many}):
        print(line)


def _notes(records: Sequence[Record], known: Sequence[PublishedRecord], chosen: argparse.Namespace) -> list[str]:
    present = dict.fromkeys(record.solver for record in records)
    notes = [
        "Recovered: the relative error of the low-rank part is below 1e-5, or within 1.6 times the oracle error. False "
        "converged: the solver says it converged, but the error is above 1e-3 and above 5 times the oracle error.",
        f"Every problem runs in a process of one thread, {chosen.workers} of them at a time; seconds are those of the "
        "solver alone.",
    ]
    if PCP in present:
        notes.append(
            f"{PCP} {metadata.version(PCP)} is PCP by the inexact augmented Lagrangian, with its defaults (tol 1e-7), "
            "λ = 1/√max(n1, n2), float64; it takes no rank, and missing entries end in an error. Its tol is relative "
            "to ‖Y‖, outliers included: where they are a thousand times the signal or more, its default can stop at an "
            f"error above 1e-5. Solvers other than our default are stopped after {chosen.limit:g} s."
        )
    if SVD in present:
        notes.append(f"{SVD} is the truncated SVD of Y, missing entries filled by the column's mean; no verdict.")
    if _is_published(chosen) and not known:
        notes.append(ABSENT)
    return notes + (grid_tables.failures(records, DEFAULT) if DEFAULT in present else [])


def measure_ablation(chosen: argparse.Namespace) -> None:
    """Run the default whole and without each rule, print and write ablation.json."""
    variants = [DEFAULT, *(WITHOUT + rule for rule in RULES)]
    repeats = int(chosen.repeats or 0)
    records = run_cases(choose(grid(), chosen.cases), repeats or 1, variants, chosen, "grid")
    densities = choose(dense_cases(ABLATION_DENSITIES), chosen.cases)
    many = run_cases(densities, repeats or ABLATION_PROBLEMS, variants, chosen, DENSE)
    known = run_published_problems(variants, chosen)
    notes = [
        "Each row leaves out one rule and keeps the others. Passes and reads are summed over all problems, also those "
        "that were not recovered.",
        "Published problems, in this order: rank 5 with 10%, 20% and 30% outliers, rank 10 and rank 15 with 10%.",
        *([] if known else [ABSENT]),
    ]
    chosen.file = chosen.file.with_name("ablation.json")
    tables = grid_tables.ablation(RULES, WITHOUT, records, many, known)
    publish(chosen, "The rules of the default, left out one by one", tables, notes)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write grid.json or ablation.json."""
    chosen = arguments(
        *(__file__, __doc__, given),
        command="make grid",
        whole={"--ablation": "make ablation"},
        cases=(None, "only cases with this word in their kind or name; dense and published are two more kinds"),
        solvers=(tuple(solvers()), "some of them; unless given, ours, PCP and the SVD run"),
        repeats=(None, "problems drawn of each case; 1, and 10 of each density, unless given"),
        limit=(60.0, "seconds for a solver other than ours"),
        workers=(2, "processes of one thread each"),
        ablation=(False, "our default without each of its rules"),
    )
    if not _is_published(chosen) and not choose([*grid(), *dense_cases(DENSITIES)], chosen.cases):
        raise SystemExit(f"--cases={chosen.cases} is in no kind or name of a case; use e.g. noise, dense, published")
    (measure_ablation if chosen.ablation else measure_grid)(chosen)


if __name__ == "__main__":
    main()
