"""
When and where was the traffic unusual?
=======================================

The traffic between the routers of a network has common patterns (days, nights, weekends), which need a few components,
and anomalies of single pairs at single times. `RobustPCA` separates the two without a definition of normal. It flags
single cells, and rates whole times or whole pairs by their likelihood.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle
from sklearn.decomposition import PCA

import lrpca

# %%
# If the folder named by ``LRPCA_DATA`` holds counts of the Abilene network, 204 times of 12 x 12 pairs of routers, they
# are used. Otherwise similar data are simulated. The output says which.

rng = np.random.default_rng(0)


def traffic() -> tuple[np.ndarray, str]:
    """Return counts, (times, 144), and where they come from."""
    file = Path(os.environ.get("LRPCA_DATA", ".")) / "timeseries" / "Abilene.mat"
    if file.exists():
        import h5py

        with h5py.File(file) as mat:
            return np.array(mat["Abilene"]).reshape(144, -1).T, "measured (Abilene)"
    hour = np.arange(204)
    day, evening = (np.sin(2 * np.pi * (hour - start) / 24) for start in (8, 14))
    busy, office = rng.lognormal(0, 1, 144), rng.random(144)
    usual = busy * (1 + 0.7 * office * (day * (hour % 168 < 120))[:, None] + 0.7 * (1 - office) * evening[:, None])
    return usual * rng.lognormal(0, 0.15, usual.shape), "simulated"


counts, source = traffic()
print(f"{source}: {counts.shape[0]} times of {counts.shape[1]} pairs")

# %%
# The true anomalies are unknown, so known ones are added: bursts at single times, with three times the usual traffic of
# a pair; six pairs with five times the traffic for 24 times; and a router that sends nothing for eight times.

bursts, stretches, outage = (np.zeros(counts.shape, bool) for _ in range(3))
outage[150:158, 36:48] = True
for pair in rng.choice(144, 6, replace=False):
    first = rng.integers(180)
    stretches[first : first + 24, pair] = True
bursts[rng.integers(204, size=40), rng.integers(144, size=40)] = True
stretches &= ~outage
bursts &= ~outage & ~stretches
spoiled = np.where(bursts, counts + 2 * np.median(counts, axis=0), counts)
spoiled = np.where(stretches, 5 * spoiled, np.where(outage, 0, spoiled))

# %%
# Traffic is divided by the median of the pair, plus a constant for pairs with little traffic. The square root, as usual
# with counts, makes the noise about equal in busy and quiet hours.

Y = np.sqrt(spoiled / (np.median(spoiled, axis=0) + 0.02))
model = lrpca.RobustPCA(2).fit(Y)
flagged = model.outliers_
print(f"converged: {model.converged_} after {model.n_iter_} iterations; {flagged.mean():.1%} of the cells are flagged")

# %%
# The number of components is two, not ``"auto"``: the spectrum of real traffic has no gap, and with every further
# component, more of the lasting anomalies count as normal.
#
# For comparison, PCA flags as many cells as robust PCA: those with the largest residuals. It finds bursts about as
# well. Lasting anomalies enter its components, so in the measured data, which have many, it misses more of them. In the
# simulation the two are equal.

plain = PCA(2).fit(Y)
left = np.abs(Y - plain.inverse_transform(plain.transform(Y)))
largest = left >= np.sort(left, axis=None)[-int(flagged.sum())]
for kind, where in (("bursts", bursts), ("stretches", stretches), ("outage", outage)):
    print(f"{kind:9s} {where.sum():3d} cells, found by RobustPCA {flagged[where].mean():4.0%}, ", end="")
    print(f"by PCA {largest[where].mean():4.0%}")
added = bursts | stretches | outage
print(f"other flagged cells: {np.count_nonzero(flagged & ~added)} cells, {flagged[~added].mean():.1%}")

# %%
# All cells: above the data, below the outliers that robust PCA found. Circles are the added bursts, boxes the other
# added anomalies.

figure, axes = plt.subplots(2, 1, figsize=(10, 7.4), sharex=True, layout="constrained")
given = axes[0].imshow(Y.T, cmap="viridis", vmin=0, vmax=2.5, aspect="auto", interpolation="nearest")
taken = axes[1].imshow(model.sparse_.T, cmap="RdBu_r", vmin=-1.5, vmax=1.5, aspect="auto", interpolation="nearest")
figure.colorbar(given, ax=axes[0], label="√(traffic / usual)", extend="max")
figure.colorbar(taken, ax=axes[1], label="outlier part", extend="both")
axes[1].plot(*np.nonzero(bursts), "o", markersize=9, markerfacecolor="none", markeredgecolor="black", linewidth=0.8)
for pair in np.flatnonzero(stretches.any(axis=0)):
    when = np.flatnonzero(stretches[:, pair])
    corner = float(when[0]) - 1.5, float(pair) - 2
    axes[1].add_patch(Rectangle(corner, len(when) + 2, 4, fill=False, edgecolor="black", linewidth=0.9))
axes[1].add_patch(Rectangle((148.5, 34.5), 10, 14, fill=False, edgecolor="black", linewidth=0.9))
axes[0].set(title=f"given, {source}", ylabel="pair of routers")
axes[1].set(title="flagged", xlabel="time", ylabel="pair of routers")

# %%
# `score_samples` rates rows, here times, by their log-likelihood. An outlier costs only its logarithm. To rate pairs,
# use the transpose. The outage shows among the times. Some of the six pairs with extra traffic are the least likely; in
# the measured network, others are hidden among pairs that are unusual anyway.

by_pair = lrpca.RobustPCA(2).fit(Y.T).score_samples(Y.T)
odd = stretches.any(axis=0)
rank = np.argsort(np.argsort(by_pair))[odd]
print("ranks of the six pairs among 144, 0 being the least likely:", *sorted(rank.tolist()))
figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
axes[0].plot(model.score_samples(Y), color="#0072B2", linewidth=1)
axes[0].axvspan(149.5, 157.5, color="#E69F00", alpha=0.35, linewidth=0, label="outage")
axes[0].set(xlabel="time", ylabel="log-likelihood")
axes[0].legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1))
pair = np.arange(144)
axes[1].plot(pair[~odd], by_pair[~odd], "o", color="#0072B2", markersize=3.5, label="unchanged")
axes[1].plot(pair[odd], by_pair[odd], "D", color="#D55E00", markersize=5, label="with extra traffic")
axes[1].set(xlabel="pair of routers", ylabel="log-likelihood")
axes[1].legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
plt.show()
