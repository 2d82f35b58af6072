"""The application: all commands, and the options of ``lrpca`` itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option
from typer.main import get_command

from lrpca import __version__
from lrpca.cli.bench import bench
from lrpca.cli.console import exit_with, print_pairs, short_messages, stages
from lrpca.cli.decompose import decompose
from lrpca.cli.exit_codes import ExitCode, exit_codes
from lrpca.cli.memory_limit import load_within_limit
from lrpca.cli.models import models
from lrpca.cli.reproduce import reproduce
from lrpca.cli.train import train
from lrpca.cli.video import video

_OUTPUT = "Folder for the pictures and the page."
_CONVERGED = exit_codes("done and converged.", "done and written, but not converged.")


def demo(
    output: Annotated[Path, Option("--output", "-o", metavar="DIR", help=_OUTPUT)] = Path("lrpca-demo"),
    frames: Annotated[int, Option(min=20, metavar="N", help="Number of frames to render.")] = 300,
    force: Annotated[bool, Option("--force", "-f", help="Replace an existing page.")] = False,
) -> None:
    """Separate a rendered street scene into background and moving objects, and measure the accuracy."""
    with exit_with(ExitCode.OUTPUT, OSError), stages() as say:
        from lrpca.cli.demo import run

        result = run(output, n_frames=frames, overwrite=force, progress=say)
    d = result.decomposition
    print_pairs(
        {
            "scene": f"{result.shape[0]} frames of {result.shape[1]} pixels, rank {d.rank}",
            "background error": f"{result.background_error:.2%}",
            "foreground": f"F-measure {result.f_measure:.3f} "
            f"(precision {result.precision:.3f}, recall {result.recall:.3f})",
            "time": f"{result.seconds:.3g} s (and {result.compile_seconds:.3g} s to load or compile)",
            "iterations": f"{d.n_iter}, {d.n_reads:.3g} passes over the data",
            "converged": f"{'yes' if d.converged else 'no'} ({d.reason})",
            "page": str(result.page),
        }
    )
    raise typer.Exit(ExitCode.DONE if d.converged else ExitCode.NOT_CONVERGED)


# With the meaning of the exit codes 0 and 4.
_COMMANDS: dict[Callable[..., None], str] = {
    decompose: _CONVERGED,
    demo: _CONVERGED,
    video: exit_codes(
        "separated and written.", "written, but the clip breaks off; only the frames before that are separated."
    ),
    train: exit_codes("trained and written.", "training diverged; no model is written."),
    models: exit_codes("shown."),
    bench: exit_codes("done; the table marks methods that failed.", "done and written, but no method gave an answer."),
    reproduce: exit_codes("measured and written, even if claims were not confirmed."),
}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lrpca {__version__}")
        raise typer.Exit


@short_messages()
def _root(
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    with exit_with(ExitCode.FAILED):
        load_within_limit()


def application() -> Any:
    """Return the application with all commands."""
    app = typer.Typer(
        help="Robust PCA: split a matrix into a low-rank part and sparse outliers.",
        epilog=_CONVERGED,
        callback=_root,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    for command, codes in _COMMANDS.items():
        app.command(epilog=codes)(short_messages()(command))
    found: Any = get_command(app)
    for each in (found, *found.commands.values()):
        for parameter in each.get_params(typer.Context(each)):
            _show_as_written(parameter)
    return found


def _show_as_written(parameter: Any) -> None:
    """Keep typer from adding types to the help of an argument or a flag: ``[[FILE]]``, ``<list[Path]>``, ``<bool>``."""
    if parameter.param_type_name == "argument":
        parameter.get_usage_pieces = lambda ctx: [parameter.metavar]
    if parameter.param_type_name == "argument" or parameter.is_flag:
        parameter.display_type_rich = lambda ctx: None
