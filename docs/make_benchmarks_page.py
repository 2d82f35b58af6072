"""Turn ``benchmarks/results/*.json`` into one page of tables.

Each file holds one benchmark::

    {"title": str, "command": str, "hardware": {...}, "versions": {...}, "date": str,
     "tables": [{"caption": str, "columns": [...], "rows": [[...], ...]}], "notes": [str]}

Run ``python docs/make_benchmarks_page.py`` to write ``docs/benchmarks.md``; building the site does it too.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lrpca.files.atomic import replacing

HEAD = """# Benchmarks

Every table on this page was written by the command above it and is shown as it came out, losses included.
Times depend on the machine, so most tables give ratios between things measured in the same run. `make bench`
measures speed and memory again on yours, principal component pursuit against that of other packages among them, and
`make real` accuracy on real data. Accuracy on planted problems is on the page about [the grid](grid.md), all solvers
beside each other on the page [which method for what](choose.md).
"""
NONE_YET = "No results are stored yet; `make bench` writes them to `benchmarks/results/`."
# Files that have a page of their own.
ELSEWHERE = ("ablation.json", "arena.json", "gpu.json", "grid.json")
KEYS = ("title", "command", "hardware", "versions", "date", "tables", "notes")


def load_results(folder: Path, leave_out: Collection[str] = ()) -> list[dict[str, Any]]:
    """Read and check every result file of a folder, ordered by file name.

    Parameters
    ----------
    folder : pathlib.Path
        Where the ``*.json`` files are; it may be absent.
    leave_out : collection of str
        Names of files to pass over.

    Returns
    -------
    list of dict
        The parsed results.

    Raises
    ------
    ValueError
        A file is not JSON or lacks a part of the format above.
    """
    return [load_result(path) for path in sorted(folder.glob("*.json")) if path.name not in leave_out]


def load_result(path: Path) -> dict[str, Any]:
    """Read and check one result file; a ValueError says what is wrong with it."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"file={path.name} is not JSON ({error}); run its benchmark again") from error
    _check(result, path.name)
    return dict(result)


def _check(result: Any, name: str) -> None:
    if not isinstance(result, dict) or (missing := [key for key in KEYS if key not in result]):
        lacking = ", ".join(missing) if isinstance(result, dict) else "everything"
        raise ValueError(f"file={name} lacks {lacking}; run its benchmark again")
    for table in result["tables"]:
        for row in table["rows"]:
            if len(row) != len(table["columns"]):
                raise ValueError(
                    f"file={name} has a row of {len(row)} cells under {len(table['columns'])} columns "
                    f"in the table {table['caption']!r}; run its benchmark again"
                )


def render_page(results: Sequence[Mapping[str, Any]]) -> str:
    """Render results as a Markdown page.

    Parameters
    ----------
    results : sequence of mapping
        What `load_results` returns.

    Returns
    -------
    str
        The page.
    """
    return "\n".join([HEAD, *map(render_result, results)] if results else [HEAD, NONE_YET, ""])


def render_result(result: Mapping[str, Any]) -> str:
    """Render one result as a section: title, command, tables, notes, circumstances."""
    parts = [f"## {_text(result['title'])}\n", f"```console\n$ {result['command']}\n```\n"]
    parts.extend(render_table(table) for table in result["tables"])
    parts.extend(f"- {_text(note)}" for note in result["notes"])
    parts.append(f"\n{_circumstances(result)}\n")
    return "\n".join(parts)


def render_table(table: Mapping[str, Any]) -> str:
    """Render one table under its caption; columns of nothing but numbers are set flush right."""
    numeric = [all(_is_number(row[i]) for row in table["rows"]) for i in range(len(table["columns"]))]
    lines = [
        _row(table["columns"]),
        "|" + "|".join("---:" if right else "---" for right in numeric) + "|",
        *(_row(row) for row in table["rows"]),
    ]
    return f"**{_text(table['caption'])}**\n\n" + "\n".join(lines) + "\n"


def _row(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(_text(cell) for cell in cells) + " |"


def _is_number(cell: Any) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))


def _text(cell: Any) -> str:
    """Return a cell as it should read, with what Markdown would take for markup escaped."""
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.3g}"
    text = " ".join(str(cell).split())
    for character in "\\|<>*_`[]$":
        text = text.replace(character, "\\" + character)
    return text


def _circumstances(result: Mapping[str, Any]) -> str:
    hardware = ", ".join(f"{_text(key)} {_text(value)}" for key, value in result["hardware"].items())
    versions = ", ".join(f"{_text(key)} {_text(value)}" for key, value in result["versions"].items())
    return f"Measured {_text(result['date'])} on: {hardware}. Versions: {versions}."


def write_page(results_folder: Path, page: Path) -> None:
    """Write the benchmarks page, unless it already reads the same.

    Parameters
    ----------
    results_folder : pathlib.Path
        Where the result files are; those with a page of their own are passed over.
    page : pathlib.Path
        The Markdown file to write.
    """
    write_if_changed(page, render_page(load_results(results_folder, ELSEWHERE)))


def write_if_changed(page: Path, text: str) -> None:
    """Write a page, unless it already reads the same, so that Sphinx need not read it again."""
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return
    with replacing(page) as temporary:
        temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    here = Path(__file__).parent
    write_page(here.parent / "benchmarks" / "results", here / "benchmarks.md")
