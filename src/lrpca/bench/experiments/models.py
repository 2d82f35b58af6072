"""Error against iteration of FNN, RNN and FRMNN, beyond the layers of training: a figure of the paper's section 4."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from lrpca.bench.experiments import methods
from lrpca.bench.experiments.drawing import ERROR, Figure
from lrpca.bench.experiments.measurement import Claim, Experiment, Measurement, Say, Setting, Setup
from lrpca.bench.experiments.methods import FREE_LAYERS, GOAL, PUBLISHED, Method, Rule
from lrpca.bench.experiments.statistics import in_words, scientific, typical
from lrpca.bench.measuring import Table
from lrpca.schedule import Schedule

FNN, RNN, FRMNN = "FNN", "RNN", "FRMNN"
SINGLE = ", single precision"
# The floor that is tried on the recurrence, and a φ that is too small for it.
FLOOR, TOO_SMALL = 2.0, 0.5
FLOORED, OFF = f"{FRMNN}, floor", f"{FRMNN}, φ halved"
OFF_FLOORED = f"{OFF}, floor"
# Below this double precision has no digits left; "machine precision" of single precision.
END, SINGLE_END = 1e-15, 1e-7
# "Without performance reduction": at most this many times the error of the FNN after its free layers.
NO_REDUCTION = 1.5
SHOWN = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 30, 40, 60)
GOALS = (GOAL, 1e-6, 1e-8, 1e-12)


def measure(setup: Setup, say: Say) -> Measurement:
    """Train the three networks and run them, and variants of the recurrence, on fresh problems."""
    trained = [
        methods.train(label, setup.base, setup, say, seed=setup.seed, model=model)
        for label, model in ((FNN, "fnn"), (RNN, "rnn"), (FRMNN, "frmnn"))
    ]
    entered = _variants(setup.base, *(schedule for schedule, _ in trained))
    told = "16 layers as trained and published by the authors, for n = 1000, rank 5"
    entered += [replace(method, told=told) for method in methods.published(setup)]
    notes = [
        "All are trained by the fast algorithm of this library, not by the paper's, in the paper's form: soft "
        "threshold, scaled step, plain numbers for this size, rank and α.",
        f"Every run goes on for {setup.max_iter} iterations, or until the error is below {END:g} (tol=0). The FNN ends "
        "with its last layer; it has as many as the published model, that of the paper's figure has 10.",
        "The paper's experiment is in single precision; here it is repeated in double precision, and the recurrent "
        "models are run in both.",
        f"The floor holds thresholds of the recurrence above {FLOOR:g} inlier scales. It is not in the paper: there φ "
        "must not be too small, as thresholds that fall faster than the error reject clean entries. Training leaves a "
        "margin for that; half of the φ it chose shows it clearly.",
        methods.published_note(setup),
    ]
    rule = Rule(setup.max_iter, tol=0, error=END)
    return methods.run_all(entered, setup, say, rule, notes, [record for _, record in trained])


def _variants(base: Setting, fnn: Schedule, rnn: Schedule, frmnn: Schedule) -> list[Method]:
    """Return the three networks and the variants of the recurrence."""
    assert frmnn.tail is not None
    beta, phi = frmnn.tail
    off = replace(frmnn, tail=(beta, TOO_SMALL * phi))
    tail = "; then β = {:.3g}, φ = {:.3g}"
    single = "the same numbers; data and arithmetic in single precision"
    told: dict[str, tuple[Schedule, str]] = {
        FNN: (fnn, f"{fnn.layers} layers with numbers of their own, no others"),
        RNN: (rnn, "layer 0 with numbers of its own" + tail.format(*(rnn.tail or (math.nan, math.nan)))),
        FRMNN: (frmnn, f"{frmnn.layers} layers with numbers of their own" + tail.format(beta, phi)),
        RNN + SINGLE: (rnn, single),
        FRMNN + SINGLE: (frmnn, single),
        FLOORED: (
            replace(frmnn, floor=FLOOR),
            f"the same numbers; thresholds of the recurrence at least {FLOOR:g} inlier scales",
        ),
        OFF: (off, f"the same numbers, but φ = {TOO_SMALL * phi:.3g}"),
        OFF_FLOORED: (replace(off, floor=FLOOR), f"φ = {TOO_SMALL * phi:.3g}, and the floor"),
    }
    return [
        Method(label, {base: {"schedule": schedule}}, words, single=label.endswith(SINGLE))
        for label, (schedule, words) in told.items()
    ]


def tables(m: Measurement) -> list[Table]:
    """Return the error after some iterations, and the iterations to some errors."""
    base = m.setup.base
    shown = [k for k in SHOWN if k <= m.setup.max_iter]
    errors, counts = [], []
    for label in m.contestants:
        errors.append([label, *(scientific(m.error_after(k, label, base)) for k in shown)])
        arrived = [in_words(m.iterations_to(goal, label, base)) for goal in GOALS]
        counts.append([label, *arrived, scientific(_last_error(m, label)), _most(m, label)])
    goals = [f"to {goal:.0e}".replace("e-0", "e-") for goal in GOALS]
    training = [[t.label, t.steps, t.seconds, scientific(t.held_out[-1])] for t in m.trainings]
    return [
        Table("Error after k iterations, median over the problems", ["", *(f"k = {k}" for k in shown)], errors),
        Table("Iterations to an error, median", ["", *goals, "last error", "iterations run"], counts),
        Table("Training", ["", "steps", "seconds", "held-out error of the last layer"], training),
    ]


def claims(m: Measurement) -> list[Claim]:
    """Compare the paper's sentences on the three models, and the published numbers, with the measurement."""
    base = m.setup.base
    mine, theirs = (m.error_after(FREE_LAYERS, label, base) or math.inf for label in (FRMNN, FNN))
    last, end = _last_error(m, FRMNN), _last_error(m, FNN)
    text = f"After {FREE_LAYERS} iterations the error is {mine:.1e}, that of the FNN {theirs:.1e}. "
    text += f"The FNN ends at {end:.1e}, the FRMNN at {last:.1e}."
    paper = "“FRMNN model extends FNN model to infinite layers”, without performance reduction"
    found = [Claim(paper, FRMNN, text, mine <= NO_REDUCTION * theirs and last < end)]
    rnn, frmnn = (m.iterations_to(GOAL, label, base) for label in (RNN, FRMNN))
    text = f"Iterations to 1e-4, median: {in_words(rnn)} against {in_words(frmnn)} of the FRMNN."
    found.append(Claim("“the pure RNN model drops the convergence performance”", RNN, text, rnn > frmnn))
    paper = "“the convergence curves of both FRMNN and RNN go down till they reach O(10⁻⁸)”, single precision"
    for label in (FRMNN, RNN):
        last = _last_error(m, label + SINGLE)
        text = f"The last error is {last:.1e}; in double precision {_last_error(m, label):.1e}."
        found.append(Claim(paper, label + SINGLE, text, last < SINGLE_END))
    if PUBLISHED in m.contestants:
        found += [_beside_the_published(m, label) for label in (FNN, FRMNN)]
    return found


def _beside_the_published(m: Measurement, label: str) -> Claim:
    """Return whether a model is at least as good as the published one after every iteration of that one."""
    ratios = {}
    for k in range(1, _most(m, PUBLISHED) + 1):
        a, b = (m.error_after(k, name, m.setup.base) for name in (label, PUBLISHED))
        ratios[k] = a / b if a is not None and b else math.inf
    worst, best = max(ratios, key=lambda k: ratios[k]), min(ratios, key=lambda k: ratios[k])
    text = f"Median errors after {len(ratios)} iterations are between {ratios[best]:.2g} (k = {best}) and "
    text += f"{ratios[worst]:.2g} (k = {worst}) times those of the published model."
    return Claim("The errors of the published model", label, text, ratios[worst] <= 1)


def draw(m: Measurement, figure: Figure) -> None:
    """Draw the median error against the iteration: the models, and beside them the recurrence with its floor."""
    panels = figure.subplots(1, 2, sharey=True)
    left = {FNN: ("C1", "-"), RNN: ("C2", "-"), FRMNN: ("C0", "-"), PUBLISHED: ("C3", "--")}
    left |= {RNN + SINGLE: ("C2", ":"), FRMNN + SINGLE: ("C0", ":")}
    right = {FRMNN: ("C0", "-"), FLOORED: ("C0", "--"), OFF: ("C1", "-"), OFF_FLOORED: ("C1", "--")}
    titles = ("three models", "the recurrence, and the floor")
    for axes, styles, title in zip(panels, (left, right), titles, strict=True):
        for label, (colour, dashes) in styles.items():
            if label in m.contestants:
                where = range(1, _most(m, label) + 1)
                errors = [m.error_after(k, label, m.setup.base) or math.nan for k in where]
                axes.plot(where, errors, label=label, linewidth=1.8, color=colour, linestyle=dashes)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
        axes.axvline(FREE_LAYERS, color="0.6", linewidth=0.8, zorder=0)
        axes.text(FREE_LAYERS, 0.97, " K = 10", transform=axes.get_xaxis_transform(), fontsize="small", color="0.5")
        limits: dict[str, Any] = {"ylim": (END / 3, None), "xlim": (1, m.setup.max_iter)}
        axes.set(yscale="log", title=title, xlabel="iteration", **limits)
    panels[0].set_ylabel(ERROR)


def _last_error(m: Measurement, label: str) -> float:
    return typical(run.errors[-1] for run in m.of(label, m.setup.base) if run.errors)


def _most(m: Measurement, label: str) -> int:
    """Return the largest number of iterations of a model."""
    return max(len(run.errors) for run in m.of(label, m.setup.base))


EXPERIMENT = Experiment(
    *(measure, tables, claims, draw),
    name="models",
    title="Three kinds of network",
    summary="the error after every iteration of FNN, RNN and FRMNN, of the last two also after their last layer",
    source="figure “Convergence comparison for FNN-based, RNN-based, and FRMNN-based learning”",
    full=Setup((Setting(1000),), repeat=10, max_iter=100),
    quick=Setup((Setting(200),), repeat=2, max_iter=60, steps=30),
    criteria=f"“Without performance reduction” is confirmed where after {FREE_LAYERS} iterations the median error of "
    f"the FRMNN is at most {NO_REDUCTION:g} times that of the FNN, and its last one lower; “drops”, where the RNN "
    f"needs more iterations to 1e-4; “O(10⁻⁸)”, where the last error is below {SINGLE_END:g}. The errors of the "
    "published model are matched where after each of its iterations ours is at most as large.",
    figure_size=(11.0, 5.4),
    packages=("torch",),
)
