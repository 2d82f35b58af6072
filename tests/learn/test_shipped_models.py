"""The models that come with the library do what they are for."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

import lrpca
from lrpca import Schedule
from lrpca.schedule import shipped
from lrpca.testing import planted

ALPHAS = (0.1, 0.2, 0.3)


@pytest.fixture(scope="module")
def problems() -> dict[float, lrpca.testing.Problem]:
    """Problems of the size that the absolute models are for."""
    return {alpha: planted((1000, 1000), rank=5, outlier_fraction=alpha, random_state=6) for alpha in ALPHAS}


def errors_of(problem: lrpca.testing.Problem, schedule: Schedule, iterations: int) -> list[float]:
    errors: list[float] = []
    with warnings.catch_warnings():
        # Thresholds far below rounding reject whole rows, and that is said.
        warnings.simplefilter("ignore", lrpca.DiagnosisWarning)
        lrpca.decompose(
            problem.Y,
            problem.rank,
            schedule=schedule,
            tol=0,
            max_iter=iterations,
            callback=lambda state: errors.append(problem.error(state.L @ state.R.T)),
        )
    return errors


def test_every_model_says_where_it_comes_from() -> None:
    published = {f"{name}-{alpha}" for name in ("fnn", "frmnn") for alpha in ALPHAS}
    assert {"default", "fast", "video", *published} == set(shipped())
    for name in set(shipped()) - {"default"}:
        meta = Schedule.load(name).meta
        assert meta["command"].startswith("lrpca train ") and meta["command"].endswith(f"-o {name}.json")
        assert {"seed", "versions", "data", "training", "scores"} <= set(meta) and "torch" in meta["versions"]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_feed_forward(problems: dict[float, lrpca.testing.Problem], alpha: float) -> None:
    errors = errors_of(problems[alpha], Schedule.load(f"fnn-{alpha}"), 16)
    assert len(errors) == 16 and errors[4] < 1e-4 and errors[-1] < 1e-8


@pytest.mark.parametrize(("alpha", "floor"), [*((alpha, None) for alpha in ALPHAS), (ALPHAS[-1], 2.0)])
def test_mixed_runs_on_to_the_precision_of_the_type(
    problems: dict[float, lrpca.testing.Problem], alpha: float, floor: float | None
) -> None:
    schedule = replace(Schedule.load(f"frmnn-{alpha}"), floor=floor)
    errors = errors_of(problems[alpha], schedule, 100)
    # Without a floor a row that is hard to catch may stay a little behind for ever.
    assert schedule.layers == 10 and errors[9] < 1e-6 and errors[-1] < (5e-11 if floor is None else 1e-12)
    single = replace(problems[alpha], Y=problems[alpha].Y.astype(np.float32))
    assert errors_of(single, schedule, 60)[-1] < 2e-7


def test_fast_needs_fewer_passes_than_the_default(problems: dict[float, lrpca.testing.Problem]) -> None:
    passes = {"fast": 0, "default": 0}
    for problem in problems.values():
        for name in passes:
            d = lrpca.decompose(problem.Y, 5, schedule=name)
            assert d.converged and problem.error(d.low_rank) < 1e-7
            passes[name] += d.n_iter
    assert passes["fast"] < passes["default"]
