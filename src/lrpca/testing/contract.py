"""The contract: what users may expect of a solver, ours or yours, as named checks with a message each.

A solver is a function ``solver(Y, rank)`` that returns the low-rank part X, or something that has it as `low_rank`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lrpca.metrics import relative_error
from lrpca.testing.problems import Problem, planted

Solver = Callable[[Any, Any], Any]
Check = Callable[["Contract", str], None]

# Components beyond those of X, where too many are asked for.
_SURPLUS = 2
# Rows of nothing but outliers, and their size in units of mean|X|.
_BAD_ROWS, _BAD_SIZE = 2, 10.0
# Of rows or columns of the long side of a narrow matrix, in units of the short one.
_LONG = 4
# An error message of fewer words says nothing.
_FEWEST_WORDS = 3


@dataclass(frozen=True)
class Contract:
    """A solver, and what is expected of it.

    Parameters
    ----------
    solver : callable
        ``solver(Y, rank)``; returns X (n1, n2), or an object with it as `low_rank`.
    accuracy : float
        Largest relative error ``‖X - X*‖ / ‖X*‖`` on planted problems.
    single : float, optional
        The same in single precision; `accuracy`, but not below 1e-4, if not given.
    sameness : float, optional
        How much two answers to the same question may differ: data scaled, rows and columns in another order; `accuracy`
        if not given.
    expected : mapping, optional
        Accuracy of single checks, by name, where it is another.
    without : mapping, optional
        Checks that do not apply, by name, each with the reason.
    rank_needed : bool
        If not, the solver is also asked with ``rank=None``.
    missing, complex_data : bool
        Whether it takes NaN for missing entries, and complex data; if not, it has to raise a ValueError (or TypeError)
        that says so.
    keeps_precision : bool
        Whether X has the type of Y: float32 for float32, float64 for float64.
    shape, rank, outlier_size
        Of the planted problems, see `planted`.

    Examples
    --------
    >>> import lrpca
    >>> contract = Contract(lambda Y, rank: lrpca.decompose(Y, rank), accuracy=1e-6)
    >>> contract.check("planted recovery")
    >>> def plain_svd(Y, rank):
    ...     U, values, Vh = np.linalg.svd(Y, full_matrices=False)
    ...     return (U[:, :rank] * values[:rank]) @ Vh[:rank]
    >>> Contract(plain_svd).check("planted recovery")
    Traceback (most recent call last):
    ...
    AssertionError: planted recovery: the error of X is 0.022, at most 1e-05 was expected
    """

    solver: Solver
    accuracy: float = 1e-5
    single: float | None = None
    sameness: float | None = None
    expected: Mapping[str, float] = field(default_factory=dict)
    without: Mapping[str, str] = field(default_factory=dict)
    rank_needed: bool = True
    missing: bool = True
    complex_data: bool = True
    keeps_precision: bool = True
    shape: tuple[int, int] = (120, 120)
    rank: int = 2
    outlier_size: float = 1.0

    def __post_init__(self) -> None:
        for argument in ("expected", "without"):
            for name in getattr(self, argument):
                _refuse_unknown(argument, name)

    @property
    def checks(self) -> tuple[str, ...]:
        """The names of the checks that apply."""
        return tuple(name for name in CHECKS if name not in self.without)

    def check(self, name: str) -> None:
        """Run one of `CHECKS`; raises AssertionError with what was expected and what came."""
        _refuse_unknown("name", name)
        try:
            CHECKS[name](self, name)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error

    def failures(self) -> dict[str, str]:
        """Return what every check that applies and fails has to say, by its name."""
        messages = {}
        for name in self.checks:
            try:
                self.check(name)
            except Exception as error:  # whatever a foreign solver raises is its failure
                messages[name] = str(error) if isinstance(error, AssertionError) else f"{name}: raised {error!r}"
        return messages

    def problem(self, **changes: Any) -> Problem:
        """Return the planted problem of the contract, with some arguments of `planted` changed."""
        return _problem(
            **{"shape": self.shape, "rank": self.rank, "outlier_size": self.outlier_size, "random_state": 1} | changes
        )

    def answer(self, Y: Any, rank: int | None = None) -> Any:
        """Return the solver's X for Y, of which the shape is checked; the rank is that of the problems if not given."""
        X = _low_rank(self.solver(Y, self.rank if rank is None else rank))
        assert X.shape == np.shape(Y), f"X has the shape {X.shape}, {np.shape(Y)} was expected"
        assert np.isfinite(X).all(), "X has entries that are not finite"
        return X

    def expect(self, name: str, error: float, most: float | None = None, what: str = "the error of X") -> None:
        """Raise AssertionError if an error is above what is expected in a check."""
        limit = self.expected.get(name, self.accuracy if most is None else most)
        assert error <= limit, f"{what} is {error:.3g}, at most {limit:g} was expected"


def _refuse_unknown(argument: str, name: str) -> None:
    if name not in CHECKS:
        raise ValueError(f"{argument}={name!r} is no check; use one of {', '.join(CHECKS)}")


_problem = functools.lru_cache(maxsize=16)(planted)


def _low_rank(answer: Any) -> Any:
    return np.asarray(getattr(answer, "low_rank", answer))


def _recovery(contract: Contract, name: str, **changes: Any) -> None:
    problem = contract.problem(**changes)
    contract.expect(name, problem.error(contract.answer(problem.Y)))


def _unknown_rank(contract: Contract, name: str) -> None:
    if not contract.rank_needed:
        problem = contract.problem()
        contract.expect(name, problem.error(_low_rank(contract.solver(problem.Y, None))))


def _rank_too_large(contract: Contract, name: str) -> None:
    problem = contract.problem()
    with warnings.catch_warnings(action="ignore"):
        X = contract.answer(problem.Y, problem.rank + _SURPLUS)
    contract.expect(name, problem.error(X))


def _narrow(contract: Contract, name: str, rows: int = 1, columns: int = 1) -> None:
    side = min(contract.shape)
    _recovery(contract, name, shape=(rows * side, columns * side))


def _taken_or_refused(contract: Contract, name: str, taken: str, words: tuple[str, ...], **changes: Any) -> None:
    """Expect recovery where the contract says that such data are taken, else an error with one of some words."""
    if getattr(contract, taken):
        return _recovery(contract, name, **changes)
    try:
        contract.solver(contract.problem(**changes).Y, contract.rank)
    except (ValueError, TypeError) as error:
        assert any(word in str(error) for word in words), f"{error!r} does not mention {' or '.join(words)}"
    else:
        raise AssertionError("an answer came, where a ValueError was expected that says what is not taken")


def _outlying_rows(contract: Contract, name: str) -> None:
    problem = contract.problem()
    rng = np.random.default_rng(3)
    bad = rng.choice(len(problem.Y), _BAD_ROWS, replace=False)
    Y, size = problem.Y.copy(), _BAD_SIZE * np.abs(problem.X).mean()
    Y[bad] = rng.uniform(-size, size, (_BAD_ROWS, Y.shape[1]))
    with warnings.catch_warnings(action="ignore"):
        X = contract.answer(Y)
    good = np.setdiff1d(np.arange(len(Y)), bad)
    contract.expect(name, relative_error(X[good], problem.X[good]), what="the error of X in the other rows")


def _precision(contract: Contract, name: str, dtype: Any) -> None:
    problem = contract.problem(dtype=dtype)
    X = contract.answer(problem.Y)
    if contract.keeps_precision:
        assert X.dtype == dtype, f"X is of type {X.dtype}, {np.dtype(dtype)} was expected for such data"
    single = max(contract.accuracy, 1e-4) if contract.single is None else contract.single
    contract.expect(name, problem.error(X), single if dtype is np.float32 else None)


def _integers(contract: Contract, name: str) -> None:
    rng = np.random.default_rng(4)
    n1, n2 = contract.shape
    X = rng.integers(-9, 10, (n1, contract.rank)) @ rng.integers(-9, 10, (contract.rank, n2))
    Y = X + np.where(rng.random(X.shape) < 0.1, rng.choice([-1, 1], X.shape) * rng.integers(20, 100, X.shape), 0)
    answer = contract.answer(Y)
    assert answer.dtype.kind == "f", f"X is of type {answer.dtype}, floating-point numbers were expected"
    contract.expect(name, relative_error(answer, X))


def _same(contract: Contract, name: str, X: Any, other: Any) -> None:
    contract.expect(name, relative_error(other, X), contract.sameness, "the relative difference of the two X")


def _scaling(contract: Contract, name: str) -> None:
    Y = contract.problem().Y
    X = contract.answer(Y)
    for factor in (1e3, 1e-3):
        _same(contract, name, X, contract.answer(factor * Y) / factor)


def _transposition(contract: Contract, name: str) -> None:
    problem = contract.problem()
    contract.expect(name, problem.error(contract.answer(np.ascontiguousarray(problem.Y.T)).T))


def _permutation(contract: Contract, name: str) -> None:
    Y = contract.problem().Y
    rng = np.random.default_rng(5)
    rows, columns = (rng.permutation(n) for n in Y.shape)
    _same(contract, name, contract.answer(Y)[rows][:, columns], contract.answer(Y[rows][:, columns]))


def _layouts(contract: Contract, name: str) -> None:
    """Fortran order, a view with strides, and memory that must not be written to."""
    Y = contract.problem().Y
    X = contract.answer(Y)
    n1, n2 = Y.shape
    wide = np.full((2 * n1, 3 * n2), 1e6)
    wide[::2, ::3] = Y
    fixed = Y.copy()
    fixed.flags.writeable = False
    for layout in (np.asfortranarray(Y), wide[::2, ::3], fixed):
        _same(contract, name, X, contract.answer(layout))


def _input_unchanged(contract: Contract, name: str) -> None:
    for missing in (0.0, 0.2) if contract.missing else (0.0,):
        before = contract.problem(missing=missing).Y
        Y = before.copy()
        contract.answer(Y)
        changed = int(np.count_nonzero(~((before == Y) | (np.isnan(before) & np.isnan(Y)))))
        assert not changed, f"{changed} entries of Y were changed, none was expected to be"


def _reproducible(contract: Contract, name: str) -> None:
    Y = contract.problem().Y
    apart = int(np.count_nonzero(contract.answer(Y) != contract.answer(Y)))
    assert not apart, f"{apart} entries of X differ between two runs on the same Y, the same bits were expected"


def _finite_or_error(contract: Contract, Y: Any, rank: int) -> Any:
    """Return X, or None if the solver raised a clear ValueError."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return contract.answer(Y, rank)
    except np.linalg.LinAlgError as error:
        raise AssertionError(f"{error!r} came, where a finite X or a clear ValueError was expected") from error
    except ValueError as error:
        words = len(str(error).split())
        assert words >= _FEWEST_WORDS, f"{error!r} came, where a ValueError that says what is wrong was expected"
        return None


def _zeros(contract: Contract, name: str) -> None:
    X = _finite_or_error(contract, np.zeros(contract.shape), contract.rank)
    assert X is None or not X.any(), f"X has entries up to {np.abs(X).max():.3g}, zeros were expected"


def _small(contract: Contract, name: str, rows: int | None = None, columns: int | None = None) -> None:
    _finite_or_error(contract, contract.problem().Y[:rows, :columns], 1)


def _constant(contract: Contract, name: str) -> None:
    X = _finite_or_error(contract, np.full(contract.shape, 3.0), 1)
    if X is not None:
        contract.expect(name, relative_error(X, np.full(contract.shape, 3.0)))


CHECKS: dict[str, Check] = {
    "planted recovery": _recovery,
    "many outliers": functools.partial(_recovery, outlier_fraction=0.3),
    "unknown rank": _unknown_rank,
    "rank too large": _rank_too_large,
    "tall": functools.partial(_narrow, rows=_LONG),
    "wide": functools.partial(_narrow, columns=_LONG),
    "missing entries": functools.partial(
        _taken_or_refused, taken="missing", words=("missing", "NaN", "nan"), missing=0.2
    ),
    "outlying rows": _outlying_rows,
    "single precision": functools.partial(_precision, dtype=np.float32),
    "double precision": functools.partial(_precision, dtype=np.float64),
    "complex data": functools.partial(_taken_or_refused, taken="complex_data", words=("complex",), dtype=np.complex128),
    "integers": _integers,
    "scaling": _scaling,
    "transposition": _transposition,
    "permutation": _permutation,
    "layouts": _layouts,
    "input unchanged": _input_unchanged,
    "reproducible": _reproducible,
    "zeros": _zeros,
    "one row": functools.partial(_small, rows=1),
    "one column": functools.partial(_small, columns=1),
    "one entry": functools.partial(_small, rows=1, columns=1),
    "constant": _constant,
}
