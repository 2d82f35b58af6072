"""
Which cells of my table are wrong?
==================================

A year of temperatures at 24 stations was typed by hand: misplaced decimal points, wrong signs, swapped digits, empty
cells. `RobustPCA` takes the data frame as it is, marks the wrong cells, estimates the correct values and imputes the
empty cells. Ordinary PCA minimises squares, so it describes the typing errors.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline

import lrpca

# %%
# The table is simulated, so the truth is known. Three effects change the temperatures: the season, which is stronger
# inland; mild days on the coast while the hills are cold; and fronts from the north.

rng = np.random.default_rng(0)
regions = {"Coast": 8, "Plain": 8, "Hills": 8}
stations = [f"{region} {i + 1}" for region, count in regions.items() for i in range(count)]
days = pd.date_range("2025-01-01", periods=365, name="day")

phase = 2 * np.pi * np.arange(365) / 365
mild, front = (np.convolve(rng.standard_normal(371), np.ones(7) / 2, mode="valid") for _ in range(2))
weather = np.column_stack([-np.cos(phase - 0.4), mild, front])  # (365, 3)
group = np.repeat([0, 1, 2], 8)
north = np.tile(np.linspace(0, 1, 8), 3)
effects = np.stack([np.array([6, 9, 10])[group], np.array([1.5, 0, -1.5])[group], 2 * north - 0.6])  # (3, 24)
height = rng.normal([1, 2, 6], 1, (8, 3)).T.ravel()  # in units of 150 m: a degree each
truth = 13 - 2 * north - height + weather @ effects
table = pd.DataFrame(truth + 0.3 * rng.standard_normal(truth.shape), days, stations).round(1)
correct = table.copy()

# %%
# One cell in twenty is mistyped, one in twelve is empty.

kinds = ["point slipped", "sign wrong", "digits swapped"]
error = rng.choice(["", *kinds], table.shape, p=[0.95, 0.02, 0.015, 0.015])
tens, ones = table // 10, table // 1 % 10
swapped = (table - 9 * (tens - ones)).where(table >= 10, table)  # 12.3 becomes 21.3
for kind, wrong in zip(kinds, [10 * table, -table, swapped.round(1)], strict=True):
    table = table.mask(error == kind, wrong)
empty = rng.random(table.shape) < 1 / 12
table = table.mask(empty)
print(table.iloc[:5, :6])

# %%
# No settings are needed. The number of components is found.

model = lrpca.RobustPCA().fit(table)
print(f"{model.n_components_} components explain {model.explained_variance_ratio_.sum():.1%} of the variance")
print(f"noise: {model.noise_variance_**0.5:.2f} degrees (true: 0.30, plus rounding to one digit)")

# %%
# The wrong cells, with estimates of the correct values. ``low_rank_`` is the table without errors, noise and empty
# cells.

clean = pd.DataFrame(model.low_rank_, days, stations)
found = pd.DataFrame(model.outliers_, days, stations)
cells = pd.DataFrame({"typed": table.stack(), "corrected": clean.stack().round(1), "correct": correct.stack()})
named = cells[found.stack()]
print(f"{len(named)} cells, for instance")
print(named.sample(8, random_state=0).sort_index().to_string())

# %%
# Some errors cannot be detected: near zero, a wrong sign or decimal point changes the cell by little more than the
# noise. The missed errors are of that kind.

changed = (table != correct) & ~empty
size = (table - correct).abs()
for kind in kinds:
    here = changed & (error == kind)
    missed = f"missed ones are off by up to {size[here & ~found].max().max():.1f} degrees"
    print(f"{kind:15s} {int((found & here).sum().sum()):3d} of {int(here.sum().sum()):3d} found", end=", ")
    print(missed if (here & ~found).any(axis=None) else "none missed")
print(f"correct cells marked as wrong: {int((found & ~changed).sum().sum())} of {int((~changed & ~empty).sum().sum())}")

# %%
# The empty cells: robust PCA imputes them to about the noise level. The median of a station ignores the day.

gap = np.abs(clean - correct).to_numpy()[empty]
median = np.abs(table.median() - correct).to_numpy()[empty]
print(f"mean error of the imputed cells: {gap.mean():.2f} degrees; medians of the stations: {median.mean():.2f}")

# %%
# Ordinary PCA needs the empty cells filled first. The errors then dominate its components.

plain = make_pipeline(SimpleImputer(), PCA(3)).fit(table)[-1]
ideal = PCA(3).fit(correct)
for name, components in (("RobustPCA", model.components_[:3]), ("PCA", plain.components_)):
    angle = np.degrees(subspace_angles(components.T, ideal.components_.T).max())
    print(f"{name:9s}: {angle:5.1f} degrees from the components of the correct table")

figure, axes = plt.subplots(1, 3, figsize=(10, 4.6), sharey=True, layout="constrained")
place = np.arange(len(stations))
for k, ax in enumerate(axes):
    for components, marker, color, label in (
        (plain.components_, "x", "#D55E00", "PCA"),
        (model.components_, "o", "#0072B2", "RobustPCA"),
    ):
        sign = np.sign(components[k] @ ideal.components_[k])
        ax.plot(sign * components[k], place, marker, color=color, markersize=6, label=label)
    ax.plot(ideal.components_[k], place, "|", color="black", markersize=12, label="correct table")
    ax.axvline(0, color="0.8", linewidth=0.8, zorder=0)
    for edge in (7.5, 15.5):
        ax.axhline(edge, color="0.8", linewidth=0.8, zorder=0)
    ax.set(title=f"component {k + 1}", xlabel="loading")
axes[0].set_yticks(place, stations)
axes[0].invert_yaxis()
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)

# %%
# The year at one station, typed and corrected. Beyond 30 degrees the scale is logarithmic.

station = str(found.sum().idxmax())
column, marked = table[station], found[station]
figure, ax = plt.subplots(figsize=(10, 3.4), layout="constrained")
ax.plot(clean.index, clean[station], color="#0072B2", linewidth=1.2, label="corrected")
ax.plot(column.index[~marked], column[~marked], ".", color="0.55", markersize=4, label="typed")
ax.plot(column.index[marked], column[marked], "x", color="#D55E00", label="marked as wrong")
ax.set(title=station, ylabel="temperature (°C)")
ax.set_yscale("symlog", linthresh=30)
ticks = [-30, -15, 0, 15, 30, 100, 300]
ax.set_yticks(ticks, [f"{tick}".replace("-", "−") for tick in ticks])
ax.minorticks_off()
ax.set(ylim=(-40, 400))
figure.legend(loc="outside lower center", ncols=3, frameon=False)
plt.show()
