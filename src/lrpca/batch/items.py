"""The problems of a batch as decompositions: of tensors that were batched, or solved one at a time as arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lrpca.batch.loop import Records
from lrpca.batch.result import ARRAYS, BatchDecomposition, gathered
from lrpca.batch.sequential import Request, decompose_each
from lrpca.decompose import WarningText
from lrpca.decomposition.assemble import diagnose, told_settings
from lrpca.decomposition.result import Decomposition
from lrpca.decomposition.tensor import TensorDecomposition, to_tensor
from lrpca.matrices.accept_tensor import host_array
from lrpca.matrices.tensor import TensorMatrix
from lrpca.solvers.base import Record, Solution
from lrpca.solvers.initialise import ObservationCounts
from lrpca.solvers.methods import METHODS

# Beside the passes: for the observation counts, the start, and the noise level at the end.
_MORE_READS = 3


class Histories:
    """The records of all problems, slab by slab."""

    def __init__(self) -> None:
        self._slabs: list[tuple[int, int, Records]] = []
        self._arrays: dict[int, Any] = {}

    def add(self, first: int, count: int, records: Records) -> None:
        """Take the records of a slab that begins with problem `first`."""
        self._slabs.append((first, count, records))

    def on_cpu(self) -> Histories:
        """Return the same on the CPU."""
        other = Histories()
        for first, count, records in self._slabs:
            other.add(first, count, [(index.cpu(), numbers.cpu()) for index, numbers in records])
        return other

    def of(self, i: int) -> list[Record]:
        """Return the history of problem i, as long as it took part."""
        first, count, records = next(slab for slab in self._slabs if slab[0] <= i < slab[0] + slab[1])
        if first not in self._arrays:
            table = np.full((len(records), 5, count), np.nan)
            for k, (index, numbers) in enumerate(records):
                table[k][:, host_array(index.cpu())] = host_array(numbers.cpu())
            self._arrays[first] = table
        numbers = self._arrays[first][:, :, i - first]
        return [Record(k + 1, *(float(number) for number in numbers[k])) for k in range(len(numbers))]


@dataclass(frozen=True)
class Items:
    """The problems that were batched, and those that were solved one at a time; each is made when first used."""

    solutions: Any  # Solutions of all problems
    reason: Any  # (b,) str
    histories: Histories
    Ys: Any  # (b, n1, n2) tensor
    mask: Any  # (b, n1, n2) or None
    settings: dict[str, Any]
    alone: dict[int, Decomposition]  # those that were solved one at a time, as arrays
    gives_arrays: bool = False

    def __call__(self, i: int) -> Decomposition:
        """Return the decomposition of problem i."""
        if i in self.alone:
            return self.alone[i] if self.gives_arrays else TensorDecomposition.of(self.alone[i], self.Ys.device)
        solutions, method = self.solutions, METHODS["lrpca"]
        outcome, components = self._outcome(i), int(solutions.components[i])
        fraction, threshold = float(solutions.outlier_fraction[i]), float(solutions.outlier_threshold[i])
        shape, zeros = (int(self.Ys.shape[1]), int(self.Ys.shape[2])), float(solutions.zeros[i])
        found = Decomposition(
            solutions.L[i],
            solutions.R[i],
            matrix=TensorMatrix(self.Ys[i], None if self.mask is None else self.mask[i]),
            history=outcome.history,
            reason=outcome.reason,
            noise_level=float(solutions.noise_level[i]),
            outlier_threshold=threshold,
            outlier_fraction=fraction,
            n_reads=len(outcome.history) + _MORE_READS,
            diagnosis=diagnose(outcome, shape, components, fraction, threshold, zeros),
            method=method.name,
            settings=told_settings(method.defaults() | self.settings),
        )
        tensors = TensorDecomposition.of(found, self.Ys.device)
        return tensors.to_numpy() if self.gives_arrays else tensors

    def as_arrays(self, Ys: Any, mask: Any) -> Callable[[int], Decomposition]:
        """Return what makes the same of arrays, from a stack and a mask on the CPU."""
        solutions, histories = self.solutions.on_cpu(), self.histories.on_cpu()
        return replace(self, solutions=solutions, histories=histories, Ys=Ys, mask=mask, gives_arrays=True)

    def _outcome(self, i: int) -> Solution:
        solutions = self.solutions
        observed = _counts(solutions.observed_by_row[i]), _counts(solutions.observed_by_column[i])
        return Solution(
            None,
            None,
            self.histories.of(i)[: int(solutions.n_iter[i])],
            str(self.reason[i]),
            ObservationCounts(*observed, float(solutions.norm[i])),
            (_counts(solutions.kept_by_row[i]), _counts(solutions.kept_by_column[i])),
            int(solutions.components[i]),
            float(solutions.change[i]),
        )


def _counts(values: Any) -> Any:
    return host_array(values.cpu()).astype(np.int64)


def solve_sequentially(
    Ys: Any,  # (b, n1, n2)
    mask: Any,  # (b, n1, n2) bool, or None
    request: Request,
) -> tuple[BatchDecomposition, list[WarningText]]:
    """Return the batch of problems solved by the CPU, one thread each, with tensors on the device of the stack."""
    solved = decompose_each(range(len(Ys)), lambda i: problem_on_host(Ys, mask, i), request, Ys[0].numel())
    result, warned = gathered(solved, Ys, mask)
    for name in ARRAYS:
        setattr(result, name, to_tensor(getattr(result, name), Ys.device))
    result.item = _AsTensors(result.item, Ys.device)
    return result, warned


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


def problem_on_host(Ys: Any, mask: Any, i: int) -> tuple[Any, Any]:  # (b, n1, n2); (b, n1, n2) or None
    """Return problem i and its mask as arrays: of the same memory, if they are on the CPU."""
    return host_array(Ys[i].cpu()), None if mask is None else host_array(mask[i].cpu())
