"""Seconds per iteration against the share of outliers, LRPCA and ScaledGD: a figure of the paper's section 4."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lrpca.bench.experiments import methods
from lrpca.bench.experiments.drawing import draw_means
from lrpca.bench.experiments.measurement import Claim, Experiment, Measurement, Say, Setup, Table
from lrpca.bench.experiments.methods import OURS, PUBLISHED, SCALEDGD
from lrpca.bench.experiments.statistics import mean_and_deviation, three_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ITERATIONS = 100
# "Insensitive": the slowest α at most this many times the fastest. "Slower when larger": at least so much slower at the
# largest α than at the smallest. "Significantly faster": at most this part of the time, at every α.
INSENSITIVE, SLOWER, FASTER = 1.25, 1.25, 0.5


def measure(setup: Setup, say: Say) -> Measurement:
    """Run a fixed number of iterations of each."""
    model = methods.published(setup, endless=True)
    entered = [methods.ours(setup), *([model] if model else []), methods.scaledgd(setup, 1.2)]
    notes = [
        f"Every run does {setup.max_iter} iterations, whatever it has reached (tol=0). Initialisation, watching and "
        "assembling the result are not counted. The default of this library would stop by itself after a dozen or so; "
        "what its iterations cost at the beginning is in a column of its own.",
        methods.published_note(setup.alphas) + (" For timing its last layer is repeated." if model else ""),
    ]
    return methods.run_all(entered, setup, say, partial(methods.run_trial, tol=0, max_iter=setup.max_iter), notes)


def milliseconds(m: Measurement, label: str, alpha: float) -> tuple[float, float]:
    """Return mean and standard deviation over the problems of the mean time of an iteration."""
    return mean_and_deviation(1e3 * trial.seconds_per_iteration for trial in m.of(label, alpha))


def tables(m: Measurement) -> list[Table]:
    """Return the times of an iteration."""
    rows = []
    for alpha, label, trials in m.cases():
        mean, deviation = milliseconds(m, label, alpha)
        early = 1e3 * mean_and_deviation(trial.early_seconds for trial in trials)[0]
        times = [three_digits(x) for x in (mean, deviation, mean / milliseconds(m, OURS, alpha)[0], early)]
        rows.append([alpha, label, *times, len(trials), min(trial.iterations for trial in trials)])
    columns = ["α", "method", "ms per iteration", "±", f"times {OURS}", "ms, first ten", "problems", "iterations"]
    return [Table("Time of one iteration: mean and standard deviation over the problems", columns, rows)]


def claims(m: Measurement) -> list[Claim]:
    """Hold the paper's three statements against the measurement."""
    other, alphas = m.labels(SCALEDGD)[0], m.setup.alphas
    slow = {alpha: milliseconds(m, other, alpha)[0] for alpha in alphas}
    first, last = min(alphas), max(alphas)
    growth = slow[last] / slow[first]
    text = f"{slow[first]:.3g} ms at α = {first:g}, {slow[last]:.3g} ms at α = {last:g}: {growth:.2f} times."
    found = [Claim("“ScaledGD runs slower when α becomes larger”", other, text, growth >= SLOWER)]
    for label in m.labels(OURS, PUBLISHED):
        times = {alpha: milliseconds(m, label, alpha)[0] for alpha in alphas if m.of(label, alpha)}
        least, most = min(times.values()), max(times.values())
        text = f"From {least:.3g} to {most:.3g} ms, {most / least:.2f} times, over α = "
        text += ", ".join(f"{alpha:g}" for alpha in times) + "."
        insensitive = None if len(times) < 2 else most / least <= INSENSITIVE
        found.append(Claim("“the per-iteration runtime of LRPCA is insensitive to α”", label, text, insensitive))
        ratios = [slow[alpha] / time for alpha, time in times.items()]
        text = f"ScaledGD takes {min(ratios):.2g} to {max(ratios):.2g} times as long."
        found.append(Claim("“and is significantly faster than ScaledGD”", label, text, min(ratios) >= 1 / FASTER))
    return found


def draw(m: Measurement, figure: Figure) -> None:
    """Draw the mean time of an iteration against α, with error bars."""
    axes = draw_means(figure, m, milliseconds)
    axes.set_ylim(0, None)
    axes.set_ylabel("milliseconds per iteration")


EXPERIMENT = Experiment(
    name="iteration-time",
    title="Time of one iteration",
    summary="time per iteration against the share of outliers, LRPCA and ScaledGD",
    source="figure “Single-step runtime comparison with error bar for LRPCA and baseline ScaledGD”",
    full=Setup(n=1000, alphas=(0.1, 0.2, 0.3, 0.4, 0.5), repeat=10, max_iter=ITERATIONS, tuning_n=1000),
    quick=Setup(n=1000, alphas=(0.1, 0.3, 0.5), repeat=2, max_iter=30, tuning_n=1000),
    measure=measure,
    tables=tables,
    claims=claims,
    draw=draw,
    criteria=f"“Slower when α becomes larger” is confirmed where an iteration takes at least {SLOWER:g} times as long "
    f"at the largest α as at the smallest; “insensitive”, where the slowest takes at most {INSENSITIVE:g} times as "
    "long as the fastest; “significantly faster”, where at every α it takes at most "
    f"{FASTER:g} times as long as ScaledGD's.",
)
