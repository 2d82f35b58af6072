"""Tables of the grid and of the ablation, made from records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lrpca.bench.judging import DEFAULT, MILESTONES
from lrpca.bench.measuring import Table, number

# An outlier density counts as mastered below this error.
DENSE_ERROR = 1e-3
# Goals the project sets itself: densities that are all recovered in fewer passes than this, and passes to an error of
# 1e-4 on the published problems, by outlier fraction.
DENSE_GOAL, DENSE_PASSES = 0.8, 60
PUBLISHED_PASSES = {0.1: 4, 0.2: 5, 0.3: 6}

Records = Sequence[Any]


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
    return Table("Dense outliers: n = 1000, rank 5, told only the rank", columns, rows)


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


def ablation(
    rules: Mapping[str, str], without: str, records: Records, dense_records: Records, published_records: Records
) -> list[Table]:
    """Return what leaving out each rule does to the grid and to the easy problems, and which problems need it."""
    everything = (records, dense_records, published_records)
    costs = [_cost("nothing left out", DEFAULT, *everything)]
    reasons, changes = [], []
    whole = _recovered_problems(records, DEFAULT)
    for rule, reason in rules.items():
        costs.append(_cost(rule, without + rule, *everything))
        left = _recovered_problems(records, without + rule)
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
    kinds = {
        "does not recover": [record for record in mine if not record.recovered],
        "is converged but wrong on": [record for record in mine if record.false_converged],
    }
    return [
        f"{name} {words} {len(some)} of {len(mine)}: {'; '.join(map(problem_name, some)) or 'none'}."
        for words, some in kinds.items()
    ]


def verdict(sections: Mapping[str, Records]) -> list[str]:
    """Return one line for every section and solver; dense outliers have a rule of their own."""
    return [
        f"{title}, {name}: recovered {sum(map(masters, mine)) if title != 'grid' else _count(mine, 'recovered')} of "
        f"{len(mine)}, false converged {_count(mine, 'false_converged')}"
        for title, records in sections.items()
        for (name,), mine in _groups(records, "solver").items()
    ]


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
