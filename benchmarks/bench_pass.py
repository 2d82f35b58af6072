"""One pass over Y: against reading it, against what the processor can multiply, and against torch.

    python benchmarks/bench_pass.py [--n 8000] [--repeats 15]

A read-time is the time of a plain parallel sum over the same Y, measured directly before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from lrpca.bench import plain_torch
from lrpca.bench.measuring import Table, Timing, arguments, interleave, number, publish
from lrpca.bench.probes import Machine, factors, planted
from lrpca.core.influence import Levels, levels
from lrpca.matrices.dense import DenseMatrix

FULL, RANK, RANKS = 8000, 5, (1, 2, 3, 5, 8, 10, 20)
# Goals the project sets itself, for Y of full size: at most so many read-times, at least so much faster than torch, at
# most so much longer for uint8, and at least this share of the throughput on a Y of a sixteenth.
READ_TIMES = {1: 2.0, 2: 2.0, 3: 2.0, 5: 2.0, 10: 3.5, 20: 8.0}
TORCH_RANKS = (2, 5, 10)
TORCH = {
    "plain, as everyone writes it": plain_torch.plain,
    "one kept buffer, in place": plain_torch.kept_buffer,
    "kept buffer, blocks of 512 rows": plain_torch.blocked,
}
SPEED_UPS = {("plain, as everyone writes it", 5): 20.0, ("one kept buffer, in place", 5): 5.0}
UINT8, SMALL = 1.3, 0.8
# Multiply-adds of the probe: some milliseconds.
PROBE = 4e8

Calls = dict[str, Callable[[], object]]


def threshold(n: int, rank: int) -> float:
    """Return a ζ that leaves most residuals of the benchmark's problem unclipped."""
    return float((5 + rank) ** 0.5 / n)


def run_pass(matrix: DenseMatrix, L: Any, R: Any, level: Levels, *, grams: bool = False) -> Any:
    """Do one pass as the solver does it; double-precision factors in, double-precision sums out."""
    A, B = (R.conj(), L.conj()) if np.iscomplexobj(R) else (R, L)
    return matrix.run_pass(L, R, level, A=A, B=B, grams=grams)


def pass_over(matrix: DenseMatrix, rank: int = RANK) -> Callable[[], object]:
    """Return a pass with factors of a rank and a threshold that fits."""
    n = matrix.shape[0]
    return partial(run_pass, matrix, *factors(n, rank), levels("redescending", threshold(n, rank)))


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
            ours = run_pass(matrix, *factors(n, rank), levels("soft", threshold(n, rank)))
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
    return [machine_table(n, times, work), rank_table(n, times, work), torch_table(n, times)]


def machine_table(n: int, times: Mapping[str, Timing], work: int) -> Table:
    """Return what the machine can do, and how steadily."""
    read, add = (
        np.array([second for timing in times.values() for second in timing.probes[probe]])
        for probe in ("read", "multiply-add")
    )
    measured = {
        "reading Y once, ms": 1e3 * read,
        "memory, GB/s": 4 * n * n / read / 1e9,
        "multiply-adds on data in the first-level cache, 10⁹/s": work / add / 1e9,
    }
    rows = [[name, *map(number, np.quantile(values, [0, 0.25, 0.5, 0.75, 1]))] for name, values in measured.items()]
    columns = ["limit", "least", "lower quartile", "median", "upper quartile", "most"]
    return Table(f"Limits of the machine, Y {n} x {n}, float32, {len(read)} measurements", columns, rows)


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


def sizes(Y: Any, machine: Machine, repeats: int) -> Table:
    """Compare the throughput on a matrix of a sixteenth of the entries."""
    n, small = len(Y), len(Y) // 4
    little = pass_over(DenseMatrix(planted(small, rank=5, outlier_fraction=0.1).Y))
    large_name, small_name = f"{n} x {n}", f"{small} x {small}"
    counts = {large_name: 1, f"{small_name}, 16 passes in a row": 16, f"{small_name}, one pass after another Y": 1}
    calls: Calls = dict(
        zip(counts, (pass_over(DenseMatrix(Y)), lambda: [little() for _ in range(16)], little), strict=True)
    )
    times = interleave(calls, repeats, probes={"read": partial(machine.read, Y)})
    rows = []
    for name, passes in counts.items():
        timing = times[name]
        entries = passes * (n * n if name == large_name else small * small)
        relative = entries / (n * n) / timing.relative_to(times[large_name].seconds)
        cells = [timing.median * 1e3 / passes, entries / timing.median / 1e9, relative]
        rows.append([name, *map(number, cells), SMALL if n == FULL and passes > 1 else None])
    columns = ["Y", "ms per pass", "10⁹ entries/s", f"relative to {large_name}", "goal, at least"]
    return Table(f"Small and large Y, float32, r={RANK}", columns, rows)


def variants(Y: Any, machine: Machine, repeats: int) -> Table:
    """Time other kinds of data against the float32 pass of the same shape and rank."""
    n = len(Y)
    times = interleave(_kinds(Y), repeats, probes={"read": partial(machine.read, Y)})
    rows = []
    for name, timing in times.items():
        base = times[f"float32, r={name.rpartition('r=')[2]}"]
        goal = UINT8 if name.startswith("uint8") and n == FULL else None
        cells = [number(timing.median * 1e3), timing.spread, number(timing.relative_to(base.seconds)), goal]
        rows.append([name, *cells, number(n * n / timing.median / 1e9)])
    columns = ["Y", "ms", "quartiles", "times float32", "goal, at most", "10⁹ entries/s"]
    return Table(f"One pass over other kinds of data, {n} x {n}", columns, rows)


def _kinds(Y: Any) -> Calls:
    n = len(Y)
    missing = np.random.default_rng(2).random((n, n), dtype=np.float32) < 0.2
    plain = DenseMatrix(Y)
    matrices = {
        "float64": DenseMatrix(Y.astype(np.float64)),
        "float32, Fortran order": DenseMatrix(np.asfortranarray(Y)),
        "float32, 20% NaN": DenseMatrix(np.where(missing, np.float32(np.nan), Y)),
        "float32, mask of rows (n, 1)": DenseMatrix(Y, ~missing[:, :1]),
        "float32, mask (n, n)": DenseMatrix(Y, ~missing),
    }
    L, R = factors(n, RANK)
    level = levels("redescending", threshold(n, RANK))
    twin = (factor + 1j * np.roll(factor, 1, axis=0) for factor in (L, R))
    return {
        **{f"float32, r={rank}": pass_over(plain, rank) for rank in TORCH_RANKS},
        **{f"uint8, r={rank}": _integers(Y, rank) for rank in TORCH_RANKS},
        **{f"{name}, r={RANK}": pass_over(matrix) for name, matrix in matrices.items()},
        f"complex64, r={RANK}": partial(run_pass, DenseMatrix(Y + np.complex64(1j) * Y[::-1]), *twin, level),
        f"float32, with kept-entry Grams, r={RANK}": partial(run_pass, plain, L, R, level, grams=True),
    }


def _integers(Y: Any, rank: int) -> Callable[[], object]:
    """Return a pass over Y as 8-bit grey values around 128, the first component being that offset."""
    n = len(Y)
    scale = 40 / threshold(n, rank)
    grey = np.clip(np.rint(scale * Y) + 128, 0, 255).astype(np.uint8)
    L, R = (np.sqrt(scale) * factor for factor in factors(n, rank))
    L[:, 0], R[:, 0] = 128, 1
    return partial(run_pass, DenseMatrix(grey), L, R, levels("redescending", 40.0))


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write pass.json."""
    options = {"n": (FULL, "rows and columns of Y"), "repeats": (15, "rounds of timing")}
    chosen = arguments(__file__, __doc__, given, command="make bench", **options)
    machine, Y = Machine(), planted(chosen.n, rank=5, outlier_fraction=0.1).Y
    tables = [*race(Y, machine, chosen.repeats), sizes(Y, machine, chosen.repeats)]
    notes = [
        f"{machine.threads} threads for everything. Medians of {chosen.repeats} rounds; each round times everything "
        "once, in shuffled order. Read-times and limits are those measured directly before each timed call, other "
        "ratios those within a round; all are medians of ratios.",
        "The pass also counts kept entries by row and column and sums ‖C‖², which the torch iterations do not; theirs "
        "clip softly, ours redescends to zero. That both give the same C R and Cᵀ L is checked first.",
    ]
    publish(chosen, "One pass over Y", [*tables, variants(Y, machine, chosen.repeats)], notes)


if __name__ == "__main__":
    main()
