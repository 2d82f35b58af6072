"""The demo: a rendered street scene, split into background and what moves, and shown on a page.

``lrpca demo`` and ``make demo`` call `run`. It uses nothing but the public interface of the library.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import lrpca
from lrpca import metrics, plot
from lrpca.datasets import street_scene
from lrpca.files.atomic import check_folder

__all__ = ["DemoResult", "majority_vote", "run"]

# Both were chosen for this scene with its truth at hand: two components for the light (overall brightness, and a
# cloud over a part of the street) and one for the tree; other seeds of the scene score alike.
RANK = 3
VOTE = 3  # pixels along a side of the window of the majority vote


@dataclass(frozen=True)
class DemoResult:
    """What the demo measured, and where it wrote.

    Attributes
    ----------
    output_directory, page : pathlib.Path
        The folder, and the page in it to look at.
    shape : (int, int)
        Shape of the matrix: frames, pixels.
    rank : int
        Rank asked for.
    vote : int
        Pixels along a side of the window of the majority vote, see `majority_vote`.
    foreground_fraction : float
        True share of the pixels that figures and cars cover.
    background_error : float
        Relative error of the background, against the true one without noise.
    precision, recall, f_measure : float
        How well the mask agrees with the true foreground, pixel by pixel.
    f_measure_without_vote : float
        The same of the outliers as they come, before the majority vote.
    seconds : float
        Time of the one call of ``lrpca.decompose``.
    compile_seconds : float
        Time of a tiny call before it, which loads the compiled code, or compiles it on first use.
    n_reads, n_iter : int
        How often the matrix was read, and the iterations.
    converged : bool
        Whether the solver is content.
    reason : str
        Why it stopped.
    noise_level, outlier_threshold : float
        Robust noise level in grey levels, and the residual beyond which a pixel is an outlier (the medians,
        if there are several).
    """

    output_directory: Path
    page: Path
    shape: tuple[int, int]
    rank: int
    vote: int
    foreground_fraction: float
    background_error: float
    precision: float
    recall: float
    f_measure: float
    f_measure_without_vote: float
    seconds: float
    compile_seconds: float
    n_reads: float
    n_iter: int
    converged: bool
    reason: str
    noise_level: float
    outlier_threshold: float


def run(
    output_directory: str | os.PathLike[str],
    *,
    n_frames: int = 300,
    random_state: int = 0,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
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
    progress : callable, optional
        Called with a short line before each stage.

    Returns
    -------
    DemoResult
        What was measured.
    """
    from lrpca.cli import demo_page

    if n_frames < 20:
        raise ValueError(f"n_frames={n_frames} is too short to tell what moves; use 20 or more")
    say = progress or _silence
    folder = Path(output_directory)
    check_folder(folder, demo_page.FILES, overwrite=overwrite)
    plot.require_matplotlib()
    say("rendering the scene")
    scene = street_scene(n_frames=n_frames, random_state=random_state)
    Y = scene.frames.reshape(n_frames, -1)
    say("loading compiled code (compiling on first use)")
    compile_seconds = _warm_up(Y, random_state)
    say(f"decomposing {Y.shape[0]} frames of {Y.shape[1]} pixels")
    start = time.perf_counter()
    decomposition = lrpca.decompose(Y, rank=RANK, random_state=random_state)
    seconds = time.perf_counter() - start
    say("comparing with the truth")
    outliers = decomposition.outliers.reshape(scene.frames.shape)
    mask = majority_vote(outliers, VOTE)
    score = metrics.precision_recall_f(mask, scene.foreground)
    result = DemoResult(
        output_directory=folder,
        page=folder / "index.html",
        shape=(Y.shape[0], Y.shape[1]),
        rank=RANK,
        vote=VOTE,
        foreground_fraction=float(scene.foreground.mean()),
        background_error=metrics.relative_error(decomposition.low_rank, scene.background.reshape(Y.shape)),
        precision=score.precision,
        recall=score.recall,
        f_measure=score.f,
        f_measure_without_vote=metrics.f_measure(outliers, scene.foreground),
        seconds=seconds,
        compile_seconds=compile_seconds,
        n_reads=decomposition.n_reads,
        n_iter=decomposition.n_iter,
        converged=decomposition.converged,
        reason=decomposition.reason,
        noise_level=float(np.median(decomposition.noise_level)),
        outlier_threshold=float(np.median(decomposition.outlier_threshold)),
    )
    say("drawing the page")
    demo_page.write(result, scene, decomposition, mask)
    return result


def majority_vote(mask: NDArray[np.bool_], size: int) -> NDArray[np.bool_]:
    """Give each pixel the value that most pixels of the square window around it have, frame by frame.

    Parameters
    ----------
    mask : ndarray of bool, (..., height, width)
        The mask. Beyond its borders it goes on with the values at the border.
    size : int
        Pixels along a side of the window, odd.

    Returns
    -------
    ndarray of bool, same shape
        The mask without specks, thin lines and small holes.

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.cli.demo import majority_vote
    >>> mask = np.zeros((5, 5), bool)
    >>> mask[2, 2] = True
    >>> bool(majority_vote(mask, 3).any())
    False
    """
    from scipy.ndimage import correlate1d

    if size < 1 or size % 2 == 0:
        raise ValueError(f"size={size} is not an odd number of pixels; use 3 or 5")
    votes = mask.astype(np.uint16)
    for axis in (-2, -1):
        votes = correlate1d(votes, np.ones(size), axis=axis, mode="nearest")
    return np.asarray(votes > size * size // 2)


def _silence(message: str) -> None:
    """Ignore a message."""


def _warm_up(Y: NDArray[np.uint8], random_state: int) -> float:
    """Call the solver on a few rows and columns, so that compiling is not counted as solving."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lrpca.ConvergenceWarning)
        lrpca.decompose(Y[:, :: max(1, Y.shape[1] // 400)], rank=RANK, random_state=random_state)
    return time.perf_counter() - start
