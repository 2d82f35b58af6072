"""The influence functions: what a residual may pull."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrpca.core.influence import KINDS, Levels, apply, everything, levels

D = np.array([0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.0, -2.0, 2.5, -2.5, 1e9, np.nan])
EXPECTED = {
    "soft": [0, 0.5, -0.5, 1, -1, 1, -1, 1, -1, 1, -1, 1, 0],
    "hard": [0, 0.5, -0.5, 1, -1, 0, 0, 0, 0, 0, 0, 0, 0],
    "redescending": [0, 0.5, -0.5, 1, -1, 1, -1, 1, -1, 0, 0, 0, 0],
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_at_threshold_one(kind: str) -> None:
    np.testing.assert_array_equal(apply(D, levels(kind, 1.0)), EXPECTED[kind])


def test_cutoff_moves_where_it_falls_to_zero() -> None:
    np.testing.assert_array_equal(apply(np.array([2.9, 3.0, 3.1]), levels("redescending", 1.0, cutoff=3.0)), [1, 1, 0])
    assert levels("redescending", 0.5, cutoff=4.0) == Levels(clip=0.5, cutoff=2.0, keep=2.0)
    # Only a redescending function has one.
    assert levels("soft", 0.5, cutoff=4.0) == Levels(0.5, math.inf, 0.5)
    assert levels("hard", 0.5, cutoff=4.0) == Levels(0.5, 0.5, 0.5)


def test_hard_is_the_limit_of_redescending() -> None:
    assert levels("redescending", 0.3, cutoff=1.0) == levels("hard", 0.3)


def test_everything_counts_all_and_drops_nothing() -> None:
    assert everything(2.0) == Levels(2.0, math.inf, math.inf)
    np.testing.assert_array_equal(apply(D[:-1], everything()), D[:-1])
    np.testing.assert_array_equal(apply(np.array([3.0, np.nan]), everything(2.0)), [2.0, 0.0])


def test_unknown_kind_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"influence='huber' is unknown; use one of soft, hard, redescending"):
        levels("huber", 1.0)


@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.complex64, np.complex128))
def test_dtype_is_kept(dtype: type) -> None:
    assert apply(np.ones((2, 2), dtype), levels("soft", 0.5)).dtype == dtype


sizes = st.floats(1e-9, 1e6)
real = st.one_of(st.just(0.0), sizes, sizes.map(lambda size: -size))
positive = st.floats(1e-6, 1e6)


@given(d=real, threshold=positive, factor=st.sampled_from((0.25, 4.0, 1024.0)), kind=st.sampled_from(KINDS))
def test_odd_bounded_and_scale_free(d: float, threshold: float, factor: float, kind: str) -> None:
    value = apply(np.array([d]), levels(kind, threshold))[0]
    assert apply(np.array([-d]), levels(kind, threshold))[0] == -value
    assert abs(value) <= min(abs(d), threshold) * (1 + 1e-15)
    assert apply(np.array([factor * d]), levels(kind, factor * threshold))[0] == factor * value


@given(x=real, y=real, threshold=positive, kind=st.sampled_from(KINDS))
def test_complex_acts_on_the_modulus_and_keeps_the_phase(x: float, y: float, threshold: float, kind: str) -> None:
    d = complex(x, y)
    value = apply(np.array([d]), levels(kind, threshold))[0]
    size = apply(np.array([abs(d)]), levels(kind, threshold))[0]
    assert abs(value - (d / abs(d) * size if d else 0)) <= 1e-14 * abs(d)


def test_soft_threshold_identity() -> None:
    """D - soft(D, ζ) = clip(D, -ζ, ζ): the reason S is never needed during the iteration."""
    residual = np.random.default_rng(0).standard_normal((20, 30))
    soft = np.sign(residual) * np.maximum(np.abs(residual) - 0.4, 0)
    np.testing.assert_allclose(apply(residual, levels("soft", 0.4)), residual - soft, rtol=0, atol=1e-15)
