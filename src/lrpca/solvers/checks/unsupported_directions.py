"""Rows and columns whose kept entries hardly support one of their coefficients.

A component of few columns has few entries in a row. If outliers among them were fitted, the clean ones are rejected.
The row keeps nearly all of its other entries, so it is no low-inlier row, and yet one of its coefficients is wrong.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from lrpca.core.factors import inverse_grams
from lrpca.core.passes import Pass
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.checks.low_inlier_rows import grams_fit, refit_some
from lrpca.solvers.initialise import ObservationCounts
from lrpca.solvers.refit import LEVERAGE, exchanged_rows

# If each direction of a factor has at least so many entries, outliers among them do not decide a coefficient.
_MANY = 100


def may_be_unsupported(L: Any, R: Any, counts: ObservationCounts) -> bool:
    """Tell whether a direction of one of the factors has so few entries that outliers may decide a coefficient."""
    spread = max(_leverages(L, R))
    return spread * _MANY > counts.least_observed and grams_fit(counts.shape, L.shape[1])


def exposed_rows(
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    last: Pass,
    counts: ObservationCounts,
) -> tuple[Any, Any]:
    """Return the rows, and the columns, with a direction of few kept entries; the `last` pass has normal equations."""
    r = L.shape[1]
    rows, columns = (
        _exposed(np.asarray(grams)[:, :r, :r], np.asarray(other), np.asarray(kept) < seen)
        for grams, other, kept, seen in (
            (last.row_grams, R, last.kept_by_row, counts.observed_by_row),
            (last.column_grams, L, last.kept_by_column, counts.observed_by_column),
        )
    )
    return rows, columns


def exchange(
    matrix: DenseMatrix,
    L: Any,  # (n1, r), changed in place
    R: Any,  # (n2, r), changed in place
    exposed: tuple[Any, Any],
    cutoff: float,
) -> bool:
    """Exchange kept for rejected entries of exposed rows and columns; tell whether any became better."""
    return refit_some(matrix, L, R, exposed, partial(exchanged_rows, cutoff=cutoff))


def _leverages(L: Any, R: Any) -> tuple[float, float]:
    """Return the largest leverage of an entry of each factor: one over how many entries a direction has."""
    inverses = inverse_grams(L, R)
    return tuple(
        float(np.einsum("ik,kl,il->i", factor, inverse, factor.conj()).real.max(initial=0.0))
        for factor, inverse in zip((np.asarray(L), np.asarray(R)), inverses, strict=True)
    )  # type: ignore[return-value]


def _exposed(
    grams: Any,  # (n1, r, r) of the kept entries of each row
    other: Any,  # (n2, r)
    rejects: Any,  # (n1,) bool
) -> Any:
    """Return the rows in which some entry may have a high leverage, of those that reject entries."""
    # With orthonormal components, a leverage is at most that among all entries over the least eigenvalue.
    Q, T = np.linalg.qr(other)
    inverse = np.linalg.pinv(T)
    largest = float(np.sum(np.abs(Q) ** 2, axis=1).max(initial=0.0))
    support = np.linalg.eigvalsh(inverse.conj().T @ grams @ inverse)[:, 0]
    return np.flatnonzero(rejects & (largest > LEVERAGE * support))
