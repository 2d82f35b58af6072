"""Steps and verdicts, until one of them ends the run; between the two, a run can be saved and resumed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.base import Record, Solution, State, asked_to_stop
from lrpca.solvers.checkpoint import Checkpoint
from lrpca.solvers.initialise import ObservationCounts

# A run that ends like this may go on, with a larger `max_iter` or without the callback.
_MAY_GO_ON = ("callback", "max_iter")
# Arrays in a state that passes want beside Y; counts stay on the host.
_TALL = ("L", "R", "factors")


class Loop(ABC):
    """The iteration of a solver, with all that it carries from one step to the next."""

    def __init__(self, matrix: DenseMatrix, rng: np.random.Generator) -> None:
        self.matrix, self.rng = matrix, rng
        self.history: list[Record] = []

    @abstractmethod
    def begin(self) -> None:
        """Make the start."""

    @abstractmethod
    def step(self, k: int) -> str | None:
        """Make iteration k and write it down, or return why there is none."""

    @abstractmethod
    def verdict(self) -> str | None:
        """Return a reason to end after the last iteration, or make ready for the next one."""

    @abstractmethod
    def factors(self) -> tuple[Any, Any]:
        """Return L and R as the last iteration left them."""

    @abstractmethod
    def outcome(self, reason: str) -> Solution:
        """Return the solution of the run."""

    @abstractmethod
    def inner_state(self) -> dict[str, Any]:
        """Return numbers and arrays from which `restore_inner` goes on; none that is changed in place later."""

    @abstractmethod
    def restore_inner(self, state: dict[str, Any]) -> None:
        """Take up an inner state in place of a beginning."""

    def seen(self) -> State:
        """Return what the callback sees of the last iteration."""
        L, R = self.factors()
        return State.of(self.history[-1], L.copy(), R.copy())

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on from here, with the same bits."""
        return {
            "history": list(self.history),
            "reads": self.matrix.reads,
            "random": self.rng.bit_generator.state,
            "precision": _precision(self.matrix),
            **self.inner_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a state in place of a beginning."""
        self.restore_inner(_placed(state, self.matrix))
        self.history = [Record(**record) for record in state["history"]]
        self.rng.bit_generator.state = state["random"]
        _restore_precision(self.matrix, state["precision"])
        self.matrix.reads = state["reads"]


def run_loop(
    loop: Loop,
    *,
    max_iter: int,
    callback: Callable[[State], object] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Solution:
    """Run a loop to its end, from the beginning or from where its checkpoint stands.

    `max_iter` counts the iterations before an interruption, too; the `callback` does not see them again. What an error
    ends, or a callback, or `max_iter`, can go on from the `checkpoint`.
    """
    try:
        reason = _begin(loop, checkpoint, max_iter)
        while reason is None and len(loop.history) < max_iter:
            reason = loop.step(len(loop.history) + 1)
            if reason is not None:
                break
            if checkpoint is not None:
                checkpoint.keep(loop.state())
            stopped = callback is not None and asked_to_stop(callback(loop.seen()))
            reason = "callback" if stopped else loop.verdict()
        outcome = loop.outcome(reason or "max_iter")
    except BaseException as error:
        if checkpoint is not None:
            checkpoint.save_for(error)
        raise
    if checkpoint is not None and outcome.reason in _MAY_GO_ON:
        checkpoint.save()
    elif checkpoint is not None:
        checkpoint.remove()
    return outcome


def counts_state(counts: ObservationCounts) -> list[Any]:
    """Return what the counts are made of."""
    return [counts.observed_by_row, counts.observed_by_column, counts.norm]


def _begin(loop: Loop, checkpoint: Checkpoint | None, max_iter: int) -> str | None:
    """Make the start, or go on from where a checkpoint stands; return a reason to end there."""
    state = None if checkpoint is None else checkpoint.load()
    if checkpoint is None or state is None:
        loop.begin()
        if checkpoint is not None:
            checkpoint.keep(loop.state())
        return None
    try:
        loop.restore(state)
    except (KeyError, TypeError, ValueError) as error:
        raise checkpoint.damaged(error) from None
    done = len(loop.history)
    if done > max_iter:
        raise ValueError(
            f"max_iter={max_iter} is less than the {done} iterations of checkpoint={checkpoint.name!r}; raise it, or "
            "delete the file"
        )
    if done == 0:
        return None
    return "callback" if checkpoint.resumed(state, loop.seen()) else loop.verdict()


def _placed(value: Any, matrix: DenseMatrix, *, tall: bool = False) -> Any:
    """Return a state with its tall arrays where passes leave theirs, so that they are rounded as before."""
    if isinstance(value, dict):
        return {name: _placed(part, matrix, tall=tall or name in _TALL) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_placed(part, matrix, tall=tall) for part in value]
    return matrix.place(value) if tall and isinstance(value, np.ndarray) and value.ndim else value


def _precision(matrix: DenseMatrix) -> dict[str, Any]:
    """Return the arithmetic of passes now, and the roughest that the matrix allows."""
    now, rough, roughest = matrix.arithmetic, matrix.is_rough, _roughest(matrix)
    matrix.compute_roughly(rough)
    return {"now": str(now), "roughest": str(roughest), "rough": rough}


def _restore_precision(matrix: DenseMatrix, precision: dict[str, Any]) -> None:
    if str(_roughest(matrix)) != precision["roughest"]:
        # Numbers were met that single precision cannot square.
        matrix.compute_exactly()
    matrix.compute_roughly(precision["rough"])


def _roughest(matrix: DenseMatrix) -> Any:
    matrix.compute_roughly(True)
    return matrix.arithmetic
