"""From the solver's last iterate to the result users see: normal form, noise level, outliers, diagnosis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.decomposition import Decomposition, Diagnosis, Record
from lrpca.influence import DEFAULT_CUTOFF
from lrpca.iteration import normal_form
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sampling import Sample
from lrpca.noise import noise_level, outlier_threshold, rounding_level
from lrpca.solvers.lrpca import Outcome

# From this share of outliers on, a fit deserves a second look.
_FULL = 0.45
_MANY_ZEROS = 0.5
# Side of the block of residuals that is searched for structure, and the residuals that count as its noise, in σ.
_BLOCK = 256
_CORE = 4.0
_POWER_STEPS = 12
# Leading singular value of the residual, in units of the noise's, from which the rank is called too small.
_STRUCTURED = 3.0


def assemble(matrix: DenseMatrix, outcome: Outcome, sample: Sample, method: str) -> Decomposition:
    """Return the decomposition of a finished run."""
    L, R, _ = normal_form(outcome.L, outcome.R)
    residuals = sample.residuals(L, R)
    scale = float(np.median(np.abs(sample.values)) or np.abs(sample.values).max(initial=0.0))
    last = outcome.history[-1] if outcome.history else Record(0)
    limit = DEFAULT_CUTOFF * last.threshold if last.threshold else math.inf
    sigma = noise_level(residuals, rounding_level(matrix.result, scale), limit)
    change = last.change or 0.0
    # |L_i| |R_j| bounds the entries of X, and with them the rounding of a residual.
    largest = float(np.linalg.norm(L, axis=1).max() * np.linalg.norm(R, axis=1).max())
    rounding = rounding_level(matrix.result, largest)
    threshold = outlier_threshold(sigma, matrix.stored, rounding, change * scale)
    fraction = float(np.mean(residuals > threshold))
    # Where the run ended otherwise, what is left is the error of the iteration itself, which has structure.
    structure = _structure_left(matrix, L, R, sigma) if outcome.reason in ("noise_floor", "stalled") else 0.0
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
        diagnosis=_diagnose(outcome, fraction, threshold, structure, float(np.mean(sample.values == 0))),
        method=method,
    )


def _structure_left(
    matrix: DenseMatrix,
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    sigma: float,
) -> float:
    """Return the leading singular value of the residual in units of the largest that noise would have.

    From a random block of the residual without its outliers; 0 where the residual is zero.
    """
    rng = np.random.default_rng(0)
    rows, columns = (np.sort(rng.permutation(n)[:_BLOCK]) for n in matrix.shape)
    i, j = (grid.ravel() for grid in np.meshgrid(rows, columns, indexing="ij"))
    values, observed = matrix.entries(i, j)
    block = np.where(observed, values, 0.0) - np.einsum("mk,mk->m", L[i], R[j])
    block = np.where(observed & (np.abs(block) <= _CORE * sigma), block, 0.0).reshape(len(rows), len(columns))
    noise = float(np.sqrt(np.mean(np.abs(block) ** 2))) * (np.sqrt(len(rows)) + np.sqrt(len(columns)))
    vector = rng.standard_normal(len(columns)).astype(block.dtype)
    for _ in range(_POWER_STEPS):
        vector = block.conj().T @ (block @ vector)
        vector /= np.linalg.norm(vector) or 1.0
    return float(np.linalg.norm(block @ vector)) / noise if noise else 0.0


def _diagnose(outcome: Outcome, fraction: float, threshold: float, structure: float, zeros: float) -> Diagnosis:
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
    if structure > _STRUCTURED and min(outcome.survey.shape) >= _BLOCK // 4:
        messages.append(
            f"the residual still has low-rank structure ({structure:.0f} times what noise would have); "
            "the rank is probably too small, try a larger one"
        )
    if _MANY_ZEROS < zeros < 1:
        messages.append(
            f"{100 * zeros:.0f}% of the entries of Y are exactly zero and count as data; if they mean missing, pass "
            "mask=(Y != 0)"
        )
    if fraction > _FULL:
        messages.append(
            f"S holds {100 * fraction:.0f}% of the entries: Y has that many outliers, or the low-rank part is wrong; "
            "check the rank, or try a gentler schedule"
        )
    elif fraction == 0:
        messages.append(
            f"S is empty: no sampled residual exceeds {threshold:.2g}; Y has no outliers, the rank is so large that "
            "they are fitted, or they are so many that they pass for noise"
        )
    return Diagnosis(shares[0], shares[1], idle[0], idle[1], messages)


def _share(
    part: Any,  # (n,) int
    whole: Any,  # (n,) int
) -> Any:
    with np.errstate(invalid="ignore"):
        return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
