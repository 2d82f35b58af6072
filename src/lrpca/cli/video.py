"""The command ``lrpca video``: split a clip into background and moving objects; write videos and a page."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from lrpca.cli.console import Shown, exit_with, live_rows, print_pairs
from lrpca.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from lrpca.video import Progress, Separation

_IN = "A video file, or a folder of pictures."
_OUT = "Folder for the videos and the page; default: IN-separated."
_RANK = "Number of background components; 2 suits a scene under changing light."
_GREY = "Use grey frames, or colour. Default: as in IN."
_DOWNSCALE = "Average NxN pixels before solving, for speed. The output has full size."
_ROI = "Mark objects only in this region: LEFT,TOP,RIGHT,BOTTOM, or a picture that is white there."
_IGNORE = "Mark no objects in this region: a box or a picture, as for --roi."
_SENSITIVITY = "From 0.1 to 10. Above 1, fainter objects are marked; below 1, only clearer ones."
_NO_CLEAN = "Do not remove specks and holes from the masks."
_WINDOW = "Number of frames in memory at a time. Default: as many as fit into half a gigabyte."
_FORCE = "Replace an existing result when this run is complete."
_MASKS = "Format of the masks: video (mask.mp4) or pictures (PNGs in the folder mask)."
_ADVICE = "of the background is moving (noise, or a camera that is not fixed); check the masks before you use them"
_LEARNING = "learning the background (the first run compiles)"
# If a larger share of the background moves, a warning says so.
_RESTLESS = 0.5


def video(
    file: Annotated[Path, Argument(metavar="IN", help=_IN)],
    output: Annotated[Path | None, Option("--output", "-o", metavar="DIR", help=_OUT)] = None,
    sensitivity: Annotated[float, Option("--sensitivity", "-s", metavar="X", help=_SENSITIVITY)] = 1.0,
    roi: Annotated[str | None, Option(metavar="BOX", help=_ROI)] = None,
    ignore: Annotated[str | None, Option(metavar="BOX", help=_IGNORE)] = None,
    masks: Annotated[str, Option(metavar="WORD", help=_MASKS)] = "video",
    grey: Annotated[bool | None, Option("--grey/--colour", help=_GREY)] = None,
    downscale: Annotated[int | None, Option(metavar="N", help=_DOWNSCALE)] = None,
    rank: Annotated[int, Option("--rank", "-r", metavar="N", help=_RANK)] = 2,
    no_clean: Annotated[bool, Option("--no-clean", help=_NO_CLEAN)] = False,
    window: Annotated[int | None, Option(metavar="N", help=_WINDOW)] = None,
    force: Annotated[bool, Option("--force", "-f", help=_FORCE)] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only warnings and errors.")] = False,
) -> None:
    """Split a clip into background and moving objects; write videos, masks and a page."""
    from lrpca.video import open_frames, separate
    from lrpca.video.outputs import check_output
    from lrpca.video.request import Request

    whole = file.resolve()  # "." has no name
    name = (whole.name if file.is_dir() else whole.stem) or "clip"
    folder = Path(f"{name}-separated") if output is None else output
    settings: dict[str, Any] = {"grey": grey, "sensitivity": sensitivity, "clean": not no_clean, "rank": rank}
    settings |= {"window": window, "masks": masks, "downscale": downscale, "overwrite": force}
    with exit_with(ExitCode.USAGE, ValueError):
        settings |= {"roi": _read_region("roi", roi), "ignore": _read_region("ignore", ignore)}
        request = Request(**{field.name: settings[field.name] for field in fields(Request)})
        if masks not in ("video", "pictures"):
            raise ValueError(f"--masks={masks} is unknown; use video or pictures")
    # A pipe can be read only once.
    with exit_with(ExitCode.INPUT), nullcontext() if file.is_fifo() else open_frames(file) as reader:
        if reader is not None:
            request.begin(reader.height, reader.width, reader.channels)
    with exit_with(ExitCode.OUTPUT):
        check_output(folder, file, masks, overwrite=force)
    with (
        exit_with(ExitCode.INPUT, ValueError),
        exit_with(ExitCode.OUTPUT, OSError),
        live_rows(quiet, "separating", _LEARNING) as show,
    ):
        result = separate(file, folder, callback=_follow(show), **settings)
    stays = "" if result.folder == folder else f", to {str(result.folder)!r}: the complete result stays"
    for note in result.notes:
        before = f"the {result.n_frames} frames before are separated and written"
        typer.echo(f"lrpca: {note}; {before}{stays}", err=True)
    if (moving := result.scenes[-1][1].dynamic.mean()) > _RESTLESS:
        typer.echo(f"lrpca: warning: {moving:.0%} {_ADVICE}", err=True)
    if not quiet:
        _report(result)
    raise typer.Exit(ExitCode.DONE if result.complete else ExitCode.NOT_CONVERGED)


def _read_region(name: str, text: str | None) -> tuple[int, ...] | Path | None:
    """Return a box (left, top, right, bottom), or the path of a picture."""
    if text is None:
        return None
    if re.fullmatch(r"\s*\d+(\s*,\s*\d+){3}\s*", text):
        left, top, right, bottom = box = tuple(int(edge) for edge in text.split(","))
        if left < right and top < bottom:
            return box
    if re.fullmatch(r"[\d\s,.+-]*", text) and not Path(text).is_file():
        raise ValueError(f"--{name}={text!r} is not a box; write LEFT,TOP,RIGHT,BOTTOM in pixels, e.g. 0,40,320,240")
    return Path(text)


def _follow(show: Shown) -> "Callable[[Progress], None]":
    """Return a function that shows the progress: its stages, and the frames done."""
    first: Progress | None = None
    show.stage(_LEARNING)

    def follow(progress: "Progress") -> None:
        nonlocal first
        total = _announced(progress)
        if first is None:
            first = progress
            show.stage("separating" if total is None else f"separating, {total} frames announced")
        if progress.done == total:
            show.stage(f"finishing the files: {tell(first, progress)}")
        else:
            show.say(f"separating: {tell(first, progress)}")

    return follow


def tell(first: "Progress", now: "Progress") -> str:
    """Return the frames done, the speed since the first report, and the estimated time left, as text."""
    total, pace = _announced(now), 0.0
    if now.seconds > first.seconds:
        pace = (now.done - first.done) / (now.seconds - first.seconds)
    parts = [f"{now.done} frames" if total is None else f"{now.done} of {total} frames"]
    if pace > 0:
        parts.append(f"{pace:.3g} a second")
        if total is not None:
            parts.append(f"{_clock(round((total - now.done) / pace))} left")
    return ", ".join(parts)


def _clock(seconds: int) -> str:
    """Return a time as 1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def _announced(progress: "Progress") -> int | None:
    """Return the announced number of frames; None if it is unknown or was wrong."""
    n_frames = progress.n_frames
    return None if n_frames is None or n_frames < progress.done else n_frames


def _report(result: "Separation") -> None:
    """Print the figures and where the files are."""
    assert result.folder is not None
    scene = result.scenes[-1][1]
    kind = "colour" if result.channels == 3 else "grey"
    frames = "one frame" if result.n_frames == 1 else f"{result.n_frames} frames"
    print_pairs(
        {
            "clip": f"{result.name}, {frames} of {result.width}x{result.height}, {kind}",
            "background": f"rank {len(scene.basis)}, solved at {scene.width}x{scene.height}; "
            f"{scene.dynamic.mean():.1%} of it is moving",
            "noise level": f"{scene.noise:.2g} grey levels",
            "foreground": _foreground(result),
            "time": f"{result.seconds:.3g} s, {result.n_frames / result.seconds:.3g} frames a second",
            "complete": "yes" if result.complete else "no",
            "written": "\n".join(str(result.folder / name) for name in result.files if name != "report.html"),
            "page": str(result.folder / "report.html"),
        }
    )


def _foreground(result: "Separation") -> str:
    busiest = int(result.area.argmax())
    if result.area[busiest] == 0:
        return "none found"
    when = f"(frame {busiest + 1}, at {_clock(round(busiest / result.rate))})"
    return f"{result.area.mean():.2%} on average, {result.area[busiest]:.2%} at most {when}"
