"""The comparison: one problem, several methods, each in its own process under equal conditions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np

from lrpca.bench.contest import process
from lrpca.bench.contest.methods import OTHERS, Spec, options_of, parse_specs
from lrpca.bench.contest.results import Conditions, Contest, Entry, Point
from lrpca.bench.contest.scoring import factored
from lrpca.core import environment
from lrpca.solvers.options import is_integer
from lrpca.testing import Problem


def compete(
    problem: Problem | Any,
    specs: str | Iterable[str] = "all",
    conditions: Conditions | None = None,
    *,
    rank: int | None = None,
    truth: Any = None,
    description: dict[str, Any] | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> Contest:
    """Run several solvers on one problem, each in its own process, and measure them alike.

    Parameters
    ----------
    problem : Problem or array-like (n1, n2)
        A planted problem with its truth (`lrpca.testing.planted`), or a matrix; NaN is missing.
    specs : str or iterable of str
        The methods, as `parse_specs` reads them.
    conditions : Conditions, optional
        Tolerance, limits, threads and seed.
    rank : int, optional
        Rank for methods that need one; default: that of the problem. A matrix needs it.
    truth : array-like (n1, n2), optional
        The true low-rank matrix, where `problem` is a matrix.
    description : dict, optional
        What the report says of the problem, e.g. its name.
    progress : callable
        Called with a line of text whenever a method begins.

    Returns
    -------
    Contest
        With one entry for each method, those that failed included.

    Examples
    --------
    >>> import lrpca
    >>> from lrpca.bench.contest import Conditions, compete
    >>> problem = lrpca.testing.planted((120, 100), rank=3)
    >>> contest = compete(problem, "lrpca", Conditions(threads=1))
    >>> contest["lrpca"].status, contest["lrpca"].error < 1e-6
    ('converged', True)
    """
    chosen = parse_specs(specs)
    data = _Data.of(problem, truth, rank)
    given = conditions or Conditions()
    given = replace(given, threads=given.threads or environment.allowed_threads())
    circumstances = {
        "versions": environment.versions(other.package for other in OTHERS.values()),
        "machine": environment.hardware(),
        "load": environment.load(),
        "date": environment.date(),
    }
    entries = []
    with tempfile.TemporaryDirectory(prefix="lrpca-arena-") as folder:
        data.write(path := Path(folder, "problem.npz"))
        for number, spec in enumerate(chosen, 1):
            progress(f"{number} of {len(chosen)}: {spec.text}")
            entries.append(_run(spec, data, given, str(path)))
    described = data.describe() | (description or {})
    return Contest(described, asdict(given) | circumstances, sorted(entries, key=lambda entry: entry.order))


@dataclass(frozen=True)
class _Data:
    """A problem of either kind."""

    Y: Any  # (n1, n2)
    rank: int
    X: Any = None  # (n1, n2)
    outliers: Any = None  # (n1, n2) bool
    outlier_fraction: float | None = None

    @classmethod
    def of(cls, problem: Any, truth: Any, rank: int | None) -> _Data:
        if isinstance(problem, Problem):
            if truth is not None:
                raise ValueError("truth is given beside a problem that has its own; pass problem.Y to use another")
            outliers = problem.outliers
            share = float(outliers.sum() / max(1, problem.observed.sum()))
            chosen = _check_rank(problem.rank if rank is None else rank, problem.Y.shape)
            return cls(problem.Y, chosen, problem.X, outliers, share)
        if np.ma.isMaskedArray(problem):
            problem = np.ma.filled(problem.astype(np.result_type(problem.dtype, np.float32)), np.nan)
        Y = np.asarray(problem)
        if Y.ndim != 2 or Y.dtype.kind not in "biufc" or min(Y.shape) == 0:
            raise ValueError(f"problem of shape {Y.shape}, dtype {Y.dtype} is not a matrix of numbers; pass (n1, n2)")
        X = None if truth is None else np.asarray(truth)
        if X is not None and (X.shape != Y.shape or X.dtype.kind not in "biufc" or not np.isfinite(X).all()):
            raise ValueError(f"truth of shape {X.shape}, dtype {X.dtype} is not finite numbers of shape {Y.shape}")
        if X is not None and not X.any():
            raise ValueError("truth=0 has no norm to compare with; give a truth that is not all zero")
        return cls(Y, _check_rank(rank, Y.shape), X)

    def write(self, path: Path) -> None:
        """Write all that the workers read."""
        parts = {"Y": self.Y} | ({} if self.outliers is None else {"outliers": self.outliers})
        if self.X is not None:
            truth = factored(self.X, self.rank)
            parts |= dict(zip("AB", truth, strict=True)) if isinstance(truth, tuple) else {"X": truth}
        np.savez(path, **parts)

    def describe(self) -> dict[str, Any]:
        missing = float(np.isnan(self.Y).mean()) if self.Y.dtype.kind in "fc" else 0.0
        return {
            **{"name": "matrix", "shape": list(self.Y.shape), "dtype": str(self.Y.dtype), "rank": self.rank},
            **{"missing": missing, "outlier_fraction": self.outlier_fraction, "known": self.X is not None},
        }


def settings_of(spec: Spec, tol: float | None, alpha: float | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a method's settings, and which of them were given from the truth."""
    settings: dict[str, Any] = {} if tol is None or (spec.other and not spec.other.iterates) else {"tol": tol}
    told = bool(alpha and "alpha" in options_of(spec.name) and "alpha" not in spec.settings)
    if told:
        settings["alpha"] = alpha
    return settings | spec.settings, ("alpha",) if told else ()


def _run(spec: Spec, data: _Data, conditions: Conditions, path: str) -> Entry:
    """Return the entry of one method."""
    settings, told = settings_of(spec, conditions.tol, None if conditions.blind else data.outlier_fraction)
    entry = Entry(spec.text, spec.name, spec.title, "not installed", settings=settings, told=told)
    if spec.other and spec.other.version() is None:
        return replace(entry, note=f"pip install {spec.other.package}")
    job = {
        **{"problem": path, "name": spec.name, "rank": data.rank, "settings": settings, "seed": conditions.seed},
        **{"time_limit": conditions.time_limit, "repeat": conditions.repeat},
    }
    account = process.run(job, memory_limit=conditions.memory_limit, threads=conditions.threads or 1)
    known = data.X is not None
    result = account.result or {"settings": settings}
    seconds = median_low(account.seconds) if account.seconds else None
    best = account.seconds.index(seconds) if seconds is not None else len(account.calls) - 1
    points = account.calls[best] if account.calls else []
    final = result.get("error" if known else "residual")
    if account.result and seconds is not None and final is not None:
        points = [*points, Point(0, seconds, final)]
    last_error, last_seconds = (points[-1].error, points[-1].seconds) if points else (None, None)
    names = ("f_measure", "precision", "recall", "outlier_fraction", "rank")
    scores: dict[str, Any] = {name: result.get(name) for name in names}
    status, note = account.failure or _verdict(account.late, conditions.time_limit, result)
    return replace(
        entry,
        status=status,
        note=" ".join(note.split()),
        error=(final if account.result else last_error) if known else None,
        residual=result.get("residual", None if known else last_error),
        **scores,
        iterations=result.get("iterations", len(points) if not account.result and points else None),
        seconds=last_seconds if seconds is None else seconds,
        seconds_per_iteration=_per_iteration(points, seconds),
        seconds_to_target=next((p.seconds for p in points if p.error <= conditions.target), None) if known else None,
        peak_memory=account.peak or None,
        settings=result["settings"],
        estimated=tuple(result.get("estimated", ())),
        all_seconds=tuple(account.seconds),
        curve=tuple(points),
    )


def _verdict(late: bool, limit: float, result: dict[str, Any]) -> tuple[str, str]:
    if late:
        return "time limit", f"stopped after {limit:g} s"
    words = {None: "done", True: "converged", False: "not converged"}
    return words[result["converged"]], result["reason"]


def _per_iteration(points: list[Point], seconds: float | None) -> float | None:
    times = [point.seconds for point in points if point.iteration]
    if len(times) > 1:
        return (times[-1] - times[0]) / (len(times) - 1)
    return seconds if times else None


def _check_rank(rank: Any, shape: tuple[int, int]) -> int:
    if rank is None:
        raise ValueError(f"rank=None is not given; the methods need one from 1 to {min(shape)}")
    if not is_integer(rank) or not 1 <= rank <= min(shape):
        raise ValueError(
            f"rank={rank!r} is not an integer from 1 to min(Y.shape)={min(shape)}; choose one in that range"
        )
    return int(rank)
