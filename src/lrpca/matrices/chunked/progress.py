"""How far reading has come: blocks of the present round, and bytes since the beginning."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """The progress of a round over the blocks.

    Attributes
    ----------
    round : int
        Number of the round, from 1: a pass over Y, or a read of some of its blocks.
    done, blocks : int
        Blocks of this round that are done, and how many it has.
    bytes : int
        Bytes read since the beginning, as they are in memory.
    seconds : float
        Time since the first block.
    """

    round: int
    done: int
    blocks: int
    bytes: int
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Mean speed since the beginning."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


class Meter:
    """A counter of blocks and bytes, which reports every change to `tell`."""

    def __init__(self, tell: Callable[[Reading], object] | None = None) -> None:
        self._tell = tell
        self._round = self._done = self._blocks = self._bytes = 0
        self._began: float | None = None

    def begin(self, blocks: int) -> None:
        """Start a round over so many blocks."""
        if self._began is None:
            self._began = time.perf_counter()
        self._round, self._done, self._blocks = self._round + 1, 0, blocks

    def advance(self, size: int) -> None:
        """Note that a block of `size` bytes is done."""
        self._done += 1
        self._bytes += size
        if self._tell is not None:
            self._tell(self.now)

    @property
    def now(self) -> Reading:
        """The present progress."""
        seconds = 0.0 if self._began is None else time.perf_counter() - self._began
        return Reading(self._round, self._done, self._blocks, self._bytes, seconds)

    def __getstate__(self) -> dict[str, object]:
        """Drop the callback: it belongs to this process."""
        return self.__dict__ | {"_tell": None}
