"""Programs in a process of their own."""

import os
import subprocess
import sys


def run_python(code: str, *arguments: object, **environment: str) -> str:
    """Run a program with these arguments and environment variables; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
