"""A stack of tensors solved on its device, in slabs that fit; what a check objects to is solved on the CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from lrpca.batch.checks import measured
from lrpca.batch.items import Histories, Items, problem_on_host, solve_sequentially
from lrpca.batch.loop import BatchLoop, Ends
from lrpca.batch.result import ARRAYS, BatchDecomposition, summarised
from lrpca.batch.sequential import Request, Solved, decompose_each
from lrpca.batch.stack import Stack, Table, load
from lrpca.batch.stopping import GOING_ON, MAX_ITER, NAMES, TOL
from lrpca.core.devices import free_memory, in_memory_of, is_shortage
from lrpca.decompose import WarningText, check_tol
from lrpca.decomposition import assemble as results
from lrpca.decomposition.result import Decomposition
from lrpca.decomposition.tensor import to_tensor
from lrpca.exceptions import ConvergenceWarning, DiagnosisWarning
from lrpca.kernels import scale as noise
from lrpca.kernels.scale import quantisation_step, rounding_level
from lrpca.matrices.dense import arithmetic_dtype
from lrpca.solvers.methods import METHODS

# Larger ranks are solved one at a time: batched decompositions of GPUs are made for 32 rows at most.
_MOST_RANK = 16
# Bytes at work for every entry of float32 beside the stack, and for every row and column, times rank + rank².
_ENTRY_BYTES, _FACTOR_BYTES = 28, 64
# Longer steps, or such a growth of them, would take the numbers of all problems out of their range.
_LONGEST = 1e20
# Of the free memory of a device this part is used, and never for more entries at a time than this.
_PART, _MOST_ENTRIES, _CPU_ENTRIES = 0.4, 1 << 29, 1 << 24


@dataclass
class Solutions(Table):
    """The results of every problem."""

    L: Any  # (b, n1, r), result type
    R: Any  # (b, n2, r)
    reason: Any  # (b,) int, see `lrpca.batch.stopping.NAMES`
    n_iter: Any  # (b,) int
    change: Any  # (b,)
    noise_level: Any  # (b,)
    outlier_threshold: Any  # (b,)
    outlier_fraction: Any  # (b,)
    zeros: Any  # (b,) share of entries that are exactly zero
    components: Any  # (b,) int
    kept_by_row: Any  # (b, n1) int32
    kept_by_column: Any  # (b, n2) int32
    observed_by_row: Any  # (b, n1) int32
    observed_by_column: Any  # (b, n2) int32
    norm: Any  # (b,)


def solve_batched(
    Ys: Any,  # (b, n1, n2)
    mask: Any,  # (b, n1, n2) bool, or None
    request: Request,
) -> tuple[BatchDecomposition, list[WarningText]]:
    """Return the batch of a stack of tensors, solved on its device, and what to warn of."""
    return in_memory_of(Ys.device, lambda: _solve_batched(Ys, mask, request), tuple(Ys.shape), "Ys")


def _solve_batched(Ys: Any, mask: Any, request: Request) -> tuple[BatchDecomposition, list[WarningText]]:
    if not _can_be_batched(Ys, request):
        return solve_sequentially(Ys, mask, request)
    method = METHODS["lrpca"]
    tol = check_tol(request.tol, method, request.schedule, arithmetic_dtype(_stored(Ys)))
    max_iter = request.max_iter or method.max_iter
    solutions, histories = _solve_slabs(Ys, mask, request, tol=tol, max_iter=max_iter)
    chosen = torch.nonzero(solutions.reason == GOING_ON)[:, 0].tolist()
    alone = decompose_each(chosen, lambda i: problem_on_host(Ys, mask, i), request, Ys[0].numel())
    solved = dict(zip(chosen, alone, strict=True))
    reason = np.array(NAMES, dtype=object)[solutions.reason.cpu().numpy()]
    # What was solved one at a time takes its place.
    for i, (item, _) in solved.items():
        reason[i] = item.reason
        for name in ARRAYS:
            target = getattr(solutions, name)
            target[i] = to_tensor(np.asarray(getattr(item, name)), target.device).to(target.dtype)
    reason, settings = reason.astype(str), {"tol": tol, "max_iter": max_iter}
    result = BatchDecomposition(
        **{name: getattr(solutions, name) for name in ARRAYS},
        Ys=Ys,
        mask=mask,
        reason=reason,
        sequential=np.array(chosen, dtype=int),
        item=Items(solutions, reason, histories, Ys, mask, settings, {i: item for i, (item, _) in solved.items()}),
    )
    return result, _warnings(solutions, solved, result, tol)


def _can_be_batched(Ys: Any, request: Request) -> bool:
    """Tell whether the batched loop supports the request."""
    schedule = request.schedule
    follows = schedule.kind == "adaptive" and schedule.tail is not None
    follows = follows and schedule.influence != "soft" and schedule.update != "scaled"
    follows = follows and max(*schedule.steps, *(schedule.tail or ())) <= _LONGEST
    return follows and request.options is None and request.rank <= _MOST_RANK and not Ys.is_complex()


def _stored(Ys: Any) -> Any:
    """Return the number type of a stack as NumPy knows it; bfloat16 counts as float32."""
    return np.dtype("float32" if Ys.dtype == torch.bfloat16 else str(Ys.dtype).removeprefix("torch."))


def _solve_slabs(Ys: Any, mask: Any, request: Request, *, tol: float, max_iter: int) -> tuple[Solutions, Histories]:
    """Return the solutions of all problems, solved in slabs; where memory is short, in smaller ones."""
    found, histories, first, count = [], Histories(), 0, _slab(Ys, request.rank)
    while first < len(Ys):
        part = slice(first, min(len(Ys), first + count))
        try:
            observed = None if mask is None else mask[part]
            solutions, records = _solve_slab(Ys[part], observed, request, first, tol, max_iter)
        except RuntimeError as error:
            if not is_shortage(error):
                raise
            solutions, said = None, str(error).splitlines()[0]
        if solutions is None:
            count = (part.stop - first) // 2
            torch.cuda.empty_cache()
            if count == 0:
                raise MemoryError(
                    f"Ys.shape={tuple(Ys.shape)} needs more memory than {Ys.device} has, even one problem at a time "
                    f"({said}); delete tensors that are not needed, or pass Ys.cpu()"
                )
            continue
        histories.add(first, part.stop - first, records)
        found.append(solutions)
        first = part.stop
    names = [entry.name for entry in fields(Solutions)]
    return Solutions(**{name: torch.cat([getattr(one, name) for one in found]) for name in names}), histories


def _slab(Ys: Any, rank: int) -> int:
    """Return how many problems are solved at a time."""
    n1, n2 = (int(n) for n in Ys.shape[1:])
    entries = n1 * n2
    memory = free_memory(Ys.device)
    if memory is None:
        return max(1, _CPU_ENTRIES // entries)
    wide = int(arithmetic_dtype(_stored(Ys)).itemsize) // 4
    bytes_each = _ENTRY_BYTES * wide * entries + _FACTOR_BYTES * (n1 + n2) * (rank + rank**2)
    return max(1, min(_MOST_ENTRIES // entries, int(_PART * memory[0] / bytes_each)))


def _solve_slab(Ys: Any, mask: Any, request: Request, first: int, tol: float, max_iter: int) -> tuple[Solutions, Any]:
    stored = _stored(Ys)
    arithmetic = arithmetic_dtype(stored)
    stack = load(Ys, mask, torch.float32 if arithmetic == np.float32 else torch.float64)
    _check_entries(stack, first)
    least = quantisation_step(stored)
    loop = BatchLoop(stack, request.rank, request.schedule, tol=tol, max_iter=max_iter, least=least)
    return _assembled(stack, loop.run(), stored, arithmetic), loop.records


def _check_entries(stack: Stack, first: int) -> None:
    """Raise the error of the first problem without entries, or with infinite ones."""
    empty, large = stack.by_row.sum(dim=1) == 0, ~torch.isfinite(stack.norm)
    for i in torch.nonzero(empty | large)[:, 0].tolist():
        name = f"Ys[{first + i}]"
        if bool(empty[i]):
            raise ValueError(f"{name}: Y has no observed entry (all NaN or masked); pass data with observed entries")
        for j, k in torch.nonzero(torch.isinf(stack.Y[i]))[:1].tolist():
            value = float(stack.Y[i, j, k])
            raise ValueError(f"{name}: Y[{j}, {k}]={value} is not finite; mark missing entries with NaN or mask=")


def _assembled(stack: Stack, ends: Ends, stored: Any, arithmetic: Any) -> Solutions:
    """Return the solutions of the problems; see `lrpca.decomposition.assemble.assemble`."""
    dtype, unit = stack.Y.dtype, rounding_level(arithmetic, 1.0)
    peak = ends.R.gather(1, ends.R.abs().argmax(dim=1, keepdim=True))
    sign = torch.where(peak < 0, -1.0, 1.0)
    L, R = ends.L * sign, ends.R * sign
    D = stack.residual(L, R)
    sigma = measured(stack, D, unit * stack.typical)
    largest = torch.linalg.vector_norm(L, dim=2).amax(dim=1) * torch.linalg.vector_norm(R, dim=2).amax(dim=1)
    moving = torch.where(ends.reason == TOL, results.LEFT_OF_CHANGE * ends.change, 0.0) * stack.typical
    moving = noise._STILL_MOVING * math.sqrt(max(stack.shape)) * moving
    threshold = torch.maximum(torch.maximum(noise._OUTLIER_SIGMAS * sigma, unit * largest), moving)
    threshold = torch.clamp(threshold, min=quantisation_step(stored))
    beyond = (D.abs() > threshold.to(dtype)[:, None, None]).sum(dim=(1, 2))
    zero = stack.Y == 0 if stack.observed is None else (stack.Y == 0) & stack.observed
    entries = torch.clamp(stack.by_row.sum(dim=1), min=1)
    return Solutions(
        L.to(dtype),
        R.to(dtype),
        ends.reason,
        ends.n_iter,
        ends.change,
        sigma,
        threshold,
        beyond / entries,
        zero.sum(dim=(1, 2)) / entries,
        ends.present,
        ends.by_row.int(),
        ends.by_column.int(),
        stack.by_row.int(),
        stack.by_column.int(),
        stack.norm,
    )


def _warnings(
    solutions: Solutions, solved: dict[int, Solved], result: BatchDecomposition, tol: float
) -> list[WarningText]:
    """Return what to warn of: what single solutions tell, and what can be seen of the others."""
    told = {i: warned for i, (_, warned) in solved.items()}
    share = solutions.outlier_fraction
    zeros = (solutions.zeros > results.MANY_ZEROS) & (solutions.zeros < 1)
    odd = (share == 0) | (share > results.MANY_OUTLIERS) | zeros
    odd |= (solutions.kept_by_row == 0).any(dim=1) | (solutions.kept_by_column == 0).any(dim=1)
    unfinished = (solutions.reason == MAX_ITER) & (tol > 0)
    batched = solutions.reason != GOING_ON
    for category, which in ((ConvergenceWarning, unfinished), (DiagnosisWarning, odd)):
        indices = torch.nonzero(which & batched)[:, 0].tolist()
        for position, i in enumerate(indices):
            # Only the first is shown in words.
            text = "" if position else _in_words(category, result[i], tol)
            told.setdefault(i, []).append((category, text))
    return summarised(told, len(solutions.reason))


def _in_words(category: type[Warning], one: Decomposition, tol: float) -> str:
    if category is DiagnosisWarning:
        return "; ".join(one.diagnosis.messages)
    change = one.history[-1].change or math.nan
    return (
        f"not converged: {one.reason} after {one.n_iter} iterations (change {change:.1e}, asked for {tol:.1e}); raise "
        "max_iter or tol, or check the rank"
    )
