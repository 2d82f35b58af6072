"""A matrix larger than memory should be: 60 000 x 60 000 on disk, read, passed over and decomposed.

    python benchmarks/large.py [--side 60000] [--formats npy zarr] [--repeats 3] [--folder F] [--results FOLDER]

Makes the matrix (rank 5, 10% outliers, 1% noise, float32), one format after the other, in a temporary folder that is
removed in the end: 15 GB for every format at a time. Every figure comes from a process of its own; what is compared is
in the same cache state: `cached` (the file was read directly before) or `disk` (the system was told to forget it). In a
folder of yours the matrix is kept, and so are the answers: an interrupted run goes on. Writes large.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from large_data import FORMATS, FRACTION, NOISE, RANK, TILE, LargeProblem, size_on_disk, write
from large_process import ask as ask_process
from large_process import versions
from measure import RESULTS, Table, load_note, number, publish

from lrpca.files.atomic import replacing

STATES = ("cached", "disk")
METHODS = ("lrpca", "sampled")
SIDE = 60_000
NAMES = {
    "npy": ".npy, mapped",
    "zarr": "zarr, compressed",
    "zarr-plain": "zarr, not compressed",
    "h5": "HDF5",
}


def ask(folder: Path, *command: str) -> dict[str, Any]:
    """Return what a process answers, or has answered before: a run of half an hour may be interrupted."""
    kept = folder / "answers.json"
    answers: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    key = " ".join(command)
    if key not in answers:
        answers[key] = ask_process(*command)
        with replacing(kept) as temporary:
            temporary.write_text(json.dumps(answers), encoding="utf-8")
    found: dict[str, Any] = answers[key]
    return found


def time_passes(path: Path, side: int, kind: str, repeats: int) -> list[list[Any]]:
    """Return rows: plain read, pass and pass with Gram matrices, in both cache states."""
    rows = []
    for state in STATES:
        found = ask(path.parent, "passes", str(path), str(side), state, str(repeats))
        plain, single, grams = (np.array(found[name]) for name in ("plain", "pass", "grams"))
        size = LargeProblem(side).nbytes
        rows.append(
            [
                NAMES[kind],
                state,
                number(float(np.median(plain))),
                number(size / float(np.median(plain)) / 1e9),
                number(float(np.median(single))),
                number(float(np.median(single / plain))),
                number(float(np.median(grams / plain))),
                len(plain),
            ]
        )
    return rows


def time_calls(path: Path, side: int, kind: str) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return rows of whole calls by method, and of S written after the sampled one where Y is in zarr."""
    rows, written = [], []
    for method in METHODS:
        sparse = path.with_name("S.zarr") if kind == "zarr" and method == "sampled" else None
        where = [] if sparse is None else [str(sparse)]
        found = ask(path.parent, "decompose", str(path), str(side), "disk", method, *where)
        rows.append(
            [
                NAMES[kind],
                method,
                number(found["seconds"]),
                found["reads"],
                number(found["file_reads"]),
                float(f"{found['error']:.3e}"),
                number(found["anonymous"] / 1e9),
                bool(found["converged"]),
            ]
        )
        if sparse is not None:
            shutil.rmtree(sparse, ignore_errors=True)
            sizes = [found[name] / 1e9 for name in ("sparse_bytes", "sparse_anonymous")]
            written.append([NAMES[kind], number(found["sparse_seconds"]), *map(number, sizes)])
    return rows, written


def measure(folder: Path, side: int, formats: Sequence[str], repeats: int, keep: bool) -> list[Table]:
    """Measure every format, and return the tables."""
    passes: list[list[Any]] = []
    calls: list[list[Any]] = []
    written: list[list[Any]] = []
    sizes: list[list[Any]] = []
    for kind in formats:
        path = write(LargeProblem(side), folder, kind)
        sizes.append([NAMES[kind], number(size_on_disk(path) / 1e9)])
        passes += time_passes(path, side, kind, repeats)
        called, outliers = time_calls(path, side, kind)
        calls, written = calls + called, written + outliers
        if not keep:
            _remove(path)
    what = f"{side} x {side}, float32, {LargeProblem(side).nbytes / 1e9:.3g} GB"
    return [
        Table(f"{what}: on disk", ["format", "GB"], sizes),
        Table(
            f"{what}: one pass beside a plain read, rank {RANK}",
            ["format", "state", "plain read, s", "GB/s", "pass, s", "pass / plain read", "with own Grams", "rounds"],
            passes,
        ),
        Table(
            f"{what}: whole calls from disk, rank {RANK} given",
            ["format", "method", "s", "reads", "reads of the file", "error", "anonymous memory, GB", "converged"],
            calls,
        ),
        Table(
            f"{what}: the outliers written to zarr, by coordinates, after `sampled`",
            ["format", "s", "GB", "anonymous memory, GB"],
            written,
        ),
    ]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def main() -> None:
    """Measure, print and write large.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--side", type=int, default=SIDE, help="rows and columns of Y (default: %(default)s)")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["npy", "zarr"])
    parser.add_argument("--repeats", type=int, default=3, help="rounds of passes (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the matrix is made, and kept (default: a temporary one)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result file")
    chosen = parser.parse_args()
    if chosen.side < 1000:
        parser.error(f"--side={chosen.side} is below 1000; use e.g. 12000")
    load = load_note()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="lrpca-large-"))
    try:
        tables = measure(folder, chosen.side, chosen.formats, chosen.repeats, keep=chosen.folder is not None)
    finally:
        if chosen.folder is None:
            shutil.rmtree(folder)
    publish(
        chosen.results / "large.json",
        title="A matrix larger than memory",
        command=f"python benchmarks/large.py --side {chosen.side} --formats {' '.join(chosen.formats)}",
        tables=tables,
        notes=[
            f"Rank {RANK}, {FRACTION:.0%} outliers uniform in ±mean|X|, {NOISE:.0%} noise (of the root mean square); "
            f"chunks of {TILE} x {TILE}. Errors are ‖X - X*‖/‖X*‖, from the factors.",
            "cached: the file was read directly before. disk: the system was told to forget it before every pass, as "
            "if it were larger than memory (the host of a virtual machine may remember it).",
            "A plain read is a parallel sum over mapped pages, or every block read by as many threads as a pass uses. "
            "Medians of the rounds, and of ratios within a round; with own Grams is a ratio, too.",
            "Reads are counted in entries that were looked at; reads of the file count every chunk in full, however "
            "little of it was needed, and of a mapped file what came from the disk.",
            "Anonymous memory includes the interpreter and its libraries.",
            load,
        ],
        extra={"versions": versions()},
    )


if __name__ == "__main__":
    main()
