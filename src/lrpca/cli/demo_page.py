"""The files that the demo writes: pictures, the numbers as JSON, and the page."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import lrpca
from lrpca import metrics, plot, report
from lrpca.datasets import NOISE_LEVEL, StreetScene
from lrpca.files.atomic import replacing_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lrpca.cli.demo import DemoResult
    from lrpca.decomposition.result import Decomposition

PICTURES = ("frame.png", "background.png", "foreground.png", "mask.png", "convergence.png")
FILES = (*PICTURES, "result.json", "index.html")
MOMENTS = 4
PLAIN = 122  # grey level behind what is cut out
HISTORY = ("iteration", "threshold", "step", "residual", "change", "kept", "seconds")
CONVERGENCE = {"change": "Convergence", "threshold": "Threshold", "kept": "Entries kept"}
FOUND, FALSE_ALARM, MISSED = "#ffffff", "#f2762e", "#3b82f6"
CODE = """\
scene = lrpca.datasets.street_scene(n_frames={n_frames})
Y = scene.frames.reshape(len(scene.frames), -1)   # one frame per row, uint8
d = lrpca.decompose(Y, rank={rank})
background = d.low_rank.reshape(scene.frames.shape)
outliers = d.outliers.reshape(scene.frames.shape)
"""


def write(result: DemoResult, scene: StreetScene, d: Decomposition, mask: NDArray[np.bool_]) -> None:
    """Write all files or none; the page last, so that where there is a page there is everything.

    Parameters
    ----------
    result : DemoResult
        What was measured.
    scene : StreetScene
        The clip and its truth.
    d : Decomposition
        Of the clip, one frame per row.
    mask : ndarray of bool, (n_frames, height, width)
        The foreground that was found.
    """
    moments = busiest(scene.foreground)
    first = max(moments, key=lambda k: int(scene.foreground[k].sum()))
    background = d.low_rank.reshape(scene.frames.shape)
    pictures = {
        "frame": report.image_png(scene.frames[first]),
        "background": report.image_png(background[first]),
        "foreground": _cut_out(scene.frames[first], mask[first]),
        "mask": report.image_png(mask[first]),
        "convergence": _drawn(partial(_draw_histories, d), (11.0, 3.2), dark=False),
    }
    page = report.Page(
        "A street without its traffic",
        f"{result.shape[0]} frames of a rendered street, each one row of a matrix, were split into a "
        "low-rank part, the street in its changing light, and sparse outliers, the people and cars. The "
        "scene is made by code, so the truth is known exactly.",
    )
    _add_numbers(page, result)
    _add_headline(page, pictures, first)
    _add_moments(page, scene, background, mask, moments)
    _add_solver(page, scene, d, result)
    _add_method(page, result)
    result.output_directory.parent.mkdir(parents=True, exist_ok=True)
    with replacing_files(result.output_directory, last=result.page.name) as staging:
        for name, png in zip(PICTURES, pictures.values(), strict=True):
            (staging / name).write_bytes(png)
        (staging / "result.json").write_text(_json(result, d), encoding="utf-8")
        page.save(staging / result.page.name)


def busiest(foreground: NDArray[np.bool_], parts: int = MOMENTS) -> list[int]:
    """Return the frame with most foreground around the middle of each of a few equal parts of the clip.

    Parameters
    ----------
    foreground : ndarray of bool, (n_frames, height, width)
        The true foreground.
    parts : int
        Number of parts.

    Returns
    -------
    list of int
        One index for each part, ascending.
    """
    busy = foreground.sum(axis=(1, 2))
    edges = np.linspace(0, len(busy), 4 * parts + 1).astype(int)  # the outer quarters of a part stay out
    middles = zip(edges[1::4].tolist(), edges[3::4].tolist(), strict=True)
    return [start + int(np.argmax(busy[start:stop])) for start, stop in middles]


# ---------------------------------------------------------------------------------------- parts of the page


def _add_numbers(page: report.Page, result: DemoResult) -> None:
    number = report.Number
    page.numbers(
        [
            number("F-measure", f"{result.f_measure:.3f}", "of the foreground; 1 is perfect"),
            number("Precision", f"{result.precision:.3f}", "of the marked pixels, right"),
            number("Recall", f"{result.recall:.3f}", "of the foreground, marked"),
            number("Background error", f"{result.background_error:.2%}", "relative, to the noise-free truth"),
            number("Time", f"{result.seconds:.2f} s", f"for decompose, {os.cpu_count()} processors"),
            number("Reads of the matrix", f"{result.n_reads:.3g}", f"{result.n_iter} iterations and the start"),
        ]
    )
    if not result.converged:
        page.text(f"The solver did not converge (reason: {result.reason}); read the numbers with care.")


def _add_headline(page: report.Page, pictures: dict[str, bytes], moment: int) -> None:
    page.section(f"A busy moment: frame {moment + 1}")
    page.pictures(
        [
            report.Picture(pictures["frame"], "Frame", "as the camera recorded it, with noise"),
            report.Picture(pictures["background"], "Background", "the low-rank part"),
            report.Picture(pictures["foreground"], "Foreground", "the frame where the mask is set"),
            report.Picture(pictures["mask"], "Mask", "the outliers after the majority vote"),
        ]
    )


def _add_moments(
    page: report.Page,
    scene: StreetScene,
    background: NDArray[np.floating[Any]],
    mask: NDArray[np.bool_],
    moments: list[int],
) -> None:
    page.section(
        "Four moments",
        "A busy frame of each quarter of the clip. The last picture compares the mask with the truth:",
    )
    page.legend([(FOUND, "found"), (FALSE_ALARM, "false alarm"), (MISSED, "missed")])
    tiles = []
    for k in moments:
        f = metrics.f_measure(mask[k], scene.foreground[k])
        tiles += [
            report.Picture(report.image_png(scene.frames[k]), f"Frame {k + 1}"),
            report.Picture(report.image_png(background[k]), "Background"),
            report.Picture(_cut_out(scene.frames[k], mask[k]), "Foreground"),
            report.Picture(_comparison(mask[k], scene.foreground[k]), "Mask", f"F-measure {f:.3f}"),
        ]
    page.pictures(tiles, columns=4)


def _add_solver(page: report.Page, scene: StreetScene, d: Decomposition, result: DemoResult) -> None:
    page.section(
        "How the solver went",
        f"It was told the rank and nothing else, and stopped after {result.n_iter} iterations "
        f"(reason: {result.reason}). It measured noise of {result.noise_level:.2f} grey levels "
        f"(the sensor's is {NOISE_LEVEL:g}, to which rounding adds a little) and took residuals beyond "
        f"{result.outlier_threshold:.1f} for outliers.",
    )
    plots = [_plotted(partial(_draw_history, d, name), title) for name, title in CONVERGENCE.items()]
    page.pictures(plots, columns=3)
    residual, brightness = partial(_draw_residual, scene, d), partial(_draw_brightness, scene, d)
    beyond = "frames minus background: noise in the middle, traffic and twigs outside"
    page.pictures(
        [
            _plotted(residual, "Residual", beyond, size=(5.6, 3.2)),
            _plotted(brightness, "Light", "the background follows the light, not the traffic", size=(5.6, 3.2)),
        ]
    )
    rows = [[getattr(record, name) for name in HISTORY] for record in d.history]
    page.table(HISTORY, rows, caption="All iterations", folded=True)


def _add_method(page: report.Page, result: DemoResult) -> None:
    page.section("What was done")
    page.code(CODE.format(n_frames=result.shape[0], rank=result.rank))
    page.text(
        f"The mask is the outliers after a majority vote: a pixel is foreground if most of the {result.vote} "
        f"x {result.vote} pixels around it are outliers. The vote removes single noisy pixels and the twigs "
        "of the waving tree, which move too much for a background of this rank, and fills small holes. "
        f"Without it the F-measure is {result.f_measure_without_vote:.3f}. The rank, {result.rank}, and the "
        "size of the vote were chosen for this scene, knowing the truth: two components for the light, the "
        "rest for the tree."
    )
    page.text(
        "The truth: foreground is where people or cars cover more than half of a pixel, "
        f"{result.foreground_fraction:.1%} of all pixels. Their faint shadows are not foreground, and the "
        "tree is background, as it stands in each frame. The background error counts its movement in full."
    )
    page.text(
        "The time is that of the call of decompose alone. Loading the compiled code, or compiling it on "
        f"first use, took {result.compile_seconds:.1f} s before. Computed with lrpca {lrpca.__version__}, "
        f"NumPy {np.__version__} and Python {platform.python_version()} on {platform.system()} "
        f"{platform.machine()}."
    )


# -------------------------------------------------------------------------------------- pictures and files


def _cut_out(frame: NDArray[np.uint8], mask: NDArray[np.bool_]) -> bytes:
    """Return what the mask keeps of a frame, on plain grey: it holds black coats and white cars alike."""
    return report.image_png(np.where(mask, frame, np.uint8(PLAIN)))


def _comparison(mask: NDArray[np.bool_], truth: NDArray[np.bool_]) -> bytes:
    """Return the mask in the colours of the legend."""
    picture = np.zeros((*mask.shape, 3), np.uint8)
    for where, colour in ((mask & truth, FOUND), (mask & ~truth, FALSE_ALARM), (truth & ~mask, MISSED)):
        picture[where] = list(bytes.fromhex(colour[1:]))
    return report.image_png(picture)


def _draw_history(d: Decomposition, quantity: str, figure: Figure) -> None:
    plot.convergence(d, quantity=quantity, ax=figure.subplots())


def _draw_histories(d: Decomposition, figure: Figure) -> None:
    for axes, quantity in zip(figure.subplots(1, len(CONVERGENCE)), CONVERGENCE, strict=True):
        plot.convergence(d, quantity=quantity, ax=axes)


def _draw_residual(scene: StreetScene, d: Decomposition, figure: Figure) -> None:
    plot.residual_histogram(scene.frames.reshape(len(scene.frames), -1), d, ax=figure.subplots())


def _draw_brightness(scene: StreetScene, d: Decomposition, figure: Figure) -> None:
    axes = figure.subplots()
    axes.plot(scene.frames.mean(axis=(1, 2)), color="C2", linewidth=1, label="frames")
    axes.plot(scene.background.mean(axis=(1, 2)), color="C0", linewidth=5, alpha=0.4, label="true background")
    axes.plot(d.low_rank.mean(axis=1), color="C1", linewidth=1.4, label="low-rank part")
    axes.set(xlabel="frame", ylabel="mean grey level")
    axes.legend()


def _plotted(
    draw: Callable[[Figure], None], title: str, caption: str = "", *, size: tuple[float, float] = (3.9, 2.9)
) -> report.Picture:
    light, dark = (_drawn(draw, size, dark=choice) for choice in (False, True))
    return report.Picture(light, title, caption, dark_png=dark)


def _drawn(draw: Callable[[Figure], None], size: tuple[float, float], *, dark: bool) -> bytes:
    """Return what `draw` draws into a figure of that size in inches, as PNG."""
    from matplotlib.figure import Figure

    with plot.style(dark=dark):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        return report.figure_png(figure)


def _json(result: DemoResult, d: Decomposition) -> str:
    """Return the numbers of the run as JSON, without paths."""
    numbers = {name: value for name, value in asdict(result).items() if not isinstance(value, Path)}
    numbers["history"] = [{name: _plain(getattr(record, name)) for name in HISTORY} for record in d.history]
    numbers["versions"] = {
        "lrpca": lrpca.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    numbers["machine"] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
    }
    return json.dumps(numbers, indent=2) + "\n"


def _plain(value: Any) -> int | float | None:
    """Return a number that JSON can hold; what is not finite becomes None."""
    if value is None or not np.isfinite(value):
        return None
    return int(value) if isinstance(value, int | np.integer) else float(value)
