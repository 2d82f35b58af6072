"""The solvers on tensors: the device path, run on the CPU, gives the answers of the NumPy path."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.core.influence import levels
from lrpca.matrices.dense import DenseMatrix

torch = pytest.importorskip("torch")

from lrpca.matrices.tensor import TensorMatrix  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")],
    ),
]


@cache
def planted(noise: float = 0.0, shape: tuple[int, int] = (360, 300), rank: int = 4) -> Any:
    return lrpca.testing.planted(shape, rank=rank, outlier_fraction=0.1, noise=noise, random_state=1)


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


def with_gaps(Y: Any, share: float) -> Any:
    return np.where(np.random.default_rng(3).random(Y.shape) < share, np.nan, Y)


def one_sided() -> Any:
    X = planted().X
    hit = np.random.default_rng(4).random(X.shape) < 0.3
    return X + np.where(hit, 10 * np.abs(X).mean(), 0.0)


def unexplained_rows() -> Any:
    Y = planted().X.copy()
    Y[[7, 33]] *= [[50.0], [100.0]]
    hit = np.random.default_rng(5).random(Y.shape) < 0.2
    return Y + np.where(hit, 20 * draw(*Y.shape), 0.0)


def complex_data() -> Any:
    X = (draw(300, 4, seed=6) + 1j * draw(300, 4, seed=7)) @ (draw(4, 200, seed=8) + 1j * draw(4, 200, seed=9))
    return X + np.where(np.random.default_rng(10).random(X.shape) < 0.1, 30 * (1 + 1j), 0.0)


def badly_conditioned() -> Any:
    """Return data whose surplus components are fitted to outliers, and rescued from them, on the way."""
    rng = np.random.default_rng(2)
    U, V = (np.linalg.qr(rng.standard_normal((n, 5)))[0] for n in (400, 300))
    X = 300 * (U * np.logspace(0, -4, 5)) @ V.T
    return X + np.where(rng.random(X.shape) < 0.1, 5 * rng.standard_normal(X.shape), 0.0)


def pixels() -> Any:
    Y = planted(0.0, (150, 130), 2).Y
    return np.clip(128 + 20 * Y / np.abs(Y).mean(), 0, 255).astype(np.uint8)


def weights() -> Any:
    return np.where(np.arange(360) < 30, 0.0, np.random.default_rng(11).random(360))


def some_start(rank: int = 4) -> Any:
    return draw(360, rank, seed=12), draw(300, rank, seed=13)


def near_start() -> Any:
    """Return factors near the planted ones, one component of which is absent."""
    U, values, Vt = np.linalg.svd(planted().X)
    return U[:, :4] * values[:4] * [1, 1, 1, 0] + 1e-3 * draw(360, 4) * [1, 1, 1, 0], Vt[:4].T.copy()


Problem = tuple[Callable[[], Any], int | str | float, dict[str, Any]]
PROBLEMS: dict[str, Problem] = {
    "exact": (lambda: planted().Y, 4, {}),
    "noisy": (lambda: planted(0.1).Y, 4, {}),
    "half missing": (lambda: with_gaps(planted().Y, 0.5), 4, {}),
    "one-sided": (one_sided, 4, {}),
    "unexplained rows": (unexplained_rows, 4, {}),
    "badly conditioned, rank too large": (badly_conditioned, 8, {"tol": 1e-10}),
    "noisy, rank too large": (lambda: planted(0.1).Y, 7, {}),
    "narrow": (lambda: planted(0.01, (2000, 30), 3).Y, 3, {}),
    "wide": (lambda: planted(0.01, (30, 2000), 3).Y, 3, {}),
    "Fortran order": (lambda: np.asfortranarray(planted().Y), 4, {}),
    "row_weight": (lambda: planted(0.1).Y, 4, {"row_weight": weights()}),
    "row_weight, random start": (lambda: planted().Y, 4, {"row_weight": weights(), "options": {"power_steps": 1}}),
    "start": (lambda: planted().Y, 4, {"start": near_start()}),
    "learned": (lambda: planted().Y, 4, {"schedule": "fast"}),
    "learned for this size": (lambda: planted().Y, 4, {"schedule": "frmnn-0.1"}),
    "auto": (lambda: planted().Y, "auto", {}),
    "share": (lambda: planted().Y, 0.9, {"row_weight": weights()}),
    "X and S at rest": (lambda: planted(0.1).Y, 4, {"tol": 0, "options": {"change": 1e-3}}),
    "complex": (complex_data, 4, {}),
    "large": (lambda: planted(0.0, (1300, 900)).Y, 5, {"tol": 1e-10}),
}
# Where probes follow the noise, or a run goes on for long, one rounding of Y moves X by this much, too; what the noise
# costs is a hundred times more.
SENSITIVE = {
    "noisy": 1e-8,
    "narrow": 1e-7,
    "one-sided": 1e-8,
    "row_weight": 1e-8,
    "noisy, rank too large": 1e-3,
    "wide": 1e-5,
}
SINGLE: dict[str, Problem] = {
    "exact": (lambda: planted().Y.astype(np.float32), 4, {}),
    "complex": (lambda: complex_data().astype(np.complex64), 4, {}),
    "bytes": (pixels, 3, {}),
}


def solved_both_ways(problem: Problem, device: str, **more: Any) -> tuple[Any, Any]:
    make, rank, settings = problem
    Y = make()
    with warnings.catch_warnings():
        # Both say the same of runs that do not converge, which `reason` tells.
        warnings.simplefilter("ignore", lrpca.ConvergenceWarning)
        warnings.simplefilter("ignore", lrpca.DiagnosisWarning)
        want = lrpca.decompose(Y, rank, **settings, **more)
        got = lrpca.decompose(TensorMatrix(torch.from_numpy(Y).to(device)), rank, **settings, **more)
    return got, want


def host(array: Any) -> Any:
    return array.cpu().numpy() if isinstance(array, torch.Tensor) else np.asarray(array)


def assert_same(got: Any, want: Any, within: float) -> None:
    assert (got.reason, got.rank) == (want.reason, want.rank)
    assert abs(got.n_iter - want.n_iter) <= 1
    X = want.L @ want.R.T
    assert np.linalg.norm(host(got.L) @ host(got.R).T - X) <= within * np.linalg.norm(X)
    assert host(got.L).dtype == want.L.dtype
    assert isinstance(got.diagnosis.kept_by_row, np.ndarray)
    np.testing.assert_allclose(got.diagnosis.kept_by_row, want.diagnosis.kept_by_row, atol=0.02)
    assert got.outlier_fraction == pytest.approx(want.outlier_fraction, abs=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_answers_of_the_numpy_path(name: str, device: str) -> None:
    assert_same(*solved_both_ways(PROBLEMS[name], device), within=SENSITIVE.get(name, 1e-10))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SINGLE)
def test_answers_in_single_precision(name: str, device: str) -> None:
    assert_same(*solved_both_ways(SINGLE[name], device), within=1e-6)


def test_answers_of_sampling() -> None:
    problem: Problem = (lambda: planted(0.1, (900, 800)).Y, 4, {"method": "sampled", "options": {"side": 150}})
    assert_same(*solved_both_ways(problem, "cpu"), within=1e-9)


def test_a_checkpoint_is_gone_on_from(tmp_path: Path) -> None:
    """Interrupted and taken up again, the run ends where it would have ended, to the bit."""
    Y = torch.from_numpy(planted(0.1).Y)
    whole = lrpca.decompose(TensorMatrix(Y), 4)
    with pytest.warns(lrpca.ConvergenceWarning):
        lrpca.decompose(TensorMatrix(Y), 4, max_iter=3, options={"checkpoint": str(tmp_path / "run.npz")})
    resumed = lrpca.decompose(TensorMatrix(Y), 4, options={"checkpoint": str(tmp_path / "run.npz")})
    assert (resumed.n_iter, resumed.reason) == (whole.n_iter, whole.reason)
    np.testing.assert_array_equal(host(resumed.L), host(whole.L))


def test_iterations_wait_for_the_device_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every number that comes to the host waits for all that was begun before: single operations would make 46."""
    counts: list[int] = [0]
    monkeypatch.setattr(torch.Tensor, "cpu", _counted(torch.Tensor.cpu, counts))
    monkeypatch.setattr(torch.Tensor, "__float__", _counted(torch.Tensor.__float__, counts))
    seen: list[int] = []
    # The callback sees DeviceArrays, or what is made of them without a transfer.
    lrpca.decompose(TensorMatrix(torch.from_numpy(planted().Y)), 4, callback=lambda state: seen.append(counts[0]))
    waits = np.diff(seen)
    # Early ones look for medians, too.
    assert len(waits) >= 5 and 1 <= np.median(waits) <= 8


def _counted(function: Callable[..., Any], counts: list[int]) -> Callable[..., Any]:
    def counted(tensor: Any) -> Any:
        counts[0] += 1
        return function(tensor)

    return counted


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "uint8", "int16", "int64", "complex64"])
@pytest.mark.parametrize("masked", [False, True])
def test_looks_like_a_dense_matrix(dtype: str, masked: bool) -> None:
    """Parts of Y come to the host as those of an array do."""
    tensor = (10 * torch.from_numpy(draw(40, 30))).to(getattr(torch, dtype))
    array = tensor.float().numpy() if dtype in ("float16", "bfloat16") else tensor.numpy()
    mask = np.random.default_rng(2).random((40, 30)) < 0.7 if masked else None
    ours = TensorMatrix(tensor, None if mask is None else torch.from_numpy(mask))
    theirs = DenseMatrix(array, mask)
    for name in ("shape", "stored", "arithmetic", "result", "is_masked"):
        assert getattr(ours, name) == getattr(theirs, name)
    rows, columns = np.array([3, 39, 3, 0]), np.array([29, 1, 5, 5])
    pairs = list(zip(ours.entries(rows, columns), theirs.entries(rows, columns), strict=True))
    for part, other in (
        (ours.take_rows(rows), theirs.take_rows(rows)),
        (ours.take_columns(columns), theirs.take_columns(columns)),
        (ours.submatrix(rows, columns[:2]), theirs.submatrix(rows, columns[:2])),
    ):
        assert type(part) is DenseMatrix
        pairs += [(part.array, other.array), (part.mask, other.mask)]
    for block, other_block in zip(ours.blocks(16), theirs.blocks(16), strict=True):
        assert block[0] == other_block[0]
        pairs += list(zip(block[1:], other_block[1:], strict=True))
    pairs += [(ours.dense_rows(slice(2, 9)), theirs.dense_rows(slice(2, 9)))]
    totals = [
        matrix.map_rows(lambda rows, block, seen: np.where(seen, block, 0).sum(), missing=True)
        for matrix in (ours, theirs)
    ]
    for got, want in [*pairs, tuple(totals)]:
        assert (got is None) == (want is None)
        if want is not None:
            assert np.asarray(got).dtype == np.asarray(want).dtype
            np.testing.assert_array_equal(got, want)


def test_expanded_data_are_not_copied() -> None:
    row = torch.from_numpy(draw(1, 50)).expand(400, 50)
    matrix = TensorMatrix(row)
    assert matrix.array.data_ptr() == row.data_ptr() and matrix.array.stride(0) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lrpca.DiagnosisWarning)  # there are no outliers
        d = lrpca.decompose(matrix, 1)
    assert np.linalg.norm(host(d.L) @ host(d.R).T - row.numpy()) <= 1e-10 * np.linalg.norm(row.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_infinite_entries_are_named(dtype: str) -> None:
    Y = torch.from_numpy(planted(0.1, (900, 800)).Y).to(getattr(torch, dtype))
    Y[411, 7] = -torch.inf
    with pytest.raises(ValueError, match=r"Y\[411, 7\]=-inf is not finite"):
        lrpca.decompose(TensorMatrix(Y), 4)
    hidden = torch.ones(Y.shape, dtype=torch.bool)
    hidden[411, 7] = False
    assert TensorMatrix(Y, hidden).find_largest() == DenseMatrix(Y.float().numpy(), hidden.numpy()).find_largest()
    Y[300, 2] = torch.nan
    Y[800, 5] = -100.0
    assert TensorMatrix(Y, hidden).find_largest() == (800, 5)
    assert TensorMatrix(Y).find_largest() == (411, 7)


def test_double_precision_may_be_computed_in_single() -> None:
    matrix = TensorMatrix(torch.from_numpy(planted().Y))
    (L, R), level = some_start(), levels("redescending", 1.0)
    exact = np.asarray(matrix.run_pass(L, R, level, A=R, B=L).CA)
    matrix.compute_roughly(True)
    rough = np.asarray(matrix.run_pass(L, R, level, A=R, B=L).CA)
    assert 0 < np.linalg.norm(rough - exact) < 1e-5 * np.linalg.norm(exact)
    matrix.compute_roughly(False)
    np.testing.assert_array_equal(np.asarray(matrix.run_pass(L, R, level, A=R, B=L).CA), exact)


@pytest.mark.parametrize("noise", (0.0, 0.02))
@pytest.mark.parametrize("power", (-450, -200, -150, -100, 100, 150, 200, 450))
def test_scaling_by_powers_of_four(power: int, noise: float) -> None:
    """C R is as large as the data to the power of 1.5, and its Gram to the third."""
    Y = planted(noise, (120, 90)).Y
    want, found = (lrpca.decompose(TensorMatrix(torch.from_numpy(np.ldexp(Y, k))), 4) for k in (0, 2 * power))
    assert (found.reason, found.n_iter) == (want.reason, want.n_iter)
    for ours, theirs in ((found.L.numpy(), want.L.numpy()), (found.R.numpy(), want.R.numpy())):
        scaled = np.ldexp(ours, -power)
        np.testing.assert_allclose(scaled, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())
        assert abs(power) > 100 or np.array_equal(scaled, theirs)


def test_gradients_are_left_alone() -> None:
    Y = torch.from_numpy(planted().Y).requires_grad_()
    d = lrpca.decompose(TensorMatrix(Y), 4)
    assert d.converged and Y.grad is None
