"""Seconds of training, by size, rank and share of outliers: a table of the paper's supplement."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import lrpca
from lrpca.bench.experiments import methods
from lrpca.bench.experiments.drawing import Figure, legend_below
from lrpca.bench.experiments.measurement import Claim, Experiment, Measurement, Say, Setting, Setup, Training
from lrpca.bench.experiments.statistics import digits, mean_and_deviation
from lrpca.bench.measuring import Table

ADAPTIVE, PAPER_FORM = "fast, adaptive form", "fast, the paper's form"
PAPER_WAY = "the paper's way, extrapolated"
THE_PAPER = "the paper, two RTX-3080"
# The paper's table, in seconds.
PAPER = {
    Setting(1000): 1208,
    Setting(1000, alpha=0.2): 1209,
    Setting(1000, alpha=0.3): 1208,
    Setting(3000): 1615,
    Setting(5000): 2405,
    Setting(1000, rank=10): 1236,
    Setting(1000, rank=15): 1249,
}
# The network of the released script: the initialisation and 14 layers, which take the paper's 17 500 steps.
PAPER_LAYERS = 14
# Layers whose error is shown.
SHOWN = (0, 3, 5, 10, 15)
# "Does not depend on": the slowest takes at most this many times as long as the fastest. "Not proportional": at most
# this part of the growth of the number of entries.
INSENSITIVE, NOT_PROPORTIONAL = 1.25, 0.5


def measure(setup: Setup, say: Say) -> Measurement:
    """Train by the fast algorithm in both forms, and time some steps of the paper's algorithm."""
    say("loading compiled code (compiling on first use)")
    for form in ("adaptive", "paper"):
        lrpca.learn.train(rank=2, shape=(60, 60), steps=2, form=form)
    trainings: list[Training] = []
    for i in range(setup.repeat):
        for setting in setup.settings:
            for label, form in ((ADAPTIVE, "adaptive"), (PAPER_FORM, "paper")):
                trainings.append(methods.train(label, setting, setup, say, seed=setup.seed + i, form=form)[1])
            say(f"timing the paper's algorithm, {setting}")
            trainings.append(time_paper_way(setting, setup.timed_steps, setup.seed + i))
    contestants = {
        ADAPTIVE: "thresholds in units of the inlier scale, redescending influence, tangent step; trained on problems "
        "of at most 300 x 300, whatever n is",
        PAPER_FORM: "FRMNN of soft threshold and scaled step, K = 10, trained on problems of that size",
        PAPER_WAY: f"layer after layer, {PAPER_LAYERS} layers and the initialisation, 17 500 steps of which "
        f"{setup.timed_steps} were made",
    }
    notes = [
        "Seconds of the fast algorithm are those of the whole call of lrpca.learn.train: drawing problems, all steps, "
        "and twenty evaluations on held-out problems. Compilation is not counted.",
        f"The paper's algorithm was not run to its end: {setup.timed_steps} steps, spread evenly over its stages, were "
        "timed, drawing the problem included, and the mean was multiplied by the number of steps. Evaluations are not "
        "included.",
        "The paper's seconds are of two RTX-3080 GPUs and of the authors' program; all others are of this machine, "
        "without a GPU.",
    ]
    return Measurement(setup, contestants, trainings=trainings, notes=notes)


def time_paper_way(setting: Setting, timed: int, seed: int) -> Training:
    """Time some steps of the paper's algorithm, spread evenly over all of them, and extrapolate."""
    learn = lrpca.learn
    source = learn.problems.PaperProblems((setting.n, setting.n), setting.rank, setting.alpha)
    trainer = learn.paper.PaperTrainer(source, seed=seed, model="fnn", layers=PAPER_LAYERS, depth=PAPER_LAYERS)
    counts = spread([stage.steps for stage in trainer.stages], timed)
    spent = 0.0
    # As `lrpca.learn.train` runs it.
    with learn.trainer.torch_settings("cpu"):
        # The first step of all is slower, as memory is fetched and code is loaded: one of the deepest is not counted.
        trainer.go_to(len(trainer.stages) - 1)
        trainer.step()
        for index, count in counts.items():
            trainer.go_to(index)
            began = time.perf_counter()
            for _ in range(count):
                trainer.step()
            spent += time.perf_counter() - began
    made = sum(counts.values())
    return Training(PAPER_WAY, setting, seed, trainer.total, made, float(f"{trainer.total * spent / made:.4g}"))


def spread(steps: Sequence[int], some: int) -> dict[int, int]:
    """Return how many of some steps, spread evenly over all stages, fall into each stage.

    Examples
    --------
    >>> spread([100, 300, 100], 5)
    {0: 1, 1: 3, 2: 1}
    """
    stage_of = [index for index, count in enumerate(steps) for _ in range(count)]
    return dict(Counter(stage_of[int((i + 0.5) * len(stage_of) / some)] for i in range(some)))


def seconds(m: Measurement, label: str, setting: Setting) -> float:
    """Return the mean time of a training."""
    return mean_and_deviation(training.seconds for training in m.trained(label, setting))[0]


def tables(m: Measurement) -> list[Table]:
    """Return the paper's table with our columns, and the errors of the models."""
    rows: list[list[Any]] = []
    reached: list[list[Any]] = []
    for setting in m.setup.settings:
        times = [seconds(m, label, setting) for label in (ADAPTIVE, PAPER_FORM, PAPER_WAY)]
        paper = PAPER.get(setting)
        ratio = digits(paper / times[1], 3) if paper else None
        rows.append(
            [str(setting), paper, *(digits(value, 3) for value in times), ratio, digits(times[2] / times[1], 3)]
        )
        for label in (ADAPTIVE, PAPER_FORM):
            first = m.trained(label, setting)[0]
            errors = [f"{first.held_out[k]:.1e}" if k < len(first.held_out) else None for k in SHOWN]
            reached.append([str(setting), label, first.steps, *errors])
    columns = ["setting", "the paper", "fast, adaptive form", "fast, its form", "its way, extrapolated"]
    caption = "Seconds of training: the paper's on two RTX-3080; ratios to the fast algorithm in the paper's form"
    shown = ["setting", "", "steps", "start", *(f"layer {k}" for k in SHOWN[1:])]
    return [
        Table(caption, [*columns, "paper / fast", "extrapolated / fast"], rows),
        Table("What the fast algorithm reaches: error on held-out problems", shown, reached),
    ]


def claims(m: Measurement) -> list[Claim]:
    """Compare the paper's seconds, and its statements about them, with the measurement."""
    found = []
    if known := _known(m):
        table = f"Training takes {', '.join(str(PAPER[setting]) for setting in known)} s for "
        table += "; ".join(map(str, known))
        for label in (ADAPTIVE, PAPER_FORM):
            mine = [seconds(m, label, setting) for setting in known]
            shorter = all(value <= PAPER[setting] for value, setting in zip(mine, known, strict=True))
            shown = ", ".join(f"{value:.3g}" for value in mine)
            found.append(Claim(table, label, f"{shown} s, on this machine.", shorter))
    base = m.setup.base
    by_size = [s for s in m.setup.settings if (s.rank, s.alpha) == (base.rank, base.alpha)]
    by_share = [s for s in m.setup.settings if (s.n, s.rank) == (base.n, base.rank)]
    for label in m.contestants:
        if len(by_size) > 1:
            low, high = min(by_size, key=lambda s: s.n), max(by_size, key=lambda s: s.n)
            growth, entries = seconds(m, label, high) / seconds(m, label, low), (high.n / low.n) ** 2
            text = f"n = {high.n} takes {growth:.3g} times as long as n = {low.n}, with {entries:.3g} times the "
            text += "entries."
            paper = "“the training time is not proportional to the problem size due to the high concurrency of GPU "
            found.append(Claim(f"{paper}computing”", label, text, growth <= NOT_PROPORTIONAL * entries))
        if len(by_share) > 1:
            times = [seconds(m, label, setting) for setting in by_share]
            text = f"{', '.join(f'{value:.3g}' for value in times)} s at α = "
            text += ", ".join(f"{s.alpha:g}" for s in by_share) + "."
            paper = "The time of training does not depend on α: 1208, 1209, 1208 s"
            found.append(Claim(paper, label, text, max(times) <= INSENSITIVE * min(times)))
    return found


def _known(m: Measurement) -> list[Setting]:
    """Return the settings that are in the paper's table."""
    return [setting for setting in m.setup.settings if setting in PAPER]


def draw(m: Measurement, figure: Figure) -> None:
    """Draw bars of the seconds for each setting, the paper's among them."""
    axes = figure.subplots()
    colours = {THE_PAPER: "0.6", PAPER_WAY: "C1", PAPER_FORM: "C0", ADAPTIVE: "C2"}
    labels = [label for label in colours if label != THE_PAPER or _known(m)]
    width = 0.8 / len(labels)
    for k, label in enumerate(labels):
        heights = [PAPER.get(s, 0) if label == THE_PAPER else seconds(m, label, s) for s in m.setup.settings]
        where = [i + (k - (len(labels) - 1) / 2) * width for i in range(len(heights))]
        # Hatched: extrapolated.
        hatch = "///" if label == PAPER_WAY else None
        bars = axes.bar(where, heights, width, label=label, color=colours[label], hatch=hatch)
        texts = [f"{height:.0f}" if height >= 100 else f"{height:.3g}" if height else "" for height in heights]
        axes.bar_label(bars, texts, fontsize="x-small", padding=2)
    axes.set(yscale="log", ylabel="seconds of training")
    axes.margins(y=0.12)
    names = [f"n = {s.n}\nr = {s.rank}\nα = {s.alpha:g}" for s in m.setup.settings]
    axes.set_xticks(range(len(names)), names)
    legend_below(figure, [axes])


EXPERIMENT = Experiment(
    *(measure, tables, claims, draw),
    name="training-time",
    title="Time of training",
    summary="seconds to train a model, for several sizes, ranks and shares of outliers",
    source="table “Training time summary” of the supplement",
    full=Setup(tuple(PAPER), repeat=1, repeated="trainings", timed_steps=50),
    quick=Setup(
        (Setting(150), Setting(150, alpha=0.2), Setting(300), Setting(150, rank=10)),
        repeat=1,
        repeated="trainings",
        steps=6,
        timed_steps=6,
    ),
    criteria="The paper's seconds are matched where no setting takes longer, on whatever machine; “not proportional”, "
    f"where the largest n takes at most {NOT_PROPORTIONAL:g} times what its number of entries would make of the time "
    f"of the smallest; “does not depend on α”, where the slowest α takes at most {INSENSITIVE:g} times as long as the "
    "fastest.",
    figure_size=(11.0, 5.0),
    packages=("torch",),
)
