"""The command ``lrpca``: thin commands over the library, with exit codes for scripts."""

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lrpca.console import EXIT_CODES, ExitCode, exit_with, live_rows, print_pairs, short_messages, stages

if TYPE_CHECKING:
    import typer

    from lrpca.decomposition import State

INPUTS = ".npy .npz .csv .tsv .txt .mat .parquet"
OUTPUTS = "OUT.npz, OUT.mat, or else a folder OUT/ of .npy files."
RANK = "Rank of the low-rank part; auto: all components that stand out of the noise; 0.9: those that explain 90%."
METHOD = "The solver, with options if any: accaltproj:gamma=0.5. `lrpca bench` compares them."
TOL = "Where the method stops: change of X or residual, both relative."
COMPILING = "solving (on its first use the library is compiled, which takes a while)"
SCHEDULES = "A shipped schedule, a .json schedule or a published .mat model."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the program's name; ``sys.argv[1:]`` if not given.

    Returns
    -------
    int
        The exit code, see :class:`ExitCode`.
    """
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        print("lrpca: the command line needs typer and rich; pip install lrpca[cli]", file=sys.stderr)
        return ExitCode.USAGE
    try:
        # Commands that write down how they were called find it in the context.
        called = sys.argv[1:] if arguments is None else list(arguments)
        _application()(args=called, prog_name="lrpca", obj=called)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else ExitCode.DONE
    return ExitCode.DONE


def _application() -> "typer.Typer":
    """Build the application with all commands."""
    import typer

    from lrpca import __version__
    from lrpca.cli_bench import add_bench
    from lrpca.cli_models import add_models
    from lrpca.cli_reproduce import add_reproduce
    from lrpca.cli_train import add_train
    from lrpca.cli_video import add_video

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
        pass

    _add_decompose(app)
    _add_demo(app)
    add_video(app)
    add_train(app)
    add_models(app)
    add_bench(app)
    add_reproduce(app)
    return app


def _add_decompose(app: "typer.Typer") -> None:
    import typer

    option = typer.Option

    @app.command(epilog=EXIT_CODES)
    def decompose(
        file: Annotated[Path, typer.Argument(metavar="FILE", help=f"The matrix: {INPUTS}. NaN is missing.")],
        output: Annotated[Path, option("--output", "-o", metavar="OUT", help=OUTPUTS)],
        rank: Annotated[str, option("--rank", "-r", metavar="N", help=RANK)] = "auto",
        method: Annotated[str, option("--method", "-m", metavar="NAME", help=METHOD)] = "lrpca",
        sparse: Annotated[bool, option("--sparse", help="Write S, the outliers, as a full matrix.")] = False,
        low_rank: Annotated[bool, option("--low-rank", help="Write L Rᵀ as a full matrix.")] = False,
        key: Annotated[str | None, option(metavar="NAME", help="Which array of a .npz or .mat file.")] = None,
        schedule: Annotated[str | None, option(metavar="NAME", help=SCHEDULES)] = None,
        tol: Annotated[float | None, option(min=0.0, metavar="X", help=TOL)] = None,
        max_iter: Annotated[int | None, option(min=1, metavar="N", help="Most iterations.")] = None,
        seed: Annotated[int, option(min=0, metavar="N", help="Seed of the random start.")] = 0,
        force: Annotated[bool, option("--force", "-f", help="Replace a result that exists.")] = False,
        quiet: Annotated[bool, option("--quiet", "-q", help="Print only warnings and errors.")] = False,
        as_json: Annotated[bool, option("--json", help="Print the summary as JSON.")] = False,
    ) -> None:
        """Split the matrix in FILE into a low-rank part L Rᵀ and sparse outliers S."""
        import lrpca
        from lrpca import files
        from lrpca.cli_models import load_schedule

        with short_messages():
            with exit_with(ExitCode.OUTPUT):
                files.check_writable(output, overwrite=force, source=file)
            with exit_with(ExitCode.USAGE, ValueError, NotImplementedError):
                wanted = _read_rank(rank)
                name, options = _checked_method(method)
            with exit_with(ExitCode.INPUT):
                Y = files.read_matrix(file, key=key)
                learned = None if schedule is None else load_schedule(schedule)
            with exit_with(ExitCode.OUTPUT):
                files.check_room(output, Y, sparse + low_rank)
            solve = partial(lrpca.decompose, Y, wanted, method=name, options=options, tol=tol, max_iter=max_iter)
            began = time.perf_counter()
            with exit_with(ExitCode.INPUT, ValueError), live_rows(quiet, "solving", COMPILING) as show:
                follow = None if show is None else lambda state: show(_cells(state))
                d = solve(schedule=learned, callback=follow, random_state=seed)
            total = {"total_seconds": time.perf_counter() - began}
            with exit_with(ExitCode.OUTPUT):
                written = files.write_result(d, output, sparse=sparse, low_rank=low_rank)
            summary = {"input": str(file), "shape": Y.shape, "dtype": str(Y.dtype)} | files.summarize(d) | total
            if d.rank_choice is not None:
                # Infinite where there is no noise at all, not even rounding.
                summary["rank_gap"] = min(d.rank_choice.gap, sys.float_info.max)
            _report(summary | {"output": [str(name) for name in written]}, quiet, as_json)
            raise typer.Exit(ExitCode.DONE if d.converged else ExitCode.NOT_CONVERGED)


def _add_demo(app: "typer.Typer") -> None:
    import typer

    @app.command(epilog=EXIT_CODES)
    def demo(
        output: Annotated[
            Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the pictures and the page.")
        ] = Path("lrpca-demo"),
        frames: Annotated[int, typer.Option(min=20, metavar="N", help="Frames to render.")] = 300,
    ) -> None:
        """Separate a rendered street scene into background and what moves, and measure how well."""
        with short_messages(), exit_with(ExitCode.OUTPUT, OSError):
            from lrpca.demo import run

            with stages() as say:
                result = run(output, n_frames=frames, progress=say)
            print_pairs(
                {
                    "scene": f"{result.shape[0]} frames of {result.shape[1]} pixels, rank {result.rank}",
                    "background error": f"{result.background_error:.2%}",
                    "foreground": f"F-measure {result.f_measure:.3f} "
                    f"(precision {result.precision:.3f}, recall {result.recall:.3f})",
                    "time": f"{result.seconds:.3g} s (and {result.compile_seconds:.3g} s to load or compile)",
                    "reads of Y": f"{result.n_reads:.3g}, {result.n_iter} iterations",
                    "converged": f"{'yes' if result.converged else 'no'} ({result.reason})",
                    "page": str(result.page),
                }
            )
            raise typer.Exit(ExitCode.DONE if result.converged else ExitCode.NOT_CONVERGED)


def _read_rank(text: str) -> int | float | str:
    """Return a rank, a share of the variance, or "auto"."""
    if text == "auto":
        return text
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        if value >= 1 if number is int else 0 < value < 1:
            return value
        break
    raise ValueError(f"rank={text!r} is not a rank; give a positive integer, auto, or a share below 1, e.g. 0.9")


def _checked_method(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and options of a method, known to be so before anything is read."""
    from lrpca.solvers.methods import find_method
    from lrpca.solvers.options import check_options
    from lrpca.solvers.spelling import read_method

    name, options = read_method(text, "method")
    method = find_method(name)
    check_options(options, method.options, name)
    return name, options


def _found(gap: float | None) -> str:
    """Return how clearly a rank was found."""
    if gap is None:
        return ""
    return f", found (its weakest component is {f'{gap:.2g}' if gap < 1000 else 'over 1000'} times what follows)"


def _cells(state: "State") -> dict[str, str]:
    """Return the numbers of an iteration as text."""
    return {
        "iteration": f"{state.iteration:>3}",
        "threshold": _text(state.threshold, ".2e"),
        "change": _text(state.change, ".1e"),
        "kept": _text(state.kept, ".1%"),
        "seconds": _text(state.seconds, ".3f"),
    }


def _text(value: float | None, form: str) -> str:
    """Return a number as text, a dash for one that is not known."""
    return "-" if value is None else format(value, form)


def _report(summary: dict[str, Any], quiet: bool, as_json: bool) -> None:
    """Print the summary on stdout, and on stderr why the iteration stopped if it did not converge."""
    import typer

    if as_json:
        typer.echo(json.dumps(summary, allow_nan=False))
    elif not quiet:
        threshold = summary["outlier_threshold"]
        varying = isinstance(threshold, list)
        print_pairs(
            {
                "input": f"{summary['input']} ({' x '.join(map(str, summary['shape']))}, {summary['dtype']})",
                "method": f"{summary['method']}, rank {summary['rank']}{_found(summary.get('rank_gap'))}",
                "iterations": f"{summary['n_iter']}, {summary['n_reads']:.3g} reads of Y",
                "converged": f"{'yes' if summary['converged'] else 'no'} ({summary['reason']})",
                "noise level": _text(summary["noise_level"], ".3g"),
                "outliers": f"{_text(summary['outlier_fraction'], '.2%')} of the entries, "
                f"beyond {'thresholds that vary' if varying else _text(threshold, '.3g')}",
                "time": f"{summary['total_seconds']:.2f} s, {summary['seconds']:.2f} s of it in the iterations",
                "written": "\n".join(summary["output"]),
            }
        )
    if not summary["converged"]:
        typer.echo(f"lrpca: not converged ({summary['reason']}); the result is written", err=True)
