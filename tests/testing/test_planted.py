"""Planted problems and the grid are what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lrpca.testing import Case, grid, planted, recovered, wrong


def test_seeded() -> None:
    a, b, c = planted((30, 20), random_state=1), planted((30, 20), random_state=1), planted((30, 20), random_state=2)
    np.testing.assert_array_equal(a.Y, b.Y)
    assert not np.array_equal(a.Y, c.Y)


def test_parts_add_up() -> None:
    problem = planted((50, 40), rank=3, outlier_fraction=0.2, random_state=0)
    np.testing.assert_allclose(problem.Y, problem.X + problem.S, atol=1e-15)
    assert problem.X.shape == problem.S.shape == problem.observed.shape == (50, 40)
    assert problem.rank == 3
    assert np.linalg.matrix_rank(problem.X) == 3
    assert problem.observed.all()


@pytest.mark.parametrize("size", (0.5, 1.0, 20.0))
def test_outliers(size: float) -> None:
    problem = planted((100, 90), outlier_fraction=0.15, outlier_size=size, random_state=0)
    planted_ones = problem.S[problem.S != 0]
    assert len(planted_ones) == int(0.15 * 9000)
    limit = size * np.abs(problem.X).mean()
    assert 0.9 * limit < np.abs(planted_ones).max() <= limit
    assert 0.4 < np.mean(planted_ones > 0) < 0.6
    np.testing.assert_array_equal(problem.outliers, problem.S != 0)


def test_missing_entries_are_nan_and_no_outliers() -> None:
    problem = planted((80, 70), missing=0.3, outlier_fraction=0.2)
    np.testing.assert_array_equal(np.isnan(problem.Y), ~problem.observed)
    assert np.mean(problem.observed) == pytest.approx(0.7, abs=0.03)
    assert not problem.outliers[~problem.observed].any()
    assert problem.outliers.sum() == np.sum((problem.S != 0) & problem.observed)


def test_noise_and_scale_are_in_units_of_the_mean() -> None:
    problem = planted((120, 110), noise=0.1, outlier_fraction=0.0, scale=50.0)
    assert np.abs(problem.X).mean() == pytest.approx(50)
    assert np.std(problem.Y - problem.X) == pytest.approx(5, rel=0.05)
    assert not problem.outliers.any()


def test_entries_as_in_the_paper() -> None:
    """N(0, 1/n1) and N(0, 1/n2) factors: σ_1 of X is near 1, entries have variance r / (n1 n2)."""
    problem = planted((400, 300), rank=4, outlier_fraction=0)
    assert np.linalg.norm(problem.X, 2) == pytest.approx(1, rel=0.25)
    assert np.var(problem.X) == pytest.approx(4 / (400 * 300), rel=0.2)


@pytest.mark.parametrize("condition", (5.0, 1000.0))
def test_condition(condition: float) -> None:
    values = np.linalg.svd(planted((60, 50), rank=4, condition=condition).X, compute_uv=False)
    assert values[0] / values[3] == pytest.approx(condition)
    np.testing.assert_allclose(np.diff(values[:4]), np.diff(values[:4])[0], rtol=1e-6)
    assert values[4] < 1e-12 * values[0]


@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.complex64, np.complex128))
def test_dtypes(dtype: Any) -> None:
    problem = planted((40, 30), rank=2, noise=0.1, missing=0.1, dtype=dtype)
    assert problem.Y.dtype == dtype
    if np.dtype(dtype).kind == "c":
        assert np.abs(problem.X.imag).mean() == pytest.approx(np.abs(problem.X.real).mean(), rel=0.3)
        assert np.abs(problem.S.imag).max() > 0


@pytest.mark.parametrize(("placement", "axis"), [("rows", 1), ("columns", 0)])
@pytest.mark.parametrize(("share", "density"), [(0.12, 0.6), (0.3, 0.6), (0.75, 0.75)])
def test_gathered_outliers(placement: str, axis: int, share: float, density: float) -> None:
    problem = planted((80, 100), outlier_fraction=share, placement=placement, random_state=3)
    counts = np.sum(problem.S != 0, axis=axis) / problem.S.shape[axis]
    hit = counts[counts > 0]
    assert np.mean(problem.S != 0) == pytest.approx(share, rel=0.03)
    np.testing.assert_allclose(hit, density, atol=0.02)
    assert len(hit) == pytest.approx(share / density * len(counts), abs=1)
    if share < density:
        # Which ones is drawn, not the first.
        assert np.flatnonzero(counts)[-1] >= len(hit)


def test_moving_blocks() -> None:
    problem = planted((60, 120), outlier_fraction=0.2, outlier_size=3, placement="blocks", one_sided=True)
    assert problem.S.min() >= 0
    hit = problem.S > 0
    np.testing.assert_array_equal(hit.sum(axis=1), 24)
    for row in hit:
        # One stretch on a ring has one beginning.
        assert np.sum(row & ~np.roll(row, 1)) == 1
    starts = [int(np.flatnonzero(row & ~np.roll(row, 1))[0]) for row in hit]
    assert set((np.diff(starts)) % 120) == {2}
    # An object stays over a pixel for a dozen frames, not for ever.
    assert hit.sum(axis=0).max() < 0.5 * len(hit)


@pytest.mark.parametrize("one_sided", (False, True))
def test_constant_outliers(one_sided: bool) -> None:
    problem = planted((100, 90), outlier_fraction=0.2, outlier_size=3, law="constant", one_sided=one_sided)
    sizes = problem.S[problem.S != 0] / np.abs(problem.X).mean()
    assert len(sizes) == int(0.2 * 9000)
    np.testing.assert_allclose(np.abs(sizes), 3, rtol=1e-12)
    assert np.mean(sizes > 0) == (1 if one_sided else pytest.approx(0.5, abs=0.05))


@pytest.mark.parametrize("scale", (None, 30.0))
def test_offset_is_one_of_the_components(scale: float | None) -> None:
    problem = planted((80, 60), rank=4, offset=5.0, outlier_fraction=0.1, outlier_size=2, scale=scale)
    assert np.linalg.matrix_rank(problem.X) == problem.rank == 4
    plain = problem.X - problem.X.mean()
    typical = np.abs(plain).mean()
    assert problem.X.mean() == pytest.approx(5 * typical, rel=0.1)
    # Outliers are in units of the signal, not of the offset.
    assert np.abs(problem.S).max() == pytest.approx(2 * typical, rel=0.1)
    if scale is not None:
        assert typical == pytest.approx(scale, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"placement": "row"}, "placement='row' is unknown; use one of uniform, rows, columns, blocks"),
        ({"law": "normal"}, "law='normal' is unknown; use one of uniform, constant"),
        ({"outlier_fraction": 1.5}, "outlier_fraction=1.5 is not between 0 and 1; e.g."),
        ({"missing": -0.1}, "missing=-0.1 is not between 0 and 1; e.g."),
        ({"rank": 0}, r"rank=0 is not between 1 and min\(shape\)=20; "),
        ({"rank": 1.5}, "^rank=1.5 is not an integer; e.g. 5$"),
        ({"rank": 21}, r"rank=21 is not between 1 and min\(shape\)=20; "),
        ({"rank": 1, "offset": 5.0}, "rank=1 is not between 2 and .*; an offset counts as one"),
        ({"noise": -0.1}, "noise=-0.1 is below 0; "),
        ({"condition": 0.5}, "condition=0.5 is below 1; "),
        ({"outlier_size": np.nan}, "outlier_size=nan is below 0; "),
        ({"scale": 0.0}, "scale=0.0 is not positive; "),
    ],
)
def test_refusals(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planted((20, 20), **{"rank": 2, **arguments})


@pytest.mark.parametrize("shape", (20, (20,), (0, 20), (20.5, 20), "ab"))
def test_shapes_that_are_none(shape: Any) -> None:
    with pytest.raises(ValueError, match=r"^shape=.* is not a pair of positive integers; e\.g\. \(200, 150\)$"):
        planted(shape, rank=2)


@pytest.mark.parametrize("dtype", (float, complex))
@pytest.mark.parametrize("shape", [(30, 25), (12, 60)])
def test_oracle_error_against_dense_projections(dtype: Any, shape: tuple[int, int]) -> None:
    problem = planted(
        shape, rank=3, outlier_fraction=0.2, missing=0.3, noise=0.1, condition=20, dtype=dtype, random_state=5
    )
    U, _, Vh = np.linalg.svd(problem.X)
    P, Q = U[:, :3] @ U[:, :3].conj().T, Vh[:3].conj().T @ Vh[:3]
    clean = problem.observed & (problem.S == 0)
    noise = np.zeros(shape, dtype)
    noise[clean] = problem.Y[clean] - problem.X[clean]
    tangent = P @ noise + noise @ Q - P @ noise @ Q
    expected = np.linalg.norm(tangent) / np.mean(clean) / np.linalg.norm(problem.X)
    assert problem.oracle_error == pytest.approx(expected, rel=1e-9)
    # σ √(r (n1 + n2 - r) / p) / ‖X‖ is what one expects of it.
    sigma = 0.1 * np.abs(problem.X).mean()
    typical = sigma * np.sqrt(3 * (sum(shape) - 3) / np.mean(clean)) / np.linalg.norm(problem.X)
    assert problem.oracle_error == pytest.approx(typical, rel=0.25)


def test_oracle_knows_all_without_noise() -> None:
    assert planted((30, 20), rank=2, outlier_fraction=0.3, missing=0.2).oracle_error < 1e-14
    assert planted((30, 20), rank=2, outlier_fraction=1.0, noise=0.1).oracle_error == np.inf


def test_rules_of_recovery() -> None:
    exact = planted((30, 20), rank=2)
    assert recovered(exact, 9e-6) and not recovered(exact, 1.1e-5)
    assert not wrong(exact, 1e-3) and wrong(exact, 1.1e-3)
    noisy = planted((30, 20), rank=2, noise=0.1)
    oracle = noisy.oracle_error
    assert 1e-3 < oracle < 0.5
    assert recovered(noisy, 1.59 * oracle) and not recovered(noisy, 1.61 * oracle)
    assert not wrong(noisy, 4.9 * oracle) and wrong(noisy, 5.1 * oracle)
    for problem in (exact, noisy):
        assert wrong(problem, np.nan) and not recovered(problem, np.nan)


def test_cases_are_seeded() -> None:
    case = next(case for case in grid() if case.arguments["shape"] == (150, 150))
    first, again, other = case.problem(), case.problem(0), case.problem(repeat=1)
    np.testing.assert_array_equal(first.Y, again.Y)
    assert not np.allclose(first.Y, other.Y)
    assert first.rank == case.arguments["rank"]
    # Cases of equal size do not share their numbers.
    twin = Case(case.kind, case.name + ", again", case.arguments, case.rank)
    assert not np.allclose(first.Y, twin.problem().Y)
    assert case in {case}
