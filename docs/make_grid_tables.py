"""Turn ``benchmarks/results/grid.json`` and ``ablation.json`` into the tables that the page about the grid includes.

The files have the format of `make_benchmarks_page`. Run ``python docs/make_grid_tables.py`` to write
``docs/grid_tables.md``; building the site does it too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from make_benchmarks_page import load_result, render_result, render_table, write_if_changed

# File names and the command that makes each.
FILES = {"grid.json": "make grid", "ablation.json": "make ablation"}
# Tables with such a caption list every problem; they are folded away below the others.
LONG = "Kind: "


def render_section(result: Mapping[str, Any]) -> str:
    """Render a result, its long tables folded and last.

    Parameters
    ----------
    result : mapping
        What `load_result` returns.

    Returns
    -------
    str
        A section of Markdown.
    """
    tables = result["tables"]
    short = [table for table in tables if not table["caption"].startswith(LONG)]
    parts = [render_result({**result, "tables": short})]
    for table in tables:
        if table["caption"].startswith(LONG):
            title = table["caption"].removeprefix(LONG)
            parts.append(f"<details><summary>{title}</summary>\n\n{render_table(table)}\n</details>\n")
    return "\n".join(parts)


def write_tables(results_folder: Path, page: Path) -> None:
    """Write the tables, unless they already read the same.

    Parameters
    ----------
    results_folder : pathlib.Path
        Where the result files are; one that is absent is replaced by a line that says how to make it.
    page : pathlib.Path
        The Markdown file to write.
    """
    parts = []
    for name, command in FILES.items():
        path = results_folder / name
        stored = f"`benchmarks/results/{name}` is not stored yet; `{command}` writes it.\n"
        parts.append(render_section(load_result(path)) if path.exists() else stored)
    write_if_changed(page, "\n".join(parts))


if __name__ == "__main__":
    here = Path(__file__).parent
    write_tables(here.parent / "benchmarks" / "results", here / "grid_tables.md")
