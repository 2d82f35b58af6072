"""Problems of a stack solved one at a time by `decompose`, several threads at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lrpca.decompose import Arguments, WarningText, decompose_with_warnings
from lrpca.decomposition.result import Decomposition
from lrpca.kernels.threads import Threads, thread_count
from lrpca.matrices.accept import accept
from lrpca.matrices.dense import DenseMatrix
from lrpca.schedule import Schedule

# Problems of fewer entries are mostly Python's own work, which threads only get in the way of.
_SMALL = 1 << 16


@dataclass(frozen=True)
class Request:
    """What every problem of a batch is solved with; as `lrpca.decompose` takes it, checked."""

    rank: int
    schedule: Schedule
    tol: float | None
    max_iter: int | None
    seed: int
    options: dict[str, Any] | None


Solved = tuple[Decomposition, list[WarningText]]


def decompose_each(
    indices: Sequence[int],
    take: Callable[[int], tuple[Any, Any]],  # of problem i: Y (n1, n2) and mask, NumPy
    request: Request,
    entries: int,  # of each problem
) -> list[Solved]:
    """Return the decompositions of some problems and what they would warn of, each by one thread.

    Bit for bit what `decompose` gives: neither the other problems nor the number of threads matter. An error names the
    problem it comes from; the first in the order of `indices` is raised.
    """

    def solve(i: int) -> Solved:
        Y, mask = take(i)
        try:
            accepted = accept(Y, mask)
            matrix = DenseMatrix(accepted.array, accepted.mask, threads=Threads(1))
            arguments = Arguments(
                schedule=request.schedule,
                tol=request.tol,
                max_iter=request.max_iter,
                random_state=request.seed,
                options=request.options,
            )
            return decompose_with_warnings(matrix, request.rank, arguments)
        except (TypeError, ValueError) as error:
            raise type(error)(f"Ys[{i}]: {error}") from error

    count = 1 if entries < _SMALL else min(thread_count(), len(indices))
    if count <= 1:
        return [solve(i) for i in indices]
    pool = ThreadPoolExecutor(count, thread_name_prefix="lrpca")
    try:
        # Handed out in order, so that the first error is that of the first problem that has one.
        return list(pool.map(solve, indices))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
