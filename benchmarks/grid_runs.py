"""Solvers on problems: one record for every problem of the grid, of the dense outliers and of the published files."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from grid_solvers import TimeLimitError, solver, without

import lrpca
from lrpca.core.environment import THREAD_VARIABLES
from lrpca.schedule import PUBLISHED_RANK, PUBLISHED_SHAPE
from lrpca.solvers.methods import METHODS
from lrpca.testing import Case, Problem, planted, recovered, wrong

DENSE = "dense outliers"
PUBLISHED = "published problems"
PUBLISHED_MODEL = "published model"
# An outlier density counts as mastered below this error; how many problems of each density are drawn.
DENSE_ERROR, DENSE_PROBLEMS = 1e-3, 10
# Rank and outlier fraction of the problems published with the paper, n = 1000; errors that passes are counted to.
PUBLISHED_PROBLEMS = ((5, 0.1), (5, 0.2), (5, 0.3), (10, 0.1), (15, 0.1))
MILESTONES = (1e-4, 1e-6)

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Record:
    """How one solver did on one problem.

    Attributes
    ----------
    kind, case, solver : str
    repeat : int
    error : float or None
        Relative error; None if the solver gave no answer or one that is not finite.
    oracle_error : float
    recovered, false_converged : bool
        By the rules of the grid. A solver that does not say whether it converged says nothing false.
    converged : bool or None
    ended : str
        The solver's reason to stop, or why there is no answer.
    passes, reads : int or None
    seconds : float or None
        None if there is no answer.
    """

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
    reads: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class GridJob:
    """One problem and the names of the solvers to run on it."""

    case: Case
    repeat: int
    solvers: Sequence[str]
    limit: float


@dataclass(frozen=True)
class PublishedJob:
    """One published problem and the names of the methods to run on it."""

    folder: Path
    rank: int
    outlier_fraction: float
    solvers: Sequence[str]


@dataclass(frozen=True)
class PublishedRecord:
    """How one method did on one published problem: passes to the milestones (None: not reached), and in all."""

    rank: int
    outlier_fraction: float
    solver: str
    passes_to: Sequence[int | None]
    passes: int
    reads: int
    converged: bool
    error: float
    seconds: float


def dense_cases(densities: Sequence[float]) -> list[Case]:
    """Return the paper's problem, n = 1000 and r = 5, with many outliers."""
    return [
        Case(
            DENSE, f"{100 * share:.0f}% outliers", {"shape": (1000, 1000), "rank": 5, "outlier_fraction": share}, rank=5
        )
        for share in densities
    ]


def published_folder() -> Path:
    """Return where the published problems are looked for: under LRPCA_DATA, or beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("LRPCA_DATA", beside)) / "published-lrpca"


def run_case(job: GridJob) -> list[Record]:
    """Run every solver of a job on its problem."""
    problem = job.case.problem(job.repeat)
    return [judge(job.case, job.repeat, problem, name, solver(name, job.limit), job.limit) for name in job.solvers]


def judge(
    case: Case,
    repeat: int,
    problem: Problem,
    name: str,
    function: Callable[[Any, int], Any],
    limit: float = math.inf,
) -> Record:
    """Run one solver on one problem and compare its answer with the truth, and its verdict with its answer.

    Parameters
    ----------
    case : Case
    repeat : int
    problem : Problem
        ``case.problem(repeat)``.
    name : str
        The solver's name.
    function : callable
        ``function(Y, rank)`` returns a `grid_solvers.Answer`.
    limit : float
        Seconds it was given; shown when they did not suffice.
    """
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = function(problem.Y.copy(), case.rank)
    except Exception as failure:
        ended = _no_answer(failure, problem, limit)
        return Record(case.kind, case.name, repeat, name, None, problem.oracle_error, False, None, False, ended)
    seconds = time.perf_counter() - began
    error = problem.error(answer.low_rank)
    return Record(
        case.kind,
        case.name,
        repeat,
        name,
        error if math.isfinite(error) else None,
        problem.oracle_error,
        recovered(problem, error),
        answer.converged,
        bool(answer.converged) and wrong(problem, error),
        answer.ended,
        answer.passes,
        answer.reads,
        seconds,
    )


def _no_answer(failure: Exception, problem: Problem, limit: float) -> str:
    if isinstance(failure, TimeLimitError):
        return f"time limit, {limit:g} s"
    if isinstance(failure, ValueError | NotImplementedError) and not problem.observed.all():
        return "refuses NaN"
    return f"{type(failure).__name__}: {failure}"


def run_published(job: PublishedJob) -> list[PublishedRecord]:
    """Run every method of a job on a published problem, with the error after each pass."""
    from scipy.io import loadmat

    content = loadmat(job.folder / f"n1000_r{job.rank}_alpha{job.outlier_fraction}.mat")
    Y, X = content["Y_star"], content["U_star"].astype(float) @ content["V_star"].astype(float).T
    return [_follow(job, name, Y, X) for name in job.solvers]


def _follow(job: PublishedJob, name: str, Y: Any, X: Any) -> PublishedRecord:
    errors: list[float] = []
    norm = np.linalg.norm(X)

    def watch(state: Any) -> None:
        errors.append(float(np.linalg.norm(state.L @ state.R.T - X) / norm))

    keywords: dict[str, Any] = {}
    if name == PUBLISHED_MODEL:
        model = job.folder / f"lrpcanet_alpha{job.outlier_fraction}.mat"
        keywords["schedule"] = lrpca.Schedule.from_mat(model, shape=PUBLISHED_SHAPE, rank=PUBLISHED_RANK)
    elif name.startswith(without("")):
        keywords["options"] = {"without": [name.removeprefix(without(""))]}
    else:
        keywords["method"] = name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = lrpca.decompose(Y, job.rank, callback=watch, **keywords)
        began = time.perf_counter()
        lrpca.decompose(Y, job.rank, **keywords)
        seconds = time.perf_counter() - began
    error = float(np.linalg.norm(d.L.astype(float) @ d.R.astype(float).T - X) / norm)
    reached = [next((k for k, e in enumerate(errors, start=1) if e < goal), None) for goal in MILESTONES]
    return PublishedRecord(
        job.rank, job.outlier_fraction, name, reached, d.n_iter, d.n_reads, d.converged, error, seconds
    )


def run_all(function: Callable[[Job], list[Result]], jobs: Sequence[Job], workers: int, title: str) -> list[Result]:
    """Return the results of all jobs in their order, computed by processes of one thread each.

    Parameters
    ----------
    function : callable
        Of one job; defined at the top of a module.
    jobs : sequence
    workers : int
        Number of processes.
    title : str
        Shown with the number of finished jobs while a person watches.
    """
    if not jobs:
        return []
    # Processes that are started from here on read these when they import numpy and numba.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    spawn = multiprocessing.get_context("spawn")
    watched = sys.stderr.isatty()
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=spawn, initializer=_warm_up) as pool:
        futures = [pool.submit(function, job) for job in jobs]
        for done, future in enumerate(as_completed(futures), start=1):
            if failure := future.exception():
                pool.shutdown(wait=False, cancel_futures=True)
                raise failure
            if watched:
                end = "\n" if done == len(jobs) else ""
                print(f"\r{title}: {done} of {len(jobs)}", end=end, file=sys.stderr, flush=True)
    return [result for future in futures for result in future.result()]


def _warm_up() -> None:
    """Load the compiled kernels, with and without missing entries, so that no problem's time includes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for missing in (0.0, 0.1):
            lrpca.decompose(planted((60, 50), rank=2, missing=missing).Y, 2)


def published_jobs(solvers: Sequence[str]) -> list[PublishedJob]:
    """Return the published problems, none where they are absent, for those solvers that show their iterates."""
    folder = published_folder()
    shown = [name for name in solvers if name in (*METHODS, PUBLISHED_MODEL) or name.startswith(without(""))]
    if not folder.is_dir() or not shown:
        return []
    return [PublishedJob(folder, rank, share, shown) for rank, share in PUBLISHED_PROBLEMS]
