"""The command ``lrpca models``: list the shipped schedules, or show one."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from lrpca.cli.console import exit_with, grid, print_out, print_pairs
from lrpca.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from lrpca.schedule import Schedule

_NAME = "A shipped model, a .json file or a published .mat file. Without it, all shipped models are listed."
_PLOT = "Plot the training of NAME."


def models(
    name: Annotated[str | None, Argument(metavar="[NAME]", help=_NAME)] = None,
    plot: Annotated[Path | None, Option(metavar="FILE.png", help=_PLOT)] = None,
    force: Annotated[bool, Option("--force", "-f", help="Replace an existing picture.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List the shipped schedules, or show the numbers and the origin of one."""
    from lrpca.schedule import Schedule, shipped

    if name is None:
        with exit_with(ExitCode.USAGE, ValueError):
            if plot is not None:
                raise ValueError(f"--plot={plot} needs a model; give NAME")
        found = {known: Schedule.load(known) for known in shipped()}
        if as_json:
            _print_json([{"name": known, **asdict(schedule)} for known, schedule in found.items()])
        else:
            print_out(grid(_COLUMNS, [_row(known, schedule) for known, schedule in found.items()]))
        return
    with exit_with(ExitCode.INPUT):
        schedule = load_schedule(name)
    if plot is not None:
        draw(schedule, plot, force=force)
    if as_json:
        _print_json({"name": name, **asdict(schedule)})
    else:
        _show(name, schedule)


def load_schedule(name: str) -> "Schedule":
    """Return the schedule shipped under a name, saved as JSON, or published as .mat."""
    from lrpca.schedule import PUBLISHED_RANK, PUBLISHED_SHAPE, Schedule

    if name.lower().endswith(".mat"):
        return Schedule.from_mat(name, shape=PUBLISHED_SHAPE, rank=PUBLISHED_RANK)
    return Schedule.load(name)


def draw(schedule: "Schedule", path: Path, *, force: bool) -> None:
    """Plot the training of a schedule, or exit with a message and a code."""
    from lrpca.files.atomic import check_file, replacing
    from lrpca.learn.report import training_png

    with exit_with(ExitCode.OUTPUT):
        check_file(path, ".png", overwrite=force)
    with exit_with(ExitCode.INPUT, ValueError):
        picture = training_png(schedule)
    with exit_with(ExitCode.OUTPUT), replacing(path) as temporary:
        temporary.write_bytes(picture)


# Shown as the form, in the table of layers, or in the picture.
_ELSEWHERE = ("form", "held_out_errors", "errors_before", "history")
_COLUMNS = ("name", "kind", "form", "layers", "trained on", "score")


def _row(name: str, schedule: "Schedule") -> list[object]:
    from lrpca.learn.report import score_of, trained_on

    form = f"{schedule.influence}, {schedule.update}"
    return [name, schedule.kind, form, _layers(schedule), trained_on(schedule), score_of(schedule)]


def _layers(schedule: "Schedule") -> str:
    return f"{schedule.layers}, then on" if schedule.tail is not None else str(schedule.layers)


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, allow_nan=False))


def _show(name: str, schedule: "Schedule") -> None:
    """Print the form, the numbers of every layer, and their origin."""
    from lrpca.learn.report import trained_on

    unit = {"absolute": "in the units of Y", "adaptive": "in multiples of the inlier scale"}[schedule.kind]
    rows = {
        "name": name,
        "kind": f"{schedule.kind}: thresholds {unit}",
        "form": f"{schedule.influence} influence"
        + (f" up to {schedule.cutoff:g} thresholds" if schedule.cutoff is not None else "")
        + f", {schedule.update} update",
        "layers": _layers(schedule),
    }
    if schedule.tail is not None:
        rows["then"] = f"step x {schedule.tail[0]:.6g}, threshold x {schedule.tail[1]:.6g} in each pass"
    if schedule.floor is not None:
        rows["floor"] = f"{schedule.floor:g} times the inlier scale"
    if schedule.kind == "adaptive":
        rows["decay"] = f"{schedule.decay:g}, the smallest ratio of a threshold to the one before"
    if schedule.shape is not None:
        rows["meant for"] = f"{' x '.join(map(str, schedule.shape))}, rank {schedule.rank}"
    print_pairs({**rows, "trained on": trained_on(schedule)})
    scores = schedule.meta.get("scores")
    errors = scores.get("held_out_errors") if isinstance(scores, Mapping) else None
    print_out("", _numbers(schedule, errors or []))
    if meta := {key: _plain(value) for key, value in schedule.meta.items()}:
        print_out("")
        print_pairs(meta)


def _numbers(schedule: "Schedule", errors: list[float | None]) -> Any:
    columns = ["layer", "threshold", "step", "held-out error"]
    rows: list[list[object]] = []
    for layer in range(max(schedule.layers + 1, len(errors))):
        threshold, step = schedule.at(layer) or (None, None)
        error = errors[layer] if layer < len(errors) else None
        rows.append([layer, threshold, step if layer else None, error])
    width = 4 if errors else 3
    return grid(columns[:width], [row[:width] for row in rows], digits=6)


def _plain(value: Any) -> str:
    """Return a note as text: a nested one as name value, name value, without empty ones and those shown elsewhere."""
    if isinstance(value, Mapping):
        shown = {key: inner for key, inner in value.items() if inner is not None and key not in _ELSEWHERE}
        return ", ".join(f"{key} {_plain(inner)}" for key, inner in shown.items())
    return str(value) if isinstance(value, str) else json.dumps(value)
