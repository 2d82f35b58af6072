"""What every loop of the LRPCA family leaves behind, and writes down on its way."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.decomposition import Record
from lrpca.kernels.reference import Pass
from lrpca.solvers.start import Survey


@dataclass(frozen=True)
class Outcome:
    """What the loop leaves behind."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    history: list[Record]
    reason: str
    survey: Survey
    last_pass: Pass | None
    components: int  # how many stand out of the noise
    change: float  # relative change of X in the last pass over these factors
    structure: float = 0.0  # by what factor two more components would lower the residual's leading singular value


def make_record(
    k: int, threshold: float, step: float, result: Pass, facts: Survey, change: float, began: float
) -> Record:
    """Return the record of an iteration that `began` at that time."""
    return Record(
        iteration=k,
        threshold=threshold,
        step=step,
        residual=result.norm_C / facts.norm if facts.norm else 0.0,
        change=change,
        kept=float(result.kept_by_row.sum()) / max(1.0, float(facts.observed_by_row.sum())),
        seconds=time.perf_counter() - began,
    )


def asked_to_stop(answer: object) -> bool:
    """Tell whether a callback's answer is True, and not just some object."""
    return isinstance(answer, bool | np.bool_) and bool(answer)
