"""Real videos and traffic counts: whether the default converges, told the rank only, and how well it predicts.

    python benchmarks/real_data.py [--only NAME,...] [--ranks 1,2,3] [--rivals all|svd|none] [--results FOLDER]

Of every matrix 5% of the observed entries are held out as missing; the score is the median of |residual| there. Reads
the folder LRPCA_DATA (../shared/data beside the repository unless set); leaves out what is not there. Pictures of the
clips go to benchmarks/scratch/real_data. A selection is written to benchmarks/scratch unless --results says otherwise.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measure import RESULTS, Table, load_note, number, publish
from real_matrices import MOST_ENTRIES, SOURCES, TRAFFIC, VIDEO, Real, available
from real_matrices import load as load_matrix
from real_rivals import PCP_ROUNDS, SVD_ROUNDS, pcp, truncated_svd

import lrpca
from lrpca.files.atomic import replacing

SCRATCH = Path(__file__).parent / "scratch"
RANKS = {VIDEO: (1, 2, 3), TRAFFIC: (1, 2, 3, 5, 10)}
RIVALS = ("all", "svd", "none")
HELD_OUT = 0.05
# PCP takes a full SVD in every iteration: it is given so many rows and columns at most, and the others the same part.
PART = (300, 2000)
# Three frames of every clip are drawn, at these shares of its length.
_DRAWN = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Task:
    """A matrix, and which of its entries are shown to the solvers and which are held out."""

    real: Real
    shown: Any  # (n1, n2) bool
    rows: Any  # (m,) of the held-out entries
    columns: Any  # (m,)

    @property
    def name(self) -> str:
        """Name of the matrix."""
        return self.real.name

    @property
    def size(self) -> str:
        """Shape of the matrix, as a cell."""
        return "{} x {}".format(*self.real.Y.shape)

    def error(
        self,
        L: Any,  # (n1, r)
        R: Any,  # (n2, r)
    ) -> float:
        """Return the median of |Y - L Rᵀ| over the held-out entries."""
        fit = np.einsum("mk,mk->m", L[self.rows], R[self.columns])
        return float(np.median(np.abs(self.real.Y[self.rows, self.columns] - fit)))

    def part(self) -> Task:
        """Return the task on evenly spread rows and randomly chosen columns, not more than PCP can take."""
        n1, n2 = self.real.Y.shape
        i = np.linspace(0, n1 - 1, min(n1, PART[0])).round().astype(int)
        j = np.sort(np.random.default_rng(0).permutation(n2)[: PART[1]])
        cut = np.ix_(i, j)
        held = np.zeros((n1, n2), bool)
        held[self.rows, self.columns] = True
        return Task(Real(self.name, self.real.kind, self.real.Y[cut]), self.shown[cut], *np.nonzero(held[cut]))


@dataclass(frozen=True)
class Run:
    """One call of the default."""

    d: lrpca.Decomposition
    seconds: float
    warnings: list[str]


def hold_out(real: Real, seed: int = 1) -> Task:
    """Return the matrix with a share of its observed entries held out, drawn at random."""
    held = (np.random.default_rng(seed).random(real.Y.shape, np.float32) < HELD_OUT) & real.observed
    return Task(real, real.observed & ~held, *np.nonzero(held))


def decompose(task: Task, rank: int) -> Run:
    """Run the default, told the rank only; integers carry their missing entries in a mask, the others as NaN."""
    Y, mask = task.real.Y, task.shown
    if Y.dtype.kind == "f":
        Y, mask = np.where(task.shown, Y, np.nan), None
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        d = lrpca.decompose(Y, rank, mask=mask)
    return Run(d, time.perf_counter() - began, [_head(str(warning.message)) for warning in caught])


def _head(message: str) -> str:
    """Return a warning's subject: what comes before its numbers and its advice."""
    return re.split(r" \(|[:;]", message)[0]


def default_row(task: Task, rank: int, run: Run, svd: float | None) -> list[Any]:
    """Return the row of a call on the whole matrix; `svd` is the held-out error of the truncated SVD."""
    d, error = run.d, task.error(run.d.L, run.d.R)
    verdict = [d.converged, d.reason, d.n_iter, d.n_reads, number(run.seconds)]
    measured = [number(d.noise_level), number(100 * d.outlier_fraction)]
    errors = [number(error), None if svd is None else number(svd), None if svd is None else error <= svd]
    return [task.name, task.size, rank, *verdict, *measured, *errors, "; ".join(run.warnings) or None]


DEFAULT_COLUMNS = [
    "data",
    "size",
    "rank",
    "converged",
    "reason",
    "iterations",
    "reads",
    "seconds",
    "noise level",
    "% outliers",
    "held out: ours",
    "SVD",
    "ours no worse",
    "warnings",
]


def measure_whole(task: Task, ranks: tuple[int, ...], *, rival: bool) -> list[list[Any]]:
    """Run the default, and the truncated SVD if wanted, on a whole matrix; draw pictures of a clip."""
    decompose(task.part(), 1)  # compiles, untimed
    rows = []
    for rank in ranks:
        run = decompose(task, rank)
        svd = task.error(*truncated_svd(task.real.Y, task.shown, rank)) if rival else None
        rows.append(default_row(task, rank, run, svd))
        if task.real.frame:
            draw(task, run.d, SCRATCH / "real_data" / f"{task.name}_rank{rank}.png")
        print("  ".join(str(cell) for cell in rows[-1]), flush=True)
    return rows


PART_COLUMNS = [
    "data",
    "part",
    "rank",
    "ours",
    "SVD",
    "PCP cut to that rank",
    "best at that rank",
    "PCP as it is",
    "its rank",
    "its % outliers",
]


def measure_part(task: Task, ranks: tuple[int, ...]) -> list[list[Any]]:
    """Run the default, the truncated SVD and PCP on the same part of a matrix."""
    part = task.part()
    pursuit = pcp(part.real.Y, part.shown)
    whole = _error(part, pursuit.cut(pursuit.rank))
    rows = []
    for rank in ranks:
        d = decompose(part, rank).d
        errors = {
            "ours": part.error(d.L, d.R),
            "SVD": part.error(*truncated_svd(part.real.Y, part.shown, rank)),
            "PCP": _error(part, pursuit.cut(rank)),
        }
        best = min(errors, key=errors.__getitem__)
        tail = [best, number(whole), pursuit.rank, number(100 * pursuit.outlier_fraction)]
        rows.append([part.name, part.size, rank, *map(number, errors.values()), *tail])
        print("  ".join(str(cell) for cell in rows[-1]), flush=True)
    return rows


def _error(task: Task, low_rank: Any) -> float:
    where = task.rows, task.columns
    return float(np.median(np.abs(task.real.Y[where] - low_rank[where])))


def draw(task: Task, d: lrpca.Decomposition, path: Path) -> None:
    """Draw frame, background, |S| (three times as bright) and outliers of three frames of a clip."""
    from matplotlib import pyplot

    from lrpca import plot

    Y, frame = task.real.Y, task.real.frame
    chosen = [round(share * (len(Y) - 1)) for share in _DRAWN]
    thresholds = np.broadcast_to(d.outlier_threshold, Y.shape)
    pictures = []
    for i in chosen:
        background = d.L[i] @ d.R.T
        residual = np.abs(Y[i] - background)
        outlier = residual > thresholds[i]
        sparse = np.clip(3 * np.where(outlier, residual, 0), 0, 255)
        pictures.append([part.reshape(frame) for part in (Y[i], np.clip(background, 0, 255), sparse, outlier)])
    figure, axes = pyplot.subplots(figsize=(16, 10), layout="constrained")
    titles = ["frame", "background", "|S|", "outliers"]
    plot.image_grid(pictures, column_titles=titles, row_titles=[f"frame {i}" for i in chosen], ax=axes)
    figure.suptitle(f"{task.name}, rank {d.rank}: {d.reason} after {d.n_iter} iterations")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=80, format="png")
    pyplot.close(figure)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help=f"names separated by commas, of {', '.join(SOURCES)}")
    parser.add_argument("--ranks", default="", help="ranks separated by commas (default: 1,2,3, traffic 5,10 too)")
    parser.add_argument("--rivals", choices=RIVALS, default=RIVALS[0], help="whom to compare with (default: all)")
    parser.add_argument("--results", type=Path, help="folder of the result file (default: benchmarks/results)")
    chosen = parser.parse_args()
    chosen.only = [name for name in chosen.only.split(",") if name]
    unknown = [name for name in chosen.only if name not in SOURCES]
    if unknown:
        parser.error(f"--only={unknown[0]} is unknown; use one of {', '.join(SOURCES)}")
    if not re.fullmatch(r"([1-9]\d*(,[1-9]\d*)*)?", chosen.ranks):
        parser.error(f"--ranks={chosen.ranks} is not a list of positive integers; use e.g. 1,2,3")
    chosen.ranks = tuple(int(rank) for rank in chosen.ranks.split(",") if rank)
    everything = not chosen.only and not chosen.ranks and chosen.rivals == RIVALS[0]
    chosen.results = chosen.results or (RESULTS if everything else SCRATCH)
    return chosen


def command(words: Sequence[str]) -> str:
    """Return what to type to measure the same again."""
    return shlex.join(["python", "benchmarks/real_data.py", *words]) if words else "make real"


def main() -> None:
    """Measure, print and write real_data.json; nothing is written where all data are absent."""
    chosen = arguments()
    load = load_note()
    names, absent = available(chosen.only or None)
    for line in absent:
        print(line)
    if not names:
        return
    whole, parts, shrunk = [], [], []
    for name in names:
        task = hold_out(load_matrix(name))
        ranks = chosen.ranks or RANKS[task.real.kind]
        whole += measure_whole(task, ranks, rival=chosen.rivals != "none")
        if chosen.rivals == "all":
            parts += measure_part(task, ranks)
        if task.real.shrunk > 1:
            shrunk.append(f"{name} {task.real.shrunk}")
    tables = [
        Table("The default, told the rank only; median |residual| of the entries held out", DEFAULT_COLUMNS, whole)
    ]
    if parts:
        tables.append(
            Table("On a part that PCP can take; median |residual| of the entries held out", PART_COLUMNS, parts)
        )
    publish(
        chosen.results / "real_data.json",
        title="Real data",
        command=command(sys.argv[1:]),
        tables=tables,
        notes=[*notes(shrunk, chosen.rivals), *absent, load],
    )


def notes(shrunk: list[str], rivals: str) -> list[str]:
    """Return what a reader of the tables has to know."""
    found = [
        f"{HELD_OUT:.0%} of the observed entries are held out as missing, drawn at random; all solvers are shown the "
        "others only. Videos are grey, one row per frame, uint8; traffic is float64, one row per pair of places.",
        f"Frames are averaged over squares of pixels until a clip has at most {MOST_ENTRIES // 10**6} million entries; "
        f"sides of the squares: {', '.join(shrunk) or 'none'}.",
    ]
    if rivals != "none":
        found.append(
            "SVD and PCP take no missing entries. They are filled in with the median of their column, then with the "
            f"solver's own low-rank part, {SVD_ROUNDS} rounds for the SVD and {PCP_ROUNDS} for PCP."
        )
    if rivals == "all":
        found.append(
            f"PCP (pyrpca, weight 1/√max(n1, n2)) runs on at most {PART[0]} rows and {PART[1]} columns, and the others "
            "on the same part. It takes no rank: the answer as it is has the rank and outliers shown, and for each "
            "rank of the others its low-rank part is cut to that rank too."
        )
    return found


if __name__ == "__main__":
    main()
