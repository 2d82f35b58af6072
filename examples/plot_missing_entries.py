"""
Missing entries
===============

Half of the entries are missing, and one in ten of the others is wrong. NaN means missing. The low-rank part imputes the
missing entries.
"""

import matplotlib.pyplot as plt
import numpy as np

import lrpca
from lrpca import metrics

# %%
# A picture of low rank.

x, y = np.meshgrid(np.linspace(-1, 1, 320), np.linspace(-1, 1, 240))
X = np.sin(9 * x) * np.cos(7 * y) + 0.7 * np.cos(15 * x) * np.sin(4 * y) + 0.5 * x * y

rng = np.random.default_rng(1)
Y = X.copy()
wrong = rng.random(X.shape) < 0.1
Y[wrong] = rng.uniform(-2, 2, wrong.sum())
missing = rng.random(X.shape) < 0.5
Y[missing] = np.nan

# %%
# NaN needs no further settings. Each row and column is solved with its observed entries.

d = lrpca.decompose(Y, rank=3)
print(f"converged: {d.converged} ({d.reason}) after {d.n_iter} iterations")
print(f"relative error where observed: {metrics.relative_error(d.low_rank[~missing], X[~missing]):.1e}")
print(f"relative error where missing:  {metrics.relative_error(d.low_rank[missing], X[missing]):.1e}")

# %%
# Missing entries are never marked as outliers.

print("outliers among the missing:", np.count_nonzero(d.outliers & missing))

figure, axes = plt.subplots(1, 3, figsize=(10, 2.9), sharex=True, sharey=True, layout="constrained")
for ax, title, values in zip(
    axes, ["given", "low-rank part", "outliers found"], [Y, d.low_rank, d.sparse], strict=True
):
    ax.imshow(values, cmap="RdBu_r", vmin=-2, vmax=2, interpolation="nearest")
    ax.set(title=title, xticks=[], yticks=[], facecolor="0.85")

# %%
# Integers have no NaN. Pass `mask`, True where observed; the data stay integers.

levels = np.clip(np.round(127 + 50 * np.nan_to_num(Y)), 0, 255).astype(np.uint8)
d8 = lrpca.decompose(levels, rank=4, mask=~missing)  # rank 4: the offset of 127 is one more component
print(f"uint8, with mask: relative error {metrics.relative_error(d8.low_rank, 127 + 50 * X):.1e}")
plt.show()
