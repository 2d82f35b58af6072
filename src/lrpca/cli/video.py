"""The command ``lrpca video``: split a clip into background and moving objects; write videos and a page."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from lrpca.cli.console import ExitCode, Shown, exit_codes, exit_with, live_rows, print_pairs, short_messages

if TYPE_CHECKING:
    import typer

    from lrpca.video import Progress, Separation
    from lrpca.video.request import Request

_CODES = exit_codes("separated and written.", "written, but the clip breaks off: only the frames before are separated.")
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


def add_video(app: "typer.Typer") -> None:
    """Add the command to the application."""
    import typer

    option = typer.Option

    @app.command(epilog=_CODES)
    def video(
        file: Annotated[Path, typer.Argument(metavar="IN", help=_IN)],
        output: Annotated[Path | None, option("--output", "-o", metavar="DIR", help=_OUT)] = None,
        sensitivity: Annotated[float, option("--sensitivity", "-s", metavar="X", help=_SENSITIVITY)] = 1.0,
        roi: Annotated[str | None, option(metavar="BOX", help=_ROI)] = None,
        ignore: Annotated[str | None, option(metavar="BOX", help=_IGNORE)] = None,
        masks: Annotated[str, option(metavar="WORD", help=_MASKS)] = "video",
        grey: Annotated[bool | None, option("--grey/--colour", help=_GREY)] = None,
        downscale: Annotated[int | None, option(metavar="N", help=_DOWNSCALE)] = None,
        rank: Annotated[int, option("--rank", "-r", metavar="N", help=_RANK)] = 2,
        no_clean: Annotated[bool, option("--no-clean", help=_NO_CLEAN)] = False,
        window: Annotated[int | None, option(metavar="N", help=_WINDOW)] = None,
        force: Annotated[bool, option("--force", "-f", help=_FORCE)] = False,
        quiet: Annotated[bool, option("--quiet", "-q", help="Print only warnings and errors.")] = False,
    ) -> None:
        """Split a clip into background and moving objects; write videos, masks and a page."""
        folder = _default_output(file) if output is None else output
        with short_messages():
            settings: dict[str, Any] = {"grey": grey, "sensitivity": sensitivity, "clean": not no_clean, "rank": rank}
            settings |= {"window": window, "masks": masks, "downscale": downscale, "overwrite": force}
            with exit_with(ExitCode.USAGE, ValueError):
                settings |= {"roi": _read_region("roi", roi), "ignore": _read_region("ignore", ignore)}
                _check(settings)
            with exit_with(ExitCode.INPUT):
                _check_clip(file, settings)
            with exit_with(ExitCode.OUTPUT):
                from lrpca.video.outputs import check_output

                check_output(folder, file, masks, overwrite=force)
            result = _run(file, folder, settings, quiet)
            stays = "" if result.folder == folder else f", to {str(result.folder)!r}: the complete result stays"
            for note in result.notes:
                before = f"the {result.n_frames} frames before are separated and written"
                typer.echo(f"lrpca: {note}; {before}{stays}", err=True)
            if (moving := result.scenes[-1][1].dynamic.mean()) > _RESTLESS:
                typer.echo(f"lrpca: warning: {moving:.0%} {_ADVICE}", err=True)
            if not quiet:
                _report(result)
            raise typer.Exit(ExitCode.DONE if result.complete else ExitCode.NOT_CONVERGED)


def _default_output(file: Path) -> Path:
    whole = file.resolve()  # "." has no name
    return Path(f"{(whole.name if file.is_dir() else whole.stem) or 'clip'}-separated")


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


def _check(settings: dict[str, Any]) -> None:
    """Raise ValueError for settings that are wrong for any clip."""
    _request(settings)
    if settings["masks"] not in ("video", "pictures"):
        raise ValueError(f"--masks={settings['masks']} is unknown; use video or pictures")


def _check_clip(file: Path, settings: dict[str, Any]) -> None:
    """Raise ValueError for a clip that cannot be read, or settings that are wrong for it."""
    from lrpca.video import open_frames

    if file.is_fifo():  # it can be read only once
        return
    with open_frames(file) as reader:
        _request(settings).begin(reader.height, reader.width, reader.channels)


def _request(settings: dict[str, Any]) -> "Request":
    from lrpca.video.request import Request

    return Request(**{field.name: settings[field.name] for field in fields(Request)})


def _run(file: Path, folder: Path, settings: dict[str, Any], quiet: bool) -> "Separation":
    from lrpca.video import separate

    with (
        exit_with(ExitCode.INPUT, ValueError),
        exit_with(ExitCode.OUTPUT, OSError),
        live_rows(quiet, "separating", _LEARNING) as show,
    ):
        return separate(file, folder, callback=_follow(show), **settings)


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
