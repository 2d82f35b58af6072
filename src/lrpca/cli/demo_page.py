"""The files that the demo writes: pictures, the numbers as JSON, and the page."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import lrpca
from lrpca import metrics, plot
from lrpca.datasets import NOISE_LEVEL, StreetScene
from lrpca.files.atomic import replacing_files
from lrpca.report import Number, Page, Picture, figure_png, image_png, plotted

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
    """Write all files or none; the page last, so that where there is a page there is everything."""
    moments = busiest(scene.foreground)
    first = max(moments, key=lambda k: int(scene.foreground[k].sum()))
    background = d.low_rank.reshape(scene.frames.shape)
    pictures = {
        "frame": image_png(scene.frames[first]),
        "background": image_png(background[first]),
        "foreground": _cut_out(scene.frames[first], mask[first]),
        "mask": image_png(mask[first]),
        "convergence": figure_png(partial(_draw_histories, d), (11.0, 3.2)),
    }
    page = Page(
        "A street without its traffic",
        f"{result.shape[0]} frames of a rendered street, each one row of a matrix, were split into a "
        "low-rank part, the street in its changing light, and sparse outliers, the people and cars. The "
        "scene is made by code, so the truth is known exactly.",
    )
    _add_numbers(page, result)
    page.section(f"A busy moment: frame {first + 1}")
    captions = {
        "frame": "as the camera recorded it, with noise",
        "background": "the low-rank part",
        "foreground": "the frame where the mask is set",
        "mask": "the outliers after the majority vote",
    }
    page.pictures([Picture(pictures[name], name.capitalize(), caption) for name, caption in captions.items()])
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
    """Return the frame with most foreground around the middle of each of a few equal parts of the clip."""
    busy = foreground.sum(axis=(1, 2))
    edges = np.linspace(0, len(busy), 4 * parts + 1).astype(int)  # the outer quarters of a part stay out
    middles = zip(edges[1::4].tolist(), edges[3::4].tolist(), strict=True)
    return [start + int(np.argmax(busy[start:stop])) for start, stop in middles]


def _add_numbers(page: Page, result: DemoResult) -> None:
    page.numbers(
        [
            Number("F-measure", f"{result.f_measure:.3f}", "of the foreground; 1 is perfect"),
            Number("Precision", f"{result.precision:.3f}", "of the marked pixels, right"),
            Number("Recall", f"{result.recall:.3f}", "of the foreground, marked"),
            Number("Background error", f"{result.background_error:.2%}", "relative, to the noise-free truth"),
            Number("Time", f"{result.seconds:.2f} s", f"for decompose, {os.cpu_count()} processors"),
            Number("Passes over the data", f"{result.n_reads:.3g}", f"{result.n_iter} iterations and the start"),
        ]
    )
    if not result.converged:
        page.text(f"The solver did not converge (reason: {result.reason}); read the numbers with care.")


def _add_moments(page: Page, scene: StreetScene, background: Any, mask: NDArray[np.bool_], moments: list[int]) -> None:
    page.section(
        "Four moments",
        "A busy frame of each quarter of the clip. The last picture compares the mask with the truth:",
    )
    page.legend([(FOUND, "found"), (FALSE_ALARM, "false alarm"), (MISSED, "missed")])
    tiles = []
    for k in moments:
        f = metrics.f_measure(mask[k], scene.foreground[k])
        tiles += [
            Picture(image_png(scene.frames[k]), f"Frame {k + 1}"),
            Picture(image_png(background[k]), "Background"),
            Picture(_cut_out(scene.frames[k], mask[k]), "Foreground"),
            Picture(_comparison(mask[k], scene.foreground[k]), "Mask", f"F-measure {f:.3f}"),
        ]
    page.pictures(tiles, columns=4)


def _add_solver(page: Page, scene: StreetScene, d: Decomposition, result: DemoResult) -> None:
    page.section(
        "How the solver went",
        f"It was told the rank and nothing else, and stopped after {result.n_iter} iterations "
        f"(reason: {result.reason}). It measured noise of {result.noise_level:.2f} grey levels "
        f"(the sensor's is {NOISE_LEVEL:g}, to which rounding adds a little) and took residuals beyond "
        f"{result.outlier_threshold:.1f} for outliers.",
    )

    def draw_residual(figure: Figure) -> None:
        plot.residual_histogram(scene.frames.reshape(len(scene.frames), -1), d, ax=figure.subplots())

    def draw_brightness(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot(scene.frames.mean(axis=(1, 2)), color="C2", linewidth=1, label="frames")
        axes.plot(scene.background.mean(axis=(1, 2)), color="C0", linewidth=5, alpha=0.4, label="true background")
        axes.plot(d.low_rank.mean(axis=1), color="C1", linewidth=1.4, label="low-rank part")
        axes.set(xlabel="frame", ylabel="mean grey level")
        axes.legend()

    histories = {title: partial(_draw_histories, d, quantities=[name]) for name, title in CONVERGENCE.items()}
    page.pictures([plotted(draw, (3.9, 2.9), title) for title, draw in histories.items()], columns=3)
    beyond = "frames minus background: noise in the middle, traffic and twigs outside"
    page.pictures(
        [
            plotted(draw_residual, (5.6, 3.2), "Residual", beyond),
            plotted(draw_brightness, (5.6, 3.2), "Light", "the background follows the light, not the traffic"),
        ]
    )
    rows = [[getattr(record, name) for name in HISTORY] for record in d.history]
    page.table(HISTORY, rows, caption="All iterations", folded=True)


def _add_method(page: Page, result: DemoResult) -> None:
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


def _cut_out(frame: NDArray[np.uint8], mask: NDArray[np.bool_]) -> bytes:
    """Return what the mask keeps of a frame, on plain grey: it holds black coats and white cars alike."""
    return image_png(np.where(mask, frame, np.uint8(PLAIN)))


def _comparison(mask: NDArray[np.bool_], truth: NDArray[np.bool_]) -> bytes:
    """Return the mask in the colours of the legend."""
    picture = np.zeros((*mask.shape, 3), np.uint8)
    for where, colour in ((mask & truth, FOUND), (mask & ~truth, FALSE_ALARM), (truth & ~mask, MISSED)):
        picture[where] = list(bytes.fromhex(colour[1:]))
    return image_png(picture)


def _draw_histories(d: Decomposition, figure: Figure, quantities: Sequence[str] = tuple(CONVERGENCE)) -> None:
    for axes, quantity in zip(figure.subplots(1, len(quantities), squeeze=False)[0], quantities, strict=True):
        plot.convergence(d, quantity=quantity, ax=axes)


def _json(result: DemoResult, d: Decomposition) -> str:
    """Return the numbers of the run as JSON, without paths."""
    numbers = {name: value for name, value in asdict(result).items() if not isinstance(value, Path)}
    numbers["history"] = [{name: _plain(getattr(record, name)) for name in HISTORY} for record in d.history]
    python, machine = platform.python_version(), platform.machine()
    numbers["versions"] = {"lrpca": lrpca.__version__, "numpy": np.__version__, "python": python}
    numbers["machine"] = {"system": platform.system(), "machine": machine, "processors": os.cpu_count()}
    return json.dumps(numbers, indent=2) + "\n"


def _plain(value: Any) -> int | float | None:
    """Return a number that JSON can hold; what is not finite becomes None."""
    if value is None or not np.isfinite(value):
        return None
    return int(value) if isinstance(value, int | np.integer) else float(value)
