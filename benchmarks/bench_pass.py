"""One pass over Y: against reading it, against what the processor can multiply, and against torch.

    python benchmarks/bench_pass.py [--n 8000] [--repeats 15] [--results FOLDER]

A read-time is the time of a plain parallel sum over the same Y, measured directly before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from limits import Machine
from measure import FULL, Table, Timing, arguments, interleave, load_note, number, pooled, publish
from problems import factors, planted
from torch_iterations import TUNED, Torch, threshold

from lrpca.core.influence import Levels, levels
from lrpca.matrices.dense import DenseMatrix

RANKS = (1, 2, 3, 5, 8, 10, 20)
# Goals the project sets itself, for Y of full size: at most so many read-times, at least so much faster than torch, at
# most so much longer for uint8, and at least this share of the throughput on a Y of a sixteenth.
READ_TIMES = {1: 2.0, 2: 2.0, 3: 2.0, 5: 2.0, 10: 3.5, 20: 8.0}
TORCH_RANKS = (2, 5, 10)
TORCH = {
    "plain": "plain, as everyone writes it",
    "tuned": "plain, allocator tuned",
    "best": "one kept buffer, in place",
    "blocked": "kept buffer, blocks of 512 rows",
}
SPEED_UPS = {("plain", 5): 20.0, ("best", 5): 5.0}
UINT8 = 1.3
SMALL = 0.8
RANK = 5
# The heap of the tuned allocator grows for some iterations before every temporary finds its place in it.
_SETTLING = 8
# Multiply-adds of the probe: some milliseconds.
_PROBE = 4e8


def run_pass(
    matrix: DenseMatrix,
    L: Any,  # (n, r)
    R: Any,  # (n, r)
    level: Levels,
    *,
    grams: bool = False,
) -> Any:
    """Do one pass as the solver does it; double-precision factors in, double-precision sums out."""
    A, B = (R.conj(), L.conj()) if np.iscomplexobj(R) else (R, L)
    return matrix.run_pass(L, R, level, A=A, B=B, grams=grams)


def check_agreement(matrix: DenseMatrix, answer: Mapping[str, float], rank: int) -> None:
    """Make sure that torch and the pass compute the same thing before their times are compared."""
    n = matrix.shape[0]
    ours = run_pass(matrix, *factors(n, rank), levels("soft", threshold(n, rank)))
    for name, mine in (("CR", ours.CA), ("CtL", ours.CtB)):
        if not np.isclose(np.linalg.norm(mine), answer[name], rtol=1e-4):
            raise RuntimeError(
                f"‖{name}‖={answer[name]} of torch differs from ours, {np.linalg.norm(mine)}; one of them is wrong"
            )


def race(problem_Y: Any, machine: Machine, repeats: int) -> tuple[list[Table], list[str]]:
    """Time the pass at every rank and torch in common rounds, each with the two limits directly before."""
    n = len(problem_Y)
    matrix = DenseMatrix(problem_Y)
    work = machine.multiply_add(_PROBE)
    probes: dict[str, Callable[[], object]] = {
        "read": partial(machine.read, problem_Y),
        "multiply-add": partial(machine.multiply_add, work),
    }
    contestants: dict[str, Callable[[], object]] = {}
    for rank in RANKS:
        level = levels("redescending", threshold(n, rank))
        contestants[f"pass {rank}"] = partial(run_pass, matrix, *factors(n, rank), level)
    faults = {}
    with Torch(n, machine.threads) as torch, Torch(n, machine.threads, TUNED) as tuned:
        for _ in range(_SETTLING):
            tuned.iterate("plain", RANK)
        for name in TORCH:
            process, form = (tuned, "plain") if name == "tuned" else (torch, name)
            for rank in TORCH_RANKS:
                check_agreement(matrix, process.iterate(form, rank), rank)
                contestants[f"{name} {rank}"] = partial(process.iterate, form, rank)
        times = interleave(contestants, repeats, probes=probes)
        for name in TORCH:
            process, form = (tuned, "plain") if name == "tuned" else (torch, name)
            faults[name] = process.iterate(form, RANK)["faults"]
    tables = [limits_table(n, times, work), rank_table(n, times, work), torch_table(n, times, faults)]
    notes = [
        f"{machine.threads} threads for everything. Medians of {repeats} rounds; each round times everything once, in "
        "shuffled order. Read-times and limits are those measured directly before each timed call, other ratios those "
        "within a round; all are medians of ratios.",
        "The pass also counts kept entries by row and column and sums ‖C‖², which the torch iterations do not; theirs "
        "clip softly, ours redescends to zero. That both give the same C R and Cᵀ L is checked first.",
    ]
    return tables, notes


def limits_table(n: int, times: Mapping[str, Timing], work: int) -> Table:
    """Return what the machine can do, and how steadily."""
    reads = np.array(pooled(times, "read").seconds)
    rates = work / np.array(pooled(times, "multiply-add").seconds) / 1e9
    rows = []
    for name, values in (
        ("reading Y once, ms", 1e3 * reads),
        ("memory, GB/s", 4 * n * n / reads / 1e9),
        ("multiply-adds on data in the first-level cache, 10⁹/s", rates),
    ):
        rows.append([name, *(number(value) for value in np.quantile(values, [0, 0.25, 0.5, 0.75, 1]))])
    columns = ["limit", "least", "lower quartile", "median", "upper quartile", "most"]
    return Table(f"Limits of the machine, Y {n} x {n}, float32, {len(reads)} measurements", columns, rows)


def rank_table(n: int, times: Mapping[str, Timing], work: int) -> Table:
    """Return the pass by rank: read-times, throughput, and how far it is from the nearer limit."""
    rows = []
    for rank in RANKS:
        timing = times[f"pass {rank}"]
        read = np.array(timing.probes["read"])
        arithmetic = 3 * rank * n * n * np.array(timing.probes["multiply-add"]) / work
        limit = np.maximum(read, arithmetic)
        rows.append(
            [
                rank,
                number(timing.median * 1e3),
                timing.spread,
                number(timing.relative_to(timing.probes["read"])),
                READ_TIMES.get(rank) if n == FULL else None,
                number(n * n / timing.median / 1e9),
                number(float(np.median(limit)) * 1e3),
                "reading" if np.median(read) > np.median(arithmetic) else "arithmetic",
                number(timing.relative_to(limit.tolist())),
            ]
        )
    columns = [
        "rank",
        "ms",
        "quartiles",
        "read-times",
        "goal, at most",
        "10⁹ entries/s",
        "limit, ms",
        "set by",
        "times the limit",
    ]
    caption = f"One pass, Y {n} x {n}, float32; the limit is the longer of reading and 3 r n² multiply-adds"
    return Table(caption, columns, rows)


def torch_table(n: int, times: Mapping[str, Timing], faults: Mapping[str, float]) -> Table:
    """Return the torch iterations and how many times faster the pass is."""
    rows: list[list[Any]] = []
    for name, label in TORCH.items():
        for rank in TORCH_RANKS:
            timing = times[f"{name} {rank}"]
            rows.append(
                [
                    label,
                    rank,
                    number(timing.median * 1e3),
                    timing.spread,
                    number(timing.relative_to(timing.probes["read"])),
                    number(timing.relative_to(times[f"pass {rank}"].seconds)),
                    SPEED_UPS.get((name, rank)) if n == FULL else None,
                    int(faults[name]),
                ]
            )
    columns = [
        "torch",
        "rank",
        "ms",
        "quartiles",
        "read-times",
        "times slower than the pass",
        "goal, at least",
        "page faults",
    ]
    return Table("One iteration in torch on the same Y, against the pass of that rank", columns, rows)


def variants(problem_Y: Any, machine: Machine, repeats: int) -> tuple[list[Table], list[str]]:
    """Time other kinds of data against the float32 pass of the same shape and rank."""
    n = len(problem_Y)
    times = interleave(_kinds(problem_Y), repeats, probes={"read": partial(machine.read, problem_Y)})
    rows = []
    for name in times:
        rank = int(name.rpartition("r=")[2])
        timing, base = times[name], times[f"float32, r={rank}"]
        goal = UINT8 if name.startswith("uint8") and n == FULL else None
        cells = [number(timing.median * 1e3), timing.spread, number(timing.relative_to(base.seconds)), goal]
        rows.append([name, *cells, number(n * n / timing.median / 1e9)])
    columns = ["Y", "ms", "quartiles", "times float32", "goal, at most", "10⁹ entries/s"]
    notes = [f"Variants were timed in {repeats} rounds of their own; their float32 rows are the base of their ratios."]
    return [Table(f"One pass over other kinds of data, {n} x {n}", columns, rows)], notes


def _kinds(Y: Any) -> dict[str, Callable[[], object]]:
    n = len(Y)
    rng = np.random.default_rng(2)
    L, R = factors(n, RANK)
    level = levels("redescending", threshold(n, RANK))
    missing = rng.random((n, n), dtype=np.float32) < 0.2
    plain = DenseMatrix(Y)
    twin = (L + 1j * np.roll(L, 1, axis=0), R + 1j * np.roll(R, 1, axis=0))
    same_rank = f"r={RANK}"
    kinds: dict[str, Callable[[], object]] = {}
    for rank in TORCH_RANKS:
        kinds[f"float32, r={rank}"] = partial(
            run_pass, plain, *factors(n, rank), levels("redescending", threshold(n, rank))
        )
    for rank in TORCH_RANKS:
        kinds[f"uint8, r={rank}"] = _integers(Y, rank)
    for name, matrix, pair in (
        ("float64", DenseMatrix(Y.astype(np.float64)), (L, R)),
        ("complex64", DenseMatrix(_complex(Y)), twin),
        ("float32, Fortran order", DenseMatrix(np.asfortranarray(Y)), (L, R)),
        ("float32, 20% NaN", DenseMatrix(np.where(missing, np.float32(np.nan), Y)), (L, R)),
        ("float32, mask of rows (n, 1)", DenseMatrix(Y, ~missing[:, :1]), (L, R)),
        ("float32, mask (n, n)", DenseMatrix(Y, ~missing), (L, R)),
    ):
        kinds[f"{name}, {same_rank}"] = partial(run_pass, matrix, *pair, level)
    kinds[f"float32, with kept-entry Grams, {same_rank}"] = partial(run_pass, plain, L, R, level, grams=True)
    return kinds


def _complex(Y: Any) -> Any:
    Z = np.empty(Y.shape, np.complex64)
    Z.real, Z.imag = Y, Y[::-1]
    return Z


def _integers(Y: Any, rank: int) -> Callable[[], object]:
    """Return a pass over Y as 8-bit grey values around 128, the first component being that offset."""
    n = len(Y)
    scale = 40 / threshold(n, rank)
    grey = np.clip(np.rint(scale * Y) + 128, 0, 255).astype(np.uint8)
    L, R = (np.sqrt(scale) * factor for factor in factors(n, rank))
    L[:, 0], R[:, 0] = 128, 1
    return partial(run_pass, DenseMatrix(grey), L, R, levels("redescending", 40.0))


def sizes(problem_Y: Any, machine: Machine, repeats: int) -> list[Table]:
    """Compare the throughput on a matrix of a sixteenth of the entries."""
    n, small = len(problem_Y), len(problem_Y) // 4
    little_Y = planted(small, rank=5, outlier_fraction=0.1).Y
    large = partial(run_pass, DenseMatrix(problem_Y), *factors(n, RANK), levels("redescending", threshold(n, RANK)))
    little = partial(
        run_pass, DenseMatrix(little_Y), *factors(small, RANK), levels("redescending", threshold(small, RANK))
    )

    def sixteen() -> None:
        for _ in range(16):
            little()

    large_name, small_name = f"{n} x {n}", f"{small} x {small}"
    contestants: dict[str, tuple[Callable[[], object], int]] = {
        large_name: (large, 1),
        f"{small_name}, 16 passes in a row": (sixteen, 16),
        f"{small_name}, one pass after another Y": (little, 1),
    }
    times = interleave(
        {name: function for name, (function, _) in contestants.items()},
        repeats,
        probes={"read": partial(machine.read, problem_Y)},
    )
    rows: list[list[Any]] = []
    for name, (_, passes) in contestants.items():
        timing = times[name]
        entries = passes * (n * n if name == large_name else small * small)
        relative = entries / (n * n) / timing.relative_to(times[large_name].seconds)
        goal = SMALL if n == FULL and passes > 1 else None
        cells = [number(timing.median * 1e3 / passes), number(entries / timing.median / 1e9), number(relative)]
        rows.append([name, *cells, goal])
    columns = ["Y", "ms per pass", "10⁹ entries/s", f"relative to {large_name}", "goal, at least"]
    return [Table(f"Small and large Y, float32, r={RANK}", columns, rows)]


def main() -> None:
    """Measure, print and write pass.json."""
    chosen = arguments(__doc__ or "", repeats=15)
    load = load_note()
    machine = Machine()
    Y = planted(chosen.n, rank=5, outlier_fraction=0.1).Y
    tables, notes = race(Y, machine, chosen.repeats)
    tables += sizes(Y, machine, chosen.repeats)
    more, more_notes = variants(Y, machine, chosen.repeats)
    publish(
        chosen.results / "pass.json",
        title="One pass over Y",
        command="make bench",
        tables=[*tables, *more],
        notes=[*notes, *more_notes, load],
    )


if __name__ == "__main__":
    main()
