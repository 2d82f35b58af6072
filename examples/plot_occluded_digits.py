"""
What is behind the glare?
=========================

Each picture of a digit has a bright reflection. `RobustPCA` is trained on such pictures only, and
``inverse_transform(transform(X))`` reconstructs the hidden pixels of new pictures. The result depends on the brightness
and the size of the reflection, so the example measures that too.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lrpca

# %%
# The digits of scikit-learn have 8 x 8 pixels from 0 to 16. Every training and test picture gets a bright spot of 2 x 2
# pixels.

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0, stratify=y)


def spots(count: int, height: int, width: int, seed: int) -> np.ndarray:
    """Return where the spots are, (count, 64)."""
    rng = np.random.default_rng(seed)
    hidden = np.zeros((count, 8, 8), bool)
    for picture in hidden:
        top, left = rng.integers(9 - height), rng.integers(9 - width)
        picture[top : top + height, left : left + width] = True
    return hidden.reshape(count, 64)


# %%
# Both models get ten components and the pictures with spots of brightness 64, four times the brightest pixel. PCA of
# the clean pictures is the best result that one can expect. Pictures of digits are not exactly of low rank, so the fit
# warns that it did not converge. The errors show how good it is.

hidden_train, hidden_test = spots(len(X_train), 2, 2, seed=0), spots(len(X_test), 2, 2, seed=1)
spoiled_train, spoiled_test = np.where(hidden_train, 64.0, X_train), np.where(hidden_test, 64.0, X_test)
robust = lrpca.RobustPCA(10).fit(spoiled_train)
plain = PCA(10).fit(spoiled_train)
ideal = PCA(10).fit(X_train)
pictures = {
    "RobustPCA": robust.inverse_transform(robust.transform(spoiled_test)),
    "PCA": plain.inverse_transform(plain.transform(spoiled_test)),
    "PCA, clean pictures": ideal.inverse_transform(ideal.transform(X_test)),
}
for name, picture in pictures.items():
    squares = (picture - X_test) ** 2
    print(f"{name:20s} error behind the spot {squares[hidden_test].mean() ** 0.5:5.2f}, ", end="")
    print(f"elsewhere {squares[~hidden_test].mean() ** 0.5:5.2f}")
flagged = robust.outlier_mask(spoiled_test)
print(f"pixels marked as outliers: {flagged[hidden_test].mean():.1%} of the spots, ", end="")
print(f"{flagged[~hidden_test].mean():.1%} of the others")

# %%
# One test picture of each digit. PCA reproduces the spot, blurred. Robust PCA reconstructs the hidden pixels.

shown = [int(np.flatnonzero(y_test == digit)[1]) for digit in range(10)]
rows = {"true": X_test, "with glare": spoiled_test, "RobustPCA": pictures["RobustPCA"], "PCA": pictures["PCA"]}
figure, axes = plt.subplots(4, 10, figsize=(10, 4.3), layout="constrained")
for line, (title, values) in zip(axes, rows.items(), strict=True):
    for ax, i in zip(line, shown, strict=True):
        ax.imshow(values[i].reshape(8, 8), cmap="gray", vmin=0, vmax=20, interpolation="nearest")
        ax.set(xticks=[], yticks=[])
        top, left = divmod(int(hidden_test[i].argmax()), 8)
        if title != "true":
            ax.add_patch(Rectangle((left - 0.5, top - 0.5), 2, 2, fill=False, edgecolor="#E69F00", linewidth=1.8))
    line[0].set_ylabel(title)

# %%
# Scores are features. A classifier of the ten scores is trained and tested on pictures with spots:

for name, model in (("RobustPCA", robust), ("PCA", plain)):
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    classifier.fit(model.transform(spoiled_train), y_train)
    print(f"{name:9s}: {classifier.score(model.transform(spoiled_test), y_test):.1%} classified correctly")

# %%
# How bright and how large may a spot be? A spot as bright as the digits is hard to detect: robust PCA gains little
# there, or is worse than PCA. Large spots on every training picture have patterns of their own, so their errors are
# larger. Most of these fits warn, like the one above; these warnings are not shown.


def errors(brightness: float, height: int, width: int) -> tuple[float, float]:
    """Return the error behind the spot, of robust and of ordinary PCA."""
    train, test = spots(len(X_train), height, width, seed=0), spots(len(X_test), height, width, seed=1)
    found = []
    for model in (lrpca.RobustPCA(10), PCA(10)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(np.where(train, brightness, X_train))
        back = model.inverse_transform(model.transform(np.where(test, brightness, X_test)))
        found.append(float(np.sqrt(np.mean((back - X_test)[test] ** 2))))
    return found[0], found[1]


levels = [16, 24, 32, 48, 64]
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharex=True, sharey=True, layout="constrained")
for ax, (height, width) in zip(axes, [(2, 2), (2, 3), (3, 3)], strict=True):
    curve = np.array([errors(level, height, width) for level in levels])
    print(f"{height} x {width}:", ", ".join(f"{at} {a:.1f}/{b:.1f}" for at, (a, b) in zip(levels, curve, strict=True)))
    ax.plot(levels, curve[:, 1], "s-", color="#D55E00", label="PCA")
    ax.plot(levels, curve[:, 0], "o-", color="#0072B2", label="RobustPCA")
    ax.axvspan(0, 16, color="0.93", zorder=0)
    ax.set(title=f"spot of {height} x {width} pixels", xlabel="brightness of the spot", xlim=(8, 68), ylim=(0, 55))
axes[0].set(ylabel="error behind the spot")
axes[0].text(12, 27, "digits", ha="center", va="center", rotation=90, color="0.4")
axes[0].legend(frameon=False, loc="upper center")
plt.show()
