"""The methods of the comparisons, their settings, and how a trial is run."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lrpca
from lrpca.bench.experiments.measurement import Measurement, Say, Setup, Trial
from lrpca.bench.experiments.statistics import rounded
from lrpca.schedule import PUBLISHED_RANK, PUBLISHED_SHAPE, Schedule
from lrpca.testing import Problem, planted

if TYPE_CHECKING:
    from lrpca.solvers.base import Record, State

OURS = "LRPCA, this library"
PUBLISHED = "LRPCA, published model"
SCALEDGD = "ScaledGD"
ALTPROJ = "AltProj"

# What ScaledGD is tuned over: the share of entries of a row or column that S may take, in units of α, and the step.
# None is the choice of our ScaledGD.
GAMMAS, STEPS = (None, 1.1, 1.2, 1.5, 2.0), (None, 0.5, 0.7, 1.0)
GRID = "γ = 1.1, 1.2, 1.5, 2 and steps 0.5, 0.7, 1, or what our ScaledGD chooses for one or both"
# What AltProj is tuned over: β in units of its usual value.
BETAS = (1.0, 0.5, 0.25, 2.0)
TUNING_SEED, TUNING_PROBLEMS, PATIENCE = 1_000_003, 2, 40
# The error to reach; and above which X is wrong, whatever the residual says.
GOAL, WRONG = 1e-4, 1e-2
EARLY = 10
# Compilation is not counted: every method first runs a few iterations on a problem of this size.
WARM_UP_N, WARM_UP_ITERATIONS = 120, 3


@dataclass(frozen=True)
class Method:
    """A method with its settings."""

    label: str
    # Arguments of ``lrpca.decompose`` by share of outliers; at others it does not compete.
    arguments: Mapping[float, dict[str, Any]]
    told: str  # what it is told, in words
    own_rule: bool = False  # whether it stops by its own rule rather than the experiment's


def ours(setup: Setup) -> Method:
    """Return the default of this library."""
    return Method(OURS, {alpha: {} for alpha in setup.alphas}, "the rank")


def published(setup: Setup, *, endless: bool = False) -> Method | None:
    """Return the models published with the paper, None where there is none for any of the shares.

    For timing, `endless` repeats the last layer for ever.
    """
    models = {alpha: model for alpha in setup.alphas if (model := published_model(alpha)) is not None}
    told = "the rank, and the thresholds and steps learned for n = 1000, rank 5 and that α, scaled by the paper's rule"
    arguments = {a: {"schedule": replace(model, tail=(1.0, 1.0)) if endless else model} for a, model in models.items()}
    return Method(PUBLISHED, arguments, told) if arguments else None


def published_model(alpha: float) -> Schedule | None:
    """Return the model published with the paper for a share of outliers, None where LRPCA_DATA does not have it."""
    folder = os.environ.get("LRPCA_DATA")
    path = Path(folder or "", "published-lrpca", f"lrpcanet_alpha{alpha}.mat")
    if not folder or not path.is_file():
        return None
    return Schedule.from_mat(path, shape=PUBLISHED_SHAPE, rank=PUBLISHED_RANK)


def published_note(alphas: Iterable[float]) -> str:
    """Return a sentence on the published models that are not there, or on how they are run."""
    missing = [f"{alpha:g}" for alpha in alphas if published_model(alpha) is None]
    if not missing:
        return "The published models are run as published: 16 layers, no recurrent tail."
    return (
        f"The models published with the paper take no part at α = {', '.join(missing)}: none was found; set "
        "LRPCA_DATA to the folder that has published-lrpca/."
    )


def scaledgd(setup: Setup, gamma: float, step: float = 0.5) -> Method:
    """Return ScaledGD with given parameters."""
    options = {alpha: {"alpha": alpha, "gamma": gamma, "step": step} for alpha in setup.alphas}
    arguments = {alpha: {"method": "scaledgd", "options": given} for alpha, given in options.items()}
    told = f"the rank and the true α; S has γα = {gamma:g}α, step {step:g}"
    return Method(f"{SCALEDGD}, γ = {gamma:g}", arguments, told)


def tuned_scaledgd(setup: Setup, say: Say, rule: float | None = None) -> Method:
    """Return ScaledGD, told the true α, with the γ and step that do best, see `_tuned`."""

    def candidates(alpha: float) -> list[dict[str, float]]:
        # With γα = 1 or more S would take everything.
        pairs = [(gamma, step) for gamma in GAMMAS if (gamma or 1) * alpha < 1 for step in STEPS]
        given = ({"alpha": alpha, "gamma": gamma, "step": step} for gamma, step in pairs)
        return [{name: value for name, value in options.items() if value is not None} for options in given]

    return _tuned(f"{SCALEDGD}, tuned", "scaledgd", candidates, setup, say, rule)


def tuned_altproj(setup: Setup, say: Say, rule: float | None = None) -> Method:
    """Return AltProj, in the form of its paper, with the β that does best, see `_tuned`."""
    usual = 0.5 / math.sqrt(setup.n)

    def candidates(alpha: float) -> list[dict[str, float]]:
        return [{"beta": factor * usual} for factor in BETAS]

    # The best β depends on n.
    return _tuned(f"{ALTPROJ}, tuned", "altproj", candidates, replace(setup, tuning_n=setup.n), say, rule)


def _tuned(
    label: str,
    method: str,
    candidates: Callable[[float], list[dict[str, float]]],
    setup: Setup,
    say: Say,
    rule: float | None,
) -> Method:
    """Return a method with the options that do best on a few more problems for each share of outliers.

    Best is to arrive in the fewest iterations: at an error of 1e-4, or where a `rule` is given, at a relative residual
    of that with an X that is not wrong. If none arrives on all of the problems, the smallest error decides.
    """
    arguments: dict[float, dict[str, Any]] = {}
    chosen = []
    for alpha in setup.alphas:
        say(f"tuning {label.partition(',')[0]} for α = {alpha:g}")
        problems = [
            _problem(setup.tuning_n, alpha, setup, setup.seed + TUNING_SEED + i) for i in range(TUNING_PROBLEMS)
        ]
        best = (math.inf, math.inf)
        for options in candidates(alpha):
            call = Method("", {alpha: {"method": method, "options": options}}, "")
            score = _score(call, alpha, problems, best[0], setup.tuning_iterations, rule)
            if alpha not in arguments or score < best:
                best, arguments[alpha] = score, call.arguments[alpha]
        chosen.append(f"α = {alpha:g}: " + _in_words(arguments[alpha]["options"]))
    knows = "the rank and the true α" if method == "scaledgd" else "the rank"
    return Method(label, arguments, f"{knows}; tuned on other problems to {'; '.join(chosen)}")


def _in_words(options: Mapping[str, float]) -> str:
    """Return options as text; what ScaledGD is not given it chooses by itself."""
    if "beta" in options:
        return f"β {options['beta']:.3g}"
    words = (("γ", "gamma"), ("step", "step"))
    return ", ".join(f"{word} {options[name]:.3g}" if name in options else f"own {word}" for word, name in words)


def _score(
    method: Method, alpha: float, problems: Sequence[Problem], best: float, most: int, rule: float | None
) -> tuple[float, float]:
    """Return (iterations over all problems, or inf if the goal is missed on one; largest error): smaller is better."""
    total, worst = 0.0, 0.0
    for problem in problems:
        # What is slower than the best so far need not be run to its end.
        limit = int(max(1, min(best - total, most)))
        if rule is None:
            trial = run_trial(method, problem, alpha, 0, tol=0, max_iter=limit, stop_at_error=GOAL, patience=PATIENCE)
        else:
            trial = run_trial(method, problem, alpha, 0, max_iter=limit, stop_at_residual=rule)
        error = math.inf if trial.error is None else trial.error
        worst = max(worst, error)
        arrived = error < GOAL if rule is None else error < WRONG and (trial.residual or math.inf) <= rule
        total += trial.iterations
        if not arrived:
            return math.inf, worst
    return total, worst


def run_all(
    methods: Sequence[Method],
    setup: Setup,
    say: Say,
    trial: Callable[[Method, Problem, float, int], Trial],
    notes: Sequence[str] = (),
) -> Measurement:
    """Run every method on every problem, in shuffled order on each, after a warm-up.

    `trial` is called with a method, a problem, its α and its seed; it is most often made of `run_trial`.
    """
    say("loading compiled code (compiling on first use)")
    for method in methods:
        alpha = next(iter(method.arguments))
        run_trial(method, _problem(WARM_UP_N, alpha, setup, setup.seed), alpha, 0, max_iter=WARM_UP_ITERATIONS)
    trials = []
    order = np.random.default_rng(setup.seed)
    for i in range(setup.repeat):
        # Shares take turns too: the speed of a machine drifts, which must not look like an effect of α.
        for alpha in order.permutation(setup.alphas).tolist():
            chosen = [method for method in methods if alpha in method.arguments]
            say(f"n = {setup.n}, problem {i + 1} of {setup.repeat}: α = {alpha:g}")
            problem = _problem(setup.n, alpha, setup, setup.seed + i)
            trials += [trial(chosen[k], problem, alpha, setup.seed + i) for k in order.permutation(len(chosen))]
    told = {method.label: method.told for method in methods}
    return Measurement(setup, told, tuple(trials), tuple(notes))


def run_trial(
    method: Method,
    problem: Problem,
    alpha: float,
    seed: int,
    *,
    tol: float | None = None,
    max_iter: int | None = None,
    stop_at_residual: float | None = None,
    stop_at_error: float | None = None,
    patience: int | None = None,
) -> Trial:
    """Run a method on a problem of a share of outliers.

    Parameters
    ----------
    tol, max_iter
        As `lrpca.decompose` takes them.
    stop_at_residual : float, optional
        Stop when ``‖Y - X - S‖ / ‖Y‖`` is below.
    stop_at_error : float, optional
        Note the error after every iteration, and stop when it is below.
    patience : int, optional
        Stop too when the error has fallen by less than a tenth in so many iterations.
    """
    errors: list[float] = []
    watching = 0.0

    def watch(state: State) -> bool:
        nonlocal watching
        began = time.perf_counter()
        if stop_at_error is not None:
            errors.append(problem.error(state.L @ state.R.T))
            stuck = patience is not None and len(errors) > patience and errors[-1] > 0.9 * errors[-1 - patience]
            done = stuck or not errors[-1] >= stop_at_error  # NaN ends it too
        else:
            done = state.residual is not None and stop_at_residual is not None and state.residual < stop_at_residual
        watching += time.perf_counter() - began
        return done

    watched = stop_at_error is not None or stop_at_residual is not None
    began = time.perf_counter()
    with warnings.catch_warnings():
        # Trials that fail are counted as such.
        warnings.simplefilter("ignore", lrpca.ConvergenceWarning)
        warnings.simplefilter("ignore", lrpca.DiagnosisWarning)
        d = lrpca.decompose(
            problem.Y,
            problem.rank,
            tol=tol,
            max_iter=max_iter,
            random_state=seed,
            callback=watch if watched and not method.own_rule else None,
            **method.arguments[alpha],
        )
    seconds = time.perf_counter() - began - watching
    last = d.history[-1].residual if d.history else None
    return Trial(
        label=method.label,
        alpha=alpha,
        seed=seed,
        seconds=float(f"{seconds:.4g}"),
        iterations=d.n_iter,
        seconds_per_iteration=_mean_seconds(d.history),
        early_seconds=_mean_seconds(d.history[:EARLY]),
        reason=d.reason,
        residual=None if last is None else rounded(last),
        error=rounded(problem.error(d.low_rank)),
        errors=tuple(float(f"{error:.4g}") for error in errors if np.isfinite(error)) or None,
    )


def _mean_seconds(history: Sequence[Record]) -> float:
    return float(f"{np.mean([record.seconds or 0.0 for record in history]):.4g}") if history else 0.0


def _problem(n: int, alpha: float, setup: Setup, seed: int) -> Problem:
    return planted((n, n), rank=setup.rank, outlier_fraction=alpha, random_state=seed)
