"""Devices of tensors: names that are checked, free memory, and errors that say what to do when it is full."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

_INSTALL = "https://pytorch.org/get-started/locally"
# What torch says first when memory is short, e.g. "Tried to allocate 20.00 MiB".
_WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+ ?\w+)")
# What CUDA, Triton and libraries of linear algebra say, which take memory without torch.
_SHORT = re.compile(r"out of memory|STATUS_ALLOC_FAILED")

Result = TypeVar("Result")


def check_device(device: Any) -> Any:
    """Return a device of this machine that can do our arithmetic, or say what is wrong with it.

    Parameters
    ----------
    device : str, torch.device or None
        E.g. "cpu", "cuda" or "cuda:1"; None is the CPU.

    Returns
    -------
    torch.device

    Raises
    ------
    ValueError
        There is no such device, here or at all, or it has no double precision.
    ImportError
        PyTorch is not installed.

    Examples
    --------
    >>> check_device("cpu")
    device(type='cpu')
    """
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"device={device!r} needs PyTorch, which is not installed; pip install lrpca[gpu]") from None
    name = device if isinstance(device, int | float) else "cpu" if device is None else str(device)
    try:
        found = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device={name!r} is unknown; use 'cpu', 'cuda' or e.g. 'cuda:1'") from None
    if found.type == "cuda":
        _check_cuda(torch, name, found)
    elif found.type == "mps":
        raise ValueError(f"device={name!r} has no double precision; use 'cpu' or 'cuda'")
    elif found.type != "cpu" and not _computes(torch, found):
        raise ValueError(f"device={name!r} cannot be computed on here; use 'cpu' or 'cuda'")
    return found


def _computes(torch: Any, device: Any) -> bool:
    if device.type == "meta":
        return False
    try:
        torch.zeros(1, dtype=torch.float64, device=device) + 1
    except Exception:  # every backend raises its own errors
        return False
    return True


def _check_cuda(torch: Any, name: Any, device: Any) -> None:
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if device.index is not None and device.index >= count:
            there = "only 'cuda:0'" if count == 1 else f"'cuda:0' to 'cuda:{count - 1}'"
            raise ValueError(f"device={name!r} is not there; this machine has {there}")
        return
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        raise ValueError(
            f"device={name!r} is not available: this torch ({torch.__version__}) was built without CUDA; install a "
            f"CUDA build, see {_INSTALL}, or use 'cpu'"
        )
    raise ValueError(
        f"device={name!r} is not available: torch ({torch.__version__}) finds no GPU, or no driver for it; see what "
        "nvidia-smi says, or use 'cpu'"
    )


def is_tensor(value: Any) -> bool:
    """Tell whether something is a torch tensor, without loading torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def in_memory_of(device: Any, work: Callable[[], Result], shape: tuple[int, ...], name: str = "Y") -> Result:
    """Return what `work()` returns; where the memory of its device is full, raise a MemoryError that says what to do.

    The device (None where no device takes part) is the current one meanwhile. A caller's `torch.autocast` is switched
    off: it would round products to sixteen bits. The message gives the `shape` of Y, which it calls `name`.
    """
    if device is None:
        return work()
    import torch

    # Kernels are started on the device that is current.
    there = torch.cuda.device(device) if device.type == "cuda" and torch.cuda.is_available() else nullcontext()
    try:
        with torch.autocast(device.type, enabled=False), there:
            return work()
    except RuntimeError as error:
        if not is_shortage(error):
            raise
        message = _shortage(device, shape, name, str(error))
    # Raised out of the handler: an exception it came from would keep alive whatever was being computed.
    raise MemoryError(message)


def is_shortage(error: RuntimeError) -> bool:
    """Tell whether an error, of torch or of the libraries it calls, says that the memory of a device is full.

    Examples
    --------
    >>> is_shortage(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    True
    """
    import torch

    return isinstance(error, torch.OutOfMemoryError) or _SHORT.search(str(error)) is not None


def _shortage(device: Any, shape: tuple[int, ...], name: str, said: str) -> str:
    wanted = _WANTED.search(said)
    needed = f"another {wanted[1]}" if wanted else "more memory"
    memory, fewer = free_memory(device), "rows" if len(shape) == 2 else "problems"
    there = "no more" if memory is None else f"{bytes_in_words(memory[0])} of {bytes_in_words(memory[1])} free"
    return (
        f"{name}.shape={tuple(shape)} needs {needed}, and {device} has {there}; delete tensors that are not needed, "
        f"pass {name} in fewer bytes (float32, float16, uint8) or fewer {fewer}, or pass {name}.cpu()"
    )


def free_memory(device: Any) -> tuple[int, int] | None:
    """Return how many bytes of a GPU are free, and how many it has; None where that is not known."""
    import torch

    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info(device)
    # What torch holds for later use is free for us.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), total


def rounds_products(device: Any) -> bool:
    """Tell whether torch is allowed to multiply float32 matrices on a device in fewer bits (TF32, bfloat16)."""
    import torch

    if torch.is_autocast_enabled(device.type):
        return True
    backend = torch.backends.mkldnn if device.type == "cpu" else torch.backends.cuda
    # The newer of torch's two settings; reading the older one fails once the newer has been used.
    precision = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    if precision is None:
        return bool(torch.get_float32_matmul_precision() != "highest")
    return precision not in ("ieee", "none")


def bytes_in_words(count: float) -> str:
    """Return a number of bytes with a unit.

    Examples
    --------
    >>> bytes_in_words(14.4e9), bytes_in_words(2e6)
    ('14.4 GB', '2 MB')
    """
    for size, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count / 1e3:.3g} kB"
