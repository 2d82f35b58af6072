"""What a commit does, in one file: the grid, random problems, real matrices, small calls, read-times, GPU milliseconds.

    python benchmarks/baseline.py [--only grid,random] [--problems 2000] [--output FILE]
    python benchmarks/baseline.py --compare BEFORE AFTER

Sections go into the file one by one, so that a GPU's can be added on another machine. A change may lose nothing beyond
noise: the comparison counts which problems were lost and won, and marks what is worse than chance explains.
"""

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import lrpca
from lrpca.bench import measuring
from lrpca.bench.judging import GridJob, published_jobs, run_case, run_published
from lrpca.bench.measuring import Table, circumstances, compact_json, interleave, number, render, run_jobs, store
from lrpca.core.environment import load_note
from lrpca.testing import grid, planted, random_problem

DRAWS, PROBLEMS = 5, 2000
# Seconds after which a call is stopped and counted as too slow.
LIMIT = 20.0
# A random problem is recovered below this error, or this many times the error of least squares on its clean entries.
NEAR, TIMES_LEAST_SQUARES = 1e-2, 5.0
SMALL = {"64 x 40, rank 1": ((64, 40), 1), "600 x 600, rank 5": ((600, 600), 5)}
_SIDE, _GPU_SIDE = 8000, 20000


def run_random(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Run the default on the random problems of some seeds."""
    return [_judge(seed) for seed in seeds]


def _judge(seed: int) -> dict[str, Any]:
    problem = random_problem(seed)
    surplus = None if problem.given is None else problem.given - problem.rank
    row: dict[str, Any] = {"seed": seed, "kind": "auto" if surplus is None else f"+{surplus}"}
    began = time.perf_counter()
    try:
        with warnings.catch_warnings(action="ignore"):
            late = lambda state: time.perf_counter() - began > LIMIT  # noqa: E731
            d = lrpca.decompose(problem.Y.copy(), problem.given, callback=late)
    except Exception as failure:
        return row | {"ended": f"{type(failure).__name__}: {failure}"[:80], "recovered": False, "false": False}
    seconds = time.perf_counter() - began
    error = problem.error(d.low_rank)
    near = bool(error <= max(NEAR, TIMES_LEAST_SQUARES * problem.least_squares_error))
    # Where another answer explains no fewer entries than the truth, the problem has more than one.
    false = d.converged and not near and problem.explained(d.low_rank) < problem.explained(problem.X)
    row |= {"ended": d.reason, "rank": d.rank, "error": float(f"{error:.3g}") if math.isfinite(error) else None}
    return row | {"recovered": near, "false": bool(false), "reads": d.n_reads, "seconds": round(seconds, 3)}


def measure_random(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return how the default does on random problems, one row for each."""
    jobs = [range(first, chosen.problems, 100) for first in range(min(100, chosen.problems))]
    rows = sorted(run_jobs(run_random, jobs, chosen.workers, "random problems"), key=lambda row: row["seed"])
    figures = {}
    for kind in ("all", *dict.fromkeys(row["kind"] for row in rows)):
        mine = [row for row in rows if kind in ("all", row["kind"])]
        figures[kind] = {
            "problems": len(mine),
            "recovered %": number(100 * np.mean([row["recovered"] for row in mine])),
            "falsely converged %": number(100 * np.mean([row["false"] for row in mine])),
            f"above {LIMIT:.0f} s %": number(100 * np.mean([row.get("seconds", 0) > LIMIT for row in mine])),
            "median reads": number(np.median([row["reads"] for row in mine if "reads" in row])),
        }
    fields = ("seed", "kind", "ended", "rank", "error", "recovered", "false", "reads", "seconds")
    return {"figures": figures, "fields": fields, "rows": [[row.get(name) for name in fields] for row in rows]}


def measure_grid(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return what is recovered and falsely converged on the grid, and the passes on the published problems."""
    jobs = [GridJob(case, draw, ["lrpca"]) for case in grid() for draw in range(DRAWS)]
    records = run_jobs(run_case, jobs, chosen.workers, "grid")
    known = run_jobs(run_published, published_jobs(["lrpca"]), chosen.workers, "published problems")
    sums = {
        "problems": len(records),
        "recovered": sum(record.recovered for record in records),
        "falsely converged": sum(record.false_converged for record in records),
        "reads": sum(record.reads or 0 for record in records),
    }
    passes = {f"passes to 1e-4, rank {one.rank}, {one.outlier_fraction:.0%}": one.passes_to[0] for one in known}
    missed = [f"{record.case} ({record.repeat}): {record.ended}" for record in records if not record.recovered]
    return {"figures": {"grid": sums, "published": passes}, "missed": missed}


def measure_real(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return iterations, reads and held-out error of the real matrices that are there."""
    from real_data import RANKS, decompose, hold_out

    from lrpca.bench.real_matrices import available, load

    figures = {}
    for name in available()[0]:
        task = hold_out(load(name))
        for rank in RANKS[task.real.kind]:
            seconds, d, _ = decompose(task, rank)
            about = {"iterations": d.n_iter, "reads": d.n_reads, "converged": d.converged, "seconds": number(seconds)}
            figures[f"{name}, rank {rank}"] = about | {"held-out error": float(f"{task.error(d.L, d.R):.4g}")}
    return {"figures": figures}


def measure_speed(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return milliseconds of small calls beside an SVD, and read-times of a pass and of a call."""
    from lrpca.bench.probes import Machine, factors
    from lrpca.bench.probes import planted as large
    from lrpca.core.influence import levels
    from lrpca.matrices.dense import DenseMatrix

    figures: dict[str, dict[str, Any]] = {}
    for name, (shape, rank) in SMALL.items():
        Y = planted(shape, rank=rank, random_state=1).Y
        svd = partial(np.linalg.svd, Y, full_matrices=False)
        times = interleave({"call": partial(lrpca.decompose, Y, rank), "svd": svd}, 21)
        ratio = times["call"].relative_to(times["svd"].seconds)
        figures[name] = {"ms": number(1e3 * times["call"].median), "times an SVD": number(ratio)}
    machine, problem = Machine(), large(_SIDE, rank=5, outlier_fraction=0.1)
    matrix, (L, R) = DenseMatrix(problem.Y), factors(_SIDE, 5)
    works: dict[str, Callable[[], object]] = {
        "pass": partial(matrix.run_pass, L, R, levels("redescending", problem.typical), A=R, B=L),
        "call": partial(lrpca.decompose, problem.Y, 5),
    }
    times = interleave(works, 9, probes={"read": partial(machine.read, problem.Y)})
    side = f"{_SIDE} x {_SIDE}"
    figures[side] = {f"{name}, read-times": number(t.relative_to(t.probes["read"])) for name, t in times.items()}
    return {"figures": figures}


def measure_gpu(chosen: argparse.Namespace) -> dict[str, Any] | None:
    """Return milliseconds of a call and of a read on this machine's GPU; None without one."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    from gpu import RANK, planted_on, read_time

    problem = planted_on(torch.device("cuda"), _GPU_SIDE)
    read = read_time(problem.Y, 9)

    def call() -> None:
        lrpca.decompose(problem.Y, RANK)
        torch.cuda.synchronize()

    seconds = interleave({"call": call}, 9)["call"].median
    return {"figures": {f"{_GPU_SIDE} x {_GPU_SIDE}": {"ms": number(1e3 * seconds), "read ms": number(1e3 * read)}}}


SECTIONS: dict[str, Callable[[argparse.Namespace], dict[str, Any] | None]] = {
    **{"speed": measure_speed, "gpu": measure_gpu, "real": measure_real},
    **{"grid": measure_grid, "random": measure_random},
}


def measure(chosen: argparse.Namespace) -> None:
    """Measure sections and write each into the file as soon as it is there."""
    stored = json.loads(chosen.file.read_text(encoding="utf-8")) if chosen.file.exists() else {}
    for name in chosen.only:
        load, began = load_note(), time.perf_counter()
        section = SECTIONS[name](chosen)
        if section is None:
            print(f"{name} is left out: no GPU is here")
            continue
        took = time.perf_counter() - began
        stored[name] = {**circumstances(), "load": load, "seconds": round(took), **section}
        print(f"\n{name}: {took:.0f} s\n{render(figures_table(section['figures']))}", flush=True)
        store(chosen.file, compact_json(stored))


def figures_table(figures: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the figures of a section as a table."""
    columns = list(dict.fromkeys(column for row in figures.values() for column in row))
    return Table("", ["", *columns], [[name, *(row.get(c) for c in columns)] for name, row in figures.items()])


def compare(before: Path, after: Path) -> bool:
    """Print what two files differ in; return whether nothing is worse than chance explains."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    rows: list[list[Any]] = []
    for section in (name for name in SECTIONS if name in old and name in new):
        for name, figures in old[section]["figures"].items():
            for figure, value in figures.items():
                now = new[section]["figures"].get(name, {}).get(figure)
                if value != now:
                    rows.append([section, name, figure, *("–" if cell is None else str(cell) for cell in (value, now))])
    print(render(Table("", ["section", "", "figure", "before", "after"], rows)))
    return _same_problems(old, new)


def _same_problems(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Print which random problems got worse; tell whether chance explains it (within two standard errors)."""
    if "random" not in old or "random" not in new:
        return True
    fine, fields = True, old["random"]["fields"]
    both = zip(old["random"]["rows"], new["random"]["rows"], strict=False)
    pairs = [tuple(dict(zip(fields, row, strict=True)) for row in rows) for rows in both]
    for name, good in (("recovered", True), ("false", False)):
        lost = [was["seed"] for was, now in pairs if was[name] is good and now[name] is not good]
        won = [was["seed"] for was, now in pairs if was[name] is not good and now[name] is good]
        worse = len(lost) - len(won) > 2 * math.sqrt(len(lost) + len(won))
        print(f"{name}: {len(lost)} worse, {len(won)} better of {len(pairs)}{'  WORSE' if worse else ''}")
        print(f"  worse, by seed: {lost[:40]}")
        fine = fine and not worse
    return fine


def main(given: Sequence[str] | None = None) -> int:
    """Measure or compare."""
    words = sys.argv[1:] if given is None else list(given)
    if words[:1] == ["--compare"]:
        return 0 if compare(*map(Path, words[1:])) else 1
    chosen = measuring.arguments(
        *(__file__, __doc__, words),
        command="make baseline",
        only=(tuple(SECTIONS), "sections"),
        problems=(PROBLEMS, "random problems"),
        workers=(2, "processes of one thread each"),
        output=(None, "the result file"),
    )
    chosen.file = Path(chosen.output or chosen.file)
    measure(chosen)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
