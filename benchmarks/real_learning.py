"""Learning on real data without labels: a model trained on one matrix alone, against the default on the same matrix.

    python benchmarks/real_learning.py [--only NAME,...] [--seeds 3]

Of every matrix 5% of the observed entries are held out, as in real_data.py; the score is the median of
|residual| there. The model is trained on the other entries, by hiding some of those in turn, and then run on them.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from real_data import HELD_OUT, Task, hold_out

import lrpca
from lrpca.bench.measuring import Table, arguments, clock, number, publish
from lrpca.bench.real_matrices import MOST_ENTRIES, SOURCES, TRAFFIC, VIDEO, available, load
from lrpca.learn import train

# The paper takes rank 2 for video.
RANKS = {VIDEO: (1, 2), TRAFFIC: (3, 10)}
# By held-out entries, by the default's own answers, by those of the paper's labeller.
WAYS = ("held-out", "lrpca", "altproj")
# Half as many layers as the default takes passes, but not more than this.
MOST_LAYERS = 16


@dataclass(frozen=True)
class Fit:
    """A run on the entries that are shown: its error on the others, passes and reads; and the seconds of training."""

    error: float
    passes: int
    reads: int
    training: float = 0.0


def fit(task: Task, rank: int, schedule: lrpca.Schedule | None = None, training: float = 0.0) -> Fit:
    """Run a schedule, or the default to its own end."""
    with warnings.catch_warnings(action="ignore"):
        d = lrpca.decompose(task.data, rank, schedule=schedule, max_iter=schedule.layers if schedule else None)
    return Fit(task.error(d.L, d.R), d.n_iter, d.n_reads, training)


def measure(task: Task, rank: int, seed: int) -> dict[str, Fit]:
    """Run the default, under the name "default", then train and run one model for each way."""
    trial = {"default": (default := fit(task, rank))}
    layers = max(1, min(MOST_LAYERS, default.passes // 2))
    for way in WAYS:
        settings: dict[str, Any] = {"labels": None if way == WAYS[0] else way, "model": "fnn", "random_state": seed}
        with warnings.catch_warnings(action="ignore"):  # labels that did not converge
            seconds, model = clock(partial(train, data=[task.data], rank=rank, layers=layers, **settings))
        trial[way] = fit(task, rank, model, seconds)
        print(f"{task.real.name}, rank {rank}, seed {seed}, {way}: {trial[way]} against {default}", flush=True)
    return trial


def ratios(trials: Sequence[dict[str, Fit]], way: str) -> list[float]:
    """Return the errors of a way of training, in units of the default's."""
    return [trial[way].error / trial["default"].error for trial in trials]


def row(task: Task, rank: int, trials: Sequence[dict[str, Fit]], way: str) -> list[Any]:
    """Return the medians over the trials, and in how many of them the model is no worse with fewer passes."""
    found = ratios(trials, way)
    fewer = [trial[way].passes < trial["default"].passes for trial in trials]
    won = sum(ratio <= 1 and few for ratio, few in zip(found, fewer, strict=True))

    def middle(name: str, quantity: str) -> Any:
        return number(float(np.median([getattr(trial[name], quantity) for trial in trials])))

    cells = [middle(name, quantity) for name in ("default", way) for quantity in ("error", "passes", "reads")]
    spread = [f"{min(found):.3f} – {max(found):.3f}", f"{won} of {len(trials)}"]
    return [task.real.name, task.size, rank, *cells, *spread, middle(way, "training")]


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write real_learning.json; nothing is written where all data are absent."""
    options = {"only": (tuple(SOURCES), "names"), "seeds": (3, "choices of held-out entries")}
    chosen = arguments(__file__, __doc__, given, **options)
    torch.set_num_threads(1)
    names, absent = available(chosen.only)
    print("\n".join(absent))
    rows, compared = [], []
    for name in names:
        real = load(name)
        tasks = [hold_out(real, seed) for seed in range(1, chosen.seeds + 1)]
        for rank in RANKS[real.kind]:
            trials = [measure(task, rank, seed) for seed, task in enumerate(tasks, 1)]
            rows.append(row(tasks[0], rank, trials, WAYS[0]))
            medians = [round(float(np.median(ratios(trials, way))), 3) for way in WAYS]
            compared.append([name, rank, *medians, WAYS[int(np.argmin(medians))]])
    if not names:
        return
    columns = ["data", "size", "rank", "held out: default", "its passes", "its reads", "learned", "passes", "reads"]
    columns += ["error, of the default's", "no worse", "trained in s"]
    caption = "A model trained on the matrix alone, by held-out entries; median |residual| of the entries held out"
    ways = ["data", "rank", WAYS[0], *(f"labelled by {way}" for way in WAYS[1:]), "best"]
    tables = [Table(caption, columns, rows)]
    tables += [Table("Error by kind of training, in units of the default's", ways, compared)]
    notes = [
        f"{HELD_OUT:.0%} of the observed entries are held out as missing, drawn at random {chosen.seeds} times; "
        "neither the default nor the training gets them. Numbers are medians over these, and errors in "
        "units of the default's are the least and the largest.",
        "No worse: in how many of them the model's error is at most the default's, with fewer passes.",
        "The default is lrpca.decompose(Y, rank), run to its own end. The model is lrpca.learn.train(data=[Y], "
        "rank=rank, model='fnn', layers=...) with half as many layers as the default takes passes, at most "
        f"{MOST_LAYERS}; all else is the default of train, for all data.",
        f"Videos are grey, one row per frame, uint8, averaged over squares of pixels down to {MOST_ENTRIES // 10**6} "
        "million entries at most; traffic is float64, one row per pair of places.",
        "Labelled by lrpca: the answers of the default are the labels. By altproj: those of alternating projections to "
        "1e-5, as the paper does for video.",
    ]
    publish(chosen, "Learning on real data", tables, [*notes, *absent])


if __name__ == "__main__":
    main()
