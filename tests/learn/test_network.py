"""The unrolled network: its layers are the solver's passes, and its gradients those of the loss."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from lrpca import Schedule, decompose
from lrpca.testing import planted

torch = pytest.importorskip("torch", reason="lrpca.learn needs PyTorch")

from lrpca.learn.network import UnrolledNetwork  # noqa: E402
from lrpca.learn.problems import of_problem  # noqa: E402
from lrpca.learn.tensors import Data, prepare  # noqa: E402

RANK, DEPTH = 3, 6
INFLUENCES, UPDATES = ("soft", "redescending", "hard"), ("scaled", "tangent", "own_gram")
# Own Grams with ψ = clip take too long a step: clipped entries pull and are in no Gram. The iterates of an adaptive
# schedule of that form run away, the solver's too.
FORMS = [
    (kind, influence, update)
    for kind in ("absolute", "adaptive")
    for influence in INFLUENCES
    for update in UPDATES
    if (kind, influence, update) != ("adaptive", "soft", "own_gram")
]


class Case:
    """A small planted problem, as the solver takes it and as the network does."""

    def __init__(self, shape: tuple[int, int] = (60, 50), missing: float = 0.0, seed: int = 1, **more: Any) -> None:
        problem = planted(shape, rank=RANK, outlier_fraction=0.1, missing=missing, random_state=seed, **more)
        self.Y, self.X = problem.Y, problem.X
        self.unit = float(np.nanmedian(np.abs(self.Y)))
        self.data = prepare(of_problem(problem))
        self.start = self.truncated(6 * self.unit)

    def truncated(self, clip: float) -> tuple[Any, Any]:
        """Return factors of SVD_r(clip(Y) / p)."""
        observed = ~np.isnan(self.Y)
        clipped = np.clip(np.where(observed, self.Y, 0.0), -clip, clip) / observed.mean()
        U, values, Vh = np.linalg.svd(clipped, full_matrices=False)
        root = np.sqrt(values[:RANK])
        return U[:, :RANK] * root, Vh[:RANK].T * root

    def schedule(self, kind: str, influence: str, update: str, **more: Any) -> Schedule:
        """Return a schedule of three layers and a tail that makes progress on the problem."""
        form: dict[str, Any] = {"kind": kind, "influence": influence, "update": update, **more}
        if kind == "adaptive":
            return Schedule([20, 4.0, 3.0, 2.5], [0, 0.9, 1.0, 0.8], **{"tail": (0.95, 0.9), **form})
        thresholds = [self.unit * multiple for multiple in (6.0, 2.0, 1.0, 0.4)]
        return Schedule(thresholds, [0, 0.9, 1.0, 0.8], **{"tail": (0.95, 0.7), **form})

    def by_solver(self, schedule: Schedule, depth: int = DEPTH) -> list[Any]:
        states: list[Any] = []
        options = {"without": ["significance"]} if schedule.kind == "adaptive" else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a run of a few passes has much to warn of
            asked: dict[str, Any] = {"schedule": schedule, "start": self.start, "options": options}
            decompose(self.Y, RANK, tol=0, max_iter=depth, callback=states.append, **asked)
        return states

    def tensors(self) -> tuple[Any, Any]:
        return torch.tensor(self.start[0]), torch.tensor(self.start[1])

    def by_network(self, network: UnrolledNetwork, depth: int = DEPTH) -> list[Any]:
        with torch.no_grad():
            return list(network.layers(self.data, depth, start=self.tensors()))[1:]


def agree(layers: list[Any], states: list[Any]) -> None:
    """Check that network and solver went the same way, to rounding."""
    assert len(layers) == len(states) > 0
    for layer, state in zip(layers, states, strict=True):
        X = state.L @ state.R.T
        assert np.linalg.norm((layer.L @ layer.R.T).numpy() - X) < 1e-10 * np.linalg.norm(X)
        assert float(layer.threshold) == pytest.approx(state.threshold, rel=1e-9)
        assert float(layer.step) == pytest.approx(state.step, rel=1e-12)
        assert layer.kept == pytest.approx(state.kept, abs=1e-15)


# --- network and solver ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "missing"), [((60, 50), 0.0), ((35, 80), 0.0), ((80, 40), 0.15)])
@pytest.mark.parametrize(("kind", "influence", "update"), FORMS)
def test_layers_are_the_passes_of_the_solver(
    kind: str, influence: str, update: str, shape: tuple[int, int], missing: float
) -> None:
    case = Case(shape, missing)
    schedule = case.schedule(kind, influence, update)
    layers = case.by_network(UnrolledNetwork(schedule, "frmnn"))
    agree(layers, case.by_solver(schedule))
    # Not a comparison of two runs that stand still.
    error = np.linalg.norm((layers[-1].L @ layers[-1].R.T).numpy() - case.X) / np.linalg.norm(case.X)
    assert error < 0.8 * np.linalg.norm(case.start[0] @ case.start[1].T - case.X) / np.linalg.norm(case.X)


def test_thresholds_that_clip_most_entries() -> None:
    # Where ψ = clip keeps little, adaptive steps are not as long as that would make them.
    case = Case()
    schedule = Schedule([20, 0.4, 0.4], [0, 0.9, 0.9], kind="adaptive", influence="soft", update="tangent")
    states = case.by_solver(schedule, 2)
    assert max(state.kept for state in states) < 0.5
    agree(case.by_network(UnrolledNetwork(schedule, "fnn"), 2), states)


@pytest.mark.parametrize("tail", [(1.0, 0.3), (0.95, 0.6)])
@pytest.mark.parametrize("model", ["rnn", "frmnn"])
def test_a_floor_holds_the_thresholds_of_the_tail_up(model: str, tail: tuple[float, float]) -> None:
    case = Case()
    if model == "rnn":
        first = 3 * case.unit
        schedule = Schedule([first, tail[1] * first], [0, 0.9 * tail[0]], update="scaled", tail=tail, floor=2.0)
    else:
        schedule = case.schedule("absolute", "soft", "scaled", tail=tail, floor=2.0)
    states = case.by_solver(schedule, 12)
    agree(case.by_network(UnrolledNetwork(schedule, model), 12), states)
    plain = schedule.at(12)
    assert plain is not None and states[-1].threshold > 2 * plain[0]


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize(
    ("model", "schedule"),
    [
        ("fnn", Schedule([0.1, 0.02, 0.004], [0, 1.4, 0.9])),
        ("fnn", Schedule([20, 3.0, 2.0], [0, 1.4, 0.9], kind="adaptive")),
        ("frmnn", Schedule([0.1, 0.02, 0.004], [0, 1.4, 0.9], tail=(0.9, 0.6))),
        ("frmnn", Schedule([20, 3.0, 2.0], [0, 1.4, 0.9], kind="adaptive", tail=(0.9, 1.1))),
        ("rnn", Schedule([0.1, 0.06], [0, 1.4], tail=(0.9, 0.6))),
        ("rnn", Schedule([20, 3.0], [0, 1.4], kind="adaptive", tail=(0.9, 0.8))),
    ],
)
def test_numbers_are_those_of_the_schedule(model: str, schedule: Schedule, positive: bool) -> None:
    network = UnrolledNetwork(schedule, model, positive=positive)
    assert network.numbers(0).threshold.item() == pytest.approx(schedule.thresholds[0])
    for k in range(1, 8 if schedule.tail else schedule.layers + 1):
        assert [number.item() for number in network.numbers(k)] == pytest.approx(schedule.at(k))
    again = network.schedule()
    assert again.thresholds == pytest.approx(schedule.thresholds) and again.steps == pytest.approx(schedule.steps)
    assert (again.tail is None) == (schedule.tail is None) and again.kind == schedule.kind
    # Once more through a network: nothing drifts.
    assert UnrolledNetwork(again, model, positive=positive).schedule().steps == pytest.approx(again.steps)


def test_an_fnn_has_an_end() -> None:
    network = UnrolledNetwork(Schedule([0.1, 0.02], [0, 1.0], tail=(1.0, 0.6)), "fnn")
    with pytest.raises(ValueError, match=r"depth=2 is beyond the 1 layers of the network; a tail would go on"):
        network.numbers(2)


@pytest.mark.parametrize(("model", "words"), [("cnn", "unknown; use one of fnn"), ("rnn", "tail=(beta, phi)")])
def test_a_model_that_does_not_fit_is_refused(model: str, words: str) -> None:
    with pytest.raises(ValueError) as refused:
        UnrolledNetwork(Schedule([0.1, 0.02], [0, 1.0]), model)
    assert f"model={model!r}" in str(refused.value) and words in str(refused.value)


def test_layers_can_be_taken_up_in_the_middle() -> None:
    case = Case()
    network = UnrolledNetwork(case.schedule("absolute", "soft", "scaled"), "frmnn")
    with torch.no_grad():
        whole = list(network.layers(case.data, 6))
        rest = list(network.layers(case.data, 6, start=(whole[2].L, whole[2].R), after=2))
    assert len(rest) == 5
    for one, other in zip(whole[2:], rest, strict=True):
        assert torch.equal(one.L, other.L) and torch.equal(one.R, other.R)


@pytest.mark.parametrize("kind", ["absolute", "adaptive"])
def test_iterates_that_run_away_are_told(kind: str) -> None:
    case = Case()
    schedule = case.schedule(kind, "redescending", "tangent")
    wild = Schedule(schedule.thresholds, [0, 1e200, 1e200, 1e200], kind=kind, update="tangent", tail=(1.0, 1.0))
    with pytest.raises(FloatingPointError, match="layer"), torch.no_grad():
        list(UnrolledNetwork(wild, "frmnn").layers(case.data, 6))


def test_factors_without_full_rank_are_told() -> None:
    case = Case()
    L, R = case.tensors()
    L[:, 0] = R[:, 0] = 0.0
    network = UnrolledNetwork(case.schedule("absolute", "soft", "scaled"), "frmnn")
    with pytest.raises(FloatingPointError, match="layer 1 cannot be computed"), torch.no_grad():
        list(network.layers(case.data, 2, start=(L, R)))


# --- gradients ---------------------------------------------------------------------------------------------


def loss_of(network: UnrolledNetwork, data: Data, depth: int, start: Any) -> Any:
    """Return the mean logarithm of the errors, as the fast way has it."""
    return torch.stack([data.log_loss(layer.L, layer.R) for layer in network.layers(data, depth, start=start)]).mean()


def gradients(network: UnrolledNetwork, data: Data, depth: int, start: Any, h: float) -> dict[str, tuple[Any, Any]]:
    """Return, by parameter, the gradient and central differences."""
    network.zero_grad()
    loss_of(network, data, depth, start).backward()
    found = {}
    for name, parameter in network.named_parameters():
        if parameter.grad is None:
            continue
        differences = torch.zeros_like(parameter)
        with torch.no_grad():
            for k, value in enumerate(parameter.tolist()):
                sides = []
                for side in (value + h, value - h):
                    parameter[k] = side
                    sides.append(float(loss_of(network, data, depth, start)))
                parameter[k] = value
                differences[k] = (sides[0] - sides[1]) / (2 * h)
        found[name] = (parameter.grad.clone(), differences.detach())
    return found


def check_gradients(found: dict[str, tuple[Any, Any]], tolerance: float) -> None:
    for name, (gradient, differences) in found.items():
        size = float(differences.abs().max())
        assert float((gradient - differences).abs().max()) <= tolerance * size + 1e-9, (name, gradient, differences)


@pytest.mark.parametrize("missing", [0.0, 0.15])
@pytest.mark.parametrize("influence", INFLUENCES)
@pytest.mark.parametrize("update", UPDATES)
def test_gradients_of_absolute_forms(influence: str, update: str, missing: float) -> None:
    case = Case((60, 50), missing)
    network = UnrolledNetwork(case.schedule("absolute", influence, update), "frmnn")
    found = gradients(network, case.data, 5, case.tensors(), 1e-5)
    assert set(found) == {"thresholds", "steps", "tail"}
    for name, (gradient, _) in found.items():
        # Every number counts: all layers of the steps, β and φ; thresholds of ψ = hard only say which entries are kept.
        used = gradient[1:] if name != "tail" else gradient
        if influence == "hard":
            used = used[:0] if name == "thresholds" else used[:1]
        assert bool((used != 0).all()), name
    check_gradients(found, 1e-7)


def test_gradients_of_plain_numbers_and_of_an_rnn() -> None:
    case = Case()
    first = 3 * case.unit
    schedule = Schedule([first, 0.6 * first], [0, 0.9], tail=(1.0, 0.6))
    for positive in (True, False):
        network = UnrolledNetwork(schedule, "rnn", positive=positive)
        found = gradients(network, case.data, 5, case.tensors(), 1e-5 if positive else 1e-5 * case.unit)
        check_gradients(found, 1e-6)


def test_gradient_of_the_first_threshold() -> None:
    # Two rounds of power iteration are differentiated: off by (σ_{r+1} / σ_r)^4, measured 2e-5 here.
    case = Case()
    network = UnrolledNetwork(Schedule([1.5 * case.unit, case.unit], [0, 0.9]), "fnn")
    gradient, differences = gradients(network, case.data, 1, None, 1e-5)["thresholds"]
    assert float(gradient[0]) == pytest.approx(float(differences[0]), rel=1e-3) and abs(float(gradient[0])) > 1e-3


def smooth_width(data: Data, L: Any, R: Any) -> Any:
    """Return a width that has a derivative everywhere."""
    return 0.5 * torch.sqrt((data.entries.residuals(L, R) ** 2).mean())


@pytest.mark.parametrize(
    ("influence", "update"), [(influence, update) for kind, influence, update in FORMS if kind == "adaptive"]
)
def test_gradients_of_adaptive_forms_are_exact_but_for_the_width(
    influence: str, update: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Data, "inlier_scale", smooth_width)
    case = Case()
    network = UnrolledNetwork(case.schedule("adaptive", influence, update, decay=0.01), "frmnn")
    found = gradients(network, case.data, 5, case.tensors(), 1e-5)
    if influence != "hard":
        assert bool((found["thresholds"][0][1:] != 0).any())
    check_gradients(found, 1e-6)


def test_the_width_has_the_exact_derivative_of_its_scale() -> None:
    case = Case()
    L, R = case.tensors()
    D = case.data.Y - L @ R.T
    shrink = torch.zeros((), dtype=torch.float64, requires_grad=True)
    # X + t D: all residuals become 1 - t of what they are.
    wide_L, wide_R = torch.cat([L, D], dim=1), torch.cat([R, shrink * torch.eye(D.shape[1], dtype=L.dtype)], dim=1)
    width = case.data.inlier_scale(wide_L, wide_R)
    (slope,) = torch.autograd.grad(width, shrink)
    with torch.no_grad():
        assert width.item() == float(case.data.inlier_scale(L, R))
    assert slope.item() == pytest.approx(-width.item(), rel=1e-9)


def test_gradients_of_adaptive_forms_point_downhill() -> None:
    # The solver's width jumps a little with every residual that changes its bin, and its derivative holds
    # probabilities fixed. Single problems give cosines of 0.83 to 0.999 between gradient and differences over 3%.
    total = [torch.zeros(6, dtype=torch.float64) for _ in range(2)]
    for seed in (1, 2, 3):
        case = Case((100, 100), seed=seed)
        network = UnrolledNetwork(case.schedule("adaptive", "redescending", "tangent", decay=0.1), "frmnn")
        found = gradients(network, case.data, 3, case.tensors(), 0.03)
        for side, _ in enumerate(total):
            total[side] += torch.cat([found[name][side][1:] for name in ("thresholds", "steps")])
    gradient, differences = total
    assert float(gradient @ differences / gradient.norm() / differences.norm()) > 0.85
    assert 0.5 < float(gradient.norm() / differences.norm()) < 2
