"""GoDec: recovery, the exact cardinality of S, and its estimate."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import lrpca.kernels.threads
from lrpca import Decomposition, decompose
from lrpca.testing import Problem, planted

RANK = 5


def make(shape: tuple[int, int] = (300, 300), share: float = 0.1, **changes: Any) -> Problem:
    return planted(shape, **{"rank": RANK, "outlier_fraction": share, "random_state": 3, **changes})


def solve(Y: Any, rank: int = RANK, **arguments: Any) -> Decomposition:
    return decompose(Y, rank, method="godec", **arguments)


PROBLEM = make()


def test_components_to_spare_are_fitted_to_outliers() -> None:
    with pytest.warns(lrpca.ConvergenceWarning, match="stalled"):
        d = solve(PROBLEM.Y, RANK + 2)
    assert d.L.shape[1] == RANK + 2 and PROBLEM.error(d.low_rank) < 2e-2


@pytest.mark.parametrize("options", ({}, {"warm": False, "power_steps": 3}), ids=("warm", "fresh"))
def test_given_share_is_exact(options: dict[str, Any]) -> None:
    d = solve(PROBLEM.Y, options={"alpha": 0.1, **options})
    assert PROBLEM.error(d.low_rank) < 1e-6
    assert d.estimated == ()
    # k (1 - 0.7^j) entries in the j-th S after the first, one of them more or less by rounding.
    kept = np.array([record.kept for record in d.history[1:]]) * PROBLEM.Y.size
    wanted = PROBLEM.Y.size - np.round(9000 * (1 - 0.7 ** np.arange(1, d.n_iter)))
    assert np.abs(kept - wanted).max() <= 2


def test_without_ramp_rows_are_left_behind() -> None:
    problem = make((400, 400), 0.3, outlier_size=10)
    assert problem.error(solve(problem.Y, options={"alpha": 0.3}).low_rank) < 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = solve(problem.Y, options={"alpha": 0.3, "ramp": 0})
    assert not plain.converged
    assert problem.error(plain.low_rank) > 1e-4
