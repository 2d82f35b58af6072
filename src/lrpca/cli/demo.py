"""The demo: a rendered street scene, split into background and moving objects, and shown on a page."""

from __future__ import annotations

import json
import os
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import lrpca
from lrpca import metrics, plot
from lrpca.datasets import NOISE_LEVEL, StreetScene, street_scene
from lrpca.decomposition.writing import summarize
from lrpca.files.atomic import check_folder, replacing_files
from lrpca.report import Number, Page, Picture, figure_png, image_png, plotted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lrpca.decomposition.result import Decomposition

PICTURES = ("frame.png", "background.png", "foreground.png", "mask.png", "convergence.png")
# Both were chosen for this scene with its truth at hand: two components for the light (overall brightness, and a
# cloud over a part of the street) and one for the tree; other seeds of the scene score alike.
RANK = 3
VOTE = 3  # pixels along a side of the window of the majority vote
PLAIN = 122  # grey level around what is cut out
CONVERGENCE = {"change": "Convergence", "threshold": "Threshold", "kept": "Entries kept"}
FOUND, FALSE_ALARM, MISSED = "#ffffff", "#f2762e", "#3b82f6"
CODE = """\
scene = lrpca.datasets.street_scene(n_frames={n_frames})
Y = scene.frames.reshape(len(scene.frames), -1)   # one frame per row, uint8
d = lrpca.decompose(Y, rank={rank})
background = d.low_rank.reshape(scene.frames.shape)
outliers = d.outliers.reshape(scene.frames.shape)
"""


@dataclass(frozen=True)
class DemoResult:
    """Measurements of the demo."""

    page: Path
    shape: tuple[int, int]  # frames, pixels
    foreground_fraction: float  # true share of the pixels that figures and cars cover
    background_error: float  # relative, to the true background without noise
    precision: float  # of the mask, pixel by pixel
    recall: float
    f_measure: float
    f_measure_without_vote: float
    seconds: float  # of one call of decompose
    compile_seconds: float  # of a tiny call before it, which loads the compiled code, or compiles it on first use
    decomposition: Decomposition


def run(
    output_directory: str | os.PathLike[str],
    *,
    n_frames: int = 300,
    random_state: int = 0,
    overwrite: bool = False,
    progress: Callable[[str], object] = lambda stage: None,
) -> DemoResult:
    """Render a street scene, separate it, compare it with the truth, and write pictures and a page.

    Parameters
    ----------
    output_directory : str or path-like
        Where to write ``index.html``, ``frame.png``, ``background.png``, ``foreground.png``, ``mask.png``,
        ``convergence.png`` and ``result.json``; made if need be.
    n_frames : int
        Number of frames to render, at least 20.
    random_state : int
        Seed of the scene and of the solver.
    overwrite : bool
        Whether files of these names may be replaced.
    progress : callable
        Called with a short line before each stage.

    Returns
    -------
    DemoResult
    """
    from scipy.ndimage import median_filter

    if n_frames < 20:
        raise ValueError(f"n_frames={n_frames} is too short to tell what moves; use 20 or more")
    folder = Path(output_directory)
    check_folder(folder, (*PICTURES, "result.json", "index.html"), overwrite=overwrite)
    plot.require_matplotlib()
    progress("rendering the scene")
    scene = street_scene(n_frames=n_frames, random_state=random_state)
    Y = scene.frames.reshape(n_frames, -1)
    progress("loading compiled code (compiling on first use)")
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lrpca.ConvergenceWarning)
        lrpca.decompose(Y[:, :: max(1, Y.shape[1] // 400)], rank=RANK, random_state=random_state)
    compile_seconds = time.perf_counter() - start
    progress(f"decomposing {Y.shape[0]} frames of {Y.shape[1]} pixels")
    start = time.perf_counter()
    d = lrpca.decompose(Y, rank=RANK, random_state=random_state)
    seconds = time.perf_counter() - start
    progress("comparing with the truth")
    outliers = d.outliers.reshape(scene.frames.shape)
    # The median of zeros and ones is the vote of the majority.
    mask = median_filter(outliers.astype(np.uint8), (1, VOTE, VOTE), mode="nearest").astype(bool)
    score = metrics.precision_recall_f(mask, scene.foreground)
    result = DemoResult(
        page=folder / "index.html",
        shape=(Y.shape[0], Y.shape[1]),
        foreground_fraction=float(scene.foreground.mean()),
        background_error=metrics.relative_error(d.low_rank, scene.background.reshape(Y.shape)),
        precision=score.precision,
        recall=score.recall,
        f_measure=score.f,
        f_measure_without_vote=metrics.f_measure(outliers, scene.foreground),
        seconds=seconds,
        compile_seconds=compile_seconds,
        decomposition=d,
    )
    progress("drawing the page")
    _write(result, scene, mask)
    return result


def _write(result: DemoResult, scene: StreetScene, mask: NDArray[np.bool_]) -> None:
    """Write all files or none; the page last, so that an existing page means that everything is there."""
    d, moments = result.decomposition, _busy_frames(scene.foreground)
    first = max(moments, key=lambda k: int(scene.foreground[k].sum()))
    background = d.low_rank.reshape(scene.frames.shape)
    pictures = {
        "frame": image_png(scene.frames[first]),
        "background": image_png(background[first]),
        "foreground": _cut_out(scene.frames[first], mask[first]),
        "mask": image_png(mask[first]),
        "convergence": figure_png(partial(_draw_histories, d, tuple(CONVERGENCE)), (11.0, 3.2)),
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
    page.section("Four moments", "Busy frames of the clip. The last picture compares the mask with the truth:")
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
    _add_method(page, scene, result)
    result.page.parent.parent.mkdir(parents=True, exist_ok=True)
    with replacing_files(result.page.parent, last=result.page.name) as staging:
        for name, png in zip(PICTURES, pictures.values(), strict=True):
            (staging / name).write_bytes(png)
        (staging / "result.json").write_text(_json(result), encoding="utf-8")
        page.save(staging / result.page.name)


def _busy_frames(foreground: NDArray[np.bool_], parts: int = 4) -> list[int]:
    """Return the frame with most foreground around the middle of each of a few equal parts of the clip."""
    busy = foreground.sum(axis=(1, 2))
    edges = np.linspace(0, len(busy), 4 * parts + 1).astype(int)  # the outer quarters of a part stay out
    middles = zip(edges[1::4].tolist(), edges[3::4].tolist(), strict=True)
    return [start + int(np.argmax(busy[start:stop])) for start, stop in middles]


def _add_numbers(page: Page, result: DemoResult) -> None:
    d = result.decomposition
    page.numbers(
        [
            Number("F-measure", f"{result.f_measure:.3f}", "of the foreground; 1 is perfect"),
            Number("Precision", f"{result.precision:.3f}", "share of the marked pixels that are foreground"),
            Number("Recall", f"{result.recall:.3f}", "share of the foreground that is marked"),
            Number("Background error", f"{result.background_error:.2%}", "relative, to the noise-free truth"),
            Number("Time", f"{result.seconds:.2f} s", f"for decompose, {os.cpu_count()} processors"),
            Number("Passes over the data", f"{d.n_reads:.3g}", f"{d.n_iter} iterations and the initialisation"),
        ]
    )
    if not d.converged:
        page.text(f"The solver did not converge (reason: {d.reason}); read the numbers with care.")


def _add_method(page: Page, scene: StreetScene, result: DemoResult) -> None:
    d = result.decomposition
    page.section(
        "How it was solved",
        f"The solver was given the rank and nothing else. It stopped after {d.n_iter} iterations (reason: {d.reason}). "
        f"It measured noise of {d.noise_level:.2f} grey levels; the sensor's is {NOISE_LEVEL:g}, to which rounding "
        f"adds a little. Residuals beyond {d.outlier_threshold:.1f} grey levels are outliers.",
    )

    def draw_residual(figure: Figure) -> None:
        plot.residual_histogram(scene.frames.reshape(len(scene.frames), -1), d, ax=figure.subplots())

    drawings: list[tuple[Callable[[Figure], object], str]] = [(draw_residual, "Residual")]
    drawings += [(partial(_draw_histories, d, (name,)), title) for name, title in CONVERGENCE.items()]
    page.pictures([plotted(draw, (5.6, 3.2), title) for draw, title in drawings])
    page.code(CODE.format(n_frames=result.shape[0], rank=d.rank))
    page.text(
        f"The mask is the outliers after a majority vote: a pixel is foreground if most of the {VOTE} x {VOTE} pixels "
        "around it are outliers. The vote removes single noisy pixels and the twigs of the waving tree, which move too "
        "much for a background of this rank, and fills small holes. Without it the F-measure is "
        f"{result.f_measure_without_vote:.3f}. The rank, {d.rank}, and the size of the vote were chosen for this "
        "scene, knowing the truth: two components for the light, the rest for the tree."
    )
    page.text(
        "The truth: foreground is where people or cars cover more than half of a pixel, "
        f"{result.foreground_fraction:.1%} of all pixels. Their faint shadows are not foreground, and the tree is "
        "background, as it stands in each frame. The background error counts its movement in full."
    )
    page.text(
        "The time is that of the call of decompose alone. Loading the compiled code, or compiling it on first use, "
        f"took {result.compile_seconds:.1f} s before. Computed with lrpca {lrpca.__version__}, NumPy {np.__version__} "
        f"and Python {platform.python_version()} on {platform.system()} {platform.machine()}."
    )


def _cut_out(frame: NDArray[np.uint8], mask: NDArray[np.bool_]) -> bytes:
    """Return the marked part of a frame, on plain grey: there are black coats and white cars."""
    return image_png(np.where(mask, frame, np.uint8(PLAIN)))


def _comparison(mask: NDArray[np.bool_], truth: NDArray[np.bool_]) -> bytes:
    """Return the mask in the colours of the legend."""
    picture = np.zeros((*mask.shape, 3), np.uint8)
    for where, colour in ((mask & truth, FOUND), (mask & ~truth, FALSE_ALARM), (truth & ~mask, MISSED)):
        picture[where] = list(bytes.fromhex(colour[1:]))
    return image_png(picture)


def _draw_histories(d: Decomposition, quantities: tuple[str, ...], figure: Figure) -> None:
    for axes, quantity in zip(figure.subplots(1, len(quantities), squeeze=False)[0], quantities, strict=True):
        plot.convergence(d, quantity=quantity, ax=axes)


def _json(result: DemoResult) -> str:
    """Return the numbers of the run as JSON, without paths."""
    numbers: dict[str, Any] = summarize(result.decomposition) | {
        name: value for name, value in vars(result).items() if name not in ("page", "decomposition")
    }
    numbers["versions"] = {"lrpca": lrpca.__version__, "numpy": np.__version__, "python": platform.python_version()}
    numbers["machine"] = {"system": platform.system(), "machine": platform.machine(), "processors": os.cpu_count()}
    return json.dumps(numbers, indent=2) + "\n"
