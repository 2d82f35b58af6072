"""Solvers on problems whose truth is known: one record for every problem, judged by the rules of `lrpca.testing`."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lrpca.bench.contest.methods import OTHERS, Answer, Task, filled_by_means, solve
from lrpca.bench.contest.scoring import rows_of
from lrpca.bench.measuring import clock, data_folder
from lrpca.decompose import decompose
from lrpca.schedule import PUBLISHED_RANK, PUBLISHED_SHAPE, Schedule
from lrpca.solvers.methods import METHODS
from lrpca.testing import Case, Problem, recovered, wrong

DEFAULT, PCP, SVD, WITHOUT = "lrpca", "pyrpca", "svd", "without "
DENSE, PUBLISHED_MODEL = "dense outliers", "published model"
# Rank and outlier fraction of the problems published with the paper, n = 1000; errors that passes are counted to.
PUBLISHED_PROBLEMS = ((5, 0.1), (5, 0.2), (5, 0.3), (10, 0.1), (15, 0.1))
MILESTONES = (1e-4, 1e-6)


class TimeLimitError(RuntimeError):
    """A solver took longer than allowed."""


@dataclass(frozen=True)
class Record:
    """How one solver did on one problem; None where there is no answer, or it is not finite."""

    kind: str
    case: str
    repeat: int
    solver: str
    error: float | None
    oracle_error: float
    recovered: bool
    converged: bool | None
    false_converged: bool
    ended: str
    passes: int | None = None
    reads: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class PublishedRecord:
    """How one method did on one published problem: passes to the milestones (None: not reached), and in all."""

    rank: int
    outlier_fraction: float
    solver: str
    passes_to: Sequence[int | None]
    passes: int
    reads: float
    converged: bool
    error: float
    seconds: float


@dataclass(frozen=True)
class GridJob:
    """One problem and the names of the solvers to run on it."""

    case: Case
    repeat: int
    solvers: Sequence[str]
    limit: float = math.inf


def solvers() -> list[str]:
    """Return the solvers that are installed, ours first."""
    others = [method for method in METHODS if method != DEFAULT]
    return [DEFAULT, *others, *([PCP] if OTHERS[PCP].version() else []), SVD]


def run_solver(name: str, Y: Any, rank: int, limit: float = math.inf) -> Answer:
    """Run a solver, or the default by ``without <rule>``; any other than the default has a limit in seconds."""
    if name == SVD:
        return truncated_svd(Y, rank)
    deadline = math.inf if name == DEFAULT or name.startswith(WITHOUT) else time.perf_counter() + limit
    settings = {"without": [name.removeprefix(WITHOUT)]} if name.startswith(WITHOUT) else {}
    task = Task(DEFAULT if settings else name, rank, settings)
    data = np.asarray(Y, np.float64) if name == PCP else Y
    answer = solve(task, data, lambda iterate: time.perf_counter() > deadline)
    if answer.reason == "callback":
        raise TimeLimitError(name)
    return answer


def truncated_svd(Y: Any, rank: int) -> Answer:
    """Return the best fit of that rank in least squares, missing entries first filled by their column's mean."""
    U, values, Vt = np.linalg.svd(filled_by_means(Y), full_matrices=False)
    return Answer((U[:, :rank] * values[:rank], Vt[:rank].T), None, "–", None, {})


def dense_cases(densities: Sequence[float]) -> list[Case]:
    """Return the paper's problem, n = 1000 and r = 5, with many outliers."""
    shape = {"shape": (1000, 1000), "rank": 5}
    return [Case(DENSE, f"{100 * share:.0f}% outliers", {**shape, "outlier_fraction": share}, 5) for share in densities]


def run_case(job: GridJob) -> list[Record]:
    """Run every solver of a job on its problem."""
    problem = job.case.problem(job.repeat)
    run = partial(run_solver, rank=job.case.rank, limit=job.limit)
    return [judge(job, problem, name, partial(run, name)) for name in job.solvers]


def judge(job: GridJob, problem: Problem, name: str, run: Callable[[Any], Answer]) -> Record:
    """Run one solver on one problem and compare its answer with the truth, and its verdict with its answer."""
    about = (job.case.kind, job.case.name, job.repeat, name)
    try:
        with warnings.catch_warnings(action="ignore"):
            seconds, answer = clock(partial(run, problem.Y.copy()))
    except Exception as failure:
        ended = f"{type(failure).__name__}: {failure}"
        if isinstance(failure, TimeLimitError):
            ended = f"time limit, {job.limit:g} s"
        elif isinstance(failure, ValueError | NotImplementedError) and not problem.observed.all():
            ended = "refuses NaN"
        return Record(*about, None, problem.oracle_error, False, None, False, ended)
    error = problem.error(rows_of(answer.low_rank, slice(None)))
    return Record(
        *about,
        error=error if math.isfinite(error) else None,
        oracle_error=problem.oracle_error,
        recovered=recovered(problem, error),
        converged=answer.converged,
        false_converged=bool(answer.converged) and wrong(problem, error),
        ended=answer.reason,
        passes=answer.iterations,
        reads=answer.reads,
        seconds=seconds,
    )


def read_published(rank: int, outlier_fraction: float) -> tuple[Any, Any]:
    """Return Y and X of a published problem (n, n)."""
    from scipy.io import loadmat

    content = loadmat(data_folder() / "published-lrpca" / f"n1000_r{rank}_alpha{outlier_fraction}.mat")
    return content["Y_star"], content["U_star"].astype(float) @ content["V_star"].astype(float).T


def published_model(outlier_fraction: float, folder: Path | None = None) -> Schedule | None:
    """Return the model published for an outlier fraction, None if it is not in the data folder."""
    file = (folder or data_folder()) / "published-lrpca" / f"lrpcanet_alpha{outlier_fraction}.mat"
    return Schedule.from_mat(file, shape=PUBLISHED_SHAPE, rank=PUBLISHED_RANK) if file.is_file() else None


def published_jobs(names: Sequence[str]) -> list[tuple[int, float, Sequence[str]]]:
    """Return the published problems, none where they are absent, for those solvers that show their iterates."""
    shown = [name for name in names if name in (*METHODS, PUBLISHED_MODEL) or name.startswith(WITHOUT)]
    if not (data_folder() / "published-lrpca").is_dir() or not shown:
        return []
    return [(*problem, shown) for problem in PUBLISHED_PROBLEMS]


def run_published(job: tuple[int, float, Sequence[str]]) -> list[PublishedRecord]:
    """Run the methods of a job (rank, outlier fraction, names) on a published problem, with the error of each pass."""
    rank, share, names = job
    Y, X = read_published(rank, share)
    found = []
    for name in names:
        settings: dict[str, Any] = {"method": name}
        if name == PUBLISHED_MODEL:
            settings = {"schedule": published_model(share)}
        elif name.startswith(WITHOUT):
            settings = {"options": {"without": [name.removeprefix(WITHOUT)]}}
        errors, d = errors_by_pass(Y, X, rank, settings)
        with warnings.catch_warnings(action="ignore"):
            seconds, _ = clock(partial(decompose, Y, rank, **settings))
        error = float(np.linalg.norm(d.L.astype(float) @ d.R.astype(float).T - X) / np.linalg.norm(X))
        reached = [passes_to(errors, goal) for goal in MILESTONES]
        found.append(PublishedRecord(rank, share, name, reached, d.n_iter, d.n_reads, d.converged, error, seconds))
    return found


def errors_by_pass(Y: Any, X: Any, rank: int, settings: dict[str, Any]) -> tuple[list[float], Any]:
    """Return the error after each pass of a call of `decompose`, and its result."""
    errors: list[float] = []
    norm = np.linalg.norm(X)
    watch = lambda state: errors.append(float(np.linalg.norm(state.L @ state.R.T - X) / norm))  # noqa: E731
    with warnings.catch_warnings(action="ignore"):
        return errors, decompose(Y, rank, callback=watch, **settings)


def passes_to(errors: Sequence[float], goal: float) -> int | None:
    """Return after how many passes the error was below the goal, None for never."""
    return next((k for k, error in enumerate(errors, start=1) if error < goal), None)
