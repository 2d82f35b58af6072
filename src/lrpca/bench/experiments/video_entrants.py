"""Who competes on videos, and how a trial is run: every method until X and S have come to rest."""

from __future__ import annotations

import base64
import importlib.util
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import lrpca
from lrpca.bench.experiments.entrants import ALTPROJ, OURS, SCALEDGD
from lrpca.bench.experiments.measurement import rounded
from lrpca.bench.experiments.video_clips import Frames
from lrpca.bench.experiments.video_measurement import VideoTrial, View
from lrpca.core.factors import product_norm
from lrpca.schedule import Schedule

VIDEO = "LRPCA, video model"
PLAIN = "LRPCA, plain torch"
MODEL = "video"
# Pixels whose residuals are looked at, and frames among which the busiest is shown.
_SAMPLED, _LOOKED_AT = 200_000, 40
# Compilation is not counted: every method first runs on a few frames, until X and S move by less than half.
_WARM_UP = (24, 0.5, 12)
# Pictures are stored at most so wide.
_PICTURE_WIDTH, _QUALITY = 160, 80


@dataclass(frozen=True)
class Answer:
    """What a method came to.

    Attributes
    ----------
    L, R : ndarray
    seconds, seconds_per_iteration : float
    iterations : int
    met : bool
        Whether the stopping rule was met.
    threshold : float
        Residual from which on a pixel is foreground.
    """

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    seconds: float
    seconds_per_iteration: float
    iterations: int
    met: bool
    threshold: float


@dataclass(frozen=True)
class VideoContestant:
    """A method with its settings.

    Attributes
    ----------
    label, told : str
    solve : callable
        ``(Y, rank, limit, max_iter, seed) -> Answer``.
    """

    label: str
    told: str
    solve: Callable[[Frames, int, float, int, int], Answer]


def entered() -> list[VideoContestant]:
    """Return the contestants; the plain implementation only where PyTorch is installed."""
    ours = partial(solve_by_library, {})
    learned = partial(solve_by_library, {"schedule": MODEL})
    scaledgd, altproj = (partial(solve_by_library, {"method": name}) for name in ("scaledgd", "altproj"))
    found = [
        VideoContestant(OURS, "the rank", ours),
        VideoContestant(
            VIDEO,
            "the rank; the shipped model “video”, form and K of the paper, learned on parts of vtest, bgs_video and "
            "bgs_video02",
            learned,
        ),
        VideoContestant(SCALEDGD, "the rank; α, γ and step are found from the data", scaledgd),
        VideoContestant(ALTPROJ, "the rank; the usual β", altproj),
    ]
    if importlib.util.find_spec("torch") is not None:
        told = "the rank and the numbers of the video model; single precision, every matrix of the algorithm formed"
        found.append(VideoContestant(PLAIN, told, solve_by_torch))
    return found


def solve_by_library(arguments: dict[str, Any], Y: Frames, rank: int, limit: float, max_iter: int, seed: int) -> Answer:
    """Run a method of `lrpca.decompose` until the paper's rule for videos is met."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        # Whether the rule was met is in the table.
        warnings.simplefilter("ignore", lrpca.ConvergenceWarning)
        warnings.simplefilter("ignore", lrpca.DiagnosisWarning)
        d = lrpca.decompose(
            Y, rank, tol=0, max_iter=max_iter, random_state=seed, options={"change": limit}, **arguments
        )
    seconds = time.perf_counter() - began
    each = float(np.median([record.seconds or 0.0 for record in d.history]))
    # A method may call an answer in doubt that came to rest.
    met = d.reason in ("tol", "stalled")
    return Answer(d.L, d.R, seconds, each, d.n_iter, met, float(np.median(d.outlier_threshold)))


def solve_by_torch(Y: Frames, rank: int, limit: float, max_iter: int, seed: int) -> Answer:
    """Run the published method as plain torch with the numbers of the video model."""
    import torch

    from lrpca.bench.experiments.video_torch import solve_plainly

    floats = torch.from_numpy(Y.astype(np.float32))
    run = solve_plainly(floats, rank, Schedule.load(MODEL), limit=limit, max_iter=max_iter, seed=seed)
    return Answer(run.L, run.R, run.seconds, run.seconds_per_iteration, run.iterations, run.stopped, np.inf)


def warm_up(contestants: Sequence[VideoContestant], Y: Frames, rank: int) -> None:
    """Load compiled code."""
    frames, limit, max_iter = _WARM_UP
    for contestant in contestants:
        contestant.solve(Y[:frames], rank, limit, max_iter, 0)


def judge(label: str, clip: str, seed: int, answer: Answer, reference: Answer, Y: Frames) -> VideoTrial:
    """Return the record of a trial; the `reference` is AltProj's answer."""
    return VideoTrial(
        label=label,
        clip=clip,
        seed=seed,
        seconds=float(f"{answer.seconds:.4g}"),
        iterations=answer.iterations,
        seconds_per_iteration=float(f"{answer.seconds_per_iteration:.4g}"),
        met=answer.met,
        distance=rounded(distance(answer, reference)),
        residual=float(f"{median_residual(answer, Y):.4g}"),
    )


def distance(answer: Answer, reference: Answer) -> float:
    """Return ‖X - X_a‖ / ‖X_a‖."""
    sides = [np.asarray(side, np.float64) for side in (answer.L, answer.R, reference.L, reference.R)]
    L, R, L_a, R_a = sides
    return product_norm(np.hstack([L, -L_a]), np.hstack([R, R_a])) / max(product_norm(L_a, R_a), 1e-300)


def median_residual(answer: Answer, Y: Frames) -> float:
    """Return the median of |Y - X| over some pixels."""
    rng = np.random.default_rng(0)
    rows, columns = (rng.integers(n, size=_SAMPLED) for n in Y.shape)
    return float(np.median(np.abs(Y[rows, columns] - np.sum(answer.L[rows] * answer.R[columns], axis=1))))


def busiest_frame(answer: Answer, Y: Frames) -> int:
    """Return which of some frames has most foreground."""
    looked_at = np.unique(np.linspace(0, len(Y) - 1, _LOOKED_AT).astype(int))
    return int(max(looked_at, key=lambda i: np.count_nonzero(_residual(answer, Y, i) > answer.threshold)))


def views_of(label: str, clip: Any, answer: Answer, Y: Frames, frame: int) -> list[View]:
    """Return background and foreground of a frame: what is beyond the outlier threshold, the rest white."""
    shape = (clip.height, clip.width)
    X = np.clip(answer.L[frame] @ answer.R.T, 0, 255).reshape(shape)
    moving = (_residual(answer, Y, frame) > answer.threshold).reshape(shape)
    parts = {"background": X, "foreground": np.where(moving, Y[frame].reshape(shape), 255)}
    return [View(clip.name, label, part, encode(picture)) for part, picture in parts.items()]


def encode(picture: Any) -> str:  # (height, width)
    """Return a picture, averaged down, as JPEG in base64."""
    factor = max(1, -(-picture.shape[1] // _PICTURE_WIDTH))
    height, width = (side // factor * factor for side in picture.shape)
    squares = np.asarray(picture[:height, :width], np.float64).reshape(
        height // factor, factor, width // factor, factor
    )
    small = np.rint(squares.mean(axis=(1, 3))).astype(np.uint8)
    return base64.b64encode(lrpca.video.pictures.encode_picture(small, "jpeg", quality=_QUALITY)).decode("ascii")


def _residual(answer: Answer, Y: Frames, frame: int) -> Any:  # (n2,)
    return np.abs(Y[frame] - answer.L[frame] @ answer.R.T)
