"""The robust noise level and the outlier threshold."""

from __future__ import annotations

import numpy as np
import pytest

from lrpca.noise import noise_level, outlier_threshold, quantisation_step, rounding_level

F8, F4, U1, I8, C16 = (np.dtype(name) for name in ("f8", "f4", "u1", "i8", "c16"))


def residuals(sigma: float, outlier_fraction: float, size: float, *, seed: int = 0, m: int = 20_000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = sigma * rng.standard_normal(m)
    hit = rng.random(m) < outlier_fraction
    return np.abs(np.where(hit, values + size * rng.uniform(-1, 1, m), values))


@pytest.mark.parametrize("sigma", (1e-6, 1.0, 300.0))
def test_gaussian_noise_is_measured(sigma: float) -> None:
    # The standard error of a standard deviation from 20000 numbers is half a per cent.
    assert noise_level(residuals(sigma, 0.0, 0.0)) == pytest.approx(sigma, rel=0.02)


@pytest.mark.parametrize(("fraction", "within"), [(0.1, 0.05), (0.3, 0.15), (0.5, 0.35)])
def test_gross_outliers_hardly_move_it(fraction: float, within: float) -> None:
    assert noise_level(residuals(1.0, fraction, 100.0)) == pytest.approx(1.0, rel=within)
    # The plain standard deviation is off by a factor of 18 and more.
    assert np.sqrt(np.mean(residuals(1.0, fraction, 100.0) ** 2)) > 15


def test_complex_noise() -> None:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(20_000) + 1j * rng.standard_normal(20_000)) / np.sqrt(2)
    assert noise_level(np.abs(values)) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("scale", (4.0**-40, 4.0**40))
def test_scales_with_the_data(scale: float) -> None:
    sizes = residuals(1.0, 0.2, 50.0)
    assert noise_level(scale * sizes) == scale * noise_level(sizes)


def test_nothing_and_nothing_but_zeros() -> None:
    assert noise_level(np.zeros(0)) == 0
    assert noise_level(np.zeros(100)) == 0
    assert noise_level(np.array([0.7])) > 0


def test_entries_fitted_to_rounding_do_not_hide_the_noise() -> None:
    """Half of the residuals are those of a black border: exactly fitted, whatever the noise elsewhere."""
    sizes = np.concatenate([np.full(20_000, 1e-15), residuals(1.0, 0.1, 100.0)])
    assert noise_level(sizes, rounding=1e-12) == pytest.approx(1.0, rel=0.05)
    assert noise_level(sizes) < 1e-12
    assert noise_level(np.full(100, 1e-15), rounding=1e-12) < 1e-12


def test_rejected_entries_do_not_inflate_the_noise() -> None:
    sizes = residuals(1.0, 0.5, 10.0)
    assert noise_level(sizes, limit=4.0) < noise_level(sizes)
    assert noise_level(sizes, limit=4.0) == pytest.approx(1.0, rel=0.6)


def test_threshold_is_five_sigma() -> None:
    assert outlier_threshold(0.2, F8, 1e-15) == pytest.approx(1.0)
    # Of ten million clean entries about six exceed it.
    sizes = residuals(1.0, 0.0, 0.0)
    assert np.mean(sizes > outlier_threshold(noise_level(sizes), F8, 1e-15)) == 0


@pytest.mark.parametrize(("arithmetic", "eps"), [(F8, 2.2e-16), (F4, 1.2e-7), (C16, 2.2e-16)])
def test_threshold_is_never_below_rounding(arithmetic: np.dtype, eps: float) -> None:
    floor = outlier_threshold(0.0, arithmetic, rounding_level(arithmetic, 50.0))
    assert 2 * eps * 50 < floor < 100 * eps * 50


@pytest.mark.parametrize(("stored", "arithmetic"), [(U1, F4), (I8, F8)])
def test_threshold_is_never_below_the_quantisation_step(stored: np.dtype, arithmetic: np.dtype) -> None:
    assert outlier_threshold(0.05, stored, rounding_level(arithmetic, 100.0)) == 1.0
    assert outlier_threshold(3.0, stored, rounding_level(arithmetic, 100.0)) == 15.0
    assert quantisation_step(stored) == 1
    assert quantisation_step(F8) == quantisation_step(C16) == 0


def test_threshold_waits_for_the_fit_to_settle() -> None:
    still, moving = (outlier_threshold(0.0, F8, 1e-15, moving) for moving in (0.0, 1e-3))
    assert still < 1e-10
    assert 1e-3 < moving < 0.1
