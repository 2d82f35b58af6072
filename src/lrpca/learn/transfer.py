"""Thin matrices on their way between the CPU, which works on them, and the device that holds Y."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def send(tensors: Sequence[Any], like: Any) -> list[Any]:
    """Return tensors where `like` is, in one transfer.

    Parameters
    ----------
    tensors : sequence of Tensor
        All in one place. Integers are to be below 2**24, as counts of a row are.
    like : Tensor
        Gives the place, and real numbers its type; integers keep theirs.

    Examples
    --------
    >>> counts, sums = torch.tensor([3, 4]), torch.tensor([0.5], dtype=torch.float64)
    >>> [part.dtype for part in send((counts, sums), torch.zeros(1))]
    [torch.int64, torch.float32]
    """
    types = [like.dtype if tensor.is_floating_point() else tensor.dtype for tensor in tensors]
    if not _apart(tensors, like):
        return [tensor.to(dtype) for tensor, dtype in zip(tensors, types, strict=True)]
    # Nothing waits for what goes to a device; what comes from there is waited for.
    packed = torch.cat([tensor.reshape(-1) for tensor in tensors]).to(like.device, non_blocking=like.is_cuda)
    parts = torch.split(packed, [tensor.numel() for tensor in tensors])
    return [part.to(dtype).view(tensor.shape) for part, dtype, tensor in zip(parts, types, tensors, strict=True)]


def multiplied(
    M: Any,  # (n, m), beside Y
    thin: Any,  # (m, k), beside the factors
) -> Any:
    """Return the product M times a thin matrix, made beside Y and brought to the factors."""
    (there,) = send((thin,), M)
    (back,) = send((M @ there,), thin)
    return back


def _apart(tensors: Sequence[Any], like: Any) -> bool:
    return any(tensor.device != like.device for tensor in tensors)
