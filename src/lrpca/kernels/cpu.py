"""The fused pass on the CPU: one read of a rectangle of Y, compiled by numba.

`rectangle_pass` is serial and releases the GIL; threads come on top, over a fixed partition of the matrix, so the bits
of the result do not depend on their number (see `lrpca.matrices.dense`). It is `lrpca.kernels.reference.dense_pass`
at the speed of the memory or of the multiply-adds (three per entry and component), whichever is slower.

Vector loops run over one tile of four rows that stays in the first-level cache. A tile is a flat buffer of ``4 * TILE``
numbers (row q starts at ``q * TILE``), a panel holds one row of ``TILE`` numbers per component. The constant offsets
tell LLVM that rows do not overlap, which is what lets it vectorise: one big loop over arrays does not. The rank is
treated in chunks of five, with a short first chunk for the rest, so one compiled kernel serves every rank. Two
components per chunk are avoided on purpose: LLVM then vectorises over the pair instead of over the columns, ten times
slower. ``fastmath`` must not contain ``nnan``: NaN marks a missing entry, and every comparison with it must be False.

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

_FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
# Helpers are inlined by force: a copy of its own would be optimised, and so rounded, differently in the process that
# compiles than in those that load from the cache.
INLINED: Any = {"fastmath": _FASTMATH, "error_model": "numpy", "forceinline": True}
# Only the outer function is cached on disk: processes that start together write its index once each, not that of every
# helper, which numba does not lock.
jit = numba.njit(nogil=True, **INLINED)


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
    """Return ``array[start : start + count]`` without an owner: a slice would count references, atomically."""
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


@jit
def prefetch_range(flat, start, count):
    """Prefetch `count` entries of `flat` from `start` on."""
    step = 64 // flat.itemsize
    for j in range(0, count, step):
        _prefetch(flat, start + j)


@jit
def one_of(M, i, k):
    """Return entry k of row i, as a tuple."""
    return (M[i, k],)


@jit
def _three(M, i, k):
    return (M[i, k], M[i, k + 1], M[i, k + 2])


@jit
def _four(M, i, k):
    return (M[i, k], M[i, k + 1], M[i, k + 2], M[i, k + 3])


@jit
def five_of(M, i, k):
    """Return five entries of row i from k on."""
    return (M[i, k], M[i, k + 1], M[i, k + 2], M[i, k + 3], M[i, k + 4])


@jit
def four_rows(entries_of, M, i, k):
    """Return what a function such as `five_of` returns of four rows from i on."""
    return entries_of(M, i, k), entries_of(M, i + 1, k), entries_of(M, i + 2, k), entries_of(M, i + 3, k)


# ------------------------------------------------------------------------------------------ residual D = Y - L Rᵀ


@jit
def load_tile(tile, y0, y1, y2, y3, m):
    """Set the tile to four stored rows of Y."""
    zero = tile[0]
    for j in range(m):
        tile[j] = cast_like(y0[j], zero)
        tile[TILE + j] = cast_like(y1[j], zero)
        tile[2 * TILE + j] = cast_like(y2[j], zero)
        tile[3 * TILE + j] = cast_like(y3[j], zero)


@jit
def _load_minus_1(tile, y0, y1, y2, y3, a, b, c, d, panel, m):
    zero = tile[0]
    for j in range(m):
        v = panel[j]
        tile[j] = cast_like(y0[j], zero) - a[0] * v
        tile[TILE + j] = cast_like(y1[j], zero) - b[0] * v
        tile[2 * TILE + j] = cast_like(y2[j], zero) - c[0] * v
        tile[3 * TILE + j] = cast_like(y3[j], zero) - d[0] * v


@jit
def _load_minus_3(tile, y0, y1, y2, y3, a, b, c, d, panel, m):
    zero = tile[0]
    for j in range(m):
        u, v, w = panel[j], panel[TILE + j], panel[2 * TILE + j]
        tile[j] = cast_like(y0[j], zero) - (a[0] * u + a[1] * v + a[2] * w)
        tile[TILE + j] = cast_like(y1[j], zero) - (b[0] * u + b[1] * v + b[2] * w)
        tile[2 * TILE + j] = cast_like(y2[j], zero) - (c[0] * u + c[1] * v + c[2] * w)
        tile[3 * TILE + j] = cast_like(y3[j], zero) - (d[0] * u + d[1] * v + d[2] * w)


@jit
def _load_minus_4(tile, y0, y1, y2, y3, a, b, c, d, panel, m):
    zero = tile[0]
    for j in range(m):
        u, v, w, x = panel[j], panel[TILE + j], panel[2 * TILE + j], panel[3 * TILE + j]
        tile[j] = cast_like(y0[j], zero) - (a[0] * u + a[1] * v + a[2] * w + a[3] * x)
        tile[TILE + j] = cast_like(y1[j], zero) - (b[0] * u + b[1] * v + b[2] * w + b[3] * x)
        tile[2 * TILE + j] = cast_like(y2[j], zero) - (c[0] * u + c[1] * v + c[2] * w + c[3] * x)
        tile[3 * TILE + j] = cast_like(y3[j], zero) - (d[0] * u + d[1] * v + d[2] * w + d[3] * x)


@jit
def _load_minus_5(tile, y0, y1, y2, y3, a, b, c, d, panel, m):
    zero = tile[0]
    for j in range(m):
        u, v, w = panel[j], panel[TILE + j], panel[2 * TILE + j]
        x, z = panel[3 * TILE + j], panel[4 * TILE + j]
        tile[j] = cast_like(y0[j], zero) - (a[0] * u + a[1] * v + a[2] * w + a[3] * x + a[4] * z)
        tile[TILE + j] = cast_like(y1[j], zero) - (b[0] * u + b[1] * v + b[2] * w + b[3] * x + b[4] * z)
        tile[2 * TILE + j] = cast_like(y2[j], zero) - (c[0] * u + c[1] * v + c[2] * w + c[3] * x + c[4] * z)
        tile[3 * TILE + j] = cast_like(y3[j], zero) - (d[0] * u + d[1] * v + d[2] * w + d[3] * x + d[4] * z)


@jit
def _minus_1(tile, a, b, c, d, panel, m):
    for j in range(m):
        v = panel[j]
        tile[j] -= a[0] * v
        tile[TILE + j] -= b[0] * v
        tile[2 * TILE + j] -= c[0] * v
        tile[3 * TILE + j] -= d[0] * v


@jit
def _minus_5(tile, a, b, c, d, panel, m):
    for j in range(m):
        u, v, w = panel[j], panel[TILE + j], panel[2 * TILE + j]
        x, z = panel[3 * TILE + j], panel[4 * TILE + j]
        tile[j] -= a[0] * u + a[1] * v + a[2] * w + a[3] * x + a[4] * z
        tile[TILE + j] -= b[0] * u + b[1] * v + b[2] * w + b[3] * x + b[4] * z
        tile[2 * TILE + j] -= c[0] * u + c[1] * v + c[2] * w + c[3] * x + c[4] * z
        tile[3 * TILE + j] -= d[0] * u + d[1] * v + d[2] * w + d[3] * x + d[4] * z


@jit
def _residual(tile, y0, y1, y2, y3, rows, i, panel, rank, m):
    """Set tile = Y - rows[i : i + 4] @ panel for four stored rows of Y."""
    k = rank % 5
    if rank == 0:
        load_tile(tile, y0, y1, y2, y3, m)
    elif k == 0:
        _load_minus_5(tile, y0, y1, y2, y3, *four_rows(five_of, rows, i, 0), panel, m)
        k = 5
    elif k == 4:
        _load_minus_4(tile, y0, y1, y2, y3, *four_rows(_four, rows, i, 0), panel, m)
    elif k == 3:
        _load_minus_3(tile, y0, y1, y2, y3, *four_rows(_three, rows, i, 0), panel, m)
    else:
        _load_minus_1(tile, y0, y1, y2, y3, *four_rows(one_of, rows, i, 0), panel, m)
        if k == 2:
            _minus_1(tile, *four_rows(one_of, rows, i, 1), view_of(panel, TILE, TILE), m)
    while k < rank:
        _minus_5(tile, *four_rows(five_of, rows, i, k), view_of(panel, k * TILE, 5 * TILE), m)
        k += 5


# ------------------------------------------------------------------------------------------ influence C = ψ(D)


def influence(tile: Any, clip: Any, cutoff: Any, keep: Any, column_kept: Any, sums: Any, m: Any) -> None:
    """Replace D by C = clip(D) where |D| <= cutoff, else 0; count |D| <= keep by row and column; sum |C|².

    `sums` receives ‖C‖² and the four row counts. `keep` None means cutoff: one comparison less, for all influences but
    the soft one. Numba chooses the form by type.
    """
    raise NotImplementedError("compiled code only")


def _modulus(x: Any, like: Any) -> Any:
    """Return |x|; of a complex x through double precision, since its square may overflow and hypot is slow."""
    raise NotImplementedError("compiled code only")


@overload(_modulus, jit_options=INLINED)
def _choose_modulus(x, like):
    if isinstance(x, numba.types.Complex):
        return lambda x, like: cast_like(np.sqrt(np.float64(x.real) ** 2 + np.float64(x.imag) ** 2), like)
    return lambda x, like: abs(x)


def _influence_real(tile, clip, cutoff, keep, column_kept, sums, m):
    zero, one = cast_like(0.0, clip), cast_like(1.0, clip)
    s0 = s1 = s2 = s3 = zero
    n0 = n1 = n2 = n3 = zero
    for j in range(m):
        x0, x1, x2, x3 = tile[j], tile[TILE + j], tile[2 * TILE + j], tile[3 * TILE + j]
        w0 = one if abs(x0) <= cutoff else zero
        w1 = one if abs(x1) <= cutoff else zero
        w2 = one if abs(x2) <= cutoff else zero
        w3 = one if abs(x3) <= cutoff else zero
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


def _influence_general(tile, clip, cutoff, keep, column_kept, sums, m):
    zero, one = cast_like(0.0, clip), cast_like(1.0, clip)
    limit = cutoff if keep is None else keep
    sums[0] = zero
    for q in range(4):
        row = view_of(tile, q * TILE, TILE)
        norm = count = zero
        for j in range(m):
            x = row[j]
            size = _modulus(x, clip)
            kept = one if size <= limit else zero
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
    fast = isinstance(keep, numba.types.NoneType) and not isinstance(tile.dtype, numba.types.Complex)
    return _influence_real if fast else _influence_general


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
def _rows_times_5(tile, panel, out, k, m):
    zero = cast_like(0.0, out[0, k])
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
    out[0, k], out[0, k + 1], out[0, k + 2], out[0, k + 3], out[0, k + 4] = a0, a1, a2, a3, a4
    out[1, k], out[1, k + 1], out[1, k + 2], out[1, k + 3], out[1, k + 4] = b0, b1, b2, b3, b4
    out[2, k], out[2, k + 1], out[2, k + 2], out[2, k + 3], out[2, k + 4] = c0, c1, c2, c3, c4
    out[3, k], out[3, k + 1], out[3, k + 2], out[3, k + 3], out[3, k + 4] = d0, d1, d2, d3, d4


@jit
def _rows_times_1(tile, panel, out, k, m):
    zero = cast_like(0.0, out[0, k])
    a = b = c = d = zero
    for j in range(m):
        v = panel[j]
        a += tile[j] * v
        b += tile[TILE + j] * v
        c += tile[2 * TILE + j] * v
        d += tile[3 * TILE + j] * v
    out[0, k], out[1, k], out[2, k], out[3, k] = a, b, c, d


@jit
def rows_times(tile, panel, count, out, m):
    """Set out[q, k] = Σ_j tile[q, j] panel[k, j] for the four rows q and all `count` components k."""
    k = 0
    while k + 5 <= count:
        _rows_times_5(tile, view_of(panel, k * TILE, 5 * TILE), out, k, m)
        k += 5
    while k < count:
        _rows_times_1(tile, view_of(panel, k * TILE, TILE), out, k, m)
        k += 1


@jit
def _add_outer(sums, tile, a, b, c, d, m):
    for j in range(m):
        x0, x1, x2, x3 = tile[j], tile[TILE + j], tile[2 * TILE + j], tile[3 * TILE + j]
        for k in range(len(a)):
            sums[k * TILE + j] += a[k] * x0 + b[k] * x1 + c[k] * x2 + d[k] * x3


@jit
def columns_times(tile, rows, i, count, sums, m):
    """Add Σ_q rows[i + q, k] tile[q, j] to sums[k, j] for all `count` components k."""
    k = 0
    while k + 5 <= count:
        _add_outer(view_of(sums, k * TILE, 5 * TILE), tile, *four_rows(five_of, rows, i, k), m)
        k += 5
    while k < count:
        _add_outer(view_of(sums, k * TILE, TILE), tile, *four_rows(one_of, rows, i, k), m)
        k += 1


# ------------------------------------------------------------------------------------------ the pass


@jit
def panel_of(panels, t, count):
    """Return panel t of those of `count` components each."""
    return view_of(panels, t * count * TILE, count * TILE)


@jit
def fill_panel(panel, source, j0, m):
    """Copy columns j0 to j0 + m of every component into a panel."""
    for k in range(source.shape[0]):
        for j in range(m):
            panel[k * TILE + j] = source[k, j0 + j]


@jit
def _pair_panel(pairs, left, right, rank, m):
    """Set row (k, h), k <= h, of `pairs` to left[k] * right[h]: the entries of the outer products R̄_j R_jᵀ."""
    row = 0
    for k in range(rank):
        for h in range(k, rank):
            for j in range(m):
                pairs[row * TILE + j] = left[k * TILE + j] * right[h * TILE + j]
            row += 1


@jit
def _pair_rows(pairs, left, right, rank):
    row = 0
    for k in range(rank):
        for h in range(k, rank):
            for q in range(pairs.shape[0]):
                pairs[q, row] = left[q, k] * right[q, h]
            row += 1


@jit
def fill_rows(rows, source, first):
    """Copy rows from `first` on; what lies beyond the last row stays."""
    for q in range(min(rows.shape[0], source.shape[0] - first)):
        for k in range(source.shape[1]):
            rows[q, k] = source[first + q, k]


@jit
def add_rows(target, four, i, rows):
    """Add the first `rows` of four rows of sums to rows i and following."""
    for q in range(rows):
        for k in range(four.shape[1]):
            target[i + q, k] += four[q, k]


@jit
def add_panel(target, panel, j0, m):
    """Add a panel of sums to columns j0 to j0 + m."""
    for k in range(target.shape[0]):
        for j in range(m):
            target[k, j0 + j] += panel[k * TILE + j]


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
    shape,  # (n1, n2)
    mask,  # (size,) bool, entry (i, j) at i * mask_row + j * mask_column, or None
    mask_row,
    mask_column,
    L,  # (n1, r)
    Rt,  # (r, n2)
    B,  # (n1, kb) multiplier for Cᵀ B
    At,  # (ka, n2) multiplier for C A, transposed
    same,  # At is Rt
    clip,
    cutoff,
    keep,
    want_energy,
    want_grams,
    CA,  # (n1, ka), added to
    BtC,  # (kb, n2), added to
    row_kept,  # (n1,), added to
    column_kept,  # (n2,), added to
    row_grams,  # (n1, r (r + 1) / 2), added to
    column_grams,  # (r (r + 1) / 2, n2), added to
):
    """Add one rectangle's share of the pass to the outputs; return (Σ|C|², Σ|D|² or 0).

    Groups of rows are walked along a stretch of columns, so memory is read in long runs.
    """
    n1, n2 = shape
    rank, ka, kb, pairs = L.shape[1], At.shape[0], B.shape[1], row_grams.shape[1]
    per_tile = (rank + ka + kb + 2 * pairs + 1) * TILE * L.itemsize
    tiles = max(1, min(-(-n2 // TILE), STRETCH_BYTES // per_tile))
    tile = np.zeros(4 * TILE, L.dtype)
    R_panels = np.zeros(tiles * rank * TILE, L.dtype)
    A_panels = np.zeros(0 if same else tiles * ka * TILE, L.dtype)
    if same:
        A_panels = R_panels
    CtB_panels = np.zeros(tiles * kb * TILE, L.dtype)
    L_rows, B_rows = np.zeros((GROUP, rank), L.dtype), np.zeros((GROUP, kb), L.dtype)
    CA_rows = np.zeros((4, ka), L.dtype)
    kept_columns, sums = np.zeros(tiles * TILE, row_kept.dtype), np.zeros(5, row_kept.dtype)
    kept = np.zeros(4 * TILE, L.dtype)
    R_pairs, gram_panels = np.zeros(tiles * pairs * TILE, L.dtype), np.zeros(tiles * pairs * TILE, L.dtype)
    L_pairs, gram_rows = np.zeros((GROUP, pairs), L.dtype), np.zeros((4, pairs), L.dtype)
    norm_C, norm_D = 0.0, 0.0
    for first in range(0, n2, tiles * TILE):
        here = min(tiles, -(-(n2 - first) // TILE))
        for t in range(here):
            j0 = first + t * TILE
            m = min(TILE, n2 - j0)
            R_panel, A_panel = panel_of(R_panels, t, rank), panel_of(A_panels, t, ka)
            fill_panel(R_panel, Rt, j0, m)
            if not same:
                fill_panel(A_panel, At, j0, m)
            if want_grams:
                _pair_panel(panel_of(R_pairs, t, pairs), A_panel, R_panel, rank, m)
        CtB_panels[:] = 0
        kept_columns[:] = 0
        gram_panels[:] = 0
        for group in range(0, n1, GROUP):
            quads = -(-min(GROUP, n1 - group) // 4)
            fill_rows(L_rows, L, group)
            fill_rows(B_rows, B, group)
            if want_grams:
                _pair_rows(L_pairs, B_rows, L_rows, rank)
            for t in range(here):
                j0 = first + t * TILE
                m = min(TILE, n2 - j0)
                following = m if group + 2 * GROUP <= n1 else 0
                R_panel, A_panel, CtB_panel = (
                    panel_of(R_panels, t, rank),
                    panel_of(A_panels, t, ka),
                    panel_of(CtB_panels, t, kb),
                )
                kept_here = panel_of(kept_columns, t, 1)
                pair_panel, gram_panel = panel_of(R_pairs, t, pairs), panel_of(gram_panels, t, pairs)
                for quad in range(quads):
                    i = group + 4 * quad
                    rows = min(4, n1 - i)
                    # Rows past the end repeat the last one and are then blanked: missing entries have no influence.
                    o0 = i * stride + j0
                    o1 = min(i + 1, n1 - 1) * stride + j0
                    o2 = min(i + 2, n1 - 1) * stride + j0
                    o3 = min(i + 3, n1 - 1) * stride + j0
                    y0, y1, y2, y3 = (
                        view_of(flat, o0, m),
                        view_of(flat, o1, m),
                        view_of(flat, o2, m),
                        view_of(flat, o3, m),
                    )
                    _residual(tile, y0, y1, y2, y3, L_rows, 4 * quad, R_panel, rank, m)
                    if rows < 4:
                        tile[rows * TILE :] = np.nan
                    if mask is not None:
                        blank_missing(tile, mask, mask_row, mask_column, i, j0, rows, m)
                    # The same columns of the next group are prefetched between the loops, a row at a time.
                    prefetch_range(flat, o0 + GROUP * stride, following)
                    if want_energy:
                        norm_D += _energy(tile, rows, m)
                    if want_grams:
                        _kept_indicator(tile, cutoff if keep is None else keep, kept, m)
                    prefetch_range(flat, o1 + GROUP * stride, following)
                    influence(tile, clip, cutoff, keep, kept_here, sums, m)
                    norm_C += sums[0]
                    prefetch_range(flat, o2 + GROUP * stride, following)
                    rows_times(tile, A_panel, ka, CA_rows, m)
                    add_rows(CA, CA_rows, i, rows)
                    prefetch_range(flat, o3 + GROUP * stride, following)
                    columns_times(tile, B_rows, 4 * quad, kb, CtB_panel, m)
                    for q in range(rows):
                        row_kept[i + q] += sums[q + 1]
                    if want_grams:
                        rows_times(kept, pair_panel, pairs, gram_rows, m)
                        add_rows(row_grams, gram_rows, i, rows)
                        columns_times(kept, L_pairs, 4 * quad, pairs, gram_panel, m)
        for t in range(here):
            j0 = first + t * TILE
            m = min(TILE, n2 - j0)
            add_panel(BtC, panel_of(CtB_panels, t, kb), j0, m)
            add_panel(column_grams, panel_of(gram_panels, t, pairs), j0, m)
            for j in range(m):
                column_kept[j0 + j] += kept_columns[t * TILE + j]
    return norm_C, norm_D
