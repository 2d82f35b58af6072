"""`decompose_batch` as on a GPU, all problems in one loop, on tensors of the CPU."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.schedule import Schedule
from lrpca.testing import planted

torch = pytest.importorskip("torch")

from tests.helpers.batch_stacks import distance, solve_alone, solve_as_on_a_gpu, stack_of, truth_of  # noqa: E402


@pytest.fixture(scope="module")
def mixed() -> tuple[Any, Any]:
    """Return a stack with noise and missing entries, and what the batched loop makes of it."""
    Ys = stack_of(3, (90, 50), noise=0.02, missing=0.02)
    return Ys, solve_as_on_a_gpu(Ys, 3)[0]


@pytest.mark.parametrize(
    ("kind", "planting", "rank"),
    [
        ("clean", {}, 2),
        ("many outliers", {"outlier_fraction": 0.3}, 2),
        ("gross outliers", {"outlier_size": 100.0}, 2),
        ("missing", {"missing": 0.3}, 2),
        ("ill-conditioned", {"rank": 3, "condition": 50.0}, 3),
        ("rank too large", {}, 4),
        ("double precision", {"dtype": np.float64}, 2),
        ("wide", {"shape": (40, 90)}, 2),
        ("an offset", {"rank": 3, "offset": 20.0}, 3),
    ],
)
def test_problems_without_noise_are_solved_together_as_by_themselves(
    kind: str, planting: dict[str, Any], rank: int
) -> None:
    shape, dtype = planting.pop("shape", (90, 50)), planting.pop("dtype", np.float32)
    Ys, X = stack_of(3, shape, dtype, **planting), truth_of(3, shape, **planting)
    batch, warned = solve_as_on_a_gpu(Ys, rank)
    alone = lrpca.decompose_batch(Ys, rank)
    assert warned == []
    assert len(batch.sequential) <= 1, kind
    assert list(batch.converged.numpy()) == list(alone.converged)
    assert distance(batch.low_rank, X).max() < (1e-5 if dtype is np.float32 else 1e-7)
    assert batch.L.dtype == (torch.float32 if dtype is np.float32 else torch.float64)
    assert np.abs(batch.outlier_fraction.numpy() - alone.outlier_fraction).max() < 0.01
    # Normal form: the same factors, signs and all.
    assert np.abs(batch.R[:, :, 0].numpy() - alone.R[:, :, 0]).max() < 1e-3 * np.abs(alone.R[:, :, 0]).max()


@pytest.mark.parametrize(
    ("planting", "rank"),
    [
        ({"noise": 0.01}, 2),
        ({"noise": 0.1, "outlier_size": 10.0}, 2),
        ({"noise": 0.02, "missing": 0.3}, 2),
        ({"noise": 0.05}, 4),
        ({"noise": 0.05, "outlier_fraction": 0.0}, 2),
    ],
)
def test_noisy_problems_are_solved_together_as_by_themselves(planting: dict[str, Any], rank: int) -> None:
    Ys, X = stack_of(3, (90, 50), **planting), truth_of(3, (90, 50), **planting)
    batch, _ = solve_as_on_a_gpu(Ys, rank)
    alone = solve_alone(Ys, rank, without="unsupported_directions")
    assert len(batch.sequential) <= 1
    assert [one.converged for one in alone] == batch.converged.tolist()
    errors = distance(np.stack([one.low_rank for one in alone]), X)
    assert (distance(batch.low_rank, np.stack([one.low_rank for one in alone])) < 0.35 * errors).all()
    assert np.allclose(batch.noise_level, [one.noise_level for one in alone], rtol=0.05)


@pytest.mark.parametrize("noise", (0.0, 0.01))
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("float32", 9.96921e36), ("float32", -3.4028235e38), ("float64", 9.96921e36), ("float64", 1e150)],
)
def test_fill_values_do_not_hide_the_noise(dtype: str, fill: float, noise: float) -> None:
    planting = {"noise": noise, "outlier_fraction": 0.05}
    plain, X = stack_of(3, (90, 50), np.float64, **planting), truth_of(3, (90, 50), **planting)
    filled = np.random.default_rng(1).random(plain.shape) < 0.01
    (batch, _), (want, _) = (
        solve_as_on_a_gpu(np.where(filled, value, plain).astype(dtype), 2) for value in (fill, 1e6 * plain.max())
    )
    assert len(batch.sequential) <= 1 and batch.converged.all()
    assert batch.outliers.numpy()[filled].all()
    limit = 1.1 * distance(want.low_rank, X) if noise else 1e-5 if dtype == "float32" else 1e-7
    assert (distance(batch.low_rank, X) < limit).all()
    if noise:
        assert np.allclose(batch.noise_level, want.noise_level, rtol=0.02)


@pytest.mark.parametrize(("dtype", "powers"), [("float32", (-12, 20)), ("float64", (-100, 200))])
def test_scaling_by_powers_of_four_is_exact(dtype: str, powers: tuple[int, ...]) -> None:
    Ys = stack_of(2, (90, 50), dtype, noise=0.02, missing=0.1)
    want, _ = solve_as_on_a_gpu(Ys, 2)
    for power in powers:
        found, _ = solve_as_on_a_gpu(np.ldexp(Ys, 2 * power), 2)
        assert len(found.sequential) == 0
        assert torch.equal(found.L, torch.ldexp(want.L, torch.tensor(power)))
        assert torch.equal(found.R, torch.ldexp(want.R, torch.tensor(power)))
        assert torch.equal(found.outlier_threshold, want.outlier_threshold * 4.0**power)
        # Nothing of the course depends on the scale, nor leaves the range of what it is written down in.
        for one, other in zip(found[1].history, want[1].history, strict=True):
            assert one == replace(other, threshold=(other.threshold or 0.0) * 4.0**power)


def test_integers_together() -> None:
    clean = truth_of(4, (90, 50))
    Ys = stack_of(4, (90, 50), np.float64)
    Ys, X = (np.rint(120 + 15 * M / np.abs(clean).mean()) for M in (Ys, clean))
    batch, _ = solve_as_on_a_gpu(Ys.clip(0, 255).astype(np.uint8), 3)
    alone = solve_alone(Ys.clip(0, 255).astype(np.uint8), 3)
    assert batch.L.dtype == torch.float32
    assert all(one.converged for one in alone) and batch.converged.all()
    assert (distance(batch.low_rank, X) < 5e-3).all()
    assert (batch.outlier_threshold >= 1).all()


def test_neighbours_do_not_matter() -> None:
    Ys = np.concatenate([stack_of(2, (90, 50)), stack_of(2, (90, 50), noise=0.1), stack_of(1, (90, 50), missing=0.4)])
    together, _ = solve_as_on_a_gpu(Ys, 3)
    backwards, _ = solve_as_on_a_gpu(Ys[::-1].copy(), 3)
    # Products of other sizes may be rounded differently, and single precision is what X is found to.
    assert distance(backwards.low_rank.flip(0), together.low_rank).max() < 5e-6
    assert list(backwards.reason[::-1]) == list(together.reason)
    single, _ = solve_as_on_a_gpu(Ys[3:4], 3)
    assert distance(single.low_rank, together.low_rank[3:4]).max() < 5e-6


def test_settings_of_the_caller_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Ys = stack_of(2)
    want, _ = solve_as_on_a_gpu(Ys, 2)
    # As on a GPU where torch is asked for the same bits: it refuses its own medians.
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    monkeypatch.setattr(torch, "nanmedian", None)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        batch, _ = solve_as_on_a_gpu(Ys, 2)
        # The same bits, as always with the same call.
        assert torch.equal(batch.L, want.L) and torch.equal(batch.outlier_threshold, want.outlier_threshold)
        assert torch.equal(batch.sparse, want.sparse) and batch.n_iter.tolist() == want.n_iter.tolist()


def test_slabs_do_not_matter(mixed: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from lrpca.batch import batched

    Ys, whole = mixed
    monkeypatch.setattr(batched, "_CPU_ENTRIES", 2 * 90 * 50)
    parts, _ = solve_as_on_a_gpu(Ys, 3)
    assert distance(parts.low_rank, whole.low_rank).max() < 5e-6
    assert parts[2].n_iter == int(whole.n_iter[2]) == len(parts[2].history)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=("torch", "a library"),
)
def test_where_memory_is_short_slabs_are_halved(error: RuntimeError, monkeypatch: pytest.MonkeyPatch) -> None:
    from lrpca.batch import batched

    solve, sizes = batched._solve_slab, []

    def short(Ys: Any, *others: Any) -> Any:
        sizes.append(len(Ys))
        if len(Ys) > 2:
            raise error
        return solve(Ys, *others)

    monkeypatch.setattr(batched, "_solve_slab", short)
    batch, _ = solve_as_on_a_gpu(stack_of(5, (90, 50)), 2)
    assert sizes == [5, 2, 2, 1] and batch.converged.all()
    monkeypatch.setattr(batched, "_solve_slab", lambda Ys, *others: short(torch.zeros(9, 1, 1)))
    with pytest.raises(MemoryError, match=r"Ys.shape=\(5, 90, 50\) needs more memory than cpu has"):
        solve_as_on_a_gpu(stack_of(5, (90, 50)), 2)


def test_memory_errors_say_what_to_do(mixed: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **settings: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    words = (
        r"Ys\.shape=\(3, 90, 50\) needs another 2\.00 GiB, and cpu has no more; delete .* fewer problems, or pass Ys"
    )
    batch, _ = solve_as_on_a_gpu(mixed[0], 3, max_iter=1)
    monkeypatch.setattr("lrpca.batch.result._products", fail)
    monkeypatch.setattr("lrpca.batch.items.TensorMatrix", fail)
    monkeypatch.setattr("lrpca.batch.batched.Items", fail)
    for ask in (lambda: batch.low_rank, lambda: batch.sparse, lambda: batch.outliers, lambda: batch[0]):
        with pytest.raises(MemoryError, match=words):
            ask()
    with pytest.raises(MemoryError, match=words):
        solve_as_on_a_gpu(mixed[0], 3, max_iter=1)


def test_what_is_unreliable_is_solved_by_itself() -> None:
    Ys = stack_of(4, (90, 50))
    # Rank 2 asked of rank 4: the residual has structure.
    Ys[2] = planted((90, 50), rank=4, random_state=2, noise=0.01).Y
    batch, warned = solve_as_on_a_gpu(Ys, 2)
    alone = solve_alone(Ys[2:3], 2)[0]
    assert 2 in batch.sequential
    assert batch.reason[2] == alone.reason == batch[2].reason
    assert np.array_equal(batch.L[2].numpy(), alone.L)
    assert not alone.converged and batch.converged.tolist() == [True, True, False, True]
    assert [kind for kind, text in warned if "1 of 4 problems" in text] == [
        lrpca.ConvergenceWarning,
        lrpca.DiagnosisWarning,
    ]


def test_one_problem_of_a_batch_tells_its_story(mixed: tuple[Any, Any], tmp_path: Path) -> None:
    Ys, batch = mixed
    assert len(batch.sequential) == 0
    one, alone = batch[1], solve_alone(Ys[1:2], 3)[0]
    assert one.n_iter == int(batch.n_iter[1]) == len(one.history)
    assert one.diagnosis.components == alone.diagnosis.components == 2
    assert np.allclose(one.diagnosis.kept_by_row, alone.diagnosis.kept_by_row, atol=0.06)
    assert one.settings == alone.settings and one.settings["tol"] == 1e-6
    one.save(tmp_path / "one.npz")
    loaded = lrpca.Decomposition.load(tmp_path / "one.npz", Ys[1])
    assert loaded.settings == alone.settings and np.array_equal(loaded.outliers, one.outliers)
    assert torch.equal(one.sparse, batch.sparse[1]) and torch.equal(one.outliers, batch.outliers[1])
    assert not batch.outliers.numpy()[np.isnan(Ys)].any()
    first, theirs = one.history[0], alone.history[0]
    assert math.isclose(first.threshold or 0, theirs.threshold or 1, rel_tol=0.03)
    assert math.isclose(first.kept or 0, theirs.kept or 1, rel_tol=0.01)
    assert [record.iteration for record in one.history] == list(range(1, one.n_iter + 1))
    assert math.isclose(one.history[-1].threshold or 0, alone.history[-1].threshold or 1, rel_tol=0.03)
    assert batch[0].history[0].threshold != first.threshold


def test_batches_that_were_solved_together_are_stored_and_moved(mixed: tuple[Any, Any]) -> None:
    batch = mixed[1]
    again = pickle.loads(pickle.dumps(batch))
    assert torch.equal(again.sparse, batch.sparse) and again[1].history == batch[1].history
    arrays = batch.to_numpy()
    assert type(arrays[1]) is lrpca.Decomposition and arrays[1].history == batch[1].history
    for name in ("L", "R", "outliers", "n_iter", "converged", "outlier_threshold"):
        found, want = getattr(arrays, name), getattr(batch, name)
        assert isinstance(found, np.ndarray) and np.array_equal(found, want)
    assert np.array_equal(arrays[1].outliers, arrays.outliers[1])


def test_most_iterations_and_no_tolerance() -> None:
    Ys = stack_of(3, (90, 50))
    batch, warned = solve_as_on_a_gpu(Ys, 2, max_iter=3)
    assert list(batch.reason) == ["max_iter"] * 3 and batch.n_iter.tolist() == [3, 3, 3]
    assert warned[0][0] is lrpca.ConvergenceWarning and warned[0][1].startswith("3 of 3 problems")
    batch, warned = solve_as_on_a_gpu(Ys, 2, tol=0.0, max_iter=12)
    assert batch.n_iter.tolist() == [12] * 3 and warned == []


def test_schedules_that_the_batched_loop_does_not_follow_are_followed_one_by_one() -> None:
    Ys = stack_of(2, (90, 50))
    schedule = Schedule.load("default")
    soft = Schedule(schedule.thresholds, schedule.steps, kind="adaptive", influence="soft", tail=(1.0, 1.0))
    batch, _ = solve_as_on_a_gpu(Ys, 2, schedule=soft, tol=1e-3)
    assert list(batch.sequential) == [0, 1]


@pytest.mark.parametrize("shape", [(1, 10), (10, 1), (5, 7), (3, 200)])
def test_very_small_problems(shape: tuple[int, int]) -> None:
    Ys = stack_of(2, shape, rank=1)
    batch, _ = solve_as_on_a_gpu(Ys, 1)
    assert distance(batch.low_rank, np.stack([one.low_rank for one in solve_alone(Ys, 1)])).max() < 1e-5


def test_rows_with_more_outliers_than_not_are_recovered() -> None:
    planting = {"outlier_fraction": 0.5}
    batch, _ = solve_as_on_a_gpu(stack_of(2, (100, 80), np.float64, **planting), 2)
    assert batch.converged.all()
    assert distance(batch.low_rank, truth_of(2, (100, 80), **planting)).max() < 1e-6


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_fit_that_is_off_by_a_factor_in_some_rows_and_columns_is_solved_by_itself(
    noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lrpca.batch import loop

    planting = {"noise": noise, "rank": 1}
    Ys, X = stack_of(3, (200, 40), **planting), truth_of(3, (200, 40), **planting)
    U, values, Vt = np.linalg.svd(X[1])
    # Right where the first rows meet the first columns, and the others the others: most of X passes for outliers.
    L, R = U[:, :1] * values[0] ** 0.5, Vt[:1].T * values[0] ** 0.5
    L[:130], R[:15] = 1.05 * L[:130], R[:15] / 1.05

    def divided(*given: Any) -> tuple[Any, Any]:
        starts = exact_starts(*given)
        for whole, one in zip(starts, (L, R), strict=True):
            whole[1] = torch.from_numpy(one)
        return starts

    exact_starts = loop.exact_starts
    monkeypatch.setattr(loop, "exact_starts", divided)
    batch, _ = solve_as_on_a_gpu(Ys, 1)
    assert list(batch.sequential) == [1]
    assert batch.converged.all() and distance(batch.low_rank, X).max() < max(1e-5, 2 * noise)


def test_constant_and_zero_problems() -> None:
    Ys = stack_of(3, (90, 50))
    Ys[0], Ys[1] = 0.0, 7.0
    batch, _ = solve_as_on_a_gpu(Ys, 2)
    assert np.allclose(batch.low_rank[0], 0) and np.allclose(batch.low_rank[1], 7, rtol=1e-5)


def test_formulas_of_many_problems_are_those_of_each() -> None:
    from lrpca.batch import algebra
    from lrpca.core import factors as iteration

    torch.manual_seed(0)
    for rank in (1, 2, 5, 9):
        tall = torch.randn(3, 40, 20, rank, dtype=torch.float64)
        grams, sides = tall.transpose(2, 3) @ tall, torch.randn(3, 40, rank, dtype=torch.float64)
        expected = np.stack([iteration.solve_each(grams[i].numpy(), sides[i].numpy()) for i in range(3)])
        assert np.allclose(algebra.solve_each(grams, sides), expected, rtol=1e-8, atol=1e-9)
    values = torch.tensor([3.0, 2.0, 1.0, 0.01], dtype=torch.float64)
    L, R = (torch.linalg.qr(torch.randn(3, n, 4, dtype=torch.float64))[0] * values for n in (30, 20))
    dL, dR = 0.1 * torch.randn_like(L), 0.1 * torch.randn_like(R)
    new = algebra.retract(L, R, dL, dR)
    for i in range(3):
        one = iteration.retract(*(M[i].numpy() for M in (L, R, dL, dR)))
        assert np.allclose((new.U[i] * new.values[i]) @ new.V[i].T, (one.U * one.values) @ one.V.T, atol=1e-12)
        still = torch.zeros(3, 4, dtype=torch.bool)
        assert math.isclose(float(new.moved(still)[i]), one.moved(np.zeros(4, bool)), rel_tol=1e-10)


def test_products_that_torch_may_round_do_not_spoil_residuals(monkeypatch: pytest.MonkeyPatch) -> None:
    from lrpca.batch import result, stack

    product = torch.bmm

    def rounding(Y: Any, L: Any, R: Any, *, alpha: float) -> Any:
        return Y + alpha * (L @ R).bfloat16()

    def multiply(M: Any, N: Any) -> Any:
        return product(M, N) if M.dtype == torch.float64 else product(M.bfloat16(), N.bfloat16()).float()

    Ys, X = stack_of(3, (90, 50), rank=4), truth_of(3, (90, 50), rank=4)
    torch.manual_seed(0)
    L, R, level = torch.randn(3, 90, 4).double(), torch.randn(3, 50, 4).double(), torch.full((3,), 5e-3).double()

    def read() -> Any:
        data = stack.load(torch.from_numpy(Ys), None, torch.float32)
        return stack.run_pass(data, data.Y.clone(), L, R, level, 2 * level, grams=True)

    want = read()
    monkeypatch.setattr(torch, "baddbmm", rounding)
    monkeypatch.setattr(torch, "bmm", multiply)
    for module in (result, stack):
        monkeypatch.setattr(module, "rounds_products", lambda device: True)
    for name in ("CA", "CtB", "kept_by_row", "row_grams", "column_grams"):
        one, other = getattr(read(), name), getattr(want, name)
        assert (one - other).abs().max() < 1e-6 * other.abs().max()
    batch, _ = solve_as_on_a_gpu(Ys, 4)
    assert len(batch.sequential) <= 1
    assert distance(batch.low_rank, X).max() < 1e-5
    # To the last bit: sums in single precision would differ here and there.
    assert torch.equal(batch.low_rank, (batch.L.double() @ batch.R.double().mT).float())
