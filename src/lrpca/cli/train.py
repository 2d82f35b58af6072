"""The command ``lrpca train``: learn a schedule from generated problems or from your own matrices."""

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from lrpca.cli.console import Shown, exit_with, grid, live_rows, print_out, print_pairs, read_shape
from lrpca.cli.exit_codes import NOTHING_LEFT, ExitCode

if TYPE_CHECKING:
    from lrpca.learn import Progress
    from lrpca.learn.problems import PaperProblems, Source
    from lrpca.schedule import Schedule

_SIDE, _RANK, _OUTLIERS = 1000, 5, 0.1
_FILES = "Matrices to train on. Without them, problems are generated."
_RANK_HELP = "Rank. Required for FILES; default 5."
_SHAPE = "Shape of generated problems; default 1000x1000."
_SHARE = "Share of outliers in generated problems; default 0.1."
_FORCE = "Replace existing files, and ignore an existing checkpoint."
_TRUTH = "True low-rank part of a FILE. Repeat it for every FILE, in the same order."
_LABELS = "Method that computes the low-rank parts of FILES, e.g. altproj. Without it, entries are held out."
_MIXTURE = "Generate many kinds of problems: shapes, ranks, outliers, noise, missing entries."
_FORM = "adaptive (default): for any size and scale. paper: for one shape and rank."
_MODEL = "fnn: every layer has its own numbers. rnn: a recurrence. frmnn: first layers, then a recurrence."
_WAY = "Training algorithm. fast: all layers at once. paper: layer by layer (needs --form paper)."
_BEGIN = "Schedule to start from: a shipped name, a .json file, or a published .mat file."
_CHECKPOINT = "File to save the training state in; removed at the end. Default: MODEL.checkpoint.json."
_PATIENCE = "Stop after N evaluations without a better score. There are twenty in all."
_FLOOR = "Least threshold of the recurrence, in multiples of the inlier scale (--form paper)."
_DEVICE = "Device for the matrices: cpu, cuda, or e.g. cuda:1."
_PLOT = "Plot the error of each layer and the score during training."


def train(
    ctx: typer.Context,
    output: Annotated[Path, Option("--output", "-o", metavar="MODEL.json", help="File to write the model to.")],
    files: Annotated[list[Path] | None, Argument(metavar="[FILES...]", help=_FILES)] = None,
    rank: Annotated[int | None, Option("--rank", "-r", metavar="N", help=_RANK_HELP)] = None,
    shape: Annotated[str | None, Option(metavar="N1xN2", help=_SHAPE)] = None,
    outliers: Annotated[float | None, Option(metavar="X", help=_SHARE)] = None,
    mixture: Annotated[bool, Option("--mixture", help=_MIXTURE)] = False,
    truth: Annotated[list[Path] | None, Option(metavar="FILE", help=_TRUTH)] = None,
    labels: Annotated[str | None, Option(metavar="METHOD", help=_LABELS)] = None,
    model: Annotated[str, Option(metavar="WORD", help=_MODEL)] = "frmnn",
    form: Annotated[str | None, Option(metavar="WORD", help=_FORM)] = None,
    way: Annotated[str, Option(metavar="WORD", help=_WAY)] = "fast",
    begin: Annotated[str | None, Option(metavar="NAME", help=_BEGIN)] = None,
    layers: Annotated[int | None, Option(metavar="N", help="Number of layers with their own numbers.")] = None,
    depth: Annotated[int | None, Option(metavar="N", help="Number of layers in the loss.")] = None,
    steps: Annotated[int | None, Option(metavar="N", help="Number of training steps.")] = None,
    learning_rate: Annotated[
        float | None, Option(metavar="X", help="Learning rate at the start; with --way paper, that of the steps.")
    ] = None,
    patience: Annotated[int | None, Option(metavar="N", help=_PATIENCE)] = None,
    floor: Annotated[float | None, Option(metavar="X", help=_FLOOR)] = None,
    seed: Annotated[int, Option(min=0, metavar="N", help="Random seed.")] = 0,
    device: Annotated[str, Option(metavar="WORD", help=_DEVICE)] = "cpu",
    checkpoint: Annotated[Path | None, Option(metavar="FILE.json", help=_CHECKPOINT)] = None,
    resume: Annotated[bool, Option("--resume", help="Resume from the checkpoint.")] = False,
    plot: Annotated[Path | None, Option(metavar="FILE.png", help=_PLOT)] = None,
    force: Annotated[bool, Option("--force", "-f", help=_FORCE)] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only warnings and errors.")] = False,
) -> None:
    """Learn a schedule from generated problems, or from your own matrices in FILES."""
    from lrpca import learn
    from lrpca import plot as figures
    from lrpca.cli.memory_limit import PYTORCH, require_memory
    from lrpca.cli.models import draw, load_schedule

    material = _Material(tuple(files or ()), tuple(truth or ()), labels, mixture, rank, shape, outliers)
    beside = output.with_name(f"{output.stem}.checkpoint.json")
    places = _Places(output, checkpoint or beside, plot, resume, force)
    settings: dict[str, Any] = {
        **{"model": model, "form": form, "way": way, "layers": layers, "depth": depth, "steps": steps},
        **{"learning_rate": learning_rate, "patience": patience, "random_state": seed, "device": device},
    }
    # The command that makes this model from the beginning.
    words = ctx.obj if isinstance(ctx.obj, list) else sys.argv[1:]
    command = shlex.join(["lrpca", *(word for word in words if word != "--resume")])
    with exit_with(ExitCode.USAGE, ValueError, NotImplementedError):
        require_memory(PYTORCH, "for PyTorch")
        _ = learn.train  # raises ImportError without PyTorch
        if places.plot is not None:
            figures.require_matplotlib()
        material.check()
        if begin is not None and settings["form"] is not None:
            raise ValueError(f"--form={settings['form']} cannot be combined with --begin; give one of them")
        settings |= material.drawn()
    with exit_with(ExitCode.INPUT):
        settings["form"] = load_schedule(begin) if begin is not None else settings["form"] or "adaptive"
    with exit_with(ExitCode.USAGE, ValueError):
        problems = _check_settings(settings, material, floor)
    with exit_with(ExitCode.OUTPUT):
        places.check([*material.files, *material.truth, *([Path(begin)] if begin else [])])
    with exit_with(ExitCode.INPUT):
        if places.resume and not places.checkpoint.exists():
            raise ValueError(f"--resume has no {str(places.checkpoint)!r} to resume from; leave it out to start again")
        source = _read(material, problems, settings["random_state"], quiet)
    with exit_with(ExitCode.OUTPUT):
        places.clear()
    schedule = _train(source, places, settings, command, quiet)
    if floor is not None:
        schedule = replace(schedule, floor=floor)
    with exit_with(ExitCode.OUTPUT):
        schedule.save(places.output)
        places.checkpoint.unlink(missing_ok=True)
    if places.plot is not None:
        draw(schedule, places.plot, force=places.force)
    if not quiet:
        _report(schedule, material, places)


@dataclass(frozen=True)
class _Material:
    """What to train on: files, or options of generated problems."""

    files: tuple[Path, ...]
    truth: tuple[Path, ...]
    labels: str | None
    mixture: bool
    rank: int | None
    shape: str | None
    outliers: float | None

    def check(self) -> None:
        """Raise ValueError for options that cannot be combined."""
        from lrpca.solvers.methods import find_method

        made = {"shape": self.shape, "outliers": self.outliers}
        if self.files:
            _refuse(made | {"mixture": self.mixture or None}, "is for generated problems", "FILES")
            if self.rank is None:
                raise ValueError("--rank is required with FILES; give it, e.g. --rank 5")
            if self.truth and len(self.truth) != len(self.files):
                raise ValueError(
                    f"--truth={len(self.truth)} files is not one for each of {len(self.files)} FILES; "
                    "repeat --truth, in the order of FILES"
                )
            if self.truth and self.labels is not None:
                raise ValueError(f"--labels={self.labels} cannot be combined with --truth; give one of them")
            if self.labels is not None:
                find_method(self.labels)
        elif self.truth or self.labels is not None:
            given = f"--truth={self.truth[0]}" if self.truth else f"--labels={self.labels}"
            raise ValueError(f"{given} needs FILES; name them, or leave it out")
        elif self.mixture:
            _refuse(made | {"rank": self.rank}, "is for problems of one kind", "--mixture")

    def drawn(self) -> dict[str, Any]:
        """Return the arguments of `lrpca.learn.train` for generated problems."""
        return {
            "rank": _RANK if self.rank is None else self.rank,
            "shape": read_shape(self.shape or str(_SIDE)),
            "outlier_fraction": _OUTLIERS if self.outliers is None else self.outliers,
        }

    def data(self) -> Any:
        """Return files, pairs of files or a source for `lrpca.learn.train`; None for generated problems."""
        if self.mixture:
            from lrpca.learn.problems import Mixture

            return Mixture()
        if self.truth:
            return list(zip(self.files, self.truth, strict=True))
        return list(self.files) or None

    def with_names(self, message: str) -> str:
        """Return a message with the names of the files in place of ``data[0]``, ``data[0][1]`` and the like."""
        for k, file in enumerate(self.files):
            if self.truth:
                message = message.replace(f"data[{k}][0]", str(file)).replace(f"data[{k}][1]", str(self.truth[k]))
            message = message.replace(f"data[{k}]", str(file))
        return message


def _refuse(options: dict[str, Any], because: str, other: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"--{name}={value} {because}; leave out either it or {other}")


@dataclass(frozen=True)
class _Places:
    """Paths to write to."""

    output: Path
    checkpoint: Path
    plot: Path | None
    resume: bool
    force: bool

    def check(self, inputs: Sequence[Path]) -> None:
        """Raise OSError or ValueError unless all of them can be written, and no two are the same."""
        from lrpca.files.atomic import check_file
        from lrpca.learn.checkpoint import is_checkpoint

        check_file(self.output, ".json", overwrite=self.force)
        check_file(self.checkpoint, ".json", overwrite=True)
        if self.plot is not None:
            check_file(self.plot, ".png", overwrite=self.force)
        taken = {os.path.realpath(path): "the input" for path in inputs}
        places = {"the model": self.output, "the checkpoint": self.checkpoint, "the picture": self.plot}
        for name, path in places.items():
            if path is None:
                continue
            other = taken.setdefault(os.path.realpath(path), name)
            if other != name:
                raise ValueError(f"path={str(path)!r} would be both {name} and {other}; choose another name")
        if self.checkpoint.exists() and not self.resume:
            name = f"path={str(self.checkpoint)!r}"
            if not is_checkpoint(self.checkpoint):
                raise ValueError(f"{name} is not a checkpoint; choose another file with --checkpoint")
            if not self.force:
                raise FileExistsError(f"{name} holds an unfinished training; add --resume, or --force to start again")

    def clear(self) -> None:
        """Make the folders, and remove the checkpoint unless training is resumed."""
        for path in (self.output, self.checkpoint, self.plot):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
        if not self.resume:
            self.checkpoint.unlink(missing_ok=True)


def _check_settings(settings: dict[str, Any], material: _Material, floor: float | None) -> "PaperProblems":
    """Raise ValueError for wrong settings; return the problems to generate if there are no data."""
    from lrpca.learn.request import Request, resolve

    request = resolve(Request(**settings))
    absolute = request.schedule.kind == "absolute"
    if floor is not None and not (0 < floor < math.inf and absolute and request.model != "fnn"):
        raise ValueError(
            f"--floor={floor} is not allowed here; give a positive number, with --form paper and --model rnn or frmnn"
        )
    if material.mixture and absolute:
        raise ValueError("--mixture has no single scale, which --form paper needs; use --form adaptive")
    return request.problems


def _read(material: _Material, problems: "PaperProblems", seed: int, quiet: bool) -> "Source":
    """Return the data to train on; files are read, and labelled if need be."""
    from lrpca.learn.data import as_source

    with live_rows(quiet or not material.files, "", "reading") as show:
        show.stage("reading the data" + (f", and labelling them by {material.labels}" if material.labels else ""))
        try:
            return as_source(material.data(), material.labels, problems, rank=problems.rank, seed=seed)
        except (ValueError, TypeError) as error:
            raise ValueError(material.with_names(str(error))) from error


def _train(source: Any, places: _Places, settings: dict[str, Any], command: str, quiet: bool) -> "Schedule":
    """Train and show the progress; turn failures into a message and an exit code."""
    from lrpca.learn import DivergedError, train

    with (
        _interruptible(places.checkpoint, command),
        exit_with(ExitCode.NOT_CONVERGED, DivergedError),
        exit_with(ExitCode.INPUT, ValueError),
        exit_with(ExitCode.OUTPUT, OSError),
        live_rows(quiet, "training", "generating problems") as show,
    ):
        try:
            return train(
                data=source,
                checkpoint=places.checkpoint,
                resume=places.resume,
                progress=_follow(show),
                command=command,
                **settings,
            )
        except DivergedError as error:
            raise DivergedError(f"{error} (add --force to start again)") from error


@contextmanager
def _interruptible(checkpoint: Path, command: str) -> Iterator[None]:
    """Say how to resume after Ctrl-C or SIGTERM."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        on = f"resume with: {command} --resume" if checkpoint.exists() else "no checkpoint was written yet"
        stop.add_note(f"{NOTHING_LEFT}; {on}")
        raise


def _follow(show: Shown) -> "Callable[[Progress], None]":
    """Return a function that shows the progress of training and the estimated time left."""
    first: Progress | None = None

    def follow(progress: "Progress") -> None:
        nonlocal first
        first = first or progress
        steps, seconds = progress.step - first.step, progress.seconds - first.seconds
        # The work after the last step has neither errors nor steps for an estimate.
        known = bool(progress.errors) and steps > 0
        remaining = f"{seconds / steps * (progress.total - progress.step):.0f} s" if known else "-"
        show.row(
            {
                "step": f"{progress.step:>{len(str(progress.total))}} of {progress.total}",
                "stage": progress.stage,
                "loss": "-" if progress.loss != progress.loss else f"{progress.loss:.3f}",
                "score": f"{progress.score:.3f}",
                "error": f"{progress.errors[-1]:.2e}" if progress.errors else "-",
                "seconds": f"{progress.seconds:.1f}",
                "remaining": remaining,
            }
        )

    return follow


def _report(schedule: "Schedule", material: _Material, places: _Places) -> None:
    """Print the error of each layer, the cost, the path of the model and the next command."""
    scores, training = schedule.meta["scores"], schedule.meta["training"]
    before, after = scores["errors_before"] or [], scores["held_out_errors"]
    rows = [[layer, before[layer] if layer < len(before) else None, error] for layer, error in enumerate(after)]
    print_out("held-out error after each layer", grid(["layer", "before", "after training"], rows), "")
    file = str(material.files[0]) if material.files else "Y.npy"
    rank = "N" if material.mixture else str(material.drawn()["rank"])
    after_that = ["lrpca", "decompose", file, "--rank", rank, "--schedule", str(places.output), "-o", "result.npz"]
    print_pairs(
        {
            "score": f"{scores['score']:.3f}, mean log10 of the errors after layers 1 to {len(after) - 1}",
            "steps": f"{training['steps_taken']} of {training['steps']}",
            "time": f"{schedule.meta['seconds']:.1f} s",
            "model": str(places.output),
            **({"picture": str(places.plot)} if places.plot is not None else {}),
            "next": shlex.join(after_that),
        }
    )
