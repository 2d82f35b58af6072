"""Stacks that are torch tensors: on the CPU read in place and solved one by one, elsewhere solved together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lrpca.batch.result import ARRAYS, BatchDecomposition, gathered
from lrpca.batch.sequential import Request, decompose_each
from lrpca.decompose import Complaint
from lrpca.decomposition.result import Decomposition
from lrpca.decomposition.tensor import TensorDecomposition, to_tensor
from lrpca.matrices.accept_tensor import host_array


def solve_tensors(
    Ys: Any,  # (b, n1, n2)
    mask: Any,  # (b, n1, n2) bool, or None
    request: Request,
) -> tuple[BatchDecomposition, list[Complaint]]:
    """Return the batch of a stack of tensors, with tensors on its device, and what to warn of."""
    if Ys.device.type == "cpu":
        return solve_one_by_one(Ys, mask, request)
    from lrpca.batch.batched import solve_together

    return solve_together(Ys, mask, request)


def solve_one_by_one(
    Ys: Any,  # (b, n1, n2)
    mask: Any,  # (b, n1, n2) bool, or None
    request: Request,
) -> tuple[BatchDecomposition, list[Complaint]]:
    """Return the batch of problems solved by the CPU, one thread each, with tensors on the device of the stack."""
    solved = decompose_each(range(len(Ys)), lambda i: problem_on_host(Ys, mask, i), request, Ys[0].numel())
    result, complaints = gathered(solved, Ys, mask)
    for name in ARRAYS:
        setattr(result, name, to_tensor(getattr(result, name), Ys.device))
    result._one = _AsTensors(result._one, Ys.device)
    return result, complaints


@dataclass(frozen=True)
class _AsTensors:
    """Problems that were solved as arrays, as tensors on a device."""

    arrays: Callable[[int], Decomposition]
    device: Any

    def __call__(self, i: int) -> Decomposition:
        return TensorDecomposition.of(self.arrays(i), self.device)

    def as_arrays(self, *_: Any) -> Callable[[int], Decomposition]:
        """Return what makes the same of arrays: they were there before the tensors."""
        return self.arrays


def problem_on_host(
    Ys: Any,  # (b, n1, n2)
    mask: Any,  # (b, n1, n2) or None
    i: int,
) -> tuple[Any, Any]:
    """Return problem i and its mask as arrays: of the same memory, if they are on the CPU."""
    return host_array(Ys[i].cpu()), None if mask is None else host_array(mask[i].cpu())
