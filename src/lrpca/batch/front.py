"""Many small problems of one shape in one call: patches of an image, clips of an ultrasound scan, tiles of a video."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from lrpca.batch.result import BatchDecomposition, gathered
from lrpca.batch.sequential import Request, decompose_each
from lrpca.core.devices import in_memory_of, is_tensor
from lrpca.decompose import WarningText, check_settings, holds_one_number
from lrpca.matrices.accept_tensor import check_beside, check_kind, host_argument, refuse_list_of_tensors
from lrpca.matrices.chunked.large import is_list_of_paths, is_path
from lrpca.schedule import Schedule
from lrpca.solvers.methods import find_method
from lrpca.solvers.options import check_options, is_integer


def decompose_batch(
    Ys: Any,
    rank: int,
    *,
    schedule: Schedule | str | Path | None = None,
    tol: float | None = None,
    max_iter: int | None = None,
    random_state: int | np.random.Generator | None = None,
    mask: Any = None,
    options: dict[str, Any] | None = None,
) -> BatchDecomposition:
    """Split every matrix of a stack into a low-rank part L Rᵀ and sparse outliers S.

    The problems are independent: each gets what `decompose` would find for it alone. On a CPU that is so to the bit,
    and large ones are solved side by side, one thread each. On a GPU all of them go through the iteration together, and
    the few that a convergence check objects to are solved one at a time on the CPU.

    Parameters
    ----------
    Ys : array-like or tensor (b, n1, n2)
        The stack: a NumPy array of any real or complex number type, or a PyTorch tensor on any device. NaN is missing.
    rank : int
        Rank r of every low-rank part, from 1 to min(n1, n2); components that a problem lacks are zero.
    schedule : Schedule, str or Path, optional
        As in `decompose`. Absolute schedules are followed one problem at a time.
    tol, max_iter : float and int, optional
        As in `decompose`, for every problem.
    random_state : int or numpy Generator, optional
        One seed for all problems; a Generator draws one.
    mask : array-like or tensor of bool, optional
        True where observed; (b, n1, n2), (n1, n2), or what broadcasts to the stack.
    options : dict, optional
        As in `decompose`; no ``checkpoint``. With options, problems are solved one at a time on any device.

    Returns
    -------
    BatchDecomposition

    Warns
    -----
    ConvergenceWarning, DiagnosisWarning
        Once for the whole batch: how many problems did not converge or look odd, and which.

    See Also
    --------
    decompose : One problem, of any size; it also finds the rank.

    Examples
    --------
    >>> import numpy as np, lrpca
    >>> problems = [lrpca.testing.planted((60, 40), rank=1, random_state=i) for i in range(8)]
    >>> d = lrpca.decompose_batch(np.stack([problem.Y for problem in problems]), rank=1)
    >>> d
    <BatchDecomposition of 8 problems 60 x 40, rank 1, 8 converged, 10.0% outliers>
    >>> d.L.shape, d[3].reason
    ((8, 60, 1), 'tol')
    """
    stack = _check_stack(Ys)
    check_settings("lrpca", schedule, tol, max_iter, random_state)
    request = Request(
        _check_rank(rank, stack.shape),
        schedule if isinstance(schedule, Schedule) else Schedule.load("default" if schedule is None else schedule),
        tol,
        max_iter,
        _seed(random_state),
        _check_batch_options(options),
    )
    observed = _check_mask(mask, stack)
    if not is_tensor(stack):
        result, warned = _solve_arrays(stack, observed, request)
    elif stack.device.type == "cpu":
        from lrpca.batch.items import solve_sequentially

        result, warned = solve_sequentially(stack, observed, request)
    else:
        from lrpca.batch.batched import solve_batched

        result, warned = solve_batched(stack, observed, request)
    for category, message in warned:
        warnings.warn(message, category, stacklevel=2)
    return result


def _solve_arrays(stack: Any, mask: Any, request: Request) -> tuple[BatchDecomposition, list[WarningText]]:
    solved = decompose_each(
        range(len(stack)), lambda i: (stack[i], None if mask is None else mask[i]), request, stack[0].size
    )
    if isinstance(stack, np.ma.MaskedArray):
        shown = ~np.ma.getmaskarray(stack)
        mask = shown if mask is None else shown & mask
    return gathered(solved, np.asarray(stack), mask)


def _check_stack(Ys: Any) -> Any:
    """Return a tensor or an array (b, n1, n2)."""
    if is_tensor(Ys):
        check_kind(Ys, "Ys")
        _check_shape(tuple(Ys.shape))
        return Ys.detach()
    if Ys is None:
        raise TypeError("Ys=None is not a stack; pass an array or a tensor (b, n1, n2)")
    if isinstance(Ys, list | tuple) and not Ys:
        raise ValueError(f"Ys={Ys!r} has no problem; pass at least one")
    refuse_list_of_tensors(Ys, "Ys")
    if is_path(Ys) or is_list_of_paths(Ys):
        raise TypeError(f"Ys={Ys!r} names files; pass their arrays, e.g. numpy.load(path)")
    is_masked = isinstance(Ys, list | tuple) and any(isinstance(part, np.ma.MaskedArray) for part in Ys)
    if isinstance(Ys, np.ma.MaskedArray):
        stack: Any = Ys
    else:
        try:
            stack = np.ma.stack(Ys) if is_masked else np.asarray(Ys)
        except ValueError:
            raise ValueError(
                f"Ys={type(Ys).__name__}{_shapes_in(Ys)} is not a stack; give matrices of one shape, or call "
                "lrpca.decompose for each"
            ) from None
    if stack.dtype.kind not in "biufc":
        raise ValueError(f"Ys.dtype={stack.dtype} is not numeric; convert it first, e.g. Ys.astype(float)")
    _check_shape(stack.shape)
    return stack


def _shapes_in(Ys: Any) -> str:
    """Return the first two shapes in a list of arrays in words, nothing where they are not known or equal."""
    parts = Ys if isinstance(Ys, list | tuple) else []
    shapes = list(dict.fromkeys(getattr(part, "shape", None) for part in parts))
    return f" of shapes {shapes[0]} and {shapes[1]}" if len(shapes) > 1 and None not in shapes else ""


def _check_shape(shape: tuple[int, ...]) -> None:
    if len(shape) != 3:
        advice = "use lrpca.decompose for one matrix, or Ys[None]" if len(shape) == 2 else "reshape to (b, n1, n2)"
        raise ValueError(f"Ys.ndim={len(shape)} is not 3; {advice}")
    if 0 in shape:
        raise ValueError(f"Ys.shape={shape} has no entries; pass at least one problem with a row and a column")


def _check_rank(rank: Any, shape: tuple[int, ...]) -> int:
    most = min(shape[1:])
    if holds_one_number(rank):
        raise ValueError(f"rank={rank!r} is not an integer; pass int(rank)")
    if not is_integer(rank):
        raise ValueError(
            f"rank={rank!r} is not an integer, and a rank of each problem's own would not stack; give one from 1 to "
            f"{most}, rather one too many, or call lrpca.decompose for each"
        )
    if not 1 <= rank <= most:
        raise ValueError(f"rank={rank} is not between 1 and min(n1, n2)={most}; choose one in that range")
    return int(rank)


def _seed(random_state: Any) -> int:
    if random_state is None:
        return 0
    if is_integer(random_state):
        return int(random_state)
    legacy = isinstance(random_state, np.random.RandomState)
    return int(random_state.randint(2**31) if legacy else random_state.integers(2**31))


def _check_batch_options(options: Any) -> dict[str, Any] | None:
    method = find_method("lrpca")
    checks = {name: check for name, check in method.options.items() if name != "checkpoint"}
    if isinstance(options, dict) and "checkpoint" in options:
        if options["checkpoint"] is not None:
            raise ValueError(
                f"options['checkpoint']={options['checkpoint']!r} is one file, but a batch has many problems; leave it "
                "out"
            )
        options = {name: value for name, value in options.items() if name != "checkpoint"}
    return check_options(options, checks, method.name) or None


def _check_mask(mask: Any, stack: Any) -> Any:
    """Return the mask beside the stack, expanded to its shape."""
    if mask is None:
        return None
    if is_tensor(stack) and is_tensor(mask):
        check_beside(mask, "mask", stack.device, "Ys")
    else:
        mask = np.asarray(host_argument(mask, "mask", None, "Ys"))
    shape = tuple(stack.shape)
    if str(mask.dtype).removeprefix("torch.") != "bool":
        raise ValueError(f"mask.dtype={mask.dtype} is not bool; pass True where observed, e.g. mask != 0")
    if not _fits(tuple(mask.shape), shape):
        raise ValueError(
            f"mask.shape={tuple(mask.shape)} does not fit Ys.shape={shape}; use that shape, or {shape[1:]} for one "
            "mask of all problems"
        )
    if not is_tensor(stack):
        return np.broadcast_to(mask, shape)
    if not is_tensor(mask):
        import torch

        # A copy: tensors cannot share memory that must not be written to.
        copy = torch.from_numpy(np.array(mask))
        mask = in_memory_of(stack.device, lambda: copy.to(stack.device), shape, "Ys")
    return mask.expand(shape)


def _fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Tell whether an array of this shape is broadcast to the whole one."""
    try:
        return np.broadcast_shapes(shape, whole) == whole
    except ValueError:
        return False
