"""What every command of ``lrpca`` has: exit codes, one-line messages, and a sign of what is being done."""

import enum
import re
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.table import Table

LIVE_ROWS = 12
# A log that is no terminal hears of what goes on between the rows this often, in seconds.
INTERVAL = 60.0
NOTHING_LEFT = "nothing half-written is left"


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
            "141  what is printed is no longer read (a closed pipe).",
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
    UNREAD = 141
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
        message, code = str(error), ExitCode.FAILED
        if ";" not in message:  # of the system, not in our form
            message = f"out of memory{f' ({message})' if message else ''}; give it more, or less to do"
    except foreseen as error:
        message = str(error)
        if isinstance(error, OSError) and error.errno:  # of the system, not in our form
            message = f"path={str(error.filename)!r} failed ({error.strerror}); choose another"
        message = "; ".join([message, *_left(error)])
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
    except KeyboardInterrupt as interrupt:
        left = "; ".join(_left(interrupt)) or NOTHING_LEFT
        typer.echo(f"lrpca: interrupted, {left}", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except SystemExit as end:
        if _left(end):
            typer.echo(f"lrpca: terminated, {'; '.join(_left(end))}", err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _left(error: BaseException) -> list[str]:
    """Return what is left behind: whoever left it on purpose has noted it."""
    return getattr(error, "__notes__", [])


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


@dataclass(frozen=True)
class Shown:
    """What is shown while a command works: called with rows as they come, and told what goes on between them."""

    row: Callable[[dict[str, str]], None]
    say: Callable[[str], None]

    def __call__(self, row: dict[str, str]) -> None:
        """Show a row."""
        self.row(row)


@contextmanager
def live_rows(quiet: bool, doing: str, first: str) -> Iterator["Shown | None"]:
    """Hand out what shows rows as they come: the last ones live on a terminal, otherwise one line each.

    What is said between the rows stands above them on a terminal; otherwise it makes a line a minute at most.

    Parameters
    ----------
    quiet : bool
        Hand out None, and show nothing.
    doing : str
        What is being done, in a word.
    first : str
        What is being done until the first row comes.
    """
    from rich.console import Console, Group
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    if quiet:
        yield None
    elif not sys.stderr.isatty():
        yield _lines()
    else:
        shown: deque[dict[str, str]] = deque(maxlen=LIVE_ROWS)
        sign = Spinner("dots", first)
        with Live(sign, console=Console(stderr=True), transient=True) as live:

            def show(row: dict[str, str]) -> None:
                shown.append(row)
                sign.update(text=doing)
                live.update(Group(sign, _live_table(shown)))

            yield Shown(show, lambda text: sign.update(text=Text(text)))


def _lines() -> Shown:
    """Return what shows everything as lines, without control characters."""
    import typer

    said = time.monotonic()

    def write(text: str) -> None:
        try:
            typer.echo(text, err=True)
        except BrokenPipeError:
            raise
        except OSError:  # a full disk: no reason to lose the work
            pass

    def say(text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= INTERVAL:
            said = time.monotonic()
            write(text)

    return Shown(lambda row: write("  ".join(f"{name} {value}" for name, value in row.items())), say)


def _live_table(rows: "deque[dict[str, str]]") -> "Table":
    """Return the last rows as a table."""
    from rich.table import Column, Table

    table = Table(*(Column(name, justify="right") for name in rows[0]), box=None, padding=(0, 2))
    for row in rows:
        table.add_row(*row.values())
    return table


def print_pairs(rows: dict[str, str]) -> None:
    """Print names and values on stdout."""
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(Column(style="bold"), Column(overflow="fold"), box=None, show_header=False, padding=(0, 2))
    for name, value in rows.items():
        table.add_row(name, Text(value))
    print_out(table)


def print_out(*parts: "str | Table") -> None:
    """Print each part on stdout; a file or a pipe has no width, so lines and paths stay whole there."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 1000, highlight=False, markup=False).print(*parts, sep="\n")


def grid(columns: Sequence[str], rows: Sequence[Sequence[object]], *, digits: int = 3) -> "Table":
    """Return rows under columns; numbers stand right, with so many digits."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for k, name in enumerate(columns):
        numeric = any(_is_number(row[k]) for row in rows)
        table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(cell, digits)) for cell in row))
    return table


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _cell(cell: object, digits: int) -> str:
    if cell is None:
        return "–"
    return f"{cell:.{digits}g}" if isinstance(cell, float) else str(cell)


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
