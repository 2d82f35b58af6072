"""Tables of the grid and of the ablation, made from records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from grid_runs import DENSE_ERROR, MILESTONES, PublishedRecord, Record
from grid_solvers import DEFAULT, without
from measure import Table, number

# Goals the project sets itself: densities that are all recovered in fewer passes than this, and passes to an error of
# 1e-4 on the published problems, by outlier fraction.
DENSE_GOAL, DENSE_PASSES = 0.8, 60
PUBLISHED_PASSES = {0.1: 4, 0.2: 5, 0.3: 6}
_NOTHING = "nothing left out"


def summary(records: Sequence[Record]) -> Table:
    """Return one row for every solver: what it recovered, what it claimed, what it cost."""
    rows = []
    for name in _in_order(record.solver for record in records):
        mine = [record for record in records if record.solver == name]
        rows.append(
            [
                name,
                len(mine),
                sum(record.recovered for record in mine),
                number(100 * sum(record.recovered for record in mine) / len(mine)),
                sum(record.false_converged for record in mine) if _gives_verdicts(mine) else None,
                sum(record.seconds is None for record in mine),
                _total(record.passes for record in mine),
                _total(record.reads for record in mine),
                number(sum(record.seconds or 0.0 for record in mine)),
            ]
        )
    columns = [
        "solver",
        "problems",
        "recovered",
        "%",
        "false converged",
        "no answer",
        "passes, all",
        "reads, all",
        "seconds, all",
    ]
    return Table("The whole grid", columns, rows)


def by_kind(records: Sequence[Record]) -> Table:
    """Return how many problems of each kind each solver recovered."""
    solvers = _in_order(record.solver for record in records)
    right = Counter((record.kind, record.solver) for record in records if record.recovered)
    size = Counter(record.kind for record in records if record.solver == solvers[0])
    rows = [[kind, size[kind], *(right[kind, name] for name in solvers)] for kind in size]
    return Table("Recovered, by kind of problem", ["kind", "problems", *solvers], rows)


def details(records: Sequence[Record]) -> list[Table]:
    """Return one table for every kind of problem, with a row for every problem and solver."""
    columns = [
        "problem",
        "solver",
        "error",
        "oracle error",
        "recovered",
        "converged",
        "false converged",
        "passes",
        "reads",
        "seconds",
        "ended by",
    ]
    return [
        Table(f"Kind: {kind}", columns, [_detail(record) for record in records if record.kind == kind])
        for kind in _in_order(record.kind for record in records)
    ]


def _detail(record: Record) -> list[Any]:
    return [
        problem_name(record),
        record.solver,
        None if record.error is None else float(f"{record.error:.2g}"),
        float(f"{record.oracle_error:.2g}"),
        record.recovered,
        record.converged,
        None if record.converged is None else record.false_converged,
        record.passes,
        record.reads,
        None if record.seconds is None else number(record.seconds),
        record.ended,
    ]


def problem_name(record: Record) -> str:
    """Return the name of a problem; those drawn again carry their number."""
    return f"{record.case}, draw {record.repeat + 1}" if record.repeat else record.case


def dense(records: Sequence[Record]) -> Table:
    """Return one row for every density of outliers and solver."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.case, record.solver), []).append(record)
    columns = [
        "density",
        "solver",
        "problems",
        f"error below {_power(DENSE_ERROR)}",
        "goal",
        "false converged",
        "largest error",
        "passes, median",
        "passes, most",
        "goal, fewer than",
        "reads, most",
        "seconds, median",
    ]
    rows = [_dense_row(case, name, group) for (case, name), group in groups.items()]
    return Table("Dense outliers: n = 1000, rank 5, told only the rank", columns, rows)


def _dense_row(case: str, name: str, records: Sequence[Record]) -> list[Any]:
    has_goal = float(case.partition("%")[0]) <= 100 * DENSE_GOAL
    errors = [np.inf if record.error is None else record.error for record in records]
    passes = [record.passes for record in records if record.passes is not None]
    reads = [record.reads for record in records if record.reads is not None]
    seconds = [record.seconds for record in records if record.seconds is not None]
    return [
        case,
        name,
        len(records),
        sum(masters(record) for record in records),
        len(records) if has_goal else None,
        sum(record.false_converged for record in records) if _gives_verdicts(records) else None,
        float(f"{max(errors):.2g}") if np.isfinite(max(errors)) else None,
        number(float(np.median(passes))) if passes else None,
        max(passes, default=None),
        DENSE_PASSES if has_goal else None,
        max(reads, default=None),
        number(float(np.median(seconds))) if seconds else None,
    ]


def published(records: Sequence[PublishedRecord]) -> Table:
    """Return one row for every published problem and method."""
    rows = [
        [
            record.rank,
            record.outlier_fraction,
            record.solver,
            *record.passes_to,
            PUBLISHED_PASSES[record.outlier_fraction] if record.solver == DEFAULT else None,
            record.passes,
            record.reads,
            record.converged,
            float(f"{record.error:.2g}"),
            number(record.seconds),
        ]
        for record in records
    ]
    reached = [f"passes to {_power(goal)}" for goal in MILESTONES]
    columns = [
        "rank",
        "outlier fraction",
        "method",
        *reached,
        f"goal to {_power(MILESTONES[0])}, at most",
        "passes, all",
        "reads, all",
        "converged",
        "error",
        "seconds",
    ]
    return Table("The problems published with the paper, n = 1000", columns, rows)


def ablation(
    rules: Mapping[str, str],
    records: Sequence[Record],
    dense_records: Sequence[Record],
    published_records: Sequence[PublishedRecord],
) -> list[Table]:
    """Return what leaving out each rule does to the grid and to the easy problems, and which problems need it."""
    costs = [_cost(_NOTHING, DEFAULT, records, dense_records, published_records)]
    reasons, changes = [], []
    whole = _recovered_problems(records, DEFAULT)
    for rule, reason in rules.items():
        costs.append(_cost(rule, without(rule), records, dense_records, published_records))
        left = _recovered_problems(records, without(rule))
        lost, won = [p for p in whole if p not in left], [p for p in left if p not in whole]
        reasons.append([rule, reason, len(lost), len(won)])
        changes += [[rule, "lost", problem] for problem in lost] + [[rule, "won", problem] for problem in won]
    columns = [
        "left out",
        "problems",
        "recovered",
        "false converged",
        "passes, all",
        "reads, all",
        "dense outliers recovered",
        f"published problems, passes to {_power(MILESTONES[0])}",
    ]
    tables = [
        Table("What each rule brings, and what it costs", columns, costs),
        Table("The rules, and how many problems change without them", ["rule", "reason", "lost", "won"], reasons),
    ]
    changed = Table("Problems that are lost or won without a rule", ["left out", "problem is", "problem"], changes)
    return [*tables, changed] if changes else tables


def _cost(
    label: str,
    name: str,
    records: Sequence[Record],
    dense_records: Sequence[Record],
    published_records: Sequence[PublishedRecord],
) -> list[Any]:
    mine = [record for record in records if record.solver == name]
    many = [record for record in dense_records if record.solver == name]
    easy = [record.passes_to[0] for record in published_records if record.solver == name]
    return [
        label,
        len(mine),
        sum(record.recovered for record in mine),
        sum(record.false_converged for record in mine),
        _total(record.passes for record in mine),
        _total(record.reads for record in mine),
        f"{sum(masters(record) for record in many)} of {len(many)}" if many else None,
        ", ".join("never" if count is None else str(count) for count in easy) or None,
    ]


def failures(records: Sequence[Record], name: str) -> list[str]:
    """Return notes that name the problems that one solver did not recover, and those it was falsely sure of."""
    mine = [record for record in records if record.solver == name]
    notes = []
    for words, chosen in (
        ("does not recover", [record for record in mine if not record.recovered]),
        ("is converged but wrong on", [record for record in mine if record.false_converged]),
    ):
        listed = "; ".join(problem_name(record) for record in chosen) or "none"
        notes.append(f"{name} {words} {len(chosen)} of {len(mine)}: {listed}.")
    return notes


def _recovered_problems(records: Sequence[Record], name: str) -> list[str]:
    return [problem_name(record) for record in records if record.solver == name and record.recovered]


def masters(record: Record) -> bool:
    """Tell whether the error is below the one that counts for dense outliers."""
    return record.error is not None and record.error < DENSE_ERROR


def _gives_verdicts(records: Sequence[Record]) -> bool:
    return any(record.converged is not None for record in records)


def _total(counts: Any) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _power(value: float) -> str:
    """Return a power of ten as it is written: 1e-4."""
    return f"1e{round(np.log10(value))}"


def _in_order(values: Any) -> list[str]:
    return list(dict.fromkeys(values))
