"""Zarr stores that are filled block by block under a temporary name, and renamed when they are complete."""

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

from lrpca.core.extras import require
from lrpca.decomposition.file import DIAGNOSIS_ARRAYS
from lrpca.files.atomic import remove, replacing
from lrpca.matrices.chunked.grid import Grid, Place

# Entries of a chunk of coordinates.
_ENTRIES = 1 << 20
# Seconds that zarr has to finish its tasks.
_PATIENCE = 30
# All names in a store of ours, or in a chunked array of one.
_MEMBERS = frozenset(
    (
        *("zarr.json", "c", "row", "column", "value", "L", "R", "outlier_threshold", "singular_values"),
        *("sparse", "low_rank", *DIAGNOSIS_ARRAYS),
    )
)


class Coordinates:
    """Three arrays that grow by whole chunks, so that nothing is written twice.

    `work` is the function of a block of Y, `result_bytes` the largest number of bytes of its result per entry so far.
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
        self.result_bytes = 0.0
        self._buffer: list[tuple[Any, ...]] = []
        self._held = self._stored = 0

    def take(self, place: Place, entries: tuple[Any, ...]) -> None:
        """Take the outliers of the next block: (rows, columns, values)."""
        size = sum(numbers.nbytes for numbers in entries)
        self.result_bytes = max(self.result_bytes, size / math.prod(place.shape))
        if len(entries[0]):
            self._buffer.append(entries)
        self._held += len(entries[0])
        self._flush(self._held // _ENTRIES * _ENTRIES)

    def finish(self) -> None:
        """Write the rest of the buffer, and the number of outliers."""
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
    """One array; its blocks are written where they are computed, if no two of them share a chunk.

    `work` and `result_bytes` are as in `Coordinates`.
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
        self.result_bytes = 0.0
        self._entries: int | None = None

    def take(self, place: Place, result: tuple[int | None, Any]) -> None:
        """Take the next block: its number of outliers, if known, and its values if they are not written yet."""
        count, block = result
        if block is not None:
            self._array[place.rows, place.columns] = block
            self.result_bytes = float(block.itemsize)
        if count is not None:
            self._entries = (self._entries or 0) + count

    def finish(self) -> None:
        """Write the number of outliers, if it is known."""
        if self._entries is not None:
            self._array.update_attributes({"entries": self._entries})


def require_zarr() -> Any:
    """Return zarr, or raise an ImportError if it is not installed."""
    return require("zarr", "dask", "writing and reading zarr stores needs zarr")


def attributes_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the attributes of the zarr group or array at a path; none if there is no such thing."""
    import zarr

    if not Path(path).is_dir():
        return {}
    try:
        return dict(zarr.open(os.fspath(path), mode="r").attrs)
    except Exception:  # no store, or a damaged one
        return {}


@contextmanager
def replacing_store(path: str | os.PathLike[str], *, overwrite: bool, form: str) -> Iterator[Path]:
    """Yield a temporary path beside `path` for a store, and rename it on success.

    It replaces only a store of the same format, and only with `overwrite`. If the block raises (an interrupt included),
    what was written is removed and `path` stays as it was.
    """
    check_replaceable(path, overwrite=overwrite, form=form)
    target = Path(os.path.realpath(path))
    aside = target.with_name(f".{secrets.token_hex(6)}")
    try:
        with replacing(path) as staging:
            try:
                yield staging
            except BaseException:
                abandon(staging)
                raise
            # Once more: writing may have taken hours.
            check_replaceable(path, overwrite=overwrite, form=form)
            if target.exists():
                os.rename(target, aside)
    finally:
        if aside.exists() and not target.exists():
            os.rename(aside, target)
        remove(aside)


def abandon(path: Path) -> None:
    """Remove a store of which a part could not be written; zarr's tasks for other parts would make it again."""
    from zarr.core.sync import sync

    async def others() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=_PATIENCE)

    remove(path)
    sync(others())
    remove(path)


def check_replaceable(path: str | os.PathLike[str], *, overwrite: bool, form: str) -> None:
    """Raise OSError if something is at a path that `replacing_store` does not replace, or there is no folder for it."""
    target = Path(path)
    if os.path.lexists(target):
        if attributes_of(target).get("format") != form:
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
