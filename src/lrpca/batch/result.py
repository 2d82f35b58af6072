"""The result of a batch: the numbers of all problems side by side, and each problem as a decomposition of its own."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from lrpca.batch.sequential import Solved
from lrpca.core.devices import in_memory_of, rounds_products
from lrpca.decompose import WarningText
from lrpca.decomposition.result import Decomposition
from lrpca.exceptions import ConvergenceWarning, DiagnosisWarning
from lrpca.matrices.accept_tensor import on_host

# The lazy stacks are made in slabs of about this many entries.
_SLAB = 1 << 22
# So many problems are named in a message.
_NAMED = 5
# What a batch has of every problem, as arrays or tensors.
ARRAYS = ("L", "R", "n_iter", "noise_level", "outlier_threshold", "outlier_fraction")

Result = TypeVar("Result")


@dataclass(eq=False, repr=False)
class BatchDecomposition:
    """Ys[i] = L[i] R[i]ᵀ + S[i] (+ noise) for every problem of a stack.

    Arrays are NumPy arrays where the stack was one, else tensors on its device.

    Attributes
    ----------
    L, R : array (b, n1, rank), (b, n2, rank)
        U Σ^½ and V Σ^½ of the low-rank parts, as in `Decomposition`.
    low_rank, sparse : array (b, n1, n2)
        L Rᵀ, and Y - L Rᵀ where it is an outlier; computed when first used.
    outliers : array of bool (b, n1, n2)
        Where `sparse` is not zero; lazy.
    converged : array of bool (b,)
    reason : ndarray of str (b,)
        Why each problem ended, as in `Decomposition`.
    n_iter : array of int (b,)
    noise_level, outlier_threshold, outlier_fraction : array of float (b,)
    rank : int
    sequential : ndarray of int
        The problems that were solved one at a time: all on a CPU, on a GPU those that a convergence check objected to.
    Ys, mask : array
        The stack and its mask, by reference.
    item : callable
        Makes the decomposition of problem i.

    Notes
    -----
    ``d[i]`` is the `Decomposition` of problem i, with its history and diagnosis; ``for one in d`` goes through all. Ask
    for the lazy attributes before changing the stack in place.
    """

    L: Any  # (b, n1, r)
    R: Any  # (b, n2, r)
    n_iter: Any  # (b,)
    noise_level: Any  # (b,)
    outlier_threshold: Any  # (b,)
    outlier_fraction: Any  # (b,)
    reason: Any  # (b,)
    sequential: Any  # (m,) int
    Ys: Any  # (b, n1, n2)
    mask: Any  # (b, n1, n2) or None
    item: Any  # makes the decomposition of problem i; of tensors, `item.as_arrays` returns what makes arrays

    @property
    def rank(self) -> int:
        """Number of columns of every L and R."""
        return int(self.L.shape[2])

    @cached_property
    def converged(self) -> Any:
        """Which problems reached their tolerance or the noise floor, (b,)."""
        return _like(self.L, np.isin(self.reason, ("tol", "noise_floor")))

    @cached_property
    def low_rank(self) -> Any:
        """L Rᵀ of every problem, (b, n1, n2)."""
        return self._in_memory(lambda: _products(self.L, self.R))

    @cached_property
    def sparse(self) -> Any:
        """The outliers' values, (b, n1, n2): zero where Y is explained by the low-rank part or missing."""
        return self._in_memory(self._sparse)

    @cached_property
    def outliers(self) -> Any:
        """Where Y departs from the low-rank part by more than `outlier_threshold`, (b, n1, n2) of bool."""
        return self._in_memory(self._outliers)

    def to_numpy(self) -> BatchDecomposition:
        """Return the same with NumPy arrays, on the host.

        Returns
        -------
        BatchDecomposition
            For tensors on the CPU it shares their memory; from other devices the stack is copied too.
        """
        if isinstance(self.L, np.ndarray):
            return self
        Ys, mask = self.Ys.cpu(), None if self.mask is None else self.mask.cpu()
        return BatchDecomposition(
            **{name: on_host(getattr(self, name)) for name in ARRAYS},
            Ys=on_host(Ys),
            mask=on_host(mask),
            reason=self.reason,
            sequential=self.sequential,
            item=self.item.as_arrays(Ys, mask),
        )

    def __len__(self) -> int:
        return len(self.L)

    def __getitem__(self, index: int) -> Decomposition:
        try:
            place = operator.index(index)
        except TypeError:
            raise TypeError(
                f"index={index!r} is not an integer; batch[i] is one problem, arrays are sliced, e.g. batch.L[1:3]"
            ) from None
        if not -len(self) <= place < len(self):
            raise IndexError(
                f"index={place} is not a problem of a batch of {len(self)}; count from 0 to {len(self) - 1}"
            )
        found: Decomposition = self._in_memory(lambda: self.item(place % len(self)))
        return found

    def __iter__(self) -> Iterator[Decomposition]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        b, n1, n2 = len(self), self.L.shape[1], self.R.shape[1]
        resting = int(self.converged.sum())
        return (
            f"<BatchDecomposition of {b} problem{'s' * (b > 1)} {n1} x {n2}, rank {self.rank}, {resting} converged, "
            f"{100 * float(self.outlier_fraction.mean()):.1f}% outliers>"
        )

    def _in_memory(self, work: Callable[[], Result]) -> Result:
        device = None if isinstance(self.L, np.ndarray) else self.L.device
        return in_memory_of(device, work, tuple(self.Ys.shape), "Ys")

    def _sparse(self) -> Any:
        sparse = self._empty(self.L.dtype)
        for part, residual, outlying in self._residuals():
            residual[~outlying] = 0
            sparse[part] = residual
        return sparse

    def _outliers(self) -> Any:
        outliers = self._empty(self.converged.dtype)
        for part, _, outlying in self._residuals():
            outliers[part] = outlying
        return outliers

    def _empty(self, dtype: Any) -> Any:
        if isinstance(self.L, np.ndarray):
            return np.empty(self.Ys.shape, dtype)
        return self.L.new_empty(self.Ys.shape, dtype=dtype)

    def _residuals(self) -> Iterator[tuple[slice, Any, Any]]:
        """Yield (problems, Y - L Rᵀ, where it is an outlier) slab by slab; missing entries are never outliers."""
        for part in _slabs(self.Ys.shape):
            data = self.Ys[part]
            data = data.astype(self.L.dtype) if isinstance(data, np.ndarray) else data.to(self.L.dtype)
            residual = data - _products(self.L[part], self.R[part])
            outlying = abs(residual) > self.outlier_threshold[part][:, None, None]
            if self.mask is not None:
                outlying &= self.mask[part]
            yield part, residual, outlying


def gathered(
    solved: list[Solved],
    Ys: Any,  # (b, n1, n2)
    mask: Any,  # (b, n1, n2) or None
) -> tuple[BatchDecomposition, list[WarningText]]:
    """Return the batch of problems that were solved one at a time, as NumPy arrays, and what to warn of."""
    items = [item for item, _ in solved]
    result = BatchDecomposition(
        **{name: np.stack([getattr(item, name) for item in items]) for name in ARRAYS},
        reason=np.array([item.reason for item in items]),
        sequential=np.arange(len(items)),
        Ys=Ys,
        mask=mask,
        item=items.__getitem__,
    )
    return result, summarised({i: warned for i, (_, warned) in enumerate(solved)}, len(solved))


def summarised(warned: dict[int, list[WarningText]], count: int) -> list[WarningText]:
    """Return one warning of each kind for a batch of `count` problems, from those of single problems."""
    found: list[WarningText] = []
    for category, what in ((ConvergenceWarning, "have not converged"), (DiagnosisWarning, "look odd")):
        texts = {i: [text for kind, text in some if kind is category] for i, some in warned.items()}
        indices = sorted(i for i, some in texts.items() if some)
        if indices:
            first = "; ".join(texts[indices[0]])
            found.append(
                (category, f"{len(indices)} of {count} problems {what}: {_named(indices)}; Ys[{indices[0]}]: {first}")
            )
    return found


def _named(indices: Any) -> str:
    """Return the first few indices in words, e.g. '3, 1, 4, 1, 5, ...'."""
    return ", ".join(str(int(i)) for i in indices[:_NAMED]) + (", ..." if len(indices) > _NAMED else "")


def _products(L: Any, R: Any) -> Any:  # (b, n1, r); (b, n2, r)
    """Return every L Rᵀ in full precision, whatever torch is allowed to round."""
    if isinstance(L, np.ndarray) or not rounds_products(L.device):
        return L @ R.swapaxes(1, 2)
    import torch

    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(L.dtype, L.dtype)
    products = L.new_empty(len(L), L.shape[1], R.shape[1])
    for part in _slabs(products.shape):
        products[part] = L[part].to(wide) @ R[part].to(wide).swapaxes(1, 2)
    return products


def _slabs(shape: Any) -> Iterator[slice]:
    """Yield problems of a stack, so many at a time that their entries are not too many."""
    b, n1, n2 = shape
    count = max(1, _SLAB // (n1 * n2))
    return (slice(first, min(b, first + count)) for first in range(0, b, count))


def _like(example: Any, values: Any) -> Any:  # NumPy
    """Return values in the container, and on the device, of an example."""
    if isinstance(example, np.ndarray):
        return values
    import torch

    return torch.as_tensor(values, device=example.device)
