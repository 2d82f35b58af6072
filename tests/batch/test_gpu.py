"""`decompose_batch` on a real GPU: the same answers as on the CPU, tensors that stay there, memory that is bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.testing import planted

torch = pytest.importorskip("torch")

from tests.helpers.batch_stacks import distance, stack_of  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("planting", [{}, {"missing": 0.3}, {"outlier_fraction": 0.3}, {"rank": 3, "condition": 50.0}])
@pytest.mark.parametrize("more", [0, 2])
def test_problems_without_noise(planting: dict[str, Any], more: int) -> None:
    Ys = stack_of(12, (90, 50), **planting)
    rank = planting.get("rank", 2) + more
    there = lrpca.decompose_batch(torch.from_numpy(Ys).cuda(), rank)
    here = lrpca.decompose_batch(Ys, rank)
    assert there.L.device.type == "cuda" and there.converged.device.type == "cuda"
    assert there.converged.tolist() == here.converged.tolist()
    assert len(there.sequential) <= 2
    # Both are off by the rounding of single precision.
    assert distance(there.low_rank.cpu().numpy(), here.low_rank).max() < 2e-5


@pytest.mark.parametrize("planting", [{"noise": 0.01}, {"noise": 0.05, "missing": 0.3}])
def test_noisy_problems(planting: dict[str, Any]) -> None:
    Ys = stack_of(12, (90, 50), **planting)
    there, here = lrpca.decompose_batch(torch.from_numpy(Ys).cuda(), 2), lrpca.decompose_batch(Ys, 2)
    truth = np.stack([planted((90, 50), random_state=i, rank=2, **planting).X for i in range(12)])
    error = distance(here.low_rank, truth)
    assert there.converged.tolist() == here.converged.tolist()
    assert (distance(there.low_rank.cpu().numpy(), here.low_rank) < 0.35 * error).all()
    assert np.allclose(there.noise_level.cpu(), here.noise_level, rtol=0.05)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fill_values_do_not_hide_the_noise(dtype: Any) -> None:
    Ys = stack_of(4, (90, 50), noise=0.01).astype(dtype)
    filled = np.random.default_rng(1).random(Ys.shape) < 0.01
    want, found = (
        lrpca.decompose_batch(torch.from_numpy(np.where(filled, dtype(fill), Ys)).cuda(), 2) for fill in (1e6, 1e37)
    )
    assert len(found.sequential) == 0 and found.converged.all()
    assert found.outliers.cpu().numpy()[filled].all()
    assert np.allclose(found.noise_level.cpu(), want.noise_level.cpu(), rtol=0.02)
    assert distance(found.low_rank.cpu().numpy(), want.low_rank.cpu().numpy()).max() < 1e-3


def test_the_same_call_gives_the_same_bits() -> None:
    Ys = torch.from_numpy(stack_of(40, (90, 50), noise=0.02)).cuda()
    one, other = (lrpca.decompose_batch(Ys, 3) for _ in range(2))
    assert torch.equal(one.L, other.L) and torch.equal(one.R, other.R)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.uint8])
def test_number_types(dtype: Any) -> None:
    Ys = torch.from_numpy(stack_of(4, (90, 50), noise=0.02)).double()
    Ys = 120 + 15 * Ys / Ys.abs().mean() if dtype == torch.uint8 else Ys
    found = lrpca.decompose_batch(Ys.to(dtype).cuda(), 3)
    assert found.L.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    expected = lrpca.decompose_batch(Ys.to(dtype), 3)
    assert distance(found.low_rank.cpu().numpy(), expected.low_rank.numpy()).max() < 0.02


def test_masks_lazy_parts_and_single_problems() -> None:
    Ys, mask = torch.from_numpy(stack_of(3, (90, 50))).cuda(), torch.rand(90, 50).cuda() < 0.9
    found = lrpca.decompose_batch(Ys, 2, mask=mask)
    assert torch.equal(found.L, lrpca.decompose_batch(Ys, 2, mask=mask.cpu().numpy()).L)
    assert found.sparse.device.type == "cuda" and not found.outliers[:, ~mask].any()
    one = found[2]
    assert one.L.device.type == "cuda" and torch.equal(one.outliers, found.outliers[2])
    assert one.n_iter == int(found.n_iter[2]) == len(one.history)
    with pytest.raises(ValueError, match=r"mask.device=cpu is not Ys.device=cuda:0"):
        lrpca.decompose_batch(Ys, 2, mask=mask.cpu())


def test_arrays_leave_nothing_on_the_device() -> None:
    Ys = stack_of(3, (90, 50))
    lrpca.decompose_batch(torch.from_numpy(Ys).cuda(), 2)  # libraries keep what they need
    before = torch.cuda.memory_allocated()
    found = lrpca.decompose_batch(torch.from_numpy(Ys).cuda(), 2)
    arrays, sparse = found.to_numpy(), found.sparse.cpu().numpy()
    del found
    assert torch.cuda.memory_allocated() <= before
    assert np.allclose(arrays.sparse, sparse, atol=1e-6) and isinstance(arrays[1].L, np.ndarray)
    assert arrays[1].n_iter == len(arrays[1].history)


def test_settings_of_the_caller_change_nothing() -> None:
    Ys = torch.from_numpy(stack_of(3, (90, 50))).cuda()
    want = lrpca.decompose_batch(Ys, 2)
    with torch.autocast("cuda"), torch.device("cuda"):
        found = lrpca.decompose_batch(Ys, 2)
        assert torch.equal(found.L, want.L) and torch.equal(found.sparse, want.sparse)


def test_where_torch_is_asked_for_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    # What torch itself asks for then.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    Ys = torch.from_numpy(stack_of(3, (90, 50), missing=0.1)).cuda()
    want = lrpca.decompose_batch(Ys, 2)
    torch.use_deterministic_algorithms(True)
    try:
        found = lrpca.decompose_batch(Ys, 2)
    finally:
        torch.use_deterministic_algorithms(False)
    assert distance(found.low_rank.cpu().numpy(), want.low_rank.cpu().numpy()).max() < 2e-5


def test_ten_thousand_problems_in_bounded_memory() -> None:
    count, (n1, n2) = 10_000, (1024, 40)
    torch.manual_seed(0)
    L, R = torch.randn(count, n1, 1, device="cuda"), torch.randn(count, n2, 1, device="cuda")
    Ys = L @ R.transpose(1, 2)
    for part in Ys.split(1000):
        part += (torch.rand_like(part) < 0.1) * (2 * torch.rand_like(part) - 1)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = lrpca.decompose_batch(Ys, 1)
    assert found.converged.all() and len(found.sequential) < 100
    assert torch.cuda.max_memory_allocated() - before < 10 * Ys.numel() * 4
    error = (found.L[:50] @ found.R[:50].transpose(1, 2) - L[:50] @ R[:50].transpose(1, 2)).norm(dim=(1, 2))
    assert (error < 1e-5 * (L[:50] @ R[:50].transpose(1, 2)).norm(dim=(1, 2))).all()
