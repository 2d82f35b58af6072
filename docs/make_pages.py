"""Turn ``benchmarks/results/*.json`` and ``experiments/results/*.json`` into the pages and tables of the site.

Each file holds one measurement::

    {"title": str, "command": str, "hardware": {...}, "versions": {...}, "date": str,
     "tables": [{"caption": str, "columns": [...], "rows": [[...], ...]}], "notes": [str]}

``python docs/make_pages.py`` writes ``docs/benchmarks.md`` and the tables that other pages include. Building the site
does that too.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lrpca.bench.experiments.measurement import Experiment
from lrpca.bench.experiments.reproduce import CLAIM_COLUMNS, EXPERIMENTS, VERDICTS, draw_png
from lrpca.bench.measuring import cell_text
from lrpca.files.atomic import replacing
from lrpca.learn.report import score_of, trained_on
from lrpca.schedule import Schedule, shipped

HERE = Path(__file__).parent
MEASURED, REPRODUCED = HERE.parent / "benchmarks" / "results", HERE.parent / "experiments" / "results"
FIGURES = "experiments_figures"
HEAD = """# Benchmarks

The command above each section wrote its tables. They are shown unchanged, losses included. Times depend on the machine,
so most tables give ratios within one run. To repeat the measurements on your machine, use `make bench` for speed and
memory and `make real` for accuracy on real data. [The grid](grid.md) has the accuracy on planted problems.
[Which method for what](choose.md) compares all methods.
"""
NONE_YET = "No results are stored yet; `make bench` writes them to `benchmarks/results/`."
COMPARED = """## Published models and ours

The commands shown wrote these tables. [The paper's experiments](experiments.md) explains the comparison, with figures
and the claims of the paper.
"""
WHICH = """Use the default unless you have a reason not to. It needs no training and works for the widest range of data.

- `fast` saves a pass or two on clean data of low rank with few outliers. It needs more passes than the default if data
  are noisy or incomplete.
- The `fnn-` and `frmnn-` models have the paper's form: they are for 1000 x 1000 matrices of rank 5, with the share of
  outliers in their name. On other data they may fail; the result then says so. Each `frmnn-` model is the best of five
  seeds: it solves all of twenty new problems up to rounding.
- Compare scores only between models of the same depth.

We also trained schedules on wide mixtures of problems, to replace the default. On four draws of the [grid](grid.md),
the best one recovered 371 of 372 problems, with 1.4% fewer passes; the default recovered 370. Another draw changes as
much. So the default keeps its numbers, which were set by hand.
"""
# Files that have their own page, or another format.
ELSEWHERE = ("ablation.json", "arena.json", "baseline.json", "baseline_after.json", "gpu.json", "grid.json")
KEYS = ("title", "command", "hardware", "versions", "date", "tables", "notes")
# Tables of the grid whose caption starts like this list every problem; they are folded, below the others.
LONG = "Kind: "


# ------------------------------------------------------------------------------------------------ results


def load_results(folder: Path, leave_out: Collection[str] = ()) -> list[dict[str, Any]]:
    """Read and check every result file of a folder, ordered by file name; the folder may be absent."""
    return [load_result(path) for path in sorted(folder.glob("*.json")) if path.name not in leave_out]


def load_result(path: Path) -> dict[str, Any]:
    """Read and check one result file; a ValueError says what is wrong with it."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"file={path.name} is not JSON ({error}); run its benchmark again") from error
    if not isinstance(result, dict) or (missing := [key for key in KEYS if key not in result]):
        lacking = ", ".join(missing) if isinstance(result, dict) else "everything"
        raise ValueError(f"file={path.name} lacks {lacking}; run its benchmark again")
    for table in result["tables"]:
        for row in (row for row in table["rows"] if len(row) != len(table["columns"])):
            under = f"{len(table['columns'])} columns in the table {table['caption']!r}"
            raise ValueError(f"file={path.name} has a row of {len(row)} cells under {under}; run its benchmark again")
    return dict(result)


def render_result(result: Mapping[str, Any]) -> str:
    """Render one result as a section: title, command, tables, notes, machine and versions."""
    parts = [f"## {_text(result['title'])}\n", f"```console\n$ {result['command']}\n```\n"]
    parts.extend(render_table(table) for table in result["tables"])
    parts.extend(f"- {_text(note)}" for note in result["notes"])
    about = [result[part].items() for part in ("hardware", "versions")]
    hardware, versions = (", ".join(f"{_text(key)} {_text(value)}" for key, value in items) for items in about)
    commit = f", commit {_text(result['commit'])}," if "commit" in result else ""
    parts.append(f"\nMeasured {_text(result['date'])}{commit} on: {hardware}. Versions: {versions}.\n")
    return "\n".join(parts)


def render_table(table: Mapping[str, Any]) -> str:
    """Render one table under its caption; columns of numbers are aligned right."""
    numeric = [all(_is_number(row[i]) for row in table["rows"]) for i in range(len(table["columns"]))]
    lines = ["| " + " | ".join(_text(cell) for cell in row) + " |" for row in (table["columns"], *table["rows"])]
    lines.insert(1, "|" + "|".join("---:" if right else "---" for right in numeric) + "|")
    return f"**{_text(table['caption'])}**\n\n" + "\n".join(lines) + "\n"


def fold(title: str, text: str) -> str:
    """Return a text that is folded under its title."""
    return f"<details><summary>{title}</summary>\n\n{text}\n</details>\n"


def _is_number(cell: Any) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))


def _text(cell: Any) -> str:
    """Return a cell as text, with the markup of Markdown escaped."""
    text = " ".join(cell_text(cell).split())
    for character in "\\|<>*_`[]$":
        text = text.replace(character, "\\" + character)
    return text


# ------------------------------------------------------------------------------------------------ pages


def stored(path: Path, command: str, render: Callable[[dict[str, Any]], str]) -> str:
    """Return a rendered result, or a line that says how to make it."""
    absent = f"`{path.parents[1].name}/results/{path.name}` is not stored yet; `{command}` writes it.\n"
    return render(load_result(path)) if path.exists() else absent


def benchmarks_page(folder: Path = MEASURED) -> str:
    """Return the page of all results without their own page."""
    results = load_results(folder, ELSEWHERE)
    return "\n".join([HEAD, *map(render_result, results)] if results else [HEAD, NONE_YET, ""])


def grid_page(folder: Path = MEASURED) -> str:
    """Return the tables of the grid and of the ablation, the long ones folded and last."""

    def render(result: dict[str, Any]) -> str:
        long = [table for table in result["tables"] if table["caption"].startswith(LONG)]
        short = [table for table in result["tables"] if table not in long]
        folded = [fold(table["caption"].removeprefix(LONG), render_table(table)) for table in long]
        return "\n".join([render_result({**result, "tables": short}), *folded])

    return "\n".join(stored(folder / f"{name}.json", f"make {name}", render) for name in ("grid", "ablation"))


def gpu_page(folder: Path = MEASURED) -> str:
    """Return the tables of a GPU, without a heading."""
    path = folder / "gpu.json"
    return stored(path, "make bench-gpu", lambda result: render_result(result).partition("\n")[2].lstrip())


def choose_page(folder: Path = MEASURED) -> str:
    """Return the advice on which method to use for what."""
    from choose import render_sections

    return stored(folder / "arena.json", "make arena", render_sections)


def experiments_page(folder: Path = REPRODUCED, figures: Path = HERE / FIGURES) -> str:
    """Return the sections of the paper's experiments, and draw their figures."""
    parts = []
    for name, experiment in EXPERIMENTS.items():
        path, figure = folder / f"{name}.json", figures / f"{name}.png"
        if not path.exists():
            parts.append(f"## {experiment.title}\n\nNot stored yet; `lrpca reproduce {name}` measures it.\n")
            continue
        result = load_result(path)
        parts.append(_experiment(experiment, result))
        if not figure.exists() or figure.stat().st_mtime < path.stat().st_mtime:
            figure.parent.mkdir(exist_ok=True)
            with replacing(figure) as temporary:
                temporary.write_bytes(draw_png(experiment, experiment.read(result)))
    return "\n".join(parts)


def _experiment(experiment: Experiment, result: Mapping[str, Any]) -> str:
    """Render a result: figure, claims of the paper, tables, machine and versions."""
    rows = [[VERDICTS[c["confirmed"]], c["of"], c["paper"], c["measured"]] for c in result["claims"]]
    claims = {"caption": "The paper, and this measurement", "columns": CLAIM_COLUMNS, "rows": rows}
    given = {"caption": "What each method was given", "columns": ["method", "given"]}
    given["rows"] = [*map(list, result["contestants"].items())]
    heading, command, rest = render_result({**result, "tables": [*result["tables"], given]}).split("\n\n", 2)
    source = f"In the paper: {experiment.source}. Here: {experiment.read(result).setup.caption()}."
    figure = f"![{experiment.title}]({FIGURES}/{experiment.name}.png)"
    parts = [heading, command, source, figure, render_table(claims), experiment.criteria, rest]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def learning_page(measured: Path = MEASURED, reproduced: Path = REPRODUCED) -> str:
    """Return the shipped models, the commands that made them, and the comparison of published models with ours."""
    models = {name: Schedule.load(name) for name in shipped()}
    rows = []
    for name, schedule in models.items():
        layers = f"{schedule.layers}, then a recurrence" if schedule.tail is not None else schedule.layers
        form = f"{schedule.influence}, {schedule.update}"
        rows.append([name, schedule.kind, form, layers, trained_on(schedule), score_of(schedule)])
    columns = ["name", "kind", "form", "layers", "trained on", "score"]
    commands = [f"$ {schedule.meta['command']}" for schedule in models.values() if "command" in schedule.meta]
    made = "\n".join(["```console", *commands, "```\n"])
    table = render_table({"caption": "Models that come with the library", "columns": columns, "rows": rows})
    results = {measured / "learned_models.json": "python benchmarks/learned_models.py"}
    results |= {reproduced / f"{name}.json": f"lrpca reproduce {name}" for name in ("generalisation", "training-time")}
    parts = [f"## The shipped models\n\n{WHICH}\n{table}\n{made}", COMPARED]
    return "\n".join([*parts, *(stored(*pair, lambda result: f"#{render_result(result)}") for pair in results.items())])


PAGES: Mapping[str, Callable[[], str]] = {
    **{"benchmarks.md": benchmarks_page, "grid_tables.md": grid_page, "gpu_results.md": gpu_page},
    **{"choose_tables.md": choose_page, "experiments_tables.md": experiments_page, "learning_tables.md": learning_page},
}


def write_pages(names: Sequence[str] = tuple(PAGES)) -> None:
    """Write the pages that changed; Sphinx reads only these again."""
    for name in names:
        page, text = HERE / name, PAGES[name]()
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            with replacing(page) as temporary:
                temporary.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_pages()
