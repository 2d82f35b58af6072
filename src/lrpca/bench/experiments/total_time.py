"""Total seconds against the share of outliers, LRPCA, ScaledGD and AltProj: a figure of the paper's section 4."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING

from lrpca.bench.experiments import methods
from lrpca.bench.experiments.drawing import draw_means
from lrpca.bench.experiments.measurement import Claim, Experiment, Measurement, Say, Setup, Table, Trial
from lrpca.bench.experiments.methods import ALTPROJ, OURS, PUBLISHED, SCALEDGD, WRONG
from lrpca.bench.experiments.statistics import mean_and_deviation, three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RULE = 1e-4
# "Substantially faster": at most this part of the time of the fastest other method, at every α.
FASTER = 0.5
OWN_RULE = f"{OURS}, own rule"


def measure(setup: Setup, say: Say) -> Measurement:
    """Time whole calls that are stopped when ‖Y - X - S‖/‖Y‖ falls below the paper's value."""
    model, default = methods.published(setup), methods.ours(setup)
    own = replace(default, label=OWN_RULE, told="the rank; stops by its own, stricter rule", own_rule=True)
    entered = [default, own, *([model] if model else [])]
    entered += [methods.tuned_scaledgd(setup, say, RULE), methods.tuned_altproj(setup, say, RULE)]
    notes = [
        f"Every method is stopped by the same callback, the first time that ‖Y − X − S‖/‖Y‖ < {RULE:g}, except "
        f"“{OWN_RULE}”: the plain call, which goes on until X no longer changes and checks whether it can be trusted.",
        "Seconds are those of the whole call of lrpca.decompose, initialisation included; compilation is not.",
        "The rule does not look at X: S can always take up what X leaves. A run that meets it counts only if the error "
        f"of X is below {WRONG:g} too. Runs that do not count are not in the means unless none does, which the column "
        "“solved” tells.",
        methods.published_note(setup.alphas),
    ]
    trial = partial(methods.run_trial, max_iter=setup.max_iter, stop_at_residual=RULE)
    return methods.run_all(entered, setup, say, trial, notes)


def solved(trial: Trial) -> bool:
    """Return whether a run met the rule with an X that is not wrong."""
    met = trial.residual is not None and trial.residual <= RULE
    return met and trial.error is not None and trial.error < WRONG


def seconds(m: Measurement, label: str, alpha: float) -> tuple[float, float]:
    """Return mean and standard deviation of the seconds of the runs that solved their problem, of all if none did."""
    trials = m.of(label, alpha)
    return mean_and_deviation(t.seconds for t in ([t for t in trials if solved(t)] or trials))


def tables(m: Measurement) -> list[Table]:
    """Return seconds, iterations and errors."""
    rows = []
    for alpha, label, trials in m.cases():
        total, deviation = seconds(m, label, alpha)
        errors = [trial.error for trial in trials if trial.error is not None]
        worst = f"{max(errors):.1e}" if len(errors) == len(trials) else "not finite"
        steps = round(mean(trial.iterations for trial in trials), 1)
        times = [three_digits(value) for value in (total, deviation, total / seconds(m, OURS, alpha)[0])]
        rows.append([alpha, label, *times, f"{sum(map(solved, trials))} of {len(trials)}", steps, worst])
    columns = ["α", "method", "seconds", "±", f"times {OURS}", "solved", "iterations, mean", "largest error"]
    return [Table("Time of a whole call: mean and standard deviation over the problems", columns, rows)]


def claims(m: Measurement) -> list[Claim]:
    """Hold the paper's statement against the measurement."""
    found = []
    for label in m.labels(OURS, PUBLISHED):
        parts, factors, failed = [], [], False
        for alpha in (alpha for alpha in m.setup.alphas if m.of(label, alpha)):
            failed = failed or not all(map(solved, m.of(label, alpha)))
            others = {
                other: seconds(m, other, alpha)[0]
                for other in m.labels(SCALEDGD, ALTPROJ)
                if all(map(solved, m.of(other, alpha)))
            }
            if not others:
                parts.append(f"α = {alpha:g}: no other method solves all problems")
                continue
            fastest = min(others, key=lambda other: others[other])
            factors.append(others[fastest] / seconds(m, label, alpha)[0])
            parts.append(f"α = {alpha:g}: a factor of {factors[-1]:.2g} ({fastest})")
        text = "The fastest other method takes longer by: " + "; ".join(parts) + "."
        text += " It does not solve all problems itself." if failed else ""
        confirmed = not failed and all(factor >= 1 / FASTER for factor in factors)
        found.append(Claim("“LRPCA is substantially faster than the state-of-the-arts”", label, text, confirmed))
    return found


def draw(m: Measurement, figure: Figure) -> None:
    """Draw the mean time of a call against α, with error bars; crossed where not all problems were solved."""
    axes = draw_means(figure, m, seconds, "a cross: not all problems were solved")
    for alpha, label, trials in m.cases():
        if not all(map(solved, trials)):
            axes.plot(alpha, seconds(m, label, alpha)[0], "x", color="C3", markersize=11, zorder=5)
    axes.set_yscale("log")
    axes.set_ylabel("seconds")


EXPERIMENT = Experiment(
    name="total-time",
    title="Time of a whole call",
    summary="time to ‖Y − X − S‖/‖Y‖ < 1e-4 against the share of outliers, LRPCA, ScaledGD and AltProj",
    source="figure “Runtime comparison with error bar for LRPCA and start-of-the-arts” (so written)",
    full=Setup(n=3000, alphas=(0.1, 0.2, 0.3, 0.4), repeat=5, max_iter=300, tuning_n=1000),
    quick=Setup(n=500, alphas=(0.1, 0.2, 0.3), repeat=3, max_iter=300, tuning_n=300, tuning_iterations=80),
    measure=measure,
    tables=tables,
    claims=claims,
    draw=draw,
    criteria=f"“Substantially faster” is confirmed where at every α all problems are solved in at most {FASTER:g} "
    "times the mean time of the fastest other method that solves all of them.",
)
