"""Components that stand out of the noise are there; the others wait as probes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.core.factors import Retracted, pseudo_inverse, retract, without_double_counting
from lrpca.solvers.components import (
    Components,
    all_of,
    all_present,
    first_components,
    noise_edge,
    updated,
)

N1, N2 = 60, 50


def bases(rank: int, *, seed: int = 0, is_complex: bool = False) -> tuple[Any, Any]:
    """Return orthonormal U (N1, rank) and V (N2, rank) without large entries."""
    rng = np.random.default_rng(seed)
    drawn = []
    for n in (N1, N2):
        M = rng.standard_normal((n, rank))
        drawn.append(np.linalg.qr(M + 1j * rng.standard_normal((n, rank)) if is_complex else M)[0])
    return drawn[0], drawn[1]


def components(values: Any, present: int, *, seed: int = 0) -> Components:
    U, V = bases(len(values), seed=seed)
    root = np.sqrt(np.asarray(values, float))
    return Components(U * root, V * root, present)


def standing(parts: Components) -> Retracted:
    """Return the same components after a step of zero."""
    return retract(parts.L, parts.R, 0 * parts.L, 0 * parts.R)


# ------------------------------------------------------------------------------------------ the edge


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


# ------------------------------------------------------------------------------------------ factors


def test_values_and_factors() -> None:
    parts = components([5.0, 2.0, 1e-3], present=2)
    np.testing.assert_allclose(parts.values, [5, 2, 1e-3])
    L, R = parts.factors()
    np.testing.assert_allclose(np.linalg.svd(L @ R.T, compute_uv=False)[:3], [5, 2, 0], atol=1e-14)
    assert L.shape == parts.L.shape and not L[:, 2].any() and not R[:, 2].any()
    np.testing.assert_array_equal(L[:, :2], parts.L[:, :2])


def test_copies_are_their_own() -> None:
    parts = components([5.0, 2.0], present=1)
    copy = parts.copy()
    parts.L[:] = parts.R[:] = 0
    np.testing.assert_allclose(copy.values, [5, 2])
    assert copy.present == 1


def test_factors_of_any_form_become_components() -> None:
    U, V = bases(2)
    T = np.array([[1.0, 2.0], [0.5, -1.0]])
    parts = all_present(3 * U @ T, V @ np.linalg.inv(T).T)
    assert parts.present == 2
    np.testing.assert_allclose(parts.L @ parts.R.T, 3 * U @ V.T, atol=1e-13)
    for factor in (parts.L, parts.R):
        gram = factor.T @ factor
        np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-13)


# ------------------------------------------------------------------------------------------ at the start


def test_first_components_are_those_that_stand_out() -> None:
    parts = components([9.0, 1.5, 4.0, 0.5], present=4)
    first = first_components(parts.L, parts.R, edge=1.0)
    assert first.present == 2
    np.testing.assert_allclose(first.values[:2], [9, 4])
    # Those left out keep their direction, and X does not feel them.
    assert (first.values[2:] < 0.01).all() and (first.values[2:] > 0).all()
    cosine = (
        np.abs(np.sum(first.L[:, 2] * parts.L[:, 1])) / np.linalg.norm(first.L[:, 2]) / np.linalg.norm(parts.L[:, 1])
    )
    assert cosine == pytest.approx(1, rel=1e-12)


def test_one_component_is_there_however_weak() -> None:
    parts = components([1e-3, 1e-4], present=2)
    first = first_components(parts.L, parts.R, edge=1.0)
    assert first.present == 1
    np.testing.assert_allclose(first.values[0], 1e-3)


def test_without_noise_every_component_is_there() -> None:
    parts = components([1.0, 1e-9], present=2)
    first = first_components(parts.L, parts.R, edge=0.0)
    assert first.present == 2
    np.testing.assert_allclose(first.values, [1, 1e-9])


# ------------------------------------------------------------------------------------------ after a step


def test_component_below_the_edge_becomes_a_probe_and_comes_back() -> None:
    parts = components([10.0, 1.0], present=2)
    gone, moved = updated(parts, standing(parts), edge=2.0, ahead=1.0)
    assert gone.present == 1
    # X loses it, and that is how far X moved.
    assert moved == pytest.approx(1.0, rel=1e-10)
    np.testing.assert_allclose(gone.values[0], 10)
    assert 0 < gone.values[1] <= 0.002 * (1 + 1e-12)
    # It goes on being updated: a step towards what the residual holds brings it back when the noise is lower.
    C = parts.L @ parts.R.T - gone.L @ gone.R.T
    dL, dR = C @ gone.R @ pseudo_inverse(gone.R.T @ gone.R), C.T @ gone.L @ pseudo_inverse(gone.L.T @ gone.L)
    dL, dR = without_double_counting(gone.L, gone.R, dL, dR)
    back, moved = updated(gone, retract(gone.L, gone.R, dL, dR), edge=0.1, ahead=1.0)
    assert back.present == 2
    np.testing.assert_allclose(back.values, [10, 1], rtol=1e-10)
    assert moved == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize(("value", "present"), [(1.25, 1), (1.35, 2)])
def test_how_far_a_component_has_to_stand_out(value: float, present: int) -> None:
    parts = components([10.0, value], present=2)
    assert updated(parts, standing(parts), edge=1.0, ahead=1.0)[0].present == present


def test_early_thresholds_ask_for_more() -> None:
    """The influence is then sparse, and its singular values larger than those of noise of the same energy."""
    parts = components([30.0, 4.0], present=2)
    new = standing(parts)
    counts = [updated(parts, new, edge=1.0, ahead=ahead)[0].present for ahead in (1.0, 1.5, 2.0, 100.0)]
    assert counts == [2, 2, 1, 1]
    strong = components([30.0, 9.0], present=2)
    assert updated(strong, standing(strong), edge=1.0, ahead=100.0)[0].present == 2


def in_one_place(side: int) -> Components:
    """Return two components; the second lives in row (or column) 7."""
    parts = components([10.0, 5.0], present=1)
    factor = (parts.L, parts.R)[side]
    spot = np.zeros(len(factor))
    spot[7] = 1.0
    first = factor[:, 0] / np.linalg.norm(factor[:, 0])
    spot -= first * (first @ spot)
    factor[:, 1] = spot / np.linalg.norm(spot) * np.sqrt(5)
    return parts


@pytest.mark.parametrize("side", (0, 1), ids=["row", "column"])
def test_newcomers_in_one_row_or_column_are_refused(side: int) -> None:
    parts = in_one_place(side)
    after, _ = updated(parts, standing(parts), edge=0.1, ahead=1.0)
    assert after.present == 1
    # One that was there before stays: it is asked about only at the end.
    parts.present = 2
    after, moved = updated(parts, standing(parts), edge=0.1, ahead=1.0)
    assert after.present == 2
    assert moved < 1e-12
    np.testing.assert_array_equal(after.localised(), [False, True])
    spread = components([10.0, 5.0], present=1)
    assert updated(spread, standing(spread), edge=0.1, ahead=1.0)[0].present == 2


def test_probes_are_not_called_localised() -> None:
    parts = in_one_place(0)
    np.testing.assert_array_equal(parts.localised(), [False, False])


def test_few_rows_are_not_one_row() -> None:
    """In a matrix of four rows every component has a large share in one of them."""
    U = np.array([[0.8], [0.4], [0.4], [0.2]])
    V = np.ones((50, 1)) / np.sqrt(50)
    assert not Components(U, V, 1).localised().any()


def test_one_component_stays_whatever_the_edge() -> None:
    parts = components([2.0, 1.0, 0.5], present=3)
    after, moved = updated(parts, standing(parts), edge=1e6, ahead=1.0)
    assert after.present == 1
    np.testing.assert_allclose(after.values[0], 2)
    assert moved == pytest.approx(np.hypot(1.0, 0.5), rel=1e-10)


def test_without() -> None:
    parts = components([4.0, 3.0, 2.0, 1e-4], present=3)
    left = parts.without(np.array([False, True, False, False]), edge=1.0)
    assert left.present == 2
    np.testing.assert_allclose(left.values[:2], [4, 2])
    assert (left.values[2:] <= 1e-3 * (1 + 1e-12)).all()
    np.testing.assert_allclose(sorted(left.values[2:]), [1e-4, 1e-3])
    alone = parts.without(np.ones(4, bool), edge=1.0)
    assert alone.present == 1
    np.testing.assert_allclose(alone.values[0], 4)
    # The original is not changed.
    np.testing.assert_allclose(parts.values, [4, 3, 2, 1e-4])


def test_everything_is_kept_without_the_rule() -> None:
    parts = components([2.0, 1e-6], present=1)
    after, moved = all_of(standing(parts))
    assert after.present == 2
    np.testing.assert_allclose(after.values, [2, 1e-6])
    assert moved < 1e-14


@pytest.mark.parametrize("is_complex", (False, True), ids=["real", "complex"])
def test_way_of_x_is_told_for_what_is_in_it(is_complex: bool) -> None:
    """What `updated` calls movement is the distance of the products of the present components."""
    U, V = bases(3, seed=4, is_complex=is_complex)
    root = np.sqrt([8.0, 6.0, 1e-3])
    parts = Components(U * root, V * root, 2)
    rng = np.random.default_rng(5)
    dL, dR = 0.05 * rng.standard_normal((N1, 3)), 0.05 * rng.standard_normal((N2, 3))
    new = retract(parts.L, parts.R, dL, dR)
    for part, present in ((0.1, 3), (1.0, 2)):
        after, moved = updated(parts, new, edge=part * new.values[2], ahead=1.0)
        assert after.present == present
        L, R = after.factors()
        # What X was includes its probes, which are too weak to matter.
        assert moved == pytest.approx(np.linalg.norm(L @ R.T - parts.L @ parts.R.T), rel=1e-9)


def test_zero_does_not_stand_out_of_no_noise() -> None:
    # Without any noise its edge is zero, and so are the values of components that are not there.
    Y = np.zeros((300, 200))
    Y[:, 0] = 1
    with pytest.warns(lrpca.DiagnosisWarning):
        d = lrpca.decompose(Y, 6)
    assert d.converged and d.diagnosis.components == 1
    np.testing.assert_allclose(d.low_rank, Y, atol=1e-12)
