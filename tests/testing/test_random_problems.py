"""Random problems: seeded, determined, of every law; and the baseline that is measured on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lrpca.testing import random_problem
from lrpca.testing.random_problems import GAP_LAWS, LOW_RANK_LAWS, NOISE_LAWS, OUTLIER_LAWS, SIDES

TABLES = {"low_rank": LOW_RANK_LAWS, "outliers": OUTLIER_LAWS, "noise": NOISE_LAWS, "gaps": GAP_LAWS}


@pytest.mark.parametrize(("part", "law"), [(part, law) for part, table in TABLES.items() for law in table])
def test_every_law_gives_a_problem_that_its_clean_entries_determine(part: str, law: str) -> None:
    for seed in range(4):
        problem = random_problem(seed, **{"shape": (90, 60), "rank": 3, part: law})
        assert law in problem.name
        assert np.array_equal(np.isnan(problem.Y), ~problem.observed)
        assert np.linalg.matrix_rank(problem.X) == problem.rank
        clean = problem.observed & (problem.S == 0)
        # Fits of each row's clean entries to the truth's columns, which need not be started at the truth, find the row.
        V = np.linalg.svd(problem.X)[2][: problem.rank].T
        for x, row in zip(problem.X, clean, strict=True):
            assert np.linalg.norm(V @ np.linalg.lstsq(V[row], x[row])[0] - x) < 1e-9
        noise = np.where(clean, np.nan_to_num(problem.Y) - problem.X, 0.0)
        if "noise none" in problem.name:
            assert not noise.any()
            assert problem.least_squares_error == 0.0
        else:
            assert np.sqrt(np.mean((noise / problem.noise_level)[clean] ** 2)) == pytest.approx(1, abs=0.3)


def test_seeds_decide_everything() -> None:
    first, again, other = (random_problem(seed) for seed in (5, 5, 6))
    assert first.name == again.name
    assert first.Y.tobytes() == again.Y.tobytes()
    assert first.Y.shape != other.Y.shape


def test_shapes_ranks_and_what_is_given_vary() -> None:
    problems = [random_problem(seed) for seed in range(30)]
    sides = [n for problem in problems for n in problem.Y.shape]
    assert SIDES[0] <= min(sides) < 15
    assert 1000 < max(sides) <= SIDES[1]
    assert {None if p.given is None else p.given - p.rank for p in problems} == {None, 0, 1, 3}
    assert len({p.rank for p in problems}) > 5


def test_all_laws_are_drawn() -> None:
    names = [random_problem(seed, shape=(40, 30)).name.split(", ") for seed in range(120)]
    for place, table in enumerate(TABLES.values()):
        drawn = {name[place].removeprefix("noise ").removeprefix("gaps ") for name in names}
        assert drawn == set(table)


def test_least_squares_error_is_that_of_the_clean_entries() -> None:
    kinds = {"shape": (200, 150), "rank": 3, "low_rank": "gaussian factors", "noise": "gaussian", "gaps": "none"}
    problem = random_problem(1, outliers="anywhere", **kinds)
    share = np.mean(problem.S == 0)
    expected = problem.noise_level.item() * np.sqrt(3 * (200 + 150 - 3) / (share * 200 * 150))
    assert problem.least_squares_error == pytest.approx(expected, rel=0.1)


def test_explained_entries_are_those_within_the_noise() -> None:
    problem = random_problem(2, shape=(80, 70), rank=2, outliers="anywhere", noise="gaussian", gaps="at random")
    clean = problem.observed & (problem.S == 0)
    assert 0.99 * clean.sum() < problem.explained(problem.X) < problem.observed.sum()
    assert problem.explained(problem.X + 100.0) == 0


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"outliers": "elsewhere"}, r"^outliers='elsewhere' is unknown; use one of anywhere, "),
        ({"size": 3}, r"^size=3 is no part of a random problem; e\.g\. shape=\(60, 40\)$"),
    ],
)
def test_bad_parts_are_named(fixed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        random_problem(0, **fixed)
