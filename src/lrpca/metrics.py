"""How good a decomposition is, when the truth is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "CDnetScore",
    "CDnetScorer",
    "DetectionScore",
    "cdnet_score",
    "f_measure",
    "precision_recall_f",
    "relative_error",
]

BLOCK = 1 << 20  # entries converted to double precision at a time
# Codes of CDnet's ground truth, and those of masks: OpenCV's subtractors write 127 for what they take for a shadow.
BACKGROUND, SHADOW, OUTSIDE, UNKNOWN, MOVING = 0, 50, 85, 170, 255
TRUTH_CODES = (BACKGROUND, SHADOW, OUTSIDE, UNKNOWN, MOVING)
MASK_CODES = (0, 127, 255)


@dataclass(frozen=True)
class DetectionScore:
    """Agreement of a detected mask with the true one. A share of nothing is nan.

    Attributes
    ----------
    true_positives, false_positives, false_negatives : int
        Entries detected rightly, detected wrongly, and missed.
    """

    true_positives: int
    false_positives: int
    false_negatives: int

    @property
    def precision(self) -> float:
        """Share of the detected entries that are true."""
        return _share(self.true_positives, self.true_positives + self.false_positives)

    @property
    def recall(self) -> float:
        """Share of the true entries that are detected."""
        return _share(self.true_positives, self.true_positives + self.false_negatives)

    @property
    def f(self) -> float:
        """F-measure, the harmonic mean of precision and recall."""
        return _share(2 * self.true_positives, 2 * self.true_positives + self.false_positives + self.false_negatives)


@dataclass(frozen=True)
class CDnetScore(DetectionScore):
    """Agreement of masks with ground truth in CDnet's coding, over the scored pixels. A share of nothing is nan.

    Attributes
    ----------
    true_positives, false_positives, false_negatives, true_negatives : int
        Moving pixels that are marked, background that is marked, moving pixels that are missed, and background that is
        not marked.
    shadow_errors : int
        Those of the false positives that are cast shadows.
    """

    true_negatives: int
    shadow_errors: int

    @property
    def specificity(self) -> float:
        """Share of the background that is not marked."""
        return _share(self.true_negatives, self.true_negatives + self.false_positives)

    @property
    def false_positive_rate(self) -> float:
        """Share of the background that is marked."""
        return _share(self.false_positives, self.true_negatives + self.false_positives)

    @property
    def false_negative_rate(self) -> float:
        """Share of the moving pixels that are missed."""
        return _share(self.false_negatives, self.true_positives + self.false_negatives)

    @property
    def wrong_percentage(self) -> float:
        """Percentage of the scored pixels that are wrong (CDnet's PWC)."""
        wrong = self.false_positives + self.false_negatives
        return 100 * _share(wrong, wrong + self.true_positives + self.true_negatives)


class CDnetScorer:
    """CDnet's scores of masks, frame by frame; only counts are kept.

    Parameters
    ----------
    roi : array_like of bool (height, width), optional
        True where pixels are scored. CDnet's own ground truth marks the outside by a code.

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.metrics import CDnetScorer
    >>> scorer = CDnetScorer()
    >>> scorer.add(np.array([[True, True, False]]), np.array([[255, 170, 0]]))
    >>> scorer.add(np.array([[True, False, False]]), np.array([[50, 255, 85]]))
    >>> scorer.score().precision, scorer.score().recall
    (0.5, 0.5)
    """

    def __init__(self, roi: ArrayLike | None = None) -> None:
        self.roi = None if roi is None else _boolean("roi", roi)
        # Pixels by code of the truth and code of the mask.
        self._counts = np.zeros((len(TRUTH_CODES), len(MASK_CODES)), np.int64)

    def add(self, mask: ArrayLike, truth: ArrayLike) -> None:  # mask (height, width); truth (height, width)
        """Count the pixels of one frame, or of several (n, height, width); for their values see `cdnet_score`."""
        found, real = np.asarray(mask), np.asarray(truth)
        if found.shape != real.shape:
            raise ValueError(f"mask.shape={found.shape} is not truth.shape={real.shape}; compare frames of one shape")
        pairs = _positions("truth", real, TRUTH_CODES) * np.intp(len(MASK_CODES))
        if found.dtype == np.bool_:
            pairs += found * np.intp(len(MASK_CODES) - 1)
        else:
            pairs += _positions("mask", found, MASK_CODES)
        if self.roi is not None:
            if self.roi.shape != real.shape[-2:]:
                raise ValueError(f"roi.shape={self.roi.shape} is not that of frames {real.shape[-2:]}; score one size")
            pairs = pairs[..., self.roi]
        self._counts += np.bincount(pairs.reshape(-1), minlength=self._counts.size).reshape(self._counts.shape)

    def score(self) -> CDnetScore:
        """Return the scores of all that was added."""
        counts = dict(zip(TRUTH_CODES, self._counts.tolist(), strict=True))
        return CDnetScore(
            true_positives=counts[MOVING][-1],
            false_positives=counts[BACKGROUND][-1] + counts[SHADOW][-1],
            false_negatives=sum(counts[MOVING][:-1]),
            true_negatives=sum(counts[BACKGROUND][:-1]) + sum(counts[SHADOW][:-1]),
            shadow_errors=counts[SHADOW][-1],
        )


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
    wide = np.complex128 if np.iscomplexobj(truth) else np.float64
    for start in range(0, truth.size, BLOCK):
        exact = b[start : start + BLOCK].astype(wide)
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
    return DetectionScore(hits, int(np.count_nonzero(found)) - hits, int(np.count_nonzero(real)) - hits)


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


def cdnet_score(
    masks: ArrayLike,  # (n, height, width)
    truth: ArrayLike,  # (n, height, width)
    *,
    first: int = 0,
    roi: ArrayLike | None = None,  # (height, width)
) -> CDnetScore:
    """Compare masks of a clip with ground truth in CDnet's coding.

    Pixels are counted over all scored frames together, as CDnet does, ``F = 2 TP / (2 TP + FP + FN)``. For clips that
    do not fit into memory see `CDnetScorer`.

    Parameters
    ----------
    masks : array_like of bool, or of 0 and 255
        What was marked. 127, which OpenCV's subtractors write for shadows, is not marked.
    truth : array_like of int, same shape
        0 is background and 50 cast shadow, which is background too; 255 moves; 85 (outside the region of interest) and
        170 (unknown) are not scored.
    first : int
        Frames at the start that are not scored, for learning.
    roi : array_like of bool, optional
        True where pixels are scored. CDnet's own ground truth marks the outside by a code.

    Returns
    -------
    CDnetScore
        Precision, recall, F-measure, specificity, error rates and the counts behind them.

    References
    ----------
    .. [1] Y. Wang, P.-M. Jodoin, F. Porikli, J. Konrad, Y. Benezeth, P. Ishwar. "CDnet 2014: An expanded change
       detection benchmark dataset." CVPR Workshops, 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.metrics import cdnet_score
    >>> truth = np.array([[[0, 50, 170], [255, 255, 85]]])
    >>> masks = np.array([[[False, True, True], [True, True, False]]])
    >>> score = cdnet_score(masks, truth)
    >>> round(score.precision, 3), score.recall, score.f, score.specificity
    (0.667, 1.0, 0.8, 0.5)
    """
    found, real = np.asarray(masks), np.asarray(truth)
    if found.shape != real.shape:
        raise ValueError(f"masks.shape={found.shape} is not truth.shape={real.shape}; compare clips of one shape")
    if found.ndim != 3:
        raise ValueError(f"masks.shape={found.shape} is no clip; pass (n, height, width)")
    if not isinstance(first, int | np.integer) or not 0 <= first < max(1, len(real)):
        raise ValueError(f"first={first!r} is no frame of {len(real)}; count from 0")
    scorer = CDnetScorer(roi)
    for mask, codes in zip(found[first:], real[first:], strict=True):
        scorer.add(mask, codes)
    return scorer.score()


def _positions(name: str, values: NDArray[Any], codes: tuple[int, ...]) -> NDArray[np.intp]:
    """Return the position of every value among the codes; refuse others."""
    listed = ", ".join(map(str, codes))
    if values.dtype.kind not in "iu":
        raise ValueError(f"{name}.dtype={values.dtype} holds no codes; pass whole numbers of {listed}")
    table = np.full(256, -1, np.intp)
    table[list(codes)] = range(len(codes))
    places: NDArray[np.intp] = table[values if values.dtype == np.uint8 else np.clip(values, 0, 255)]
    wrong = places < 0 if values.dtype == np.uint8 else (places < 0) | (values < 0) | (values > 255)
    if wrong.any():
        hint = "compare with a threshold first" if name == "mask" else "recode the other values"
        raise ValueError(f"{name}={values[wrong][0]} is not one of {listed}; {hint}")
    return places


def _boolean(name: str, values: ArrayLike) -> NDArray[np.bool_]:
    array = np.asarray(values)
    if array.dtype != np.bool_:
        raise ValueError(f"{name}.dtype={array.dtype} is not bool; compare with a threshold first, e.g. {name} > 0")
    return array


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
