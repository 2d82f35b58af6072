"""The files of the arena: JSON and CSV, the plot, and the page."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lrpca.bench.contest import Contest, Entry, Point, page
from lrpca.core import environment as circumstances
from tests.helpers.full_disk import full_disk


def entry(spec: str, seconds: float, error: float, status: str = "converged") -> Entry:
    """Return a made-up entry."""
    iterates = (Point(1, seconds / 2, 1.0), Point(2, 0.9 * seconds, error), Point(0, seconds, error))
    scores = {"error": error, "f_measure": 0.98765, "rank": 3, "iterations": 2, "seconds": seconds}
    times = {"seconds_per_iteration": 0.4 * seconds, "seconds_to_target": 0.9 * seconds if error < 1e-4 else None}
    settings = {"tol": 1e-7, "max_iter": 300}
    return Entry(
        spec,
        spec,
        f"about {spec}",
        status,
        "tol",
        **scores,
        **times,
        peak_memory=5_000_000,
        settings=settings,
        curve=iterates,
    )


@pytest.fixture(scope="module")
def contest() -> Contest:
    """Return a made-up contest."""
    problem = {"name": "matrix", "shape": [160, 120], "dtype": "float64", "rank": 3, "missing": 0.0}
    conditions = {
        **{"target": 1e-4, "tol": None, "blind": False, "repeat": 1, "time_limit": 60.0, "memory_limit": None},
        **{"threads": 1, "seed": 0, "versions": circumstances.versions(), "machine": circumstances.hardware()},
        **{"load": 0.1, "date": "2026-01-02 03:04 UTC"},
    }
    entries = [
        entry("lrpca", 0.0123, 1.5e-7),
        entry("pyrpca", 0.5, 2e-7),
        entry("tensorly", 1000.0, 3e-6),
        entry("sklearn", 0.001, 0.02, "done"),
    ]
    return Contest(problem | {"outlier_fraction": 0.1, "known": True}, conditions, entries)


@pytest.fixture(scope="module")
def mixed(contest: Contest) -> Contest:
    """Return a contest with everything that can go wrong in it."""
    lost = Entry("godec:alpha=0.1", "godec", "<b>lost</b>", "failed", "ValueError: a < b & c" + " more" * 60)
    late = replace(contest["pyrpca"], spec="pyrpca:rho=1.1", status="time limit", note="killed", error=float("inf"))
    return replace(contest, entries=[*contest.entries, lost, late])


def test_files(mixed: Contest, tmp_path: Path) -> None:
    written = page.write(mixed, tmp_path / "out")
    assert written == tmp_path / "out" / "index.html"
    assert sorted(file.name for file in written.parent.iterdir()) == sorted(page.FILES)
    stored = json.loads((tmp_path / "out" / "arena.json").read_text())
    assert [entry["spec"] for entry in stored["entries"]] == [entry.spec for entry in mixed.entries]
    assert stored["entries"][-1]["error"] is None and len(stored["entries"][0]["curve"]) == len(mixed.entries[0].curve)
    assert stored["conditions"]["versions"]["numpy"] == np.__version__ and stored["problem"]["shape"] == [160, 120]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out" / "arena.csv").read_text())))
    assert float(rows[0]["error"]) == mixed.entries[0].error and rows[4]["seconds"] == ""
    html = written.read_text()
    assert "&lt;b&gt;lost" in html and "a &lt; b &amp; c" in html and "<b>lost" not in html
    assert "These failed or were stopped" in html and "The time is that of one call." in html
    assert html.count("data:image/png;base64") == 2 and "http" not in html.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("load", "threads", "busy"), [(0.2, 2, False), (1.0, 2, True), (1.0, 1, False), (2.0, 1, True), (None, 2, False)]
)
def test_a_busy_machine_is_warned_of(
    contest: Contest, tmp_path: Path, load: float | None, threads: int, busy: bool
) -> None:
    machine = contest.conditions["machine"] | {"cores": 2}
    conditions = contest.conditions | {"load": load, "threads": threads, "machine": machine}
    loaded = replace(contest, conditions=conditions)
    html = page.write(loaded, tmp_path / "out").read_text()
    assert ("The machine was busy" in html) == busy == bool(page.load_warning(loaded))
    assert contest.conditions["date"] in html and "load" in contest.conditions


def test_an_existing_report_is_replaced_whole_or_kept(contest: Contest, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    page.write(contest, folder)
    (folder / "mine.txt").write_text("mine")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    shorter = replace(contest, entries=contest.entries[:1])
    with full_disk(20_000), pytest.raises(OSError, match=r"out' cannot be written \(File too large\); choose another"):
        page.write(shorter, folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    page.write(shorter, folder)
    assert (folder / "mine.txt").exists() and len(json.loads((folder / "arena.json").read_text())["entries"]) == 1
    assert page.write(contest, tmp_path / "no" / "such").is_file()


def test_cells_and_settings_as_text(mixed: Contest) -> None:
    names = page.columns(mixed)
    assert page.heading("to target", mixed) == "to 1e-4"
    lost = dict(zip(names, page.cells(mixed["godec:alpha=0.1"], names), strict=True))
    assert lost["error"] == lost["seconds"] == "-" and lost["status"].startswith("failed: ValueError: a < b & c")
    assert len(lost["status"]) < 140
    entry = Entry("x", "x", "x", "converged", settings={"a": 0.1, "b": None, "c": ["p", "q"]}, told=("a",))
    assert page.settings_text(entry) == "a=0.1 (told), c=p+q"
