"""A matrix in memory (or memory-mapped): the fused kernel over a fixed partition, all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import reduce
from mmap import mmap
from typing import Any, TypeVar

import numpy as np

from lrpca.core.influence import Levels
from lrpca.core.linalg import upper_triangle
from lrpca.core.passes import Pass
from lrpca.kernels.threads import Threads
from lrpca.matrices.partition import Rectangle, partition

# A rectangle that cannot be read in place (odd strides) is copied in pieces of about this many entries.
_PIECE = 1 << 17
# Bytes of rows from which columns are copied at a time.
_BAND = 1 << 25
# Bytes from which on a mapped file is cut by rows, whatever its shape.
_LARGE_FILE = 1 << 28

# No mask; read-only as the others are, so that one compiled form serves all.
_NO_MASK = np.frombuffer(b"", bool)
# Single precision in place of double.
_ROUGH = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.complex128): np.dtype(np.complex64)}

Result = TypeVar("Result")


class DenseMatrix:
    """Y as a NumPy array of any real or complex number type, any strides, with NaN or `mask` marking missing entries.

    Parameters
    ----------
    array : ndarray (n1, n2)
        The data; never copied as a whole, never written to. The entries of one axis should be neighbours in memory:
        Fortran order is as good as C order.
    mask : ndarray of bool, broadcastable to (n1, n2), optional
        True where observed.
    threads : Threads, optional
        Who does the work; all cores if not given.

    Attributes
    ----------
    shape : tuple of int
    stored, arithmetic, result : dtype
        In which Y is stored, residuals are computed and factors are returned: float32 for float32 and at most 16-bit
        integers, else float64 (or complex).
    threads : Threads
        Those that passes are done by.
    reads : float
        How many times Y has been traversed so far; parts that were looked at count in proportion.
    unit : float
        What Y was divided by, see `in_units`.
    """

    unit: float = 1.0

    def __init__(self, array: Any, mask: Any = None, *, threads: Threads | None = None) -> None:
        self._prepare(array.shape, array.dtype, threads)
        self.array = array
        self.mask = None if mask is None else np.broadcast_to(mask, array.shape)
        self._transposed = abs(array.strides[0]) < abs(array.strides[1]) and min(array.shape) > 1
        # Kernels see the orientation with neighbours along rows; read-only, so that one compiled form serves all.
        self._rows = array.T if self._transposed else array
        self._row_mask = self.mask.T if self._transposed and self.mask is not None else self.mask

    def _prepare(self, shape: tuple[int, int], stored: Any, threads: Threads | None = None) -> None:
        """Set what all kinds of matrices have."""
        self.shape, self.stored = shape, stored
        self.result = self.arithmetic = arithmetic_dtype(stored)
        self.reads: float = 0
        self._full_arithmetic: Any = None
        self._may_be_rough = stored.kind in "fc"
        self.threads = threads or Threads()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.array, self.mask)

    @property
    def is_masked(self) -> bool:
        """Whether there is a mask."""
        return self.mask is not None

    def close(self) -> None:
        """End the threads that passes have started; results keep the matrix, and need none."""
        self.threads.close()

    def fit_range_to(self, values: Any) -> None:  # values (m,) some entries
        """Compute in double precision where squares of single-precision numbers would leave their range."""
        sizes = np.abs(values)
        if len(sizes) and sizes.min() > 1e-12 and sizes.max() < 1e12:
            return
        size = float(np.median(sizes[sizes > 0])) if sizes.any() else 0.0
        if (size and not 1e-12 < size < 1e12) or sizes.max(initial=0.0) > 1e15:
            self.compute_exactly()

    def in_units(self, unit: float) -> DenseMatrix:
        """Return Y divided by a power of two: a copy; raise ValueError where Y is not to be copied."""
        if unit == 1:
            return self
        if not self._may_be_copied():
            raise ValueError(
                f"median|Y|={unit:.0e}, about, is beyond what can be squared, and Y is too large to be copied; rescale "
                f"Y, e.g. Y / {unit:.0e}"
            )
        other = type(self)(self.array * (1 / unit), self.mask)
        other.unit, other.threads = unit, self.threads
        other.reads = self.reads + 1
        return other

    def _may_be_copied(self) -> bool:
        return not (isinstance(self.array, np.ndarray) and _is_large_file(self.array))

    def draw_normal(self, shape: tuple[int, int], rng: np.random.Generator) -> Any:
        """Return a matrix of independent standard normal numbers, where Y is."""
        return rng.standard_normal(shape)

    def place(self, factor: Any) -> Any:  # factor (n, ...)
        """Return an array as one that is where passes leave theirs: here it is already."""
        return factor

    def compute_roughly(self, roughly: bool) -> None:
        """Compute passes in single precision, though Y is stored in double, or in double again.

        That is 1.5 to 2 times as fast, and good enough while residuals are far above the rounding of single precision.
        """
        full = self._full_arithmetic or self.arithmetic
        if roughly and full in _ROUGH and self._may_be_rough:
            self._full_arithmetic, self.arithmetic = full, _ROUGH[full]
        else:
            self.arithmetic = full

    @property
    def is_rough(self) -> bool:
        """Whether passes are computed more roughly than Y is stored."""
        return self._full_arithmetic is not None and bool(self.arithmetic != self._full_arithmetic)

    @property
    def rough_rounding(self) -> float:
        """The rounding of numbers where passes are computed roughly."""
        return float(np.finfo(np.float32).eps)

    def compute_exactly(self) -> bool:
        """Compute in double precision from now on; tell whether that is a change."""
        before = self.arithmetic
        self.arithmetic = np.promote_types(before, np.float64)
        self._full_arithmetic, self._may_be_rough = self.arithmetic, False
        return bool(self.arithmetic != before)

    def entries(self, rows: Any, columns: Any) -> tuple[Any, Any]:  # rows (m,) int; columns (m,) int
        """Return the values at some positions, and which of them are observed."""
        values, mask = self.values_at((rows, columns)), self.mask_of((rows, columns))
        return values, observed_entries(values, mask)

    def take_rows(self, indices: Any) -> DenseMatrix:  # indices (m,) int
        """Return a copy of some rows, as a matrix in memory."""
        return DenseMatrix(self.values_at(indices), self.mask_of(indices))

    def take_columns(self, indices: Any) -> DenseMatrix:  # indices (m,) int
        """Return a copy of some columns, as the rows of a matrix in memory."""
        at = (slice(None), indices)
        mask = self.mask_of(at)
        return DenseMatrix(self.values_at(at).T, None if mask is None else mask.T)

    def submatrix(self, rows: Any, columns: Any) -> DenseMatrix:  # rows (m,) int; columns (k,) int
        """Return a copy of some rows of some columns, as a matrix in memory."""
        at = np.ix_(rows, columns)
        return DenseMatrix(self.values_at(at), self.mask_of(at))

    def with_mask(self, mask: Any) -> DenseMatrix:  # mask (n1, n2) bool
        """Return the same data, in place, with another mask."""
        other = type(self)(self.array, mask)
        other.arithmetic = self.arithmetic
        return other

    def dense_rows(self, rows: slice) -> Any:
        """Return some rows as a C-ordered array of the arithmetic type, not copied where they are one."""
        return np.ascontiguousarray(self.values_at(rows), self.arithmetic)

    def values_at(self, at: Any) -> Any:
        """Return a part of Y as a NumPy array; `at` is a NumPy index of rows, or of rows and columns."""
        if isinstance(at, tuple) and isinstance(at[0], slice):
            return gather_columns(self.array, at[1])
        return self.array[at]

    def mask_of(self, at: Any) -> Any:
        """Return the same part of the mask as a NumPy array; None if there is no mask."""
        mask = self.mask
        return None if mask is None else mask[at]

    def map_rows(self, function: Callable[[slice, Any, Any], Result], *, missing: bool) -> list[Result]:
        """Read Y once: return ``function(rows, block, observed)`` of every block of rows, by all threads.

        Blocks are C-ordered and of the arithmetic type; `observed` is a boolean array if entries may be `missing`,
        else None. The cut into blocks is fixed.
        """
        self.reads += 1

        def work(rows: slice) -> Result:
            block = self.dense_rows(rows)
            return function(rows, block, observed_entries(block, self.mask_of(rows)) if missing else None)

        n1, n2 = self.shape
        count = max(1, _PIECE // n2)
        parts = [slice(first, min(n1, first + count)) for first in range(0, n1, count)]
        return self.threads.map(work, parts, work=4.0 * n1 * n2)

    def blocks(self, rows: int) -> Iterator[tuple[int, Any, Any]]:
        """Yield (first row, block of rows, its mask or None): one more read of Y, in order, for lazy results."""
        for start in range(0, self.shape[0], rows):
            part = slice(start, start + rows)
            yield start, self.values_at(part), self.mask_of(part)

    def find_largest(self) -> tuple[int, int]:
        """Return where the observed entry of the largest modulus is, the first of them if there are several."""
        place, most = (0, 0), -1.0
        for start, block, mask in self.blocks(256):
            sizes = np.where(observed_entries(block, mask), np.abs(block), -1.0)
            i, j = np.unravel_index(sizes.argmax(), sizes.shape)
            if sizes[i, j] > most:
                place, most = (start + int(i), int(j)), float(sizes[i, j])
        return place

    def run_pass(
        self, L: Any, R: Any, level: Levels, *, A: Any, B: Any, energy: bool = False, grams: bool = False
    ) -> Pass:
        """Read Y once; see `lrpca.kernels.reference` for what comes back."""
        self.reads += 1
        if self._transposed:
            return self._run(R, L, level, B, A, energy, grams).transposed()
        return self._run(L, R, level, A, B, energy, grams)

    def _run(self, L: Any, R: Any, level: Levels, A: Any, B: Any, energy: bool, grams: bool) -> Pass:
        from lrpca.kernels import cpu

        dtype = self.arithmetic
        wide = np.promote_types(dtype, np.float64)
        real = np.dtype(dtype.type(0).real.dtype)
        n1, n2 = self._rows.shape
        rank, ka, kb = L.shape[1], A.shape[1], B.shape[1]
        L_rows, B_rows = cpu.padded_rows(L, dtype, least=cpu.padded(rank)), cpu.padded_rows(B, dtype)
        above = upper_triangle(rank if grams else 0)  # without Grams, products of components are empty
        pairs = len(above[0])
        stretch = cpu.tiles_in_cache(rank + ka + kb + 2 * pairs, dtype.itemsize)
        # A level beyond the range of single precision is as good as infinite.
        with np.errstate(over="ignore") if real == np.float32 else nullcontext():
            clip, cutoff, keep = (real.type(number) for number in level)
        laid_out: dict[int, tuple[Any, ...]] = {}

        def panels(columns: slice) -> tuple[Any, ...]:
            """Return R, A and their products as panels: once, where Y is cut by rows."""
            if columns.start not in laid_out:
                right, other = R[columns], A[columns]
                R_panels = cpu.in_panels(right, dtype, least=cpu.padded(rank))
                A_panels = R_panels if A is R and rank else cpu.in_panels(other, dtype)
                products = np.asarray(other, dtype)[:, above[0]] * np.asarray(right, dtype)[:, above[1]]
                laid_out[columns.start] = R_panels, A_panels, cpu.in_panels(products, dtype)
            return laid_out[columns.start]

        def work(part: Rectangle) -> tuple[Any, ...]:
            rows, columns = part
            m1, m2 = rows.stop - rows.start, columns.stop - columns.start
            R_panels, A_panels, R_pairs = panels(columns)
            # Sums over a tile are in the arithmetic type, sums over tiles and rectangles in double precision.
            CA, CtB = np.zeros((m1 + 3, ka), wide), cpu.empty_panels(m2, kb, dtype)
            row_kept, column_kept = np.zeros(m1 + 3, real), np.zeros(-(-m2 // cpu.TILE) * cpu.TILE, real)
            tile, sums = cpu.aligned_zeros(4 * cpu.TILE, dtype), np.zeros(5, real)
            kept = cpu.aligned_zeros(4 * cpu.TILE if pairs else 0, dtype)
            row_grams, column_grams = np.zeros((m1 + 3, pairs), dtype), cpu.empty_panels(m2, pairs, dtype)
            norms = np.zeros(2)
            for piece, flat, stride in self._pieces(rows, columns):
                here = slice(piece.start - rows.start, piece.stop - rows.start + 3)
                these = slice(piece.start, piece.stop + 3)
                data = (flat, stride, piece.stop - piece.start, m2, *self._flat_mask(piece, columns))
                outputs = (tile, sums, CA[here], CtB, row_kept[here], column_kept)
                asked = (stretch, clip, cutoff, keep, energy)
                L_pairs = cpu.padded_rows(B_rows[piece, above[0]] * L_rows[piece, above[1]], dtype)
                own = (kept, L_pairs, R_pairs, row_grams[here], column_grams)
                norms += cpu.rectangle_pass(
                    *data, L_rows[these], R_panels, B_rows[these], A_panels, *asked, *outputs, *own
                )
            by_column = (
                cpu.from_panels(panel, m2, k).astype(wide, "C") for panel, k in ((CtB, kb), (column_grams, pairs))
            )
            counts = row_kept[:m1].astype(np.int64), column_kept[:m2].astype(np.int64)
            return CA[:m1], row_grams[:m1].astype(wide), counts[0], *by_column, counts[1], norms

        parts = self._parts(max(rank, ka, kb))
        results = self.threads.map(work, parts, work=n1 * n2 * (rank + ka + kb + 2 * pairs + 1.0))
        *sums, norms = zip(*results, strict=True)
        CA, row_grams, row_kept, CtB, column_grams, column_kept = joined(parts, sums[:3], sums[3:])
        norm_C, norm_D = np.sqrt(sum(norms, np.zeros(2))).tolist()
        found = Pass(CA, CtB, row_kept, column_kept, norm_C, norm_D if energy else None)
        if grams:
            found = replace(
                found, row_grams=_unpack_pairs(row_grams, rank), column_grams=_unpack_pairs(column_grams, rank)
            )
        return found

    def _parts(self, width: int) -> list[Rectangle]:
        """Return the fixed partition, for sums of `width` numbers along the axis that is not cut."""
        n1, n2 = self._rows.shape
        return partition((n1, n2), width, by_rows=self._by_rows())

    def _by_rows(self) -> bool:
        # A file is read from beginning to end; every strip of columns would go through all of it.
        return bool(self._rows.shape[0] >= self._rows.shape[1]) or _is_large_file(self._rows)

    def _pieces(self, rows: slice, columns: slice) -> Iterator[tuple[slice, Any, int]]:
        """Yield (rows, flat numbers, row stride): in place where entries of a row are neighbours, else copies."""
        block = self._rows[rows, columns]
        size = block.itemsize
        if block.strides[1] == size and block.strides[0] % size == 0 and block.strides[0] >= 0:
            stride = block.strides[0] // size
            if block.flags.c_contiguous:
                yield rows, _frozen(block.reshape(-1)), stride
                return
            length = (block.shape[0] - 1) * stride + block.shape[1]
            flat = np.lib.stride_tricks.as_strided(block, (length,), (size,), writeable=False)
            yield rows, flat, stride
            return
        count = max(4, _PIECE // max(1, block.shape[1]))
        for start in range(rows.start, rows.stop, count):
            piece = slice(start, min(rows.stop, start + count))
            yield piece, _frozen(np.ascontiguousarray(self._rows[piece, columns]).reshape(-1)), block.shape[1]

    def _flat_mask(self, rows: slice, columns: slice) -> tuple[Any, int, int]:
        """Return the mask of a rectangle as flat memory, empty if there is none, and two strides (0 if broadcast)."""
        if self._row_mask is None:
            return _NO_MASK, 0, 0
        block = self._row_mask[rows, columns]
        if min(block.strides) < 0:
            block = np.ascontiguousarray(block)
        last = sum((n - 1) * s for n, s in zip(block.shape, block.strides, strict=True))
        flat = np.lib.stride_tricks.as_strided(block, (last + 1,), (1,), writeable=False)
        return flat, block.strides[0], block.strides[1]


def observed_entries(values: Any, mask: Any) -> Any:  # values (n1, n2); mask (n1, n2) bool, or None
    """Return where values are neither NaN nor masked."""
    observed = values == values
    return observed if mask is None else observed & mask


def gather_columns(array: Any, indices: Any) -> Any:  # array (n1, n2); indices (m,) int
    """Return a copy of some columns, by slices where they are neighbours: twice as fast as one by one."""
    if isinstance(indices, slice) or np.ndim(indices) != 1 or np.asarray(indices).dtype.kind not in "iu":
        return array[:, indices]
    starts = np.flatnonzero(np.diff(indices, prepend=-2) != 1)
    if 4 * len(starts) >= len(indices):
        return array[:, indices]
    ends = np.append(starts[1:], len(indices)) - 1
    groups = [slice(indices[a], indices[b] + 1) for a, b in zip(starts, ends, strict=True)]
    if array.flags.f_contiguous:
        return np.concatenate([array[:, group] for group in groups], axis=1)
    found = np.empty((len(array), len(indices)), array.dtype)
    # By bands of rows: a mapped file is gone through once, not once for every group.
    rows = max(1, _BAND // (array.shape[1] * array.itemsize))
    for first in range(0, len(array), rows):
        here = slice(first, first + rows)
        np.concatenate([array[here, group] for group in groups], axis=1, out=found[here])
    return found


def arithmetic_dtype(dtype: Any) -> Any:
    """Return the dtype residuals of stored numbers are computed in, which is also the dtype of results."""
    if dtype.kind == "c":
        return np.dtype(np.complex64 if dtype.itemsize <= 8 else np.complex128)
    narrow = dtype.itemsize <= (4 if dtype.kind == "f" else 2)
    return np.dtype(np.float32 if narrow else np.float64)


def native_dtype(dtype: Any) -> Any:
    """Return the number type in which the kernels read what is stored as `dtype`."""
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        return np.dtype(np.float32 if dtype.itemsize < 4 else np.float64)
    if dtype.kind == "c" and dtype.itemsize not in (8, 16):
        return np.dtype(np.complex128)
    return dtype.newbyteorder("=")


def readable(array: Any) -> Any:
    """Return the array itself, or a copy in a number type the kernels read."""
    dtype = native_dtype(array.dtype)
    return array if array.dtype == dtype and array.flags.aligned else array.astype(dtype)


def two_axes_advice(ndim: int, name: str) -> str:
    """Return how something of another number of axes is made a matrix."""
    if ndim == 0:
        return "pass a matrix (samples, features)"
    if ndim == 1:
        return f"pass {name}[None] for one row, or {name}[:, None] for one column"
    return f"reshape to (samples, features), e.g. {name}.reshape(len({name}), -1) for images"


def _is_large_file(array: Any) -> bool:
    """Tell whether an array is so many bytes of a mapped file that these may not stay in memory."""
    if array.nbytes < _LARGE_FILE:
        return False
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap)


def _frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


def joined(parts: list[Rectangle], by_row: Sequence[Any], by_column: Sequence[Any]) -> list[Any]:
    """Return what rectangles have summed by row, and by column: joined along the axis that is cut, else added in order.

    Every entry of `by_row` and `by_column` has one array for each of the `parts`.
    """
    over_rows = parts[0][0] != parts[-1][0]
    return [
        np.concatenate(shares) if is_cut else reduce(np.add, shares)
        for which, is_cut in ((by_row, over_rows), (by_column, not over_rows))
        for shares in which
    ]


def _unpack_pairs(
    packed: Any,  # (n, r (r + 1) / 2), the upper triangles by rows
    rank: int,
) -> Any:
    full = np.empty((packed.shape[0], rank, rank), packed.dtype)
    k, h = upper_triangle(rank)
    full[:, k, h] = packed
    full[:, h, k] = packed.conj()
    return full
