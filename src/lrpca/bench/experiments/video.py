"""Background and moving objects of videos, LRPCA, ScaledGD and AltProj: the paper's table 2, and its figure."""

from __future__ import annotations

import base64
import importlib.util
import io
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

import lrpca
from lrpca.bench.experiments.measurement import Claim, Experiment, Fact, Records, Say, Table
from lrpca.bench.experiments.methods import ALTPROJ, OURS, SCALEDGD
from lrpca.bench.experiments.statistics import rounded, three_digits
from lrpca.bench.experiments.video_clips import Clip, Frames, find_footage, load_clip
from lrpca.core.factors import product_norm
from lrpca.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VIDEO, PLAIN = "LRPCA, video model", "LRPCA, plain torch"
MODEL = "video"
# Pixels whose residuals are looked at, and frames among which the busiest is shown.
_SAMPLED, _LOOKED_AT = 200_000, 40
# Compilation is not counted: every method first runs on a few frames, until X and S move by less than half.
_WARM_UP = (24, 0.5, 12)
# Pictures are stored at most so wide.
_PICTURE_WIDTH, _QUALITY = 160, 80
CLIPS = (
    Clip("ParkingLot1", 320, 180, 965, "vtest.avi"),
    Clip("ParkingLot2", 320, 180, 2149, "bgs_video02.avi"),
    Clip("ParkingLot3", 480, 270, 1110, "bgs_video.avi"),
    Clip("StreeView", 480, 270, 1034, "cdnet_pedestrians/input"),
)
SMALL = (Clip("ParkingLot1", 160, 90, 120, "vtest.avi"), Clip("ParkingLot2", 160, 90, 120, "bgs_video02.avi"))
# Seconds of the paper's table, on a processor i7-8750H with a graphics card GTX 1060.
PAPER = {
    "ParkingLot1": {"LRPCA": 16.01, SCALEDGD: 260.45, ALTPROJ: 63.04},
    "ParkingLot2": {"LRPCA": 33.95, SCALEDGD: 639.03, ALTPROJ: 144.50},
    "ParkingLot3": {"LRPCA": 38.85, SCALEDGD: 662.08, ALTPROJ: 166.91},
    "StreeView": {"LRPCA": 33.73, SCALEDGD: 626.05, ALTPROJ: 167.66},
}
PAPER_SIZES = {clip.name: clip.size for clip in CLIPS}
OTHERS = (SCALEDGD, ALTPROJ)
# "Much faster": at most this part of the time of the faster other method, on every clip.
FASTER = 0.5
# What a picture is of, from top to bottom: the frame, then two parts for each of these.
SHOWN = (VIDEO, OURS, SCALEDGD, ALTPROJ)
PARTS = ("foreground", "background")


# ------------------------------------------------------------------------------------------------------------- records


@dataclass(frozen=True)
class VideoSetup:
    """How large the experiment is."""

    clips: tuple[Clip, ...]
    repeat: int  # runs of every method on every clip
    max_iter: int  # most iterations of every method
    seed: int = 0  # of the methods' random numbers; run i has `seed` + i
    rank: int = 2
    limit: float = 1e-3  # every method stops when X and S both change by less than this part of themselves
    # Footage, in turn for the clips; that of LRPCA_DATA/video if empty. Whatever it is, the comparison is the paper's.
    videos: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"rank {self.rank}, " + ", ".join(str(clip) for clip in self.clips)

    def caption(self) -> str:
        """Return what was measured, for the line below a figure."""
        return f"{self}; one frame of each clip"

    def facts(self) -> list[Fact]:
        """Return the sizes to show large."""
        entries = sum(clip.width * clip.height * clip.n_frames for clip in self.clips)
        return [
            Fact("Clips", str(len(self.clips)), f"{entries / 1e6:.0f} million pixels, uint8"),
            Fact("Rank", str(self.rank), f"stopped at a change of {self.limit:g}"),
        ]

    def describe(self) -> str:
        """Return what the clips are."""
        made = ", ".join(
            f"{clip.name} ({clip.size}) of {name}" for clip, name in zip(self.clips, self._names(), strict=True)
        )
        return (
            "The paper's VIRAT videos are not distributed with it. Clips of their sizes are made of other footage: "
            "grey, cropped to the shape around the middle, scaled by averaging, cut where it is longer, and played "
            f"forward and backward in turn where it is shorter: {made}. One frame is one row, uint8. Methods take "
            f"turns in shuffled order; at most {self.max_iter} iterations."
        )

    def _names(self) -> list[str]:
        given = [self.videos[k % len(self.videos)] for k in range(len(self.clips))] if self.videos else []
        return [name.replace("\\", "/").rpartition("/")[2] for name in given] or [clip.footage for clip in self.clips]


@dataclass(frozen=True)
class VideoTrial:
    """One method on one clip."""

    label: str
    clip: str
    seed: int
    seconds: float  # wall time of the whole call
    iterations: int
    seconds_per_iteration: float  # median, without the initialisation
    met: bool  # whether the stopping rule was met
    distance: float | None  # ``‖X - X_a‖ / ‖X_a‖``, X_a being AltProj's answer on the same clip
    residual: float  # median of ``|Y - X|`` over sampled pixels, in grey levels


@dataclass(frozen=True)
class View:
    """A picture: a frame of a clip, or what a method makes of it."""

    clip: str
    label: str
    part: str  # frame, background or foreground
    jpeg: str  # the content of the file, in base64

    @property
    def content(self) -> bytes:
        """The content of the file."""
        return base64.b64decode(self.jpeg)


@dataclass(frozen=True)
class VideoMeasurement(Records):
    """All trials of the experiment, and pictures of what they came to."""

    setup: VideoSetup
    contestants: Mapping[str, str]  # what each was told, by label
    trials: tuple[VideoTrial, ...]
    views: tuple[View, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, label: str, clip: str) -> list[VideoTrial]:
        """Return the trials of one method on one clip."""
        return [trial for trial in self.trials if (trial.label, trial.clip) == (label, clip)]

    def view(self, clip: str, label: str, part: str) -> View | None:
        """Return a picture, None where there is none."""
        found = (view for view in self.views if (view.clip, view.label, view.part) == (clip, label, part))
        return next(found, None)


# ------------------------------------------------------------------------------------------------------------- methods


@dataclass(frozen=True)
class Answer:
    """What a method came to."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    seconds: float
    seconds_per_iteration: float
    iterations: int
    met: bool  # whether the stopping rule was met
    threshold: float  # residual from which on a pixel is foreground


@dataclass(frozen=True)
class VideoMethod:
    """A method with its settings."""

    label: str
    told: str
    solve: Callable[[Frames, int, float, int, int], Answer]  # ``(Y, rank, limit, max_iter, seed) -> Answer``


def entered() -> list[VideoMethod]:
    """Return the methods; the plain implementation only where PyTorch is installed."""
    learned = "the rank; the shipped model “video”, form and K of the paper, learned on parts of vtest, bgs_video and "
    found = [
        VideoMethod(label, told, partial(solve_by_library, arguments))
        for label, told, arguments in (
            (OURS, "the rank", {}),
            (VIDEO, learned + "bgs_video02", {"schedule": MODEL}),
            (SCALEDGD, "the rank; α, γ and step are found from the data", {"method": "scaledgd"}),
            (ALTPROJ, "the rank; the usual β", {"method": "altproj"}),
        )
    ]
    if importlib.util.find_spec("torch") is not None:
        told = "the rank and the numbers of the video model; single precision, every matrix of the algorithm formed"
        found.append(VideoMethod(PLAIN, told, solve_by_torch))
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
    # A method may report an answer as unreliable although it came to rest.
    met = d.reason in ("tol", "stalled")
    return Answer(d.L, d.R, seconds, each, d.n_iter, met, float(np.median(d.outlier_threshold)))


def solve_by_torch(Y: Frames, rank: int, limit: float, max_iter: int, seed: int) -> Answer:
    """Run the published method as plain torch with the numbers of the video model."""
    import torch

    from lrpca.bench.experiments.video_torch import solve_plainly

    floats = torch.from_numpy(Y.astype(np.float32))
    run = solve_plainly(floats, rank, Schedule.load(MODEL), limit=limit, max_iter=max_iter, seed=seed)
    return Answer(run.L, run.R, run.seconds, run.seconds_per_iteration, run.iterations, run.stopped, np.inf)


def warm_up(methods: Sequence[VideoMethod], Y: Frames, rank: int) -> None:
    """Load compiled code."""
    frames, limit, max_iter = _WARM_UP
    for method in methods:
        method.solve(Y[:frames], rank, limit, max_iter, 0)


def judge(label: str, clip: str, seed: int, answer: Answer, reference: Answer, Y: Frames) -> VideoTrial:
    """Return the record of a trial; the `reference` is AltProj's answer."""
    whole, each, left = (
        float(f"{value:.4g}") for value in (answer.seconds, answer.seconds_per_iteration, median_residual(answer, Y))
    )
    far = rounded(distance(answer, reference))
    return VideoTrial(label, clip, seed, whole, answer.iterations, each, answer.met, far, left)


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


# ------------------------------------------------------------------------------------------------------ the experiment


def measure(setup: VideoSetup, say: Say) -> VideoMeasurement:
    """Time whole calls that end when X and S have come to rest, and keep pictures of the busiest frames."""
    paths = find_footage(setup.clips, setup.videos)
    methods = entered()
    order = np.random.default_rng(setup.seed)
    trials: list[VideoTrial] = []
    views: list[View] = []
    for number, (clip, path) in enumerate(zip(setup.clips, paths, strict=True)):
        say(f"reading {path.name}")
        Y = load_clip(path, clip)
        if number == 0:
            say("loading compiled code (compiling on first use)")
            warm_up(methods, Y, setup.rank)
        for i in range(setup.repeat):
            answers: dict[str, Answer] = {}
            for k in order.permutation(len(methods)):
                chosen = methods[k]
                say(f"{clip.name}, {clip.size}: {chosen.label}")
                answers[chosen.label] = chosen.solve(Y, setup.rank, setup.limit, setup.max_iter, setup.seed + i)
            seed = setup.seed + i
            trials += [judge(c.label, clip.name, seed, answers[c.label], answers[ALTPROJ], Y) for c in methods]
        views += _look(clip, Y, answers)
    told = {method.label: method.told for method in methods}
    return VideoMeasurement(setup, told, tuple(trials), tuple(views), tuple(_notes(setup, told)))


def _look(clip: Clip, Y: Any, answers: dict[str, Answer]) -> list[View]:
    frame = busiest_frame(answers[OURS], Y)
    found = [View(clip.name, "", "frame", encode(Y[frame].reshape(clip.height, clip.width)))]
    for label in SHOWN:
        found += views_of(label, clip, answers[label], Y, frame)
    return found


def _notes(setup: VideoSetup, told: dict[str, str]) -> list[str]:
    call = f"lrpca.decompose(Y, {setup.rank}, tol=0, options={{'change': {setup.limit:g}}})"
    notes = [
        "Every method ends by the paper's rule, the first time that max(‖X_k − X_{k−1}‖/‖X_{k−1}‖, ‖S_k − S_{k−1}‖/"
        f"‖S_{{k−1}}‖) < {setup.limit:g}: {call}. What the rule costs is in the "
        "time. It tells that an answer stands still, not that it is right.",
        "Seconds are those of the whole call, initialisation included; reading the clip and compilation are not, nor, "
        f"for “{PLAIN}”, the conversion to single precision.",
        "The paper's seconds are of another machine, with a graphics card, and other footage: compare ratios.",
        "S of the default of this library has the redescending influence of its passes; that of the video model is the "
        "paper's soft threshold. Foreground in the pictures is for all methods what is beyond the outlier threshold, "
        "the rest is white.",
    ]
    if PLAIN not in told:
        notes.append(f"“{PLAIN}” does not compete: PyTorch is not installed (pip install lrpca[learn]).")
    return notes


def seconds(m: VideoMeasurement, label: str, clip: str) -> float:
    """Return the median seconds of a method on a clip."""
    return median(trial.seconds for trial in m.of(label, clip))


def paper_seconds(label: str, clip: str) -> float | None:
    """Return what the paper's table says of the method that a label stands for."""
    return PAPER.get(clip, {}).get(label.partition(",")[0])


def tables(m: VideoMeasurement) -> list[Table]:
    """Return seconds beside the paper's, and what the answers look like."""
    times, answers = [], []
    for clip in m.setup.clips:
        base = seconds(m, VIDEO, clip.name)
        for label in m.contestants:
            trials = m.of(label, clip.name)
            total = seconds(m, label, clip.name)
            each = 1e3 * median(trial.seconds_per_iteration for trial in trials)
            iterations = median(trial.iterations for trial in trials)
            met = all(trial.met for trial in trials)
            paper = paper_seconds(label, clip.name) if clip.size == PAPER_SIZES[clip.name] else None
            paper = None if label == PLAIN else paper
            row = [clip.name, clip.size, label, three_digits(total), paper, three_digits(total / base)]
            times.append([*row, iterations, three_digits(each), "yes" if met else "no"])
            far = [trial.distance for trial in trials if trial.distance is not None]
            left = median(trial.residual for trial in trials)
            answers.append([clip.name, label, f"{median(far):.1e}" if far else None, three_digits(left)])
    columns = ["video", "size", "method", "seconds", "paper's seconds", f"times {VIDEO}", "iterations"]
    columns += ["ms per iteration", "rule met"]
    beside = ["video", "method", "‖X − X_AltProj‖/‖X_AltProj‖", "median |Y − X|, grey levels"]
    return [Table("Time until X and S stand still", columns, times), Table("The answers", beside, answers)]


def claims(m: VideoMeasurement) -> list[Claim]:
    """Hold the paper's statements against the measurement."""
    found = []
    for label in (OURS, VIDEO):
        parts, factors = [], []
        for clip in m.setup.clips:
            times = {other: seconds(m, other, clip.name) for other in OTHERS}
            fastest = min(times, key=lambda other: times[other])
            factors.append(times[fastest] / seconds(m, label, clip.name))
            parts.append(f"{clip.name}: {factors[-1]:.2g} ({fastest})")
        met = all(trial.met for trial in m.trials if trial.label == label)
        text = "The time of the faster other method in units of this one's: " + "; ".join(parts) + "."
        text += "" if met else " It does not meet the rule on every clip."
        confirmed = met and min(factors) >= 1 / FASTER
        paper = "“LRPCA runs much faster than both ScaledGD and AltProj in all verification tests”"
        found.append(Claim(paper, label, text, confirmed))
    found += [_ratio(m, other) for other in OTHERS]
    seen = "“The background subtraction results of LRPCA are also visually desirable”"
    return [*found, Claim(seen, VIDEO, "See the figure.", None)]


def _ratio(m: VideoMeasurement, other: str) -> Claim:
    """Return whether a method takes as many times as long as LRPCA as in the paper, or more."""
    clips = [clip.name for clip in m.setup.clips if clip.name in PAPER]
    theirs = [PAPER[clip][other] / PAPER[clip]["LRPCA"] for clip in clips]
    mine = [seconds(m, other, clip) / seconds(m, VIDEO, clip) for clip in clips]
    text = f"{min(mine):.2g} to {max(mine):.2g} times the time of the video model."
    paper = f"{other} takes {min(theirs):.2g} to {max(theirs):.2g} times as long as LRPCA"
    return Claim(paper, VIDEO, text, all(a >= b for a, b in zip(mine, theirs, strict=True)))


def draw(m: VideoMeasurement, figure: Figure) -> None:
    """Draw a frame of every clip, and below it foreground and background of every method."""
    rows = [("", "frame"), *((label, part) for label in SHOWN for part in PARTS)]
    panels = figure.subplots(len(rows), len(m.setup.clips), squeeze=False)
    for line, (label, part) in zip(panels, rows, strict=True):
        for axes, clip in zip(line, m.setup.clips, strict=True):
            _draw_view(axes, m.view(clip.name, label, part))
        line[0].set_ylabel(f"{label}\n{part}" if label else part, rotation=0, ha="right", va="center", fontsize="small")
    for axes, clip in zip(panels[0], m.setup.clips, strict=True):
        axes.set_title(f"in place of {clip.name}\n{clip}", fontsize="small")


def _draw_view(axes: Axes, view: View | None) -> None:
    from matplotlib.image import imread

    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for side in axes.spines.values():
        side.set_visible(False)
    if view is not None:
        picture = imread(io.BytesIO(view.content), format="jpeg")
        axes.imshow(picture, cmap="gray", vmin=0, vmax=255)


EXPERIMENT = Experiment(
    name="video",
    title="Video background subtraction",
    summary="time until X and S stand still on videos, LRPCA, ScaledGD and AltProj, with pictures",
    source="table “Video details and runtime comparison for the task of background subtraction”, and its figures",
    full=VideoSetup(CLIPS, repeat=1, max_iter=500),
    quick=VideoSetup(SMALL, repeat=1, max_iter=200),
    measure=measure,
    tables=tables,
    claims=claims,
    draw=draw,
    kind=VideoMeasurement,
    criteria=f"“Much faster” is confirmed where on every clip the rule is met in at most {FASTER:g} times the time of "
    "the faster other method; “times as long”, where on every clip the ratio is at least the paper's. What is visually "
    "desirable is left to the reader.",
    figure_size=(8.0, 10.8),
    packages=("av", "torch"),
)
