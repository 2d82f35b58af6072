"""Methods other than the default recover planted problems with their default options."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.testing import planted

# Side of the matrix, seed, error of the low-rank part, and the options that are estimated from the data.
STANDARD: dict[str, tuple[int, int, float, tuple[str, ...]]] = {
    "scaledgd": (300, 0, 1e-6, ("alpha", "init")),
    "gd": (300, 0, 1e-6, ("alpha", "init")),
    "pgrmc": (300, 0, 1e-6, ()),
    "godec": (400, 3, 1e-5, ("alpha",)),
    "ircur": (500, 3, 1e-6, ("threshold",)),
}


@pytest.mark.parametrize(
    ("method", "fraction", "size"),
    # Gradient descent does not tolerate as many gross outliers as the others.
    [case for case in product(STANDARD, (0.1, 0.3), (1.0, 10.0)) if case != ("gd", 0.3, 10.0)],
)
def test_recovers_the_standard_problem(method: str, fraction: float, size: float) -> None:
    side, seed, accuracy, estimated = STANDARD[method]
    problem = planted((side, side), outlier_fraction=fraction, outlier_size=size, random_state=seed)
    d = lrpca.decompose(problem.Y, 5, method=method)
    assert d.reason == "tol" and d.estimated == estimated
    assert problem.error(d.low_rank) < accuracy
    if "alpha" in estimated:
        assert d.settings["alpha"] == pytest.approx(fraction, rel=0.05)
    if method == "ircur":
        assert d.n_reads < 1


@pytest.mark.parametrize(
    ("method", "changes", "accuracy"),
    [
        ("scaledgd", {"missing": 0.75, "rank": 3, "outlier_fraction": 0.02, "shape": (500, 400)}, 1e-6),
        ("scaledgd", {"condition": 10}, 1e-6),
        ("gd", {"missing": 0.3, "rank": 3, "outlier_fraction": 0.035, "shape": (400, 400)}, 1e-6),
        ("gd", {"missing": 0.75, "rank": 3, "outlier_fraction": 0.0125, "shape": (400, 400)}, 1e-6),
        ("pgrmc", {"missing": 0.3, "rank": 3, "outlier_fraction": 0.07, "shape": (400, 400)}, 1e-6),
        ("pgrmc", {"missing": 0.75, "rank": 3, "outlier_fraction": 0.025, "shape": (400, 400)}, 1e-6),
        ("godec", {"shape": (500, 150), "random_state": 3}, 1e-4),
        ("godec", {"shape": (150, 500), "random_state": 3}, 1e-4),
        ("godec", {"missing": 0.3, "random_state": 3}, 1e-6),
        ("godec", {"condition": 10, "random_state": 3}, 1e-6),
    ],
    ids=str,
)
def test_recovers_other_problems(method: str, changes: dict[str, Any], accuracy: float) -> None:
    problem = planted(**{"shape": (300, 300), "rank": 5, "outlier_fraction": 0.1} | changes)
    d = lrpca.decompose(problem.Y, problem.rank, method=method)
    assert d.converged and problem.error(d.low_rank) < accuracy
    # Where entries are missing, steps are as long as those with all entries.
    assert d.n_iter < 90 or method != "gd"


@pytest.mark.parametrize(
    ("method", "changes", "factor"),
    [
        ("scaledgd", {"outlier_size": 10}, 2.0),
        ("pgrmc", {"outlier_size": 10}, 2.0),
        ("godec", {"outlier_size": 10, "random_state": 3}, 1.6),
        ("accaltproj", {"shape": (200, 200), "rank": 3, "random_state": 1}, 4.0),
    ],
    ids=str,
)
def test_noise_ends_in_its_floor(method: str, changes: dict[str, Any], factor: float) -> None:
    problem = planted(**{"shape": (300, 300), "rank": 5, "outlier_fraction": 0.1, "noise": 0.05} | changes)
    d = lrpca.decompose(problem.Y, problem.rank, method=method)
    assert d.reason == "noise_floor" and d.n_iter < 200
    assert problem.error(d.low_rank) < factor * problem.oracle_error
    assert d.history[-1].kept > 0.85 or method != "pgrmc"


@pytest.mark.parametrize(("method", "seed", "accuracy"), [("godec", 2, 1e-4), ("ircur", 0, 1e-6)])
@pytest.mark.filterwarnings("ignore::lrpca.ConvergenceWarning", "ignore::lrpca.DiagnosisWarning")
def test_rows_of_outliers_do_not_spoil_the_others(method: str, seed: int, accuracy: float) -> None:
    problem = planted((300, 300), rank=5, outlier_fraction=0.1, random_state=3)
    Y, bad = problem.Y.copy(), np.arange(0, 300, 20)
    Y[bad] = np.random.default_rng(seed).uniform(-3, 3, (len(bad), 300)) * np.abs(Y).max()
    d = lrpca.decompose(Y, 5, method=method)
    good = np.setdiff1d(np.arange(300), bad)
    assert np.linalg.norm(d.low_rank[good] - problem.X[good]) < accuracy * np.linalg.norm(problem.X[good])
    if method == "godec":
        assert d.reason == "stalled" and any("15 row" in message for message in d.diagnosis.messages)
