"""Y in memory for methods that cannot read it in blocks, if the memory suffices."""

from __future__ import annotations

import math
import os
from pathlib import Path

from lrpca.core.devices import bytes_in_words
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix

_MEMINFO = "/proc/meminfo"
_CGROUP = "/sys/fs/cgroup"


def within_memory_budget(matrix: DenseMatrix, method: str, held: float) -> DenseMatrix:
    """Return a matrix that is read in blocks as one in memory, and any other as it is.

    `method` needs it in memory and makes `held` arrays of its size. Raises ValueError where the free memory is too
    little for that.
    """
    if not isinstance(matrix, ChunkedMatrix):
        return matrix
    needed = math.prod(matrix.shape) * (matrix.stored.itemsize + held * matrix.arithmetic.itemsize)
    free = available_bytes()
    if free is not None and needed > free:
        raise ValueError(
            f"method={method!r} needs Y in memory, {bytes_in_words(needed)} of the {bytes_in_words(free)} that are "
            "free; use 'lrpca' or 'sampled', which read it in blocks"
        )
    loaded = matrix.loaded()
    loaded.reads = matrix.reads
    return loaded


def available_bytes() -> int | None:
    """Return how much memory is available without swapping; None where the system does not tell."""
    known = [size for size in (_free_of_system(), _free_of_container()) if size is not None]
    return min(known, default=None)


def _free_of_container() -> int | None:
    """Return what is left of the memory limit of a container, if there is one."""
    try:
        limit, used = (Path(_CGROUP, name).read_text().strip() for name in ("memory.max", "memory.current"))
        # Cached files count as used; the system drops them when memory is short.
        statistics = dict(line.split() for line in Path(_CGROUP, "memory.stat").read_text().splitlines())
        return max(0, int(limit) - int(used) + int(statistics.get("file", 0)))
    except (OSError, ValueError):  # "max" means no limit
        return None


def _free_of_system() -> int | None:
    try:
        lines = Path(_MEMINFO).read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
