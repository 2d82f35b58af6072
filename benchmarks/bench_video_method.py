"""A video of the paper's size to the paper's stopping rule: ours against the published method in plain torch.

    python benchmarks/bench_video_method.py [--video FILE] [--frames 965] [--repeats 3] [--results FOLDER]

320x180 grey pixels, 965 frames, rank 2, until X and S both change by less than 1e-3 of themselves. Ours reads the uint8
frames in place; torch has them in single precision beforehand. Both have the numbers of the shipped video model, so
both take as many iterations. Without --video the footage is vtest.avi of the folder LRPCA_DATA.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measure import RESULTS, Table, load_note, number, publish
from torch_iterations import TUNED, Torch
from torch_video import CLIP, LIMIT, MAX_ITER, MODEL

import lrpca
from lrpca.bench.experiments.video import CLIPS
from lrpca.bench.experiments.video_clips import Clip, find_footage, load_clip
from lrpca.kernels.threads import thread_count

RANK = 2
GOAL = 30.0
SCRIPT = Path(__file__).with_name("torch_video.py")
OURS = {
    "ours, video model": {"schedule": MODEL},
    "ours, video model, one power step": {"schedule": MODEL, "power_steps": 1},
    "ours, default": {},
}
PLAIN, TUNED_PLAIN, CAREFUL = "plain torch", "plain torch, allocator tuned", "torch, buffers kept"
Call = dict[str, Any]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--video", help="footage (default: vtest.avi of LRPCA_DATA/video)")
    parser.add_argument("--frames", "--n", type=int, default=CLIPS[0].n_frames, help="frames (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of timing (default: %(default)s)")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of the result file (default: benchmarks/results)"
    )
    chosen = parser.parse_args(given)
    for name, least in (("frames", 20), ("repeats", 1)):
        if getattr(chosen, name) < least:
            parser.error(f"--{name}={getattr(chosen, name)} is below {least}; use at least that")
    return chosen


def solve(Y: Any, settings: dict[str, Any]) -> Call:
    """Run ours to the rule; return what it took."""
    given = dict(settings)
    options = {"change": LIMIT} | ({"power_steps": given.pop("power_steps")} if "power_steps" in given else {})
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = lrpca.decompose(Y, RANK, tol=0, max_iter=MAX_ITER, options=options, **given)
    seconds = time.perf_counter() - began
    each = median(record.seconds or 0.0 for record in d.history)
    stopped = d.reason in ("tol", "stalled")
    return {"seconds": seconds, "each": each, "iterations": d.n_iter, "stopped": stopped, "reads": d.n_reads}


def race(Y: Any, clip: Path, repeats: int, threads: int) -> dict[str, list[Call]]:
    """Run all contestants once in every round, in shuffled order."""
    environment = {CLIP: str(clip)}
    for settings in OURS.values():
        solve(Y[:40], settings)
    with (
        Torch(len(Y), threads, environment, script=SCRIPT) as plain,
        Torch(len(Y), threads, {**environment, **TUNED}, script=SCRIPT) as tuned,
    ):
        contestants: dict[str, Callable[[], Call]] = {
            **{label: lambda settings=settings: solve(Y, settings) for label, settings in OURS.items()},
            PLAIN: lambda: plain.iterate("plain", RANK),
            TUNED_PLAIN: lambda: tuned.iterate("plain", RANK),
            CAREFUL: lambda: plain.iterate("careful", RANK),
        }
        names, order = list(contestants), np.random.default_rng(0)
        calls: dict[str, list[Call]] = {name: [] for name in names}
        for i in range(repeats):
            for k in order.permutation(len(names)):
                print(f"round {i + 1} of {repeats}: {names[k]}", file=sys.stderr, flush=True)
                calls[names[k]].append(contestants[names[k]]())
    return calls


def speed_table(calls: dict[str, list[Call]]) -> Table:
    """Return seconds, and how many times as long as ours the others take: medians over the rounds."""
    rows = []
    for name, found in calls.items():
        middle = [median(call[key] for call in found) for key in ("seconds", "iterations", "each")]
        ratios = [
            *(_ratio(found, calls[label], "seconds") for label in OURS),
            _ratio(found, calls[next(iter(OURS))], "each"),
        ]
        reads = median(call["reads"] for call in found) if "reads" in found[0] else None
        stopped = "yes" if all(call["stopped"] for call in found) else "no"
        times = [number(middle[0]), middle[1], number(1e3 * middle[2]), reads]
        rows.append([name, *times, stopped, *(number(ratio) for ratio in ratios)])
    columns = ["", "seconds", "iterations", "ms per iteration", "reads of Y", "rule met"]
    columns += [f"times {label}" for label in OURS] + ["an iteration, times ours"]
    return Table(f"Until X and S change by less than {LIMIT:g}", columns, rows)


def _ratio(found: list[Call], base: list[Call], key: str) -> float:
    return median(call[key] / other[key] for call, other in zip(found, base, strict=True))


def part_table(Y: Any) -> Table:
    """Return what the time of ours goes into, beside a plain read of Y."""
    from lrpca.solvers.stationarity import Standstill

    measured: list[float] = []
    change = Standstill._change

    def timed(self: Standstill, *splits: Any) -> float:
        began = time.perf_counter()
        found = change(self, *splits)
        measured.append(time.perf_counter() - began)
        return found

    Standstill._change = timed  # type: ignore[method-assign]
    try:
        call = solve(Y, OURS["ours, video model"])
    finally:
        Standstill._change = change  # type: ignore[method-assign]
    passes = call["each"] * call["iterations"]
    rest = call["seconds"] - passes - sum(measured)
    rows = [
        ["passes and updates", call["iterations"], number(1e3 * passes)],
        ["measuring S exactly", len(measured), number(1e3 * sum(measured))],
        ["initialisation and everything else", None, number(1e3 * rest)],
        ["whole call", call["reads"], number(1e3 * call["seconds"])],
    ]
    return Table("Where the time of ours goes (video model)", ["", "times, reads of Y for the whole", "ms"], rows)


def main() -> None:
    """Measure and publish."""
    chosen = arguments()
    first = CLIPS[0]
    clip = Clip(first.name, first.width, first.height, chosen.frames, first.footage)
    source = find_footage([clip], [chosen.video] if chosen.video else [])[0]
    note = load_note()
    Y = load_clip(source, clip)
    threads = thread_count()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "clip.npy")
        np.save(path, Y)
        calls = race(Y, path, chosen.repeats, threads)
    table = speed_table(calls)
    reached = _ratio(calls[PLAIN], calls["ours, video model"], "seconds")
    best = min(OURS, key=lambda label: median(call["seconds"] for call in calls[label]))
    notes = [
        f"{clip.size} of {source.name}, looped forward and backward; rank {RANK}; uint8 for ours, single precision for "
        "torch, whose conversion is not counted.",
        f"Goal: at least {GOAL:g} times as fast as plain torch in a whole call. Reached: {reached:.3g} with the same "
        f"numbers, {_ratio(calls[PLAIN], calls[best], 'seconds'):.3g} with the fastest setting ({best}).",
        "“Plain torch” forms every matrix of the paper's algorithm; “allocator tuned” keeps its temporaries in the "
        "heap; “buffers kept” allocates nothing large and gets the change of X from the factors: what torch can do.",
        note,
    ]
    publish(
        chosen.results / "video_method.json",
        title="A video to the paper's stopping rule",
        command="python benchmarks/bench_video_method.py",
        tables=[table, part_table(Y)],
        notes=notes,
    )


if __name__ == "__main__":
    main()
