"""Measure an experiment and write its results: numbers as JSON, and a page."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

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
from lrpca.bench.experiments.measurement import Claim, Experiment, Say, Table, to_json
from lrpca.core import environment as circumstances
from lrpca.files.atomic import check_folder, replacing_files

# Comparisons of solvers first, then what the paper measures of learning, which needs PyTorch; then videos.
_ALL: tuple[Experiment[Any, Any], ...] = (
    *(convergence.EXPERIMENT, iteration_time.EXPERIMENT, total_time.EXPERIMENT, recovery.EXPERIMENT),
    *(models.EXPERIMENT, training_time.EXPERIMENT, generalisation.EXPERIMENT, numbers.EXPERIMENT, video.EXPERIMENT),
)
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}


@dataclass(frozen=True)
class Reproduction:
    """What was measured, and where it was written.

    Attributes
    ----------
    experiment : Experiment
    tables : list of Table
    claims : list of Claim
    small : bool
        Whether it is less than the paper's experiment, so that no claim can be confirmed.
    page, results : pathlib.Path
        The page, and the numbers as JSON.
    seconds : float
        Time of the whole experiment.
    """

    experiment: Experiment[Any, Any]
    tables: list[Table]
    claims: list[Claim]
    small: bool
    page: Path
    results: Path
    seconds: float


def find_experiment(name: str) -> Experiment[Any, Any]:
    """Return an experiment by its name, or raise with the list of those there are."""
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
    progress: Say | None = None,
) -> Reproduction:
    """Run one of the paper's comparisons and write ``NAME.json`` and ``NAME.html``.

    Parameters
    ----------
    name : str
        One of `EXPERIMENTS`.
    output_directory : str or path-like
        Where to write; made if need be, when all is measured.
    quick : bool
        The small form: seconds rather than minutes. It is a sketch of the full one, and confirms nothing.
    repeat : int, optional
        Problems for each setting.
    random_state : int
        Seed of the first problem.
    videos : sequence of str or path-like
        Footage for the experiment "video": files or folders of pictures, in turn for its clips.
    overwrite : bool
        Whether files of these names may be replaced.
    progress : callable, optional
        Called with a short line before each stage.

    Returns
    -------
    Reproduction
    """
    from lrpca import plot
    from lrpca.bench.experiments.page import compose

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
    footage = [os.fspath(path) for path in videos]
    if footage and not isinstance(setup, video.VideoSetup):
        raise ValueError(f"videos={footage} are not used by {name!r}; leave them out, or use 'video'")
    if footage:
        setup = replace(setup, videos=tuple(footage))
    note, began = circumstances.load_note(), time.perf_counter()
    measurement = experiment.measure(setup, progress or _silence)
    elapsed = time.perf_counter() - began
    (progress or _silence)("drawing the page")
    tables, claims = experiment.tables(measurement), experiment.judge(measurement)
    record: dict[str, Any] = {
        **{"name": name, "title": experiment.title, "source": experiment.source},
        "command": _command(name, quick, repeat, random_state, footage),
        "quick": quick,
        "hardware": circumstances.hardware(),
        "versions": circumstances.versions(experiment.packages),
        "date": circumstances.date(),
        "tables": [asdict(table) for table in tables],
        "claims": [asdict(claim) for claim in claims],
        "criteria": experiment.criteria,
        **measurement.as_dict(),
    }
    record["notes"] = [*measurement.notes, f"{note} The whole run took {elapsed:.0f} s."]
    page, numbers = compose(experiment, record), to_json(record)
    # All is computed: from here on only whole files are put in their places.
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing_files(folder, last=f"{name}.json") as staging:
        (staging / f"{name}.json").write_text(numbers, encoding="utf-8")
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


def _silence(message: str) -> None:
    """Ignore a message."""
