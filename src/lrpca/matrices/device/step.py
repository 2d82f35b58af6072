"""The formulas of `lrpca.core.factors` for factors on a device, from one Gram of each side.

All that an iteration does with tall matrices is to combine their columns. The coefficients follow from the Grams of
``[L, C R̄]`` and ``[R, Cᵀ W L̄]``, later ``[L, ΔL]`` and ``[R, ΔR]``: small matrices, which come to the host together.
The usual step needs no transfer of its own: its Grams come with the pass (`lrpca.matrices.device.report`), and its
small algebra is compiled (`lrpca.kernels.step_core`). Others take up to three, where operations one by one would take
thirty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lrpca.core.factors import OWN_GRAM_DAMPING, Retracted, pseudo_inverse, retracted_core
from lrpca.core.linalg import eigh
from lrpca.core.passes import Pass
from lrpca.kernels.gpu import WIDEST, has_triton
from lrpca.kernels.step_core import ABSENT, NEGLIGIBLE, ORTHOGONAL, tangent_step
from lrpca.matrices.device.array import DeviceArray, to_host
from lrpca.matrices.device.report import Side

_TINY = float(np.finfo(float).tiny)


def directions(L: Any, R: Any, result: Pass, update: str, weight: Any, present: int | None) -> tuple[Any, Any]:
    """Return ΔL and ΔR of a step of length 1; see `lrpca.solvers.step.directions`."""
    found = _direction(L, R, result, update, weight, present)
    return _combined(found.left, found.right, *found.coefficients, finite=found.is_finite)


def stepped(
    L: Any, R: Any, result: Pass, update: str, weight: Any, present: int | None, length: float
) -> Retracted | None:
    """Return the best rank-r approximation after a step of some length along the directions, which are not formed.

    None where that cannot be told from Grams, see `retract`, or something is not finite.
    """
    if update == "tangent" and result.row_grams is None:
        usual = _usual_step(L, R, result, weight, length)
        if usual is not None:
            return usual
    found = _direction(L, R, result, update, weight, present)
    r = L.shape[1]
    if not (found.is_finite and all(_is_diagonal(gram[:r, :r]) for gram in found.grams)):
        return None
    sides, within = [], []
    for side, gram, coefficients in zip((found.left, found.right), found.grams, found.coefficients, strict=True):
        step = length * coefficients
        # What of ΔL lies in L is taken off before anything is squared, as in `retract`.
        within.append(gram[:r] @ step / np.diag(gram)[:r, None])
        step[:r] -= within[-1]
        sides.append((side, step))
    uploaded = found.left.upload(np.stack([step for _, step in sides]))
    left, right = (
        Side(side.factor, side.both @ part, side.weight) for (side, _), part in zip(sides, uploaded, strict=True)
    )
    return _retracted(left, right, within[0], within[1])


def _usual_step(L: Any, R: Any, result: Pass, weight: Any, length: float) -> Retracted | None:
    """Return what `stepped` does if Grams came with the pass, in compiled code, where these are enough."""
    known = None if result.report is None else result.report.sides_of(L, R, weight)
    if known is None:
        return None
    left, right, grams = known
    found = tangent_step(grams, length)
    if found is None:
        return None
    r = L.shape[1]
    return _Retracted(
        *(None, found.values[:r], None, found.core_U, found.core_Vt, found.before, float(found.values[r])),
        left=left,
        right=right,
        for_U=found.coefficients[0],
        for_V=found.coefficients[1],
    )


@dataclass(frozen=True)
class _Direction:
    """ΔL and ΔR of a step of length 1 as combinations of the columns of two sides, whose Grams are known."""

    left: Side
    right: Side
    grams: Any  # (2, 2r, 2r)
    coefficients: tuple[Any, Any]  # (2r, r) each

    @property
    def is_finite(self) -> bool:
        """Whether the columns are finite, and the combinations."""
        return _are_finite(self.grams) and all(np.isfinite(part).all() for part in self.coefficients)


def _direction(L: Any, R: Any, result: Pass, update: str, weight: Any, present: int | None) -> _Direction:
    known = None if result.report is None else result.report.sides_of(L, R, weight)
    if known is None:
        left, right = Side(L, result.CA, weight), Side(R, result.CtB, None)
        grams = _grams(left, right)
    else:
        left, right, grams = known
    r = L.shape[1]
    if not _are_finite(grams):
        return _Direction(left, right, grams, (np.zeros((2 * r, r)), np.zeros((2 * r, r))))
    inverses = pseudo_inverse(grams[1][:r, :r].conj()), pseudo_inverse(grams[0][:r, :r].conj())
    if update != "scaled" and result.row_grams is not None:
        return _own_gram_direction(left, right, result, grams, inverses, present)
    halves: list[Any] = []
    for gram, inverse in zip(grams, inverses, strict=True):
        along = np.zeros_like(inverse)
        if update != "scaled":
            # Half of what lies in both the column and the row space is taken off each side.
            along = -0.5 * pseudo_inverse(gram[:r, :r]) @ (gram[:r, r:] @ inverse)
        halves.append(np.concatenate([along, inverse]))
    return _Direction(left, right, grams, (halves[0], halves[1]))


def _own_gram_direction(
    left: Side, right: Side, result: Pass, grams: Any, inverses: tuple[Any, Any], present: int | None
) -> _Direction:  # grams (2, 2r, 2r)
    """Return the directions by the normal equations of each row and column, for the first `present` components."""
    r = inverses[0].shape[0]
    m = r if present is None else present
    share = result.n_kept / (len(result.kept_by_row) * len(result.kept_by_column))
    found = []
    for side, own, other, inverse in (
        (left, result.row_grams, grams[1], inverses[0]),
        (right, result.column_grams, grams[0], inverses[1]),
    ):
        damping = side.upload(share * OWN_GRAM_DAMPING * other[:m, :m])
        solved = solve_each(own.tensor[:, :m, :m] + damping, side.added[:, :m])
        rest = side.added @ side.upload(inverse[:, m:] / max(share, ABSENT)) if m < r else None
        found.append(Side(side.factor, solved if rest is None else torch.cat([solved, rest], 1), side.weight))
    halves, again = [], _grams(*found)
    for gram in again:
        along = -0.5 * pseudo_inverse(gram[:r, :r]) @ gram[:r, r:] if np.isfinite(gram).all() else gram[:r, r:]
        halves.append(np.concatenate([along, np.eye(r)]))
    return _Direction(found[0], found[1], again, (halves[0], halves[1]))


def retract(L: Any, R: Any, dL: Any, dR: Any, weight: Any) -> Retracted | None:
    """Return the best rank-r approximation of ``L Rᵀ + ΔL Rᵀ + L ΔRᵀ``; see `lrpca.core.factors.retract`.

    None where the columns of L, or of R, are not orthogonal: they may depend on each other so closely that a Gram
    does not show what is left of them.
    """
    r = L.shape[1]
    left, right = Side(L, dL.tensor, weight), Side(R, dR.tensor, None)
    first = _grams(left, right)
    if not all(_is_diagonal(gram[:r, :r]) for gram in first):
        return None
    # What of ΔL lies in L is taken off before anything is squared: there may be a million times more of it than new.
    in_L, in_R = (gram[:r, r:] / np.diag(gram)[:r, None] for gram in first)
    return _retracted(*_without(left, right, in_L, in_R), in_L, in_R)


def _retracted(
    left: Side,  # [L, what is new in ΔL]
    right: Side,
    in_L: Any,  # (r, r): what is not, as combinations of the columns of L
    in_R: Any,  # (r, r)
) -> Retracted:
    r, weight = len(in_L), left.weight
    gram_L, gram_R = _grams(left, right)
    basis_L, old_L, along_L, new_L = _split(gram_L)
    basis_R, old_R, along_R, new_R = _split(gram_R)
    along_L, along_R = along_L + old_L @ in_L, along_R + old_R @ in_R
    P, values, Zh, before = retracted_core(old_L, along_L, new_L, old_R, along_R, new_R)
    V = basis_R @ Zh[:r].T
    U = basis_L @ P[:, :r]
    if weight is not None:
        # U of weight 0 follows from V.
        inverse = np.divide(1.0, values[:r], out=np.zeros(r), where=values[:r] > ABSENT * values[0])
        seen = (gram_R @ V).conj()
        old, step = seen[:r], seen[r:] + in_R.T @ seen[:r]
        U = np.concatenate([old + in_L @ old + step, old]) * inverse
    return _Retracted(
        *(None, values[:r], None, P[:, :r], Zh[:r], before, float(values[r])), left=left, right=right, for_U=U, for_V=V
    )


@dataclass(frozen=True)
class _Retracted(Retracted):
    """U and V as coefficients of the columns of [L, ΔL] and [R, ΔR], computed when they are needed."""

    left: Side
    right: Side
    for_U: Any  # (2r, r)
    for_V: Any  # (2r, r)

    def factors(self) -> tuple[Any, Any]:
        """Return L = U Σ^½ and R = V Σ^½."""
        root = np.sqrt(self.values)
        return _combined(self.left, self.right, self.for_U * root, self.for_V * root)

    def vectors(self) -> tuple[Any, Any]:
        """Return U and V."""
        return _combined(self.left, self.right, self.for_U, self.for_V)


def _are_finite(grams: Any) -> bool:  # grams (2, 2r, 2r)
    """Tell whether the columns of both sides are finite: the products with those of the factor say so.

    Squares of C R, which is as large as the data to the power of 1.5, may be beyond the range of numbers.
    """
    return bool(np.isfinite(grams[:, : grams.shape[1] // 2]).all())


def _grams(left: Side, right: Side) -> Any:
    """Return the Grams of both sides, which come to the host at once."""
    return to_host(torch.stack([left.gram(), right.gram()]))


def _combined(
    left: Side, right: Side, for_left: Any, for_right: Any, *, finite: bool = False
) -> tuple[DeviceArray, DeviceArray]:
    """Return combinations of the columns of both sides, by coefficients that go to the device at once.

    `finite` says that the columns are; what is made of them is then, if the coefficients are.
    """
    coefficients = np.stack([for_left, for_right])
    finite = finite and bool(np.isfinite(coefficients).all())
    both = left.upload(coefficients)
    if both.dtype == torch.float64 and both.shape[2] <= WIDEST and has_triton(both.device):
        from lrpca.kernels.triton.small import combined

        L, R = combined(left.both, right.both, both)
    else:
        L, R = left.both @ both[0], right.both @ both[1]
    return DeviceArray(L, surely_finite=finite), DeviceArray(R, surely_finite=finite)


def _without(left: Side, right: Side, for_left: Any, for_right: Any) -> tuple[Side, Side]:
    """Return both sides with combinations of the factor taken off what is to be added."""
    off = left.upload(np.stack([for_left, for_right]))
    sides = zip((left, right), off, strict=True)
    one, other = (Side(x.factor, torch.addmm(x.added, x.own, part, alpha=-1), x.weight) for x, part in sides)
    return one, other


def _split(
    gram: Any,  # (2 r, 2 r) of [M ΔM], M with orthogonal columns
) -> tuple[Any, Any, Any, Any]:
    """Return orthonormal bases Q of M and P of what is new in ΔM as coefficients (2 r, 2 r) of [M ΔM].

    And a, b, c of ``M = Q a`` and ``ΔM = Q b + P c``. Columns are scaled to length one first: steps of 1e-9 keep their
    digits.
    """
    r = len(gram) // 2
    size = np.sqrt(np.maximum(np.diag(gram).real, 0.0))
    inverse = np.where(size > 0, 1.0 / np.where(size > 0, size, 1.0), 0.0)
    scaled = inverse[:, None] * gram * inverse
    along = scaled[:r, r:]
    rest = scaled[r:, r:] - along.conj().T @ along
    left = np.maximum(np.diag(rest).real, 0.0)
    there = np.where(left > ABSENT, 1.0 / np.sqrt(np.where(left > ABSENT, left, 1.0)), 0.0)
    P = there[:, None] * _whitening(there[:, None] * rest * there)
    basis = inverse[:, None] * np.block([[np.eye(r), -along @ P], [np.zeros((r, r)), P]])
    return basis, np.diag(size[:r]).astype(gram.dtype), along * size[r:], P.conj().T @ rest * size[r:]


def _is_diagonal(gram: Any) -> bool:  # gram (r, r)
    """Tell whether the columns of this Gram are orthogonal, and none of them zero."""
    size = np.sqrt(np.abs(np.diag(gram)))
    apart = np.abs(gram - np.diag(np.diag(gram))) <= ORTHOGONAL * np.outer(size, size)
    return bool(size.min() > 0 and apart.all())


def _whitening(gram: Any) -> Any:  # gram (r, r)
    """Return T with T^H G T = 1, zero columns for directions that are not there."""
    values, vectors = eigh(gram)
    good = values > NEGLIGIBLE * max(values[-1], _TINY)
    return vectors * np.where(good, 1.0 / np.sqrt(np.where(good, values, 1.0)), 0.0)


def solve_each(grams: Any, sides: Any) -> Any:  # grams (n, r, r); sides (n, r)
    """Return the solutions of n small systems, tensors; see `lrpca.core.factors.solve_each`."""
    diagonals = grams.diagonal(dim1=1, dim2=2).real
    scale = torch.rsqrt(diagonals.mean(0).clamp(min=_TINY))
    scaled = grams * (scale[:, None] * scale)
    ridge = 1e-12 * (diagonals * scale.square()).sum(1) + _TINY
    scaled.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
    # Without a test of success, for which torch would wait.
    solved = torch.linalg.solve_ex(scaled, (sides * scale)[:, :, None], check_errors=False).result
    return solved[:, :, 0] * scale
