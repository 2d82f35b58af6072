"""The process of a method as seen from outside: started, followed, and ended at its limits."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from typing import IO, Any

from lrpca.bench.contest.results import Point
from lrpca.bench.measuring import memory_of
from lrpca.core.environment import THREAD_VARIABLES

# Seconds for loading and compiling, and for scoring the answer; neither is timed.
_START_LIMIT, _SCORE_LIMIT = 600.0, 600.0
# Beyond its limit a method may finish its iteration, so that the row has its last iterate.
_GRACE, _GRACE_SHARE = 1.0, 0.05
_POLL = 0.05
_COMMAND = (sys.executable, "-P", "-m", "lrpca.bench.contest.worker")


@dataclass
class Account:
    """What is known of a method's run so far."""

    calls: list[list[Point]] = field(default_factory=list)  # the iterates of each call that has begun
    seconds: list[float] = field(default_factory=list)  # of each call that has ended
    peak: int = 0  # bytes besides Y
    late: bool = False
    result: dict[str, Any] | None = None  # scores and settings, if it got so far
    failure: tuple[str, str] | None = None  # status and note, if it did not


def run(job: dict[str, Any], *, memory_limit: float | None, threads: int) -> Account:
    """Run a job in its own process and return what happened; the process ends in any case.

    Parameters
    ----------
    job : dict
        What `lrpca.bench.contest.worker` takes; its ``time_limit`` applies here too.
    memory_limit : float, optional
        Maximum resident memory of the process in bytes, Y and the libraries included.
    threads : int
        Number of threads for BLAS and for numba.
    """
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    # The packages of this process, and nothing else: the current folder may hold a file named like a library.
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            _COMMAND,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends this one
        )
        try:
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
            account = _follow(process, job["time_limit"], memory_limit)
        finally:
            _end(process)
        if account.failure is None and account.result is None:
            account.failure = "failed", _last_words(process.returncode, errors)
        return account


def _follow(process: subprocess.Popen[str], limit: float, memory_limit: float | None) -> Account:
    """Return the account when the process has sent its result, has ended, or has reached a limit."""
    account, received = Account(), _lines(process)
    grace = max(_GRACE, _GRACE_SHARE * limit)
    stage, began = "loading", time.monotonic()
    deadline = began + _START_LIMIT
    while account.result is None and account.failure is None:
        held, now = memory_of(process.pid), time.monotonic()
        if memory_limit is not None and held > memory_limit:
            note = f"held {held / 1e9:.2f} GB while {stage}, the limit is {memory_limit / 1e9:.3g} GB"
            account.failure = "memory limit", note
        elif now > deadline and stage == "running":
            account.failure = "time limit", f"killed after {limit:g} s"
        elif now > deadline:
            account.failure = "failed", f"killed after {now - began:.0f} s of {stage}"
        else:
            try:
                message = received.get(timeout=_POLL)
            except queue.Empty:
                continue
            if message is None:
                break
            event = message.pop("event")
            if event == "begin":
                stage, began, deadline = "running", now, now + limit + grace
                account.calls.append([])
            elif event == "point":
                deadline = began + limit + message.pop("excluded") + grace
                if message["error"] is not None:
                    account.calls[-1].append(Point(**message))
            elif event == "end":
                stage, began, deadline = "scoring", now, now + _SCORE_LIMIT
                account.seconds.append(message["seconds"])
                account.late |= message["late"]
                account.peak = max(account.peak, message["peak"])
            elif event == "result":
                account.result = message
            elif event == "failed":
                account.failure = message["kind"], message["note"]
    return account


def _lines(process: subprocess.Popen[str]) -> queue.Queue[dict[str, Any] | None]:
    """Return a queue of the messages that a process prints, with None at their end."""
    received: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def read() -> None:
        with contextlib.suppress(ValueError):  # closed meanwhile
            for line in process.stdout or ():
                with contextlib.suppress(ValueError):  # printed by a library
                    message = json.loads(line)
                    if isinstance(message, dict) and "event" in message:
                        received.put(message)
        received.put(None)

    threading.Thread(target=read, daemon=True).start()
    return received


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and all it has started, at once: it has nothing to save."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _last_words(status: int | None, errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
    killed = status is not None and status < 0
    how = f"ended by {signal.Signals(-(status or 0)).name}" if killed else f"ended with status {status}"
    return f"{how}: {lines[-1]}" if lines else how
