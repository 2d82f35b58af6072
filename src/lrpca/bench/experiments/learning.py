"""What the experiments on learning are made of: settings, trainings, and runs of what was learned."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import lrpca
from lrpca.bench.experiments.measurement import PROBLEMS, Fact, Records, Say
from lrpca.bench.experiments.methods import Method, run_trial
from lrpca.bench.experiments.statistics import iterations_to, rounded, typical
from lrpca.schedule import Schedule
from lrpca.testing import Problem, planted

# The paper's FRMNN has this many layers with numbers of their own.
FREE_LAYERS = 10
# Trainings that take long say so at least this often.
SAY_EVERY = 10.0


@dataclass(frozen=True)
class Setting:
    """A kind of problem: n x n, of a rank, with a share α of outliers.

    Examples
    --------
    >>> str(Setting(3000))
    'n = 3000, r = 5, α = 0.1'
    """

    n: int
    rank: int = 5
    alpha: float = 0.1

    def __str__(self) -> str:
        return f"n = {self.n}, r = {self.rank}, α = {self.alpha:g}"


@dataclass(frozen=True)
class LearningSetup:
    """How large an experiment on learning is."""

    settings: tuple[Setting, ...]  # what is trained for and run on; the first is the base
    repeat: int  # how often each measurement is made: problems that a model is run on, or trainings
    repeated: str = "problems"  # which of them
    max_iter: int = 0  # most iterations of a run
    steps: int | None = None  # steps of a training; None: as many as `lrpca.learn.train` takes by itself
    timed_steps: int = 0  # steps of the paper's way of training that are timed
    seed: int = 0  # problem or training i has the seed `seed` + i

    def __str__(self) -> str:
        sizes, ranks, shares = (
            ", ".join(f"{value:g}" for value in sorted({getattr(setting, name) for setting in self.settings}))
            for name in ("n", "rank", "alpha")
        )
        return f"n = {sizes}, rank {ranks}, α = {shares}"

    @property
    def base(self) -> Setting:
        """The setting that the others are compared with."""
        return self.settings[0]

    def caption(self) -> str:
        """Return what was measured, for the line below a figure."""
        repeated = self.repeated.removesuffix("s") if self.repeat == 1 else self.repeated
        return f"{self}; {self.repeat} {repeated} each"

    def facts(self) -> list[Fact]:
        """Return the sizes to show large."""
        base, others = self.base, len(self.settings) - 1
        note = f"rank {base.rank}, α = {base.alpha:g}" + (f", and {others} more" if others else "")
        return [
            Fact("Size", f"{base.n} x {base.n}", note),
            Fact(self.repeated.capitalize(), str(self.repeat), "for each setting"),
        ]

    def describe(self) -> str:
        """Return which problems were drawn, and how."""
        seeds = f"Seeds {self.seed} to {self.seed + self.repeat - 1}" if self.repeat > 1 else f"Seed {self.seed}"
        parts = [PROBLEMS, f"{seeds} of the {self.repeated}; training draws its own problems."]
        if self.max_iter:
            parts.append(f"At most {self.max_iter} iterations.")
        if self.steps:
            parts.append(f"{self.steps} steps of training instead of the usual number.")
        return " ".join(parts)


@dataclass(frozen=True)
class Record:
    """A training or a run of a model, and the setting it was made in."""

    label: str
    n: int
    rank: int
    alpha: float
    seed: int

    @property
    def setting(self) -> Setting:
        """The kind of problem."""
        return Setting(self.n, self.rank, self.alpha)


@dataclass(frozen=True)
class Training(Record):
    """One model, and what it took to learn it."""

    # Steps of the training, and how many of them were made. Fewer: the time is extrapolated. 0: trained elsewhere.
    steps: int
    timed: int
    seconds: float  # of the whole training: drawing problems, steps and evaluations
    held_out: tuple[float, ...] = ()  # error on held-out problems after layers 0, 1, ...; empty where no model came out
    thresholds: tuple[float, ...] = ()  # ζ and η of layers 0, 1, ...
    step_sizes: tuple[float, ...] = ()
    tail: tuple[float, ...] | None = None  # β and φ of the recurrence


@dataclass(frozen=True)
class Run(Record):
    """One model on one problem."""

    reason: str
    errors: tuple[float, ...]  # ‖X - X*‖ / ‖X*‖ after every iteration
    # The thresholds of the paper's theorem, where asked for: ‖X*‖∞, and ‖X_{k-1} - X*‖∞ for layers k = 1, 2, ...
    theorem: tuple[float, ...] = ()

    @property
    def iterations(self) -> int:
        """How many iterations it took."""
        return len(self.errors)

    @property
    def last_error(self) -> str | None:
        """The last error, as text."""
        return f"{self.errors[-1]:.1e}" if self.errors else None


@dataclass(frozen=True)
class LearningMeasurement(Records):
    """All trainings and runs of an experiment."""

    setup: LearningSetup
    contestants: Mapping[str, str]  # how each was made, by label
    trainings: tuple[Training, ...] = ()
    runs: tuple[Run, ...] = ()
    notes: tuple[str, ...] = ()

    def trained(self, label: str, setting: Setting) -> list[Training]:
        """Return the trainings of one label for one setting."""
        return [training for training in self.trainings if (training.label, training.setting) == (label, setting)]

    def ran(self, label: str, setting: Setting) -> list[Run]:
        """Return the runs of one model on problems of one setting."""
        return [run for run in self.runs if (run.label, run.setting) == (label, setting)]

    def iterations_to(self, goal: float, label: str, setting: Setting) -> float:
        """Return the median of the iterations to the goal; inf if never, or where there are no runs."""
        return typical(iterations_to(run.errors, goal) for run in self.ran(label, setting))


def train(
    label: str,
    setting: Setting,
    setup: LearningSetup,
    say: Say,
    *,
    seed: int,
    model: str = "frmnn",
    form: str = "paper",
) -> tuple[Schedule, Training]:
    """Train a model by `lrpca.learn.train` and note what it took."""
    what = f"training {label}, {setting}"
    say(what)
    began = told = time.perf_counter()

    def watch(progress: Any) -> None:
        nonlocal told
        if time.perf_counter() - told > SAY_EVERY:
            told = time.perf_counter()
            say(f"{what}: step {progress.step} of {progress.total}")

    schedule = lrpca.learn.train(
        **{"rank": setting.rank, "shape": (setting.n, setting.n), "outlier_fraction": setting.alpha},
        **{"random_state": seed, "steps": setup.steps, "model": model, "form": form, "progress": watch},
    )
    seconds = time.perf_counter() - began
    steps = schedule.meta["training"]["steps_taken"]
    numbers = (_digits(values) for values in (schedule.thresholds, schedule.steps, schedule.tail or ()))
    thresholds, step_sizes, tail = numbers
    return schedule, Training(
        *(label, setting.n, setting.rank, setting.alpha, seed, steps, steps, float(f"{seconds:.4g}")),
        *(tuple(schedule.meta["scores"]["held_out_errors"]), thresholds, step_sizes, tail or None),
    )


def _digits(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)


def draw_problem(setting: Setting, seed: int) -> Problem:
    """Return a test problem of the paper's kind."""
    shape = (setting.n, setting.n)
    return planted(shape, rank=setting.rank, outlier_fraction=setting.alpha, random_state=seed)


def run_model(
    label: str,
    schedule: Schedule,
    problem: Problem,
    setting: Setting,
    seed: int,
    *,
    max_iter: int,
    stop_at_error: float,
) -> Run:
    """Run a schedule on a problem, noting the error after every iteration."""
    method = Method(label, {setting.alpha: {"schedule": schedule}}, "")
    trial = run_trial(method, problem, setting.alpha, seed, tol=0, max_iter=max_iter, stop_at_error=stop_at_error)
    return Run(label, setting.n, setting.rank, setting.alpha, seed, trial.reason, trial.errors or ())


def error_after(runs: Iterable[Run], iteration: int) -> float | None:
    """Return the median error after an iteration, None if no run got so far.

    Runs that ended because the goal was reached stay where they are.
    """
    errors = [
        run.errors[min(iteration, len(run.errors)) - 1]
        for run in runs
        if run.errors and (iteration <= len(run.errors) or run.reason == "callback")
    ]
    return rounded(typical(errors)) if errors else None
