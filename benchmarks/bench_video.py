"""Separating a video: against OpenCV's MOG2 on the same frames, live, and the memory of a long file.

    python benchmarks/bench_video.py [--n 1700] [--repeats 5] [--minutes 10]

Speed: n grey frames of 320x240, bgs_video02.avi of LRPCA_DATA/video looped, in memory, so nothing is decoded. Ours is
`separate(frames)` as a user calls it, masks included. A read-time is a plain parallel sum over the same bytes.
Memory: --minutes of 720p made of vtest.avi, from file to files in its own process.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from video_quality import import_opencv, read_frames, subtract

from lrpca import video
from lrpca.bench import measuring
from lrpca.bench.measuring import Table, call_fresh, clock, data_folder, interleave, number, peak_memory, publish
from lrpca.bench.probes import Machine

GOAL_RATIO, GOAL_BYTES = 1.0, 1.5e9
CLIP, FOOTAGE = "bgs_video02.avi", "vtest.avi"
WIDTH, HEIGHT, RATE = 1280, 720, 30
OURS, OTHER = "ours", "MOG2"


def counted(function: Callable[[], object], seconds: list[float]) -> None:
    """Call a function, and keep its processor seconds."""
    began = time.process_time()
    function()
    seconds.append(time.process_time() - began)


def race(frames: Any, machine: Machine, repeats: int) -> tuple[Table, float]:
    """Time all methods on the same frames in turn; return the table and how long ours takes, times MOG2."""
    cv2 = import_opencv()
    works: dict[str, Callable[[], object]] = {OURS: partial(video.separate, frames)}
    for kind in (OTHER, "KNN"):
        works[kind] = partial(subtract, cv2, kind, False, frames)
        works[f"{kind}, 5x5 median"] = partial(subtract, cv2, kind, True, frames)
    used: dict[str, list[float]] = {name: [] for name in works}
    calls = {name: partial(counted, work, used[name]) for name, work in works.items()}
    times = interleave(calls, repeats, probes={"read": partial(machine.read, frames.reshape(len(frames), -1))})
    base, rows = times[OTHER].seconds, []
    # The first call of each was not timed.
    cpu = {name: measuring.Timing(seconds[-repeats:]) for name, seconds in used.items()}
    for name, timing in times.items():
        cells = [1e3 * timing.median / len(frames), timing.relative_to(base), cpu[name].median]
        cells += [cpu[name].relative_to(cpu[OTHER].seconds), timing.reads]
        rows.append([name, number(timing.median), timing.spread, *map(number, cells)])
    columns = ["", "seconds", "quartiles, ms", "ms per frame", f"times {OTHER}", "processor seconds"]
    columns += [f"processor, times {OTHER}", "read-times"]
    caption = f"{len(frames)} grey frames of {frames.shape[2]}x{frames.shape[1]}, masks of all"
    return Table(caption, columns, rows), times[OURS].relative_to(base)


def live_table(frames: Any) -> Table:
    """Time every call of `Separator.apply`, and of MOG2's."""
    subtractor = import_opencv().createBackgroundSubtractorMOG2(detectShadows=False)
    rows = []
    for name, apply in (("Separator", video.Separator().apply), (OTHER, subtractor.apply)):
        seconds = [clock(partial(apply, frame))[0] for frame in frames]
        quantiles = (number(1e3 * float(np.quantile(seconds, q))) for q in (0.5, 0.99, 1.0))
        rows.append([name, *quantiles, number(len(frames) / sum(seconds))])
    columns = ["one frame at a time", "ms, median", "ms, 99 of 100", "ms, worst", "frames per second"]
    return Table("Live, on the same frames", columns, rows)


def make_long(footage: Path, path: Path, minutes: float) -> int:
    """Write footage as 720p at 30 frames per second, forward again and again; return the number of frames."""
    import av

    wanted, count = round(60 * RATE * minutes), 0
    with av.open(str(path), "w") as target:
        stream = target.add_stream("libx264", rate=RATE, options={"preset": "veryfast", "crf": "20", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        while count < wanted:
            with av.open(str(footage)) as source:
                for frame in source.decode(video=0):
                    if count == wanted:
                        break
                    scaled = frame.reformat(WIDTH, HEIGHT, "yuv420p")
                    scaled.pts, scaled.time_base = count, Fraction(1, RATE)
                    target.mux(stream.encode(scaled))
                    count += 1
        target.mux(stream.encode(None))
    return count


def separate_files(source: str, folder: str) -> list[Any]:
    """Run the separation as a user does; return seconds, frames, whether it is complete, and the peak memory."""
    seconds, result = clock(lambda: video.separate(source, folder))
    return [seconds, result.n_frames, result.complete, peak_memory()]


def memory_table(minutes: float) -> Table:
    """Separate a long 720p file into files; return the peak memory and the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "long.mp4", Path(folder) / "out"
        count = make_long(data_folder() / "video" / FOOTAGE, path, minutes)
        seconds, frames, complete, most = call_fresh(separate_files, str(path), str(out))
        size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    if frames != count or not complete:
        raise RuntimeError(f"only {frames} of {count} frames were separated; the figures would mean nothing")
    goal = [number(most / 1e9), number(GOAL_BYTES / 1e9), most <= GOAL_BYTES]
    row = [number(minutes), count, *goal, *map(number, (seconds, count / seconds, size / 1e6))]
    columns = ["minutes", "frames", "peak, GB", "goal, GB", "reached", "seconds", "frames per second", "files, MB"]
    return Table(f"{WIDTH}x{HEIGHT} at {RATE} frames per second in colour, from file to files", columns, [row])


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write video.json."""
    options = {"n": (1700, "frames of 320x240"), "repeats": (5, "rounds of timing"), "minutes": (10.0, "of 720p")}
    chosen = measuring.arguments(__file__, __doc__, given, command="make bench", **options)
    machine = Machine()
    # The long file first: the process that does it would begin with the peak memory of this one.
    long = memory_table(chosen.minutes)
    clip = read_frames(data_folder() / "video" / CLIP, True)
    frames = np.ascontiguousarray(clip[np.arange(chosen.n) % len(clip)])
    table, ratio = race(frames, machine, chosen.repeats)
    notes = [
        f"Goal: at most {GOAL_RATIO:g} times the time of {OTHER} on 1700 frames. Measured: {ratio:.3g} on {chosen.n}. "
        f"{machine.threads} threads each; medians of {chosen.repeats} rounds, ratios within a round.",
        f"{CLIP}, looped, grey, in memory: nothing is decoded. Kernels are compiled before. OpenCV with default "
        "settings, shadow detection off; ours cleans its masks up, which the median does for the others.",
        "Processor seconds are those of all threads together: they depend less on what else the machine does.",
        f"The long file is {FOOTAGE}, scaled and looped.",
    ]
    publish(chosen, "Separating a video", [table, live_table(frames), long], notes)


if __name__ == "__main__":
    main()
