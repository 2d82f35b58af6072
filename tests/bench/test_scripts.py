"""The rules of the benchmarks: who is judged how, what stays hidden, and ratios that are those measured."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lrpca.bench import judging
from lrpca.bench.contest import Conditions, compete
from lrpca.bench.contest.methods import Answer
from lrpca.bench.real_matrices import Real
from lrpca.testing import Case, planted

ROOT = Path(__file__).resolve().parents[2]
CASE = Case("easy", "a small one", {"shape": (60, 50), "rank": 2}, rank=2)
GAPS = Case("missing entries", "with gaps", {"shape": (60, 50), "rank": 2, "missing": 0.2}, rank=2)
NAMES = ("grid", "arena", "real_data")


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
        for name in NAMES:
            sys.modules.pop(name)


# The grid


def _judged(name: str, low_rank: Any, converged: bool | None) -> Any:
    answer = Answer(low_rank, converged, "tol", 3, {})
    return judging.judge(judging.GridJob(CASE, 0, ()), CASE.problem(), name, lambda Y: answer)


def test_solver_that_lies_is_counted(scripts: SimpleNamespace) -> None:
    X = CASE.problem().X
    nothing, broken = np.zeros_like(X), np.full_like(X, np.nan)
    honest = _judged("honest", X, True)
    assert honest.recovered and honest.converged and not honest.false_converged
    liar = _judged("liar", nothing, True)
    assert not liar.recovered and liar.false_converged and liar.error == pytest.approx(1.0)
    modest = _judged("modest", nothing, False)
    silent = _judged("silent", nothing, None)
    assert not modest.false_converged and not silent.false_converged and not silent.recovered
    overflown = _judged("liar", broken, True)
    assert overflown.false_converged and overflown.error is None
    close = _judged("close", X * (1 + 5e-4), True)
    assert not close.recovered and not close.false_converged
    table = scripts.grid.summary([honest, liar, overflown, modest, silent])
    column = table.columns.index("false converged")
    assert {row[0]: row[column] for row in table.rows} == {"honest": 0, "liar": 2, "modest": 0, "silent": None}


@pytest.mark.parametrize(
    ("case", "failure", "ended"),
    [
        (GAPS, np.linalg.LinAlgError("SVD did not converge"), "refuses NaN"),
        (GAPS, MemoryError("too large"), "MemoryError: too large"),
        (CASE, ValueError("rank=2 is odd"), "ValueError: rank=2 is odd"),
    ],
)
def test_solver_without_answer_is_told_and_not_recovered(case: Case, failure: Exception, ended: str) -> None:
    def fail(Y: Any) -> Any:
        raise failure

    record = judging.judge(judging.GridJob(case, 0, ()), case.problem(), "other", fail)
    assert (record.ended, record.recovered, record.converged, record.false_converged) == (ended, False, None, False)


def test_solvers_of_the_grid() -> None:
    names = ["lrpca", "without low_inlier_rows", "altproj", "svd"]
    ours, without, other, svd = judging.run_case(judging.GridJob(CASE, 0, names))
    assert ours.recovered and without.recovered and other.recovered and not svd.recovered
    assert ours.converged and svd.converged is None and 0 < ours.passes <= ours.reads
    (late,) = judging.run_case(judging.GridJob(CASE, 0, ["altproj"], 0.0))
    assert late.ended == "time limit, 0 s" and late.error is None


def test_ablation_names_the_problems_that_a_rule_wins(scripts: SimpleNamespace) -> None:
    X = CASE.problem().X
    records = [_judged("lrpca", X, True), _judged("without one", 0 * X, True)]
    costs, reasons, changes = scripts.grid.ablation({"one": "why"}, records, [], [])
    assert [row[:4] for row in costs.rows] == [["nothing left out", 1, 1, 0], ["one", 1, 0, 1]]
    assert reasons.rows == [["one", "why", 1, 0]] and changes.rows == [["one", "lost", "a small one"]]


# The arena


def _entry(spec: str, arrived: float | None, **others: Any) -> dict[str, Any]:
    blank = {"status": "converged", "seconds": 2.0, "error": 1e-9, "reads_to_target": None}
    return blank | {"spec": spec, "seconds_to_target": arrived} | others


def test_goals_are_ratios_within_rounds_and_bounds_are_called_bounds(scripts: SimpleNamespace) -> None:
    entries = [
        _entry("lrpca", 0.1, reads_to_target=5),
        _entry("ircur", 0.05),
        _entry("accaltproj:gamma=0.5", 0.3, reads_to_target=16),
        _entry("sklearn", 0.2),
        _entry("pyrpca", None, status="time limit", seconds=61.0),
        _entry("tensorly", None, error=0.1),
    ]
    rounds = {"lrpca": [0.1, 0.2, 0.1], "accaltproj:gamma=0.5": [0.3, 0.8, 0.9]}
    record = {"short": "10%", "time_limit": 60.0, "rounds": rounds, "entries": entries}
    rows = {row["rival"]: row for row in scripts.arena.headline(record)}
    other = rows["fastest other full-data solver"]
    assert other["spec"] == "accaltproj:gamma=0.5" and other["ratio"] == pytest.approx(4.0)
    assert rows["ircur"]["ratio"] == pytest.approx(0.5)
    assert rows["pyrpca"]["kind"] == "at least" and rows["pyrpca"]["ratio"] == pytest.approx(610)
    assert rows["tensorly"]["kind"] == "it does not arrive" and rows["tensorly"]["ratio"] is None
    assert [scripts.arena.is_met(row) for row in rows.values()] == [False, False, True, True]
    assert scripts.arena.is_met(rows["pyrpca"] | {"ratio": 20.0}) is None


def test_reads_are_counted_until_the_target_and_no_further(scripts: SimpleNamespace) -> None:
    problem = planted((120, 100), rank=2)
    entry = compete(problem, "accaltproj:gamma=0.5", Conditions(threads=1))["accaltproj:gamma=0.5"]
    near, far = (scripts.arena.count_reads(problem, entry, target, None) for target in (1e-2, 1e-6))
    steps = [scripts.arena.iterations_to(entry, target) for target in (1e-2, 1e-6)]
    assert 0 < steps[0] < steps[1] and far - near == steps[1] - steps[0]
    assert scripts.arena.count_reads(problem, entry, 1e-30, None) is None


# Real data


def _task(scripts: SimpleNamespace, Y: Any) -> Any:
    return scripts.real_data.hold_out(Real("made up", "traffic", Y))


def test_held_out_entries_are_observed_hidden_and_scored(scripts: SimpleNamespace) -> None:
    problem = planted((200, 150), rank=2, missing=0.1)
    task = _task(scripts, problem.Y)
    assert abs(len(task.rows) / problem.observed.sum() - 0.05) < 0.01
    assert problem.observed[task.rows, task.columns].all()
    assert not task.shown[task.rows, task.columns].any()
    assert task.shown.sum() + len(task.rows) == problem.observed.sum()
    U, values, Vt = np.linalg.svd(problem.X, full_matrices=False)
    L, R = U[:, :2] * values[:2], Vt[:2].T
    # Fewer than half of the entries are outliers, and the truth fits the others.
    assert task.error(L, R) < 1e-12
    assert task.error(0 * L, R) == pytest.approx(np.median(np.abs(problem.Y[task.rows, task.columns])))


@pytest.mark.parametrize("dtype", [np.float64, np.uint8])
def test_solver_never_sees_what_is_held_out(scripts: SimpleNamespace, dtype: Any) -> None:
    Y = planted((120, 100), rank=2).Y
    Y = (100 + 50 * Y / np.abs(Y).max()).astype(dtype)
    task = _task(scripts, Y)
    spoiled = Y.copy()
    spoiled[task.rows, task.columns] = 255
    clean, other = (scripts.real_data.decompose(_task(scripts, data), 3)[1] for data in (Y, spoiled))
    np.testing.assert_array_equal(clean.low_rank, other.low_rank)


def test_svd_fills_missing_entries_by_itself(scripts: SimpleNamespace) -> None:
    problem = planted((80, 60), rank=2, outlier_fraction=0.0, missing=0.05)
    L, R = scripts.real_data.truncated_svd(problem.Y, problem.observed, 2)
    assert problem.error(L @ R.T) < 1e-6
    L, R = scripts.real_data.truncated_svd(problem.Y, problem.observed, 2, rounds=1)
    assert problem.error(L @ R.T) > 1e-3
