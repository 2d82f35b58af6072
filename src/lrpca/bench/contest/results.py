"""What a comparison is given and what it reports: the conditions, the scores of each method, and all together."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lrpca.solvers.options import is_integer


@dataclass(frozen=True)
class Conditions:
    """The conditions of a comparison, equal for all methods.

    Attributes
    ----------
    tol : float, optional
        Tolerance of methods whose spec does not name one; their own defaults if not given.
    blind : bool
        Do not give the true share of outliers to methods with an option ``alpha``.
    target : float
        Error at which `Entry.seconds_to_target` is taken.
    repeat : int
        Calls of each method; the median time counts.
    time_limit, memory_limit : float
        Maximum seconds of a call; maximum memory of a method's process in bytes, Y included, none if not given.
    threads : int, optional
        Threads of BLAS and of numba. Unless given, the fewest that ``OMP_NUM_THREADS``, ``NUMBA_NUM_THREADS`` or
        similar variables name, or else all processors this process may use.
    seed : int
        Seed of the methods.
    """

    tol: float | None = None
    blind: bool = False
    target: float = 1e-4
    repeat: int = 1
    time_limit: float = 300.0
    memory_limit: float | None = None
    threads: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("target", "time_limit", "memory_limit"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ValueError(f"{name}={value!r} is not a positive number; give one that is")
        if self.tol is not None and not (isinstance(self.tol, int | float) and 0 <= self.tol < 1):
            raise ValueError(f"tol={self.tol!r} is not a number from 0 to below 1; leave it out for each method's own")
        for name, least in (("repeat", 1), ("threads", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and not (is_integer(value) and value >= least):
                raise ValueError(f"{name}={value!r} is not an integer of at least {least}; give one that is")


@dataclass(frozen=True)
class Point:
    """An iterate: its number, the seconds until it was there, and its error.

    Attributes
    ----------
    iteration : int
        Counted from 1; 0 is the answer that was returned in the end.
    seconds, error : float
        Since the call began, the time for measuring errors excluded; and as in `Entry`, the residual where no truth is
        known.
    """

    iteration: int
    seconds: float
    error: float


@dataclass(frozen=True)
class Entry:
    """How one method did. What is not known is None.

    Attributes
    ----------
    spec, name, title : str
        As it was asked for, the method, and what it is.
    status, note : str
        "converged", "done" (it gives no verdict), "not converged", "time limit", "memory limit", "failed" or "not
        installed"; and why it stopped, or the error.
    error, residual : float
        ``‖X - truth‖ / ‖truth‖`` and ``median|Y - X| / median|Y|`` of the answer; of the last iterate if it was killed.
    f_measure, precision, recall, outlier_fraction : float
        Of the detected outliers, against the planted ones; and their share of the observed entries.
    rank, iterations : int
        Components of its X, and number of iterations.
    seconds, seconds_per_iteration, seconds_to_target : float
        Median over the calls; mean time from one iterate to the next; time of the first iterate at the target.
    peak_memory : int
        Bytes, besides Y.
    settings, told, estimated : dict, tuple of str, tuple of str
        Its parameters as used; those of them given from the truth, and those it found from the data.
    all_seconds, curve : tuple of float, tuple of Point
        Time of each call, and the iterates of the call of median time.
    """

    spec: str
    name: str
    title: str
    status: str
    note: str = ""
    error: float | None = None
    f_measure: float | None = None
    precision: float | None = None
    recall: float | None = None
    residual: float | None = None
    outlier_fraction: float | None = None
    rank: int | None = None
    iterations: int | None = None
    seconds: float | None = None
    seconds_per_iteration: float | None = None
    seconds_to_target: float | None = None
    peak_memory: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()
    all_seconds: tuple[float, ...] = ()
    curve: tuple[Point, ...] = ()

    @property
    def answered(self) -> bool:
        """Whether it stopped by itself, converged or not."""
        return self.status in ("converged", "done", "not converged")

    @property
    def order(self) -> tuple[float, bool, float, str]:
        """A key to sort by: time to the target, then those with an answer, by error or residual."""
        measured = self.error if self.error is not None else self.residual
        first, second = (math.inf if value is None else value for value in (self.seconds_to_target, measured))
        return first, self.status in ("memory limit", "failed", "not installed"), second, self.spec


@dataclass(frozen=True)
class Contest:
    """A problem, the conditions, and how each method did.

    Attributes
    ----------
    problem : dict
        ``name``, ``shape``, ``dtype``, ``rank``, ``missing`` (share), whether the truth is ``known``, and what else
        describes it.
    conditions : dict
        Those of `Conditions`, and ``versions``, ``machine``, its ``load`` before the start, and ``date``.
    entries : list of Entry
        Sorted by the time to the target, then by error.
    """

    problem: dict[str, Any]
    conditions: dict[str, Any]
    entries: list[Entry]

    def __getitem__(self, spec: str) -> Entry:
        """Return the entry of a method by the text it was asked for with."""
        for entry in self.entries:
            if entry.spec == spec:
                return entry
        raise KeyError(f"spec={spec!r} did not take part; use one of {', '.join(e.spec for e in self.entries)}")

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``arena.json``, ``arena.csv``, ``convergence.png`` and ``index.html``, and return the path of the last.

        The folder is made, or these files in it are replaced. Needs matplotlib.
        """
        from lrpca.bench.contest.page import write

        return write(self, folder)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain dictionaries and lists, for JSON."""
        return {"format": "lrpca-arena", "version": 1, **asdict(self)}
