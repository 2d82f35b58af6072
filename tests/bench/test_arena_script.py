"""`make arena` and the page made from it: ratios are those measured, and advice follows the numbers, whoever wins."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lrpca.bench.contest import Contest, Entry, Point, compete, parse_specs
from lrpca.solvers.methods import METHODS
from lrpca.testing import planted

ROOT = Path(__file__).resolve().parents[2]


def _modules(folder: Path, *names: str) -> Iterator[SimpleNamespace]:
    """Import scripts that find each other by being in one folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    yield from _modules(ROOT / "benchmarks", "measure", "real_matrices", "arena_scenarios", "arena")


@pytest.fixture(scope="module")
def pages() -> Iterator[SimpleNamespace]:
    yield from _modules(ROOT / "docs", "make_benchmarks_page", "make_choose_tables")


def _entry(spec: str, arrived: float | None, error: float | None = 1e-9, **others: Any) -> dict[str, Any]:
    blank = {"told": [], "note": "", "status": "converged", "seconds": 2.0, "f_measure": 1.0, "rank": 5}
    blank |= {"iterations": 9, "seconds_per_iteration": 0.1, "peak_memory": 1000000, "reads_to_target": None}
    return blank | {"spec": spec, "seconds_to_target": arrived, "error": error} | others


def _record(*entries: dict[str, Any], **others: Any) -> dict[str, Any]:
    blank = {"name": "few-10", "question": "few", "title": "9 x 9, rank 5, 10% outliers", "short": "10%"}
    blank |= {"headline": True, "known": True, "target": 1e-4, "oracle_error": None, "time_limit": 60.0, "threads": 1}
    return blank | {"rounds": {}, "entries": list(entries)} | others


# ------------------------------------------------------------------------------------------------ the script


def test_script_runs_a_problem_and_writes_the_result(pages: SimpleNamespace, tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/arena.py", "--only", "narrow", "--quick", "--threads", "1"]
    command += ["--contestants", "lrpca,sklearn", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    result = pages.make_benchmarks_page.load_result(tmp_path / "arena.json")
    assert [path.name for path in tmp_path.iterdir()] == ["arena.json"]
    (record,) = result["scenarios"]
    assert result["quick"] and result["goals"] == [] and record["problem"]["shape"] == [240, 80]
    ours, floor = record["entries"]
    assert ours["spec"] == "lrpca" and ours["error"] < 1e-6 and len(ours["all_seconds"]) == 3
    assert 0 < ours["seconds_to_target"] <= ours["seconds"]
    assert (
        1 <= ours["iterations_to_target"] < ours["iterations"]
        and ours["iterations_to_target"] < ours["reads_to_target"]
    )
    assert floor["spec"] == "sklearn" and floor["error"] > 1e-3 and floor["seconds_to_target"] is None
    assert "narrow, 1 of 2: lrpca" in done.stderr and "Narrow matrices: 240 x 80, rank 3" in done.stdout
    page = pages.make_choose_tables.render_sections(result)
    assert "## Narrow matrices\n" in page and "**Take the default**: it alone reaches an error of 1e-4" in page


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--only", "nosuch"], "--only=nosuch is unknown; use some of few-10,"),
        (["--threads", "0"], "--threads=0 is not positive"),
        (["--contestants", "nosuch"], "'nosuch' is unknown"),
    ],
)
def test_wrong_usage_is_refused(
    scripts: SimpleNamespace, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        scripts.arena.arguments(given)
    assert message in capsys.readouterr().err


def test_selections_do_not_replace_the_published_result(scripts: SimpleNamespace) -> None:
    assert scripts.arena.arguments([]).results == scripts.measure.RESULTS
    assert scripts.arena.arguments([]).command == "make arena"
    for given in (["--quick"], ["--only", "noise"], ["--contestants", "lrpca"]):
        assert scripts.arena.arguments(given).results.name == "scratch"


def test_scenarios_can_be_made_small_and_name_contestants_that_exist(
    scripts: SimpleNamespace, pages: SimpleNamespace
) -> None:
    module = scripts.arena_scenarios
    assert module.QUESTIONS == pages.make_choose_tables.QUESTIONS
    assert {scenario.question for scenario in module.SCENARIOS.values()} == set(module.QUESTIONS)
    for scenario in module.SCENARIOS.values():
        assert "lrpca" in scenario.contestants and parse_specs(scenario.contestants)
        small = scenario.small()
        assert {"lrpca"} < set(small.contestants) <= set(scenario.contestants)
        if scenario.arguments:
            problem = small.make()
            assert max(problem.Y.shape) <= 240 and f"{problem.Y.shape[0]} x {problem.Y.shape[1]}" in small.title
            assert f"rank {problem.rank}" in small.title and (small.rank or problem.rank) >= problem.rank
            assert small.target(problem) == (1.6 * problem.oracle_error if "noise" in scenario.arguments else 1e-4)


def test_video_that_is_not_there_is_left_out_with_a_reason(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scripts.real_matrices, "DATA", tmp_path)
    outcome = scripts.arena.hold(scripts.arena_scenarios.SCENARIOS["video"])
    assert isinstance(outcome, str) and outcome.startswith("video: ") and "LRPCA_DATA" in outcome


def test_reads_are_counted_until_the_target_and_no_further(scripts: SimpleNamespace) -> None:
    problem = planted((120, 100), rank=2)
    entry = compete(problem, "accaltproj:gamma=0.5", threads=1)["accaltproj:gamma=0.5"]
    near, far = (scripts.arena.count_reads(problem, entry, target, None) for target in (1e-2, 1e-6))
    steps = [scripts.arena.iterations_to(entry, target) for target in (1e-2, 1e-6)]
    assert 0 < steps[0] < steps[1] and far - near == steps[1] - steps[0]
    assert scripts.arena.count_reads(problem, entry, 1e-30, None) is None
    rival = Entry("pyrpca", "pyrpca", "", "converged", curve=(Point(1, 0.1, 1e-9),), seconds_to_target=0.1)
    assert scripts.arena.count_reads(problem, rival, 1e-4, None) is None


def test_rounds_give_the_entry_of_median_time(scripts: SimpleNamespace) -> None:
    def contest(seconds: float | None) -> Contest:
        return Contest({}, {}, [Entry("lrpca", "lrpca", "", "converged", seconds_to_target=seconds, error=1e-9)])

    once = Contest({}, {}, [Entry("pyrpca", "pyrpca", "", "converged", seconds_to_target=9.0)])
    entries, rounds = scripts.arena.merge([contest(5.0), once], [contest(1.0), contest(None), contest(3.0)])
    assert [(entry.spec, entry.seconds_to_target) for entry in entries] == [("lrpca", 3.0), ("pyrpca", 9.0)]
    assert rounds == {"lrpca": [5.0, 1.0, None, 3.0]}


def test_goals_are_ratios_within_rounds_and_bounds_are_called_bounds(scripts: SimpleNamespace) -> None:
    record = _record(
        _entry("lrpca", 0.1, reads_to_target=5),
        _entry("ircur", 0.05),
        _entry("accaltproj:gamma=0.5", 0.3, reads_to_target=16),
        _entry("scaledgd", 0.4),
        _entry("sklearn", 0.2),
        _entry("pyrpca", None, status="time limit", seconds=61.0),
        _entry("tensorly", None, error=0.1),
        rounds={"lrpca": [0.1, 0.2, 0.1], "accaltproj:gamma=0.5": [0.3, 0.8, 0.9]},
    )
    rows = {row["rival"]: row for row in scripts.arena.headline(record)}
    other = rows["fastest other full-data solver"]
    assert other["spec"] == "accaltproj:gamma=0.5" and other["ratio"] == pytest.approx(4.0)
    assert (other["our_reads"], other["their_reads"]) == (5, 16)
    assert rows["ircur"]["ratio"] == pytest.approx(0.5)
    assert rows["pyrpca"]["kind"] == "at least" and rows["pyrpca"]["ratio"] == pytest.approx(610)
    assert rows["tensorly"]["kind"] == "it does not arrive" and rows["tensorly"]["ratio"] is None
    assert [scripts.arena.is_met(row) for row in rows.values()] == [False, False, True, True]
    assert scripts.arena.is_met(rows["pyrpca"] | {"ratio": 20.0}) is None
    cells = scripts.arena.headline_table(list(rows.values())).rows
    assert [row[5] for row in cells] == [4.0, 0.5, "at least 610", "it does not arrive"]
    lost = _record(_entry("lrpca", None), _entry("ircur", 0.1))
    assert [scripts.arena.is_met(row) for row in scripts.arena.headline(lost)] == [False]


def test_goals_of_who_is_not_installed_are_left_out(scripts: SimpleNamespace) -> None:
    absent = _record(_entry("lrpca", 0.1), _entry("pyrpca", None, status="not installed", error=None))
    assert scripts.arena.headline(absent) == []
    assert scripts.arena.headline(_record(_entry("ircur", 0.1))) == []


# ------------------------------------------------------------------------------------------------ the page


@pytest.mark.parametrize(
    ("entries", "wanted", "unwanted"),
    [
        (
            [_entry("lrpca", 0.04), _entry("ircur", 0.08, error=1e-5)],
            ["**Take the default**", "in 40 ms", "`ircur`, takes 2 times as long", "than the default's (1.0e-09)"],
            ["Not reached"],
        ),
        (
            [_entry("lrpca", 0.06), _entry("ircur", 0.02, error=1e-12), _entry("scaledgd", 0.03, error=1e-2)],
            [
                "**`ircur` is the fastest**",
                "default takes 3 times as long and is number 3 of 3",
                "`ircur` (1.0e-12, the",
            ],
            ["Take the default"],
        ),
        (
            [_entry("lrpca", None, error=0.2, status="not converged"), _entry("gd", 0.5, told=["alpha"])],
            ["`gd` is the fastest", "told the true alpha", "default does not reach it", "Not reached by `lrpca`"],
            ["Take the default"],
        ),
        (
            [_entry("lrpca", None, error=3e-3), _entry("pcp", None, error=0.2)],
            [
                "**Nobody reaches an error of 1e-4**; `lrpca` comes closest, with 3.0e-03",
                "far from the truth: `lrpca` and",
            ],
            ["Not reached", "No answer"],
        ),
        (
            [
                _entry("lrpca", 0.1, error=1.02e-8),
                _entry("a", 0.2, error=1e-8),
                _entry("tensorly", None, status="time limit", error=0.1),
                _entry("pyrpca", None, status="failed", error=None),
                _entry("b", None, status="not installed", error=None),
            ],
            ["within 5% of the closest", "limit of 60 s: `tensorly`.", "Refused or failed: `pyrpca`."],
            ["`b`"],
        ),
    ],
)
def test_advice_follows_the_numbers(
    pages: SimpleNamespace, entries: list[dict[str, Any]], wanted: list[str], unwanted: list[str]
) -> None:
    text = pages.make_choose_tables.advice(_record(*entries))
    assert [words for words in wanted if words not in text] == [], text
    assert [words for words in unwanted if words in text] == [], text


def test_without_truth_no_winner_is_named(pages: SimpleNamespace) -> None:
    ours = _entry("lrpca", None, error=None, seconds=1.0, outlier_fraction=0.1)
    quick = _entry("altproj", None, error=None, seconds=0.5, outlier_fraction=0.2)
    text = pages.make_choose_tables.advice(_record(ours, quick, known=False))
    assert "truth is not known" in text and "calling 10% outliers" in text and "Faster" in text and "`altproj`" in text
    alone = pages.make_choose_tables.advice(_record(ours, known=False))
    assert "Nobody is done sooner" in alone


def test_default_is_always_in_the_short_table(pages: SimpleNamespace) -> None:
    many = [_entry(f"gd:step=0.{i}", 0.1 * (i + 1)) for i in range(9)]
    table = pages.make_choose_tables.short_table(_record(*many, _entry("lrpca", None)))
    assert [row[0] for row in table["rows"]] == [*(entry["spec"] for entry in many[:8]), "lrpca"]
    assert table["caption"].endswith("(the first 8 of 10)")


def _stored(**changes: Any) -> dict[str, Any]:
    return {
        **{"title": "Which method for what", "command": "make arena", "hardware": {"cores": 2}, "versions": {}},
        **{"date": "2026-11-15", "tables": [], "notes": ["a note"], "quick": False, "goals": [], "scenarios": []},
    } | changes


def test_page_shows_goals_missed_with_the_reads_as_the_reason(pages: SimpleNamespace, tmp_path: Path) -> None:
    row = {"problem": "10%", "rival": "fastest other full-data solver", "spec": "accaltproj:gamma=0.5", "goal": 5.0}
    row |= {"ratio": 3.4, "kind": "exact", "our_reads": 5, "their_reads": 16, "met": False}
    met = {"problem": "10%", "rival": "pyrpca", "spec": "pyrpca", "goal": 50.0, "ratio": 1500.0, "kind": "at least"}
    met |= {"our_reads": 5, "their_reads": None, "met": True}
    records = [
        _record(_entry("lrpca", 0.1), _entry("ircur", None, error=0.5), short=x, title=f"9 x 9, {x}") for x in "ab"
    ]
    stored = _stored(goals=[row, met], scenarios=[*records, _record(_entry("x", 1.0), question="a new one")])
    (tmp_path / "arena.json").write_text(json.dumps(stored), encoding="utf-8")
    pages.make_choose_tables.write_choose(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "| 10% | fastest other full-data solver, accaltproj:gamma=0.5 | 3.4 | 5 | no |" in page
    assert "| 10% | pyrpca | at least 1500 | 50 | yes |" in page
    assert "reads Y 5 times and `accaltproj:gamma=0.5` 16 times, a ratio of 3.2; a read of its costs 1.1 times" in page
    assert "pyrpca` is missed" not in page
    assert "| contestant | a | b |\n" in page and "| ircur | no: 5e-01 | no: 5e-01 |" in page
    assert "## a new one\n" in page and page.index("## Few outliers") < page.index("## a new one")


@pytest.mark.parametrize("stored", [_stored(), {k: v for k, v in _stored().items() if k not in ("goals", "scenarios")}])
def test_page_of_an_empty_result_still_says_how_it_was_measured(pages: SimpleNamespace, stored: dict[str, Any]) -> None:
    page = pages.make_choose_tables.render_sections(stored)
    assert "## How it was measured" in page and "a note" in page


def test_page_without_result_says_how_to_make_it(pages: SimpleNamespace, tmp_path: Path) -> None:
    pages.make_choose_tables.write_choose(tmp_path, tmp_path / "page.md")
    assert "`make arena` writes it" in (tmp_path / "page.md").read_text(encoding="utf-8")


def test_table_of_methods_says_what_they_take() -> None:
    rows = {}
    for line in (ROOT / "docs/choose.md").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\| `(\w+)` \|", line):
            rows[found[1]] = tuple(cell.strip() for cell in line.strip("|").split("|")[1:4])
    words = {True: "yes", False: "no"}
    expected = {
        name: (words[method.needs_rank], words[method.missing], words[method.start]) for name, method in METHODS.items()
    }
    # The default takes a rank, and finds it where none is given.
    expected["lrpca"] = ("no", *expected["lrpca"][1:])
    assert rows == expected
