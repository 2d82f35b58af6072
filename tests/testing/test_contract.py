"""Every method goes through the public contract, and solvers that break a clause of it are caught."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.solvers.methods import METHODS
from lrpca.testing import CHECKS, Contract

# Every row of these rejects the same share α of its entries: rows of nothing but outliers take part in the fit.
SAME_SHARE = {"outlying rows": "each row rejects the same share of its entries"}
# What each method reaches: at most three times the errors as measured, and less than a plain SVD leaves. A small matrix
# is harder than a large one: where a method needs more room, its problems are larger.
EXPECTED: dict[str, dict[str, Any]] = {
    "lrpca": {"accuracy": 1e-7, "single": 5e-6},
    # Surplus components fit what is left of the outliers.
    "scaledgd": {"accuracy": 1.5e-6, "single": 6e-6, "expected": {"rank too large": 0.02}, "without": SAME_SHARE},
    "gd": {"accuracy": 1.5e-6, "single": 6e-6, "expected": {"rank too large": 0.02}, "without": SAME_SHARE},
    # A row or column in which everything was taken for outliers is lost: it needs longer ones.
    "altproj": {
        "accuracy": 3e-7,
        "single": 2e-6,
        "shape": (200, 200),
        "rank": 5,
        "outlier_size": 10.0,
        "expected": {"many outliers": 3e-4},
    },
    "accaltproj": {"accuracy": 2e-7, "single": 2e-6, "expected": {"rank too large": 0.03}},
    # The penalty of a row of outliers in S is paid in the columns they are in.
    "pcp": {"accuracy": 4e-7, "single": 3e-6, "rank_needed": False, "expected": {"outlying rows": 0.04}},
    "stable_pcp": {"accuracy": 3e-7, "single": 5e-6, "rank_needed": False, "expected": {"outlying rows": 4e-3}},
    "ircur": {"accuracy": 3e-7, "single": 2e-6},
    "sampled": {"accuracy": 1e-7, "single": 5e-6},
    "pgrmc": {"accuracy": 2e-7, "single": 2e-6, "expected": {"rank too large": 0.03}},
    "godec": {
        "accuracy": 3e-6,
        "single": 5e-6,
        "shape": (200, 200),
        "rank": 5,
        "expected": {"rank too large": 0.03, "tall": 6e-5, "outlying rows": 3e-5},
    },
    # It averages outliers instead of rejecting them.
    "grassmann": {
        "outlier_size": 10.0,
        "accuracy": 0.08,
        "sameness": 1e-9,
        "missing": False,
        "expected": {"many outliers": 0.3, "integers": 0.06, "permutation": 0.03, "constant": 1e-9},
    },
}

# These lose rows or columns of matrices as small as here, and say so.
UNSETTLED = {("altproj", "many outliers"), ("godec", "tall")}


def contract_of(method: str) -> Contract:
    def solver(Y: Any, rank: Any) -> Any:
        return lrpca.decompose(Y, rank, method=method)

    return Contract(solver, **EXPECTED[method])


RECOVERY = ("planted recovery", "many outliers", "rank too large", "tall", "wide", "outlying rows", "integers")


@pytest.mark.parametrize("method", EXPECTED)
def test_every_tolerance_is_less_than_a_plain_svd_leaves(method: str) -> None:
    contract = Contract(lambda Y, rank: nan_is_zero(np.asarray(Y, float), rank or 3), **EXPECTED[method])
    for check in set(RECOVERY) & set(contract.checks):
        with pytest.raises(AssertionError, match=check):
            contract.check(check)


def test_every_method_is_in_the_table() -> None:
    assert list(EXPECTED) == list(METHODS)
    for name, method in METHODS.items():
        contract = contract_of(name)
        assert (contract.rank_needed, contract.missing) == (method.needs_rank, method.missing)


@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")  # what does not converge is still an error
@pytest.mark.parametrize(("method", "check"), [(m, check) for m in EXPECTED for check in contract_of(m).checks])
def test_method(method: str, check: str) -> None:
    with warnings.catch_warnings():
        if (method, check) in UNSETTLED:
            warnings.simplefilter("ignore", lrpca.ConvergenceWarning)
        contract_of(method).check(check)


def good(Y: Any, rank: Any) -> Any:
    """Return what the default finds."""
    return lrpca.decompose(Y, rank).low_rank


def test_a_good_solver_keeps_it() -> None:
    assert Contract(good, accuracy=1e-6).failures() == {}


def plain(Y: Any, rank: Any) -> Any:
    U, values, Vh = np.linalg.svd(np.asarray(Y), full_matrices=False)
    return (U[:, :rank] * values[:rank]) @ Vh[:rank]


def absolute(Y: Any, rank: Any) -> Any:
    """Have a threshold that does not know the scale of the data."""
    return good(np.where(np.abs(Y) > 1, 0.0, Y), rank)


def written(Y: Any, rank: Any) -> Any:
    X = good(Y, rank)
    Y[0, 0] = 0
    return X


def drawn(Y: Any, rank: Any) -> Any:
    return good(Y, rank) * (1 + 1e-12 * np.random.default_rng().standard_normal())


def crooked(Y: Any, rank: Any) -> Any:
    """Favour the first row."""
    X = good(Y, rank).copy()
    X[0] *= 1.001
    return X


def crashing(Y: Any, rank: Any) -> Any:
    if not np.any(Y) or 1 in Y.shape:
        raise np.linalg.LinAlgError("singular")
    return good(Y, rank)


def silent(Y: Any, rank: Any) -> Any:
    if 1 in Y.shape:
        raise ValueError("no")
    return good(Y, rank)


def nan_is_zero(Y: Any, rank: Any) -> Any:
    return plain(np.nan_to_num(Y), rank)


def whole_numbers(Y: Any, rank: Any) -> Any:
    return np.rint(good(Y, rank)).astype(int) if Y.dtype.kind == "i" else good(Y, rank)


def undefined(Y: Any, rank: Any) -> Any:
    X = good(Y, rank)
    return X / X.any() if X.any() else np.full(X.shape, np.nan)


BROKEN: list[tuple[Callable[[Any, Any], Any], str, str]] = [
    (plain, "planted recovery", "the error of X is 0.02.*, at most 1e-05 was expected"),
    (plain, "many outliers", "error of X"),
    (plain, "rank too large", "error of X"),
    (plain, "outlying rows", "the error of X in the other rows is"),
    (lambda Y, rank: good(Y, min(rank, 1)), "double precision", "error of X"),
    (lambda Y, rank: good(Y, rank) if Y.shape[0] == Y.shape[1] else plain(Y, rank), "tall", "error of X"),
    (lambda Y, rank: good(Y, rank) if Y.shape[0] == Y.shape[1] else plain(Y, rank), "wide", "error of X"),
    (lambda Y, rank: good(Y, rank).astype(float), "single precision", "X is of type float64, float32 was expected"),
    (lambda Y, rank: good(Y, rank).astype("f4"), "double precision", "X is of type float32, float64 was expected"),
    (lambda Y, rank: good(Y.real, rank), "complex data", "error of X"),
    (whole_numbers, "integers", "X is of type int64, floating-point numbers were expected"),
    (absolute, "scaling", "the relative difference of the two X is"),
    (lambda Y, rank: good(Y, rank).T, "transposition", "error of X"),
    (crooked, "permutation", "relative difference"),
    (lambda Y, rank: good(Y if Y.flags.c_contiguous else Y[::-1], rank), "layouts", "relative difference"),
    (written, "input unchanged", "1 entries of Y were changed"),
    (drawn, "reproducible", "entries of X differ between two runs"),
    (lambda Y, rank: good(Y, rank)[1:], "planted recovery", r"X has the shape \(119, 120\), \(120, 120\) was expected"),
    (undefined, "zeros", "X has entries that are not finite"),
    (lambda Y, rank: good(Y, rank) + 1e-3, "zeros", "X has entries up to 0.001, zeros were expected"),
    (crashing, "zeros", "singular.*where a finite X or a clear ValueError was expected"),
    (crashing, "one column", "singular"),
    (silent, "one row", "a ValueError that says what is wrong was expected"),
    (silent, "one entry", "a ValueError that says what is wrong was expected"),
    (lambda Y, rank: 0.9 * good(Y, rank), "constant", "error of X is 0.1"),
    (nan_is_zero, "missing entries", "error of X"),
]


@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning", "ignore::lrpca.ConvergenceWarning")
@pytest.mark.parametrize(
    ("solver", "check", "message"), BROKEN, ids=[f"{check}-{k}" for k, (_, check, _) in enumerate(BROKEN)]
)
def test_broken_solvers_are_caught(solver: Callable[[Any, Any], Any], check: str, message: str) -> None:
    with pytest.raises(AssertionError, match=rf"^{check}: .*{message}"):
        Contract(solver).check(check)


def test_refusals_have_to_say_what_is_refused() -> None:
    def refusing(Y: Any, rank: Any) -> Any:
        if np.isnan(Y).any():
            raise ValueError("Y has missing entries, which are not taken; use another solver")
        if np.iscomplexobj(Y):
            raise TypeError("Y is not taken")
        return good(Y, rank)

    contract = Contract(refusing, missing=False, complex_data=False)
    contract.check("missing entries")
    with pytest.raises(AssertionError, match="complex data: .*does not mention complex"):
        contract.check("complex data")
    with pytest.raises(AssertionError, match="missing entries: an answer came, where a ValueError"):
        Contract(good, missing=False).check("missing entries")


def test_rank_is_left_out_where_it_is_not_needed() -> None:
    asked: list[Any] = []

    def solver(Y: Any, rank: Any) -> Any:
        asked.append(rank)
        return plain(Y, rank or 2)

    Contract(solver).check("unknown rank")
    assert asked == []
    with pytest.raises(AssertionError, match="unknown rank: the error"):
        Contract(solver, rank_needed=False).check("unknown rank")
    assert asked == [None]


def test_failures_are_listed() -> None:
    def raising(Y: Any, rank: Any) -> Any:
        if Y.dtype == np.float32:
            raise RuntimeError("no single precision here")
        return plain(Y, rank)

    failures = Contract(raising, without={"tall": "takes long"}).failures()
    assert failures["single precision"] == "single precision: raised RuntimeError('no single precision here')"
    assert failures["planted recovery"].startswith("planted recovery: the error of X is 0.02")
    assert "tall" not in failures and "wide" in failures and "reproducible" not in failures


@pytest.mark.parametrize("name", ("expected", "without"))
def test_unknown_checks_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}='talll' is no check; use one of planted recovery"):
        Contract(good, **{name: {"talll": 1}})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name='talll' is no check; use one of planted recovery"):
        Contract(good).check("talll")


def test_the_example_of_the_guide_fails_as_the_guide_says() -> None:
    page = (Path(__file__).parents[2] / "docs/contract.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], namespace)
    shown = page.split("```text\n")[1].split("```")[0].splitlines()
    came = namespace["CONTRACT"].failures().values()
    assert [re.sub(r"0\.\d+", "0.0", message) for message in came] == [re.sub(r"0\.\d+", "0.0", line) for line in shown]
    # Every check is explained.
    assert not [name for name in CHECKS if f"`{name}`" not in page]
