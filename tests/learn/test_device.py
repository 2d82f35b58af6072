"""Training as a device does it: Y read by torch, factors sent to it and back; held against the solver's kernels."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrpca import Schedule
from lrpca.testing import planted

torch = pytest.importorskip("torch", reason="lrpca.learn needs PyTorch")

from lrpca.learn import operations, tensors, train  # noqa: E402
from lrpca.learn import training as training_module  # noqa: E402
from lrpca.learn.network import UnrolledNetwork  # noqa: E402
from lrpca.learn.problems import TrainingProblem, of_problem  # noqa: E402
from lrpca.learn.tensors import Data, prepare  # noqa: E402
from tests.helpers.killed import KilledError, killed_after  # noqa: E402

SHAPE, RANK = (70, 50), 2
SMALL: dict[str, Any] = {"rank": RANK, "shape": SHAPE, "steps": 4}
TRAININGS: dict[str, dict[str, Any]] = {
    "adaptive fnn": {**SMALL, "model": "fnn", "layers": 3},
    "adaptive rnn": {**SMALL, "model": "rnn", "depth": 3},
    "adaptive frmnn": {**SMALL, "layers": 2, "depth": 3},
    "paper's form": {**SMALL, "form": "paper", "model": "fnn", "layers": 3},
    "paper's way": {**SMALL, "form": "paper", "way": "paper", "layers": 1, "depth": 3},
}
NUMBERS = [20.0, 3.0, 2.5, 2.0], [0, 1, 1, 1]
ADAPTIVE: dict[str, Any] = {"kind": "adaptive", "influence": "redescending", "decay": 0.1}
FORMS = {
    "soft, scaled": Schedule([0.4, 0.05, 0.02, 0.01], [0, 0.9, 0.9, 0.9]),
    "redescending, tangent": Schedule(*NUMBERS, update="tangent", **ADAPTIVE),
    "redescending, row equations": Schedule(*NUMBERS, update="own_gram", **ADAPTIVE),
    "with a floor": Schedule([0.4, 0.05], [0, 0.9], tail=(1.0, 0.5), floor=3.0),
}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that has the processor treated as a device from then on."""

    def use() -> None:
        monkeypatch.setattr(tensors, "reads_by_torch", lambda _: True)
        monkeypatch.setattr(operations, "_apart", lambda *_: True)

    return use


def problem(*, missing: float = 0.0, seed: int = 0) -> TrainingProblem:
    return of_problem(planted(SHAPE, rank=RANK, outlier_fraction=0.1, missing=missing, random_state=seed))


@cache
def on_cpu(name: str) -> Schedule:
    """Return a model that was trained on the CPU, as it should be."""
    return train(**TRAININGS[name])


def numbers(schedule: Schedule) -> Any:
    return np.array([*schedule.thresholds, *schedule.steps[1:], *(schedule.tail or ())])


# --- the parts ---------------------------------------------------------------------------------------------


def run(form: str, given: TrainingProblem) -> tuple[Data, float, list[Any]]:
    """Return the loss of a network and its derivatives by all numbers."""
    schedule = FORMS[form]
    network = UnrolledNetwork(schedule, "fnn" if schedule.tail is None else "frmnn")
    data = prepare(given)
    loss = torch.stack([data.log_loss(layer.L, layer.R) for layer in network.layers(data, 3)]).sum()
    loss.backward()
    return data, loss.item(), [p.grad.numpy() for p in network.parameters() if p.grad is not None]


@pytest.mark.parametrize("missing", (0.0, 0.2))
@pytest.mark.parametrize("form", FORMS)
def test_the_network_has_the_same_loss_and_gradient(device: Any, form: str, missing: float) -> None:
    given = problem(missing=missing)
    _, loss, gradient = run(form, given)
    device()
    data, other_loss, other_gradient = run(form, given)
    assert data.matrix is None and data.by_torch
    assert other_loss == pytest.approx(loss, rel=1e-11)
    for one, other in zip(gradient, other_gradient, strict=True):
        assert np.abs(one).max() > 1e-3
        np.testing.assert_allclose(other, one, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("form", ("soft, scaled", "redescending, tangent", "with a floor"))
def test_nothing_of_the_size_of_Y_is_kept_for_the_way_back(device: Any, form: str) -> None:  # noqa: N802
    device()
    kept: list[int] = []
    n1, n2 = SHAPE
    sample_of_all = n1 * n2

    def pack(tensor: Any) -> Any:
        kept.append(tensor.numel())
        return tensor

    given = problem()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run(form, given)
    # Y itself, once for each layer, and with widths the residuals of a sample, which is all of so small a matrix.
    expected = {"soft, scaled": 3, "redescending, tangent": 6, "with a floor": 5}[form]
    assert sum(size >= sample_of_all for size in kept) == expected


# --- whole trainings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAININGS)
def test_training_gives_the_same_numbers(device: Any, name: str) -> None:
    one = on_cpu(name)
    device()
    other = train(**TRAININGS[name])
    if name == "adaptive fnn":
        assert np.abs(numbers(train(**{**TRAININGS[name], "random_state": 1})) / numbers(one) - 1).max() > 1e-3
    # The paper's way computes in single precision.
    np.testing.assert_allclose(numbers(other), numbers(one), rtol=1e-4 if name == "paper's way" else 1e-7)


@pytest.mark.parametrize("kind", ("pairs", "data alone"))
def test_training_on_data_gives_the_same_numbers(device: Any, kind: str) -> None:
    case = planted(SHAPE, rank=RANK, outlier_fraction=0.05, noise=0.02, missing=0.1, random_state=3)
    data = [(case.Y, case.X)] if kind == "pairs" else [case.Y]
    asked: dict[str, Any] = {"rank": RANK, "layers": 2, "steps": 3}
    one = train(data=data, **asked)
    Y, X = torch.tensor(case.Y), torch.tensor(case.X)
    assert train(data=[(Y, X)] if kind == "pairs" else [Y], **asked) == one
    device()
    np.testing.assert_allclose(numbers(train(data=data, **asked)), numbers(one), rtol=1e-7)


def test_none_is_the_processor() -> None:
    models = [on_cpu("adaptive frmnn"), train(device=torch.device("cpu"), **TRAININGS["adaptive frmnn"])]
    assert models[0] == models[1]
    assert [model.meta["training"]["device"] for model in models] == 2 * ["cpu"]
    assert "device" not in models[0].meta["command"]


@pytest.mark.parametrize("name", ("adaptive frmnn", "paper's way"))
def test_settings_of_the_caller_change_nothing(name: str) -> None:
    want = on_cpu(name)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        assert train(**TRAININGS[name]) == want


@pytest.mark.parametrize("begun_on_device", (True, False))
@pytest.mark.parametrize("name", ("adaptive frmnn", "paper's way"))
def test_another_device_may_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, begun_on_device: bool
) -> None:
    file, asked = tmp_path / "state.json", TRAININGS[name]
    whole = on_cpu(name)
    monkeypatch.setattr(operations, "_apart", lambda *_: True)
    monkeypatch.setattr(tensors, "reads_by_torch", lambda _: begun_on_device)
    with pytest.raises(KilledError):
        train(checkpoint=file, progress=killed_after(3), **asked)
    content = json.loads(file.read_text())
    content["settings"]["device"] = "cuda:1" if begun_on_device else "cpu"
    file.write_text(json.dumps(content))
    monkeypatch.setattr(tensors, "reads_by_torch", lambda _: not begun_on_device)
    np.testing.assert_allclose(numbers(train(checkpoint=file, resume=True, **asked)), numbers(whole), rtol=1e-4)


@pytest.mark.parametrize("kind", (torch.OutOfMemoryError, RuntimeError))
def test_a_device_without_memory_is_named(kind: type[RuntimeError], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise kind("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr(training_module, "make_trainer", full)
    with pytest.raises(MemoryError, match=r"device='cpu' has too little memory for shape=\(70, 50\); use a smaller"):
        train(**TRAININGS["paper's form"])
    with pytest.raises(MemoryError, match="device='cpu' has too little memory for data; use smaller matrices$"):
        train(data=[problem().Y], rank=RANK, layers=2, steps=2)
