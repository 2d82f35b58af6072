"""What happens between two passes on a device: steps and bases from Grams, and what comes along with a pass."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lrpca.core.influence import levels
from lrpca.solvers import step
from lrpca.testing import planted

torch = pytest.importorskip("torch")

from lrpca.kernels.step_core import tangent_step  # noqa: E402
from lrpca.matrices.dense import DenseMatrix  # noqa: E402
from lrpca.matrices.device import step as device_step  # noqa: E402
from lrpca.matrices.device.array import DeviceArray  # noqa: E402
from lrpca.matrices.sample import Sample, draw_sample  # noqa: E402
from lrpca.matrices.tensor import TensorMatrix  # noqa: E402

SHAPE, RANK = (300, 200), 4


def on_device(array: Any) -> DeviceArray:
    return DeviceArray(torch.from_numpy(np.array(array)))


def fit(off: float, seed: int = 0) -> tuple[Any, Any, Any, float]:
    """Return Y, factors in normal form that are off by so much, and a threshold."""
    problem, rng = planted(SHAPE, rank=RANK, outlier_fraction=0.1, random_state=seed), np.random.default_rng(seed)
    typical = np.abs(problem.X).mean()
    U, values, Vt = np.linalg.svd(problem.X + off * typical * rng.standard_normal(SHAPE), full_matrices=False)
    root = np.sqrt(values[:RANK])
    return problem.Y, U[:, :RANK] * root, Vt[:RANK].T * root, 3 * off * typical


@pytest.mark.parametrize("off", (1e-1, 1e-4, 1e-8))
def test_a_compiled_step_is_that_of_numpy(off: float) -> None:
    Y, L, R, threshold = fit(off)
    level, length = levels("redescending", threshold), 1.1
    want = step.stepped(L, R, step.take_pass(DenseMatrix(Y), L, R, level, None), "tangent", None, RANK, length)
    matrix = TensorMatrix(torch.from_numpy(Y))
    on = on_device(L), on_device(R)
    result = step.take_pass(matrix, *on, level, None)
    usual = device_step.stepped(*on, result, "tangent", None, RANK, length)
    general = device_step.stepped(*on, replace(result, report=None), "tangent", None, RANK, length)
    assert want is not None and usual is not None and general is not None
    nothing = np.zeros(RANK, bool)
    X = np.asarray(want.factors()[0]) @ np.asarray(want.factors()[1]).T
    for got in (usual, general):
        left, right = (np.asarray(factor) for factor in got.factors())
        np.testing.assert_allclose(left @ right.T, X, rtol=0, atol=1e-15)
        np.testing.assert_allclose(got.values, want.values, rtol=1e-12)
        assert got.moved(nothing) == pytest.approx(want.moved(nothing), rel=1e-6)
        assert got.next_value == pytest.approx(want.next_value, rel=1e-4)
        np.testing.assert_allclose(left.T @ left, np.diag(got.values), rtol=0, atol=1e-12)


def grams_of(*columns: Any) -> Any:
    return np.stack([both.T @ both for both in columns])


def test_steps_that_grams_do_not_show_are_left_to_the_general_way() -> None:
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((50, 8)))[0]
    plain = np.hstack([2 * Q[:, :2], rng.standard_normal((50, 2))])
    assert tangent_step(grams_of(plain, plain), 1.0) is not None
    slanted = plain.copy()
    slanted[:, 1] += 1e-9 * slanted[:, 0]
    within = plain.copy()
    # Nearly all of it lies in the columns of L.
    within[:, 2:] = plain[:, :2] + 1e-5 * plain[:, 2:]
    absent = plain.copy()
    absent[:, 0] = 0
    unknown = plain.copy()
    unknown[3, 2] = np.nan
    for odd in (slanted, within, absent, unknown):
        assert tangent_step(grams_of(odd, plain), 1.0) is None
        assert tangent_step(grams_of(plain, odd), 1.0) is None


def test_samples_are_freed_at_once() -> None:
    rng = np.random.default_rng(0)
    places = np.arange(1000)
    for values in (rng.standard_normal(1000), np.where(rng.random(1000) < 0.5, 0.0, rng.standard_normal(1000))):
        sample = Sample(places, places, values)
        telling = sample.telling
        assert telling is sample.telling and (telling is sample) == (values != 0).all()
        sample.residuals(on_device(np.ones((1000, 1))), on_device(np.ones((1000, 1))))
        gone = weakref.ref(sample)
        gc.disable()
        try:
            del sample, telling
            assert gone() is None
        finally:
            gc.enable()


# ------------------------------------------------------------------------------------------ factors


@pytest.mark.parametrize(
    ("made", "changed"), ((False, False), (False, True), (True, True)), ids=("usual", "changed inside", "made inside")
)
def test_what_is_known_of_factors_ends_when_they_change(made: bool, changed: bool) -> None:
    """Also where they are made or changed inside of `torch.inference_mode`, which does not count changes."""
    Y, L, R, _ = fit(1e-2)
    sample, rows = draw_sample(DenseMatrix(Y), np.random.default_rng(0)), np.arange(100)
    with torch.inference_mode(made):
        on = on_device(L), on_device(R)
    assert on[0].tensor.is_inference() == made
    for factor, ours in zip((L, R), on, strict=True):
        with torch.inference_mode(changed):
            before, core = sample.residuals(*on), sample.core(*on, 1e-15)
            ours[rows] = factor[rows] + 1
            after, changed_core = sample.residuals(*on), sample.core(*on, 1e-15)
        assert np.abs(after - before).max() > 0.01 and abs(core.share - changed_core.share) > 0.1
        assert core == pytest.approx(sample.core(L, R, 1e-15), rel=1e-6)
        factor[rows] += 1
        np.testing.assert_allclose(after, sample.residuals(L, R), rtol=0, atol=1e-12)
        assert changed_core == pytest.approx(sample.core(L, R, 1e-15), rel=1e-6)
