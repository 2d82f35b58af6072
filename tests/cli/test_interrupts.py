"""Tests of Ctrl-C work where the tests themselves are run in the background, with SIGINT ignored."""

import signal
import subprocess
import sys

import pytest


def test_ctrl_c_is_heard() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix are inherited")
def test_ctrl_c_is_heard_where_the_parent_ignores_it() -> None:
    command = [sys.executable, "-m", "pytest", "-q", f"{__file__}::test_ctrl_c_is_heard"]
    ran = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    assert ran.returncode == 0, ran.stdout
