"""What an experiment is, and what it measured: plain records that go to JSON and come back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar, get_args, get_origin, get_type_hints

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


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper beside what was measured."""

    paper: str
    of: str  # which method it was held against
    measured: str
    confirmed: bool | None  # None: the numbers cannot tell


@dataclass(frozen=True)
class Setup:
    """How large a comparison of solvers is.

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
    tuning_n, tuning_iterations : int
        Rows and columns of the problems that ScaledGD is tuned on, and most iterations in tuning.
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
    """One method on one problem."""

    label: str
    alpha: float
    seed: int  # of the problem and of the method
    seconds: float  # wall time of the call of ``lrpca.decompose``, less that of watching it
    iterations: int
    seconds_per_iteration: float  # mean, initialisation not counted
    early_seconds: float  # the same over the first ten
    reason: str
    residual: float | None  # ‖Y - X - S‖ / ‖Y‖ at the end; None if it is not finite
    error: float | None  # ‖X - X*‖ / ‖X*‖ at the end; None if it is not finite
    errors: tuple[float, ...] | None = None  # the same after every iteration, where the experiment asks for it


class Records:
    """What every kind of measurement has in common: a frozen dataclass with a setup and tuples of records."""

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold, and `from_dict` reads."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Make it again from what was stored; other keys are passed over."""
        return restore(cls, content)  # type: ignore[no-any-return]

    def listings(self) -> list[Table]:
        """Return everything that was run, a row each; lists of numbers are left out."""
        found = []
        for name, caption in (("trainings", "All trainings"), ("runs", "All runs"), ("trials", "All runs")):
            # A training of no steps was made elsewhere.
            if records := [record for record in getattr(self, name, ()) if getattr(record, "steps", 1)]:
                columns = [f.name for f in fields(records[0]) if "tuple" not in str(f.type)]
                columns += [shown for shown in ("iterations", "last_error") if shown in dir(type(records[0]))]
                rows = [[getattr(record, column) for column in columns] for record in records]
                found.append(Table(caption, [column.replace("_", " ") for column in columns], rows))
        return found


@dataclass(frozen=True)
class Measurement(Records):
    """All trials of a comparison of solvers.

    Attributes
    ----------
    setup : Setup
    contestants : dict of str to str
        What each method was told, by label.
    trials : tuple of Trial
    notes : tuple of str
        What a reader should know beside the numbers.
    """

    setup: Setup
    contestants: Mapping[str, str]
    trials: tuple[Trial, ...]
    notes: tuple[str, ...] = ()

    def of(self, label: str, alpha: float) -> list[Trial]:
        """Return the trials of one method at one share of outliers."""
        return [trial for trial in self.trials if (trial.label, trial.alpha) == (label, alpha)]

    def labels(self, *families: str) -> list[str]:
        """Return the labels that begin with one of the words, all if none is given, in order."""
        return [label for label in self.contestants if not families or label.startswith(families)]

    def cases(self) -> list[tuple[float, str, list[Trial]]]:
        """Return share of outliers, label and trials of all that were run together, in the order of the tables."""
        pairs = [(alpha, label) for alpha in self.setup.alphas for label in self.contestants]
        return [(alpha, label, trials) for alpha, label in pairs if (trials := self.of(label, alpha))]


S = TypeVar("S", bound=Any)
M = TypeVar("M", bound=Any)


@dataclass(frozen=True)
class Experiment(Generic[S, M]):
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
    kind : type
        Of the measurement.
    figure_size : tuple of float
        In inches.
    packages : tuple of str
        What it needs beside the packages that everything needs.
    """

    name: str
    title: str
    summary: str
    source: str
    full: S
    quick: S
    measure: Callable[[S, Say], M]
    tables: Callable[[M], list[Table]]
    claims: Callable[[M], list[Claim]]
    draw: Callable[[M, Figure], None]
    criteria: str
    kind: type[M] = Measurement  # type: ignore[assignment]
    figure_size: tuple[float, float] = (8.0, 4.2)
    packages: tuple[str, ...] = ()

    def read(self, record: Mapping[str, Any]) -> M:
        """Return the measurement that a result file holds."""
        return restore(self.kind, record)  # type: ignore[no-any-return]

    def is_small(self, setup: S) -> bool:
        """Return whether a setup is less than the paper's: other sizes, shares or iterations, or fewer problems."""
        like = replace(setup, seed=self.full.seed, repeat=min(setup.repeat, self.full.repeat))
        return bool(self.full != like)

    def judge(self, m: M) -> list[Claim]:
        """Return the claims beside what was measured; a small form can tell of none whether it is confirmed."""
        found = self.claims(m)
        return [replace(claim, confirmed=None) for claim in found] if self.is_small(m.setup) else found


def restore(kind: Any, value: Any) -> Any:
    """Return what JSON held as what it was: dataclasses and tuples by their types; unknown keys are passed over.

    Examples
    --------
    >>> restore(Setup, {"n": 9, "alphas": [0.1], "repeat": 1, "max_iter": 5, "tuning_n": 9, "old": 0}).alphas
    (0.1,)
    """
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: restore(hints[name], item) for name, item in value.items() if name in hints})  # type: ignore[operator]
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple and value is not None:
        return tuple(restore(get_args(kind)[0], item) for item in value)
    return value


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
