"""The fused pass on the CPU: one read of a rectangle of Y, compiled by numba.

`rectangle_pass` is serial and releases the GIL; threads come on top, over a fixed partition of the matrix, so the bits
of the result do not depend on their number (see `lrpca.matrices.dense`). It is `lrpca.kernels.reference.dense_pass`
at the speed of the memory or of the multiply-adds (three per entry and component), whichever is slower.

Vector loops run over one tile of four rows that stays in the first-level cache. A tile is a flat buffer of ``4 * TILE``
numbers (row q starts at ``q * TILE``), a panel holds one row of ``TILE`` numbers per component. The constant offsets
tell LLVM that rows do not overlap, which is what lets it vectorise: one big loop over arrays does not. Components are
treated five at a time or one by one, so one compiled kernel serves every rank.
``fastmath`` must not contain ``nnan``: NaN marks a missing entry, and every comparison with it must be False.

Compiling takes seconds, most of them in numba itself: for every function, every specialisation, every line. So Python
brings arrays into the form that loops want, and only the loops are compiled.

Everything compiled is in this one file: numba's cache on disk is renewed when the file of the *outer* function changes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic, overload
from numba.np.arrayobj import populate_array

TILE = 768
# Rows that visit a tile of columns together: the panels of R and CᵀB come from the second-level cache once for them.
GROUP = 16
# The panels of R and CᵀB for one stretch of columns stay in the second-level cache.
STRETCH_BYTES = 384 * 1024

FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
# Helpers are inlined by force: a copy of its own would be optimised, and so rounded, differently in the process that
# compiles than in those that load from the cache.
INLINED: Any = {"fastmath": FASTMATH, "error_model": "numpy", "forceinline": True}
# Only the outer function is cached on disk: processes that start together write its index once each, not that of every
# helper, which numba does not lock.
HELPER: Any = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **INLINED}
jit = numba.njit(**HELPER)
outer = numba.njit(nogil=True, cache=True, fastmath=FASTMATH, error_model="numpy")


def aligned_zeros(count: int, dtype: Any) -> Any:
    """Return zeros that begin with a cache line: vectors across two of them are read at half the speed."""
    memory = np.zeros(count + 64 // dtype.itemsize, dtype)
    start = -memory.__array_interface__["data"][0] % 64 // dtype.itemsize
    return memory[start : start + count]


def padded(rank: int) -> int:
    """Return how many components are subtracted where there are so many: three by themselves are dearer than five."""
    return max(1, rank + (5 - rank % 5 if rank % 5 > 2 else 0))


def padded_rows(M: Any, dtype: Any, least: int = 0) -> Any:  # M (n, k)
    """Return M with three more rows of zeros, and at `least` so many columns: kernels take four rows at a time."""
    n, k = M.shape
    found = np.zeros((n + 3, max(least, k)), dtype)
    found[:n, :k] = M
    return found


def in_panels(M: Any, dtype: Any, least: int = 0) -> Any:  # M (n, k)
    """Return the columns of M, at `least` so many, as flat panels one after the other."""
    n, k = M.shape
    found = empty_panels(n, max(least, k), dtype)
    for t, tile in enumerate(found.reshape(-1, max(least, k), TILE) if k else ()):
        part = M[t * TILE : (t + 1) * TILE]
        tile[:k, : len(part)] = part.T
    return found


def empty_panels(n: int, k: int, dtype: Any) -> Any:
    """Return panels of zeros for k columns of n numbers."""
    return aligned_zeros(-(-n // TILE) * k * TILE, dtype)


def from_panels(panels: Any, n: int, k: int) -> Any:
    """Return what `in_panels` has made flat: (n, k)."""
    tiles = panels.reshape(-(-n // TILE), k, TILE)
    return np.concatenate([tile.T for tile in tiles])[:n] if len(tiles) > 1 else tiles[0, :, :n].T


def tiles_in_cache(components: int, itemsize: int) -> int:
    """Return how many tiles of columns are walked together: their panels stay in the second-level cache."""
    return max(1, STRETCH_BYTES // ((components + 1) * TILE * itemsize))


@intrinsic
def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of ``array[index]``: a read soon to come, kept in the second-level cache."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        integer = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, integer, integer, integer])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(function, [pointer, integer(0), integer(2), integer(1)])
        return context.get_dummy_value()

    return numba.void(array, numba.intp), generate


@intrinsic
def cast_like(typing_context: Any, value: Any, like: Any) -> Any:
    """Convert a stored number (uint16, say) to the arithmetic type; numba alone would go to float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[0], signature.args[0], signature.args[1])

    return like(value, like), generate


@intrinsic
def view_of(typing_context: Any, array: Any, start: Any, count: Any) -> Any:
    """Return ``array.ravel()[start : start + count]`` without an owner: a slice would count references, atomically."""
    kind = array.copy(ndim=1, layout="C")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = context.make_array(signature.args[0])(context, builder, arguments[0])
        view = context.make_array(kind)(context, builder)
        populate_array(
            view,
            data=builder.gep(source.data, [arguments[1]]),
            shape=[arguments[2]],
            strides=[source.itemsize],
            itemsize=source.itemsize,
            meminfo=None,
        )
        return view._getvalue()

    return kind(array, numba.intp, numba.intp), generate


def _numbers_of(count: int) -> Any:
    """Return a function that reads so many numbers of a flat array: one start and step instead of many indices."""

    @intrinsic
    def numbers(typing_context: Any, array: Any, start: Any, step: Any) -> Any:
        kind = numba.types.UniTuple(array.dtype, count)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            found, place = [], arguments[1]
            for _ in range(count):
                found.append(context.unpack_value(builder, array.dtype, builder.gep(data, [place])))
                place = builder.add(place, arguments[2])
            return context.make_tuple(builder, kind, found)

        return kind(array, numba.intp, numba.intp), generate

    return numbers


four_of, five_of = _numbers_of(4), _numbers_of(5)


@jit
def prefetch_range(flat, start, count):
    """Prefetch `count` entries of `flat` from `start` on."""
    step = 64 // flat.itemsize
    for j in range(-(-count // step)):
        _prefetch(flat, start + step * j)


# ------------------------------------------------------------------------------------------ residual D = Y - L Rᵀ


@jit
def _load_minus_1(tile, flat, o0, o1, o2, o3, rows, i, panel, m):
    """Set the tile to four stored rows of Y, of which these are the offsets, less the first component."""
    zero, width = tile[0], rows.shape[1]
    y0, y1, y2, y3 = view_of(flat, o0, m), view_of(flat, o1, m), view_of(flat, o2, m), view_of(flat, o3, m)
    a, b, c, d = four_of(rows, i * width, width)
    for j in range(m):
        v = panel[j]
        tile[j] = cast_like(y0[j], zero) - a * v
        tile[TILE + j] = cast_like(y1[j], zero) - b * v
        tile[2 * TILE + j] = cast_like(y2[j], zero) - c * v
        tile[3 * TILE + j] = cast_like(y3[j], zero) - d * v


@jit
def _load_minus_5(tile, flat, o0, o1, o2, o3, rows, i, panel, m):
    """Set the tile to four stored rows of Y less the first five components."""
    zero, width = tile[0], rows.shape[1]
    y0, y1, y2, y3 = view_of(flat, o0, m), view_of(flat, o1, m), view_of(flat, o2, m), view_of(flat, o3, m)
    at = i * width
    a, b = five_of(rows, at, 1), five_of(rows, at + width, 1)
    c, d = five_of(rows, at + 2 * width, 1), five_of(rows, at + 3 * width, 1)
    for j in range(m):
        u, v, w = panel[j], panel[TILE + j], panel[2 * TILE + j]
        x, z = panel[3 * TILE + j], panel[4 * TILE + j]
        tile[j] = cast_like(y0[j], zero) - (a[0] * u + a[1] * v + a[2] * w + a[3] * x + a[4] * z)
        tile[TILE + j] = cast_like(y1[j], zero) - (b[0] * u + b[1] * v + b[2] * w + b[3] * x + b[4] * z)
        tile[2 * TILE + j] = cast_like(y2[j], zero) - (c[0] * u + c[1] * v + c[2] * w + c[3] * x + c[4] * z)
        tile[3 * TILE + j] = cast_like(y3[j], zero) - (d[0] * u + d[1] * v + d[2] * w + d[3] * x + d[4] * z)


@jit
def _minus_1(tile, rows, i, k, panel, m):
    """Subtract the product of column k of four rows from i on, and the panel of that component."""
    width = rows.shape[1]
    a, b, c, d = four_of(rows, i * width + k, width)
    for j in range(m):
        v = panel[j]
        tile[j] -= a * v
        tile[TILE + j] -= b * v
        tile[2 * TILE + j] -= c * v
        tile[3 * TILE + j] -= d * v


@jit
def _minus_5(tile, rows, i, k, panel, m):
    """Subtract the product of five columns from k on."""
    width = rows.shape[1]
    at = i * width + k
    a, b = five_of(rows, at, 1), five_of(rows, at + width, 1)
    c, d = five_of(rows, at + 2 * width, 1), five_of(rows, at + 3 * width, 1)
    for j in range(m):
        s0, s1, s2, s3 = tile[j], tile[TILE + j], tile[2 * TILE + j], tile[3 * TILE + j]
        for q in range(5):
            u = panel[q * TILE + j]
            s0 -= a[q] * u
            s1 -= b[q] * u
            s2 -= c[q] * u
            s3 -= d[q] * u
        tile[j] = s0
        tile[TILE + j] = s1
        tile[2 * TILE + j] = s2
        tile[3 * TILE + j] = s3


@jit
def minus(tile, rows, i, panels, start, done, m):
    """Subtract the products of all columns of four rows and the panels from `start` on; the first if not `done`."""
    rank = rows.shape[1]
    for chunk in range(done, rank // 5):
        k = 5 * chunk
        _minus_5(tile, rows, i, k, view_of(panels, start + k * TILE, 5 * TILE), m)
    for k in range(max(done, rank - rank % 5), rank):
        _minus_1(tile, rows, i, k, view_of(panels, start + k * TILE, TILE), m)


# ------------------------------------------------------------------------------------------ influence C = ψ(D)


def influence(tile: Any, clip: Any, cutoff: Any, keep: Any, column_kept: Any, sums: Any, m: Any) -> None:
    """Replace D by C = clip(D) where |D| <= cutoff, else 0; count |D| <= keep by row and column; sum |C|².

    `sums` receives ‖C‖² and the four row counts. Numba chooses the form by type.
    """
    raise NotImplementedError("compiled code only")


def _influence_real(tile, clip, cutoff, keep, column_kept, sums, m):
    zero, one = cast_like(0.0, clip), cast_like(1.0, clip)
    s0 = s1 = s2 = s3 = zero
    n0 = n1 = n2 = n3 = zero
    for j in range(m):
        x0, x1, x2, x3 = tile[j], tile[TILE + j], tile[2 * TILE + j], tile[3 * TILE + j]
        w0 = one if abs(x0) <= keep else zero
        w1 = one if abs(x1) <= keep else zero
        w2 = one if abs(x2) <= keep else zero
        w3 = one if abs(x3) <= keep else zero
        c0 = min(max(x0, -clip), clip) if abs(x0) <= cutoff else zero
        c1 = min(max(x1, -clip), clip) if abs(x1) <= cutoff else zero
        c2 = min(max(x2, -clip), clip) if abs(x2) <= cutoff else zero
        c3 = min(max(x3, -clip), clip) if abs(x3) <= cutoff else zero
        tile[j] = c0
        tile[TILE + j] = c1
        tile[2 * TILE + j] = c2
        tile[3 * TILE + j] = c3
        s0 += c0 * c0
        s1 += c1 * c1
        s2 += c2 * c2
        s3 += c3 * c3
        n0 += w0
        n1 += w1
        n2 += w2
        n3 += w3
        column_kept[j] += (w0 + w1) + (w2 + w3)
    sums[0] = (s0 + s1) + (s2 + s3)
    sums[1], sums[2], sums[3], sums[4] = n0, n1, n2, n3


def _influence_complex(tile, clip, cutoff, keep, column_kept, sums, m):
    zero, one = cast_like(0.0, clip), cast_like(1.0, clip)
    sums[0] = zero
    for q in range(4):
        row = view_of(tile, q * TILE, TILE)
        norm = count = zero
        for j in range(m):
            x = row[j]
            # Through double precision: the square may overflow, and hypot is slow.
            size = cast_like(np.sqrt(np.float64(x.real) ** 2 + np.float64(x.imag) ** 2), clip)
            kept = one if size <= keep else zero
            shrink = clip / size if size > clip else one
            inside = size <= cutoff
            row[j] = x * shrink if inside else cast_like(0.0, x)
            norm += (size * shrink) * (size * shrink) if inside else zero
            count += kept
            column_kept[j] += kept
        sums[0] += norm
        sums[q + 1] = count


@overload(influence, jit_options=INLINED)
def _choose_influence(tile, clip, cutoff, keep, column_kept, sums, m):
    return _influence_complex if isinstance(tile.dtype, numba.types.Complex) else _influence_real


@jit
def _kept_indicator(tile, keep, kept, m):
    """Set kept = 1 where |tile| <= keep, else 0 (before `influence` overwrites the tile)."""
    for q in range(4):
        for j in range(m):
            kept[q * TILE + j] = 1.0 if abs(tile[q * TILE + j]) <= keep else 0.0


@jit
def _energy(tile, rows, m):
    """Return Σ|D|² over observed entries of the tile; inf where an entry is infinite."""
    total = 0.0
    for q in range(rows):
        start = view_of(tile, q * TILE, TILE)
        for j in range(m):
            # In double precision: squares of large single-precision outliers would overflow.
            real, imaginary = np.float64(start[j].real), np.float64(start[j].imag)
            square = real * real + imaginary * imaginary
            total += square if square == square else 0.0
    return total


# ------------------------------------------------------------------------------------------ products C A and Cᵀ B


@jit
def _add_to_rows(out, i, k, a, b, c, d):
    n, width = len(a), out.shape[1]
    p, q = view_of(out, i * width + k, n), view_of(out, (i + 1) * width + k, n)
    r, s = view_of(out, (i + 2) * width + k, n), view_of(out, (i + 3) * width + k, n)
    for h in range(n):
        p[h] += a[h]
        q[h] += b[h]
        r[h] += c[h]
        s[h] += d[h]


@jit
def _rows_times_1(tile, panel, out, i, k, m):
    """Add the product of the tile and the panel of component k to column k of rows i to i + 3."""
    zero = cast_like(0.0, tile[0])
    a = b = c = d = zero
    for j in range(m):
        v = panel[j]
        a += tile[j] * v
        b += tile[TILE + j] * v
        c += tile[2 * TILE + j] * v
        d += tile[3 * TILE + j] * v
    _add_to_rows(out, i, k, (a,), (b,), (c,), (d,))


@jit
def _rows_times_5(tile, panel, out, i, k, m):
    """Add the products with five components from k on."""
    zero = cast_like(0.0, tile[0])
    a0 = a1 = a2 = a3 = a4 = b0 = b1 = b2 = b3 = b4 = zero
    c0 = c1 = c2 = c3 = c4 = d0 = d1 = d2 = d3 = d4 = zero
    for j in range(m):
        u, v, w = panel[j], panel[TILE + j], panel[2 * TILE + j]
        y, z = panel[3 * TILE + j], panel[4 * TILE + j]
        x = tile[j]
        a0 += x * u
        a1 += x * v
        a2 += x * w
        a3 += x * y
        a4 += x * z
        x = tile[TILE + j]
        b0 += x * u
        b1 += x * v
        b2 += x * w
        b3 += x * y
        b4 += x * z
        x = tile[2 * TILE + j]
        c0 += x * u
        c1 += x * v
        c2 += x * w
        c3 += x * y
        c4 += x * z
        x = tile[3 * TILE + j]
        d0 += x * u
        d1 += x * v
        d2 += x * w
        d3 += x * y
        d4 += x * z
    _add_to_rows(out, i, k, (a0, a1, a2, a3, a4), (b0, b1, b2, b3, b4), (c0, c1, c2, c3, c4), (d0, d1, d2, d3, d4))


@jit
def rows_times(tile, panels, start, out, i, m):
    """Add the products of the tile and the panels from `start` on to rows i to i + 3 of `out`."""
    count = out.shape[1]
    for chunk in range(count // 5):
        k = 5 * chunk
        _rows_times_5(tile, view_of(panels, start + k * TILE, 5 * TILE), out, i, k, m)
    for k in range(count - count % 5, count):
        _rows_times_1(tile, view_of(panels, start + k * TILE, TILE), out, i, k, m)


@jit
def _columns_times_1(tile, rows, i, k, sums, m):
    """Add the products of the tile's columns and column k of four rows from i on to the panel of that component."""
    width = rows.shape[1]
    a, b, c, d = four_of(rows, i * width + k, width)
    for j in range(m):
        sums[j] += a * tile[j] + b * tile[TILE + j] + c * tile[2 * TILE + j] + d * tile[3 * TILE + j]


@jit
def _columns_times_5(tile, rows, i, k, sums, m):
    """Add the products with five columns from k on."""
    width = rows.shape[1]
    at = i * width + k
    a, b = five_of(rows, at, 1), five_of(rows, at + width, 1)
    c, d = five_of(rows, at + 2 * width, 1), five_of(rows, at + 3 * width, 1)
    for j in range(m):
        w, x, y, z = tile[j], tile[TILE + j], tile[2 * TILE + j], tile[3 * TILE + j]
        sums[j] += a[0] * w + b[0] * x + c[0] * y + d[0] * z
        sums[TILE + j] += a[1] * w + b[1] * x + c[1] * y + d[1] * z
        sums[2 * TILE + j] += a[2] * w + b[2] * x + c[2] * y + d[2] * z
        sums[3 * TILE + j] += a[3] * w + b[3] * x + c[3] * y + d[3] * z
        sums[4 * TILE + j] += a[4] * w + b[4] * x + c[4] * y + d[4] * z


@jit
def columns_times(tile, rows, i, panels, start, m):
    """Add the products of the tile's columns and four rows from i on to the panels from `start` on."""
    count = rows.shape[1]
    for chunk in range(count // 5):
        k = 5 * chunk
        _columns_times_5(tile, rows, i, k, view_of(panels, start + k * TILE, 5 * TILE), m)
    for k in range(count - count % 5, count):
        _columns_times_1(tile, rows, i, k, view_of(panels, start + k * TILE, TILE), m)


# ------------------------------------------------------------------------------------------ the pass


@jit
def blank_missing(tile, mask, mask_row, mask_column, i, j0, rows, m):
    """Set entries of the tile that the mask hides to NaN."""
    for q in range(rows):
        row = view_of(tile, q * TILE, TILE)
        start = (i + q) * mask_row + j0 * mask_column
        if mask_column == 1:
            seen = view_of(mask, start, m)
            for j in range(m):
                row[j] = row[j] if seen[j] else np.nan
        elif mask_column > 1 or not mask[start]:
            for j in range(m):
                if not mask[start + j * mask_column]:
                    row[j] = np.nan


@numba.njit(nogil=True, cache=True, **INLINED)
def rectangle_pass(
    flat,  # (size,) the stored numbers of the rectangle, row i at i * stride
    stride,
    n1,
    n2,
    mask,  # (size,) bool, entry (i, j) at i * mask_row + j * mask_column; empty if there is none
    mask_row,
    mask_column,
    L,  # (n1 + 3, padded r)
    R,  # (tiles padded r TILE,) panels
    B,  # (n1 + 3, kb) multiplier for Cᵀ B
    A,  # panels of at least ka components, multiplier for C A
    stretch,  # tiles of columns that are walked together
    clip,
    cutoff,
    keep,
    want_energy,
    tile,  # (4 TILE,) work memory
    sums,  # (5,) work memory
    CA,  # (n1 + 3, ka), added to
    CtB,  # panels, added to
    row_kept,  # (n1 + 3,), added to
    column_kept,  # (tiles TILE,), added to
    kept,  # (4 TILE,) work memory; empty: no Grams are wanted
    L_pairs,  # (n1 + 3, r (r + 1) / 2) products of columns of B and L
    R_pairs,  # panels, products of columns of A and R
    row_grams,  # (n1 + 3, r (r + 1) / 2), added to
    column_grams,  # panels, added to
):
    """Add one rectangle's share of the pass to the outputs; return (Σ|C|², Σ|D|² or 0).

    Groups of rows are walked along a stretch of columns, so memory is read in long runs. Rows past
    the end count as missing: they add zeros.
    """
    rank, kb = L.shape[1], B.shape[1]
    tiles = -(-n2 // TILE)
    width = len(A) // (tiles * TILE)
    norm_C, norm_D = 0.0, 0.0
    for first in range(0, tiles, stretch):
        for group in range(0, n1, GROUP):
            for t in range(first, min(first + stretch, tiles)):
                j0 = t * TILE
                m = min(TILE, n2 - j0)
                following = m if group + 2 * GROUP <= n1 else 0
                for i in range(group, min(group + GROUP, n1), 4):
                    rows = min(4, n1 - i)
                    # Rows past the end repeat the last one and are then blanked.
                    o0 = i * stride + j0
                    o1 = min(i + 1, n1 - 1) * stride + j0
                    o2 = min(i + 2, n1 - 1) * stride + j0
                    o3 = min(i + 3, n1 - 1) * stride + j0
                    R_panel = view_of(R, t * rank * TILE, rank * TILE)
                    if rank >= 5:
                        _load_minus_5(tile, flat, o0, o1, o2, o3, L, i, R_panel, m)
                    else:
                        _load_minus_1(tile, flat, o0, o1, o2, o3, L, i, R_panel, m)
                    minus(tile, L, i, R, t * rank * TILE, 1, m)
                    for j in range(rows * TILE, 4 * TILE):
                        tile[j] = np.nan
                    if len(mask):
                        blank_missing(tile, mask, mask_row, mask_column, i, j0, rows, m)
                    # The same columns of the next group are prefetched between the loops, a row at a time.
                    prefetch_range(flat, o0 + GROUP * stride, following)
                    if want_energy:
                        norm_D += _energy(tile, rows, m)
                    if len(kept):
                        _kept_indicator(tile, keep, kept, m)
                    prefetch_range(flat, o1 + GROUP * stride, following)
                    influence(tile, clip, cutoff, keep, view_of(column_kept, j0, TILE), sums, m)
                    norm_C += sums[0]
                    for q in range(4):
                        row_kept[i + q] += sums[q + 1]
                    prefetch_range(flat, o2 + GROUP * stride, following)
                    rows_times(tile, A, t * width * TILE, CA, i, m)
                    prefetch_range(flat, o3 + GROUP * stride, following)
                    columns_times(tile, B, i, CtB, t * kb * TILE, m)
                    if len(kept):
                        at = t * L_pairs.shape[1] * TILE
                        rows_times(kept, R_pairs, at, row_grams, i, m)
                        columns_times(kept, L_pairs, i, column_grams, at, m)
    return norm_C, norm_D
