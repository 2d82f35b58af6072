"""The page of an experiment: the plot, the paper's claims beside what was measured, and how it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lrpca import report
from lrpca.bench.experiments.measurement import Experiment

VERDICTS = {True: "yes", False: "no", None: "cannot tell"}
SMALL_VERDICT = "cannot tell: small form"
# What was run is not the paper's program.
HELD = "held against this library's solvers"
PAPER = "H. Cai, J. Liu, W. Yin: Learned Robust PCA, NeurIPS 2021"


def compose(experiment: Experiment[Any, Any], record: Mapping[str, Any]) -> report.Page:
    """Make the page of a stored or fresh result."""
    measurement = experiment.read(record)
    small = experiment.is_small(measurement.setup)
    what = f"{experiment.summary[0].upper()}{experiment.summary[1:]}"
    page = report.Page(headline(experiment, small), f"{what}. From {PAPER}; its claims are {HELD}.")
    page.numbers(_numbers(record, measurement, small))
    page.section("What was measured, beside what the paper says", f"The paper: {experiment.source}.")
    light, dark = (draw_png(experiment, measurement, dark=dark) for dark in (False, True))
    caption = measurement.setup.caption()
    page.pictures([report.Picture(light, experiment.title, caption, dark, experiment.summary)], columns=1)
    rows = [[verdict(c["confirmed"], small), c["of"], c["paper"], c["measured"]] for c in record["claims"]]
    page.table(["confirmed", "held against", "the paper", "measured"], rows, wrapped=True)
    unknown = " The curves of the paper are not available as numbers." if experiment.source.startswith("figure") else ""
    page.text(experiment.criteria + unknown)
    page.section("Numbers")
    for table in record["tables"]:
        page.table(table["columns"], table["rows"], caption=table["caption"])
    _add_method(page, record, measurement)
    return page


def draw_png(experiment: Experiment[Any, Any], measurement: Any, *, dark: bool = False) -> bytes:
    """Return the plot as a PNG file."""
    return report.figure_png(lambda f: experiment.draw(measurement, f), experiment.figure_size, dark=dark)


def headline(experiment: Experiment[Any, Any], small: bool) -> str:
    """Return the title of a result."""
    return f"{experiment.title}, measured again" + (" (small form)" if small else "")


def verdict(confirmed: bool | None, small: bool) -> str:
    """Return whether a claim is confirmed, in words."""
    return SMALL_VERDICT if small else VERDICTS[confirmed]


def _numbers(record: Mapping[str, Any], measurement: Any, small: bool) -> list[report.Number]:
    verdicts = [claim["confirmed"] for claim in record["claims"]]
    count = report.Number("Claims confirmed", f"{verdicts.count(True)} of {len(verdicts)}", HELD)
    return [
        report.Number("Claims confirmed", "no verdict", "small form") if small else count,
        *(report.Number(*fact) for fact in measurement.setup.facts()),
        report.Number("Cores", str(record["hardware"]["cores"]), str(record["hardware"]["processor"])),
    ]


def _add_method(page: report.Page, record: Mapping[str, Any], measurement: Any) -> None:
    page.section("How it was measured")
    page.code(f"$ {record['command']}")
    page.text(measurement.setup.describe())
    page.table(["method", "told"], list(measurement.contestants.items()))
    for note in record["notes"]:
        page.text(note)
    hardware = ", ".join(f"{name} {value}" for name, value in record["hardware"].items())
    versions = ", ".join(f"{name} {value}" for name, value in record["versions"].items())
    page.text(f"Measured {record['date']} on: {hardware}. Versions: {versions}.")
    for table in measurement.listings():
        page.table(table.columns, table.rows, caption=table.caption, folded=True)
