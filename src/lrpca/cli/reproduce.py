"""The command ``lrpca reproduce``: the experiments of the paper, repeated."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from lrpca.cli.console import exit_with, grid, print_out, stages
from lrpca.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from lrpca.bench.experiments.reproduce import Reproduction

_FOLDER = Path("lrpca-reproduce")
_OUTPUT = "Folder for NAME.json and NAME.html."
_VIDEO = "Footage for the experiment video: a file or a folder of pictures. Repeat it, once per clip."


def reproduce(
    name: Annotated[str, Argument(metavar="[NAME]", help="Name of an experiment; list shows all names.")] = "list",
    output: Annotated[Path, Option("--output", "-o", metavar="DIR", help=_OUTPUT)] = _FOLDER,
    quick: Annotated[
        bool, Option("--quick", help="Run a small version: seconds instead of minutes. No claim gets a verdict.")
    ] = False,
    repeat: Annotated[int | None, Option(min=1, metavar="K", help="Number of problems for each setting.")] = None,
    seed: Annotated[int, Option(min=0, metavar="N", help="Random seed of the first problem.")] = 0,
    video: Annotated[list[str] | None, Option(metavar="FILE", help=_VIDEO)] = None,
    force: Annotated[bool, Option("--force", "-f", help="Replace existing files.")] = False,
) -> None:
    """Repeat an experiment of the paper, and compare the result with the paper's claims on a page."""
    from lrpca.bench.experiments.reproduce import EXPERIMENTS, find_experiment
    from lrpca.bench.experiments.reproduce import reproduce as run

    if name == "list":
        rows = [[e.name, f"{e.summary}; {e.full}"] for e in EXPERIMENTS.values()]
        print_out(grid(["name", "what it measures"], rows))
        return
    with exit_with(ExitCode.USAGE, ValueError):
        find_experiment(name)
        if video and name != "video":
            raise ValueError(f"--video={video[0]} is not used by {name!r}; leave it out, or use 'video'")
    with exit_with(ExitCode.INPUT, ValueError), exit_with(ExitCode.OUTPUT, OSError), stages() as say:
        settings: dict[str, Any] = {"quick": quick, "repeat": repeat, "random_state": seed, "videos": video or []}
        result = run(name, output, **settings, overwrite=force, progress=say)
    _show(result)


def _show(result: "Reproduction") -> None:
    """Print the tables, the claims and where the page is."""
    from lrpca.bench.experiments.reproduce import HELD, headline, verdict

    print_out(f"{headline(result.experiment, result.small)}; the paper's claims are {HELD}")
    for table in result.tables:
        print_out(f"\n{table.caption}", grid(table.columns, table.rows))
    claims = [[verdict(c.confirmed, result.small), c.of, f"{c.paper}: {c.measured}"] for c in result.claims]
    where = f"\npage     {result.page}\nnumbers  {result.results}\ntime     {result.seconds:.0f} s"
    print_out("", grid(["confirmed", "compared with", "the paper, and measured"], claims), where)
