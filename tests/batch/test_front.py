"""`decompose_batch`: one problem after the other to the bit, warnings and refusals."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.schedule import Schedule
from lrpca.testing import planted

torch = pytest.importorskip("torch")

from tests.helpers.batch_stacks import solve_as_on_a_gpu, stack_of  # noqa: E402


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.uint8])
def test_every_problem_is_solved_as_by_itself_to_the_bit(dtype: Any) -> None:
    Ys = stack_of(2, dtype=np.float64, noise=0.01)
    Ys = (120 + 15 * Ys / np.abs(Ys).mean() if dtype is np.uint8 else Ys).astype(dtype)
    batch = lrpca.decompose_batch(Ys, 2 if dtype is not np.uint8 else 3, random_state=3)
    for i, one in enumerate(batch):
        alone = lrpca.decompose(Ys[i], batch.rank, random_state=3)
        for name in ("L", "R", "low_rank", "sparse", "outliers"):
            expected = getattr(alone, name)
            assert np.array_equal(getattr(one, name), expected)
            assert np.array_equal(getattr(batch, name)[i], expected)
            assert getattr(batch, name).dtype == expected.dtype
        for name in ("reason", "n_iter", "converged", "noise_level", "outlier_threshold", "outlier_fraction"):
            assert getattr(batch, name)[i] == getattr(alone, name)


def test_missing_entries_and_masks() -> None:
    Ys = stack_of(2, missing=0.2)
    shared = np.random.default_rng(0).random((60, 40)) < 0.9
    own = np.random.default_rng(1).random(Ys.shape) < 0.9
    for mask in (None, shared, own, own[:1]):
        batch = lrpca.decompose_batch(Ys, 2, mask=mask)
        seen = ~np.isnan(Ys) if mask is None else np.broadcast_to(mask, Ys.shape) & ~np.isnan(Ys)
        assert not batch.outliers[~seen].any()
        alone = lrpca.decompose(Ys[1], 2, mask=None if mask is None else np.broadcast_to(mask, Ys.shape)[1])
        assert np.array_equal(batch.L[1], alone.L)
        assert np.array_equal(batch.sparse[1], alone.sparse)


def test_masked_arrays_hide_entries() -> None:
    Ys = stack_of(3)
    hidden = np.random.default_rng(0).random(Ys.shape) < 0.1
    spoiled = np.where(hidden, 1e6, Ys).astype(np.float32)
    masked = np.ma.array(spoiled, mask=hidden)
    for given in (masked, list(masked)):
        batch = lrpca.decompose_batch(given, 2)
        assert np.array_equal(batch.L, lrpca.decompose_batch(Ys, 2, mask=~hidden).L)
        assert not batch.outliers[hidden].any()


def test_tensors_in_tensors_out() -> None:
    Ys = stack_of(3)
    arrays, tensors = lrpca.decompose_batch(Ys, 2), lrpca.decompose_batch(torch.from_numpy(Ys), 2)
    for name in ("L", "R", "low_rank", "sparse", "outliers", "n_iter", "converged", "noise_level", "outlier_fraction"):
        found = getattr(tensors, name)
        assert isinstance(found, torch.Tensor)
        assert np.array_equal(found.numpy(), getattr(arrays, name))
    assert isinstance(tensors[1], lrpca.Decomposition) and isinstance(tensors[1].L, torch.Tensor)
    assert list(tensors.reason) == list(arrays.reason)
    for way in (tensors.to_numpy(), pickle.loads(pickle.dumps(tensors)).to_numpy()):
        assert way.to_numpy() is way and type(way[1]) is lrpca.Decomposition
        for name in ("L", "sparse", "outliers", "noise_level"):
            assert np.array_equal(getattr(way, name), getattr(arrays, name))
        assert np.array_equal(way[1].sparse, arrays[1].sparse)
    rounded = lrpca.decompose_batch(torch.from_numpy(Ys).bfloat16(), 2)
    assert rounded.L.dtype == torch.float32


def test_one_problem_and_how_a_batch_looks() -> None:
    batch = lrpca.decompose_batch(stack_of(1), 2)
    assert len(batch) == 1
    assert repr(batch) == "<BatchDecomposition of 1 problem 60 x 40, rank 2, 1 converged, 10.0% outliers>"
    assert batch[-1].n_iter == batch.n_iter[0]
    with pytest.raises(IndexError, match="index=1 is not a problem of a batch of 1"):
        batch[1]
    for index in (slice(1, 3), 1.0, [0]):
        with pytest.raises(
            TypeError, match=r"index=.* is not an integer; batch\[i\] is one problem, arrays are sliced"
        ):
            batch[index]


def test_a_generator_gives_one_seed() -> None:
    Ys = stack_of(1, (400, 300))  # large enough to be sampled
    found = lrpca.decompose_batch(Ys, 2, random_state=np.random.default_rng(5))
    seed = int(np.random.default_rng(5).integers(2**31))
    assert np.array_equal(found.L[0], lrpca.decompose(Ys[0], 2, random_state=seed).L)
    assert not np.array_equal(found.L[0], lrpca.decompose(Ys[0], 2, random_state=0).L)


def test_schedules_and_options_reach_every_problem() -> None:
    Ys = stack_of(2)
    schedule = Schedule([20.0, 3.0], [0.0, 1.0], kind="adaptive", influence="hard", update="tangent", tail=(1.0, 1.0))
    batch = lrpca.decompose_batch(Ys, 2, schedule=schedule, tol=1e-4, options={"without": ["refine_cutoff"]})
    alone = lrpca.decompose(Ys[1], 2, schedule=schedule, tol=1e-4, options={"without": ["refine_cutoff"]})
    assert np.array_equal(batch.L[1], alone.L)


def test_one_warning_counts_who_has_not_converged() -> None:
    with pytest.warns(lrpca.ConvergenceWarning) as caught:
        batch = lrpca.decompose_batch(stack_of(7), 2, max_iter=2)
    assert len(caught) == 1
    assert str(caught[0].message).startswith("7 of 7 problems have not converged: 0, 1, 2, 3, 4, ...; Ys[0]: not conv")
    assert set(batch.reason) == {"max_iter"} and not batch.converged.any()


def test_one_warning_counts_what_looks_odd() -> None:
    Ys = stack_of(3)
    Ys[1] = planted((60, 40), rank=2, outlier_fraction=0.0, random_state=1).Y
    with pytest.warns(lrpca.DiagnosisWarning, match=r"^1 of 3 problems look odd: 1; Ys\[1\]: S is empty"):
        lrpca.decompose_batch(Ys, 2)


@pytest.mark.parametrize("together", [False, True])
def test_a_problem_that_fails_names_itself(together: bool) -> None:
    solve = solve_as_on_a_gpu if together else lrpca.decompose_batch
    infinite, empty = stack_of(4), stack_of(4)
    infinite[2, 3, 4] = np.inf
    empty[1] = np.nan
    with pytest.raises(ValueError, match=r"^Ys\[2\]: Y\[3, 4\]=inf is not finite"):
        solve(infinite, 2)
    with pytest.raises(ValueError, match=r"^Ys\[1\]: Y has no observed entry"):
        solve(empty, 2)
    large = stack_of(2, dtype=np.float64)
    large[1, 3, 4] = -1e200
    with pytest.raises(ValueError, match=r"^Ys\[1\]: Y\[3, 4\]=-1e\+200 is too large beside the others"):
        solve(large, 2)


OFF = torch.ones(5, 5, dtype=torch.bool, device="meta")


@pytest.mark.parametrize(
    ("Ys", "arguments", "message"),
    [
        (np.zeros((0, 5, 5)), {}, r"Ys.shape=\(0, 5, 5\) has no entries"),
        (np.ones((5, 5)), {}, "Ys.ndim=2 is not 3; use lrpca.decompose for one matrix"),
        (np.full((2, 5, 5), "a"), {}, "is not numeric"),
        (
            [np.ones((2, 2)), np.ones((3, 2))],
            {},
            r"^Ys=list of shapes \(2, 2\) and \(3, 2\) is not a stack; give matrices of one shape, or call "
            r"lrpca\.decompose for each$",
        ),
        ([[[1.0, 2.0]], [[1.0]]], {}, "^Ys=list is not a stack; give matrices of one shape"),
        ([], {}, r"^Ys=\[\] has no problem; pass at least one$"),
        (np.ones((2, 5, 5)), {"rank": 6}, "rank=6 is not between 1 and"),
        (np.ones((2, 5, 5)), {"rank": "auto"}, "rank='auto' is not an integer, and a rank of each"),
        (np.ones((2, 5, 5)), {"mask": np.ones((3, 5), bool)}, r"mask.shape=\(3, 5\) does not fit"),
        (np.ones((2, 5, 5)), {"mask": np.ones((1, 2, 5, 5), bool)}, r"mask.shape=\(1, 2, 5, 5\) does not fit"),
        (torch.ones(2, 5, 5), {"mask": np.ones((3, 5), bool)}, r"mask.shape=\(3, 5\) does not fit"),
        (np.ones((2, 5, 5)), {"mask": [[True], [True] * 2]}, "^mask=list has parts of several lengths; pass"),
        (torch.ones(2, 5, 5), {"mask": [[True], [True] * 2]}, "^mask=list has parts of several lengths; pass"),
        (np.ones((2, 5, 5)), {"mask": np.ones((5, 5))}, "mask.dtype=float64 is not bool; .* mask != 0"),
        (torch.ones(2, 5, 5), {"mask": torch.ones(5, 5)}, "mask.dtype=torch.float32 is not bool; .* mask != 0"),
        (torch.ones(2, 5, 5), {"mask": OFF}, r"mask.device=meta is not Ys.device=cpu; .* mask.to\(Ys.device\)"),
        (np.ones((2, 5, 5)), {"mask": OFF}, r"mask.device=meta, but Ys is in the memory of the CPU; pass mask.cpu"),
        (np.ones((2, 5, 5)), {"tol": 2.0}, "tol=2.0 is not a number"),
        (np.ones((2, 5, 5)), {"options": {"checkpoint": "a.npz"}}, "is one file, but a batch has many"),
        (
            np.ones((2, 5, 5)),
            {"options": {"gamma": 1}},
            r"^options=\{'gamma': \.\.\.\} is unknown(?!.*checkpoint).*; use",
        ),
    ],
)
def test_what_cannot_be_solved_is_refused(Ys: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lrpca.decompose_batch(Ys, **({"rank": 1} | arguments))


@pytest.mark.parametrize(
    ("Ys", "message"),
    [
        ([torch.ones(5, 5), torch.ones(5, 5)], r"Ys=list of tensors is not a tensor; pass torch.stack\(Ys\)$"),
        (
            [torch.ones(5, 5), torch.ones(4, 5)],
            r"Ys=list of tensors has shapes \(5, 5\) and \(4, 5\); pass torch\.stack\(Ys\), tensors of one shape$",
        ),
        ([torch.ones(5, 5), np.ones((5, 5))], r"Ys=list holds tensors and ndarray; pass torch\.stack\(Ys\) of tensors"),
        (None, r"Ys=None is not a stack; pass an array or a tensor \(b, n1, n2\)$"),
        ("x.npy", r"Ys='x.npy' names files; pass their arrays, e.g. numpy.load"),
    ],
)
def test_what_is_no_stack_is_refused(Ys: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        lrpca.decompose_batch(Ys, 1)


def test_an_interrupt_ends_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    from lrpca.batch import sequential

    solved = []

    def stop_at_third(*given: Any, **arguments: Any) -> Any:
        solved.append(1)
        if len(solved) == 3:
            raise KeyboardInterrupt
        return None, []

    monkeypatch.setattr(sequential, "decompose_with_warnings", stop_at_third)
    monkeypatch.setattr(sequential, "thread_count", lambda: 2)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        lrpca.decompose_batch(np.ones((50, 260, 260)), 1)
    assert len(solved) < 50 and threading.active_count() == before
