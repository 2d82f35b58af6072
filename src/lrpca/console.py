"""What every command of ``lrpca`` has: exit codes, one-line messages, and a sign of what is being done."""

import enum
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TextIO


def exit_codes(done: str, unsatisfying: str | None = None) -> str:
    """Return the end of a help text.

    Parameters
    ----------
    done : str
        What code 0 means.
    unsatisfying : str, optional
        What code 4 means, where the command has it.
    """
    return "\n".join(
        [
            "Exit codes:",
            f"0    {done}",
            "1    unexpected failure.",
            "2    wrong usage, or an extra is not installed.",
            "3    the input cannot be read or is refused.",
            *([f"4    {unsatisfying}"] if unsatisfying else []),
            "5    the output cannot be written.",
            "130  interrupted by Ctrl-C (143: by SIGTERM), nothing half-written.",
        ]
    )


class ExitCode(enum.IntEnum):
    """What the exit status of ``lrpca`` means."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    INPUT = 3
    NOT_CONVERGED = 4
    OUTPUT = 5
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_CODES = exit_codes("done and converged.", "done and written, but not converged.")


@contextmanager
def exit_with(code: ExitCode, *errors: type[Exception]) -> Iterator[None]:
    """Turn errors that can be foreseen (OSError and ValueError) into one line on stderr and an exit code."""
    import typer

    foreseen = errors or (OSError, ValueError)
    try:
        yield
        return
    except ImportError as error:
        message, code = str(error), ExitCode.USAGE
    except MemoryError as error:
        message, code = f"out of memory ({error}); leave the full matrices out", ExitCode.FAILED
    except foreseen as error:
        message = str(error)
        if isinstance(error, OSError) and error.errno:  # of the system, not in our form
            message = f"path={str(error.filename)!r} failed ({error.strerror}); choose another"
    typer.echo(f"lrpca: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def short_messages() -> Iterator[None]:
    """Show warnings as one line, and end quietly on Ctrl-C and on SIGTERM."""
    import typer

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        typer.echo(f"lrpca: warning: {message}", err=True)

    def terminate(number: int, frame: FrameType | None) -> None:
        raise SystemExit(ExitCode.TERMINATED)  # unwinds, so that temporary files are removed

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            yield
    except KeyboardInterrupt:
        typer.echo("lrpca: interrupted, nothing half-written is left", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stages() -> Iterator["Callable[[str], None]"]:
    """Hand out a function that shows what is being done: live on a terminal, otherwise one line each."""
    import typer
    from rich.console import Console

    if sys.stderr.isatty():
        with Console(stderr=True).status("starting") as status:
            yield status.update
    else:
        yield partial(typer.echo, err=True)
