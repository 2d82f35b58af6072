"""The files of a comparison: numbers as JSON and CSV, the convergence plot, and a page with all of it."""

from __future__ import annotations

import csv
import io
import json
import os
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrpca.bench.contest.results import Contest, Entry
from lrpca.decomposition.writing import plain
from lrpca.files.atomic import replacing_files
from lrpca.report import Number, Page, Picture, plotted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The page comes last: where it is, the files beside it belong to it.
FILES = ("arena.json", "arena.csv", "convergence.png", "index.html")
OURS = "lrpca"
# Columns of the table: the field of an entry, its format, and what it means.
COLUMNS = {
    "method": ("spec", "", "a method of this library or another from PyPI, with the settings that were asked for"),
    "to target": ("seconds_to_target", "#.3g", "seconds until the first iterate whose error is at most the target"),
    "error": ("error", ".1e", "‖X − X*‖ / ‖X*‖ of the answer, in the Frobenius norm; X* is the true low-rank matrix"),
    "F": (
        *("f_measure", ".4f"),
        "F-measure of the detected outliers. For every method an entry is an outlier if |Y − X| is beyond about five "
        "times the noise level of the residual (the rule of Decomposition.outliers)",
    ),
    "residual": ("residual", ".1e", "median |Y − X| / median |Y| over observed entries"),
    "outliers": ("outlier_fraction", ".2%", "share of outliers among the observed entries (Decomposition.outliers)"),
    "rank": ("rank", "", "components of the answer"),
    "iterations": ("iterations", "", "as the method counts them, without the initialisation"),
    "seconds": ("seconds", "#.3g", "time of the whole call, initialisation included, measuring of errors excluded"),
    "per iteration": ("seconds_per_iteration", "#.2g", "mean seconds between iterates, without the initialisation"),
    "memory": ("peak_memory", "", "peak memory of the call besides Y, in MB"),
    "status": ("status", "", "converged by its own rule, not converged, or the error"),
}
LEFT = ("method", "status")  # columns of words
# Longer notes are cut in the table; the files have them in full.
_NOTE = 120
# The colour of the default, and others, readable on white and on near-black; they repeat with other dashes.
_COLOURS = (
    *("#2563eb", "#d9730d", "#0f8a5f", "#c2357a", "#7c5cd6"),
    *("#b08900", "#0e8fb3", "#a3532b", "#5f8f1f", "#7b8794"),
)
_DASHES = ("-", "--", ":", "-.")
_CAPTION = "Both axes logarithmic. A dot ends a run, a cross one that was stopped or failed."
# A smaller share of missing entries is written as their number. So much load causes no warning.
_FEW, _IDLE = 1e-3, 0.5


def write(contest: Contest, folder: str | os.PathLike[str]) -> Path:
    """Write the four files, all of them or none, into a folder that is made if missing; return the path of the page."""
    title = f"{'Error' if contest.problem['known'] else 'Residual'} against time."
    picture = plotted(lambda figure: draw(contest, figure.subplots()), (11.0, 6.4), title, _CAPTION)
    text = json.dumps(plain(contest.as_dict()), indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    contents = (text.encode(), to_csv(contest).encode(), picture.png, _page(contest, picture).html().encode())
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing_files(target, last=FILES[-1]) as staging:
        for name, content in zip(FILES, contents, strict=True):
            (staging / name).write_bytes(content)
    return target / FILES[-1]


def to_csv(contest: Contest) -> str:
    """Return the entries as CSV: all numbers in full, an empty cell for what is not known."""
    names = [field.name for field in fields(Entry) if field.name not in ("all_seconds", "curve", "told", "estimated")]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, names, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(vars(entry) | {"settings": settings_text(entry)} for entry in contest.entries)
    return buffer.getvalue()


def columns(contest: Contest) -> list[str]:
    """Return the names of the columns that this comparison has."""
    if not contest.problem["known"]:
        absent = {"to target", "error", "F"}
    elif any(entry.f_measure is not None for entry in contest.entries):
        absent = {"residual", "outliers"}
    else:
        absent = {"residual", "F"}
    return [name for name in COLUMNS if name not in absent]


def heading(name: str, contest: Contest) -> str:
    """Return a column's heading."""
    return f"to {brief(contest.conditions['target'])}" if name == "to target" else name


def brief(value: float) -> str:
    """Return a number in short form: 1e-4, 0.05."""
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{value:g}" if value >= 1e-3 else f"{float(mantissa):g}e{int(exponent)}"


def cells(entry: Entry, names: list[str]) -> list[str]:
    """Return an entry as text, one cell for each column; a dash is what is not known."""
    return [_status(entry) if name == "status" else _cell(getattr(entry, COLUMNS[name][0]), name) for name in names]


def _status(entry: Entry) -> str:
    if entry.status in ("converged", "done"):
        return entry.status
    return f"{entry.status}: {textwrap.shorten(entry.note, _NOTE, placeholder='...')}"


def _cell(value: Any, name: str) -> str:
    if value is None:
        return "-"
    form = COLUMNS[name][1]
    if name == "memory":
        value, form = value / 1e6, ".1f" if value < 1e8 else ".0f"
    # "#" keeps significant zeros, and a point at the end that is not.
    return format(value, form).removesuffix(".")


def settings_text(entry: Entry) -> str:
    """Return the settings of an entry as a line; those given from the truth or found from the data are marked."""
    parts = []
    for name, value in entry.settings.items():
        if value is not None and value != []:
            origin = " (told)" if name in entry.told else " (found)" if name in entry.estimated else ""
            parts.append(f"{name}={_short(value)}{origin}")
    return ", ".join(parts)


def _short(value: Any, form: str = ".3g") -> str:
    if isinstance(value, list):
        return "+".join(map(_short, value))
    return format(value, form) if isinstance(value, float) else str(value)


def draw(contest: Contest, ax: Axes) -> None:
    """Draw error against time of every method."""
    from matplotlib.ticker import LogFormatter

    shown = sorted(contest.entries, key=lambda entry: (entry.spec != OURS, entry.spec))
    for k, entry in enumerate(shown):
        points = [point for point in entry.curve if point.seconds > 0 and point.error > 0]
        ours = entry.spec == OURS
        if points:
            ax.plot(
                [p.seconds for p in points],
                [p.error for p in points],
                color=_COLOURS[k % len(_COLOURS)],
                linestyle=_DASHES[k // len(_COLOURS) % len(_DASHES)] if len(points) > 1 else "none",
                linewidth=3.2 if ours else 1.5,
                marker="o" if entry.answered else "X",
                markersize=8 if ours else 6,
                markevery=[len(points) - 1],
                zorder=4 if ours else 3,
                label=entry.spec,
            )
    ax.set(xscale="log", yscale="log", xlabel="seconds since the call began, measuring excluded")
    known = contest.problem["known"]
    ax.set_ylabel("relative error of the low-rank part" if known else "median |Y − X| / median |Y|")
    if known:
        ax.axhline(contest.conditions["target"], color="#98a2b3", linewidth=1, linestyle=(0, (2, 3)), zorder=1)
    ax.xaxis.set_major_formatter(LogFormatter())
    ax.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 1)))
    if ax.lines:
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9, handlelength=3.2)


def _page(contest: Contest, picture: Picture) -> Page:
    known, names, entries = contest.problem["known"], columns(contest), contest.entries
    page = Page("Comparison of methods", f"{len(entries)} methods on {describe(contest)}.")
    if known:
        page.numbers(_numbers(contest))
    order = f"Sorted by the time to an error of {brief(contest.conditions['target'])}, then by error."
    unknown = "No truth is known, so there is no error; sorted by the median residual, which a larger rank also lowers."
    page.section("Table", order if known else unknown)
    if warning := load_warning(contest):
        page.text(warning)
    page.table(
        [heading(name, contest) for name in names],
        [_row(entry, names) for entry in entries],
        figures=[k for k, name in enumerate(names) if name not in LEFT],
        bold=[k for k, entry in enumerate(entries) if entry.spec == OURS],
    )
    page.section("Convergence")
    page.pictures([picture], columns=1)
    if failed := [entry for entry in entries if not entry.answered]:
        page.section("Without an answer", "These failed or were stopped; the table has their last iterate, if any.")
        page.table(["method", "status", "why"], [[e.spec, e.status, e.note] for e in failed])
    told = ", ".join(sorted({name for entry in entries for name in entry.told}))
    text = "Everything not asked for is at the method's default; found: estimated from the data."
    page.section("Settings", text + (f" Told: {told} was given from the truth." if told else ""))
    settings = [[entry.spec, entry.title, settings_text(entry) or "defaults"] for entry in entries]
    page.table(["method", "what it is", "settings as used"], settings, wrapped=True)
    page.section("What the columns mean")
    page.table(["column", "meaning"], [[heading(name, contest), COLUMNS[name][2]] for name in names])
    repeat = contest.conditions["repeat"]
    page.section(
        "How it was measured",
        "Each method ran alone in its own process, with the same number of threads for BLAS and numba, after a call on "
        "a tiny problem that loads and compiles its code. The clock stops while the error of an iterate is computed. "
        "The time is " + ("that of one call." if repeat == 1 else f"the median of {repeat} calls."),
    )
    page.table(["", ""], _facts(contest))
    return page


def _row(entry: Entry, names: list[str]) -> list[object]:
    """Return cells for the page, as in the terminal; why a method failed is in another table."""
    texts = dict(zip(names, cells(entry, names), strict=True))
    if not entry.answered:
        texts["status"] = entry.status
    return [None if text == "-" else text for text in texts.values()]


def _numbers(contest: Contest) -> list[Number]:
    reached = [(e.spec, e.seconds_to_target) for e in contest.entries if e.seconds_to_target is not None]
    count = f"{len(reached)} of {len(contest.entries)}"
    numbers = [Number(f"Reached {brief(contest.conditions['target'])}", count, "methods")]
    for place, (spec, seconds) in zip(("First there", "Second"), reached, strict=False):
        numbers.append(Number(place, f"{seconds:#.3g} s", spec))
    return numbers


def describe(contest: Contest) -> str:
    """Return what the problem is, in a line: name, size, rank, outliers and missing entries."""
    problem = contest.problem
    n1, n2 = problem["shape"]
    parts = [f"{problem['name']} of {n1} x {n2} numbers ({problem['dtype']}), rank {problem['rank']}"]
    if problem.get("outlier_fraction") is not None:
        parts.append(f"{100 * problem['outlier_fraction']:.3g}% outliers")
    if share := problem["missing"]:
        count = round(share * n1 * n2)
        few = "1 entry" if count == 1 else f"{count} entries"
        parts.append(f"{f'{100 * share:.3g}%' if share >= _FEW else few} missing")
    return ", ".join(parts)


def load_warning(contest: Contest) -> str:
    """Return a warning if other programs used the processors that the methods needed, else an empty text."""
    conditions = contest.conditions
    load, cores, threads = conditions.get("load"), conditions["machine"]["cores"], conditions["threads"]
    if load is None or load <= max(0, cores - threads) + _IDLE:
        return ""
    return (
        f"The machine was busy: its load was {load:.2f} before the start, on {cores} processors of which methods "
        f"use {threads}. Do not trust the times."
    )


def _facts(contest: Contest) -> list[list[object]]:
    conditions, limit = contest.conditions, contest.conditions["memory_limit"]
    load = "unknown" if conditions["load"] is None else f"{conditions['load']:.2f}"
    more = {name: value for name, value in contest.problem.items() if name not in ("shape", "known")}
    memory = f"{limit / 1e9:.3g} GB" if limit else "no limit of memory"
    return [
        ["problem", ", ".join(f"{name} {_short(value, '.4g')}" for name, value in more.items() if value is not None)],
        ["tolerance", "each its own" if conditions["tol"] is None else f"{conditions['tol']:g} for all"],
        ["limits", f"{conditions['time_limit']:g} s, {memory}"],
        ["machine", ", ".join(f"{name} {value}" for name, value in conditions["machine"].items())],
        ["date", f"{conditions['date']}; load average of the minute before: {load}"],
        ["threads", f"{conditions['threads']}, seed {conditions['seed']}"],
        ["versions", ", ".join(f"{name} {version}" for name, version in conditions["versions"].items())],
    ]
