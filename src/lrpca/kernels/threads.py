"""Threads over serial kernels that release the GIL.

A parallel numba kernel called from several threads can abort the process, so kernels are serial and threads are ours.
The work is cut into a fixed partition first: the number of threads changes the time, never the bits.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# Multiply-adds below which one thread does the work, and below which each thread gets its share at once.
_LITTLE = 1 << 18
_MODEST = 1 << 28

Item = TypeVar("Item")
Result = TypeVar("Result")


def thread_count() -> int:
    """Return how many threads kernels may use: NUMBA_NUM_THREADS, or the cores this process may run on."""
    import numba

    return int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


class Threads:
    """A pool of at most `most` threads (one for each core if not given), made when first needed.

    It ends with its owner; a forked process makes its own.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._pool: ThreadPoolExecutor | None = None
        self._process = 0

    def map(self, function: Callable[[Item], Result], items: Sequence[Item], *, work: float = math.inf) -> list[Result]:
        """Return ``[function(item) for item in items]``, computed by all threads.

        `work` is the number of multiply-adds in all. Little work stays in the calling thread. A modest amount is shared
        out once: to submit every item by itself would cost as much as the item.
        """
        count = min(thread_count() if self._most is None else self._most, len(items))
        if work < _LITTLE or count == 1:
            return [function(item) for item in items]
        # A forked process has the pool but none of its threads.
        if self._pool is None or self._process != os.getpid():
            self._pool = ThreadPoolExecutor(self._most or thread_count(), thread_name_prefix="lrpca")
            self._process = os.getpid()
        if work >= _MODEST:
            return list(self._pool.map(function, items))
        shares = [items[first::count] for first in range(count)]
        found = list(self._pool.map(lambda share: [function(item) for item in share], shares))
        return [found[k % count][k // count] for k in range(len(items))]

    def close(self) -> None:
        """End the threads; the next `map` makes new ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None

    def __getstate__(self) -> dict[str, object]:
        """Drop the pool: it cannot be pickled, and is made again when needed."""
        return {"_most": self._most, "_pool": None, "_process": 0}
