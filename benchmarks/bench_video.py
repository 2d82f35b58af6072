"""Separating a video: against OpenCV's MOG2 on the same frames, by stages, live, and the memory of a long file.

    python benchmarks/bench_video.py [--n 1700] [--repeats 5] [--minutes 10] [--results FOLDER]

Speed: n grey frames of 320x240, bgs_video02.avi of LRPCA_DATA/video looped, in memory, so nothing is decoded. Ours is
`separate(frames)` as a user calls it, masks included. A read-time is a plain parallel sum over the same bytes.
Memory: --minutes of 720p made of vtest.avi, from file to files in a process of its own; 0 leaves it out. With --n given
and --minutes not, it is half a minute, for a quick look.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
from limits import Machine
from measure import RESULTS, Table, Timing, interleave, load_note, number, publish
from real_matrices import DATA
from video_process import HEIGHT, RATE, WIDTH, ask, make_long
from video_quality import MEDIAN_SIDE, import_opencv

from lrpca import video
from lrpca.video.learning import SceneLearner
from lrpca.video.scene import Scene

FRAMES, MINUTES, QUICK_MINUTES = 1700, 10.0, 0.5
GOAL_RATIO, GOAL_BYTES = 1.0, 1.5e9
CLIP, FOOTAGE = DATA / "video" / "bgs_video02.avi", DATA / "video" / "vtest.avi"
OURS, RIVAL = "ours", "MOG2"
# What the time of `separate` goes into, in the order of the table. What is called within another stage counts there.
STAGES = {
    "learning the scene": (SceneLearner, "take_window"),
    "lights of the frames": (Scene, "lights"),
    "masks": (Scene, "masks"),
}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--n", type=int, help=f"frames of 320x240 (default: {FRAMES})")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of timing (default: %(default)s)")
    parser.add_argument("--minutes", type=float, help=f"of the 720p file, 0 for none (default: {MINUTES:g})")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the result file (default: benchmarks/results)"
    )
    chosen = parser.parse_args(given)
    if chosen.minutes is None:
        chosen.minutes = MINUTES if chosen.n is None else QUICK_MINUTES
    chosen.n = FRAMES if chosen.n is None else chosen.n
    for name, least in (("n", 20), ("repeats", 1), ("minutes", 0)):
        if getattr(chosen, name) < least:
            parser.error(f"--{name}={getattr(chosen, name)} is below {least}; use at least that")
    for path in [CLIP, *([FOOTAGE] if chosen.minutes else [])]:
        if not path.exists():
            parser.error(f"{path} is not there; set LRPCA_DATA to a folder that holds video/{path.name}")
    return chosen


def load_frames(path: Path, n: int) -> Any:
    """Return n grey frames (n, height, width), the clip looped."""
    with video.open_frames(path, grey=True) as reader:
        clip = np.stack(list(reader))
    return np.ascontiguousarray(clip[np.arange(n) % len(clip)])


class Counted:
    """A contestant that keeps the processor seconds of its calls beside."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self.seconds: list[float] = []

    def __call__(self) -> None:
        """Call, and note the seconds."""
        began = time.process_time()
        self._function()
        self.seconds.append(time.process_time() - began)

    def last(self, repeats: int) -> list[float]:
        """Return those of the timed calls: the first one is not."""
        return self.seconds[-repeats:]


def subtract(cv2: Any, kind: str, cleaned: bool, frames: Any) -> Any:
    """Run one of OpenCV's subtractors, default settings and no shadows, into masks (n, height, width)."""
    subtractor = getattr(cv2, f"createBackgroundSubtractor{kind}")(detectShadows=False)
    masks = np.empty_like(frames)
    for frame, mask in zip(frames, masks, strict=True):
        subtractor.apply(frame, mask)
        if cleaned:
            cv2.medianBlur(mask, MEDIAN_SIDE, mask)
    return masks


def race(frames: Any, machine: Machine, repeats: int) -> tuple[Table, dict[str, Timing]]:
    """Time everybody on the same frames in turn."""
    cv2 = import_opencv()
    contestants = {OURS: Counted(partial(video.separate, frames))}
    for kind in (RIVAL, "KNN"):
        contestants[kind] = Counted(partial(subtract, cv2, kind, False, frames))
        contestants[f"{kind}, 5x5 median"] = Counted(partial(subtract, cv2, kind, True, frames))
    rows = frames.reshape(len(frames), -1)
    times = interleave(contestants, repeats, probes={"read": partial(machine.read, rows)})
    base, cells = times[RIVAL].seconds, []
    base_cpu = contestants[RIVAL].last(repeats)
    for name, timing in times.items():
        cpu = contestants[name].last(repeats)
        cells.append(
            [
                name,
                number(timing.median),
                timing.spread,
                number(1e3 * timing.median / len(frames)),
                number(timing.relative_to(base)),
                number(median(cpu)),
                number(Timing(cpu).relative_to(base_cpu)),
                number(timing.relative_to(timing.probes["read"])),
            ]
        )
    columns = ["", "seconds", "quartiles, ms", "ms per frame", f"times {RIVAL}", "processor seconds"]
    columns += [f"processor, times {RIVAL}", "read-times"]
    size = f"{frames.shape[2]}x{frames.shape[1]}"
    return Table(f"{len(frames)} grey frames of {size}, masks of all", columns, cells), times


@contextmanager
def timed_stages() -> Iterator[dict[str, float]]:
    """Add up the seconds of each stage while inside; a stage within another one counts there."""
    seconds = dict.fromkeys(STAGES, 0.0)
    running: list[str] = []

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if running:
                return function(*given, **named)
            running.append(name)
            began = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                seconds[name] += time.perf_counter() - began
                running.pop()

        return call

    with ExitStack() as stack:
        for name, (owner, method) in STAGES.items():
            stack.enter_context(patch.object(owner, method, timed(name, getattr(owner, method))))
        yield seconds


def stage_table(frames: Any, machine: Machine, repeats: int) -> Table:
    """Return what the time of ours goes into, in seconds and in reads of the bytes."""
    rows = frames.reshape(len(frames), -1)
    runs: list[dict[str, float]] = []
    machine.read(rows)
    for _ in range(repeats):
        began = time.perf_counter()
        machine.read(rows)
        read = time.perf_counter() - began
        with timed_stages() as stages:
            began = time.perf_counter()
            video.separate(frames)
            whole = time.perf_counter() - began
        rest = whole - sum(stages.values())
        runs.append({**stages, "the rest (copies, areas)": rest, "whole call": whole, "read": read})
    cells = [
        [
            name,
            number(median(run[name] for run in runs)),
            number(100 * median(run[name] / run["whole call"] for run in runs)),
            number(median(run[name] / run["read"] for run in runs)),
        ]
        for name in runs[0]
        if name != "read"
    ]
    return Table("Where the time of ours goes", ["stage", "seconds", "%", "read-times"], cells)


def live_table(frames: Any) -> Table:
    """Time every call of `Separator.apply`, and of MOG2's."""
    cv2 = import_opencv()
    subtractor = cv2.createBackgroundSubtractorMOG2(detectShadows=False)
    rows = []
    for name, apply in (("Separator", video.Separator().apply), (RIVAL, subtractor.apply)):
        seconds = []
        for frame in frames:
            began = time.perf_counter()
            apply(frame)
            seconds.append(time.perf_counter() - began)
        middle, most, worst = (number(1e3 * float(np.quantile(seconds, q))) for q in (0.5, 0.99, 1.0))
        rows.append([name, middle, most, worst, number(len(frames) / sum(seconds))])
    columns = ["one frame at a time", "ms, median", "ms, 99 of 100", "ms, worst", "frames per second"]
    return Table("Live, on the same frames", columns, rows)


def memory_table(minutes: float) -> tuple[Table, dict[str, Any]]:
    """Separate a long 720p file into files; return the peak memory and the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.mp4"
        print(f"making {minutes:g} minutes of 720p", file=sys.stderr, flush=True)
        count = make_long(FOOTAGE, path, minutes)
        print(f"separating {count} frames into files", file=sys.stderr, flush=True)
        found = ask(path, Path(folder) / "out")
    if found["frames"] != count or not found["complete"]:
        raise RuntimeError(f"only {found['frames']} of {count} frames were separated; the figures would mean nothing")
    row = [
        number(minutes),
        count,
        number(found["peak"] / 1e9),
        number(GOAL_BYTES / 1e9),
        found["peak"] <= GOAL_BYTES,
        number(found["seconds"]),
        number(count / found["seconds"]),
        number(found["size"] / 1e6),
    ]
    columns = ["minutes", "frames", "peak, GB", "goal, GB", "reached", "seconds", "frames per second", "files, MB"]
    return Table(f"{WIDTH}x{HEIGHT} at {RATE} frames per second in colour, from file to files", columns, [row]), found


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write video.json."""
    chosen = arguments(given)
    import_opencv()
    load = load_note()
    machine = Machine()
    # The long file first: the process that does it would begin with the peak memory of this one.
    long = [memory_table(chosen.minutes)[0]] if chosen.minutes else []
    frames = load_frames(CLIP, chosen.n)
    table, times = race(frames, machine, chosen.repeats)
    ratio = times[OURS].relative_to(times[RIVAL].seconds)
    notes = [
        f"Goal: at most {GOAL_RATIO:g} times the time of {RIVAL} on {FRAMES} frames. Measured: {ratio:.3g} on "
        f"{chosen.n}. {machine.threads} threads each; medians of {chosen.repeats} rounds, ratios within a round.",
        f"{CLIP.name}, looped, grey, in memory: nothing is decoded. Kernels are compiled before. OpenCV with default "
        "settings, shadow detection off; ours cleans its masks up, which the median does for the others.",
        "Processor seconds are those of all threads together: they depend less on what else the machine does.",
        *([f"The long file is {FOOTAGE.name}, scaled and looped."] if long else []),
        load,
    ]
    publish(
        chosen.results / "video.json",
        title="Separating a video",
        command="python benchmarks/bench_video.py",
        tables=[table, stage_table(frames, machine, chosen.repeats), live_table(frames), *long],
        notes=notes,
    )


if __name__ == "__main__":
    main()
