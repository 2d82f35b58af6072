"""Error against iteration of FNN, RNN and FRMNN, beyond the layers of training: a figure of the paper's section 4."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from lrpca.bench.experiments.learning import (
    FREE_LAYERS,
    LearningMeasurement,
    LearningSetup,
    Setting,
    draw_problem,
    error_after,
    run_model,
    train,
)
from lrpca.bench.experiments.measurement import Claim, Experiment, Say, Table
from lrpca.bench.experiments.methods import GOAL, PUBLISHED, published_model, published_note
from lrpca.bench.experiments.statistics import in_words, typical
from lrpca.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FNN, RNN, FRMNN = "FNN", "RNN", "FRMNN"
SINGLE = ", single precision"
# The floor that is tried on the recurrence, and a φ that is too small for it.
FLOOR, TOO_SMALL = 2.0, 0.5
FLOORED, OFF = f"{FRMNN}, floor", f"{FRMNN}, φ halved"
OFF_FLOORED = f"{OFF}, floor"
# Below this double precision has no digits left; "machine precision" of single precision.
END, SINGLE_END = 1e-15, 1e-7
DOUBLE_END = 1e-12
# "Without performance reduction": at most this many times the error of the FNN after its free layers.
NO_REDUCTION = 1.5
SHOWN = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 30, 40, 60)
GOALS = (GOAL, 1e-6, 1e-8, DOUBLE_END)


def measure(setup: LearningSetup, say: Say) -> LearningMeasurement:
    """Train the three networks and run them, and variants of the recurrence, on fresh problems."""
    base = setup.base
    trained = [
        train(label, base, setup, say, seed=setup.seed, model=model)
        for label, model in ((FNN, "fnn"), (RNN, "rnn"), (FRMNN, "frmnn"))
    ]
    models, told = _variants(*(schedule for schedule, _ in trained))
    if (schedule := published_model(base.alpha)) is not None:
        models[PUBLISHED] = schedule
        told[PUBLISHED] = "16 layers as trained and published by the authors, for n = 1000, rank 5"
    ends: dict[str, Any] = {"max_iter": setup.max_iter, "stop_at_error": END}
    runs = []
    for i in range(setup.repeat):
        say(f"problem {i + 1} of {setup.repeat}: {base}")
        seed = setup.seed + i
        problem = draw_problem(base, seed)
        single = replace(problem, Y=problem.Y.astype(np.float32))
        for label, schedule in models.items():
            runs.append(run_model(label, schedule, single if label.endswith(SINGLE) else problem, base, seed, **ends))
    notes = [
        "All are trained by the fast way of this library, not by the paper's, in the paper's form: soft threshold, "
        "scaled step, plain numbers for this size, rank and α.",
        f"Every run goes on for {setup.max_iter} iterations, or until the error is below {END:g}, whatever its own "
        "rule would say (tol=0). The FNN ends with its last layer; it has as many as the published model, that of the "
        "paper's figure has 10.",
        "The paper's experiment is in single precision; here it is repeated in double precision, and the recurrent "
        "models are run in both.",
        f"The floor holds thresholds of the recurrence above {FLOOR:g} times the width of the clean residuals. It is "
        "not in the paper: there φ must not be too small, as thresholds that fall faster than the error leave the "
        "iterate behind. Training leaves a margin for that; it takes half of the φ it chose to see it clearly.",
        published_note([base.alpha]),
    ]
    return LearningMeasurement(setup, told, tuple(record for _, record in trained), tuple(runs), tuple(notes))


def _variants(fnn: Schedule, rnn: Schedule, frmnn: Schedule) -> tuple[dict[str, Schedule], dict[str, str]]:
    """Return what is run, by label, and how it was made."""
    assert frmnn.tail is not None
    beta, phi = frmnn.tail
    small = TOO_SMALL * phi
    off = replace(frmnn, tail=(beta, small))
    tail = "; then β = {:.3g}, φ = {:.3g}"
    models = {FNN: fnn, RNN: rnn, FRMNN: frmnn, RNN + SINGLE: rnn, FRMNN + SINGLE: frmnn}
    models |= {FLOORED: replace(frmnn, floor=FLOOR), OFF: off, OFF_FLOORED: replace(off, floor=FLOOR)}
    told = {
        FNN: f"{fnn.layers} layers with numbers of their own, no others",
        RNN: "layer 0 with numbers of its own" + tail.format(*(rnn.tail or (math.nan, math.nan))),
        FRMNN: f"{frmnn.layers} layers with numbers of their own" + tail.format(beta, phi),
        RNN + SINGLE: "the same numbers; data and arithmetic in single precision",
        FRMNN + SINGLE: "the same numbers; data and arithmetic in single precision",
        FLOORED: f"the same numbers; thresholds of the recurrence not below {FLOOR:g} widths of the clean residuals",
        OFF: f"the same numbers, but φ = {small:.3g}",
        OFF_FLOORED: f"φ = {small:.3g}, and the floor",
    }
    return models, told


def tables(m: LearningMeasurement) -> list[Table]:
    """Return the error after some iterations, and the iterations to some errors."""
    base = m.setup.base
    shown = [k for k in SHOWN if k <= m.setup.max_iter]
    errors, counts = [], []
    for label in m.contestants:
        runs = m.ran(label, base)
        errors.append([label, *(_scientific(error_after(runs, k)) for k in shown)])
        arrived = [in_words(m.iterations_to(goal, label, base)) for goal in GOALS]
        counts.append([label, *arrived, _scientific(_last_error(m, label)), max(len(run.errors) for run in runs)])
    goals = [f"to {goal:.0e}".replace("e-0", "e-") for goal in GOALS]
    training = [[t.label, t.steps, t.seconds, _scientific(t.held_out[-1])] for t in m.trainings]
    return [
        Table("Error after k iterations, median over the problems", ["", *(f"k = {k}" for k in shown)], errors),
        Table("Iterations to an error, median", ["", *goals, "last error", "iterations run"], counts),
        Table("Training", ["", "steps", "seconds", "held-out error after the last layer judged"], training),
    ]


def claims(m: LearningMeasurement) -> list[Claim]:
    """Hold the paper's sentences on the three models, and the published numbers, against the measurement."""
    found = [_extension(m), _worse(m)]
    paper = "“the convergence curves of both FRMNN and RNN go down till they reach O(10⁻⁸)”, single precision"
    for label in (FRMNN, RNN):
        last = _last_error(m, label + SINGLE)
        text = f"The last error is {last:.1e}; in double precision {_last_error(m, label):.1e}."
        found.append(Claim(paper, label + SINGLE, text, last < SINGLE_END))
    if PUBLISHED in m.contestants:
        found += [_beside_the_published(m, label) for label in (FNN, FRMNN)]
    return found


def _extension(m: LearningMeasurement) -> Claim:
    fnn, frmnn = m.ran(FNN, m.setup.base), m.ran(FRMNN, m.setup.base)
    mine, theirs = (error_after(runs, FREE_LAYERS) or math.inf for runs in (frmnn, fnn))
    last, end = _last_error(m, FRMNN), _last_error(m, FNN)
    text = f"After {FREE_LAYERS} iterations the error is {mine:.1e}, that of the FNN {theirs:.1e}. "
    text += f"The FNN ends at {end:.1e}, the FRMNN at {last:.1e}."
    paper = "“FRMNN model extends FNN model to infinite layers”, without performance reduction"
    return Claim(paper, FRMNN, text, mine <= NO_REDUCTION * theirs and last < end)


def _worse(m: LearningMeasurement) -> Claim:
    rnn, frmnn = (m.iterations_to(GOAL, label, m.setup.base) for label in (RNN, FRMNN))
    text = f"Iterations to 1e-4, median: {in_words(rnn)} against {in_words(frmnn)} of the FRMNN."
    return Claim("“the pure RNN model drops the convergence performance”", RNN, text, rnn > frmnn)


def _beside_the_published(m: LearningMeasurement, label: str) -> Claim:
    """Return whether a model is at least as good as the published one after every iteration of that one."""
    theirs, mine = (m.ran(name, m.setup.base) for name in (PUBLISHED, label))
    ratios = {}
    for k in range(1, max(len(run.errors) for run in theirs) + 1):
        a, b = error_after(mine, k), error_after(theirs, k)
        ratios[k] = a / b if a is not None and b else math.inf
    worst, best = max(ratios, key=lambda k: ratios[k]), min(ratios, key=lambda k: ratios[k])
    text = f"Median errors after {len(ratios)} iterations are between {ratios[best]:.2g} (k = {best}) and "
    text += f"{ratios[worst]:.2g} (k = {worst}) times those of the published model."
    return Claim("The errors of the published model", label, text, ratios[worst] <= 1)


def draw(m: LearningMeasurement, figure: Figure) -> None:
    """Draw the median error against the iteration: the models, and beside them the recurrence with its floor."""
    panels = figure.subplots(1, 2, sharey=True)
    left = {FNN: ("C1", "-"), RNN: ("C2", "-"), FRMNN: ("C0", "-"), PUBLISHED: ("C3", "--")}
    left |= {RNN + SINGLE: ("C2", ":"), FRMNN + SINGLE: ("C0", ":")}
    right = {FRMNN: ("C0", "-"), FLOORED: ("C0", "--"), OFF: ("C1", "-"), OFF_FLOORED: ("C1", "--")}
    for axes, looks, title in zip(
        panels, (left, right), ("three models", "the recurrence, and the floor"), strict=True
    ):
        for label, (colour, dashes) in looks.items():
            if label in m.contestants:
                _draw_curve(axes, m, label, color=colour, linestyle=dashes)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
        axes.axvline(FREE_LAYERS, color="0.6", linewidth=0.8, zorder=0)
        axes.text(FREE_LAYERS, 0.97, " K = 10", transform=axes.get_xaxis_transform(), fontsize="small", color="0.5")
        axes.set_yscale("log")
        axes.set_ylim(END / 3, None)
        axes.set_xlim(1, m.setup.max_iter)
        axes.set_title(title)
        axes.set_xlabel("iteration")
    panels[0].set_ylabel("‖X − X*‖ / ‖X*‖")


def _draw_curve(axes: Axes, m: LearningMeasurement, label: str, **look: Any) -> None:
    runs = m.ran(label, m.setup.base)
    where = range(1, max(len(run.errors) for run in runs) + 1)
    axes.plot(where, [error_after(runs, k) or math.nan for k in where], label=label, linewidth=1.8, **look)


def _last_error(m: LearningMeasurement, label: str) -> float:
    return typical(run.errors[-1] for run in m.ran(label, m.setup.base) if run.errors)


def _scientific(error: float | None) -> str | None:
    return None if error is None else f"{error:.1e}"


EXPERIMENT = Experiment(
    name="models",
    title="Three kinds of network",
    summary="the error after every iteration of FNN, RNN and FRMNN, the recurrent ones far beyond their own layers",
    source="figure “Convergence comparison for FNN-based, RNN-based, and FRMNN-based learning”",
    full=LearningSetup((Setting(1000),), repeat=10, max_iter=100),
    quick=LearningSetup((Setting(200),), repeat=2, max_iter=60, steps=30),
    measure=measure,
    tables=tables,
    claims=claims,
    draw=draw,
    criteria=f"“Without performance reduction” is confirmed where after {FREE_LAYERS} iterations the median error of "
    f"the FRMNN is at most {NO_REDUCTION:g} times that of the FNN, and its last one lower; “drops”, where the RNN "
    f"needs more iterations to 1e-4; “O(10⁻⁸)”, where the last error is below {SINGLE_END:g}. The errors of the "
    "published model are matched where after each of its iterations ours is at most as large.",
    kind=LearningMeasurement,
    figure_size=(11.0, 5.4),
    packages=("torch",),
)
