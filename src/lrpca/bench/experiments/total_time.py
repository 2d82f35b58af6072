"""Total seconds against the share of outliers, LRPCA, ScaledGD and AltProj: a figure of the paper's section 4."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

from lrpca.bench.experiments import methods
from lrpca.bench.experiments.drawing import Figure, draw_means
from lrpca.bench.experiments.measurement import Claim, Experiment, Measurement, Run, Say, Setting, Setup, shares
from lrpca.bench.experiments.methods import ALTPROJ, OURS, PUBLISHED, SCALEDGD, WRONG
from lrpca.bench.experiments.statistics import digits, mean_and_deviation
from lrpca.bench.measuring import Table

RULE = 1e-4
# "Substantially faster": at most this part of the time of the fastest other method, at every α.
FASTER = 0.5
OWN_RULE = f"{OURS}, own rule"


def measure(setup: Setup, say: Say) -> Measurement:
    """Time whole calls that are stopped when ‖Y - X - S‖/‖Y‖ falls below the paper's value."""
    default = methods.ours(setup)
    own = replace(default, label=OWN_RULE, told="the rank; stops by its own, stricter rule", own_rule=True)
    entered = [default, own, *methods.published(setup)]
    entered += [methods.tuned(name, setup, say, RULE) for name in (SCALEDGD, ALTPROJ)]
    notes = [
        f"Every method is stopped by the same callback, the first time that ‖Y − X − S‖/‖Y‖ < {RULE:g}, except "
        f"“{OWN_RULE}”: the plain call, which continues until X no longer changes and checks its result.",
        "Seconds are those of the whole call of lrpca.decompose, initialisation included; compilation is not.",
        "The rule does not depend on X: S can always take what X leaves. A run that meets it counts only if the error "
        f"of X is below {WRONG:g} too. Runs that do not count are left out of the means unless none counts; see the "
        "column “solved”.",
        methods.published_note(setup),
    ]
    return methods.run_all(entered, setup, say, methods.Rule(setup.max_iter, residual=RULE), notes)


def solved(run: Run) -> bool:
    """Return whether a run met the rule with an X that is not wrong."""
    met = run.residual is not None and run.residual <= RULE
    return met and run.error is not None and run.error < WRONG


def seconds(m: Measurement, label: str, setting: Setting) -> tuple[float, float]:
    """Return mean and standard deviation of the seconds of the runs that solved their problem, of all if none did."""
    runs = m.of(label, setting)
    return mean_and_deviation(run.seconds or 0.0 for run in ([run for run in runs if solved(run)] or runs))


def tables(m: Measurement) -> list[Table]:
    """Return seconds, iterations and errors."""
    rows = []
    for setting, label, runs in m.cases():
        total, deviation = seconds(m, label, setting)
        errors = [run.error for run in runs if run.error is not None]
        worst = f"{max(errors):.1e}" if len(errors) == len(runs) else "not finite"
        steps = round(mean(run.iterations or 0 for run in runs), 1)
        times = [digits(value, 3) for value in (total, deviation, total / seconds(m, OURS, setting)[0])]
        rows.append([setting.alpha, label, *times, f"{sum(map(solved, runs))} of {len(runs)}", steps, worst])
    columns = ["α", "method", "seconds", "±", f"times {OURS}", "solved", "iterations, mean", "largest error"]
    return [Table("Time of a whole call: mean and standard deviation over the problems", columns, rows)]


def claims(m: Measurement) -> list[Claim]:
    """Compare the paper's statement with the measurement."""
    found = []
    for label in m.labels(OURS, PUBLISHED):
        parts, factors, failed = [], [], False
        for setting in m.settings_of(label):
            failed = failed or not all(map(solved, m.of(label, setting)))
            others = {
                other: seconds(m, other, setting)[0]
                for other in m.labels(SCALEDGD, ALTPROJ)
                if all(map(solved, m.of(other, setting)))
            }
            if not others:
                parts.append(f"α = {setting.alpha:g}: no other method solves all problems")
                continue
            fastest = min(others, key=lambda other: others[other])
            factors.append(others[fastest] / seconds(m, label, setting)[0])
            parts.append(f"α = {setting.alpha:g}: a factor of {factors[-1]:.2g} ({fastest})")
        text = "The fastest other method takes longer by: " + "; ".join(parts) + "."
        text += " It does not solve all problems itself." if failed else ""
        confirmed = not failed and all(factor >= 1 / FASTER for factor in factors)
        found.append(Claim("“LRPCA is substantially faster than the state-of-the-arts”", label, text, confirmed))
    return found


def draw(m: Measurement, figure: Figure) -> None:
    """Draw the mean time of a call against α, with error bars; crossed where not all problems were solved."""
    axes = draw_means(figure, m, seconds, "a cross: not all problems were solved")
    for setting, label, runs in m.cases():
        if not all(map(solved, runs)):
            axes.plot(setting.alpha, seconds(m, label, setting)[0], "x", color="C3", markersize=11, zorder=5)
    axes.set(yscale="log", ylabel="seconds")


EXPERIMENT = Experiment(
    *(measure, tables, claims, draw),
    name="total-time",
    title="Time of a whole call",
    summary="time to ‖Y − X − S‖/‖Y‖ < 1e-4 against the share of outliers, LRPCA, ScaledGD and AltProj",
    source="figure “Runtime comparison with error bar for LRPCA and start-of-the-arts” (so written)",
    full=Setup(shares(3000, 0.1, 0.2, 0.3, 0.4), repeat=5, max_iter=300, tuning_n=1000),
    quick=Setup(shares(500, 0.1, 0.2, 0.3), repeat=3, max_iter=300, tuning_n=300, tuning_iterations=80),
    criteria=f"“Substantially faster” is confirmed where at every α all problems are solved in at most {FASTER:g} "
    "times the mean time of the fastest other method that solves all of them.",
)
