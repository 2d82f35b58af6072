"""What an experiment is, and what it measured: plain records that go to JSON and come back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Say = Callable[[str], None]

PROBLEMS = (
    "Problems as in the paper: X* = U Vᵀ, U and V Gaussian with variance 1/n; a share α of the entries, chosen "
    "uniformly, gets a number added that is uniform in ±mean|X*|."
)


class Fact(NamedTuple):
    """A number that a page shows large, and what it is."""

    label: str
    value: str
    note: str


@dataclass(frozen=True)
class Table:
    """Rows of numbers, texts or None, under named columns."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


class AnySetup(Protocol):
    """What every kind of setup tells: its size is its own affair. A frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def seed(self) -> int:
        """The seed everything is drawn from."""

    @property
    def repeat(self) -> int:
        """How often every measurement is made, on other problems."""

    def caption(self) -> str:
        """Return what was measured, for the line below a figure."""

    def facts(self) -> list[Fact]:
        """Return the sizes to show large."""

    def describe(self) -> str:
        """Return which problems were drawn, and how, in a few sentences."""


class AnyMeasurement(Protocol):
    """What every kind of measurement tells."""

    @property
    def setup(self) -> AnySetup:
        """How large it is."""

    @property
    def contestants(self) -> Mapping[str, str]:
        """What each contestant was told, by label."""

    @property
    def notes(self) -> Sequence[str]:
        """What a reader should know beside the numbers."""

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""

    def listings(self) -> list[Table]:
        """Return everything that was run, a row each."""


SetupT = TypeVar("SetupT", bound=AnySetup)
MeasurementT = TypeVar("MeasurementT", bound=AnyMeasurement)


@dataclass(frozen=True)
class Setup:
    """How large an experiment is.

    Attributes
    ----------
    n : int
        Rows and columns of every problem.
    alphas : tuple of float
        Shares of outliers.
    repeat : int
        Problems for each of them.
    max_iter : int
        Most iterations of every method.
    tuning_n : int
        Rows and columns of the problems that ScaledGD is tuned on.
    tuning_iterations : int
        Most iterations in tuning.
    seed : int
        Problem i has the seed `seed` + i.
    rank : int
        Rank of every problem, which the methods are told.
    """

    n: int
    alphas: tuple[float, ...]
    repeat: int
    max_iter: int
    tuning_n: int
    tuning_iterations: int = 150
    seed: int = 0
    rank: int = 5

    def __str__(self) -> str:
        return f"n = {self.n}, rank {self.rank}, α = " + ", ".join(f"{alpha:g}" for alpha in self.alphas)

    def caption(self) -> str:
        """Return what was measured, for the line below a figure."""
        return f"{self}; {self.repeat} problems each"

    def facts(self) -> list[Fact]:
        """Return the sizes to show large."""
        return [
            Fact("Size", f"{self.n} x {self.n}", f"rank {self.rank}, double precision"),
            Fact("Problems", str(self.repeat), "for each share of outliers"),
        ]

    def describe(self) -> str:
        """Return which problems were drawn, and how."""
        return (
            f"{PROBLEMS} Seeds {self.seed} to {self.seed + self.repeat - 1}, the same for all methods, which take "
            f"turns in shuffled order. At most {self.max_iter} iterations."
        )


@dataclass(frozen=True)
class Trial:
    """One method on one problem.

    Attributes
    ----------
    label : str
        Name of the contestant.
    alpha : float
        Share of outliers.
    seed : int
        Of the problem and of the method.
    seconds : float
        Wall time of the call of ``lrpca.decompose``, less that of watching it.
    iterations : int
    seconds_per_iteration, early_seconds : float
        Mean over the iterations, and over the first ten of them, initialisation not counted.
    reason : str
        Why it stopped.
    residual : float or None
        ``‖Y - X - S‖ / ‖Y‖`` at the end; None if it is not finite.
    error : float or None
        ``‖X - X*‖ / ‖X*‖`` at the end; None if it is not finite.
    errors : tuple of float or None
        The same after every iteration, where the experiment asks for it.
    """

    label: str
    alpha: float
    seed: int
    seconds: float
    iterations: int
    seconds_per_iteration: float
    early_seconds: float
    reason: str
    residual: float | None
    error: float | None
    errors: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper beside what was measured.

    Attributes
    ----------
    paper : str
        What the paper says.
    of : str
        Which contestant it was held against.
    measured : str
        The numbers.
    confirmed : bool or None
        Whether they agree; None if they cannot tell.
    """

    paper: str
    of: str
    measured: str
    confirmed: bool | None


@dataclass(frozen=True)
class Measurement:
    """All trials of an experiment.

    Attributes
    ----------
    setup : Setup
    contestants : dict of str to str
        What each was told, by label.
    trials : tuple of Trial
    notes : tuple of str
        What a reader should know beside the numbers.
    """

    setup: Setup
    contestants: Mapping[str, str]
    trials: tuple[Trial, ...]
    notes: tuple[str, ...] = ()

    def of(self, label: str, alpha: float) -> list[Trial]:
        """Return the trials of one contestant at one share of outliers."""
        return [trial for trial in self.trials if trial.label == label and trial.alpha == alpha]

    def labels(self, *families: str) -> list[str]:
        """Return the labels that begin with one of the words, all if none is given, in order."""
        return [label for label in self.contestants if not families or label.startswith(families)]

    def listings(self) -> list[Table]:
        """Return all runs."""
        return [listing("All runs", self.trials, leave_out=("errors",))]

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold, and `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Measurement:
        """Make it again from what was stored; other keys are passed over."""
        setup = {**content["setup"], "alphas": tuple(content["setup"]["alphas"])}
        names = {field.name for field in fields(Trial)}
        trials = [{name: value for name, value in trial.items() if name in names} for trial in content["trials"]]
        for trial in trials:
            if trial.get("errors") is not None:
                trial["errors"] = tuple(trial["errors"])
        return cls(Setup(**setup), content["contestants"], tuple(Trial(**t) for t in trials), tuple(content["notes"]))


@dataclass(frozen=True)
class Experiment(Generic[SetupT, MeasurementT]):
    """A figure or table of the paper, and how to make it again.

    Attributes
    ----------
    name : str
        As ``lrpca reproduce`` is asked for it.
    title : str
    summary : str
        One line, without sizes.
    source : str
        Which figure or table of the paper.
    full, quick : Setup
    measure : callable
        ``(setup, say) -> Measurement``, `say` being told what is done.
    tables : callable
        ``(measurement) -> list of Table``.
    claims : callable
        ``(measurement) -> list of Claim``.
    draw : callable
        ``(measurement, figure) -> None``.
    criteria : str
        When a claim counts as confirmed.
    read : callable
        ``(record) -> measurement``, from the content of a result file.
    figure_size : tuple of float
        In inches.
    packages : tuple of str
        What it needs beside the packages that everything needs.
    """

    name: str
    title: str
    summary: str
    source: str
    full: SetupT
    quick: SetupT
    measure: Callable[[SetupT, Say], MeasurementT]
    tables: Callable[[MeasurementT], list[Table]]
    claims: Callable[[MeasurementT], list[Claim]]
    draw: Callable[[MeasurementT, Figure], None]
    criteria: str
    read: Callable[[Mapping[str, Any]], MeasurementT]
    figure_size: tuple[float, float] = (8.0, 4.2)
    packages: tuple[str, ...] = ()

    def is_small(self, setup: AnySetup) -> bool:
        """Return whether a setup is less than the paper's: other sizes, shares or iterations, or fewer problems."""
        like = replace(setup, seed=self.full.seed, repeat=min(setup.repeat, self.full.repeat))
        return self.full != like

    def judge(self, m: MeasurementT) -> list[Claim]:
        """Return the claims beside what was measured; a small form can tell of none whether it is confirmed."""
        found = self.claims(m)
        return [replace(claim, confirmed=None) for claim in found] if self.is_small(m.setup) else found


def listing(caption: str, records: Sequence[Any], *, leave_out: Sequence[str] = ()) -> Table:
    """Return records of one kind as a table, a row each."""
    columns = [field.name for field in fields(records[0]) if field.name not in leave_out] if records else []
    rows = [[getattr(record, name) for name in columns] for record in records]
    return Table(caption, [name.replace("_", " ") for name in columns], rows)


def mean_and_deviation(values: Iterable[float]) -> tuple[float, float]:
    """Return mean and standard deviation (of a sample: n - 1 in the denominator; 0 for a single value).

    Examples
    --------
    >>> mean_and_deviation([1.0, 2.0, 3.0])
    (2.0, 1.0)
    """
    numbers = np.fromiter(values, float)
    return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0


def three_digits(value: float) -> float:
    """Return a number as tables show it.

    Examples
    --------
    >>> three_digits(0.0123456)
    0.0123
    """
    return float(f"{value:.3g}")


def rounded(value: float) -> float | None:
    """Return a number with four digits, as results are stored; None for one that is not finite.

    Examples
    --------
    >>> rounded(1.23456e-7), rounded(float("nan"))
    (1.235e-07, None)
    """
    return float(f"{value:.4g}") if math.isfinite(value) else None


def to_json(content: Mapping[str, Any]) -> str:
    """Return JSON with one line for each item of a list of records, so that long lists stay readable.

    Examples
    --------
    >>> print(to_json({"name": "a", "trials": [{"k": 1}, {"k": 2}]}), end="")
    {
     "name": "a",
     "trials": [
      {"k": 1},
      {"k": 2}
     ]
    }
    """
    parts = []
    for key, value in content.items():
        if isinstance(value, list | tuple) and value and isinstance(value[0], dict):
            lines = ",\n".join("  " + _line(item) for item in value)
            text = f"[\n{lines}\n ]"
        else:
            text = _line(value)
        parts.append(f" {_line(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
