"""The files of a contest: numbers as JSON and CSV, the convergence plot, and a page with all of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrpca import plot, report
from lrpca.bench.contest import tables
from lrpca.bench.contest.entry import Entry
from lrpca.bench.contest.run import Contest
from lrpca.files.atomic import replacing_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The page comes last: where it is, the files beside it belong to it.
FILES = ("arena.json", "arena.csv", "convergence.png", "index.html")
OURS = "lrpca"
# Readable on white and on near-black alike; one for each method, its variants differ in their dashes.
_COLOURS = (
    *("#d9730d", "#0f8a5f", "#c2357a", "#7c5cd6", "#b08900", "#0e8fb3"),
    *("#a3532b", "#5f8f1f", "#8a6d8f", "#d4495c", "#4f7d78", "#7a7fbf"),
)
_OURS_COLOUR, _RIVAL_COLOUR = "#2563eb", "#7b8794"
_DASHES = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
_SIZE = (11.0, 6.4)
# A smaller share of missing entries is told as their number.
_FEW = 1e-3
# So much load is not worth a warning.
_IDLE = 0.5


def write(contest: Contest, folder: str | os.PathLike[str]) -> Path:
    """Write ``arena.json``, ``arena.csv``, ``convergence.png`` and ``index.html``, all of them or none.

    Parameters
    ----------
    contest : Contest
        What `compete` returned.
    folder : str or path-like
        A new folder, made with those above it, or one in which these files are replaced.

    Returns
    -------
    pathlib.Path
        The page.
    """
    target = Path(folder)
    contents = _contents(contest)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing_files(target, last=FILES[-1]) as staging:
        for name, content in contents.items():
            (staging / name).write_bytes(content)
    return target / FILES[-1]


def _contents(contest: Contest) -> dict[str, bytes]:
    light, dark = _drawn(contest, dark=False), _drawn(contest, dark=True)
    return {
        "arena.json": tables.to_json(contest).encode(),
        "arena.csv": tables.to_csv(contest).encode(),
        "convergence.png": light,
        "index.html": _page(contest, light, dark).html().encode(),
    }


# ------------------------------------------------------------------------------------------------ the plot


def draw(contest: Contest, ax: Axes) -> None:
    """Draw error against time of every contestant: a dot ends a run, a cross one that was ended.

    Parameters
    ----------
    contest : Contest
        What `compete` returned.
    ax : matplotlib.axes.Axes
        Where to draw.
    """
    looks = _looks(contest.entries)
    for entry in contest.entries:
        points = [point for point in entry.curve if point.seconds > 0 and point.error > 0]
        if not points:
            continue
        ours = entry.spec == OURS
        colour, dashes = looks[entry.spec]
        where, what = [p.seconds for p in points], [p.error for p in points]
        ax.plot(
            where,
            what,
            color=colour,
            linestyle=dashes if len(points) > 1 else "none",
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
    _label_seconds(ax)
    if ax.lines:
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=9, handlelength=3.2)


def _label_seconds(ax: Axes) -> None:
    """Label the times as 0.02, 0.05, 0.1 ..., or only powers of ten where there are many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _looks(entries: list[Entry]) -> dict[str, tuple[str, Any]]:
    """Return colour and dashes of each contestant, the same whatever their order."""
    looks: dict[str, tuple[str, Any]] = {}
    names = sorted({entry.name for entry in entries if entry.name != OURS and not _is_rival(entry)})
    rivals = sorted({entry.name for entry in entries if _is_rival(entry)})
    seen: dict[str, int] = {}
    for entry in sorted(entries, key=lambda entry: entry.spec):
        count = seen[entry.name] = seen.get(entry.name, -1) + 1
        if _is_rival(entry):
            looks[entry.spec] = _RIVAL_COLOUR, _DASHES[(rivals.index(entry.name) + count) % len(_DASHES)]
        elif entry.name == OURS:
            looks[entry.spec] = _OURS_COLOUR, _DASHES[count % len(_DASHES)]
        else:
            looks[entry.spec] = _COLOURS[names.index(entry.name) % len(_COLOURS)], _DASHES[count % len(_DASHES)]
    return looks


def _is_rival(entry: Entry) -> bool:
    from lrpca.bench.contest.contestants import RIVALS

    return entry.name in RIVALS


def _drawn(contest: Contest, *, dark: bool) -> bytes:
    plot.require_matplotlib()
    from matplotlib.figure import Figure as NewFigure

    with plot.style(dark=dark):
        figure: Figure = NewFigure(figsize=_SIZE, layout="constrained")
        draw(contest, figure.subplots())
        return report.figure_png(figure)


# ------------------------------------------------------------------------------------------------ the page


def _page(contest: Contest, light: bytes, dark: bytes) -> report.Page:
    problem, conditions = contest.problem, contest.conditions
    page = report.Page("Arena", f"{len(contest.entries)} contestants on {describe(contest)}.")
    _add_numbers(page, contest)
    names = tables.columns(contest)
    page.section("Table", _order_text(contest))
    if warning := load_warning(contest):
        page.text(warning)
    page.table(
        [tables.heading(name, contest) for name in names],
        [_row(entry, names) for entry in contest.entries],
        figures=[k for k, name in enumerate(names) if name not in ("contestant", "status")],
        bold=[k for k, entry in enumerate(contest.entries) if entry.spec == OURS],
    )
    page.section("Convergence")
    quantity = "Error" if problem["known"] else "Residual"
    caption = "Both axes logarithmic. A dot ends a run, a cross one that was ended or gave up."
    page.pictures([report.Picture(light, f"{quantity} against time.", caption, dark_png=dark)], columns=1)
    failed = [entry for entry in contest.entries if not entry.answered]
    if failed:
        page.section(
            "Without an answer", "These failed or were stopped; where iterates were seen, the table has the last."
        )
        page.table(["contestant", "status", "why"], [[e.spec, e.status, e.note] for e in failed])
    page.section("Settings", _settings_text(contest))
    page.table(
        ["contestant", "what it is", "settings as used"],
        [[entry.spec, entry.title, tables.settings_text(entry) or "defaults"] for entry in contest.entries],
        wrapped=True,
    )
    page.section("What the columns mean")
    page.table(["column", "meaning"], [[tables.heading(name, contest), tables.MEANINGS[name]] for name in names])
    page.section("How it was measured", _method_text(conditions))
    page.table(["", ""], _facts(contest))
    return page


def _row(entry: Entry, names: list[str]) -> list[object]:
    """Return cells for the page, as in the terminal; why someone failed is told below."""
    texts = dict(zip(names, tables.cells(entry, names), strict=True))
    if not entry.answered:
        texts["status"] = entry.status
    return [None if text == "-" else text for text in texts.values()]


def _add_numbers(page: report.Page, contest: Contest) -> None:
    if not contest.problem["known"]:
        return
    target = contest.conditions["target"]
    reached = [entry for entry in contest.entries if entry.seconds_to_target is not None]
    numbers = [
        report.Number(f"Reached {tables.brief(target)}", f"{len(reached)} of {len(contest.entries)}", "contestants")
    ]
    if reached:
        first = reached[0]
        numbers.append(report.Number("First there", f"{first.seconds_to_target:#.3g} s", first.spec))
    if len(reached) > 1:
        first, second = reached[:2]
        ratio = (second.seconds_to_target or 0.0) / max(first.seconds_to_target or 0.0, 1e-9)
        numbers.append(report.Number("Second", f"{ratio:.2g} times as long", second.spec))
    page.numbers(numbers)


def describe(contest: Contest) -> str:
    """Return what the problem is, in a line.

    Parameters
    ----------
    contest : Contest
        What `compete` returned.

    Returns
    -------
    str
        Name, size, rank, and what spoils it.
    """
    problem = contest.problem
    n1, n2 = problem["shape"]
    parts = [f"{problem['name']} of {n1} x {n2} numbers ({problem['dtype']}), rank {problem['rank']}"]
    if problem.get("outlier_fraction") is not None:
        parts.append(f"{100 * problem['outlier_fraction']:.3g}% outliers")
    if problem["missing"]:
        parts.append(f"{_share_missing(problem['missing'], n1 * n2)} missing")
    return ", ".join(parts)


def _share_missing(share: float, size: int) -> str:
    if share >= _FEW:
        return f"{100 * share:.3g}%"
    count = round(share * size)
    return "1 entry" if count == 1 else f"{count} entries"


def load_warning(contest: Contest) -> str:
    """Return a sentence where others used the processors that the contestants needed; else nothing.

    Parameters
    ----------
    contest : Contest
        What `compete` returned.
    """
    conditions = contest.conditions
    load, cores = conditions.get("load"), conditions["machine"]["cores"]
    free = max(0, cores - conditions["threads"])
    if load is None or load <= free + _IDLE:
        return ""
    return (
        f"The machine was busy: its load was {load:.2f} before the start, on {cores} processors of which contestants "
        f"use {conditions['threads']}. Do not trust the times."
    )


def _order_text(contest: Contest) -> str:
    if contest.problem["known"]:
        return f"Sorted by the time to an error of {tables.brief(contest.conditions['target'])}, then by error."
    return "No truth is known, so there is no error; sorted by the median residual, which a larger rank also lowers."


def _settings_text(contest: Contest) -> str:
    told = {name for entry in contest.entries for name in entry.told}
    text = "Everything not asked for is at the method's default; found: estimated from the data."
    return f"{text} Told: {', '.join(sorted(told))} was given from the truth." if told else text


def _method_text(conditions: dict[str, Any]) -> str:
    return (
        "Each contestant ran alone in a process of its own, with the same number of threads for BLAS and numba, after "
        "a call on a tiny problem that loads and compiles what it needs. The clock stands still while an iterate is "
        "compared with the truth. The time is "
        + ("that of one call." if conditions["repeat"] == 1 else f"the median of {conditions['repeat']} calls.")
    )


def _facts(contest: Contest) -> list[list[object]]:
    conditions, machine = contest.conditions, contest.conditions["machine"]
    limit = conditions["memory_limit"]
    load = "unknown" if conditions["load"] is None else f"{conditions['load']:.2f}"
    versions = ", ".join(f"{name} {version}" for name, version in conditions["versions"].items())
    more = {name: value for name, value in contest.problem.items() if name not in ("shape", "known")}
    return [
        ["problem", ", ".join(f"{name} {_plain(value)}" for name, value in more.items() if value is not None)],
        ["tolerance", "each its own" if conditions["tol"] is None else f"{conditions['tol']:g} for all"],
        [
            "limits",
            f"{conditions['time_limit']:g} s" + (f", {limit / 1e9:.3g} GB" if limit else ", no limit of memory"),
        ],
        ["machine", ", ".join(f"{name} {value}" for name, value in machine.items())],
        ["date", f"{conditions['date']}; load average of the minute before: {load}"],
        ["threads", f"{conditions['threads']}, seed {conditions['seed']}"],
        ["versions", versions],
    ]


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
