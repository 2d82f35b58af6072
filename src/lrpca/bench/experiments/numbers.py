"""The thresholds and steps that are learned, layer by layer: two figures of the paper's supplement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import lrpca
from lrpca.bench.experiments import measurement, methods
from lrpca.bench.experiments.drawing import Figure, draw_range, legend_below
from lrpca.bench.experiments.measurement import Claim, Measurement, Run, Say, Setting, Setup, Training, shares
from lrpca.bench.experiments.methods import FREE_LAYERS, PUBLISHED
from lrpca.bench.experiments.statistics import digits, typical
from lrpca.bench.measuring import Table
from lrpca.schedule import Schedule

OURS = "LRPCA, trained here"
THEOREM_LABEL = "ζ of the theorem, along our iterates"
# The published models have 16 layers.
LAYERS = 16
# The theorem's steps.
LEAST_STEP, MOST_STEP = 1 / 4, 8 / 9
# "Exponential": a straight line explains at least this part of the variance of log ζ.
STRAIGHT = 0.9
# "Aggressive in the first several steps": so many.
FIRST = 3


def measure(setup: Setup, say: Say) -> Measurement:
    """Train in the paper's form for every share of outliers; record what was learned and what was published."""
    trainings = [
        methods.train(OURS, setting, setup, say, seed=setup.seed + i)[1]
        for i in range(setup.repeat)
        for setting in setup.settings
    ]
    runs = [_follow(training, setup.seed) for training in trainings[: len(setup.settings)]]
    contestants = {OURS: f"FRMNN of K = {FREE_LAYERS} layers in the paper's form, trained by the fast algorithm"}
    for setting in setup.settings:
        if (schedule := methods.published_model(setting.alpha)) is not None:
            scaled = schedule.scaled_to((setting.n, setting.n), setting.rank)
            # Trained elsewhere.
            trainings.append(Training(PUBLISHED, setting, 0, 0, 0, 0.0, (), [*scaled.thresholds], [*scaled.steps]))
            contestants[PUBLISHED] = "16 layers as published; thresholds are scaled to other n by the paper's rule"
    notes = [
        f"Beyond layer {FREE_LAYERS} the numbers of the FRMNN follow its recurrence.",
        "The theorem asks for ζ_0 = ‖X*‖∞ and ζ_k = ‖X_{k-1} − X*‖∞, and for steps between 1/4 and 8/9. It says that "
        "such numbers suffice for few enough outliers, not that others fail. Its thresholds are computed here along "
        "the iterates of our models, on one problem for each α, from an X* that only the experiment knows.",
        methods.published_note(setup),
    ]
    return Measurement(setup, contestants, runs, trainings, notes=notes)


def _follow(training: Training, seed: int) -> Run:
    """Run a model on a problem, and record the thresholds of the theorem along its iterates."""
    import torch

    learn = lrpca.learn
    problem = training.setting.draw(seed)
    theorem, errors = [float(np.abs(problem.X).max())], []
    with torch.no_grad():
        shown = learn.tensors.prepare(learn.problems.TrainingProblem(problem.Y, problem.rank))
        for layer in learn.UnrolledNetwork(_schedule(training)).layers(shown, LAYERS):
            X = (layer.L @ layer.R.T).numpy()
            theorem.append(float(np.abs(X - problem.X).max()))
            errors.append(problem.error(X))
    rounded = [[float(f"{value:.4g}") for value in values] for values in (errors[1:], theorem[: LAYERS + 1])]
    return Run(OURS, training.setting, seed, "max_iter", errors=rounded[0], theorem=rounded[1])


def _schedule(training: Training) -> Schedule:
    return Schedule(training.thresholds, training.step_sizes, tail=training.tail)


def learned(training: Training) -> tuple[list[float], list[float]]:
    """Return thresholds of layers 0 to 16 and steps of layers 1 to 16, as far as there are any.

    Examples
    --------
    >>> t = Training("", Setting(60), 0, 1, 1, 1.0, (), (8.0, 4.0, 2.0), (0.0, 1.0, 0.5), (1.0, 0.5))
    >>> learned(t)[0][:4], learned(t)[1][:3]
    ([8.0, 4.0, 2.0, 1.0], [1.0, 0.5, 0.5])
    """
    schedule = _schedule(training)
    pairs = [pair for k in range(1, LAYERS + 1) if (pair := schedule.at(k)) is not None]
    return [training.thresholds[0], *(threshold for threshold, _ in pairs)], [step for _, step in pairs]


def middle(m: Measurement, label: str, setting: Setting) -> tuple[list[float], list[float]]:
    """Return the median over the trainings of every threshold and step."""
    both = [learned(training) for training in m.trained(label, setting)]
    thresholds, steps = ([typical(values) for values in zip(*lists, strict=False)] for lists in zip(*both, strict=True))
    return thresholds, steps


def tables(m: Measurement) -> list[Table]:
    """Return thresholds, steps, and a summary of them."""
    pairs = [(label, setting) for setting in m.setup.settings for label in m.contestants if m.trained(label, setting)]
    columns = ["k", *(f"α = {setting.alpha:g}, {_short(label)}" for label, setting in pairs)]
    numbers = [middle(m, label, setting) for label, setting in pairs]
    thresholds, steps = [], []
    for k in range(LAYERS + 1):
        thresholds.append([k, *(f"{each[k]:.2e}" if k < len(each) else None for each, _ in numbers)])
        steps.append([k, *(digits(each[k - 1], 3) if k <= len(each) else None for _, each in numbers)])
    summary = [[setting.alpha, label, *_summary(m, label, setting)] for label, setting in pairs]
    about = ["α", "", f"ζ_k / ζ_(k-1), layers 1 to {FREE_LAYERS}", "R² of log ζ", "β, φ"]
    return [
        Table("Thresholds ζ_k, median over the trainings", columns, thresholds),
        Table("Steps η_k, median over the trainings", columns, steps[1:]),
        Table("What was learned", [*about, "ζ_k / the theorem's, median", "layers with η above 8/9"], summary),
    ]


def _summary(m: Measurement, label: str, setting: Setting) -> list[Any]:
    """Return decay, tail, ratio to the theorem's thresholds, and the layers with large steps."""
    thresholds, steps = middle(m, label, setting)
    factor, straight = decay(thresholds)
    above = ", ".join(str(k) for k, step in enumerate(steps, start=1) if step > MOST_STEP) or "none"
    tails = [training.tail for training in m.trained(label, setting) if training.tail]
    tail = ", ".join(f"{typical(values):.3g}" for values in zip(*tails, strict=True)) if tails else None
    theorem = next((run.theorem for run in m.of(label, setting)), None)
    # Only the free layers: past them the thresholds of the recurrence may fall faster.
    ratios = zip(thresholds[1 : FREE_LAYERS + 1], (theorem or ())[1:], strict=False)
    share = digits(typical(z / t for z, t in ratios), 3) if theorem else None
    return [digits(factor, 3), digits(straight, 3), tail, share, above]


def decay(thresholds: Sequence[float]) -> tuple[float, float]:
    """Return the factor per layer of the free thresholds, and how much of log ζ a straight line explains (R²).

    Examples
    --------
    >>> [round(value, 6) for value in decay([9.0] + [0.5**k for k in range(10)])]
    [0.5, 1.0]
    """
    logs = np.log(thresholds[1 : FREE_LAYERS + 1])
    layers = np.arange(len(logs))
    slope, start = np.polyfit(layers, logs, 1)
    left = float(((logs - slope * layers - start) ** 2).sum())
    return math.exp(slope), 1 - left / max(float(((logs - logs.mean()) ** 2).sum()), 1e-300)


def claims(m: Measurement) -> list[Claim]:
    """Compare the paper's two sentences with what was learned."""
    found = []
    for label in m.contestants:
        settings = [setting for setting in m.setup.settings if m.trained(label, setting)]
        numbers = {setting.alpha: middle(m, label, setting) for setting in settings}
        lines = {alpha: decay(thresholds) for alpha, (thresholds, _) in numbers.items()}
        text = "; ".join(f"α = {a:g}: a factor of {f:.2g} per layer, R² = {r:.3f}" for a, (f, r) in lines.items())
        exponential = all(factor < 1 and straight >= STRAIGHT for factor, straight in lines.values())
        text = f"Layers 1 to {FREE_LAYERS}, {text}."
        found.append(Claim("“the trained thresholdings decay in an exponential rate”", label, text, exponential))
        means = {
            alpha: (float(np.mean(steps[:FIRST])), float(np.mean(steps[FREE_LAYERS - FIRST : FREE_LAYERS])))
            for alpha, (_, steps) in numbers.items()
        }
        text = "; ".join(f"α = {a:g}: {early:.3g}, then {late:.3g}" for a, (early, late) in means.items())
        text = f"Mean of the first {FIRST} steps, and of the last {FIRST} up to layer {FREE_LAYERS}: {text}."
        paper = (
            "“η_k takes larger value when k is small”: “very aggressively with large step sizes in the first several "
            "steps”, conservative after that"
        )
        found.append(Claim(paper, label, text, all(early > late for early, late in means.values())))
    return found


def draw(m: Measurement, figure: Figure) -> None:
    """Draw steps and thresholds against the layer; the range over the trainings is shaded."""
    right, left = figure.subplots(1, 2)[::-1]
    for i, setting in enumerate(m.setup.settings):
        for label in (label for label in m.contestants if m.trained(label, setting)):
            curves = [learned(training) for training in m.trained(label, setting)]
            style: dict[str, Any] = {"color": f"C{i}", "label": f"α = {setting.alpha:g}, {_short(label)}"}
            if label == PUBLISHED:
                style |= {"linestyle": "--", "linewidth": 1.2}
            else:
                style |= {"marker": "o", "markersize": 3.5, "linewidth": 1.6}
            for first, axes in enumerate((right, left)):
                draw_range(axes, first, [curve[first] for curve in curves], **style)
        for run in m.of(OURS, setting):
            layers = range(len(run.theorem))
            right.plot(layers, run.theorem, ":", color=f"C{i}", linewidth=1.2, label=None if i else THEOREM_LABEL)
    left.axhspan(LEAST_STEP, MOST_STEP, color="0.5", alpha=0.15, linewidth=0, label="η of the theorem, 1/4 to 8/9")
    left.set(ylim=(0, None), ylabel="step η")
    right.set(yscale="log", ylabel="threshold ζ")
    for axes in (left, right):
        axes.axvline(FREE_LAYERS, color="0.6", linewidth=0.8, zorder=0)
        axes.set_xlabel("layer")
    legend_below(figure, [left, right])


def _short(label: str) -> str:
    return "ours" if label == OURS else "published"


EXPERIMENT = measurement.Experiment(
    *(measure, tables, claims, draw),
    name="numbers",
    title="What is learned",
    summary="the learned thresholds and steps, layer by layer, beside the published ones",
    source="figures “Trained step sizes” and “Trained thresholdings” of the supplement",
    full=Setup(shares(1000, 0.1, 0.2, 0.3), repeat=3, repeated="trainings"),
    quick=Setup(shares(200, 0.1, 0.3), repeat=1, repeated="trainings", steps=30),
    criteria=f"“Exponential” is confirmed where a straight line explains at least {STRAIGHT:g} of the variance of log "
    f"ζ over layers 1 to {FREE_LAYERS}, at every α; “larger when k is small”, where the mean of the first {FIRST} "
    f"steps is above that of the last {FIRST} of those layers, at every α.",
    figure_size=(11.0, 5.0),
    packages=("torch",),
)
