"""
A corrupted matrix
==================

A matrix of rank 3 has one wrong entry in ten, and some errors are much larger than the signal. They corrupt ordinary
PCA. Robust PCA recovers the matrix and marks the wrong entries.
"""

import matplotlib.pyplot as plt
import numpy as np

import lrpca
from lrpca import metrics, plot

# %%
# Each row is a mixture of three smooth curves, so that errors are easy to see.

rng = np.random.default_rng(0)
t = np.linspace(0, 1, 300)
curves = np.stack([np.sin(2 * np.pi * t), np.cos(5 * np.pi * t), np.exp(-30 * (t - 0.6) ** 2)])
X = rng.standard_normal((200, 3)) @ curves

spoiled = rng.random(X.shape) < 0.1
Y = X + 0.02 * rng.standard_normal(X.shape)
Y[spoiled] += rng.uniform(-8, 8, spoiled.sum())

# %%
# Only the rank is given. The iteration ends at the noise floor: further passes would change the result by less than the
# noise.

d = lrpca.decompose(Y, rank=3)
print(f"converged: {d.converged} ({d.reason}) after {d.n_iter} iterations and {d.n_reads} passes over the data")
print(f"noise level: {float(np.median(d.noise_level)):.4f} (true: 0.02)")

# %%
# The same rank by ordinary PCA, for comparison.

U, s, Vt = np.linalg.svd(Y, full_matrices=False)
plain = (U[:, :3] * s[:3]) @ Vt[:3]
print(f"relative error: {metrics.relative_error(d.low_rank, X):.4f} robust, ", end="")
print(f"{metrics.relative_error(plain, X):.4f} ordinary")

score = metrics.precision_recall_f(d.outliers, spoiled)
print(f"outliers: precision {score.precision:.3f}, recall {score.recall:.3f}")

# %%
# Recall is below one, because errors smaller than the noise cannot be detected.

figure, axes = plt.subplots(2, 2, figsize=(9, 5.5), sharex=True, sharey=True, layout="constrained")
for ax, title, values in zip(
    axes.flat,
    ["given", "robust low-rank part", "ordinary PCA", "sparse part"],
    [Y, d.low_rank, plain, d.sparse],
    strict=True,
):
    ax.imshow(values, cmap="RdBu_r", vmin=-4, vmax=4, aspect="auto", interpolation="nearest")
    ax.set(title=title)

# %%
# One row as a curve.

figure, ax = plt.subplots(figsize=(9, 3), layout="constrained")
ax.plot(t, Y[0], ".", color="0.7", label="given")
ax.plot(t, plain[0], color="tab:orange", label="ordinary PCA")
ax.plot(t, d.low_rank[0], color="tab:blue", label="robust PCA")
ax.plot(t, X[0], "k--", linewidth=1, label="truth")
ax.set(ylim=(-5, 5))
ax.legend(ncols=4, loc="upper center", frameon=False)

# %%
# The threshold between noise and outliers:

figure, ax = plt.subplots(figsize=(9, 3), layout="constrained")
plot.residual_histogram(Y, d, ax=ax)
plt.show()
