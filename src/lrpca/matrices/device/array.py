"""Tall arrays on a torch device that speak NumPy's own protocols, so that solvers written in NumPy run there.

Rule: what keeps the long axis (the first one) stays on the device, as a `DeviceArray`; what is summed over it, or
picked out entry by entry, is small and comes to the host as NumPy. ``np.asarray(x)`` brings everything to the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

_NUMPY_OF: dict[Any, Any] = {
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.complex128: np.dtype(np.complex128),
    torch.complex64: np.dtype(np.complex64),
    torch.int64: np.dtype(np.int64),
    torch.bool: np.dtype(np.bool_),
}
_TORCH_OF: dict[Any, Any] = {theirs: ours for ours, theirs in _NUMPY_OF.items()}
_WHOLE = (torch.int64, torch.bool)


class DeviceArray(NDArrayOperatorsMixin):
    """A tall array on a device: what the solvers need of NumPy, and nothing else.

    The tensor (n, ...) has the long axis first; it is float64, complex128, int64 or bool (results also float32,
    complex64). `surely_finite` says that all entries are known to be finite.

    Examples
    --------
    >>> import numpy as np, torch
    >>> x = DeviceArray(torch.ones(4, 2, dtype=torch.float64))
    >>> type(2 * x).__name__, type(x.T @ x).__name__, np.linalg.norm(x, axis=0)
    ('DeviceArray', 'ndarray', array([2., 2.]))
    """

    __slots__ = ("_counts", "surely_finite", "tensor")

    def __init__(self, tensor: Any, *, surely_finite: bool = False) -> None:
        self.tensor, self.surely_finite = tensor, surely_finite
        self._counts: Any = None  # the same on the host, if these are counts, which are read repeatedly

    @property
    def algebra(self) -> Any:
        """Formulas for such arrays, `lrpca.matrices.device.algebra`."""
        from lrpca.matrices.device import algebra

        return algebra

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self.tensor.ndim)

    @property
    def dtype(self) -> Any:
        """NumPy's name of the number type."""
        return _NUMPY_OF[self.tensor.dtype]

    @property
    def T(self) -> Transposed:  # noqa: N802 (NumPy's name)
        """The same with the long axis last, to be multiplied."""
        return Transposed(self.tensor)

    def __len__(self) -> int:
        return int(self.tensor.shape[0])

    def __repr__(self) -> str:
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.tensor.device})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the entries on the host."""
        if self.tensor.dtype != torch.int64:
            return np.array(to_host(self.tensor), dtype=dtype, copy=copy)
        if self._counts is None:
            self._counts = to_host(self.tensor)
            self._counts.flags.writeable = False
        return np.array(self._counts, dtype=dtype, copy=copy)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, tuple) and all(isinstance(part, np.ndarray) for part in index):
            # Single entries.
            return to_host(self.tensor[tuple(self._index(part) for part in index)])
        index = tuple(map(self._index, index)) if isinstance(index, tuple) else self._index(index)
        return DeviceArray(self.tensor[index])

    def __setitem__(self, index: Any, values: Any) -> None:
        index = tuple(map(self._index, index)) if isinstance(index, tuple) else self._index(index)
        self._counts = None
        self.tensor[index] = self._beside(values) if isinstance(values, np.ndarray | DeviceArray) else values

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        """Do what NumPy's elementwise function does, on the device (NEP 13)."""
        if ufunc is np.matmul and method == "__call__" and not settings:
            return _matmul(*inputs)
        function, out = _UFUNCS.get(ufunc), settings.pop("out", None)
        if function is None or method != "__call__" or settings or (out and not isinstance(out[0], DeviceArray)):
            return NotImplemented
        if any(isinstance(x, Transposed) for x in inputs):
            return NotImplemented
        result = function(*_alike(ufunc, [self._beside(x) for x in inputs]))
        if out:
            out[0]._counts = None
            out[0].tensor.copy_(result)
            return out[0]
        return DeviceArray(result)

    def __array_function__(self, function: Any, types: Any, arguments: Any, settings: Any) -> Any:
        """Do what NumPy's function does (NEP 18)."""
        known = _FUNCTIONS.get(function)
        return NotImplemented if known is None else known(*arguments, **settings)

    def conj(self) -> DeviceArray:
        """Return the complex conjugate; real arrays themselves, as NumPy does."""
        return DeviceArray(self.tensor.conj().resolve_conj()) if self.tensor.is_complex() else self

    def copy(self, order: str = "C") -> DeviceArray:
        """Return a copy; the order in memory is kept."""
        return DeviceArray(self.tensor.clone())

    def astype(self, dtype: Any) -> DeviceArray:
        """Return a copy in another number type."""
        return DeviceArray(self.tensor.to(_TORCH_OF[np.dtype(dtype)], copy=True))

    def sum(self, axis: int | None = None) -> Any:
        """Return sums."""
        return _reduced(torch.sum(self.tensor) if axis is None else torch.sum(self.tensor, axis), axis)

    def any(self, axis: int | None = None) -> Any:
        """Return whether some entry is not zero."""
        return _reduced(torch.any(self.tensor) if axis is None else torch.any(self.tensor, axis), axis)

    def max(self, axis: int | None = None, initial: float | None = None) -> Any:
        """Return the largest entries; `initial` counts as one more."""
        return self._extreme(torch.amax, np.maximum, axis, initial)

    def min(self, axis: int | None = None, initial: float | None = None) -> Any:
        """Return the smallest entries; `initial` counts as one more."""
        return self._extreme(torch.amin, np.minimum, axis, initial)

    def argmax(self, axis: int | None = None) -> Any:
        """Return where the largest entries are: of equal ones the first."""
        if axis != 0:
            raise TypeError(f"axis={axis} of DeviceArray.argmax is not there; use 0")
        return to_host(self.tensor.argmax(0))

    def energy_with(self, other: Any) -> float:
        """Return ‖x‖ + ‖y‖ of this and another array."""
        return float(torch.linalg.vector_norm(self.tensor) + torch.linalg.vector_norm(self._beside(other)))

    def product_energy(self, other: Any) -> float:
        """Return ‖L Rᵀ‖² of this L and another array R."""
        grams = (x.T @ x.conj() for x in (self.tensor, self._beside(other)))
        return float(torch.mul(*grams).sum().real)

    def column_sizes_with(self, other: Any) -> Any:
        """Return the products of the norms of columns, this array's and another one's, on the host."""
        norms = (torch.linalg.vector_norm(x, dim=0) for x in (self.tensor, self._beside(other)))
        return to_host(torch.mul(*norms))

    def longest_rows_with(self, other: Any) -> float:
        """Return the product of the largest norms of rows, this array's and another one's."""
        norms = (torch.linalg.vector_norm(x, dim=1).amax() for x in (self.tensor, self._beside(other)))
        return float(torch.mul(*norms))

    def column_peaks_with(self, other: Any) -> tuple[Any, Any]:
        """Return the largest squares in columns, and the sums of squares, (2, r): of this array and another one."""
        both = self.tensor, self._beside(other)
        found = to_host(torch.stack([torch.linalg.vector_norm(x, order, 0) for order in (math.inf, 2) for x in both]))
        return found[:2] ** 2, found[2:] ** 2

    def _extreme(self, largest: Any, join: Any, axis: int | None, initial: float | None) -> Any:
        if len(self) == 0 and initial is not None and axis in (0, None):
            return np.full(self.shape[1:] if axis == 0 else (), initial)[()]
        found = _reduced(largest(self.tensor) if axis is None else largest(self.tensor, axis), axis)
        return found if initial is None else join(found, initial)

    def _beside(self, x: Any) -> Any:
        """Return an operand as a tensor on this device, or a number."""
        if isinstance(x, DeviceArray):
            return x.tensor
        if isinstance(x, np.ndarray):
            return to_device(x, self.tensor.device) if x.ndim else x[()]
        return x

    def _index(self, index: Any) -> Any:
        if isinstance(index, DeviceArray):
            return index.tensor
        return to_device(index, self.tensor.device) if isinstance(index, np.ndarray) else index


class Transposed(NDArrayOperatorsMixin):
    """A tall array lying down, (k, n): it is there to be multiplied."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    @property
    def T(self) -> DeviceArray:  # noqa: N802 (NumPy's name)
        """The array standing up again."""
        return DeviceArray(self.tensor)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(self.tensor.shape[::-1])

    def conj(self) -> Transposed:
        """Return the complex conjugate."""
        return self.T.conj().T

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Any:
        """Multiply: nothing else is done with it."""
        return _matmul(*inputs) if ufunc is np.matmul and not settings else NotImplemented


def to_device(array: Any, device: Any) -> Any:
    """Return a NumPy array as a tensor, on the CPU in the same memory where that is possible."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    return torch.from_numpy(array).to(device)


def to_host(tensor: Any) -> Any:
    """Return a tensor as a NumPy array, or a NumPy scalar."""
    return tensor.resolve_conj().resolve_neg().cpu().numpy()[()]


def _reduced(found: Any, axis: int | None) -> Any:
    """Return what is left of the long axis as NumPy, other reductions on the device."""
    return to_host(found) if axis in (0, None) else DeviceArray(found)


def _matmul(left: Any, right: Any) -> Any:
    """Return a product: on the host if it sums over the long axis, else on the device."""
    ours = left if isinstance(left, DeviceArray | Transposed) else right
    device = ours.tensor.device
    a, b = (_lying(x, device) for x in (left, right))
    if a.dtype != b.dtype:
        dtype = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(dtype), b.to(dtype)
    if isinstance(right, Transposed) and isinstance(left, np.ndarray):
        return DeviceArray((a @ b).T).T
    # A tall one on the right is summed over, whatever is on the left.
    is_tall = isinstance(left, DeviceArray) and not isinstance(right, DeviceArray)
    return DeviceArray(a @ b) if is_tall else to_host(a @ b)


def _lying(x: Any, device: Any) -> Any:
    if isinstance(x, Transposed):
        return x.tensor.T
    return x.tensor if isinstance(x, DeviceArray) else to_device(x, device)


def _alike(ufunc: Any, operands: list[Any]) -> list[Any]:
    """Return operands in number types for which torch promotes as NumPy does."""
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    if all(x.dtype == torch.float64 for x in tensors):
        return operands
    # Torch takes whole numbers beside a float, and their quotients and roots, for single precision.
    fractions = ufunc in _FRACTIONAL or any(isinstance(x, float | complex) for x in operands)
    if fractions:
        operands = [x.double() if isinstance(x, torch.Tensor) and x.dtype in _WHOLE else x for x in operands]
    if any(isinstance(x, np.float64 | np.complex128) for x in operands):
        # A NumPy scalar of double precision makes the result so.
        operands = [
            x.to(torch.promote_types(x.dtype, torch.float64)) if isinstance(x, torch.Tensor) else x for x in operands
        ]
    return operands


def _extreme_of(function: Any, side: str) -> Callable[..., Any]:
    """Return the larger or smaller of two tensors, or of a tensor and a number: the bound on that `side`."""

    def of_two(x: Any, y: Any) -> Any:
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            return function(x, y)
        return torch.clamp(x, **{side: y}) if isinstance(x, torch.Tensor) else torch.clamp(y, **{side: x})

    return of_two


def _swapped(function: Any, back: Any) -> Callable[..., Any]:
    """Return a function of two operands of which torch wants the first to be a tensor."""
    return lambda x, y: function(x, y) if isinstance(x, torch.Tensor) else back(y, x)


_FRACTIONAL = frozenset({np.true_divide, np.sqrt})
_UFUNCS: dict[Any, Callable[..., Any]] = {
    np.add: lambda x, y: x + y,
    np.subtract: lambda x, y: x - y,
    np.multiply: lambda x, y: x * y,
    np.true_divide: lambda x, y: x / y,
    np.power: lambda x, y: x**y,
    np.negative: torch.neg,
    np.absolute: torch.abs,
    np.sqrt: torch.sqrt,
    np.maximum: _extreme_of(torch.maximum, "min"),
    np.minimum: _extreme_of(torch.minimum, "max"),
    np.equal: _swapped(torch.eq, torch.eq),
    np.not_equal: _swapped(torch.ne, torch.ne),
    np.less: _swapped(torch.lt, torch.gt),
    np.less_equal: _swapped(torch.le, torch.ge),
    np.greater: _swapped(torch.gt, torch.lt),
    np.greater_equal: _swapped(torch.ge, torch.le),
    np.bitwise_and: _swapped(torch.bitwise_and, torch.bitwise_and),
    np.bitwise_or: _swapped(torch.bitwise_or, torch.bitwise_or),
    np.invert: torch.bitwise_not,
}


def _first(arguments: Any) -> DeviceArray:
    """Return the first argument that is on a device."""
    return next(x for x in arguments if isinstance(x, DeviceArray))


def _where(condition: Any, x: Any, y: Any) -> DeviceArray:
    ours = _first((condition, x, y))
    chosen, *parts = (ours._beside(z) for z in (condition, x, y))
    return DeviceArray(torch.where(chosen, *_alike(np.add, parts)))


def _concatenate(arrays: Any, axis: int = 0) -> DeviceArray:
    ours = _first(arrays)
    tensors = [ours._beside(x) for x in arrays]
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return DeviceArray(torch.cat([tensor.to(dtype) for tensor in tensors], axis))


def _einsum(path: str, *arrays: Any) -> Any:
    ours = _first(arrays)
    found = torch.einsum(path, *(ours._beside(x) for x in arrays))
    # The long axis is the first of every array.
    before, after = path.split("->")
    return DeviceArray(found) if before[0] in after else to_host(found)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _where,
    np.concatenate: _concatenate,
    np.linalg.norm: lambda x, axis=None: _reduced(torch.linalg.vector_norm(x.tensor, dim=axis), axis),
    np.flatnonzero: lambda x: to_host(torch.nonzero(x.tensor.reshape(-1))[:, 0]),
    np.einsum: _einsum,
    np.pad: lambda x, widths: DeviceArray(
        torch.nn.functional.pad(x.tensor, [n for pair in reversed(widths) for n in pair])
    ),
    np.iscomplexobj: lambda x: x.tensor.is_complex(),
}
