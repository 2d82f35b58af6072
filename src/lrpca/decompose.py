"""`decompose`: split a matrix into a low-rank part and sparse outliers."""

from __future__ import annotations

import math
import numbers
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lrpca.core.devices import in_memory_of, is_tensor
from lrpca.core.weights import as_weights
from lrpca.decomposition.result import Decomposition
from lrpca.exceptions import ConvergenceWarning, DiagnosisWarning
from lrpca.schedule import Schedule, default_schedule
from lrpca.solvers.base import State
from lrpca.solvers.methods import Method, able_to, find_method, pays_to_sample
from lrpca.solvers.options import check_options, is_integer

if TYPE_CHECKING:
    from lrpca.solvers.problem import Problem

# Category and text of a warning.
WarningText = tuple[type[Warning], str]

# The paper's stopping value for absolute schedules.
_ABSOLUTE_TOL = 1e-4
# The smallest default in single precision.
_LEAST_SINGLE_TOL = 1e-6
# Larger weights are scaled before they are summed.
_LARGEST_SUMMED = 1e290
# Sizes of starting factors whose squares, and those of their sums, stay in the range of numbers.
_SQUARED = 1e-130, 1e130


def decompose(
    Y: Any,
    rank: int | float | str | None = None,
    *,
    method: str = "lrpca",
    schedule: Schedule | str | Path | None = None,
    tol: float | None = None,
    max_iter: int | None = None,
    random_state: int | np.random.Generator | None = None,
    callback: Callable[[State], object] | None = None,
    mask: Any = None,
    start: tuple[Any, Any] | None = None,
    row_weight: Any = None,
    options: dict[str, Any] | None = None,
) -> Decomposition:
    """Split Y into a low-rank part L Rᵀ and sparse outliers S.

    Finds L (n1, r) and R (n2, r) such that ``Y - L Rᵀ`` is small but for a minority of entries of any size.

    Parameters
    ----------
    Y : array-like (n1, n2)
        NumPy array or memmap of any numeric type and order, masked array, numeric pandas or polars frame, scipy
        sparse matrix (by densified blocks of rows; absent entries are zeros). Torch tensor: results are tensors on its
        device, and if that is a GPU, it does the work. Larger than memory, read in blocks: dask array, zarr array, HDF5
        dataset, path of a file or zarr store, list of paths (stacked vertically); with a dask.distributed client, the
        cluster does the work. Rows are samples or frames. NaN is missing. Y is read in place and never changed; numbers
        beyond 1e-50 and 1e50 are divided by a power of two in a copy, and refused if there is no memory for one.
    rank : int, "auto", float or None
        Rank r of the low-rank part, from 1 to min(n1, n2). If in doubt, choose it too large. "auto", the default (or
        None): all components that exceed the noise, see `Decomposition.rank_choice`. A number between 0 and 1: the
        fewest of those that explain this share of ‖X‖² + n1 n2 σ², the energy of low-rank part and noise. For methods
        other than lrpca, and schedules that are not adaptive, the default finds the rank first; for "sampled", in a
        sampled block. The convex methods "pcp" and "stable_pcp" find it themselves; a given rank truncates their
        result.
    method : str
        The solver: "lrpca"; "sampled", which solves a sample of rows and columns, regresses the others on it and reads
        all of Y only if that pays; "auto", which chooses between these two by shape and rank alone (and lrpca where
        `schedule`, `start`, `row_weight` or `options` are given); or another method: "scaledgd", "gd", "altproj",
        "accaltproj", "pcp", "stable_pcp", "ircur", "pgrmc", "godec", "grassmann" (`lrpca.solvers.methods.METHODS`
        lists the arguments of each).
    schedule : Schedule, str or Path, optional
        Thresholds and steps: a `Schedule`, the name of a shipped one, or the path of a JSON file. The default adapts to
        scale, shape, noise and outlier fraction.
    tol : float, optional
        Adaptive schedules stop when ``‖X_k - X_{k-1}‖ / ‖X_k‖ <= tol`` (1e-6 for single precision, 1e-8 else), absolute
        ones when ``‖Y - X - S‖ / ‖Y‖ < tol`` (1e-4). The other methods have their own measure and default, see
        `lrpca.solvers.methods.METHODS`. 0 runs to `max_iter`.
    max_iter : int, optional
        Maximum number of iterations; 300 for lrpca by default.
    random_state : int or numpy Generator, optional
        Seed of the test matrix and of the sampled entries; 0 by default, so the result is reproducible.
    callback : callable, optional
        Called with a `State` after every iteration; returning True stops. If the rank is to be found, the iterations
        are those of the final solution; they begin again if the rank grows.
    mask : array-like of bool, optional
        True where observed; shape of Y, (n1, 1) or (1, n2). It may be as large as Y, in the same kinds of containers.
        If Y is a tensor, `mask`, `start` and `row_weight` are arrays, or tensors on the same device.
    start : (L, R), optional
        Factors to start from, instead of the spectral initialisation. If the rank is to be found, their width is the
        first guess.
    row_weight : array-like (n1,), optional
        Weights of the rows, not negative: a row of weight 2 counts like two equal rows.
    options : dict, optional
        The method's own parameters. lrpca: ``power_steps`` of the initialisation's randomised SVD; ``sample_size`` of
        the entries for the thresholds (if there are fewer than 100 000, all are used); ``without``, a list of
        rules of the default to leave out (`lrpca.solvers.rules.RULES`); ``change``: stop when the relative changes of
        both X and S are below it (the paper's rule for videos, one more pass; with ``tol=0`` the only rule);
        ``checkpoint``, a file from which the same call resumes an interrupted run, bit for bit (saved after each
        iteration, at most once a second; deleted at the end, but kept after `max_iter` or a stop by the callback, so
        that a larger `max_iter` continues the run). The other methods: see the function ``solve`` of
        ``lrpca.solvers.<method>``. `Decomposition.settings` holds the values used; None is one that changed from
        iteration to iteration.

    Returns
    -------
    Decomposition
        A `lrpca.decomposition.tensor.TensorDecomposition` if Y is a tensor.

    Warns
    -----
    ConvergenceWarning
        The iteration stopped before it reached its tolerance; `Decomposition.reason` says why.
    DiagnosisWarning
        The result is unusual: no outliers, too many outliers, rows or columns without influence, structure left in the
        residual, mostly zeros.

    References
    ----------
    .. [1] H. Cai, J. Liu, W. Yin, "Learned Robust PCA: A Scalable Deep Unfolding Approach for High-Dimensional Outlier
       Detection", NeurIPS 2021.

    Examples
    --------
    >>> import numpy as np, lrpca
    >>> problem = lrpca.testing.planted((200, 150), rank=3, outlier_fraction=0.1, random_state=0)
    >>> d = lrpca.decompose(problem.Y, rank=3)
    >>> d.converged, bool(np.linalg.norm(d.low_rank - problem.X) < 1e-6 * np.linalg.norm(problem.X))
    (True, True)
    """
    given = Arguments(method, schedule, tol, max_iter, random_state, callback, mask, start, row_weight, options)
    result, found = decompose_with_warnings(Y, rank, given)
    for category, message in found:
        warnings.warn(message, category, stacklevel=2)
    return result


@dataclass(frozen=True)
class Arguments:
    """The arguments of `decompose` beside Y and rank."""

    method: str = "lrpca"
    schedule: Schedule | str | Path | None = None
    tol: float | None = None
    max_iter: int | None = None
    random_state: int | np.random.Generator | None = None
    callback: Callable[[State], object] | None = None
    mask: Any = None
    start: Any = None
    row_weight: Any = None
    options: dict[str, Any] | None = None


def decompose_with_warnings(
    Y: Any, rank: int | float | str | None = None, given: Arguments | None = None
) -> tuple[Decomposition, list[WarningText]]:
    """Return the result of `decompose` and its warnings: catching warnings is not safe among threads."""
    from lrpca.core.units import showing_units
    from lrpca.decomposition.assemble import assemble
    from lrpca.decomposition.tensor import TensorDecomposition, showing_tensors
    from lrpca.matrices.accept import accept
    from lrpca.matrices.accept_tensor import host_argument, results_device
    from lrpca.matrices.chunked.memory_budget import within_memory_budget
    from lrpca.solvers.problem import Problem
    from lrpca.solvers.rank.search import solve_unknown_rank

    given = given or Arguments()
    chosen, callback, start = find_method(given.method), given.callback, given.start
    if callback is not None and not callable(callback):
        raise TypeError(f"callback={callback!r} is not callable; pass a function of one argument, the state")
    options = check_options(given.options, chosen.options, chosen.name)
    specific = {"schedule": given.schedule, "start": start, "row_weight": given.row_weight}
    _refuse_unused(chosen, specific)
    matrix = accept(Y, given.mask)
    asked = _check_rank(rank, matrix.shape, chosen)
    plain = not options and all(value is None for value in specific.values())
    if given.method == "auto" and plain and pays_to_sample(matrix.shape, asked if isinstance(asked, int) else 1):
        chosen = find_method("sampled")
    device = results_device(Y, matrix)
    if is_tensor(getattr(matrix, "array", None)) and not chosen.device:
        raise ValueError(
            f"method={chosen.name!r} does not run on a GPU; pass Y.cpu(), or use one of {able_to('device')}"
        )
    weight = _check_weight(host_argument(given.row_weight, "row_weight", device), matrix.shape[0])
    if isinstance(start, tuple | list):
        start = tuple(host_argument(factor, f"start[{k}]", device) for k, factor in enumerate(start))
    plan = _resolve_schedule(given.schedule) if chosen.schedule else None
    rng = _generator(given.random_state)
    limits = check_tol(given.tol, chosen, plan, matrix.arithmetic), _check_max_iter(given.max_iter, chosen.max_iter)
    if device is not None and callback is not None:
        callback = showing_tensors(callback, device, matrix.result)

    def solved() -> tuple[Decomposition, Problem]:
        held = matrix
        try:
            if not chosen.streams:
                held = within_memory_budget(matrix, chosen.name, chosen.held)
            task = Problem.drawn(held, chosen, plan, options, limits, rng, weight)
            shown = callback
            if callback is not None and task.matrix.unit != 1:
                shown = showing_units(callback, task.matrix.unit)
            begin = _check_start(start, task, asked)
            if asked is None or isinstance(asked, int):
                run, outcome, choice = *task.solve(asked, begin, shown), None
            else:
                run, outcome, choice = solve_unknown_rank(task, asked, begin, shown)
        finally:
            held.close()
            matrix.close()
        # The matrix as it was given: the method may have copied what is read in blocks.
        found = assemble(run, outcome, choice).with_data(matrix)
        return found if device is None else TensorDecomposition.of(found, device), task

    result, task = in_memory_of(device, solved, matrix.shape)
    return result, _warnings_of(result, task, given.max_iter)


def check_settings(
    method: str, schedule: Any, tol: Any, max_iter: Any, random_state: Any, rank: int | float | str | None = None
) -> None:
    """Raise what `decompose` raises for these arguments with any Y."""
    chosen = find_method(method)
    _check_rank(rank, (sys.maxsize, sys.maxsize), chosen)
    _refuse_unused(chosen, {"schedule": schedule})
    plan = _resolve_schedule(schedule) if chosen.schedule else None
    check_tol(tol, chosen, plan, np.dtype(np.float64))
    _check_max_iter(max_iter, chosen.max_iter)
    _generator(random_state)


def _refuse_unused(method: Method, arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        if value is not None and not getattr(method, name):
            raise ValueError(f"{name} is not used by method={method.name!r}; leave it out, or use {able_to(name)}")


def _check_rank(rank: Any, shape: tuple[int, int], method: Method) -> int | float | str | None:
    """Return a rank, "auto", a share of the energy, or None for methods that find the rank themselves."""
    if rank is None or (isinstance(rank, str) and rank == "auto"):
        return "auto" if method.needs_rank else None
    if not is_integer(rank):
        if isinstance(rank, numbers.Real) and 0 < float(rank) < 1:
            if not method.needs_rank:
                raise ValueError(f"rank={rank} is a share, which method={method.name!r} does not use; leave rank out")
            return float(rank)
        if holds_one_number(rank):
            raise ValueError(f"rank={rank!r} is not an integer; pass int(rank), or float(rank) if it is a share")
        raise ValueError(
            f"rank={rank!r} is not an integer; give one from 1 to {min(shape)}, 'auto', or a share of the variance "
            "between 0 and 1"
        )
    if not 1 <= rank <= min(shape):
        raise ValueError(f"rank={rank} is not between 1 and min(Y.shape)={min(shape)}; choose one in that range")
    return int(rank)


def holds_one_number(value: Any) -> bool:
    """Tell whether a value is a tensor or an array of one number, and not the number itself."""
    return (is_tensor(value) or isinstance(value, np.ndarray)) and value.shape == ()


def _check_weight(weight: Any, rows: int) -> Any:
    if weight is None:
        return None
    weight = np.asarray(weight)
    if weight.shape != (rows,):
        raise ValueError(f"row_weight.shape={weight.shape} is not {(rows,)}; pass one real number for each row")
    if weight.dtype.kind not in "biuf":
        raise ValueError(f"row_weight.dtype={weight.dtype} is not a real number type; pass e.g. floats")
    weight = as_weights("row_weight", weight)
    if not weight.any():
        raise ValueError("row_weight=0 for every row leaves nothing to fit; give some rows a positive weight")
    if weight.max() > _LARGEST_SUMMED:
        weight /= weight.max()
    return weight / weight.mean()


def _resolve_schedule(schedule: Any) -> Schedule:
    if schedule is None:
        return default_schedule()
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, str | Path):
        return Schedule.load(schedule)
    raise TypeError(f"schedule={type(schedule).__name__} is not a Schedule, a name or a path; see lrpca.Schedule")


def check_tol(tol: Any, method: Method, schedule: Schedule | None, arithmetic: Any) -> float:
    """Return a tolerance; if it is None, that of the method, which the arithmetic can reach."""
    if tol is None:
        if schedule is not None and schedule.kind == "absolute":
            return _ABSOLUTE_TOL
        single = arithmetic in (np.float32, np.complex64)
        return max(method.tol, _LEAST_SINGLE_TOL) if single else method.tol
    if isinstance(tol, bool) or not isinstance(tol, numbers.Real) or not 0 <= float(tol) < 1:
        raise ValueError(f"tol={tol!r} is not a number from 0 to below 1; 0 runs to max_iter")
    return float(tol)


def _check_max_iter(max_iter: Any, default: int) -> int:
    if max_iter is None:
        return default
    if not is_integer(max_iter) or max_iter < 1:
        raise ValueError(f"max_iter={max_iter!r} is not a positive integer; {default} is the default")
    return int(max_iter)


def _generator(random_state: Any) -> np.random.Generator:
    if random_state is None:
        return np.random.default_rng(0)
    if isinstance(random_state, np.random.Generator):
        return random_state
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31))
    if is_integer(random_state) and random_state >= 0:
        return np.random.default_rng(int(random_state))
    raise ValueError(f"random_state={random_state!r} is not a non-negative integer or a Generator; e.g. 0")


def _check_start(start: Any, task: Problem, asked: int | float | str | None) -> Any:
    if start is None:
        return None
    try:
        L, R = (np.asarray(factor) for factor in start)
    except (TypeError, ValueError):
        raise ValueError("start is not a pair (L, R) of arrays; pass e.g. (d.L, d.R)") from None
    shape, complex_data = task.matrix.shape, task.matrix.stored.kind == "c"
    width: Any = asked
    if isinstance(asked, str | float):
        if not task.prunes:
            raise ValueError(f"rank={asked!r} does not go with start, unless the default finds it; give a rank")
        width = L.shape[1] if L.ndim == 2 and 1 <= L.shape[1] <= min(shape) else None
    if (L.shape, R.shape) != ((shape[0], width), (shape[1], width)):
        known = isinstance(asked, int)
        beside, r = (f" with rank={asked}", asked) if known else ("", "r")
        raise ValueError(
            f"start.shapes={(L.shape, R.shape)} do not fit Y.shape={shape}{beside}; pass ({shape[0]}, {r}) and "
            f"({shape[1]}, {r})" + ("" if known else f", r from 1 to {min(shape)}")
        )
    if not complex_data and "c" in (L.dtype.kind, R.dtype.kind):
        raise ValueError("start is complex but Y is real; pass real factors")
    wide = np.complex128 if complex_data else np.float64
    root = math.sqrt(task.matrix.unit)
    L, R = L.astype(wide) / root, R.astype(wide) / root
    if not (np.isfinite(L).all() and np.isfinite(R).all()):
        raise ValueError("start contains NaN or inf; pass finite factors")
    if not L.any() or not R.any():
        raise ValueError("start is all zero, which the iteration cannot leave; omit start for the spectral one")
    for k, size in enumerate(float(np.abs(factor).max()) for factor in (L, R)):
        if not _SQUARED[0] < size < _SQUARED[1]:
            raise ValueError(f"max|start[{k}]|={size * root:.1e} is beyond what can be squared; rescale the factors")
    return task.matrix.place(L), task.matrix.place(R)


_ADVICE = {
    "max_iter": "raise max_iter or tol, or check the rank",
    "schedule_end": "the schedule has no tail; pass max_iter to accept that, or use an adaptive schedule",
    "stalled": "X keeps changing, other starts lead to other answers, or the residual is not just noise and outliers; "
    "the rank may be too small, or half of some rows outliers: try a larger rank (methods other than lrpca: or a "
    "smaller one)",
    "runaway": "the thresholds shrank faster than the error, so S took in everything, or steps grew until numbers left "
    "their range; use the default schedule, or one made for this scale, rank and outlier fraction",
}


def _warnings_of(result: Decomposition, task: Problem, max_iter: Any) -> list[WarningText]:
    found: list[WarningText] = []
    reason, tolerance, schedule = result.reason, task.tol, task.schedule
    fixed_length = schedule is not None and schedule.tail is None
    accepted = tolerance == 0 or (max_iter is not None and fixed_length and reason != "runaway")
    if reason in _ADVICE and not accepted:
        last = result.history[-1] if result.history else None
        absolute = schedule is not None and schedule.kind == "absolute"
        measure = "residual" if absolute else task.method.measure
        reached = getattr(last, measure, None)
        # A stalled run, or one that had to continue, may have reached the tolerance.
        named = reached is not None and reason != "stalled" and not reached <= tolerance
        detail = f" ({measure} {reached:.1e}, asked for {tolerance:.1e})" if named else ""
        message = f"not converged: {reason} after {result.n_iter} iterations{detail}; {_ADVICE[reason]}"
        found.append((ConvergenceWarning, message))
    return found + [(DiagnosisWarning, message) for message in result.diagnosis.messages]
