"""The pass over a tensor on a GPU: the fused Triton kernel where it can do it, plain torch elsewhere.

Which limit holds: up to a rank of 8 the kernel takes about 1.4 times as long as reading Y (`docs/gpu.md` has the
table), and waits for memory. For larger ranks registers are the limit: fewer threads at a time wait longer. Beyond
rank 64 plain torch does it, by the vendor's matrix products.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import lru_cache, reduce
from typing import Any

import torch

from lrpca.core.influence import Levels
from lrpca.kernels.torch_pass import TensorPass, pair_products, plain_pass, unpack_pairs

# Wider factors are left to plain torch.
WIDEST = 64
# Thresholds between these can be brought to half precision by a power of two.
_LEAST_CLIP, _MOST_CLIP = 1e-30, 1e30
# Oldest devices with TF32.
_CAPABILITY = (8, 0)
_STORED = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.uint8, torch.int8, torch.int16, torch.bool),
)
# More columns of pairs than this would be wider than a pass at its best.
_PAIRS_AT_ONCE = 16
# Partial sums take this part of Y at most, or so many bytes: wider ones are made in slabs of rows.
_PART, _LITTLE = 0.15, 1 << 26
# Columns of a strip, of which every row has partial sums, and bytes of one.
_STRIP, _BYTES = 64, 4


def tensor_pass(
    Y: Any,  # (n1, n2)
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    level: Levels,
    *,
    A: Any,  # (n2, ka)
    B: Any,  # (n1, kb)
    mask: Any = None,  # (n1, n2) bool, True = observed
    arithmetic: Any = torch.float32,
    energy: bool = False,
    grams: bool = False,
    fast: bool = False,
    cache: dict[Any, Any] | None = None,
) -> TensorPass:
    """Return the pass over a tensor, by the fused kernel if it can do it; arguments as of `plain_pass`.

    With `fast`, products are those of TF32 or half precision, eleven bits; else of twice as many. `cache` keeps what
    the kernels need from one pass to the next over the same matrix.
    """
    products = not (math.isinf(level.clip) and (A.shape[1] or B.shape[1]))
    fits = max(L.shape[1], A.shape[1], B.shape[1]) <= WIDEST and arithmetic == torch.float32
    clip_fits = math.isinf(level.clip) or _LEAST_CLIP < level.clip < _MOST_CLIP
    if not (products and fits and clip_fits and Y.dtype in _STORED and has_triton(Y.device)):
        return plain_pass(
            Y, L, R, level, A=A, B=B, mask=mask, arithmetic=arithmetic, energy=energy, grams=grams, fast=fast
        )
    cache = {} if cache is None else cache
    # To enter a device takes as long as to start a kernel.
    elsewhere = torch.cuda.current_device() != Y.device.index
    with torch.cuda.device(Y.device) if elsewhere else nullcontext():
        found = [
            _slab_pass(Y, mask, rows, (L, R, A, B), level, energy, grams, fast, cache)
            for rows in _slabs(Y, max(L.shape[1], A.shape[1], B.shape[1], _PAIRS_AT_ONCE if grams else 0))
        ]
    return found[0] if len(found) == 1 else _together(found)


@lru_cache
def has_triton(device: Any) -> bool:
    """Tell whether the fused kernel runs on a device."""
    if device.type != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability(device) < _CAPABILITY:
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def _slabs(Y: Any, width: int) -> list[slice]:
    """Return slabs of rows whose partial sums, of factors of a width, are small beside Y."""
    n1, n2 = Y.shape
    # Factors are padded to a power of two, and the widest ones have narrower strips.
    columns = 1 << (width - 1).bit_length() if width else 0
    by_row = _BYTES * (columns + 1) * -(-n2 // (_STRIP if width > 16 else 2 * _STRIP))
    rows = int(max(_LITTLE, _PART * Y.element_size() * n1 * n2) // by_row)
    count = -(-n1 // max(rows, _STRIP))
    # Whole tiles, whose factors begin where memory is aligned.
    length = -(-n1 // count // _STRIP) * _STRIP
    return [slice(first, min(n1, first + length)) for first in range(0, n1, length)]


def _slab_pass(
    Y: Any, mask: Any, rows: slice, factors: Any, level: Levels, energy: bool, grams: bool, fast: bool, cache: Any
) -> TensorPass:
    """Return the pass over a slab of rows; `factors` are L, R, A and B of all of Y."""
    from lrpca.kernels.triton.launch import Launches, Workspace

    L, R, A, B = factors
    if rows.stop - rows.start < len(L):
        is_L = B is L
        L = L[rows]
        B = L if is_L else B[rows]
    if "workspace" not in cache:
        cache["workspace"] = Workspace(Y.device)
    key = (rows.start, rows.stop)
    if key not in cache:
        cache[key] = Launches(Y[rows], None if mask is None else mask[rows], cache["workspace"])
    launches = cache[key]
    CA, CtB, by_row, by_column, norms = launches.run(L, R, A, B, level, fast=fast, energy=energy)
    if not grams:
        return TensorPass(CA, CtB, by_row, by_column, norms)
    pairs = pair_products(A, R), pair_products(B, L)
    sides: tuple[list[Any], list[Any]] = ([], [])
    for first in range(0, pairs[0].shape[1], _PAIRS_AT_ONCE):
        some = [side[:, first : first + _PAIRS_AT_ONCE] for side in pairs]
        of_kept = launches.run(L, R, *some, level, fast=fast, of_kept=True)
        sides[0].append(of_kept[0])
        sides[1].append(of_kept[1])
    row_grams, column_grams = (unpack_pairs(torch.cat(side, 1), L.shape[1]) for side in sides)
    return TensorPass(CA, CtB, by_row, by_column, norms, row_grams, column_grams)


def _together(found: list[TensorPass]) -> TensorPass:
    """Return one pass of those over slabs of rows, added in order."""
    with_grams = found[0].row_grams is not None
    return TensorPass(
        torch.cat([part.CA for part in found]),
        reduce(torch.add, [part.CtB for part in found]),
        torch.cat([part.kept_by_row for part in found]),
        reduce(torch.add, [part.kept_by_column for part in found]),
        reduce(torch.add, [part.norms for part in found]),
        torch.cat([part.row_grams for part in found]) if with_grams else None,
        reduce(torch.add, [part.column_grams for part in found]) if with_grams else None,
    )
