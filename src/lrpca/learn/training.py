"""Train a schedule: what `lrpca.learn.train` and ``lrpca train`` do.

A trainer (the fast algorithm or the paper's) takes the steps; here they are counted, validated on held-out problems,
shown, saved at intervals and, after a kill, resumed where they were.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from lrpca.core import environment
from lrpca.core.devices import is_shortage
from lrpca.learn.checkpoint import Checkpoint
from lrpca.learn.data import as_source
from lrpca.learn.problems import Source
from lrpca.learn.request import Request, make_trainer, resolve
from lrpca.learn.trainer import Trainer, Validation, pack_parameters, torch_settings, unpack_parameters
from lrpca.schedule import Schedule

_EVALUATIONS = 20
# What counts as better, in powers of ten of the error.
_BETTER = 1e-3
# Divergence: the held-out errors are twice as large as before training, for so many evaluations. Losses of single
# problems differ too much among themselves to tell.
_TWICE, _WORSE_FOR = 0.3, 5
# Layers improve on the initialisation if the last error is below this part of the first, and do nothing above that.
_IMPROVES, _DOES_NOTHING = 0.9, 0.99


class DivergedError(RuntimeError):
    """Training has diverged; nothing it would return is of use."""


@dataclass(frozen=True)
class Progress:
    """The state of a training at an evaluation.

    Attributes
    ----------
    stage : str
        What is being done.
    step, total : int
        Steps taken, and steps in all.
    loss : float
        Of the last step; NaN before the first.
    score : float
        Mean log10 of the held-out errors of all layers; lower is better.
    errors : list of float
        Held-out error after layers 0, 1, ...; none while the recurrence is being slowed down at the end.
    seconds : float
        Time since the start, interrupted runs included.
    """

    stage: str
    step: int
    total: int
    loss: float
    score: float
    errors: list[float]
    seconds: float


def train(
    *,
    rank: int = 5,
    shape: tuple[int, int] = (1000, 1000),
    outlier_fraction: float = 0.1,
    model: str = "frmnn",
    random_state: int = 0,
    form: str | Schedule = "adaptive",
    way: str = "fast",
    data: Any = None,
    labels: str | None = None,
    layers: int | None = None,
    depth: int | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    patience: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = False,
    device: Any = None,
    progress: Callable[[Progress], object] | None = None,
    command: str | None = None,
) -> Schedule:
    """Learn the thresholds and steps of the iteration by unrolling it as a network.

    Without `data` the problems are the paper's: Gaussian factors, uniform outliers.

    Parameters
    ----------
    rank : int
        Rank of the low-rank part.
    shape : tuple of int
        Of the problems that are drawn. Adaptive schedules do not depend on it and are trained on smaller ones.
    outlier_fraction : float
        Share of outliers in the problems that are drawn.
    model : {"fnn", "rnn", "frmnn"}
        fnn: every layer has its own numbers. rnn: numbers follow a recurrence. frmnn: the first layers have their own,
        a recurrence follows, and the schedule never ends.
    random_state : int
        Seed of everything that is drawn: the same one gives the same model.
    form : {"adaptive", "paper"} or Schedule
        The parametrisation. adaptive: thresholds in units of the inlier scale, redescending influence, tangent step;
        the result works at any scale, shape and rank. paper: numbers for the given shape and rank, soft threshold,
        scaled step. A schedule: its parametrisation, and its numbers to begin with.
    way : {"fast", "paper"}
        The algorithm. fast: all layers at once, by the logarithm of the error. paper: layer after layer by plain
        gradient descent on fresh problems (17 500 steps for 15 layers), then a grid search of the recurrence.
    data : optional
        What to train on instead: a source of problems (`lrpca.learn.problems`), pairs ``[(Y, X), ...]`` of data and
        their low-rank parts, or data alone ``[Y, ...]``, as arrays or paths of files.
    labels : str, optional
        For data alone: a method of `lrpca.decompose` whose answers are the labels (the paper takes "altproj"). If not
        given, training is self-supervised, by entries that are held out.
    layers : int, optional
        Layers with their own numbers, K; default 7 for adaptive forms, 10 (frmnn) or 16 (fnn) for the paper's.
    depth : int, optional
        Layers whose errors count; default `layers`, and in the recurrence of the paper's form five more (way="paper")
        or twenty (way="fast").
    steps : int, optional
        Steps of training. way="paper" divides them among its stages; its default is 17 500 for an fnn of 14 layers.
    learning_rate : float, optional
        way="fast": rate of the logarithms of the numbers. way="paper": rate of the steps η (0.1); that of the
        thresholds is in proportion.
    patience : int, optional
        way="fast": stop early when the held-out score has not improved in so many of the twenty evaluations.
    checkpoint : str or path-like, optional
        A file to write the state to, at every evaluation.
    resume : bool
        Resume from the checkpoint, on any device. On the same device the result is that of an uninterrupted run, on
        another it differs by rounding.
    device : str or torch.device, optional
        Where matrices are read, e.g. "cuda"; on the CPU if not given. The same seed gives the same problems
        everywhere, and losses and gradients that differ by rounding.
    progress : callable, optional
        Called with a `Progress` at every evaluation.
    command : str, optional
        What to write into the model as the command that made it.

    Returns
    -------
    Schedule
        With command, seed, versions, description of the data and scores in `meta`.

    Raises
    ------
    DivergedError
        Something has become infinite, or the held-out errors have grown for good.
    MemoryError
        The device cannot hold the problems.

    Examples
    --------
    >>> s = train(rank=2, shape=(60, 60), layers=2, steps=4, random_state=1)
    >>> s.kind, s.layers
    ('adaptive', 3)
    """
    began = time.perf_counter()
    sizes = (layers, depth, steps, learning_rate, patience)
    request = resolve(Request(rank, shape, outlier_fraction, model, form, way, random_state, *sizes, device))
    source = as_source(data, labels, request.problems, rank=rank, seed=request.random_state)
    store = _checkpoint(checkpoint, resume, request, source)
    with torch_settings(request.device), _memory_of(request, data is not None):
        try:
            trainer, validation = make_trainer(request, source)
        except FloatingPointError as error:
            raise DivergedError(f"training diverged before its first step: {error}; check the data") from error
        run = _Run(trainer, validation, store, patience, progress)
        if resume:
            run.restore()
        before = time.perf_counter()
        curve = run.to_the_end()
    meta = {
        "command": command or request.as_call(),
        "seed": request.random_state,
        "versions": environment.versions(("torch",)),
        "date": environment.date(),
        "data": source.describe(),
        "training": {**request.describe(), "steps_taken": trainer.position},
        "scores": {"held_out_errors": _rounded(curve), "score": round(validation.score(curve), 4), **run.report},
        "seconds": round(run.seconds + before - began, 1),
    }
    return trainer.network.schedule(meta)


def _checkpoint(checkpoint: Any, resume: bool, request: Request, source: Source) -> Checkpoint | None:
    if checkpoint is None:
        if resume:
            raise ValueError("resume=True has nothing to go on from; pass checkpoint= as well")
        return None
    store = Checkpoint(checkpoint, {**request.describe(), "seed": request.random_state, "data": source.describe()})
    if store.path.exists() and not resume:
        raise FileExistsError(
            f"checkpoint={str(store.path)!r} exists; go on from it with resume=True, or choose another file"
        )
    if not store.path.parent.is_dir():
        raise FileNotFoundError(
            f"checkpoint={str(store.path)!r} is in a folder that does not exist; make {str(store.path.parent)!r} first"
        )
    return store


@contextmanager
def _memory_of(request: Request, has_data: bool) -> Iterator[None]:
    try:
        yield
        return
    except RuntimeError as error:
        if not is_shortage(error):
            raise
    # Raised out of the handler: an exception it came from would keep alive whatever was being computed.
    what = "data; use smaller matrices" if has_data else f"shape={request.problems.shape}; use a smaller one"
    beside = "" if request.device == "cpu" else ", or device='cpu'"
    raise MemoryError(f"device={request.device!r} has too little memory for {what}{beside}")


class _Run:
    """One training: steps, evaluations, the best numbers so far, checkpoints."""

    def __init__(
        self,
        trainer: Trainer,
        validation: Validation,
        store: Checkpoint | None,
        patience: int | None,
        progress: Callable[[Progress], object] | None,
    ) -> None:
        self._trainer, self._validation, self._store = trainer, validation, store
        self._patience, self._progress = patience, progress
        self._every = max(1, math.ceil(trainer.total / _EVALUATIONS))
        self._began = time.perf_counter()
        self._earlier = 0.0
        self._first_score = self._best_score = self._score = math.inf
        self._best: dict[str, Any] = {}
        self._worse = self._waiting = 0
        self._loss = math.nan
        # Held-out errors before the first step, and the score at every evaluation.
        self.report: dict[str, Any] = {"errors_before": None, "history": []}

    @property
    def seconds(self) -> float:
        """Time of training, interrupted runs included."""
        return self._earlier + time.perf_counter() - self._began

    def restore(self) -> None:
        """Go back to the checkpoint."""
        assert self._store is not None
        content = self._store.load()
        try:
            self._trainer.restore(content["trainer"])
            self._best, self._earlier = content["best"], float(content["seconds"])
            scores = (content[name] for name in ("first_score", "best_score"))
            self._first_score, self._best_score = (math.inf if score is None else float(score) for score in scores)
            self._waiting = int(content["waiting"])
            self.report = {name: content["report"][name] for name in self.report}
            if not 0 <= self._trainer.position <= self._trainer.total:
                raise ValueError(f"step {self._trainer.position} of {self._trainer.total}")
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"checkpoint={str(self._store.path)!r} lacks what training needs ({error}); choose another file"
            ) from error

    def _state(self) -> dict[str, Any]:
        return {
            "trainer": self._trainer.state(),
            "best": self._best,
            "best_score": _finite(self._best_score),
            "first_score": _finite(self._first_score),
            "waiting": self._waiting,
            "seconds": self.seconds,
            "report": self.report,
        }

    def to_the_end(self) -> list[float]:
        """Take all steps and return the held-out errors of the network's final numbers."""
        trainer = self._trainer
        if not self.report["history"]:
            self._evaluate()
        patience = math.inf if self._patience is None or not trainer.keeps_best else self._patience
        while trainer.position < trainer.total and self._waiting < patience:
            self._take_step()
            if trainer.position % self._every == 0 or trainer.position == trainer.total:
                self._evaluate()
        if self._worse:
            raise self._diverged(self._risen())
        if trainer.keeps_best:
            unpack_parameters(trainer.network, self._best)
        if trainer.finishing is not None:
            self._show(trainer.finishing, self._best_score, [])
        trainer.finish(self._validation.problems)
        curve = self._validation.curve(trainer.network, trainer.depth)
        if not math.isfinite(self._validation.score(curve)):
            raise self._diverged("the held-out error is not finite")
        if self._does_nothing(curve):
            raise self._diverged("the layers no longer improve on the initialisation")
        return curve

    def _does_nothing(self, curve: list[float]) -> bool:
        """Tell whether layers that improved before have been trained to thresholds or steps next to zero."""
        if curve[-1] > curve[0]:
            return True
        before = self.report["errors_before"]
        if not before or None in before or before[-1] > _IMPROVES * before[0]:
            return False
        return curve[-1] > _DOES_NOTHING * curve[0]

    def _take_step(self) -> None:
        try:
            self._loss = self._trainer.step()
        except FloatingPointError as error:
            raise self._diverged(str(error)) from error
        if not math.isfinite(self._loss):
            raise self._diverged(f"the loss is {self._loss}")
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self._trainer.network.parameters()):
            raise self._diverged("a threshold or step is not finite")

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(
            f"training diverged in step {self._trainer.position}: {what}; lower learning_rate, or check the data"
        )

    def _evaluate(self) -> None:
        trainer = self._trainer
        curve = self._validation.curve(trainer.network, trainer.trained_depth)
        value = self._validation.score(curve)
        if trainer.position == 0:
            self.report["errors_before"] = _rounded(curve)
        self.report["history"].append([trainer.position, _finite(round(value, 4) if math.isfinite(value) else value)])
        self._compare(value)
        # A state that has become worse is not saved.
        if self._store is not None and not self._worse:
            self._store.save(self._state())
        self._show(trainer.stage, value, curve)

    def _show(self, stage: str, value: float, curve: list[float]) -> None:
        if self._progress is not None:
            trainer = self._trainer
            self._progress(Progress(stage, trainer.position, trainer.total, self._loss, value, curve, self.seconds))

    def _compare(self, value: float) -> None:
        """Keep the best numbers; raise where training has only made them worse for long."""
        if self._trainer.position == 0:
            self._first_score = value
        if not self._best or value < self._best_score - _BETTER:
            self._best, self._best_score, self._waiting = pack_parameters(self._trainer.network), value, 0
        else:
            self._waiting += 1
        self._score = value
        saved = self._trainer.keeps_best and self._best_score < self._first_score
        harmful = value > self._first_score + _TWICE and not saved
        self._worse = self._worse + 1 if harmful else 0
        if self._worse >= _WORSE_FOR:
            raise self._diverged(self._risen())

    def _risen(self) -> str:
        return f"the held-out score has risen from {self._first_score:.3g} to {self._score:.3g} and stays there"


def _finite(value: float) -> float | None:
    """Return a number as strict JSON holds it: None for one that is not finite."""
    return value if math.isfinite(value) else None


def _rounded(errors: list[float]) -> list[float | None]:
    """Return errors with the digits that are worth reading; None for one that is not finite."""
    return [float(f"{error:.3g}") if math.isfinite(error) else None for error in errors]
