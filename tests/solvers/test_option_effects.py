"""Every option of every method does something: two values of it lead to different iterates."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from lrpca import Decomposition, decompose
from lrpca.solvers.methods import METHODS
from lrpca.testing import planted

RANK = 3
SHAPE = (130, 110)
PLAIN = planted(SHAPE, rank=RANK, outlier_fraction=0.1, outlier_size=3, random_state=5)
NOISY = planted(SHAPE, rank=RANK, outlier_fraction=0.1, outlier_size=3, noise=0.1, random_state=5)

# (method, option): two values, iterations after which they must have parted, what else is asked for.
EFFECTS: dict[tuple[str, str], tuple[Any, Any, int, dict[str, Any]]] = {
    ("scaledgd", "alpha"): (0.1, 0.2, 1, {}),
    ("scaledgd", "gamma"): (1.2, 2.0, 1, {"alpha": 0.1}),
    ("scaledgd", "init"): (0.0, 0.2, 1, {"alpha": 0.1}),
    ("scaledgd", "step"): (0.3, 0.6, 1, {"alpha": 0.1}),
    ("scaledgd", "change"): (None, 0.5, 8, {"alpha": 0.1}),
    ("gd", "alpha"): (0.1, 0.2, 1, {}),
    ("gd", "gamma"): (1.2, 2.0, 1, {"alpha": 0.1}),
    ("gd", "init"): (0.0, 0.2, 1, {"alpha": 0.1}),
    ("gd", "step"): (0.3, 0.6, 1, {"alpha": 0.1}),
    ("gd", "balance"): (0.0, 0.5, 3, {"alpha": 0.1}),
    ("gd", "incoherence"): (None, 0.1, 1, {"alpha": 0.1}),
    ("gd", "sample"): (None, 0.5, 1, {"alpha": 0.1}),
    ("altproj", "variant"): ("paper", "ncrpca", 3, {}),
    ("altproj", "beta"): (0.01, 0.05, 3, {}),
    ("altproj", "incoherence"): (0.5, 2.0, 3, {"variant": "ncrpca"}),
    ("altproj", "floor"): (0.0, 30.0, 25, {}),
    ("altproj", "change"): (None, 0.5, 60, {}),
    ("accaltproj", "gamma"): (0.5, 0.9, 5, {}),
    ("accaltproj", "beta"): (0.01, 0.05, 2, {}),
    ("accaltproj", "beta_init"): (0.02, 1.0, 1, {"beta": 0.05}),
    ("accaltproj", "floor"): (0.0, 30.0, 15, {}),
    ("pcp", "algorithm"): ("ialm", "admm", 2, {}),
    ("pcp", "weight"): (0.05, 0.2, 2, {}),
    ("pcp", "mu"): (1.0, 5.0, 1, {}),
    ("pcp", "growth"): (1.1, 1.9, 2, {}),
    ("stable_pcp", "weight"): (0.05, 0.2, 8, {}),
    ("stable_pcp", "noise_level"): (1e-4, 1e-2, 60, {}),
    ("stable_pcp", "debias"): (False, True, 60, {"noise_level": 1e-3}),
    ("ircur", "sampling"): ("fixed", "resample", 2, {}),
    ("ircur", "oversampling"): (4.0, 6.5, 1, {}),
    ("ircur", "gamma"): (0.5, 0.8, 6, {}),
    ("ircur", "threshold"): (1e-3, 1e-1, 1, {}),
    ("ircur", "floor"): (0.0, 30.0, 15, {}),
    ("sampled", "side"): (24, 32, 1, {}),
    ("sampled", "passes"): (0, 2, 3, {"side": 30}),
    ("pgrmc", "mu"): (1.0, 5.0, 2, {}),
    ("pgrmc", "decay"): (0.3, 0.9, 6, {}),
    ("pgrmc", "sample"): (None, 0.5, 1, {}),
    ("godec", "alpha"): (0.05, 0.15, 3, {}),
    ("godec", "ramp"): (0.0, 0.8, 2, {"alpha": 0.1}),
    ("godec", "power_steps"): (1, 3, 2, {"alpha": 0.1}),
    ("godec", "warm"): (True, False, 2, {"alpha": 0.1}),
    ("grassmann", "trim"): (0, 20, 2, {}),
    ("grassmann", "center"): (False, True, 2, {}),
    ("grassmann", "coefficients"): ("projection", "robust", 2, {}),
}


def test_every_option_is_in_the_table() -> None:
    rivals = [method for method in METHODS.values() if method.name != "lrpca"]  # which has tests of its own
    assert {(method.name, option) for method in rivals for option in method.options} == set(EFFECTS)


def solve(method: str, options: dict[str, Any], iterations: int) -> Decomposition:
    problem = NOISY if method == "sampled" or "floor" in options or "noise_level" in options else PLAIN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return decompose(problem.Y, RANK, method=method, options=options, tol=0, max_iter=iterations)


@pytest.mark.parametrize(("method", "option"), EFFECTS, ids=str)
def test_option_has_an_effect(method: str, option: str) -> None:
    *values, iterations, others = EFFECTS[method, option]
    one, other = (solve(method, {option: value, **others}, iterations) for value in values)
    assert np.linalg.norm(one.low_rank - other.low_rank) > 1e-6 * np.linalg.norm(one.low_rank)
    again = solve(method, {option: values[0], **others}, iterations)
    np.testing.assert_array_equal(one.L, again.L)
