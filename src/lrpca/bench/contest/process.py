"""The process of a method as seen from outside: started, listened to, and ended at its limits."""

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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lrpca.bench.contest.results import Point
from lrpca.core.environment import THREAD_VARIABLES

# Seconds for loading and compiling, and for scoring the answer; neither is on the clock.
_START_LIMIT, _SCORE_LIMIT = 600.0, 600.0
# Beyond its limit a method may finish the iteration it is in, so that the row has its last iterate.
_GRACE, _GRACE_SHARE = 1.0, 0.05
_POLL = 0.05
_COMMAND = (sys.executable, "-P", "-m", "lrpca.bench.contest.worker")


@dataclass
class Account:
    """What is known of a method's run so far."""

    calls: list[list[Point]] = field(default_factory=list)  # the iterates of each call that has begun
    seconds: list[float] = field(default_factory=list)  # of each call that has ended
    peak: int = 0  # bytes beside Y; as seen from outside if it was killed
    late: bool = False
    result: dict[str, Any] | None = None  # scores and settings, if it got so far
    failure: tuple[str, str] | None = None  # status and note, if it did not


def run(job: dict[str, Any], *, memory_limit: float | None, threads: int) -> Account:
    """Run a job in a process of its own and return what came of it; nothing is left running, whatever happens.

    Parameters
    ----------
    job : dict
        What `lrpca.bench.contest.worker` takes; its ``time_limit`` is held from here too.
    memory_limit : float, optional
        Most bytes the process may hold, Y and the libraries included.
    threads : int
        For BLAS and for numba alike.
    """
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    # Found as it was found here, and nothing else: the current folder may hold a file named like a library.
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
            account = _Supervisor(process, job["time_limit"], memory_limit).follow(_lines(process.stdout))
        finally:
            _end(process)
        if account.failure is None and account.result is None:
            account.failure = "failed", _last_words(process.returncode, errors)
        return account


def _lines(stream: IO[str]) -> queue.Queue[str | None]:
    """Return a queue of what a stream holds, line by line, with None at its end."""
    received: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        with contextlib.suppress(ValueError):  # closed meanwhile
            for line in stream:
                received.put(line)
        received.put(None)

    threading.Thread(target=read, daemon=True).start()
    return received


class _Supervisor:
    """Follows a process, and stops listening when it has reached a limit."""

    def __init__(self, process: subprocess.Popen[str], time_limit: float, memory_limit: float | None) -> None:
        self._process, self._time_limit, self._memory_limit = process, time_limit, memory_limit
        self._account = Account()
        self._deadline = time.monotonic() + _START_LIMIT
        self._stage = "loading"
        self._began = self._before = 0.0

    def follow(self, received: queue.Queue[str | None]) -> Account:
        """Return the account when the process has said all, ended, or reached a limit."""
        for line in self._received(received):
            try:
                message = json.loads(line)
                event = message.pop("event")
            except (ValueError, KeyError, AttributeError, TypeError):
                continue  # printed by a library
            self._take(event, message)
            if event in ("result", "failed"):
                break
        return self._account

    def _received(self, received: queue.Queue[str | None]) -> Iterator[str]:
        polled = 0.0
        while True:
            now = time.monotonic()
            if now - polled >= _POLL:
                polled = now
                if self._beyond_memory() or self._beyond_time(now):
                    return
            with contextlib.suppress(queue.Empty):
                line = received.get(timeout=_POLL)
                if line is None:
                    return
                yield line

    def _beyond_memory(self) -> bool:
        held = memory_of(self._process.pid)
        if self._stage == "running":
            self._before = self._before or held
            self._account.peak = max(self._account.peak, int(held - self._before))
        if self._memory_limit is None or held <= self._memory_limit:
            return False
        self._account.failure = (
            "memory limit",
            f"held {held / 1e9:.2f} GB while {self._stage}, the limit is {self._memory_limit / 1e9:.3g} GB",
        )
        return True

    def _beyond_time(self, now: float) -> bool:
        if now <= self._deadline:
            return False
        self._account.failure = (
            ("time limit", f"killed after {self._time_limit:g} s")
            if self._stage == "running"
            else ("failed", f"killed after {now - self._began:.0f} s of {self._stage}")
        )
        return True

    def _take(self, event: str, message: dict[str, Any]) -> None:
        account, now = self._account, time.monotonic()
        grace = max(_GRACE, _GRACE_SHARE * self._time_limit)
        if event == "begin":
            self._stage, self._began, self._before = "running", now, 0.0
            self._deadline = now + self._time_limit + grace
            account.calls.append([])
        elif event == "point":
            self._deadline = self._began + self._time_limit + message["excluded"] + grace
            if message["error"] is not None:
                account.calls[-1].append(Point(message["iteration"], message["seconds"], message["error"]))
        elif event == "end":
            self._stage, self._began, self._deadline = "scoring", now, now + _SCORE_LIMIT
            account.seconds.append(message["seconds"])
            account.late |= message["late"]
            # The process knows its own peak better than a look now and then.
            account.peak = message["peak"] if len(account.seconds) == 1 else max(account.peak, message["peak"])
        elif event == "result":
            account.result = message
        elif event == "failed":
            account.failure = message["kind"], message["note"]


def memory_of(process: int | str, quantity: str = "VmRSS") -> int:
    """Return the resident memory of a process in bytes, or its peak; 0 if it has ended or the system does not tell."""
    if sys.platform == "win32":
        return 0
    if Path("/proc/self/status").exists():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines():
                if line.startswith(f"{quantity}:"):
                    return 1024 * int(line.split()[1])
        return 0
    answer = subprocess.run(["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True, check=False)
    return 1024 * int(answer.stdout.strip() or 0)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and all it has started, at once: it has nothing to put away."""
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
    if status is not None and status < 0:
        how = f"ended by {signal.Signals(-status).name}"
    else:
        how = f"ended with status {status}"
    return f"{how}: {lines[-1]}" if lines else how
