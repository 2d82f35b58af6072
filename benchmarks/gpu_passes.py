"""Passes over a tensor: at several ranks and of several kinds of storage, against reading Y and against plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from gpu_measure import OUTLIERS, RANK, ROW, Found, Pace, Plan, cell, pace_of, problem_of, read_note, read_time
from gpu_rival import Planted, plain_products
from measure import Table

from lrpca.core.influence import Levels, levels
from lrpca.kernels.gpu import tensor_pass
from lrpca.kernels.torch_pass import plain_pass


@dataclass(frozen=True)
class Storage:
    """How Y is stored for a pass."""

    name: str
    dtype: str = "float32"
    has_mask: bool = False


FLOAT32 = Storage("float32")
STORAGES = (
    Storage("uint8", "uint8"),
    Storage("float16", "float16"),
    Storage("float64", "float64"),
    Storage("float32, a mask", has_mask=True),
)


def operands(problem: Planted, rank: int, storage: Storage) -> tuple[tuple[Any, Any, Any, Levels], Any]:
    """Return Y as stored, factors that are not the truth, levels that fit the residuals, and a mask or None."""
    Y: Any = problem.Y
    generator = torch.Generator(Y.device).manual_seed(1)
    # Numbers of X are of the size 1/n: in units that half precision and bytes can hold, except in single precision.
    scale = 1.0 if storage.dtype == "float32" else 20.0 / problem.typical
    L, R = (
        torch.randn(n, rank, generator=generator, dtype=torch.float64, device=Y.device) * (scale**0.5 / n**0.5)
        for n in Y.shape
    )
    threshold = scale * math.sqrt((RANK + rank) / Y.numel())
    mask = None
    if storage.has_mask:
        mask = torch.empty(Y.shape, dtype=torch.bool, device=Y.device)
        for part in mask.split(1024):
            part.copy_(torch.rand(part.shape, generator=generator, device=Y.device) > OUTLIERS)
    return (_stored(Y, storage, scale), L, R, levels("redescending", threshold)), mask


def _stored(Y: Any, storage: Storage, scale: float) -> Any:
    dtype = getattr(torch, storage.dtype)
    if dtype == Y.dtype:
        return Y
    found = torch.empty(Y.shape, dtype=dtype, device=Y.device)
    for rows, part in zip(Y.split(1024), found.split(1024), strict=True):
        part.copy_((scale * rows).clamp(0, 255) if dtype == torch.uint8 else scale * rows)
    return found


def pass_errors(problem: Planted, rank: int, fast: bool, storage: Storage) -> tuple[float, float]:
    """Return relative errors of C R and Cᵀ L against plain torch in double precision, for a ψ without a jump."""
    (Y, L, R, level), mask = operands(problem, rank, storage)
    level = _without_jump(level)
    ours = tensor_pass(Y, L, R, level, A=R, B=L, mask=mask, fast=fast)
    true = plain_pass(Y, L, R, level, A=R, B=L, mask=mask, arithmetic=torch.float64)
    return _apart(ours.CA, true.CA), _apart(ours.CtB, true.CtB)


def plain_errors(problem: Planted) -> tuple[float, float]:
    """Return the same of plain torch, with products as torch is set to make them."""
    (Y, L, R, level), _ = operands(problem, RANK, FLOAT32)
    level, L, R = _without_jump(level), L.float(), R.float()
    left, right = L.double(), R.double()
    true = plain_pass(Y, left, right, level, A=right, B=left, arithmetic=torch.float64)
    CR, CtL = plain_products(Y, L, R, level)
    return _apart(CR, true.CA), _apart(CtL, true.CtB)


def _without_jump(level: Levels) -> Levels:
    # Nothing is cut off, nor counted out: the same compiled kernel as for passes that do.
    return Levels(level.clip, math.inf, math.inf)


def _apart(one: Any, other: Any) -> float:
    return float(torch.linalg.norm(one - other) / torch.linalg.norm(other))


def measure_passes(plan: Plan) -> Found:
    """Measure passes at several ranks, of other storage, and what plain torch takes for the same products."""
    large, near = (problem_of(plan, shape) for shape in ((plan.size, plan.size), plan.near))
    wanted = sorted([(rank, False) for rank in plan.ranks] + [(rank, True) for rank in plan.fast])
    rows, own = [], math.nan
    for rank, fast in wanted:
        pace = _pass_pace(plan, large, rank, fast, FLOAT32)
        own = pace.single if (rank, fast) == (RANK, False) else own
        errors = pass_errors(near, rank, fast, FLOAT32)
        rows.append([rank, "fast" if fast else "precise", *_cells(large.Y, pace), *map(cell, errors)])
    works = {storage.name: partial(_stored_row, plan, large, near, storage, own) for storage in STORAGES}
    works |= {"plain torch": partial(_plain_row, plan, large, near, False, own)}
    works |= {"plain torch, TF32": partial(_plain_row, plan, large, near, True, own)}
    others = [[name, *_or_nothing(work)] for name, work in works.items()]
    timed = ("ms", "read-times", "in a row, ms", "in a row, read-times", "TB/s")
    products = ("error of C R", "error of Cᵀ L")
    shape = f"{plan.size} x {plan.size}"
    return Found(
        [
            Table(f"One pass over {shape}, float32", ["rank", "products", *timed, *products], rows),
            Table(f"Rank {RANK}, otherwise", ["", *timed, "times the precise pass", *products], others),
        ],
        [read_note(large.Y, read_time(large.Y, plan.repeats)), *_notes(near)],
    )


def _notes(near: Planted) -> list[str]:
    return [
        f"In a row: one of {ROW} calls that are queued without waiting. TB/s: the bytes of Y and of its mask over the "
        "time of one in a row. Read-times are always those of float32.",
        f"Errors: against double precision, on {near.Y.shape[0]} x {near.Y.shape[1]}, for a ψ without a jump: on which "
        "side of one an entry falls is decided by rounding.",
        "Plain torch: D = Y - L @ R.T, C = D clamped and zero beyond the cutoff, C @ R, C.T @ L, in float32, every "
        "matrix as a whole; with TF32, products are rounded to eleven bits. Rows without numbers: memory ended.",
    ]


def _pass_pace(plan: Plan, large: Planted, rank: int, fast: bool, storage: Storage) -> Pace:
    (Y, L, R, level), mask = operands(large, rank, storage)
    room: dict[Any, Any] = {}
    work = partial(tensor_pass, Y, L, R, level, A=R, B=L, mask=mask, fast=fast, room=room)
    return pace_of(large.Y, work, plan.repeats)


def _stored_row(plan: Plan, large: Planted, near: Planted, storage: Storage, own: float) -> list[Any]:
    pace = _pass_pace(plan, large, RANK, False, storage)
    width = getattr(torch, storage.dtype).itemsize + storage.has_mask
    errors = pass_errors(near, RANK, False, storage)
    return [*_cells(large.Y, pace, width), cell(pace.single / own), *map(cell, errors)]


def _plain_row(plan: Plan, large: Planted, near: Planted, tf32: bool, own: float) -> list[Any]:
    (Y, L, R, level), _ = operands(large, RANK, FLOAT32)
    work = partial(plain_products, Y, L.float(), R.float(), level)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        pace, errors = pace_of(Y, work, max(3, plan.repeats // 3)), plain_errors(near)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return [*_cells(Y, pace), cell(pace.single / own), *map(cell, errors)]


def _or_nothing(work: Callable[[], list[Any]]) -> list[Any]:
    """Return the cells of a row, empty ones where the memory of the device ends."""
    try:
        return work()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return [None] * 8


def _cells(Y: Any, pace: Pace, width: int = 4) -> list[Any]:
    rate = width * Y.numel() / pace.row / 1e12
    times = (1e3 * pace.single, pace.single_reads, 1e3 * pace.row, pace.row_reads)
    return [cell(value) for value in (*times, rate)]
