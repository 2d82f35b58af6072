"""One pass over Y: against reading it, against what the processor can multiply, and against torch.

    python benchmarks/bench_pass.py [--n 8000] [--repeats 15]

A read-time is the time of a plain parallel sum over the same Y, measured directly before.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import plain_torch
import torch

from lrpca.bench.measuring import Table, Timing, arguments, interleave, number, publish
from lrpca.bench.probes import Machine, factors, planted
from lrpca.core.influence import levels
from lrpca.matrices.dense import DenseMatrix

FULL, RANKS = 8000, (1, 2, 3, 5, 8, 10, 20)
# Goals the project sets itself, for Y of full size: at most so many read-times, at least so much faster than torch.
READ_TIMES = {1: 2.0, 2: 2.0, 3: 2.0, 5: 2.0, 10: 3.5, 20: 8.0}
TORCH_RANKS = (2, 5, 10)
TORCH = {
    "plain, as in published code": plain_torch.plain,
    "one kept buffer, in place": plain_torch.kept_buffer,
    "kept buffer, blocks of 512 rows": plain_torch.blocked,
}
SPEED_UPS = {("plain, as in published code", 5): 20.0, ("one kept buffer, in place", 5): 5.0}
# Multiply-adds of the probe: some milliseconds.
PROBE = 4e8

Calls = dict[str, Callable[[], object]]


def threshold(n: int, rank: int) -> float:
    """Return a ζ that leaves most residuals of the benchmark's problem unclipped."""
    return float((5 + rank) ** 0.5 / n)


def pass_over(matrix: DenseMatrix, rank: int, influence: str = "redescending") -> Callable[[], Any]:
    """Return a pass as the solver does it: double-precision factors in, double-precision sums out."""
    L, R = factors(matrix.shape[0], rank)
    return partial(matrix.run_pass, L, R, levels(influence, threshold(matrix.shape[0], rank)), A=R, B=L)


def torch_calls(Y: Any, matrix: DenseMatrix) -> Calls:
    """Return the torch iterations, after a check that they compute what the pass computes."""
    n, calls = len(Y), {}
    Y_torch = torch.from_numpy(Y)
    # NumPy asks the system for large pages, torch does not: the kept buffer is given that advantage too.
    kept = torch.from_numpy(np.zeros_like(Y))
    for name, function in TORCH.items():
        for rank in TORCH_RANKS:
            L, R = (torch.from_numpy(factor.astype(np.float32)) for factor in factors(n, rank))
            call = torch.inference_mode()(partial(function, Y_torch, L, R, threshold(n, rank), kept))
            ours = pass_over(matrix, rank, "soft")()
            for mine, theirs in zip((ours.CA, ours.CtB), call(), strict=True):
                if not np.allclose(mine, theirs, atol=1e-4 * np.abs(mine).max()):
                    raise RuntimeError(f"torch, {name}, differs from our pass of rank {rank}; one of them is wrong")
            calls[f"{name} {rank}"] = call
    return calls


def race(Y: Any, machine: Machine, repeats: int) -> list[Table]:
    """Time the pass at every rank and torch in common rounds, each with the two limits directly before."""
    n, matrix = len(Y), DenseMatrix(Y)
    work = machine.multiply_add(PROBE)
    probes: Calls = {"read": partial(machine.read, Y), "multiply-add": partial(machine.multiply_add, work)}
    torch.set_num_threads(machine.threads)
    calls: Calls = {f"pass {rank}": pass_over(matrix, rank) for rank in RANKS}
    times = interleave(calls | torch_calls(Y, matrix), repeats, probes=probes)
    return [rank_table(n, times, work), torch_table(n, times)]


def limit_cells(timing: Timing, multiply_adds: float, work: int) -> list[Any]:
    """Return the nearer limit in ms, what sets it, and how many times as long a call takes; in rounds."""
    read = np.array(timing.probes["read"])
    arithmetic = multiply_adds * np.array(timing.probes["multiply-add"]) / work
    limit = np.maximum(read, arithmetic)
    name = "reading" if np.median(read) > np.median(arithmetic) else "arithmetic"
    return [number(1e3 * float(np.median(limit))), name, number(timing.relative_to(limit.tolist()))]


def rank_table(n: int, times: Mapping[str, Timing], work: int) -> Table:
    """Return the pass by rank: read-times, throughput, and how far it is from the nearer limit."""
    rows = []
    for rank in RANKS:
        timing = times[f"pass {rank}"]
        goal = READ_TIMES.get(rank) if n == FULL else None
        cells = [number(timing.median * 1e3), timing.spread, number(timing.reads), goal]
        rows.append([rank, *cells, number(n * n / timing.median / 1e9), *limit_cells(timing, 3 * rank * n * n, work)])
    columns = ["rank", "ms", "quartiles", "read-times", "goal, at most", "10⁹ entries/s"]
    caption = f"One pass, Y {n} x {n}, float32; the limit is the longer of reading and 3 r n² multiply-adds"
    return Table(caption, [*columns, "limit, ms", "set by", "times the limit"], rows)


def torch_table(n: int, times: Mapping[str, Timing]) -> Table:
    """Return the torch iterations and how many times faster the pass is."""
    rows = []
    for name in TORCH:
        for rank in TORCH_RANKS:
            timing, ours = times[f"{name} {rank}"], times[f"pass {rank}"]
            goal = SPEED_UPS.get((name, rank)) if n == FULL else None
            cells = [number(timing.median * 1e3), timing.spread, number(timing.reads)]
            rows.append([name, rank, *cells, number(timing.relative_to(ours.seconds)), goal])
    columns = ["torch", "rank", "ms", "quartiles", "read-times", "times slower than the pass", "goal, at least"]
    return Table("One iteration in torch on the same Y, against the pass of that rank", columns, rows)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write pass.json."""
    options = {"n": (FULL, "rows and columns of Y"), "repeats": (15, "rounds of timing")}
    chosen = arguments(__file__, __doc__, given, command="make bench", **options)
    machine, Y = Machine(), planted(chosen.n, rank=5, outlier_fraction=0.1).Y
    notes = [
        f"{machine.threads} threads for everything. Medians of {chosen.repeats} rounds; each round times everything "
        "once, in shuffled order. Read-times and limits are those measured directly before each timed call, other "
        "ratios those within a round; all are medians of ratios.",
        "The pass also counts kept entries by row and column and sums ‖C‖², which the torch iterations do not; theirs "
        "clip softly, ours redescends to zero. That both give the same C R and Cᵀ L is checked first.",
    ]
    publish(chosen, "One pass over Y", race(Y, machine, chosen.repeats), notes)


if __name__ == "__main__":
    main()
