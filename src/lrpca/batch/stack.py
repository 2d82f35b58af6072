"""The data of the problems at work, on their device: residuals, samples of them, and what a pass over them gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from lrpca.core.devices import rounds_products

# Entries of each problem from which thresholds are read in passes, and at the end.
_SAMPLE, _LAST_SAMPLE = 8192, 32768
# Fewer entries than these of each problem are searched for a value that many share.
_LOOKED_AT = 1024
# A value that this share of the entries has is no measurement, unless it is that of most of them.
_COMMON, _MAJORITY = 0.1, 0.5
# Entries that are multiplied in double precision at a time.
_PIECE = 1 << 24
# From this rank on products are left to the library.
_BY_COMPONENT = 4

Rows = TypeVar("Rows", bound="Table")


@dataclass
class Table:
    """Tensors of which the first axis counts problems (or None)."""

    def only(self: Rows, chosen: Any) -> Rows:
        """Return the same of some problems, by index or by a boolean tensor."""
        return replace(self, **{name: value[chosen] for name, value in vars(self).items() if torch.is_tensor(value)})

    def on_cpu(self: Rows) -> Rows:
        """Return the same on the CPU."""
        return replace(self, **{name: value.cpu() for name, value in vars(self).items() if torch.is_tensor(value)})


@dataclass
class Stack(Table):
    """Problems at work: Y with zeros where it is missing."""

    Y: Any  # (b, n1, n2) float32 or float64
    observed: Any  # (b, n1, n2) bool, or None where nothing is missing
    by_row: Any  # (b, n1) float64: observed entries
    by_column: Any  # (b, n2) float64
    norm: Any  # (b,) float64
    common: Any  # (b,) a value that many entries share, NaN where there is none
    typical: Any  # (b,) float64: median|Y| of the others

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of each problem."""
        return self.Y.shape[1], self.Y.shape[2]

    @property
    def share(self) -> Any:
        """Observed fraction, (b,)."""
        return self.by_row.sum(dim=1) / math.prod(self.shape)

    def is_in_range(self) -> Any:
        """Return which problems have typical numbers that can be squared, and any but zeros, (b,)."""
        low, high = (1e-12, 1e12) if self.Y.dtype == torch.float32 else (1e-130, 1e130)
        return (self.typical > low) & (self.typical < high) & torch.isfinite(self.norm)

    def residual(self, L: Any, R: Any) -> Any:  # (b, n1, r); (b, n2, r)
        """Return Y - L Rᵀ, zero where Y is missing."""
        L, R = L.to(self.Y.dtype), R.to(self.Y.dtype)
        # Where torch may round products (TF32), the residual must not be one.
        if L.shape[2] < _BY_COMPONENT or rounds_products(self.Y.device):
            D = torch.addcmul(self.Y, L[:, :, :1], R[:, None, :, 0], value=-1)
            for k in range(1, L.shape[2]):
                D.addcmul_(L[:, :, k : k + 1], R[:, None, :, k], value=-1)
        else:
            D = torch.baddbmm(self.Y, L, R.transpose(1, 2), alpha=-1)
        return D if self.observed is None else D.mul_(self.observed)

    def sampled(
        self,
        D: Any,  # (b, n1, n2)
        *,
        last: bool = False,
    ) -> tuple[Any, Any]:
        """Return some entries of an array like Y, (b, m), and which of them tell of the noise (None: all)."""
        step = _stride(self.shape, _LAST_SAMPLE if last else _SAMPLE)
        flat = self.Y.flatten(1)[:, ::step]
        tells = None if self.observed is None else self.observed.flatten(1)[:, ::step]
        if bool((self.common == self.common).any()):
            other = flat != self.common[:, None]
            tells = other if tells is None else tells & other
        return D.flatten(1)[:, ::step], tells


def load(stack: Any, mask: Any, dtype: Any) -> Stack:  # (b, n1, n2); (b, n1, n2) bool, or None
    """Return problems as floats with zeros where they are missing; infinite entries are left as they are."""
    Y = stack.to(dtype).contiguous()
    observed = None
    if mask is not None or (stack.is_floating_point() and bool(torch.isnan(Y).any())):
        observed = Y == Y if mask is None else (Y == Y) & mask
        Y = torch.where(observed, Y, 0.0)
    b, n1, n2 = Y.shape
    if observed is None:
        by_row, by_column = Y.new_full((b, n1), n2, dtype=torch.float64), Y.new_full((b, n2), n1, dtype=torch.float64)
    else:
        by_row, by_column = observed.sum(dim=2).double(), observed.sum(dim=1).double()
    norm = torch.linalg.vector_norm(Y, dim=(1, 2), dtype=torch.float64)
    blank = torch.full_like(norm, math.nan)
    found = Stack(Y, observed, by_row, by_column, norm, blank.to(dtype), blank)
    values, tells = found.sampled(Y)
    found.common = _common_values(values, tells)
    values, tells = found.sampled(Y)
    sizes = values.abs() if tells is None else torch.where(tells, values.abs(), math.nan)
    found.typical = medians(sizes)[:, 0].double()
    return found


def _stride(shape: tuple[int, int], size: int) -> int:
    """Return the step of a sample of about that many entries that comes by every column."""
    n1, n2 = shape
    step = max(1, n1 * n2 // size)
    while math.gcd(step, n2) > 1:
        step += 1
    return step


def _common_values(values: Any, observed: Any) -> Any:  # (b, m); (b, m) bool, or None
    """Return the value of each problem that many entries share, NaN where there is none: a black border, zeros."""
    step = max(1, values.shape[1] // _LOOKED_AT)
    some = values[:, ::step]
    there = None if observed is None else observed[:, ::step]
    # NaN is sorted to the end, and is equal to nothing.
    ordered = (some if there is None else torch.where(there, some, math.nan)).sort(dim=1).values
    m = ordered.shape[1]
    # Half of the share is enough to be counted: the sample is small.
    run = max(2, int(0.5 * _COMMON * m))
    if m <= run:
        return torch.full_like(values[:, 0], math.nan)
    same = ordered[:, run:] == ordered[:, :-run]
    # The longest run: where the value is the same over the most entries to the right.
    first = same.int().argmax(dim=1)
    value = ordered.gather(1, first[:, None])[:, 0]
    entries = torch.full_like(value, values.shape[1]) if observed is None else observed.sum(dim=1).to(value.dtype)
    equal = values == value[:, None] if observed is None else (values == value[:, None]) & observed
    share = equal.sum(dim=1) / torch.clamp(entries, min=1)
    several = ((ordered[:, 1:] != ordered[:, :-1]) & (ordered[:, 1:] == ordered[:, 1:])).sum(dim=1) > 1
    measures = (share > _MAJORITY) & (value != 0)
    return torch.where(same.any(dim=1) & several & (share >= _COMMON) & ~measures, value, math.nan)


@dataclass
class StackPass(Table):
    """What one read of the problems gives; see `lrpca.core.passes.Pass`."""

    CA: Any  # (b, n1, r) float64
    CtB: Any  # (b, n2, r) float64
    kept_by_row: Any  # (b, n1) float64
    kept_by_column: Any  # (b, n2) float64
    norm_C: Any  # (b,) float64
    row_grams: Any = None  # (b, n1, r, r) float64, when asked
    column_grams: Any = None  # (b, n2, r, r) float64, when asked


def run_pass(
    stack: Stack,
    D: Any,  # (b, n1, n2) residuals, changed
    L: Any,  # (b, n1, r)
    R: Any,  # (b, n2, r)
    clip: Any,  # (b,)
    cutoff: Any,  # (b,)
    *,
    grams: bool,
) -> StackPass:
    """Return the products of C = ψ(D) with the factors, counts of kept entries and, when asked, their Grams."""
    dtype = D.dtype
    L, R = L.to(dtype), R.to(dtype)
    clip, cutoff = (level.to(dtype)[:, None, None] for level in (clip, cutoff))
    kept = D.abs() <= cutoff
    if stack.observed is not None:
        kept &= stack.observed
    weight = kept.to(dtype)
    C = torch.clamp(D, min=-clip, max=clip, out=D).mul_(weight)
    CA, CtB = _products(C, R), _products(C.transpose(1, 2), L)
    norm = torch.linalg.vector_norm(C, dim=(1, 2), dtype=torch.float64)
    sides = [torch.cat([_pairs(M) if grams else M[:, :, :0], torch.ones_like(M[:, :, :1])], dim=2) for M in (R, L)]
    rows, columns = _products(weight, sides[0]), _products(weight.transpose(1, 2), sides[1])
    result = StackPass(CA, CtB, rows[:, :, -1], columns[:, :, -1], norm)
    if grams:
        result.row_grams, result.column_grams = _unpacked(rows, L.shape[2]), _unpacked(columns, L.shape[2])
    return result


def medians(values: Any) -> Any:  # (b, m), NaN where there is none
    """Return the median of every row, the lower one of two, (b, 1)."""
    if not torch.are_deterministic_algorithms_enabled():
        return torch.nanmedian(values, dim=1, keepdim=True).values
    # Where its user asks torch for the same bits, it refuses its own medians on a GPU. NaN is sorted to the end.
    count = (~torch.isnan(values)).sum(dim=1, keepdim=True)
    return values.sort(dim=1).values.gather(1, torch.clamp(count - 1, min=0) // 2)


def pieces(count: int, entries: int, most: int) -> list[slice]:
    """Return slices of `count` problems of so many entries, which have about `most` together."""
    step = max(1, most // entries)
    return [slice(first, min(count, first + step)) for first in range(0, count, step)]


def _products(M: Any, N: Any) -> Any:  # (b, n, m); (b, m, k)
    """Return every M N as float64, in full precision, whatever torch is allowed to round."""
    if not rounds_products(M.device):
        return torch.bmm(M, N).double()
    parts = pieces(len(M), M.shape[1] * M.shape[2], _PIECE)
    return torch.cat([torch.bmm(M[part].double(), N[part].double()) for part in parts])


def _pairs(M: Any) -> Any:  # (b, n, r)
    """Return the products of two columns, (b, n, r (r + 1) / 2)."""
    k, h = torch.triu_indices(M.shape[2], M.shape[2], device=M.device)
    return M[:, :, k] * M[:, :, h]


def _unpacked(packed: Any, rank: int) -> Any:  # (b, n, r (r + 1) / 2 + 1)
    k, h = torch.triu_indices(rank, rank, device=packed.device)
    full = packed.new_empty(*packed.shape[:2], rank, rank)
    full[:, :, k, h] = packed[:, :, :-1]
    full[:, :, h, k] = packed[:, :, :-1]
    return full
