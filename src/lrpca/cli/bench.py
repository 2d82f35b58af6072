"""The command ``lrpca bench``: a comparison of methods, on a planted problem or on your own matrix."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from lrpca.cli.console import exit_with, print_out, read_shape, stages
from lrpca.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from lrpca.bench.contest import Contest

_FOLDER, _SIDE, _RANK = Path("lrpca-bench"), 3000, 5
_RANK_HELP = "Rank of the low-rank part; required for a FILE, otherwise 5."
_METHODS = "Methods to compare: all, or e.g. lrpca,pcp:algorithm=admm. May be repeated."
_FILE = "Your matrix. Without it, a planted problem is generated."
_KEY = "Name of the array, if FILE holds several."
_SIZE = "Largest outlier, in units of mean |X|; default 1."
_NOISE = "Standard deviation of the noise, in units of mean |X|; default 0."
_CONDITION = "Condition number of the low-rank part. Default: as generated."
_PLACEMENT = "Where the outliers are: uniform (default), rows, columns or blocks."
_DTYPE = "Number type: float64 (default), float32, complex128 or complex64."
_TOL = "Tolerance for all methods. Default: that of each method."
_THREADS = "Threads of each method. Default: OMP_NUM_THREADS and similar, or all cores."


def bench(
    file: Annotated[Path | None, Argument(metavar="[FILE]", help=_FILE)] = None,
    output: Annotated[Path, Option("--output", "-o", metavar="DIR", help="Folder for the report.")] = _FOLDER,
    methods: Annotated[list[str] | None, Option("--methods", "-m", metavar="LIST", help=_METHODS)] = None,
    rank: Annotated[int | None, Option("--rank", "-r", min=1, metavar="N", help=_RANK_HELP)] = None,
    key: Annotated[str | None, Option(metavar="NAME", help=_KEY)] = None,
    truth: Annotated[Path | None, Option(metavar="FILE", help="True low-rank part of FILE, if known.")] = None,
    n: Annotated[int | None, Option("--n", min=2, metavar="N", help="Generate an N x N problem; default 3000.")] = None,
    shape: Annotated[str | None, Option(metavar="N1xN2", help="Generate a problem of this shape.")] = None,
    outliers: Annotated[float | None, Option(metavar="X", help="Share of outliers; default 0.1.")] = None,
    outlier_size: Annotated[float | None, Option(metavar="X", help=_SIZE)] = None,
    noise: Annotated[float | None, Option(metavar="X", help=_NOISE)] = None,
    missing: Annotated[float | None, Option(metavar="X", help="Share of missing entries; default 0.")] = None,
    condition: Annotated[float | None, Option(metavar="X", help=_CONDITION)] = None,
    placement: Annotated[str | None, Option(metavar="WORD", help=_PLACEMENT)] = None,
    dtype: Annotated[str | None, Option(metavar="TYPE", help=_DTYPE)] = None,
    seed: Annotated[int, Option(min=0, metavar="N", help="Random seed of the problem and the methods.")] = 0,
    tol: Annotated[float | None, Option(min=0.0, metavar="X", help=_TOL)] = None,
    target: Annotated[float, Option(metavar="X", help="Measure the time until this error is reached.")] = 1e-4,
    blind: Annotated[bool, Option("--blind", help="Do not give methods the true share of outliers.")] = False,
    repeat: Annotated[int, Option(min=1, metavar="K", help="Number of calls of each method; the median is shown.")] = 1,
    time_limit: Annotated[float, Option(metavar="S", help="Maximum time of a call, in seconds.")] = 300.0,
    memory_limit: Annotated[float | None, Option(metavar="GB", help="Maximum memory of a method, in GB.")] = None,
    threads: Annotated[int | None, Option(min=1, metavar="N", help=_THREADS)] = None,
    force: Annotated[bool, Option("--force", "-f", help="Replace an existing report.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only warnings and errors.")] = False,
) -> None:
    """Compare methods, also those of other packages, on a planted problem or on your matrix in FILE."""
    from lrpca import plot
    from lrpca.bench.contest import Conditions, compete, page, parse_specs
    from lrpca.files import read_matrix
    from lrpca.files.atomic import check_folder

    asked: dict[str, Any] = {
        **{"n": n, "shape": shape, "outliers": outliers, "outlier_size": outlier_size, "noise": noise},
        **{"missing": missing, "condition": condition, "placement": placement, "dtype": dtype},
    }
    made = {name: value for name, value in asked.items() if value is not None}
    specs, most = methods or ["all"], None if memory_limit is None else memory_limit * 1e9
    with exit_with(ExitCode.USAGE):
        plot.require_matplotlib()
        parse_specs(specs)
        _check(file, made, {"--truth": truth, "--key": key}, rank)
        conditions = Conditions(tol, blind, target, repeat, time_limit, most, threads, seed)
    with exit_with(ExitCode.OUTPUT):
        check_folder(output, page.FILES, overwrite=force)
    with exit_with(ExitCode.INPUT if file else ExitCode.USAGE):
        exact = None if truth is None else read_matrix(truth)
        if file is None:
            problem, about = _planted(made, rank, seed)
        else:
            problem, about = read_matrix(file, key=key), {"name": f"the matrix {file.name}"}
        with stages(quiet) as say:
            contest = compete(problem, specs, conditions, rank=rank, truth=exact, description=about, progress=say)
    with exit_with(ExitCode.OUTPUT):
        written = page.write(contest, output)
    if not quiet:
        _show(contest, written)
    answered = any(entry.answered for entry in contest.entries)
    raise typer.Exit(ExitCode.DONE if answered else ExitCode.NOT_CONVERGED)


def _check(file: Path | None, made: dict[str, Any], of_file: dict[str, Any], rank: int | None) -> None:
    """Raise ValueError for options that belong to the other kind of problem: a file, or one that is made."""
    if file is None:
        for name, value in of_file.items():
            if value is not None:
                raise ValueError(f"{name}={value} belongs to a FILE; name the file, or leave it out")
    elif made:
        name, value = next(iter(made.items()))
        raise ValueError(f"--{name.replace('_', '-')}={value} makes a problem; leave it out, or FILE")
    elif rank is None:
        raise ValueError("--rank=None is not enough for a FILE; give --rank N, e.g. 5")
    if "n" in made and "shape" in made:
        raise ValueError(f"--n={made['n']} is given beside --shape={made['shape']}; give one of them")


def _planted(made: dict[str, Any], rank: int | None, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return a problem, and what the report says of it."""
    from lrpca.testing import planted

    names = {"outliers": "outlier_fraction"}
    given = {names.get(name, name): value for name, value in made.items()}
    side = given.pop("n", _SIDE)
    shape = read_shape(given.pop("shape", f"{side}x{side}"))
    dtype = given.pop("dtype", "float64")
    if dtype not in ("float64", "float32", "complex128", "complex64"):
        raise ValueError(f"dtype={dtype!r} is unknown; use one of float64, float32, complex128, complex64")
    problem = planted(shape, rank=rank or _RANK, dtype=dtype, random_state=seed, **given)
    described = {name: value for name, value in given.items() if name not in ("missing", "outlier_fraction")}
    return problem, {"name": "a planted problem", "seed": seed} | described


def _show(contest: "Contest", written: Path) -> None:
    """Print the table, the settings, and where the page is."""
    from rich.table import Table
    from rich.text import Text

    from lrpca.bench.contest import page

    names = page.columns(contest)
    table = Table(box=None, padding=(0, 2, 0, 0))
    settings = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name in names:
        left = name in page.LEFT
        table.add_column(page.heading(name, contest), justify="left" if left else "right", no_wrap=name != "status")
    for entry in contest.entries:
        style = "bold" if entry.spec == page.OURS else "" if entry.answered else "dim"
        table.add_row(*(Text(cell, style=style) for cell in page.cells(entry, names)))
        settings.add_row(Text(entry.spec), Text(page.settings_text(entry) or "defaults", style="dim"))
    warning = page.load_warning(contest)
    print_out(f"{page.describe(contest)}; threads: {contest.conditions['threads']}\n", table)
    print_out(*([f"\n{warning}"] if warning else []), "\nsettings as used", settings, f"\npage  {written}")
