"""The shipped models beside the published ones, on the published problems.

    python benchmarks/learned_models.py

Needs the folder of published-lrpca under LRPCA_DATA (../shared/data beside the repository unless set).
"""

from collections.abc import Sequence

from lrpca import Schedule
from lrpca.bench import judging
from lrpca.bench.judging import MILESTONES, PUBLISHED_PROBLEMS, errors_by_pass, passes_to
from lrpca.bench.measuring import Table, arguments, publish
from lrpca.schedule import PUBLISHED_RANK

ITERATIONS = 16
SHOWN = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
# Models of the paper's form, one for each α; for other ranks the paper's rule scales them. Then the adaptive ones.
PUBLISHED, OURS = "published model", {"fnn-{}": "fnn-α, ours", "frmnn-{}": "frmnn-α, ours"}
ADAPTIVE = {"fast": "fast, ours", "default": "default, not trained"}


def measure() -> list[Table]:
    """Run all models on all problems."""
    counts, curves = [], []
    for rank, alpha in PUBLISHED_PROBLEMS:
        Y, X = judging.read_published(rank, alpha)
        models = {PUBLISHED: judging.published_model(alpha)}
        models |= {label: Schedule.load(name.format(alpha)) for name, label in (OURS | ADAPTIVE).items()}
        for label, schedule in models.items():
            errors, _ = errors_by_pass(Y, X, rank, {"schedule": schedule, "tol": 0, "max_iter": ITERATIONS})
            about = [f"r = {rank}, α = {alpha}", label]
            counts.append([*about, *(passes_to(errors, goal) or "never" for goal in MILESTONES)])
            if rank == PUBLISHED_RANK:
                curves.append([*about, *(f"{errors[k - 1]:.1e}" for k in SHOWN)])
    return [
        Table("Passes to an error, n = 1000", ["problem", "model", *(f"to {goal:.0e}" for goal in MILESTONES)], counts),
        Table("Error after k passes", ["problem", "model", *(f"k = {k}" for k in SHOWN)], curves),
    ]


def main(given: Sequence[str] | None = None) -> None:
    """Measure, print and write learned_models.json."""
    chosen = arguments(__file__, __doc__, given)
    notes = [
        "The published problems are stored in single precision: X is known to about 2e-8.",
        "Models of the paper's form were trained for rank 5; for others the paper's rule scales their thresholds. The "
        "adaptive ones, fast and default, are given the rank only; fast was trained on 300 x 300 problems of rank 5 "
        "with 10% outliers.",
    ]
    publish(chosen, "Learned models, published and ours", measure(), notes)


if __name__ == "__main__":
    main()
