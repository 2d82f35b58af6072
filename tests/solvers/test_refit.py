"""The refit of rows: which start is taken, and which rows stay as they are."""

import numpy as np
import pytest

from lrpca.solvers.refit import bounded_loss, least_absolute_rows, minimal_subset_rows, refit_rows

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


def test_what_a_subset_interpolates_is_no_evidence() -> None:
    """Rows of outliers only: least absolute deviations and subsets explain as many entries as there are components."""
    rng = np.random.default_rng(1)
    Y, R = rng.uniform(-50, 50, (30, 40)), rng.standard_normal((40, RANK))
    observed = np.ones(Y.shape, bool)
    subsets = minimal_subset_rows(Y, observed, R, CUTOFF)
    assert (bounded_loss(Y, observed, R, subsets, CUTOFF) <= 40 - RANK).all()
    present = least_absolute_rows(Y, observed, R)
    assert refit_rows(Y, observed, R, present, CUTOFF)[1].mean() < 0.1


def test_rows_with_too_few_entries_are_left() -> None:
    Y, observed, L, R = rows_with_outliers(0.0)
    observed[:10, RANK:] = False
    observed[10:12] = False
    found = minimal_subset_rows(Y * observed, observed, R, CUTOFF)
    assert not found[:12].any()
    assert np.abs(found[12:] - L[12:]).max() < 0.2
