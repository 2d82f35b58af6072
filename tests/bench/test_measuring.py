"""What benchmarks share: ratios within rounds, processes of their own, one command line, whole result files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrpca.bench import measuring
from lrpca.bench.measuring import Table, Timing, arguments, call_fresh, interleave, publish
from lrpca.bench.probes import Machine, planted

OPTIONS: dict[str, Any] = {"n": (8000, "size"), "only": (("a", "b"), "parts"), "quick": (False, "less")}


def test_every_function_is_timed_once_per_round_after_its_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_PAUSE", 0.0)
    calls: list[str] = []
    functions = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = interleave(functions, 3, probes={"read": lambda: calls.append("read")})
    # One untimed call each; then, before every timed call, the probe untimed and timed.
    assert calls[:3] == ["read", "a", "b"]
    rounds = ["".join(calls[i : i + 6]).replace("read", "-") for i in range(3, len(calls), 6)]
    assert len(rounds) == 3 and set(rounds) <= {"--a--b", "--b--a"}
    assert {len(t.seconds) for t in times.values()} == {len(t.probes["read"]) for t in times.values()} == {3}


def test_ratios_are_medians_of_ratios_within_rounds() -> None:
    ours, theirs = Timing([1.0, 2.0, 4.0]), Timing([20.0, 60.0, 100.0], {"read": [10.0, 10.0, 10.0]})
    assert theirs.relative_to(ours.seconds) == 25 != theirs.median / ours.median
    assert theirs.reads == 6


def test_a_function_is_called_in_a_new_process() -> None:
    assert call_fresh(os.getpid) != os.getpid()


def test_only_a_whole_run_replaces_the_stored_result() -> None:
    whole = arguments("benchmarks/bench_x.py", "About.", [], command="make bench", **OPTIONS)
    assert (whole.file.name, whole.file.parent.name, whole.command) == ("x.json", "results", "make bench")
    part = arguments("benchmarks/bench_x.py", "About.", ["--only", "b"], command="make bench", **OPTIONS)
    assert part.only == ("b",) and part.file.parent.name == "scratch"
    assert part.command == "python benchmarks/bench_x.py --only b"
    named = arguments("x.py", "About.", ["--quick"], whole={"--quick": "make quick"}, **OPTIONS)
    assert named.quick and (named.file.parent.name, named.command) == ("results", "make quick")


@pytest.mark.parametrize(("given", "message"), [(["--n", "0"], "0 is not positive"), (["--only", "c"], "c is unknown")])
def test_odd_requests_are_refused(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments("x.py", "About.", given, **OPTIONS)
    assert message in capsys.readouterr().err


def test_results_say_what_made_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = arguments("bench_x.py", "About.", ["--results", str(tmp_path)], **OPTIONS)
    publish(chosen, "A title", [Table("Times", ["rank", "ms"], [[5, 2.5]])], ["a note"], extra={"more": 1})
    result = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert result["tables"] == [{"caption": "Times", "columns": ["rank", "ms"], "rows": [[5, 2.5]]}]
    assert result["commit"] == measuring.commit() and result["more"] == 1 and "numpy" in result["versions"]
    assert result["notes"][0] == "a note" and "Load average" in result["notes"][1]
    assert "rank   ms\n   5  2.5" in capsys.readouterr().out
    with pytest.raises(ValueError, match="not JSON compliant"):
        publish(chosen, "A title", [Table("Times", ["ms"], [[float("nan")]])])
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == result
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_planted_problems_and_probes() -> None:
    problem = planted(1000, rank=2, outlier_fraction=0.1)
    residual = np.abs(problem.Y - problem.U @ problem.V.T) > 1e-3 * problem.typical
    assert abs(residual.mean() - 0.1) < 0.01
    assert problem.error(1.5 * problem.U, problem.V) == pytest.approx(0.5)
    machine, rounding = Machine(), 1e-3 * float(np.abs(problem.Y).sum())
    assert machine.read(problem.Y) == pytest.approx(problem.Y.sum(dtype=float), abs=rounding)
    assert machine.multiply_add(1e6) == pytest.approx(1e6, rel=0.05)
