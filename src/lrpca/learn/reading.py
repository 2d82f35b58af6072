"""Users' matrices, read from arrays or files and checked, and the blocks they are met in.

Nothing is copied as a whole: a file mapped into memory may be larger than that. A block is as large as training needs
and no larger.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.devices import is_tensor
from lrpca.files import read_matrix
from lrpca.matrices.accept import accept
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sparse import SparseMatrix

# Observed entries of a block, and the least side in units of the rank.
_BLOCK, _RANKS = 1 << 16, 8
# Entries that are read at a time.
_READ = 1 << 22
_FINGERPRINT_ENTRIES = 4096


class Block(NamedTuple):
    """Some rows and columns of a matrix."""

    rows: Any  # (m1,) int
    columns: Any  # (m2,) int
    values: Any  # (m1, m2), a copy, in the type of the matrix
    observed: Any  # (m1, m2) bool


@dataclass(frozen=True)
class UserMatrix:
    """A matrix as a user has it, checked.

    Attributes
    ----------
    name : str
        What messages call it.
    values : ndarray (n1, n2)
        As given: of any real type and order, maybe a file mapped into memory.
    mask : ndarray of bool (n1, n2), optional
        Where observed, if NaN does not say so.
    rows, columns : ndarray of int
        Those that have an observed entry.
    share : float
        Observed fraction of their entries.
    """

    name: str
    values: Any
    mask: Any
    rows: Any
    columns: Any
    share: float

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the matrix."""
        n1, n2 = self.values.shape
        return n1, n2

    def cut(self, rank: int, rng: np.random.Generator) -> Block:
        """Return a random block with about 65 536 observed entries, more for large ranks; a small matrix as it is."""
        sides = block_sides((len(self.rows), len(self.columns)), rank, self.share)
        rows, columns = (
            np.sort(rng.choice(indices, side, replace=False))
            for indices, side in zip((self.rows, self.columns), sides, strict=True)
        )
        part = np.ix_(rows, columns)
        values = np.array(self.values[part])
        observed = ~np.isnan(values) if values.dtype.kind == "f" else np.ones(values.shape, bool)
        if self.mask is not None:
            observed &= self.mask[part]
        return Block(rows, columns, values, observed)


def block_sides(shape: tuple[int, int], rank: int, share: float = 1.0) -> tuple[int, int]:
    """Return the sides of the blocks that matrices of a shape are cut into.

    Parameters
    ----------
    shape : tuple of int
    rank : int
    share : float
        Observed fraction; with less of it, blocks are larger.

    Examples
    --------
    >>> block_sides((200, 20800), rank=2), block_sides((795, 27648), rank=2), block_sides((100, 80), rank=2)
    ((200, 327), (256, 256), (100, 80))
    """
    n1, n2 = shape
    entries = math.ceil(max(_BLOCK, (_RANKS * rank) ** 2) / share)
    if n1 * n2 <= entries:
        return n1, n2
    short = min(n1, n2, math.isqrt(entries))
    long = min(max(n1, n2), entries // short)
    return (short, long) if n1 <= n2 else (long, short)


def user_matrix(item: Any, name: str, rank: int) -> UserMatrix:
    """Return a user's array, or the matrix in a file, after all checks.

    Parameters
    ----------
    item : array-like or path-like
    name : str
        What messages are to call it.
    rank : int
        Rank it is to be used with.
    """
    matrix = _accepted(item, name)
    rows, columns = _counts(matrix, name)
    n1, n2 = matrix.shape
    least = min(int((rows > 0).sum()), int((columns > 0).sum()))
    if 2 * rank > least:
        observed = "" if least == min(n1, n2) else " of the rows or columns that have an observed entry"
        raise ValueError(
            f"rank={rank} is above half of min({name}.shape)={least}{observed}; choose at most {least // 2}"
            if least > 1
            else f"{name}.shape={matrix.shape} leaves no rank to choose{observed}; pass at least two rows and columns"
        )
    used = int((rows > 0).sum()) * int((columns > 0).sum())
    return UserMatrix(
        name, matrix.array, matrix.mask, np.flatnonzero(rows), np.flatnonzero(columns), float(rows.sum()) / used
    )


def user_label(item: Any, name: str, matrix: UserMatrix) -> Any:
    """Return the low-rank part (n1, n2) that a user gives for a matrix, after all checks.

    Parameters
    ----------
    item : array-like or path-like
    name : str
        What messages are to call it.
    matrix : UserMatrix
        What it is the low-rank part of.
    """
    X = _accepted(item, name)
    if X.shape != matrix.shape:
        raise ValueError(
            f"{name}.shape={X.shape} differs from {matrix.name}.shape={matrix.shape}; Y and X belong together"
        )
    if X.mask is not None and not X.mask.all():
        raise ValueError(f"{name} has masked entries; a low-rank part has none, fill them in")
    nonzero = False
    for first, block, _ in _row_blocks(X):
        bad = np.argwhere(~np.isfinite(block))
        if len(bad):
            i, j = bad[0]
            raise ValueError(
                f"{name}[{first + i}, {j}]={block[i, j]} is not finite; a low-rank part has no missing entries"
            )
        nonzero |= bool(block.any())
    if not nonzero:
        raise ValueError(f"{name} is all zero, from which nothing can be learned; leave the pair out")
    return X.array


def fingerprint(arrays: Iterable[Any]) -> str:
    """Return a short text that tells arrays from others, by their types, shapes and some of their entries."""
    digest = hashlib.sha256()
    for array in arrays:
        flat = np.linspace(0, array.size - 1, _FINGERPRINT_ENTRIES).astype(np.int64)
        digest.update(f"{array.shape} {array.dtype.str} ".encode())
        digest.update(np.ascontiguousarray(array[np.unravel_index(flat, array.shape)]).tobytes())
    return digest.hexdigest()[:16]


def _accepted(item: Any, name: str) -> DenseMatrix:
    """Return an array or file as a matrix of real numbers; messages name it as the user knows it."""
    if getattr(item, "ndim", 2) == 3:
        raise ValueError(f"{name}.ndim=3 is not 2; pass a list of matrices, e.g. list({name})")
    if is_tensor(item) and item.device.type != "meta":
        # Blocks are cut here, and only they go to a device.
        item = item.detach().cpu()
    try:
        matrix = accept(read_matrix(item) if isinstance(item, str | os.PathLike) else item)
    except (ValueError, TypeError) as error:
        message = str(error)
        # What `accept` says of Y is said of this one.
        own = message[:1] == "Y" and message[1:2] in (".", "=")
        known = f"{name}{message[1:]}".replace(" Y[", f" {name}[") if own else f"{name}: {message}"
        raise type(error)(known) from None
    if isinstance(matrix, SparseMatrix):
        raise TypeError(f"{name}={type(item).__name__} is sparse, which training does not take; pass {name}.toarray()")
    if matrix.stored.kind == "c":
        raise ValueError(f"{name}.dtype={matrix.stored} is complex, which training does not take; pass real data")
    return matrix


def _counts(matrix: DenseMatrix, name: str) -> tuple[Any, Any]:
    """Read the matrix once, and return how many entries of each row and column are observed."""
    n1, n2 = matrix.shape
    by_row, by_column = np.zeros(n1, np.int64), np.zeros(n2, np.int64)
    nonzero = False
    for first, block, mask in _row_blocks(matrix):
        observed = ~np.isnan(block) if block.dtype.kind == "f" else np.ones(block.shape, bool)
        if mask is not None:
            observed &= mask
        if block.dtype.kind == "f":
            bad = np.argwhere(np.isinf(block) & observed)
            if len(bad):
                i, j = bad[0]
                raise ValueError(f"{name}[{first + i}, {j}]={block[i, j]} is not finite; mark missing entries with NaN")
        by_row[first : first + len(block)] = observed.sum(axis=1)
        by_column += observed.sum(axis=0)
        nonzero |= bool((block[observed] != 0).any())
    if not by_row.any():
        raise ValueError(f"{name} has no observed entry (all NaN or masked), so it teaches nothing; leave it out")
    if not nonzero:
        raise ValueError(f"{name} is all zero, from which nothing can be learned; leave it out")
    return by_row, by_column


def _row_blocks(matrix: DenseMatrix) -> Iterable[tuple[int, Any, Any]]:
    return matrix.blocks(max(1, _READ // matrix.shape[1]))
