"""Adam for a few numbers: the bits of torch's own, without the compiler that torch loads for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="lrpca.learn needs PyTorch")

from lrpca.learn.adam import Adam  # noqa: E402

DECAYS = (0.9, 0.95)


def parameters() -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(n, generator=generator, dtype=torch.float64)) for n in (5, 5, 2)]


def slope(numbers: list[Any], step: int) -> None:
    """Set gradients; the last number has none for some steps, as a recurrence that is not run yet."""
    for k, number in enumerate(numbers):
        number.grad = None if k == 2 and step < 4 else (number.detach() - k) ** 3 + 0.1 * step


def test_the_numbers_are_those_of_torch() -> None:
    ours, theirs = parameters(), parameters()
    adam = Adam([ours[:1], ours[1:]], [0.1, 0.05], DECAYS)
    reference = torch.optim.Adam(
        [{"params": theirs[:1], "lr": 0.1}, {"params": theirs[1:], "lr": 0.05}], betas=DECAYS, foreach=False
    )
    for step in range(30):
        adam.rates = [0.1 / (1 + step), 0.05 / (1 + step)]
        for group, rate in zip(reference.param_groups, adam.rates, strict=True):
            group["lr"] = rate
        slope(ours, step)
        slope(theirs, step)
        adam.step()
        reference.step()
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert not torch.equal(ours[2], parameters()[2])
    adam.clear()
    assert all(number.grad is None for number in ours)


def test_a_state_goes_through_json() -> None:
    whole, parted = parameters(), parameters()
    first, second = Adam([whole], [0.1], DECAYS), Adam([parted], [0.1], DECAYS)
    for step in range(8):
        if step == 5:
            state = json.loads(json.dumps(second.state(), allow_nan=False))
            second = Adam([parted], [0.3], DECAYS)
            second.restore(state)
        slope(whole, step)
        slope(parted, step)
        first.step()
        second.step()
    assert all(torch.equal(one, other) for one, other in zip(whole, parted, strict=True))


@pytest.mark.parametrize("damage", ("rates", "moments"))
def test_a_state_of_another_network_is_refused(damage: str) -> None:
    numbers = parameters()
    adam = Adam([numbers], [0.1])
    slope(numbers, 5)
    adam.step()
    state = adam.state()
    if damage == "rates":
        state["rates"].append({"lr": 0.1})
    else:
        state["state"]["0"]["exp_avg"] = [1.0]
    with pytest.raises(ValueError, match="are needed"):
        adam.restore(state)


def test_training_does_not_load_the_compiler_of_torch() -> None:
    code = (
        "import sys; from lrpca.learn import train; train(rank=2, shape=(40, 40), layers=1, steps=2); "
        "print([name for name in sys.modules if name.startswith('torch._dynamo')])"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, timeout=120)
    assert result.stdout.decode().strip() == "[]"
