"""A matrix in a torch tensor, on any device: passes run there, factors stay there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from lrpca.core.influence import Levels
from lrpca.core.passes import Pass
from lrpca.kernels.torch_pass import TensorPass, plain_change
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.device.array import DeviceArray, to_device, to_host
from lrpca.matrices.device.report import report

# Number types that NumPy lacks, or that nothing is computed in, come to the host in single precision.
_TO_HOST_AS = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_ARITHMETIC: dict[Any, Any] = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.complex64): torch.complex64,
    np.dtype(np.complex128): torch.complex128,
}
# Rounding of the factors of products in TF32 and half precision.
_ELEVEN_BITS = 2.0**-11
# Random numbers that take the host longer than a GPU's passes.
_MANY = 1 << 16


class TensorMatrix(DenseMatrix):
    """Y as a torch tensor of any real or complex number type, any strides, with NaN or `mask` marking missing entries.

    Tall results of a pass stay on the device (`lrpca.matrices.device.array.DeviceArray`). Parts of Y that are read
    outside of passes are copied to the host, never Y as a whole. float16 and bfloat16 count as float32.
    """

    def __init__(self, array: Any, mask: Any = None) -> None:
        stored = np.dtype(str(_TO_HOST_AS.get(array.dtype, array.dtype)).removeprefix("torch."))
        self._prepare(tuple(array.shape), stored)
        self.array = array.detach()
        self.mask: Any = None if mask is None else mask.expand(array.shape)
        self._fast = False
        self._cache: dict[Any, Any] = {}  # memory that kernels share, and compiled kernels
        self._transposed = 0 < array.stride(0) < array.stride(1) and min(self.shape) > 1

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorMatrix, (self.array, self.mask)

    def close(self) -> None:
        """End the threads, and free what passes have kept: results keep the matrix, and need none of it."""
        super().close()
        self._cache = {}

    def compute_roughly(self, roughly: bool) -> None:
        """Compute passes in single precision, though Y is stored in double; of single precision, by eleven bits."""
        super().compute_roughly(roughly)
        self._fast = roughly and self.result == np.float32 and self._may_be_rough

    @property
    def is_rough(self) -> bool:
        """Whether passes are computed more roughly than Y is stored."""
        return self._fast or super().is_rough

    @property
    def rough_rounding(self) -> float:
        """The rounding of numbers where passes are computed roughly."""
        return _ELEVEN_BITS if self.result == np.float32 else super().rough_rounding

    def place(self, factor: Any) -> Any:
        """Return an array on the device of Y."""
        return factor if isinstance(factor, DeviceArray) else DeviceArray(to_device(factor, self.array.device))

    def draw_normal(self, shape: tuple[int, int], rng: np.random.Generator) -> Any:
        """Return a matrix of independent standard normal numbers; a GPU draws many itself, by a seed from `rng`.

        The host would take longer to draw them than the GPU to read Y.
        """
        device = self.array.device
        if device.type == "cpu" or math.prod(shape) < _MANY:
            return self.place(rng.standard_normal(shape))
        generator = torch.Generator(device).manual_seed(int(rng.integers(1 << 63)))
        return DeviceArray(torch.randn(shape, dtype=torch.float64, device=device, generator=generator))

    def values_at(self, at: Any) -> Any:
        """Return a part of Y on the host."""
        part = self.array[self._index(at)]
        return to_host(part.to(_TO_HOST_AS.get(part.dtype, part.dtype)))

    def mask_of(self, at: Any) -> Any:
        """Return the same part of the mask on the host; None if there is no mask."""
        return None if self.mask is None else to_host(self.mask[self._index(at)])

    def take_columns(self, indices: Any) -> DenseMatrix:
        """Return a copy of some columns, as the C-ordered rows of a matrix in memory."""
        part = super().take_columns(indices)
        return DenseMatrix(np.ascontiguousarray(part.array), part.mask)

    def with_mask(self, mask: Any) -> DenseMatrix:
        """Return the same data, in place, with another mask, from either side."""
        tensor = mask if isinstance(mask, torch.Tensor) else to_device(np.asarray(mask), self.array.device)
        other = type(self)(self.array, tensor)
        other.arithmetic = self.arithmetic
        return other

    def run_pass(
        self, L: Any, R: Any, level: Levels, *, A: Any, B: Any, energy: bool = False, grams: bool = False
    ) -> Pass:
        """Read Y once, on its device; see `lrpca.kernels.reference` for what comes back."""
        from lrpca.kernels.gpu import tensor_pass

        self.reads += 1
        left, right, for_CA, for_CtB = self._tensors(L, R, A, B)
        Y, mask, across = self.array, self.mask, self._transposed
        if across:
            Y, mask = Y.T, None if mask is None else mask.T
            left, right, for_CA, for_CtB = right, left, for_CtB, for_CA
        fast = self._fast and self.arithmetic == np.float32
        how = {"arithmetic": _ARITHMETIC[self.arithmetic], "energy": energy, "grams": grams, "fast": fast}
        found = tensor_pass(Y, left, right, level, A=for_CA, B=for_CtB, mask=mask, cache=self._cache, **how)
        if across:
            found = found.transposed()
        # The products of a step, without weights: what it is made of comes along.
        is_usual = A is R and B is L and L.shape[1] > 0 and self.arithmetic.kind != "c"
        return _as_pass(found, energy, (L, R) if is_usual else None)

    def sparse_change(self, old: Any, new: Any) -> tuple[float, float]:
        """Return ‖S' - S‖² and ‖S‖² in one more read; `old` and `new` are L, R and levels of ψ."""
        self.reads += 1
        sides = [(*self._tensors(L, R), level) for L, R, level in (old, new)]
        arithmetic = _ARITHMETIC[self.arithmetic]
        moved, size = to_host(plain_change(self.array, sides[0], sides[1], mask=self.mask, arithmetic=arithmetic))
        return float(moved), float(size)

    def _tensors(self, *factors: Any) -> list[Any]:
        """Return factors as tensors on the device, in double precision; those that are one and the same stay so."""
        wide = torch.complex128 if self.arithmetic.kind == "c" else torch.float64
        done = {id(factor): self.place(factor).tensor.to(wide) for factor in factors}
        return [done[id(factor)] for factor in factors]

    def _index(self, at: Any) -> Any:
        """Return a NumPy index as one that tensors on the device take."""
        if isinstance(at, tuple):
            return tuple(self._index(part) for part in at)
        return at if isinstance(at, slice) else to_device(np.asarray(at, np.int64), self.array.device)


def _as_pass(found: TensorPass, energy: bool, factors: tuple[Any, Any] | None) -> Pass:
    """Return a pass as solvers know it: tall arrays wrapped, small numbers brought to the host.

    `factors` are L and R where the products are those of a step.
    """
    (*squares, counted), told = report(found, factors)
    return Pass(
        CA=DeviceArray(found.CA),
        CtB=DeviceArray(found.CtB),
        kept_by_row=DeviceArray(found.kept_by_row),
        kept_by_column=DeviceArray(found.kept_by_column),
        norm_C=math.sqrt(squares[0]),
        norm_D=math.sqrt(squares[1]) if energy else None,
        row_grams=None if found.row_grams is None else DeviceArray(found.row_grams),
        column_grams=None if found.column_grams is None else DeviceArray(found.column_grams),
        counted=float(counted),
        report=told,
    )
