"""Seconds per iteration against the share of outliers, LRPCA and ScaledGD: a figure of the paper's section 4."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lrpca.bench.experiments.drawing import draw_error_bars, legend_below, mark_shares
from lrpca.bench.experiments.entrants import (
    OURS,
    PUBLISHED,
    SCALEDGD,
    ours,
    published,
    published_note,
    run_all,
    run_trial,
    scaledgd,
)
from lrpca.bench.experiments.measurement import (
    Claim,
    Experiment,
    Measurement,
    Say,
    Setup,
    Table,
    mean_and_deviation,
    three_digits,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ITERATIONS = 100
# "Insensitive": the slowest α at most this many times the fastest. "Slower when larger": at least so much slower at the
# largest α than at the smallest. "Significantly faster": at most this part of the time, at every α.
INSENSITIVE, SLOWER, FASTER = 1.25, 1.25, 0.5


def measure(setup: Setup, say: Say) -> Measurement:
    """Run a fixed number of iterations of each."""
    model = published(setup, endless=True)
    entered = [ours(setup), *([model] if model else []), scaledgd(setup, 1.2)]
    notes = [
        f"Every run does {setup.max_iter} iterations, whatever it has reached (tol=0). Initialisation, watching and "
        "assembling the result are not counted. The default of this library would stop by itself after a dozen or so; "
        "what its iterations cost at the beginning is in a column of its own.",
        published_note(setup, model) + (" For timing its last layer is repeated." if model else ""),
    ]
    return run_all(entered, setup, say, partial(run_trial, tol=0, max_iter=setup.max_iter), notes)


def milliseconds(m: Measurement, label: str, alpha: float) -> tuple[float, float]:
    """Return mean and standard deviation over the problems of the mean time of an iteration."""
    return mean_and_deviation(1e3 * trial.seconds_per_iteration for trial in m.of(label, alpha))


def tables(m: Measurement) -> list[Table]:
    """Return the times of an iteration."""
    rows = []
    for alpha in m.setup.alphas:
        base = milliseconds(m, OURS, alpha)[0]
        for label in m.labels():
            if trials := m.of(label, alpha):
                mean, deviation = milliseconds(m, label, alpha)
                early = 1e3 * mean_and_deviation(trial.early_seconds for trial in trials)[0]
                done = min(trial.iterations for trial in trials)
                times = [three_digits(value) for value in (mean, deviation, mean / base, early)]
                rows.append([alpha, label, *times, len(trials), done])
    columns = ["α", "method", "ms per iteration", "±", f"times {OURS}", "ms, first ten", "problems", "iterations"]
    return [Table("Time of one iteration: mean and standard deviation over the problems", columns, rows)]


def claims(m: Measurement) -> list[Claim]:
    """Hold the paper's three statements against the measurement."""
    rival = m.labels(SCALEDGD)[0]
    alphas = m.setup.alphas
    slow = {alpha: milliseconds(m, rival, alpha) for alpha in alphas}
    growth = slow[max(alphas)][0] / slow[min(alphas)][0]
    text = (
        f"{slow[min(alphas)][0]:.3g} ms at α = {min(alphas):g}, {slow[max(alphas)][0]:.3g} ms at α = {max(alphas):g}: "
    )
    found = [
        Claim("“ScaledGD runs slower when α becomes larger”", rival, f"{text}{growth:.2f} times.", growth >= SLOWER)
    ]
    for label in (OURS, PUBLISHED):
        if label not in m.contestants:
            continue
        times = {alpha: milliseconds(m, label, alpha)[0] for alpha in alphas if m.of(label, alpha)}
        spread = max(times.values()) / min(times.values())
        text = f"From {min(times.values()):.3g} to {max(times.values()):.3g} ms, {spread:.2f} times, over α = "
        text += ", ".join(f"{alpha:g}" for alpha in times)
        unclear = len(times) < 2
        found.append(
            Claim(
                "“the per-iteration runtime of LRPCA is insensitive to α”",
                label,
                text + ".",
                None if unclear else spread <= INSENSITIVE,
            )
        )
        ratios = {alpha: slow[alpha][0] / times[alpha] for alpha in times}
        least, most = min(ratios.values()), max(ratios.values())
        found.append(
            Claim(
                "“and is significantly faster than ScaledGD”",
                label,
                f"ScaledGD takes {least:.2g} to {most:.2g} times as long.",
                least >= 1 / FASTER,
            )
        )
    return found


def draw(m: Measurement, figure: Figure) -> None:
    """Draw the mean time of an iteration against α, with error bars."""
    axes = figure.subplots()
    for label in m.labels():
        points = [(alpha, *milliseconds(m, label, alpha)) for alpha in m.setup.alphas if m.of(label, alpha)]
        draw_error_bars(axes, label, points)
    axes.set_ylim(0, None)
    mark_shares(axes, m.setup.alphas)
    axes.set_ylabel("milliseconds per iteration")
    legend_below(figure, [axes])


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
    read=Measurement.from_dict,
    criteria=f"“Slower when α becomes larger” is confirmed where an iteration takes at least {SLOWER:g} times as long "
    f"at the largest α as at the smallest; “insensitive”, where the slowest takes at most {INSENSITIVE:g} times as "
    "long as the fastest; “significantly faster”, where at every α it takes at most "
    f"{FASTER:g} times as long as ScaledGD's.",
)
