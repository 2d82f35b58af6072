"""Seconds per iteration against the share of outliers, LRPCA and ScaledGD: a figure of the paper's section 4."""

from __future__ import annotations

from lrpca.bench.experiments import methods
from lrpca.bench.experiments.drawing import Figure, draw_means
from lrpca.bench.experiments.measurement import Claim, Experiment, Measurement, Say, Setting, Setup, shares
from lrpca.bench.experiments.methods import OURS, PUBLISHED, SCALEDGD
from lrpca.bench.experiments.statistics import digits, mean_and_deviation
from lrpca.bench.measuring import Table

# "Insensitive": the slowest α at most this many times the fastest. "Slower when larger": at least so much slower at the
# largest α than at the smallest. "Significantly faster": at most this part of the time, at every α.
INSENSITIVE, SLOWER, FASTER = 1.25, 1.25, 0.5


def measure(setup: Setup, say: Say) -> Measurement:
    """Run a fixed number of iterations of each."""
    model = methods.published(setup, endless=True)
    entered = [methods.ours(setup), *model, methods.scaledgd(setup, 1.2)]
    notes = [
        f"Every run does {setup.max_iter} iterations (tol=0). Initialisation, callback and assembling the result are "
        "not counted. The default of this library would stop by itself after a dozen or so; the time of its first "
        "iterations is in a column of its own.",
        methods.published_note(setup) + (" For timing its last layer is repeated." if model else ""),
    ]
    return methods.run_all(entered, setup, say, methods.Rule(setup.max_iter, tol=0), notes)


def milliseconds(m: Measurement, label: str, setting: Setting) -> tuple[float, float]:
    """Return mean and standard deviation over the problems of the mean time of an iteration."""
    return mean_and_deviation(1e3 * run.seconds_per_iteration for run in m.of(label, setting))


def tables(m: Measurement) -> list[Table]:
    """Return the times of an iteration."""
    rows = []
    for setting, label, runs in m.cases():
        mean, deviation = milliseconds(m, label, setting)
        early = 1e3 * mean_and_deviation(run.early_seconds for run in runs)[0]
        times = [digits(x, 3) for x in (mean, deviation, mean / milliseconds(m, OURS, setting)[0], early)]
        rows.append([setting.alpha, label, *times, len(runs), min(run.iterations or 0 for run in runs)])
    columns = ["α", "method", "ms per iteration", "±", f"times {OURS}", "ms, first ten", "problems", "iterations"]
    return [Table("Time of one iteration: mean and standard deviation over the problems", columns, rows)]


def claims(m: Measurement) -> list[Claim]:
    """Compare the paper's three statements with the measurement."""
    other = m.labels(SCALEDGD)[0]
    slow = {setting: milliseconds(m, other, setting)[0] for setting in m.setup.settings}
    first, last = (choose(slow, key=lambda setting: setting.alpha) for choose in (min, max))
    growth = slow[last] / slow[first]
    text = (
        f"{slow[first]:.3g} ms at α = {first.alpha:g}, {slow[last]:.3g} ms at α = {last.alpha:g}: {growth:.2f} times."
    )
    found = [Claim("“ScaledGD runs slower when α becomes larger”", other, text, growth >= SLOWER)]
    for label in m.labels(OURS, PUBLISHED):
        times = {setting: milliseconds(m, label, setting)[0] for setting in slow if m.of(label, setting)}
        least, most = min(times.values()), max(times.values())
        text = f"From {least:.3g} to {most:.3g} ms, {most / least:.2f} times, over α = "
        text += ", ".join(f"{setting.alpha:g}" for setting in times) + "."
        insensitive = None if len(times) < 2 else most / least <= INSENSITIVE
        found.append(Claim("“the per-iteration runtime of LRPCA is insensitive to α”", label, text, insensitive))
        ratios = [slow[setting] / time for setting, time in times.items()]
        text = f"ScaledGD takes {min(ratios):.2g} to {max(ratios):.2g} times as long."
        found.append(Claim("“and is significantly faster than ScaledGD”", label, text, min(ratios) >= 1 / FASTER))
    return found


def draw(m: Measurement, figure: Figure) -> None:
    """Draw the mean time of an iteration against α, with error bars."""
    draw_means(figure, m, milliseconds).set(ylim=(0, None), ylabel="milliseconds per iteration")


EXPERIMENT = Experiment(
    *(measure, tables, claims, draw),
    name="iteration-time",
    title="Time of one iteration",
    summary="time per iteration against the share of outliers, LRPCA and ScaledGD",
    source="figure “Single-step runtime comparison with error bar for LRPCA and baseline ScaledGD”",
    full=Setup(shares(1000, 0.1, 0.2, 0.3, 0.4, 0.5), repeat=10, max_iter=100),
    quick=Setup(shares(1000, 0.1, 0.3, 0.5), repeat=2, max_iter=30),
    criteria=f"“Slower when α becomes larger” is confirmed where an iteration takes at least {SLOWER:g} times as long "
    f"at the largest α as at the smallest; “insensitive”, where the slowest takes at most {INSENSITIVE:g} times as "
    "long as the fastest; “significantly faster”, where at every α it takes at most "
    f"{FASTER:g} times as long as ScaledGD's.",
)
