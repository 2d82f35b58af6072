"""The solvers that run on the grid, all behind one call: ours, PCP as in `pyrpca`, and a plain truncated SVD.

A solver is a function of Y and the rank that returns an `Answer`. Every method that `lrpca.decompose` knows is there by
its own name; a rule of the default is left out by the name ``without <rule>``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import lrpca
from lrpca.bench.contest.calls import Task, solve
from lrpca.bench.contest.contestants import RIVALS
from lrpca.solvers.methods import METHODS

DEFAULT = "lrpca"
PCP = "pyrpca"
SVD = "svd"
_WITHOUT = "without "


class TimeLimitError(RuntimeError):
    """A solver took longer than it was given."""


@dataclass(frozen=True)
class Answer:
    """What a solver says.

    Attributes
    ----------
    low_rank : ndarray (n1, n2)
    converged : bool or None
        Its own verdict; None if it gives none.
    ended : str
        Why it stopped, in its own word.
    passes, reads : int or None
        Iterations, and traversals of Y; None if it does not count them.
    """

    low_rank: Any
    converged: bool | None
    ended: str
    passes: int | None = None
    reads: int | None = None


Solver = Callable[[Any, int], Answer]


def names() -> list[str]:
    """Return the solvers that are present, ours first."""
    found = [DEFAULT, *(method for method in METHODS if method != DEFAULT)]
    if RIVALS[PCP].version():
        found.append(PCP)
    return [*found, SVD]


def without(rule: str) -> str:
    """Return the name of the default without one of its rules."""
    return _WITHOUT + rule


def solver(name: str, limit: float) -> Solver:
    """Return a solver by its name; others than our default are stopped after `limit` seconds.

    Parameters
    ----------
    name : str
        One of `names`, or ``without <rule>``.
    limit : float
        Seconds; reaching it raises `TimeLimitError`.
    """
    if name == PCP:
        return lambda Y, rank: _pcp(Y, limit)
    if name == SVD:
        return _truncated_svd
    if name == DEFAULT:
        return lambda Y, rank: _answer(lrpca.decompose(Y, rank))
    if name.startswith(_WITHOUT):
        options = {"without": [name.removeprefix(_WITHOUT)]}
        return lambda Y, rank: _answer(lrpca.decompose(Y, rank, options=options))
    if name in METHODS:
        return lambda Y, rank: _limited(Y, rank, name, limit)
    raise ValueError(f"solver={name!r} is unknown; use one of {', '.join(names())}")


def _answer(d: lrpca.Decomposition) -> Answer:
    return Answer(d.low_rank, d.converged, d.reason, d.n_iter, d.n_reads)


def _limited(Y: Any, rank: int, method: str, limit: float) -> Answer:
    deadline = time.perf_counter() + limit

    def late(state: object) -> None:
        if time.perf_counter() > deadline:
            raise TimeLimitError(method)

    return _answer(lrpca.decompose(Y, rank, method=method, callback=late))


def _pcp(Y: Any, limit: float) -> Answer:
    """Run pyrpca as the arena does: PCP by the inexact augmented Lagrangian, its defaults, λ = 1/√max(n1, n2)."""
    deadline = time.perf_counter() + limit
    late = lambda answer: time.perf_counter() > deadline  # noqa: E731
    answer = solve(Task(PCP, min(Y.shape)), np.asarray(Y, dtype=np.float64), late)
    if answer.reason == "callback":
        raise TimeLimitError(PCP)
    return Answer(answer.low_rank, answer.converged, answer.reason, answer.iterations)


def _truncated_svd(Y: Any, rank: int) -> Answer:
    """Return the best fit of that rank in least squares, missing entries first filled by their column's mean."""
    missing = np.isnan(Y)
    counts = np.maximum((~missing).sum(axis=0), 1)
    filled = np.where(missing, np.where(missing, 0.0, Y).sum(axis=0) / counts, Y)
    U, values, Vt = np.linalg.svd(filled, full_matrices=False)
    return Answer((U[:, :rank] * values[:rank]) @ Vt[:rank], None, "–")
