"""The grid of planted problems: our default, PCP and others on every case, dense outliers, the published problems.

    python benchmarks/grid.py [--cases WORD] [--solvers lrpca,pyrpca,svd] [--repeats 1] [--results FOLDER] [--ablation]

Solvers are told Y and the rank, nothing else. The rules of recovery are those of `lrpca.testing`. With --ablation
only our default runs: once whole, and once without each of its rules.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import grid_tables
from grid_runs import (
    DENSE,
    DENSE_PROBLEMS,
    PUBLISHED,
    PUBLISHED_MODEL,
    GridJob,
    PublishedRecord,
    Record,
    dense_cases,
    published_jobs,
    run_all,
    run_case,
    run_published,
)
from grid_solvers import DEFAULT, PCP, SVD, names, without
from measure import RESULTS, load_note, publish

from lrpca.solvers.rules import RULES
from lrpca.testing import Case, grid

DENSITIES = (0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
# The ablation is content with fewer of them.
_ABLATION_DENSITIES, _ABLATION_PROBLEMS = (0.65, 0.7, 0.75, 0.8), 2
_USUAL = (DEFAULT, PCP, SVD)
_SCRATCH = RESULTS.parent / "scratch"
_WORKERS = 2
_LIMIT = 60.0
_ABSENT = "The published problems are not here and were left out; set LRPCA_DATA to the folder of published-lrpca."


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", default="", metavar="WORD", help="only cases with this in their kind or name")
    parser.add_argument("--solvers", help=f"comma-separated, of: {', '.join(names())} (default: {','.join(_USUAL)})")
    parser.add_argument("--repeats", type=int, help="problems drawn of each case (default: 1; dense outliers: 10)")
    parser.add_argument("--limit", type=float, default=_LIMIT, help="seconds for a rival on a case (default: 60)")
    parser.add_argument("--workers", type=int, default=_WORKERS, help="processes, of one thread each (default: 2)")
    parser.add_argument("--ablation", action="store_true", help="our default without each of its rules")
    parser.add_argument(
        "--results",
        type=Path,
        help="folder of the result file (default: benchmarks/results; benchmarks/scratch if not everything runs)",
    )
    words = sys.argv[1:] if given is None else list(given)
    chosen = parser.parse_args(words)
    chosen.command = _command(words)
    for name in ("repeats", "workers", "limit"):
        value = getattr(chosen, name)
        if value is not None and value <= 0:
            parser.error(f"--{name}={value} is not positive; use e.g. 2")
    unknown = [name for name in _split(chosen.solvers) if name not in names()]
    if unknown:
        advice = "; pip install pyrpca" if PCP in unknown else ""
        parser.error(f"--solvers={unknown[0]} is not present; use some of {','.join(names())}{advice}")
    if not choose([*grid(), *dense_cases(DENSITIES)], chosen.cases) and not _is_published(chosen.cases):
        parser.error(f"--cases={chosen.cases} is in no kind or name of a case; use e.g. noise, dense, published")
    if chosen.results is None:
        partly = chosen.cases or chosen.solvers or chosen.repeats
        chosen.results = _SCRATCH if partly else RESULTS
    return chosen


def _command(words: Sequence[str]) -> str:
    """Return what to type to measure the same again."""
    if not words:
        return "make grid"
    return "make ablation" if list(words) == ["--ablation"] else shlex.join(["python", "benchmarks/grid.py", *words])


def _usual() -> list[str]:
    """Return the solvers that run unless others are asked for, as far as they are present."""
    return [name for name in names() if name in _USUAL]


def _split(solvers: str | None) -> list[str]:
    return [name for name in (solvers or "").split(",") if name]


def choose(cases: Sequence[Case], word: str) -> list[Case]:
    """Return the cases with a word in their kind or name, in whatever case."""
    return [case for case in cases if word.lower() in f"{case.kind}: {case.name}".lower()]


def _is_published(word: str) -> bool:
    return word.lower() in PUBLISHED


def run_cases(cases: Sequence[Case], repeats: int, solvers: Sequence[str], chosen: Any, title: str) -> list[Record]:
    """Run solvers on as many problems of each case."""
    jobs = [GridJob(case, repeat, solvers, chosen.limit) for case in cases for repeat in range(repeats)]
    return run_all(run_case, jobs, chosen.workers, title)


def run_published_problems(solvers: Sequence[str], chosen: Any) -> list[PublishedRecord] | None:
    """Run methods on the published problems, unless the word asks for others; None if they are absent."""
    if not _is_published(chosen.cases):
        return []
    jobs = published_jobs(solvers)
    return run_all(run_published, jobs, chosen.workers, PUBLISHED) if jobs else None


def measure_grid(chosen: argparse.Namespace) -> list[str]:
    """Run every solver, print and write grid.json; return the verdict in a few lines."""
    load, began = load_note(), time.perf_counter()
    asked = _split(chosen.solvers)
    cases = choose(grid(), chosen.cases)
    records = run_cases(cases, chosen.repeats or 1, asked or _usual(), chosen, "grid")
    few = asked or [DEFAULT]
    many = run_cases(choose(dense_cases(DENSITIES), chosen.cases), chosen.repeats or DENSE_PROBLEMS, few, chosen, DENSE)
    known = run_published_problems([*few, *([] if asked else [PUBLISHED_MODEL])], chosen)
    tables = []
    if records:
        tables += [grid_tables.summary(records), grid_tables.by_kind(records)]
    if many:
        tables.append(grid_tables.dense(many))
    if known:
        tables.append(grid_tables.published(known))
    tables += grid_tables.details(records)
    lines = verdict(records, many)
    notes = _notes(records, chosen, began, load) + ([_ABSENT] if known is None else [])
    publish(
        chosen.results / "grid.json", title="What was recovered", command=chosen.command, tables=tables, notes=notes
    )
    return lines


def verdict(records: Sequence[Record], many: Sequence[Record]) -> list[str]:
    """Return one line for every solver on the grid, and one on the dense outliers."""
    lines = []
    for title, chosen in (("grid", records), (DENSE, many)):
        for name in dict.fromkeys(record.solver for record in chosen):
            mine = [record for record in chosen if record.solver == name]
            right = sum(record.recovered if title == "grid" else grid_tables.masters(record) for record in mine)
            false = sum(record.false_converged for record in mine)
            lines.append(f"{title}, {name}: recovered {right} of {len(mine)}, false converged {false}")
    return lines


def _notes(records: Sequence[Record], chosen: argparse.Namespace, began: float, load: str) -> list[str]:
    present = dict.fromkeys(record.solver for record in records)
    notes = [
        "Recovered: the relative error of the low-rank part is below 1e-5, or within 1.6 times the oracle error. False "
        "converged: the solver says it converged, but the error is above 1e-3 and above 5 times the oracle error.",
        f"Every problem runs in a process of one thread, {chosen.workers} of them at a time; seconds are those of the "
        f"solver alone. The whole run took {time.perf_counter() - began:.0f} s. {load}",
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
    if PCP not in names():
        notes.append(f"{PCP} is not installed and did not run.")
    return notes + (grid_tables.failures(records, DEFAULT) if DEFAULT in present else [])


def measure_ablation(chosen: argparse.Namespace) -> None:
    """Run the default whole and without each rule, print and write ablation.json."""
    load, began = load_note(), time.perf_counter()
    variants = [DEFAULT, *(without(rule) for rule in RULES)]
    repeats = chosen.repeats or 1
    records = run_cases(choose(grid(), chosen.cases), repeats, variants, chosen, "grid")
    densities = choose(dense_cases(_ABLATION_DENSITIES), chosen.cases)
    many = run_cases(densities, chosen.repeats or _ABLATION_PROBLEMS, variants, chosen, DENSE)
    known = run_published_problems(variants, chosen)
    notes = [
        "Each row leaves out one rule and keeps the others. Passes and reads are summed over all problems, also those "
        "that were not recovered.",
        "Published problems, in this order: rank 5 with 10%, 20% and 30% outliers, rank 10 and rank 15 with 10%.",
        f"The whole run took {time.perf_counter() - began:.0f} s. {load}",
    ]
    notes += [_ABSENT] if known is None else []
    publish(
        chosen.results / "ablation.json",
        title="The rules of the default, left out one by one",
        command=chosen.command,
        tables=grid_tables.ablation(RULES, records, many, known or []),
        notes=notes,
    )


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write grid.json or ablation.json."""
    chosen = arguments(given)
    if chosen.ablation:
        measure_ablation(chosen)
    else:
        print("\n" + "\n".join(measure_grid(chosen)))


if __name__ == "__main__":
    main()
