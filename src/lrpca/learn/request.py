"""What training is asked for: arguments checked, defaults filled in, and the course that follows from them."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lrpca.core.devices import check_device
from lrpca.learn.fast import FastCourse, drawn_from, first_guess
from lrpca.learn.network import MODELS, UnrolledNetwork
from lrpca.learn.paper import RATE as PAPER_RATE
from lrpca.learn.paper import PaperCourse, full_stages, shared_out
from lrpca.learn.problems import PaperProblems, Source
from lrpca.learn.tensors import Data, prepare
from lrpca.learn.trainer import Course, Judge
from lrpca.schedule import Schedule
from lrpca.solvers.options import is_integer

WAYS = ("fast", "paper")
# The adaptive form, which needs neither scale nor size, and the paper's own.
FORMS = {
    "adaptive": Schedule(
        [20.0, 2.5], [0.0, 1.0], kind="adaptive", influence="redescending", update="tangent", tail=(1.0, 1.0), decay=0.1
    ),
    "paper": Schedule([1.0, 1.0], [0.0, 1.0], kind="absolute", influence="soft", update="scaled", tail=(1.0, 0.6)),
}
# Adaptive schedules are trained on problems of at most this side: they do not depend on size.
_SMALL_SIDE, _RANKS_PER_SIDE = 300, 20
# What goes on where numbers to begin with have no recurrence and one is to be trained.
_TAIL = (1.0, 0.6)
# Layers by kind and model, and how many more count where a recurrence follows: in the paper, and where it is to be
# followed down to rounding.
_ADAPTIVE_LAYERS, _FNN_LAYERS, _FRMNN_LAYERS = 7, 16, 10
_BEYOND = {"paper": 5, "fast": 20}
_RNN_DEPTH = {"paper": 15, "fast": 30}
_ADAPTIVE_STEPS, _ABSOLUTE_STEPS = 100, 100
_ADAPTIVE_RATE, _ABSOLUTE_RATE = 0.05, 0.15
_HELD_OUT = 4
# Where adaptive schedules for real data begin: at a noise floor thresholds have to come down to its width, and steps
# count kept entries of which some are clipped and do not pull back.
_NOISY = (1.0, 1.4)
# What follows the learned layers of an adaptive schedule: the numbers of the untrained default.
_REST = (2.5, 1.0)


@dataclass(frozen=True)
class Request:
    """A training as it will be done; every default is filled in.

    Attributes
    ----------
    form : Schedule
        Kind, influence and update, and numbers to begin with if `given`.
    given : bool
        Whether the numbers of the form are to be used.
    shape : tuple of int
        As it was asked for.
    problems : PaperProblems
        What is drawn where there are no data.
    model, way : str
    seed, layers, depth, steps : int
    learning_rate : float
    patience : int or None
    device : str
    """

    form: Schedule
    given: bool
    shape: tuple[int, int]
    problems: PaperProblems
    model: str
    way: str
    seed: int
    layers: int
    depth: int
    steps: int
    learning_rate: float
    patience: int | None
    device: str

    def describe(self) -> dict[str, Any]:
        """Return what decides the result, beside seed and data."""
        names = ("model", "way", "layers", "depth", "steps", "learning_rate", "patience", "device")
        form = {name: getattr(self.form, name) for name in ("kind", "influence", "cutoff", "update", "decay", "floor")}
        parts = (self.form.thresholds, self.form.steps, self.form.tail or ())
        begin = [list(part) for part in parts] if self.given else None
        return {
            "rank": self.problems.rank,
            **{name: getattr(self, name) for name in names},
            "form": form,
            "begin": begin,
        }

    def as_call(self) -> str:
        """Return the call of `lrpca.learn.train` that asks for this, beside data of one's own."""
        p = self.problems
        form: Any = "paper" if self.form.kind == "absolute" else "adaptive"
        arguments: dict[str, Any] = {
            "rank": p.rank,
            "shape": self.shape,
            "outlier_fraction": p.outlier_fraction,
            "model": self.model,
            "form": replace(self.form, meta={}) if self.given else form,
            "way": self.way,
            "random_state": self.seed,
            "layers": None if self.model == "rnn" else self.layers,
            "depth": self.depth,
            "steps": self.steps,
            "learning_rate": self.learning_rate,
            "patience": self.patience,
            "device": None if self.device == "cpu" else self.device,
        }
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items() if value is not None)
        return f"lrpca.learn.train({given})"


def resolve(
    *,
    rank: Any,
    shape: Any,
    outlier_fraction: Any,
    model: Any,
    seed: Any,
    form: Any,
    way: Any,
    layers: Any,
    depth: Any,
    steps: Any,
    learning_rate: Any,
    patience: Any,
    device: Any,
) -> Request:
    """Check the arguments of `lrpca.learn.train` and fill in what was not given."""
    for name, value, known in (("model", model, MODELS), ("way", way, WAYS)):
        if value not in known:
            raise ValueError(f"{name}={value!r} is unknown; use one of {', '.join(known)}")
    if not (isinstance(form, Schedule) or (isinstance(form, str) and form in FORMS)):
        raise ValueError(f"form={form!r} is unknown; use one of {', '.join(FORMS)}, or a Schedule to begin from")
    for name, value, least in (
        ("rank", rank, 1),
        ("random_state", seed, 0),
        ("layers", layers, 1),
        ("depth", depth, 1),
        ("steps", steps, 1),
        ("patience", patience, 1),
    ):
        needed = name in ("rank", "random_state")
        if (value is not None or needed) and not (is_integer(value) and value >= least):
            raise ValueError(f"{name}={value!r} is not an integer of at least {least}; use {name}={least} or more")
    shape = _check_shape(shape, rank)
    if not (_is_real(outlier_fraction) and 0 <= float(outlier_fraction) < 1):
        raise ValueError(f"outlier_fraction={outlier_fraction!r} is not a number from 0 to below 1; e.g. 0.1")
    if learning_rate is not None and not (_is_real(learning_rate) and 0 < float(learning_rate) < 10):
        raise ValueError(f"learning_rate={learning_rate!r} is not a number between 0 and 10; e.g. 0.05")
    place = check_device(device)
    given = isinstance(form, Schedule)
    plan = form if isinstance(form, Schedule) else FORMS[form]
    adaptive = plan.kind == "adaptive"
    if way == "paper" and form != "paper":
        name = "<a Schedule>" if given else repr(form)
        raise ValueError(
            f"form={name} does not fit way='paper', which begins with numbers of its own; use form='paper'"
        )
    if way == "paper" and patience is not None:
        raise ValueError(f"patience={patience} does not fit way='paper', whose stages are all needed; leave it out")
    layers = _layers(layers, plan, model, given)
    if depth is None:
        depth = {"fnn": layers, "rnn": _RNN_DEPTH[way], "frmnn": layers + (0 if adaptive else _BEYOND[way])}[model]
    _check_depth(depth, layers, model, way)
    return Request(
        form=plan,
        given=given,
        shape=shape,
        problems=PaperProblems(_smaller(shape, int(rank)) if adaptive else shape, int(rank), float(outlier_fraction)),
        model=model,
        way=way,
        seed=int(seed),
        layers=layers,
        depth=int(depth),
        steps=_steps(steps, way, model, layers, int(depth), adaptive),
        learning_rate=float(learning_rate or _rate(way, adaptive)),
        patience=None if patience is None else int(patience),
        device=str(place),
    )


def make_course(request: Request, source: Source) -> tuple[Course, Judge]:
    """Return the steps to take and the problems to judge them by."""
    device = torch.device(request.device)
    training, held_out = source.split()
    rng = np.random.default_rng([request.seed, 1])
    judges = [prepare(held_out.draw(rng), device=device, seed=k) for k in range(max(_HELD_OUT, held_out.variety // 4))]
    if request.way == "paper":
        course: Course = PaperCourse(
            training,
            seed=request.seed,
            model=request.model,
            layers=request.layers,
            depth=request.depth,
            steps=request.steps,
            learning_rate=request.learning_rate,
            device=device,
        )
        return course, Judge(judges)
    draw = drawn_from(training, request.seed, dtype=torch.float64, device=device)
    # On the CPU: widths of peaks, from which thresholds are guessed, turn rounding into differences of 1e-4.
    begin = _begin(request, drawn_from(training, request.seed, dtype=torch.float64, device="cpu")(0))
    network = UnrolledNetwork(begin, request.model)
    frozen: tuple[int, ...] = ()
    if begin.kind == "adaptive":
        network.tail.requires_grad_(False)
        frozen = (0, begin.layers) if begin.layers > request.layers else (0,)
    course = FastCourse(
        network, draw, depth=request.depth, steps=request.steps, learning_rate=request.learning_rate, frozen=frozen
    )
    return course, Judge(judges)


def _begin(request: Request, data: Data) -> Schedule:
    """Return the numbers to begin with."""
    form, layers, recurrent = request.form, request.layers, request.model != "fnn"
    if form.kind == "absolute":
        # Numbers that were made for another size are scaled by the paper's rule.
        meant_for = {"shape": data.shape, "rank": data.rank} if data.scales else {"shape": None, "rank": None}
        form = replace(form.scaled_to(data.shape, data.rank) if data.scales else form, **meant_for)
        if not request.given:
            return first_guess(form, data, layers, model=request.model)
        endless = form if form.tail is not None else replace(form, tail=_TAIL)
        numbers_of = [endless.at(k) or (0.0, 0.0) for k in range(1, layers + 1)]
        thresholds = [form.thresholds[0], *(threshold for threshold, _ in numbers_of)]
        steps = [0.0, *(step for _, step in numbers_of)]
        tail, floor = (endless.tail, form.floor) if recurrent else (None, None)
        return replace(form, thresholds=thresholds, steps=steps, tail=tail, floor=floor)
    numbers_of = [form.at(k) or (form.thresholds[-1], form.steps[-1]) for k in range(1, layers + 1)]
    if data.held_out is not None and not request.given:
        lowest, step = _NOISY
        numbers_of = [(number, step) for number in np.geomspace(form.thresholds[-1], lowest, layers).tolist()]
    thresholds = [form.thresholds[0], *(threshold for threshold, _ in numbers_of)]
    steps = [0.0, *(step for _, step in numbers_of)]
    if request.model == "frmnn":
        thresholds, steps = [*thresholds, _REST[0]], [*steps, _REST[1]]
    return replace(form, thresholds=thresholds, steps=steps, tail=(1.0, 1.0) if recurrent else None)


def _layers(layers: int | None, form: Schedule, model: str, given: bool) -> int:
    if model == "rnn":
        if layers is not None and layers > 1:
            raise ValueError(
                f"layers={layers} does not fit model='rnn', all of whose layers share numbers; leave it out"
            )
        return 1
    if layers is not None:
        return int(layers)
    if given and form.layers > 1:
        # The layer of rest that follows learned ones is put there again.
        rests = form.kind == "adaptive" and (form.thresholds[-1], form.steps[-1]) == _REST
        return form.layers - 1 if rests else form.layers
    if form.kind == "adaptive":
        return _ADAPTIVE_LAYERS
    return _FNN_LAYERS if model == "fnn" else _FRMNN_LAYERS


def _check_depth(depth: int, layers: int, model: str, way: str) -> None:
    if model == "fnn" and depth > layers:
        raise ValueError(f"depth={depth} is above layers={layers}; a feed-forward network has no others")
    if depth < layers:
        raise ValueError(
            f"depth={depth} is below layers={layers}, and layers beyond it would stay untrained; give more"
        )
    if way == "paper" and model == "frmnn" and depth == layers:
        raise ValueError(f"depth={depth} leaves no layer to search the recurrence on; give more than layers={layers}")


def _steps(steps: int | None, way: str, model: str, layers: int, depth: int, adaptive: bool) -> int:
    if way == "paper":
        stages = full_stages(model, layers, depth)
        return sum(stage.steps for stage in (stages if steps is None else shared_out(stages, int(steps))))
    return int(steps or (_ADAPTIVE_STEPS if adaptive else _ABSOLUTE_STEPS))


def _rate(way: str, adaptive: bool) -> float:
    if way == "paper":
        return PAPER_RATE
    return _ADAPTIVE_RATE if adaptive else _ABSOLUTE_RATE


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)


def _check_shape(shape: Any, rank: int) -> tuple[int, int]:
    try:
        n1, n2 = shape
    except (TypeError, ValueError):
        n1 = n2 = None
    if not (is_integer(n1) and is_integer(n2) and min(n1, n2) >= 1):
        raise ValueError(f"shape={shape!r} is not a pair of positive integers; e.g. (1000, 1000)")
    if 2 * rank > min(n1, n2):
        raise ValueError(
            f"rank={rank} is above half of min(shape)={min(n1, n2)}; choose a smaller rank or larger shape"
        )
    return int(n1), int(n2)


def _smaller(shape: tuple[int, int], rank: int) -> tuple[int, int]:
    """Return a shape whose sides are at most 300, more for large ranks: adaptive numbers do not depend on size."""
    side = max(_SMALL_SIDE, _RANKS_PER_SIDE * rank)
    return min(shape[0], side), min(shape[1], side)
