"""Numbers at the ends of their range: in schedules, in options, and in the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lrpca import ConvergenceWarning, Decomposition, Schedule, decompose
from lrpca.testing import planted

PROBLEM = planted((70, 60), rank=2, outlier_fraction=0.1, outlier_size=5, random_state=0)

# ------------------------------------------------------------------------------------------ schedules and options


def assert_runaway(d: Decomposition) -> None:
    """A run that left the range of numbers ends with the last factors that were numbers, and says so."""
    assert d.reason == "runaway" and not d.converged
    assert np.isfinite(d.low_rank).all() and np.isfinite(d.noise_level)


EXTREME: dict[str, dict[str, Any]] = {
    "a later step": {"thresholds": [5, 1, 1, 1], "steps": [0, 1, 1e308, 1], "tail": (1, 0.9)},
    "the first step": {"thresholds": [5, 1, 1], "steps": [0, 1e308, 1], "tail": (1, 0.9)},
    "the tail": {"thresholds": [5, 1], "steps": [0, 1], "tail": (1e308, 0.5)},
}


@pytest.mark.parametrize("numbers", EXTREME.values(), ids=EXTREME)
@pytest.mark.parametrize("update", ("scaled", "tangent", "own_gram"))
@pytest.mark.parametrize("kind", ("absolute", "adaptive"))
def test_steps_that_leave_the_range(kind: str, update: str, numbers: dict[str, Any]) -> None:
    schedule = Schedule(kind=kind, update=update, influence="hard", **numbers)
    with pytest.warns(ConvergenceWarning, match=r"^not converged: runaway .*steps grew until numbers left their range"):
        d = decompose(PROBLEM.Y, 2, schedule=schedule)
    assert_runaway(d)


@pytest.mark.parametrize("numbers", EXTREME.values(), ids=EXTREME)
def test_steps_of_a_batch_that_leave_the_range(numbers: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from tests.batch_stacks import solve_as_on_a_gpu, stack_of

    schedule = Schedule(kind="adaptive", update="tangent", influence="hard", **numbers)
    batch, complaints = solve_as_on_a_gpu(stack_of(2), 2, schedule=schedule)
    assert list(batch.reason) == ["runaway", "runaway"] and complaints


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("scaledgd", {"step": 1e308}),
        ("gd", {"step": 1e200}),
        ("gd", {"balance": 1e308}),
    ],
)
@pytest.mark.parametrize("dtype", (np.float64, np.float32))
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_options_that_lead_out_of_the_range(method: str, options: dict[str, float], dtype: type) -> None:
    with pytest.warns(ConvergenceWarning, match="^not converged: runaway"):
        d = decompose(PROBLEM.Y.astype(dtype), 2, method=method, options=options)
    assert_runaway(d)


def test_options_that_are_no_floating_point_numbers() -> None:
    with pytest.raises(ValueError, match=r"^options\['step'\]=1000+ is not a number above 0; give one that is$"):
        decompose(PROBLEM.Y, 2, method="gd", options={"step": 10**400})


def test_more_samples_than_rows() -> None:
    assert decompose(PROBLEM.Y, 2, method="ircur", options={"oversampling": 1e308}).converged
