"""The peak of clean residuals, and the outlier threshold."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import lrpca
from lrpca.kernels.scale import outlier_threshold, quantisation_step, residual_core, rounding_level
from lrpca.testing import planted

F8, F4, U1, I8, C16 = (np.dtype(name) for name in ("f8", "f4", "u1", "i8", "c16"))


def residuals(sigma: float, outlier_fraction: float, size: float, *, seed: int = 0, m: int = 20_000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    values = sigma * rng.standard_normal(m)
    hit = rng.random(m) < outlier_fraction
    return np.abs(np.where(hit, values + size * rng.uniform(-1, 1, m), values))


@pytest.mark.parametrize("sigma", (1e-6, 1.0, 300.0))
@pytest.mark.parametrize("seed", range(3))
def test_gaussian_noise_is_measured(sigma: float, seed: int) -> None:
    # The standard error of a standard deviation from 20000 numbers is half a per cent, and some of the tail passes for
    # background.
    core = residual_core(residuals(sigma, 0.0, 0.0, seed=seed))
    assert core.sigma == pytest.approx(sigma, rel=0.03)
    assert 0.98 < core.share <= 1


@pytest.mark.parametrize(
    ("fraction", "size"),
    [
        *((fraction, size) for fraction in (0.1, 0.3, 0.5, 0.7) for size in (10.0, 20.0)),
        *((fraction, size) for fraction in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9) for size in (100.0, 1e4, 1e12)),
    ],
)
@pytest.mark.parametrize("seed", range(2))
def test_background_does_not_move_it(fraction: float, size: float, seed: int) -> None:
    """Neither gross outliers nor many, nor hardly larger ones: a tenth of clean entries is enough of a peak."""
    core = residual_core(residuals(1.0, fraction, size, seed=seed))
    assert core.sigma == pytest.approx(1.0, rel=0.05)
    assert core.share == pytest.approx(1 - fraction, abs=0.02 if size >= 100 else 0.03)


@pytest.mark.parametrize(("fraction", "within"), [(0.0, 0.03), (0.3, 0.03), (0.6, 0.03), (0.9, 0.05)])
def test_complex_noise(fraction: float, within: float) -> None:
    """σ² is then E|D|²: moduli follow Rayleigh's law."""
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(20_000) + 1j * rng.standard_normal(20_000)) / np.sqrt(2)
    phase = np.exp(2j * np.pi * rng.random(20_000))
    outliers = np.where(rng.random(20_000) < fraction, 1e3 * rng.random(20_000) * phase, 0)
    core = residual_core(np.abs(values + outliers), is_complex=True)
    assert core.sigma == pytest.approx(1.0, rel=within)
    assert core.share == pytest.approx(1 - fraction, abs=0.02)


@pytest.mark.parametrize("fraction", (0.5, 0.8))
def test_complex_background_is_flat_in_the_plane(fraction: float) -> None:
    """Its moduli are not flat: few are small. Taken for real ones, outliers nearby would count as noise."""
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(20_000) + 1j * rng.standard_normal(20_000)) / np.sqrt(2)
    disc = 8.0 * np.sqrt(rng.random(20_000)) * np.exp(2j * np.pi * rng.random(20_000))
    sizes = np.abs(np.where(rng.random(20_000) < fraction, disc, values))
    core = residual_core(sizes, is_complex=True)
    assert core.sigma == pytest.approx(1.0, rel=0.05)
    assert core.share == pytest.approx(1 - fraction, abs=0.02)
    assert residual_core(sizes).share != pytest.approx(1 - fraction, abs=0.02)


@pytest.mark.parametrize("scale", (2.0**-333, 4.0**-40, 2.0**7, 4.0**40))
@pytest.mark.parametrize("fraction", (0.0, 0.2, 0.9))
def test_scales_with_the_data_to_the_last_bit(scale: float, fraction: float) -> None:
    sizes = residuals(1.0, fraction, 50.0)
    core = residual_core(sizes)
    assert residual_core(scale * sizes) == (scale * core.sigma, core.share)
    assert residual_core(scale * sizes, scale * 1e-9) == residual_core(sizes, 1e-9)._replace(sigma=scale * core.sigma)


@pytest.mark.parametrize("fraction, size", [(0.0, 0.0), (0.1, 1.0), (0.3, 50.0), (0.5, 1e4), (0.9, 50.0)])
def test_rounding_of_residuals_moves_it_by_rounding(fraction: float, size: float) -> None:
    """Else two chunkings of the same data would differ by more than rounding."""
    sizes = residuals(1.0, fraction, size)
    shaken = sizes * (1 + 1e-12 * np.random.default_rng(1).standard_normal(len(sizes)))
    core, other = residual_core(sizes), residual_core(shaken)
    assert other.sigma == pytest.approx(core.sigma, rel=1e-9)
    assert other.share == pytest.approx(core.share, rel=1e-9)
    assert other.sigma != core.sigma  # it did look


def test_residuals_of_few_values_move_it_by_rounding_too() -> None:
    """All of them stand on the edge between two bins."""
    values = np.exp(np.linspace(np.log(1e-3), 0.0, 513))
    counts = np.round(400 * np.exp(-0.5 * (values / 0.1) ** 2) + 1).astype(int)
    sizes = np.repeat(values, counts)
    shaken = sizes * (1 + 1e-9 * np.random.default_rng(1).standard_normal(len(sizes)))
    shaken[sizes == sizes.max()], shaken[sizes == sizes.min()] = sizes.max(), sizes.min()
    assert residual_core(shaken).sigma == pytest.approx(residual_core(sizes).sigma, rel=1e-6)


@pytest.mark.parametrize("rounding", (0.0, 1e-15))
@pytest.mark.parametrize("fill", (9.96921e36, 1e150, 1e300))
def test_fill_values_of_any_size_move_it_by_little(fill: float, rounding: float) -> None:
    sizes = residuals(1.0, 0.1, 50.0)
    want = residual_core(np.where(np.arange(len(sizes)) % 100, sizes, 1e12), rounding)
    got = residual_core(np.where(np.arange(len(sizes)) % 100, sizes, fill), rounding)
    assert got == pytest.approx(want, rel=5e-3)


def test_nothing_and_nothing_but_zeros() -> None:
    for sizes in (np.zeros(0), np.zeros(1), np.zeros(100)):
        assert residual_core(sizes) == (0, 1)
        assert residual_core(sizes, 1e-12) == (1e-12, 1)


@pytest.mark.parametrize("count", (1, 9, 11, 1000))
@pytest.mark.parametrize("is_complex", (False, True))
def test_equal_residuals_are_all_core(count: int, is_complex: bool) -> None:
    core = residual_core(np.full(count, 0.7), is_complex=is_complex)
    assert core == (pytest.approx(0.7, rel=1e-12), 1)


def test_no_peak_no_core() -> None:
    """A background alone has no clean entries to be found: everything counts."""
    sizes = np.random.default_rng(0).uniform(0.5, 1.0, 20_000)
    core = residual_core(sizes)
    assert core.sigma > 0.5


@pytest.mark.parametrize("rounding", (1e-15, 1e-6))
def test_residuals_below_rounding_count_as_rounding(rounding: float) -> None:
    sizes = np.full(100, 1e-3 * rounding)
    assert residual_core(sizes, rounding) == (rounding, 1)
    mixed = np.concatenate([np.zeros(10_000), residuals(1.0, 1.0, 100.0, m=2_000)])
    assert residual_core(mixed, rounding).sigma == pytest.approx(rounding, rel=1e-3)


def test_narrow_peak_of_well_fitted_entries_is_not_the_noise() -> None:
    """A few entries that happen to be fitted exactly must not hide the others' noise."""
    sizes = np.concatenate([np.full(400, 1e-15), residuals(1.0, 0.1, 100.0)])
    assert residual_core(sizes, 1e-12).sigma == pytest.approx(1.0, rel=0.05)


def test_broad_peak_is_preferred_to_a_narrow_one_within() -> None:
    rng = np.random.default_rng(3)
    sizes = np.abs(np.concatenate([rng.standard_normal(20_000), 0.01 * rng.standard_normal(2_000)]))
    assert residual_core(sizes).sigma == pytest.approx(np.sqrt(20 / 22), rel=0.05)


def test_black_border_does_not_hide_the_noise() -> None:
    """More than half of Y is exactly zero and fitted exactly; the rest has noise and a tenth of outliers."""
    problem = planted((200, 200), rank=3, noise=0.05, outlier_fraction=0.1, outlier_size=10, random_state=0)
    Y = problem.Y.copy()
    Y[:, :120] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # many zeros are worth a word
        d = lrpca.decompose(Y, 3)
    assert d.noise_level == pytest.approx(0.05 * np.abs(problem.X).mean(), rel=0.1)
    assert d.outlier_fraction == pytest.approx(0.04, abs=0.01)


def test_threshold_is_five_sigma() -> None:
    assert outlier_threshold(0.2, F8, 1e-15) == pytest.approx(1.0)
    # Of ten million clean entries about six exceed it.
    sizes = residuals(1.0, 0.0, 0.0)
    assert np.mean(sizes > outlier_threshold(residual_core(sizes).sigma, F8, 1e-15)) == 0


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
