"""The arena over named problems: who arrives, how fast, and where; the page "which method for what" is made from it.

    python benchmarks/arena.py [--only few-10,noise] [--contestants lrpca,ircur] [--quick]

Every contestant runs in a process of its own with a limit of time; one that reaches it is a row that says so.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median, median_low
from typing import Any

from arena_scenarios import QUESTIONS, SCENARIOS, Scenario, in_rounds, is_slow, read_video

import lrpca
from lrpca.bench.contest import Contest, Entry, compete, parse_specs
from lrpca.bench.measuring import Table, arguments, clock, number, publish
from lrpca.solvers.methods import METHODS

OURS = "lrpca"
# What the project asks of its default, to an error of 1e-4: so many times faster than these.
GOALS = {"fastest other full-data solver": 5.0, "ircur": 1.0, "pyrpca": 50.0, "tensorly": 50.0}
# These do not look at all of Y; sklearn's PCA is no robust solver.
NOT_FULL_DATA = ("ircur", "gd:sample=0.2", "pgrmc:sample=0.2", "sklearn")
# Reads of Y until the target are counted, in a run beside, for contestants that take no longer.
COUNTED = 5.0


def hold(scenario: Scenario, specs: Sequence[str] = ()) -> dict[str, Any] | str:
    """Hold the arena on one problem: return it as a dictionary, or why it was left out."""
    known = bool(scenario.arguments)
    problem, absent = (scenario.make(), "") if known else read_video(scenario.every)
    if absent:
        return f"{scenario.name}: {absent}"
    target = scenario.target(problem) if known else 1.0
    wanted = [spec for spec in scenario.contestants if not specs or spec in specs]
    groups = [([s for s in wanted if not is_slow(s)], scenario.repeat), ([s for s in wanted if is_slow(s)], 1)]
    again = [spec for spec in in_rounds(scenario) if spec in wanted]
    groups += [(again, scenario.repeat)] * (scenario.rounds - 1)
    conditions: dict[str, Any] = {"rank": scenario.rank, "target": target, "time_limit": scenario.time_limit}
    conditions |= {"description": {"name": scenario.title}, "progress": lambda text: _tell(f"{scenario.name}, {text}")}
    seconds, contests = clock(
        lambda: [compete(problem, some, repeat=repeat, **conditions) for some, repeat in groups if some]
    )
    entries, rounds = merge(contests)
    reads = {entry.spec: count_reads(problem, entry, target, scenario.rank) for entry in entries} if known else {}
    return {
        **{"name": scenario.name, "question": scenario.question, "title": scenario.title, "short": scenario.short},
        **{"headline": scenario.headline, "known": known, "target": target, "rank_told": scenario.rank},
        "oracle_error": problem.oracle_error if known and scenario.arguments.get("noise") else None,
        **{"time_limit": scenario.time_limit, "threads": contests[0].conditions["threads"]},
        **{"problem": contests[0].problem, "whole_run_seconds": number(seconds)},
        "entries": [_plain(entry, target, reads) for entry in entries],
        "rounds": rounds,
    }


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def merge(contests: Sequence[Contest]) -> tuple[list[Entry], dict[str, list[Any]]]:
    """Return one entry of each contestant, that of the round of median time, and the times to the target by round."""
    found: dict[str, list[Entry]] = {}
    for entry in (entry for contest in contests for entry in contest.entries):
        found.setdefault(entry.spec, []).append(entry)
    entries, rounds = [], {}
    for spec, mine in found.items():
        times = rounds[spec] = [entry.seconds_to_target for entry in mine]
        there = [seconds for seconds in times if seconds is not None]
        entries.append(mine[times.index(median_low(there))] if there else mine[0])
    entries.sort(key=lambda entry: entry.order)
    return entries, {spec: times for spec, times in rounds.items() if len(times) > 1}


def iterations_to(entry: Entry, target: float) -> int | None:
    """Return the number of the first iterate at the target; 0 if it is only the answer, None if it was not reached."""
    return next((point.iteration for point in entry.curve if point.error <= target), None)


def count_reads(problem: Any, entry: Entry, target: float, rank: int | None) -> int | None:
    """Return how often a method of ours reads Y until it is at the target, by running it once more that far."""
    last = iterations_to(entry, target)
    if entry.name not in METHODS or last is None or not 0 <= (entry.seconds_to_target or 0.0) <= COUNTED:
        return None
    settings = parse_specs(entry.spec)[0].settings | {name: entry.settings[name] for name in entry.told}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = lrpca.decompose(
            problem.Y,
            (rank or problem.rank) if METHODS[entry.name].needs_rank else None,
            method=entry.name,
            random_state=0,
            callback=(lambda state: state.iteration >= last) if last else None,
            options={name: value for name, value in settings.items() if name not in ("tol", "max_iter")},
        )
    return int(d.n_reads)


def _plain(entry: Entry, target: float, reads: dict[str, int | None]) -> dict[str, Any]:
    stored = {
        name: value for name, value in asdict(entry).items() if name not in ("curve", "title", "precision", "recall")
    }
    return stored | {"iterations_to_target": iterations_to(entry, target), "reads_to_target": reads.get(entry.spec)}


def headline(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how many times faster the default is than each of those that the goals name, on one problem."""
    entries = {entry["spec"]: entry for entry in record["entries"]}
    ours = entries.get(OURS)
    if ours is None:
        return []
    others = [
        e for e in record["entries"] if e["spec"] not in (OURS, *NOT_FULL_DATA) and e["status"] != "not installed"
    ]
    arrived = [e for e in others if e["seconds_to_target"] is not None]
    fastest = min(arrived, key=lambda e: e["seconds_to_target"], default=None)
    rivals = {"fastest other full-data solver": fastest} | {name: entries.get(name) for name in list(GOALS)[1:]}
    return [
        {"problem": record["short"], "rival": name, "goal": GOALS[name], **_ratio(record, ours, rival)}
        for name, rival in rivals.items()
        if rival is not None and rival["status"] != "not installed"
    ]


def _ratio(record: dict[str, Any], ours: dict[str, Any], rival: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio of the times to the target: exact, at least that, or None where one of them never arrives."""
    mine, theirs = ours["seconds_to_target"], rival["seconds_to_target"]
    rounds = record.get("rounds", {})
    kind: str = "exact"
    ratio: float | None
    if mine is None:
        kind, ratio = "the default does not arrive", None
    elif theirs is not None:
        pairs = zip(rounds.get(ours["spec"], ()), rounds.get(rival["spec"], ()), strict=False)
        ratios = [b / a for a, b in pairs if a and b] or [theirs / mine]
        ratio = median(ratios)
    elif rival["status"] == "time limit":
        kind, ratio = "at least", max(rival["seconds"] or 0.0, record["time_limit"]) / mine
    else:
        kind, ratio = "it does not arrive", None
    return {
        **{"spec": rival["spec"], "ours": mine, "theirs": theirs, "ratio": ratio, "kind": kind},
        "our_reads": ours["reads_to_target"],
        "their_reads": rival["reads_to_target"],
    }


def is_met(row: dict[str, Any]) -> bool | None:
    """Return whether a goal is met; None where a lower bound does not tell."""
    if row["ratio"] is None:
        return row["kind"] == "it does not arrive"
    return True if row["ratio"] >= row["goal"] else (None if row["kind"] == "at least" else False)


def headline_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Return the goals as a table."""
    cells = []
    for row in rows:
        ratio = row["kind"] if row["ratio"] is None else number(row["ratio"])
        times = [None if row[name] is None else number(1e3 * row[name]) for name in ("ours", "theirs")]
        told = [f"at least {ratio}" if row["kind"] == "at least" else ratio, row["goal"], is_met(row)]
        cells.append([row["problem"], row["rival"], row["spec"], *times, *told, row["our_reads"], row["their_reads"]])
    columns = ["outliers", "against", "contestant", "ours, ms", "its, ms", "times faster", "goal", "met"]
    return Table("The goals: our default to an error of 1e-4", [*columns, "our reads of Y", "its reads"], cells)


def scenario_table(record: dict[str, Any]) -> Table:
    """Return how everybody did on one problem."""
    known = record["known"]
    names = ["seconds_to_target", "error", "f_measure"] if known else ["residual", "outlier_fraction"]
    heads = [f"s to {record['target']:.1e}", "error", "F"] if known else ["residual", "outliers"]
    names += ["rank", "iterations", "seconds", "seconds_per_iteration"]
    heads += ["rank", "iterations", "seconds", "s per iteration"]
    rows = []
    for entry in record["entries"]:
        memory = None if entry["peak_memory"] is None else number(entry["peak_memory"] / 1e6)
        cells = [_cell(entry[name]) for name in names]
        rows.append([entry["spec"], *cells, memory, entry["reads_to_target"], status(entry)])
    caption = f"{QUESTIONS[record['question']]}: {record['title']}"
    return Table(caption, ["contestant", *heads, "memory, MB", "reads to target", "status"], rows)


def _cell(value: Any) -> Any:
    return number(value) if isinstance(value, float) else value


def status(entry: dict[str, Any]) -> str:
    """Return an entry's status with its reason, where that says more."""
    plain = entry["status"] in ("converged", "done") or not entry["note"]
    note = entry["note"] if len(entry["note"]) <= 90 else entry["note"][:87] + "..."
    return entry["status"] if plain else f"{entry['status']}: {note}"


def main(given: Sequence[str] | None = None) -> None:
    """Hold the arena on the chosen problems, print the tables and write arena.json."""
    chosen = arguments(
        *(__file__, __doc__, given),
        command="make arena",
        only=(tuple(SCENARIOS), "problems"),
        contestants=(None, "only these, of those that a problem has, with commas"),
        quick=(False, "the same problems in a small form"),
    )
    specs = [spec.text for spec in parse_specs(chosen.contestants)] if chosen.contestants else []
    scenarios = [SCENARIOS[name].small() if chosen.quick else SCENARIOS[name] for name in chosen.only]
    outcomes = [hold(s, specs) for s in scenarios if not specs or set(specs) & set(s.contestants)]
    records = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    # They are stated for the full size.
    goals = [row for record in records if record["headline"] and not chosen.quick for row in headline(record)]
    tables = ([headline_table(goals)] if goals else []) + [scenario_table(record) for record in records]
    notes = [
        "Each contestant runs in a process of its own; the clock stands still while errors are measured, and "
        "compilation does not count. Times are the median of three calls; slow contestants, and all on real data, are "
        "called once.",
        "Of the fastest contestants on the large problems each was run in several rounds, one after the other; ratios "
        "are taken within a round, and the median counts.",
        "On double-precision data of a million entries and more, early passes of the default compute in single "
        "precision; the other methods compute in double throughout.",
        "Methods with an option alpha are told the true share of outliers, those that need a rank the rank.",
        f"Threads for each contestant: {records[0]['threads'] if records else 0}.",
        *(["The problems are in their small form (--quick)."] if chosen.quick else []),
        *(outcome for outcome in outcomes if isinstance(outcome, str)),
    ]
    goals = [row | {"met": is_met(row)} for row in goals]
    extra = {"quick": chosen.quick, "goals": goals, "scenarios": records}
    publish(chosen, "Which method for what", tables, notes, extra=extra)


if __name__ == "__main__":
    main()
