"""The result of a decomposition of a torch tensor: tensors on the same device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lrpca.core.devices import in_memory_of, is_tensor, rounds_products
from lrpca.decomposition.result import Decomposition
from lrpca.matrices.accept_tensor import on_host
from lrpca.matrices.dense import DenseMatrix, readable
from lrpca.solvers.base import State

# The lazy matrices are made in blocks of about this many entries.
_BLOCK = 1 << 23


class TensorDecomposition(Decomposition):
    """A `Decomposition` whose arrays are torch tensors on the device of Y.

    L, R, low_rank, sparse, outliers and the result of `transform` are tensors without a graph, in float32 or float64
    (complex64, complex128). Numbers, history and diagnosis are as in `Decomposition`, on the host.

    Attributes
    ----------
    device : torch.device
        Where L and R are.

    Examples
    --------
    >>> import lrpca, torch
    >>> Y = torch.from_numpy(lrpca.testing.planted((200, 150), rank=3, random_state=0).Y)
    >>> d = lrpca.decompose(Y, rank=3)
    >>> d
    <TensorDecomposition 200 x 150 on cpu, rank 3, converged (tol) after ... iterations, 10.0% outliers>
    >>> d.low_rank.dtype, d.outliers.dtype, d.transform(Y[:5]).shape
    (torch.float64, torch.bool, torch.Size([5, 3]))
    """

    @classmethod
    def of(cls, decomposition: Decomposition, device: Any) -> TensorDecomposition:
        """Return a decomposition with tensors on this device for its arrays."""
        L, R = (to_tensor(factor, device) for factor in (decomposition.L, decomposition.R))
        return decomposition.converted(cls, L=L, R=R)

    @property
    def device(self) -> Any:
        """Where L and R are."""
        return self.L.device

    def _product(self) -> Any:
        if self._is_on_host():
            return to_tensor(self.to_numpy().low_rank, self.device)
        return in_memory_of(self.device, lambda: _product(self.L, self.R), (len(self.L), len(self.R)))

    def _outlying(self, *, values: bool) -> Any:
        if self._is_on_host():
            return to_tensor(self.to_numpy()._outlying(values=values), self.device)
        return in_memory_of(self.device, lambda: self._outlying_on_device(values), (len(self.L), len(self.R)))

    def transform(self, Y: Any) -> Any:
        """Return robust coefficients of new rows as a tensor, see `Decomposition.transform`.

        A tensor Y has to be on the device of R; its rows are regressed by the CPU, block by block.
        """
        if is_tensor(Y) and Y.device != self.device:
            raise ValueError(f"Y.device={Y.device} is not the decomposition's {self.device}; pass Y.to(d.device)")
        return to_tensor(self.without_data().to_numpy().transform(Y), self.device)

    def to_numpy(self) -> Decomposition:
        """Return the same with NumPy arrays, on the host.

        Tensors on the CPU share their memory with it. From other devices Y is copied too, unless `without_data` was
        called before.
        """
        matrix = self.matrix
        if matrix is not None and is_tensor(matrix.array):
            matrix = DenseMatrix(readable(on_host(matrix.array)), on_host(matrix.mask))
        return self.converted(Decomposition, L=on_host(self.L), R=on_host(self.R), matrix=matrix)

    def residual_blocks(self) -> Any:
        """Yield (rows, Y - L Rᵀ, where it is an outlier) block by block, as arrays on the host."""
        if self._is_on_host():
            yield from self.to_numpy().residual_blocks()
            return
        blocks = ((rows, on_host(residual), on_host(outlying)) for rows, residual, outlying in self._device_blocks())
        while block := in_memory_of(self.device, lambda: next(blocks, None), self.data().shape):
            yield block

    def _where(self) -> str:
        return f" on {self.device}"

    def _is_on_host(self) -> bool:
        """Tell whether NumPy does the work: Y is in the host's memory."""
        if self.matrix is None:
            return bool(self.device.type == "cpu")
        return not is_tensor(getattr(self.matrix, "array", None))

    def _outlying_on_device(self, values: bool) -> Any:
        import torch

        found = self.L.new_zeros(self.data().shape, dtype=self.L.dtype if values else torch.bool)
        for rows, residual, outlying in self._device_blocks():
            found[rows] = residual.masked_fill_(~outlying, 0) if values else outlying
        return found

    def _device_blocks(self) -> Any:
        """Yield (rows, Y - L Rᵀ, where it is an outlier) block by block, on the device."""
        import torch

        matrix = self.data()
        n1, n2 = matrix.shape
        limits = torch.as_tensor(self.outlier_threshold, dtype=torch.float64, device=self.device).expand(n1, n2)
        count = max(1, _BLOCK // n2)
        for start in range(0, n1, count):
            rows = slice(start, min(n1, start + count))
            residual = matrix.array[rows].to(self.L.dtype) - _product(self.L[rows], self.R)
            outlying = residual.abs() > limits[rows]
            if matrix.mask is not None:
                outlying &= matrix.mask[rows]
            yield rows, residual, outlying


def to_tensor(values: Any, device: Any) -> Any:
    """Return an array, tensor or `DeviceArray` as a tensor on a device, of the same memory where that is possible."""
    from lrpca.matrices.device.array import to_device

    tensor = getattr(values, "tensor", values)
    return tensor.detach().to(device) if is_tensor(tensor) else to_device(np.asarray(values), device)


def showing_tensors(callback: Callable[[State], object], device: Any, dtype: Any) -> Callable[[State], object]:
    """Return a callback that passes the factors on as tensors, in the number type of results."""
    import torch

    kind = getattr(torch, dtype.name)

    def show(state: State) -> object:
        L, R = (to_tensor(factor, device).to(kind) for factor in (state.L, state.R))
        return callback(replace(state, L=L, R=R))

    return show


def _product(L: Any, R: Any) -> Any:
    """Return L Rᵀ in full precision, also if torch is allowed to round products."""
    import torch

    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(L.dtype)
    if wide is None or not rounds_products(L.device):
        return L @ R.T
    product = L.new_empty(len(L), len(R))
    count = max(1, _BLOCK // len(R))
    for start in range(0, len(L), count):
        product[start : start + count] = L[start : start + count].to(wide) @ R.T.to(wide)
    return product
