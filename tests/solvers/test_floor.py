"""The floor of a recurrent tail: thresholds that do not outrun the error."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

import lrpca
from lrpca import Schedule

PROBLEM = lrpca.testing.planted((400, 300), rank=3, outlier_fraction=0.1, random_state=4)
TYPICAL = float(np.abs(PROBLEM.X).mean())
# φ well below what the error can follow.
TOO_FAST = Schedule(
    [6 * TYPICAL, 0.3 * TYPICAL, 0.1 * TYPICAL], [0.0, 1.0, 0.8], shape=(400, 300), rank=3, tail=(1.0, 0.4)
)


def run(schedule: Schedule, max_iter: int = 80) -> lrpca.Decomposition:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lrpca.DiagnosisWarning)
        return lrpca.decompose(PROBLEM.Y, 3, schedule=schedule, tol=0, max_iter=max_iter)


def test_stops_the_drift_of_a_tail_that_is_too_fast() -> None:
    assert PROBLEM.error(run(TOO_FAST).low_rank) > 1e-5
    assert PROBLEM.error(run(replace(TOO_FAST, floor=2.0)).low_rank) < 1e-11


def test_without_it_the_recurrence_is_the_papers() -> None:
    d = run(TOO_FAST, 12)
    for k, record in enumerate(d.history, start=1):
        assert (record.threshold, record.step) == TOO_FAST.at(k)


def test_learned_layers_are_left_alone() -> None:
    d = run(replace(TOO_FAST, floor=1e6), 5)
    assert [record.threshold for record in d.history[:2]] == list(TOO_FAST.thresholds[1:])
    assert all((record.threshold or 0) > 1e3 * TYPICAL for record in d.history[2:])


def test_steps_that_were_learned_for_clipped_residuals_are_shortened() -> None:
    """Held back, thresholds clip little, and a step of 1.9 would overshoot for ever."""
    long_steps = replace(TOO_FAST, steps=[0.0, 1.0, 1.9], floor=2.0)
    d = run(long_steps)
    assert PROBLEM.error(d.low_rank) < 1e-9
    held = [record.step for k, record in enumerate(d.history, start=1) if record.threshold > long_steps.at(k)[0]]
    assert held and max(held) <= 0.8


@pytest.mark.parametrize("floor", [0.0, -1.0, float("nan"), "high"])
def test_bad_values(floor: object) -> None:
    with pytest.raises(ValueError, match=r"floor="):
        replace(TOO_FAST, floor=floor)


def test_needs_an_absolute_schedule_with_a_tail() -> None:
    with pytest.raises(ValueError, match="floor=2.0 does not fit"):
        Schedule([1.0, 0.1], [0.0, 1.0], floor=2.0)
    with pytest.raises(ValueError, match="floor=2.0 does not fit"):
        replace(Schedule.load("default"), floor=2.0)


def test_is_saved_and_loaded(tmp_path: object) -> None:
    path = f"{tmp_path}/s.json"
    replace(TOO_FAST, floor=2.5).save(path)
    assert Schedule.load(path).floor == 2.5
