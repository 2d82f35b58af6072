import math

import numpy as np
import pytest

from lrpca import metrics


def test_relative_error_is_the_frobenius_ratio():
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((1300, 900))  # more entries than one block
    estimate = truth + 0.01 * rng.standard_normal(truth.shape)
    expected = np.linalg.norm(estimate - truth) / np.linalg.norm(truth)
    assert metrics.relative_error(estimate, truth) == pytest.approx(expected, rel=1e-12)
    assert metrics.relative_error(truth, truth) == 0.0


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int16, np.complex64])
def test_relative_error_works_in_double_precision(dtype):
    truth = np.full((50, 40), 200, dtype)
    estimate = truth.copy()
    estimate[0, 0] -= 100  # uint8 differences and squares would overflow
    expected = 100 / np.sqrt(1999 * 200**2 + 100**2)
    assert metrics.relative_error(truth, estimate) == pytest.approx(expected, rel=1e-12)


def test_relative_error_of_complex_values_uses_the_modulus():
    assert metrics.relative_error([[3 + 4j]], [[1j]]) == pytest.approx(abs(3 + 3j), rel=1e-14)


def test_relative_error_of_a_strided_view():
    rng = np.random.default_rng(1)
    whole = rng.standard_normal((60, 60))
    view, truth = whole[::2, ::-3], np.ones((30, 20))
    expected = np.linalg.norm(view - 1) / np.sqrt(600)
    assert metrics.relative_error(view, truth) == pytest.approx(expected, rel=1e-12)


def test_relative_error_does_not_hide_nan():
    assert math.isnan(metrics.relative_error([[np.nan, 1.0]], [[1.0, 1.0]]))


def test_relative_error_refuses_other_shapes_and_zero_truth():
    with pytest.raises(ValueError, match=r"\(2, 3\).*\(3, 2\)"):
        metrics.relative_error(np.ones((2, 3)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="X_true=0"):
        metrics.relative_error(np.ones((2, 3)), np.zeros((2, 3)))


def test_counts_and_ratios():
    mask = np.array([1, 1, 1, 0, 0, 0, 0], bool)
    truth = np.array([1, 0, 0, 1, 0, 0, 0], bool)
    score = metrics.precision_recall_f(mask, truth)
    assert (score.true_positives, score.false_positives, score.false_negatives) == (1, 2, 1)
    assert score.precision == pytest.approx(1 / 3)
    assert score.recall == pytest.approx(1 / 2)
    assert score.f == pytest.approx(2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2))
    assert metrics.f_measure(mask, truth) == score.f


def test_only_valid_entries_count():
    mask = np.array([[True, True], [False, True]])
    truth = np.array([[True, False], [True, True]])
    first_column = np.array([[True, False]])
    score = metrics.precision_recall_f(mask, truth, valid=first_column)
    assert (score.true_positives, score.false_positives, score.false_negatives) == (1, 0, 1)


def test_shares_of_nothing_are_nan():
    nothing, something = np.zeros(3, bool), np.ones(3, bool)
    empty = metrics.precision_recall_f(nothing, nothing)
    assert math.isnan(empty.precision) and math.isnan(empty.recall) and math.isnan(empty.f)
    missed = metrics.precision_recall_f(nothing, something)
    assert math.isnan(missed.precision) and missed.recall == 0 and missed.f == 0


def test_masks_must_be_boolean_and_alike():
    with pytest.raises(ValueError, match="truth.dtype=uint8"):
        metrics.precision_recall_f(np.ones(3, bool), np.array([0, 50, 255], np.uint8))
    with pytest.raises(ValueError, match="one shape"):
        metrics.precision_recall_f(np.ones(3, bool), np.ones(4, bool))
