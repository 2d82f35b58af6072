"""What an experiment is and what it measured: one kind of setup, of run and of measurement for all experiments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lrpca.bench.experiments.statistics import as_count, digits, iterations_to, typical
from lrpca.bench.measuring import Table
from lrpca.testing import Problem, planted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Say = Callable[[str], None]

PROBLEMS = (
    "Problems as in the paper: X* = U Vᵀ, U and V Gaussian with variance 1/n; a share α of the entries, chosen "
    "uniformly, gets a number added that is uniform in ±mean|X*|."
)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper beside what was measured."""

    paper: str
    of: str  # the method it is compared with
    measured: str
    confirmed: bool | None  # None: the numbers cannot tell


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

    def draw(self, seed: int) -> Problem:
        """Return a problem of this kind."""
        return planted((self.n, self.n), rank=self.rank, outlier_fraction=self.alpha, random_state=seed)


def shares(n: int, *alphas: float) -> tuple[Setting, ...]:
    """Return the settings of one size with several shares of outliers."""
    return tuple(Setting(n, alpha=alpha) for alpha in alphas)


@dataclass(frozen=True)
class Setup:
    """How large an experiment is.

    Attributes
    ----------
    settings : tuple of Setting
        The kinds of problems; others are compared with the first.
    repeat, repeated : int, str
        Number of problems, or of trained models, for each setting; "problems" or "trainings".
    max_iter : int
        Maximum number of iterations of a run.
    tuning_n, tuning_iterations : int
        Size of the problems that ScaledGD is tuned on, and maximum number of iterations in tuning.
    steps, timed_steps : int
        Training steps, the default of `lrpca.learn.train` if None; steps of the paper's algorithm that are timed.
    seed : int
        Problem or training i has the seed `seed` + i.
    """

    settings: tuple[Any, ...]
    repeat: int
    repeated: str = "problems"
    max_iter: int = 0
    tuning_n: int = 0
    tuning_iterations: int = 150
    steps: int | None = None
    timed_steps: int = 0
    seed: int = 0

    def __str__(self) -> str:
        sizes, ranks, alphas = (
            ", ".join(f"{value:g}" for value in sorted({getattr(setting, name) for setting in self.settings}))
            for name in ("n", "rank", "alpha")
        )
        return f"n = {sizes}, rank {ranks}, α = {alphas}"

    @property
    def base(self) -> Any:
        """The first setting."""
        return self.settings[0]

    def caption(self) -> str:
        """Return the line below the figure."""
        repeated = self.repeated.removesuffix("s") if self.repeat == 1 else self.repeated
        return f"{self}; {self.repeat} {repeated} each"

    def describe(self) -> str:
        """Return which problems were drawn, and how."""
        seeds = f"Seeds {self.seed} to {self.seed + self.repeat - 1}" if self.repeat > 1 else f"Seed {self.seed}"
        parts = [PROBLEMS, f"{seeds} of the {self.repeated}. Methods run on the same problems, in shuffled order."]
        if self.max_iter:
            parts.append(f"At most {self.max_iter} iterations.")
        if self.steps:
            parts.append(f"{self.steps} training steps instead of the default number.")
        return " ".join(parts)


@dataclass(frozen=True)
class Run:
    """One method on one problem; None is what was not measured or is not finite."""

    label: str
    setting: Any
    seed: int  # of the problem and of the method
    reason: str
    seconds: float | None = None  # wall time of the call, without the time of the callback
    iterations: int | None = None
    seconds_per_iteration: float = 0.0  # mean, without the initialisation
    early_seconds: float = 0.0  # the same over the first ten
    residual: float | None = None  # ‖Y - X - S‖ / ‖Y‖ at the end; for videos the median of |Y - X|
    error: float | None = None  # ‖X - X*‖ / ‖X*‖ at the end
    errors: Sequence[float] = ()  # the same after every iteration
    theorem: Sequence[float] = ()  # thresholds of the paper's theorem: ‖X*‖∞, then ‖X_{k-1} - X*‖∞
    distance: float | None = None  # ‖X - X_a‖ / ‖X_a‖, X_a being AltProj's answer on the same video


@dataclass(frozen=True)
class Training:
    """One trained model. `timed` below `steps` means that the time is extrapolated; 0 steps, trained elsewhere."""

    label: str
    setting: Any
    seed: int
    steps: int
    timed: int
    seconds: float
    held_out: Sequence[float] = ()  # error on held-out problems after layers 0, 1, ...
    thresholds: Sequence[float] = ()  # ζ and η of layers 0, 1, ...
    step_sizes: Sequence[float] = ()
    tail: Sequence[float] | None = None  # β and φ of the recurrence


@dataclass(frozen=True)
class Measurement:
    """Everything an experiment measured.

    Attributes
    ----------
    setup : Setup
    contestants : dict of str to str
        What each method was given, by label.
    runs, trainings : list of Run, list of Training
    pictures, notes : dict of str to str, list of str
        JPEG files in base64, by name; what a reader should know besides the numbers.
    """

    setup: Any
    contestants: Mapping[str, str]
    runs: Sequence[Run] = ()
    trainings: Sequence[Training] = ()
    pictures: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def of(self, label: str, setting: Any) -> list[Run]:
        """Return the runs of one method on one kind of problem."""
        return [run for run in self.runs if (run.label, run.setting) == (label, setting)]

    def settings_of(self, label: str) -> list[Any]:
        """Return the kinds of problems that a method ran on."""
        return [setting for setting in self.setup.settings if self.of(label, setting)]

    def trained(self, label: str, setting: Any) -> list[Training]:
        """Return the trainings of one label for one kind of problem."""
        return [training for training in self.trainings if (training.label, training.setting) == (label, setting)]

    def labels(self, *families: str) -> list[str]:
        """Return the labels that begin with one of the words; all if none is given."""
        return [label for label in self.contestants if not families or label.startswith(families)]

    def cases(self) -> list[tuple[Any, str, list[Run]]]:
        """Return setting, label and runs, in the order of the tables."""
        pairs = [(setting, label) for setting in self.setup.settings for label in self.contestants]
        return [(setting, label, runs) for setting, label in pairs if (runs := self.of(label, setting))]

    def iterations_to(self, goal: float, label: str, setting: Any) -> float:
        """Return the median number of iterations to an error; inf if it is not reached."""
        return typical(iterations_to(run.errors, goal) for run in self.of(label, setting))

    def arrivals(self, goal: float, finer: float, label: str, setting: Any) -> list[Any]:
        """Return cells: median and most iterations to an error, the runs that got there, the median to a finer one."""
        counts = [iterations_to(run.errors, goal) for run in self.of(label, setting)]
        reached = f"{sum(map(math.isfinite, counts))} of {len(counts)}"
        fine = self.iterations_to(finer, label, setting)
        return [as_count(typical(counts)), as_count(max(counts)), reached, as_count(fine)]

    def error_after(self, iteration: int, label: str, setting: Any) -> float | None:
        """Return the median error after an iteration, None if no run got so far; a run at its goal stays there."""
        errors = [
            run.errors[min(iteration, len(run.errors)) - 1]
            for run in self.of(label, setting)
            if run.errors and (iteration <= len(run.errors) or run.reason == "callback")
        ]
        return digits(typical(errors)) if errors else None

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold and `Experiment.read` reads."""
        records = {name: [_plain(record) for record in getattr(self, name)] for name in ("runs", "trainings")}
        return asdict(replace(self, runs=(), trainings=())) | records


def _plain(record: Any) -> dict[str, Any]:
    """Return a record without the fields that hold nothing."""
    return {name: value for name, value in asdict(record).items() if value is not None and value != ()}


@dataclass(frozen=True)
class Experiment:
    """A figure or table of the paper, and how to make it again.

    Attributes
    ----------
    name : str
        As ``lrpca reproduce`` is asked for it.
    title, summary, source, criteria : str
        Its title; one line on it, without sizes; which figure or table of the paper; when a claim counts as confirmed.
    full, quick : Setup
        As in the paper, and small.
    measure, tables, claims, draw : callable
        ``(setup, say) -> Measurement``, where `say` is called with what is being done; ``(measurement) -> list`` of
        `Table` and of `Claim`; ``(measurement, figure) -> None``.
    figure_size : tuple of float
        In inches.
    packages : tuple of str
        Packages that only this experiment needs.
    """

    measure: Callable[[Any, Say], Measurement]
    tables: Callable[[Measurement], list[Table]]
    claims: Callable[[Measurement], list[Claim]]
    draw: Callable[[Measurement, Figure], None]
    name: str
    title: str
    summary: str
    source: str
    full: Any
    quick: Any
    criteria: str
    figure_size: tuple[float, float] = (8.0, 4.2)
    packages: tuple[str, ...] = ()

    def read(self, record: Mapping[str, Any]) -> Measurement:
        """Return the measurement that a result file holds."""
        kind = type(self.full.base)
        setup = record["setup"] | {"settings": tuple(kind(**setting) for setting in record["setup"]["settings"])}
        records: list[list[Any]] = [
            [make(**{**item, "setting": kind(**item["setting"])}) for item in record[name]]
            for make, name in ((Run, "runs"), (Training, "trainings"))
        ]
        runs, trainings = records
        rest = (record["pictures"], record["notes"])
        return Measurement(type(self.full)(**setup), record["contestants"], runs, trainings, *rest)

    def is_small(self, setup: Any) -> bool:
        """Return whether a setup differs from the paper's in more than the seed or more problems."""
        return bool(self.full != replace(setup, seed=self.full.seed, repeat=min(setup.repeat, self.full.repeat)))

    def judge(self, m: Measurement) -> list[Claim]:
        """Return the claims; those of a small setup are neither confirmed nor refuted."""
        found = self.claims(m)
        return [replace(claim, confirmed=None) for claim in found] if self.is_small(m.setup) else found
