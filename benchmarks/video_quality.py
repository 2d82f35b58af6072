"""How good masks of moving objects are: ours, OpenCV's MOG2 and KNN, and a temporal median, by CDnet's scores.

    python benchmarks/video_quality.py [--scene DIR] [--scene FILE.npz] [--only WORD] [--frames KIND] [--results FOLDER]

A scene is a folder as CDnet has them (input/, groundtruth/, temporalROI.txt, ROI.bmp) or an .npz file with frames
(n, height, width[, 3]), truth (n, height, width) in CDnet's codes, and first, the first scored frame counted from 0.
Without --scene it is video/cdnet_pedestrians of the folder LRPCA_DATA. Everybody has default settings and gets the same
frames from memory, once in colour and once in grey, since some do better so; reading files is not counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from measure import RESULTS, Table, load_note, number, publish
from real_matrices import DATA

from lrpca import metrics, video
from lrpca.kernels.threads import thread_count

DEFAULT = DATA / "video" / "cdnet_pedestrians"
SCRATCH = RESULTS.parent / "scratch"
GOAL = 0.96
COLOUR, GREY = "colour", "grey"
MEDIAN_SIDE = 5
# The temporal median: of so many frames spread over the clip; marked is what differs more in some channel.
MEDIAN_FRAMES, MEDIAN_THRESHOLD = 101, 30
# Frames are passed through once before, so that nobody's compilation is timed.
WARM_FRAMES = 24

Masks = Any  # (n, height, width) bool, or bytes of 0 and 255
Method = Callable[[Any], Masks]


@dataclass(frozen=True)
class Scene:
    """A clip with ground truth.

    Attributes
    ----------
    name : str
    frames : ndarray of uint8 (n, height, width) or (n, height, width, 3)
    truth : ndarray of uint8 (n, height, width)
        CDnet's codes.
    first, last : int
        Frames that are scored: from first, up to but without last.
    roi : ndarray of bool (height, width), optional
        Where pixels are scored.
    """

    name: str
    frames: Any
    truth: Any
    first: int
    last: int
    roi: Any = None

    @property
    def kind(self) -> str:
        """Colour or grey."""
        return GREY if self.frames.ndim == 3 else COLOUR

    def score(self, masks: Masks) -> metrics.CDnetScore:
        """Return CDnet's scores over the scored frames."""
        return metrics.cdnet_score(masks[: self.last], self.truth[: self.last], first=self.first, roi=self.roi)


def load_scene(path: Path) -> Scene:
    """Read a scene from a CDnet folder or an .npz file."""
    if path.is_dir():
        return _from_folder(path)
    if not path.exists():
        raise ValueError(f"--scene={path} is not there; give a CDnet folder or an .npz file, or set LRPCA_DATA")
    with np.load(path) as file:
        absent = {"frames", "truth", "first"} - set(file.files)
        if absent:
            raise ValueError(f"--scene={path} lacks {', '.join(sorted(absent))}; store frames, truth and first")
        frames, truth, first = file["frames"], file["truth"], int(file["first"])
    return _checked(Scene(path.stem, frames, truth, first, len(frames)))


def _from_folder(folder: Path) -> Scene:
    for part in ("input", "groundtruth", "temporalROI.txt"):
        if not (folder / part).exists():
            raise ValueError(f"--scene={folder} has no {part}; give a folder as CDnet has them")
    # CDnet counts frames from 1 and includes the last.
    first, last = (int(word) for word in (folder / "temporalROI.txt").read_text().split()[:2])
    frames, truth = _read(folder / "input", None), _read(folder / "groundtruth", True)
    regions = [path for path in (folder / "ROI.bmp", folder / "ROI.jpg") if path.exists()]
    roi = _read(regions[0], True)[0] > 127 if regions else None
    return _checked(Scene(folder.name, frames, truth, first - 1, last, roi))


def _read(path: Path, grey: bool | None) -> Any:
    with video.open_frames(path, grey=grey) as reader:
        return np.stack(list(reader))


def _checked(scene: Scene) -> Scene:
    frames, truth = scene.frames.shape[:3], scene.truth.shape
    if frames != truth:
        raise ValueError(f"scene {scene.name} has frames {frames} and truth {truth}; it needs a truth for every frame")
    if not 0 <= scene.first < scene.last <= len(scene.frames):
        raise ValueError(
            f"scene {scene.name} is scored from {scene.first} to {scene.last}, but has {len(scene.frames)} frames"
        )
    return scene


def in_kinds(scene: Scene, kinds: str, cv2: ModuleType) -> list[Scene]:
    """Return the scene in colour, in grey or both; a grey one stays as it is."""
    if scene.kind == GREY:
        return [scene]
    versions = [scene] if kinds != GREY else []
    if kinds != COLOUR:
        frames = np.stack([cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in scene.frames])
        versions.append(replace(scene, frames=frames))
    return versions


def ours(frames: Any) -> Masks:
    """Separate the clip as a whole."""
    return video.separate(frames).masks


def ours_live(frames: Any) -> Masks:
    """Take the frames one by one, as they come."""
    separator = video.Separator()
    return np.stack([separator.apply(frame) for frame in frames])


def opencv_method(cv2: ModuleType, kind: str, cleaned: bool) -> Method:
    """Return one of OpenCV's subtractors, without shadow detection, with or without a median of its masks."""

    def run(frames: Any) -> Masks:
        subtractor = getattr(cv2, f"createBackgroundSubtractor{kind}")(detectShadows=False)
        masks = (subtractor.apply(frame) for frame in frames)
        return np.stack([cv2.medianBlur(mask, MEDIAN_SIDE) if cleaned else mask for mask in masks])

    return run


def median_method(cv2: ModuleType, cleaned: bool) -> Method:
    """Return the temporal median: what differs from the median frame by a constant."""

    def run(frames: Any) -> Masks:
        chosen = np.linspace(0, len(frames) - 1, min(MEDIAN_FRAMES, len(frames))).round().astype(int)
        background = np.median(frames[chosen], axis=0).astype(np.uint8)
        masks = np.empty(frames.shape[:3], np.uint8)
        for frame, mask in zip(frames, masks, strict=True):
            distance = cv2.absdiff(frame, background)
            mask[:] = (distance.reshape(*mask.shape, -1).max(axis=2) > MEDIAN_THRESHOLD) * np.uint8(255)
            if cleaned:
                mask[:] = cv2.medianBlur(mask, MEDIAN_SIDE)
        return masks

    return run


def make_methods(cv2: ModuleType) -> dict[str, Method]:
    """Return everybody who takes part, by name."""
    methods: dict[str, Method] = {"ours": ours, "ours, live": ours_live}
    for kind in ("MOG2", "KNN"):
        methods[kind] = opencv_method(cv2, kind, False)
        methods[f"{kind}, 5x5 median"] = opencv_method(cv2, kind, True)
    methods["temporal median"] = median_method(cv2, False)
    methods["temporal median, 5x5 median"] = median_method(cv2, True)
    return methods


def judge(scene: Scene, methods: dict[str, Method]) -> list[list[Any]]:
    """Return one row for each method: scores over the scored pixels, and seconds."""
    rows = []
    for name, method in methods.items():
        method(scene.frames[:WARM_FRAMES])
        began = time.perf_counter()
        masks = method(scene.frames)
        seconds = time.perf_counter() - began
        score = scene.score(masks)
        shares = [score.f, score.precision, score.recall, score.specificity, score.wrong_percentage]
        speed = [number(seconds), number(len(scene.frames) / seconds)]
        rows.append([name, *(_digits(share) for share in shares), *speed])
        print(f"{scene.name}, {scene.kind}: {name}: F {score.f:.4f}, {seconds:.2f} s", file=sys.stderr, flush=True)
    return rows


def _digits(share: float) -> float | None:
    return None if np.isnan(share) else round(share, 4)


def scene_table(scene: Scene, rows: list[list[Any]]) -> Table:
    """Return the table of one scene."""
    n, height, width = scene.truth.shape
    caption = (
        f"{scene.name}, {scene.kind}: {n} frames of {width}x{height}, scored from {scene.first + 1} to {scene.last}"
    )
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


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scene", type=Path, action="append", help="CDnet folder or .npz; may be given several times")
    parser.add_argument("--only", default="", metavar="WORD", help="only methods with the word in their name")
    parser.add_argument("--frames", choices=[COLOUR, GREY, "both"], default="both", help="default: %(default)s")
    parser.add_argument(
        "--results", type=Path, help="folder of the result file (default: results for all there is, else scratch)"
    )
    chosen = parser.parse_args(given)
    chosen.default = chosen.scene is None and not chosen.only and chosen.frames == "both"
    chosen.scene = chosen.scene or [DEFAULT]
    chosen.results = chosen.results or (RESULTS if chosen.default else SCRATCH)
    return chosen


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
    chosen = arguments(given)
    cv2 = import_opencv()
    load = load_note()
    methods = {name: method for name, method in make_methods(cv2).items() if chosen.only in name}
    if not methods:
        raise SystemExit(f"--only={chosen.only} is in no name; use a part of {'; '.join(make_methods(cv2))}")
    tables: dict[str, list[Table]] = {}
    try:
        for path in chosen.scene:
            for scene in in_kinds(load_scene(path), chosen.frames, cv2):
                tables.setdefault(scene.kind, []).append(scene_table(scene, judge(scene, methods)))
    except (ValueError, OSError) as error:
        raise SystemExit(str(error)) from error
    means = [mean_table(kind, found) for kind, found in tables.items() if len(found) > 1]
    notes = [
        "CDnet's scores over all scored frames together; pixels at the edges of objects (170) and outside the region "
        "of interest (85) are not scored, hard shadows (50) are background.",
        f"OpenCV {cv2.__version__}, default settings, shadow detection off. The temporal median is that of "
        f"{MEDIAN_FRAMES} frames spread over the clip; marked is what differs by more than {MEDIAN_THRESHOLD} grey "
        f"levels in some channel. {thread_count()} threads each; frames in memory, one call each, after a short one.",
        "“Ours” sees the whole clip before it decides, as the temporal median does; “ours, live”, MOG2 and KNN decide "
        "on each frame when it comes.",
        load,
    ]
    if chosen.default:
        reached = {kind: found[0].rows[0][1] for kind, found in tables.items()}
        notes.insert(
            0,
            f"Goal: F of at least {GOAL:g} with defaults, which take the frames as they are, in colour. "
            f"Reached: {reached[COLOUR]:.4f} in colour, {reached[GREY]:.4f} in grey.",
        )
    publish(
        chosen.results / "video_quality.json",
        title="Masks of moving objects",
        command="make video",
        tables=[*means, *(table for found in tables.values() for table in found)],
        notes=notes,
    )


if __name__ == "__main__":
    main()
