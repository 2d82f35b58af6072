"""ScaledGD: recovery with defaults and with given parameters, on data of every kind."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lrpca
from lrpca.testing import planted


def solve(Y, rank=5, **arguments):
    return lrpca.decompose(Y, rank, method="scaledgd", **arguments)


@pytest.mark.parametrize("size", [1, 1000])
def test_gross_outliers_are_rejected_before_the_start(size):
    problem = planted((300, 300), outlier_fraction=0.1, outlier_size=size)
    d = solve(problem.Y)
    assert (d.settings["init"] > 0) == (size == 1000)
    assert problem.error(d.low_rank) < 1e-7 * size + 1e-6


def test_rank_too_large_is_not_called_converged():
    """T_α takes large entries of X out of the start, which makes components of its own: known, and said."""
    problem = planted((200, 200), outlier_fraction=0.1)
    with pytest.warns(lrpca.ConvergenceWarning):
        d = solve(problem.Y, 7, max_iter=200)
    assert not d.converged
    assert problem.error(d.low_rank) < 0.3


def test_given_parameters_are_used():
    problem = planted((200, 200), outlier_fraction=0.1)
    d = solve(problem.Y, options={"alpha": 0.1, "gamma": 2.0, "init": 0.05, "step": 0.5})
    assert d.estimated == () and [d.settings[name] for name in ("alpha", "gamma", "init")] == [0.1, 2.0, 0.05]
    assert {record.step for record in d.history} == {0.5}
    assert problem.error(d.low_rank) < 1e-6
    # Less than the fullest row has: the authors' form with too small an α leaves outliers in.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        short = solve(problem.Y, options={"alpha": 0.1, "gamma": 1.0})
    assert problem.error(short.low_rank) > 1e-4


def test_rejecting_everything_is_no_convergence():
    problem = planted((100, 100), outlier_fraction=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = solve(problem.Y, options={"alpha": 0.6, "gamma": 2.0})
    assert d.reason == "runaway" and not d.converged


def test_a_step_too_long_is_no_convergence():
    problem = planted((100, 100), outlier_fraction=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = solve(problem.Y, options={"alpha": 0.1, "step": 1.9})
    assert not d.converged


def test_matrix_of_zeros_and_of_one_outlier():
    for Y in (np.zeros((30, 20)), np.pad([[5.0]], ((0, 29), (0, 19)))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            d = solve(Y, 2)
        assert np.isfinite(d.low_rank).all()


def test_sparse_matrices_are_read_by_rows():
    from scipy.sparse import csr_array

    problem = planted((150, 120), rank=2, outlier_fraction=0.1)
    d = solve(csr_array(problem.Y), 2)
    assert problem.error(d.low_rank) < 1e-6
