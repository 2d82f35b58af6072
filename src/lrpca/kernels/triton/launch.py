"""How the fused kernel is cut and started.

A pass is four kernels, and Triton takes long to look up the compiled form of one with forty arguments. So what follows
from the form of a matrix and the kind of a pass is kept for the next call: cuts, memory and compiled kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
from triton.runtime.errors import OutOfResources

from lrpca.core.influence import Levels
from lrpca.kernels.triton import fused_pass as triton_pass
from lrpca.kernels.triton import split as triton_split

# Rows of a chunk over those of a tile: half precision counts to 2048.
_MOST_TILES = 2048
# Rows that are split at a time; numbers by row that are summed at a time, parts at once, and norms.
_SPLIT_ROWS, _SUMMED, _AT_ONCE, _NORMS = 64, 256, 8, 1024
# Numbers that 32 bits can count.
_FAR = 1 << 31
# Bytes at whose multiples tensors begin.
_ALIGNED = 256
# Largest moduli of the columns of four factors, of 64 columns at most.
_MOST_PEAKS = 4 * 64
# Tensors that hold the factors as they are multiplied, before those of partial sums.
_OPERANDS = 7
# Exponent just below that of the largest number of half precision.
_TOP = 14
# Forms of passes that are remembered.
_REMEMBERED = 256
# Compiled kernels depend on which arguments begin at multiples of so many bytes.
_SPECIALISED_FOR = 16
# Since this version compiled kernels are started with all arguments, constants too.
_TAKES_CONSTANTS = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 3)
# C A, Cᵀ B, counts by row and by column, and the norms.
Sums = tuple[Any, Any, Any, Any, Any]


class Kernel:
    """A kernel with its grid and constants: compiled when it is first started, for arguments with the same alignment.

    From one start to the next tensors may change, floats, and integers that Triton was told not to specialise for;
    everything else that compiled code depends on has to stay: number types, other integers, the device.
    """

    def __init__(self, function: Any, grid: tuple[int, int, int], constants: dict[str, Any], **settings: Any) -> None:
        self._function, self._grid, self._settings = function, grid, settings
        self._constants = {name: constants[name] for name in function.arg_names if name in constants}
        self._compiled: dict[tuple[bool, ...], Any] = {}

    @staticmethod
    def alignment(tensors: tuple[Any, ...]) -> tuple[bool, ...]:
        """Return which tensors begin at multiples of sixteen bytes, on which compiled kernels depend."""
        return tuple(tensor.data_ptr() % _SPECIALISED_FOR == 0 for tensor in tensors)

    def is_compiled_for(self, aligned: tuple[bool, ...]) -> bool:
        """Tell whether it was started before with arguments that are aligned so."""
        return aligned in self._compiled

    def start(self, aligned: tuple[bool, ...], *arguments: Any) -> None:
        """Start it with tensors, or with addresses if it is compiled.

        `aligned` tells which of the arguments that change from call to call are aligned, see `alignment`.
        """
        compiled = self._compiled.get(aligned)
        if compiled is not None:
            compiled(*arguments, *self._constants.values())
            return
        found = self._function[self._grid](*arguments, **self._constants, **self._settings)
        if _TAKES_CONSTANTS and found is not None:
            self._compiled[aligned] = found[self._grid]


@dataclass(frozen=True)
class Tiles:
    """How a pass is cut: tiles of (rows, columns), so many of them side by side, for so many warps."""

    rows: int
    columns: int
    count: int
    warps: int
    stages: int


# The first of which a device has enough shared memory is taken.
_NARROW = (Tiles(64, 64, 2, 4, 3), Tiles(64, 64, 2, 4, 2), Tiles(64, 64, 1, 4, 2), Tiles(32, 32, 1, 2, 2))
_WIDE = (Tiles(32, 32, 4, 2, 3), Tiles(32, 32, 2, 2, 2), Tiles(32, 32, 1, 2, 2))
_WIDER = (Tiles(64, 64, 1, 4, 2), Tiles(32, 64, 1, 4, 2), Tiles(32, 32, 1, 2, 2))
_WIDEST = (Tiles(32, 64, 1, 4, 2), Tiles(32, 32, 1, 2, 2))


def tiles_for(width: int) -> tuple[Tiles, ...]:
    """Return how to cut a pass with factors of a width, the best first."""
    return _NARROW if width <= 8 else _WIDE if width <= 16 else _WIDER if width <= 32 else _WIDEST


def padded(width: int) -> int:
    """Return how many columns a factor has for the kernel."""
    return 0 if width == 0 else max(8, 1 << (width - 1).bit_length())


@dataclass(frozen=True)
class Kind:
    """What a pass computes, besides its numbers: passes of the same kind over a matrix share memory and kernels."""

    rank: int
    width_A: int
    width_B: int
    same: bool  # what is cut off is what is not kept
    fast: bool
    energy: bool
    of_kept: bool


class _Layout:
    """Tensors of some types and shapes, one after the other in a piece of memory."""

    def __init__(self, wanted: list[tuple[Any, tuple[int, ...]]]) -> None:
        self.wanted, self.places = wanted, []
        self.length = 0
        for dtype, shape in wanted:
            self.places.append(self.length)
            self.length += -(-math.prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED


class Workspace:
    """Memory for what the kernels of a pass hand over to one another: passes follow each other, and share it."""

    def __init__(self, device: Any) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self.generation = 0
        # Largest moduli are found by raising zeros. Every pass clears what the next one raises, and they are swapped.
        self.peaks = [torch.zeros(_MOST_PEAKS, dtype=torch.int32, device=device) for _ in range(2)]

    def grow_to(self, length: int) -> None:
        """Have at least so many bytes."""
        if length > len(self._buffer):
            device = self._buffer.device
            self.generation += 1
            # The old piece goes first: the two need not be there at a time.
            self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
            self._buffer = torch.empty(length, dtype=torch.uint8, device=device)

    def address(self) -> int:
        """Return where the memory begins; it moves when it grows."""
        return int(self._buffer.data_ptr())

    def tensors(self, layout: _Layout) -> list[Any]:
        """Return the memory as tensors."""
        return [
            self._buffer[place : place + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for place, (dtype, shape) in zip(layout.places, layout.wanted, strict=True)
        ]


class Launches:
    """The passes over one tensor, for as long as it is worked on."""

    def __init__(self, Y: Any, mask: Any, workspace: Workspace) -> None:
        self._workspace = workspace
        self._Y = Y.view(torch.uint8) if Y.dtype == torch.bool else Y
        self._mask = None if mask is None else mask.view(torch.uint8)
        self._passes: dict[Kind, _BoundPass] = {}

    def run(
        self, L: Any, R: Any, A: Any, B: Any, level: Levels, *, fast: bool, energy: bool = False, of_kept: bool = False
    ) -> Sums:
        """Return C A, Cᵀ B, the counts by row and column, and the norms; with `of_kept` K A and Kᵀ B, and no counts."""
        kind = Kind(L.shape[1], A.shape[1], B.shape[1], level.keep == level.cutoff, fast, energy, of_kept)
        factors = tuple(factor.contiguous() for factor in (L, R, A, B))
        bound = self._passes.get(kind)
        if bound is not None:
            return bound.run(factors, level)
        for tiles in tiles_for(padded(max(kind.rank, kind.width_A, kind.width_B))):
            try:
                plan = _plan(_Form.of(self._Y, self._mask), kind, tiles)
                bound = _BoundPass(plan, self._Y, self._mask, self._workspace)
                found = bound.run(factors, level)
            except OutOfResources:
                # Another device, with less shared memory.
                continue
            self._passes[kind] = bound
            return found
        raise RuntimeError(f"device={str(self._Y.device)!r} has too little shared memory; pass Y.cpu()")


class _Arguments(NamedTuple):
    """What the kernels of a pass are given besides numbers: tensors, or their addresses."""

    factors: Any  # L, R, A, B
    matrix: Any  # Y, and its mask or Y again
    operands: Any  # the factors as they are multiplied
    parts: Any  # partial sums
    peaks: Any  # largest moduli, and those of the next pass, to be cleared


@dataclass(frozen=True)
class _Form:
    """All of a matrix and its mask that decides how kernels are cut and compiled."""

    shape: tuple[int, int]
    strides: tuple[int, int]
    mask_strides: tuple[int, int] | None
    dtype: Any
    device: Any
    aligned: tuple[bool, ...]

    @classmethod
    def of(cls, Y: Any, mask: Any) -> _Form:
        """Return the form of a matrix and its mask, or None."""
        aligned = Kernel.alignment((Y,) if mask is None else (Y, mask))
        mask_strides = None if mask is None else mask.stride()
        return cls(tuple(Y.shape), Y.stride(), mask_strides, Y.dtype, Y.device, aligned)


@lru_cache(maxsize=_REMEMBERED)
def _plan(form: _Form, kind: Kind, tiles: Tiles) -> _Plan:
    return _Plan(form, kind, tiles)


class _Plan:
    """How a kind of pass over matrices of a form is cut, its kernels, and the memory they share."""

    def __init__(self, form: _Form, kind: Kind, tiles: Tiles) -> None:
        self._kind, self._factor_widths = kind, (kind.rank, kind.width_A, kind.width_B)
        n1, n2 = self._shape = form.shape
        self._mask_strides = form.mask_strides or (0, 0)
        self._numbers = (n1, n2, *form.strides, *self._mask_strides)
        self._widths = padded(kind.width_A), padded(kind.width_B)
        self._strips = -(-n2 // (tiles.columns * tiles.count))
        slots = _multiprocessors(form.device) * (8 // tiles.warps)
        self._chunk_rows = _chunk_rows(n1, self._strips, tiles.rows, slots)
        self._chunks = -(-n1 // self._chunk_rows)
        self._is_half, self._width = _residual_form(kind.rank, kind.fast)
        # The last tiles reach beyond the edges; factors are zero there.
        rows = self._chunks * self._chunk_rows + tiles.rows
        columns = self._strips * tiles.columns * tiles.count
        self._row_blocks, self._column_blocks = -(-rows // _SPLIT_ROWS), -(-columns // _SPLIT_ROWS)
        rows, columns = self._row_blocks * _SPLIT_ROWS, self._column_blocks * _SPLIT_ROWS

        residual = torch.float16 if self._is_half else torch.float32
        self._most = padded(max(8, kind.rank, *self._widths))
        programs = self._strips * self._chunks
        wanted = [
            *((residual, (rows, self._width)), (residual, (columns, self._width)), (torch.float32, (1,))),
            *[(torch.float16, (columns, self._widths[0]))] * 2,
            *[(torch.float16, (rows, self._widths[1]))] * 2,
            (torch.float32, (self._strips, n1, self._widths[0])),
            (torch.float32, (self._chunks, n2, self._widths[1])),
            (torch.int32, (self._strips, n1)),
            (torch.int32, (self._chunks, n2)),
            (torch.float32, (3, programs)),
        ]
        self.layout = _Layout(wanted)
        self._lengths = (n1 * kind.width_A, n2 * kind.width_B, n1, n2, 3)
        across = max(form.strides[1], self._mask_strides[1])
        farthest = max(n2 * across, max(rows, columns) * max(self._width, *self._widths))
        self._kernels = self._cut_kernels(tiles, form.mask_strides is not None, farthest >= _FAR)

    def _cut_kernels(self, tiles: Tiles, masked: bool, far: bool) -> tuple[Kernel, Kernel, Kernel, Kernel]:
        """Return the kernels that find the peaks of factors, split these, make the pass, and add its parts."""
        (n1, n2), kind = self._shape, self._kind
        widths = {"WA": self._widths[0], "WB": self._widths[1]}
        most = {"MOST": self._most}
        split = {"K": self._width, "HALF": self._is_half, "SPLIT": not kind.fast}
        counted = {"KEPT": kind.of_kept, "COUNT": not kind.of_kept}
        passing = {
            **{"BM": tiles.rows, "BN": tiles.columns, "TILES": tiles.count, "STAGES": tiles.stages},
            **{"SAME": kind.same, "ENERGY": kind.energy, "MASKED": masked, "FAR": far},
        }
        rows = _SUMMED // max(8, *self._widths)
        self._summed_blocks = -(-n1 // rows)
        blocks = self._summed_blocks + -(-n2 // rows)
        summing = {"BLOCK": rows, "AT_ONCE": _AT_ONCE, "NORMS": _NORMS, "PEAKS": _MOST_PEAKS}
        peak_blocks, split_blocks = -(-max(n1, n2) // _SPLIT_ROWS), self._row_blocks + self._column_blocks
        return (
            Kernel(triton_split.find_peaks, (peak_blocks, 4, 1), most | {"BLOCK": _SPLIT_ROWS}),
            Kernel(triton_split.split_factors, (split_blocks, 1, 1), most | widths | split | {"BLOCK": _SPLIT_ROWS}),
            Kernel(
                triton_pass.strip_pass,
                (self._strips, self._chunks, 1),
                widths | split | counted | passing,
                num_warps=tiles.warps,
            ),
            Kernel(triton_pass.sum_parts, (blocks, 1, 1), most | widths | counted | summing),
        )

    def is_compiled_for(self, aligned: tuple[bool, ...]) -> bool:
        """Tell whether all kernels are compiled for factors that are aligned so, and can be given addresses."""
        find_peaks, split_factors, strip_pass, sum_parts = self._kernels
        factors = (find_peaks, split_factors) if any(self._factor_widths) else ()
        return all(kernel.is_compiled_for(aligned) for kernel in factors) and all(
            kernel.is_compiled_for(()) for kernel in (strip_pass, sum_parts)
        )

    def read(self, aligned: tuple[bool, ...], given: _Arguments, level: list[float], unit: float) -> None:
        """Start what reads Y, with tensors, or with their addresses if kernels are compiled."""
        (n1, n2), widths = self._shape, self._factor_widths
        find_peaks, split_factors, strip_pass, _ = self._kernels
        factors, matrix, operands, parts, peaks = given
        if any(widths):
            find_peaks.start(aligned, *factors, peaks[0], n1, n2, *widths)
            split_factors.start(aligned, *factors, peaks[0], *operands, n1, n2, *widths, self._row_blocks)
        strip_pass.start((), *matrix, *operands, *parts, *self._numbers, self._chunk_rows, *level, unit)

    def add_up(self, given: _Arguments, sums: Any, unit: float) -> None:
        """Start what adds the parts up."""
        *_, sum_parts = self._kernels
        counts = (self._strips, self._chunks, self._summed_blocks)
        sum_parts.start((), *given.parts, *given.peaks, *sums, *self._shape, *self._factor_widths[1:], *counts, unit)

    def empty_sums(self, device: Any) -> Sums:
        """Return memory for all sums, in one piece."""
        whole = torch.empty(sum(self._lengths), dtype=torch.float64, device=device)
        CA, CtB, by_row, by_column, norms = whole.split(self._lengths)
        (n1, n2), kind = self._shape, self._kind
        counts = by_row.view(torch.int64), by_column.view(torch.int64)
        return CA.view(n1, kind.width_A), CtB.view(n2, kind.width_B), *counts, norms


class _BoundPass:
    """A kind of pass over one matrix: all arguments of its kernels, but for the factors, the levels and the sums."""

    def __init__(self, plan: _Plan, Y: Any, mask: Any, workspace: Workspace) -> None:
        self._plan, self._Y, self._mask, self._workspace = plan, Y, mask, workspace
        self._bind()

    def _bind(self) -> None:
        """Look up where the memory is: it moves when the workspace grows."""
        layout, workspace = self._plan.layout, self._workspace
        workspace.grow_to(layout.length)
        self._generation, first = workspace.generation, workspace.address()
        self._memory = [first + place for place in layout.places]
        self._matrix = self._Y, self._Y if self._mask is None else self._mask
        self._addresses = _addresses(self._matrix)

    def run(self, factors: tuple[Any, ...], level: Levels) -> Sums:
        """Start the kernels one after the other; what they leave is there when the device has done its work."""
        plan, workspace = self._plan, self._workspace
        if self._generation != workspace.generation:
            self._bind()
        peaks = tuple(workspace.peaks)
        # By a power of two, C is brought to just below the largest number of half precision.
        unit = 2.0 ** (_TOP - math.floor(math.log2(level.clip))) if level.clip < math.inf else 1.0
        aligned = Kernel.alignment(factors)
        is_compiled = plan.is_compiled_for(aligned)
        if is_compiled:
            memory, (given, at) = self._memory, (_addresses(x) for x in (factors, peaks))
            arguments = _Arguments(given, self._addresses, memory[:_OPERANDS], memory[_OPERANDS:], at)
        else:
            # Triton compiles for the tensors themselves.
            tensors = workspace.tensors(plan.layout)
            arguments = _Arguments(factors, self._matrix, tensors[:_OPERANDS], tensors[_OPERANDS:], peaks)
        try:
            # Floats, whatever they are: for whole numbers Triton would compile kernels of their own.
            plan.read(aligned, arguments, [float(number) for number in level], unit)
            # The device is at work: what it does not need yet is made meanwhile.
            found = plan.empty_sums(self._Y.device)
            plan.add_up(arguments, _addresses(found) if is_compiled else found, unit)
        except BaseException:
            for raised in peaks:
                raised.zero_()
            raise
        workspace.peaks.reverse()
        return found


def _addresses(tensors: tuple[Any, ...]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


@lru_cache
def _chunk_rows(n1: int, strips: int, tile_rows: int, slots: int) -> int:
    """Return how many rows a program takes, so that all programs end at about the same time."""
    tiles = -(-n1 // tile_rows)
    best = min(
        range(1, min(tiles, 64) + 1),
        # Rounds of programs times their length, and a little for the sums that every chunk leaves.
        key=lambda chunks: (-(-strips * chunks // slots) * (-(-tiles // chunks) + 2), chunks),
    )
    return min(-(-tiles // best), _MOST_TILES) * tile_rows


def _residual_form(rank: int, fast: bool) -> tuple[bool, int]:
    """Return whether the product of the residual is one of half precision, rather than TF32, and its width."""
    if rank == 0:
        return False, 0
    needed = rank if fast else 3 * rank
    # TF32 numbers need no scale, but twice the memory.
    return needed > 16, max(16, 1 << (needed - 1).bit_length())


@lru_cache
def _multiprocessors(device: Any) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
