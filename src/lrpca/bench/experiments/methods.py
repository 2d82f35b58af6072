"""The methods of the comparisons and their settings; how they run, and how models are trained."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

import lrpca
from lrpca.bench import judging
from lrpca.bench.experiments.measurement import Measurement, Run, Say, Setting, Setup, Training
from lrpca.bench.experiments.statistics import digits
from lrpca.schedule import Schedule
from lrpca.testing import Problem

if TYPE_CHECKING:
    from lrpca.solvers.base import State

OURS = "LRPCA, this library"
PUBLISHED = "LRPCA, published model"
SCALEDGD = "ScaledGD"
ALTPROJ = "AltProj"

# The grid of ScaledGD's tuning: share of entries of a row or column that S may take, in units of α, and step. None is
# the choice of our ScaledGD.
GAMMAS, STEPS = (None, 1.1, 1.2, 1.5, 2.0), (None, 0.5, 0.7, 1.0)
GRID = "γ = 1.1, 1.2, 1.5, 2 and steps 0.5, 0.7, 1, or what our ScaledGD chooses for one or both"
# The grid of AltProj's tuning: β in units of its default.
BETAS = (1.0, 0.5, 0.25, 2.0)
TUNING_SEED, TUNING_PROBLEMS, PATIENCE = 1_000_003, 2, 40
# The error to reach; X with an error above the second is wrong, whatever the residual says.
GOAL, WRONG = 1e-4, 1e-2
EARLY = 10
# Every method first runs a few iterations on a problem of this size, so that compilation is not timed.
WARM_UP_N, WARM_UP_ITERATIONS = 120, 3
# Long trainings report their progress this often, in seconds.
SAY_EVERY = 10.0
# The paper's FRMNN has this many layers with numbers of their own.
FREE_LAYERS = 10


@dataclass(frozen=True)
class Method:
    """A method with its settings."""

    label: str
    arguments: Mapping[Setting, dict[str, Any]]  # of ``lrpca.decompose``; in other settings it does not run
    told: str  # what it is given, in words
    own_rule: bool = False  # whether it stops by its own rule instead of the experiment's
    single: bool = False  # whether it computes in single precision


@dataclass(frozen=True)
class Rule:
    """When a run stops; `max_iter` and `tol` are those of `lrpca.decompose`."""

    max_iter: int | None = None
    tol: float | None = None
    residual: float | None = None  # stop when ‖Y - X - S‖ / ‖Y‖ is below
    error: float | None = None  # record the error after every iteration, and stop when it is below
    patience: int | None = None  # stop also when the error has fallen by less than a tenth in so many iterations


def ours(setup: Setup) -> Method:
    """Return the default of this library."""
    return Method(OURS, {setting: {} for setting in setup.settings}, "the rank")


def published(setup: Setup, *, endless: bool = False) -> list[Method]:
    """Return the models published with the paper, if there is one for any setting; `endless` repeats the last layer."""
    models = {setting: model for setting in setup.settings if (model := published_model(setting.alpha)) is not None}
    told = "the rank, and the thresholds and steps learned for n = 1000, rank 5 and that α, scaled by the paper's rule"
    arguments = {s: {"schedule": replace(model, tail=(1.0, 1.0)) if endless else model} for s, model in models.items()}
    return [Method(PUBLISHED, arguments, told)] if arguments else []


def published_model(alpha: float) -> Schedule | None:
    """Return the model published for a share of outliers, None if LRPCA_DATA does not have it."""
    folder = os.environ.get("LRPCA_DATA")
    return judging.published_model(alpha, Path(folder)) if folder else None


def published_note(setup: Setup) -> str:
    """Return a sentence on which published models are missing, or on how they run."""
    alphas = dict.fromkeys(setting.alpha for setting in setup.settings)
    missing = [f"{alpha:g}" for alpha in alphas if published_model(alpha) is None]
    if not missing:
        return "The published models are run as published: 16 layers, no recurrent tail."
    return (
        f"The models published with the paper take no part at α = {', '.join(missing)}: none was found; set "
        "LRPCA_DATA to the folder that has published-lrpca/."
    )


def scaledgd(setup: Setup, gamma: float, step: float = 0.5) -> Method:
    """Return ScaledGD with given parameters."""
    options = {setting: {"alpha": setting.alpha, "gamma": gamma, "step": step} for setting in setup.settings}
    arguments = {setting: {"method": "scaledgd", "options": given} for setting, given in options.items()}
    told = f"the rank and the true α; S has γα = {gamma:g}α, step {step:g}"
    return Method(f"{SCALEDGD}, γ = {gamma:g}", arguments, told)


def tuned(name: str, setup: Setup, say: Say, residual: float | None = None) -> Method:
    """Return ScaledGD or AltProj with the options that do best on two more problems for each setting.

    The best options need the fewest iterations: to an error of 1e-4, or where a `residual` is given, to that residual
    with an X that is not wrong. If none gets there on both problems, the smallest error decides.
    """
    arguments: dict[Setting, dict[str, Any]] = {}
    chosen = []
    for setting in setup.settings:
        say(f"tuning {name} for α = {setting.alpha:g}")
        # The best β depends on n.
        smaller = replace(setting, n=setup.base.n if name == ALTPROJ else setup.tuning_n)
        problems = [smaller.draw(setup.seed + TUNING_SEED + i) for i in range(TUNING_PROBLEMS)]
        best = (math.inf, math.inf)
        for options in _candidates(name, setting):
            call = Method("", {setting: {"method": name.lower(), "options": options}}, "")
            score = _score(call, setting, problems, best[0], setup.tuning_iterations, residual)
            if setting not in arguments or score < best:
                best, arguments[setting] = score, call.arguments[setting]
        chosen.append(f"α = {setting.alpha:g}: " + _in_words(arguments[setting]["options"]))
    knows = "the rank" if name == ALTPROJ else "the rank and the true α"
    return Method(f"{name}, tuned", arguments, f"{knows}; tuned on other problems to {'; '.join(chosen)}")


def _candidates(name: str, setting: Setting) -> list[dict[str, float]]:
    """Return the options that are tried."""
    if name == ALTPROJ:
        return [{"beta": factor * 0.5 / math.sqrt(setting.n)} for factor in BETAS]
    # With γα = 1 or more S would take everything.
    pairs = [(gamma, step) for gamma in GAMMAS if (gamma or 1) * setting.alpha < 1 for step in STEPS]
    given = ({"alpha": setting.alpha, "gamma": gamma, "step": step} for gamma, step in pairs)
    return [{name: value for name, value in options.items() if value is not None} for options in given]


def _in_words(options: Mapping[str, float]) -> str:
    """Return options as text; those that ScaledGD is not given are its own choice."""
    if "beta" in options:
        return f"β {options['beta']:.3g}"
    words = (("γ", "gamma"), ("step", "step"))
    return ", ".join(f"{word} {options[name]:.3g}" if name in options else f"own {word}" for word, name in words)


def _score(
    method: Method, setting: Setting, problems: Sequence[Problem], best: float, most: int, residual: float | None
) -> tuple[float, float]:
    """Return iterations over all problems (inf if the goal is missed on one) and the largest error: less is better."""
    total, worst = 0, 0.0
    for problem in problems:
        # What is slower than the best so far need not be run to its end.
        limit = int(max(1, min(best - total, most)))
        if residual is None:
            rule = Rule(limit, tol=0, error=GOAL, patience=PATIENCE)
        else:
            rule = Rule(limit, residual=residual)
        run = run_method(method, problem, setting, 0, rule)
        error = math.inf if run.error is None else run.error
        worst = max(worst, error)
        arrived = error < GOAL if residual is None else error < WRONG and (run.residual or math.inf) <= residual
        total += run.iterations or 0
        if not arrived:
            return math.inf, worst
    return total, worst


def run_all(
    methods: Sequence[Method],
    setup: Setup,
    say: Say,
    rule: Rule,
    notes: Sequence[str],
    trainings: Sequence[Training] = (),
) -> Measurement:
    """Run every method on every problem, in shuffled order on each, after a warm-up."""
    say("loading compiled code (compiling on first use)")
    for method in methods:
        setting = next(iter(method.arguments))
        small = replace(setting, n=WARM_UP_N).draw(setup.seed)
        run_method(method, small, setting, 0, Rule(WARM_UP_ITERATIONS))
    runs = []
    order = np.random.default_rng(setup.seed)
    for i in range(setup.repeat):
        # Settings take turns too: the speed of a machine drifts, which must not look like an effect of α.
        for place in order.permutation(len(setup.settings)):
            setting, seed = setup.settings[place], setup.seed + i
            say(f"problem {i + 1} of {setup.repeat}: {setting}")
            problem = setting.draw(seed)
            chosen = [method for method in methods if setting in method.arguments]
            runs += [run_method(chosen[k], problem, setting, seed, rule) for k in order.permutation(len(chosen))]
    return Measurement(setup, {method.label: method.told for method in methods}, runs, trainings, notes=notes)


def run_method(method: Method, problem: Problem, setting: Setting, seed: int, rule: Rule) -> Run:
    """Run a method on a problem until a rule stops it."""
    errors: list[float] = []
    watching = 0.0

    def watch(state: State) -> bool:
        nonlocal watching
        began = time.perf_counter()
        if rule.error is not None:
            errors.append(problem.error(state.L @ state.R.T))
            past = errors[-1 - rule.patience] if rule.patience and len(errors) > rule.patience else math.inf
            done = errors[-1] > 0.9 * past or not errors[-1] >= rule.error  # NaN ends it too
        else:
            done = state.residual is not None and rule.residual is not None and state.residual < rule.residual
        watching += time.perf_counter() - began
        return done

    watched = (rule.error is not None or rule.residual is not None) and not method.own_rule
    Y = problem.Y.astype(np.float32) if method.single else problem.Y
    began = time.perf_counter()
    with warnings.catch_warnings(action="ignore"):
        # Runs that fail are counted as such.
        d = lrpca.decompose(
            Y,
            problem.rank,
            tol=rule.tol,
            max_iter=rule.max_iter,
            random_state=seed,
            callback=watch if watched else None,
            **method.arguments[setting],
        )
    seconds = time.perf_counter() - began - watching
    last = d.history[-1].residual if d.history else None
    times = [record.seconds or 0.0 for record in d.history]
    return Run(
        *(method.label, setting, seed, d.reason, digits(seconds), d.n_iter),
        seconds_per_iteration=digits(fmean(times or [0.0])) or 0.0,
        early_seconds=digits(fmean(times[:EARLY] or [0.0])) or 0.0,
        residual=None if last is None else digits(last),
        error=digits(problem.error(d.low_rank)),
        errors=[float(f"{error:.4g}") for error in errors if np.isfinite(error)],
    )


def train(
    label: str, setting: Setting, setup: Setup, say: Say, *, seed: int, model: str = "frmnn", form: str = "paper"
) -> tuple[Schedule, Training]:
    """Train a model by `lrpca.learn.train` and return it with its record."""
    what = f"training {label}, {setting}"
    say(what)
    began = told = time.perf_counter()

    def watch(progress: Any) -> None:
        nonlocal told
        if time.perf_counter() - told > SAY_EVERY:
            told = time.perf_counter()
            say(f"{what}: step {progress.step} of {progress.total}")

    schedule = lrpca.learn.train(
        **{"rank": setting.rank, "shape": (setting.n, setting.n), "outlier_fraction": setting.alpha},
        **{"random_state": seed, "steps": setup.steps, "model": model, "form": form, "progress": watch},
    )
    seconds = float(f"{time.perf_counter() - began:.4g}")
    steps = schedule.meta["training"]["steps_taken"]
    thresholds, step_sizes, tail = (
        [float(f"{value:.6g}") for value in values]
        for values in (schedule.thresholds, schedule.steps, schedule.tail or ())
    )
    held_out = list(schedule.meta["scores"]["held_out_errors"])
    numbers = (held_out, thresholds, step_sizes, tail or None)
    return schedule, Training(label, setting, seed, steps, steps, seconds, *numbers)
