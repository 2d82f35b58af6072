"""From the solver's last iterate to the result users see: normal form, noise level, outliers, diagnosis."""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.decomposition import Decomposition, Diagnosis
from lrpca.iteration import normal_form
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sampling import Sample
from lrpca.noise import noise_level, outlier_threshold
from lrpca.solvers.lrpca import Outcome

_FULL = 0.95


def assemble(matrix: DenseMatrix, outcome: Outcome, sample: Sample, method: str) -> Decomposition:
    """Return the decomposition of a finished run."""
    L, R, _ = normal_form(outcome.L, outcome.R)
    residuals = sample.residuals(L, R)
    sigma = noise_level(residuals)
    scale = float(np.median(np.abs(sample.values)) or np.abs(sample.values).max(initial=0.0))
    change = outcome.history[-1].change or 0.0 if outcome.history else 0.0
    threshold = outlier_threshold(sigma, matrix.stored, matrix.result, scale, change)
    fraction = float(np.mean(residuals > threshold))
    return Decomposition(
        L.astype(matrix.result),
        R.astype(matrix.result),
        matrix=matrix,
        history=outcome.history,
        reason=outcome.reason,
        noise_level=sigma,
        outlier_threshold=threshold,
        outlier_fraction=fraction,
        n_reads=matrix.reads,
        diagnosis=_diagnose(outcome, fraction, threshold),
        method=method,
    )


def _diagnose(outcome: Outcome, fraction: float, threshold: float) -> Diagnosis:
    observed = (outcome.survey.observed_by_row, outcome.survey.observed_by_column)
    last = outcome.last_pass
    kept = observed if last is None else (last.kept_by_row, last.kept_by_column)
    shares = [_share(part, whole) for part, whole in zip(kept, observed, strict=True)]
    idle = [np.flatnonzero(part == 0) for part in kept]
    messages = []
    for name, axis in (("row", idle[0]), ("column", idle[1])):
        if len(axis):
            some = ", ".join(str(i) for i in axis[:5]) + (", ..." if len(axis) > 5 else "")
            messages.append(
                f"{len(axis)} {name}(s) without influence ({some}): all entries are missing or were rejected; their "
                "part of low_rank rests on nothing, drop them"
            )
    if fraction > _FULL:
        messages.append(
            f"S holds {100 * fraction:.0f}% of the entries: the low-rank part explains next to nothing; "
            "check the rank and the schedule"
        )
    elif fraction == 0:
        messages.append(
            f"S is empty: no sampled residual exceeds {threshold:.2g}; Y has no outliers, or the rank is so large that "
            "they are fitted"
        )
    return Diagnosis(shares[0], shares[1], idle[0], idle[1], messages)


def _share(
    part: Any,  # (n,) int
    whole: Any,  # (n,) int
) -> Any:
    with np.errstate(invalid="ignore"):
        return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
