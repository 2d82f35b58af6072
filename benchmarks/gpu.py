"""What a GPU does: a pass, a whole call, batches and training, each against reading Y or plain torch in the same run.

    python benchmarks/gpu.py [--quick] [--size 20000] [--only passes,call,batch,training]

Needs a PyTorch that finds a GPU; about two minutes. With the published model in LRPCA_DATA it runs too. A part that
fails (small cards may run out of memory) is named in the notes; the others are measured.
"""

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import plain_torch
import torch

import lrpca
from lrpca.bench.judging import published_model
from lrpca.bench.measuring import Table, Timing, arguments, clock, interleave, number, publish
from lrpca.bench.probes import Planted, planted
from lrpca.core import environment
from lrpca.core.devices import check_device
from lrpca.core.influence import Levels, levels
from lrpca.kernels.gpu import tensor_pass
from lrpca.kernels.torch_pass import plain_pass
from lrpca.schedule import Schedule

RANK, OUTLIERS, ERROR = 5, 0.1, 1e-6
SECTIONS = ("passes", "call", "batch", "training")
# A shipped model of the form of the published one, with a tail.
SHIPPED = "frmnn-0.1"
# Calls queued one after the other, and calls before the clock starts, of which the first compiles.
ROW, WARM = 8, 4
# Side of the problem on which errors of a pass are measured.
NEAR = 2000
# How Y is stored for a pass, and whether there is a mask.
STORAGES = {name: (name, False) for name in ("uint8", "float16", "float64")} | {"float32, a mask": ("float32", True)}
BATCH_SHAPE, BATCH_RANK = (1024, 40), 1

Found = tuple[list[Table], list[str]]  # tables and notes of a section


@dataclass(frozen=True)
class Plan:
    """What to measure, on which device, and how often."""

    device: Any
    size: int = 20_000
    ranks: Sequence[int] = (1, 5, 8, 16, 32, 64)
    fast: Sequence[int] = (5, 8, 16)
    repeats: int = 15
    calls: int = 5
    processor: int = 3  # calls on the processor
    problems: int = 10_000


QUICK: dict[str, Any] = {"ranks": (1, 5, 16), "fast": (5,), "repeats": 5, "calls": 3, "processor": 0, "problems": 1000}


class OnDevice(Planted):
    """A planted problem whose Y is on a device, as are the factors that are held against it."""

    def error(self, L: Any, R: Any) -> float:
        """Return the relative error of factors on a device."""
        return super().error(*(factor.double().cpu().numpy() for factor in (L, R)))


def planted_on(device: Any, n: int) -> OnDevice:
    """Return the paper's problem on a device."""
    problem = planted(n, rank=RANK, outlier_fraction=OUTLIERS)
    return OnDevice(torch.from_numpy(problem.Y).to(device), problem.U, problem.V, problem.typical)


def wait(device: Any) -> None:
    """Wait until a device has done what it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(device: Any, work: Callable[[], object], count: int = 1) -> float:
    """Return the seconds of one of `count` calls in a row, from event to event on a GPU."""
    if device.type != "cuda":
        return clock(lambda: [work() for _ in range(count)])[0] / count
    new: Any = torch.cuda.Event
    first, last = new(enable_timing=True), new(enable_timing=True)
    wait(device)
    first.record()
    for _ in range(count):
        work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / count


def read_time(Y: Any, repeats: int) -> float:
    """Return the median seconds of a plain sum over Y, after some to warm up."""
    return float(np.median([seconds_of(Y.device, Y.sum) for _ in range(WARM + repeats)][WARM:]))


def cell(value: float) -> int | float | None:
    """Return a number as tables show it, None if it is none."""
    return number(value) if math.isfinite(value) else None


# ------------------------------------------------------------------------------------------------ passes


def operands(problem: Planted, rank: int, dtype: str, masked: bool) -> tuple[tuple[Any, Any, Any, Levels], Any]:
    """Return Y as stored, factors that are not the truth, levels that fit the residuals, and a mask or None."""
    Y: Any = problem.Y
    generator = torch.Generator(Y.device).manual_seed(1)
    # Numbers of X are of the size 1/n: in units that half precision and bytes can hold, except in single precision.
    scale = 1.0 if dtype == "float32" else 20.0 / problem.typical
    L, R = (
        torch.randn(n, rank, generator=generator, dtype=torch.float64, device=Y.device) * (scale**0.5 / n**0.5)
        for n in Y.shape
    )
    stored = Y
    if dtype != "float32":
        stored = torch.empty(Y.shape, dtype=getattr(torch, dtype), device=Y.device)
        for rows, part in zip(Y.split(1024), stored.split(1024), strict=True):
            part.copy_((scale * rows).clamp(0, 255) if dtype == "uint8" else scale * rows)
    mask = torch.rand(Y.shape, generator=generator, device=Y.device) > OUTLIERS if masked else None
    return (stored, L, R, levels("redescending", scale * math.sqrt((RANK + rank) / Y.numel()))), mask


def pass_row(plan: Plan, large: Planted, near: Planted, rank: int, fast: bool, dtype: str, masked: bool) -> list[Any]:
    """Return times of a pass and its errors against double precision."""
    (Y, L, R, level), mask = operands(large, rank, dtype, masked)
    cache: dict[Any, Any] = {}
    work = partial(tensor_pass, Y, L, R, level, A=R, B=L, mask=mask, fast=fast, cache=cache)
    times = pace_cells(large.Y, work, plan.repeats, Y.element_size() + masked)
    (Y, L, R, level), mask = operands(near, rank, dtype, masked)
    # Nothing is cut off: on which side of a jump an entry falls is decided by rounding.
    level = Levels(level.clip, math.inf, math.inf)
    ours = tensor_pass(Y, L, R, level, A=R, B=L, mask=mask, fast=fast)
    true = plain_pass(Y, L, R, level, A=R, B=L, mask=mask, arithmetic=torch.float64)
    return [*times, *(_apart(a, b) for a, b in ((ours.CA, true.CA), (ours.CtB, true.CtB)))]


def plain_row(plan: Plan, large: Planted, near: Planted, tf32: bool) -> list[Any]:
    """Return the same of plain torch; with TF32, products are rounded to eleven bits."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        (Y, L, R, level), _ = operands(large, RANK, "float32", False)
        work = partial(plain_torch.plain, Y, L.float(), R.float(), level.clip)
        times = pace_cells(Y, work, max(3, plan.repeats // 3), 4)
        (Y, L, R, level), _ = operands(near, RANK, "float32", False)
        ours = plain_torch.plain(Y, L.float(), R.float(), level.clip)
        true = plain_torch.plain(Y.double(), L, R, level.clip)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return [*times, *(_apart(a, b) for a, b in zip(ours, true, strict=True))]


def _apart(one: Any, other: Any) -> Any:
    return cell(float(torch.linalg.norm(one - other) / torch.linalg.norm(other)))


def pace_cells(Y: Any, work: Callable[[], object], repeats: int, width: int) -> list[Any]:
    """Time some work, every time directly after a read of Y: one call, one among several in a row, and TB/s."""
    for _ in range(WARM):
        work()
    times = [[seconds_of(Y.device, f, n) for f, n in ((Y.sum, 1), (work, 1), (work, ROW))] for _ in range(repeats)]
    read, single, row = np.array(times).T
    medians = [np.median(x) for x in (1e3 * single, single / read, 1e3 * row, row / read)]
    return [cell(float(value)) for value in (*medians, width * Y.numel() / np.median(row) / 1e12)]


def measure_passes(plan: Plan) -> Found:
    """Measure passes at several ranks, of other storage, and what plain torch takes for the same products."""
    large, near = planted_on(plan.device, plan.size), planted_on(plan.device, NEAR)
    wanted = sorted([(rank, False) for rank in plan.ranks] + [(rank, True) for rank in plan.fast])
    rows = [
        [rank, "fast" if fast else "precise", *pass_row(plan, large, near, rank, fast, "float32", False)]
        for rank, fast in wanted
    ]
    own = next((row[2] for row in rows if row[:2] == [RANK, "precise"]), math.nan)
    works: dict[str, Callable[[], list[Any]]] = {
        **{name: partial(pass_row, plan, large, near, RANK, False, *how) for name, how in STORAGES.items()},
        "plain torch": partial(plain_row, plan, large, near, False),
        "plain torch, TF32": partial(plain_row, plan, large, near, True),
    }
    others = []
    for name, work in works.items():
        try:
            cells = work()
            others.append([name, *cells[:5], cell(cells[0] / own), *cells[5:]])
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            others.append([name, *[None] * 8])
    timed = ("ms", "read-times", "in a row, ms", "in a row, read-times", "TB/s")
    products, shape = ("error of C R", "error of Cᵀ L"), f"{plan.size} x {plan.size}"
    read = read_time(large.Y, plan.repeats)
    notes = [
        f"A read-time, the median of Y.sum() over {shape} numbers of float32: {number(1e3 * read)} ms, "
        f"{number(4 * plan.size**2 / read / 1e12)} TB/s.",
        f"In a row: one of {ROW} calls that are queued without waiting. TB/s: the bytes of Y and of its mask over the "
        "time of one in a row. Read-times are always those of float32.",
        f"Errors: against double precision, on {NEAR} x {NEAR}, for a ψ without a jump.",
        "Plain torch: D = Y - L @ R.T, C = D clipped, C @ R, C.T @ L, in float32, every matrix as a whole. Rows "
        "without numbers: out of memory.",
    ]
    tables = [
        Table(f"One pass over {shape}, float32", ["rank", "products", *timed, *products], rows),
        Table(f"Rank {RANK}, otherwise", ["", *timed, "times the precise pass", *products], others),
    ]
    return tables, notes


# ------------------------------------------------------------------------------------------------ a whole call


def timed(device: Any, work: Callable[[], object]) -> float:
    """Return the seconds of a call, until the device has done its work; warnings are about the answer."""

    def call() -> None:
        work()
        wait(device)

    wait(device)
    with warnings.catch_warnings(action="ignore"):
        return clock(call)[0]


def with_memory(plan: Plan, work: Callable[[], Any]) -> tuple[int | float | None, Any]:
    """Return the most memory of the device that a call takes, in % of Y, and what it returns."""
    if plan.device.type != "cuda":
        return None, work()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = work()
    return cell(100 * (torch.cuda.max_memory_allocated() - before) / (4 * plan.size**2)), result


def measure_call(plan: Plan) -> Found:
    """Measure a whole call against the published method in plain torch on the same device, and the processor."""
    problem = planted_on(plan.device, plan.size)
    Y, read = problem.Y, read_time(problem.Y, plan.repeats)
    ours = partial(lrpca.decompose, Y, RANK, tol=ERROR)
    first = timed(plan.device, ours)
    memory, d = with_memory(plan, ours)
    works: dict[str, Callable[[], object]] = {"lrpca": ours}
    about: dict[str, list[Any]] = {"lrpca": [d.n_iter, d.n_reads, memory, problem.error(d.L, d.R)]}
    schedules = {f"shipped {SHIPPED}": Schedule.load(SHIPPED)}
    if (published := published_model(OUTLIERS)) is not None:
        schedules["published model"] = published
    for name, schedule in schedules.items():
        scaled = schedule.scaled_to((plan.size, plan.size), RANK)
        errors = plain_torch.solve(problem, RANK, scaled, target=ERROR)
        iterations, error = int(np.nanargmin(errors)), float(np.nanmin(errors))
        work = works[f"plain torch, {name}"] = partial(plain_torch.solve, problem, RANK, scaled, iterations)
        about[f"plain torch, {name}"] = [iterations, None, with_memory(plan, work)[0], error]
    times = interleave({name: partial(timed, plan.device, work) for name, work in works.items()}, plan.calls)
    if plan.processor:
        numbers = Y.cpu().numpy()
        lrpca.decompose(numbers[:1000, :1000], RANK, tol=ERROR)
        runs = [clock(lambda: lrpca.decompose(numbers, RANK, tol=ERROR)) for _ in range(plan.processor)]
        name, d = f"lrpca, processor ({environment.cores()} cores)", runs[-1][1]
        times[name] = Timing([seconds for seconds, _ in runs])
        about[name] = [d.n_iter, d.n_reads, None, Planted.error(problem, d.L, d.R)]
    rows = []
    for name, (iterations, reads, memory, error) in about.items():
        median = times[name].median
        values = (1e3 * median, median / read, median / max(1, iterations) / read, median / times["lrpca"].median)
        rows.append([name, iterations, reads, *map(cell, values), memory, cell(error)])
    columns = ["", "iterations", "reads of Y", "ms", "read-times", "read-times per iteration", "times lrpca"]
    caption = f"A whole call: {plan.size} x {plan.size}, rank {RANK}, 10% outliers, to {ERROR:g}"
    notes = [
        f"The first call of the process, with all that had to be loaded and compiled (less where Triton has kept it "
        f"from earlier runs), took {number(first)} s.",
        "Plain torch: soft threshold, torch.svd_lowrank(niter=4) for the initialisation, scaled gradient steps, "
        "float32; the thresholds of the schedule are scaled to the shape. It runs to the first iteration with an error "
        "below the target, or to its smallest error, and is timed without measuring errors.",
    ]
    return [Table(caption, [*columns, "memory beside Y, %", "error"], rows)], notes


# ------------------------------------------------------------------------------------------------ batches, training


def measure_batch(plan: Plan) -> Found:
    """Measure a batch of small problems, as ultrasound scanners make them, against one at a time on the processor."""
    count, (n1, n2) = plan.problems, BATCH_SHAPE
    torch.manual_seed(0)
    L, R = (torch.randn(count, n, BATCH_RANK, device=plan.device) for n in (n1, n2))
    Ys = L @ R.transpose(1, 2)
    size = 2 / np.pi  # mean|X| of a product of two Gaussian numbers
    for part in Ys.split(1000):
        part += (torch.rand_like(part) < OUTLIERS) * size * (2 * torch.rand_like(part) - 1)
    work = partial(lrpca.decompose_batch, Ys, BATCH_RANK)
    seconds = float(np.median([timed(plan.device, work) for _ in range(4)][1:]))
    with warnings.catch_warnings(action="ignore"):
        result = lrpca.decompose_batch(Ys, BATCH_RANK)
        alone = [Ys[i].cpu().numpy() for i in range(min(31, count))]
        lrpca.decompose(alone[0], BATCH_RANK)
        single = clock(lambda: [lrpca.decompose(Y, BATCH_RANK) for Y in alone])[0] / len(alone)
    X = L @ R.transpose(1, 2)
    error = float(max(((L @ R.mT - x).norm() / x.norm()) for L, R, x in zip(result.L, result.R, X, strict=True)))
    left = 100 * len(result.sequential) / count
    values = (seconds, 1e3 * seconds / count, 1e3 * single, single * count / seconds, left, error)
    columns = ("s", "ms each", "processor, ms each", "times faster", "sequential, %", "worst error")
    caption = f"decompose_batch: {count} x {n1} x {n2}, rank {BATCH_RANK}, 10% outliers"
    note = "Sequential: the problems that the batched loop left to the processor."
    return [Table(caption, columns, [[cell(value) for value in values]])], [note]


def measure_training(plan: Plan) -> Found:
    """Measure one base training on the device and one on the processor."""
    from lrpca.learn import train

    settings: dict[str, Any] = {"rank": 5, "shape": (1000, 1000), "outlier_fraction": 0.1}
    runs = [clock(partial(train, **settings, device=device)) for device in (str(plan.device), "cpu")]
    (seconds, model), (slow, reference) = runs
    pairs = [(m.thresholds, m.steps[1:], m.tail or ()) for m in (model, reference)]
    apart = max(abs(a - b) / abs(b) for mine, true in zip(*pairs, strict=True) for a, b in zip(mine, true, strict=True))
    scores = [m.meta["scores"]["score"] for m in (model, reference)]
    columns = ("s", "processor, s", "times faster", "largest relative difference", "score", "processor, score")
    row = [cell(value) for value in (seconds, slow, slow / seconds, apart, *scores)]
    note = "Training: one run each. The run on the device includes all that is done once in a process."
    return [Table("Training with the defaults: rank 5, 10% outliers", columns, [row])], [note]


def main(given: Sequence[str] | None = None) -> int:
    """Run the sections and write the result file after each; return 1 if a section failed."""
    chosen = arguments(
        *(__file__, __doc__, given),
        command="make bench-gpu",
        quick=(False, "Y of 8000 x 8000, fewer ranks and rounds, no training"),
        size=(Plan.size, "rows and columns of Y"),
        only=(SECTIONS, "parts"),
        device=("cuda", "where to measure"),
    )
    plan = Plan(check_device(chosen.device), chosen.size)
    if chosen.quick:
        plan = replace(plan, size=min(plan.size, 8000), **QUICK)
        chosen.only = tuple(name for name in chosen.only if name != "training")
    if plan.device.index is not None:
        torch.cuda.set_device(plan.device)
    # The call is measured first: its first one compiles.
    found: dict[str, Found] = {}
    for name in sorted(chosen.only, key=lambda name: name != "call"):
        try:
            found[name] = globals()[f"measure_{name}"](plan)
        except Exception as error:  # memory ends, compilers fail: the other parts are worth having
            first = (str(error).splitlines() or [""])[0]
            found[name] = [], [f"{name} failed: {type(error).__name__}: {first}"]
        if plan.device.type == "cuda":
            torch.cuda.empty_cache()
        print(f"{name}: {time.perf_counter() - chosen.began:.0f} s", file=sys.stderr, flush=True)
        write(chosen, plan, [found[name] for name in SECTIONS if name in found])
    return int(any("failed: " in note for _, notes in found.values() for note in notes))


def write(chosen: argparse.Namespace, plan: Plan, parts: Sequence[Found]) -> None:
    """Write what was found so far, with hardware and versions of the device before the others."""
    hardware, versions = environment.hardware(), environment.versions(["torch", "triton"])
    if plan.device.type == "cuda":
        about = torch.cuda.get_device_properties(plan.device)
        hardware = {"GPU": about.name, "GPU memory": f"{about.total_memory / 2**30:.0f} GiB", **hardware}
        versions["CUDA"] = str(torch.version.cuda)
    tables, notes = ([item for part in parts for item in part[place]] for place in (0, 1))
    publish(chosen, "Speed on a GPU", tables, notes, extra={"hardware": hardware, "versions": versions})


if __name__ == "__main__":
    sys.exit(main())
