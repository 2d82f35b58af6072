"""The command ``lrpca``."""

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from lrpca.cli.exit_codes import NOTHING_LEFT, ExitCode

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
        from lrpca.cli.application import application

        # Commands find their arguments in the context.
        called = sys.argv[1:] if arguments is None else list(arguments)
        application()(args=called, prog_name="lrpca", obj=called)
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
