"""The arena: which methods take part, what is measured, and what happens to methods that fail."""

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca import metrics
from lrpca.bench.contest import Conditions, Contest, Point, compete, page, parse_specs, process
from lrpca.bench.contest.methods import ALL, OTHERS, Spec, Task, options_of, solve
from lrpca.bench.contest.run import settings_of
from lrpca.bench.contest.scoring import Probe, count_outliers, factored, relative_error
from lrpca.core import environment as circumstances
from lrpca.solvers.methods import METHODS
from lrpca.testing import planted

PROBLEM = planted((160, 120), rank=3, outlier_fraction=0.1)
ALONE = Conditions(threads=1)


# --- the methods ------------------------------------------------------------------------------------------


def test_specs_by_commas_spaces_and_repetition() -> None:
    specs = parse_specs(["lrpca:power_steps=2,tol=1e-5,pyrpca sklearn", "lrpca"])
    assert [spec.text for spec in specs] == ["lrpca:power_steps=2,tol=1e-5", "pyrpca", "sklearn", "lrpca"]
    assert specs[0].settings == {"power_steps": 2, "tol": 1e-5} and specs[1].settings == {}
    assert [spec.text for spec in parse_specs("lrpca,lrpca")] == ["lrpca"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nosuch", ("'nosuch'", "lrpca", "accaltproj", "pyrpca", "tensorly", "sklearn")),
        ("lrpca:speed=3", ("'speed'", "power_steps", "tol", "max_iter")),
        ("pyrpca:speed=3", ("'speed'", "rho")),
        ("lrpca:tol=2", ("'tol'", "2")),
        ("sklearn:svd_solver=magic", ("magic", "randomized")),
        ("gamma=0.5", ("gamma=0.5", "without a method")),
        ("lrpca,gamma=0.5", ("gamma=0.5", "without a method")),
        ("lrpca:power_steps", ("power_steps", "option=value")),
        (" , ", ("names none", "lrpca")),
    ],
)
def test_a_wrong_spec_is_refused_with_what_is_known(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as refused:
        parse_specs(text)
    assert all(word in str(refused.value) for word in words) and ";" in str(refused.value)


def test_all_has_every_method_with_options_that_exist() -> None:
    specs = parse_specs("all")
    assert {spec.name for spec in specs} == {*METHODS, *OTHERS} and len(specs) == len(ALL)
    assert {"accaltproj:gamma=0.5", "accaltproj:gamma=0.7", "accaltproj:gamma=0.9"} <= {spec.text for spec in specs}


def test_alpha_is_told_unless_blind_or_given() -> None:
    assert "alpha" in options_of("scaledgd")
    assert settings_of(Spec("scaledgd", "scaledgd"), None, 0.2) == ({"alpha": 0.2}, ("alpha",))
    assert settings_of(Spec("scaledgd", "scaledgd"), 1e-5, None) == ({"tol": 1e-5}, ())
    assert settings_of(Spec("scaledgd", "scaledgd", {"alpha": 0.3}), None, 0.2) == ({"alpha": 0.3}, ())
    assert settings_of(Spec("lrpca", "lrpca", {"tol": 1e-3}), 1e-5, 0.2) == ({"tol": 1e-3}, ())


# --- scores ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("size", [1.0, 1e-11])
def test_error_by_factors_is_the_error(dtype: Any, size: float) -> None:
    problem = planted((90, 70), rank=4, dtype=dtype, condition=50)
    truth = factored(problem.X, 4)
    assert isinstance(truth, tuple)
    rng = np.random.default_rng(1)
    U, values, Vt = np.linalg.svd(problem.X)
    L = U[:, :4] * values[:4] + size * rng.standard_normal((90, 4))
    R = Vt[:4].T
    expected = metrics.relative_error(L @ R.T, problem.X)
    assert relative_error((L, R), truth) == pytest.approx(expected, rel=1e-2 if size < 1 else 1e-9)
    assert relative_error(L @ R.T, truth) == pytest.approx(expected, rel=1e-2 if size < 1 else 1e-9)


def test_a_truth_of_full_rank_is_compared_as_it_is() -> None:
    X = np.random.default_rng(0).standard_normal((50, 40))
    truth = factored(X, 3)
    assert truth is X and relative_error(1.25 * X, truth) == pytest.approx(0.25)
    L, R = X[:, :5], np.eye(40)[:, :5]
    assert relative_error((L, R), truth) == pytest.approx(metrics.relative_error(L @ R.T, X))


def test_outliers_are_counted_as_the_metrics_do() -> None:
    problem = planted((80, 60), rank=2, outlier_fraction=0.2, missing=0.1)
    found = count_outliers(problem.Y, problem.X, 0.01, problem.outliers)
    mask = np.abs(np.nan_to_num(problem.Y - problem.X)) > 0.01
    score = metrics.precision_recall_f(mask, problem.outliers)
    assert (found["precision"], found["recall"], found["f_measure"]) == (score.precision, score.recall, score.f)
    assert 0 < score.recall < 1 and found["outlier_fraction"] == mask.sum() / problem.observed.sum()


def test_the_rule_for_outliers_is_that_of_a_decomposition() -> None:
    problem = planted((150, 120), rank=3, outlier_fraction=0.1, noise=0.02, outlier_size=5)
    d = lrpca.decompose(problem.Y, rank=3)
    found = Probe(problem.Y).outlier_threshold(d.low_rank, problem.Y, 0.0)
    assert found == pytest.approx(d.outlier_threshold, rel=0.05)


def test_the_clock_stands_still_while_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "relative_error", lambda answer, truth: time.sleep(0.5) or 0.1)
    recorder = process.Recorder(io.StringIO(), PROBLEM.X, Probe(PROBLEM.Y), limit=60)
    recorder.begin()
    assert not recorder.record(PROBLEM.X)
    assert recorder.excluded >= 0.5 and recorder.elapsed() < 0.4


# --- a contest ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def contest() -> Contest:
    return compete(PROBLEM, "lrpca pyrpca tensorly sklearn", Conditions(threads=1, time_limit=60))


def test_every_contestant_is_measured(contest: Contest) -> None:
    assert [contest[name].status for name in ("lrpca", "pyrpca", "tensorly", "sklearn")] == ["converged"] * 3 + ["done"]
    for name in ("lrpca", "pyrpca", "tensorly"):
        entry = contest[name]
        assert entry.error is not None and entry.error < 1e-5 and entry.f_measure == 1 and entry.rank == 3
        assert entry.iterations == len(entry.curve) - 1 and entry.curve[-1] == Point(0, entry.seconds, entry.error)
        times = [point.seconds for point in entry.curve]
        assert times == sorted(times) and times[0] > 0
        first = next(point for point in entry.curve if point.error <= 1e-4)
        assert entry.seconds_to_target == first.seconds and first.iteration > 1
        assert entry.seconds_per_iteration == pytest.approx((times[-2] - times[0]) / (entry.iterations - 1))
        assert entry.outlier_fraction == pytest.approx(0.1) and entry.residual is not None and entry.residual < 1e-5
    floor = contest["sklearn"]
    assert floor.error is not None and floor.error > 1e-3 and floor.seconds_to_target is None
    assert contest.entries[-1] is floor and contest.problem["known"] and contest.conditions["threads"] == 1
    assert {"load", "date", "machine", "versions"} <= set(contest.conditions)
    assert contest.conditions["versions"]["pyrpca"] and contest.conditions["machine"]["cores"] >= 1


def test_the_numbers_are_those_of_a_call_by_hand(contest: Contest, capsys: pytest.CaptureFixture[str]) -> None:
    from pyrpca import rpca_pcp_ialm

    d = lrpca.decompose(PROBLEM.Y, rank=3)
    assert contest["lrpca"].iterations == d.n_iter and contest["lrpca"].settings["tol"] == d.settings["tol"]
    assert contest["lrpca"].error == pytest.approx(PROBLEM.error(d.low_rank), rel=1e-3)
    X, _ = rpca_pcp_ialm(PROBLEM.Y, 1 / np.sqrt(160))
    assert contest["pyrpca"].error == pytest.approx(PROBLEM.error(X), rel=1e-6)
    assert contest["pyrpca"].iterations == capsys.readouterr().out.count("iter ")


def test_iterates_of_another_package_are_its_own() -> None:
    """The curve of pyrpca holds what it returns when stopped there, and reading it keeps no arrays alive."""
    from pyrpca import rpca_pcp_ialm

    errors: list[float] = []

    def look(answer: Any) -> bool:
        errors.append(PROBLEM.error(answer))
        return len(errors) == 8

    answer = solve(Task("pyrpca", 3), PROBLEM.Y, look)
    assert answer.reason == "callback" and answer.iterations == 8
    for count in (3, 8):
        X, _ = rpca_pcp_ialm(PROBLEM.Y, 1 / np.sqrt(160), max_iter=count, verbose=False)
        assert errors[count - 1] == pytest.approx(PROBLEM.error(X), rel=1e-9)


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, again, other = (compete(PROBLEM, "ircur", Conditions(threads=1, seed=seed))["ircur"] for seed in (3, 3, 4))
    errors = [[point.error for point in entry.curve] for entry in (first, again, other)]
    assert errors[0] == errors[1] != errors[2] and first.f_measure == again.f_measure


def test_without_a_truth_the_residual_is_told(tmp_path: Path) -> None:
    contest = compete(PROBLEM.Y, "lrpca", ALONE, rank=3)
    entry = contest["lrpca"]
    assert entry.error is entry.f_measure is entry.seconds_to_target is None and not contest.problem["known"]
    assert entry.residual is not None and entry.residual < 1e-6 and entry.rank == 3
    assert entry.outlier_fraction == pytest.approx(0.1)
    assert not {"error", "F", "to target"} & set(page.columns(contest)) and "residual" in page.columns(contest)
    page.write(contest, tmp_path / "out")
    assert "No truth is known" in (tmp_path / "out" / "index.html").read_text()


def test_a_given_truth_and_missing_entries() -> None:
    problem = planted((120, 100), rank=2, missing=0.2)
    contest = compete(problem.Y, ["lrpca", "pyrpca", "tensorly"], ALONE, rank=2, truth=problem.X)
    assert contest["lrpca"].error is not None and contest["lrpca"].error < 1e-6
    assert contest["tensorly"].error is not None and contest["tensorly"].error < 0.05
    assert contest["pyrpca"].status == "failed" and "missing" in contest["pyrpca"].note
    assert contest.problem["missing"] == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    ("named", "threads"),
    [
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"NUMBA_NUM_THREADS": "5"}, 5),
        ({"OMP_NUM_THREADS": "7", "NUMBA_NUM_THREADS": "6", "OPENBLAS_NUM_THREADS": "0"}, 6),
        ({"OMP_NUM_THREADS": " 4, 2"}, 4),
        ({"OMP_NUM_THREADS": "many"}, circumstances.cores()),
        ({}, circumstances.cores()),
    ],
)
def test_threads_are_those_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, str], threads: int
) -> None:
    for name in circumstances.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, count in named.items():
        monkeypatch.setenv(name, count)
    ran: list[int] = []

    def run(job: object, *, threads: int, **_: object) -> process.Account:
        ran.append(threads)
        return process.Account(failure=("failed", ""))

    monkeypatch.setattr(process, "run", run)
    assert compete(PROBLEM, "lrpca").conditions["threads"] == threads and ran == [threads]
    assert compete(PROBLEM, "lrpca", Conditions(threads=2)).conditions["threads"] == 2 and ran == [threads, 2]


def test_a_late_method_is_stopped_with_its_last_iterate() -> None:
    problem = planted((400, 300), rank=3)
    entry = compete(problem, "tensorly", Conditions(threads=1, time_limit=0.1))["tensorly"]
    assert entry.status == "time limit" and entry.error is not None and 1e-4 < entry.error < 1.5
    assert entry.iterations is not None and entry.iterations < 20 and not entry.answered


def test_a_method_that_is_not_installed_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrpca.bench.contest.methods.OtherMethod.version", lambda other: None)
    entry = compete(PROBLEM, "pyrpca", ALONE)["pyrpca"]
    assert entry.status == "not installed" and "pip install pyrpca" in entry.note


@pytest.mark.parametrize(
    ("arguments", "word"),
    [({"rank": None}, "rank=None"), ({"rank": 200}, "rank=200"), ({"truth": np.ones((3, 3))}, "truth of shape (3, 3)")],
)
def test_bad_arguments(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError) as refused:
        compete(PROBLEM.Y, "lrpca", **{"rank": 3, **arguments})
    assert word in str(refused.value)


@pytest.mark.parametrize("name", ["repeat", "time_limit", "memory_limit", "target", "threads"])
def test_bad_conditions(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 is not"):
        Conditions(**{name: 0})


# --- a process and its limits ------------------------------------------------------------------------------

BEGIN = "import json, os, sys, time; say = lambda **m: print(json.dumps(m), flush=True); "


def _follow(
    monkeypatch: pytest.MonkeyPatch, code: str, *, time_limit: float = 60.0, memory_limit: float | None = None
) -> process.Account:
    monkeypatch.setattr(process, "_COMMAND", (sys.executable, "-c", BEGIN + code))
    monkeypatch.setattr(process, "_GRACE", 0.2)
    return process.run({"time_limit": time_limit}, memory_limit=memory_limit, threads=1)


def test_a_method_that_hangs_is_killed_and_keeps_its_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    account = _follow(
        monkeypatch,
        "say(event='begin'); say(event='point', iteration=1, seconds=.1, error=.5, excluded=0); time.sleep(60)",
        time_limit=1.0,
    )
    assert account.failure is not None and account.failure[0] == "time limit" and time.monotonic() - began < 20
    assert account.calls == [[Point(1, 0.1, 0.5)]]


def test_time_spent_on_measuring_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "say(event='begin'); say(event='point', iteration=1, seconds=.1, error=.5, excluded=60.0); time.sleep(2.5); "
        "say(event='end', seconds=.2, peak=5, late=False); say(event='result', error=.1)"
    )
    account = _follow(monkeypatch, code, time_limit=1.0)
    assert account.failure is None and account.result == {"error": 0.1} and account.seconds == [0.2]


def test_a_method_that_takes_too_much_memory_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "say(event='begin'); hold = b'x' * 400_000_000; time.sleep(60)"
    account = _follow(monkeypatch, code, memory_limit=2e8)
    assert account.failure is not None and account.failure[0] == "memory limit" and "0.2 GB" in account.failure[1]


def test_a_crash_is_reported_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    account = _follow(monkeypatch, "print('noise'); print('[1]'); print('3', flush=True); raise RuntimeError('alas')")
    assert account.failure == ("failed", "ended with status 1: RuntimeError: alas")
    account = _follow(monkeypatch, "os.kill(os.getpid(), 9)")
    assert account.failure == ("failed", "ended by SIGKILL")


def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    """Killed outright, the parent cannot end its worker; the worker sees its input end."""
    import subprocess

    np.savez(tmp_path / "problem.npz", Y=np.random.default_rng(0).standard_normal((700, 700)))
    job = {
        "problem": str(tmp_path / "problem.npz"),
        "name": "pyrpca",
        "rank": 3,
        "settings": {"tol": 0.0, "max_iter": 10**6},
        "seed": 0,
    }
    child = subprocess.Popen(process._COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    child.stdin.write(json.dumps(job | {"time_limit": 1e4, "repeat": 1}) + "\n")
    child.stdin.flush()
    assert json.loads(child.stdout.readline())["event"] == "begin"
    child.stdin.close()
    assert child.wait(20) == 1
    child.stdout.close()
