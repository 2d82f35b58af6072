"""
Does it fit into a scikit-learn pipeline?
=========================================

`RobustPCA` works in a pipeline like any other transformer: after a scaler, before a classifier, with the number of
components chosen by cross-validation. A task with corrupted features shows the benefit; the same task without
corruption shows the cost. At the end, ``partial_fit`` learns from small batches.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.linalg import subspace_angles
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import RobustScaler

import lrpca

# %%
# Sixty sensors measure eight hidden quantities, which determine the class. Some readings are replaced by spikes, in
# training rows and test rows, and one in twenty is missing.

latent, y = make_classification(
    1000, 8, n_informative=8, n_redundant=0, n_clusters_per_class=1, class_sep=0.7, random_state=1
)
rng = np.random.default_rng(0)
mixing = rng.standard_normal((8, 60))
readings = latent @ mixing + 0.5 * rng.standard_normal((1000, 60))
sensors = [f"sensor {i}" for i in range(60)]


def corrupted(share: float) -> pd.DataFrame:
    """Return the readings with spikes and gaps."""
    rng = np.random.default_rng(1)
    spikes = rng.uniform(20, 60, readings.shape) * rng.choice([-1, 1], readings.shape)
    values = np.where(rng.random(readings.shape) < share, spikes, readings)
    return pd.DataFrame(np.where(rng.random(readings.shape) < 0.05, np.nan, values), columns=sensors)


# %%
# `RobustScaler` uses quartiles, which spikes hardly change, and keeps NaN. `RobustPCA` needs no imputer; PCA does.
# Cross-validation chooses the number of components of both. Robust PCA with four components warns that these are too
# few. Cross-validation finds that too, so the warnings are not shown.

choice = [4, 8, 12]
robust = GridSearchCV(
    make_pipeline(RobustScaler(), lrpca.RobustPCA(), LogisticRegression()),
    {"robustpca__n_components": choice},
    cv=3,
)
plain = GridSearchCV(
    make_pipeline(RobustScaler(), SimpleImputer(strategy="median"), PCA(), LogisticRegression()),
    {"pca__n_components": choice},
    cv=3,
)
shares = [0, 0.05, 0.1]
warnings.simplefilter("ignore", lrpca.ConvergenceWarning)
warnings.simplefilter("ignore", lrpca.DiagnosisWarning)
accuracy: dict[str, list[float]] = {"RobustPCA": [], "PCA": []}
for share in shares:
    X_train, X_test, y_train, y_test = train_test_split(corrupted(share), y, test_size=0.5, random_state=0)
    for name, search in (("RobustPCA", robust), ("PCA", plain)):
        search.fit(X_train, y_train)
        accuracy[name].append(search.score(X_test, y_test))
        (components,) = search.best_params_.values()
        print(f"{share:4.0%} spikes, {name:9s}: {accuracy[name][-1]:.1%} correct, {components} components, ", end="")
        print(f"last fit {search.refit_time_:.2f} s")

# %%
# Without spikes, PCA is as good and many times faster. With spikes, it is worse.

figure, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
for name, marker, color in (("RobustPCA", "o", "#0072B2"), ("PCA", "s", "#D55E00")):
    ax.plot(shares, accuracy[name], f"{marker}-", color=color)
    ax.annotate(name, (shares[-1], accuracy[name][-1]), (8, 0), textcoords="offset points", va="center", color=color)
ax.xaxis.set_major_formatter("{x:.0%}")
ax.yaxis.set_major_formatter("{x:.0%}")
ax.set(
    xlabel="readings replaced by spikes", ylabel="test rows classified correctly", xlim=(-0.003, 0.122), xticks=shares
)
ax.axhline(max(np.mean(y), 1 - np.mean(y)), color="0.6", linewidth=1, linestyle="--")
ax.annotate("guessing", (0, max(np.mean(y), 1 - np.mean(y))), (0, 5), textcoords="offset points", color="0.4")

# %%
# ``set_output`` returns data frames with named scores and the index.

scores = make_pipeline(RobustScaler(), lrpca.RobustPCA(8)).set_output(transform="pandas").fit_transform(X_train)
print(scores.iloc[:3, :4].round(2))

# %%
# ``partial_fit`` learns from batches of rows in constant memory, here fifty rows at a time. The batch size makes no
# difference. `IncrementalPCA` is not robust.

rows = corrupted(0.1).to_numpy()
stream, incremental = lrpca.RobustPCA(8), IncrementalPCA(8)
for start in range(0, len(rows), 50):
    stream.partial_fit(rows[start : start + 50])
    incremental.partial_fit(np.nan_to_num(rows[start : start + 50]))  # it takes no NaN
    if (start + 50) % 250 == 0:
        angles = [np.degrees(subspace_angles(model.components_.T, mixing.T).max()) for model in (stream, incremental)]
        print(f"after {start + 50:4d} rows: {angles[0]:4.1f} degrees from the truth, IncrementalPCA {angles[1]:4.1f}")
plt.show()
