"""Training on a real CUDA device: the same problems and numbers as on the processor, few waits, little memory."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrpca import Schedule
from lrpca.testing import planted

torch = pytest.importorskip("torch", reason="lrpca.learn needs PyTorch")

from lrpca.learn import train  # noqa: E402
from lrpca.learn.network import UnrolledNetwork  # noqa: E402
from lrpca.learn.problems import of_problem  # noqa: E402
from lrpca.learn.tensors import prepare  # noqa: E402
from tests.helpers.killed import KilledError, killed_after  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    # Of torch itself, once in a process: the thread of gradients has not used the device before.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

SMALL: dict[str, Any] = {"rank": 3, "shape": (120, 100), "steps": 6}
TRAININGS: dict[str, dict[str, Any]] = {
    "adaptive fnn": {**SMALL, "model": "fnn", "layers": 3},
    "adaptive rnn": {**SMALL, "model": "rnn", "depth": 4},
    "adaptive frmnn": {**SMALL, "layers": 3, "depth": 4},
    "paper's form, fnn": {**SMALL, "form": "paper", "model": "fnn", "layers": 3},
    "paper's form, frmnn": {**SMALL, "form": "paper", "layers": 2, "depth": 4},
    "paper's way": {**SMALL, "form": "paper", "way": "paper", "steps": 30, "layers": 2, "depth": 4},
    "paper's way, rnn": {**SMALL, "form": "paper", "way": "paper", "steps": 20, "model": "rnn", "depth": 4},
    "row equations": {
        **SMALL,
        "form": Schedule(
            [20.0, 2.5, 2.5], [0, 1, 1], kind="adaptive", influence="redescending", update="own_gram", tail=(1.0, 1.0)
        ),
    },
}


NUMBERS = [20.0, 3.0, 2.5, 2.0], [0, 1, 1, 1]
ADAPTIVE: dict[str, Any] = {"kind": "adaptive", "influence": "redescending", "decay": 0.1}
FORMS = {
    "soft, scaled": Schedule([0.04, 4e-3, 2e-3, 1e-3], [0, 0.9, 0.9, 0.9]),
    "redescending, tangent": Schedule(*NUMBERS, update="tangent", **ADAPTIVE),
    "redescending, row equations": Schedule(*NUMBERS, update="own_gram", **ADAPTIVE),
}


def tolerance(name: str) -> float:
    """Return how far numbers may be apart.

    The width of a peak goes by the smallest residual of a sample, which rounding changes at random; adaptive thresholds
    have been seen to part by 3e-3 in a hundred steps. The paper's way computes in single precision.
    """
    return {"paper's form": 1e-6, "paper's way": 1e-4}.get(name.partition(",")[0], 1e-3)


def numbers(schedule: Schedule) -> Any:
    return np.array([*schedule.thresholds, *schedule.steps[1:], *(schedule.tail or ())])


@pytest.mark.parametrize("missing", (0.0, 0.2))
@pytest.mark.parametrize("name", FORMS)
def test_loss_and_gradient_are_those_of_the_processor(name: str, missing: float) -> None:
    case = of_problem(planted((300, 250), rank=3, outlier_fraction=0.1, missing=missing, random_state=0))
    found = []
    for device in ("cpu", "cuda"):
        network = UnrolledNetwork(FORMS[name], "fnn")
        data = prepare(case, device=device)
        losses = torch.stack([data.log_loss(layer.L, layer.R) for layer in network.layers(data, 3)])
        losses.sum().backward()
        found.append((losses.detach().numpy(), network.thresholds.grad.numpy(), network.steps.grad.numpy()))
    for here, there in zip(*found, strict=True):
        assert np.abs(here).max() > 1e-3
        np.testing.assert_allclose(there, here, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", TRAININGS)
def test_training_gives_the_numbers_of_the_processor(name: str) -> None:
    here, there = (train(device=device, **TRAININGS[name]) for device in (None, "cuda"))
    np.testing.assert_allclose(numbers(there), numbers(here), rtol=tolerance(name))
    assert there.meta["training"]["device"] == "cuda" and "device='cuda'" in there.meta["command"]


@pytest.mark.parametrize("name", ("adaptive frmnn", "paper's way"))
def test_the_same_bits_every_time(name: str) -> None:
    assert train(device="cuda", **TRAININGS[name]) == train(device="cuda", **TRAININGS[name])


@pytest.mark.parametrize("kind", ("pairs", "data alone", "labelled"))
def test_data_may_be_on_the_device(kind: str) -> None:
    case = planted((150, 120), rank=3, outlier_fraction=0.05, noise=0.02, missing=0.1, random_state=3)
    asked: dict[str, Any] = {"rank": 3, "layers": 2, "steps": 5}
    if kind == "labelled":
        asked["labels"] = "scaledgd"

    def given(move: Any) -> Any:
        return [(move(case.Y), move(case.X))] if kind == "pairs" else [move(case.Y)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels may not have converged
        here = train(data=given(np.asarray), **asked)
        there = train(data=given(lambda array: torch.tensor(array, device="cuda")), device="cuda", **asked)
    np.testing.assert_allclose(numbers(there), numbers(here), rtol=1e-3)


@pytest.mark.parametrize("devices", (("cuda", "cpu"), ("cpu", "cuda")))
@pytest.mark.parametrize("name", ("adaptive frmnn", "paper's way"))
def test_the_other_device_goes_on(tmp_path: Path, devices: tuple[str, str], name: str) -> None:
    file, asked = tmp_path / "state.json", TRAININGS[name]
    with pytest.raises(KilledError):
        train(device=devices[0], checkpoint=file, progress=killed_after(4), **asked)
    resumed = train(device=devices[1], checkpoint=file, resume=True, **asked)
    np.testing.assert_allclose(numbers(resumed), numbers(train(**asked)), rtol=tolerance(name))


@pytest.mark.parametrize("way", ("soft", "adaptive"))
def test_the_processor_waits_a_few_times_for_each_layer(way: str) -> None:
    depth = 5
    thresholds, steps = [20.0, *depth * [2.5]], [0.0, *depth * [1.0]]
    # Clipped residuals: no row is solved by its own normal equations, which would be two products more.
    form = Schedule(thresholds, steps, kind="adaptive", influence="soft", update="tangent", decay=0.1)
    if way == "soft":
        form = Schedule([0.05, *(0.01 * 0.5**k for k in range(depth))], steps)
    network = UnrolledNetwork(form, "fnn")
    data = prepare(of_problem(planted((300, 300), rank=5, outlier_fraction=0.1, random_state=0)), device="cuda")
    waits = []
    for last in (0, depth):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                *_, layer = network.layers(data, last)
                data.log_loss(layer.L, layer.R).backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("called a synchronizing" in str(warning.message) for warning in seen))
    # Pass and width, forward and back.
    assert 0 < waits[1] - waits[0] <= depth * (2 if way == "soft" else 4)


def test_memory_does_not_grow_with_depth() -> None:
    """Blocks of a pass need a few times Y; nothing of that size is kept for the way back."""
    n, depth = 3000, 8
    data = prepare(of_problem(planted((n, n), rank=5, outlier_fraction=0.1, random_state=0)), device="cuda")
    unit = float(data.Y.abs().median())
    thresholds = [6 * unit, *(unit * 0.7**k for k in range(depth))]
    network = UnrolledNetwork(Schedule(thresholds, [0.0, *depth * [0.9]]), "fnn")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    *_, layer = network.layers(data, depth)
    data.log_loss(layer.L, layer.R).backward()
    assert torch.cuda.max_memory_allocated() - before < 8 * data.Y.nbytes
