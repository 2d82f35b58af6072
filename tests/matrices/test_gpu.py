"""Tensors on a GPU: the contract, the kernels against their specification, memory, and agreement with the CPU."""

from __future__ import annotations

import gc
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca import decompose
from lrpca.core.influence import everything, levels
from lrpca.decomposition.tensor import TensorDecomposition, to_tensor
from lrpca.kernels.reference import dense_pass
from lrpca.testing import CHECKS, Contract, planted

torch = pytest.importorskip("torch")

from lrpca.kernels import gpu  # noqa: E402
from lrpca.kernels.gpu import tensor_pass  # noqa: E402
from lrpca.kernels.torch_pass import plain_pass  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")]

RANK = 3
SHAPE = (400, 300)


def put(array: Any) -> Any:
    """Return an array as a tensor on the GPU."""
    return to_tensor(np.asarray(array), torch.device("cuda", torch.cuda.current_device()))


def near(got: Any, want: Any, within: float) -> bool:
    got, want = (x.cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x) for x in (got, want))
    return bool(np.linalg.norm(got - want) <= within * np.linalg.norm(want))


@pytest.fixture(scope="module")
def problem() -> Any:
    return planted(SHAPE, rank=RANK, outlier_fraction=0.1, random_state=1)


@pytest.fixture(scope="module")
def tensor(problem: Any) -> Any:
    return put(problem.Y)


@pytest.fixture(scope="module")
def result(tensor: Any) -> Any:
    return decompose(tensor, RANK)


def solver_by(method: str) -> Any:
    return lambda Y, rank: decompose(put(Y), rank, method=method).to_numpy()


@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")  # what does not converge is still an error
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("method", ("lrpca", "sampled"))
def test_contract(method: str, check: str) -> None:
    Contract(solver_by(method), accuracy=1e-7, single=5e-6).check(check)


PROBLEMS: dict[str, dict[str, Any]] = {
    "exact": {},
    "30% outliers": {"outlier_fraction": 0.3},
    "one-sided": {"outlier_fraction": 0.2, "one_sided": True, "outlier_size": 10.0},
    "noisy": {"noise": 0.05, "outlier_size": 10.0},
    "half missing": {"missing": 0.5},
    "missing and noisy": {"missing": 0.3, "noise": 0.01},
    "tall": {"shape": (2000, 60)},
    "wide": {"shape": (60, 2000)},
    "large": {"shape": (1500, 1200), "rank": 5},
    "rank one": {"rank": 1},
    "rank twenty": {"rank": 20, "shape": (600, 500)},
    "ill-conditioned": {"condition": 100.0},
    "complex": {"dtype": np.complex128},
}


@pytest.mark.parametrize("single", (True, False), ids=("single", "double"))
@pytest.mark.parametrize("name", PROBLEMS)
def test_answers_of_cpu_and_gpu(name: str, single: bool) -> None:
    arguments = {"shape": SHAPE, "rank": RANK, "outlier_fraction": 0.1, "random_state": 2} | PROBLEMS[name]
    problem = planted(**arguments)
    Y = problem.Y
    if single:
        Y = Y.astype(np.complex64 if np.iscomplexobj(Y) else np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lrpca.DiagnosisWarning)
        cpu, gpu = (decompose(A, arguments["rank"]) for A in (Y, put(Y)))
    assert (gpu.reason, gpu.rank) == (cpu.reason, cpu.rank) and abs(gpu.n_iter - cpu.n_iter) <= 2
    # At the noise floor both stop within the noise, not at the same place in it.
    noisy = "noise" in PROBLEMS[name]
    assert near(gpu.low_rank, cpu.low_rank, max(1e-5 if single else 1e-9, 0.1 * problem.oracle_error if noisy else 0))
    assert gpu.low_rank.is_cuda and gpu.L.dtype == (torch.from_numpy(Y).dtype)
    differing = (gpu.outliers.cpu().numpy() != cpu.outliers).mean()
    assert differing < 1e-3 * max(cpu.outlier_fraction, 1e-3)
    assert gpu.noise_level == pytest.approx(cpu.noise_level, rel=0.05, abs=1e-6 * float(np.nanmedian(np.abs(Y))))


def test_unknown_rank_and_methods(problem: Any, tensor: Any) -> None:
    for rank in ("auto", 0.95):
        assert decompose(tensor, rank).rank == decompose(problem.Y, rank).rank
    assert decompose(tensor, RANK, method="auto").method == "lrpca"
    with pytest.raises(ValueError, match="method='pcp' does not run on a GPU; pass Y.cpu"):
        decompose(tensor, RANK, method="pcp")


def test_published_schedule() -> None:
    Y = planted((1000, 1000), rank=5, outlier_fraction=0.1, random_state=3).Y
    cpu, gpu = (decompose(A, 5, schedule="frmnn-0.1", max_iter=12, tol=0) for A in (Y, put(Y)))
    assert near(gpu.low_rank, cpu.low_rank, 1e-9)


def test_same_bits_twice(problem: Any, tensor: Any) -> None:
    for Y in (tensor, tensor.float(), put(np.where(np.random.default_rng(0).random(SHAPE) < 0.3, np.nan, problem.Y))):
        first, second = (decompose(Y, RANK) for _ in range(2))
        assert torch.equal(first.L, second.L) and torch.equal(first.R, second.R)
        assert torch.equal(first.sparse, second.sparse)


@pytest.mark.filterwarnings("ignore:.*TF32.*:UserWarning")  # torch would rather be told in its newer way
def test_rounded_products_are_not_used(problem: Any) -> None:
    before = torch.get_float32_matmul_precision()
    Y = put(problem.Y).float()
    try:
        torch.set_float32_matmul_precision("high")
        d = decompose(Y, RANK)
        assert problem.error(d.low_rank.double().cpu().numpy()) < 1e-5
        assert near(d.low_rank, d.L.double() @ d.R.T.double(), 2e-7)
    finally:
        torch.set_float32_matmul_precision(before)


def test_settings_of_the_caller_change_nothing(tensor: Any) -> None:
    Y = tensor.float()
    want, by_cpu = decompose(Y, RANK), decompose(Y.cpu(), RANK)
    sparse = want.sparse
    for setting in (torch.autocast("cuda"), torch.device("cpu"), torch.device("cuda"), torch.inference_mode()):
        with setting:
            assert torch.equal(decompose(Y, RANK).sparse, sparse)
            assert torch.equal(decompose(Y.cpu(), RANK).L, by_cpu.L)


LAYOUTS = {
    "transposed": lambda t: t.T.contiguous().T,
    "strided": lambda t: t.repeat_interleave(2, 0).repeat_interleave(3, 1)[::2, ::3],
    "every second row": lambda t: t.repeat_interleave(2, 0)[::2],
    "part of a larger one": lambda t: torch.nn.functional.pad(t, (3, 4, 1, 2), value=torch.nan)[1:-2, 3:-4],
    "with a graph": lambda t: t.clone().requires_grad_() * 1.0,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(tensor: Any, result: Any, layout: str) -> None:
    for Y, within in ((tensor, 1e-9), (tensor.float(), 1e-5)):
        d = decompose(LAYOUTS[layout](Y), RANK)
        assert d.L.device == tensor.device and not d.L.requires_grad
        assert near(d.low_rank, result.low_rank, within)


@pytest.mark.parametrize(
    ("dtype", "result_dtype", "within"),
    [
        (torch.float16, torch.float32, 4e-3),
        (torch.bfloat16, torch.float32, 3e-2),
        (torch.uint8, torch.float32, 2e-2),
        (torch.int16, torch.float32, 2e-3),
        (torch.int32, torch.float64, 2e-3),
    ],
    ids=str,
)
def test_number_types(problem: Any, dtype: Any, result_dtype: Any, within: float) -> None:
    X, Y, rank = problem.X, problem.Y, RANK
    if not dtype.is_floating_point:
        # Bytes: the offset is one more component.
        shift, top = (128, 120) if dtype == torch.uint8 else (0, 1500)
        scale = top / np.abs(Y).max()
        X, Y, rank = scale * X + shift, np.rint(scale * Y) + shift, RANK + (shift > 0)
    d = decompose(put(Y).to(dtype), rank)
    assert {x.dtype for x in (d.L, d.R, d.low_rank, d.sparse)} == {result_dtype} and d.outliers.dtype == torch.bool
    assert {x.device for x in (d.L, d.R, d.low_rank, d.sparse, d.outliers)} == {d.device}
    assert near(d.low_rank, X, within)


@pytest.mark.parametrize("shape", (SHAPE, (SHAPE[0], 1), (1, SHAPE[1])), ids=("full", "by row", "by column"))
def test_masks(problem: Any, shape: tuple[int, int]) -> None:
    mask = np.random.default_rng(0).random(shape) < 0.8
    Y = np.where(mask, problem.Y, 1e3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lrpca.DiagnosisWarning)  # rows without influence
        want = decompose(Y, RANK, mask=mask)
        by_array, by_tensor = (decompose(put(Y), RANK, mask=m) for m in (mask, put(mask)))
    assert near(by_array.low_rank, want.low_rank, 1e-8) and torch.equal(by_array.L, by_tensor.L)
    assert not by_array.outliers.cpu().numpy()[~np.broadcast_to(mask, SHAPE)].any()


def test_start_weights_and_callbacks(problem: Any, tensor: Any, result: Any) -> None:
    weight = np.random.default_rng(0).uniform(0.5, 2, SHAPE[0])
    want = decompose(problem.Y, RANK, row_weight=weight)
    for given in (weight, put(weight)):
        assert near(decompose(tensor, RANK, row_weight=given).low_rank, want.low_rank, 1e-8)
    again = decompose(tensor, RANK, start=(result.L, result.R))
    assert again.n_iter < result.n_iter and near(again.low_rank, result.low_rank, 1e-7)
    seen: list[Any] = []
    decompose(tensor.float(), RANK, max_iter=3, tol=0, callback=lambda state: seen.append((state.L, state.R)))
    assert all(x.is_cuda and x.dtype == torch.float32 for pair in seen for x in pair)
    assert near(seen[-1][0] @ seen[-1][1].T, result.low_rank, 0.1)


def test_mixed_devices(problem: Any, tensor: Any) -> None:
    mask = torch.ones(SHAPE, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask\.device=cpu is not Y\.device=cuda:\d+; move one of them, e\.g\. mask"):
        decompose(tensor, RANK, mask=mask)
    with pytest.raises(ValueError, match=r"mask\.device=cuda:\d+, but Y is in the memory of the CPU; pass mask\.cpu"):
        decompose(problem.Y, RANK, mask=mask.cuda())
    with pytest.raises(ValueError, match=r"mask\.device=cuda:\d+ is not Y\.device=cpu; move"):
        decompose(tensor.cpu(), RANK, mask=mask.cuda())


def test_refusals(tensor: Any) -> None:
    infinite = tensor.clone()
    infinite[7, 11] = -torch.inf
    with pytest.raises(ValueError, match=r"Y\[7, 11\]=-inf is not finite"):
        decompose(infinite, RANK)
    with pytest.raises(ValueError, match="no observed entry"):
        decompose(torch.full_like(tensor, torch.nan), RANK)
    with pytest.raises(TypeError, match=r"Y\.dtype=torch\.float8_e4m3fn is not read on cuda"):
        decompose(tensor.to(torch.float8_e4m3fn), RANK)


def test_estimators_refuse(tensor: Any) -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(TypeError, match=r"X\.device=cuda:\d+: estimators work on the CPU; pass X\.cpu"):
        lrpca.RobustPCA(RANK).fit(tensor)


def test_results_live_there_and_travel(problem: Any, tensor: Any, result: Any, tmp_path: Path) -> None:
    assert isinstance(result, TensorDecomposition) and result.device == tensor.device
    want = decompose(problem.Y, RANK)
    plain = result.to_numpy()
    assert isinstance(plain.L, np.ndarray) and near(plain.sparse, result.sparse, 1e-12)
    rows = result.transform(tensor[:50])
    assert rows.device == tensor.device and near(rows, want.transform(problem.Y[:50]), 1e-6)
    result.save(tmp_path / "d.npz")
    loaded = lrpca.Decomposition.load(tmp_path / "d.npz", tensor)
    assert torch.equal(loaded.L, result.L) and torch.equal(loaded.outliers, result.outliers)
    copied = pickle.loads(pickle.dumps(result))
    assert copied.device == tensor.device and torch.equal(copied.sparse, result.sparse)
    for _, residual, outlying in result.residual_blocks():
        assert isinstance(residual, np.ndarray) and isinstance(outlying, np.ndarray)


@pytest.fixture(scope="module")
def large() -> Any:
    n, rank = 8000, 5
    generator = torch.Generator("cuda").manual_seed(0)
    L, R = (torch.randn(n, rank, device="cuda", generator=generator) for _ in range(2))
    Y = L @ R.T
    spoiled = torch.rand(n, n, device="cuda", generator=generator) < 0.1
    return torch.where(spoiled, 10 * torch.randn(n, n, device="cuda", generator=generator), Y)


def test_little_memory_beside_y(large: Any) -> None:
    decompose(large, 5)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    d = decompose(large, 5)
    assert d.converged
    # Partial sums, and the Grams of rows and columns with what solving them takes.
    assert torch.cuda.max_memory_allocated() - before < 0.3 * large.nbytes


def test_nothing_is_left_behind(large: Any) -> None:
    def fail(state: Any) -> None:
        raise KeyError(state.iteration)

    Y = large[:3000]
    # Libraries take their own memory at their first call, and keep it.
    decompose(Y, 5)
    gc.collect()
    gc.disable()
    before = torch.cuda.memory_allocated()
    d = decompose(Y, 5)
    parts = d.sparse, d.outliers
    del d, parts
    assert torch.cuda.memory_allocated() == before
    with pytest.raises(KeyError):
        decompose(Y, 5, callback=fail)
    with pytest.raises(ValueError, match="rank=0"):
        decompose(Y, 0)
    gc.enable()
    gc.collect()
    assert torch.cuda.memory_allocated() == before


@contextmanager
def no_memory_left() -> Iterator[None]:
    """Let torch have no more memory than it holds, and take all of that in pieces of 2 MiB and more.

    Blocks that it has cached beside live tensors cannot be given back, and a limit does not hold for them: the cache of
    tests before may serve what is to fail.
    """
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    taken, size = [], 1 << 30
    try:
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
        while size >= 1 << 21:
            try:
                taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                size //= 2
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_memory_errors_say_what_to_do(large: Any) -> None:
    d, mask = decompose(large, 5), np.ones(large.shape, bool)
    asked: dict[str, Callable[[], Any]] = {
        "low_rank": lambda: d.low_rank,
        "sparse": lambda: d.sparse,
        "outliers": lambda: d.outliers,
        "blocks": lambda: list(d.residual_blocks()),
        "decompose": lambda: decompose(large, 5),
        "mask": lambda: decompose(large, 5, mask=mask),
    }
    with no_memory_left():
        before = torch.cuda.memory_allocated()
        for name, ask in asked.items():
            with pytest.raises(
                MemoryError, match=r"Y\.shape=\(8000, 8000\) needs another .*, and cuda:\d+ has .* free; delete tens"
            ):
                ask()
            gc.collect()
            assert torch.cuda.memory_allocated() == before, name
        with pytest.raises(MemoryError, match=r"Ys\.shape=\(8, 1000, 8000\) needs .*; delete tensors"):
            lrpca.decompose_batch(large.view(8, 1000, 8000), 5)
    assert d.low_rank.shape == large.shape


SHAPES = ((1, 1), (1, 700), (700, 1), (7, 1000), (1000, 7), (513, 1025))
LEVELS = {
    "soft": levels("soft", 1.0),
    "hard": levels("hard", 1.0),
    "redescending": levels("redescending", 0.5),
    "everything": everything(1.5),
}


def gapped(shape: tuple[int, int], rank: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Return Y, L, R whose residuals are never near 0.5 or 1, where rounding would decide what is kept."""
    rng = np.random.default_rng(seed)
    L, R = (rng.standard_normal((n, rank)) / max(1, rank) ** 0.25 for n in shape)
    size = rng.choice([0.0, 0.52, 1.05], shape) + rng.uniform(0.01, 0.45, shape)
    return L @ R.T + rng.choice([-1, 1], shape) * size, L, R


def compare(Y: Any, L: Any, R: Any, level: Any, *, mask: Any = None, ka: int | None = None, **how: Any) -> None:
    """Expect of the kernel what the specification says; Y and mask are tensors."""
    rng = np.random.default_rng(1)
    A, B = (R, L) if ka is None else (rng.standard_normal((len(R), ka)), rng.standard_normal((len(L), ka)))
    single = how["arithmetic"] in (torch.float32, torch.complex64)
    double = Y.to(torch.complex128 if Y.is_complex() else torch.float64).cpu().numpy()
    observed = None if mask is None else mask.cpu().numpy()
    theirs = dense_pass(double, L, R, level, A=A, B=B, mask=observed, grams=how["grams"])
    expanded = None if mask is None else mask.expand(Y.shape)
    tensors = {id(x): put(x) for x in (L, R, A, B)}
    left, right, first, second = (tensors[id(x)] for x in (L, R, A, B))
    ours = tensor_pass(Y, left, right, level, A=first, B=second, mask=expanded, energy=True, fast=False, **how)
    within = 1e-6 if single else 1e-13
    # Where entries cancel by chance, errors are relative to what sums of so many would be as a rule; and residuals
    # have the rounding of the entries that they are differences of.
    size = max(theirs.norm_C, 0.5 * float(torch.linalg.vector_norm(torch.nan_to_num(Y.to(torch.complex128)))))
    typical = {name: size * np.linalg.norm(x) / len(x) ** 0.5 for name, x in (("CA", A), ("CtB", B))}
    for name in ("CA", "CtB", "row_grams", "column_grams"):
        got, want = getattr(ours, name), getattr(theirs, name)
        if want is not None and want.size:
            scale = max(np.linalg.norm(want), typical.get(name, 0.0))
            assert np.linalg.norm(got.cpu().numpy() - want) <= within * scale, name
    np.testing.assert_array_equal(ours.kept_by_row.cpu().numpy(), theirs.kept_by_row)
    np.testing.assert_array_equal(ours.kept_by_column.cpu().numpy(), theirs.kept_by_column)
    norms = np.sqrt(ours.norms[:2].cpu().numpy())
    assert ours.norms[2] == theirs.kept_by_row.sum()
    np.testing.assert_allclose(norms, [theirs.norm_C, theirs.norm_D], rtol=within)


@pytest.mark.parametrize("rank", (0, 1, 3, 8, 16, 17, 40))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel_over_shapes_and_ranks(shape: tuple[int, int], rank: int) -> None:
    Y, L, R = gapped(shape, rank)
    Y[np.random.default_rng(2).random(shape) < 0.1] = np.nan
    for dtype in (torch.float32, torch.float64):
        # The Grams of 40 components in NumPy would take longer than all the rest.
        compare(put(Y).to(dtype), L, R, LEVELS["redescending"], arithmetic=dtype, grams=0 < rank <= 17)
    compare(put(Y).float(), L, R, LEVELS["everything"], ka=5, arithmetic=torch.float32, grams=False)


@pytest.mark.parametrize("kind", LEVELS)
@pytest.mark.parametrize("dtype", ("float32", "float64", "float16", "bfloat16", "uint8", "int16", "int32", "bool"))
def test_kernel_over_number_types(dtype: str, kind: str) -> None:
    shape = (200, 330)
    Y, L, R = gapped(shape, 4)
    kind_of = getattr(torch, dtype)
    stored = put(Y).to(kind_of) if kind_of.is_floating_point else put(np.abs(np.rint(Y))).to(kind_of)
    arithmetic = torch.float64 if dtype in ("float64", "int32") else torch.float32
    compare(stored, L, R, LEVELS[kind], arithmetic=arithmetic, grams=True)
    compare(stored.T.contiguous().T, L, R, LEVELS[kind], arithmetic=arithmetic, grams=True)


@pytest.mark.parametrize("shape", ((200, 330), (200, 1), (1, 330)), ids=("full", "by row", "by column"))
@pytest.mark.parametrize("layout", ("plain", "transposed", "strided", "expanded"))
def test_kernel_over_masks_and_strides(shape: tuple[int, int], layout: str) -> None:
    Y, L, R = gapped((200, 330), 4)
    mask = put(np.random.default_rng(3).random(shape) < 0.7)
    stored = put(Y).float()
    if layout == "transposed":
        stored, mask = stored.T.contiguous().T, mask.T.contiguous().T
    elif layout == "strided":
        stored = stored.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2]
    elif layout == "expanded":
        stored = stored[:1].expand(200, 330)
    compare(stored, L, R, LEVELS["soft"], mask=mask, arithmetic=torch.float32, grams=True)


def test_kernel_with_complex_numbers() -> None:
    rng = np.random.default_rng(0)
    L, R = (rng.standard_normal((n, 3)) + 1j * rng.standard_normal((n, 3)) for n in (90, 130))
    Y = put(L @ R.T + rng.standard_normal((90, 130)) + 1j * rng.standard_normal((90, 130)))
    compare(Y, L, R, LEVELS["soft"], arithmetic=torch.complex128, grams=False)
    compare(Y.to(torch.complex64), L, R, LEVELS["soft"], arithmetic=torch.complex64, grams=False)


def agree(ours: Any, theirs: Any, within: float) -> None:
    """Expect the sums of two passes to agree, and the counts to be the same."""
    for name in ("CA", "CtB", "row_grams", "column_grams"):
        got, want = getattr(ours, name), getattr(theirs, name)
        if want is not None and want.numel():
            assert torch.linalg.vector_norm(got - want) <= within * torch.linalg.vector_norm(want), name
    assert torch.equal(ours.kept_by_row, theirs.kept_by_row)
    assert torch.equal(ours.kept_by_column, theirs.kept_by_column)
    torch.testing.assert_close(ours.norms, theirs.norms, rtol=within, atol=0)


def check_against_torch(Y: Any, L: Any, R: Any, level: Any, *, cache: Any = None, **how: Any) -> Any:
    """Expect of the kernel what plain torch finds in double precision; return what the kernel found."""
    ours = tensor_pass(Y, L, R, level, cache=cache, **how)
    agree(ours, plain_pass(Y, L, R, level, arithmetic=torch.float64, **how), 3e-6)
    return ours


@pytest.mark.parametrize("rank", (3, 8))
def test_compiled_passes_follow_factors_and_levels(rank: int) -> None:
    host, L, R = (put(x) for x in gapped((513, 1025), rank))
    Y, weights, cache = host.float(), put(np.random.default_rng(3).uniform(0.5, 2, (513, 1))), {}
    earlier = []
    # The first of a kind is compiled, the others are started as they are.
    for k in range(6):
        for B in (L, weights * L):
            level = levels("redescending" if k % 2 else "hard", 0.5)
            ours = check_against_torch(Y, L, R, level, A=R, B=B, grams=True, energy=True, cache=cache)
            earlier.append((ours, ours.CA.clone(), ours.norms.clone()))
        # The product stays, and with it the gaps around the levels.
        L, R = L * 1.5, R / 1.5
    # What was returned is not written to again.
    assert all(torch.equal(pass_.CA, CA) and torch.equal(pass_.norms, norms) for pass_, CA, norms in earlier)


def test_kinds_of_passes_in_turn_keep_out_of_each_other() -> None:
    host, L, R = (put(x) for x in gapped((513, 700), 6))
    Y, level, cache = host.float(), levels("redescending", 0.5), {}
    generator = torch.Generator(Y.device).manual_seed(0)
    none = [torch.zeros(n, 0, dtype=torch.float64, device=Y.device) for n in Y.shape]
    for scale in (1e6, 1e-6, 1.0, 1e-3):
        # A unit that a pass before had found for larger factors would leave no digits of these.
        left, right = L * scale, R / scale
        check_against_torch(Y, left, right, level, A=right, B=left, cache=cache)
        for width in (3, 12, 40):
            A = scale * torch.randn(Y.shape[1], width, dtype=torch.float64, device=Y.device, generator=generator)
            check_against_torch(Y, *none, everything(2.0), A=A, B=none[0], energy=True, cache=cache)


@pytest.mark.parametrize("rank", (1, 5, 8, 17))
def test_columns_are_combined(rank: int) -> None:
    from lrpca.kernels.triton.small import combined

    rng = np.random.default_rng(rank)
    L, R = (put(rng.standard_normal((n, rank))) for n in (131, 77))
    both = torch.cat([L, L + 1], 1), torch.cat([R, R - 1], 1)
    coefficients = put(rng.standard_normal((2, 2 * rank, rank)))
    for got, tall, part in zip(combined(*both, coefficients), both, coefficients, strict=True):
        torch.testing.assert_close(got, tall @ part, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("unit", (1.0, 1e-30, 1e40))
@pytest.mark.parametrize("kind", ("peak", "peak and outliers", "fill values", "flat", "zeros", "below rounding", "few"))
def test_the_peak_of_residuals(kind: str, unit: float) -> None:
    from lrpca.kernels.scale import residual_core
    from lrpca.matrices.device.array import DeviceArray
    from lrpca.matrices.sample import Sample

    rng = np.random.default_rng(0)
    L, R = rng.standard_normal((131, 3)), rng.standard_normal((77, 3))
    m = 7 if kind == "few" else 5003
    rows, columns = rng.integers(131, size=m), rng.integers(77, size=m)
    residuals = {
        "peak": 1e-3 * rng.standard_normal(m),
        "peak and outliers": np.where(rng.random(m) < 0.3, rng.uniform(-1, 1, m), 1e-4 * rng.standard_normal(m)),
        "fill values": np.where(rng.random(m) < 0.01, 1e37, 1e-3 * rng.standard_normal(m)),
        "flat": rng.uniform(-1, 1, m),
        "zeros": np.where(rng.random(m) < 0.5, 0.0, rng.uniform(-1, 1, m)),
        "below rounding": np.full(m, 1e-9),
        "few": rng.standard_normal(m),
    }[kind]
    rounding = unit * (1e-6 if kind == "below rounding" else 1e-12)
    values = unit * (np.sum(L[rows] * R[columns], axis=1) + residuals)
    sample = Sample(rows, columns, values)
    want = residual_core(np.abs(sample.signed_residuals(unit * L, R)), rounding)
    got = sample.core(DeviceArray(put(unit * L)), DeviceArray(put(R)), rounding)
    assert got == pytest.approx(want, rel=1e-4)
    again = DeviceArray(put(unit * L)), DeviceArray(put(R))
    assert sample.core(*again, rounding) == sample.core(*again, rounding) == got


@pytest.mark.parametrize("rank", (3, 20))
def test_slabs_of_rows_are_added_up(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    host, L, R = (put(x) for x in gapped((515, 300), rank))
    level, how = levels("redescending", 0.5), {"A": R, "B": L, "grams": rank < 10, "energy": True}
    whole = gpu.tensor_pass(host.float(), L, R, level, **how)
    monkeypatch.setattr(gpu, "_LITTLE", 1 << 12)
    monkeypatch.setattr(gpu, "_PART", 0.01)
    assert len(gpu._slabs(host.float(), rank)) > 3
    cache: dict[Any, Any] = {}
    for _ in range(6):
        agree(gpu.tensor_pass(host.float(), L, R, level, cache=cache, **how), whole, 1e-6)


@pytest.mark.parametrize("rank", (4, 8, 18))
def test_fast_passes_have_eleven_bits(rank: int) -> None:
    host, L, R = (put(x) for x in gapped((513, 400), rank))
    how = {"A": R, "B": L}
    exact, fast = (tensor_pass(host.float(), L, R, levels("soft", 3.0), fast=fast, **how) for fast in (False, True))
    for name in ("CA", "CtB"):
        error = torch.linalg.vector_norm(getattr(exact, name) - getattr(fast, name))
        assert 1e-5 < error / torch.linalg.vector_norm(getattr(exact, name)) < 3e-3


@pytest.mark.parametrize("rank", (4, 8))
def test_zero_columns_and_extreme_units(rank: int) -> None:
    host, L, R = (put(x) for x in gapped((130, 300), rank))
    host = host - L[:, 1:3] @ R[:, 1:3].T
    L[:, 1], R[:, 2] = 0, 0
    for unit in (1.0, 1e-20, 1e20):
        level = levels("redescending", 0.5 * unit)
        Y, left, right = (host * unit).float(), L * unit**0.5, R * unit**0.5
        check_against_torch(Y, left, right, level, A=right, B=left)
