"""The paper's stopping rule for videos: X and S have both come to rest, and no method ends before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca.core.influence import apply, levels
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import draw_sample
from lrpca.solvers.stationarity import Cut, Standstill

LIMIT = 1e-2
RANK = 2


@pytest.fixture(scope="module")
def frames() -> Any:
    """Return a street as rows of uint8."""
    return lrpca.datasets.street_scene(60, 32, 48, random_state=0).frames.reshape(60, -1)


def change(before: Any, after: Any) -> float:
    size = np.linalg.norm(before)
    return float(np.linalg.norm(after - before) / size) if size else float("inf")


def changes_by_hand(Y: Any, influence: str, **arguments: Any) -> list[tuple[float, float]]:
    """Return the changes of X and S in iterations 3, 4, ... of a run, from the factors that a callback is shown."""
    states: list[Any] = []
    lrpca.decompose(Y, RANK, tol=0, callback=states.append, **arguments)
    X = [state.L.astype(float) @ state.R.T.astype(float) for state in states]
    S = [None]
    for k in range(1, len(states)):
        D = Y - X[k - 1]
        S.append(D - apply(D, levels(influence, states[k].threshold)))
    return [(change(X[k - 1], X[k]), change(S[k - 1], S[k])) for k in range(2, len(states))]


@pytest.mark.parametrize(
    ("method", "influence", "schedule"),
    [
        ("lrpca", "redescending", None),
        ("lrpca", "soft", lrpca.Schedule([300.0, 40.0, 20.0], [0, 1.0, 1.0], tail=(1.0, 0.7))),
        ("altproj", "hard", None),
    ],
)
@pytest.mark.filterwarnings("ignore::lrpca.ConvergenceWarning", "ignore::lrpca.DiagnosisWarning")
def test_ends_the_first_time_that_both_stand_still(
    frames: Any, method: str, influence: str, schedule: lrpca.Schedule | None
) -> None:
    arguments: dict[str, Any] = {"method": method} | ({"schedule": schedule} if schedule else {})
    d = lrpca.decompose(frames, RANK, tol=0, max_iter=100, options={"change": LIMIT}, **arguments)
    assert d.reason in ("tol", "stalled") and 5 < d.n_iter < 100
    found = changes_by_hand(frames, influence, max_iter=d.n_iter, **arguments)
    met = [max(pair) < LIMIT for pair in found]
    # What a sample shows to be far from it may be measured one iteration late, never early. AltProj has stages.
    assert met[-1] and sum(met[-5:]) <= 2 and (method == "altproj" or sum(met) <= 2)


@pytest.mark.filterwarnings("ignore::lrpca.ConvergenceWarning", "ignore::lrpca.DiagnosisWarning")
def test_scaledgd_ends_when_what_it_sparsified_stands_still(frames: Any) -> None:
    arguments: dict[str, Any] = {"method": "scaledgd", "tol": 0}
    options = {"alpha": 0.1, "gamma": 1.5, "step": 0.7}
    d = lrpca.decompose(frames, RANK, max_iter=300, options={**options, "change": LIMIT}, **arguments)
    assert d.reason in ("tol", "stalled") and 5 < d.n_iter < 300
    X = []
    lrpca.decompose(
        frames,
        RANK,
        max_iter=d.n_iter,
        options=options,
        callback=lambda state: X.append(state.L.astype(float) @ state.R.T.astype(float)) and None,
        **arguments,
    )
    S = [sparsified(frames - X[-3], 0.15), sparsified(frames - X[-2], 0.15)]
    assert change(X[-2], X[-1]) < LIMIT and change(*S) < LIMIT
    before = [sparsified(frames - X[-4], 0.15), S[0]]
    assert max(change(X[-3], X[-2]), change(*before)) > 0.9 * LIMIT


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.filterwarnings("ignore::lrpca.ConvergenceWarning", "ignore::lrpca.DiagnosisWarning")
def test_scaledgd_tells_what_it_sparsified(frames: Any, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, Cut]] = []
    monkeypatch.setattr(Standstill, "reached", lambda self, before, cut, after: seen.append((before, cut)))
    options = {"alpha": 0.1, "gamma": 1.5, "change": LIMIT}
    Y = np.asarray(frames, order=order)
    lrpca.decompose(Y, RANK, method="scaledgd", tol=0, max_iter=3, options=options)
    (L, R), cut = seen[-1]
    D = frames - L @ R.T
    rejected = np.abs(D) > np.maximum(cut.rows[:, None], cut.columns)
    expected = sparsified(D, 0.15) != 0
    # Levels are entries of D, which rounding in single precision may move across.
    assert np.count_nonzero(rejected != expected) <= 3 and 0.05 < expected.mean() < 0.15


def test_x_must_stand_still_too() -> None:
    rng = np.random.default_rng(0)
    L, R = rng.normal(size=(60, RANK)), rng.normal(size=(50, RANK))
    matrix = DenseMatrix(L @ R.T + 10 * (rng.random((60, 50)) < 0.1))
    cut = Cut.of(levels("hard", 1.0))
    for moved, resting in ((1.2, False), (1.05, True)):
        rule = Standstill(matrix, draw_sample(matrix, rng), 0.1)
        # The same S twice, and X on the move.
        assert not rule.reached((L, R), cut, (L, R))
        assert rule.reached((L, R), cut, (moved * L, R)) == resting


def sparsified(D: Any, share: float) -> Any:
    """Return T(D): what is among the largest share of its row and of its column."""
    size = np.abs(D)
    kept = np.ones(D.shape, bool)
    for axis in (0, 1):
        k = int(share * D.shape[axis] + 1e-9)
        kept &= size >= np.flip(np.sort(size, axis=axis), axis=axis).take([k - 1], axis=axis)
    return np.where(kept, D, 0)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("missing", [False, True])
def test_change_of_sparse_part_is_that_of_the_matrices(dtype: Any, missing: bool) -> None:
    rng = np.random.default_rng(0)
    n1, n2 = 70, 90
    Y = rng.integers(0, 255, (n1, n2)).astype(dtype)
    if dtype == np.complex128:
        Y = Y + 1j * rng.integers(0, 255, (n1, n2))
    mask = rng.random((n1, n2)) < 0.8 if missing else None
    matrix = DenseMatrix(Y, mask)
    rule = Standstill(matrix, draw_sample(matrix, rng), 0.1)
    splits, made = [], []
    for cut in (Cut.of(levels("soft", 40.0)), Cut(np.inf, rng.uniform(50, 90, n1), rng.uniform(0, 120, n2))):
        L, R = rng.normal(5, 1, (n1, 3)), rng.normal(5, 1, (n2, 3))
        D = Y - L @ R.T
        size = np.abs(D)
        inside = size <= np.maximum(np.broadcast_to(cut.rows, n1)[:, None], np.broadcast_to(cut.columns, n2))
        made.append(np.where(inside, D - D * np.minimum(1, cut.clip / size), D)[slice(None) if mask is None else mask])
        splits.append(((L, R), cut))
    assert rule._change(*splits) == pytest.approx(change(*made), rel=1e-5)
    everything = rule._sampled(*splits[1])
    assert np.linalg.norm(everything) == pytest.approx(np.linalg.norm(made[1]), rel=1e-6)  # small enough to be whole


def test_never_met_while_nothing_is_in_s() -> None:
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(60, RANK)), rng.normal(size=(50, RANK))
    matrix = DenseMatrix(factors[0] @ factors[1].T)
    for threshold, resting in ((1e9, False), (1e-20, True)):
        rule = Standstill(matrix, draw_sample(matrix, rng), 0.5)
        cut = Cut.of(levels("hard", threshold))
        assert [rule.reached(factors, cut, factors) for _ in range(3)] == [False, resting, resting]


def test_refused_where_it_cannot_be_told(frames: Any) -> None:
    with pytest.raises(ValueError, match=r"options\['change'\]=0.01 is not used by variant='ncrpca'"):
        lrpca.decompose(frames, RANK, method="altproj", options={"variant": "ncrpca", "change": 0.01})
    few = np.ma.MaskedArray(frames, np.random.default_rng(0).random(frames.shape) < 0.9)
    with pytest.raises(ValueError, match="is not used where few entries are observed"):
        lrpca.decompose(few, RANK, method="scaledgd", options={"alpha": 0.1, "change": 0.01})
    with pytest.raises(ValueError, match=r"options\['change'\]=2 is not a number"):
        lrpca.decompose(frames, RANK, options={"change": 2})
