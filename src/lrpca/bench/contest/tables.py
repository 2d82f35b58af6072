"""The contest as tables: for the terminal and the page, as CSV, as text."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import fields
from typing import Any

from lrpca.bench.contest.entry import Entry
from lrpca.bench.contest.run import Contest

# What each column means, in the order of the table.
MEANINGS = {
    "contestant": "a method of this library or a rival from PyPI, with the settings that were asked for",
    "to target": "seconds until the first iterate whose error is at most the target; nothing is interpolated",
    "error": "‖X − X*‖ / ‖X*‖ of the answer, in the Frobenius norm, X* being the true low-rank matrix",
    "F": "F-measure of the outliers named, against those planted. For every contestant an entry is an outlier if "
    "|Y − X| is beyond about five times the noise that the residual shows (the rule of Decomposition.outliers)",
    "residual": "median |Y − X| / median |Y| over observed entries",
    "outliers": "share of the observed entries that are named outliers, by the rule of Decomposition.outliers",
    "rank": "components of the answer",
    "iterations": "as the method counts them; the initialisation is not one",
    "seconds": "time of the whole call, initialisation included, without the time spent measuring errors on the way",
    "per iteration": "mean seconds from one iterate to the next, so without the initialisation",
    "memory": "most memory the call held beside Y, in MB",
    "status": "converged by its own rule, not converged, or what went wrong",
}
# Longer notes are cut in the table; the files have them in full.
_NOTE = 120
_FIELDS = {
    "to target": "seconds_to_target",
    "error": "error",
    "F": "f_measure",
    "residual": "residual",
    "outliers": "outlier_fraction",
    "rank": "rank",
    "iterations": "iterations",
    "seconds": "seconds",
    "per iteration": "seconds_per_iteration",
    "memory": "peak_memory",
}
_FORMS = {
    "to target": "#.3g",
    "error": ".1e",
    "F": ".4f",
    "residual": ".1e",
    "outliers": ".2%",
    "seconds": "#.3g",
    "per iteration": "#.2g",
}


def columns(contest: Contest) -> list[str]:
    """Return the names of the columns that this contest has."""
    if contest.problem["known"]:
        planted = any(entry.f_measure is not None for entry in contest.entries)
        absent = {"residual", "outliers"} | (set() if planted else {"F"})
        if not planted:
            absent.discard("outliers")
    else:
        absent = {"to target", "error", "F"}
    return [name for name in MEANINGS if name not in absent]


def heading(name: str, contest: Contest) -> str:
    """Return a column's heading."""
    return f"to {brief(contest.conditions['target'])}" if name == "to target" else name


def brief(value: float) -> str:
    """Return a number as people write it: 1e-4, 0.05."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{value:g}" if value >= 1e-3 else f"{float(mantissa):g}e{int(exponent)}"


def cells(entry: Entry, names: list[str]) -> list[str]:
    """Return an entry as text, one cell for each column; a dash is what is not known."""
    return [_cell(entry, name) for name in names]


def _cell(entry: Entry, name: str) -> str:
    if name == "contestant":
        return entry.spec
    if name == "status":
        note = entry.note if len(entry.note) <= _NOTE else entry.note[: _NOTE - 3] + "..."
        return entry.status if entry.status in ("converged", "done") else f"{entry.status}: {note}"
    value = getattr(entry, _FIELDS[name])
    if value is None:
        return "-"
    if name == "memory":
        return f"{value / 1e6:.1f}" if value < 1e8 else f"{value / 1e6:.0f}"
    text = format(value, _FORMS.get(name, ""))
    # "#" keeps zeros that count, and a point at the end that does not.
    return text.removesuffix(".")


def settings_text(entry: Entry) -> str:
    """Return the settings of an entry as a line: what was told from the truth or found from the data is marked."""
    parts = []
    for name, value in entry.settings.items():
        if value is None or value == []:
            continue
        origin = " (told)" if name in entry.told else " (found)" if name in entry.estimated else ""
        parts.append(f"{name}={_short(value)}{origin}")
    return ", ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "+".join(map(_short, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def to_csv(contest: Contest) -> str:
    """Return the entries as CSV: all numbers in full, an empty cell for what is not known."""
    names = [field.name for field in fields(Entry) if field.name not in ("all_seconds", "curve", "told", "estimated")]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(names)
    for entry in contest.entries:
        row = [settings_text(entry) if name == "settings" else getattr(entry, name) for name in names]
        writer.writerow(["" if value is None else value for value in row])
    return buffer.getvalue()


def to_json(contest: Contest) -> str:
    """Return everything as JSON; what is not finite becomes null."""
    return json.dumps(_finite(contest.as_dict()), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
