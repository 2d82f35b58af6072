"""One-line messages, progress and tables of all commands of ``lrpca``."""

import re
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from lrpca.cli.exit_codes import NOTHING_LEFT, ExitCode

LIVE_ROWS = 12
# Minimal seconds between two lines of progress, if stderr is not a terminal.
INTERVAL = 60.0


@contextmanager
def exit_with(code: ExitCode, *errors: type[Exception]) -> Iterator[None]:
    """Turn expected errors (OSError and ValueError by default) into one line on stderr and an exit code."""
    expected = errors or (OSError, ValueError)
    try:
        yield
        return
    except ImportError as error:
        message, code = str(error), ExitCode.USAGE
    except MemoryError as error:
        message, code = str(error), ExitCode.FAILED
        if ";" not in message:  # the system's
            message = f"out of memory{f' ({message})' if message else ''}; give it more, or less to do"
    except expected as error:
        message = str(error)
        if isinstance(error, OSError) and error.errno:  # the system's
            message = f"path={str(error.filename)!r} failed ({error.strerror}); choose another"
        message = "; ".join([message, *_notes(error)])
    typer.echo(f"lrpca: {message}", err=True)
    raise typer.Exit(code)


@contextmanager
def short_messages() -> Iterator[None]:
    """Show warnings as one line, and end with one line on Ctrl-C and on SIGTERM."""

    def show(message: Warning | str, *_: object) -> None:
        typer.echo(f"lrpca: warning: {message}", err=True)

    def terminate(number: int, frame: FrameType | None) -> None:
        raise SystemExit(ExitCode.TERMINATED)  # unwinds, so that temporary files are removed

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show  # type: ignore[assignment]
            yield
    except KeyboardInterrupt as interrupt:
        typer.echo(f"lrpca: interrupted, {'; '.join(_notes(interrupt)) or NOTHING_LEFT}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except SystemExit as end:
        if _notes(end):
            typer.echo(f"lrpca: terminated, {'; '.join(_notes(end))}", err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _notes(error: BaseException) -> list[str]:
    """Return the notes of an error: they say which files were left on purpose."""
    return getattr(error, "__notes__", [])


@dataclass(frozen=True)
class Shown:
    """Functions that show the progress of a command: rows of numbers, stages, and news within a stage."""

    row: Callable[[dict[str, str]], None]
    stage: Callable[[str], None]
    say: Callable[[str], None]


@contextmanager
def stages(quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the stage of the work: live on a terminal, otherwise one line each."""
    with live_rows(quiet, doing="", first="starting") as show:
        yield show.stage


@contextmanager
def live_rows(quiet: bool, doing: str, first: str) -> Iterator[Shown]:
    """Yield functions that show the progress; they do nothing if `quiet`.

    On a terminal, the last rows are shown live, below what is being done (`first`, until the first row comes).
    Otherwise rows and stages make a line each, and news within a stage a line a minute at most.
    """
    if quiet:
        yield Shown(lambda row: None, lambda text: None, lambda text: None)
    elif not sys.stderr.isatty():
        yield _lines()
    else:
        shown: deque[dict[str, str]] = deque(maxlen=LIVE_ROWS)
        sign = Spinner("dots", first)
        with Live(sign, console=Console(stderr=True), transient=True) as live:

            def show(row: dict[str, str]) -> None:
                shown.append(row)
                sign.update(text=doing)
                table = Table(*(Column(name, justify="right") for name in row), box=None, padding=(0, 2))
                for earlier in shown:
                    table.add_row(*earlier.values())
                live.update(Group(sign, table))

            def say(text: str) -> None:
                sign.update(text=Text(text))

            yield Shown(show, say, say)


def _lines() -> Shown:
    """Return functions that show everything as lines, without control characters."""
    said = time.monotonic()

    def write(text: str) -> None:
        try:
            typer.echo(text, err=True)
        except BrokenPipeError:
            raise
        except OSError:  # a full disk must not end the work
            pass

    def say(text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= INTERVAL:
            said = time.monotonic()
            write(text)

    return Shown(lambda row: write("  ".join(f"{name} {value}" for name, value in row.items())), write, say)


def print_pairs(rows: dict[str, str]) -> None:
    """Print names and values on stdout."""
    table = Table(Column(style="bold"), Column(overflow="fold"), box=None, show_header=False, padding=(0, 2))
    for name, value in rows.items():
        table.add_row(name, Text(value))
    print_out(table)


def print_out(*parts: str | Table) -> None:
    """Print each part on stdout; in a file or a pipe, long lines and paths are not broken."""
    Console(width=None if sys.stdout.isatty() else 1000, highlight=False, markup=False).print(*parts, sep="\n")


def grid(columns: Sequence[str], rows: Sequence[Sequence[object]], *, digits: int = 3) -> Table:
    """Return a table; numbers are right-aligned and have so many digits."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for k, name in enumerate(columns):
        numeric = any(isinstance(row[k], int | float) and not isinstance(row[k], bool) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        cells = (
            f"{cell:.{digits}g}" if isinstance(cell, float) else "–" if cell is None else str(cell) for cell in row
        )
        table.add_row(*map(Text, cells))
    return table


def read_shape(text: str) -> tuple[int, int]:
    """Return the shape written as ``2000x500``, or as ``1000`` for a square.

    Examples
    --------
    >>> read_shape("2000x500"), read_shape("1000")
    ((2000, 500), (1000, 1000))
    """
    found = re.fullmatch(r"(\d+)(?:[xX×](\d+))?", text)
    sides = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if min(sides) < 1:
        raise ValueError(f"shape={text!r} is not two positive numbers; write it as 2000x500, or 1000 for a square")
    return sides
