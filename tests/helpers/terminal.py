"""What a command shows on a terminal."""

import os
import pty
import subprocess
import sys


def run_in_terminal(*arguments: str, columns: int = 90) -> tuple[int, bytes, bytes]:
    """Run ``lrpca`` with standard error on a terminal; return its exit code, what it showed there, and its output."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "lrpca", *arguments],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": str(columns)},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    return process.returncode, shown, out
