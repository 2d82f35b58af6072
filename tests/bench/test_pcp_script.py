"""The benchmark of principal component pursuit: ratios within rounds, bounds where the limit came first."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lrpca.bench.contest import Contest, Entry

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    names = ("measure", "bench_pcp", "make_benchmarks_page")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        patch.syspath_prepend(str(ROOT / "docs"))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            sys.modules.pop(name)


def test_script_measures_all_three_and_writes_the_result(scripts: SimpleNamespace, tmp_path: Path) -> None:
    pytest.importorskip("pyrpca")
    pytest.importorskip("tensorly")
    command = [sys.executable, "benchmarks/bench_pcp.py", "--n", "100", "--repeats", "1", "--threads", "1"]
    command += ["--limit", "60", "--results", str(tmp_path)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=True).stdout
    result = scripts.make_benchmarks_page.load_result(tmp_path / "pcp.json")
    speed, goals = result["tables"]
    rows = [dict(zip(speed["columns"], row, strict=True)) for row in speed["rows"]]
    assert [row["contestant"] for row in rows] == ["pcp:algorithm=ialm", "pyrpca", "tensorly"]
    for row in rows:
        assert row["status"] == "converged" and row["error"] < 1e-5
        # All three are rounded to three digits.
        assert row["seconds to 1e-04"] <= row["seconds"] * 1.01
        assert row["ms per iteration"] * row["iterations"] < 2e3 * row["seconds"]
    assert rows[0]["in total, times ours"] == rows[0]["per iteration, times ours"] == 1
    assert rows[1]["in total, times ours"] == pytest.approx(rows[1]["seconds"] / rows[0]["seconds"], rel=0.02)
    differences = [row for row in goals["rows"] if "difference" in row[0]]
    assert len(differences) == 2 and all(0 < row[1] < 1e-5 and row[3] is True for row in differences)
    assert differences[1][1] > 10 * differences[0][1]
    assert speed["caption"] in output and [path.name for path in tmp_path.iterdir()] == ["pcp.json"]


def _contest(**entries: dict[str, Any]) -> Contest:
    names = {"ours": "pcp:algorithm=ialm"}
    filled = []
    for name, facts in entries.items():
        spec = names.get(name, name)
        filled.append(Entry(spec, spec.partition(":")[0], "", **({"status": "converged"} | facts)))
    return Contest({}, {"threads": 1}, filled)


def _timed(seconds: float, iterations: int = 10, **others: Any) -> dict[str, Any]:
    usual = {"seconds_per_iteration": seconds / iterations, "seconds_to_target": seconds / 2, "error": 1e-8}
    return usual | {"seconds": seconds, "iterations": iterations} | others


def _late(seconds: float, iterations: int) -> dict[str, Any]:
    return _timed(seconds, iterations, status="time limit", seconds_to_target=None, error=1e-2)


def test_ratios_are_taken_within_rounds(scripts: SimpleNamespace) -> None:
    rounds = [(1.0, 20.0), (2.0, 60.0), (4.0, 100.0)]
    contests = [_contest(ours=_timed(a), pyrpca=_timed(b), tensorly=_timed(b)) for a, b in rounds]
    assert scripts.bench_pcp.ratio(contests, "pyrpca", "seconds") == 25
    table = scripts.bench_pcp.speed_table({1000: contests}, 300.0)
    ours, rival, _ = table.rows
    assert ours[2:6] == [10, 200, 2, 1] and ours[7:10] == [1, 1, 1]
    assert rival[2:6] == [10, 6000, 60, 30] and rival[7:10] == [25, 25, 25]
    assert [row[3] for row in scripts.bench_pcp.goal_rows({1000: contests})] == [True] * 4


def test_contestant_over_the_limit_has_a_lower_bound(scripts: SimpleNamespace) -> None:
    contests = [_contest(ours=_timed(2.0), pyrpca=_late(301.0, 7), tensorly=_timed(1.0))]
    _, late, quick = scripts.bench_pcp.speed_table({3000: contests}, 300.0).rows
    assert late[4] == late[5] == "over 300 s after 7 iterations"
    assert late[7:10] == [number := scripts.measure.number(301 / 7 / 0.2), "at least 150", "at least 301"], number
    assert quick[7:10] == [0.5, 0.5, 0.5]
    verdicts = [row[3] for row in scripts.bench_pcp.goal_rows({3000: contests})]
    assert verdicts == [True, True, False, False]
    # A bound below one says nothing.
    slow = [_contest(ours=_timed(400.0), pyrpca=_late(301.0, 3), tensorly=_timed(1.0))]
    assert scripts.bench_pcp.goal_rows({3000: slow})[1][3] is None


def test_contestant_that_is_absent_is_a_row_that_says_so(scripts: SimpleNamespace) -> None:
    absent = {"status": "not installed", "note": "pip install tensorly"}
    contests = [_contest(ours=_timed(2.0), pyrpca=_timed(9.0), tensorly=absent)]
    row = scripts.bench_pcp.speed_table({300: contests}, 300.0).rows[2]
    assert row[2:10] == [None] * 8 and row[10] == "not installed: pip install tensorly"
    assert [row[3] for row in scripts.bench_pcp.goal_rows({300: contests})] == [True, True, None, None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--n", "many"], "--n=many is not a list of sizes"),
        (["--n", "10"], "--n=10 is below 50"),
        (["--repeats", "0"], "--repeats=0 is below 1"),
        (["--threads", "0"], "--threads=0 is not positive"),
    ],
)
def test_wrong_usage_is_refused(
    scripts: SimpleNamespace, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        scripts.bench_pcp.arguments(given)
    assert message in capsys.readouterr().err
