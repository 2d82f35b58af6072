"""`make grid`: results are judged by the grid's rules, lies are counted, rivals are read correctly."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.testing import Case, grid, planted

ROOT = Path(__file__).resolve().parents[2]
CASE = Case("easy", "a small one", {"shape": (60, 50), "rank": 2}, rank=2)
GAPS = Case("missing entries", "with gaps", {"shape": (60, 50), "rank": 2, "missing": 0.2}, rank=2)


def _modules(folder: Path, *names: str) -> Iterator[SimpleNamespace]:
    """Import scripts that find each other by being in one folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    yield from _modules(ROOT / "benchmarks", "measure", "grid_solvers", "grid_runs", "grid_tables", "grid")


@pytest.fixture(scope="module")
def pages() -> Iterator[SimpleNamespace]:
    yield from _modules(ROOT / "docs", "make_benchmarks_page", "make_grid_tables")


def test_names_of_cases_are_their_own() -> None:
    """Seeds come from names, --cases chooses by them, and the ablation lists them."""
    names = [case.name for case in grid()]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_script_runs_cases_and_writes_the_result(
    scripts: SimpleNamespace, pages: SimpleNamespace, tmp_path: Path
) -> None:
    easy = [case for case in grid() if case.kind == "shape" and case.arguments["outlier_fraction"] <= 0.1]
    word = min(easy, key=lambda case: math.prod(case.arguments["shape"])).name
    chosen = scripts.grid.choose(grid(), word)
    command = [sys.executable, "benchmarks/grid.py", "--cases", word, "--solvers", "lrpca,svd"]
    command += ["--workers", "1", "--results", str(tmp_path)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    result = pages.make_benchmarks_page.load_result(tmp_path / "grid.json")
    assert result["command"].startswith("python benchmarks/grid.py --cases ")
    summary, kinds, details = result["tables"]
    assert [row[:3] for row in summary["rows"]] == [["lrpca", len(chosen), len(chosen)], ["svd", len(chosen), 0]]
    assert kinds["rows"] == [[chosen[0].kind, len(chosen), len(chosen), 0]]
    cells = [dict(zip(details["columns"], row, strict=True)) for row in details["rows"]]
    assert {(cell["problem"], cell["solver"]) for cell in cells} == {
        (case.name, name) for case in chosen for name in ("lrpca", "svd")
    }
    for cell in cells:
        ours = cell["solver"] == "lrpca"
        assert cell["recovered"] is ours and cell["converged"] is (True if ours else None)
        assert (cell["error"] < 1e-5) is ours
        assert not ours or 0 < cell["passes"] <= cell["reads"]
    assert f"grid, lrpca: recovered {len(chosen)} of {len(chosen)}, false converged 0\n" in output
    assert summary["caption"] in output and [path.name for path in tmp_path.iterdir()] == ["grid.json"]


def _judged(scripts: SimpleNamespace, name: str, low_rank: Any, converged: bool | None) -> Any:
    answer = scripts.grid_solvers.Answer(low_rank, converged, "tol", 3, 4)
    return scripts.grid_runs.judge(CASE, 0, CASE.problem(), name, lambda Y, rank: answer)


def test_solver_that_lies_is_counted(scripts: SimpleNamespace) -> None:
    X = CASE.problem().X
    nothing, broken = np.zeros_like(X), np.full_like(X, np.nan)
    honest = _judged(scripts, "honest", X, True)
    assert honest.recovered and honest.converged and not honest.false_converged
    liar = _judged(scripts, "liar", nothing, True)
    assert not liar.recovered and liar.false_converged and liar.error == pytest.approx(1.0)
    modest = _judged(scripts, "modest", nothing, False)
    silent = _judged(scripts, "silent", nothing, None)
    assert not modest.false_converged and not silent.false_converged and not silent.recovered
    overflown = _judged(scripts, "liar", broken, True)
    assert overflown.false_converged and overflown.error is None
    close = _judged(scripts, "close", X * (1 + 5e-4), True)
    assert not close.recovered and not close.false_converged

    table = scripts.grid_tables.summary([honest, liar, overflown, modest, silent])
    column = table.columns.index("false converged")
    assert {row[0]: row[column] for row in table.rows} == {"honest": 0, "liar": 2, "modest": 0, "silent": None}
    assert scripts.grid.verdict([liar, overflown], []) == ["grid, liar: recovered 0 of 2, false converged 2"]
    assert scripts.grid_tables.failures([honest, liar], "liar") == [
        "liar does not recover 1 of 1: a small one.",
        "liar is converged but wrong on 1 of 1: a small one.",
    ]


@pytest.mark.parametrize(
    ("case", "failure", "ended"),
    [
        (GAPS, np.linalg.LinAlgError("SVD did not converge"), "refuses NaN"),
        (GAPS, MemoryError("too large"), "MemoryError: too large"),
        (CASE, ValueError("rank=2 is odd"), "ValueError: rank=2 is odd"),
    ],
)
def test_solver_without_answer_is_told_and_not_recovered(
    scripts: SimpleNamespace, case: Case, failure: Exception, ended: str
) -> None:
    def fail(Y: Any, rank: int) -> Any:
        raise failure

    record = scripts.grid_runs.judge(case, 0, case.problem(), "rival", fail)
    assert (record.ended, record.recovered, record.converged, record.false_converged) == (ended, False, None, False)
    no_answer = scripts.grid_tables.summary([record])
    assert no_answer.rows[0][no_answer.columns.index("no answer")] == 1


def test_pcp_is_read_from_what_it_prints(scripts: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyrpca")
    job = scripts.grid_runs.GridJob(CASE, 0, ["pyrpca"], 60.0)
    (record,) = scripts.grid_runs.run_case(job)
    assert record.recovered and record.converged and record.ended == "tol" and 5 < record.passes < 100
    (late,) = scripts.grid_runs.run_case(scripts.grid_runs.GridJob(CASE, 0, ["pyrpca"], 0.0))
    assert late.ended == "time limit, 0 s" and late.error is None
    (gaps,) = scripts.grid_runs.run_case(scripts.grid_runs.GridJob(GAPS, 0, ["pyrpca"], 60.0))
    assert gaps.ended == "refuses NaN"
    assert capsys.readouterr().out == ""


def test_svd_fills_gaps_with_the_mean_of_the_column(scripts: SimpleNamespace) -> None:
    X = np.outer(np.ones(20), np.arange(1.0, 6.0))
    Y = X.copy()
    Y[3, 1] = Y[4, 2] = np.nan
    answer = scripts.grid_solvers.solver("svd", 1.0)(Y, 1)
    np.testing.assert_allclose(answer.low_rank, X, rtol=1e-12)
    assert answer.converged is None


def test_methods_of_the_library_are_found(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts.grid_solvers, "METHODS", ("other", "lrpca"))
    asked: list[dict[str, Any]] = []

    def decompose(Y: Any, rank: int, **keywords: Any) -> Any:
        asked.append({"rank": rank, **keywords})
        return SimpleNamespace(low_rank=Y, converged=True, reason="tol", n_iter=1, n_reads=2)

    monkeypatch.setattr(lrpca, "decompose", decompose)
    assert scripts.grid_solvers.names()[:2] == ["lrpca", "other"]
    for name in ("lrpca", "other", "without haste"):
        assert scripts.grid_solvers.solver(name, 0.0)(np.ones((3, 3)), 2).reads == 2
    late = asked[1].pop("callback")
    assert asked == [{"rank": 2}, {"rank": 2, "method": "other"}, {"rank": 2, "options": {"without": ["haste"]}}]
    with pytest.raises(scripts.grid_solvers.TimeLimitError):
        late(None)
    with pytest.raises(ValueError, match="solver='nobody' is unknown; use one of lrpca, other"):
        scripts.grid_solvers.solver("nobody", 1.0)


def test_published_problem_counts_passes(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scipy.io import savemat

    problem = planted((300, 200), rank=5, outlier_fraction=0.1, random_state=1)
    U, values, Vt = np.linalg.svd(problem.X, full_matrices=False)
    folder = tmp_path / "published-lrpca"
    monkeypatch.setenv("LRPCA_DATA", str(tmp_path))
    assert scripts.grid_runs.published_jobs(["lrpca"]) == []
    folder.mkdir()
    content = {"Y_star": problem.Y, "U_star": U[:, :5] * values[:5], "V_star": Vt[:5].T}
    savemat(folder / "n1000_r5_alpha0.1.mat", content)
    assert scripts.grid_runs.published_jobs(["pyrpca"]) == []
    job = scripts.grid_runs.published_jobs(["lrpca", "svd"])[0]
    (record,) = scripts.grid_runs.run_published(job)
    errors = {0: 1.0}
    watch = lambda state: errors.update({state.iteration: problem.error(state.L @ state.R.T)})  # noqa: E731
    d = lrpca.decompose(problem.Y, 5, callback=watch)
    assert (record.passes, record.reads) == (d.n_iter, d.n_reads) and record.error < 1e-6
    first, second = record.passes_to
    assert errors[first] < 1e-4 <= errors[first - 1] and errors[second] < 1e-6 <= errors[second - 1]
    (row,) = scripts.grid_tables.published([record]).rows
    assert row[:6] == [5, 0.1, "lrpca", first, second, 4]


def _record(scripts: SimpleNamespace, solver: str, case: str, **changes: Any) -> Any:
    fields = {"error": 0.0, "recovered": True, "converged": True, "false_converged": False, "passes": 10, "reads": 15}
    return scripts.grid_runs.Record(
        "kind", case, 0, solver, oracle_error=0.0, ended="tol", seconds=1.0, **(fields | changes)
    )


def test_ablation_says_what_needs_a_rule(scripts: SimpleNamespace) -> None:
    failed = {"error": 0.5, "recovered": False, "false_converged": True}
    records = [
        _record(scripts, "lrpca", "A"),
        _record(scripts, "lrpca", "B", passes=20),
        _record(scripts, "lrpca", "C", **failed),
        _record(scripts, "without haste", "A"),
        _record(scripts, "without haste", "B", **failed),
        _record(scripts, "without haste", "C"),
    ]
    dense = [_record(scripts, "without haste", "65% outliers"), _record(scripts, "lrpca", "65% outliers", **failed)]
    easy = [scripts.grid_runs.PublishedRecord(5, 0.1, "lrpca", [k, None], 9, 14, True, 1e-7, 0.1) for k in (3, None)]
    costs, reasons, changes = scripts.grid_tables.ablation({"haste": "it is late"}, records, dense, easy)
    assert costs.rows == [
        ["nothing left out", 3, 2, 1, 40, 45, "0 of 1", "3, never"],
        ["haste", 3, 2, 1, 30, 45, "1 of 1", None],
    ]
    assert reasons.rows == [["haste", "it is late", 1, 1]]
    assert changes.rows == [["haste", "lost", "B"], ["haste", "won", "C"]]


def test_dense_outliers_are_gathered_by_density(scripts: SimpleNamespace) -> None:
    (case,) = scripts.grid_runs.dense_cases([0.65])
    assert case.problem().Y.shape == (1000, 1000) and case.rank == 5
    records = [
        _record(scripts, "lrpca", "65% outliers", error=9e-4, recovered=False, passes=30, reads=36),
        _record(scripts, "lrpca", "65% outliers", error=2e-3, recovered=False, passes=50, reads=80),
        _record(scripts, "lrpca", "90% outliers", error=None, recovered=False),
    ]
    assert scripts.grid_tables.dense(records).rows == [
        ["65% outliers", "lrpca", 2, 1, 2, 0, 2e-3, 40, 50, 60, 80, 1.0],
        ["90% outliers", "lrpca", 1, 0, None, 0, None, 10, 10, None, 15, 1.0],
    ]


def test_only_a_whole_run_replaces_the_published_result(scripts: SimpleNamespace) -> None:
    results = ROOT / "benchmarks" / "results"
    assert scripts.grid.arguments([]).results == scripts.grid.arguments(["--ablation"]).results == results
    assert scripts.grid.arguments([]).command == "make grid"
    for words in (["--cases", "noise"], ["--solvers", "svd"], ["--repeats", "2"]):
        assert scripts.grid.arguments(words).results == ROOT / "benchmarks" / "scratch"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--solvers", "nobody"], "--solvers=nobody is not present; use some of lrpca,"),
        (["--cases", "no such case"], "--cases=no such case is in no kind or name of a case; use"),
        (["--repeats", "0"], "--repeats=0 is not positive; use"),
    ],
)
def test_odd_requests_are_refused(
    scripts: SimpleNamespace, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        scripts.grid.arguments(words)
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_page_of_the_grid_folds_long_tables(pages: SimpleNamespace, tmp_path: Path) -> None:
    result = {
        "title": "The grid",
        "command": "make grid",
        "hardware": {},
        "versions": {},
        "date": "today",
        "tables": [
            {"caption": "The whole grid", "columns": ["solver"], "rows": [["lrpca"]]},
            {"caption": "Kind: noise", "columns": ["problem"], "rows": [["10% noise"]]},
        ],
        "notes": ["a note"],
    }
    (tmp_path / "grid.json").write_text(json.dumps(result), encoding="utf-8")
    pages.make_grid_tables.write_tables(tmp_path, tmp_path / "tables.md")
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    folded = "<details><summary>noise</summary>\n\n**Kind: noise**\n\n| problem |\n|---|\n| 10% noise |\n\n</details>"
    assert text.index("**The whole grid**") < text.index("- a note") < text.index(folded)
    assert text.count("10% noise") == 1
    assert "`benchmarks/results/ablation.json` is not stored yet; `make ablation` writes it." in text
    pages.make_benchmarks_page.write_page(tmp_path, tmp_path / "benchmarks.md")
    assert "The whole grid" not in (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
