"""Reading a matrix from a text file of comma-, tab-, semicolon- or space-separated cells."""

from __future__ import annotations

import csv
import gzip
import math
import re
import warnings
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

MISSING_CELLS = frozenset({"", "na", "n/a", "#n/a", "nan", "-nan", "null", "none"})
# What the first line is shows in as many of the next lines as hold so many cells, two at least.
_LOOKED_AT = 20_000
_INTEGER = re.compile(r"[+-]?\d+")
_YEARS = range(1800, 2101)


class RefusedError(ValueError):
    """A file whose content is refused, with a message in its final form."""


class Heading(NamedTuple):
    """Where the names are in a table: whether the first line holds them, and how many of the first columns do."""

    has_names: bool
    n_labels: int

    def __str__(self) -> str:
        """Return it in words."""
        if not self.has_names:
            return "no names"
        columns = {0: "", 1: ", row names in the first column"}
        return "column names in the first line" + columns.get(
            self.n_labels, f", row names in the first {self.n_labels} columns"
        )


def read_table(
    file: Path, ending: str, *, header: bool | None = None, tell: Callable[[str], object] | None = None
) -> NDArray[np.float64]:
    r"""Read a text table of numbers.

    Parameters
    ----------
    file : pathlib.Path
        The file; UTF-8, compressed by gzip if it ends in ``.gz``.
    ending : str
        ``.csv``, ``.tsv`` or ``.txt``, with or without ``.gz``: which separators are expected.
    header : bool, optional
        Whether the first line holds column names; unless given, that is found out.
    tell : callable, optional
        Is called with what was taken as names, in words.

    Returns
    -------
    numpy.ndarray, shape (n1, n2)
        The numbers, float64, NaN where a cell is missing.

    Raises
    ------
    ValueError
        A cell is neither a number nor missing, the lines differ in length, or there are none.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from lrpca.files.text import read_table
    >>> file = Path(tempfile.mkdtemp()) / "table.txt"
    >>> _ = file.write_text("1 2\n3 NA\n")
    >>> read_table(file, ".txt")
    array([[ 1.,  2.],
           [ 3., nan]])
    """
    opener = gzip.open if ending.endswith(".gz") else open
    with opener(file, "rt", encoding="utf-8-sig", newline="") as stream:
        lines = _split(stream, ending)
        number, first = next(lines, (0, []))
        if not first:
            raise RefusedError(f"path={str(file)!r} is empty; check how it was written")
        some = [*islice(lines, max(2, _LOOKED_AT // len(first)))]
        heading = _heading(file, first, [cells for _, cells in some], header)
        has_names, n_labels = heading
        rows = chain(some if has_names else [(number, first), *some], lines)
        values, n_rows = _numbers(file, rows, first if has_names else None, len(first), n_labels)
    if not n_rows:
        raise RefusedError(f"path={str(file)!r} holds one line of names and no numbers; check how it was written")
    if tell is not None:
        tell(str(heading))
    return np.frombuffer(values).reshape(n_rows, len(first) - n_labels)


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


def _heading(file: Path, cells: list[str], below: list[list[str]], header: bool | None) -> Heading:
    """Find out what the first line is; ``below`` holds the cells of the lines that follow, or of some of them."""
    n_empty = next((j for j, cell in enumerate(cells) if cell), 0)
    if "" in cells[n_empty:]:
        n_empty = 0
    if header is not None:
        return Heading(header, n_empty if header else 0)
    names = cells[n_empty:]
    n_texts = sum(not _is_number(cell) for cell in names)
    if 0 < n_texts < sum(cell != "" for cell in names):
        # A name above the first column and numbers above the others: pandas writes the name of the index there.
        indexed = n_texts == 1 and not _is_number(cells[0]) and _are_labels(below, 1)
        taken = "column names, and its first column as row names" if indexed else "column names"
        warnings.warn(
            f"path={str(file)!r} mixes names and numbers in its first line, which is taken as {taken}; "
            "correct that line if it is data",
            stacklevel=5,
        )
        return Heading(True, 1 if indexed else n_empty)
    if n_texts:
        return Heading(True, n_empty)
    if n_empty:
        found = _are_labels(below, n_empty) or _are_names(names, below, n_empty)
        if not found and all(map(_INTEGER.fullmatch, names)):
            _point_out(file, cells, names=False)
        return Heading(found, n_empty if found else 0)
    found = _are_names(names, below, 0)
    if found or _are_even([_value(cell) for cell in cells]):
        _point_out(file, cells, names=found)
    return Heading(found, 0)


def _point_out(file: Path, cells: list[str], *, names: bool) -> None:
    """Warn of a first line of numbers that could be names, or data."""
    shown = ", ".join([cell or "(empty)" for cell in cells[:4]] + ["..."] * (len(cells) > 4))
    taken = (
        "column names; if it is data, give header=False (lrpca decompose --no-header)"
        if names
        else "data; if it holds column names, give header=True (lrpca decompose --header)"
    )
    warnings.warn(f"path={str(file)!r} begins with the line {shown}, which is taken as {taken}", stacklevel=6)


def _are_labels(below: list[list[str]], n_labels: int) -> bool:
    """Tell whether the first columns hold row names: texts, integers that count, or integers that no others hold."""
    columns = [[cell for row in below for cell in row[j : j + 1]] for j in range(n_labels)]
    if any(column and not any(map(_is_number, column)) for column in columns):
        return True
    labels = columns[0]
    if len(labels) < 2 or not all(map(_INTEGER.fullmatch, labels)):
        return False
    steps = [int(b) - int(a) for a, b in pairwise(labels)]
    if set(steps) == {1}:
        return len(labels) > 2 or labels[0] in ("0", "1")
    return min(steps) > 0 and _are_no_integers(below, 1)


def _are_names(names: list[str], below: list[list[str]], n_labels: int) -> bool:
    """Tell whether integers are column names: a count or years, and of another kind than the numbers below them."""
    if len(names) < 2 or not all(map(_INTEGER.fullmatch, names)):
        return False
    values = [int(name) for name in names]
    steps = [b - a for a, b in pairwise(values)]
    another_kind = _are_no_integers(below, n_labels)
    if n_labels and (values == [*range(len(values))] or (another_kind and len({*values}) == len(values))):
        return True
    if all(value in _YEARS for value in values) and (min(steps) > 0 or max(steps) < 0):
        numbers = (_value(cell) for row in below for cell in row[n_labels:])
        alone = not any(_YEARS[0] <= number <= _YEARS[-1] for number in numbers)
        return another_kind or (alone and {*steps} in ({1}, {-1}))
    return another_kind and _are_even(values)


def _are_even(values: Sequence[float]) -> bool:
    """Tell whether at least three numbers have the same distance from one to the next."""
    steps = [b - a for a, b in pairwise(values)]
    return len(steps) > 1 and steps[0] != 0 and all(abs(step - steps[0]) <= 1e-6 * abs(steps[0]) for step in steps)


def _are_no_integers(below: list[list[str]], n_labels: int) -> bool:
    """Tell whether there are numbers, all written with a decimal point or an exponent."""
    numbers = [cell for row in below for cell in row[n_labels:] if cell.lower() not in MISSING_CELLS]
    return bool(numbers) and not any(map(_INTEGER.fullmatch, numbers))


def _is_number(cell: str) -> bool:
    """Tell whether a cell is a number or missing."""
    try:
        float(cell)
    except ValueError:
        return cell.lower() in MISSING_CELLS
    return True


def _value(cell: str) -> float:
    """Return the number in a cell, NaN if there is none."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _numbers(
    file: Path, rows: Iterator[tuple[int, list[str]]], names: list[str] | None, n_cells: int, n_labels: int
) -> tuple[array[float], int]:
    """Return all numbers, row after row, and the number of rows."""
    values = array("d")
    n_rows = 0
    for number, cells in rows:
        if len(cells) != n_cells:
            raise RefusedError(
                f"path={str(file)!r} has {len(cells)} cells in line {number} but {n_cells} in its first; "
                "give all lines the same number"
            )
        try:
            row = [*map(float, cells[n_labels:])]
        except ValueError:
            row = [_number(file, cells[j], number, j, names) for j in range(n_labels, n_cells)]
        values.extend(row)
        n_rows += 1
    return values, n_rows


def _number(file: Path, cell: str, line: int, column: int, names: list[str] | None) -> float:
    """Return the number in a cell, NaN if it is missing."""
    if cell.lower() in MISSING_CELLS:
        return np.nan
    try:
        return float(cell)
    except ValueError:
        name = f" ({names[column]!r})" if names else ""
        shown = cell if len(cell) <= 40 else cell[:37] + "..."
        raise RefusedError(
            f"path={str(file)!r} holds the text {shown!r} in line {line}, column {column + 1}{name}; "
            "leave that column out, or write numbers with a decimal point and empty cells for what is missing"
        ) from None
