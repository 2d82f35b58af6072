"""Clocks, plans and cells of the benchmarks of a GPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gpu_rival import Planted, planted
from measure import Table, number

RANK, OUTLIERS = 5, 0.1
# Calls queued one after the other, and calls before the clock starts, of which the first compiles.
ROW, _WARM = 8, 4


@dataclass(frozen=True)
class Plan:
    """What to measure, on which device, and how often."""

    device: Any
    size: int = 20_000
    ranks: Sequence[int] = (1, 5, 8, 16, 32, 64)
    fast: Sequence[int] = (5, 8, 16)
    # Of the problem that errors of a pass are told from; multiples of 16, so that nothing is compiled for it alone.
    near: tuple[int, int] = (2000, 1504)
    repeats: int = 15
    calls: int = 5
    processor: int = 3  # calls on the processor
    problems: int = 10_000


@dataclass
class Found:
    """What a section has to tell; figures are for those who want more than the tables."""

    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def seconds_of(device: Any, work: Callable[[], object], count: int = 1) -> float:
    """Return the seconds of one of `count` calls in a row, from event to event on a GPU."""
    import torch

    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(count):
            work()
        return (time.perf_counter() - began) / count
    new: Any = torch.cuda.Event
    first, last = new(enable_timing=True), new(enable_timing=True)
    torch.cuda.synchronize()
    first.record()
    for _ in range(count):
        work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1e3 / count


def wait(device: Any) -> None:
    """Wait until a device has done what it was asked to."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize()


@dataclass(frozen=True)
class Pace:
    """Medians of a piece of work: seconds and read-times of a single call, and of one among several in a row."""

    single: float
    single_reads: float
    row: float
    row_reads: float


def pace_of(
    Y: Any,  # (n1, n2) float32, what a read-time reads
    work: Callable[[], object],
    repeats: int,
) -> Pace:
    """Time some work, every time directly after a read of Y."""
    for _ in range(_WARM):
        work()
    singles, rows, reads = [], [], []
    for _ in range(repeats):
        reads.append(seconds_of(Y.device, Y.sum))
        singles.append(seconds_of(Y.device, work))
        rows.append(seconds_of(Y.device, work, ROW))
    single, row, read = (np.array(times) for times in (singles, rows, reads))
    return Pace(*(float(np.median(times)) for times in (single, single / read, row, row / read)))


def read_time(
    Y: Any,  # (n1, n2)
    repeats: int,
) -> float:
    """Return the median seconds of a plain sum over Y, after some to warm up."""
    for _ in range(_WARM):
        Y.sum()
    return float(np.median([seconds_of(Y.device, Y.sum) for _ in range(repeats)]))


def read_note(Y: Any, seconds: float) -> str:
    """Return a sentence on what a read-time is."""
    rate = Y.numel() * Y.element_size() / seconds / 1e12
    return (
        f"A read-time, the median of Y.sum() over {Y.shape[0]} x {Y.shape[1]} numbers of float32: "
        f"{number(1e3 * seconds)} ms, {number(rate)} TB/s."
    )


def problem_of(plan: Plan, shape: tuple[int, int]) -> Planted:
    """Return the paper's problem in a shape, on the device of the plan."""
    return planted(shape, rank=RANK, outlier_fraction=OUTLIERS, device=plan.device)


def cell(value: float) -> int | float | None:
    """Return a number as tables show it, None if it is none."""
    return number(value) if math.isfinite(value) else None
