"""The benchmark of a GPU runs on the processor too, in small: its parts work, errors are errors, failures are told."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="tensors need PyTorch")

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("measure", "gpu_rival", "gpu_measure", "gpu_passes", "gpu_batch", "gpu_training", "gpu")


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        # Where the published model is not, it does not run: the same tables everywhere.
        patch.setenv("LRPCA_DATA", "nowhere")
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in NAMES})
        for name in NAMES:
            sys.modules.pop(name)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def plan(scripts: SimpleNamespace) -> Any:
    return scripts.gpu_measure.Plan(
        torch.device("cpu"), 300, (1, 5), (5,), (160, 128), repeats=2, calls=2, processor=1, problems=3
    )


def column(table: Any, name: str) -> list[Any]:
    return [row[list(table.columns).index(name)] for row in table.rows]


def test_problem_is_the_papers_and_its_error_that_of_the_product(scripts: SimpleNamespace) -> None:
    problem = scripts.gpu_rival.planted((300, 200), rank=3, outlier_fraction=0.1, device="cpu")
    X = problem.U @ problem.V.T
    signed = problem.Y.double() - X
    S = signed.abs()
    assert abs(float(signed.mean())) < 0.1 * float(S.mean())
    assert problem.Y.dtype == torch.float32
    assert 0.09 < float((S > 1e-6 * problem.typical).double().mean()) < 0.11
    assert 0.99 * problem.typical < float(S.max()) <= 1.001 * problem.typical
    assert problem.typical == pytest.approx(float(X.abs().mean()), rel=0.1)
    L, R = problem.U * 1.01, problem.V + 1e-3
    expected = float(torch.linalg.norm(L @ R.T - X) / torch.linalg.norm(X))
    assert problem.error(L, R) == pytest.approx(expected, rel=1e-9)


def test_the_rival_is_the_papers_iteration(scripts: SimpleNamespace) -> None:
    rival = scripts.gpu_rival
    problem = rival.planted((1000, 1000), rank=5, outlier_fraction=0.1, device="cpu")
    (schedule,) = (each.scaled_to((1000, 1000), 5) for each in rival.schedules().values())
    iterations, error = rival.reach(problem, schedule, 1e-6)
    assert 4 <= iterations <= 20 and error < 1e-6
    assert problem.error(*rival.solve(problem.Y, 5, schedule, iterations)) == error
    assert problem.error(*rival.solve(problem.Y, 5, schedule, iterations - 1)) > 1e-6
    # Our own pass gives the same step.
    from lrpca.core.influence import levels
    from lrpca.kernels.torch_pass import plain_pass

    L, R = rival.start(problem.Y, 5, schedule.thresholds[0])
    threshold, step = schedule.at(1)
    A, B = R.double(), L.double()
    found = plain_pass(problem.Y, B, A, levels("soft", threshold), A=A, B=B, arithmetic=torch.float64)
    ours = B + step * found.CA @ torch.linalg.inv(A.T @ A), A + step * found.CtB @ torch.linalg.inv(B.T @ B)
    for mine, theirs in zip(ours, rival.iterate(problem.Y, L, R, threshold, step), strict=True):
        torch.testing.assert_close(theirs.double(), mine, rtol=1e-5, atol=1e-5 * float(mine.abs().max()))


def test_a_standstill_ends_the_rival(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    from lrpca.schedule import Schedule

    problem = scripts.gpu_rival.planted((200, 200), rank=5, outlier_fraction=0.1, device="cpu")
    errors: list[float] = []
    measured = type(problem).error

    def error(self: Any, L: Any, R: Any) -> float:
        errors.append(measured(self, L, R))
        return errors[-1]

    monkeypatch.setattr(type(problem), "error", error)
    # Thresholds that clip nothing: the outliers stay in the answer.
    blind = Schedule([1.0, 1.0], [0.0, 1.5], shape=(200, 200), rank=5, tail=(1.0, 1.0))
    iterations, least = scripts.gpu_rival.reach(problem, blind, 1e-6)
    assert least == min(errors) == errors[iterations] > 1e-3
    assert len(errors) == 1 + iterations + scripts.gpu_rival._PATIENCE < 1 + scripts.gpu_rival._MOST


def test_passes_have_times_rates_and_small_errors(scripts: SimpleNamespace, plan: Any) -> None:
    by_rank, otherwise = scripts.gpu_passes.measure_passes(plan).tables
    assert [row[:2] for row in by_rank.rows] == [[1, "precise"], [5, "precise"], [5, "fast"]]
    names = ["uint8", "float16", "float64", "float32, a mask", "plain torch", "plain torch, TF32"]
    assert [row[0] for row in otherwise.rows] == names
    for table in (by_rank, otherwise):
        for name in ("error of C R", "error of Cᵀ L"):
            assert all(1e-9 < error < 3e-6 for error in column(table, name))
        for name in ("ms", "read-times", "in a row, ms", "TB/s"):
            assert all(value > 0 for value in column(table, name))
    bytes_read, row = 4 * 300 * 300, by_rank.rows[1]
    rate = dict(zip(by_rank.columns, row, strict=True))
    assert rate["TB/s"] == pytest.approx(bytes_read / (1e-3 * rate["in a row, ms"]) / 1e12, rel=0.02)


def test_wrong_products_show_as_errors(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = scripts.gpu_passes
    problem = scripts.gpu_rival.planted((160, 128), rank=5, outlier_fraction=0.1, device="cpu")
    right = passes.tensor_pass
    monkeypatch.setattr(passes, "tensor_pass", lambda Y, L, R, level, **rest: right(1.01 * Y, L, R, level, **rest))
    assert min(passes.pass_errors(problem, 5, False, passes.FLOAT32)) > 1e-3


def test_where_memory_ends_a_row_stays_empty(scripts: SimpleNamespace) -> None:
    def full() -> list[Any]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert scripts.gpu_passes._or_nothing(full) == [None] * 8


def test_call_is_compared_with_the_rival_and_the_processor(scripts: SimpleNamespace, plan: Any) -> None:
    found = scripts.gpu.measure_call(plan)
    (table,) = found.tables
    assert [row[0].split(" (")[0] for row in table.rows] == [
        "lrpca",
        "plain torch, shipped frmnn-0.1",
        "lrpca, processor",
    ]
    ours, rival, processor = column(table, "error")
    # The schedule was trained for matrices of 1000 x 1000, and gets less far on small ones.
    assert max(ours, processor) < 1e-6 < rival < 1e-2
    ratios, times = column(table, "times lrpca"), column(table, "ms")
    assert ratios[0] == 1 and ratios[2] == pytest.approx(times[2] / times[0], rel=0.02)
    assert len(found.figures["call seconds"]["lrpca"]) == plan.calls


def test_batch_and_training_are_told(scripts: SimpleNamespace, plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(train: Any, form: str, device: str) -> tuple[Any, float]:
        return train(rank=2, shape=(60, 60), form=form, steps=1, layers=2, depth=3, device=device), 2.0

    monkeypatch.setattr(scripts.gpu_training, "_timed", small)
    monkeypatch.setattr(scripts.gpu_batch, "SHAPE", (100, 20))
    (batch,), (training,) = (
        measure(plan).tables for measure in (scripts.gpu.measure_batch, scripts.gpu.measure_training)
    )
    assert "3 x 100 x 20" in batch.caption
    assert column(batch, "worst error")[0] < 1e-5
    assert column(training, "times faster") == [1.0] and column(training, "largest relative difference") == [0.0]


def test_a_failure_is_noted_and_the_others_go_on(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(plan: Any) -> Any:
        raise MemoryError("Y.shape=(300, 300) needs more\nthan there is")

    found = scripts.gpu_measure.Found(
        [scripts.measure.Table("One", ["a", "b"], [[1, None]])], ["A note."], {"numbers": [1.0]}
    )
    monkeypatch.setattr(scripts.gpu, "MEASURES", {"call": fail, "passes": lambda plan: found})
    path = tmp_path / "gpu.json"
    assert scripts.gpu.main(["--device", "cpu", "--only", "call,passes", "-o", str(path)]) == 1
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["notes"][:2] == ["A note.", "call failed: MemoryError: Y.shape=(300, 300) needs more"]
    assert result["tables"][0]["rows"] == [[1, None]] and result["figures"] == {"numbers": [1.0]}
    monkeypatch.setattr(scripts.gpu, "MEASURES", {"passes": lambda plan: found})
    assert scripts.gpu.main(["--device", "cpu", "--only", "passes", "-o", str(path)]) == 0
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = tmp_path / "page.md"
    try:
        importlib.import_module("make_gpu_results").write_gpu(tmp_path, page)
    finally:
        for name in ("make_gpu_results", "make_benchmarks_page"):
            sys.modules.pop(name, None)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("```console\n$ make bench-gpu") and "| 1 |" in text and "- A note." in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--only", "call,speed"], "--only=speed is unknown; use some of passes,call,batch,training"),
        (["--size", "5"], "--size=5 is below 200; use e.g. 8000"),
        (["--device", "cuda:99"], "device='cuda:99' is not"),
    ],
)
def test_what_cannot_be_done_is_refused(
    scripts: SimpleNamespace, given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        scripts.gpu.main(given)
    assert refused.value.code == 2 and said in capsys.readouterr().err


def test_only_the_whole_goes_to_the_stored_results(scripts: SimpleNamespace) -> None:
    for given in ([], ["--quick"], ["--only", "passes"], ["--size", "1000"]):
        _, names, output = scripts.gpu.parse(["--device", "cpu", *given])
        assert output == ROOT / "benchmarks" / "scratch" / "gpu.json"
        assert ("training" in names) == (given in ([], ["--size", "1000"]))
    assert scripts.gpu.parse(["--device", "cpu", "--quick"])[0].size == 8000
    assert np.all(np.array(scripts.gpu_measure.Plan.near) % 16 == 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
def test_passes_on_a_gpu(scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts.gpu_passes, "STORAGES", ())
    plan = scripts.gpu_measure.Plan(torch.device("cuda"), 1024, (5,), (5,), (512, 256), repeats=2)
    by_rank, otherwise = scripts.gpu_passes.measure_passes(plan).tables
    precise, fast = column(by_rank, "error of C R")
    plain, rounded = column(otherwise, "error of C R")
    assert max(precise, plain) < 1e-5 < rounded < 1e-2 and fast < 1e-2
    assert not torch.backends.cuda.matmul.allow_tf32
