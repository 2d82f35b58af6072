"""Every rule of the default has a problem that needs it: recovered with the rule, and not without."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from lrpca import Decomposition, decompose
from lrpca.solvers.rules import RULES
from lrpca.testing import Problem, planted, recovered, wrong

RANK = 5
BASE: dict[str, Any] = {"shape": (200, 200), "rank": RANK}
ROWS, COLUMNS = {"placement": "rows"}, {"placement": "columns"}


def outliers(fraction: float, size: float = 1.0, **more: Any) -> dict[str, Any]:
    return {**BASE, "outlier_fraction": fraction, "outlier_size": size, **more}


# Rule, problem, rank given.
NEEDED: list[tuple[str, dict[str, Any], int]] = [
    # Where most entries are rejected, rows differ in how many they keep, and one step does not fit all.
    ("row_normal_equations", outliers(0.7, shape=(300, 300)), RANK),
    # ... and some are rejected before they are right, if the thresholds do not wait for them.
    ("patience", outliers(0.7, shape=(300, 300)), RANK),
    # Rows with 60% outliers stay unexplained.
    ("low_inlier_rows", outliers(0.2, 7, one_sided=True, **ROWS), RANK),
    # Surplus components are filled with noise, or with outliers.
    ("significance", outliers(0.1, noise=0.05), 2 * RANK),
    ("other_fits", outliers(0.1, 10, rank=3, shape=(100, 100), **COLUMNS), 8),
    ("other_fits", outliers(0.1, 10, rank=3, shape=(300, 60), **COLUMNS), 8),
    # Outliers of a few σ pass the wide threshold.
    ("refine_cutoff", outliers(0.4, noise=0.1), RANK),
    # Outliers on one side have a component of their own, which takes the place of one of X.
    ("residual_structure", outliers(0.4, 3, one_sided=True), RANK),
    ("other_fits", outliers(0.3, 3, one_sided=True, law="constant"), RANK),
    # Of fifteen entries, a few outliers decide a coefficient.
    ("unsupported_directions", outliers(0.15, 10, rank=2, shape=(400, 15)), 2),
]


def run(problem: Problem, rank: int, *without: str) -> Decomposition:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return decompose(problem.Y, rank, options={"without": list(without)})


def named(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={value[key]}" for key in value if value[key] != BASE.get(key)).replace("outlier_", "")
    return str(value)


@pytest.mark.parametrize(("rule", "arguments", "rank"), NEEDED, ids=named)
def test_rule_is_needed(rule: str, arguments: dict[str, Any], rank: int) -> None:
    problem = planted(**arguments, random_state=0)
    whole = run(problem, rank)
    assert whole.converged
    assert recovered(problem, problem.error(whole.low_rank))
    # Other fits make up for several of the rules, at some expense.
    without = run(problem, rank, rule, "other_fits")
    assert not (without.converged and recovered(problem, problem.error(without.low_rank)))


def test_every_rule_has_its_case() -> None:
    assert {rule for rule, _, _ in NEEDED} == set(RULES)
    assert all(reason and not reason.endswith(".") for reason in RULES.values())


@pytest.mark.parametrize(("given", "seed"), [(RANK - 1, 0), (RANK - 2, 1)])
def test_other_fits_keep_a_rank_too_small_from_passing(given: int, seed: int) -> None:
    problem = planted(**outliers(0.3, 10, noise=0.05), random_state=seed)
    assert not run(problem, given).converged
    assert not run(problem, given, "residual_structure").converged
    assert not run(problem, given, "other_fits").converged
    trusting = run(problem, given, "residual_structure", "other_fits")
    assert trusting.converged and wrong(problem, problem.error(trusting.low_rank))


def test_easy_problems_do_not_pay() -> None:
    """On a problem that needs no rule, they change nothing but rounding, and cost one pass."""
    problem = planted(**outliers(0.1), random_state=1)
    whole, bare = run(problem, RANK), run(problem, RANK, *RULES)
    assert whole.converged and bare.converged
    assert whole.n_iter <= bare.n_iter + 1 and whole.n_reads <= bare.n_reads + 1
    assert problem.error(whole.low_rank) < 1e-7


def test_refitted_rows_count_as_a_read() -> None:
    problem = planted(**outliers(0.1, 1000, **COLUMNS), random_state=0)
    whole, bare = run(problem, RANK), run(problem, RANK, *RULES)
    start = bare.n_reads - bare.n_iter
    assert whole.n_reads > whole.n_iter + start


@pytest.mark.parametrize("names", ("refine_cutoff", ["refine_cutoff"], ("refine_cutoff",), {"refine_cutoff"}), ids=repr)
def test_a_rule_by_name_or_in_a_list(names: Any) -> None:
    problem = planted((120, 100), rank=2, noise=0.1, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = decompose(problem.Y, 2, options={"without": names})
        whole = decompose(problem.Y, 2)
    assert d.n_iter < whole.n_iter
    np.testing.assert_array_equal(d.L, run(problem, 2, "refine_cutoff").L)


def test_without_nothing_is_the_default() -> None:
    problem = planted((60, 50), rank=2, random_state=1)
    np.testing.assert_array_equal(run(problem, 2).L, decompose(problem.Y, 2).L)
    twice = run(problem, 2, "low_inlier_rows", "low_inlier_rows")
    np.testing.assert_array_equal(twice.L, run(problem, 2, "low_inlier_rows").L)


@pytest.mark.parametrize("names", ("haste", ["low_inlier_rows", "haste"]), ids=repr)
def test_unknown_rule_is_refused(names: Any) -> None:
    message = (
        r"options\['without'\]='haste' is no rule of the default; use some of row_normal_equations, .*refine_cutoff"
    )
    with pytest.raises(ValueError, match=message):
        decompose(np.eye(5), 1, options={"without": names})


@pytest.mark.parametrize("names", (3, [3], [["low_inlier_rows"]], {"low_inlier_rows": 1}), ids=repr)
def test_what_is_no_name_is_refused(names: Any) -> None:
    with pytest.raises(
        ValueError, match=r"options\['without'\]=.* is not a list of names; use some of row_normal_equations, "
    ):
        decompose(np.eye(5), 1, options={"without": names})
