"""How far S has moved from one iteration to the next: ‖S' - S‖² and ‖S‖² of a block of rows, by one read of it.

``S = D - ψ(D)`` of a residual ``D = Y - L Rᵀ``, with ``ψ(d) = d min(1, clip / |d|)`` where |d| is at most the larger of
its row's and its column's level, and 0 elsewhere. Neither S is ever stored. NaN marks a missing entry, which is in no
S: every comparison with it must be False, hence no ``nnan``.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.extending import overload

from lrpca.kernels.cpu import INLINED, jit, outer
from lrpca.kernels.selection import modulus, residual_row


def clipped(d: Any, clip: Any) -> Any:
    """Return d min(1, clip / |d|)."""
    raise NotImplementedError("compiled code only")


@overload(clipped, jit_options=INLINED)
def _choose_clipped(d, clip):
    if isinstance(d, numba.types.Complex):
        return lambda d, clip: d * (clip / modulus(d)) if modulus(d) > clip else d
    return lambda d, clip: min(max(d, -clip), clip)


@jit
def _to_sparse(row, clip, own, columns):
    """Replace a row of D by D - ψ(D)."""
    for j in range(len(row)):
        d = row[j]
        row[j] = d - clipped(d, clip) if modulus(d) <= max(own, columns[j]) else d


@outer
def block_change(
    block,  # (m, n2), NaN where missing
    L_old,  # (m, r)
    Rt_old,  # (r, n2)
    clip_old,
    rows_old,  # (m,)
    columns_old,  # (n2,)
    L_new,  # (m, r)
    Rt_new,  # (r, n2)
    clip_new,
    rows_new,  # (m,)
    columns_new,  # (n2,)
    old,  # (n2,) work memory
    new,  # (n2,) work memory
):
    """Return ‖S_new - S_old‖² and ‖S_old‖² over the observed entries of some rows of Y."""
    moved, size = 0.0, 0.0
    nothing = np.zeros(1, rows_old.dtype)[0]
    for i in range(block.shape[0]):
        stored = block[i]
        residual_row(stored, L_old, i, Rt_old, old)
        residual_row(stored, L_new, i, Rt_new, new)
        _to_sparse(old, clip_old, rows_old[i], columns_old)
        _to_sparse(new, clip_new, rows_new[i], columns_new)
        here, length = nothing, nothing
        for j in range(len(old)):
            step, before = modulus(new[j] - old[j]), modulus(old[j])
            # A missing entry is equal to nothing.
            here += step * step if step == step else nothing
            length += before * before if before == before else nothing
        moved += here
        size += length
    return moved, size
