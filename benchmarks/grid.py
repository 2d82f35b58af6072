"""The grid of planted problems: our default, PCP and others on every case, dense outliers, the published problems.

    python benchmarks/grid.py [--cases WORD] [--solvers lrpca,pyrpca,svd] [--repeats 1] [--ablation]

Solvers are given Y and the rank, nothing else. The rules of recovery are those of `lrpca.testing`. With --ablation
only our default runs: once whole, and once without each of its rules.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from lrpca.bench import judging
from lrpca.bench.judging import DEFAULT, MILESTONES, PCP, SVD, WITHOUT, PublishedRecord, Record, dense_cases, solvers
from lrpca.bench.measuring import Table, arguments, number, publish, run_jobs
from lrpca.solvers.rules import RULES
from lrpca.testing import Case, grid

PUBLISHED = "published problems"
DENSITIES, DENSE_PROBLEMS = (0.65, 0.7, 0.75, 0.8, 0.85, 0.9), 10
# The ablation is content with fewer of them.
ABLATION_DENSITIES, ABLATION_PROBLEMS = (0.65, 0.7, 0.75, 0.8), 2
# An outlier density counts as mastered below this error.
DENSE_ERROR = 1e-3
# Goals the project sets itself: densities that are all recovered in fewer passes than this, and passes to an error of
# 1e-4 on the published problems, by outlier fraction.
DENSE_GOAL, DENSE_PASSES = 0.8, 60
PUBLISHED_PASSES = {0.1: 4, 0.2: 5, 0.3: 6}

Records = Sequence[Any]
ABSENT = "The published problems are not here and were left out; set LRPCA_DATA to the folder of published-lrpca."


def choose(cases: Sequence[Case], word: str | None) -> list[Case]:
    """Return the cases with a word in their kind or name, in whatever case."""
    return [case for case in cases if (word or "").lower() in f"{case.kind}: {case.name}".lower()]


def run_cases(cases: Sequence[Case], repeats: int, names: Sequence[str], chosen: Any, title: str) -> list[Record]:
    """Run solvers on as many problems of each case."""
    jobs = [judging.GridJob(case, repeat, names, chosen.limit) for case in cases for repeat in range(repeats)]
    return run_jobs(judging.run_case, jobs, chosen.workers, title)


def run_published_problems(names: Sequence[str], chosen: Any) -> list[PublishedRecord]:
    """Run methods on the published problems, unless the word asks for others."""
    jobs = judging.published_jobs(names) if _is_published(chosen) else []
    return run_jobs(judging.run_published, jobs, chosen.workers, PUBLISHED)


def _is_published(chosen: argparse.Namespace) -> bool:
    return (chosen.cases or "").lower() in PUBLISHED


def measure_grid(chosen: argparse.Namespace) -> None:
    """Run every solver, print and write grid.json."""
    whole = chosen.solvers == tuple(solvers())
    names = [name for name in (DEFAULT, PCP, SVD) if name in solvers()] if whole else chosen.solvers
    few = [DEFAULT] if whole else chosen.solvers
    repeats = int(chosen.repeats or 0)
    records = run_cases(choose(grid(), chosen.cases), repeats or 1, names, chosen, "grid")
    densities = choose(dense_cases(DENSITIES), chosen.cases)
    many = run_cases(densities, repeats or DENSE_PROBLEMS, few, chosen, judging.DENSE)
    known = run_published_problems([*few, *([judging.PUBLISHED_MODEL] if whole else [])], chosen)
    tables = [summary(records), by_kind(records)] if records else []
    tables += ([dense(many)] if many else []) + ([published(known)] if known else [])
    publish(chosen, "What was recovered", [*tables, *details(records)], _notes(records, known, chosen))


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
        notes.append(f"{SVD} is the truncated SVD of Y, gaps filled by the column's mean; it reports no convergence.")
    if _is_published(chosen) and not known:
        notes.append(ABSENT)
    return notes + (failures(records, DEFAULT) if DEFAULT in present else [])


def measure_ablation(chosen: argparse.Namespace) -> None:
    """Run the default whole and without each rule, print and write ablation.json."""
    variants = [DEFAULT, *(WITHOUT + rule for rule in RULES)]
    repeats = int(chosen.repeats or 0)
    records = run_cases(choose(grid(), chosen.cases), repeats or 1, variants, chosen, "grid")
    densities = choose(dense_cases(ABLATION_DENSITIES), chosen.cases)
    many = run_cases(densities, repeats or ABLATION_PROBLEMS, variants, chosen, judging.DENSE)
    known = run_published_problems(variants, chosen)
    notes = [
        "Each row leaves out one rule and keeps the others. Passes and reads are summed over all problems, also those "
        "that were not recovered.",
        "Published problems, in this order: rank 5 with 10%, 20% and 30% outliers, rank 10 and rank 15 with 10%.",
        *([] if known else [ABSENT]),
    ]
    chosen.file = chosen.file.with_name("ablation.json")
    tables = ablation(RULES, records, many, known)
    publish(chosen, "The rules of the default, left out one by one", tables, notes)


# ------------------------------------------------------------------------------------------------ tables


def _groups(records: Records, *names: str) -> dict[Any, list[Any]]:
    """Return the records by some of their fields, in the order of the records."""
    groups: dict[Any, list[Any]] = {}
    for record in records:
        groups.setdefault(tuple(getattr(record, name) for name in names), []).append(record)
    return groups


def summary(records: Records) -> Table:
    """Return one row for every solver: what it recovered, what it claimed, what it cost."""
    columns = ["solver", "problems", "recovered", "%", "false converged", "no answer"]
    columns += ["passes, all", "reads, all", "seconds, all"]
    rows = [
        [
            *(name, len(mine), right := _count(mine, "recovered"), number(100 * right / len(mine)), _false(mine)),
            sum(record.seconds is None for record in mine),
            *(_total(mine, "passes"), _total(mine, "reads"), number(sum(record.seconds or 0.0 for record in mine))),
        ]
        for (name,), mine in _groups(records, "solver").items()
    ]
    return Table("The whole grid", columns, rows)


def by_kind(records: Records) -> Table:
    """Return how many problems of each kind each solver recovered."""
    solvers = [name for (name,) in _groups(records, "solver")]
    right = Counter((record.kind, record.solver) for record in records if record.recovered)
    size = Counter(record.kind for record in records if record.solver == solvers[0])
    rows = [[kind, size[kind], *(right[kind, name] for name in solvers)] for kind in size]
    return Table("Recovered, by kind of problem", ["kind", "problems", *solvers], rows)


def details(records: Records) -> list[Table]:
    """Return one table for every kind of problem, with a row for every problem and solver."""
    columns = ["problem", "solver", "error", "oracle error", "recovered", "converged", "false converged"]
    columns += ["passes", "reads", "seconds", "ended by"]
    return [
        Table(f"Kind: {kind}", columns, [_detail(record) for record in mine])
        for (kind,), mine in _groups(records, "kind").items()
    ]


def _detail(record: Any) -> list[Any]:
    return [
        *(problem_name(record), record.solver, _short(record.error), _short(record.oracle_error), record.recovered),
        *(record.converged, None if record.converged is None else record.false_converged),
        *(record.passes, record.reads, None if record.seconds is None else number(record.seconds), record.ended),
    ]


def problem_name(record: Any) -> str:
    """Return the name of a problem; those drawn again carry their number."""
    return f"{record.case}, draw {record.repeat + 1}" if record.repeat else str(record.case)


def dense(records: Records) -> Table:
    """Return one row for every density of outliers and solver."""
    columns = ["density", "solver", "problems", f"error below {_power(DENSE_ERROR)}", "goal", "false converged"]
    columns += ["largest error", "passes, median", "passes, most", "goal, fewer than", "reads, most", "seconds, median"]
    rows = [_dense_row(case, name, group) for (case, name), group in _groups(records, "case", "solver").items()]
    return Table("Dense outliers: n = 1000, given only the rank", columns, rows)


def _dense_row(case: str, name: str, records: Records) -> list[Any]:
    has_goal = float(case.partition("%")[0]) <= 100 * DENSE_GOAL
    errors = [np.inf if record.error is None else record.error for record in records]
    passes, reads, seconds = (_known(records, name) for name in ("passes", "reads", "seconds"))
    return [
        *(case, name, len(records), sum(map(masters, records)), len(records) if has_goal else None, _false(records)),
        *(_short(max(errors)) if np.isfinite(max(errors)) else None, _median(passes), max(passes, default=None)),
        *(DENSE_PASSES if has_goal else None, max(reads, default=None), _median(seconds)),
    ]


def published(records: Records) -> Table:
    """Return one row for every published problem and method."""
    columns = ["rank", "outlier fraction", "method", *(f"passes to {_power(goal)}" for goal in MILESTONES)]
    columns += [f"goal to {_power(MILESTONES[0])}, at most", "passes, all", "reads, all", "converged"]
    rows = [
        [
            *(record.rank, record.outlier_fraction, record.solver, *record.passes_to),
            PUBLISHED_PASSES[record.outlier_fraction] if record.solver == DEFAULT else None,
            *(record.passes, record.reads, record.converged, _short(record.error), number(record.seconds)),
        ]
        for record in records
    ]
    return Table("The problems published with the paper, n = 1000", [*columns, "error", "seconds"], rows)


def ablation(rules: dict[str, str], *everything: Records) -> list[Table]:
    """Return what leaving out each rule does to the grid and to the easy problems, and which problems need it."""
    records = everything[0]
    costs = [_cost("nothing left out", DEFAULT, *everything)]
    reasons, changes = [], []
    whole = _recovered_problems(records, DEFAULT)
    for rule, reason in rules.items():
        costs.append(_cost(rule, WITHOUT + rule, *everything))
        left = _recovered_problems(records, WITHOUT + rule)
        lost, won = [p for p in whole if p not in left], [p for p in left if p not in whole]
        reasons.append([rule, reason, len(lost), len(won)])
        changes += [[rule, "lost", problem] for problem in lost] + [[rule, "won", problem] for problem in won]
    columns = ["left out", "problems", "recovered", "false converged", "passes, all", "reads, all"]
    columns += ["dense outliers recovered", f"published problems, passes to {_power(MILESTONES[0])}"]
    tables = [
        Table("What each rule brings, and what it costs", columns, costs),
        Table("The rules, and how many problems change without them", ["rule", "reason", "lost", "won"], reasons),
    ]
    changed = Table("Problems that are lost or won without a rule", ["left out", "problem is", "problem"], changes)
    return [*tables, changed] if changes else tables


def _cost(label: str, name: str, *everything: Records) -> list[Any]:
    mine, many, known = ([record for record in records if record.solver == name] for records in everything)
    easy = ["never" if record.passes_to[0] is None else str(record.passes_to[0]) for record in known]
    return [
        *(label, len(mine), _count(mine, "recovered"), _count(mine, "false_converged")),
        *(_total(mine, "passes"), _total(mine, "reads")),
        f"{sum(map(masters, many))} of {len(many)}" if many else None,
        ", ".join(easy) or None,
    ]


def _recovered_problems(records: Records, name: str) -> list[str]:
    return [problem_name(record) for record in records if record.solver == name and record.recovered]


def failures(records: Records, name: str) -> list[str]:
    """Return notes that name the problems that one solver did not recover, and those it was falsely sure of."""
    mine = [record for record in records if record.solver == name]
    kinds = {"does not recover": [record for record in mine if not record.recovered]}
    kinds["is converged but wrong on"] = [record for record in mine if record.false_converged]
    named = {words: "; ".join(map(problem_name, some)) or "none" for words, some in kinds.items()}
    return [f"{name} {words} {len(kinds[words])} of {len(mine)}: {problems}." for words, problems in named.items()]


def masters(record: Any) -> bool:
    """Tell whether the error is below the one that counts for dense outliers."""
    return record.error is not None and record.error < DENSE_ERROR


def _count(records: Records, name: str) -> int:
    return sum(getattr(record, name) for record in records)


def _false(records: Records) -> int | None:
    """Return how often a solver is falsely sure; None if it gives no verdicts."""
    return _count(records, "false_converged") if _known(records, "converged") else None


def _known(records: Records, name: str) -> list[Any]:
    return [value for record in records if (value := getattr(record, name)) is not None]


def _total(records: Records, name: str) -> int | None:
    return sum(known) if (known := _known(records, name)) else None


def _median(values: Sequence[float]) -> int | float | None:
    return number(float(np.median(values))) if values else None


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.2g}")


def _power(value: float) -> str:
    return f"1e{round(np.log10(value))}"


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
