"""The page of an experiment: the plot, the paper's claims beside what was measured, and how it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lrpca import plot, report
from lrpca.experiments.measurement import Experiment, Measurement, Trial

VERDICTS = {True: "yes", False: "no", None: "cannot tell"}
SMALL_VERDICT = "cannot tell: small form"
# What was run is not the paper's program.
HELD = "held against this library's solvers"
PAPER = "H. Cai, J. Liu, W. Yin: Learned Robust PCA, NeurIPS 2021"


def compose(experiment: Experiment, record: Mapping[str, Any]) -> report.Page:
    """Make the page of a stored or fresh result.

    Parameters
    ----------
    experiment : Experiment
    record : mapping
        The content of its JSON file.

    Returns
    -------
    lrpca.report.Page
    """
    measurement = Measurement.from_dict(record)
    small = experiment.is_small(measurement.setup)
    page = report.Page(headline(experiment, small), _summary(experiment))
    page.numbers(_numbers(record, small))
    page.section("What was measured, beside what the paper says", f"The paper: {experiment.source}.")
    page.pictures([figure_of(experiment, measurement)], columns=1)
    rows = [[verdict(c["confirmed"], small), c["of"], c["paper"], c["measured"]] for c in record["claims"]]
    page.table(["confirmed", "held against", "the paper", "measured"], rows)
    unknown = " The curves of the paper are not available as numbers." if "figure" in experiment.source else ""
    page.text(experiment.criteria + unknown)
    page.section("Numbers")
    for table in record["tables"]:
        page.table(table["columns"], table["rows"], caption=table["caption"])
    _add_method(page, record, measurement)
    return page


def figure_of(experiment: Experiment, measurement: Measurement) -> report.Picture:
    """Return the plot, for light and for dark pages."""
    light, dark = (draw_png(experiment, measurement, dark=dark) for dark in (False, True))
    caption = f"{measurement.setup}; {measurement.setup.repeat} problems each"
    return report.Picture(light, experiment.title, caption, dark_png=dark, alt=experiment.summary)


def draw_png(experiment: Experiment, measurement: Measurement, *, dark: bool = False) -> bytes:
    """Return the plot as a PNG file."""
    plot.require_matplotlib()
    from matplotlib.figure import Figure

    with plot.style(dark=dark):
        figure = Figure(figsize=experiment.figure_size, layout="constrained")
        experiment.draw(measurement, figure)
        return report.figure_png(figure)


def headline(experiment: Experiment, small: bool) -> str:
    """Return the title of a result."""
    return f"{experiment.title}, measured again" + (" (small form)" if small else "")


def verdict(confirmed: bool | None, small: bool) -> str:
    """Return whether a claim is confirmed, in words."""
    return SMALL_VERDICT if small else VERDICTS[confirmed]


def _summary(experiment: Experiment) -> str:
    what = f"{experiment.summary[0].upper()}{experiment.summary[1:]}"
    return f"{what}. From {PAPER}; its claims are {HELD}."


def _numbers(record: Mapping[str, Any], small: bool) -> list[report.Number]:
    verdicts = [claim["confirmed"] for claim in record["claims"]]
    setup = record["setup"]
    count = report.Number("Claims confirmed", f"{verdicts.count(True)} of {len(verdicts)}", HELD)
    return [
        report.Number("Claims confirmed", "no verdict", "small form") if small else count,
        report.Number("Size", f"{setup['n']} x {setup['n']}", f"rank {setup['rank']}, double precision"),
        report.Number("Problems", str(setup["repeat"]), "for each share of outliers"),
        report.Number("Cores", str(record["hardware"]["cores"]), str(record["hardware"]["processor"])),
    ]


def _add_method(page: report.Page, record: Mapping[str, Any], measurement: Measurement) -> None:
    page.section("How it was measured")
    page.code(f"$ {record['command']}")
    setup = measurement.setup
    page.text(
        "Problems as in the paper: X* = U Vᵀ, U and V Gaussian with variance 1/n; a share α of the entries, chosen "
        f"uniformly, gets a number added that is uniform in ±mean|X*|. Seeds {setup.seed} to "
        f"{setup.seed + setup.repeat - 1}, the same for all methods, which take turns in shuffled order. "
        f"At most {setup.max_iter} iterations."
    )
    page.table(["method", "told"], list(measurement.contestants.items()))
    for note in record["notes"]:
        page.text(note)
    hardware = ", ".join(f"{name} {value}" for name, value in record["hardware"].items())
    versions = ", ".join(f"{name} {value}" for name, value in record["versions"].items())
    page.text(f"Measured {record['date']} on: {hardware}. Versions: {versions}.")
    columns = [field.name for field in fields(Trial) if field.name != "errors"]
    rows = [[getattr(trial, name) for name in columns] for trial in measurement.trials]
    page.table([name.replace("_", " ") for name in columns], rows, caption="All runs", folded=True)
