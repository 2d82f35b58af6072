"""Advice on which method to use for what, from ``benchmarks/results/arena.json``.

Every sentence is computed from the numbers, by the same rules for all methods.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from make_pages import fold, render_result, render_table

DEFAULT = "lrpca"
# Rows of a short table; the default is always among them.
SHOWN = 8
# A result that is called converged is wrong if its error exceeds the target by this factor.
WRONG = 10.0
# Errors within this factor count as equal.
SAME = 1.05
# The headings of the page, in order, by the key that the file uses.
QUESTIONS = {
    "few": "Few outliers, no noise",
    "many": "Many outliers",
    "noise": "Noise in all entries",
    "missing": "Missing entries",
    "rank": "Unknown rank",
    "glance": "Reading only part of Y",
    "narrow": "Narrow matrices",
    "condition": "Strong and weak components",
    "moving": "Moving objects",
    "video": "A real video",
}
Entry = Mapping[str, Any]


def arrived(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries that reached the target, fastest first."""
    there = [entry for entry in entries if entry.get("seconds_to_target") is not None]
    return sorted(there, key=lambda entry: float(entry["seconds_to_target"]))


def find(entries: Sequence[Entry], spec: str) -> Entry | None:
    """Return the entry of a method, if it ran."""
    return next((entry for entry in entries if entry["spec"] == spec), None)


def seconds(value: float) -> str:
    """Return a time in milliseconds or seconds.

    Examples
    --------
    >>> seconds(0.0398), seconds(1.234), seconds(72)
    ('40 ms', '1.2 s', '72 s')
    """
    if value < 1:
        return f"{1e3 * value:.2g} ms" if value < 0.0995 else f"{1e3 * value:.0f} ms"
    return f"{value:.2g} s" if value < 99.5 else f"{value:.0f} s"


def times(ratio: float) -> str:
    """Return a ratio with two digits, without an exponent."""
    return f"{ratio:.2g}" if ratio < 99.5 else f"{ratio:.0f}"


def names(entries: Sequence[Entry], limit: int = 8) -> str:
    """Return the names of methods as a list in words, at most `limit` of them."""
    words = [f"`{entry['spec']}`" for entry in entries[:limit]]
    words += [f"{len(entries) - limit} more"] if len(entries) > limit else []
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def advice(record: Mapping[str, Any]) -> str:
    """Return the advice for one problem, and how the default did."""
    entries = [entry for entry in record["entries"] if entry["status"] != "not installed"]
    if not entries:
        return "No method ran."
    if not record["known"]:
        return _without_truth(entries)
    # If no method reaches the target, the first sentence already names the closest.
    accuracy = _accuracy(entries) if arrived(entries) else []
    return " ".join([_fastest(entries, record), *accuracy, *_not_there(entries, record)])


def _target(record: Mapping[str, Any]) -> str:
    words = f"an error of {record['target']:.0e}".replace("e-0", "e-")
    return f"{words} (1.6 times that of the oracle)" if record.get("oracle_error") else words


def _fastest(entries: Sequence[Entry], record: Mapping[str, Any]) -> str:
    there, target = arrived(entries), _target(record)
    ours = find(entries, DEFAULT)
    if not there:
        best = min((e for e in entries if e.get("error") is not None), key=lambda e: e["error"], default=None)
        closest = f"; `{best['spec']}` comes closest, with {best['error']:.1e}" if best else ""
        return f"**No method reaches {target}**{closest}."
    first = there[0]
    took = seconds(first["seconds_to_target"])
    if first["spec"] == DEFAULT:
        if len(there) == 1:
            return f"**Use the default.** Only the default reaches {target}. It takes {took}."
        ratio = there[1]["seconds_to_target"] / first["seconds_to_target"]
        return (
            f"**Use the default.** It is the fastest to reach {target}, in {took}. "
            f"The next, `{there[1]['spec']}`, takes {times(ratio)} times as long."
        )
    text = f"**`{first['spec']}` is the fastest** to reach {target}, in {took}"
    if first.get("told"):
        text += f", given the true {' and '.join(first['told'])}"
    if ours is None:
        return f"{text}."
    if ours.get("seconds_to_target") is None:
        return f"{text}. The default does not reach it."
    ratio = ours["seconds_to_target"] / first["seconds_to_target"]
    place = [entry["spec"] for entry in there].index(DEFAULT) + 1
    return f"{text}. The default takes {times(ratio)} times as long; it is number {place} of {len(there)}."


def _accuracy(entries: Sequence[Entry]) -> list[str]:
    """Compare the final error of the default with the smallest one."""
    measured = [entry for entry in entries if entry.get("error") is not None]
    ours = find(measured, DEFAULT)
    if not measured or ours is None:
        return []
    best = min(measured, key=lambda entry: float(entry["error"]))
    if best is ours:
        return [f"The default has the smallest final error ({ours['error']:.1e})."]
    if ours["error"] <= SAME * best["error"]:
        return [f"The final error of the default ({ours['error']:.1e}) is within {SAME - 1:.0%} of the smallest."]
    return [f"`{best['spec']}` has the smallest final error, {best['error']:.1e}; the default has {ours['error']:.1e}."]


def _not_there(entries: Sequence[Entry], record: Mapping[str, Any]) -> list[str]:
    """List the methods that did not reach the target, by the reason."""
    absent = [entry for entry in entries if entry.get("seconds_to_target") is None]
    late = [entry for entry in absent if entry["status"] in ("time limit", "memory limit")]
    failed = [entry for entry in absent if entry["status"] == "failed"]
    others = [entry for entry in absent if entry not in late and entry not in failed]
    wrong = [e for e in others if e["status"] == "converged" and (e.get("error") or 0.0) > WRONG * record["target"]]
    silent = [entry for entry in others if entry not in wrong]
    groups = {
        "Wrong, but converged by their own rule:": wrong,
        "Not accurate enough:": silent if arrived(entries) else [],
        f"Stopped at the limit of {record['time_limit']:g} s:": late,
        "Ended with an error:": failed,
    }
    return [f"{words} {names(some)}." for words, some in groups.items() if some]


def _without_truth(entries: Sequence[Entry]) -> str:
    done = [e for e in entries if e.get("seconds") is not None and e["status"] in ("converged", "done")]
    ours = find(entries, DEFAULT)
    text = "The truth is not known. A smaller residual may only mean more components, so look at the pictures."
    if ours is None or ours.get("seconds") is None or not done:
        return text
    faster = [e for e in done if e["seconds"] < ours["seconds"]]
    verdict = "converges" if ours["status"] == "converged" else "does not converge"
    text += f" The default {verdict} in {seconds(ours['seconds'])} and finds {ours['outlier_fraction']:.0%} outliers."
    if faster:
        return f"{text} Faster, by their own stopping rule: {names(sorted(faster, key=lambda e: float(e['seconds'])))}."
    return f"{text} No other method is faster by its own stopping rule."


# ------------------------------------------------------------------------------------------------ tables


def short_table(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of one problem: the first few methods, and the default."""
    entries = record["entries"]
    shown = [e for i, e in enumerate(entries) if i < SHOWN or e["spec"] == DEFAULT]
    known = record["known"]
    columns = ["method", *(["to target", "error", "F"] if known else ["residual", "outliers"]), "seconds", "status"]
    keys = ("seconds_to_target", "error", "f_measure") if known else ("residual", "outlier_fraction")
    rows = [[entry["spec"], *(entry.get(key) for key in (*keys, "seconds")), entry["status"]] for entry in shown]
    caption = record["title"] + (f" (the first {SHOWN} of {len(entries)})" if len(entries) > len(shown) else "")
    return {"caption": caption, "columns": columns, "rows": rows}


def joint_table(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one table of several problems: the seconds to the target of each method on each of them."""
    specs = list(dict.fromkeys(entry["spec"] for record in records for entry in record["entries"]))
    rows = [[spec, *(_time_cell(find(record["entries"], spec)) for record in records)] for spec in specs]
    columns = ["method", *(record["short"] for record in records)]
    caption = f"Seconds to the target; {records[0]['title'].rsplit(',', 1)[0]}"
    return {"caption": caption, "columns": columns, "rows": rows}


def _time_cell(entry: Entry | None) -> Any:
    if entry is None:
        return None
    if entry.get("seconds_to_target") is not None:
        return f"{entry['seconds_to_target']:.3g}"
    if entry["status"] in ("time limit", "memory limit", "failed", "not installed"):
        return entry["status"]
    return f"no: {entry['error']:.0e}" if entry.get("error") is not None else "no"


def _reason(row: Mapping[str, Any]) -> str:
    if row["met"] is not False or row["ratio"] is None:
        return ""
    goal = f"the goal of {row['goal']:g} against `{row['spec']}`"
    text = f"At {row['problem']} outliers, {goal} is missed: it is {times(row['ratio'])}."
    mine, theirs = row.get("our_reads"), row.get("their_reads")
    if not mine or not theirs or row["rival"] == "ircur":
        return text
    each = row["ratio"] * mine / theirs
    return (
        f"{text} The default makes {mine} passes over the data and `{row['spec']}` {theirs}, a ratio of "
        f"{times(theirs / mine)}. One of its passes takes {times(each)} times as long as one of the default's."
    )


def render_sections(result: Mapping[str, Any]) -> str:
    """Render the whole file: a section for each question, the goals, then all tables, folded."""
    records = result.get("scenarios", [])
    parts = []
    if result.get("quick"):
        parts.append("These are the numbers of the small version (`--quick`), which say little about speed.\n")
    for question, title in QUESTIONS.items():
        if mine := [record for record in records if record["question"] == question]:
            parts += [f"## {title}\n", *_question(mine)]
    tables = list(result["tables"])
    if goals := result.get("goals"):
        reasons = [f"- {why}" for why in map(_reason, goals) if why]
        parts.append("\n".join(["## The goals\n", render_table(tables.pop(0)), *reasons, ""]))
    body = render_result({**result, "title": "How it was measured", "tables": []})
    everything = "\n".join(map(render_table, tables))
    return "\n".join([*parts, body, fold("All methods on all problems", everything)])


def _question(records: Sequence[Mapping[str, Any]]) -> list[str]:
    if len(records) == 1:
        return [f"{advice(records[0])}\n", render_table(short_table(records[0]))]
    told = [f"- {record['short']} outliers: {advice(record)}" for record in records]
    return ["\n".join(told) + "\n", render_table(joint_table(records))]
