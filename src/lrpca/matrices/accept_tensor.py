"""Torch tensors as a Matrix: on the CPU their memory is read in place by the compiled kernels, elsewhere they stay.

What goes with them (mask, start, weights) may be a tensor on the same device or an array, which is moved there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lrpca.core.devices import in_memory_of, is_tensor
from lrpca.matrices.chunked.large import check_mask, open_mask
from lrpca.matrices.dense import DenseMatrix, readable, two_axes_advice

# Number types that are read, on the CPU and on other devices; PyTorch does not compute with the others there.
_EVERYWHERE = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
_ON_CPU_ONLY = ("uint16", "uint32", "uint64")


def accept_tensor(Y: Any, mask: Any = None) -> DenseMatrix:  # Y (n1, n2) tensor
    """Return a tensor as a Matrix, without copying it: a `TensorMatrix`, or a `DenseMatrix` of its memory on the CPU.

    A tensor on the CPU is copied if its number type is float16 or bfloat16, once, to float32. One that requires
    gradients is read all the same; results have none.
    """
    check_kind(Y, "Y")
    if Y.numel() == 0:
        raise ValueError(f"Y.shape={tuple(Y.shape)} has no entries; pass at least one row and one column")
    if Y.ndim != 2:
        stack = "pass a stack of matrices to lrpca.decompose_batch, or " if Y.ndim == 3 else ""
        raise ValueError(f"Y.ndim={Y.ndim} is not 2; {stack}{two_axes_advice(Y.ndim, 'Y')}")
    if Y.device.type == "cpu":
        observed = open_mask(host_argument(mask, "mask", Y.device), tuple(Y.shape))
        return DenseMatrix(readable(host_array(Y)), None if observed is None else np.asarray(observed[:, :]))
    from lrpca.matrices.tensor import TensorMatrix

    return in_memory_of(Y.device, lambda: TensorMatrix(_plain(Y), _device_mask(mask, Y)), tuple(Y.shape))


def check_kind(tensor: Any, name: str) -> None:
    """Raise ValueError or TypeError where a tensor cannot be read, whatever its shape."""
    import torch

    dtype, known = str(tensor.dtype).removeprefix("torch."), _EVERYWHERE + _INTEGERS
    if tensor.is_quantized:
        raise TypeError(f"{name}.dtype={tensor.dtype} is quantised; pass {name}.dequantize()")
    # Asked before the layout, which some of them have of their own: they are not made dense by to_dense().
    if tensor.is_nested:
        raise TypeError(f"{name}.is_nested=True: rows differ in length; pass {name}.to_padded_tensor(float('nan'))")
    if tensor.layout != torch.strided:
        raise TypeError(
            f"{name}.layout={tensor.layout} is not dense; pass {name}.to_dense(), where absent entries are zeros"
        )
    if tensor.device.type == "meta":
        raise ValueError(f"{name}.device=meta has no entries; pass a tensor with data, e.g. on 'cpu' or 'cuda'")
    if tensor.device.type == "mps":
        raise ValueError(f"{name}.device={tensor.device} has no double precision; pass {name}.cpu()")
    if dtype not in (known + _ON_CPU_ONLY if tensor.device.type == "cpu" else known):
        is_whole = dtype in _ON_CPU_ONLY
        wider = "to(torch.int64)" if is_whole else "to(torch.complex64)" if tensor.is_complex() else "float()"
        raise TypeError(
            f"{name}.dtype={tensor.dtype} is not read on {tensor.device}; convert it first, e.g. {name}.{wider}"
        )


def host_array(tensor: Any) -> Any:
    """Return a tensor on the CPU as an array of the same memory (bfloat16, which NumPy lacks: as float32)."""
    import torch

    tensor = _plain(tensor)
    try:
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    except RuntimeError:
        raise TypeError(
            f"{type(tensor).__name__} of shape {tuple(tensor.shape)} has no memory to be read, as within torch.vmap; "
            "pass a plain tensor, and a stack of them to lrpca.decompose_batch"
        ) from None


def on_host(value: Any) -> Any:
    """Return a tensor as an array, copied if it is on another device, and anything else as it is."""
    return host_array(value.cpu()) if is_tensor(value) else value


def host_argument(value: Any, name: str, device: Any = None, beside: str = "Y") -> Any:
    """Return the argument `name` as an array if it is a tensor or a list, and anything else as it is.

    Raises ValueError for a tensor that is not on the `device` of Y (None: Y is no tensor). Messages call Y `beside`.
    """
    if is_tensor(value):
        check_beside(value, name, device, beside)
    if isinstance(value, list | tuple):
        try:
            return np.asarray(value)
        except ValueError:
            kind = type(value).__name__
            raise ValueError(f"{name}={kind} has parts of several lengths; pass one array") from None
    return on_host(value)


def results_device(Y: Any, matrix: DenseMatrix) -> Any:
    """Return the device on which results are tensors, or None where they are arrays."""
    if is_tensor(Y):
        return Y.device
    array: Any = getattr(matrix, "array", None)
    return array.device if is_tensor(array) else None


def _plain(tensor: Any) -> Any:
    """Return a tensor without its graph, and without a conjugation or a sign that is still to be done."""
    return tensor.detach().resolve_conj().resolve_neg()


def _device_mask(mask: Any, Y: Any) -> Any:
    """Return a mask as a tensor of bool beside Y, expanded to its shape."""
    if mask is None:
        return None
    import torch

    if not is_tensor(mask):
        mask = torch.from_numpy(np.array(open_mask(mask, tuple(Y.shape))[:, :])).to(Y.device)
    check_beside(mask, "mask", Y.device)
    check_mask(mask, tuple(Y.shape))
    return mask.expand(Y.shape)


def check_beside(tensor: Any, name: str, device: Any, beside: str = "Y") -> None:
    """Raise an error where a tensor is not on the device (None: the CPU) of Y, or what that is called, or not read."""
    if device is None:
        if tensor.device.type != "cpu":
            raise ValueError(
                f"{name}.device={tensor.device}, but {beside} is in the memory of the CPU; pass {name}.cpu()"
            )
    elif tensor.device != device:
        raise ValueError(
            f"{name}.device={tensor.device} is not {beside}.device={device}; move one of them, e.g. "
            f"{name}.to({beside}.device)"
        )
    check_kind(tensor, name)


def refuse_list_of_tensors(Y: Any, name: str = "Y") -> None:
    """Raise TypeError where a list is one of tensors: of their rows arrays would be made, without a word."""
    if not isinstance(Y, list | tuple) or not any(is_tensor(part) for part in Y):
        return
    kind = type(Y).__name__
    others = [type(part).__name__ for part in Y if not is_tensor(part)]
    if others:
        raise TypeError(
            f"{name}={kind} holds tensors and {others[0]}; pass torch.stack({name}) of tensors alone, or arrays alone"
        )
    shapes = list(dict.fromkeys(tuple(part.shape) for part in Y))
    if len(shapes) > 1:
        raise TypeError(
            f"{name}={kind} of tensors has shapes {shapes[0]} and {shapes[1]}; pass torch.stack({name}), tensors of "
            "one shape"
        )
    raise TypeError(f"{name}={kind} of tensors is not a tensor; pass torch.stack({name})")
