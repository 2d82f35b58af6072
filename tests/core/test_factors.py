"""The formulas of one iteration, against the dense matrices they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lrpca.core import factors as iteration
from lrpca.core.influence import everything, levels
from lrpca.core.passes import Pass
from lrpca.kernels.reference import dense_pass

N1, N2, RANK = 14, 11, 3


def draw(*size: int, seed: int, is_complex: bool) -> Any:
    rng = np.random.default_rng(seed)
    real = rng.standard_normal(size)
    return real + 1j * rng.standard_normal(size) if is_complex else real


@pytest.fixture(params=[False, True], ids=["real", "complex"])
def factors(request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    """Return Y, L, R with a residual that is not small."""
    L = draw(N1, RANK, seed=1, is_complex=request.param)
    R = draw(N2, RANK, seed=2, is_complex=request.param)
    return L @ R.T + 0.3 * draw(N1, N2, seed=3, is_complex=request.param), L, R


WEIGHT = np.random.default_rng(4).uniform(0.2, 3, N1)


def run(Y: Any, L: Any, R: Any, weight: Any = None, *, level: Any = None, mask: Any = None) -> Pass:
    B = L.conj() if weight is None else L.conj() * weight[:, None]
    return dense_pass(Y, L, R, level or everything(), A=R.conj(), B=B, mask=mask, grams=True)


def projector(M: Any, weight: Any = None) -> Any:
    """Return P with P v the (weighted) projection of v on the columns of M."""
    W = np.eye(len(M)) if weight is None else np.diag(weight)
    return M @ np.linalg.solve(M.conj().T @ W @ M, M.conj().T @ W)


def test_pseudo_inverse_leaves_absent_directions_out_and_keeps_weak_ones() -> None:
    M = np.random.default_rng(0).standard_normal((9, 2))
    singular = iteration.gram(np.column_stack([M, M[:, 0]]))
    inverse = iteration.pseudo_inverse(singular)
    np.testing.assert_allclose(inverse, np.linalg.pinv(singular, rcond=1e-12), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(iteration.pseudo_inverse(np.zeros((2, 2))), 0)
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    for scale in (1.0, 4.0**-80, 4.0**80):
        inverse = iteration.pseudo_inverse(scale * (vectors * [1.0, 1e-5, 1e-10]) @ vectors.T)
        np.testing.assert_allclose(inverse * scale, (vectors * [1.0, 1e5, 1e10]) @ vectors.T, rtol=1e-4)


def test_gram_has_its_conjugate_on_the_right(factors: Any) -> None:
    _, L, _ = factors
    np.testing.assert_allclose(iteration.gram(L), L.T @ L.conj())
    np.testing.assert_allclose(iteration.gram(L, WEIGHT), L.T @ np.diag(WEIGHT) @ L.conj())


@pytest.mark.parametrize("weight", (None, WEIGHT), ids=["plain", "weighted"])
def test_scaled_directions_are_the_papers(factors: Any, weight: Any) -> None:
    """L + ΔL is then the least-squares fit of Y with R fixed, and the other way round."""
    Y, L, R = factors
    dL, dR = iteration.scaled_directions(L, R, run(Y, L, R, weight), weight)
    np.testing.assert_allclose(L + dL, np.linalg.lstsq(R, Y.T, rcond=None)[0].T, atol=1e-12)
    root = np.ones((N1, 1)) if weight is None else np.sqrt(weight)[:, None]
    np.testing.assert_allclose(R + dR, np.linalg.lstsq(L * root, Y * root, rcond=None)[0].T, atol=1e-12)


@pytest.mark.parametrize("weight", (None, WEIGHT), ids=["plain", "weighted"])
def test_tangent_step_counts_the_shared_part_once(factors: Any, weight: Any) -> None:
    """To first order X moves by the projection of C on the tangent space, P C + C Q - P C Q."""
    Y, L, R = factors
    dL, dR = iteration.scaled_directions(L, R, run(Y, L, R, weight), weight)
    dL, dR = iteration.without_double_counting(L, R, dL, dR, weight)
    C, P, Q = Y - L @ R.T, projector(L, weight), projector(R).T
    np.testing.assert_allclose(dL @ R.T + L @ dR.T, P @ C + C @ Q - P @ C @ Q, atol=1e-12)


def test_own_gram_rows_are_least_squares_over_kept_entries(factors: Any) -> None:
    """Damping apart, each row solves its own regression: exact where the data are exact."""
    _, L, R = factors
    truth = draw(N1, RANK, seed=5, is_complex=np.iscomplexobj(L))
    mask = np.random.default_rng(6).random((N1, N2)) < 0.6
    mask[:, : RANK + 1] = True
    result = run(truth @ R.T, L, R, mask=mask)
    dL, _ = iteration.own_gram_directions(L, R, result)
    assert np.linalg.norm(L + dL - truth) < 0.02 * np.linalg.norm(L - truth)
    common, _ = iteration.scaled_directions(L, R, result)
    assert np.linalg.norm(L + common - truth) > 0.2 * np.linalg.norm(L - truth)


def test_own_gram_columns_are_least_squares_over_kept_entries(factors: Any) -> None:
    _, L, R = factors
    truth = draw(N2, RANK, seed=5, is_complex=np.iscomplexobj(L))
    mask = np.random.default_rng(6).random((N1, N2)) < 0.6
    mask[: RANK + 1] = True
    result = run(L @ truth.T, L, R, WEIGHT, mask=mask)
    _, dR = iteration.own_gram_directions(L, R, result, WEIGHT)
    assert np.linalg.norm(R + dR - truth) < 0.02 * np.linalg.norm(R - truth)


def test_own_gram_of_a_row_without_entries_moves_nothing(factors: Any) -> None:
    Y, L, R = factors
    mask = np.ones((N1, N2), bool)
    mask[2], mask[:, 5] = False, False
    dL, dR = iteration.own_gram_directions(L, R, run(Y, L, R, mask=mask))
    assert not dL[2].any() and not dR[5].any()
    assert np.isfinite(dL).all() and np.isfinite(dR).all()


def test_kept_share_counts_missing_entries_too(factors: Any) -> None:
    Y, L, R = factors
    mask = np.ones((N1, N2), bool)
    mask[:7] = False
    assert iteration.kept_share(run(Y, L, R, mask=mask)) == pytest.approx(0.5)
    assert iteration.kept_share(run(Y, L, R, level=levels("hard", 0.0))) == 0


@pytest.mark.parametrize("condition", (1.0, 1e6, 1e12))
def test_orthonormal_basis(condition: float) -> None:
    for is_complex in (False, True):
        M = draw(40, 4, seed=10, is_complex=is_complex) * np.geomspace(1, 1 / condition, 4)
        Q = iteration.orthonormal(M)
        np.testing.assert_allclose(Q.conj().T @ Q, np.eye(4), atol=1e-12)
        np.testing.assert_allclose(Q @ (Q.conj().T @ M), M, atol=1e-13)


def test_orthonormal_basis_of_fewer_directions() -> None:
    M = draw(40, 2, seed=10, is_complex=False) @ draw(2, 5, seed=11, is_complex=False)
    Q = iteration.orthonormal(M)
    assert np.isfinite(Q).all()
    np.testing.assert_allclose(Q @ (Q.T @ M), M, atol=1e-12)
    assert not iteration.orthonormal(np.zeros((6, 2))).any()


@pytest.mark.parametrize("size", (1.0, 1e-7, 1e-12))
def test_change_of_product_survives_cancellation(factors: Any, size: float) -> None:
    _, L, R = factors
    dL = size * draw(N1, RANK, seed=7, is_complex=np.iscomplexobj(L))
    dR = size * draw(N2, RANK, seed=8, is_complex=np.iscomplexobj(L))
    exact = np.linalg.norm(dL @ R.T + L @ dR.T + dL @ dR.T)
    assert iteration.change_of_product(L, R, dL, dR) == pytest.approx(exact, rel=1e-6)
    assert iteration.change_of_product(L, R, 0 * dL, 0 * dR) == 0


def test_normal_form(factors: Any) -> None:
    _, L, R = factors
    left, right, values = iteration.normal_form(L, R)
    np.testing.assert_allclose(left @ right.T, L @ R.T, atol=1e-12)
    np.testing.assert_allclose(values, np.linalg.svd(L @ R.T, compute_uv=False)[:RANK], rtol=1e-12)
    assert np.all(np.diff(values) <= 0)
    for factor in (left, right):
        np.testing.assert_allclose(factor.conj().T @ factor, np.diag(values), atol=1e-12 * values[0])
    peaks = right[np.abs(right).argmax(axis=0), np.arange(RANK)]
    np.testing.assert_allclose(peaks.imag, 0, atol=1e-14)
    assert np.all(peaks.real > 0)


def test_normal_form_is_the_same_for_equivalent_factors(factors: Any) -> None:
    _, L, R = factors
    T = draw(RANK, RANK, seed=9, is_complex=np.iscomplexobj(L))
    for other in ((L @ T, R @ np.linalg.inv(T).T), (-L, -R), (1e6 * L, 1e-6 * R)):
        for got, want in zip(iteration.normal_form(*other), iteration.normal_form(L, R), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-10)


def test_normal_form_of_an_over_specified_rank_and_of_zero() -> None:
    u, v = np.arange(1.0, 6)[:, None], np.arange(1.0, 5)[:, None]
    left, right, values = iteration.normal_form(np.hstack([u, u]), np.hstack([v, 2 * v]))
    np.testing.assert_allclose(left @ right.T, 3 * u @ v.T, atol=1e-12)
    assert values[1] < 1e-12 * values[0]
    left, right, values = iteration.normal_form(np.zeros((5, 2)), np.zeros((4, 2)))
    assert not left.any() and not right.any() and not values.any()


SOME_ZERO = np.where(np.arange(N1) % 4 == 2, 0.0, WEIGHT)


def truncated(M: Any, rank: int, weight: Any = None) -> Any:
    """Return the best approximation of rank r in the weighted rows; rows of weight 0 follow the row space."""
    root = np.ones(len(M)) if weight is None else np.sqrt(weight)
    V = np.linalg.svd(root[:, None] * M, full_matrices=False)[2][:rank]
    return M @ V.conj().T @ V


def product(new: iteration.Retracted) -> Any:
    return (new.U * new.values) @ new.V.T


def step(size: float, *, is_complex: bool) -> tuple[Any, Any]:
    return tuple(size * draw(n, RANK, seed=n, is_complex=is_complex) for n in (N1, N2))


@pytest.mark.parametrize("weight", (None, WEIGHT, SOME_ZERO), ids=["plain", "weighted", "some rows of weight 0"])
@pytest.mark.parametrize("size", (1e-6, 0.1, 3.0))
def test_retraction_is_the_truncated_svd_of_the_tangent_step(factors: Any, weight: Any, size: float) -> None:
    _, L, R = factors
    dL, dR = step(size, is_complex=np.iscomplexobj(L))
    moved = L @ R.T + dL @ R.T + L @ dR.T
    new = iteration.retract(L, R, dL, dR, weight)
    np.testing.assert_allclose(product(new), truncated(moved, RANK, weight), atol=1e-11 * np.abs(moved).max())
    np.testing.assert_allclose(new.V.conj().T @ new.V, np.eye(RANK), atol=1e-12)
    W = np.eye(N1) if weight is None else np.diag(weight)
    np.testing.assert_allclose(new.U.conj().T @ W @ new.U, np.eye(RANK), atol=1e-11)
    assert np.all(np.diff(new.values) <= 0)
    root = np.sqrt(np.diag(W))[:, None]
    np.testing.assert_allclose(new.values, np.linalg.svd(root * moved, compute_uv=False)[:RANK], rtol=1e-11)


@pytest.mark.parametrize("size", (1e-3, 1e-9, 1e-13))
@pytest.mark.parametrize("orthogonal", (False, True))
def test_small_steps_keep_their_digits(factors: Any, size: float, orthogonal: bool) -> None:
    """As a difference of two products, a step of 1e-13 would have two digits left."""
    _, L, R = factors
    if orthogonal:
        L, R, _ = iteration.normal_form(L, R)
    dL, dR = step(size, is_complex=np.iscomplexobj(L))
    new = iteration.retract(L, R, dL, dR)
    exact = np.linalg.norm(dL @ R.T + L @ dR.T)
    # What is cut off is of second order.
    assert new.moved(np.zeros(RANK, bool)) == pytest.approx(exact, rel=max(2 * size, 1e-2 if size < 1e-12 else 1e-5))
    assert iteration.retract(L, R, 0 * dL, 0 * dR).moved(np.zeros(RANK, bool)) < 1e-14 * np.linalg.norm(L @ R.T)


def test_small_steps_move_the_product_by_just_that(factors: Any) -> None:
    """The new in a step of 1e-9 stands orthogonal to the old, to all digits."""
    _, L, R = factors
    L, R, _ = iteration.normal_form(L, R)
    dL, dR = step(1e-9, is_complex=np.iscomplexobj(L))
    new = iteration.retract(L, R, dL, dR)
    np.testing.assert_allclose(new.U.conj().T @ new.U, np.eye(RANK), atol=1e-13)
    np.testing.assert_allclose(product(new) - L @ R.T, dL @ R.T + L @ dR.T, atol=1e-13)


def test_what_is_new_in_a_step_is_told_from_what_is_old() -> None:
    """Of a large step within the old space and 1e-9 beside it, the latter keeps its digits too."""
    L, R = (draw(n, RANK, seed=n, is_complex=False) for n in (N1, N2))
    L[:, 2] = 0  # a component that is not there takes up what is new
    dL, _ = step(1e-9, is_complex=False)
    T = draw(RANK, RANK, seed=3, is_complex=False)
    new = iteration.retract(L, R, L @ T + dL, 0 * R)
    np.testing.assert_allclose(new.U.T @ new.U, np.eye(RANK), atol=1e-12)
    assert new.values[2] < 1e-8
    np.testing.assert_allclose(product(new), (L + L @ T + dL) @ R.T, atol=1e-14 * np.abs(L @ R.T).max() * N1)


def test_moved_without_some_components(factors: Any) -> None:
    _, L, R = factors
    dL, dR = step(0.3, is_complex=np.iscomplexobj(L))
    new = iteration.retract(L, R, dL, dR)
    for absent in ([False] * 3, [False, False, True], [False, True, False], [True] * 3):
        values = np.where(absent, 0, new.values)
        after = (new.U * values) @ new.V.T
        assert new.moved(np.array(absent)) == pytest.approx(np.linalg.norm(after - L @ R.T), rel=1e-11)


def test_retraction_of_components_that_are_not_there() -> None:
    """Weak and absent components take up what is new, and nothing breaks."""
    L, R = (draw(n, RANK, seed=n, is_complex=False) for n in (N1, N2))
    for weak in (1e-9, 0.0):
        scale = np.array([1.0, 1.0, weak])
        dL, dR = step(0.1, is_complex=False)
        new = iteration.retract(L * scale, R * scale, dL, dR)
        assert np.isfinite(new.U).all() and np.isfinite(new.V).all()
        moved = (L * scale**2) @ R.T + dL @ (R * scale).T + (L * scale) @ dR.T
        np.testing.assert_allclose(product(new), truncated(moved, RANK), atol=1e-11)


@pytest.mark.parametrize("weight", (None, WEIGHT), ids=["plain", "weighted"])
def test_own_grams_of_the_present_components_only(factors: Any, weight: Any) -> None:
    """The others take the common step, as long as the kept share tells."""
    Y, L, R = factors
    mask = np.random.default_rng(6).random((N1, N2)) < 0.7
    result = run(Y, L, R, weight, mask=mask)
    share = mask.mean()
    common = [direction / share for direction in iteration.scaled_directions(L, R, result, weight)]
    everyone = iteration.own_gram_directions(L, R, result, weight)
    for got, want in zip(iteration.own_gram_directions(L, R, result, weight, RANK), everyone, strict=True):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(iteration.own_gram_directions(L, R, result, weight, 0), common, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    m = 2
    some = iteration.own_gram_directions(L, R, result, weight, m)
    for got, want, own in zip(some, common, everyone, strict=True):
        np.testing.assert_allclose(got[:, m:], want[:, m:], rtol=1e-12)
        assert not np.allclose(got[:, :m], own[:, :m]) and not np.allclose(got[:, :m], want[:, :m])
    # The first two as if they were all there are.
    first = L[:, :m], R[:, :m]
    alone = iteration.own_gram_directions(*first, run(Y - L[:, m:] @ R[:, m:].T, *first, weight, mask=mask), weight)
    for got, want in zip(some, alone, strict=True):
        np.testing.assert_allclose(got[:, :m], want, rtol=1e-9)


@pytest.mark.parametrize("is_complex", (False, True), ids=["real", "complex"])
@pytest.mark.parametrize("weak", (1.0, 1e-4, 1e-9))
def test_systems_are_solved_whatever_the_scale_of_a_component(is_complex: bool, weak: float) -> None:
    """A ridge in the units of the strong components would drown the weak ones."""
    scale = np.array([1.0, 1.0, weak])
    sides = draw(8, 3, seed=1, is_complex=is_complex)
    M = draw(8, 20, 3, seed=2, is_complex=is_complex)
    grams = np.einsum("nki,nkj->nij", M.conj(), M)
    want = np.linalg.solve(grams, sides[:, :, None])[:, :, 0]
    got = iteration.solve_each(grams * np.outer(scale, scale), sides * scale)
    np.testing.assert_allclose(got * scale, want, rtol=1e-8)


def test_systems_without_equations_have_a_zero_solution() -> None:
    grams = np.zeros((4, 2, 2))
    grams[1] = np.eye(2)
    got = iteration.solve_each(grams, np.array([[0.0, 0], [3, 4], [0, 0], [0, 0]]))
    np.testing.assert_allclose(got, [[0, 0], [3, 4], [0, 0], [0, 0]], rtol=1e-9)
    assert iteration.solve_each(np.zeros((0, 2, 2)), np.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize("weighted", (False, True))
def test_a_change_of_x_as_a_tangent_step(factors: tuple[Any, Any, Any], weighted: bool) -> None:
    _, L, R = factors
    weight = np.random.default_rng(7).uniform(0.5, 2, N1) if weighted else None
    seed = dict(is_complex=bool(np.iscomplexobj(L)))
    L0, R0 = L + 0.1 * draw(N1, RANK, seed=8, **seed), R + 0.1 * draw(N2, RANK, seed=9, **seed)
    dL, dR = iteration.tangent_change(L0, R0, L, R, weight)
    root = np.ones((N1, 1)) if weight is None else np.sqrt(weight)[:, None]
    got, change = root * (dL @ R.T + L @ dR.T), root * (L @ R.T - L0 @ R0.T)
    U, V = np.linalg.qr(root * L)[0], np.linalg.qr(R)[0]
    P, Q = U @ U.conj().T, V.conj() @ V.T
    np.testing.assert_allclose(got, P @ change + change @ Q - P @ change @ Q, atol=1e-12)
    other = draw(N1, RANK, seed=10, **seed), draw(N2, RANK, seed=11, **seed)
    want = np.vdot(dL @ R.T + L @ dR.T, other[0] @ R.T + L @ other[1].T).real
    assert iteration.tangent_product(L, R, (dL, dR), other) == pytest.approx(want, rel=1e-12)
