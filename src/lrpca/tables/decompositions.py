"""Rows that are explained by fixed axes, as a `Decomposition`: those of a fit, with gaps filled, and new ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from lrpca.core.factors import normal_form
from lrpca.decomposition.result import Decomposition, Diagnosis
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import draw_sample
from lrpca.tables.scores import row_scores

# Gaps of tables with less than this many entries are filled by the posterior mean: it reads them up to forty times.
_FILLED_BELOW = 1 << 22
_BLOCK = 1 << 18
_MODERATE = 1e6
# Rows this many times larger than the median are left as they are.
_WILD = 1e8


def decompose_rows(
    matrix: DenseMatrix,  # (m, n2)
    mean: Any,  # (n2,)
    components: Any,  # (k, n2)
    variances: Any,  # (k,)
    noise_level: float,
    threshold: float,
) -> Decomposition:
    """Split rows never seen, with the axes fixed: each by itself."""
    scores = row_scores(matrix, mean, components, variances, noise_level)
    return assembled(matrix, mean, components, scores, noise_level, threshold, None, "lrpca")


def filled(matrix: DenseMatrix, plain: Decomposition) -> Decomposition:
    """Return the decomposition with the posterior mean as its low-rank part, where entries are missing."""
    from lrpca.tables.imputation import posterior_mean

    if math.prod(matrix.shape) >= _FILLED_BELOW or not _has_gaps(matrix):
        return plain
    L, R = posterior_mean(matrix, plain.L, plain.R, plain.noise_level, float(plain.outlier_threshold))
    L, R = (factor.astype(matrix.result) for factor in normal_form(L, R)[:2])
    return replace(plain, L=L, R=R)


def _has_gaps(matrix: DenseMatrix) -> bool:
    return any(
        bool((block != block).any()) or (mask is not None and not mask.all())
        for _, block, mask in matrix.blocks(max(1, _BLOCK // matrix.shape[1]))
    )


def assembled(
    matrix: DenseMatrix,
    mean: Any,
    components: Any,
    scores: Any,
    noise: float,
    threshold: float,
    source: Decomposition | None,
    method: str,
) -> Decomposition:
    """Return rows ``mean + scores components`` as a decomposition: in normal form, unless some row is too wild."""
    n1, n2 = matrix.shape
    # The column of the centre is as long as those of the scores, roughly: a much shorter one would pass for rounding.
    typical = np.median(np.abs(scores).max(axis=1, initial=0.0))
    size = float(max(typical, np.abs(mean).max())) or 1.0
    size = 1.0 if 1 / _MODERATE < size < _MODERATE else 2.0 ** math.floor(math.log2(size))
    L, R = np.column_stack([scores, np.full(n1, size)]), np.column_stack([components.T, mean / size])
    if not mean.any():
        L, R = L[:, :-1], R[:, :-1]
    sizes = np.abs(L).max(axis=1)
    # Beside a row that is so much larger, turning all of them would leave nothing of the others.
    if sizes.max() <= _WILD * float(np.median(sizes)):
        L, R, _ = normal_form(L, R)
    sample = draw_sample(matrix, np.random.default_rng(0), allow_empty=True)
    fraction = float(np.mean(sample.residuals(L, R) > threshold)) if len(sample.values) else 0.0
    nothing = np.zeros(0, int)
    diagnosis = (
        source.diagnosis
        if source is not None and len(source.diagnosis.kept_by_row) == n1
        else Diagnosis(np.full(n1, np.nan), np.full(n2, np.nan), nothing, nothing, len(components), [])
    )
    return Decomposition(
        L.astype(matrix.result),
        R.astype(matrix.result),
        matrix=matrix,
        history=[] if source is None else source.history,
        reason="tol" if source is None else source.reason,
        noise_level=noise,
        outlier_threshold=threshold,
        outlier_fraction=fraction,
        n_reads=matrix.reads + (0 if source is None else source.n_reads),
        diagnosis=diagnosis,
        method=method,
        settings={} if source is None else source.settings,
        rank_choice=None if source is None else source.rank_choice,
    )
