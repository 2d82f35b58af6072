"""How good masks of moving objects are: ours, OpenCV's MOG2 and KNN, and a temporal median, by CDnet's scores.

    python benchmarks/video_quality.py [--scene DIR] [--scene FILE.npz] [--only WORD]

A scene is a folder as CDnet has them (input/, groundtruth/, temporalROI.txt, ROI.bmp) or an .npz file with frames
(n, height, width[, 3]), truth (n, height, width) in CDnet's codes, and first, the first scored frame counted from 0.
Without --scene it is video/cdnet_pedestrians of the folder LRPCA_DATA. All methods have default settings and get the
same frames from memory, once in colour and once in grey, since some do better so; reading files is not counted.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from lrpca import metrics, video
from lrpca.bench.measuring import Table, arguments, clock, data_folder, number, publish
from lrpca.kernels.threads import thread_count

GOAL = 0.96
COLOUR, GREY = "colour", "grey"
MEDIAN_SIDE = 5
# The temporal median: of so many frames spread over the clip; marked is what differs more in some channel.
MEDIAN_FRAMES, MEDIAN_THRESHOLD = 101, 30
# Every method first runs on a few frames, so that compilation is not timed.
WARM_FRAMES = 24

Method = Callable[[Any], Any]  # frames -> masks (n, height, width) bool, or bytes of 0 and 255


@dataclass(frozen=True)
class Scene:
    """A clip with ground truth in CDnet's codes; scored from frame `first` up to but without `last`, within `roi`."""

    name: str
    frames: Any  # (n, height, width) or (n, height, width, 3) uint8
    truth: Any  # (n, height, width) uint8
    first: int
    last: int
    roi: Any = None  # (height, width) bool

    @property
    def kind(self) -> str:
        """Colour or grey."""
        return GREY if self.frames.ndim == 3 else COLOUR

    def score(self, masks: Any) -> metrics.CDnetScore:
        """Return CDnet's scores over the scored frames."""
        return metrics.cdnet_score(masks[: self.last], self.truth[: self.last], first=self.first, roi=self.roi)


def load_scene(path: Path) -> Scene:
    """Read a scene from a CDnet folder or an .npz file."""
    if not path.is_dir():
        with np.load(path) as file:
            return Scene(path.stem, file["frames"], file["truth"], int(file["first"]), len(file["frames"]))
    # CDnet counts frames from 1 and includes the last.
    first, last = (int(word) for word in (path / "temporalROI.txt").read_text().split()[:2])
    regions = [file for file in (path / "ROI.bmp", path / "ROI.jpg") if file.exists()]
    roi = read_frames(regions[0], True)[0] > 127 if regions else None
    frames, truth = read_frames(path / "input", None), read_frames(path / "groundtruth", True)
    return Scene(path.name, frames, truth, first - 1, last, roi)


def read_frames(path: Path, grey: bool | None) -> Any:
    """Return all frames of a file or folder."""
    with video.open_frames(path, grey=grey) as reader:
        return np.stack(list(reader))


def in_kinds(scene: Scene, cv2: ModuleType) -> list[Scene]:
    """Return the scene in colour and in grey; a grey one stays as it is."""
    if scene.kind == GREY:
        return [scene]
    frames = np.stack([cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in scene.frames])
    return [scene, replace(scene, frames=frames)]


def ours_live(frames: Any) -> Any:
    """Take the frames one by one, as they come."""
    separator = video.Separator()
    return np.stack([separator.apply(frame) for frame in frames])


def subtract(cv2: ModuleType, kind: str, cleaned: bool, frames: Any) -> Any:
    """Run one of OpenCV's subtractors, default settings and no shadows, with or without a median of its masks."""
    subtractor = getattr(cv2, f"createBackgroundSubtractor{kind}")(detectShadows=False)
    return _masks(cv2, cleaned, frames, subtractor.apply)


def _masks(cv2: ModuleType, cleaned: bool, frames: Any, mark: Callable[[Any, Any], object]) -> Any:
    masks = np.empty(frames.shape[:3], np.uint8)
    for frame, mask in zip(frames, masks, strict=True):
        mark(frame, mask)
        if cleaned:
            cv2.medianBlur(mask, MEDIAN_SIDE, mask)
    return masks


def temporal_median(cv2: ModuleType, cleaned: bool, frames: Any) -> Any:
    """Mark what differs from the median frame by a constant."""
    chosen = np.linspace(0, len(frames) - 1, min(MEDIAN_FRAMES, len(frames))).round().astype(int)
    background = np.median(frames[chosen], axis=0).astype(np.uint8)

    def mark(frame: Any, mask: Any) -> None:
        distance = cv2.absdiff(frame, background).reshape(*mask.shape, -1).max(axis=2)
        mask[:] = (distance > MEDIAN_THRESHOLD) * np.uint8(255)

    return _masks(cv2, cleaned, frames, mark)


def make_methods(cv2: ModuleType) -> dict[str, Method]:
    """Return all methods by name."""
    methods: dict[str, Method] = {"ours": lambda frames: video.separate(frames).masks, "ours, live": ours_live}
    for words, cleaned in (("", False), (", 5x5 median", True)):
        methods |= {f"{kind}{words}": partial(subtract, cv2, kind, cleaned) for kind in ("MOG2", "KNN")}
        methods[f"temporal median{words}"] = partial(temporal_median, cv2, cleaned)
    return methods


def judge(scene: Scene, methods: dict[str, Method]) -> Table:
    """Return the table of one scene: for each method scores over the scored pixels, and seconds."""
    rows = []
    for name, method in methods.items():
        method(scene.frames[:WARM_FRAMES])
        seconds, masks = clock(partial(method, scene.frames))
        score = scene.score(masks)
        shares = [score.f, score.precision, score.recall, score.specificity, score.wrong_percentage]
        cells = [None if np.isnan(share) else round(share, 4) for share in shares]
        rows.append([name, *cells, number(seconds), number(len(scene.frames) / seconds)])
        print(f"{scene.name}, {scene.kind}: {name}: F {score.f:.4f}, {seconds:.2f} s", file=sys.stderr, flush=True)
    n, height, width = scene.truth.shape
    scored = f"scored from {scene.first + 1} to {scene.last}"
    caption = f"{scene.name}, {scene.kind}: {n} frames of {width}x{height}, {scored}"
    columns = ["method", "F", "precision", "recall", "specificity", "wrong pixels, %", "seconds", "frames per second"]
    return Table(caption, columns, rows)


def mean_table(kind: str, tables: Sequence[Table]) -> Table:
    """Return F of every method on every scene, and the mean."""
    rows = []
    for lines in zip(*(table.rows for table in tables), strict=True):
        scores = [line[1] for line in lines]
        known = [score for score in scores if score is not None]
        rows.append([lines[0][0], *scores, round(float(np.mean(known)), 4) if known else None])
    names = [table.caption.partition(",")[0] for table in tables]
    return Table(f"F on every scene, {kind}", ["method", *names, "mean"], rows)


def import_opencv() -> ModuleType:
    """Return OpenCV with as many threads as we use, or end with a message."""
    try:
        import cv2
    except ImportError:
        raise SystemExit("OpenCV is missing, which ours is compared with; pip install 'lrpca[bench,video]'") from None
    cv2.setNumThreads(thread_count())
    return cv2


def main(given: Sequence[str] | None = None) -> None:
    """Score, print and write video_quality.json."""
    options = {"scene": ((), "CDnet folder or .npz"), "only": (None, "methods with this word in their name")}
    chosen = arguments(__file__, __doc__, given, command="make video", **options)
    cv2 = import_opencv()
    methods = {name: method for name, method in make_methods(cv2).items() if (chosen.only or "") in name}
    tables: dict[str, list[Table]] = {}
    for path in chosen.scene or [data_folder() / "video" / "cdnet_pedestrians"]:
        for scene in in_kinds(load_scene(Path(path)), cv2):
            tables.setdefault(scene.kind, []).append(judge(scene, methods))
    means = [mean_table(kind, found) for kind, found in tables.items() if len(found) > 1]
    reached = ", ".join(f"{found[0].rows[0][1]:.4f} in {kind}" for kind, found in tables.items())
    notes = [
        f"Goal: F of at least {GOAL:g} with defaults, which take the frames as they are, in colour, on "
        f"cdnet_pedestrians. {next(iter(methods))} reached on the first scene: {reached}.",
        "CDnet's scores over all scored frames together; pixels at the edges of objects (170) and outside the region "
        "of interest (85) are not scored, hard shadows (50) are background.",
        f"OpenCV {cv2.__version__}, default settings, shadow detection off. The temporal median is that of "
        f"{MEDIAN_FRAMES} frames spread over the clip; marked is what differs by more than {MEDIAN_THRESHOLD} grey "
        f"levels in some channel. {thread_count()} threads each; frames in memory, one call each, after a short one.",
        "“Ours” sees the whole clip before it decides, as the temporal median does; “ours, live”, MOG2 and KNN decide "
        "on each frame when it comes.",
    ]
    publish(chosen, "Masks of moving objects", [*means, *(t for found in tables.values() for t in found)], notes)


if __name__ == "__main__":
    main()
