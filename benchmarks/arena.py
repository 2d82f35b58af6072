"""Methods compared on thirteen named problems; the page "which method for what" is made from the result.

    python benchmarks/arena.py [--only few-10,noise] [--methods lrpca,ircur] [--quick]

Every method runs in its own process with a time limit; a method that reaches the limit is a row that says so.
"""

import itertools
import sys
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median, median_low
from typing import Any, Self

from lrpca.bench.contest import Conditions, Contest, Entry, compete, parse_specs
from lrpca.bench.contest.methods import Task, solve
from lrpca.bench.measuring import Table, arguments, clock, number, publish
from lrpca.bench.real_matrices import available, load
from lrpca.solvers.methods import METHODS
from lrpca.testing import planted

OURS = "lrpca"
# The project's goals for its default, to an error of 1e-4: so many times faster than these.
GOALS = {"fastest other full-data solver": 5.0, "ircur": 1.0, "pyrpca": 50.0, "tensorly": 50.0}
# These do not read all of Y; sklearn's PCA is no robust solver.
NOT_FULL_DATA = ("ircur", "gd:sample=0.2", "pgrmc:sample=0.2", "sklearn")
# Passes over Y until the target are counted, in a separate run, for methods that take no longer than this.
COUNTED = 5.0
# The target error; where there is noise, so many times the error of an oracle that knows the places of the outliers.
EXACT, NEAR_ORACLE = 1e-4, 1.6
# Rows and columns of a problem in its small form.
SMALL = 240
# Methods that need many times as long as the others run once.
SLOW = ("stable_pcp", "grassmann", "pyrpca", "tensorly", "pcp:algorithm=admm", "gd:sample=0.2")
USUAL = (
    *("lrpca", "ircur", "accaltproj:gamma=0.5", "accaltproj:gamma=0.7", "accaltproj:gamma=0.9", "scaledgd"),
    *("altproj:variant=paper", "altproj:variant=ncrpca", "gd", "pcp:algorithm=ialm", "pgrmc", "godec"),
)
LEADING = tuple(spec for spec in USUAL if spec not in ("gd", "godec"))
# All but ADMM, which takes a thousand iterations.
EVERYTHING = tuple(spec.text for spec in parse_specs("all") if spec.text != "pcp:algorithm=admm")
FEW = ("lrpca", "ircur", "accaltproj:gamma=0.5", "pcp:algorithm=ialm", "stable_pcp", "pyrpca", "sklearn")
FASTEST = ("lrpca", "ircur", "accaltproj:gamma=0.5")
VIDEO = "escalator"


@dataclass(frozen=True)
class Scenario:
    """A problem (arguments of `planted`; none for the video) and the methods that run on it."""

    name: str
    question: str  # the section of the page
    what: str  # the problem in words, besides size and rank
    arguments: dict[str, Any] = field(default_factory=dict)
    contestants: tuple[str, ...] = (*USUAL, "pyrpca", "sklearn")
    rank: int | None = None  # the rank that methods are given, if not the true one
    time_limit: float = 60.0  # of a call, in seconds
    repeat: int = 3  # calls of each method; slow ones are called once
    rounds: int = 1  # how often the fastest run again, so that ratios have neighbours in time
    short: str = ""  # heading of a column
    headline: bool = False  # whether the project's goals are stated for it
    every: int = 1  # only every so many pixels of the video are used

    @property
    def title(self) -> str:
        """Size, rank and what else the problem is."""
        if not self.arguments:
            return self.what
        return "{} x {}, rank {}, ".format(*self.arguments["shape"], self.arguments["rank"]) + self.what

    def small(self) -> Self:
        """Return the small form: the same kind of problem, and a few methods of each kind."""
        kept = tuple(spec for spec in self.contestants if spec in FEW)
        small = replace(self, contestants=kept, time_limit=10.0, rounds=1, every=8)
        if not self.arguments:
            return small
        # Fewer entries determine fewer components.
        rank = max(2, self.arguments["rank"] - 2)
        changed = {"shape": tuple(min(SMALL, n) for n in self.arguments["shape"]), "rank": rank}
        return replace(small, arguments=self.arguments | changed, rank=None if self.rank is None else 2 * rank)


def _planted(name: str, what: str, n: Any = 1000, *, settings: Any = None, **problem: Any) -> Scenario:
    """Return a scenario of a planted problem; `settings` are those of `Scenario`."""
    shape = (n, n) if isinstance(n, int) else n
    question, _, share = name.partition("-")
    about = {"shape": shape, "rank": 5, "random_state": 0, "outlier_fraction": 0.1, **problem}
    return Scenario(name, question, what, about, short=f"{share}%" if share else name, **(settings or {}))


_GOALS: dict[str, Any] = {"rounds": 3, "headline": True}
_LIMITED = {"contestants": (*LEADING, "pyrpca", "tensorly"), "time_limit": 20.0, **_GOALS}
_NOISE = (*USUAL, "stable_pcp", "stable_pcp:debias=true", "grassmann", "pyrpca", "sklearn")
_MISSING = (*USUAL, "stable_pcp", "grassmann", "pyrpca", "tensorly", "sklearn")
_RANK = (*USUAL, "pcp:algorithm=admm", "stable_pcp", "pyrpca", "sklearn")
_GLANCE = ("lrpca", "ircur", "gd:sample=0.2", "accaltproj:gamma=0.5", "pgrmc:sample=0.2")
_MOVING: dict[str, Any] = {"one_sided": True, "placement": "blocks", "outlier_size": 3.0}
_ALL = (
    _planted("few-10", "10% outliers", 3000, settings={"contestants": EVERYTHING, **_GOALS}),
    _planted("few-20", "20% outliers", 3000, outlier_fraction=0.2, settings=_LIMITED),
    _planted("few-30", "30% outliers", 3000, outlier_fraction=0.3, settings=_LIMITED),
    _planted("many-50", "50% outliers", outlier_fraction=0.5),
    _planted("many-80", "80% outliers", outlier_fraction=0.8, settings={"contestants": USUAL}),
    _planted(
        *("noise", "noise of 5%, 20% outliers ten times the signal"),
        **{"outlier_fraction": 0.2, "outlier_size": 10.0, "noise": 0.05, "settings": {"contestants": _NOISE}},
    ),
    _planted("missing", "10% outliers, half of the entries missing", missing=0.5, settings={"contestants": _MISSING}),
    _planted("rank", "10% outliers; the given rank is twice the true one", settings={"rank": 10, "contestants": _RANK}),
    _planted("glance", "10% outliers", 5000, settings={"rounds": 2, "contestants": _GLANCE}),
    _planted("narrow", "10% outliers", (4000, 80)),
    _planted("condition", "10% outliers, σ_1 = 100 σ_r", condition=100.0),
    _planted("moving", "10% outliers of one sign in blocks that move", **_MOVING),
    Scenario(
        *("video", "video", "the escalator video, frames as rows, uint8, rank 3"),
        **{"contestants": (*LEADING, "godec", "grassmann", "stable_pcp", "sklearn"), "rank": 3},
        **{"time_limit": 20.0, "repeat": 1},
    ),
)
SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}


def hold(scenario: Scenario, specs: Sequence[str] = ()) -> dict[str, Any] | str:
    """Compare the methods on one problem: return the record, or why the problem was left out."""
    known = bool(scenario.arguments)
    missing = [] if known else available([VIDEO])[1]
    if missing:
        return f"{scenario.name}: {missing[0]}"
    problem: Any = planted(**scenario.arguments) if known else load(VIDEO).Y[:, :: scenario.every].copy()
    noisy = known and scenario.arguments.get("noise")
    target = NEAR_ORACLE * problem.oracle_error if noisy else EXACT if known else 1.0
    wanted = [spec for spec in scenario.contestants if not specs or spec in specs]
    slow = [spec for spec in wanted if spec in SLOW or spec.partition(":")[0] in SLOW]
    groups = [([spec for spec in wanted if spec not in slow], scenario.repeat), (slow, 1)]
    groups += [([spec for spec in FASTEST if spec in wanted], scenario.repeat)] * (scenario.rounds - 1)
    limits = Conditions(target=target, time_limit=scenario.time_limit)
    about: dict[str, Any] = {"rank": scenario.rank, "description": {"name": scenario.title}}
    about["progress"] = lambda text: print(f"{scenario.name}, {text}", file=sys.stderr, flush=True)
    seconds, contests = clock(
        lambda: [compete(problem, some, replace(limits, repeat=repeat), **about) for some, repeat in groups if some]
    )
    entries, rounds = merge(contests)
    reads = {entry.spec: count_reads(problem, entry, target, scenario.rank) for entry in entries} if known else {}
    return {
        **{"name": scenario.name, "question": scenario.question, "title": scenario.title, "short": scenario.short},
        **{"headline": scenario.headline, "known": known, "target": target, "rank_told": scenario.rank},
        "oracle_error": problem.oracle_error if noisy else None,
        **{"time_limit": scenario.time_limit, "threads": contests[0].conditions["threads"]},
        **{"problem": contests[0].problem, "whole_run_seconds": number(seconds)},
        "entries": [_plain(entry, target, reads) for entry in entries],
        "rounds": rounds,
    }


def merge(contests: Sequence[Contest]) -> tuple[list[Entry], dict[str, list[Any]]]:
    """Return one entry of each method, that of the round of median time, and the times to the target by round."""
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
    iterations = itertools.count(1)
    with warnings.catch_warnings(action="ignore"):
        task = Task(entry.name, rank or problem.rank, settings)
        answer = solve(task, problem.Y, lambda iterate: last > 0 and next(iterations) >= last)
    return int(answer.reads or 0)


def _plain(entry: Entry, target: float, reads: dict[str, int | None]) -> dict[str, Any]:
    left_out = ("curve", "title", "precision", "recall")
    stored = {name: value for name, value in asdict(entry).items() if name not in left_out}
    return stored | {"iterations_to_target": iterations_to(entry, target), "reads_to_target": reads.get(entry.spec)}


def headline(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return how many times faster the default is than each of those that the goals name, on one problem."""
    entries = {entry["spec"]: entry for entry in record["entries"]}
    ours = entries.get(OURS)
    if ours is None:
        return []
    full = [e for e in record["entries"] if e["spec"] not in (OURS, *NOT_FULL_DATA) and e["status"] != "not installed"]
    arrived = [e for e in full if e["seconds_to_target"] is not None]
    fastest = min(arrived, key=lambda e: e["seconds_to_target"], default=None)
    others = {"fastest other full-data solver": fastest} | {name: entries.get(name) for name in list(GOALS)[1:]}
    return [
        {"problem": record["short"], "rival": name, "goal": GOALS[name], **_ratio(record, ours, other)}
        for name, other in others.items()
        if other is not None and other["status"] != "not installed"
    ]


def _ratio(record: dict[str, Any], ours: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the ratio of the times to the target: exact, at least that, or None where one of them never arrives."""
    mine, theirs = ours["seconds_to_target"], other["seconds_to_target"]
    rounds = record.get("rounds", {})
    kind, ratio = "it does not arrive", None
    if mine is None:
        kind = "the default does not arrive"
    elif theirs is not None:
        pairs = zip(rounds.get(ours["spec"], ()), rounds.get(other["spec"], ()), strict=False)
        kind, ratio = "exact", median([b / a for a, b in pairs if a and b] or [theirs / mine])
    elif other["status"] == "time limit":
        kind, ratio = "at least", max(other["seconds"] or 0.0, record["time_limit"]) / mine
    reads = {"our_reads": ours["reads_to_target"], "their_reads": other["reads_to_target"]}
    return {"spec": other["spec"], "ours": mine, "theirs": theirs, "ratio": ratio, "kind": kind, **reads}


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
    columns = ["outliers", "against", "method", "ours, ms", "its, ms", "times faster", "goal", "met"]
    return Table("The goals: our default to an error of 1e-4", [*columns, "our reads of Y", "its reads"], cells)


def scenario_table(record: dict[str, Any]) -> Table:
    """Return how all methods did on one problem."""
    known = record["known"]
    names = ["seconds_to_target", "error", "f_measure"] if known else ["residual", "outlier_fraction"]
    heads = [f"s to {record['target']:.1e}", "error", "F"] if known else ["residual", "outliers"]
    names += ["rank", "iterations", "seconds", "seconds_per_iteration"]
    heads += ["rank", "iterations", "seconds", "s per iteration"]
    rows = []
    for entry in record["entries"]:
        memory = None if entry["peak_memory"] is None else number(entry["peak_memory"] / 1e6)
        cells = [number(value) if isinstance(value, float) else value for value in map(entry.get, names)]
        rows.append([entry["spec"], *cells, memory, entry["reads_to_target"], status(entry)])
    columns = ["method", *heads, "memory, MB", "reads to target", "status"]
    return Table(f"{record['name']}: {record['title']}", columns, rows)


def status(entry: dict[str, Any]) -> str:
    """Return an entry's status with its reason, where that says more."""
    if entry["status"] in ("converged", "done") or not entry["note"]:
        return str(entry["status"])
    return textwrap.shorten(f"{entry['status']}: {entry['note']}", 100, placeholder="...")


def main(given: Sequence[str] | None = None) -> None:
    """Compare on the chosen problems, print the tables and write arena.json."""
    chosen = arguments(
        *(__file__, __doc__, given),
        command="make arena",
        only=(tuple(SCENARIOS), "problems"),
        methods=(None, "only these, of those that a problem has, with commas"),
        quick=(False, "the same problems in a small form"),
    )
    specs = [spec.text for spec in parse_specs(chosen.methods)] if chosen.methods else []
    scenarios = [SCENARIOS[name].small() if chosen.quick else SCENARIOS[name] for name in chosen.only]
    outcomes = [hold(s, specs) for s in scenarios if not specs or set(specs) & set(s.contestants)]
    records = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    # They are stated for the full size.
    goals = [row for record in records if record["headline"] and not chosen.quick for row in headline(record)]
    tables = ([headline_table(goals)] if goals else []) + [scenario_table(record) for record in records]
    notes = [
        "Each method runs in its own process; measuring errors and compilation are not timed. Times are the median of "
        "three calls; slow methods, and all on real data, are called once.",
        "The fastest methods on the large problems run in several rounds, one after the other; ratios are taken within "
        "a round, and the median counts.",
        "On double-precision data of a million entries and more, early passes of the default compute in single "
        "precision; the other methods compute in double throughout.",
        "Methods with an option alpha are given the true share of outliers, those that need a rank the rank.",
        f"Threads for each method: {records[0]['threads'] if records else 0}.",
        *(["The problems are in their small form (--quick)."] if chosen.quick else []),
        *(outcome for outcome in outcomes if isinstance(outcome, str)),
    ]
    goals = [row | {"met": is_met(row)} for row in goals]
    extra = {"quick": chosen.quick, "goals": goals, "scenarios": records}
    publish(chosen, "Which method for what", tables, notes, extra=extra)


if __name__ == "__main__":
    main()
