"""The refit of rows: which start is taken, and which rows stay as they are."""

import numpy as np
import pytest

from lrpca.solvers.refit import minimal_subset_rows, refit_rows

RANK, CUTOFF = 3, 0.1


def rows_with_outliers(share: float, *, one_sided: bool = False, gaps: float = 0.0):
    rng = np.random.default_rng(0)
    L, R = rng.standard_normal((40, RANK)), rng.standard_normal((80, RANK))
    size = rng.uniform(2 if one_sided else -5, 5, (40, 80))
    Y = L @ R.T + size * (rng.random((40, 80)) < share) + 0.01 * rng.standard_normal((40, 80))
    observed = rng.random((40, 80)) >= gaps
    return Y * observed, observed, L, R


@pytest.mark.parametrize("gaps", (0.0, 0.4))
def test_wrong_rows_become_right_ones(gaps: float) -> None:
    """Least absolute deviations do not find them: most of their entries are outliers of one sign."""
    Y, observed, L, R = rows_with_outliers(0.6, one_sided=True, gaps=gaps)
    fresh, improved = refit_rows(Y, observed, R, np.zeros_like(L), CUTOFF)
    assert improved.all()
    assert np.median(np.abs(fresh - L).max(axis=1)) < 0.05
    assert np.mean(np.abs(fresh - L).max(axis=1) < 0.1) > 0.9


def test_right_rows_stay_to_the_bit() -> None:
    Y, observed, L, R = rows_with_outliers(0.2)
    fresh, improved = refit_rows(Y, observed, R, L, CUTOFF)
    assert not improved.any()
    np.testing.assert_array_equal(fresh, L)


def test_rows_of_more_noise_are_not_fitted_to_few_entries() -> None:
    """The cutoff is that of the other rows: here most clean entries are beyond it, but not far."""
    rng = np.random.default_rng(1)
    L, R = rng.standard_normal((60, RANK)), rng.standard_normal((40, RANK))
    Y = L @ R.T + 3 * CUTOFF * rng.standard_normal((60, 40))
    observed = np.ones(Y.shape, bool)
    squares = np.linalg.lstsq(R, Y.T, rcond=None)[0].T
    fresh, _ = refit_rows(Y, observed, R, squares, CUTOFF)
    assert np.linalg.norm(fresh - L) < 2 * np.linalg.norm(squares - L)
    assert np.linalg.norm(fresh - L, axis=1).max() < 4 * np.linalg.norm(squares - L, axis=1).max()


def test_columns_of_ten_entries_keep_the_largest_group_that_agrees() -> None:
    """Four of ten entries agree; what is fitted explains three others."""
    rng = np.random.default_rng(2)
    R = rng.uniform(0.5, 2, (10, 1))
    Y = rng.uniform(-10, 10, (50, 10))
    Y[:, :4] = 1.0 * R[:4, 0] + 0.01 * rng.standard_normal((50, 4))
    Y[:, 4:7] = -3.0 * R[4:7, 0] + 0.01 * rng.standard_normal((50, 3))
    fresh, better = refit_rows(Y, np.ones(Y.shape, bool), R, np.full((50, 1), -3.0), CUTOFF)
    assert np.mean(better & (np.abs(fresh[:, 0] - 1) < 0.05)) > 0.9


def test_rows_with_too_few_entries_are_left() -> None:
    Y, observed, L, R = rows_with_outliers(0.0)
    observed[:10, RANK:] = False
    observed[10:12] = False
    found = minimal_subset_rows(Y * observed, observed, R, CUTOFF)
    assert not found[:12].any()
    assert np.abs(found[12:] - L[12:]).max() < 0.2


@pytest.mark.filterwarnings("error")
def test_empty_rows_and_huge_values_do_not_overflow() -> None:
    Y, observed, L, R = rows_with_outliers(0.2)
    Y[0], Y[1, 3] = 0, 1e37
    fresh, _ = refit_rows(Y, observed, R, np.full_like(L, 1e10), CUTOFF)
    assert np.abs(fresh[0]).max() < 1e-6 and np.abs(fresh[1:] - L[1:]).max() < 0.2
