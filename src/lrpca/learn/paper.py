"""The paper's algorithm of training [1]_: layer after layer, by plain gradient descent on fresh problems.

Stage k trains layer k alone, then layers 0 to k together, on the error after layer k. Where a recurrence follows the
layers (FRMNN; RNN is the case K = 0), its two numbers are searched on a grid at the end, on 20 problems. What the paper
leaves open (rates, counts of steps, first numbers) is as in the script released with it, and where the two differ the
paper is followed:

- the loss is ``‖L Rᵀ - X‖``, as in the script. The paper writes its square, whose gradient is so small in late layers
  that a fixed rate would leave them as they are;
- ``ζ_k = 0.1 ζ_{k-1}`` is set once, when stage k begins. The script sets it again before every step that trains layer k
  alone, and so throws away what it has learned of it;
- a step that would make a threshold or a step negative is not taken. The script checks every tenth step of a layer
  alone, never later, and goes back to zeros if nothing was saved yet;
- problems may have any shape and scale. First thresholds and rates are those of the script for n = 1000, r = 5 and
  the paper's problems; on others they are scaled so that one step changes numbers by the same part.

References
----------
.. [1] H. Cai, J. Liu, W. Yin, "Learned Robust PCA: A Scalable Deep Unfolding Approach for High-Dimensional Outlier
   Detection", NeurIPS 2021: section 3, and "Details in training" of the supplement.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any, NamedTuple

import numpy as np
import torch

from lrpca.learn.network import UnrolledNetwork
from lrpca.learn.problems import PaperProblems, Source, TrainingProblem
from lrpca.learn.tensors import Data, prepare
from lrpca.learn.trainer import Trainer
from lrpca.schedule import Schedule

# Rate of the steps η. Thresholds have that of their layer, 1 / 5000 of the threshold before.
RATE = 0.1
_THRESHOLD_RATE = 1 / 5000
_FIRST_THRESHOLD, _FIRST_STEP = 1e-3, 0.5
# A new threshold, in units of the one before.
_NEW_THRESHOLD = 0.1
# Steps of a layer alone, of the first layers together, and of more than the first seven together.
_ALONE, _TOGETHER, _DEEP_TOGETHER, _DEEP = 500, 1000, 500, 7
# The grid of β and φ. Above 1, steps would grow for ever.
_GRID = tuple((beta / 10, phi / 10) for beta in range(1, 11) for phi in range(1, 11))
_SEARCHED = 20
_FIRST_TAIL = (1.0, 0.6)
# The error of a pair that does not converge at all.
_FAILED = 1e15
# What the rates are meant for: the size of the problems, and ‖X‖ at rank 5.
_BASE_SIDE, _BASE_NORM = 1000.0, math.sqrt(5.0)
# The root mean square of X in units of median|Y|, where X is not known.
_TYPICAL = 1.5


class Stage(NamedTuple):
    """Some steps of the same kind."""

    name: str  # "layer 3 alone", "layers 0 to 3" or "search of the recurrence"
    last: int  # the last layer that is run
    first: int | None  # the first layer that is trained; None in the search
    steps: int


def full_stages(model: str, layers: int, depth: int) -> list[Stage]:
    """Return the stages of a training as the paper has them, for K layers and K̄ = depth."""
    stages = []
    for k in range(1 + (0 if model == "rnn" else layers)):
        stages.append(Stage(f"layer {k} alone", k, k, _ALONE))
        if k > 0:
            stages.append(Stage(f"layers 0 to {k}", k, 0, _TOGETHER if k < _DEEP else _DEEP_TOGETHER))
    if model != "fnn":
        stages.append(Stage("search of the recurrence", depth, None, _SEARCHED))
    return stages


def shared_out(stages: list[Stage], total: int) -> list[Stage]:
    """Return the stages with `total` steps in all, in the same proportions; at least one step each."""
    spare, full = total - len(stages), sum(stage.steps - 1 for stage in stages)
    if spare < 0:
        raise ValueError(f"steps={total} is less than one for each of the {len(stages)} stages; give more")
    counts, sofar, given = [], 0, 0
    for stage in stages:
        sofar += stage.steps - 1
        part = round(spare * sofar / full)
        counts.append(1 + part - given)
        given = part
    return [stage._replace(steps=count) for stage, count in zip(stages, counts, strict=True)]


class PaperTrainer(Trainer):
    """Stochastic gradient descent, one layer after the other; then a grid search of the recurrence.

    Every step draws a problem from the source. `layers` is K (an RNN has none beside layer 0), `depth` is K̄, the layer
    whose error the search makes small. The learning rate is that of the steps η; those of the thresholds are in
    proportion.

    Examples
    --------
    To time it without training, go to a stage and take a few of its steps:

    >>> trainer = PaperTrainer(PaperProblems((40, 40), 2), seed=0, model="frmnn", layers=3, depth=6)
    >>> [stage.steps for stage in trainer.stages], trainer.total
    ([500, 500, 1000, 500, 1000, 500, 1000, 20], 5020)
    >>> trainer.go_to(5)
    >>> _ = trainer.step()
    >>> trainer.stage
    'layer 3 alone'
    """

    keeps_best = False

    def __init__(
        self,
        source: Source,
        *,
        seed: int,
        model: str,
        layers: int,
        depth: int,
        steps: int | None = None,
        learning_rate: float = RATE,
        device: Any = "cpu",
    ) -> None:
        stages = full_stages(model, layers, depth)
        self.stages = stages if steps is None else shared_out(stages, steps)
        self._ends = np.cumsum([stage.steps for stage in self.stages]).tolist()
        self._source, self._device = source, device
        self._rng = np.random.default_rng([seed, 0])
        first = source.draw(np.random.default_rng([seed, 2]))
        self._norm = norm = _norm(source, first)
        if not 0 < norm < math.inf:
            raise FloatingPointError(f"the size of a problem is {norm}")
        side = math.sqrt(math.prod(first.Y.shape))
        # ζ in units of the base setting's, and by how much slower thresholds move per unit of the loss.
        unit, slower = (norm / _BASE_NORM) * (_BASE_SIDE / side), _BASE_SIDE / side
        self._step_rate = learning_rate * _BASE_NORM / norm
        self._threshold_rate = _THRESHOLD_RATE * slower * learning_rate / RATE
        self._layers = 0 if model == "rnn" else layers
        count = max(1, self._layers) + 1
        thresholds, steps_of = [_FIRST_THRESHOLD * unit] * count, [_FIRST_STEP] * count
        tail = None if model == "fnn" else _FIRST_TAIL
        begin = Schedule(thresholds, steps_of, shape=first.Y.shape, rank=first.rank, tail=tail)
        super().__init__(UnrolledNetwork(begin, model, positive=False), self._ends[-1], depth)
        self._rates = [_FIRST_THRESHOLD * unit * self._threshold_rate] * len(self.network.thresholds)
        self._squares = [0.0] * len(_GRID)

    def go_to(self, index: int) -> None:
        """Go to the beginning of a stage, with the numbers as they are, to time it."""
        self.position = self._ends[index] - self.stages[index].steps

    @property
    def stage(self) -> str:
        """The stage of the last step."""
        return self._stage_of(max(1, self.position)).name

    @property
    def trained_depth(self) -> int:
        """The last layer that has been trained."""
        return self._stage_of(max(1, self.position)).last

    def _stage_of(self, step: int) -> Stage:  # counted from 1
        return self.stages[bisect_left(self._ends, step)]

    def step(self) -> float:
        """Take one step on a fresh problem; in the search, one problem for all pairs of the grid."""
        stage, begins = self._stage_of(self.position + 1), self.position in (0, *self._ends)
        # Single precision, as in the released script.
        data = prepare(self._source.draw(self._rng), dtype=torch.float32, device=self._device)
        if stage.first is None:
            value = self._search(data)
        else:
            if begins and stage.first == stage.last > 0:
                self._add_layer(stage.last)
            value = self._descend(data, stage.first, stage.last)
        self.position += 1
        return value

    def _add_layer(self, k: int) -> None:
        with torch.no_grad():
            before = float(self.network.thresholds[k - 1])
            self.network.thresholds[k] = _NEW_THRESHOLD * before
        self._rates[k] = before * self._threshold_rate

    def _descend(self, data: Data, first: int, last: int) -> float:
        """Take a gradient step on the error after layer `last`, in the numbers of layers `first` to `last`."""
        network = self.network
        begin: dict[str, Any] = {}
        if first > 0:
            # The layers before are not trained: nothing is to be kept of them.
            with torch.no_grad():
                *_, before = network.layers(data, first - 1)
            begin = {"start": (before.L, before.R), "after": first - 1}
        *_, end = network.layers(data, last, **begin)
        loss = self._error(data, end.L, end.R)
        value = float(loss.detach())
        if math.isfinite(value):
            network.zero_grad()
            loss.backward()
            chosen = slice(first, last + 1)
            rates = torch.tensor(self._rates, dtype=network.thresholds.dtype)
            _move(network.thresholds, rates, chosen)
            _move(network.steps, torch.full_like(rates, self._step_rate), chosen)
        return value

    def _search(self, data: Data) -> float:
        """Add the squared error of every pair (β, φ) on a problem, and take the pair that is best so far."""
        network = self.network
        with torch.no_grad():
            *_, end = network.layers(data, self._layers)
            errors = [self._error_with(pair, data, (end.L, end.R)) for pair in _GRID]
            self._squares = [square + error**2 for square, error in zip(self._squares, errors, strict=True)]
            best = int(np.argmin(self._squares))
            self._set_tail(_GRID[best])
        return errors[best]

    def _error_with(self, pair: tuple[float, float], data: Data, start: tuple[Any, Any]) -> float:
        self._set_tail(pair)
        try:
            *_, end = self.network.layers(data, self.depth, start=start, after=self._layers)
        except FloatingPointError:
            return _FAILED
        error = float(self._error(data, end.L, end.R))
        return error if error < _FAILED else _FAILED

    def _error(self, data: Data, L: Any, R: Any) -> Any:
        """Return ``‖L Rᵀ - X‖``, or its estimate where the data come without X."""
        size = self._norm if data.truth is None else torch.linalg.matrix_norm(data.truth[1])
        return size * torch.exp(data.log_loss(L, R))

    def _set_tail(self, pair: tuple[float, float]) -> None:
        self.network.tail.copy_(torch.tensor(pair, dtype=self.network.tail.dtype))

    def state(self) -> dict[str, Any]:
        """Return position, numbers, rates, sums of the search and the state of the generator."""
        generator = self._rng.bit_generator.state
        return super().state() | {"rates": self._rates, "squares": self._squares, "generator": generator}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to such a state."""
        super().restore(state)
        self._rates, self._squares = ([float(number) for number in state[name]] for name in ("rates", "squares"))
        self._rng.bit_generator.state = state["generator"]


def _move(parameter: Any, rates: Any, chosen: slice) -> None:  # parameter (K + 1,); rates (K + 1,)
    """Take a gradient step in some numbers, unless one of them would turn negative: then all stay as they are."""
    if parameter.grad is None:
        return
    with torch.no_grad():
        moved = parameter[chosen] - (rates * parameter.grad)[chosen]
        if not bool(torch.isfinite(moved).all()):
            raise FloatingPointError("the gradient is not finite")
        if bool((moved > 0).all()):
            parameter[chosen] = moved


def _norm(source: Source, problem: TrainingProblem) -> float:
    """Return ‖X‖ of the problems of a source, by one of them."""
    if isinstance(source, PaperProblems):
        return math.sqrt(source.rank)
    if problem.truth is not None:
        return float(np.linalg.norm(problem.truth[1]))
    typical = float(np.nanmedian(np.abs(problem.Y)))
    return _TYPICAL * typical * math.sqrt(math.prod(problem.Y.shape))
