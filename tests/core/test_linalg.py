"""Matrices on which LAPACK's divide and conquer does not converge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.core import linalg
from lrpca.solvers.methods import METHODS
from lrpca.testing import planted

PROBLEM = planted((70, 60), rank=2, outlier_fraction=0.1, outlier_size=5, random_state=0)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the fast algorithms fail on every matrix."""

    def fail(*arguments: Any, **keywords: Any) -> Any:
        raise np.linalg.LinAlgError("SVD did not converge")

    for name in ("svd", "eigh", "lstsq"):
        monkeypatch.setattr(np.linalg, name, fail)


@pytest.mark.parametrize(("seed", "dtype"), [(40, np.float64), (10, np.float32), (27, np.float32)])
def test_repeated_rows(seed: int, dtype: type) -> None:
    """Seeds on which OpenBLAS 0.3.31 fails; a matrix of rank 5 with 20% outliers, rows repeated with them."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((60, 5)) @ rng.standard_normal((5, 200))
    rows += (rng.random(rows.shape) < 0.2) * 10 * rng.standard_normal(rows.shape)
    d = lrpca.decompose(rows[rng.integers(60, size=300)].astype(dtype), method="pcp")
    assert d.converged


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("dtype", (np.float64, np.float32, np.complex128))
def test_the_fallback_decomposes(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    stack = rng.standard_normal((3, 7, 5)).astype(dtype)
    if dtype is np.complex128:
        stack = stack + 1j * rng.standard_normal(stack.shape)
    within = 40 * np.finfo(dtype).eps
    for full, width in ((True, 7), (False, 5)):
        U, values, Vh = linalg.svd(stack, full_matrices=full)
        assert (U.shape, values.shape, Vh.shape, U.dtype) == ((3, 7, width), (3, 5), (3, 5, 5), stack.dtype)
        np.testing.assert_allclose((U[..., :5] * values[:, None]) @ Vh, stack, atol=within)
    grams = stack.conj().swapaxes(1, 2) @ stack
    found, vectors = linalg.eigh(grams)
    np.testing.assert_allclose(grams @ vectors, vectors * found[:, None], atol=10 * within)
    assert (np.diff(found) >= 0).all()
    solution = linalg.least_squares(stack[0], stack[0] @ grams[0])
    np.testing.assert_allclose(solution, grams[0], atol=100 * within)


def test_some_eigenvalues_by_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy.linalg

    rng = np.random.default_rng(0)
    M, B = (part.T @ part for part in rng.standard_normal((2, 9, 6)))
    expected = [linalg.some_eigh(M, 3, 5), linalg.some_eigh(M, 0, 0, B)]
    right = scipy.linalg.eigh

    def fail(*arguments: Any, **keywords: Any) -> Any:
        if "subset_by_index" in keywords:
            raise np.linalg.LinAlgError("the algorithm failed to converge")
        return right(*arguments, **keywords)

    monkeypatch.setattr(scipy.linalg, "eigh", fail)
    for (values, vectors), found in zip(
        expected, (linalg.some_eigh(M, 3, 5), linalg.some_eigh(M, 0, 0, B)), strict=True
    ):
        np.testing.assert_allclose(found[0], values, rtol=1e-10)
        np.testing.assert_allclose(np.abs(found[1]), np.abs(vectors), atol=1e-10)


def test_tensors_by_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def fail(*arguments: Any, **keywords: Any) -> Any:
        raise torch.linalg.LinAlgError("linalg.svd: The algorithm failed to converge")

    for name in ("svd", "eigh"):
        monkeypatch.setattr(torch.linalg, name, fail)
    M = torch.randn(3, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    U, values, Vh = linalg.tensor_svd(M, full_matrices=False)
    torch.testing.assert_close((U * values[:, None]) @ Vh, M)
    found, vectors = linalg.tensor_eigh(M.transpose(1, 2) @ M)
    torch.testing.assert_close((vectors * found[:, None]) @ vectors.transpose(1, 2), M.transpose(1, 2) @ M)
    for decompose in (linalg.tensor_svd, linalg.tensor_eigh):
        with pytest.raises(torch.linalg.LinAlgError):
            decompose(torch.full((2, 2), torch.nan))


def test_what_is_not_finite_is_no_matter_of_the_fallback() -> None:
    infinite = np.full((3, 3), np.inf)
    for decompose in (linalg.svd, linalg.eigh, lambda M: linalg.some_eigh(M, 0, 1)):
        with pytest.raises(np.linalg.LinAlgError):
            decompose(infinite)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_goes_on(method: str, request: pytest.FixtureRequest) -> None:
    """All of them go through the helpers: with either algorithm they find the same."""
    usual = lrpca.decompose(PROBLEM.Y, 2, method=method)
    request.getfixturevalue("failing")
    d = lrpca.decompose(PROBLEM.Y, 2, method=method)
    assert d.reason == usual.reason
    assert np.linalg.norm(d.low_rank - usual.low_rank) < 1e-6 * np.linalg.norm(usual.low_rank)


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("columns", (60, 8))
def test_the_estimator_goes_on(columns: int) -> None:
    Y = PROBLEM.Y[:, :columns].copy()
    Y[::7, 3] = np.nan
    model = lrpca.RobustPCA(2).fit(Y)
    assert model.converged_ and model.transform(Y).shape == (70, 2)
    assert np.isfinite(model.low_rank_).all()
    assert lrpca.RobustPCA(2).partial_fit(Y).components_.shape == (2, columns)
