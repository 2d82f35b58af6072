"""What a GPU does: a pass, a whole call, batches and training, each against reading Y or another way in the same run.

    python benchmarks/gpu.py [--quick] [--size 20000] [--only passes,call,batch,training] [-o FILE]

Needs a PyTorch that finds a GPU; about two minutes. With LRPCA_DATA set to a folder that holds
``published-lrpca/lrpcanet_alpha0.1.mat``, the published model runs too. A part that fails (on small cards memory may
end) is told of, and the others go on.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpu_rival
import numpy as np
from gpu_measure import RANK, Found, Plan, cell, problem_of, read_time, wait
from gpu_rival import Planted
from measure import RESULTS, Table, Timing, interleave, load_note, number, publish

import lrpca
from lrpca.core import environment as circumstances
from lrpca.core.devices import check_device
from lrpca.schedule import Schedule

ERROR = 1e-6
# In the order of the page. The call is measured first: its first one compiles.
SECTIONS = ("passes", "call", "batch", "training")
_ORDER = ("call", "passes", "batch", "training")
_SCRATCH = RESULTS.parent / "scratch"
_COMMAND = "make bench-gpu"
QUICK: dict[str, Any] = {"ranks": (1, 5, 16), "fast": (5,), "repeats": 5, "calls": 3, "processor": 0, "problems": 1000}


def measure_call(plan: Plan) -> Found:
    """Measure a whole call against the published method in plain torch on the same device, and the processor."""
    problem = problem_of(plan, (plan.size, plan.size))
    read = read_time(problem.Y, plan.repeats)
    ours = partial(lrpca.decompose, problem.Y, RANK, tol=ERROR)
    first = clock(plan, ours)
    memory, d = _memory(plan, ours)
    rivals, lost = _rivals(plan, problem)
    works: dict[str, Callable[[], object]] = {"lrpca": ours, **{name: rival.solve for name, rival in rivals.items()}}
    times = interleave({name: partial(clock, plan, work) for name, work in works.items()}, plan.calls)
    own = times["lrpca"]
    rows: list[list[Any]] = [["lrpca", d.n_iter, d.n_reads, *_times(own, read, d.n_iter, own), memory]]
    rows[0].append(cell(problem.error(d.L, d.R)))
    for name, rival in rivals.items():
        cells = _times(times[name], read, rival.iterations, own, rival.begin)
        rows.append([name, rival.iterations, None, *cells, rival.memory, cell(rival.error)])
    if plan.processor:
        rows.append(_on_processor(plan, problem, own, read))
    timed = ("ms", "read-times", "read-times per iteration", "times lrpca")
    columns = ["", "iterations", "reads of Y", *timed, "memory beside Y, %", "error"]
    caption = f"A whole call: {plan.size} x {plan.size}, rank {RANK}, 10% outliers, to {ERROR:g}"
    figures = {"call seconds": {name: [*timing.seconds] for name, timing in times.items()}, "first call": first}
    return Found([Table(caption, columns, rows)], [*_call_notes(d.reason, first), *lost], figures)


def _call_notes(reason: str, first: float) -> list[str]:
    return [
        f"The call ended by {reason!r}. The first one of the process, with all that had to be loaded and compiled "
        f"(less where Triton has kept it from earlier runs), took {number(first)} s.",
        "Plain torch: soft threshold, torch.svd_lowrank(niter=4) to begin with, scaled gradient steps, float32; the "
        "thresholds of the schedule are scaled to the shape, and its tail, if it has one, goes on after its layers. It "
        "is told when to stop: at the first iteration with an error below the target, or with the least there is, and "
        "is timed without measuring errors. Its time per iteration is without the start, ours with it.",
    ]


@dataclass(frozen=True)
class Rival:
    """The published method with a schedule, as far as it gets."""

    solve: Callable[[], object]
    iterations: int
    error: float
    begin: float  # seconds before the first iteration
    memory: int | float | None  # beside Y, in % of it


def _rivals(plan: Plan, problem: Planted) -> tuple[dict[str, Rival], list[str]]:
    """Return the rivals by name, and a note on each for which memory ended."""
    import torch

    found, lost = {}, []
    for name, schedule in gpu_rival.schedules().items():
        try:
            found[f"plain torch, {name}"] = _rival(plan, problem, schedule.scaled_to((plan.size, plan.size), RANK))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            lost.append(f"Plain torch, {name}: the memory of the device ended.")
    return found, lost


def _rival(plan: Plan, problem: Planted, schedule: Schedule) -> Rival:
    iterations, error = gpu_rival.reach(problem, schedule, ERROR)
    solve = partial(gpu_rival.solve, problem.Y, RANK, schedule)
    begin = float(np.median([clock(plan, partial(solve, 0)) for _ in range(3)]))
    memory, _ = _memory(plan, partial(solve, iterations))
    return Rival(partial(solve, iterations), iterations, error, begin, memory)


def clock(plan: Plan, work: Callable[[], object]) -> float:
    """Return the seconds of a call, until the device has done its work."""
    wait(plan.device)
    began = time.perf_counter()
    # Warnings are about the answer, which has a column of its own.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        work()
    wait(plan.device)
    return time.perf_counter() - began


def _memory(plan: Plan, work: Callable[[], Any]) -> tuple[int | float | None, Any]:
    """Return the most memory of the device that a call takes, in % of Y, and what it returns."""
    import torch

    if plan.device.type != "cuda":
        return None, work()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = work()
    return cell(100 * (torch.cuda.max_memory_allocated() - before) / (4 * plan.size**2)), result


def _times(timing: Timing, read: float, iterations: int, own: Timing, begin: float = 0.0) -> list[Any]:
    """Return milliseconds, read-times, those of an iteration, and the ratio to our call within a round."""
    each = (timing.median - begin) / max(1, iterations)
    values = (1e3 * timing.median, timing.median / read, each / read, timing.relative_to(own.seconds))
    return [cell(value) for value in values]


def _on_processor(plan: Plan, problem: Planted, own: Timing, read: float) -> list[Any]:
    """Return the row of the same call on the processor, compiled before."""
    import torch

    Y = problem.Y.cpu().numpy()
    lrpca.decompose(Y[:1000, :1000], RANK, tol=ERROR)
    seconds = []
    for _ in range(plan.processor):
        began = time.perf_counter()
        d = lrpca.decompose(Y, RANK, tol=ERROR)
        seconds.append(time.perf_counter() - began)
    factors = (torch.from_numpy(np.asarray(factor)).to(plan.device) for factor in (d.L, d.R))
    # Its rounds are others than those of the device.
    cells = _times(Timing(seconds), read, d.n_iter, Timing([own.median] * len(seconds)))
    name = f"lrpca, processor ({circumstances.cores()} cores)"
    return [name, d.n_iter, d.n_reads, *cells, None, cell(problem.error(*factors))]


def measure_batch(plan: Plan) -> Found:
    """Measure a batch of small problems against one problem at a time on the processor."""
    from gpu_batch import run

    found = run(str(plan.device), plan.problems)
    columns = ("s", "ms each", "processor, ms each", "times faster", "one by one, %", "worst error")
    each = 1e3 * found["seconds"] / plan.problems
    values = (found["seconds"], each, found["cpu_ms"], found["ratio"], 100 * found["one_by_one"], found["error_worst"])
    shape = " x ".join(map(str, found["shape"]))
    caption = f"decompose_batch: {shape}, rank 1, 10% outliers"
    note = "One by one: those of the problems that the batched loop left to the processor."
    return Found([Table(caption, columns, [[cell(value) for value in values]])], [note], {"batch": found})


def measure_training(plan: Plan) -> Found:
    """Measure one base training on the device and one on the processor."""
    from gpu_training import run

    found = run(str(plan.device), repeats=1)
    columns = ("s", "processor, s", "times faster", "largest relative difference", "score", "processor, score")
    ratio = found["cpu_seconds"] / found["seconds"]
    values = (found["seconds"], found["cpu_seconds"], ratio, found["difference"], *found["scores"])
    note = "Training: one of each, so that of the device has all that is done once in a process."
    caption = "Training with the defaults: rank 5, 10% outliers"
    return Found([Table(caption, columns, [[cell(value) for value in values]])], [note], {"training": found})


def measure_passes(plan: Plan) -> Found:
    """Measure single passes; see `gpu_passes`."""
    from gpu_passes import measure_passes as measure

    return measure(plan)


MEASURES: dict[str, Callable[[Plan], Found]] = {
    "passes": measure_passes,
    "call": measure_call,
    "batch": measure_batch,
    "training": measure_training,
}


def measure_all(plan: Plan, names: Sequence[str], tell: Callable[[Found], object]) -> list[str]:
    """Measure the named sections, `tell` after each what was found so far, and return those that failed."""
    import torch

    parts: dict[str, Found] = {}
    failed = []
    for name in (name for name in _ORDER if name in names):
        began = time.perf_counter()
        try:
            parts[name] = MEASURES[name](plan)
        except Exception as error:  # memory ends, compilers fail: the other parts are worth having
            first = (str(error).strip().splitlines() or [""])[0]
            parts[name] = Found(notes=[f"{name} failed: {type(error).__name__}: {first}"])
            failed.append(name)
        if plan.device.type == "cuda":
            torch.cuda.empty_cache()
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        tell(_in_order(parts))
    return failed


def _in_order(parts: dict[str, Found]) -> Found:
    """Return all that was found, in the order of the page."""
    total = Found()
    for name in (name for name in SECTIONS if name in parts):
        total.tables += parts[name].tables
        total.notes += parts[name].notes
        total.figures |= parts[name].figures
    return total


def machine(device: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return hardware and versions, with those of the device before the others."""
    import torch

    hardware, versions = circumstances.hardware(), circumstances.versions(["torch", "triton"])
    if device.type != "cuda":
        return hardware, versions
    about = torch.cuda.get_device_properties(device)
    found = {"GPU": about.name, "GPU memory": f"{about.total_memory / 2**30:.0f} GiB"}
    return {**found, **hardware}, {**versions, "CUDA": str(torch.version.cuda)}


def parse(given: Sequence[str] | None) -> tuple[Plan, list[str], Path]:
    """Return what the command line asks for: the plan, the sections and the file to write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer ranks and rounds, no training")
    parser.add_argument("--size", type=int, help="rows and columns of Y (default: 20000; quick: 8000)")
    parser.add_argument("--only", default="", help=f"some of {','.join(SECTIONS)}, with commas")
    parser.add_argument("--device", default="cuda", help="(default: %(default)s)")
    parser.add_argument(
        "-o", "--output", type=Path, help="default: benchmarks/results/gpu.json; a selection: benchmarks/scratch"
    )
    chosen = parser.parse_args(given)
    names = [name for name in chosen.only.split(",") if name] or [*SECTIONS[: -1 if chosen.quick else None]]
    if unknown := [name for name in names if name not in SECTIONS]:
        parser.error(f"--only={unknown[0]} is unknown; use some of {','.join(SECTIONS)}")
    if chosen.size is not None and chosen.size < 200:
        parser.error(f"--size={chosen.size} is below 200; use e.g. 8000")
    try:
        device = check_device(chosen.device)
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    size = chosen.size or (8000 if chosen.quick else Plan.size)
    is_whole = size == Plan.size and len(names) == len(SECTIONS) and not chosen.quick and device.type == "cuda"
    output = chosen.output or (RESULTS if is_whole else _SCRATCH) / "gpu.json"
    return Plan(device, size, **(QUICK if chosen.quick else {})), names, output


def main(given: Sequence[str] | None = None) -> int:
    """Run the sections and write the result file; return 1 if a section failed."""
    plan, names, output = parse(given)
    began, load = time.perf_counter(), load_note()
    import torch

    if plan.device.index is not None:
        torch.cuda.set_device(plan.device)
    hardware, versions = machine(plan.device)

    def write(found: Found) -> None:
        publish(
            output,
            title="Speed on a GPU",
            command=_COMMAND,
            tables=found.tables,
            notes=[*found.notes, load, f"All of it took {time.perf_counter() - began:.0f} s."],
            extra={"hardware": hardware, "versions": versions, "figures": found.figures},
        )

    return 1 if measure_all(plan, names, write) else 0


if __name__ == "__main__":
    sys.exit(main())
