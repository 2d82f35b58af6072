"""Measure an experiment and write its results: numbers as JSON, and a page."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lrpca import plot, report
from lrpca.bench.experiments import (
    convergence,
    generalisation,
    iteration_time,
    models,
    numbers,
    recovery,
    total_time,
    training_time,
    video,
)
from lrpca.bench.experiments.measurement import Claim, Experiment, Measurement, Say
from lrpca.bench.measuring import Table, compact_json
from lrpca.core import environment
from lrpca.files.atomic import check_folder, replacing_files

# Comparisons of solvers first, then learning, which needs PyTorch, then videos.
_ALL = (convergence, iteration_time, total_time, recovery, models, training_time, generalisation, numbers, video)
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _ALL}
VERDICTS = {True: "yes", False: "no", None: "cannot tell"}
SMALL_VERDICT = "cannot tell: small version"
# What ran is not the paper's program.
HELD = "compared with this library's solvers"
CLAIM_COLUMNS = ("confirmed", "compared with", "the paper", "measured")
PAPER = "H. Cai, J. Liu, W. Yin: Learned Robust PCA, NeurIPS 2021"


@dataclass(frozen=True)
class Reproduction:
    """What was measured, and where it was written.

    Attributes
    ----------
    experiment : Experiment
    tables, claims : list of Table, list of Claim
    small : bool
        Whether it is less than the paper's experiment, so that no claim can be confirmed.
    page, results : pathlib.Path
        The page, and the numbers as JSON.
    seconds : float
        Time of the whole experiment.
    """

    experiment: Experiment
    tables: list[Table]
    claims: list[Claim]
    small: bool
    page: Path
    results: Path
    seconds: float


def find_experiment(name: str) -> Experiment:
    """Return an experiment by its name; a ValueError lists the known ones."""
    if name not in EXPERIMENTS:
        raise ValueError(f"name={name!r} is not an experiment; use one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def reproduce(
    name: str,
    output_directory: str | os.PathLike[str],
    *,
    quick: bool = False,
    repeat: int | None = None,
    random_state: int = 0,
    videos: Sequence[str | os.PathLike[str]] = (),
    overwrite: bool = False,
    progress: Say = lambda message: None,
) -> Reproduction:
    """Run one of the paper's comparisons and write ``NAME.json`` and ``NAME.html``.

    Parameters
    ----------
    name : str
        One of `EXPERIMENTS`.
    output_directory : str or path-like
        Where to write; made, if missing, after everything is measured.
    quick : bool
        Run the small version: seconds instead of minutes. No claim gets a verdict.
    repeat : int, optional
        Problems for each setting.
    random_state : int
        Seed of the first problem.
    videos : sequence of str or path-like
        Footage for the experiment "video": files or folders of pictures, in turn for its clips.
    overwrite : bool
        Whether files of these names may be replaced.
    progress : callable
        Called with a short line before each stage.

    Returns
    -------
    Reproduction
    """
    experiment = find_experiment(name)
    if repeat is not None and repeat < 1:
        raise ValueError(f"repeat={repeat} is not positive; use e.g. 5")
    if random_state < 0:
        raise ValueError(f"random_state={random_state} is negative; use e.g. 0")
    folder = Path(output_directory)
    check_folder(folder, (f"{name}.json", f"{name}.html"), overwrite=overwrite)
    plot.require_matplotlib()
    setup = experiment.quick if quick else experiment.full
    setup = replace(setup, seed=random_state, repeat=repeat or setup.repeat)
    if footage := [os.fspath(path) for path in videos]:
        if not isinstance(setup, video.VideoSetup):
            raise ValueError(f"videos={footage} are not used by {name!r}; leave them out, or use 'video'")
        setup = replace(setup, videos=footage)
    note, began = environment.load_note(), time.perf_counter()
    m = experiment.measure(setup, progress)
    elapsed = time.perf_counter() - began
    progress("drawing the page")
    m = replace(m, notes=[*m.notes, f"{note} The whole run took {elapsed:.0f} s."])
    tables, claims = experiment.tables(m), experiment.judge(m)
    record: dict[str, Any] = {
        **{"name": name, "title": experiment.title, "source": experiment.source},
        "command": _command(name, quick, repeat, random_state, footage),
        "quick": quick,
        "hardware": environment.hardware(),
        "versions": environment.versions(experiment.packages),
        "date": environment.date(),
        "tables": [asdict(table) for table in tables],
        "claims": [asdict(claim) for claim in claims],
        "criteria": experiment.criteria,
        **m.as_dict(),
    }
    page, text = compose(experiment, record), compact_json(record)
    # All is computed: from here on only whole files are moved to their places.
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing_files(folder, last=f"{name}.json") as staging:
        (staging / f"{name}.json").write_text(text, encoding="utf-8")
        page.save(staging / f"{name}.html")
    found = (tables, claims, experiment.is_small(setup))
    return Reproduction(experiment, *found, folder / f"{name}.html", folder / f"{name}.json", elapsed)


def _command(name: str, quick: bool, repeat: int | None, seed: int, videos: Sequence[str]) -> str:
    parts = ["lrpca", "reproduce", name]
    parts += ["--quick"] if quick else []
    parts += ["--repeat", str(repeat)] if repeat is not None else []
    parts += ["--seed", str(seed)] if seed else []
    parts += [word for path in videos for word in ("--video", path)]
    return shlex.join(parts)


def compose(experiment: Experiment, record: Mapping[str, Any]) -> report.Page:
    """Return the page of a stored or fresh result: the plot, the claims, the numbers, and how they were measured."""
    m = experiment.read(record)
    small = experiment.is_small(m.setup)
    what = f"{experiment.summary[0].upper()}{experiment.summary[1:]}"
    page = report.Page(headline(experiment, small), f"{what}. From {PAPER}; its claims are {HELD}.")
    verdicts = [claim["confirmed"] for claim in record["claims"]]
    count = report.Number("Claims confirmed", f"{verdicts.count(True)} of {len(verdicts)}", HELD)
    none = report.Number("Claims confirmed", "no verdict", "small version")
    hardware = record["hardware"]
    cores = report.Number("Cores", str(hardware["cores"]), str(hardware["processor"]))
    page.numbers([none if small else count, cores])
    page.section("What was measured, beside what the paper says", f"The paper: {experiment.source}.")
    light, dark = (draw_png(experiment, m, dark=dark) for dark in (False, True))
    page.pictures([report.Picture(light, experiment.title, m.setup.caption(), dark, experiment.summary)], columns=1)
    rows = [[verdict(c["confirmed"], small), c["of"], c["paper"], c["measured"]] for c in record["claims"]]
    page.table(CLAIM_COLUMNS, rows, wrapped=True)
    unknown = " The curves of the paper are not available as numbers." if experiment.source.startswith("figure") else ""
    page.text(experiment.criteria + unknown)
    page.section("Numbers")
    for table in record["tables"]:
        page.table(table["columns"], table["rows"], caption=table["caption"])
    page.section("How it was measured")
    page.code(f"$ {record['command']}")
    page.text(m.setup.describe())
    page.table(["method", "given"], list(m.contestants.items()))
    for note in m.notes:
        page.text(note)
    about, versions = (
        ", ".join(f"{name} {value}" for name, value in record[part].items()) for part in ("hardware", "versions")
    )
    page.text(f"Measured {record['date']} on: {about}. Versions: {versions}.")
    return page


def draw_png(experiment: Experiment, m: Measurement, *, dark: bool = False) -> bytes:
    """Return the plot as a PNG file."""
    return report.figure_png(lambda figure: experiment.draw(m, figure), experiment.figure_size, dark=dark)


def headline(experiment: Experiment, small: bool) -> str:
    """Return the title of a result."""
    return f"{experiment.title}, measured again" + (" (small version)" if small else "")


def verdict(confirmed: bool | None, small: bool) -> str:
    """Return whether a claim is confirmed, in words."""
    return SMALL_VERDICT if small else VERDICTS[confirmed]
