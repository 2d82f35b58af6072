"""Zarr stores that are filled block by block, beside the place where they appear when they are whole."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lrpca.decomposition.file import DIAGNOSIS_ARRAYS
from lrpca.files.atomic import remove, replacing
from lrpca.matrices.chunked.grid import Grid, Place

# Entries of a chunk of coordinates.
_ENTRIES = 1 << 20
# Seconds in which zarr has to be done with what it was asked for.
_PATIENCE = 30

# All that is in a store of ours, or in a chunked array of one.
_MEMBERS = frozenset(
    (
        *("zarr.json", "c", "row", "column", "value", "L", "R", "outlier_threshold", "singular_values"),
        *("sparse", "low_rank", *DIAGNOSIS_ARRAYS),
    )
)


class Coordinates:
    """Three arrays that grow by whole chunks, so that nothing is written twice.

    Attributes
    ----------
    work : OutlierEntries
        What is to be done to a block of Y.
    bytes_here : float
        Bytes that come of it for each entry of Y, as far as is known.
    """

    def __init__(self, path: Path, facts: dict[str, Any], dtype: Any) -> None:
        import zarr

        from lrpca.matrices.chunked.block_work import OutlierEntries

        index = np.dtype(np.int32 if max(facts["shape"]) <= 2**31 else np.int64)
        self.work = OutlierEntries(dtype, index)
        self._group: Any = zarr.create_group(os.fspath(path), attributes=facts)
        self._arrays = [
            self._group.create_array(name, shape=(0,), chunks=(_ENTRIES,), dtype=kind)
            for name, kind in (("row", index), ("column", index), ("value", dtype))
        ]
        self.bytes_here = 0.0
        self._buffer: list[tuple[Any, ...]] = []
        self._held = self._stored = 0

    def take(self, place: Place, entries: tuple[Any, ...]) -> None:
        """Take the outliers of the next block: (rows, columns, values)."""
        size = sum(numbers.nbytes for numbers in entries)
        self.bytes_here = max(self.bytes_here, size / math.prod(place.shape))
        if len(entries[0]):
            self._buffer.append(entries)
        self._held += len(entries[0])
        self._flush(self._held // _ENTRIES * _ENTRIES)

    def finish(self) -> None:
        """Write what is left, and how much there is."""
        self._flush(self._held)
        self._group.update_attributes({"entries": self._stored})

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


class Dense:
    """One array; its blocks are written where they are made, if no two of them share a chunk.

    Attributes
    ----------
    work : WriteOutliers
        What is to be done to a block of Y.
    bytes_here : float
        Bytes that come of it for each entry of Y, as far as is known.
    """

    def __init__(self, path: Path, facts: dict[str, Any], grid: Grid, dtype: Any, chunks: tuple[int, int]) -> None:
        import zarr

        from lrpca.matrices.chunked.block_work import WriteOutliers

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
        self._entries: int | None = None

    def take(self, place: Place, result: tuple[int | None, Any]) -> None:
        """Take the next block: how many outliers it has, if that is known, and its numbers if not written yet."""
        count, block = result
        if block is not None:
            self._array[place.rows, place.columns] = block
            self.bytes_here = float(block.itemsize)
        if count is not None:
            self._entries = (self._entries or 0) + count

    def finish(self) -> None:
        """Write down how many outliers there are, if that is known."""
        if self._entries is not None:
            self._array.update_attributes({"entries": self._entries})


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


@contextmanager
def replacing_store(path: str | os.PathLike[str], *, overwrite: bool, formats: tuple[str, ...]) -> Iterator[Path]:
    """Hand out a temporary path beside `path` for a store, which takes the place of what is there when it is whole.

    If the block raises (an interrupt included), what was written is removed and `path` stays as it was.

    Parameters
    ----------
    path : str or path-like
    overwrite : bool
        Whether a store of one of these formats may be replaced. Nothing else ever is.
    formats : tuple of str
    """
    check_way(path, overwrite=overwrite, formats=formats)
    target = Path(os.path.realpath(path))
    aside = target.with_name(f".{secrets.token_hex(6)}")
    try:
        with replacing(path) as staging:
            try:
                yield staging
            except BaseException:
                abandon(staging)
                raise
            # Looked at again: writing may have taken hours.
            check_way(path, overwrite=overwrite, formats=formats)
            if target.exists():
                os.rename(target, aside)
    finally:
        if aside.exists() and not target.exists():
            os.rename(aside, target)
        remove(aside)


def abandon(path: Path) -> None:
    """Remove a store of which a part could not be written: zarr goes on with the others, and would make it anew."""
    from zarr.core.sync import sync

    async def others() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=_PATIENCE)

    # From now on nobody finds it; those who have are waited for.
    remove(path)
    sync(others())
    remove(path)


def check_way(path: str | os.PathLike[str], *, overwrite: bool, formats: tuple[str, ...]) -> None:
    """Raise where something is at a path that `replacing_store` would not replace, or there is no folder for it."""
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
