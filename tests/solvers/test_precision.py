"""Large double-precision data: the first passes are computed in single precision, the last ones are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lrpca import decompose
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers import adaptive
from lrpca.testing import Problem, planted

RANK = 3


@pytest.fixture(autouse=True)
def _every_matrix_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "_LARGE", 1)


@pytest.fixture
def arithmetic(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The number type of every pass, in order."""
    seen: list[Any] = []
    run_pass = DenseMatrix.run_pass

    def spy(self: DenseMatrix, *arguments: Any, **keywords: Any) -> Any:
        seen.append(self.arithmetic)
        return run_pass(self, *arguments, **keywords)

    monkeypatch.setattr(DenseMatrix, "run_pass", spy)
    return seen


def make(**keywords: Any) -> Problem:
    return planted((200, 150), **{"rank": RANK, "outlier_fraction": 0.1, "outlier_size": 5, **keywords})


def test_single_precision_first_and_double_at_the_end(arithmetic: list[Any]) -> None:
    problem = make()
    d = decompose(problem.Y, RANK)
    assert arithmetic[0] == np.float32
    switch = arithmetic.index(np.dtype(np.float64))
    assert switch >= 5 and set(arithmetic[switch:]) == {np.dtype(np.float64)}
    assert d.L.dtype == np.float64 and problem.error(d.low_rank) < 1e-8


def test_complex(arithmetic: list[Any]) -> None:
    problem = make(dtype=np.complex128)
    assert problem.error(decompose(problem.Y, RANK).low_rank) < 1e-8
    assert {np.dtype(np.complex64), np.dtype(np.complex128)} == set(arithmetic)


def test_small_matrices_are_computed_in_double_precision(
    arithmetic: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive, "_LARGE", 1 << 20)
    decompose(make().Y, RANK)
    assert set(arithmetic) == {np.dtype(np.float64)}


def test_an_offset_counts_in_what_rounding_is(arithmetic: list[Any]) -> None:
    """Rounding is that of the entries, not of what varies in them."""
    problem = make(offset=1e5, scale=1.0)
    d = decompose(problem.Y, RANK)
    assert problem.error(d.low_rank) < 3e-11
    assert np.float64 in arithmetic[:6]


def test_outliers_whose_squares_single_precision_does_not_hold() -> None:
    problem = make()
    Y = problem.Y.copy()
    Y[problem.outliers] += 1e25
    assert problem.error(decompose(Y, RANK).low_rank) < 1e-8


def test_extreme_scales_are_left_in_double_precision(arithmetic: list[Any]) -> None:
    problem = make(scale=1e-30)
    assert problem.error(decompose(problem.Y, RANK).low_rank) < 1e-8
    assert set(arithmetic) == {np.dtype(np.float64)}


def test_in_noise_the_error_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make(noise=0.05)
    rough = problem.error(decompose(problem.Y, RANK).low_rank)
    monkeypatch.setattr(adaptive, "_LARGE", 1 << 40)
    full = problem.error(decompose(problem.Y, RANK).low_rank)
    assert rough == pytest.approx(full, rel=1e-3)
