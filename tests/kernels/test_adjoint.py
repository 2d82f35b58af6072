"""The way back through a pass: the kernel is its specification, and the specification the derivative of the pass."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from lrpca import Schedule
from lrpca.core.influence import Levels, levels
from lrpca.kernels.cpu import TILE
from lrpca.kernels.reference import Adjoint, dense_adjoint, dense_pass
from lrpca.matrices import dense
from lrpca.matrices.differentiable import DifferentiableMatrix
from lrpca.testing import planted
from tests.helpers.layouts import LAYOUTS, MASKS

torch = pytest.importorskip("torch", reason="lrpca.learn needs PyTorch")

from lrpca.learn import operations  # noqa: E402
from lrpca.learn.network import UnrolledNetwork  # noqa: E402
from lrpca.learn.operations import influence_pass, matrix_of  # noqa: E402
from lrpca.learn.problems import of_problem  # noqa: E402
from lrpca.learn.tensors import prepare  # noqa: E402

KINDS = ("soft", "hard", "redescending")
DTYPES = ("float32", "float64")
# Rounding errors are bounded by a multiple of eps times the sum of the moduli of all terms. The largest multiple seen
# is a third of this one; one term left out or counted twice exceeds it by orders of magnitude.
ROUNDINGS = 4


@dataclass(frozen=True)
class Case:
    """A matrix whose residuals stay away from threshold 1 and cutoff 2, and derivatives by C R and Cᵀ L."""

    Y: Any
    L: Any
    R: Any
    A_bar: Any
    B_bar: Any
    mask: Any = None

    @property
    def observed(self) -> Any:
        whole = np.ones(self.Y.shape, bool) if self.mask is None else np.broadcast_to(self.mask, self.Y.shape)
        return whole & ~np.isnan(self.Y)


def make(shape: tuple[int, int], rank: int, dtype: str = "float64", *, seed: int = 0, missing: float = 0.0) -> Case:
    rng = np.random.default_rng(seed)
    n1, n2 = shape
    L, A_bar = ((rng.standard_normal((n1, rank)) / np.sqrt(rank)).astype(dtype) for _ in range(2))
    R, B_bar = (rng.standard_normal((n2, rank)).astype(dtype) for _ in range(2))
    low, high = rng.choice([(0.1, 0.8), (1.2, 1.8), (2.4, 6.0)], p=[0.5, 0.3, 0.2], size=shape).transpose(2, 0, 1)
    Y = L.astype(float) @ R.astype(float).T + rng.uniform(low, high) * rng.choice([-1.0, 1.0], shape)
    return Case(np.where(rng.random(shape) < missing, np.nan, Y).astype(dtype), L, R, A_bar, B_bar)


def fused(case: Case, level: Levels) -> Adjoint:
    matrix = DifferentiableMatrix(case.Y, case.mask)
    return matrix.run_adjoint(case.L, case.R, level, A_bar=case.A_bar, B_bar=case.B_bar)


def specified(case: Case, level: Levels) -> Adjoint:
    return dense_adjoint(case.Y, case.L, case.R, level, A_bar=case.A_bar, B_bar=case.B_bar, mask=case.mask)


def assert_same(got: Adjoint, want: Adjoint, case: Case) -> None:
    bound = ROUNDINGS * float(np.finfo(case.Y.dtype).eps)
    L, R, A_bar, B_bar = (np.abs(M).astype(float) for M in (case.L, case.R, case.A_bar, case.B_bar))
    D = np.where(case.observed, np.abs(np.where(case.observed, case.Y, 0)) + L @ R.T, 0.0)
    C_bar = np.where(case.observed, A_bar @ R.T + L @ B_bar.T, 0.0)
    assert got.L.dtype == got.R.dtype == np.float64 and got.L.shape == L.shape and got.R.shape == R.shape
    assert np.all(np.abs(got.L - want.L) <= bound * (D @ B_bar + C_bar @ R))
    assert np.all(np.abs(got.R - want.R) <= bound * (D.T @ A_bar + C_bar.T @ L))
    assert abs(got.clip - want.clip) <= bound * C_bar.sum()


# --- the specification -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_specification_is_the_derivative_of_the_pass(kind: str) -> None:
    case = make((9, 7), 2, missing=0.1)
    rng = np.random.default_rng(1)
    dL, dR = rng.standard_normal(case.L.shape), rng.standard_normal(case.R.shape)
    # The cutoff stays where it is, that of the hard threshold too.
    cutoff = levels(kind, 1.0).cutoff

    def value(t: float, by_clip: float) -> float:
        L, R = case.L + t * dL, case.R + t * dR
        result = dense_pass(case.Y, L, R, Levels(1.0 + by_clip, cutoff, 1.0), A=R, B=L)
        return float((result.CA * case.A_bar).sum() + (result.CtB * case.B_bar).sum())

    h = 1e-5
    result = specified(case, levels(kind, 1.0))
    slope = (value(h, 0) - value(-h, 0)) / (2 * h)
    assert (result.L * dL).sum() + (result.R * dR).sum() == pytest.approx(slope, rel=1e-7)
    assert result.clip == pytest.approx((value(0, h) - value(0, -h)) / (2 * h), rel=1e-7, abs=1e-9)
    assert (result.clip == 0) == (kind == "hard")


# --- the kernel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", range(1, 13))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_and_influence(kind: str, dtype: str, rank: int) -> None:
    case = make((39, 27), rank, dtype, missing=0.1)
    assert_same(fused(case, levels(kind, 1.0)), specified(case, levels(kind, 1.0)), case)


SIZES = (1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 127, 129, TILE - 1, TILE, TILE + 1, TILE + 17, 2 * TILE + 5)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("other", (1, 3, 18))
@pytest.mark.parametrize("tall", (True, False))
def test_odd_shapes(n: int, other: int, tall: bool) -> None:
    case = make((n, other) if tall else (other, n), 2, "float32")
    assert_same(fused(case, levels("redescending", 1.0)), specified(case, levels("redescending", 1.0)), case)


@pytest.mark.parametrize("dtype", DTYPES)
# A large rank leaves space for one tile in the cache: columns are walked in several stretches.
@pytest.mark.parametrize(
    ("shape", "rank"), [((1100, 300), 6), ((300, 1100), 6), ((513, 1601), 6), ((150, 2 * TILE + 100), 45)]
)
def test_many_parts_and_tiles(shape: tuple[int, int], rank: int, dtype: str) -> None:
    case = make(shape, rank, dtype, missing=0.05)
    for kind in ("soft", "redescending"):
        assert_same(fused(case, levels(kind, 1.0)), specified(case, levels(kind, 1.0)), case)


def test_sums_over_many_rows_are_in_double_precision() -> None:
    """Single-precision sums over 200 000 equal terms would be off by more than the bound, which knows no length."""
    rows = 200_000
    case = make((1, 1), 1, "float32")
    case = replace(case, **{name: np.repeat(getattr(case, name), rows, axis=0) for name in ("Y", "L", "A_bar")})
    got, want = fused(case, levels("soft", 1.0)), specified(case, levels("soft", 1.0))
    assert got.R[0, 0] == pytest.approx(want.R[0, 0], rel=4e-6)
    assert got.clip == pytest.approx(want.clip, rel=4e-6, abs=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(46, 35), (700, 400)])
def test_any_memory_layout_is_read_and_left_alone(
    shape: tuple[int, int], layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What cannot be read in place is copied in pieces, several in each part.
    monkeypatch.setattr(dense, "_PIECE", 10_000)
    plain = make(shape, 3, "float32", missing=0.05)
    case = replace(plain, Y=LAYOUTS[layout](plain.Y))
    case.Y.flags.writeable = False
    assert_same(fused(case, levels("redescending", 1.0)), specified(plain, levels("redescending", 1.0)), plain)
    np.testing.assert_array_equal(case.Y, plain.Y)


@pytest.mark.parametrize("form", MASKS)
@pytest.mark.parametrize("order", ("C", "F"))
def test_masks(form: str, order: str) -> None:
    case = make((40, 27), 3, "float64", missing=0.1)
    mask = MASKS[form](case.Y.shape, np.random.default_rng(5))
    case = replace(case, Y=np.asarray(case.Y, order=order), mask=mask)  # type: ignore[call-overload]
    for kind in KINDS:
        assert_same(fused(case, levels(kind, 1.0)), specified(case, levels(kind, 1.0)), case)


@pytest.mark.parametrize("junk", (np.inf, -np.inf, np.nan, 1e300))
def test_masked_entries_may_hold_anything(junk: float) -> None:
    case = make((30, 20), 2)
    mask = np.random.default_rng(1).random(case.Y.shape) < 0.6
    want = fused(replace(case, mask=mask), levels("soft", 1.0))
    got = fused(replace(case, Y=np.where(mask, case.Y, junk), mask=mask), levels("soft", 1.0))
    np.testing.assert_array_equal(got.L, want.L)
    np.testing.assert_array_equal(got.R, want.R)
    assert got.clip == want.clip


def test_no_clipping_at_all() -> None:
    case = make((20, 30), 2, "float32")
    nothing = Levels(np.inf, np.inf, np.inf)
    assert_same(fused(case, nothing), specified(case, nothing), case)
    # 1e200 is beyond single precision.
    assert_same(fused(case, Levels(1e200, np.inf, 1e200)), specified(case, nothing), case)


@pytest.mark.parametrize("shape", [(900, 600), (500, 1300)])
def test_same_bits_whatever_the_number_of_threads(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(shape, 5, "float32")
    answers = []
    for count in (1, 2, 5):
        monkeypatch.setattr("lrpca.kernels.threads.thread_count", lambda count=count: count)
        answers.append(fused(case, levels("redescending", 1.0)))
    for other in answers[1:]:
        assert np.array_equal(other.L, answers[0].L) and np.array_equal(other.R, answers[0].R)
        assert other.clip == answers[0].clip


def test_nothing_of_the_size_of_the_matrix_is_made() -> None:
    case = make((1500, 1200), 2, "float32")
    matrix = DifferentiableMatrix(case.Y)

    def back() -> None:
        matrix.run_adjoint(case.L, case.R, levels("soft", 1.0), A_bar=case.A_bar, B_bar=case.B_bar)

    back()
    tracemalloc.start()
    try:
        back()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 0.1 * case.Y.nbytes
    assert matrix.reads == 2


@pytest.mark.parametrize("dtype", ("uint8", "int64", "complex128", "float16"))
def test_only_real_floating_point_numbers_are_differentiated(dtype: str) -> None:
    with pytest.raises(ValueError, match=f"dtype={dtype} cannot be differentiated; convert to float32"):
        DifferentiableMatrix(np.zeros((3, 3), dtype))


# --- the operation in torch --------------------------------------------------------------------------------


def tensors(case: Case) -> tuple[Any, ...]:
    return tuple(torch.tensor(M) for M in (np.nan_to_num(case.Y), case.observed, case.L, case.R))


def cutoff_of(kind: str, threshold: Any) -> Any:
    return levels(kind, 1.0).cutoff * threshold.detach()


@pytest.mark.parametrize("way", ("fused", "plain"))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", (0.0, 0.2))
def test_gradients_are_those_of_finite_differences(kind: str, way: str, missing: float) -> None:
    case = make((8, 6), 2, missing=missing)
    Y, observed, L, R = tensors(case)
    observed = observed if missing else None
    matrix = matrix_of(Y, observed) if way == "fused" else None
    threshold = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    cutoff = cutoff_of(kind, threshold)

    def products(L: Any, R: Any, threshold: Any) -> tuple[Any, Any]:
        return influence_pass(Y, observed, L, R, threshold, cutoff, matrix=matrix)[:2]

    # At the hard threshold the difference on one side would drop the clip below the cutoff: no derivative there.
    threshold.requires_grad_(kind != "hard")
    assert torch.autograd.gradcheck(products, (L.requires_grad_(), R.requires_grad_(), threshold))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(40, 70), (620, 450)])
def test_fused_and_plain_agree(shape: tuple[int, int], kind: str, dtype: str) -> None:
    case = make(shape, 4, dtype, missing=0.1)
    Y, observed, L, R = tensors(case)
    rows, columns = torch.tensor(case.A_bar), torch.tensor(case.B_bar)
    answers = []
    for matrix in (None, matrix_of(Y, observed)):
        given = [M.clone().requires_grad_() for M in (L, R, torch.tensor(1.0, dtype=L.dtype))]
        CA, CtB, *kept = influence_pass(Y, observed, *given, cutoff_of(kind, given[2]), matrix=matrix)
        ((CA * rows).sum() + (CtB * columns).sum()).backward()
        assert CA.dtype == CtB.dtype == L.dtype and not any(count.requires_grad for count in kept)
        answers.append([CA.detach(), CtB.detach(), *kept, *(M.grad for M in given)])
    want = dense_pass(case.Y, case.L, case.R, levels(kind, 1.0), A=case.R, B=case.L)
    for counts, expected in zip(answers[0][2:4], want.kept, strict=True):
        np.testing.assert_array_equal(counts, expected)
    # Plain sums over a block of rows are in single precision.
    allowed = 40 * torch.finfo(L.dtype).eps
    for one, other in zip(*answers, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        if one.dtype == torch.int64:
            assert torch.equal(one, other)
        else:
            assert float((one - other).norm()) <= allowed * float(one.norm())


@pytest.mark.parametrize("threshold", (-0.3, float("nan")))
def test_a_threshold_that_training_has_spoilt(threshold: float) -> None:
    """ζ < 0: D - soft(D, ζ) = sign(D) ζ, the paper's formula; NaN shows in the result, where the solver is blind."""
    Y, _, L, R = tensors(make((12, 9), 2))
    zeta = torch.tensor(threshold, dtype=torch.float64, requires_grad=True)
    CA, *_ = influence_pass(Y, None, L, R, zeta, torch.tensor(np.inf), matrix=matrix_of(Y, None))
    CA.sum().backward()
    if threshold < 0:
        signs = torch.sign(Y - L @ R.T) @ R
        torch.testing.assert_close(CA.detach(), threshold * signs)
        torch.testing.assert_close(zeta.grad, signs.sum())
    else:
        assert bool(CA.isnan().all())


@pytest.mark.parametrize("way", ("fused", "plain"))
def test_second_derivatives_are_refused(way: str) -> None:
    Y, _, L, R = tensors(make((6, 5), 1))
    matrix = matrix_of(Y, None) if way == "fused" else None
    CA, *_ = influence_pass(Y, None, L.requires_grad_(), R, torch.tensor(1.0), torch.tensor(np.inf), matrix=matrix)
    (first,) = torch.autograd.grad(CA.square().sum(), L, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


# --- the network -------------------------------------------------------------------------------------------


def network_of(Y: Any) -> UnrolledNetwork:
    unit = float(np.nanmedian(np.abs(Y)))
    return UnrolledNetwork(Schedule([6 * unit, 0.8 * unit, 0.5 * unit, 0.3 * unit], [0, 0.9, 0.9, 0.9]), "fnn")


@pytest.mark.parametrize("missing", (0.0, 0.1))
def test_a_layer_reads_the_data_once_each_way(missing: float) -> None:
    problem = planted((60, 50), rank=2, missing=missing, random_state=0)
    network, answers = network_of(problem.Y), []
    for fast in (True, False):
        data = prepare(of_problem(problem))
        if not fast:
            data.__dict__["matrix"] = None
        network.zero_grad()
        start = tuple(factor.detach() for factor in data.start(torch.tensor(1.0, dtype=torch.float64)))
        before = data.matrix.reads if fast else 0
        *_, last = network.layers(data, 3, start=start)
        if fast:
            assert data.matrix.reads - before == 3
        data.log_error(last.L, last.R).backward()
        if fast:
            assert data.matrix.reads - before == 6
        answers.append([parameter.grad.clone() for parameter in (network.thresholds, network.steps)])
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
        assert bool((one[1:] != 0).all())


# --- the start ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", (0.0, 0.1))
@pytest.mark.parametrize("multiple", (2.0, 6.0))
def test_the_start_moves_with_its_threshold(missing: float, multiple: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # More rounds than in training: here the derivative is to have many digits.
    monkeypatch.setattr(operations, "_ROUNDS", 8)
    monkeypatch.setattr(operations, "_POWER_STEPS", 25)
    problem = planted((70, 60), rank=3, missing=missing, random_state=0)
    data = prepare(of_problem(problem))
    clip = multiple * float(np.nanmedian(np.abs(problem.Y)))
    weights = torch.tensor(np.random.default_rng(0).standard_normal(problem.Y.shape))

    def exact(clip: float) -> float:
        A = np.clip(np.nan_to_num(problem.Y), -clip, clip) / data.counts.observed
        U, values, Vh = np.linalg.svd(A)
        return float(np.sum((U[:, :3] * values[:3]) @ Vh[:3] * weights.numpy()))

    threshold = torch.tensor(clip, dtype=torch.float64, requires_grad=True)
    L, R = data.start(threshold)
    value = ((L @ R.T) * weights).sum()
    value.backward()
    h = 1e-6 * clip
    assert value.item() == pytest.approx(exact(clip), rel=1e-9)
    assert threshold.grad.item() == pytest.approx((exact(clip + h) - exact(clip - h)) / (2 * h), rel=1e-5)


def test_starts_of_both_precisions_agree() -> None:
    problem = planted((300, 250), rank=3, missing=0.05, random_state=0)
    answers = []
    for dtype in (torch.float64, torch.float32):
        data = prepare(of_problem(problem), dtype=dtype)
        threshold = torch.tensor(2 * float(np.nanmedian(np.abs(problem.Y))), dtype=dtype, requires_grad=True)
        L, R = data.start(threshold)
        (L.square().sum() + (R[:4] @ R[:4].T).sum()).backward()
        answers.append([(L @ R.T).detach().double(), threshold.grad.double()])
    for one, other in zip(*answers, strict=True):
        assert float((one - other).norm()) <= 1e-4 * float(one.norm())


def test_a_start_threshold_that_training_has_made_negative() -> None:
    """Y - soft(Y, ζ) = sign(Y) ζ, the paper's formula."""
    problem = planted((300, 250), rank=2, random_state=0)
    L, R = prepare(of_problem(problem)).start(torch.tensor(-0.5, dtype=torch.float64))
    U, values, Vh = np.linalg.svd(-0.5 * np.sign(problem.Y), full_matrices=False)
    want = (U[:, :2] * values[:2]) @ Vh[:2]
    assert np.linalg.norm((L @ R.T).numpy() - want) < 1e-3 * np.linalg.norm(want)
