"""Turn ``experiments/results/*.json`` into the sections and figures that the page about the experiments includes.

Run ``python docs/make_experiments_tables.py`` to write ``docs/experiments_tables.md`` and ``docs/experiments_figures``;
building the site does it too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from make_benchmarks_page import load_result, render_result, render_table, write_if_changed

from lrpca.bench.experiments.measurement import Experiment
from lrpca.bench.experiments.page import VERDICTS, draw_png
from lrpca.bench.experiments.reproduce import EXPERIMENTS
from lrpca.files.atomic import replacing

FIGURES = "experiments_figures"


def render_section(experiment: Experiment[Any, Any], result: Mapping[str, Any]) -> str:
    """Render a result: figure, what the paper says, tables, circumstances.

    Parameters
    ----------
    experiment : Experiment
    result : mapping
        The content of its file.

    Returns
    -------
    str
        A section of Markdown.
    """
    rows = [[VERDICTS[c["confirmed"]], c["of"], c["paper"], c["measured"]] for c in result["claims"]]
    columns = ["confirmed", "held against", "the paper", "measured"]
    claims = {"caption": "The paper, and this measurement", "columns": columns, "rows": rows}
    told = {"caption": "What each was told", "columns": ["method", "told"], "rows": list(result["contestants"].items())}
    heading, command, rest = render_result({**result, "tables": [*result["tables"], told]}).split("\n\n", 2)
    setup = experiment.read(result).setup
    parts = [
        heading,
        command,
        f"In the paper: {experiment.source}. Here: {setup.caption()}.",
        f"![{experiment.title}]({FIGURES}/{experiment.name}.png)",
        render_table(claims),
        experiment.criteria,
        rest,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write_experiments(results_folder: Path, page: Path) -> None:
    """Write the sections, unless they already read the same, and the figures beside them.

    Parameters
    ----------
    results_folder : pathlib.Path
        Where the result files are; one that is absent is replaced by a line that says how to make it.
    page : pathlib.Path
        The Markdown file to write; figures go to a folder beside it.
    """
    parts = []
    for name, experiment in EXPERIMENTS.items():
        path = results_folder / f"{name}.json"
        if not path.exists():
            parts.append(f"## {experiment.title}\n\nNot stored yet; `lrpca reproduce {name}` measures it.\n")
            continue
        result = load_result(path)
        parts.append(render_section(experiment, result))
        figure = page.parent / FIGURES / f"{name}.png"
        if not figure.exists() or figure.stat().st_mtime < path.stat().st_mtime:
            figure.parent.mkdir(exist_ok=True)
            with replacing(figure) as temporary:
                temporary.write_bytes(draw_png(experiment, experiment.read(result)))
    write_if_changed(page, "\n".join(parts))


if __name__ == "__main__":
    here = Path(__file__).parent
    write_experiments(here.parent / "experiments" / "results", here / "experiments_tables.md")
