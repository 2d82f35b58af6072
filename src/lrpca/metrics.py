"""How good a decomposition is, when the truth is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["DetectionScore", "f_measure", "precision_recall_f", "relative_error"]

BLOCK = 1 << 20  # entries converted to double precision at a time


@dataclass(frozen=True)
class DetectionScore:
    """Agreement of a detected mask with the true one. A share of nothing is nan.

    Attributes
    ----------
    precision : float
        Share of the detected entries that are true.
    recall : float
        Share of the true entries that are detected.
    f : float
        F-measure, the harmonic mean of precision and recall.
    true_positives, false_positives, false_negatives : int
        Entries detected rightly, detected wrongly, and missed.
    """

    precision: float
    recall: float
    f: float
    true_positives: int
    false_positives: int
    false_negatives: int


def relative_error(X: ArrayLike, X_true: ArrayLike) -> float:
    """Return the relative error ``‖X - X_true‖ / ‖X_true‖`` in the Frobenius norm.

    Parameters
    ----------
    X, X_true : array_like, real or complex, same shape
        Estimate and truth. The sums are taken in double precision, whatever the dtype.

    Returns
    -------
    float
        0 for a perfect estimate; nan if either holds nan.

    Examples
    --------
    >>> from lrpca.metrics import relative_error
    >>> relative_error([[3.0, 4.5]], [[3.0, 4.0]])
    0.1
    """
    estimate, truth = np.asarray(X), np.asarray(X_true)
    if estimate.shape != truth.shape:
        raise ValueError(f"X.shape={estimate.shape} is not X_true.shape={truth.shape}; compare arrays of one shape")
    error2, norm2 = 0.0, 0.0
    # A view where the memory allows it; otherwise (a strided slice) NumPy copies.
    a, b = estimate.reshape(-1), truth.reshape(-1)
    for start in range(0, truth.size, BLOCK):
        exact = _doubled(b[start : start + BLOCK])
        difference = a[start : start + BLOCK] - exact
        error2 += float(np.vdot(difference, difference).real)
        norm2 += float(np.vdot(exact, exact).real)
    if norm2 == 0:
        raise ValueError("X_true=0 has no norm to compare with; give a truth that is not all zero")
    return float(np.sqrt(error2 / norm2))


def precision_recall_f(mask: ArrayLike, truth: ArrayLike, valid: ArrayLike | None = None) -> DetectionScore:
    """Compare a detected mask with the true one, entry by entry.

    Parameters
    ----------
    mask, truth : array_like of bool, same shape
        What was found and what is there.
    valid : array_like of bool, broadcastable to that shape, optional
        True where an entry is scored. By default all are.

    Returns
    -------
    DetectionScore
        Precision, recall, F-measure and the counts behind them.

    Examples
    --------
    >>> from lrpca.metrics import precision_recall_f
    >>> score = precision_recall_f([True, True, False, False], [True, False, True, False])
    >>> score.precision, score.recall, score.f
    (0.5, 0.5, 0.5)
    """
    found, real = _boolean("mask", mask), _boolean("truth", truth)
    if found.shape != real.shape:
        raise ValueError(f"mask.shape={found.shape} is not truth.shape={real.shape}; compare masks of one shape")
    if valid is not None:
        scored = np.broadcast_to(_boolean("valid", valid), real.shape)
        found, real = found & scored, real & scored
    hits = int(np.count_nonzero(found & real))
    false_alarms = int(np.count_nonzero(found)) - hits
    misses = int(np.count_nonzero(real)) - hits
    return DetectionScore(
        precision=_share(hits, hits + false_alarms),
        recall=_share(hits, hits + misses),
        f=_share(2 * hits, 2 * hits + false_alarms + misses),
        true_positives=hits,
        false_positives=false_alarms,
        false_negatives=misses,
    )


def f_measure(mask: ArrayLike, truth: ArrayLike, valid: ArrayLike | None = None) -> float:
    """Return the F-measure of a detected mask, ``2 P R / (P + R)``.

    Parameters
    ----------
    mask, truth : array_like of bool, same shape
        What was found and what is there.
    valid : array_like of bool, broadcastable to that shape, optional
        True where an entry is scored. By default all are.

    Returns
    -------
    float
        Between 0 and 1; nan if nothing is there and nothing was found.

    Examples
    --------
    >>> from lrpca.metrics import f_measure
    >>> f_measure([True, True, False], [True, True, False])
    1.0
    """
    return precision_recall_f(mask, truth, valid).f


def _doubled(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def _boolean(name: str, values: ArrayLike) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.dtype != np.bool_:
        raise ValueError(f"{name}.dtype={array.dtype} is not bool; compare with a threshold first, e.g. {name} > 0")
    return array


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
