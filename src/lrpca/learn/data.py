"""Users' data as problems to train on: with their low-rank parts, with a solver's answers, or with nothing beside.

A problem is a random block of a matrix, as large as training needs and no larger: adaptive thresholds are in units of
the inlier scale and absolute ones in the units of Y, neither of which depends on the number of rows and columns.
Nothing is copied as a whole: a file mapped into memory may be larger than that. Data alone teach by entries that the
network is not shown.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.devices import is_tensor
from lrpca.decompose import Arguments, decompose_with_warnings
from lrpca.files import read_matrix
from lrpca.learn.problems import PaperProblems, Source, TrainingProblem, factors_of, orthonormal_factors
from lrpca.matrices.accept import accept
from lrpca.matrices.dense import DenseMatrix, observed_entries
from lrpca.matrices.sparse import SparseMatrix
from lrpca.solvers.adaptive import POWER_STEPS
from lrpca.solvers.methods import METHODS

# Observed entries of a block, and the least side in units of the rank.
_BLOCK, _RANKS = 1 << 16, 8
# Entries that are read at a time.
_READ = 1 << 22
_FINGERPRINT_ENTRIES = 4096
# Share of the observed entries that are held out of data alone.
_HIDDEN = 0.05
# Tolerances of methods that label, where it is not their own: the paper's choice for video.
_LABEL_TOL = {"altproj": 1e-5}
# One matrix gives many blocks.
_VARIETY = 32
# Of every so many matrices the last one validates.
_VALIDATE_EVERY = 4
_SHAPES_SHOWN = 8


def as_source(data: Any, labels: str | None, drawn: PaperProblems, *, rank: int, seed: int) -> Source:
    """Return `data` and `labels` of `lrpca.learn.train` as a source of problems; `drawn` where there are no data."""
    is_source = hasattr(data, "draw") and hasattr(data, "describe")
    if labels is not None and (data is None or is_source):
        brings = "there are no data to label" if data is None else "a source brings its own labels"
        raise ValueError(f"labels={labels!r} has no meaning, as {brings}; leave it out, or pass data=[Y, ...]")
    if data is None:
        return drawn
    if is_source:
        return data  # type: ignore[no-any-return]
    if labels is not None and not (isinstance(labels, str) and labels in METHODS):
        raise ValueError(
            f"labels={labels!r} is unknown; use a method of lrpca.decompose ({', '.join(METHODS)}), or leave it out"
        )
    items = _items(data)
    pairs = [_is_pair(item) for item in items]
    if any(pairs) and not all(pairs):
        k = pairs.index(not pairs[0])
        raise ValueError(
            f"data[{k}] is {'a pair' if pairs[k] else 'data alone'}, data[0] {'one' if pairs[0] else 'is not'}; "
            "give pairs (Y, X) only, or data only"
        )
    if any(pairs) and labels is not None:
        raise ValueError(f"labels={labels!r} is given beside pairs (Y, X), which bring theirs; leave one of them out")
    names = ["data"] if _is_single(data) else [f"data[{k}]" for k in range(len(items))]
    if not any(pairs):
        matrices = [_user_matrix(item, name, rank) for item, name in zip(items, names, strict=True)]
        answers = None if labels is None else [_answer(matrix, rank, labels, seed) for matrix in matrices]
        return UserData(matrices, rank, answers, labels)
    matrices = [_user_matrix(Y, f"{name}[0]", rank) for (Y, _), name in zip(items, names, strict=True)]
    truths = [_user_label(X, f"{m.name[:-3]}[1]", m) for (_, X), m in zip(items, matrices, strict=True)]
    return UserData(matrices, rank, truths)


class Block(NamedTuple):
    """Some rows and columns of a matrix."""

    rows: Any  # (m1,) int
    columns: Any  # (m2,) int
    values: Any  # (m1, m2), a copy, in the type of the matrix
    observed: Any  # (m1, m2) bool


@dataclass(frozen=True)
class UserMatrix:
    """A matrix as a user has it, checked."""

    name: str  # in messages
    values: Any  # (n1, n2) as given: of any real type and order, maybe a file mapped into memory
    mask: Any  # (n1, n2) bool, or None where NaN says what is missing
    rows: Any  # (m1,) int: those that have an observed entry
    columns: Any  # (m2,) int
    share: float  # observed fraction of their entries

    def cut(self, rank: int, rng: np.random.Generator) -> Block:
        """Return a random block with about 65 536 observed entries, more for large ranks; a small matrix as it is."""
        sides = _block_sides((len(self.rows), len(self.columns)), rank, self.share)
        rows, columns = (
            np.sort(rng.choice(indices, side, replace=False))
            for indices, side in zip((self.rows, self.columns), sides, strict=True)
        )
        part = np.ix_(rows, columns)
        values = np.array(self.values[part])
        return Block(rows, columns, values, observed_entries(values, None if self.mask is None else self.mask[part]))


@dataclass(frozen=True)
class UserData:
    """A source of users' data: every draw is a block of one of the matrices.

    Without labels some entries of every block are hidden from the network, which is to predict them.
    """

    matrices: Sequence[UserMatrix]
    rank: int  # of the network
    labels: Sequence[Any] | None = None  # low-rank parts: matrices X (n1, n2), or factors (A, B), ``X = A Bᵀ``
    method: str | None = None  # that made the labels

    @property
    def variety(self) -> int:
        """Number of problems that covers all kinds of them."""
        return max(_VARIETY, len(self.matrices))

    def draw(self, rng: np.random.Generator) -> TrainingProblem:
        """Return a block of a matrix as a problem."""
        index = int(rng.integers(len(self.matrices)))
        matrix = self.matrices[index]
        block = matrix.cut(self.rank, rng)
        problem = TrainingProblem(
            block.values, self.rank, observed=block.observed, power_steps=POWER_STEPS, scales=False
        )
        if self.labels is None:
            return _with_held_out(problem, rng)
        label = self.labels[index]
        if isinstance(label, tuple):
            truth = orthonormal_factors(label[0][block.rows], label[1][block.columns])
        else:
            truth = factors_of(label[np.ix_(block.rows, block.columns)])
        return replace(problem, truth=truth)

    def split(self) -> tuple[Source, Source]:
        """Keep every fourth matrix for validation; up to three serve for both, each time in another block."""
        indices = range(len(self.matrices))
        held_out = indices[_VALIDATE_EVERY - 1 :: _VALIDATE_EVERY]
        if not held_out:
            return self, self
        return self._only([k for k in indices if k not in held_out]), self._only(held_out)

    def _only(self, chosen: Sequence[int]) -> UserData:
        labels = None if self.labels is None else [self.labels[k] for k in chosen]
        return replace(self, matrices=[self.matrices[k] for k in chosen], labels=labels)

    def describe(self) -> dict[str, Any]:
        """Return what data and labels are, with a fingerprint that tells them from others."""
        told: dict[str, Any] = {
            "source": "data alone" if self.labels is None else "pairs",
            "count": len(self.matrices),
            "shapes": [list(matrix.values.shape) for matrix in self.matrices[:_SHAPES_SHOWN]],
            "rank": self.rank,
            "fingerprint": fingerprint(matrix.values for matrix in self.matrices),
        }
        if self.method is not None:
            labelled = {"source": f"data labelled by {self.method}", "labels": self.method}
            return told | labelled | {"tol": _LABEL_TOL.get(self.method)}
        return told if self.labels is None else told | {"fingerprint_of_labels": fingerprint(self.labels)}


def _with_held_out(problem: TrainingProblem, rng: np.random.Generator) -> TrainingProblem:
    candidates = np.flatnonzero(problem.observed)
    hidden = rng.choice(candidates, max(1, round(_HIDDEN * len(candidates))), replace=False)
    rows, columns = np.divmod(hidden, problem.Y.shape[1])
    observed = problem.observed.copy()
    observed[rows, columns] = False
    return replace(problem, observed=observed, held_out=(rows, columns, problem.Y[rows, columns]))


def _block_sides(shape: tuple[int, int], rank: int, share: float) -> tuple[int, int]:
    """Return the sides of blocks of a matrix with an observed share, e.g. (200, 327) of (200, 20800)."""
    n1, n2 = shape
    entries = math.ceil(max(_BLOCK, (_RANKS * rank) ** 2) / share)
    if n1 * n2 <= entries:
        return n1, n2
    short = min(n1, n2, math.isqrt(entries))
    long = min(max(n1, n2), entries // short)
    return (short, long) if n1 <= n2 else (long, short)


def fingerprint(arrays: Iterable[Any]) -> str:
    """Return a short text that tells arrays from others, by their types, shapes and some of their entries."""
    digest = hashlib.sha256()
    for array in arrays:
        flat = np.linspace(0, array.size - 1, _FINGERPRINT_ENTRIES).astype(np.int64)
        digest.update(f"{array.shape} {array.dtype.str} ".encode())
        digest.update(np.ascontiguousarray(array[np.unravel_index(flat, array.shape)]).tobytes())
    return digest.hexdigest()[:16]


def _items(data: Any) -> list[Any]:
    if _is_single(data):
        return [data]
    if isinstance(data, tuple) and _is_pair(data):
        raise ValueError("data=(.., ..) may be a pair or two matrices; write [(Y, X)] for a pair, [Y1, Y2] for two")
    if isinstance(data, dict) or not isinstance(data, Iterable):
        raise TypeError(
            f"data={type(data).__name__} is neither an array, a path, nor a list of these; "
            "pass [Y, ...], [(Y, X), ...] or a source of problems"
        )
    items = list(data)
    if not items:
        raise ValueError("data=[] holds nothing to train on; pass at least one matrix")
    for k, item in enumerate(items):
        if not (_is_single(item) or _is_pair(item)):
            raise TypeError(
                f"data[{k}]={type(item).__name__} is neither an array, a path, nor a pair (Y, X) of these; "
                "pass e.g. np.asarray(Y)"
            )
    return items


def _is_single(item: Any) -> bool:
    return isinstance(item, str | os.PathLike) or any(
        hasattr(item, name) for name in ("__array__", "to_numpy", "tocsr")
    )


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple | list) and len(item) == 2 and all(_is_single(part) for part in item)


def _user_matrix(item: Any, name: str, rank: int) -> UserMatrix:
    """Return a user's array, or the matrix in a file, after all checks."""
    matrix = _accepted(item, name)
    by_row, by_column = _counts(matrix, name)
    rows, columns = np.flatnonzero(by_row), np.flatnonzero(by_column)
    least = min(len(rows), len(columns))
    if 2 * rank > least:
        observed = "" if least == min(matrix.shape) else " of the rows or columns that have an observed entry"
        raise ValueError(
            f"rank={rank} is above half of min({name}.shape)={least}{observed}; choose at most {least // 2}"
            if least > 1
            else f"{name}.shape={matrix.shape} leaves no rank to choose{observed}; pass at least two rows and columns"
        )
    share = float(by_row.sum()) / (len(rows) * len(columns))
    return UserMatrix(name, matrix.array, matrix.mask, rows, columns, share)


def _user_label(item: Any, name: str, matrix: UserMatrix) -> Any:
    """Return the low-rank part (n1, n2) that a user gives for a matrix, after all checks."""
    X = _accepted(item, name)
    if X.shape != matrix.values.shape:
        raise ValueError(
            f"{name}.shape={X.shape} differs from {matrix.name}.shape={matrix.values.shape}; Y and X belong together"
        )
    if X.mask is not None and not X.mask.all():
        raise ValueError(f"{name} has masked entries; a low-rank part has none, fill them in")
    nonzero = False
    for first, block, _ in _row_blocks(X):
        _check_finite(block, ~np.isfinite(block), first, name, "a low-rank part has no missing entries")
        nonzero |= bool(block.any())
    if not nonzero:
        raise ValueError(f"{name} is all zero, from which nothing can be learned; leave the pair out")
    return X.array


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
        observed = observed_entries(block, mask)
        if block.dtype.kind == "f":
            _check_finite(block, np.isinf(block) & observed, first, name, "mark missing entries with NaN")
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


def _check_finite(block: Any, bad: Any, first: int, name: str, advice: str) -> None:
    """Raise for the first bad entry of a block that begins at row `first`."""
    for i, j in np.argwhere(bad)[:1]:
        raise ValueError(f"{name}[{first + i}, {j}]={block[i, j]} is not finite; {advice}")


def _answer(matrix: UserMatrix, rank: int, method: str, seed: int) -> tuple[Any, Any]:
    """Return a solver's low-rank part as factors; its warnings are passed on, with the name of the matrix."""
    asked = Arguments(method, tol=_LABEL_TOL.get(method), random_state=seed, mask=matrix.mask)
    d, said = decompose_with_warnings(matrix.values, rank, asked)
    for category, message in said:
        warnings.warn(f"labels={method!r} on {matrix.name}: {message}", category, stacklevel=4)
    L, R = np.asarray(d.L, np.float64), np.asarray(d.R, np.float64)
    if not (L.any() and R.any()):
        raise ValueError(f"labels={method!r} finds no low-rank part in {matrix.name}; use another method, or none")
    return L, R
