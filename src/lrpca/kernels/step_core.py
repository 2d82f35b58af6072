"""The small matrices of one step, from Grams to the coefficients of the next factors, compiled by numba.

For the usual step of real factors with orthogonal columns; `lrpca.matrices.device.step` has the general formulas.
Dozens of NumPy calls on matrices of the size of the rank take as long as half a pass on a GPU.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np

from lrpca.core.linalg import eigh, svd

# Directions whose share of a Gram is below this are treated as absent; the same of combinations of columns of length 1.
ABSENT, NEGLIGIBLE = 1e-13, 1e-12
# Columns whose cosines are below this are orthogonal.
ORTHOGONAL = 1e-11
# What is new in a step, as a share of the square of C R, below which a Gram does not show it to ten digits.
_CANCELLED = 1e-6
# Squares of C R below this have lost digits: it is as small as the data to the power of 1.5.
_LEAST_SQUARE = 1e-280


class TangentStep(NamedTuple):
    """The best rank-r approximation after a step, as combinations of the columns of [L, C R] and [R, Cᵀ L]."""

    coefficients: Any  # (2, 2r, r) of the left singular vectors, and of the right ones
    values: Any  # (2r,) singular values
    core_U: Any  # (2r, r), and the next two, as in `lrpca.core.factors.Retracted`
    core_Vt: Any  # (r, 2r)
    before: Any  # (2r, 2r)


def tangent_step(
    grams: Any,  # (2, 2r, 2r) of [L, C R] and [R, Cᵀ L]
    length: float,
) -> TangentStep | None:
    """Return the best rank-r approximation after a tangent step of some length, from the Grams of both sides.

    None where columns are not orthogonal, or not finite, or so little of a step is new that squares hide it.
    """
    r = grams.shape[1] // 2
    inner, new = np.zeros((2, r, r)), np.zeros((2, r, r))
    sizes, steps = np.zeros((2, r)), np.zeros((2, r))
    if not _split(grams, length, inner, new, sizes, steps):
        return None
    # What is new, in columns of length one, has the orthonormal basis that its Gram is whitened by.
    values, bases = eigh(new)
    before, after = np.zeros((2 * r, 2 * r)), np.zeros((2 * r, 2 * r))
    if not _join(grams, inner, new, sizes, steps, values, bases, before, after):
        return None
    U, values, Vt = svd(after)
    coefficients = np.zeros((2, 2 * r, r))
    _combine(grams, bases, U, Vt, coefficients)
    return TangentStep(coefficients, values, U[:, :r], Vt[:r], before)


@numba.njit(nogil=True, cache=True)
def _split(
    grams: Any,  # (2, 2r, 2r)
    length: float,
    inner: Any,  # (2, r, r), filled in: what of a step lies in L, as combinations of its columns
    new: Any,  # (2, r, r), filled in: the Gram of what does not, in columns of length one
    sizes: Any,  # (2, r), filled in: these lengths
    steps: Any,  # (2, r), filled in: how far the step goes along these columns
) -> bool:
    """Split both sides of a step, and tell whether the Grams show them.

    ``ΔL = η (C R - ½ L a) (RᵀR)⁻¹`` with ``a = (LᵀL)⁻¹ Lᵀ C R``: half of L a lies in L, and C R - L a is new.
    """
    r = grams.shape[1] // 2
    for side in range(2):
        gram, other = grams[side], grams[1 - side]
        longest = 0.0
        for i in range(2 * r):
            for j in range(2 * r):
                if not math.isfinite(gram[i, j]):
                    return False
        for i in range(r):
            longest = max(longest, other[i, i])
            for j in range(r):
                lengths = math.sqrt(gram[i, i] * gram[j, j])
                if lengths <= 0 or (i != j and abs(gram[i, j]) > ORTHOGONAL * lengths):
                    return False
        for j in range(r):
            steps[side, j] = length / other[j, j] if other[j, j] > ABSENT * longest else 0.0
            for i in range(r):
                inner[side, i, j] = 0.5 * gram[i, r + j] / gram[i, i] * steps[side, j]
                rest = gram[r + i, r + j]
                for k in range(r):
                    # Divided first: a product of both would leave the range of numbers long before the data do.
                    rest -= gram[k, r + i] / gram[k, k] * gram[k, r + j]
                new[side, i, j] = rest
            if new[side, j, j] <= max(_CANCELLED * gram[r + j, r + j], _LEAST_SQUARE):
                return False
            sizes[side, j] = math.sqrt(new[side, j, j])
        for i in range(r):
            for j in range(r):
                new[side, i, j] /= sizes[side, i] * sizes[side, j]
    return True


@numba.njit(nogil=True, cache=True)
def _join(
    grams: Any,  # (2, 2r, 2r)
    inner: Any,  # (2, r, r)
    new: Any,  # (2, r, r)
    sizes: Any,  # (2, r)
    steps: Any,  # (2, r)
    values: Any,  # (2, r) eigenvalues of `new`
    bases: Any,  # (2, r, r) its eigenvectors, made coefficients of orthonormal bases of what is new in C R
    before: Any,  # (2r, 2r), filled in
    after: Any,  # (2r, 2r), filled in
) -> bool:
    """Write X before and after a step in orthonormal bases of both sides, and tell whether it is finite."""
    r = grams.shape[1] // 2
    fresh = np.zeros((2, r, r))
    for side in range(2):
        for k in range(r):
            is_there = values[side, k] > NEGLIGIBLE * values[side, r - 1]
            for i in range(r):
                bases[side, i, k] = bases[side, i, k] / math.sqrt(values[side, k]) if is_there else 0.0
            for j in range(r):
                total = 0.0
                for i in range(r):
                    total += bases[side, i, k] * new[side, i, j]
                fresh[side, k, j] = total * sizes[side, j] * steps[side, j]
        for i in range(r):
            for k in range(r):
                bases[side, i, k] /= sizes[side, i]
    for i in range(r):
        left = math.sqrt(grams[0, i, i])
        for j in range(r):
            right = math.sqrt(grams[1, j, j])
            after[i, j] = left * (inner[0, i, j] + inner[1, j, i]) * right
            after[i, r + j] = left * fresh[1, j, i]
            after[r + i, j] = fresh[0, i, j] * right
        before[i, i] = left * math.sqrt(grams[1, i, i])
        after[i, i] += before[i, i]
    for i in range(2 * r):
        for j in range(2 * r):
            if not math.isfinite(after[i, j]):
                return False
    return True


@numba.njit(nogil=True, cache=True)
def _combine(
    grams: Any,  # (2, 2r, 2r)
    bases: Any,  # (2, r, r)
    U: Any,  # (2r, 2r) singular vectors in the bases
    Vt: Any,  # (2r, 2r)
    coefficients: Any,  # (2, 2r, r), filled in
) -> None:
    """Write singular vectors as combinations of the columns of [L, C R] and [R, Cᵀ L]."""
    r = grams.shape[1] // 2
    for side in range(2):
        for k in range(r):
            for i in range(r):
                total = 0.0
                for j in range(r):
                    total += bases[side, i, j] * (U[r + j, k] if side == 0 else Vt[k, r + j])
                coefficients[side, r + i, k] = total
            for i in range(r):
                own = grams[side, i, i]
                total = (U[i, k] if side == 0 else Vt[k, i]) / math.sqrt(own)
                for j in range(r):
                    total -= grams[side, i, r + j] / own * coefficients[side, r + j, k]
                coefficients[side, i, k] = total
