"""Timing in shuffled rounds, new processes, command lines, tables and result files: what benchmarks share.

Times on a shared machine drift, and on a virtual one they jump by factors of two, as its cores are moved to other
physical ones. So each round times every function once, in shuffled order, and directly before each the probes (what
the machine can do at that moment). Reported are medians, and medians of ratios between neighbours in time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import multiprocessing
import os
import platform
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lrpca.core import environment
from lrpca.files.atomic import replacing

# Worker threads of OpenMP spin for some milliseconds after their last task, which would slow the next function.
_PAUSE = 0.02
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

Job = TypeVar("Job")
Result = TypeVar("Result")


# ------------------------------------------------------------------------------------------------ timing


@dataclass(frozen=True)
class Timing:
    """Seconds of one function, one number per round, and those of each probe directly before."""

    seconds: Sequence[float]
    probes: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Median of the rounds, in seconds."""
        return float(np.median(self.seconds))

    @property
    def spread(self) -> str:
        """Quartiles of the rounds, in milliseconds, as a cell."""
        low, high = np.quantile(self.seconds, [0.25, 0.75]) * 1e3
        return f"{number(low)} – {number(high)}"

    @property
    def reads(self) -> float:
        """Median of the ratio to the probe "read" directly before."""
        return self.relative_to(self.probes["read"])

    def relative_to(self, seconds: Sequence[float]) -> float:
        """Return the median over the rounds of the ratio to other times of the same rounds."""
        return float(np.median(np.divide(self.seconds, seconds)))


def interleave(
    functions: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    probes: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, Timing]:
    """Time every function once per round, in an order shuffled anew each round, after one untimed call each.

    Probes are timed directly before each timed call, after one untimed call of the first, which wakes the threads.
    """
    probes = probes or {}
    for function in (*probes.values(), *functions.values()):
        function()
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    probed: dict[str, dict[str, list[float]]] = {name: {probe: [] for probe in probes} for name in functions}
    rng = np.random.default_rng(0)
    names = list(functions)
    for _ in range(repeats):
        for i in rng.permutation(len(names)):
            name = names[i]
            time.sleep(_PAUSE)
            for probe in list(probes.values())[:1]:
                probe()
            for label, probe in probes.items():
                probed[name][label].append(clock(probe)[0])
            seconds[name].append(clock(functions[name])[0])
    return {name: Timing(seconds[name], probed[name]) for name in names}


def clock(function: Callable[[], Result]) -> tuple[float, Result]:
    """Return the seconds of a call, and what it returns."""
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


# ------------------------------------------------------------------------------------------------ processes


def run_jobs(function: Callable[[Job], list[Result]], jobs: Sequence[Job], workers: int, title: str) -> list[Result]:
    """Return the results of all jobs in their order, computed by processes of one thread each.

    The function is defined at the top of a module; a terminal shows the title and the number of finished jobs.
    """
    if not jobs:
        return []
    # Processes that are started from here on read these when they import numpy and numba.
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=spawn, initializer=_warm_up) as pool:
        futures = [pool.submit(function, job) for job in jobs]
        for done, future in enumerate(as_completed(futures), start=1):
            if failure := future.exception():
                pool.shutdown(wait=False, cancel_futures=True)
                raise failure
            if sys.stderr.isatty():
                end = "\n" if done == len(jobs) else ""
                print(f"\r{title}: {done} of {len(jobs)}", end=end, file=sys.stderr, flush=True)
    return [result for future in futures for result in future.result()]


def _warm_up() -> None:
    """Load the compiled kernels, with and without missing entries, so that no problem's time includes it."""
    from lrpca.decompose import decompose
    from lrpca.testing import planted

    with warnings.catch_warnings(action="ignore"):
        for missing in (0.0, 0.1):
            decompose(planted((60, 50), rank=2, missing=missing).Y, 2)


def call_fresh(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function, defined at the top of a module, in a new process: peak memory belongs to a process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def memory_of(process: int | str, quantity: str = "VmRSS") -> int:
    """Return the resident memory of a process in bytes, or its peak; 0 if it has ended or the system does not tell."""
    status = Path(f"/proc/{process}/status")
    with contextlib.suppress(OSError):
        lines = status.read_text(encoding="utf-8").splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{quantity}:")), 0)
    if platform.system() != "Darwin":
        return 0
    answer = subprocess.run(["ps", "-o", "rss=", "-p", str(process)], capture_output=True, text=True, check=False)
    return 1024 * int(answer.stdout.strip() or 0)


def begin_peak() -> int:
    """Return the resident memory in bytes, and let the peak begin there where the system can.

    Memory that is free but still held is given back first, so that what follows does not find it.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:  # another system, or not allowed
        return peak_memory()
    return memory_of("self")


def peak_memory() -> int:
    """Return the most resident memory so far, in bytes; 0 where the system does not tell."""
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return memory_of("self", "VmHWM")


# ------------------------------------------------------------------------------------------------ command lines


def arguments(
    file: str,
    about: str | None,
    given: Sequence[str] | None = None,
    *,
    command: str = "",
    whole: Mapping[str, str] | None = None,
    **options: tuple[Any, str],
) -> argparse.Namespace:
    """Parse the command line of a benchmark script, given its ``__file__`` and ``__doc__``.

    `command` runs the whole script, e.g. "make grid"; `whole` has other words that measure everything, and the commands
    that run them. Options are pairs of default and help. The type follows the default: a number must be positive, a
    tuple is a list with commas, of words of the default or of numbers, False a flag, None a text, () a text that may be
    given several times. The result also has ``file``, where the result goes (``results/`` beside the script if nothing
    was chosen, else ``scratch/``), ``command``, what measures the same again, the load and the time.
    """
    path = Path(file)
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    for name, (default, text) in options.items():
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        if default is False:
            parser.add_argument(f"--{name}", action="store_true", help=text)
        elif default == ():
            parser.add_argument(f"--{name}", action="append", default=[], help=f"{text}; may be given several times")
        else:
            parser.add_argument(f"--{name}", type=_reader(default), default=default, help=f"{text} (default: {shown})")
    parser.add_argument("--results", type=Path, help="folder of the result file (default: results, scratch for a part)")
    words = sys.argv[1:] if given is None else list(given)
    chosen = parser.parse_args(words)
    script = f"python benchmarks/{path.name}"
    known = {"": command or script, **(whole or {})}
    chosen.command = known.get(" ".join(words)) or shlex.join([*script.split(), *words])
    folder = chosen.results or path.resolve().parent / ("results" if " ".join(words) in known else "scratch")
    chosen.file = folder / f"{path.stem.removeprefix('bench_')}.json"
    chosen.load, chosen.began = environment.load_note(), time.perf_counter()
    return chosen


def _reader(default: Any) -> Callable[[str], Any]:
    """Return what makes an option of a word, by the type of its default."""

    def read(word: str) -> Any:
        if isinstance(default, tuple):
            parts = [part for part in word.split(",") if part]
            if isinstance(default[0], str) and (unknown := [part for part in parts if part not in default]):
                raise argparse.ArgumentTypeError(f"{unknown[0]} is unknown; use some of {','.join(default)}")
            return tuple(type(default[0])(part) for part in parts)
        value = word if default is None else type(default)(word)
        if isinstance(value, int | float) and value <= 0:
            raise argparse.ArgumentTypeError(f"{word} is not positive; use e.g. {default}")
        return value

    read.__name__ = "list" if isinstance(default, tuple) else type(default).__name__
    return read


def data_folder() -> Path:
    """Return where videos, traffic and the published problems are: LRPCA_DATA, or shared/data beside the checkout."""
    return Path(os.environ.get("LRPCA_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")


# ------------------------------------------------------------------------------------------------ results


@dataclass(frozen=True)
class Table:
    """One table of a result: rows of numbers, texts or None, under named columns."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def number(value: float) -> int | float:
    """Return a number as tables show it: three significant digits.

    Examples
    --------
    >>> number(1234.5), number(0.123456)
    (1234, 0.123)
    """
    return round(value) if abs(value) >= 100 else float(f"{value:.3g}")


def circumstances(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a measurement depends on beside the code: the commit, the machine, the versions and the day."""
    return {
        "commit": commit(),
        "hardware": environment.hardware(),
        "versions": environment.versions(["torch", *packages]),
        "date": environment.date(),
    }


def commit() -> str:
    """Return the commit that is measured, with a plus if the sources differ from it."""

    def git(*words: str) -> str:
        folder = Path(__file__).resolve().parents[3]
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("LRPCA_COMMIT", "unknown")


def publish(
    chosen: argparse.Namespace,
    title: str,
    tables: Sequence[Table],
    notes: Sequence[str] = (),
    *,
    packages: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Print the tables and notes, and write them with the circumstances as JSON.

    `packages` are those whose versions matter, beside the usual ones; `extra` is further content of the file, for pages
    made from it.
    """
    took = f"The whole run took {time.perf_counter() - chosen.began:.0f} s. {chosen.load}"
    result = {
        "title": title,
        "command": chosen.command,
        **circumstances(packages),
        "tables": [{"caption": t.caption, "columns": [*t.columns], "rows": [[*row] for row in t.rows]} for t in tables],
        "notes": [*notes, took],
        **(extra or {}),
    }
    print(f"\n{title}\n{'=' * len(title)}")
    for table in tables:
        print(f"\n{table.caption}\n\n{render(table)}")
    print("\n" + "\n".join(f"- {note}" for note in (*notes, took)))
    store(chosen.file, json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False))


def compact_json(content: Any, indent: str = "") -> str:
    """Return JSON whose records are one line each, so that long lists stay readable.

    Examples
    --------
    >>> print(compact_json({"name": "a", "runs": [{"k": 1, "errors": [1, 2]}, {"k": 2}]}))
    {
     "name": "a",
     "runs": [
      {"k": 1, "errors": [1, 2]},
      {"k": 2}
     ]
    }
    """
    inner = indent + " "
    if not _has_records(content):
        return json.dumps(content, ensure_ascii=False, allow_nan=False)
    if isinstance(content, dict):
        items = [f"{json.dumps(name)}: {compact_json(item, inner)}" for name, item in content.items()]
    else:
        items = [compact_json(item, inner) for item in content]
    opened, closed = "{}" if isinstance(content, dict) else "[]"
    return f"{opened}\n" + ",\n".join(inner + item for item in items) + f"\n{indent}{closed}"


def _has_records(content: Any) -> bool:
    if isinstance(content, dict):
        return any(map(_has_records, content.values()))
    return isinstance(content, list | tuple) and any(isinstance(item, dict | list | tuple) for item in content)


def store(path: Path, text: str) -> None:
    """Write a result file whole or not at all; its folder is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def render(table: Table) -> str:
    """Return a table as aligned text.

    Examples
    --------
    >>> print(render(Table("", ["rank", "ms"], [[5, 20.5], [10, None]])))
    rank    ms
       5  20.5
      10     –
    """
    cells = [[*table.columns], *([cell_text(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(table.columns))]
    texts = [any(isinstance(row[i], str) for row in table.rows) for i in range(len(widths))]
    lines = (
        "  ".join(
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(row, widths, texts, strict=True)
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def cell_text(cell: Any) -> str:
    """Return a cell of a table as text."""
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.3g}" if isinstance(cell, float) else str(cell)
