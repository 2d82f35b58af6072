"""How the fused kernel is cut and started.

Starting a kernel from Python takes a tenth of a millisecond where it has many arguments, and a pass is made of four. So
passes of a kind that come often are recorded as a CUDA graph, and replayed from copies of the factors.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from lrpca.influence import Levels
from lrpca.kernels import triton_pass, triton_split

# Rows of a chunk over those of a tile: half precision counts to 2048.
_MOST_TILES = 2048
# Rows that are split at a time; numbers by row that are summed at a time, parts at once, and norms.
_SPLIT_ROWS, _SUMMED, _AT_ONCE, _NORMS = 64, 256, 8, 1024
# Passes of a kind before one is recorded, which takes longer than a few of them.
_UNRECORDED = 3
# Numbers that 32 bits can count.
_FAR = 1 << 31
# Bytes at whose multiples tensors begin.
_ALIGNED = 256
# Exponent just below that of the largest number of half precision.
_TOP = 14
_RECORDING = threading.Lock()
# C A, Cᵀ B, counts by row and by column, and the norms.
Sums = tuple[Any, Any, Any, Any, Any]


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
    """What a pass is asked for, besides its numbers: passes of the same kind over a matrix share room and graph."""

    rank: int
    width_A: int
    width_B: int
    shared: bool  # A is R and B is L
    same: bool  # what is cut off is what is not kept
    fast: bool
    energy: bool
    of_kept: bool


class Workspace:
    """Memory for what the kernels of a pass hand over to one another: passes follow each other, and share it."""

    def __init__(self, device: Any) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
        self.generation = 0

    def carve(self, wanted: list[tuple[Any, tuple[int, ...]]]) -> list[Any]:
        """Return tensors of these types and shapes, all in the one piece of memory, which grows if it is too small."""
        lengths = [math.prod(shape) * dtype.itemsize for dtype, shape in wanted]
        places = [0]
        for length in lengths:
            places.append(-(-(places[-1] + length) // _ALIGNED) * _ALIGNED)
        if places[-1] > len(self._buffer):
            device = self._buffer.device
            self.generation += 1
            # The old piece goes first: the two need not be there at a time.
            self._buffer = torch.empty(0, dtype=torch.uint8, device=device)
            self._buffer = torch.empty(places[-1], dtype=torch.uint8, device=device)
        return [
            self._buffer[place : place + length].view(dtype).view(shape)
            for place, length, (dtype, shape) in zip(places, lengths, wanted, strict=False)
        ]


class Launches:
    """The passes over one tensor, for as long as it is worked on."""

    def __init__(self, Y: Any, mask: Any, workspace: Workspace) -> None:
        self._workspace = workspace
        self._Y = Y.view(torch.uint8) if Y.dtype == torch.bool else Y
        self._mask = None if mask is None else mask.view(torch.uint8)
        self._rooms: dict[Kind, _Room] = {}

    def run(
        self, L: Any, R: Any, A: Any, B: Any, level: Levels, *, fast: bool, energy: bool = False, of_kept: bool = False
    ) -> Sums:
        """Return C A, Cᵀ B, the counts by row and column, and the norms; with `of_kept` K A and Kᵀ B, and no counts."""
        shared, same = A is R and B is L, level.keep == level.cutoff
        kind = Kind(L.shape[1], A.shape[1], B.shape[1], shared, same, fast, energy, of_kept)
        # By a power of two, C is brought to just below the largest number of half precision.
        unit = 2.0 ** (_TOP - math.floor(math.log2(level.clip))) if level.clip < math.inf else 1.0
        numbers = torch.tensor([*level, unit], dtype=torch.float32, device="cpu")
        room = self._rooms.get(kind)
        if room is not None:
            return room.run_again((L, R, A, B), numbers)
        for tiles in tiles_for(padded(max(kind.rank, kind.width_A, kind.width_B))):
            try:
                room = _Room(self._Y, self._mask, tiles, kind, self._workspace)
                found = room.run((L, R, A, B), numbers)
            except OutOfResources:
                # Another device, with less shared memory.
                continue
            self._rooms[kind] = room
            return found
        raise RuntimeError(f"device={str(self._Y.device)!r} has too little shared memory; pass Y.cpu()")


class _Room:
    """What the kernels of a pass hand over to one another, and the graph of them."""

    def __init__(self, Y: Any, mask: Any, tiles: Tiles, kind: Kind, workspace: Workspace) -> None:
        self._workspace = workspace
        self._Y, self._mask, self._tiles, self._kind = Y, mask, tiles, kind
        (n1, n2), device = Y.shape, Y.device
        self._widths = padded(kind.width_A), padded(kind.width_B)
        self._strips = -(-n2 // (tiles.columns * tiles.count))
        slots = _multiprocessors(device) * (8 // tiles.warps)
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
        self._wanted = [
            *((residual, (rows, self._width)), (residual, (columns, self._width)), (torch.float32, (1,))),
            *[(torch.float16, (columns, self._widths[0]))] * 2,
            *[(torch.float16, (rows, self._widths[1]))] * 2,
            (torch.float32, (self._strips, n1, self._widths[0])),
            (torch.float32, (self._chunks, n2, self._widths[1])),
            (torch.int32, (self._strips, n1)),
            (torch.int32, (self._chunks, n2)),
            (torch.float32, (3, programs)),
            (torch.int32, (4, self._most)),
        ]
        self._lengths = (n1 * kind.width_A, n2 * kind.width_B, n1, n2, 3)
        across = max(Y.stride(1), 0 if mask is None else mask.stride(1))
        farthest = max(n2 * across, max(rows, columns) * max(self._width, *self._widths))
        self._far = farthest >= _FAR
        self._recorded: _Recorded | None = None
        self._runs = 1

    def run(self, factors: tuple[Any, ...], numbers: Any) -> Sums:
        """Start the kernels one by one."""
        found = self.split_sums(self.empty_sums())
        self.start([factor.contiguous() for factor in factors], self.to_device(numbers), found)
        return found

    def run_again(self, factors: tuple[Any, ...], numbers: Any) -> Sums:
        """Start the kernels once more: after some runs all at once, as they were then recorded."""
        self._runs += 1
        if self._runs <= _UNRECORDED:
            return self.run(factors, numbers)
        # What was recorded before the workspace grew knows the old place.
        if self._recorded is None or self._recorded.generation != self._workspace.generation:
            self._recorded = _Recorded(self, factors, numbers, self._kind.shared)
        return self.split_sums(self._recorded.replay(factors, numbers))

    @property
    def generation(self) -> int:
        """Of the memory that the kernels share."""
        return self._workspace.generation

    def to_device(self, numbers: Any) -> Any:
        """Return numbers on the device."""
        # Without waiting: so few bytes are copied from anywhere before the call returns.
        return numbers.to(self._Y.device, non_blocking=True)

    def empty_sums(self) -> Any:
        """Return one piece of memory for all sums: it is copied in one go."""
        return torch.empty(sum(self._lengths), dtype=torch.float64, device=self._Y.device)

    def split_sums(self, whole: Any) -> Sums:
        """Return the sums that lie one after the other in a piece of memory."""
        CA, CtB, by_row, by_column, norms = whole.split(self._lengths)
        counts = by_row.view(torch.int64), by_column.view(torch.int64)
        (n1, n2), kind = self._Y.shape, self._kind
        return CA.view(n1, kind.width_A), CtB.view(n2, kind.width_B), *counts, norms

    def start(self, factors: list[Any], levels: Any, found: Sums) -> None:
        """Start the kernels one after the other."""
        Y, tiles, kind = self._Y, self._tiles, self._kind
        (n1, n2), r, ka, kb = Y.shape, kind.rank, kind.width_A, kind.width_B
        # Not kept: the memory is to go when the workspace needs a larger piece.
        tensors = self._workspace.carve(self._wanted)
        operands, parts, peaks = tensors[:7], tensors[7:12], tensors[12]
        widths = {"K": self._width, "WA": self._widths[0], "WB": self._widths[1]}
        split = {"HALF": self._is_half, "SPLIT": not kind.fast}
        if r or ka or kb:
            peaks.zero_()
            triton_split.find_peaks[(-(-max(n1, n2) // _SPLIT_ROWS), 4)](
                *(*factors, peaks, n1, n2, r, ka, kb), MOST=self._most, BLOCK=_SPLIT_ROWS
            )
            triton_split.split_factors[(self._row_blocks + self._column_blocks,)](
                *(*factors, peaks, *operands, n1, n2, r, ka, kb, self._row_blocks),
                MOST=self._most,
                **widths,
                **split,
                BLOCK=_SPLIT_ROWS,
            )
        mask, mask_strides = (Y, (0, 0)) if self._mask is None else (self._mask, self._mask.stride())
        triton_pass.strip_pass[(self._strips, self._chunks)](
            *(Y, mask, *operands, *parts, n1, n2, *Y.stride(), *mask_strides, self._chunk_rows, levels),
            **widths,
            BM=tiles.rows,
            BN=tiles.columns,
            TILES=tiles.count,
            **split,
            SAME=kind.same,
            KEPT=kind.of_kept,
            COUNT=not kind.of_kept,
            ENERGY=kind.energy,
            MASKED=self._mask is not None,
            FAR=self._far,
            STAGES=tiles.stages,
            num_warps=tiles.warps,
        )
        rows = _SUMMED // max(8, *self._widths)
        blocks = -(-n1 // rows)
        triton_pass.sum_parts[(blocks + -(-n2 // rows),)](
            *(*parts, peaks, levels, *found, n1, n2, ka, kb, self._strips, self._chunks, blocks),
            MOST=self._most,
            WA=self._widths[0],
            WB=self._widths[1],
            KEPT=kind.of_kept,
            COUNT=not kind.of_kept,
            BLOCK=rows,
            AT_ONCE=_AT_ONCE,
            NORMS=_NORMS,
        )


class _Recorded:
    """The kernels of a pass as a CUDA graph, with its own copies of the factors and levels."""

    def __init__(self, room: _Room, factors: tuple[Any, ...], numbers: Any, shared: bool) -> None:
        # The room is not kept: the two would hold each other, and Y, until someone collects garbage.
        self._shared, self.generation = shared, room.generation
        L, R = (torch.empty_like(factor, memory_format=torch.contiguous_format) for factor in factors[:2])
        A, B = (R, L) if shared else (torch.empty_like(factor).contiguous() for factor in factors[2:])
        self._factors, self._levels, self._sums = (L, R, A, B), room.to_device(numbers), room.empty_sums()
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        # One at a time in a process; other threads may go on working with the device.
        with _RECORDING, torch.cuda.stream(stream):
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                room.start([L, R, A, B], self._levels, room.split_sums(self._sums))
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def replay(self, factors: tuple[Any, ...], numbers: Any) -> Any:
        """Return a copy of the sums, in one piece, for other factors and levels."""
        count = 2 if self._shared else 4
        torch._foreach_copy_(list(self._factors[:count]), list(factors[:count]))
        self._levels.copy_(numbers, non_blocking=True)
        self._graph.replay()
        return self._sums.clone()


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
    # TF32 numbers need no scale, but twice the room.
    return needed > 16, max(16, 1 << (needed - 1).bit_length())


@lru_cache
def _multiprocessors(device: Any) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
