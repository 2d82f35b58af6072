"""How the cost of a pass grows: with rows, columns, rank, workers, and the number of chunks; and what travels.

    python benchmarks/large_scaling.py [--repeats 7]

Small matrices, seconds each: the figures are the constants of the cost model in docs/large_data.md, so the fastest
round counts. Workers are processes of one thread on this machine. Writes scaling.json.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from lrpca.bench.measuring import Table, arguments, interleave, number, publish
from lrpca.core.influence import levels
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked import dask_blocks
from lrpca.matrices.dense import DenseMatrix

SIDE, RANK = 6000, 5
SIDES = (3000, 6000, 12_000)
RANKS = (1, 5, 10, 20)
WORKERS = (1, 2)
# Of a matrix so small that its arithmetic takes milliseconds.
CHUNKS_SIDE, CHUNKS = 2000, (2, 4, 8, 16)


def noise(n1: int, n2: int) -> Any:
    """Return a matrix of noise: what is in it does not matter here."""
    return np.random.default_rng(0).standard_normal((n1, n2), dtype=np.float32)


def one_pass(matrix: DenseMatrix, rank: int) -> Any:
    """Pass over a matrix once."""
    rng = np.random.default_rng(1)
    L, R = (rng.standard_normal((n, rank), dtype=np.float32) for n in matrix.shape)
    return matrix.run_pass(L, R, levels("redescending", 1.0, 2.0), A=R, B=L)


def by_shape(folder: Path, repeats: int) -> Table:
    """Time passes over more rows, more columns, and at higher ranks, in memory and from zarr in chunks."""
    import zarr

    cases = [(n, SIDE, RANK) for n in SIDES] + [(SIDE, n, RANK) for n in SIDES if n != SIDE]
    cases += [(SIDE, SIDE, rank) for rank in RANKS if rank != RANK]
    rows = []
    for n1, n2, rank in cases:
        Y = noise(n1, n2)
        path = folder / "Y.zarr"
        store = zarr.create_array(store=str(path), shape=Y.shape, chunks=(1500, 1500), dtype="f4", overwrite=True)
        store[:] = Y
        calls: dict[str, Callable[[], Any]] = {
            "memory": partial(one_pass, DenseMatrix(Y), rank),
            "zarr": partial(one_pass, accept(path), rank),
        }
        times = interleave(calls, repeats)
        memory, chunked = (min(times[name].seconds) for name in ("memory", "zarr"))
        rows.append(
            [n1, n2, rank, number(memory * 1e3), number(memory / Y.size * 1e9)]
            + [number(chunked * 1e3), number(chunked / Y.size * 1e9)]
        )
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


def by_workers(folder: Path, repeats: int) -> list[Table]:
    """Time passes on clusters: Y kept by the workers, and read by them from zarr; then by the number of chunks."""
    import dask.array as da
    import zarr

    path = folder / "Y.zarr"
    store = zarr.create_array(store=str(path), shape=(SIDE, SIDE), chunks=(1500, 1500), dtype="f4", overwrite=True)
    store[:] = noise(SIDE, SIDE)
    rows, tasks, sent = [], [], []
    for workers in WORKERS:
        with cluster(workers) as client:
            kept = accept(path)
            read: Any = accept(path)
            # As if Y did not fit into the workers' memory.
            read.source.array, _ = read.source._cluster.let_go()
            times = _times({"kept": kept, "read": read}, repeats)
            rows.append([workers, *(number(times[name]) for name in ("kept", "read"))])
            # Else small chunks are put together.
            with patch.object(dask_blocks, "_MANY", max(CHUNKS) ** 2):
                small = {
                    str(n * n): accept(da.random.normal(size=(CHUNKS_SIDE,) * 2, chunks=CHUNKS_SIDE // n).astype("f4"))
                    for n in CHUNKS
                }
            times = _times(small, repeats)
            first, last = (str(n * n) for n in (CHUNKS[0], CHUNKS[-1]))
            slope = (times[last] - times[first]) / (int(last) - int(first))
            tasks.append([workers, *(number(times[name]) for name in small), number(slope)])
            sent.append([workers, *_traffic(client, kept)])
            del kept, read, small
    size = f"{SIDE} x {SIDE}, rank {RANK}"
    who = "workers of one thread"
    travels = ["workers", "factors in the graph", "result to the client", "between workers", "(n1 + n2) r float32"]
    chunks = [who, *(f"{n * n} chunks" for n in CHUNKS), "ms for one chunk more"]
    kinds = [who, "Y kept by the workers", "Y read from zarr"]
    return [
        Table(f"One pass by workers, {size}, chunks of 1500 x 1500, ms", kinds, rows),
        Table(f"One pass over {CHUNKS_SIDE} x {CHUNKS_SIDE} in more and more chunks, ms", chunks, tasks),
        Table(f"What travels in one pass, {size}, 16 chunks, kB", travels, sent),
    ]


def _times(matrices: Mapping[str, DenseMatrix], repeats: int) -> dict[str, float]:
    """Return milliseconds of a pass over each."""
    times = interleave({name: partial(one_pass, matrix, RANK) for name, matrix in matrices.items()}, repeats)
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


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write scaling.json."""
    chosen = arguments(__file__, __doc__, given, repeats=(7, "rounds of timing"))
    chosen.file = chosen.file.with_name("scaling.json")
    with tempfile.TemporaryDirectory(prefix="lrpca-scaling-") as folder:
        tables = [by_shape(Path(folder), chosen.repeats), *by_workers(Path(folder), chosen.repeats)]
    notes = [
        f"The fastest of {chosen.repeats} rounds each; float32, noise; everything is in the system's cache.",
        "Workers are processes of one thread each on this machine, under dask.distributed; two of them, the scheduler "
        "and the client share its cores.",
        "What travels between workers is what distributed counted; factors are L twice, as factor and as multiplier, "
        "and R.",
    ]
    publish(chosen, "How the cost of large data grows", tables, notes, packages=("zarr", "dask", "distributed"))


if __name__ == "__main__":
    main()
