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


def test_relative_error_uses_the_modulus_and_does_not_hide_nan():
    assert metrics.relative_error([[3 + 4j]], [[1j]]) == pytest.approx(abs(3 + 3j), rel=1e-14)
    assert math.isnan(metrics.relative_error([[np.nan, 1.0]], [[1.0, 1.0]]))


def test_relative_error_of_a_strided_view():
    rng = np.random.default_rng(1)
    whole = rng.standard_normal((60, 60))
    view, truth = whole[::2, ::-3], np.ones((30, 20))
    expected = np.linalg.norm(view - 1) / np.sqrt(600)
    assert metrics.relative_error(view, truth) == pytest.approx(expected, rel=1e-12)


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


CODES = np.array([0, 50, 85, 170, 255], np.uint8)


def _random_clip(n: int = 7) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.random((n, 12, 17)) < 0.4, rng.choice(CODES, (n, 12, 17))


def test_cdnet_scores_follow_their_definitions():
    masks, truth = _random_clip()
    score = metrics.cdnet_score(masks, truth)
    moving, background = truth == 255, (truth == 0) | (truth == 50)
    hits, misses = (masks & moving).sum(), (~masks & moving).sum()
    alarms, rest = (masks & background).sum(), (~masks & background).sum()
    counts = (score.true_positives, score.false_negatives, score.false_positives, score.true_negatives)
    assert counts == (hits, misses, alarms, rest)
    assert score.shadow_errors == (masks & (truth == 50)).sum()
    assert score.precision == pytest.approx(hits / (hits + alarms), rel=1e-12)
    assert score.recall == pytest.approx(hits / (hits + misses), rel=1e-12)
    assert score.f == pytest.approx(2 * score.precision * score.recall / (score.precision + score.recall), rel=1e-12)
    assert score.specificity == pytest.approx(rest / (rest + alarms), rel=1e-12)
    assert score.false_positive_rate == pytest.approx(1 - score.specificity, rel=1e-12)
    assert score.false_negative_rate == pytest.approx(1 - score.recall, rel=1e-12)
    assert score.wrong_percentage == pytest.approx(100 * (alarms + misses) / (moving | background).sum(), rel=1e-12)


def test_cdnet_unscored_pixels_change_nothing():
    masks, truth = _random_clip()
    unscored = (truth == 85) | (truth == 170)
    assert metrics.cdnet_score(masks ^ unscored, truth) == metrics.cdnet_score(masks, truth)


def test_cdnet_frame_by_frame_is_the_whole_clip():
    masks, truth = _random_clip()
    whole = metrics.cdnet_score(masks, truth, first=2)
    scorer, blocks = metrics.CDnetScorer(), metrics.CDnetScorer()
    for mask, codes in zip(masks[2:], truth[2:], strict=True):
        scorer.add(mask, codes)
    blocks.add(masks[2:4], truth[2:4])
    blocks.add(masks[4:], truth[4:])
    assert scorer.score() == blocks.score() == whole != metrics.cdnet_score(masks, truth)


def test_cdnet_masks_may_be_bytes_and_opencv_shadows_are_not_marked():
    masks, truth = _random_clip()
    as_bytes = np.where(masks, 255, 0).astype(np.uint8)
    shadows = np.where(masks, 255, 127).astype(np.int64)
    expected = metrics.cdnet_score(masks, truth)
    assert metrics.cdnet_score(as_bytes, truth.astype(np.int32)) == expected
    assert metrics.cdnet_score(shadows, truth) == expected


def test_cdnet_region_of_interest():
    masks, truth = _random_clip()
    roi = np.zeros(truth.shape[1:], bool)
    roi[:, :5] = True
    assert metrics.cdnet_score(masks, truth, roi=roi) == metrics.cdnet_score(masks[:, :, :5], truth[:, :, :5])
    with pytest.raises(ValueError, match=r"roi.shape=\(17, 12\)"):
        metrics.cdnet_score(masks, truth, roi=roi.T)


def test_cdnet_shares_of_nothing_are_nan():
    nothing = metrics.CDnetScorer().score()
    shares = (nothing.precision, nothing.f, nothing.specificity, nothing.false_negative_rate, nothing.wrong_percentage)
    assert all(map(math.isnan, shares))


@pytest.mark.parametrize(
    ("masks", "truth", "first", "message"),
    [
        (np.zeros((2, 3, 4), bool), np.zeros((2, 4, 3), np.uint8), 0, r"\(2, 3, 4\).*\(2, 4, 3\)"),
        (np.zeros((3, 4), bool), np.zeros((3, 4), np.uint8), 0, "no clip"),
        (np.zeros((1, 3, 4), bool), np.full((1, 3, 4), 51, np.uint8), 0, "truth=51 is not one of 0, 50, 85, 170, 255"),
        (np.zeros((1, 3, 4), bool), np.full((1, 3, 4), 255 + 256), 0, "truth=511"),
        (np.zeros((1, 3, 4), bool), np.full((1, 3, 4), -1), 0, "truth=-1"),
        (np.zeros((1, 3, 4), bool), np.zeros((1, 3, 4)), 0, "truth.dtype=float64"),
        (np.ones((1, 3, 4), np.uint8), np.zeros((1, 3, 4), np.uint8), 0, "mask=1 is not one of .*threshold"),
        (np.zeros((2, 3, 4), bool), np.zeros((2, 3, 4), np.uint8), 2, "first=2"),
        (np.zeros((2, 3, 4), bool), np.zeros((2, 3, 4), np.uint8), 0.5, "first=0.5"),
    ],
)
def test_cdnet_refuses_what_it_cannot_score(masks, truth, first, message):
    with pytest.raises(ValueError, match=message):
        metrics.cdnet_score(masks, truth, first=first)
