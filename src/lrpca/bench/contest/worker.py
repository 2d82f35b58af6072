"""One method in its own process: ``python -m lrpca.bench.contest.worker``.

It reads a job, one line of JSON, from the standard input, and prints lines of JSON: each iterate as it comes, then the
result. It ends when the standard input does, so that it never outlives its parent.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from lrpca.bench.contest.methods import Answer, Task, solve
from lrpca.bench.contest.scoring import Probe, Truth, count_outliers, numerical_rank
from lrpca.bench.measuring import begin_peak, peak_memory
from lrpca.solvers.methods import METHODS

# The warm-up: large enough for every kernel to be compiled and loaded. Iterations of others, and of our methods.
_WARM_SHAPE, _WARM_ITERATIONS = (220, 180), (3, 60)


@dataclass
class Recorder:
    """Measures every iterate of a call, off the clock, and asks to stop when the time is up."""

    channel: IO[str]
    truth: Truth
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

    def look(self, answer: Any) -> bool:
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
        return self.truth.error(answer) if self.truth.known else self.probe.residual(answer)


def tell(channel: IO[str], event: str, **facts: Any) -> None:
    """Send one line; what is not a finite number becomes null."""
    channel.write(json.dumps({"event": event, **_plain(facts)}, allow_nan=False) + "\n")
    channel.flush()


def work(job: dict[str, Any], channel: IO[str]) -> None:
    """Do a job: warm up, run and measure as often as asked, and send what came out."""
    folder = Path(job["folder"])
    task = Task(job["name"], job["rank"], job["settings"], job["seed"])
    Y = np.load(folder / "Y.npy")
    warm_up(task, Y)
    recorder = Recorder(channel, Truth.read(folder), Probe(Y), job["time_limit"])
    answer: Answer | None = None
    for _ in range(job["repeat"]):
        del answer
        before = begin_peak()
        tell(channel, "begin")
        recorder.begin()
        answer = solve(task, Y, recorder.look)
        seconds = recorder.elapsed()
        tell(channel, "end", seconds=seconds, peak=peak_memory() - before, late=recorder.late)
        if recorder.late:
            break
    tell(channel, "result", **_scores(task, Y, answer, recorder, folder))


def warm_up(
    task: Task,
    Y: Any,  # (n1, n2)
) -> None:
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


def _scores(task: Task, Y: Any, answer: Answer | None, recorder: Recorder, folder: Path) -> dict[str, Any]:
    assert answer is not None
    X, probe = answer.low_rank, recorder.probe
    planted = folder / "outliers.npy"
    moving = answer.settings.get("tol", 0.0) if answer.reason == "tol" else 0.0
    threshold = probe.outlier_threshold(X, Y, moving) if answer.threshold is None else answer.threshold
    rank = answer.rank
    if rank is None:
        rank = numerical_rank(X, task.rank) if not isinstance(X, tuple) else X[0].shape[1]
    return {
        "error": recorder.truth.error(X) if recorder.truth.known else None,
        "residual": probe.residual(X),
        **count_outliers(Y, X, threshold, planted if planted.exists() else None),
        "rank": rank,
        "converged": answer.converged,
        "reason": answer.reason,
        "iterations": answer.iterations,
        "settings": answer.settings,
        "estimated": list(answer.estimated),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> int:
    """Do the job that the standard input holds."""
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
    return 0


if __name__ == "__main__":
    # Not sys.exit: threads of a library, or the one that waits for the end of the input, need not be waited for.
    status = main()
    sys.stderr.flush()
    os._exit(status)
