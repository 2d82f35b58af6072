"""A matrix on disk read and decomposed in a process of its own: seconds, reads, error and peak of anonymous memory.

    python benchmarks/large_process.py passes PATH SIDE STATE REPEATS     plain reads and passes, by turns
    python benchmarks/large_process.py decompose PATH SIDE STATE METHOD [S]     one call; S is written to a path

Each prints one line of JSON. STATE is `cached` (everything is read once before) or `disk` (the system forgets the file
before every pass, as it would a file that is larger than memory). `ask` runs one of them from another process.

Anonymous memory is what a process has for itself. Mapped pages of files are not counted: the system takes them back
whenever it needs them.
"""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from large_data import NOISE, RANK, LargeProblem, forget, size_on_disk

_BEAT = 0.01


def ask(*command: str) -> dict[str, Any]:
    """Run this file in a new process and return what it printed."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), *command], stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


class AnonymousPeak:
    """Looks at the anonymous memory of this process, a hundred times a second, while it is entered."""

    def __init__(self) -> None:
        self.bytes = _anonymous()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> AnonymousPeak:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_BEAT):
            self.bytes = max(self.bytes, _anonymous())


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no RssAnon; anonymous memory cannot be measured on this system")


def read_plainly(path: Path) -> None:
    """Read all of a matrix as its format is read: a parallel sum of mapped pages, or every block by a thread."""
    from limits import Machine

    from lrpca.matrices.accept import accept
    from lrpca.matrices.chunked.local_blocks import LocalBlocks
    from lrpca.matrices.chunked.matrix import ChunkedMatrix

    matrix = accept(path)
    if not isinstance(matrix, ChunkedMatrix):
        Machine().read(matrix.array)
        return
    source = matrix.source
    assert isinstance(source, LocalBlocks)
    with ThreadPoolExecutor(source._threads) as pool:
        for _ in pool.map(lambda place: np.shape(source.stored[place.rows, place.columns]), list(source.grid)):
            pass


def passes(path: Path, side: int, state: str, repeats: int) -> dict[str, Any]:
    """Return the seconds of plain reads, of passes, and of passes with the Gram matrices of every row and column."""
    from lrpca.core.influence import levels
    from lrpca.matrices.accept import accept

    L, R = (factor.astype(np.float32) for factor in LargeProblem(side).factors())
    level = levels("redescending", 3 * NOISE * np.sqrt(RANK) / side, 2.0)

    def run_pass(grams: bool) -> None:
        # Mapped anew each time: pages that are mapped cannot be forgotten.
        matrix = accept(path)
        matrix.run_pass(L, R, level, A=R, B=L, grams=grams)
        matrix.close()

    ways: dict[str, Callable[[], None]] = {
        "plain": lambda: read_plainly(path),
        "pass": lambda: run_pass(False),
        "grams": lambda: run_pass(True),
    }
    _compile()
    prepare(path, state)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            if state == "disk":
                forget(path)
            seconds[name].append(_clock(way)[0])
    return seconds


def decompose(path: Path, side: int, state: str, method: str, sparse: Path | None) -> dict[str, Any]:
    """Return how one call went, and how writing S went if asked for."""
    import lrpca
    from lrpca.matrices.accept import accept

    _compile()
    prepare(path, state)
    with AnonymousPeak() as peak:
        matrix = accept(path)
        count, before = _count_chunks(matrix), _bytes_from_disk()
        if state == "disk":
            _forget_before_passes(matrix, path)
        seconds, d = _clock(lambda: lrpca.decompose(matrix, rank=RANK, method=method, random_state=0))
        from_disk = (_bytes_from_disk() - before) / size_on_disk(path) if state == "disk" else None
        found = {
            "seconds": seconds,
            "reads": d.n_reads,
            "file_reads": from_disk if count is None else count.entries / side**2,
            "iterations": d.n_iter,
            "converged": d.converged,
            "error": LargeProblem(side).error(d.L, d.R),
            "outlier_fraction": d.outlier_fraction,
            "anonymous": peak.bytes,
        }
        if sparse is not None:
            found["sparse_seconds"] = _clock(lambda: d.write_sparse(sparse))[0]
            found["sparse_bytes"], found["sparse_anonymous"] = size_on_disk(sparse), peak.bytes
    return found


class _CountedChunks:
    """A stored matrix that counts what its chunks hold, each in full, however little of it was asked for."""

    def __init__(self, stored: Any) -> None:
        self._stored = stored
        self.entries = 0
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stored, name)

    def __getitem__(self, place: tuple[slice, slice]) -> Any:
        whole = 1
        for cut, chunk, n in zip(place, self._stored.chunks, self._stored.shape, strict=True):
            whole *= min(n, -(-cut.stop // chunk) * chunk) - cut.start // chunk * chunk
        with self._lock:
            self.entries += whole
        return self._stored[place]


def _count_chunks(matrix: Any) -> _CountedChunks | None:
    """Count the chunks of a matrix that has some, from now on."""
    source = getattr(matrix, "source", None)
    if source is None or source.stored.chunks is None:
        return None
    source.stored = _CountedChunks(source.stored)
    counted: _CountedChunks = source.stored
    return counted


def _forget_before_passes(matrix: Any, path: Path) -> None:
    """Have the system forget the file before every pass over the matrix from now on."""
    run_pass, chunked = matrix.run_pass, hasattr(matrix, "source")

    def forgetful(*factors: Any, **how: Any) -> Any:
        if not chunked:
            # Mapped pages have to be let go of first.
            matrix.array.base._mmap.madvise(mmap.MADV_DONTNEED)
        forget(path)
        return run_pass(*factors, **how)

    matrix.run_pass = forgetful


def _bytes_from_disk() -> int:
    """Return the bytes that this process has had the system read from disks so far."""
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def prepare(path: Path, state: str) -> None:
    """Read a file once, or have the system forget it."""
    if state == "disk":
        forget(path)
    else:
        read_plainly(path)


def versions() -> dict[str, str]:
    """Return the versions of what reads and moves large data, beside the usual ones."""
    from lrpca.core import environment as circumstances

    return circumstances.versions(["zarr", "numcodecs", "h5py", "dask", "distributed"])


def _compile() -> None:
    """Load the kernels, which is no part of any measurement."""
    import lrpca

    Y = LargeProblem(400)
    U, V = Y.factors()
    whole = slice(0, 400)
    tile = Y.tile(U, V, whole, whole)
    for method in ("lrpca", "sampled"):
        lrpca.decompose(tile, RANK, method=method)


def _clock(function: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def main() -> None:
    """Run what the command line says."""
    what, path, side, state, *rest = sys.argv[1:]
    place = Path(path), int(side), state
    if what == "passes":
        answer = passes(*place, int(rest[0]))
    else:
        answer = decompose(*place, rest[0], Path(rest[1]) if len(rest) > 1 else None)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
