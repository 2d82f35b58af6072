"""Users' data as problems to train on: with their low-rank parts, with a solver's answers, or with nothing beside.

A problem is a random block of a matrix, as large as training needs and no larger: adaptive thresholds are in units of
the residual's own width and absolute ones in the units of Y, neither of which depends on how many rows and columns are
looked at. Data alone teach by entries that the network is not shown.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lrpca.decompose import decompose
from lrpca.learn.problems import Source, TrainingProblem, factors_of, orthonormal_factors
from lrpca.learn.reading import Block, UserMatrix, fingerprint, user_label, user_matrix
from lrpca.solvers.adaptive import power_steps_for
from lrpca.solvers.methods import METHODS

# Share of the observed entries that data alone are judged by.
_HIDDEN = 0.05
# Where labels of a method are taken from, the paper's choice for video among them.
_LABEL_TOL = {"altproj": 1e-5}
# Problems to have met: one matrix gives many blocks.
_VARIETY = 32
# Of every so many matrices the last one judges.
_JUDGE_EVERY = 4
_SHAPES_SHOWN = 8


class Blocks(ABC):
    """Data of users: every draw is a block of one of the matrices.

    Parameters
    ----------
    matrices : sequence of UserMatrix
    rank : int
        Rank of the network.
    """

    kind: str

    def __init__(self, matrices: Sequence[UserMatrix], rank: int) -> None:
        self.matrices, self.rank = matrices, rank

    @property
    def variety(self) -> int:
        """How many problems it takes to have met all kinds of them."""
        return max(_VARIETY, len(self.matrices))

    def draw(self, rng: np.random.Generator) -> TrainingProblem:
        """Return a block of a matrix as a problem."""
        index = int(rng.integers(len(self.matrices)))
        return self._problem(index, self.matrices[index].cut(self.rank, rng), rng)

    def split(self) -> tuple[Source, Source]:
        """Keep every fourth matrix for judging; up to three serve for both, each time in another block."""
        judges = list(range(len(self.matrices)))[_JUDGE_EVERY - 1 :: _JUDGE_EVERY]
        if not judges:
            return self, self
        return self._only([k for k in range(len(self.matrices)) if k not in judges]), self._only(judges)

    def describe(self) -> dict[str, Any]:
        """Return what the data are, with a fingerprint that tells them from others."""
        return {
            "source": self.kind,
            "count": len(self.matrices),
            "shapes": [list(matrix.shape) for matrix in self.matrices[:_SHAPES_SHOWN]],
            "rank": self.rank,
            "fingerprint": fingerprint(matrix.values for matrix in self.matrices),
        }

    @abstractmethod
    def _problem(self, index: int, block: Block, rng: np.random.Generator) -> TrainingProblem: ...

    @abstractmethod
    def _only(self, chosen: list[int]) -> Source:
        """Return the source of some of the matrices."""


class HeldOut(Blocks):
    """Data alone. Some entries of every block are hidden from the network, which is to predict them.

    Parameters
    ----------
    matrices : sequence of UserMatrix
    rank : int

    Examples
    --------
    >>> source = users_source(np.add.outer(np.arange(30.0), np.arange(20.0)), None, rank=2, seed=0)
    >>> problem = source.draw(np.random.default_rng(0))
    >>> len(problem.held_out[0]), int(problem.observed.sum())
    (30, 570)
    """

    kind = "data alone"

    def _problem(self, index: int, block: Block, rng: np.random.Generator) -> TrainingProblem:
        candidates = np.flatnonzero(block.observed)
        hidden = rng.choice(candidates, max(1, round(_HIDDEN * len(candidates))), replace=False)
        rows, columns = np.divmod(hidden, block.values.shape[1])
        observed = block.observed.copy()
        observed[rows, columns] = False
        return TrainingProblem(
            block.values,
            self.rank,
            held_out=(rows, columns, block.values[rows, columns]),
            observed=observed,
            power_steps=power_steps_for(self.matrices[index].shape),
            scales=False,
        )

    def _only(self, chosen: list[int]) -> Source:
        return HeldOut([self.matrices[k] for k in chosen], self.rank)


class Labelled(Blocks):
    """Data with their low-rank parts.

    Parameters
    ----------
    matrices : sequence of UserMatrix
    rank : int
    labels : sequence
        The low-rank part of each: a matrix X (n1, n2), or factors (A, B) of it, ``X = A Bᵀ``.
    by : str, optional
        The method that made them.
    """

    def __init__(self, matrices: Sequence[UserMatrix], rank: int, labels: Sequence[Any], by: str | None = None) -> None:
        super().__init__(matrices, rank)
        self._labels, self._by = labels, by

    @property
    def kind(self) -> str:  # type: ignore[override]
        """Where the labels come from."""
        return "pairs" if self._by is None else f"data labelled by {self._by}"

    def describe(self) -> dict[str, Any]:
        """Return what data and labels are."""
        if self._by is not None:
            return super().describe() | {"labels": self._by, "tol": _LABEL_TOL.get(self._by)}
        return super().describe() | {"fingerprint_of_labels": fingerprint(self._labels)}

    def _problem(self, index: int, block: Block, rng: np.random.Generator) -> TrainingProblem:
        label = self._labels[index]
        if isinstance(label, tuple):
            truth = orthonormal_factors(label[0][block.rows], label[1][block.columns])
        else:
            truth = factors_of(label[np.ix_(block.rows, block.columns)])
        return TrainingProblem(
            block.values,
            self.rank,
            truth,
            observed=block.observed,
            power_steps=power_steps_for(self.matrices[index].shape),
            scales=False,
        )

    def _only(self, chosen: list[int]) -> Source:
        return Labelled([self.matrices[k] for k in chosen], self.rank, [self._labels[k] for k in chosen], self._by)


def users_source(data: Any, labels: Any, *, rank: int, seed: int) -> Source:
    """Return the source of problems from a user's matrices.

    Parameters
    ----------
    data : array, path, or sequence of these or of pairs of these
    labels : str, optional
        The method whose answers label data alone; held-out entries if not given.
    rank : int
    seed : int
        Of the method.
    """
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
    if any(pairs):
        return _paired(items, names, rank)
    matrices = [user_matrix(item, name, rank) for item, name in zip(items, names, strict=True)]
    if labels is None:
        return HeldOut(matrices, rank)
    return Labelled(matrices, rank, [_answer(matrix, rank, labels, seed) for matrix in matrices], by=labels)


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


def _paired(items: Sequence[Any], names: Sequence[str], rank: int) -> Labelled:
    matrices, labels = [], []
    for (Y, X), name in zip(items, names, strict=True):
        matrices.append(user_matrix(Y, f"{name}[0]", rank))
        labels.append(user_label(X, f"{name}[1]", matrices[-1]))
    return Labelled(matrices, rank, labels)


def _answer(matrix: UserMatrix, rank: int, method: str, seed: int) -> tuple[Any, Any]:
    """Return a solver's low-rank part as factors; its warnings are passed on, with the name of the matrix."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        d = decompose(
            matrix.values, rank, method=method, mask=matrix.mask, tol=_LABEL_TOL.get(method), random_state=seed
        )
    for warning in caught:
        warnings.warn(f"labels={method!r} on {matrix.name}: {warning.message}", warning.category, stacklevel=5)
    L, R = np.asarray(d.L, np.float64), np.asarray(d.R, np.float64)
    if not (L.any() and R.any()):
        raise ValueError(f"labels={method!r} finds no low-rank part in {matrix.name}; use another method, or none")
    return L, R
