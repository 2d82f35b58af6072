"""The benchmark of a training step: both sides differentiate the same network, and ratios are taken within rounds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="lrpca.learn needs PyTorch")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    names = ("measure", "problems", "limits", "torch_iterations", "torch_training", "bench_training")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
        for name in names:
            sys.modules.pop(name)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def plain(scripts: SimpleNamespace) -> dict[str, Any]:
    """The answer of plain torch, from the start that both sides share."""
    training, n, rank = scripts.torch_training, 120, scripts.bench_training.RANK
    problem = training.problem_of(n, rank)
    thresholds, steps = (torch.tensor(row, requires_grad=True) for row in training.numbers(n, rank))
    Y, X = torch.from_numpy(problem.Y), torch.from_numpy((problem.U @ problem.V.T).astype(np.float32))
    start = tuple(torch.from_numpy(factor) for factor in training.near(problem))
    loss = training.step(Y, X, thresholds, steps, rank, start)
    return {"loss": loss.item(), "thresholds": thresholds.grad.tolist(), "steps": steps.grad.tolist()}


def test_both_sides_differentiate_the_same_network(scripts: SimpleNamespace, plain: dict[str, Any]) -> None:
    ours = scripts.bench_training.Ours(120)
    scripts.bench_training.check_agreement(ours, plain)
    # Fifteen layers have come nearer to X than the start, and every number has a say in it.
    assert plain["loss"] < 0.02 and all(plain["steps"][1:]) and all(plain["thresholds"][1:])
    for name in ("thresholds", "steps"):
        wrong = plain | {name: [1.05 * value for value in plain[name]]}
        with pytest.raises(RuntimeError, match=f"(?s){name}=.* of torch differs from ours"):
            scripts.bench_training.check_agreement(ours, wrong)


def test_whole_steps_of_both_sides_reach_the_same_loss(scripts: SimpleNamespace) -> None:
    training, n, rank = scripts.torch_training, 120, scripts.bench_training.RANK
    problem = training.problem_of(n, rank)
    thresholds, steps = (torch.tensor(row, requires_grad=True) for row in training.numbers(n, rank))
    Y, X = torch.from_numpy(problem.Y), torch.from_numpy((problem.U @ problem.V.T).astype(np.float32))
    torch.manual_seed(0)
    theirs = training.step(Y, X, thresholds, steps, rank, None).item()
    assert scripts.bench_training.Ours(n).step("step") == pytest.approx(theirs, rel=0.1)
    assert thresholds.grad[0].isfinite()


def test_ratios_are_taken_within_rounds(scripts: SimpleNamespace) -> None:
    timing = scripts.measure.Timing
    times = {f"ours {part}": timing([1.0, 2.0, 4.0]) for part in scripts.bench_training.PARTS}
    times["ours forward"] = timing([0.5, 1.0, 2.0])
    for name in scripts.bench_training.PLAIN:
        times |= {f"{name} {part}": timing([10.0, 30.0, 40.0]) for part in scripts.bench_training.PARTS}
    rows = scripts.bench_training.step_table(1000, times).rows
    assert [row[-1] for row in rows] == [1, 10, 10, 1, 10, 10, 0.5]
    assert [row[2] for row in rows[:2]] == [2000, 30000]


def test_limits_count_three_and_seven_multiply_adds(scripts: SimpleNamespace) -> None:
    bench, timing = scripts.bench_training, scripts.measure.Timing
    # 1e9 multiply-adds a second, and reading takes as long as four per entry.
    probes = {"read": [4e-3], "multiply-add": [1e-3]}
    times = {f"{name} {rank}": timing([0.07], probes) for name in bench.MULTIPLY_ADDS for rank in bench.RANKS}
    rows = {(row[0], row[1]): row for row in bench.limits_table(1000, times, 1_000_000).rows}
    assert rows["pass", 1][4:6] == [4, "reading"] and rows["pass", 2][4:6] == [6, "arithmetic"]
    assert rows["way back", 5][4:] == [35, "arithmetic", 2]


@pytest.mark.parametrize(
    ("given", "message"), [(["--n", "10"], "--n=10 is below"), (["--repeats", "0"], "--repeats=0")]
)
def test_wrong_usage_is_refused(
    scripts: SimpleNamespace, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        scripts.bench_training.arguments(given)
    assert message in capsys.readouterr().err
