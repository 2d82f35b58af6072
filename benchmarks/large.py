"""A matrix larger than memory should be: 60 000 x 60 000 on disk, read, passed over and decomposed.

    python benchmarks/large.py [--side 60000] [--repeats 3]

Makes the matrix (rank 5, 10% outliers, 1% noise, float32) tile by tile, one format after the other, in a temporary
folder: 15 GB for every format. Every figure comes from a new process; what is compared is in the same cache
state: `cached` (the file was read directly before) or `disk` (the system dropped it from memory before every pass).

How the cost of a pass grows goes to scaling.json. It is measured on small matrices, seconds each: the figures are the
constants of the cost model in docs/large_data.md, so the fastest round counts.
"""

import mmap
import os
import pickle
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import lrpca
from lrpca.bench.measuring import Table, arguments, call_fresh, clock, interleave, memory_of, number, publish
from lrpca.bench.probes import Machine, Planted, factors
from lrpca.core.influence import levels
from lrpca.kernels.threads import thread_count
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked import dask_blocks
from lrpca.matrices.dense import DenseMatrix

STATES, METHODS = ("cached", "disk"), ("lrpca", "sampled")
RANK, FRACTION, NOISE = 5, 0.1, 0.01
# Rows and columns of a tile, which is also a chunk: 16 MB.
TILE = 2000
NAMES = {"npy": ".npy, mapped", "zarr": "zarr, compressed"}
# How the cost of a pass grows: rounds, sides, ranks, processes of one thread; and the chunks of a matrix so small that
# its arithmetic takes milliseconds.
ROUNDS, MEDIUM, SIDES, RANKS, WORKERS = 7, 6000, (3000, 6000, 12_000), (1, 5, 10, 20), (1, 2)
CHUNKS_SIDE, CHUNKS = 2000, (2, 4, 8, 16)


# ------------------------------------------------------------------------------------------------ the matrix


def tile(side: int, U: Any, V: Any, place: tuple[slice, slice]) -> Any:
    """Return a part of Y, with its own seed: outliers uniform in ±mean|U Vᵀ|, noise 1% of the root mean square."""
    rows, columns = place
    rng = np.random.Generator(np.random.SFC64([0, rows.start, columns.start]))
    # Of entries N(0, 1/n) products of rank r have this root mean square, and 0.76 of it in the mean (r = 5).
    size = np.sqrt(RANK) / side
    X = (U[rows] @ V[columns].T).astype(np.float32)
    Y = rng.standard_normal(X.shape, dtype=np.float32) * np.float32(NOISE * size) + X
    hit = np.flatnonzero(rng.random(Y.size, dtype=np.float32) < FRACTION)
    Y.reshape(-1)[hit] += rng.uniform(-0.76 * size, 0.76 * size, len(hit)).astype(np.float32)
    return Y


def write(side: int, path: Path) -> None:
    """Write Y in the format that the name of the file has; what was written is on the disk."""
    shape, mapped = (side, side), path.suffix == ".npy"
    target: Any = np.lib.format.open_memmap(path, "w+", np.float32, shape) if mapped else chunked(path, shape, TILE)
    U, V = factors(side, RANK)
    cuts = [slice(first, min(first + TILE, side)) for first in range(0, side, TILE)]
    with ThreadPoolExecutor(thread_count()) as pool:
        for rows in cuts:
            places = [(rows, columns) for columns in cuts]
            for place, part in zip(places, pool.map(partial(tile, side, U, V), places), strict=True):
                target[place] = part
    if mapped:
        target.flush()
    for file in files_of(path):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def chunked(path: Path, shape: tuple[int, int], side: int) -> Any:
    """Return a new zarr array of float32 in square chunks."""
    import zarr

    chunks = tuple(min(side, n) for n in shape)
    return zarr.create_array(store=str(path), shape=shape, chunks=chunks, dtype="float32", overwrite=True)


def files_of(path: Path) -> list[Path]:
    """Return the file, or all files of the store."""
    return [path] if path.is_file() else [file for file in sorted(path.rglob("*")) if file.is_file()]


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file or store."""
    return sum(file.stat().st_size for file in files_of(path))


def forget(path: Path) -> None:
    """Ask the system to drop a file's or a store's pages from memory: the next read comes from the disk."""
    for file in files_of(path):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ------------------------------------------------------------------------------------------------ in new processes


def passes(name: str, side: int, state: str, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of plain reads, of passes, and of passes with the Gram matrices of every row and column."""
    path = Path(name)
    L, R = (factor.astype(np.float32) for factor in factors(side, RANK))
    level = levels("redescending", 3 * NOISE * np.sqrt(RANK) / side, 2.0)

    def run_pass(grams: bool) -> None:
        # Mapped anew each time: pages that are mapped cannot be forgotten.
        matrix = accept(path)
        matrix.run_pass(L, R, level, A=R, B=L, grams=grams)
        matrix.close()

    ways = {"plain": partial(read_plainly, path), "pass": partial(run_pass, False), "grams": partial(run_pass, True)}
    _compile()
    read_plainly(path)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            if state == "disk":
                forget(path)
            seconds[name].append(clock(way)[0])
    return seconds


def read_plainly(path: Path) -> None:
    """Read all of a matrix as its format is read: a parallel sum of mapped pages, or every block by a thread."""
    matrix: Any = accept(path)
    if not hasattr(matrix, "source"):
        Machine().read(matrix.array)
        return
    with ThreadPoolExecutor(thread_count()) as pool:
        stored = matrix.source.stored
        list(pool.map(lambda place: np.shape(stored[place.rows, place.columns]), list(matrix.source.grid)))


def decompose(name: str, side: int, method: str, sparse: str | None) -> dict[str, Any]:
    """Return how one call from disk went, and how writing S went if asked for."""
    path, (U, V) = Path(name), factors(side, RANK)
    _compile()
    forget(path)
    with anonymous_peak() as peak:
        matrix = accept(path)
        count, before = _count_chunks(matrix), _bytes_from_disk()
        _forget_before_passes(matrix, path)
        seconds, d = clock(partial(lrpca.decompose, matrix, rank=RANK, method=method, random_state=0))
        from_disk = (_bytes_from_disk() - before) / size_on_disk(path)
        found = {
            **{"seconds": seconds, "reads": d.n_reads, "converged": d.converged, "anonymous": peak[0]},
            "file_reads": from_disk if count is None else count.entries / side**2,
            "error": Planted(None, U, V, 0.0).error(d.L, d.R),
        }
        if sparse is not None:
            found["sparse_seconds"] = clock(lambda: d.write_sparse(Path(sparse)))[0]
            found["sparse_bytes"], found["sparse_anonymous"] = size_on_disk(Path(sparse)), peak[0]
    return found


@contextmanager
def anonymous_peak() -> Iterator[list[int]]:
    """Watch the most anonymous memory of this process, a hundred times a second, while inside.

    Mapped pages of files are not counted: the system takes them back whenever it needs them.
    """
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            peak[0] = max(peak[0], memory_of("self", "RssAnon"))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def _bytes_from_disk() -> int:
    return int(Path("/proc/self/io").read_text(encoding="utf-8").partition("\nread_bytes: ")[2].partition("\n")[0])


class CountedChunks:
    """A stored matrix that counts what its chunks hold, each in full, however little of it was asked for."""

    def __init__(self, stored: Any) -> None:
        self._stored, self.entries, self._lock = stored, 0, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stored, name)

    def __getitem__(self, place: tuple[slice, slice]) -> Any:
        whole = 1
        for cut, chunk, n in zip(place, self._stored.chunks, self._stored.shape, strict=True):
            whole *= min(n, -(-cut.stop // chunk) * chunk) - cut.start // chunk * chunk
        with self._lock:
            self.entries += whole
        return self._stored[place]


def _count_chunks(matrix: Any) -> CountedChunks | None:
    """Count the chunks of a matrix that has some, from now on."""
    source = getattr(matrix, "source", None)
    if source is None or source.stored.chunks is None:
        return None
    source.stored = counted = CountedChunks(source.stored)
    return counted


def _forget_before_passes(matrix: Any, path: Path) -> None:
    """Have the system forget the file before every pass over the matrix from now on."""
    run_pass = matrix.run_pass

    def forgetful(*factors: Any, **how: Any) -> Any:
        if not hasattr(matrix, "source"):
            # Mapped pages have to be let go of first.
            matrix.array.base._mmap.madvise(mmap.MADV_DONTNEED)
        forget(path)
        return run_pass(*factors, **how)

    matrix.run_pass = forgetful


def _compile() -> None:
    """Load the kernels, which is no part of any measurement."""
    small = tile(400, *factors(400, RANK), (slice(0, 400), slice(0, 400)))
    for method in METHODS:
        lrpca.decompose(small, RANK, method=method)


# ------------------------------------------------------------------------------------------------ how the cost grows


def noise(n1: int, n2: int) -> Any:
    """Return a matrix of noise: what is in it does not matter here."""
    return np.random.default_rng(0).standard_normal((n1, n2), dtype=np.float32)


def one_pass(matrix: DenseMatrix, rank: int) -> Any:
    """Pass over a matrix once."""
    rng = np.random.default_rng(1)
    L, R = (rng.standard_normal((n, rank), dtype=np.float32) for n in matrix.shape)
    return matrix.run_pass(L, R, levels("redescending", 1.0, 2.0), A=R, B=L)


def by_shape(folder: Path) -> Table:
    """Time passes over more rows, more columns, and at higher ranks, in memory and from zarr in chunks."""
    cases = [(n, MEDIUM, RANK) for n in SIDES] + [(MEDIUM, n, RANK) for n in SIDES if n != MEDIUM]
    cases += [(MEDIUM, MEDIUM, rank) for rank in RANKS if rank != RANK]
    rows = []
    for n1, n2, rank in cases:
        Y = noise(n1, n2)
        path = folder / "Y.zarr"
        chunked(path, Y.shape, 1500)[:] = Y
        calls = {type(matrix).__name__: partial(one_pass, matrix, rank) for matrix in (DenseMatrix(Y), accept(path))}
        fastest = [min(timing.seconds) for timing in interleave(calls, ROUNDS).values()]
        rows.append([n1, n2, rank, *(number(s * scale) for s in fastest for scale in (1e3, 1e9 / Y.size))])
    columns = ["n1", "n2", "rank", "in memory, ms", "ns per entry", "zarr, ms", "ns per entry "]
    return Table("One pass, float32, all threads of one process; zarr with its own compression, cached", columns, rows)


@contextmanager
def cluster(workers: int) -> Iterator[Any]:
    """Start a cluster of processes of one thread each, and end it."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0") as local,
        Client(local) as client,
    ):
        yield client


def by_workers(folder: Path) -> list[Table]:
    """Time passes on clusters: Y kept by the workers, and read by them from zarr; then by the number of chunks."""
    import dask.array as da

    path = folder / "Y.zarr"
    chunked(path, (MEDIUM, MEDIUM), 1500)[:] = noise(MEDIUM, MEDIUM)
    rows, tasks, sent = [], [], []
    for workers in WORKERS:
        with cluster(workers) as client:
            kept = accept(path)
            read: Any = accept(path)
            # As if Y did not fit into the workers' memory.
            read.source.array, _ = read.source._cluster.let_go()
            times = _times({"kept": kept, "read": read})
            rows.append([workers, *(number(times[name]) for name in ("kept", "read"))])
            # Else small chunks are put together.
            with patch.object(dask_blocks, "_MANY", max(CHUNKS) ** 2):
                small = {
                    str(n * n): accept(da.random.normal(size=(CHUNKS_SIDE,) * 2, chunks=CHUNKS_SIDE // n).astype("f4"))
                    for n in CHUNKS
                }
            times = _times(small)
            first, last = (str(n * n) for n in (CHUNKS[0], CHUNKS[-1]))
            slope = (times[last] - times[first]) / (int(last) - int(first))
            tasks.append([workers, *(number(times[name]) for name in small), number(slope)])
            sent.append([workers, *_traffic(client, kept)])
            del kept, read, small
    size = f"{MEDIUM} x {MEDIUM}, rank {RANK}"
    who = "workers of one thread"
    travels = ["workers", "factors in the graph", "result to the client", "between workers", "(n1 + n2) r float32"]
    chunks = [who, *(f"{n * n} chunks" for n in CHUNKS), "ms for one chunk more"]
    kinds = [who, "Y kept by the workers", "Y read from zarr"]
    return [
        Table(f"One pass by workers, {size}, chunks of 1500 x 1500, ms", kinds, rows),
        Table(f"One pass over {CHUNKS_SIDE} x {CHUNKS_SIDE} in more and more chunks, ms", chunks, tasks),
        Table(f"Data sent in one pass, {size}, 16 chunks, kB", travels, sent),
    ]


def _times(matrices: Mapping[str, DenseMatrix]) -> dict[str, float]:
    """Return milliseconds of a pass over each."""
    times = interleave({name: partial(one_pass, matrix, RANK) for name, matrix in matrices.items()}, ROUNDS)
    return {name: min(timing.seconds) * 1e3 for name, timing in times.items()}


def _traffic(client: Any, matrix: Any) -> list[Any]:
    """Return kB of factors in the graph, of the result, and between workers, for one pass."""

    def between(dask_worker: Any) -> int:
        return int(dask_worker.transfer_outgoing_bytes_total)

    before = sum(client.run(between).values())
    result = one_pass(matrix, RANK)
    after = sum(client.run(between).values())
    n1, n2 = matrix.shape
    factors = 4 * (2 * n1 + n2) * RANK
    back = len(pickle.dumps([result.CA, result.CtB, result.kept_by_row, result.kept_by_column]))
    return [number(size / 1e3) for size in (factors, back, after - before, 4 * (n1 + n2) * RANK)]


# ------------------------------------------------------------------------------------------------ the script


def pass_rows(path: Path, side: int, kind: str, repeats: int) -> list[list[Any]]:
    """Return rows: plain read, pass and pass with Gram matrices, in both cache states."""
    rows = []
    for state in STATES:
        found = call_fresh(passes, str(path), side, state, repeats)
        plain, single, grams = (np.array(found[name]) for name in ("plain", "pass", "grams"))
        values = (plain, 4 * side**2 / plain / 1e9, single, single / plain, grams / plain)
        rows.append([NAMES[kind], state, *(number(float(np.median(value))) for value in values), len(plain)])
    return rows


def call_rows(path: Path, side: int, kind: str) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return rows of whole calls by method, and of S written after the sampled one where Y is in zarr."""
    rows, written = [], []
    for method in METHODS:
        sparse = path.with_name("S.zarr") if kind == "zarr" and method == "sampled" else None
        found = call_fresh(decompose, str(path), side, method, None if sparse is None else str(sparse))
        cells = [number(found["seconds"]), found["reads"], number(found["file_reads"]), float(f"{found['error']:.3e}")]
        rows.append([NAMES[kind], method, *cells, number(found["anonymous"] / 1e9), bool(found["converged"])])
        if sparse is not None:
            shutil.rmtree(sparse)
            sizes = [number(found[name] / 1e9) for name in ("sparse_bytes", "sparse_anonymous")]
            written.append([NAMES[kind], number(found["sparse_seconds"]), *sizes])
    return rows, written


def measure(side: int, repeats: int) -> list[Table]:
    """Measure every format, and return the tables."""
    timed, calls, written, sizes = [], [], [], []
    for kind in NAMES:
        with tempfile.TemporaryDirectory(prefix="lrpca-large-") as folder:
            path = Path(folder) / f"Y.{kind}"
            write(side, path)
            sizes.append([NAMES[kind], number(size_on_disk(path) / 1e9)])
            timed += pass_rows(path, side, kind, repeats)
            called, outliers = call_rows(path, side, kind)
            calls, written = calls + called, written + outliers
    what = f"{side} x {side}, float32, {4 * side**2 / 1e9:.3g} GB"
    of_passes = ["format", "state", "plain read, s", "GB/s", "pass, s", "pass / plain read"]
    of_passes += ["with row equations", "rounds"]
    of_calls = ["format", "method", "s", "reads", "reads of the file", "error", "anonymous memory, GB", "converged"]
    of_outliers = ["format", "s", "GB", "anonymous memory, GB"]
    return [
        Table(f"{what}: on disk", ["format", "GB"], sizes),
        Table(f"{what}: one pass beside a plain read, rank {RANK}", of_passes, timed),
        Table(f"{what}: whole calls from disk, rank {RANK} given", of_calls, calls),
        Table(f"{what}: the outliers written to zarr, by coordinates, after `sampled`", of_outliers, written),
    ]


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write large.json and scaling.json."""
    options = {"side": (60_000, "rows and columns of Y"), "repeats": (3, "rounds of passes")}
    chosen = arguments(__file__, __doc__, given, command="make large", **options)
    notes = [
        f"Rank {RANK}, {FRACTION:.0%} outliers uniform in ±mean|X|, {NOISE:.0%} noise (of the root mean square); "
        f"chunks of {TILE} x {TILE}. Errors are ‖X - X*‖/‖X*‖, from the factors.",
        "cached: the file was read directly before. disk: the system dropped it from memory before every pass, as if "
        "it were larger than memory (the host of a virtual machine may remember it).",
        "A plain read is a parallel sum over mapped pages, or every block read by as many threads as a pass uses. "
        "Medians of the rounds, and of ratios within a round; with per-row normal equations is a ratio, too.",
        "Reads are counted in entries that were looked at; reads of the file count every chunk in full, however little "
        "of it was needed, and of a mapped file what came from the disk. Anonymous memory includes the interpreter and "
        "its libraries.",
    ]
    tables = measure(chosen.side, chosen.repeats)
    publish(chosen, "A matrix larger than memory", tables, notes, packages=("zarr", "numcodecs"))
    with tempfile.TemporaryDirectory(prefix="lrpca-scaling-") as folder:
        tables = [by_shape(Path(folder)), *by_workers(Path(folder))]
    notes = [
        f"The fastest of {ROUNDS} rounds each; float32, noise; everything is in the system's cache.",
        "Workers are processes of one thread each on this machine, under dask.distributed; two of them, the scheduler "
        "and the client share its cores.",
        "The data sent between workers are counted by distributed; factors are L twice, as factor and as multiplier, "
        "and R.",
    ]
    chosen.file = chosen.file.with_name("scaling.json")
    publish(chosen, "How the cost of large data grows", tables, notes, packages=("zarr", "dask", "distributed"))


if __name__ == "__main__":
    main()
