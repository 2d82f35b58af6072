"""Rows and columns that are lost in one direction only are found, and fitted in that direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.core.passes import Pass
from lrpca.matrices.accept import accept
from lrpca.solvers.checks.low_inlier_rows import rescue_lost
from lrpca.solvers.checks.unsupported_directions import doubtful, support
from lrpca.solvers.initialise import Survey

GROUPS, SHAPE, CUTOFF = 8, (800, 60), 1e-9


def grouped(
    seed: int, shape: tuple[int, int] = SHAPE, groups: int = GROUPS, dtype: Any = float
) -> tuple[Any, Any, Any]:
    """Return Y with a tenth of outliers, and L and R: every row is a multiple of the pattern of its group."""
    rng = np.random.default_rng(seed)

    def normal(*size: int) -> Any:
        return rng.standard_normal(size) + (1j * rng.standard_normal(size) if dtype is complex else 0)

    L = np.eye(groups)[rng.integers(0, groups, shape[0])] * normal(shape[0], 1)
    R = normal(shape[1], groups)
    X = L @ R.T
    outliers = (rng.random(shape) < 0.1) * rng.uniform(-1, 1, shape) * np.abs(X).mean()
    return X + outliers, L, R


def counted(Y: Any, L: Any, R: Any) -> tuple[Pass, Survey]:
    """Return what a pass would say of the factors."""
    kept, seen = np.abs(Y - L @ R.T) <= CUTOFF, Y == Y
    last = Pass(np.zeros((len(L), 0)), np.zeros((len(R), 0)), kept.sum(axis=1), kept.sum(axis=0), 0.0)
    return last, Survey(seen.sum(axis=1), seen.sum(axis=0), 1.0)


@pytest.mark.parametrize("dtype", (float, complex))
@pytest.mark.parametrize("missing", (0.0, 0.2))
def test_a_column_that_is_wrong_for_one_group_of_rows(dtype: Any, missing: float) -> None:
    Y, L, R = grouped(0, dtype=dtype)
    Y[np.random.default_rng(1).random(Y.shape) < missing] = np.nan
    # Factors with the same product, in which no component is that of a group.
    mixing = np.random.default_rng(2).standard_normal((GROUPS, GROUPS))
    wrong = R.copy()
    wrong[[7, 30], [2, 5]] *= 1.05
    mixed, turned = L @ mixing, wrong @ np.linalg.inv(mixing).T
    last, facts = counted(Y, mixed, turned)
    rows, columns = doubtful(last.kept, facts)
    assert not len(rows) and {7, 30} <= set(columns) and len(columns) < 5
    matrix = accept(Y)
    assert not rescue_lost(matrix, mixed.copy(), turned.copy(), last, facts, CUTOFF, thorough=False)
    assert support(matrix, mixed, turned, last, facts, CUTOFF)
    np.testing.assert_allclose(mixed @ turned.T, L @ R.T, atol=1e-9)
    last, facts = counted(Y, mixed, turned)
    before = mixed.copy(), turned.copy()
    assert not support(matrix, mixed, turned, last, facts, CUTOFF)
    assert np.array_equal(before[0], mixed) and np.array_equal(before[1], turned)


def test_columns_with_more_outliers_than_others_are_left_alone() -> None:
    Y, L, R = grouped(0)
    rng = np.random.default_rng(1)
    Y[:, ::7] += (rng.random((SHAPE[0], len(R[::7]))) < 0.4) * rng.uniform(-1, 1, (SHAPE[0], len(R[::7])))
    last, facts = counted(Y, L, R)
    assert len(doubtful(last.kept, facts)[1]) == len(R[::7])
    before = L.copy(), R.copy()
    assert not support(accept(Y), L, R, last, facts, CUTOFF)
    assert np.array_equal(before[0], L) and np.array_equal(before[1], R)


@pytest.mark.parametrize("seed", (9, 10, 11))
def test_runs_do_not_end_with_a_pattern_that_is_wrong_in_one_column(seed: int) -> None:
    Y, L, R = grouped(seed, (1024, 80), 16)
    found = lrpca.decompose(Y, 16)
    assert found.converged
    assert np.linalg.norm(found.low_rank - L @ R.T) < 1e-7 * np.linalg.norm(L @ R.T)


def test_factors_on_a_device_are_changed_there() -> None:
    torch = pytest.importorskip("torch")
    from lrpca.matrices.device.array import DeviceArray
    from lrpca.matrices.tensor import TensorMatrix

    Y, L, R = grouped(0)
    wrong = R.copy()
    wrong[7, 2] *= 1.05
    last, facts = counted(Y, L, wrong)
    on_device = [DeviceArray(torch.from_numpy(factor.copy())) for factor in (L, wrong)]
    assert support(TensorMatrix(torch.from_numpy(Y)), *on_device, last, facts, CUTOFF)
    np.testing.assert_allclose(np.asarray(on_device[1]), R, atol=1e-9)
