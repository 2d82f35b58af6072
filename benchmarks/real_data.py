"""Real videos and traffic counts: whether the default converges, given the rank only, and how well it predicts.

    python benchmarks/real_data.py [--only NAME,...] [--ranks 1,2,3] [--others all|svd|none]

Of every matrix 5% of the observed entries are held out as missing; the score is the median of |residual| there. Reads
the folder LRPCA_DATA (../shared/data beside the repository unless set); leaves out what is not there.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import lrpca
from lrpca.bench.judging import PCP, run_solver
from lrpca.bench.measuring import Table, arguments, clock, number, publish
from lrpca.bench.real_matrices import MOST_ENTRIES, SOURCES, TRAFFIC, VIDEO, Real, available, load

RANKS = {VIDEO: (1, 2, 3), TRAFFIC: (1, 2, 3, 5, 10)}
HELD_OUT = 0.05
# PCP takes a full SVD in every iteration: it is given so many rows and columns at most, and the others the same part.
PART, PCP_LIMIT = (300, 2000), 120.0
# Rounds in which the SVD and PCP fill their missing entries with their own low-rank part.
SVD_ROUNDS, PCP_ROUNDS = 20, 3
# Singular values of PCP's answer below this share of the first are its zeros.
ZERO = 1e-6
WHOLE = ["data", "size", "rank", "converged", "reason", "iterations", "reads", "seconds", "noise level", "% outliers"]
WHOLE += ["held out: ours", "SVD", "ours no worse", "warnings"]
PARTS = ["data", "part", "rank", "ours", "SVD", "PCP truncated to that rank", "best of that rank"]
PARTS += ["PCP without truncation", "its rank", "its % outliers"]


@dataclass(frozen=True)
class Task:
    """A matrix, and which of its entries are shown to the solvers and which are held out."""

    real: Real
    shown: Any  # (n1, n2) bool
    rows: Any  # (m,) of the held-out entries
    columns: Any  # (m,)

    @property
    def size(self) -> str:
        """Shape of the matrix, as a cell."""
        return "{} x {}".format(*self.real.Y.shape)

    @property
    def data(self) -> Any:
        """The matrix without the held-out entries: NaN in their places, a mask for integers."""
        Y = self.real.Y
        return np.where(self.shown, Y, np.nan) if Y.dtype.kind == "f" else np.ma.MaskedArray(Y, ~self.shown)

    def error(self, L: Any, R: Any) -> float:
        """Return the median of |Y - L Rᵀ| over the held-out entries."""
        fit = np.einsum("mk,mk->m", L[self.rows], R[self.columns])
        return float(np.median(np.abs(self.real.Y[self.rows, self.columns] - fit)))

    def part(self) -> "Task":
        """Return the task on evenly spread rows and randomly chosen columns, not more than PCP can take."""
        n1, n2 = self.real.Y.shape
        i = np.linspace(0, n1 - 1, min(n1, PART[0])).round().astype(int)
        j = np.sort(np.random.default_rng(0).permutation(n2)[: PART[1]])
        cut = np.ix_(i, j)
        held = np.zeros((n1, n2), bool)
        held[self.rows, self.columns] = True
        return Task(Real(self.real.name, self.real.kind, self.real.Y[cut]), self.shown[cut], *np.nonzero(held[cut]))


def hold_out(real: Real, seed: int = 1) -> Task:
    """Return the matrix with a share of its observed entries held out, drawn at random."""
    held = (np.random.default_rng(seed).random(real.Y.shape, np.float32) < HELD_OUT) & real.observed
    return Task(real, real.observed & ~held, *np.nonzero(held))


def decompose(task: Task, rank: int) -> tuple[float, lrpca.Decomposition, list[str]]:
    """Run the default, given the rank only; return seconds, the result, and the subjects of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seconds, d = clock(partial(lrpca.decompose, task.data, rank))
    return seconds, d, [re.split(r" \(|[:;]", str(warning.message))[0] for warning in caught]


def filled_by_medians(Y: Any, observed: Any) -> Any:
    """Return a floating-point copy in which each missing entry is the median of its column, 0 where that is empty."""
    F = np.where(observed, Y, np.nan).astype(np.float32 if Y.dtype.kind in "iu" else np.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice")
        return np.where(observed, F, np.nan_to_num(np.nanmedian(F, axis=0)))


def truncated_svd(Y: Any, observed: Any, rank: int, *, rounds: int = SVD_ROUNDS) -> tuple[Any, Any]:
    """Return factors L (n1, r), R (n2, r) of the SVD of Y whose missing entries are those of the answer itself.

    Each round takes the SVD of the filled matrix, by subspace iteration, and fills the missing entries with it.
    """
    F = filled_by_medians(Y, observed)
    i, j = np.nonzero(~observed)
    width = min(rank + 5, *F.shape)
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((F.shape[1], width)))[0].astype(F.dtype)
    for _ in range(rounds):
        for _ in range(2):
            Q = np.linalg.qr(F.T @ np.linalg.qr(F @ Q)[0])[0]
        U, values, Vt = np.linalg.svd(F @ Q, full_matrices=False)
        L, R = U[:, :rank] * values[:rank], (Q @ Vt.T)[:, :rank]
        F[i, j] = np.einsum("mk,mk->m", L[i], R[j])
    return L, R


def pcp(Y: Any, observed: Any) -> tuple[Any, Any, float]:
    """Return PCP's low-rank part as factors, by singular values, whose missing entries are its own, and % outliers."""
    F = filled_by_medians(Y, observed).astype(np.float64)
    for _ in range(PCP_ROUNDS):
        low_rank = run_solver(PCP, F, 0, PCP_LIMIT).low_rank
        F = np.where(observed, F, low_rank)
    sparse = observed & (np.abs(F - low_rank) > ZERO * np.abs(F).max())
    U, values, Vt = np.linalg.svd(low_rank, full_matrices=False)
    rank = int((values > ZERO * values[0]).sum())
    return U[:, :rank] * values[:rank], Vt[:rank].T, 100 * float(sparse.sum() / observed.sum())


def measure_whole(task: Task, ranks: Sequence[int], *, compare: bool) -> list[list[Any]]:
    """Run the default, and the truncated SVD if wanted, on a whole matrix."""
    decompose(task.part(), 1)  # compiles, untimed
    rows = []
    for rank in ranks:
        seconds, d, warned = decompose(task, rank)
        error = task.error(d.L, d.R)
        svd = task.error(*truncated_svd(task.real.Y, task.shown, rank)) if compare else None
        cells = [d.converged, d.reason, d.n_iter, d.n_reads, number(seconds), number(d.noise_level)]
        cells += [number(100 * d.outlier_fraction), number(error), None if svd is None else number(svd)]
        rows.append([task.real.name, task.size, rank, *cells, None if svd is None else error <= svd])
        rows[-1].append("; ".join(warned) or None)
        print("  ".join(map(str, rows[-1])), flush=True)
    return rows


def measure_part(task: Task, ranks: Sequence[int]) -> list[list[Any]]:
    """Run the default, the truncated SVD and PCP on the same part of a matrix."""
    part = task.part()
    L, R, outliers = pcp(part.real.Y, part.shown)
    rows = []
    for rank in ranks:
        d = decompose(part, rank)[1]
        errors = {
            "ours": part.error(d.L, d.R),
            "SVD": part.error(*truncated_svd(part.real.Y, part.shown, rank)),
            "PCP": part.error(L[:, :rank], R[:, :rank]),
        }
        pursuit = [number(part.error(L, R)), L.shape[1], number(outliers)]
        best = min(errors, key=errors.__getitem__)
        rows.append([part.real.name, part.size, rank, *map(number, errors.values()), best, *pursuit])
        print("  ".join(map(str, rows[-1])), flush=True)
    return rows


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write real_data.json; nothing is written where all data are absent."""
    options = {
        "only": (tuple(SOURCES), "names"),
        "ranks": ((0,), "ranks; 1,2,3 for video, 1,2,3,5,10 for traffic, unless given"),
        "others": ("all", "methods to compare with: all, svd or none"),
    }
    chosen = arguments(__file__, __doc__, given, command="make real", **options)
    names, absent = available(chosen.only)
    print("\n".join(absent))
    whole, parts, shrunk = [], [], []
    for name in names:
        task = hold_out(load(name))
        ranks = chosen.ranks if any(chosen.ranks) else RANKS[task.real.kind]
        whole += measure_whole(task, ranks, compare=chosen.others != "none")
        parts += measure_part(task, ranks) if chosen.others == "all" else []
        shrunk += [f"{name} {task.real.shrunk}"] if task.real.shrunk > 1 else []
    if not names:
        return
    tables = [Table("The default, given the rank only; median |residual| of the entries held out", WHOLE, whole)]
    if parts:
        tables.append(Table("On a part small enough for PCP; median |residual| of the entries held out", PARTS, parts))
    notes = [
        f"{HELD_OUT:.0%} of the observed entries are held out as missing, drawn at random; the solvers get only the "
        "others. Videos are grey, one row per frame, uint8; traffic is float64, one row per pair of places.",
        f"Frames are averaged over squares of pixels until a clip has at most {MOST_ENTRIES // 10**6} million entries; "
        f"sides of the squares: {', '.join(shrunk) or 'none'}.",
        "SVD and PCP take no missing entries. They are filled in with the median of their column, then with the "
        f"solver's own low-rank part, {SVD_ROUNDS} rounds for the SVD and {PCP_ROUNDS} for PCP.",
        f"PCP (pyrpca, weight 1/√max(n1, n2)) runs on at most {PART[0]} rows and {PART[1]} columns, and the others on "
        "the same part. It takes no rank: its result without truncation has the rank and outliers shown. For "
        "each rank of the others, its low-rank part is also truncated to that rank.",
    ]
    publish(chosen, "Real data", tables, [*notes, *absent])


if __name__ == "__main__":
    main()
