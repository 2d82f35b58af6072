"""Which devices are taken, what is said where their memory ends, whether torch rounds products."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from lrpca.core.devices import check_device, in_memory_of, rounds_products

torch = pytest.importorskip("torch")


def test_devices_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_device(None) == check_device("cpu") == check_device(torch.device("cpu")) == torch.device("cpu")
    for name in ("nonsense", "cuda:x", 3.5):
        with pytest.raises(ValueError, match=f"device={name!r} is unknown; use 'cpu', 'cuda' or e.g. 'cuda:1'"):
            check_device(name)
    for name, message in (("mps", "has no double precision"), ("meta", "cannot be computed on here")):
        with pytest.raises(ValueError, match=f"device='{name}' {message}"):
            check_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ValueError, match=r"device='cuda' is not available: this torch \(.*\) was built without"):
        check_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(ValueError, match="device='cuda:1' is not available: torch .* finds no GPU"):
        check_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert check_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match="device='cuda:7' is not there; this machine has 'cuda:0' to 'cuda:1'"):
        check_device("cuda:7")


def test_devices_need_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ImportError, match=r"device='cuda' needs PyTorch, which is not.*lrpca\[gpu"):
        check_device("cuda")


def test_whether_an_older_torch_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mkldnn", "cuda"):
        monkeypatch.setattr(torch.backends, name, SimpleNamespace())
    asked = "highest"
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: asked)
    assert not rounds_products(torch.device("cpu")) and not rounds_products(torch.device("cuda"))
    asked = "high"
    assert rounds_products(torch.device("cpu")) and rounds_products(torch.device("cuda"))


def test_other_errors_pass_through() -> None:
    def fail() -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    for work, kind in ((lambda: 1 // 0, ZeroDivisionError), (fail, RuntimeError)):
        with pytest.raises(kind):
            in_memory_of(torch.device("cpu"), work, (1, 1))
    assert in_memory_of(None, lambda: 3, (1, 1)) == 3


# The kinds of torch.OutOfMemoryError and of libraries, which take memory without torch.
SHORTAGES = (
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "Triton Error [CUDA]: out of memory",
)


@pytest.mark.parametrize("said", SHORTAGES)
def test_libraries_run_out_of_memory_too(said: str) -> None:
    def fail() -> Any:
        raise RuntimeError(said)

    message = r"^Y\.shape=\(7, 5\) needs more memory, and cpu has no more; delete"
    with pytest.raises(MemoryError, match=message) as caught:
        in_memory_of(torch.device("cpu"), fail, (7, 5))
    assert caught.value.__context__ is None


def test_memory_errors_tell_what_was_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ...")

    for name, value in (("is_available", True), ("memory_reserved", 3 << 20), ("memory_allocated", 1 << 20)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (13 << 20, 80 << 30))
    monkeypatch.setattr(torch.cuda, "device", lambda *_: nullcontext())
    words = r"Ys\.shape=\(9, 5, 4\) needs another 20\.00 MiB, and cuda has 15\.7 MB of 85\.9 GB free; delete .* fewer"
    with pytest.raises(MemoryError, match=words):
        in_memory_of(torch.device("cuda"), fail, (9, 5, 4), "Ys")
