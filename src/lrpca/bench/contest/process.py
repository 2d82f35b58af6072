"""One method in its own process: the worker, and the parent that follows it and ends it at its limits.

The worker reads a job, one line of JSON, from its standard input, and prints lines of JSON: each iterate as it comes,
then the result. It ends when its input does, so that it never outlives its parent.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from lrpca.bench.contest.methods import Answer, Task, solve
from lrpca.bench.contest.results import Point
from lrpca.bench.contest.scoring import Probe, count_outliers, numerical_rank, relative_error
from lrpca.bench.measuring import begin_peak, memory_of, peak_memory
from lrpca.core.environment import THREAD_VARIABLES
from lrpca.decomposition.writing import plain
from lrpca.solvers.methods import METHODS

# Seconds for loading and compiling, and for scoring the answer; neither is timed.
_UNTIMED_LIMIT = 600.0
# Beyond its limit a method may finish its iteration, so that the row has its last iterate.
_GRACE, _GRACE_SHARE = 1.0, 0.05
_POLL = 0.05
_COMMAND = (sys.executable, "-P", "-c", "from lrpca.bench.contest.process import main; main()")
# The warm-up: large enough for every kernel to be compiled and loaded. Iterations of others, and of our methods.
_WARM_SHAPE, _WARM_ITERATIONS = (220, 180), (3, 60)


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

    `memory_limit` is the maximum resident memory of the process in bytes, Y and the libraries included.
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
            account.failure = "failed", _last_line(process.returncode, errors)
        return account


def _follow(process: subprocess.Popen[str], limit: float, memory_limit: float | None) -> Account:
    """Return the account when the process has sent its result, has ended, or has reached a limit."""
    account, received = Account(), _lines(process)
    grace = max(_GRACE, _GRACE_SHARE * limit)
    stage, began = "loading", time.monotonic()
    deadline = began + _UNTIMED_LIMIT
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
                stage, began, deadline = "scoring", now, now + _UNTIMED_LIMIT
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


def _last_line(status: int | None, errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
    killed = status is not None and status < 0
    how = f"ended by {signal.Signals(-(status or 0)).name}" if killed else f"ended with status {status}"
    return f"{how}: {lines[-1]}" if lines else how


@dataclass
class Recorder:
    """Measures every iterate of a call, off the clock, and asks to stop when the time is up."""

    channel: IO[str]
    truth: Any  # factors or a matrix; None if it is not known
    probe: Probe
    limit: float
    began: float = 0.0
    excluded: float = 0.0  # seconds since `begin` that were spent measuring
    count: int = 0
    late: bool = False

    def begin(self) -> None:
        """Start the clock of a call."""
        self.count, self.excluded, self.began = 0, 0.0, time.perf_counter()

    def elapsed(self) -> float:
        """Return the seconds of the call, without those spent measuring."""
        return time.perf_counter() - self.began - self.excluded

    def record(self, answer: Any) -> bool:
        """Measure an iterate."""
        now, seconds = time.perf_counter(), self.elapsed()
        self.count += 1
        self.late = seconds > self.limit
        error = self.measure(answer)
        excluded = self.excluded + time.perf_counter() - now
        tell(self.channel, "point", iteration=self.count, seconds=seconds, error=error, excluded=excluded)
        self.excluded += time.perf_counter() - now
        return self.late

    def measure(self, answer: Any) -> float:
        """Return the error against the truth, or else the residual."""
        return self.probe.residual(answer) if self.truth is None else relative_error(answer, self.truth)


def tell(channel: IO[str], event: str, **facts: Any) -> None:
    """Send one line; what is not a finite number becomes null."""
    channel.write(json.dumps({"event": event, **plain(facts)}, allow_nan=False) + "\n")
    channel.flush()


def work(job: dict[str, Any], channel: IO[str]) -> None:
    """Do a job: warm up, run and measure as often as asked, and send what came out."""
    task = Task(job["name"], job["rank"], job["settings"], job["seed"])
    with np.load(job["problem"]) as stored:
        parts = dict(stored)
    Y, truth = parts["Y"], (parts["A"], parts["B"]) if "A" in parts else parts.get("X")
    warm_up(task, Y)
    recorder = Recorder(channel, truth, Probe(Y), job["time_limit"])
    answer: Answer | None = None
    for _ in range(job["repeat"]):
        del answer
        before = begin_peak()
        tell(channel, "begin")
        recorder.begin()
        answer = solve(task, Y, recorder.record)
        seconds = recorder.elapsed()
        tell(channel, "end", seconds=seconds, peak=peak_memory() - before, late=recorder.late)
        if recorder.late:
            break
    assert answer is not None
    tell(channel, "result", **_scores(task, Y, answer, recorder, parts.get("outliers")))


def warm_up(task: Task, Y: Any) -> None:
    """Run on tiny problems of the same kind, so that nothing is compiled or loaded on the clock."""
    from lrpca.testing import planted

    rows, columns = _WARM_SHAPE
    tiny = [Y[:rows, :columns]]
    if task.name in METHODS and Y.dtype.kind in "fc":
        # With and without noise: other code may run at the noise floor.
        missing = 0.1 if np.isnan(tiny[0]).any() else 0.0
        rank = min(task.rank, columns // 4)
        tiny += [planted(_WARM_SHAPE, rank=rank, noise=x, missing=missing, dtype=Y.dtype).Y for x in (0.0, 0.05)]
    least = min(task.settings.get("max_iter", math.inf), _WARM_ITERATIONS[task.name in METHODS])
    for Z in tiny:
        # What fails here fails in the real run too, which reports it.
        with contextlib.suppress(Exception):
            small = Task(task.name, min(task.rank, *Z.shape), {**task.settings, "max_iter": int(least)}, task.seed)
            solve(small, np.ascontiguousarray(Z), lambda answer: False)


def _scores(task: Task, Y: Any, answer: Answer, recorder: Recorder, outliers: Any) -> dict[str, Any]:
    X, probe = answer.low_rank, recorder.probe
    moving = answer.settings.get("tol", 0.0) if answer.reason == "tol" else 0.0
    threshold = probe.outlier_threshold(X, Y, moving) if answer.threshold is None else answer.threshold
    rank = answer.rank
    if rank is None:
        rank = numerical_rank(X, task.rank) if not isinstance(X, tuple) else X[0].shape[1]
    return {
        "error": None if recorder.truth is None else relative_error(X, recorder.truth),
        "residual": probe.residual(X),
        **count_outliers(Y, X, threshold, outliers),
        "rank": rank,
        "converged": answer.converged,
        "reason": answer.reason,
        "iterations": answer.iterations,
        "settings": answer.settings,
        "estimated": list(answer.estimated),
    }


def _leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Do the job that the standard input holds, and end the process."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    # What libraries print shall not mix with the answers.
    channel, sys.stdout = sys.stdout, io.TextIOWrapper(open(os.devnull, "wb"))
    warnings.simplefilter("ignore")
    try:
        work(job, channel)
    except MemoryError as error:
        tell(channel, "failed", kind="memory limit", note=f"out of memory ({error})")
    except Exception as error:  # whatever a method raises is a row of the table
        tell(channel, "failed", kind="failed", note=f"{type(error).__name__}: {error}")
    # Not sys.exit: threads of a library, or the one that waits for the end of the input, need not be waited for.
    sys.stderr.flush()
    os._exit(0)
