"""Reading a matrix from a text file of comma-, tab-, semicolon- or space-separated cells."""

from __future__ import annotations

import csv
import gzip
import math
import re
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

_MISSING_CELLS = frozenset({"", "na", "n/a", "#n/a", "nan", "-nan", "null", "none"})
# The meaning of the first line is found from the following ones: from about this many cells, at least two lines.
_COMPARED_CELLS = 20_000
_INTEGER = re.compile(r"[+-]?\d+")
_YEARS = range(1800, 2101)


class RefusedError(ValueError):
    """A file whose content is refused; the message is complete."""


def read_table(
    file: Path, ending: str, *, header: bool | None = None, tell: Callable[[str], object] | None = None
) -> NDArray[np.float64]:
    """Return the numbers of a text table as float64, NaN where a cell is missing.

    The `ending` decides which separators are expected. `header` says whether the first line holds column names; that is
    detected by default. `tell` is called with a description of the names.
    """
    opener = gzip.open if ending.endswith(".gz") else open
    with opener(file, "rt", encoding="utf-8-sig", newline="") as stream:
        lines = _split(stream, ending)
        number, first = next(lines, (0, []))
        if not first:
            raise RefusedError(f"path={str(file)!r} is empty; check how it was written")
        some = [*islice(lines, max(2, _COMPARED_CELLS // len(first)))]
        has_names, n_labels, doubt = _heading(first, [cells for _, cells in some], header)
        if doubt:
            warnings.warn(f"path={str(file)!r} {doubt}", stacklevel=4)
        rows = chain(some if has_names else [(number, first), *some], lines)
        values = _numbers(file, rows, first, has_names, n_labels)
    if not values:
        raise RefusedError(f"path={str(file)!r} holds one line of names and no numbers; check how it was written")
    if tell is not None:
        columns = "column" if n_labels == 1 else f"{n_labels} columns"
        labels = f", row names in the first {columns}" if n_labels else ""
        tell(f"column names in the first line{labels}" if has_names else "no names")
    return np.frombuffer(values).reshape(-1, len(first) - n_labels)


def _split(stream: TextIO, ending: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of every line that is not blank."""
    first = next((line for line in stream if line.strip()), "")
    stream.seek(0)
    separators = {".csv": ",;", ".tsv": "\t", ".txt": "\t,;"}[ending.removesuffix(".gz")]
    separator = next((character for character in separators if character in first), None)
    if separator is None and ending.startswith(".txt"):
        for number, line in enumerate(stream, start=1):
            cells = line.partition("#")[0].split()  # numpy.savetxt writes its heading as a comment
            if cells:
                yield number, cells
        return
    lines = ("\n" if line.isspace() else line for line in stream)
    reader = csv.reader(lines, delimiter=separator or separators[0])
    for cells in reader:
        if cells:
            yield reader.line_num, [cell.strip() for cell in cells]


def _numbers(
    file: Path, rows: Iterable[tuple[int, list[str]]], first: list[str], has_names: bool, n_labels: int
) -> array[float]:
    """Return all numbers, row after row."""
    values = array("d")
    for number, cells in rows:
        if len(cells) != len(first):
            raise RefusedError(
                f"path={str(file)!r} has {len(cells)} cells in line {number} but {len(first)} in its first; "
                "give all lines the same number"
            )
        try:
            row = [*map(float, cells[n_labels:])]
        except ValueError:
            row = [found for cell in cells[n_labels:] if (found := _value(cell)) is not None]
        if len(row) < len(cells) - n_labels:
            j = next(j for j in range(n_labels, len(cells)) if _value(cells[j]) is None)
            shown = cells[j] if len(cells[j]) <= 40 else cells[j][:37] + "..."
            name = f" ({first[j]!r})" if has_names else ""
            raise RefusedError(
                f"path={str(file)!r} holds the text {shown!r} in line {number}, column {j + 1}{name}; "
                "leave that column out, or write numbers with a decimal point and empty cells for what is missing"
            )
        values.extend(row)
    return values


def _value(cell: str) -> float | None:
    """Return the number in a cell, NaN where it is missing, None where the cell holds a text."""
    try:
        return float(cell)
    except ValueError:
        return math.nan if cell.lower() in _MISSING_CELLS else None


def _heading(cells: list[str], below: list[list[str]], header: bool | None) -> tuple[bool, int, str]:
    """Return whether the first line holds names, how many of the first columns do, and a warning if that is doubtful.

    `below` holds the cells of some of the following lines.
    """
    n_empty = next((j for j, cell in enumerate(cells) if cell), 0)
    if "" in cells[n_empty:]:
        n_empty = 0
    if header is not None:
        return header, n_empty if header else 0, ""
    names = cells[n_empty:]
    values = [_value(cell) for cell in names]
    n_texts = values.count(None)
    if n_texts:
        if n_texts == sum(cell != "" for cell in names):
            return True, n_empty, ""
        # A name above the first column and numbers above the others: pandas writes an index like this.
        indexed = n_texts == 1 and _value(cells[0]) is None and _are_labels(below, 1)
        taken = "column names, and its first column as row names" if indexed else "column names"
        doubt = f"mixes names and numbers in its first line, which is taken as {taken}; correct that line if it is data"
        return True, 1 if indexed else n_empty, doubt
    found = (n_empty > 0 and _are_labels(below, n_empty)) or _are_names(names, below, n_empty)
    doubtful = not found and all(map(_INTEGER.fullmatch, names)) if n_empty else found or _are_even(_steps(values))
    shown = ", ".join([cell or "(empty)" for cell in cells[:4]] + ["..."] * (len(cells) > 4))
    taken = (
        "column names; if it is data, give header=False (lrpca decompose --no-header)"
        if found
        else "data; if it holds column names, give header=True (lrpca decompose --header)"
    )
    return found, n_empty if found else 0, f"begins with the line {shown}, which is taken as {taken}" * doubtful


def _are_labels(below: list[list[str]], n_labels: int) -> bool:
    """Tell whether the first columns hold row names: texts, integers that count, or integers that no others hold."""
    columns = [[cell for row in below for cell in row[j : j + 1]] for j in range(n_labels)]
    if any(column and all(_value(cell) is None for cell in column) for column in columns):
        return True
    labels = columns[0]
    steps = _steps(_integers(labels))
    if {*steps} == {1}:
        return len(labels) > 2 or labels[0] in ("0", "1")
    return min(steps, default=0) > 0 and _are_no_integers(below, 1)


def _are_names(names: list[str], below: list[list[str]], n_labels: int) -> bool:
    """Tell whether integers are column names: a count or years, and of another kind than the numbers below them."""
    values = _integers(names)
    steps = _steps(values)
    if not steps:
        return False
    another_kind = _are_no_integers(below, n_labels)
    if n_labels and (values == [*range(len(values))] or (another_kind and len({*values}) == len(values))):
        return True
    if all(value in _YEARS for value in values) and (min(steps) > 0 or max(steps) < 0):
        numbers = (_value(cell) or 0.0 for row in below for cell in row[n_labels:])
        alone = not any(_YEARS[0] <= number <= _YEARS[-1] for number in numbers)
        return another_kind or (alone and {*steps} in ({1}, {-1}))
    return another_kind and _are_even(steps)


def _integers(cells: list[str]) -> list[int]:
    """Return the integers in the cells; none where one of them holds something else."""
    return [*map(int, cells)] if all(map(_INTEGER.fullmatch, cells)) else []


def _steps(values: Sequence[Any]) -> list[Any]:
    """Return the distances from one number to the next."""
    return [b - a for a, b in pairwise(values)]


def _are_even(steps: Sequence[float]) -> bool:
    """Tell whether there are at least two steps, all the same and not zero."""
    return len(steps) > 1 and steps[0] != 0 and all(abs(step - steps[0]) <= 1e-6 * abs(steps[0]) for step in steps)


def _are_no_integers(below: list[list[str]], n_labels: int) -> bool:
    """Tell whether there are numbers, all written with a decimal point or an exponent."""
    numbers = [cell for row in below for cell in row[n_labels:] if cell.lower() not in _MISSING_CELLS]
    return bool(numbers) and not any(map(_INTEGER.fullmatch, numbers))
