"""What the experiments on learning are made of: settings, trainings, and runs of what was learned."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import lrpca
from lrpca.bench.experiments.entrants import Contestant, published_model, run_trial
from lrpca.bench.experiments.measurement import PROBLEMS, Fact, Say, Table, listing, rounded
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
    """How large an experiment on learning is.

    Attributes
    ----------
    settings : tuple of Setting
        What is trained for and run on; the first is the base.
    repeat : int
        How often each measurement is made: problems that a model is run on, or trainings.
    repeated : str
        Which of them.
    max_iter : int
        Most iterations of a run.
    steps : int or None
        Steps of a training; None: as many as `lrpca.learn.train` takes by itself.
    timed_steps : int
        Steps of the paper's way of training that are timed.
    seed : int
        Problem or training i has the seed `seed` + i.
    """

    settings: tuple[Setting, ...]
    repeat: int
    repeated: str = "problems"
    max_iter: int = 0
    steps: int | None = None
    timed_steps: int = 0
    seed: int = 0

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
        return f"{self}; {_count(self.repeat, self.repeated)} each"

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
class Training:
    """One model, and what it took to learn it.

    Attributes
    ----------
    label : str
    n, rank, alpha
        The setting.
    seed : int
    steps, timed : int
        Steps of the training, and how many of them were made. Fewer: the time is extrapolated. 0: trained elsewhere.
    seconds : float
        Of the whole training: drawing problems, steps and evaluations.
    held_out : tuple of float
        Error on held-out problems after layers 0, 1, ...; empty where no model came out.
    thresholds, step_sizes : tuple of float
        ζ and η of layers 0, 1, ...
    tail : tuple of float or None
        β and φ of the recurrence.
    """

    label: str
    n: int
    rank: int
    alpha: float
    seed: int
    steps: int
    timed: int
    seconds: float
    held_out: tuple[float, ...] = ()
    thresholds: tuple[float, ...] = ()
    step_sizes: tuple[float, ...] = ()
    tail: tuple[float, ...] | None = None

    @property
    def setting(self) -> Setting:
        """What it was trained for."""
        return Setting(self.n, self.rank, self.alpha)


@dataclass(frozen=True)
class Run:
    """One model on one problem.

    Attributes
    ----------
    label : str
    n, rank, alpha
        The setting.
    seed : int
        Of the problem.
    reason : str
        Why it ended.
    errors : tuple of float
        ``‖X - X*‖ / ‖X*‖`` after every iteration.
    theorem : tuple of float
        The thresholds that the paper's theorem would set, where the experiment asks for them: ``‖X*‖∞``, and
        ``‖X_{k-1} - X*‖∞`` for layers k = 1, 2, ...
    """

    label: str
    n: int
    rank: int
    alpha: float
    seed: int
    reason: str
    errors: tuple[float, ...]
    theorem: tuple[float, ...] = ()

    @property
    def setting(self) -> Setting:
        """What kind of problem it was."""
        return Setting(self.n, self.rank, self.alpha)


@dataclass(frozen=True)
class LearningMeasurement:
    """All trainings and runs of an experiment.

    Attributes
    ----------
    setup : LearningSetup
    contestants : dict of str to str
        How each was made, by label.
    trainings : tuple of Training
    runs : tuple of Run
    notes : tuple of str
    """

    setup: LearningSetup
    contestants: Mapping[str, str]
    trainings: tuple[Training, ...] = ()
    runs: tuple[Run, ...] = ()
    notes: tuple[str, ...] = ()

    def trained(self, label: str, setting: Setting) -> list[Training]:
        """Return the trainings of one label for one setting."""
        return [training for training in self.trainings if (training.label, training.setting) == (label, setting)]

    def ran(self, label: str, setting: Setting) -> list[Run]:
        """Return the runs of one model on problems of one setting."""
        return [run for run in self.runs if (run.label, run.setting) == (label, setting)]

    def listings(self) -> list[Table]:
        """Return all trainings and all runs."""
        numbers = ("held_out", "thresholds", "step_sizes", "tail")
        trained = [training for training in self.trainings if training.steps]
        found = [listing("All trainings", trained, leave_out=numbers)] if trained else []
        if self.runs:
            plain = listing("All runs", self.runs, leave_out=("errors", "theorem"))
            rows = [
                [*row, len(run.errors), f"{run.errors[-1]:.1e}" if run.errors else None]
                for row, run in zip(plain.rows, self.runs, strict=True)
            ]
            found.append(Table(plain.caption, [*plain.columns, "iterations", "last error"], rows))
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold, and `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> LearningMeasurement:
        """Make it again from what was stored; other keys are passed over."""
        settings = tuple(Setting(**setting) for setting in content["setup"]["settings"])
        setup = LearningSetup(**{**content["setup"], "settings": settings})
        trainings = tuple(Training(**_tuples(Training, record)) for record in content["trainings"])
        runs = tuple(Run(**_tuples(Run, record)) for record in content["runs"])
        return cls(setup, content["contestants"], trainings, runs, tuple(content["notes"]))


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
    """Train a model by `lrpca.learn.train` and note what it took.

    Parameters
    ----------
    label : str
        What to call it.
    setting : Setting
    setup : LearningSetup
        Steps, if other than usual.
    say : callable
    seed : int
    model, form : str
        As `lrpca.learn.train` takes them.
    """
    what = f"training {label}, {setting}"
    say(what)
    began = told = time.perf_counter()

    def watch(progress: Any) -> None:
        nonlocal told
        if time.perf_counter() - told > SAY_EVERY:
            told = time.perf_counter()
            say(f"{what}: step {progress.step} of {progress.total}")

    schedule = lrpca.learn.train(
        rank=setting.rank,
        shape=(setting.n, setting.n),
        outlier_fraction=setting.alpha,
        random_state=seed,
        steps=setup.steps,
        model=model,
        form=form,
        progress=watch,
    )
    seconds = time.perf_counter() - began
    steps = schedule.meta["training"]["steps_taken"]
    record = Training(
        label,
        setting.n,
        setting.rank,
        setting.alpha,
        seed,
        steps,
        steps,
        float(f"{seconds:.4g}"),
        held_out=tuple(schedule.meta["scores"]["held_out_errors"]),
        thresholds=tuple(float(f"{value:.6g}") for value in schedule.thresholds),
        step_sizes=tuple(float(f"{value:.6g}") for value in schedule.steps),
        tail=None if schedule.tail is None else tuple(float(f"{value:.6g}") for value in schedule.tail),
    )
    return schedule, record


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
    contestant = Contestant(label, {setting.alpha: {"schedule": schedule}}, "")
    trial = run_trial(contestant, problem, setting.alpha, seed, tol=0, max_iter=max_iter, stop_at_error=stop_at_error)
    return Run(label, setting.n, setting.rank, setting.alpha, seed, trial.reason, trial.errors or ())


def published_note(alphas: Iterable[float]) -> str:
    """Return a sentence on the published models that are not there, or on how they are run."""
    missing = [f"{alpha:g}" for alpha in alphas if published_model(alpha) is None]
    if not missing:
        return "The published models are run as published: 16 layers, no recurrent tail."
    return (
        f"The models published with the paper take no part at α = {', '.join(missing)}: none was found; set "
        "LRPCA_DATA to the folder that has published-lrpca/."
    )


def iterations_to(run: Run, goal: float) -> float:
    """Return after how many iterations the error was below the goal; inf if never.

    Examples
    --------
    >>> iterations_to(Run("", 60, 5, 0.1, 0, "max_iter", (1e-2, 1e-3, 1e-5)), 1e-4)
    3
    """
    return next((k for k, error in enumerate(run.errors, start=1) if error < goal), math.inf)


def typical(values: Iterable[float]) -> float:
    """Return the median; of an even number of values the larger middle one, inf of none.

    Examples
    --------
    >>> typical([4.0, 3.0, 9.0, 5.0])
    5.0
    """
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else math.inf


def typical_count(m: LearningMeasurement, label: str, setting: Setting, goal: float) -> float:
    """Return the median of the iterations to the goal; inf if never, or where there are no runs."""
    return typical(iterations_to(run, goal) for run in m.ran(label, setting))


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


def as_count(value: float) -> int | None:
    """Return a count for a table, None for never."""
    return int(value) if math.isfinite(value) else None


def in_words(value: float) -> str:
    """Return a count for a sentence."""
    return f"{value:g}" if math.isfinite(value) else "never"


def _count(number: int, plural: str) -> str:
    return f"{number} {plural.removesuffix('s') if number == 1 else plural}"


def _tuples(kind: Any, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known fields of a record, lists being tuples again."""
    names = {field.name for field in fields(kind)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in record.items() if name in names}
