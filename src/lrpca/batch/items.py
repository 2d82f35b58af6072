"""One problem of a batch that was solved together, as a decomposition of its own, made when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lrpca.batch.loop import Records
from lrpca.decomposition.assemble import diagnose, told_settings
from lrpca.decomposition.result import Decomposition
from lrpca.decomposition.tensor import TensorDecomposition
from lrpca.matrices.accept_tensor import host_array
from lrpca.matrices.tensor import TensorMatrix
from lrpca.solvers.base import Record
from lrpca.solvers.initialise import Survey
from lrpca.solvers.methods import METHODS
from lrpca.solvers.outcome import Outcome

# Beside the passes: for the survey, the start, and the noise level at the end.
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
class Ones:
    """The problems of a batch that was solved together, each made when asked for."""

    facts: Any  # Facts of all problems
    reason: Any  # (b,) str
    histories: Histories
    Ys: Any  # (b, n1, n2) tensor
    mask: Any  # (b, n1, n2) or None
    settings: dict[str, Any]
    alone: dict[int, Decomposition]  # those that were solved one by one, as arrays

    def __call__(self, i: int) -> TensorDecomposition:
        """Return the decomposition of problem i."""
        if i in self.alone:
            return TensorDecomposition.of(self.alone[i], self.Ys.device)
        facts, method = self.facts, METHODS["lrpca"]
        outcome, components = self._outcome(i), int(facts.components[i])
        fraction, threshold = float(facts.outlier_fraction[i]), float(facts.outlier_threshold[i])
        shape, zeros = (int(self.Ys.shape[1]), int(self.Ys.shape[2])), float(facts.zeros[i])
        found = Decomposition(
            facts.L[i],
            facts.R[i],
            matrix=TensorMatrix(self.Ys[i], None if self.mask is None else self.mask[i]),
            history=outcome.history,
            reason=outcome.reason,
            noise_level=float(facts.noise_level[i]),
            outlier_threshold=threshold,
            outlier_fraction=fraction,
            n_reads=len(outcome.history) + _MORE_READS,
            diagnosis=diagnose(outcome, shape, components, fraction, threshold, zeros),
            method=method.name,
            settings=told_settings(method.defaults() | self.settings),
        )
        return TensorDecomposition.of(found, self.Ys.device)

    def as_arrays(self, Ys: Any, mask: Any) -> Callable[[int], Decomposition]:
        """Return what makes the same of arrays, from a stack and a mask on the CPU."""
        facts, histories = self.facts.on_cpu(), self.histories.on_cpu()
        return _AsArrays(replace(self, facts=facts, histories=histories, Ys=Ys, mask=mask))

    def _outcome(self, i: int) -> Outcome:
        facts = self.facts
        seen = Survey(_counts(facts.observed_by_row[i]), _counts(facts.observed_by_column[i]), float(facts.norm[i]))
        return Outcome(
            None,
            None,
            self.histories.of(i)[: int(facts.n_iter[i])],
            str(self.reason[i]),
            seen,
            (_counts(facts.kept_by_row[i]), _counts(facts.kept_by_column[i])),
            int(facts.components[i]),
            float(facts.change[i]),
        )


@dataclass(frozen=True)
class _AsArrays:
    tensors: Ones

    def __call__(self, i: int) -> Decomposition:
        return self.tensors(i).to_numpy()


def _counts(values: Any) -> Any:
    return host_array(values.cpu()).astype(np.int64)
