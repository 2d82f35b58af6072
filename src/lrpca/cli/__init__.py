"""The command ``lrpca``."""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lrpca.cli.console import EXIT_CODES, NOTHING_LEFT, ExitCode, exit_with, print_pairs, short_messages, stages

if TYPE_CHECKING:
    import typer

# Errors of a stream that takes no more.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with these arguments (by default ``sys.argv[1:]``), and return the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # a closed stream (2>&-)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    try:
        try:
            import rich  # noqa: F401
            import typer  # noqa: F401
        except ImportError:
            print("lrpca: the command line needs typer and rich; pip install lrpca[cli]", file=sys.stderr)
            return ExitCode.USAGE
        # Commands find their arguments in the context.
        called = sys.argv[1:] if arguments is None else list(arguments)
        _application()(args=called, prog_name="lrpca", obj=called)
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as stop:
        # Typer or rich caught the cause.
        caught = stop.__context__
        if isinstance(caught, BrokenPipeError):
            return ExitCode.UNREAD
        if caught is not None and isinstance(caught.__cause__, KeyboardInterrupt):
            return _interrupted()
        return stop.code if isinstance(stop.code, int) else ExitCode.DONE
    except OSError as error:
        # Errors of files are reported by the commands; streams have no name.
        if error.filename is not None or error.errno not in _FULL:
            raise
        return _unwritable(error)
    return ExitCode.DONE


def _interrupted() -> ExitCode:
    """Report a Ctrl-C before a command began, while libraries were loaded or the arguments read."""
    print(f"lrpca: interrupted, {NOTHING_LEFT}", file=sys.stderr)
    return ExitCode.INTERRUPTED


def _unwritable(error: OSError) -> ExitCode:
    """Report that the standard output cannot be written."""
    with suppress(OSError):
        print(f"lrpca: the standard output cannot be written ({error.strerror}); free some space", file=sys.stderr)
    # The rest of the buffers would fail once more when Python ends.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            os.dup2(nowhere, stream.fileno())
    return ExitCode.OUTPUT


def _application() -> Any:
    """Return the application with all commands."""
    import typer
    from typer.main import get_command

    from lrpca import __version__
    from lrpca.cli.bench import add_bench
    from lrpca.cli.decompose import add_decompose
    from lrpca.cli.memory_limit import load_within_limit
    from lrpca.cli.models import add_models
    from lrpca.cli.reproduce import add_reproduce
    from lrpca.cli.train import add_train
    from lrpca.cli.video import add_video

    app = typer.Typer(
        help="Robust PCA: split a matrix into a low-rank part and sparse outliers.",
        epilog=EXIT_CODES,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"lrpca {__version__}")
            raise typer.Exit

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
        ] = False,
    ) -> None:
        with short_messages(), exit_with(ExitCode.FAILED):
            load_within_limit()

    add_decompose(app)
    _add_demo(app)
    add_video(app)
    add_train(app)
    add_models(app)
    add_bench(app)
    add_reproduce(app)
    application: Any = get_command(app)
    for command in (application, *application.commands.values()):
        for parameter in command.get_params(typer.Context(command)):
            _show_as_written(parameter)
    return application


def _show_as_written(parameter: Any) -> None:
    """Keep typer from adding types to the help of an argument or a flag: ``[[FILE]]``, ``<list[Path]>``, ``<bool>``."""
    if parameter.param_type_name == "argument":
        parameter.get_usage_pieces = lambda ctx: [parameter.metavar]
    if parameter.param_type_name == "argument" or parameter.is_flag:
        parameter.display_type_rich = lambda ctx: None


def _add_demo(app: "typer.Typer") -> None:
    import typer

    @app.command(epilog=EXIT_CODES)
    def demo(
        output: Annotated[
            Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the pictures and the page.")
        ] = Path("lrpca-demo"),
        frames: Annotated[int, typer.Option(min=20, metavar="N", help="Number of frames to render.")] = 300,
        force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing page.")] = False,
    ) -> None:
        """Separate a rendered street scene into background and moving objects, and measure the accuracy."""
        with short_messages(), exit_with(ExitCode.OUTPUT, OSError):
            from lrpca.cli.demo import run

            with stages() as say:
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
