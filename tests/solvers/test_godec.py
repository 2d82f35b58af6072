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


@pytest.mark.parametrize("size", (1, 10))
@pytest.mark.parametrize("share", (0.1, 0.3))
def test_recovers_the_standard_problem(share: float, size: float) -> None:
    problem = make((600, 600), share, outlier_size=size)
    d = solve(problem.Y)
    assert d.converged
    assert problem.error(d.low_rank) < 1e-5
    assert d.estimated == ("alpha",)
    assert d.settings["alpha"] == pytest.approx(share, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "rank", "within"),
    [
        ({"dtype": np.float32}, RANK, 1e-6),
        ({"shape": (500, 150)}, RANK, 1e-4),
        ({"shape": (150, 500)}, RANK, 1e-4),
        ({"missing": 0.3}, RANK, 1e-6),
        ({"dtype": np.complex128}, RANK, 1e-6),
        ({"condition": 10}, RANK, 1e-6),
    ],
    ids=str,
)
def test_recovers(changes: dict[str, Any], rank: int, within: float) -> None:
    problem = make(**changes)
    d = solve(problem.Y, rank)
    assert d.converged
    assert problem.error(d.low_rank) < within
    assert d.L.shape[1] == rank and d.L.dtype == problem.Y.dtype


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


def test_the_threshold_is_the_exact_order_statistic() -> None:
    """Also where the sample's quantile is far off."""
    from lrpca.matrices.dense import DenseMatrix
    from lrpca.matrices.sample import Sample
    from lrpca.solvers.godec import _threshold

    problem = make((310, 290), missing=0.2)
    rng = np.random.default_rng(0)
    L, R = rng.standard_normal((310, 2)) / 50, rng.standard_normal((290, 2)) / 50
    sizes = np.sort(np.abs(problem.Y - L @ R.T)[problem.observed])
    i, j = (part[:2000] for part in np.nonzero(problem.observed))
    honest = Sample(i, j, problem.Y[i, j])
    misled = Sample(i[:50], j[:50], np.full(50, 1e3))

    class Part:
        matrix = DenseMatrix(problem.Y)

    for sample in (honest, misled):
        Part.sample = sample  # type: ignore[attr-defined]
        for count in (1, 700, 9000, len(sizes) - 1):
            got = _threshold(Part, L, R, count, len(sizes))  # type: ignore[arg-type]
            rounding = 1e-9 if sample is misled else 0.0
            assert max(got, rounding) == pytest.approx(max(sizes[-1 - count], rounding), rel=1e-6)
    assert _threshold(Part, L, R, 0, len(sizes)) == np.inf  # type: ignore[arg-type]


def test_layouts_give_the_same_answer() -> None:
    wide = np.full((600, 900), 1e3)
    wide[::2, ::3] = PROBLEM.Y
    d = solve(PROBLEM.Y)
    for Y in (np.asfortranarray(PROBLEM.Y), wide[::2, ::3]):
        assert np.abs(solve(Y).low_rank - d.low_rank).max() < 1e-6 * np.abs(d.low_rank).max()


def test_mask_is_as_good_as_nan() -> None:
    problem = make(missing=0.3)
    Y = np.where(problem.observed, problem.Y, 1e3)
    assert problem.error(solve(Y, mask=problem.observed).low_rank) < 1e-6


def test_bytes() -> None:
    rng = np.random.default_rng(5)
    X = rng.integers(0, 8, (300, 3)) @ rng.integers(0, 8, (3, 280))
    Y = np.where(rng.random(X.shape) < 0.1, rng.integers(0, 255, X.shape), X).astype(np.uint8)
    d = solve(Y, 3)
    assert d.converged and d.L.dtype == np.float32
    # Outliers by no more than two steps cannot be told from quantisation.
    assert np.linalg.norm(d.low_rank - X) < 1e-3 * np.linalg.norm(X)


def test_rows_of_outliers_do_not_spoil_the_others() -> None:
    rng = np.random.default_rng(2)
    Y, bad = PROBLEM.Y.copy(), np.arange(0, 300, 20)
    Y[bad] = rng.uniform(-3, 3, (len(bad), 300)) * np.abs(Y).max()
    good = np.setdiff1d(np.arange(300), bad)
    with pytest.warns(lrpca.ConvergenceWarning, match="stalled"), pytest.warns(lrpca.DiagnosisWarning, match="15 row"):
        d = solve(Y)
    assert np.linalg.norm(d.low_rank[good] - PROBLEM.X[good]) < 1e-4 * np.linalg.norm(PROBLEM.X[good])


def test_noise() -> None:
    noisy = make(noise=0.05, outlier_size=10)
    d = solve(noisy.Y)
    assert d.reason == "noise_floor"
    assert noisy.error(d.low_rank) < 1.6 * noisy.oracle_error


def test_start() -> None:
    d = solve(PROBLEM.Y)
    again = solve(PROBLEM.Y, start=(d.L, d.R), options={"alpha": d.settings["alpha"]})
    assert again.n_iter <= 3
    assert PROBLEM.error(again.low_rank) < 1e-6


def test_threads_do_not_change_the_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    d = solve(PROBLEM.Y)
    monkeypatch.setattr(lrpca.kernels.threads, "thread_count", lambda: 1)
    np.testing.assert_array_equal(solve(PROBLEM.Y).L, d.L)


@pytest.mark.parametrize("Y", (np.zeros((30, 20)), np.ones((1, 1)), np.full((60, 50), 7.0)), ids=("0", "1x1", "7"))
def test_degenerate(Y: Any) -> None:
    with pytest.warns(lrpca.exceptions.DiagnosisWarning, match="S is empty"):
        d = solve(Y, 1)
    assert d.converged
    np.testing.assert_allclose(d.low_rank, Y, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.0}, r"options\['alpha'\]=1.0 is not a number below 1 and at least 0|at least 0 and below 1"),
        ({"power_steps": 0}, r"options\['power_steps'\]=0 is not an integer of at least 1"),
        ({"warm": 1}, r"options\['warm'\]=1 is not True or False"),
        ({"k": 1}, "is unknown to method='godec'; use alpha, ramp, power_steps, warm"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve(PROBLEM.Y, options=options)


def test_infinite_entries_are_refused() -> None:
    Y = PROBLEM.Y.copy()
    Y[17, 33] = np.inf
    with pytest.raises(ValueError, match=r"Y\[17, 33\]=inf is not finite"):
        solve(Y)
