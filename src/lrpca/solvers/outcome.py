"""What every solver leaves behind, and the loops of the LRPCA family write down on their way."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.core.devices import is_tensor
from lrpca.core.passes import Kept, Pass
from lrpca.solvers.base import Record
from lrpca.solvers.initialise import Survey


@dataclass(frozen=True)
class Outcome:
    """What a solver leaves behind."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    history: list[Record]
    reason: str
    survey: Survey | None  # None where Y was not read whole
    kept: Kept | None  # in the last pass, where known
    components: int | None  # how many stand out of the noise, where the solver tells
    change: float  # relative change of X in the last pass over these factors
    structure: float = 0.0  # by what factor two more components would lower the residual's leading singular value
    rank: int | None = None  # to cut to, where L and R may have more columns


def make_record(
    k: int, threshold: float, step: float, result: Pass, facts: Survey, change: float, began: float
) -> Record:
    """Return the record of an iteration that `began` at that time."""
    residual, kept = facts.relative(result)
    return Record(
        iteration=k,
        threshold=threshold,
        step=step,
        residual=residual,
        change=change,
        kept=kept,
        seconds=time.perf_counter() - began,
    )


def asked_to_stop(answer: object) -> bool:
    """Tell whether a callback's answer is True, also as an array or tensor of one, and not just some object."""
    if is_tensor(answer) or isinstance(answer, np.ndarray):
        values: Any = answer
        is_truth = str(values.dtype) in ("torch.bool", "bool")
        return is_truth and values.shape in ((), (1,)) and bool(values)
    return isinstance(answer, bool | np.bool_) and bool(answer)
