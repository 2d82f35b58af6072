"""Every method: bad input, options, capabilities, callbacks, limits, and settings as used."""

from __future__ import annotations

import re
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.solvers.base import Record, State
from lrpca.solvers.methods import METHODS, able_to, find_method
from lrpca.testing import planted

# Methods that use no random numbers for a small matrix.
NOT_RANDOM = ("lrpca", "sampled")
RANK = 2
PROBLEM = planted((100, 90), rank=RANK, outlier_fraction=0.08, outlier_size=10.0, random_state=1)
NAMES = list(METHODS)
# One value that each option refuses, besides those that none takes.
REFUSED: dict[str, dict[str, Any]] = {
    "lrpca": {"power_steps": -1, "sample_size": 99, "without": ["nosuch"], "change": -1, "checkpoint": ""},
    "scaledgd": {"alpha": 1.0, "gamma": 0.9, "init": -0.1, "step": 0, "change": 0},
    "gd": {"alpha": -0.1, "gamma": 0.5, "init": 1, "step": 0, "balance": -1, "sample": 0, "incoherence": 0},
    "altproj": {"variant": "fast", "beta": 0, "incoherence": -1, "floor": -1, "change": -1},
    "accaltproj": {"gamma": 1, "beta": -1, "beta_init": 0, "floor": -0.5},
    "pcp": {"algorithm": "alm", "weight": 0, "mu": -1, "growth": 0.5},
    "stable_pcp": {"weight": -0.1, "noise_level": 0, "debias": "yes"},
    "ircur": {"sampling": "none", "oversampling": 0, "gamma": 1.0, "threshold": 0, "floor": -1},
    "sampled": {"side": 7, "passes": -1},
    "pgrmc": {"mu": 0, "decay": 1, "sample": 1.5},
    "godec": {"alpha": 1, "ramp": 1.0, "power_steps": 0, "warm": 1},
    "grassmann": {"trim": 51, "center": 0, "coefficients": "none"},
}
every_method = pytest.mark.parametrize("method", NAMES)
quiet = pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning", "ignore::lrpca.ConvergenceWarning")


def solve(method: str, Y: Any = PROBLEM.Y, rank: Any = RANK, **arguments: Any) -> Any:
    return lrpca.decompose(Y, rank, method=method, **arguments)


@every_method
def test_the_registry_and_the_solver_agree(method: str) -> None:
    known = METHODS[method]
    assert known is find_method(method) and known.name == method
    assert set(known.defaults()) == set(known.options)
    assert known.measure in ("residual", "change") and 0 < known.tol < 1 and known.max_iter > 0
    assert known.solve.__doc__ and "Parameters" in known.solve.__doc__
    for name in known.options:
        assert re.search(rf"^    {name} : ", known.solve.__doc__, re.MULTILINE), f"{name} is not described"


@pytest.mark.parametrize("name", ("magic", "LRPCA", "", None, 3, ["pcp"]))
def test_unknown_methods_are_refused_with_the_list(name: Any) -> None:
    known = ", ".join(NAMES)
    with pytest.raises(ValueError, match=rf"method={re.escape(repr(name))} is unknown; use one of {known}, auto"):
        solve(name)


@pytest.mark.parametrize("method", [name for name in NAMES if METHODS[name].missing])
@pytest.mark.filterwarnings("ignore::lrpca.ConvergenceWarning")
def test_rows_and_columns_of_which_nothing_is_known_are_told(method: str) -> None:
    Y = PROBLEM.Y.copy()
    Y[3], Y[:, 5] = np.nan, np.nan
    with pytest.warns(lrpca.DiagnosisWarning, match=r"without influence \(.*all entries are missing"):
        d = solve(method, Y, max_iter=20)
    assert 3 in d.diagnosis.rows_without_influence and 5 in d.diagnosis.columns_without_influence


@every_method
def test_unknown_options_are_refused_with_the_list(method: str) -> None:
    known = ", ".join(METHODS[method].options)
    with pytest.raises(ValueError, match=rf"options=\{{'nosuch': ...\}} is unknown to method='{method}'; use {known}"):
        solve(method, options={"nosuch": 0.1})
    with pytest.raises(TypeError, match=r"options=\['alpha'\] is not a dict; pass e\.g\. \{'"):
        solve(method, options=["alpha"])


def test_every_option_is_tried() -> None:
    assert {method: set(values) for method, values in REFUSED.items()} == {
        method: set(known.options) for method, known in METHODS.items()
    }


@pytest.mark.parametrize(
    ("method", "option", "value"), [(m, name, value) for m, values in REFUSED.items() for name, value in values.items()]
)
def test_option_values_are_checked(method: str, option: str, value: Any) -> None:
    for bad in (value, [], object(), np.nan if not isinstance(value, str | list) else 3):
        if bad == [] and option == "without":
            continue  # nothing is left out
        with pytest.raises(ValueError, match=rf"options\['{option}'\]=.*; (use|give|e\.g\.) "):
            solve(method, options={option: bad})


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("altproj", {"incoherence": 2.0}),
        ("altproj", {"variant": "ncrpca", "beta": 0.1}),
        ("pcp", {"algorithm": "admm", "growth": 2}),
    ],
    ids=str,
)
def test_options_that_would_not_be_used_are_refused(method: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"options\['{list(options)[-1]}'\]=.* is not used by .*; leave it out"):
        solve(method, options=options)


@every_method
def test_options_that_are_none_count_as_not_given(method: str) -> None:
    options = dict.fromkeys(METHODS[method].options)
    np.testing.assert_array_equal(solve(method, options=options).L, solve(method).L)


@every_method
@pytest.mark.parametrize("value", (np.inf, -np.inf))
def test_infinite_entries_are_located(method: str, value: float) -> None:
    # ircur does not look at every entry: a whole row that it cannot miss.
    Y = PROBLEM.Y.copy()
    Y[3, 4 : None if method == "ircur" else 5] = value
    with pytest.raises(ValueError, match=r"Y\[3, \d+\]=-?inf is not finite; mark missing entries with NaN"):
        solve(method, Y)


@every_method
def test_missing_entries_are_taken_or_refused(method: str) -> None:
    Y = PROBLEM.Y.copy()
    Y[::9, ::7] = np.nan
    if METHODS[method].missing:
        d = solve(method, Y)
        assert PROBLEM.error(d.low_rank) < 1e-5 and not d.outliers[::9, ::7].any()
    else:
        with pytest.raises(ValueError, match=rf"missing entries \(.*%\), which method='{method}'.*use one of lrpca, "):
            solve(method, Y)


@pytest.mark.parametrize("method", [name for name in NAMES if METHODS[name].missing])
def test_a_mask_says_what_nan_says(method: str) -> None:
    observed = np.random.default_rng(0).random(PROBLEM.Y.shape) > 0.1
    nan = solve(method, np.where(observed, PROBLEM.Y, np.nan))
    masked = solve(method, np.where(observed, PROBLEM.Y, 1e3), mask=observed)
    assert np.linalg.norm(nan.low_rank - masked.low_rank) < 1e-6 * np.linalg.norm(nan.low_rank)
    assert not nan.sparse[~observed].any() and not masked.outliers[~observed].any()


@quiet
@every_method
def test_bytes_are_fitted_in_single_precision(method: str) -> None:
    rng = np.random.default_rng(0)
    X = np.outer(rng.uniform(5, 10, 100), rng.uniform(5, 10, 90))
    Y = np.where(rng.random(X.shape) < 0.1, rng.integers(150, 255, X.shape), X.round()).astype(np.uint8)
    d = solve(method, Y, 1)
    assert d.L.dtype == np.float32
    # Rounding to integers leaves 0.29 in an entry, of which rank 1 keeps little; averages keep some of the outliers.
    assert np.sqrt(np.mean((d.low_rank - X) ** 2)) < (4.0 if method == "grassmann" else 0.12)


@quiet
@every_method
def test_threads_do_not_change_the_bits(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = planted((400, 350), rank=RANK)  # large enough for threads
    several = solve(method, problem.Y, max_iter=5)
    monkeypatch.setattr("lrpca.kernels.threads.thread_count", lambda: 1)
    one = solve(method, problem.Y, max_iter=5)
    np.testing.assert_array_equal(one.L, several.L)
    np.testing.assert_array_equal(one.R, several.R)


@every_method
@pytest.mark.parametrize(
    ("rank", "message"),
    [(0, r"rank=0 is not between 1 and min\(Y\.shape\)=90"), (91, "rank=91 is not between"), (2.0, "not an integer")],
)
def test_ranks(method: str, rank: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve(method, rank=rank)


@every_method
def test_no_rank(method: str) -> None:
    """The default finds it for methods that need one; the others find it themselves."""
    d = solve(method, rank=None)
    assert d.rank == RANK and (d.rank_choice is not None) == METHODS[method].needs_rank


@every_method
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tol": -1}, "tol=-1 is not a number from 0"),
        ({"max_iter": 0}, "max_iter=0 is not a positive integer; [0-9]+ is the default"),
        ({"random_state": -1}, "random_state=-1"),
        ({"mask": np.ones((3, 3), bool)}, "mask.shape"),
    ],
    ids=str,
)
def test_other_arguments(method: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve(method, **arguments)


@every_method
@pytest.mark.parametrize("name", ("start", "schedule", "row_weight"))
def test_arguments_that_are_not_used_are_refused(method: str, name: str) -> None:
    value = {"start": (np.ones((100, RANK)), np.ones((90, RANK))), "schedule": "default", "row_weight": np.ones(100)}
    if getattr(METHODS[method], name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert np.isfinite(solve(method, **{name: value[name]}).low_rank).all()
        return
    with pytest.raises(ValueError, match=f"{name} is not used by method='{method}'; leave it out, or use ") as caught:
        solve(method, **{name: value[name]})
    assert str(caught.value).endswith(able_to(name))


@quiet
@every_method
def test_a_start_is_used_and_not_changed(method: str) -> None:
    if not METHODS[method].start:
        return
    rng = np.random.default_rng(0)
    start = rng.standard_normal((100, RANK)), rng.standard_normal((90, RANK))
    before = [factor.copy() for factor in start]
    first: list[Any] = []
    for given in ({"start": start}, {}):
        solve(method, callback=lambda state: bool(first.append(state.L @ state.R.T)) or True, **given)
    # One iteration does not forget where it came from.
    assert np.linalg.norm(first[0] - first[1]) > 0.1 * np.linalg.norm(first[1])
    for factor, copy in zip(start, before, strict=True):
        np.testing.assert_array_equal(factor, copy)


@pytest.mark.parametrize("method", [name for name in NAMES if METHODS[name].start])
def test_a_start_at_the_result_saves_passes(method: str) -> None:
    d = solve(method)
    again = solve(method, start=(d.L, d.R), options={name: d.settings[name] for name in d.estimated})
    assert again.converged and again.n_reads < d.n_reads and PROBLEM.error(again.low_rank) < 1e-5


@every_method
def test_history_and_states(method: str) -> None:
    states: list[Any] = []
    d = solve(method, callback=states.append)
    assert d.method == method and d.reason == "tol" and d.n_iter == len(states) > 0
    assert [state.iteration for state in states] == list(range(1, d.n_iter + 1))
    for state, record in zip(states, d.history, strict=True):
        assert isinstance(state, State) and type(record) is Record
        assert {name: getattr(state, name) for name in vars(record)} == vars(record)
        assert state.L.shape[0] == 100 and state.R.shape[0] == 90 and state.L.shape[1] == state.R.shape[1]
        assert state.L.dtype == np.float64 and record.seconds >= 0
    measured = getattr(d.history[-1], METHODS[method].measure)
    assert measured <= d.settings["tol"]


@every_method
def test_states_are_copies(method: str) -> None:
    def scribble(state: Any) -> None:
        state.L[:] = np.nan
        state.R[:] = 7

    np.testing.assert_array_equal(solve(method, callback=scribble).low_rank, solve(method).low_rank)


@every_method
def test_true_stops_and_nothing_else(method: str) -> None:
    d = solve(method, callback=lambda state: state.iteration == 2)
    assert d.n_iter == 2 and d.reason == "callback" and not d.converged
    assert np.isfinite(d.low_rank).all()
    assert solve(method, callback=lambda state: "yes").reason == "tol"
    with pytest.raises(TypeError, match="callback=3 is not callable"):
        solve(method, callback=3)


@quiet
@every_method
@pytest.mark.parametrize("error", (KeyboardInterrupt, RuntimeError, None))
def test_what_a_callback_raises_comes_through_and_no_thread_is_left(
    method: str, error: type[BaseException] | None
) -> None:
    problem = planted((400, 350), rank=RANK)  # large enough for threads
    before = set(threading.enumerate())
    met: set[threading.Thread] = set()

    def interrupt(state: Any) -> bool:
        met.update(threading.enumerate())
        if state.iteration == 2 and error is not None:
            raise error("enough")
        return state.iteration == 2

    if error is None:
        kept = solve(method, problem.Y, callback=interrupt)
        assert kept.reason == "callback"
    else:
        with pytest.raises(error, match="enough"):
            solve(method, problem.Y, callback=interrupt)
    # Those that were told to end may need a moment, also the ones that came after the last callback.
    for thread in (met | set(threading.enumerate())) - before:
        thread.join(timeout=1)
    # Also while the result, which refers to the matrix, is alive.
    assert set(threading.enumerate()) <= before


@every_method
def test_no_tolerance_runs_to_the_limit(method: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lrpca.DiagnosisWarning)
        d = solve(method, tol=0, max_iter=7)  # no ConvergenceWarning: it was asked for
    # grassmann has as many for each direction.
    assert d.n_iter == (7 * RANK if method == "grassmann" else 7) and d.reason == "max_iter"


@every_method
def test_one_iteration(method: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lrpca.DiagnosisWarning)
        with pytest.warns(lrpca.ConvergenceWarning, match="not converged: max_iter after [12] iterations"):
            d = solve(method, max_iter=1)
    assert not d.converged and d.reason == "max_iter"
    assert np.isfinite(d.low_rank).all() and d.low_rank.shape == (100, 90)


@every_method
def test_settings_say_everything_and_survive_a_file(method: str, tmp_path: Path) -> None:
    d = solve(method)
    known = METHODS[method]
    # The paper's form of altproj has no use for the variant's constant.
    assert set(d.settings) >= {*known.options, "tol", "max_iter"} - {"incoherence"}
    assert (d.settings["tol"], d.settings["max_iter"]) == (known.tol, known.max_iter)
    assert set(d.estimated) <= set(d.settings)
    # What is None in the end is switched off: nothing was found from the data in its place.
    off = "power_steps sample_size step sample incoherence change checkpoint side passes".split()
    assert {name for name in d.settings if d.settings[name] is None} <= set(off)
    d.save(tmp_path / "d.npz")
    loaded = lrpca.Decomposition.load(tmp_path / "d.npz")
    assert loaded.settings == d.settings and loaded.estimated == d.estimated
    assert loaded.method == method and loaded.history == d.history and loaded.reason == d.reason
    np.testing.assert_array_equal(loaded.low_rank, d.low_rank)


@pytest.mark.parametrize(
    ("method", "estimated"),
    [
        ("scaledgd", {"alpha", "init"}),
        ("gd", {"alpha", "init"}),
        ("godec", {"alpha"}),
        ("stable_pcp", {"noise_level"}),
        ("ircur", {"threshold"}),
        ("pcp", set()),
        ("lrpca", set()),
    ],
)
@quiet
def test_what_was_found_from_the_data_is_named(method: str, estimated: set[str]) -> None:
    d = solve(method)
    assert set(d.estimated) == estimated
    if "alpha" in estimated:
        assert d.settings["alpha"] == pytest.approx(0.08, rel=0.3)
        given = solve(method, options={"alpha": 0.1})
        assert "alpha" not in given.estimated and given.settings["alpha"] == 0.1


@every_method
def test_the_same_seed_gives_the_same_bits_and_generators_move_on(method: str) -> None:
    first, second = (solve(method, random_state=7) for _ in range(2))
    np.testing.assert_array_equal(first.L, second.L)
    np.testing.assert_array_equal(first.R, second.R)
    assert [record.residual for record in first.history] == [record.residual for record in second.history]
    generator = np.random.default_rng(7)
    np.testing.assert_array_equal(solve(method, random_state=generator).L, first.L)
    moved = generator.bit_generator.state != np.random.default_rng(7).bit_generator.state
    assert moved == (method not in NOT_RANDOM)
