"""A training as it is asked for: arguments checked, defaults filled in, and the trainer that follows from them."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lrpca.core.devices import check_device
from lrpca.learn.fast import FastTrainer, drawn_from, first_guess
from lrpca.learn.network import MODELS, UnrolledNetwork
from lrpca.learn.paper import RATE as PAPER_RATE
from lrpca.learn.paper import PaperTrainer, full_stages, shared_out
from lrpca.learn.problems import PaperProblems, Source
from lrpca.learn.tensors import Data, prepare
from lrpca.learn.trainer import Trainer, Validation
from lrpca.schedule import Schedule
from lrpca.solvers.options import is_integer

WAYS = ("fast", "paper")
# The adaptive parametrisation, which needs neither scale nor size, and the paper's own.
FORMS = {
    "adaptive": Schedule(
        [20.0, 2.5], [0.0, 1.0], kind="adaptive", influence="redescending", update="tangent", tail=(1.0, 1.0), decay=0.1
    ),
    "paper": Schedule([1.0, 1.0], [0.0, 1.0], kind="absolute", influence="soft", update="scaled", tail=(1.0, 0.6)),
}
# Adaptive schedules are trained on problems of at most this side: they do not depend on size.
_SMALL_SIDE, _RANKS_PER_SIDE = 300, 20
# The recurrence to begin with where the given numbers have none.
_TAIL = (1.0, 0.6)
# Layers by kind and model, and how many more count where a recurrence follows: those of the paper, or enough to follow
# it down to rounding.
_ADAPTIVE_LAYERS, _FNN_LAYERS, _FRMNN_LAYERS = 7, 16, 10
_BEYOND = {"paper": 5, "fast": 20}
_RNN_DEPTH = {"paper": 15, "fast": 30}
_STEPS = 100
_ADAPTIVE_RATE, _ABSOLUTE_RATE = 0.05, 0.15
_HELD_OUT = 4
# Where adaptive schedules for real data begin: at a noise floor thresholds have to come down to its width, and steps
# count kept entries of which some are clipped and do not pull back.
_NOISY = (1.0, 1.4)
# What follows the learned layers of an adaptive schedule: the numbers of the untrained default.
_REST = (2.5, 1.0)


@dataclass(frozen=True)
class Request:
    """A training as it is asked for; attributes are the arguments of `lrpca.learn.train`.

    `resolve` checks them and fills in what is None.
    """

    rank: Any = 5
    shape: Any = (1000, 1000)
    outlier_fraction: Any = 0.1
    model: Any = "frmnn"
    form: Any = "adaptive"
    way: Any = "fast"
    random_state: Any = 0
    layers: Any = None
    depth: Any = None
    steps: Any = None
    learning_rate: Any = None
    patience: Any = None
    device: Any = None

    @property
    def given(self) -> bool:
        """Whether training begins with numbers of the user."""
        return isinstance(self.form, Schedule)

    @property
    def schedule(self) -> Schedule:
        """Kind, influence and update, and the numbers to begin with if `given`."""
        return self.form if isinstance(self.form, Schedule) else FORMS[self.form]

    @property
    def problems(self) -> PaperProblems:
        """What is drawn where there are no data."""
        n1, n2 = self.shape
        if self.schedule.kind == "adaptive":
            side = max(_SMALL_SIDE, _RANKS_PER_SIDE * self.rank)
            n1, n2 = min(n1, side), min(n2, side)
        return PaperProblems((n1, n2), self.rank, self.outlier_fraction)

    def describe(self) -> dict[str, Any]:
        """Return what decides the result, beside seed and data."""
        names = ("rank", "model", "way", "layers", "depth", "steps", "learning_rate", "patience", "device")
        form = self.schedule
        parts = (form.thresholds, form.steps, form.tail or ())
        return {
            **{name: getattr(self, name) for name in names},
            "form": {name: getattr(form, name) for name in ("kind", "influence", "cutoff", "update", "decay", "floor")},
            "begin": [list(part) for part in parts] if self.given else None,
        }

    def as_call(self) -> str:
        """Return the call of `lrpca.learn.train` that asks for this, beside the user's data."""
        asked = dict(vars(self))
        if self.given:
            asked["form"] = replace(self.form, meta={})
        if self.model == "rnn":
            asked["layers"] = None
        if self.device == "cpu":
            asked["device"] = None
        given = ", ".join(f"{name}={value!r}" for name, value in asked.items() if value is not None)
        return f"lrpca.learn.train({given})"


def resolve(request: Request) -> Request:
    """Check the arguments of `lrpca.learn.train` and fill in what was not given."""
    _check_words(request)
    _check_numbers(request)
    device = str(check_device(request.device))
    form, model, way = request.schedule, request.model, request.way
    if way == "paper" and request.form != "paper":
        name = "<a Schedule>" if request.given else repr(request.form)
        raise ValueError(
            f"form={name} does not fit way='paper', which begins with numbers of its own; use form='paper'"
        )
    if way == "paper" and request.patience is not None:
        raise ValueError(
            f"patience={request.patience} does not fit way='paper', whose stages are all needed; leave it out"
        )
    adaptive = form.kind == "adaptive"
    layers, depth, steps = _layers(request), request.depth, request.steps
    if depth is None:
        depth = {"fnn": layers, "rnn": _RNN_DEPTH[way], "frmnn": layers + (0 if adaptive else _BEYOND[way])}[model]
    _check_depth(depth, layers, model, way)
    if way == "paper":
        stages = full_stages(model, layers, depth)
        steps = sum(stage.steps for stage in (stages if steps is None else shared_out(stages, int(steps))))
    rate = PAPER_RATE if way == "paper" else _ADAPTIVE_RATE if adaptive else _ABSOLUTE_RATE
    n1, n2 = request.shape
    return replace(
        request,
        rank=int(request.rank),
        shape=(int(n1), int(n2)),
        outlier_fraction=float(request.outlier_fraction),
        random_state=int(request.random_state),
        layers=layers,
        depth=int(depth),
        steps=int(steps or _STEPS),
        learning_rate=float(request.learning_rate or rate),
        patience=None if request.patience is None else int(request.patience),
        device=device,
    )


def _check_words(request: Request) -> None:
    for name, known in (("model", MODELS), ("way", WAYS)):
        value = getattr(request, name)
        if value not in known:
            raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(known)}")
    form = request.form
    if not (request.given or (isinstance(form, str) and form in FORMS)):
        raise ValueError(f"form={form!r} is unknown; use one of {', '.join(FORMS)}, or a Schedule to begin from")


def _check_numbers(request: Request) -> None:
    for name in ("rank", "random_state", "layers", "depth", "steps", "patience"):
        value, least = getattr(request, name), int(name != "random_state")
        needed = name in ("rank", "random_state")
        if (value is not None or needed) and not (is_integer(value) and value >= least):
            raise ValueError(f"{name}={value!r} is not an integer of at least {least}; use {name}={least} or more")
    try:
        n1, n2 = request.shape
    except (TypeError, ValueError):
        n1 = n2 = None
    if not (is_integer(n1) and is_integer(n2) and min(n1, n2) >= 1):
        raise ValueError(f"shape={request.shape!r} is not a pair of positive integers; e.g. (1000, 1000)")
    if 2 * request.rank > min(n1, n2):
        raise ValueError(
            f"rank={request.rank} is above half of min(shape)={min(n1, n2)}; choose a smaller rank or larger shape"
        )
    share, rate = request.outlier_fraction, request.learning_rate
    if not (_is_real(share) and 0 <= float(share) < 1):
        raise ValueError(f"outlier_fraction={share!r} is not a number from 0 to below 1; e.g. 0.1")
    if rate is not None and not (_is_real(rate) and 0 < float(rate) < 10):
        raise ValueError(f"learning_rate={rate!r} is not a number between 0 and 10; e.g. 0.05")


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def _layers(request: Request) -> int:
    layers, form = request.layers, request.schedule
    if request.model == "rnn":
        if layers is not None and layers > 1:
            raise ValueError(
                f"layers={layers} does not fit model='rnn', all of whose layers share numbers; leave it out"
            )
        return 1
    if layers is not None:
        return int(layers)
    if request.given and form.layers > 1:
        # `_begin` adds the layer that follows learned ones again.
        rests = form.kind == "adaptive" and (form.thresholds[-1], form.steps[-1]) == _REST
        return form.layers - 1 if rests else form.layers
    if form.kind == "adaptive":
        return _ADAPTIVE_LAYERS
    return _FNN_LAYERS if request.model == "fnn" else _FRMNN_LAYERS


def _check_depth(depth: int, layers: int, model: str, way: str) -> None:
    if model == "fnn" and depth > layers:
        raise ValueError(f"depth={depth} is above layers={layers}; a feed-forward network has no others")
    if depth < layers:
        raise ValueError(
            f"depth={depth} is below layers={layers}, and layers beyond it would stay untrained; give more"
        )
    if way == "paper" and model == "frmnn" and depth == layers:
        raise ValueError(f"depth={depth} leaves no layer to search the recurrence on; give more than layers={layers}")


def make_trainer(request: Request, source: Source) -> tuple[Trainer, Validation]:
    """Return the trainer of a resolved request, and the problems that validate it."""
    device = torch.device(request.device)
    training, held_out = source.split()
    rng = np.random.default_rng([request.random_state, 1])
    count = max(_HELD_OUT, held_out.variety // 4)
    validation = Validation([prepare(held_out.draw(rng), device=device, seed=k) for k in range(count)])
    numbers_of = {"depth": request.depth, "steps": request.steps, "learning_rate": request.learning_rate}
    if request.way == "paper":
        return (
            PaperTrainer(
                training,
                seed=request.random_state,
                model=request.model,
                layers=request.layers,
                device=device,
                **numbers_of,
            ),
            validation,
        )
    # On the CPU: the inlier scale, from which thresholds are guessed, turns rounding into differences of 1e-4.
    begin = _begin(request, drawn_from(training, request.random_state, device="cpu")(0))
    network = UnrolledNetwork(begin, request.model)
    frozen: tuple[int, ...] = ()
    if begin.kind == "adaptive":
        network.tail.requires_grad_(False)
        frozen = (0, begin.layers) if begin.layers > request.layers else (0,)
    draw = drawn_from(training, request.random_state, device=device)
    return FastTrainer(network, draw, frozen=frozen, **numbers_of), validation


def _begin(request: Request, data: Data) -> Schedule:
    form, layers, recurrent = request.schedule, request.layers, request.model != "fnn"
    if form.kind == "absolute":
        if data.problem.scales:
            # Numbers that were made for another size are scaled by the paper's rule.
            form = replace(form.scaled_to(data.shape, data.rank), shape=data.shape, rank=data.rank)
        else:
            form = replace(form, shape=None, rank=None)
        if not request.given:
            return first_guess(form, data, layers, model=request.model)
        endless = form if form.tail is not None else replace(form, tail=_TAIL)
        pairs = [endless.at(k) or (0.0, 0.0) for k in range(1, layers + 1)]
        tail, floor = (endless.tail, form.floor) if recurrent else (None, None)
    else:
        pairs = [form.at(k) or (form.thresholds[-1], form.steps[-1]) for k in range(1, layers + 1)]
        if data.held_out is not None and not request.given:
            lowest, step = _NOISY
            pairs = [(number, step) for number in np.geomspace(form.thresholds[-1], lowest, layers).tolist()]
        if request.model == "frmnn":
            pairs.append(_REST)
        tail, floor = (1.0, 1.0) if recurrent else None, form.floor
    thresholds = [form.thresholds[0], *(threshold for threshold, _ in pairs)]
    steps = [0.0, *(step for _, step in pairs)]
    return replace(form, thresholds=thresholds, steps=steps, tail=tail, floor=floor)
