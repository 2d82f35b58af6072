"""Zarr stores that are filled block by block, and say at every moment how far they are filled.

The attributes are written after what they promise: what a full disk or Ctrl-C leaves behind can be read as far as it
goes.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from lrpca.atomic import remove
from lrpca.matrices.grid import Grid, Place

# Entries of a chunk of coordinates.
_ENTRIES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# All that is in a store of ours, or in a chunked array of one.
_MEMBERS = frozenset(
    ("zarr.json", "c", "row", "column", "value", "L", "R", "outlier_threshold", "singular_values", "sparse", "low_rank")
)


class Account:
    """How much of a store is there, in the attributes of a group or array."""

    def __init__(self, node: Any, grid: Grid) -> None:
        self._node, self._grid = node, grid
        self.blocks = len(grid)
        self.written = 0

    def note(self, blocks: int, entries: int | None, *, complete: bool = False) -> None:
        """Write down that so many blocks, with so many outliers, are there."""
        stripes = blocks // len(self._grid.columns)
        rows = self._grid.rows[stripes - 1].stop if stripes else 0
        facts: dict[str, Any] = {"blocks_written": blocks, "rows_written": rows, "complete": complete}
        # All in one go; `attrs.update` would write the file once for every name.
        self._node = self._node.update_attributes(facts if entries is None else facts | {"entries": entries})
        self.written = blocks


class Coordinates:
    """Three arrays that grow by whole chunks, so that nothing that is promised is ever written again.

    Attributes
    ----------
    work : OutlierEntries
        What is to be done to a block of Y.
    bytes_here : float
        Bytes that come of it for each entry of Y, as far as is known.
    """

    def __init__(self, path: str | os.PathLike[str], facts: dict[str, Any], grid: Grid, dtype: Any) -> None:
        import zarr

        from lrpca.matrices.block_work import OutlierEntries

        index = np.dtype(np.int32 if max(facts["shape"]) <= 2**31 else np.int64)
        self.work = OutlierEntries(dtype, index)
        group: Any = zarr.create_group(os.fspath(path), attributes=facts)
        self._arrays = [
            group.create_array(name, shape=(0,), chunks=(_ENTRIES,), dtype=kind)
            for name, kind in (("row", index), ("column", index), ("value", dtype))
        ]
        self.bytes_here = 0.0
        self.account = Account(group, grid)
        self._buffer: list[tuple[Any, ...]] = []
        self._held = self._stored = self._blocks = self._promised = 0
        self._ends: deque[int] = deque()  # how many entries there are with each block that is not promised yet

    def take(self, place: Place, entries: tuple[Any, ...]) -> None:
        """Take the outliers of the next block: (rows, columns, values)."""
        size = sum(numbers.nbytes for numbers in entries)
        self.bytes_here = max(self.bytes_here, size / math.prod(place.shape))
        if len(entries[0]):
            self._buffer.append(entries)
        self._held += len(entries[0])
        self._ends.append(self._stored + self._held)
        if not self._held or self._held >= _ENTRIES:
            self._flush(self._held // _ENTRIES * _ENTRIES)
            self._note()

    def finish(self) -> None:
        """Write what is left, and that it is all."""
        self._flush(self._held)
        self._note(complete=True)

    def break_off(self) -> None:
        """Write what is there, as far as that is possible."""
        with suppress(OSError):
            self._flush(self._held)
            self._note()

    def _flush(self, count: int) -> None:
        """Append the first `count` entries of the buffer to the arrays."""
        if not count:
            return
        joined = tuple(np.concatenate(parts) for parts in zip(*self._buffer, strict=True))
        for array, numbers in zip(self._arrays, joined, strict=True):
            array.resize((self._stored + count,))
            array[self._stored :] = numbers[:count]
        self._stored += count
        self._held -= count
        self._buffer = [tuple(numbers[count:] for numbers in joined)] if self._held else []

    def _note(self, *, complete: bool = False) -> None:
        while self._ends and self._ends[0] <= self._stored:
            self._promised = self._ends.popleft()
            self._blocks += 1
        self.account.note(self._blocks, self._promised, complete=complete)


class Dense:
    """One array; its blocks are written where they are made, if no two of them share a chunk.

    Attributes
    ----------
    work : WriteOutliers
        What is to be done to a block of Y.
    bytes_here : float
        Bytes that come of it for each entry of Y, as far as is known.
    """

    def __init__(
        self, path: str | os.PathLike[str], facts: dict[str, Any], grid: Grid, dtype: Any, chunks: tuple[int, int]
    ) -> None:
        import zarr

        from lrpca.matrices.block_work import WriteOutliers

        token = secrets.token_hex(8)
        self._array: Any = zarr.create_array(
            os.fspath(path),
            shape=tuple(facts["shape"]),
            chunks=chunks,
            dtype=dtype,
            attributes=facts | {"token": token},
        )
        apart = all(
            cut.start % size == 0 for cuts, size in zip((grid.rows, grid.columns), chunks, strict=True) for cut in cuts
        )
        self.work = WriteOutliers(dtype, os.path.abspath(path) if apart else None, token)
        self.bytes_here = 0.0
        self.account = Account(self._array, grid)
        self._entries: int | None = None

    def take(self, place: Place, result: tuple[int | None, Any]) -> None:
        """Take the next block: how many outliers it has, if that is known, and its numbers if not written yet."""
        count, block = result
        if block is not None:
            self._array[place.rows, place.columns] = block
            self.bytes_here = float(block.itemsize)
        if count is not None:
            self._entries = (self._entries or 0) + count
        self.account.note(self.account.written + 1, self._entries)

    def finish(self) -> None:
        """Write down that this is all."""
        self.account.note(self.account.blocks, self._entries, complete=True)

    def break_off(self) -> None:
        """Do nothing: every block is noted when it comes."""


class Watch:
    """Knows the store that is being written."""

    store: Coordinates | Dense | None = None


@contextmanager
def breaking_off(path: str | os.PathLike[str], what: str) -> Iterator[Watch]:
    """Say how far it got where writing breaks off."""
    watch = Watch()
    try:
        yield watch
    except BaseException as error:
        if watch.store is None:
            if isinstance(error, OSError) and error.errno:  # of the system, not in our form
                raise OSError(
                    f"path={os.fspath(path)!r} cannot be written ({error.strerror or error}); choose another place or "
                    "make room"
                ) from error
            raise
        watch.store.break_off()
        account = watch.store.account
        state = f"path={os.fspath(path)!r} holds {account.written} of {account.blocks} blocks of {what}"
        if not isinstance(error, OSError):
            error.add_note(state)
            raise
        full = error.errno in _FULL
        # One of ours has advice of its own.
        cause = error.strerror or str(error).rpartition(";")[0] or str(error)
        advice = (
            "make room and call again with overwrite=True (--force)"
            if full
            else "mend that and call again with overwrite=True (--force)"
        )
        raise OSError(f"{state} ({cause}); {advice}") from error


def check_zarr() -> None:
    """Raise where zarr is not installed."""
    try:
        import zarr  # noqa: F401
    except ImportError:
        raise ImportError("writing and reading zarr stores needs zarr; pip install lrpca[dask]") from None


def attributes_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the attributes of the zarr group or array at a path; empty where none is there."""
    import zarr

    if not Path(path).is_dir():
        return {}
    try:
        return dict(zarr.open(os.fspath(path), mode="r").attrs)
    except Exception:  # no store, or a damaged one: nothing that is known
        return {}


def make_way(path: str | os.PathLike[str], *, overwrite: bool, formats: tuple[str, ...]) -> None:
    """Remove a store that is to be replaced; raise where something is in the way that is not to be.

    Parameters
    ----------
    path : str or path-like
    overwrite : bool
        Whether a store of one of these formats may be replaced. Nothing else ever is.
    formats : tuple of str
    """
    check_way(path, overwrite=overwrite, formats=formats)
    # What a link points to is replaced, not the link.
    remove(Path(os.path.realpath(path)))


def check_way(path: str | os.PathLike[str], *, overwrite: bool, formats: tuple[str, ...]) -> None:
    """Raise where something is at a path that `make_way` would not remove, or where there is no folder for it."""
    target = Path(path)
    if os.path.lexists(target):
        if attributes_of(target).get("format") not in formats:
            raise FileExistsError(f"path={str(target)!r} exists and was not written by this; choose another name")
        if not overwrite:
            raise FileExistsError(
                f"path={str(target)!r} exists; choose another name or overwrite it (overwrite=True, --force)"
            )
        strange = sorted(set(os.listdir(target)) - _MEMBERS)
        if strange:
            raise FileExistsError(
                f"path={str(target)!r} holds {strange[0]!r}, which was not written by this; move it, or choose another "
                "name"
            )
    elif not target.absolute().parent.is_dir():
        raise FileNotFoundError(f"path={str(target)!r} has no folder {str(target.parent)!r} to be in; make it first")
