"""Outliers that fill a block are no component, however much room the rank leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lrpca import decompose
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import Sample, draw_sample
from lrpca.solvers.checks.spurious_components import without_unfounded
from lrpca.solvers.components import all_present
from lrpca.testing import planted

RANK, SHAPE, BLOCK = 2, (400, 300), (60, 60)


def spoiled(
    kind: str, noise: float, *, seed: int = 0, block: tuple[int, int] = BLOCK, is_complex: bool = False
) -> tuple[Any, Any, Any]:
    """Return Y, X and the indices of the block that outliers fill."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if is_complex else 0)

    X = normal(SHAPE[0], RANK) @ normal(RANK, SHAPE[1])
    Y = X + noise * normal(*SHAPE)
    hit = np.ix_(*(rng.choice(n, size, replace=False) for n, size in zip(SHAPE, block, strict=True)))
    values = normal(*block)
    Y[hit] = {"one value": 30.0, "random": 20 * values, "two values": 20 * np.sign(values.real)}[kind]
    return Y, X, hit


def error(found: Any, X: Any) -> float:
    return float(np.linalg.norm(found - X) / np.linalg.norm(X))


@pytest.mark.parametrize("surplus", (1, 3))
@pytest.mark.parametrize("block", ((60, 60), (20, 20)))
@pytest.mark.parametrize("noise", (0.0, 0.01))
@pytest.mark.parametrize("kind", ("one value", "random", "two values"))
def test_a_block_of_outliers_is_no_component(kind: str, noise: float, block: tuple[int, int], surplus: int) -> None:
    Y, X, hit = spoiled(kind, noise, block=block)
    d = decompose(Y, RANK + surplus)
    assert d.converged and d.diagnosis.components == RANK
    assert error(d.low_rank, X) < (2e-3 if noise else 1e-6)
    assert d.outliers[hit].mean() > 0.99


@pytest.mark.parametrize("kind", ("one value", "random"))
def test_the_rank_that_is_found_does_not_count_it(kind: str) -> None:
    Y, X, _ = spoiled(kind, 0.01)
    d = decompose(Y)
    assert d.converged and d.rank == RANK
    assert error(d.low_rank, X) < 2e-3


def test_complex_numbers_and_tensors() -> None:
    torch = pytest.importorskip("torch")
    from lrpca.matrices.tensor import TensorMatrix

    Y, X, _ = spoiled("random", 0.0, is_complex=True)
    assert error(decompose(Y, RANK + 1).low_rank, X) < 1e-6
    Y, X, _ = spoiled("random", 0.0)
    d = decompose(TensorMatrix(torch.from_numpy(Y)), RANK + 1)
    assert d.diagnosis.components == RANK
    assert error(np.asarray(d.L) @ np.asarray(d.R).T, X) < 1e-6


# ------------------------------------------------------------------------------------------ the question itself


def asked(fitted: Any, rank: int, Y: Any, cutoff: float = 1e-6) -> Any:
    """Ask of a fit whether it has an unfounded component; return X without it, or None."""
    U, values, Vt = np.linalg.svd(fitted, full_matrices=False)
    root = np.sqrt(values[:rank])
    parts = all_present(U[:, :rank] * root, Vt[:rank].T * root)
    sample: Sample = draw_sample(DenseMatrix(Y), np.random.default_rng(0))
    found = without_unfounded(parts, sample, cutoff, edge=1e-9)
    if found is None:
        return None
    L, R = found.parts.factors()
    assert found.parts.present < rank
    return L @ R.T


@pytest.mark.parametrize("size", (30.0, 2.0, 0.5))
def test_what_is_mixed_with_true_components_is_taken_out_of_them(size: float) -> None:
    Y, X, hit = spoiled("random", 0.0)
    fitted = X.copy()
    fitted[hit] += size
    assert error(fitted, X) > 0.05
    left = asked(fitted, RANK + 1, Y)
    assert error(left, X) < 1e-5


def test_two_of_them() -> None:
    Y, X, hit = spoiled("random", 0.0)
    fitted = X.copy()
    rng = np.random.default_rng(1)
    fitted[hit] += rng.standard_normal((BLOCK[0], 2)) @ rng.standard_normal((2, BLOCK[1]))
    once = asked(fitted, RANK + 2, Y)
    assert error(asked(once, RANK + 1, Y), X) < 1e-5


@pytest.mark.parametrize("outliers", (0.1, 0.5, 0.8))
def test_true_components_are_supported(outliers: float) -> None:
    problem = planted(SHAPE, rank=5, outlier_fraction=outliers, random_state=0)
    assert asked(problem.X, 5, problem.Y) is None


def test_a_component_that_lives_where_many_outliers_are_is_supported() -> None:
    Y, X, hit = spoiled("random", 0.0)
    X[hit] += 3.0
    is_outlier = np.random.default_rng(2).random(BLOCK) < 0.6
    Y[hit] = np.where(is_outlier, Y[hit], X[hit])
    assert asked(X, RANK + 1, Y) is None
