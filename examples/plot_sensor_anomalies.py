"""
When and where was the traffic unusual?
=======================================

Traffic between the routers of a network: what all pairs of routers do together (days, nights, weekends) takes a few
components, what one pair does at one time does not. `RobustPCA` separates the two without being told what is normal,
flags single cells, and rates whole times, or whole pairs, by their likelihood.
"""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle
from sklearn.decomposition import PCA

import lrpca

# %%
# Real data if they are there: the folder named by ``LRPCA_DATA`` may hold counts of the Abilene network, 204 times of
# 12 x 12 pairs of routers. Otherwise something like them is simulated. The output says which it was.

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
# Nobody knows which of the counts are truly unusual, so some are added that we do know of: bursts of a single time, in
# which a pair has its usual traffic twice on top; six pairs that carry five times as much for 24 times; and a router
# that sends nothing for eight times.

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
# Pairs are made comparable: traffic relative to the median of the pair (and a bit, for pairs with next to none). The
# square root, as usual with counts, makes noise about as large in busy hours as in quiet ones.

Y = np.sqrt(spoiled / (np.median(spoiled, axis=0) + 0.02))
model = lrpca.RobustPCA(2).fit(Y)
flagged = model.outliers_
print(f"converged: {model.converged_} after {model.n_iter_} iterations; {flagged.mean():.1%} of the cells are flagged")

# %%
# Two components are asked for, not ``"auto"``: real traffic has no number of components at which structure ends, and
# with every further one more of the lasting oddities counts as normal.
#
# Beside it PCA, which has no threshold of its own: it may flag as many cells as robust PCA did, those it explains
# worst. Bursts of a single time it finds about as well. What lasts gets into its components: in the measured data
# with their many oddities it misses more of that. In the simulation, which has no others, the two are equal.

plain = PCA(2).fit(Y)
left = np.abs(Y - plain.inverse_transform(plain.transform(Y)))
largest = left >= np.sort(left, axis=None)[-int(flagged.sum())]
for kind, where in (("bursts", bursts), ("stretches", stretches), ("outage", outage)):
    print(f"{kind:9s} {where.sum():3d} cells, found by RobustPCA {flagged[where].mean():4.0%}, ", end="")
    print(f"by PCA {largest[where].mean():4.0%}")
added = bursts | stretches | outage
print(f"flagged beside what was added: {np.count_nonzero(flagged & ~added)} cells, {flagged[~added].mean():.1%}")

# %%
# All cells: above as given, below what robust PCA took out. Circles are the bursts that were added, boxes the rest.

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
# `score_samples` rates rows, here times: the log-likelihood of a row in which every outlier costs, but by its logarithm
# only. To rate pairs, give the transpose. The outage shows among the times. Of the six pairs with extra traffic some
# are the least likely; in the measured network others hide among pairs that are as odd by themselves.

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
axes[1].plot(pair[~odd], by_pair[~odd], "o", color="#0072B2", markersize=3.5, label="as they were")
axes[1].plot(pair[odd], by_pair[odd], "D", color="#D55E00", markersize=5, label="with extra traffic")
axes[1].set(xlabel="pair of routers", ylabel="log-likelihood")
axes[1].legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
plt.show()
