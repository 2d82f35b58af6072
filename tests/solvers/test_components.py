"""The noise edge: the leading singular value of noise, which components have to exceed."""

from __future__ import annotations

import numpy as np
import pytest

import lrpca
from lrpca.solvers.components import noise_edge


@pytest.mark.parametrize("shape", [(400, 400), (1500, 60), (60, 1500), (300, 120)])
def test_edge_is_the_leading_singular_value_of_noise(shape: tuple[int, int]) -> None:
    noise = np.random.default_rng(1).standard_normal(shape)
    edge = noise_edge(float(np.linalg.norm(noise)), shape, 1.0)
    assert edge == pytest.approx(np.linalg.norm(noise, 2), rel=0.05)


@pytest.mark.parametrize("share", (0.2, 0.6))
def test_edge_of_a_part_of_the_entries(share: float) -> None:
    """A step is C / kp. The noise of what is kept is that much rarer, its singular values √kp / kp times the full."""
    rng = np.random.default_rng(2)
    noise = np.where(rng.random((400, 400)) < share, rng.standard_normal((400, 400)), 0.0)
    edge = noise_edge(float(np.linalg.norm(noise)), noise.shape, share)
    assert edge == pytest.approx(np.linalg.norm(noise, 2) / share, rel=0.05)


def test_edge_of_nothing() -> None:
    assert noise_edge(0.0, (10, 20), 0.5) == 0
    assert np.isfinite(noise_edge(1.0, (10, 20), 0.0))


def test_zero_does_not_stand_out_of_no_noise() -> None:
    # Without any noise its edge is zero, and so are the values of components that are not there.
    Y = np.zeros((300, 200))
    Y[:, 0] = 1
    with pytest.warns(lrpca.DiagnosisWarning):
        d = lrpca.decompose(Y, 6)
    assert d.converged and d.diagnosis.components == 1
    np.testing.assert_allclose(d.low_rank, Y, atol=1e-12)
