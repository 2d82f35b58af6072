"""The comparison: one problem, several methods, each in a process of its own under equal conditions."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median_low
from typing import Any

import numpy as np

from lrpca.bench.contest import process
from lrpca.bench.contest.contestants import RIVALS, Spec, options_of, parse_specs
from lrpca.bench.contest.results import Contest, Entry, Point
from lrpca.bench.contest.scoring import write_truth
from lrpca.core import environment as circumstances
from lrpca.solvers.options import is_integer
from lrpca.testing import Problem

TARGET = 1e-4
TIME_LIMIT = 300.0


def compete(
    problem: Problem | Any,
    specs: str | Iterable[str] | Sequence[Spec] = "all",
    *,
    rank: int | None = None,
    truth: Any = None,
    description: dict[str, Any] | None = None,
    tol: float | None = None,
    blind: bool = False,
    target: float = TARGET,
    repeat: int = 1,
    time_limit: float = TIME_LIMIT,
    memory_limit: float | None = None,
    threads: int | None = None,
    seed: int = 0,
    progress: Callable[[str], object] | None = None,
) -> Contest:
    """Run several solvers on one problem, each in a process of its own, and measure them alike.

    Parameters
    ----------
    problem : Problem or array-like (n1, n2)
        A planted problem with its truth (`lrpca.testing.planted`), or a matrix; NaN is missing.
    specs : str, iterable of str, or sequence of Spec
        The methods, as `parse_specs` reads or returns them.
    rank : int, optional
        Rank that methods are told where they need one; that of the problem unless given. A matrix needs it.
    truth : array-like (n1, n2), optional
        The true low-rank matrix, where `problem` is a matrix.
    description : dict, optional
        What the report shall say of the problem, e.g. its name.
    tol : float, optional
        Where to stop, for those whose spec does not say; their own defaults if not given.
    blind : bool
        Do not tell the true share of outliers to methods with an option ``alpha``.
    target : float
        Error at which `Entry.seconds_to_target` is taken.
    repeat : int
        Calls of each method; the median time counts.
    time_limit : float
        Most seconds of a call.
    memory_limit : float, optional
        Most bytes a method's process may hold, Y included.
    threads : int, optional
        For BLAS and numba alike. Unless given, the fewest that ``OMP_NUM_THREADS``, ``NUMBA_NUM_THREADS`` or their like
        name, or else all processors this process may use.
    seed : int
        Seed of the methods.
    progress : callable, optional
        Called with a line of text whenever a method begins.

    Returns
    -------
    Contest
        With one entry for each method, those that failed included.

    Examples
    --------
    >>> import lrpca
    >>> problem = lrpca.testing.planted((120, 100), rank=3)
    >>> contest = lrpca.bench.contest.compete(problem, "lrpca", threads=1)
    >>> contest["lrpca"].status, contest["lrpca"].error < 1e-6
    ('converged', True)
    """
    chosen = _chosen(specs)
    data = _Data.of(problem, truth, rank)
    check_conditions(
        target=target,
        repeat=repeat,
        time_limit=time_limit,
        memory_limit=memory_limit,
        threads=threads,
        seed=seed,
        tol=tol,
    )
    threads = threads or circumstances.allowed_threads()
    conditions = {
        **{"target": target, "tol": tol, "blind": blind, "repeat": repeat, "time_limit": time_limit},
        **{"memory_limit": memory_limit, "threads": threads, "seed": seed},
        "versions": circumstances.versions(rival.package for rival in RIVALS.values()),
        "machine": circumstances.hardware(),
        "load": circumstances.load(),
        "date": circumstances.date(),
    }
    entries = []
    with tempfile.TemporaryDirectory(prefix="lrpca-arena-") as temporary:
        folder = Path(temporary)
        data.write(folder)
        for number, spec in enumerate(chosen, 1):
            if progress is not None:
                progress(f"{number} of {len(chosen)}: {spec.text}")
            settings, told = _settings(spec, tol, None if blind else data.outlier_fraction)
            job = {
                **{"folder": str(folder), "name": spec.name, "rank": data.rank, "settings": settings, "seed": seed},
                **{"time_limit": time_limit, "repeat": repeat},
            }
            entry = _run(spec, job, memory_limit, threads, target if data.X is not None else None)
            entries.append(replace(entry, told=told))
    entries.sort(key=lambda entry: entry.order)
    return Contest(data.describe() | (description or {}), conditions, entries)


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

    def write(self, folder: Path) -> None:
        """Write all that the workers read."""
        needed = self.Y.nbytes * (2 if self.X is not None else 1)
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise OSError(
                f"folder={str(folder)!r} has {free / 1e9:.3g} GB free, {needed / 1e9:.3g} are needed; set TMPDIR"
            )
        np.save(folder / "Y.npy", self.Y)
        if self.X is not None:
            write_truth(folder, self.X, self.rank, self.outliers)

    def describe(self) -> dict[str, Any]:
        missing = float(np.isnan(self.Y).mean()) if self.Y.dtype.kind in "fc" else 0.0
        return {
            **{"name": "matrix", "shape": list(self.Y.shape), "dtype": str(self.Y.dtype), "rank": self.rank},
            **{"missing": missing, "outlier_fraction": self.outlier_fraction, "known": self.X is not None},
        }


def _chosen(specs: str | Iterable[str] | Sequence[Spec]) -> list[Spec]:
    if isinstance(specs, str):
        return parse_specs(specs)
    given = list(specs)
    read = [spec for spec in given if isinstance(spec, Spec)]
    return read or parse_specs([spec for spec in given if isinstance(spec, str)])


def _settings(spec: Spec, tol: float | None, alpha: float | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a method's settings, and which of them were given from the truth."""
    settings: dict[str, Any] = {} if tol is None or (spec.rival and spec.rival.max_iter is None) else {"tol": tol}
    told = bool(alpha and "alpha" in options_of(spec.name) and "alpha" not in spec.settings)
    if told:
        settings["alpha"] = alpha
    return settings | spec.settings, ("alpha",) if told else ()


def _run(spec: Spec, job: dict[str, Any], memory_limit: float | None, threads: int, target: float | None) -> Entry:
    """Return the entry of one method."""
    if spec.rival and spec.rival.version() is None:
        note = f"pip install {spec.rival.package}"
        return Entry(spec.text, spec.name, spec.title, "not installed", note, settings=job["settings"])
    account = process.run(job, memory_limit=memory_limit, threads=threads)
    known = target is not None
    result = account.result or {"settings": job["settings"]}
    seconds = median_low(account.seconds) if account.seconds else None
    best = account.seconds.index(seconds) if seconds is not None else len(account.calls) - 1
    points = account.calls[best] if account.calls else []
    final = result.get("error" if known else "residual")
    if account.result and seconds is not None and final is not None:
        points = [*points, Point(0, seconds, final)]
    names = ("f_measure", "precision", "recall", "outlier_fraction", "rank")
    scores: dict[str, Any] = {name: result.get(name) for name in names}
    status, note = account.failure or _verdict(account.late, job["time_limit"], result)
    return Entry(
        spec=spec.text,
        name=spec.name,
        title=spec.title,
        status=status,
        note=" ".join(note.split()),
        error=(final if account.result else points[-1].error if points else None) if known else None,
        residual=result.get("residual", None if known or not points else points[-1].error),
        **scores,
        iterations=result.get("iterations", len(points) if not account.result and points else None),
        seconds=seconds if seconds is not None else (points[-1].seconds if points else None),
        seconds_per_iteration=_per_iteration(points, seconds),
        seconds_to_target=next((p.seconds for p in points if p.error <= (target or 0)), None) if known else None,
        peak_memory=account.peak or None,
        settings=result["settings"],
        estimated=tuple(result.get("estimated", ())),
        all_seconds=tuple(account.seconds),
        curve=tuple(points),
    )


def _verdict(late: bool, limit: float, result: dict[str, Any]) -> tuple[str, str]:
    if late:
        return "time limit", f"stopped after {limit:g} s"
    if result["converged"] is None:
        return "done", result["reason"]
    return "converged" if result["converged"] else "not converged", result["reason"]


def _per_iteration(points: list[Point], seconds: float | None) -> float | None:
    times = [point.seconds for point in points if point.iteration]
    if len(times) > 1:
        return mean(after - before for before, after in zip(times, times[1:], strict=False))
    return seconds if times else None


def _check_rank(rank: Any, shape: tuple[int, int]) -> int:
    if rank is None:
        raise ValueError(f"rank=None is not given; the methods need one from 1 to {min(shape)}")
    if not is_integer(rank) or not 1 <= rank <= min(shape):
        raise ValueError(
            f"rank={rank!r} is not an integer from 1 to min(Y.shape)={min(shape)}; choose one in that range"
        )
    return int(rank)


def check_conditions(**given: Any) -> None:
    """Raise what `compete` would raise of these arguments, whatever the problem is."""
    for name in ("target", "time_limit", "memory_limit"):
        value = given[name]
        if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
            raise ValueError(f"{name}={value!r} is not a positive number; give one that is")
    tol = given["tol"]
    if tol is not None and not (isinstance(tol, int | float) and 0 <= tol < 1):
        raise ValueError(f"tol={tol!r} is not a number from 0 to below 1; leave it out for each method's own")
    for name, least in (("repeat", 1), ("threads", 1), ("seed", 0)):
        value = given[name]
        if value is not None and not (is_integer(value) and value >= least):
            raise ValueError(f"{name}={value!r} is not an integer of at least {least}; give one that is")
