"""Vector loops over one tile of four rows that stays in the first-level cache.

A tile is a flat buffer of ``4 * TILE`` numbers (row q starts at ``q * TILE``), a panel holds one row of ``TILE``
numbers per component. The constant offsets tell LLVM that rows do not overlap, which is what lets it vectorise: one big loop
over arrays does not. The rank is treated in chunks of four, with a short first chunk for the rest, so one compiled
kernel serves every rank. Two components per chunk are avoided on purpose: LLVM then vectorises over the pair instead
of over the columns, ten times slower.

``fastmath`` must not contain ``nnan``: NaN marks a missing entry, and every comparison with it must be False.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic, overload

TILE = 512
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
jit = numba.njit(nogil=True, cache=True, fastmath=FASTMATH, error_model="numpy")


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
def _cast(typing_context: Any, value: Any, like: Any) -> Any:
    """Convert a stored number (uint16, say) to the arithmetic type; numba alone would go to float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.cast(builder, arguments[0], signature.args[0], signature.args[1])

    return like(value, like), generate


@jit
def ask_for(flat, start, count):
    """Prefetch `count` entries of `flat` from `start` on."""
    step = 64 // flat.itemsize
    for j in range(0, count, step):
        _prefetch(flat, start + j)


@jit
def _one(M, i, k):
    return (M[i, k],)


@jit
def _three(M, i, k):
    return (M[i, k], M[i, k + 1], M[i, k + 2])


@jit
def _four(M, i, k):
    return (M[i, k], M[i, k + 1], M[i, k + 2], M[i, k + 3])


# ------------------------------------------------------------------------------------------ residual D = Y - L Rᵀ


@jit
def _load(tile, y0, y1, y2, y3, m):
    zero = tile[0]
    for j in range(m):
        tile[j] = _cast(y0[j], zero)
        tile[TILE + j] = _cast(y1[j], zero)
        tile[2 * TILE + j] = _cast(y2[j], zero)
        tile[3 * TILE + j] = _cast(y3[j], zero)


@jit
def _load_minus_1(tile, y0, y1, y2, y3, a, b, c, d, panel, m):
    zero = tile[0]
    for j in range(m):
        v = panel[j]
        tile[j] = _cast(y0[j], zero) - a[0] * v
        tile[TILE + j] = _cast(y1[j], zero) - b[0] * v
        tile[2 * TILE + j] = _cast(y2[j], zero) - c[0] * v
        tile[3 * TILE + j] = _cast(y3[j], zero) - d[0] * v


@jit
def _load_minus_3(tile, y0, y1, y2, y3, a, b, c, d, panel, m):
    zero = tile[0]
    for j in range(m):
        u = panel[j]
        v = panel[TILE + j]
        w = panel[2 * TILE + j]
        tile[j] = _cast(y0[j], zero) - (a[0] * u + a[1] * v + a[2] * w)
        tile[TILE + j] = _cast(y1[j], zero) - (b[0] * u + b[1] * v + b[2] * w)
        tile[2 * TILE + j] = _cast(y2[j], zero) - (c[0] * u + c[1] * v + c[2] * w)
        tile[3 * TILE + j] = _cast(y3[j], zero) - (d[0] * u + d[1] * v + d[2] * w)


@jit
def _load_minus_4(tile, y0, y1, y2, y3, a, b, c, d, panel, m):
    zero = tile[0]
    for j in range(m):
        u = panel[j]
        v = panel[TILE + j]
        w = panel[2 * TILE + j]
        x = panel[3 * TILE + j]
        tile[j] = _cast(y0[j], zero) - (a[0] * u + a[1] * v + a[2] * w + a[3] * x)
        tile[TILE + j] = _cast(y1[j], zero) - (b[0] * u + b[1] * v + b[2] * w + b[3] * x)
        tile[2 * TILE + j] = _cast(y2[j], zero) - (c[0] * u + c[1] * v + c[2] * w + c[3] * x)
        tile[3 * TILE + j] = _cast(y3[j], zero) - (d[0] * u + d[1] * v + d[2] * w + d[3] * x)


@jit
def _minus_1(tile, a, b, c, d, panel, m):
    for j in range(m):
        v = panel[j]
        tile[j] -= a[0] * v
        tile[TILE + j] -= b[0] * v
        tile[2 * TILE + j] -= c[0] * v
        tile[3 * TILE + j] -= d[0] * v


@jit
def _minus_4(tile, a, b, c, d, panel, m):
    for j in range(m):
        u = panel[j]
        v = panel[TILE + j]
        w = panel[2 * TILE + j]
        x = panel[3 * TILE + j]
        tile[j] -= a[0] * u + a[1] * v + a[2] * w + a[3] * x
        tile[TILE + j] -= b[0] * u + b[1] * v + b[2] * w + b[3] * x
        tile[2 * TILE + j] -= c[0] * u + c[1] * v + c[2] * w + c[3] * x
        tile[3 * TILE + j] -= d[0] * u + d[1] * v + d[2] * w + d[3] * x


@jit
def residual(tile, y0, y1, y2, y3, rows, panel, rank, m):
    """Set tile = Y - rows @ panel for four stored rows of Y and the four rows of L in `rows`."""
    k = rank % 4
    if rank == 0:
        _load(tile, y0, y1, y2, y3, m)
    elif k == 0:
        a, b, c, d = _four(rows, 0, 0), _four(rows, 1, 0), _four(rows, 2, 0), _four(rows, 3, 0)
        _load_minus_4(tile, y0, y1, y2, y3, a, b, c, d, panel, m)
        k = 4
    elif k == 3:
        e, f, g, h = _three(rows, 0, 0), _three(rows, 1, 0), _three(rows, 2, 0), _three(rows, 3, 0)
        _load_minus_3(tile, y0, y1, y2, y3, e, f, g, h, panel, m)
    else:
        p, q, r, s = _one(rows, 0, 0), _one(rows, 1, 0), _one(rows, 2, 0), _one(rows, 3, 0)
        _load_minus_1(tile, y0, y1, y2, y3, p, q, r, s, panel, m)
        if k == 2:
            p, q, r, s = _one(rows, 0, 1), _one(rows, 1, 1), _one(rows, 2, 1), _one(rows, 3, 1)
            _minus_1(tile, p, q, r, s, panel[TILE:], m)
    while k < rank:
        a, b, c, d = _four(rows, 0, k), _four(rows, 1, k), _four(rows, 2, k), _four(rows, 3, k)
        _minus_4(tile, a, b, c, d, panel[k * TILE :], m)
        k += 4


# ------------------------------------------------------------------------------------------ influence C = ψ(D)


def influence(tile: Any, clip: Any, cutoff: Any, keep: Any, column_kept: Any, sums: Any, m: Any) -> None:
    """Replace D by C = clip(D) where |D| <= cutoff, else 0; count |D| <= keep by row and column; sum |C|².

    `sums` receives ‖C‖² and the four row counts. Numba chooses between the real and the complex form by type.
    """
    raise NotImplementedError("compiled code only")


def _influence_real(tile, clip, cutoff, keep, column_kept, sums, m):
    zero = _cast(0.0, clip)
    one = _cast(1.0, clip)
    s0 = s1 = s2 = s3 = zero
    n0 = n1 = n2 = n3 = zero
    for j in range(m):
        x0 = tile[j]
        x1 = tile[TILE + j]
        x2 = tile[2 * TILE + j]
        x3 = tile[3 * TILE + j]
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
    sums[1] = n0
    sums[2] = n1
    sums[3] = n2
    sums[4] = n3


def _influence_complex(tile, clip, cutoff, keep, column_kept, sums, m):
    zero = _cast(0.0, clip)
    one = _cast(1.0, clip)
    sums[0] = zero
    for q in range(4):
        norm = zero
        count = zero
        for j in range(m):
            x = tile[q * TILE + j]
            size = np.sqrt(x.real * x.real + x.imag * x.imag)
            kept = one if size <= keep else zero
            shrink = one if size <= clip else clip / size
            if size <= cutoff:
                tile[q * TILE + j] = x * shrink
                norm += (size * shrink) * (size * shrink)
            else:
                tile[q * TILE + j] = zero
            count += kept
            column_kept[j] += kept
        sums[0] += norm
        sums[q + 1] = count


@overload(influence, jit_options={"fastmath": FASTMATH, "error_model": "numpy"})
def _choose_influence(tile, clip, cutoff, keep, column_kept, sums, m):
    if isinstance(tile.dtype, numba.types.Complex):
        return _influence_complex
    return _influence_real


@jit
def kept_indicator(tile, keep, kept, m):
    """Set kept = 1 where |tile| <= keep, else 0 (before `influence` overwrites the tile)."""
    for q in range(4):
        for j in range(m):
            kept[q * TILE + j] = 1.0 if abs(tile[q * TILE + j]) <= keep else 0.0


@jit
def energy(tile, rows, m):
    """Return Σ|D|² over observed entries of the tile; inf where an entry is infinite."""
    total = 0.0
    for q in range(rows):
        start = tile[q * TILE :]
        for j in range(m):
            square = start[j].real * start[j].real + start[j].imag * start[j].imag
            total += square if square == square else 0.0
    return total


# ------------------------------------------------------------------------------------------ products C A and Cᵀ B


@jit
def _rows_times_4(tile, panel, out, k, m):
    zero = _cast(0.0, out[0, k])
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = zero
    c0 = c1 = c2 = c3 = d0 = d1 = d2 = d3 = zero
    for j in range(m):
        u = panel[j]
        v = panel[TILE + j]
        w = panel[2 * TILE + j]
        y = panel[3 * TILE + j]
        x = tile[j]
        a0 += x * u
        a1 += x * v
        a2 += x * w
        a3 += x * y
        x = tile[TILE + j]
        b0 += x * u
        b1 += x * v
        b2 += x * w
        b3 += x * y
        x = tile[2 * TILE + j]
        c0 += x * u
        c1 += x * v
        c2 += x * w
        c3 += x * y
        x = tile[3 * TILE + j]
        d0 += x * u
        d1 += x * v
        d2 += x * w
        d3 += x * y
    out[0, k], out[0, k + 1], out[0, k + 2], out[0, k + 3] = a0, a1, a2, a3
    out[1, k], out[1, k + 1], out[1, k + 2], out[1, k + 3] = b0, b1, b2, b3
    out[2, k], out[2, k + 1], out[2, k + 2], out[2, k + 3] = c0, c1, c2, c3
    out[3, k], out[3, k + 1], out[3, k + 2], out[3, k + 3] = d0, d1, d2, d3


@jit
def _rows_times_1(tile, panel, out, k, m):
    zero = _cast(0.0, out[0, k])
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
    while k + 4 <= count:
        _rows_times_4(tile, panel[k * TILE :], out, k, m)
        k += 4
    while k < count:
        _rows_times_1(tile, panel[k * TILE :], out, k, m)
        k += 1


@jit
def _add_outer(sums, tile, a, b, c, d, m):
    for j in range(m):
        x0 = tile[j]
        x1 = tile[TILE + j]
        x2 = tile[2 * TILE + j]
        x3 = tile[3 * TILE + j]
        for k in range(len(a)):
            sums[k * TILE + j] += a[k] * x0 + b[k] * x1 + c[k] * x2 + d[k] * x3


@jit
def columns_times(tile, rows, count, sums, m):
    """Add Σ_q rows[q, k] tile[q, j] to sums[k, j] for all `count` components k."""
    k = 0
    while k + 4 <= count:
        a, b, c, d = _four(rows, 0, k), _four(rows, 1, k), _four(rows, 2, k), _four(rows, 3, k)
        _add_outer(sums[k * TILE :], tile, a, b, c, d, m)
        k += 4
    while k < count:
        p, q, r, s = _one(rows, 0, k), _one(rows, 1, k), _one(rows, 2, k), _one(rows, 3, k)
        _add_outer(sums[k * TILE :], tile, p, q, r, s, m)
        k += 1
