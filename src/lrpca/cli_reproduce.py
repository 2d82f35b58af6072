"""The command ``lrpca reproduce``: the paper's comparisons, measured again."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lrpca.console import ExitCode, exit_codes, exit_with, short_messages, stages

if TYPE_CHECKING:
    import typer
    from rich.table import Table as RichTable

    from lrpca.experiments.reproduce import Reproduction


def add_reproduce(app: "typer.Typer") -> None:
    """Add the command to the application."""
    import typer

    option = typer.Option

    @app.command(epilog=exit_codes("measured and written, whatever was confirmed."))
    def reproduce(
        name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which comparison; 'list' shows them.")] = "list",
        output: Annotated[
            Path, option("--output", "-o", metavar="DIR", help="Folder of NAME.json and NAME.html.")
        ] = Path("lrpca-reproduce"),
        quick: Annotated[
            bool, option("--quick", help="A small form: seconds instead of minutes, no verdicts.")
        ] = False,
        repeat: Annotated[int | None, option(min=1, metavar="K", help="Problems for each setting.")] = None,
        seed: Annotated[int, option(min=0, metavar="N", help="Seed of the first problem.")] = 0,
    ) -> None:
        """Measure one of the paper's comparisons again, and write its numbers and a page beside what the paper says."""
        from lrpca.experiments.reproduce import EXPERIMENTS, find_experiment

        with short_messages():
            if name == "list":
                _print(
                    _grid(
                        ["name", "what it measures"], [[e.name, f"{e.summary}; {e.full}"] for e in EXPERIMENTS.values()]
                    )
                )
                return
            with exit_with(ExitCode.USAGE, ValueError):
                find_experiment(name)
            _show(_run(name, output, quick, repeat, seed))


def _run(name: str, output: Path, quick: bool, repeat: int | None, seed: int) -> "Reproduction":
    from lrpca.experiments.reproduce import reproduce

    with exit_with(ExitCode.INPUT, ValueError), exit_with(ExitCode.OUTPUT, OSError), stages() as say:
        return reproduce(name, output, quick=quick, repeat=repeat, random_state=seed, progress=say)


def _show(result: "Reproduction") -> None:
    """Print the tables, the claims and where the page is."""
    from lrpca.experiments.page import HELD, headline, verdict

    _print(f"{headline(result.experiment, result.small)}; the paper's claims are {HELD}")
    for table in result.tables:
        _print(f"\n{table.caption}")
        _print(_grid(table.columns, table.rows))
    claims = [[verdict(c.confirmed, result.small), c.of, f"{c.paper}: {c.measured}"] for c in result.claims]
    _print("")
    _print(_grid(["confirmed", "held against", "the paper, and measured"], claims))
    _print(f"\npage     {result.page}\nnumbers  {result.results}\ntime     {result.seconds:.0f} s")


def _grid(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> "RichTable":
    """Return rows under columns; numbers stand right."""
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, padding=(0, 2, 0, 0))
    for k, name in enumerate(columns):
        numeric = any(_is_number(row[k]) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_text(cell)) for cell in row))
    return table


def _print(what: "str | RichTable") -> None:
    """Print on stdout; a file or a pipe has no width, so lines stay whole there."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 1000, highlight=False, markup=False).print(what)


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _text(cell: object) -> str:
    if cell is None:
        return "–"
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)
