"""Corrupted matrices on disk that are larger than they should be in memory: made tile by tile, errors from factors.

    python benchmarks/large_data.py FOLDER [--side 12000] [--formats npy zarr]

Every tile has a seed of its own, so all formats hold the same numbers, whatever the number of threads.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lrpca.kernels.threads import thread_count

RANK, FRACTION, NOISE = 5, 0.1, 0.01
# Rows and columns of a tile, which is also a chunk: 16 MB.
TILE = 2000
# zarr as it compresses by itself, and without compression; HDF5 in the same chunks; one file of plain numbers.
FORMATS = ("npy", "zarr", "zarr-plain", "h5")


@dataclass(frozen=True)
class LargeProblem:
    """Y = U Vᵀ + outliers + noise, float32, of which any tile can be made by itself."""

    side: int
    seed: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of Y."""
        return 4 * self.side**2

    def factors(self) -> tuple[Any, Any]:
        """Return U and V (n, r): entries N(0, 1/n)."""
        rng = np.random.default_rng(self.seed)
        U, V = (rng.standard_normal((self.side, RANK)) / np.sqrt(self.side) for _ in range(2))
        return U, V

    def tiles(self) -> Iterator[tuple[slice, slice]]:
        """Yield rows and columns of every tile, in order."""
        cuts = [slice(first, min(first + TILE, self.side)) for first in range(0, self.side, TILE)]
        return ((rows, columns) for rows in cuts for columns in cuts)

    def tile(
        self,
        U: Any,  # (m1, r) the rows' part
        V: Any,  # (m2, r) the columns' part
        rows: slice,
        columns: slice,
    ) -> Any:
        """Return Y[rows, columns]: outliers uniform in ±mean|U Vᵀ|, noise N(0, (1% of the root mean square)²)."""
        rng = np.random.Generator(np.random.SFC64([self.seed, rows.start, columns.start]))
        # Of entries N(0, 1/n) products of rank r have this root mean square, and 0.76 of it in the mean (r = 5).
        size = np.sqrt(RANK) / self.side
        Y = rng.standard_normal((len(U), len(V)), dtype=np.float32)
        Y *= np.float32(NOISE * size)
        Y += (U @ V.T).astype(np.float32)
        hit = np.flatnonzero(rng.random(Y.size, dtype=np.float32) < FRACTION)
        Y.reshape(-1)[hit] += rng.uniform(-0.76 * size, 0.76 * size, len(hit)).astype(np.float32)
        return Y

    def error(
        self,
        L: Any,  # (n, k)
        R: Any,  # (n, k)
    ) -> float:
        """Return ‖L Rᵀ - U Vᵀ‖ / ‖U Vᵀ‖ from the factors, without cancellation: [L, -U] [R, V]ᵀ by two QRs."""
        U, V = self.factors()
        left, right = (np.linalg.qr(np.hstack(pair))[1] for pair in ((L, -U), (R, V)))
        return float(np.linalg.norm(left @ right.T) / np.sqrt(np.sum((U.T @ U) * (V.T @ V))))


def write(problem: LargeProblem, folder: Path, kind: str) -> Path:
    """Write Y in one of the `FORMATS`, unless it is there, and return its path; what was written is on the disk."""
    path = folder / f"Y-{problem.side}.{kind}"
    if path.exists():
        return path
    begun = path.with_name(f"begun-{path.name}")
    target = _target(begun, kind, problem.side)
    U, V = problem.factors()
    # HDF5 lets one thread in at a time, so making tiles is what several threads are for.
    with ThreadPoolExecutor(thread_count()) as pool:
        waiting = []
        for rows, columns in problem.tiles():
            waiting.append((rows, columns, pool.submit(problem.tile, U[rows], V[columns], rows, columns)))
            if len(waiting) > 2 * thread_count():
                _put(target, *waiting.pop(0))
        for item in waiting:
            _put(target, *item)
    if hasattr(target, "file"):
        target.file.close()
    elif hasattr(target, "flush"):
        target.flush()
    begun.rename(path)
    for file in files_of(path):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    return path


def _put(target: Any, rows: slice, columns: slice, tile: Any) -> None:
    target[rows, columns] = tile.result()


def _target(path: Path, kind: str, side: int) -> Any:
    shape, chunks = (side, side), (min(TILE, side),) * 2
    if kind == "npy":
        return np.lib.format.open_memmap(path, "w+", np.float32, shape)
    if kind == "h5":
        import h5py

        return h5py.File(path, "w").create_dataset("Y", shape, np.float32, chunks=chunks)
    import zarr

    return zarr.create_array(
        store=str(path),
        shape=shape,
        chunks=chunks,
        dtype="float32",
        compressors=None if kind == "zarr-plain" else "auto",
    )


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


def main() -> None:
    """Write the matrix."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--side", type=int, default=12_000)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["npy", "zarr"])
    chosen = parser.parse_args()
    for kind in chosen.formats:
        path = write(LargeProblem(chosen.side), chosen.folder, kind)
        print(f"{path}: {size_on_disk(path) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
