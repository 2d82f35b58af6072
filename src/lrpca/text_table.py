"""Reading a matrix from a text file of comma-, tab-, semicolon- or space-separated cells."""

from __future__ import annotations

import csv
import gzip
import warnings
from array import array
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

MISSING_CELLS = frozenset({"", "na", "n/a", "#n/a", "nan", "-nan", "null", "none"})


class RefusedError(ValueError):
    """A file whose content is refused, with a message in its final form."""


def read_table(file: Path, ending: str) -> NDArray[np.float64]:
    r"""Read a text table of numbers.

    Parameters
    ----------
    file : pathlib.Path
        The file; UTF-8, compressed by gzip if it ends in ``.gz``.
    ending : str
        ``.csv``, ``.tsv`` or ``.txt``, with or without ``.gz``: which separators are expected.

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
    >>> from lrpca.text_table import read_table
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
        n_labels, has_names = _heading(file, first)
        rows = lines if has_names else chain([(number, first)], lines)
        values, n_rows = _numbers(file, rows, first if has_names else None, len(first), n_labels)
    if not n_rows:
        raise RefusedError(f"path={str(file)!r} holds one line of names and no numbers; check how it was written")
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


def _heading(file: Path, cells: list[str]) -> tuple[int, bool]:
    """Return how many columns hold row names (0 or 1), and whether the first line holds column names."""
    n_texts = sum(not _is_number(cell) for cell in cells)
    n_named = sum(cell != "" for cell in cells)
    if cells[0] == "" and n_named == len(cells) - 1 > 0:
        if n_texts == n_named or cells[1:] == [str(j) for j in range(len(cells) - 1)]:
            return 1, True
    if 0 < n_texts < n_named:
        warnings.warn(
            f"path={str(file)!r} mixes names and numbers in its first line, which is taken as column names; "
            "correct that line if it is data",
            stacklevel=5,
        )
    if len(cells) > 2 and cells == [str(j) for j in range(len(cells))]:
        warnings.warn(
            f"path={str(file)!r} begins with the line 0, 1, 2, ..., which is taken as data; "
            "remove that line if it holds column names",
            stacklevel=5,
        )
    return 0, n_texts > 0


def _is_number(cell: str) -> bool:
    """Tell whether a cell is a number or missing."""
    try:
        float(cell)
    except ValueError:
        return cell.lower() in MISSING_CELLS
    return True


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
