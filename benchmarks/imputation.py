"""Imputation: road speeds and internet traffic with hidden entries and gross outliers, against scikit-learn's imputers.

    python benchmarks/imputation.py [--only ngsim,abilene] [--seeds 0,1,2]

Entries are hidden at random or in stretches, outliers are added to the others, and every method fills the gaps; the
errors are taken over the hidden entries, which are never corrupted. Reads the folder LRPCA_DATA (../shared/data beside
the repository unless set). A full run takes most of an hour.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import lrpca
from lrpca.bench.measuring import Table, arguments, clock, number, publish
from lrpca.bench.real_matrices import available, load
from lrpca.matrices.accept import accept
from lrpca.tables.imputation import posterior_mean

DATA, SEEDS, RANKS = ("ngsim", "abilene"), (0, 1, 2), (1, 2, 3, 5, 8, 10)
# Hidden entries: how they are chosen, and which share of the matrix.
PATTERNS = (*(("random", share) for share in (0.1, 0.3, 0.5, 0.8)), ("column stretches", 0.3), ("row stretches", 0.3))
# Outliers: share of the entries that are shown, and whether they have both signs.
OUTLIERS = ((0.0, False), (0.05, True), (0.1, False))
# Shortest and longest stretch, in entries; size of the outliers, in units of mean|Y|.
STRETCH, SIZES = (20, 60), (5.0, 10.0)
# With all features IterativeImputer takes minutes for one of these matrices.
NEAREST_FEATURES, NEIGHBOURS = 20, (5, 10)
OURS, FRONT, POSTERIOR = "lrpca", "RobustPCA", "posterior mean"
# The others work on columns, or through the transpose on rows.
OTHERS = ("medians", "means", *(f"KNN {count}" for count in NEIGHBOURS), "iterative")
METHODS = (
    *(f"{OURS} rank {rank}" for rank in RANKS),
    f"{OURS} auto",
    f"{OURS} auto, {POSTERIOR}",
    FRONT,
    *(f"{name} by {axis}" for name in OTHERS for axis in ("column", "row")),
)
# Columns of the tables: a method by name, or the best of the methods whose names hold the word.
COLUMNS = {
    **{f"rank {rank}": f"{OURS} rank {rank}" for rank in RANKS},
    **{"auto": f"{OURS} auto", POSTERIOR: f"{OURS} auto, {POSTERIOR}", FRONT: FRONT},
    **{f"best of {word}": word for word in ("iterative", "KNN", "medians", "means")},
}
COMPARED = (POSTERIOR, "best of iterative", "best of KNN")
LABELS, MEASURES = ["data", "hidden", "outliers"], ("RMSE", "MAE")

Fill = Callable[[Any], Any]  # (n1, n2) with NaN -> (n1, n2) without
Cells = Mapping[tuple[str, str], Any]  # kind of case and method -> RMSE, MAE


@dataclass(frozen=True)
class Case:
    """Which entries are hidden, and which outliers are added to the others."""

    data: str
    pattern: str
    hidden: float
    outliers: float
    two_sided: bool
    seed: int

    @property
    def key(self) -> str:
        """Name of the case without its seed."""
        sides = "two-sided" if self.two_sided else "one-sided"
        outliers = f"{self.outliers:.0%} {sides}" if self.outliers else "none"
        return " | ".join((self.data, f"{self.hidden:.0%} {self.pattern}", outliers))


@dataclass(frozen=True)
class Task:
    """A matrix as it is, as it is shown, and which entries are scored."""

    truth: Any  # (n1, n2)
    shown: Any  # (n1, n2), NaN where hidden or missing, some entries corrupted
    hidden: Any  # (n1, n2) bool

    def errors(self, filled: Any) -> tuple[float, float]:
        """Return RMSE and MAE over the hidden entries, in standard deviations of the data."""
        differences = (np.asarray(filled) - self.truth)[self.hidden] / float(np.nanstd(self.truth))
        return float(np.sqrt(np.mean(differences**2))), float(np.mean(np.abs(differences)))


def cases(data: Sequence[str], seeds: Sequence[int]) -> list[Case]:
    """Return all cases of some matrices, seed by seed."""
    kinds = product(seeds, data, PATTERNS, OUTLIERS)
    return [Case(name, *pattern, *outliers, seed) for seed, name, pattern, outliers in kinds]


def hide(shape: tuple[int, int], pattern: str, share: float, rng: np.random.Generator) -> Any:
    """Return which entries to hide (n1, n2): at random, or stretches of columns or rows until the share is reached."""
    if pattern == "random":
        return rng.random(shape) < share
    if pattern == "row stretches":
        return hide(shape[::-1], "column stretches", share, rng).T
    hidden = np.zeros(shape, bool)
    while hidden.mean() < share:
        column, length = rng.integers(shape[1]), min(int(rng.integers(STRETCH[0], STRETCH[1] + 1)), shape[0])
        first = rng.integers(shape[0] - length + 1)
        hidden[first : first + length, column] = True
    return hidden


def corrupt(Y: Any, share: float, two_sided: bool, rng: np.random.Generator) -> Any:
    """Return a copy with outliers of 5 to 10 times mean|Y| added to a share of the entries that are not NaN."""
    spoiled = Y.copy()
    shown = np.flatnonzero(~np.isnan(Y))
    chosen = rng.choice(shown, round(share * len(shown)), replace=False)
    sizes = rng.uniform(*SIZES, len(chosen)) * np.nanmean(np.abs(Y))
    spoiled.flat[chosen] += sizes * (rng.choice([-1.0, 1.0], len(chosen)) if two_sided else 1.0)
    return spoiled


def make_task(case: Case, truth: Any) -> Task:
    """Return the task of a case; the same seed hides the same entries whatever the outliers."""
    hidden = hide(truth.shape, case.pattern, case.hidden, np.random.default_rng([case.seed, 0])) & ~np.isnan(truth)
    shown = np.where(hidden, np.nan, truth)
    return Task(truth, corrupt(shown, case.outliers, case.two_sided, np.random.default_rng([case.seed, 1])), hidden)


def methods() -> dict[str, Fill]:
    """Return all methods by name; those of scikit-learn run on the matrix and on its transpose."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer, KNNImputer

    knn = [KNNImputer(n_neighbors=count, keep_empty_features=True) for count in NEIGHBOURS]
    iterative = IterativeImputer(n_nearest_features=NEAREST_FEATURES, random_state=0, keep_empty_features=True)
    others: list[Fill] = [partial(_filled, np.nanmedian), partial(_filled, np.nanmean)]
    others += [imputer.fit_transform for imputer in (*knn, iterative)]
    ours: list[Fill] = [lambda Y, rank=rank: lrpca.decompose(Y, rank).low_rank for rank in (*RANKS, "auto")]
    ours += [_posterior, lambda Y: lrpca.RobustPCA().fit(Y).low_rank_]
    both = [f for fill in others for f in (fill, lambda Y, fill=fill: fill(Y.T).T)]
    return dict(zip(METHODS, [*ours, *both], strict=True))


def _posterior(Y: Any) -> Any:
    d = lrpca.decompose(Y, "auto")
    L, R = posterior_mean(accept(Y), d.L, d.R, d.noise_level, float(d.outlier_threshold))
    return L @ R.T


def _filled(middle: Callable[..., Any], Y: Any) -> Any:
    return np.where(np.isnan(Y), np.nan_to_num(middle(Y, axis=0), nan=float(middle(Y))), Y)


def measure(chosen: Any, names: Sequence[str]) -> Cells:
    """Return the mean errors over the seeds, by kind of case and method."""
    truths = {name: load(name).Y for name in names}
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for case in cases(names, chosen.seeds):
        task = make_task(case, truths[case.data])
        for method, fill in methods().items():
            with warnings.catch_warnings(action="ignore"):
                seconds, filled = clock(partial(fill, task.shown.copy()))
            found.setdefault((case.key, method), []).append(errors := task.errors(filled))
            print(f"{case.key}, seed {case.seed}: {method}: {errors}, {seconds:.1f} s", flush=True)
    return {key: np.mean(errors, axis=0) for key, errors in found.items()}


def table(place: int, keys: Sequence[str], cells: Cells) -> Table:
    """Return one of the errors, a row per kind of case."""
    rows = []
    for key in keys:
        errors = {label: _best(key, word, place, cells) for label, word in COLUMNS.items()}
        ours, *theirs = (errors[label] for label in COMPARED)
        rows.append([*key.split(" | "), *map(number, errors.values()), ours < min(theirs)])
    caption = f"{MEASURES[place]} over the hidden entries, in standard deviations of the data"
    return Table(caption, [*LABELS, *COLUMNS, f"{POSTERIOR} below iterative and KNN"], rows)


def _best(key: str, word: str, place: int, cells: Cells) -> float:
    """Return the smallest mean error of the method of that name, or of those with that word in it."""
    names = [word] if word in METHODS else [name for name in METHODS if word in name]
    return min(float(cells[key, name][place]) for name in names)


def wins(tables: Sequence[Table]) -> Table:
    """Return in how many kinds of cases each of ours is below iterative and KNN, with and without outliers."""
    rows = []
    for label in (label for label, word in COLUMNS.items() if word in METHODS):
        cells = []
        for part, some in product(tables, (True, False)):
            places = [part.columns.index(name) for name in (label, *COMPARED[1:])]
            chosen = [row for row in part.rows if (row[LABELS.index("outliers")] != "none") is some]
            errors = [[row[i] for i in places] for row in chosen]
            cells.append(f"{sum(ours < min(theirs) for ours, *theirs in errors)} of {len(errors)}")
        rows.append([label, *cells])
    columns = [f"{name}, {kind}" for name in MEASURES for kind in ("outliers", "none")]
    return Table("Kinds of cases in which ours is below both IterativeImputer and KNNImputer", ["ours", *columns], rows)


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print the tables and write imputation.json."""
    options = {"only": (DATA, "names"), "seeds": (SEEDS, "seeds")}
    chosen = arguments(__file__, __doc__, given, **options)
    names, absent = available(chosen.only)
    if not names:
        raise SystemExit("\n".join(absent))
    cells = measure(chosen, names)
    keys = list(dict.fromkeys(case.key for case in cases(names, chosen.seeds)))
    tables = [table(place, keys, cells) for place in range(len(MEASURES))]
    notes = [
        f"Means over the seeds {', '.join(map(str, chosen.seeds))}. Stretches are {STRETCH[0]} to {STRETCH[1]} "
        f"consecutive entries of a column or row. Outliers of {SIZES[0]:g} to {SIZES[1]:g} times mean|Y| are added to "
        "the given share of the entries that are shown; hidden entries are as measured.",
        "Ours fills every hidden entry with the low-rank part, given the rank or nothing (auto); its "
        f"{POSTERIOR} is shrunk where little was seen. The others run on the matrix and on its transpose, and the best "
        "of their variants for each kind of case is shown, which is not known in advance: KNNImputer with "
        f"{' and '.join(map(str, NEIGHBOURS))} neighbours; IterativeImputer with BayesianRidge and "
        f"n_nearest_features={NEAREST_FEATURES}, since it takes minutes with all features.",
        *absent,
    ]
    publish(chosen, "Imputation", [wins(tables), *tables], notes, packages=("scikit-learn",))


if __name__ == "__main__":
    main()
