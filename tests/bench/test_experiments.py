"""The paper's comparisons: trials measure what they say, claims follow from the numbers, JSON brings them back."""

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

import lrpca
from lrpca.bench.experiments import convergence, iteration_time, methods, recovery, total_time
from lrpca.bench.experiments.measurement import Measurement, Run, Setting, Setup, shares
from lrpca.bench.experiments.methods import OURS, PUBLISHED, Method, Rule, run_all, run_method
from lrpca.bench.experiments.reproduce import EXPERIMENTS, find_experiment, reproduce
from lrpca.bench.experiments.statistics import mean_and_deviation
from lrpca.bench.measuring import compact_json
from tests.helpers.full_disk import full_disk

ROOT = Path(__file__).resolve().parents[2]
STORED = sorted((ROOT / "experiments" / "results").glob("*.json"))
# Those that compare solvers; what is measured of learning is in test_experiments_learning.py.
COMPARISONS = list(EXPERIMENTS)[:4]
TINY = Setup(shares(60, 0.1, 0.2), repeat=2, max_iter=12, tuning_n=60, tuning_iterations=4)
SETTING = TINY.base
SCALEDGD, ALTPROJ, OWN = "ScaledGD, tuned", "AltProj, tuned", "LRPCA, this library, own rule"


def silent(message: str) -> None:
    """Ignore a message."""


def trial(label: str, alpha: float, **changes: object) -> Run:
    """Return a made-up run that went well."""
    usual = Run(label, Setting(1000, alpha=alpha), 0, "tol", 1.0, 10, 0.1, 0.1, 1e-5, 1e-6, (1e-2, 1e-5))
    return replace(usual, **changes)  # type: ignore[arg-type]


def measurement(*runs: Run) -> Measurement:
    """Return a made-up measurement."""
    settings = tuple(sorted({run.setting for run in runs}, key=lambda setting: setting.alpha))
    labels = {run.label: "" for run in runs}
    return Measurement(Setup(settings, len(runs) // (len(settings) * len(labels)), max_iter=100), labels, runs)


def verdicts(claims: list, of: str) -> list[bool | None]:
    return [claim.confirmed for claim in claims if claim.of == of]


def falling(iterations: int, goal: float = 1e-4) -> tuple[float, ...]:
    """Return errors that are below the goal after so many iterations, and not before."""
    return (*[1e-1] * (iterations - 1), goal / 2)


# --- trials ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def problem() -> lrpca.testing.Problem:
    return Setting(120).draw(3)


def test_errors_are_those_after_every_iteration(problem: lrpca.testing.Problem) -> None:
    ours = methods.ours(TINY)
    t = run_method(ours, problem, SETTING, 3, Rule(4, tol=0, error=1e-30))
    assert t.errors is not None and len(t.errors) == t.iterations == 4 and t.reason == "max_iter"
    for k in (1, 4):
        d = lrpca.decompose(problem.Y, 5, tol=0, max_iter=k, random_state=3)
        assert t.errors[k - 1] == pytest.approx(problem.error(d.low_rank), 1e-3)
    assert t.error == pytest.approx(t.errors[-1], rel=1e-3)


def test_stops_the_first_time_that_the_rule_is_met(problem: lrpca.testing.Problem) -> None:
    d = lrpca.decompose(problem.Y, 5, random_state=0)
    residuals = [record.residual for record in d.history]
    first = next(k for k, residual in enumerate(residuals, start=1) if residual < 1e-4)
    t = run_method(methods.ours(TINY), problem, SETTING, 0, Rule(residual=1e-4))
    assert (t.iterations, t.reason) == (first, "callback") and first < d.n_iter
    assert t.residual == pytest.approx(residuals[first - 1], rel=1e-3)
    own = replace(methods.ours(TINY), own_rule=True)
    assert run_method(own, problem, SETTING, 0, Rule(residual=1e-4)).iterations == d.n_iter


def test_watching_is_not_counted(problem: lrpca.testing.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    real = lrpca.testing.Problem.error
    monkeypatch.setattr(
        lrpca.testing.Problem, "error", lambda self, low_rank: (time.sleep(0.5), real(self, low_rank))[1]
    )
    run_method(methods.ours(TINY), problem, SETTING, 0, Rule(3, tol=0))  # loads the compiled code
    t = run_method(methods.ours(TINY), problem, SETTING, 0, Rule(3, tol=0, error=1e-30))
    assert t.seconds < 1.0 and t.seconds_per_iteration < 0.4


def test_every_method_meets_the_same_fresh_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float, int, float]] = []

    def look(method: Method, problem: lrpca.testing.Problem, setting: Setting, seed: int, rule: Rule) -> Run:
        if problem.Y.shape == (60, 60):  # else the warm-up
            seen.append((method.label, setting.alpha, seed, float(problem.Y.sum())))
            assert problem.outliers.mean() == pytest.approx(setting.alpha)
        return trial(method.label, setting.alpha, setting=setting, seed=seed)

    monkeypatch.setattr(methods, "run_method", look)
    some = Method("some", {TINY.settings[1]: {}}, "runs at one share only")
    setup = replace(TINY, seed=7)
    m = run_all([methods.ours(setup), some], setup, silent, Rule(), ["a note"])
    problems = {(alpha, seed): total for _, alpha, seed, total in seen}
    assert sorted(problems) == [(0.1, 7), (0.1, 8), (0.2, 7), (0.2, 8)] and len(set(problems.values())) == 4
    assert all(problems[alpha, seed] == total for _, alpha, seed, total in seen)
    first, second = setup.settings
    assert len(m.of(OURS, first)) == len(m.of(OURS, second)) == len(m.of("some", second)) == 2
    assert not m.of("some", first)


def test_tuning_takes_what_arrives_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "GAMMAS", (2.0,))
    monkeypatch.setattr(methods, "STEPS", (0.1, 0.7, 0.3))
    setup = replace(TINY, settings=TINY.settings[:1], tuning_n=150, tuning_iterations=60)
    for rule in (None, 1e-3):
        tuned = methods.tuned("ScaledGD", setup, silent, rule)
        assert tuned.arguments[SETTING]["options"] == {"alpha": 0.1, "gamma": 2.0, "step": 0.7}
        assert "α = 0.1: γ 2, step 0.7" in tuned.told


def test_tuning_without_arrival_takes_the_smallest_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "GAMMAS", (None,))
    monkeypatch.setattr(methods, "STEPS", (0.05, None, 0.1))
    tuned = methods.tuned("ScaledGD", replace(TINY, settings=TINY.settings[:1], tuning_iterations=3), silent)
    assert tuned.arguments[SETTING]["options"] == {"alpha": 0.1} and "α = 0.1: own γ, own step" in tuned.told


def test_published_models_are_found_or_said_to_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRPCA_DATA", str(tmp_path))
    assert methods.published(TINY) == []
    assert "set LRPCA_DATA to the folder that has published-lrpca/" in methods.published_note(TINY)
    import scipy.io

    (tmp_path / "published-lrpca").mkdir()
    numbers = {"ths": [[1e-2, 1e-3, 1e-4]], "step": [[0.5, 1.0, 0.8]]}
    scipy.io.savemat(tmp_path / "published-lrpca" / "lrpcanet_alpha0.2.mat", numbers)
    (found,), (endless,) = methods.published(TINY), methods.published(TINY, endless=True)
    at = TINY.settings[1]
    assert set(found.arguments) == {at}
    assert "take no part at α = 0.1: none was found" in methods.published_note(TINY)
    assert found.arguments[at]["schedule"].at(3) is None
    assert endless.arguments[at]["schedule"].at(9) == pytest.approx((1e-4, 0.8))
    monkeypatch.delenv("LRPCA_DATA")
    monkeypatch.chdir(tmp_path)
    assert methods.published(TINY) == []


# --- claims ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (((5, 10), (5, 20)), [True, True]),  # ours and theirs at α = .1, at .3
        (((5, 9), (5, 20)), [False, True]),
        (((5, 20), (5, 15)), [True, False]),
        (((5, 20), (5, None)), [True, True]),  # never arrives: more than 100
        (((5, 20), (50, None)), [True, False]),
        (((5, None), (5, None)), [True, None]),
        (((None, 20), (5, 30)), [False, None]),
    ],
)
def test_claims_on_convergence(counts: tuple, expected: list) -> None:
    trials = []
    for alpha, pair in zip((0.1, 0.3), counts, strict=True):
        for label, count in zip((OURS, SCALEDGD), pair, strict=True):
            trials.append(trial(label, alpha, errors=falling(count) if count else (0.5, 0.4)))
        trials.append(trial("ScaledGD, γ = 2", alpha, errors=(0.5, 0.4)))
    assert verdicts(convergence.claims(measurement(*trials)), OURS) == expected


@pytest.mark.parametrize(("count", "expected"), [(7, True), (9, False)])
def test_claim_on_the_count_of_the_paper(count: int, expected: bool) -> None:
    trials = [trial(PUBLISHED, 0.1, errors=falling(count)), trial(SCALEDGD, 0.1, errors=falling(30))]
    last = convergence.claims(measurement(*trials))[-1]
    assert last.paper.startswith("8 iterations") and last.confirmed is expected
    assert f"{count + 1}, counted as the paper does" in last.measured


@pytest.mark.parametrize(
    ("ours", "theirs", "expected_ours", "expected_theirs"),
    [
        ((5, 5), (20, 40), [True, True], [True]),
        ((5, 8), (20, 20), [False, True], [False]),
        ((5, 5), (20, 9), [True, False], [False]),
    ],
)
def test_claims_on_the_time_of_an_iteration(
    ours: tuple, theirs: tuple, expected_ours: list, expected_theirs: list
) -> None:
    trials = [
        trial(label, alpha, seconds_per_iteration=1e-3 * times[k])
        for label, times in ((OURS, ours), (SCALEDGD, theirs))
        for k, alpha in enumerate((0.1, 0.5))
    ]
    claims = iteration_time.claims(measurement(*trials))
    assert verdicts(claims, OURS) == expected_ours and verdicts(claims, SCALEDGD) == expected_theirs


def test_claims_on_the_time_of_a_call() -> None:
    def claims(ours: float, scaledgd: float, altproj: float, **of_ours: object) -> list[bool | None]:
        others = [trial(SCALEDGD, 0.1, seconds=scaledgd), trial(ALTPROJ, 0.1, seconds=altproj)]
        return verdicts(total_time.claims(measurement(trial(OURS, 0.1, seconds=ours, **of_ours), *others)), OURS)

    assert claims(1.0, 2.0, 5.0) == [True]
    assert claims(1.0, 1.9, 5.0) == [False] == claims(1.0, 5.0, 1.9)
    assert claims(1.0, 5.0, 5.0, residual=2e-4) == [False]
    assert claims(1.0, 5.0, 5.0, error=0.1) == [False]
    assert claims(1.0, 5.0, 5.0, error=None) == [False]


def test_methods_that_do_not_solve_are_not_compared() -> None:
    trials = [trial(OURS, 0.1), trial(SCALEDGD, 0.1, seconds=1.1, residual=1.0), trial(ALTPROJ, 0.1, seconds=4.0)]
    (claim,) = total_time.claims(measurement(*trials))
    assert claim.confirmed is True and "a factor of 4 (AltProj, tuned)" in claim.measured
    row = next(row for row in total_time.tables(measurement(*trials))[0].rows if row[1] == SCALEDGD)
    assert "0 of 1" in row


def test_means_are_of_the_runs_that_count() -> None:
    m = measurement(*(trial(OURS, 0.1, seconds=s, residual=r) for s, r in ((1.0, 1e-5), (3.0, 1e-5), (50.0, 1.0))))
    assert total_time.seconds(m, OURS, m.setup.base) == pytest.approx((2.0, math.sqrt(2)))
    assert mean_and_deviation([4.0]) == (4.0, 0.0)


def test_claims_on_recovery() -> None:
    def claims(ours: list[float], theirs: list[float]) -> list[bool | None]:
        pairs = zip((0.4, 0.5), zip(ours, theirs, strict=True), strict=True)
        trials = [
            trial(label, alpha, error=error)
            for alpha, pair in pairs
            for label, error in zip((OURS, SCALEDGD), pair, strict=True)
        ]
        return [claim.confirmed for claim in recovery.claims(measurement(*trials))]

    good, bad = 1e-5, 1e-3
    assert claims([good, good], [good, bad]) == [True, True, True]
    assert claims([good, good], [good, good]) == [False, True, True]
    assert claims([good, bad], [good, good]) == [False, False, True]
    assert claims([good, good], [bad, bad]) == [True, True, False]


def test_only_the_form_of_the_paper_gives_verdicts() -> None:
    experiment = EXPERIMENTS["total-time"]
    full = experiment.full
    runs = [
        trial(label, setting.alpha, seconds=seconds, setting=setting)
        for label, seconds in ((OURS, 1.0), (SCALEDGD, 5.0), (ALTPROJ, 5.0))
        for setting in full.settings
    ]
    m = Measurement(full, {run.label: "" for run in runs}, runs)
    for setup in (full, replace(full, seed=7), replace(full, repeat=full.repeat + 1)):
        assert verdicts(experiment.judge(replace(m, setup=setup)), OURS) == [True]
    for changes in ({"repeat": full.repeat - 1}, {"max_iter": 30}, {"settings": full.settings[:2]}):
        assert verdicts(experiment.judge(replace(m, setup=replace(full, **changes))), OURS) == [None]
    for other in EXPERIMENTS.values():
        assert other.is_small(other.quick) and not other.is_small(other.full)


# --- experiments as a whole --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_measurement_comes_back_from_json(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "GAMMAS", (None,))
    monkeypatch.setattr(methods, "STEPS", (0.7,))
    monkeypatch.setattr(methods, "BETAS", (1.0,))
    experiment = EXPERIMENTS[name]
    settings = shares(60, 0.4, 0.5) if name == "recovery" else TINY.settings
    said: list[str] = []
    m = experiment.measure(replace(TINY, settings=settings), said.append)
    back = experiment.read(json.loads(compact_json(m.as_dict())))
    assert back == replace(m, trainings=[])
    assert experiment.claims(back) == experiment.claims(m) and experiment.tables(back) == experiment.tables(m)
    assert {run.label for run in m.runs} == set(m.contestants) and f"problem 2 of 2: {settings[1]}" in said


def test_a_run_that_blows_up_is_a_failure_not_an_error(problem: lrpca.testing.Problem) -> None:
    wild = Method("wild", {SETTING: {"method": "scaledgd", "options": {"alpha": 0.1, "step": 1.99}}}, "")
    t = run_method(wild, problem, SETTING, 0, Rule(400, error=1e-30))
    assert t.error is None or t.error > 1e-4
    compact_json(Measurement(TINY, {}, [t]).as_dict())


def test_a_folder_that_cannot_be_is_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    said: list[str] = []
    for output in (tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(OSError, match="choose another name"):
            reproduce("convergence", output, quick=True, progress=said.append)
    (tmp_path / "convergence.html").mkdir()
    with pytest.raises(OSError, match="is a folder where a file belongs"):
        reproduce("convergence", tmp_path, quick=True, progress=said.append)
    assert not said


@pytest.mark.parametrize("output", ["there", "there/new/deep"])
def test_a_read_only_folder_is_refused_before_measuring(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The permissions do not tell: root has them all, also on a read-only disk."""

    def read_only(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    (tmp_path / "there").mkdir()
    monkeypatch.setattr(Path, "touch", read_only)
    said: list[str] = []
    with pytest.raises(OSError, match=r"cannot be written \(Read-only file system\); choose another place"):
        reproduce("convergence", tmp_path / output, quick=True, progress=said.append)
    assert not said and [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_results_are_replaced_whole_or_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    tiny = replace(EXPERIMENTS["iteration-time"], quick=replace(TINY, settings=TINY.settings[:1], repeat=1))
    monkeypatch.setitem(EXPERIMENTS, "iteration-time", tiny)
    reproduce("iteration-time", tmp_path, quick=True)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with full_disk(5_000), pytest.raises(OSError, match=r"cannot be written \(File too large\); choose another place"):
        reproduce("iteration-time", tmp_path, quick=True, overwrite=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    reproduce("iteration-time", tmp_path, quick=True, random_state=3, overwrite=True)
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(after) == set(before) and all(after[name] != before[name] for name in after)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match="name='films' is not an experiment; use one of convergence, iteration-time"):
        find_experiment("films")


@pytest.mark.skipif(not STORED, reason="no results are stored yet; make experiments")
@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_claims_follow_from_the_stored_trials(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    experiment = EXPERIMENTS[path.stem]
    m = experiment.read(record)
    assert not record["quick"] and not experiment.is_small(m.setup)
    assert record["claims"] == [vars(claim) for claim in experiment.judge(m)]
    rows = json.loads(json.dumps([table.rows for table in experiment.tables(m)]))
    assert rows == [table["rows"] for table in record["tables"]]
    assert record["title"] == experiment.title
