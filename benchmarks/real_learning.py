"""Learning on real data without labels: a model trained on one matrix alone, against the default on the same matrix.

    python benchmarks/real_learning.py [--only NAME,...] [--ranks 1,2] [--seeds 3] [--ways held-out,lrpca,altproj]
                                       [--results FOLDER]

Of every matrix 5% of the observed entries are held out from everyone, as in real_data.py; the score is the median of
|residual| there. The model is trained on the other entries, by hiding some of those in turn, and then run on them. Data
come from the folder LRPCA_DATA; what is not there is left out. A selection is written to benchmarks/scratch unless
--results says otherwise.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import RESULTS, Table, load_note, number, publish
from real_data import HELD_OUT, SCRATCH, Task, hold_out
from real_matrices import MOST_ENTRIES, SOURCES, TRAFFIC, VIDEO, available
from real_matrices import load as load_matrix

import lrpca
from lrpca.learn import train

# The paper takes rank 2 for video.
RANKS = {VIDEO: (1, 2), TRAFFIC: (3, 10)}
SEEDS = 3
# By held-out entries, by the default's own answers, by those of the paper's labeller.
WAYS = ("held-out", "lrpca", "altproj")
# Half as many layers as the default takes passes, but not more than this.
MOST_LAYERS = 16


@dataclass(frozen=True)
class Fit:
    """A run on the entries that are shown: its error on the others, and what it cost."""

    error: float
    passes: int
    reads: int
    seconds: float


@dataclass(frozen=True)
class Trial:
    """The default and the learned models on one matrix, at one rank, with one choice of held-out entries."""

    default: Fit
    learned: dict[str, Fit]
    training: dict[str, float]


def shown_data(task: Task) -> Any:
    """Return the matrix without the held-out entries: NaN in their places, a mask for integers."""
    Y = task.real.Y
    return np.where(task.shown, Y, np.nan) if Y.dtype.kind == "f" else np.ma.MaskedArray(Y, ~task.shown)


def fit(task: Task, rank: int, schedule: lrpca.Schedule | None = None) -> Fit:
    """Run a schedule, or the default to its own end."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        d = lrpca.decompose(
            shown_data(task), rank, schedule=schedule, max_iter=None if schedule is None else schedule.layers
        )
    return Fit(task.error(d.L, d.R), d.n_iter, d.n_reads, time.perf_counter() - began)


def learn(task: Task, rank: int, layers: int, way: str, seed: int) -> lrpca.Schedule:
    """Train a feed-forward model of so many layers on what is shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels that did not converge
        return train(
            data=[shown_data(task)],
            labels=None if way == WAYS[0] else way,
            rank=rank,
            model="fnn",
            layers=layers,
            random_state=seed,
        )


def measure(task: Task, rank: int, ways: tuple[str, ...], seed: int) -> Trial:
    """Run the default, then train and run one model for each way."""
    default = fit(task, rank)
    learned, seconds = {}, {}
    for way in ways:
        began = time.perf_counter()
        model = learn(task, rank, max(1, min(MOST_LAYERS, default.passes // 2)), way, seed)
        seconds[way] = time.perf_counter() - began
        learned[way] = fit(task, rank, model)
        said = f"{learned[way].error:.4g} in {learned[way].passes} against {default.error:.4g} in {default.passes}"
        print(f"{task.name}, rank {rank}, seed {seed}, {way}: {said} ({seconds[way]:.0f} s)", flush=True)
    return Trial(default, learned, seconds)


COLUMNS = [
    "data",
    "size",
    "rank",
    "held out: default",
    "its passes",
    "its reads",
    "learned",
    "passes",
    "reads",
    "error, of the default's",
    "no worse",
    "trained in s",
]


def row(task: Task, rank: int, trials: list[Trial], way: str) -> list[Any]:
    """Return the medians over the trials, and in how many of them the model is no worse with fewer passes."""
    ratios = [trial.learned[way].error / trial.default.error for trial in trials]
    won = sum(
        ratio <= 1 and trial.learned[way].passes < trial.default.passes
        for ratio, trial in zip(ratios, trials, strict=True)
    )

    def middle(values: list[Any]) -> Any:
        return number(float(np.median(values)))

    fits = [trial.default for trial in trials], [trial.learned[way] for trial in trials]
    cells = [
        value
        for side in fits
        for value in (
            middle([f.error for f in side]),
            middle([f.passes for f in side]),
            middle([f.reads for f in side]),
        )
    ]
    spread = f"{min(ratios):.3f} – {max(ratios):.3f}"
    training = middle([trial.training[way] for trial in trials])
    return [task.name, task.size, rank, *cells, spread, f"{won} of {len(trials)}", training]


def ways_row(task: Task, rank: int, trials: list[Trial], ways: tuple[str, ...]) -> list[Any]:
    """Return the median ratio to the default's error, by way of training."""
    ratios = [float(np.median([t.learned[way].error / t.default.error for t in trials])) for way in ways]
    return [task.name, rank, *(round(ratio, 3) for ratio in ratios), ways[int(np.argmin(ratios))]]


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help=f"names separated by commas, of {', '.join(SOURCES)}")
    parser.add_argument("--ranks", default="", help="ranks separated by commas (default: 1,2, traffic 3,10)")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="choices of held-out entries (default: %(default)s)")
    parser.add_argument("--ways", default=",".join(WAYS), help="ways of training (default: %(default)s)")
    parser.add_argument("--results", type=Path, help="folder of the result file (default: benchmarks/results)")
    chosen = parser.parse_args()
    for option, known in (("only", SOURCES), ("ways", WAYS)):
        names = [name for name in getattr(chosen, option).split(",") if name]
        unknown = [name for name in names if name not in known]
        if unknown:
            parser.error(f"--{option}={unknown[0]} is unknown; use one of {', '.join(known)}")
        setattr(chosen, option, names)
    if WAYS[0] not in chosen.ways:
        parser.error(f"--ways={','.join(chosen.ways)} lacks {WAYS[0]}, which is what is measured; add it")
    if not re.fullmatch(r"([1-9]\d*(,[1-9]\d*)*)?", chosen.ranks):
        parser.error(f"--ranks={chosen.ranks} is not a list of positive integers; use e.g. 1,2,3")
    if chosen.seeds < 1:
        parser.error(f"--seeds={chosen.seeds} is not positive; use e.g. 3")
    chosen.ranks = tuple(int(rank) for rank in chosen.ranks.split(",") if rank)
    everything = not chosen.only and not chosen.ranks and chosen.seeds == SEEDS and len(chosen.ways) == len(WAYS)
    chosen.results = chosen.results or (RESULTS if everything else SCRATCH)
    return chosen


def main() -> None:
    """Measure, print and write real_learning.json; nothing is written where all data are absent."""
    chosen = arguments()
    load = load_note()
    torch.set_num_threads(1)
    names, absent = available(chosen.only or None)
    for line in absent:
        print(line)
    if not names:
        return
    ways = tuple(way for way in WAYS if way in chosen.ways)
    rows, compared = [], []
    for name in names:
        real = load_matrix(name)
        tasks = [hold_out(real, seed) for seed in range(1, chosen.seeds + 1)]
        for rank in chosen.ranks or RANKS[real.kind]:
            trials = [measure(task, rank, ways, seed) for seed, task in enumerate(tasks, 1)]
            rows.append(row(tasks[0], rank, trials, WAYS[0]))
            compared.append(ways_row(tasks[0], rank, trials, ways))
    caption = "A model trained on the matrix alone, by held-out entries; median |residual| of entries nobody was shown"
    tables = [Table(caption, COLUMNS, rows)]
    if len(ways) > 1:
        columns = ["data", "rank", *(_title(way) for way in ways), "best"]
        tables.append(Table("Error by way of training, in units of the default's", columns, compared))
    publish(
        chosen.results / "real_learning.json",
        title="Learning on real data",
        command=shlex.join(["python", "benchmarks/real_learning.py", *sys.argv[1:]]),
        tables=tables,
        notes=[*notes(chosen.seeds, ways), *absent, load],
    )


def _title(way: str) -> str:
    return way if way == WAYS[0] else f"labelled by {way}"


def notes(seeds: int, ways: tuple[str, ...]) -> list[str]:
    """Return what a reader of the tables has to know."""
    found = [
        f"{HELD_OUT:.0%} of the observed entries are held out as missing, drawn at random {seeds} times; neither the "
        "default nor training nor the model is shown them. Numbers are medians over these, and errors in units of the "
        "default's are the least and the largest.",
        "No worse: in how many of them the model's error is at most the default's, with fewer passes.",
        "The default is lrpca.decompose(Y, rank), run to its own end. The model is lrpca.learn.train(data=[Y], "
        f"rank=rank, model='fnn', layers=...) with half as many layers as the default takes passes, at most "
        f"{MOST_LAYERS}; all else is the default of train, for all data.",
        f"Videos are grey, one row per frame, uint8, averaged over squares of pixels down to {MOST_ENTRIES // 10**6} "
        "million entries at most; traffic is float64, one row per pair of places.",
    ]
    if len(ways) > 1:
        found.append(
            "Labelled by lrpca: the answers of the default are the labels. By altproj: those of alternating "
            "projections to 1e-5, as the paper does for video."
        )
    return found


if __name__ == "__main__":
    main()
