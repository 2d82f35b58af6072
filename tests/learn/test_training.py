"""Training: every algorithm and model learns, the seed decides, a kill costs nothing, and errors are clear."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca import Schedule

torch = pytest.importorskip("torch", reason="lrpca.learn needs PyTorch")

from lrpca.learn import DivergedError, Progress, train  # noqa: E402
from lrpca.learn.network import UnrolledNetwork  # noqa: E402
from lrpca.learn.paper import PaperTrainer, full_stages, shared_out  # noqa: E402
from lrpca.learn.problems import PaperProblems, TrainingProblem  # noqa: E402
from lrpca.learn.request import Request, make_trainer, resolve  # noqa: E402
from lrpca.learn.tensors import prepare  # noqa: E402
from lrpca.learn.trainer import Validation, score  # noqa: E402
from tests.helpers.full_disk import full_disk  # noqa: E402
from tests.helpers.killed import KilledError, killed_after  # noqa: E402

SHAPE, RANK = (40, 30), 1
PROBLEMS = PaperProblems(SHAPE, RANK, 0.1)
WAYS: dict[str, dict[str, Any]] = {
    "fast, adaptive": {"form": "adaptive", "way": "fast"},
    "fast, paper's form": {"form": "paper", "way": "fast"},
    "paper's way": {"form": "paper", "way": "paper"},
}
LAYERS: dict[str, dict[str, int]] = {"fnn": {"layers": 2}, "rnn": {"depth": 3}, "frmnn": {"layers": 2, "depth": 3}}
# Small enough for a training in a fraction of a second.
SMALL = {"rank": RANK, "shape": SHAPE, "steps": 6}
TINY: dict[str, dict[str, Any]] = {
    "fast, adaptive": {**SMALL, **WAYS["fast, adaptive"], "model": "frmnn", "layers": 1, "depth": 2},
    "fast, paper's form": {**SMALL, **WAYS["fast, paper's form"], "model": "fnn", "layers": 2},
    "paper's way": {**SMALL, **WAYS["paper's way"], "model": "frmnn", "layers": 1, "depth": 2},
}
RECURRENT = {"fast, recurrent": {**TINY["fast, paper's form"], "model": "frmnn", "layers": 1, "depth": 2}}


@functools.cache
def uninterrupted(way: str) -> Schedule:
    """Return the model of a tiny training that nothing disturbs."""
    return train(**{**TINY, **RECURRENT}[way])


def told(schedule: Schedule) -> dict[str, Any]:
    """Return what a model says of itself, but for when it was made and how long it took."""
    return {key: value for key, value in schedule.meta.items() if key not in ("date", "seconds", "command")}


def assert_same(one: Schedule, other: Schedule) -> None:
    assert one == other and told(one) == told(other)


# --- learning ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "model"),
    [("fast, adaptive", "fnn"), ("fast, adaptive", "rnn"), ("fast, paper's form", "frmnn"), ("paper's way", "frmnn")],
)
def test_training_improves_a_held_out_error(way: str, model: str) -> None:
    asked = {"rank": RANK, "shape": SHAPE, "model": model, "steps": 20, **LAYERS[model], **WAYS[way]}
    schedule = train(random_state=3, **asked)
    request = resolve(Request(random_state=3, **asked))
    trainer, _ = make_trainer(request, PROBLEMS)
    # Problems that neither trained nor validated.
    rng = np.random.default_rng(99)
    validation = Validation([prepare(PROBLEMS.draw(rng)) for _ in range(8)])
    depth = request.depth
    before = score(validation.curve(trainer.network, depth))
    after = validation.curve(UnrolledNetwork(schedule, model), depth)
    assert score(after) < before - 0.1
    assert after[-1] < after[1]
    assert schedule.kind == ("adaptive" if way == "fast, adaptive" else "absolute")
    assert (schedule.tail is None) == (model == "fnn")
    assert (schedule.shape, schedule.rank) == ((None, None) if schedule.kind == "adaptive" else (SHAPE, RANK))


@pytest.mark.parametrize("way", TINY)
def test_the_seed_decides(way: str) -> None:
    first, again, other = uninterrupted(way), train(**TINY[way]), train(random_state=2, **TINY[way])
    assert_same(first, again)
    assert other != first and (first.meta["seed"], other.meta["seed"]) == (0, 2)


def test_a_model_tells_how_it_was_made() -> None:
    asked = {**TINY["fast, paper's form"], "patience": 9, "learning_rate": 0.1, "random_state": 4}
    schedule = train(**asked)
    meta = schedule.meta
    assert meta["seed"] == 4 and {"lrpca", "torch", "numpy"} <= set(meta["versions"])
    assert meta["data"] == PROBLEMS.describe()
    assert meta["training"]["steps"] == meta["training"]["steps_taken"] == 6
    assert len(meta["scores"]["held_out_errors"]) == 3 and meta["scores"]["score"] < 0
    assert json.loads(json.dumps(meta, allow_nan=False)) == meta
    # The command is one: it makes the same model again.
    assert_same(eval(meta["command"], {"lrpca": lrpca}), schedule)


def test_a_schedule_to_begin_from() -> None:
    begin = Schedule([20.0, 4.0, 3.0], [0.0, 0.8, 0.9], kind="adaptive", influence="soft", tail=(1.0, 1.0))
    schedule = train(rank=RANK, shape=SHAPE, form=begin, steps=1, learning_rate=1e-9)
    assert schedule.thresholds[:3] == pytest.approx(begin.thresholds, rel=1e-6)
    assert schedule.steps[1:3] == pytest.approx(begin.steps[1:], rel=1e-6)
    assert (schedule.influence, schedule.update) == (begin.influence, begin.update)
    assert_same(eval(schedule.meta["command"], {"lrpca": lrpca, "Schedule": Schedule}), schedule)
    assert json.loads(json.dumps(schedule.meta, allow_nan=False)) == schedule.meta


@pytest.mark.parametrize("way", TINY)
def test_progress_tells_where_training_stands(way: str) -> None:
    seen: list[Progress] = []
    schedule = train(progress=seen.append, **TINY[way])
    assert [where.step for where in seen] == list(range(7)) and {where.total for where in seen} == {6}
    assert math.isnan(seen[0].loss) and all(math.isfinite(where.loss) for where in seen[1:])
    assert all(math.isfinite(where.score) and where.errors for where in seen)
    assert sorted(where.seconds for where in seen) == [where.seconds for where in seen]
    if way != "paper's way":
        assert {where.stage for where in seen} == {"training"} and {len(where.errors) for where in seen} == {3}
        # The numbers with the best score count.
        assert schedule.meta["scores"]["score"] <= min(where.score for where in seen) + 1e-3


def test_training_ends_early_where_nothing_gets_better() -> None:
    asked = {**TINY["fast, paper's form"], "steps": 30, "learning_rate": 1e-7}
    assert train(patience=2, **asked).meta["training"]["steps_taken"] == 4  # every second step is validated
    assert train(patience=20, **asked).meta["training"]["steps_taken"] == 30


# --- kills -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "evaluations"), [*((way, count) for way in TINY for count in (1, 3, 6, 7)), ("fast, recurrent", 5)]
)
def test_resume_equals_uninterrupted(way: str, evaluations: int, tmp_path: Path) -> None:
    asked, file = {**TINY, **RECURRENT}[way], tmp_path / "state.json"
    with pytest.raises(KilledError):
        train(checkpoint=file, progress=killed_after(evaluations), **asked)
    resumed = train(checkpoint=file, resume=True, **asked)
    assert_same(resumed, uninterrupted(way))
    # What is there now is the end, which can be taken up as well.
    assert_same(train(checkpoint=file, resume=True, **asked), resumed)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_resume_after_several_kills_with_patience(tmp_path: Path) -> None:
    # Counts of evaluations without a better score, and the best numbers so far, outlive the kills.
    asked = {**TINY["fast, paper's form"], "steps": 40, "learning_rate": 0.9, "patience": 3}
    file, whole = tmp_path / "state.json", train(**asked)
    assert 6 < whole.meta["training"]["steps_taken"] < 40
    for kill in range(100):
        try:
            resumed = train(checkpoint=file, resume=kill > 0, progress=killed_after(1 + kill % 2), **asked)
        except KilledError:
            continue
        break
    assert kill > 2
    assert_same(resumed, whole)


SCRIPT = """
import os, signal, sys, torch
from lrpca.learn import train
torch.set_num_threads(1)
left = [4]
def kill(where):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
train(checkpoint=sys.argv[1], progress=kill, **eval(sys.argv[2]))
"""


def test_resume_after_a_real_kill(tmp_path: Path) -> None:
    way = "paper's way"
    file, asked = tmp_path / "state.json", TINY[way]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(file), repr(asked)]
    process = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    assert_same(train(checkpoint=file, resume=True, **asked), uninterrupted(way))


def test_a_checkpoint_is_strict_json(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    with pytest.raises(KilledError):  # before the first step, when there is no loss yet
        train(checkpoint=file, progress=killed_after(1), **TINY["fast, adaptive"])

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(file.read_text(), parse_constant=refuse)["trainer"]["position"] == 0


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "state.json"
    with pytest.raises(KilledError):
        train(checkpoint=file, progress=killed_after(3), **TINY["fast, paper's form"])
    return file


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"random_state": 7}, "seed: 0 there, 7 here"),
        ({"layers": 3}, "depth: 2 there, 3 here"),
        ({"model": "rnn", "layers": 1, "depth": 2}, "layers: 2 there, 1 here"),
        ({"steps": 7}, "steps: 6 there, 7 here"),
        ({"model": "frmnn", "depth": 2}, "model: 'fnn' there, 'frmnn' here"),
        ({"shape": (30, 40)}, "data: "),
        ({"rank": 2}, "data: "),
        ({"outlier_fraction": 0.2}, "data: "),
        ({"learning_rate": 0.2}, "learning_rate: "),
        ({"patience": 3}, "patience: None there, 3 here"),
        ({"form": "adaptive", "learning_rate": 0.15}, "form: "),
        ({"form": Schedule([1.0, 0.5, 0.2], [0, 1, 1], tail=(1.0, 0.6))}, "begin: None there, "),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(saved: Path, change: dict[str, Any], named: str) -> None:
    before = saved.read_bytes()
    with pytest.raises(ValueError) as refused:
        train(checkpoint=saved, resume=True, **{**TINY["fast, paper's form"], **change})
    message = str(refused.value)
    assert f"checkpoint={str(saved)!r} is of another training" in message and message.count(";") == 1
    # The first of what differs is named, in the order of the alphabet.
    assert f"({named}" in message
    assert saved.read_bytes() == before


def with_state(content: bytes, name: str, value: Any) -> bytes:
    loaded = json.loads(content)
    loaded["trainer"][name] = value
    return json.dumps(loaded).encode()


SHORT = {"step": 3.0, "exp_avg": [1.0], "exp_avg_sq": [1.0]}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[: len(content) // 2], "is not valid JSON"),
        (lambda _: b"", "is not valid JSON"),
        (lambda _: b"\xff\xfe\x00", "is not valid JSON"),
        (lambda _: b"[" * 100_000, "is not valid JSON"),
        (lambda _: b"[1, 2]", "is not an lrpca checkpoint"),
        (lambda _: b'{"format": "lrpca-schedule", "version": 2}', "is not an lrpca checkpoint"),
        (lambda content: content.replace(b'"version": 2', b'"version": 99'), "is not an lrpca checkpoint of version 2"),
        (lambda _: b'{"format": "lrpca-checkpoint", "version": 2}', "is of another training"),
        (lambda content: with_state(content, "parameters", {}), "lacks what training needs"),
        (lambda content: with_state(content, "parameters", {"thresholds": [1.0]}), "lacks what training needs"),
        (lambda content: with_state(content, "optimiser", {"state": {"0": SHORT}}), "lacks what training needs"),
    ],
)
def test_a_damaged_checkpoint_is_refused(saved: Path, tmp_path: Path, damage: Any, words: str) -> None:
    file = tmp_path / "damaged.json"
    file.write_bytes(damage(saved.read_bytes()))
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        train(checkpoint=file, resume=True, **TINY["fast, paper's form"])
    assert f"checkpoint={str(file)!r}" in str(refused.value) and ";" in str(refused.value)


def test_where_a_checkpoint_may_be(saved: Path, tmp_path: Path) -> None:
    asked = TINY["fast, paper's form"]
    for checkpoint, resume, error, message in (
        (saved, False, FileExistsError, "exists; go on from it with resume=True"),
        (tmp_path / "none.json", True, FileNotFoundError, "is not a file; leave resume out"),
        (tmp_path / "none" / "state.json", False, FileNotFoundError, "in a folder that does not exist; make"),
        (None, True, ValueError, "resume=True has nothing to go on from; pass checkpoint="),
    ):
        with pytest.raises(error, match=message):
            train(checkpoint=checkpoint, resume=resume, **asked)


@pytest.mark.parametrize("way", ["fast, adaptive", "paper's way"])
def test_a_full_disk_leaves_the_last_good_checkpoint(way: str, tmp_path: Path) -> None:
    file, asked = tmp_path / "state.json", TINY[way]
    good: list[bytes] = []

    def fill_the_disk(where: Progress) -> None:
        if where.step == 3:
            good.append(file.read_bytes())
            from_now_on.enter_context(full_disk(300))

    with ExitStack() as from_now_on, pytest.raises(OSError, match=r"cannot be written \(.*\); free space") as refused:
        train(checkpoint=file, progress=fill_the_disk, **asked)
    assert f"checkpoint={str(file)!r}" in str(refused.value) and "still there" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"] and file.read_bytes() == good[0]
    assert_same(train(checkpoint=file, resume=True, **asked), uninterrupted(way))


# --- what goes wrong ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Changed:
    """The paper's problems, changed."""

    change: Callable[[TrainingProblem], TrainingProblem]
    variety: int = 4

    def draw(self, rng: np.random.Generator) -> TrainingProblem:
        return self.change(PROBLEMS.draw(rng))

    def describe(self) -> dict[str, Any]:
        return {"source": "changed"}

    def split(self) -> tuple[Any, Any]:
        return self, self


def without_label(problem: TrainingProblem) -> TrainingProblem:
    assert problem.truth is not None
    return replace(problem, truth=(problem.truth[0], np.nan * problem.truth[1]))


def zeros(problem: TrainingProblem) -> TrainingProblem:
    return replace(problem, Y=np.zeros(SHAPE))


@pytest.mark.parametrize("way", ["fast, adaptive", "fast, paper's form"])
def test_steps_too_long_are_called_divergence(way: str, tmp_path: Path) -> None:
    asked = {**TINY[way], "steps": 20, "learning_rate": 9.9, "checkpoint": tmp_path / "state.json"}
    with pytest.raises(DivergedError, match=r"training diverged in step \d+: .*; lower learning_rate") as refused:
        train(**asked)
    if way == "fast, adaptive":  # does not wait for the end
        assert "in step 20" not in str(refused.value)
    numbers = json.loads((tmp_path / "state.json").read_text())["trainer"]["parameters"]
    assert all(math.isfinite(number) for name in ("thresholds", "steps") for number in numbers[name])


@pytest.mark.parametrize("way", TINY)
@pytest.mark.parametrize("change", [without_label, zeros])
def test_problems_without_an_answer_are_called_divergence(way: str, change: Any) -> None:
    with pytest.raises(DivergedError, match=r"^training diverged (in step \d+|before its first .*): .*check the data"):
        train(data=Changed(change), **TINY[way])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": "cnn"}, "model='cnn' is unknown; use one of fnn, rnn, frmnn"),
        ({"way": "slow"}, "way='slow' is unknown; use one of fast, paper"),
        ({"form": "other"}, "form='other' is unknown; use one of adaptive, paper, or a Schedule"),
        ({"form": None}, "form=None is unknown"),
        ({"rank": 0}, "rank=0 is not an integer of at least 1; use rank=1 or more"),
        ({"rank": True}, "rank=True is not an integer"),
        ({"rank": 16}, "rank=16 is above half of min(shape)=30; choose a smaller rank"),
        ({"shape": 40}, "shape=40 is not a pair of positive integers; e.g."),
        ({"shape": (40, 0)}, "shape=(40, 0) is not a pair of positive integers"),
        ({"outlier_fraction": 1.0}, "outlier_fraction=1.0 is not a number from 0 to below 1"),
        ({"outlier_fraction": math.nan}, "outlier_fraction=nan is not a number"),
        ({"random_state": -1}, "random_state=-1 is not an integer of at least 0; use random_state=0 or more"),
        ({"random_state": None}, "random_state=None is not an integer"),
        ({"layers": 0}, "layers=0 is not an integer of at least 1"),
        ({"model": "rnn", "layers": 3}, "layers=3 does not fit model='rnn'"),
        ({"depth": 1, "layers": 2}, "depth=1 is below layers=2"),
        ({"model": "fnn", "depth": 3, "layers": 2}, "depth=3 is above layers=2"),
        ({"steps": 0}, "steps=0 is not an integer of at least 1"),
        ({"steps": 1e3}, "steps=1000.0 is not an integer"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 is not a number between 0 and 10"),
        ({"learning_rate": True}, "learning_rate=True is not a number between 0 and 10"),
        ({"patience": 0}, "patience=0 is not an integer of at least 1"),
        ({"device": "tpu9"}, "device='tpu9' is unknown; use 'cpu', 'cuda'"),
        ({"device": "meta"}, "device='meta' cannot be computed on here; use 'cpu' or 'cuda'"),
        ({"way": "paper"}, "form='adaptive' does not fit way='paper'"),
        ({"way": "paper", "form": Schedule([1, 1], [0, 1])}, "form=<a Schedule> does not fit way='paper'"),
        ({"way": "paper", "form": "paper", "patience": 3}, "patience=3 does not fit way='paper'"),
        ({"way": "paper", "form": "paper", "layers": 2, "depth": 2}, "depth=2 leaves no layer to search"),
        ({"way": "paper", "form": "paper", "layers": 2, "steps": 5}, "steps=5 is less than one for each of the 6"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        train(**{"rank": RANK, "shape": SHAPE, "steps": 1, **arguments})
    message = str(refused.value)
    assert message.startswith(words) and ";" in message, message


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"device='cuda' is not available: .*; .* use 'cpu'"):
        train(rank=RANK, shape=SHAPE, device="cuda")


# --- the paper's way ---------------------------------------------------------------------------------------


def trainer_of(source: Any = PROBLEMS, seed: int = 0, **asked: Any) -> PaperTrainer:
    return PaperTrainer(source, seed=seed, **{"model": "frmnn", "layers": 2, "depth": 4, "steps": 60, **asked})


def test_stages_of_the_paper() -> None:
    stages = full_stages("frmnn", 10, 15)
    names = ["layer 0 alone", "layer 1 alone", "layers 0 to 1", "layer 2 alone", "layers 0 to 2"]
    assert [stage.name for stage in stages[:5]] == names
    steps = {stage.name: stage.steps for stage in stages}
    assert (steps["layer 9 alone"], steps["layers 0 to 6"], steps["layers 0 to 7"]) == (500, 1000, 500)
    assert stages[-1] == ("search of the recurrence", 15, None, 20)
    assert [stage.name for stage in full_stages("rnn", 1, 15)] == ["layer 0 alone", "search of the recurrence"]
    for total in (len(stages), 100, 13_520, 20_000):
        shared = shared_out(stages, total)
        assert sum(stage.steps for stage in shared) == total and min(stage.steps for stage in shared) >= 1
    assert shared_out(stages, 13_520) == stages


def test_the_papers_number_of_steps_is_the_default() -> None:
    request = resolve(Request(model="fnn", form="paper", way="paper", layers=14))
    assert (request.steps, request.learning_rate) == (17_500, 0.1)


def test_first_numbers_and_rates_at_the_base_setting() -> None:
    trainer = PaperTrainer(PaperProblems((1000, 1000), 5), seed=0, model="fnn", layers=14, depth=14)
    numbers = trainer.network.schedule()
    assert numbers.thresholds == pytest.approx([1e-3] * 15) and numbers.steps[1:] == pytest.approx([0.5] * 14)
    assert trainer.state()["rates"][0] == pytest.approx(2e-7)


def test_one_layer_after_the_other() -> None:
    trainer = trainer_of()
    begins = np.cumsum([0, *(stage.steps for stage in trainer.stages)]).tolist()
    before = trainer.network.schedule()
    assert (trainer.stage, trainer.trained_depth) == ("layer 0 alone", 0)
    for stage, end in zip(trainer.stages[:-1], begins[1:], strict=False):
        start = trainer.network.schedule()
        while trainer.position < end:
            trainer.step()
        now = trainer.network.schedule()
        assert (trainer.stage, trainer.trained_depth) == (stage.name, stage.last)
        assert stage.first is not None
        for k, (one, other) in enumerate(zip(start.thresholds, now.thresholds, strict=True)):
            assert (one != other) == (stage.first <= k <= stage.last), (stage, k)
        for k in range(1, 3):
            assert (start.steps[k] != now.steps[k]) == (stage.first <= k <= stage.last), (stage, k)
    assert min(now.thresholds) > 0 and now.tail == before.tail
    while trainer.position < trainer.total:
        trainer.step()
    assert trainer.stage == "search of the recurrence" and trainer.trained_depth == 4
    assert trainer.network.schedule().thresholds == now.thresholds


def test_the_unit_of_the_data_does_not_matter() -> None:
    def scaled(problem: TrainingProblem, unit: float) -> TrainingProblem:
        assert problem.truth is not None
        return replace(problem, Y=unit * problem.Y, truth=(problem.truth[0], unit * problem.truth[1]))

    numbers = []
    for unit in (1.0, 1024.0):
        trainer = trainer_of(Changed(functools.partial(scaled, unit=unit)), steps=30)
        while trainer.position < trainer.total:
            trainer.step()
        numbers.append(trainer.network.schedule())
    assert numbers[1].thresholds == pytest.approx([1024 * number for number in numbers[0].thresholds], rel=1e-5)
    assert numbers[1].steps == pytest.approx(numbers[0].steps, rel=1e-5) and numbers[1].tail == numbers[0].tail


@pytest.mark.parametrize("model", ["rnn", "frmnn"])
def test_the_search_finds_the_best_pair(model: str) -> None:
    trainer = trainer_of(model=model, layers=1, steps=30)
    trainer.go_to(len(trainer.stages) - 1)
    # Numbers for which the best pair is inside the grid.
    unit = 2e-2
    trainer.network.thresholds.data[:] = torch.tensor([3 * unit, unit][: len(trainer.network.thresholds)])
    trainer.network.steps.data[:] = 0.9
    generator = np.random.default_rng()
    generator.bit_generator.state = trainer.state()["generator"]
    problems = [prepare(PROBLEMS.draw(generator), dtype=torch.float32) for _ in range(trainer.stages[-1].steps)]
    while trainer.position < trainer.total:
        trainer.step()
    beta, phi = trainer.network.schedule().tail or ()
    assert round(10 * beta, 6) in range(1, 11) and round(10 * phi, 6) in range(1, 11)

    def squares(pair: tuple[float, float]) -> float:
        trainer.network.tail.data[:] = torch.tensor(pair, dtype=torch.float64)
        with torch.no_grad():
            factors = [trainer.network(data, 4) for data in problems]
        X = [data.truth[0] @ data.truth[1].T for data in problems if data.truth is not None]
        return sum(float(((L @ R.T - one) ** 2).sum()) for (L, R), one in zip(factors, X, strict=True))

    best = squares((beta, phi))
    for step in (-0.1, 0.1):
        for pair in ((beta + step, phi), (beta, phi + step)):
            if 0.05 < min(pair) and max(pair) < 1.05:
                assert squares(pair) >= best * (1 - 1e-4), pair
    assert squares((0.1, 0.1)) > 1.01 * best
