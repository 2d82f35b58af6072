"""Torch tensors go in and come out: those on the CPU by the kernels for arrays, others by the path of their device.

The path of a device runs on the CPU too, if a `TensorMatrix` is made by hand.
"""

from __future__ import annotations

import copy
import pickle
import re
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca import decompose
from lrpca.core.devices import rounds_products
from lrpca.solvers.methods import METHODS
from lrpca.testing import Problem, planted

torch = pytest.importorskip("torch")

from lrpca.decomposition.tensor import TensorDecomposition  # noqa: E402
from lrpca.matrices.accept import accept
from lrpca.matrices.tensor import TensorMatrix  # noqa: E402

RANK = 3


def small(**changes: Any) -> Problem:
    return planted(**{"shape": (90, 70), "rank": RANK, "outlier_fraction": 0.1, "random_state": 1, **changes})


@pytest.fixture(scope="module")
def problem() -> Problem:
    return small()


@pytest.fixture(scope="module")
def tensor(problem: Problem) -> Any:
    return torch.from_numpy(problem.Y.copy())


@pytest.fixture(scope="module")
def by_numpy(problem: Problem) -> Any:
    return decompose(problem.Y, RANK)


@pytest.fixture(scope="module")
def on_device(tensor: Any) -> Any:
    """Return what the path of a device finds, on the CPU."""
    return decompose(TensorMatrix(tensor), RANK)


def near(got: Any, want: Any, within: float) -> bool:
    got, want = (np.asarray(x) for x in (got, want))
    return bool(np.linalg.norm(got - want) <= within * np.linalg.norm(want))


def same(got: Any, want: Any) -> None:
    """Expect a tensor with the bits of an array."""
    assert isinstance(got, torch.Tensor) and got.device.type == "cpu" and not got.requires_grad
    np.testing.assert_array_equal(got.numpy(), want)


LAYOUTS = {
    "plain": lambda t: t,
    "transposed": lambda t: t.T.contiguous().T,
    "strided": lambda t: t.repeat_interleave(2, 0).repeat_interleave(3, 1)[::2, ::3],
    "part of a larger one": lambda t: torch.nn.functional.pad(t, (3, 4, 1, 2), value=torch.nan)[1:-2, 3:-4],
    "parameter": lambda t: torch.nn.Parameter(t.clone()),
    "with a graph": lambda t: t.clone().requires_grad_() * 1.0,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_tensors(tensor: Any, by_numpy: Any, layout: str) -> None:
    Y = LAYOUTS[layout](tensor)
    d = decompose(Y, RANK)
    assert isinstance(d, TensorDecomposition)
    # In place: the solver has read the memory of the tensor itself.
    assert np.shares_memory(d.data().array, Y.detach().numpy())
    assert near(d.low_rank, by_numpy.low_rank, 1e-9)
    if layout == "plain":
        for name in ("L", "R", "low_rank", "sparse", "outliers"):
            same(getattr(d, name), getattr(by_numpy, name))
    assert not d.low_rank.requires_grad


def test_expanded_tensors() -> None:
    row = torch.linspace(1, 2, 40)
    for Y in (row.expand(50, 40), row[:, None].expand(40, 50)):
        with pytest.warns(lrpca.DiagnosisWarning, match="S is empty"):
            d = decompose(Y, 1)
        assert near(d.low_rank, Y, 1e-5)


@pytest.mark.parametrize(
    ("dtype", "result", "within"),
    [
        (torch.float32, torch.float32, 1e-5),
        (torch.float64, torch.float64, 1e-8),
        (torch.float16, torch.float32, 4e-3),
        (torch.bfloat16, torch.float32, 3e-2),
        (torch.int16, torch.float32, 2e-3),
        (torch.uint16, torch.float32, 4e-3),
        (torch.int32, torch.float64, 2e-3),
        (torch.complex64, torch.complex64, 1e-5),
    ],
    ids=str,
)
@pytest.mark.parametrize("way", (lambda t: t, TensorMatrix), ids=("cpu", "device"))
def test_number_types(problem: Problem, dtype: Any, result: Any, within: float, way: Any) -> None:
    if dtype == torch.uint16 and way is TensorMatrix:
        pytest.skip("torch computes with uint16 nowhere but on the CPU, where it is an array")
    Y, X, rank = problem.Y, problem.X, RANK
    if not dtype.is_floating_point and not dtype.is_complex:
        shift = 2000 if dtype == torch.uint16 else 0
        scale = 1500 / np.abs(Y).max()
        Y, X, rank = np.rint(scale * Y) + shift, scale * X + shift, RANK + (shift > 0)
    d = decompose(way(torch.from_numpy(Y).to(dtype)), rank)
    assert {x.dtype for x in (d.L, d.R, d.low_rank, d.sparse)} == {result} and d.outliers.dtype == torch.bool
    assert near(d.low_rank, X, within)


def test_bytes_and_booleans() -> None:
    Y = torch.zeros(60, 50, dtype=torch.bool)
    Y[10:, 10:] = True
    flipped = torch.from_numpy(np.random.default_rng(0).random((60, 50)) < 0.05)
    for way in (lambda t: t, TensorMatrix):
        assert torch.equal(decompose(way(Y ^ flipped), 1).outliers, flipped)
        assert torch.equal(decompose(way((Y ^ flipped).to(torch.uint8) * 200), 1).outliers, flipped)


def test_a_conjugation_or_sign_still_to_be_done(tensor: Any) -> None:
    problem = small(dtype=np.complex128)
    Y = torch.from_numpy(problem.Y)
    assert near(decompose(Y.conj(), RANK).low_rank, problem.X.conj(), 1e-8)
    assert torch.equal(decompose(torch._neg_view(tensor), RANK).L, decompose(-tensor, RANK).L)


@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")  # five iterations do not get far
@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_them(problem: Problem, tensor: Any, method: str) -> None:
    d, e = (decompose(Y, RANK, method=method, max_iter=5, tol=0) for Y in (tensor, problem.Y))
    same(d.L, e.L)


def test_methods_off_the_device_are_refused(tensor: Any) -> None:
    able = [name for name, method in METHODS.items() if method.device]
    assert {"lrpca", "sampled"} <= set(able)
    with pytest.raises(ValueError, match=f"method='pcp' does not run on a GPU; pass Y.cpu.., .*{', '.join(able)}$"):
        decompose(TensorMatrix(tensor), RANK, method="pcp")


@pytest.mark.parametrize("rank", (None, 0.9))
def test_rank_is_found(problem: Problem, tensor: Any, rank: Any) -> None:
    want = decompose(problem.Y, rank)
    d = decompose(tensor, rank)
    assert d.rank == want.rank and d.rank_choice is not None
    same(d.L, want.L)
    assert decompose(TensorMatrix(tensor), rank).rank == want.rank


MASKS = {"full": (90, 70), "by row": (90, 1), "by column": (1, 70)}


@pytest.mark.parametrize("shape", MASKS)
def test_masks(problem: Problem, shape: str) -> None:
    mask = np.random.default_rng(0).random(MASKS[shape]) < 0.9
    spoiled = np.where(mask, problem.Y, 1e3)
    Y = torch.from_numpy(spoiled)
    hidden = torch.from_numpy(~mask).expand(90, 70)
    with pytest.warns(lrpca.DiagnosisWarning, match="without influence") if shape != "full" else nullcontext():
        want = decompose(spoiled, RANK, mask=mask)
        d = decompose(Y, RANK, mask=torch.from_numpy(mask))
        e = decompose(Y, RANK, mask=mask)
        f = decompose(spoiled, RANK, mask=torch.from_numpy(mask))
        g = decompose(TensorMatrix(Y, torch.from_numpy(mask)), RANK)
    same(d.L, want.L)
    same(e.L, want.L)
    np.testing.assert_array_equal(f.L, want.L)
    same(d.outliers, want.outliers)
    assert near(g.low_rank, want.low_rank, 1e-8)
    assert torch.equal(g.outliers, d.outliers) and not g.outliers[hidden].any()


def test_missing_entries(problem: Problem) -> None:
    hidden = np.random.default_rng(0).random(problem.Y.shape) < 0.2
    Y = np.where(hidden, np.nan, problem.Y)
    want = decompose(Y, RANK)
    for way in (torch.from_numpy, lambda A: TensorMatrix(torch.from_numpy(A))):
        d = decompose(way(Y), RANK)
        assert near(d.low_rank, want.low_rank, 1e-8)
        assert not d.outliers[torch.from_numpy(hidden)].any() and torch.isfinite(d.sparse).all()


def test_start_and_weights(problem: Problem, tensor: Any, by_numpy: Any) -> None:
    rng = np.random.default_rng(0)
    start = tuple(factor + 0.1 * rng.standard_normal(factor.shape) for factor in (by_numpy.L, by_numpy.R))
    weight = rng.uniform(0.5, 2, len(problem.Y))
    want = decompose(problem.Y, RANK, start=start, row_weight=weight)
    given = tuple(map(torch.from_numpy, start)), torch.from_numpy(weight)
    same(decompose(tensor, RANK, start=given[0], row_weight=given[1]).L, want.L)
    same(decompose(tensor, RANK, start=start, row_weight=weight).L, want.L)
    np.testing.assert_array_equal(decompose(problem.Y, RANK, start=given[0], row_weight=given[1]).L, want.L)
    d = decompose(TensorMatrix(tensor), RANK, start=given[0], row_weight=given[1])
    assert near(d.low_rank, want.low_rank, 1e-8)


@pytest.mark.parametrize("way", (lambda t: t, TensorMatrix), ids=("cpu", "device"))
def test_callbacks_see_tensors(tensor: Any, way: Any) -> None:
    seen: list[Any] = []

    def look(state: Any) -> bool:
        seen.append((state.L.clone(), state.R.clone()))
        # Scribbling is harmless.
        state.L.zero_()
        return len(seen) == 4

    Y = tensor.float()
    d = decompose(way(Y), RANK, callback=look)
    assert d.reason == "callback" and len(seen) == 4
    for L, R in seen:
        assert L.dtype == R.dtype == torch.float32 and (L.shape, R.shape) == ((90, RANK), (70, RANK))
    assert near(seen[-1][0] @ seen[-1][1].T, d.low_rank, 1e-4)
    assert all(isinstance(record.change, float) for record in d.history)


REFUSED = {
    "sparse": (lambda t: t.to_sparse(), TypeError, r"Y\.layout=torch\.sparse_coo is not dense; pass Y\.to_dense\(\)"),
    "without data": (lambda t: t.to("meta"), ValueError, r"Y\.device=meta has no entries"),
    "a number": (lambda t: t[0, 0], ValueError, r"Y\.ndim=0 is not 2; pass a matrix \(samples, features\)$"),
    "a row": (lambda t: t[0], ValueError, r"Y\.ndim=1 is not 2; pass Y\[None\] for one row, or Y\[:, None\]"),
    "a stack": (lambda t: t[None], ValueError, r"Y\.ndim=3 is not 2; pass a stack of matrices to lrpca\.decompose_ba"),
    "no rows": (lambda t: t[:0], ValueError, r"Y\.shape=\(0, 70\) has no entries; pass at least one row"),
    "float8": (lambda t: t.to(torch.float8_e4m3fn), TypeError, r"Y\.dtype=torch\.float8_e4m3fn is not read on cpu"),
    "many axes": (lambda t: t[None, None], ValueError, r"Y\.ndim=4 is not 2; reshape .* for images$"),
    "infinite": (lambda t: t.clone().index_fill_(0, torch.tensor([4]), torch.inf), ValueError, r"Y\[4, 0\]=inf is not"),
    "nothing": (lambda t: torch.full_like(t, torch.nan), ValueError, "no observed entry"),
    "rows": (list, TypeError, r"Y=list of tensors is not a tensor; pass torch\.stack\(Y\)$"),
    "some rows": (lambda t: [t[0], t[0, 1:]], TypeError, r"Y=list of tensors has shapes \(70,\) and \(69,\); pass t"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(tensor: Any, case: str) -> None:
    change, kind, words = REFUSED[case]
    with pytest.raises(kind, match=words):
        decompose(change(tensor), RANK)


@pytest.mark.filterwarnings("ignore")  # torch warns of all three
def test_quantised_nested_and_half_complex_ones(tensor: Any) -> None:
    with pytest.raises(TypeError, match=r"Y\.dtype=torch\.qint8 is quantised; pass Y\.dequantize"):
        decompose(torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8), RANK)
    with pytest.raises(TypeError, match=r"Y\.is_nested=True: rows differ in length"):
        decompose(torch.nested.nested_tensor([tensor[0], tensor[1, :5]]), RANK)
    # Of those of the newer kind the layout is not to be turned into a dense one.
    jagged = torch.nested.nested_tensor([tensor[:3], tensor[:5]], layout=torch.jagged)
    for nested in (jagged, torch.nested.nested_tensor([tensor[:3], tensor[:5]])):
        for name, solve in (("Y", decompose), ("Ys", lrpca.decompose_batch)):
            with pytest.raises(TypeError, match=rf"^{name}\.is_nested=True: rows .*; pass {name}\.to_padded_tensor\("):
                solve(nested, RANK)
    with pytest.raises(TypeError, match=r"Y\.dtype=torch\.complex32 is not .*, e\.g\. Y\.to\(torch\.complex64\)$"):
        decompose(tensor.to(torch.complex32), RANK)


def test_tensors_without_memory(tensor: Any) -> None:
    words = r"^Tensor of shape \(90, 70\) has no memory to be read, as within torch\.vmap; .*decompose_batch$"
    with pytest.raises(TypeError, match=words):
        torch.vmap(lambda one: decompose(one, RANK).L)(tensor[None])


BESIDE = {
    "mask": lambda t: {"mask": (t > 0).to_sparse()},
    "row_weight": lambda t: {"row_weight": torch.ones(90).to_sparse()},
    "start[1]": lambda t: {"start": (torch.ones(90, 3), torch.ones(70, 3).to_sparse())},
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_comes_with_y_is_not_read_either(problem: Problem, tensor: Any, name: str) -> None:
    words = rf"^{re.escape(name)}\.layout=torch\.sparse_coo is not dense; pass {re.escape(name)}\.to_dense\(\)"
    for Y in (tensor, problem.Y, TensorMatrix(tensor)):
        # A mask is not accepted together with a prepared matrix.
        if name != "mask" or not isinstance(Y, TensorMatrix):
            with pytest.raises(TypeError, match=words):
                decompose(Y, RANK, **BESIDE[name](tensor))
    if name == "mask":
        with pytest.raises(TypeError, match=words):
            lrpca.decompose_batch(tensor[None], RANK, **BESIDE[name](tensor))


def test_mixed_devices_are_refused(problem: Problem, tensor: Any) -> None:
    elsewhere = torch.ones(90, 70, dtype=torch.bool, device="meta")
    advice = r"device=meta is not Y\.device=cpu; move one of them, e\.g\. {0}\.to\(Y\.device\)"
    with pytest.raises(ValueError, match="mask is not accepted together with a prepared matrix"):
        accept(TensorMatrix(tensor), torch.ones(90, 70, dtype=torch.bool))
    with pytest.raises(ValueError, match="mask." + advice.format("mask")):
        decompose(tensor, RANK, mask=elsewhere)
    with pytest.raises(ValueError, match=r"mask\.device=meta, but Y is in the memory of the CPU; pass mask\.cpu"):
        decompose(problem.Y, RANK, mask=elsewhere)
    with pytest.raises(ValueError, match="row_weight." + advice.format("row_weight")):
        decompose(tensor, RANK, row_weight=torch.ones(90, device="meta"))
    there = torch.ones(90, 3), torch.ones(70, 3)
    for k in (0, 1):
        name, start = rf"start\[{k}\]", [factor.to("meta") if h == k else factor for h, factor in enumerate(there)]
        with pytest.raises(ValueError, match=rf"^{name}\." + advice.format(name)):
            decompose(TensorMatrix(tensor), RANK, start=tuple(start))
        with pytest.raises(ValueError, match=rf"^{name}\.device=meta, but Y is .*; pass {name}\.cpu\(\)$"):
            decompose(problem.Y, RANK, start=tuple(start))


@pytest.mark.parametrize("rank", (torch.tensor(3), np.array(3)), ids=("tensor", "array"))
def test_ranks_in_tensors_are_refused(tensor: Any, rank: Any) -> None:
    with pytest.raises(ValueError, match=r"^rank=\w+\(3\) is not an integer; pass int\(rank\), or float\(rank\) if it"):
        decompose(tensor, rank)
    with pytest.raises(ValueError, match=r"^rank=\w+\(3\) is not an integer; pass int\(rank\)$"):
        lrpca.decompose_batch(tensor[None], rank)
    with pytest.raises(ValueError, match=r"is not an integer; give one from 1 to 70"):
        decompose(tensor, torch.tensor([3, 4]))  # type: ignore[arg-type]


def test_results_of_the_device_path(problem: Problem, on_device: Any, by_numpy: Any) -> None:
    assert isinstance(on_device, TensorDecomposition) and on_device.converged
    assert problem.error(on_device.low_rank.numpy()) < 1e-7
    assert near(on_device.sparse, by_numpy.sparse, 1e-6)
    same(on_device.outliers, by_numpy.outliers)
    assert isinstance(on_device.noise_level, float) and isinstance(on_device.diagnosis.kept_by_row, np.ndarray)


def test_lazy_parts_come_in_blocks(monkeypatch: pytest.MonkeyPatch, on_device: Any) -> None:
    whole = on_device.with_data(on_device.data())
    monkeypatch.setattr("lrpca.decomposition.tensor._BLOCK", 400)
    parts = on_device.with_data(on_device.data())
    assert torch.equal(parts.outliers, whole.outliers) and near(parts.sparse, whole.sparse, 1e-12)
    blocks = list(parts.residual_blocks())
    assert len(blocks) > 10 and all(isinstance(x, np.ndarray) for _, *both in blocks for x in both)
    np.testing.assert_array_equal(np.concatenate([outlying for *_, outlying in blocks]), whole.outliers.numpy())


@pytest.mark.parametrize("scale", (1e-50, 1e50))
def test_outliers_at_every_scale(tensor: Any, scale: float) -> None:
    """Thresholds of double precision are compared in double precision."""
    d = decompose(TensorMatrix(scale * tensor), RANK)
    same(d.outliers, d.to_numpy().outliers)
    assert 0.05 < d.outliers.double().mean() < 0.2


@pytest.mark.parametrize("allow", ("high", "medium"))
def test_products_are_not_rounded(problem: Problem, allow: str) -> None:
    assert not rounds_products(torch.device("cpu")) and not rounds_products(torch.device("cuda"))
    d = decompose(TensorMatrix(torch.from_numpy(problem.Y).float()), RANK)
    exact = d.L.double() @ d.R.T.double()
    try:
        torch.set_float32_matmul_precision(allow)
        assert rounds_products(torch.device("cpu")) and rounds_products(torch.device("cuda"))
        # To the last bit: sums in single precision would differ here and there.
        assert torch.equal(d.low_rank, exact.float()) and not torch.equal(d.L @ d.R.T, exact.float())
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("way", (lambda t: t, TensorMatrix), ids=("cpu", "device"))
def test_settings_of_the_caller_change_nothing(tensor: Any, way: Any) -> None:
    Y = tensor.float()
    want = decompose(way(Y), RANK)
    sparse, rows = want.sparse, want.transform(Y[:4])
    for setting in (torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"), torch.inference_mode()):
        with setting:
            d = decompose(way(Y), RANK)
            assert torch.equal(d.sparse, sparse) and torch.equal(d.transform(Y[:4]), rows)
    assert want.device == d.device


@pytest.mark.parametrize("way", (lambda t: t, TensorMatrix), ids=("cpu", "device"))
def test_new_rows(tensor: Any, by_numpy: Any, way: Any) -> None:
    d = decompose(way(tensor), RANK)
    got = d.transform(tensor[:20])
    assert isinstance(got, torch.Tensor) and got.dtype == torch.float64
    assert near(got, by_numpy.transform(tensor[:20].numpy()), 1e-6)
    assert torch.equal(d.transform(tensor[:20].numpy()), got)
    for message, rows in (
        (r"Y\.device=meta is not the decomposition's cpu; pass Y\.to\(d\.device\)", tensor.to("meta")),
        ("has 69 columns, not 70", tensor[:, :-1]),
        (r"Y\.ndim=1 is not 2; pass Y\[None\] for one row", tensor[0]),
    ):
        with pytest.raises(ValueError, match=message):
            d.transform(rows)
    assert torch.equal(d.transform(tensor[0][None]), got[:1])
    np.testing.assert_array_equal(by_numpy.transform(tensor[:20]), by_numpy.transform(tensor[:20].numpy()))


@pytest.mark.parametrize("way", (lambda t: t, TensorMatrix), ids=("cpu", "device"))
def test_save_and_load(tensor: Any, tmp_path: Path, way: Any) -> None:
    d = decompose(way(tensor), RANK)
    d.save(tmp_path / "d.npz")
    arrays = lrpca.Decomposition.load(tmp_path / "d.npz")
    assert type(arrays) is type(TensorDecomposition.load(tmp_path / "d.npz")) is lrpca.Decomposition
    np.testing.assert_array_equal(arrays.L, d.L.numpy())
    tensors = lrpca.Decomposition.load(tmp_path / "d.npz", way(tensor))
    assert isinstance(tensors, TensorDecomposition) and tensors.n_iter == d.n_iter
    assert torch.equal(tensors.L, d.L) and torch.equal(tensors.outliers, d.outliers)


@pytest.mark.parametrize("way", (lambda t: t, TensorMatrix), ids=("cpu", "device"))
def test_copies_pickles_and_arrays(tensor: Any, way: Any) -> None:
    d = decompose(way(tensor), RANK)
    assert "TensorDecomposition 90 x 70 on cpu, rank 3, converged" in repr(d)
    for other in (copy.copy(d), copy.deepcopy(d), pickle.loads(pickle.dumps(d))):
        assert isinstance(other, TensorDecomposition) and torch.equal(other.sparse, d.sparse)
    plain = d.to_numpy()
    assert type(plain) is lrpca.Decomposition and plain.to_numpy() is plain
    assert np.shares_memory(plain.L, d.L.numpy())
    assert near(d.sparse, plain.sparse, 1e-12)
    np.testing.assert_array_equal(plain.outliers, d.outliers.numpy())
    with pytest.raises(ValueError, match="Y=None: this decomposition was loaded without its data"):
        _ = d.without_data().sparse
    assert near(d.without_data().low_rank, d.low_rank, 1e-12)


@pytest.mark.parametrize("way", (lambda t: t, TensorMatrix), ids=("cpu", "device"))
def test_results_are_written(tensor: Any, tmp_path: Path, way: Any) -> None:
    pytest.importorskip("zarr")
    from lrpca.decomposition.writing import write_result
    from lrpca.decomposition.zarr import read_sparse

    d = decompose(way(tensor), RANK)
    d.write_sparse(tmp_path / "S.zarr")
    assert near(read_sparse(tmp_path / "S.zarr").toarray(), d.sparse, 1e-12)
    write_result(d, tmp_path / "d.npz", sparse=True, low_rank=True)
    with np.load(tmp_path / "d.npz") as content:
        assert near(content["S"], d.sparse, 1e-12) and near(content["low_rank"], d.low_rank, 1e-12)


def test_estimators_take_tensors_on_the_cpu(problem: Problem, tensor: Any) -> None:
    pytest.importorskip("sklearn")
    want = lrpca.RobustPCA(RANK).fit(problem.Y)
    model = lrpca.RobustPCA(RANK).fit(tensor.clone().requires_grad_())
    np.testing.assert_array_equal(model.components_, want.components_)
    np.testing.assert_array_equal(model.transform(tensor), want.transform(problem.Y))
    with pytest.raises(TypeError, match=r"X\.device=meta: estimators work on the CPU; pass X\.cpu\(\), or"):
        lrpca.RobustPCA(RANK).fit(tensor.to("meta"))
    for call in (model.fit, model.partial_fit, model.transform):
        with pytest.raises(TypeError, match=r"^X\.layout=torch\.sparse_coo is not dense; pass X\.to_dense\(\)"):
            call(tensor.to_sparse())
    weighted = model.fit(tensor, sample_weight=torch.full((90,), 2.0).requires_grad_())
    np.testing.assert_array_equal(weighted.components_, model.fit(problem.Y, sample_weight=2.0).components_)


def test_memory_errors_say_what_to_do_and_keep_nothing(tensor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    def fail(self: Any, *arguments: Any, **settings: Any) -> Any:
        huge = torch.zeros(1000)
        kept.append(weakref.ref(huge))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ...")

    monkeypatch.setattr(TensorMatrix, "run_pass", fail)
    with pytest.raises(MemoryError, match=r"Y\.shape=\(90, 70\) needs another 20\.00 MiB, and cpu has no") as caught:
        decompose(TensorMatrix(tensor), RANK)
    assert kept and kept[0]() is None
    assert caught.value.__context__ is None and caught.value.__cause__ is None


def test_memory_errors_of_lazy_parts(on_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("out of memory")

    d = on_device.with_data(on_device.data())
    monkeypatch.setattr("lrpca.decomposition.tensor._product", fail)
    for ask in (lambda: d.low_rank, lambda: d.sparse, lambda: d.outliers, lambda: list(d.residual_blocks())):
        with pytest.raises(MemoryError, match=r"Y\.shape=\(90, 70\) needs more memory, and cpu has no more; delete"):
            ask()
