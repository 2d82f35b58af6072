"""The fast algorithm of training: all layers at once, by the logarithm of the error.

Four choices make it hundreds of times faster than the paper's algorithm. The loss is the logarithm of the error of
*every* layer, so late layers, whose errors are 10⁻⁶, learn as fast as the first. Logarithms of thresholds and steps are
trained, so one learning rate fits all. Thresholds start at multiples of the inlier scale of each iterate. Adam has a
falling rate. Every step draws a fresh problem: on a small fixed set the numbers would fit the few hard rows found
there, and fail on the hard rows of new problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lrpca.learn.network import UnrolledNetwork, check_finite
from lrpca.learn.problems import Source
from lrpca.learn.tensors import Data, prepare
from lrpca.learn.trainer import Trainer
from lrpca.schedule import Schedule

# Errors below this are rounding: nothing is to be gained there.
_ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-6}
# Where thresholds begin, in units of the inlier scale, and the least ratio of two of them.
_INITIAL_MULTIPLE, _INITIAL_DECAY = 3.0, 0.2
_INITIAL_CLIP = 6.0
_INITIAL_TAIL = (1.0, 0.6)
# A recurrence from layer 0 on meets unclipped outliers first, on which long steps overshoot.
_INITIAL_RECURRENT_STEP = 0.6
_LARGEST_GRADIENT = 10.0
# Later layers can make up for a poor first one, so the mean alone would neglect it. A run that stops early needs it.
_FIRST_WEIGHT = 3.0
# For this part of the steps only the layers with numbers of their own count.
_FREE_ONLY = 0.6
# Factors by which φ is raised, and how many problems validate them. Of those whose error in the end is within a factor
# e of the best, the smallest φ is taken.
_SLOWER = (1.0, 1.1, 1.2, 1.35, 1.5)
_SLOWEST = 0.95
_VALIDATED = 4
_AS_GOOD = 1.0
# New problems hold harder rows than the few that validate, so log φ is multiplied by this.
_MARGIN = 0.6
# The learning rate falls to this part of the first.
_LAST_RATE = 0.02


class FastTrainer(Trainer):
    """Adam on the mean logarithm of the errors of all layers up to `depth`.

    `draw` returns the problem of a step. The learning rate is the first one, for logarithms of thresholds; steps have
    half of it. Numbers of `frozen` layers stay.
    """

    def __init__(
        self,
        network: UnrolledNetwork,
        draw: Callable[[int], Data],
        *,
        depth: int,
        steps: int,
        learning_rate: float,
        frozen: tuple[int, ...] = (),
    ) -> None:
        super().__init__(network, steps, depth)
        self._draw, self._rate = draw, learning_rate
        self._trained = torch.ones_like(network.thresholds)
        self._trained[[layer for layer in frozen if layer < len(self._trained)]] = 0.0
        slow = [network.steps, *([network.tail] if network.tail.requires_grad else [])]
        groups = [{"params": [network.thresholds]}, {"params": slow}]
        self._optimiser = torch.optim.Adam(groups, betas=(0.9, 0.95), foreach=False)
        # Recurrences of absolute schedules without a floor.
        if network.tail.requires_grad and network.form.kind == "absolute" and network.form.floor is None:
            self.finishing = "slowing the recurrence"

    def step(self) -> float:
        """Take one step on the next problem."""
        self._set_rates()
        data = self._draw(self.position)
        self._optimiser.zero_grad()
        floor = math.log(_ROUNDING[data.dtype])
        layers = self.network.layers(data, self._depth_now())
        logs = torch.stack([data.log_loss(layer.L, layer.R) for layer in layers][1:])
        loss = self._loss(data, torch.nn.functional.softplus(logs - floor) + floor)
        value = float(loss.detach())
        if math.isfinite(value):
            loss.backward()
            for parameter in (self.network.thresholds, self.network.steps):
                if parameter.grad is not None:
                    parameter.grad *= self._trained
            if self.network.tail.grad is not None:
                # β stays: steps that shrink for ever end the iteration before it has arrived.
                self.network.tail.grad[0] = 0.0
            norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), _LARGEST_GRADIENT)
            if not bool(torch.isfinite(norm)):
                raise FloatingPointError("the gradient is not finite")
            self._optimiser.step()
        self.position += 1
        return value

    def _depth_now(self) -> int:
        """Return how many layers count in this step: the free ones at first, then the recurrence too."""
        free = len(self._trained) - 1
        return self.depth if free == 0 or self.position >= _FREE_ONLY * self.total else min(self.depth, free)

    def _loss(self, data: Data, logs: Any) -> Any:
        """Return the mean over the layers, the first counting more, and the end half of what the recurrence does.

        The mean of a recurrence is lowest with thresholds that outrun the error after a few layers; its end is not.
        """
        if data.held_out is not None:
            return logs[data.first_counted(len(logs)) - 1 :].mean()
        weights = torch.ones_like(logs)
        weights[0] = _FIRST_WEIGHT
        free = min(len(self._trained) - 1, len(logs))
        beyond = len(logs) - free
        if beyond:
            weights[free:] = 0.5
            weights[-1] += 0.5 * beyond
        return (weights * logs).sum() / weights.sum()

    def _set_rates(self) -> None:
        part = max(_LAST_RATE, 0.5 * (1 + math.cos(math.pi * self.position / max(1, self.total))))
        for group, share in zip(self._optimiser.param_groups, (1.0, 0.5), strict=True):
            group["lr"] = share * part * self._rate

    def finish(self, held_out: Sequence[Data]) -> None:
        """Slow the recurrence of an absolute schedule down until it converges on held-out problems, too.

        A φ that is slightly too small rejects some rows for ever, one that is slightly too large only costs time.
        """
        network = self.network
        if self.finishing is None:
            return
        trained = network.tail.detach().clone()
        ends = {}
        for factor in _SLOWER:
            phi = min(float(torch.exp(trained[1])) * factor, _SLOWEST)
            with torch.no_grad():
                network.tail[1] = math.log(phi)
                ends[phi] = max(self._end(data, phi) for data in held_out[:_VALIDATED])
        best = min(ends.values())
        chosen = next(phi for phi, end in sorted(ends.items()) if end <= best + _AS_GOOD)
        with torch.no_grad():
            # Where the recurrence is all there is, a margin would slow every pass.
            network.tail[1] = (_MARGIN if len(self._trained) > 1 else 1.0) * math.log(chosen)

    def _end(self, data: Data, phi: float) -> float:
        """Return the logarithm of the error once thresholds have fallen to rounding."""
        depth = len(self._trained) + math.ceil(math.log(_ROUNDING[data.dtype]) / math.log(phi))
        try:
            *_, last = self.network.layers(data, depth)
        except FloatingPointError:
            return math.inf
        return max(float(data.log_loss(last.L, last.R)), math.log(_ROUNDING[data.dtype]))

    def state(self) -> dict[str, Any]:
        """Return position, parameters and moments; problems depend on seed and position alone."""
        moments = {
            str(index): {name: value.tolist() for name, value in entry.items()}
            for index, entry in self._optimiser.state_dict()["state"].items()
        }
        return super().state() | {"optimiser": {"state": moments}}

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to such a state."""
        super().restore(state)
        parameters = [parameter for group in self._optimiser.param_groups for parameter in group["params"]]
        moments = {}
        for index, entry in state["optimiser"]["state"].items():
            parameter = parameters[int(index)]
            shapes = {"step": (), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}
            moments[int(index)] = {
                name: torch.tensor(entry[name], dtype=parameter.dtype).reshape(shape) for name, shape in shapes.items()
            }
        self._optimiser.load_state_dict(self._optimiser.state_dict() | {"state": moments})


def drawn_from(source: Source, seed: int, *, device: Any) -> Callable[[int], Data]:
    """Return a function that draws the problem of a step, the same one in every call."""

    def draw(position: int) -> Data:
        return prepare(source.draw(np.random.default_rng([seed, 0, position])), device=device)

    return draw


def first_guess(form: Schedule, data: Data, layers: int, *, model: str) -> Schedule:
    """Return numbers to start an absolute schedule from, measured on one problem.

    Thresholds are three times the inlier scale before the layer, and steps are 1.
    """
    if model == "rnn":
        beta, phi = _INITIAL_TAIL
        probe = first_guess(form, data, 1, model="fnn")
        first = probe.thresholds[1] / phi
        steps = 2 * [_INITIAL_RECURRENT_STEP]
        return replace(probe, thresholds=[first, probe.thresholds[1]], steps=steps, tail=(beta, phi), floor=form.floor)
    clip = _INITIAL_CLIP * float(data.Y.abs().median() or data.Y.abs().mean())
    thresholds, steps = [clip], [0.0]
    with torch.no_grad():
        L, R = data.start(torch.tensor(clip, dtype=torch.float64))
        check_finite(L, R, 0)
        for k in range(1, layers + 1):
            width = _INITIAL_MULTIPLE * float(data.inlier_scale(L, R))
            thresholds.append(width if k == 1 else max(_INITIAL_DECAY * thresholds[-1], min(width, thresholds[-1])))
            steps.append(1.0)
            # One layer of the very network, from where the last one ended.
            layer = replace(form, thresholds=[clip, thresholds[-1]], steps=[0.0, 1.0], tail=None, floor=None)
            one = UnrolledNetwork(layer, "fnn")
            *_, last = one.layers(data, 1, start=(L, R))
            L, R = last.L, last.R
    tail, floor = (None, None) if model == "fnn" else (_INITIAL_TAIL, form.floor)
    return replace(form, thresholds=thresholds, steps=steps, tail=tail, floor=floor)
