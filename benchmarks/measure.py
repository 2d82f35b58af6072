"""Timing, circumstances, tables and result files: what every benchmark shares.

Times on a shared machine drift, and on a virtual one they jump: its cores may be moved to other physical ones within
seconds, which changes memory bandwidth and arithmetic by factors of two. So contestants are never timed one after the
other. Each round times every contestant once, in shuffled order, and directly before each the probes (what the machine
can do at that moment). Reported are medians, and medians of ratios between neighbours in time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lrpca.core import environment as circumstances
from lrpca.core.environment import load_note as load_note
from lrpca.files.atomic import replacing

# Rows and columns of Y in published results, for which goals are stated.
FULL = 8000
RESULTS = Path(__file__).parent / "results"
# Worker threads of OpenMP spin for some milliseconds after their last task; nobody should pay for a predecessor's.
_PAUSE = 0.02


@dataclass(frozen=True)
class Timing:
    """Seconds of one contestant, one number per round, and those of each probe directly before."""

    seconds: Sequence[float]
    probes: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Median of the rounds, in seconds."""
        return float(np.median(self.seconds))

    @property
    def spread(self) -> str:
        """Quartiles of the rounds, in milliseconds, as a cell."""
        low, high = np.quantile(self.seconds, [0.25, 0.75]) * 1e3
        return f"{number(low)} – {number(high)}"

    def relative_to(self, seconds: Sequence[float]) -> float:
        """Return the median over the rounds of the ratio to other times of the same rounds.

        Examples
        --------
        >>> Timing([2.0, 4.0, 9.0]).relative_to([1.0, 2.0, 3.0])
        2.0
        """
        return float(np.median(np.divide(self.seconds, seconds)))


@dataclass(frozen=True)
class Table:
    """One table of a result: rows of numbers, texts or None, under named columns."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def interleave(
    contestants: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    probes: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, Timing]:
    """Time every contestant once per round, in an order shuffled anew each round, after one untimed call each.

    Parameters
    ----------
    contestants : mapping of str to callable
        What to time, by name.
    repeats : int
        Number of rounds.
    probes : mapping of str to callable, optional
        Timed directly before each timed call, after one untimed call of the first, which wakes cores and threads.

    Returns
    -------
    dict of str to Timing
        In the order of the contestants.

    Examples
    --------
    >>> times = interleave({"nothing": lambda: None, "nap": lambda: time.sleep(0.01)}, repeats=3)
    >>> times["nap"].median > 0.009 > times["nothing"].median
    True
    """
    probes = probes or {}
    for function in (*probes.values(), *contestants.values()):
        function()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    probed: dict[str, dict[str, list[float]]] = {name: {probe: [] for probe in probes} for name in contestants}
    rng = np.random.default_rng(0)
    names = list(contestants)
    for _ in range(repeats):
        for i in rng.permutation(len(names)):
            name = names[i]
            time.sleep(_PAUSE)
            for probe in list(probes.values())[:1]:
                probe()
            for label, probe in probes.items():
                probed[name][label].append(_clock(probe))
            seconds[name].append(_clock(contestants[name]))
    return {name: Timing(seconds[name], probed[name]) for name in names}


def _clock(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def pooled(times: Mapping[str, Timing], probe: str) -> Timing:
    """Return all timings of one probe, whatever contestant came after."""
    return Timing([second for timing in times.values() for second in timing.probes[probe]])


def number(value: float) -> int | float:
    """Return a number as tables show it: three significant digits.

    Examples
    --------
    >>> number(1234.5), number(0.123456)
    (1234, 0.123)
    """
    return round(value) if abs(value) >= 100 else float(f"{value:.3g}")


def arguments(description: str, *, repeats: int) -> argparse.Namespace:
    """Parse the command line that all benchmarks have in common: --n, --repeats, --results."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--n", type=int, default=FULL, help="rows and columns of Y (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=repeats, help="rounds of timing (default: %(default)s)")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the result file (default: benchmarks/results)"
    )
    chosen = parser.parse_args()
    if chosen.n < 1000 or chosen.n % 16:
        parser.error(f"--n={chosen.n} is not a multiple of 16 from 1000 on; use e.g. 2000")
    if chosen.repeats < 1:
        parser.error(f"--repeats={chosen.repeats} is not positive; use e.g. 5")
    return chosen


def publish(
    path: Path,
    *,
    title: str,
    command: str,
    tables: Sequence[Table],
    notes: Sequence[str],
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Print the tables and notes, and write them with the circumstances as JSON.

    Parameters
    ----------
    path : pathlib.Path
        The result file; its folder is made if missing.
    title, command : str
        What was measured, and what to type to measure it again.
    tables : sequence of Table
    notes : sequence of str
    extra : mapping, optional
        What else the file shall hold, for those who make pages of it; it is not printed.
    """
    result = {
        "title": title,
        "command": command,
        "hardware": circumstances.hardware(),
        "versions": circumstances.versions(["torch"]),
        "date": circumstances.date(),
        "tables": [{"caption": t.caption, "columns": [*t.columns], "rows": [[*row] for row in t.rows]} for t in tables],
        "notes": [*notes],
        **(extra or {}),
    }
    print(f"\n{title}\n{'=' * len(title)}")
    for table in tables:
        print(f"\n{table.caption}\n\n{render(table)}")
    print("\n" + "\n".join(f"- {note}" for note in notes))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


def render(table: Table) -> str:
    """Return a table as aligned text.

    Examples
    --------
    >>> print(render(Table("", ["rank", "ms"], [[5, 20.5], [10, None]])))
    rank    ms
       5  20.5
      10     –
    """
    cells = [[*table.columns], *([_text(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    texts = [any(isinstance(row[i], str) for row in table.rows) for i in range(len(widths))]
    lines = (
        "  ".join(
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(row, widths, texts, strict=True)
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def _text(cell: Any) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)
