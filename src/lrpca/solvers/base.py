"""What every solver returns: the records of its iterations, and the solution."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lrpca.core.devices import is_tensor

if TYPE_CHECKING:
    from lrpca.core.passes import Kept, Pass
    from lrpca.solvers.initialise import ObservationCounts


@dataclass(frozen=True)
class Record:
    """Numbers of one iteration; None where a method does not have them.

    Attributes
    ----------
    iteration : int
        Counted from 1; the initialisation is not counted.
    threshold, step : float
        ζ_k and η_k.
    residual : float
        ‖C‖ / ‖Y‖ at the iterate that entered the pass.
    change : float
        ‖X_k - X_{k-1}‖ / ‖X_k‖.
    kept : float
        Share of observed entries that counted as clean.
    seconds : float
        Time of this iteration, callback excluded.
    """

    iteration: int
    threshold: float | None = None
    step: float | None = None
    residual: float | None = None
    change: float | None = None
    kept: float | None = None
    seconds: float | None = None

    def threshold_in_units(self, unit: float) -> float | None:
        """Return the threshold for data that were divided by this."""
        return None if self.threshold is None else self.threshold / unit


@dataclass(frozen=True)
class State(Record):
    """What a callback sees: the numbers of the iteration and copies of the factors."""

    L: Any = None  # (n1, r)
    R: Any = None  # (n2, r)

    @classmethod
    def of(cls, record: Record, L: Any, R: Any) -> State:
        """Return a record with the factors added."""
        return cls(**asdict(record), L=L, R=R)


@dataclass(frozen=True)
class Solution:
    """What a solver returns."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    history: list[Record]
    reason: str
    counts: ObservationCounts | None  # None where Y was not read whole
    kept: Kept | None  # in the last pass, where known
    components: int | None  # how many exceed the noise, where the solver tells
    change: float  # relative change of X in the last pass over these factors
    structure: float = 0.0  # largest gap, a ratio, between singular values of the residual
    rank: int | None = None  # to cut to, where L and R may have more columns


def make_record(
    k: int, threshold: float, step: float, result: Pass, counts: ObservationCounts, change: float, began: float
) -> Record:
    """Return the record of an iteration that `began` at that time."""
    residual, kept = counts.relative(result)
    return Record(k, threshold, step, residual, change, kept, time.perf_counter() - began)


def asked_to_stop(answer: object) -> bool:
    """Tell whether a callback returned True, possibly as an array or tensor of one truth value."""
    if is_tensor(answer) or isinstance(answer, np.ndarray):
        values: Any = answer
        is_truth = str(values.dtype) in ("torch.bool", "bool")
        return is_truth and values.shape in ((), (1,)) and bool(values)
    return isinstance(answer, bool | np.bool_) and bool(answer)
