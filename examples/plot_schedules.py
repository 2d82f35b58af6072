"""
Absolute and adaptive schedules
===============================

The paper uses fixed thresholds, learned for one kind of problem. The default measures its thresholds from the residual.
This example runs both on one problem, and then on the same problem in other units.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import lrpca
from lrpca.testing import Problem, planted

problem = planted((500, 500), rank=5, outlier_fraction=0.1, random_state=0)

# %%
# A schedule of the paper's form: soft threshold, scaled update, and a tail that multiplies the threshold by 0.6 in each
# pass. It is set by hand for this problem. A learned one has its own numbers for each layer and needs fewer passes.

typical = np.abs(problem.X).mean()
absolute = lrpca.Schedule([6 * typical, 0.3 * typical], [0, 0.8], shape=(500, 500), rank=5, tail=(1.0, 0.6))


def errors(problem: Problem, schedule: lrpca.Schedule | None) -> tuple[lrpca.Decomposition, list[float]]:
    """Decompose and note the true error after each iteration, which the solver itself cannot know."""
    curve: list[float] = []

    def note(state: lrpca.solvers.base.State) -> None:
        curve.append(problem.error(state.L @ state.R.T))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one of the runs is meant to fail
        tol = 1e-7 if schedule else None
        d = lrpca.decompose(problem.Y, rank=5, schedule=schedule, tol=tol, max_iter=40, callback=note)
    return d, curve


# %%
# The same data in units four times smaller: every number is four times as large.

scaled = planted((500, 500), rank=5, outlier_fraction=0.1, scale=4 * typical, random_state=0)
figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharex=True, sharey=True, layout="constrained")
for ax, title, data in zip(axes, ["original units", "in other units (Y × 4)"], [problem, scaled], strict=True):
    for name, schedule in (("absolute, soft, scaled", absolute), ("default", None)):
        d, curve = errors(data, schedule)
        print(f"{title:22s} {name:22s}: {d.reason:8s} after {d.n_iter:2d} iterations, error {curve[-1]:.0e}")
        ax.semilogy(range(1, len(curve) + 1), curve, marker="o", markersize=3, label=name)
    ax.set(title=title, xlabel="iteration")
axes[0].set(ylabel="relative error of the low-rank part")
axes[0].legend(frameon=False)

# %%
# The change does not affect the default. The absolute thresholds are now too small: they reject good entries until
# nothing is left to fit. That is reported as ``"runaway"``, with a warning and ``converged=False``.

plt.show()
