"""`RobustPCA` as a scikit-learn estimator."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse

sklearn = pytest.importorskip("sklearn", reason="needs the extra sklearn")
from joblib import Parallel, delayed
from scipy.linalg import subspace_angles
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import lrpca
from lrpca import RobustPCA
from lrpca.testing import planted

# Checks fit noise without structure and with rank to spare: what is said of that is tested in its own place.
quiet = pytest.mark.filterwarnings(
    "ignore::lrpca.DiagnosisWarning", "ignore::lrpca.ConvergenceWarning", "ignore::FutureWarning"
)


def table(
    rows: int = 300,
    features: int = 40,
    components: int = 3,
    *,
    noise: float = 0.01,
    outliers: float = 0.0,
    offset: float = 5.0,
    spread: Any = None,
    seed: int = 0,
) -> tuple[Any, Any, Any]:
    """Return (data, clean data, orthonormal components) with a mean, the components of equal strength or `spread`."""
    rng = np.random.default_rng(seed)
    scores = np.linalg.qr(rng.standard_normal((rows, components)))[0]
    V = np.linalg.qr(rng.standard_normal((features, components)))[0]
    centred = (scores - scores.mean(axis=0)) * (1.0 if spread is None else spread) @ V.T
    unit = centred.std()
    clean = centred / unit + offset * rng.standard_normal(features)
    data = clean + noise * rng.standard_normal(clean.shape)
    hit = rng.random(clean.shape) < outliers
    return np.where(hit, data + 20 * rng.standard_normal(clean.shape), data), clean, V


def angle(model: Any, V: Any) -> float:
    return float(subspace_angles(model.components_.T.astype(float), V).max())


@quiet
@parametrize_with_checks([RobustPCA(), RobustPCA(0.9, center=False), RobustPCA(n_components=1, center="median")])
def test_every_check_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("offset", (0.0, 5.0))
@pytest.mark.parametrize("spread", (None, 2.0 ** -np.arange(5)))
@pytest.mark.parametrize("shape", ((500, 200), (200, 30)))
def test_clean_data_give_what_pca_gives(shape: tuple[int, int], spread: Any, offset: float) -> None:
    Y, _, V = table(*shape, 5, offset=offset, spread=spread)
    model, pca = RobustPCA(5).fit(Y), PCA(5).fit(Y)
    assert angle(model, pca.components_.T) < 3e-4
    np.testing.assert_allclose(model.singular_values_, pca.singular_values_, rtol=1e-5)
    np.testing.assert_allclose(model.explained_variance_, pca.explained_variance_, rtol=1e-5)
    np.testing.assert_allclose(model.explained_variance_ratio_, pca.explained_variance_ratio_, rtol=1e-4)
    np.testing.assert_allclose(model.noise_variance_, pca.noise_variance_, rtol=0.1)
    np.testing.assert_allclose(model.mean_, pca.mean_, atol=3e-3)
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(model.score_samples(Y), pca.score_samples(Y), rtol=0.05)


@pytest.mark.parametrize("offset", (0.0, 5.0))
@pytest.mark.parametrize("shape", ((500, 200), (300, 50)))
def test_outliers_that_spoil_pca(shape: tuple[int, int], offset: float) -> None:
    Y, clean, V = table(*shape, 5, offset=offset, outliers=0.05)
    assert angle(PCA(5).fit(Y), V) > 0.5
    model = RobustPCA(5).fit(Y)
    assert model.converged_ and angle(model, V) < 3e-3
    assert np.linalg.norm(model.low_rank_ - clean) < 5e-3 * np.linalg.norm(clean)
    assert np.abs(model.mean_ - clean.mean(axis=0)).max() < 5e-3


def test_new_rows_with_gross_outliers_are_transformed_exactly() -> None:
    Y, _, V = table(1300, 100, 5, noise=0.0)
    new = Y[300:].copy()
    rng = np.random.default_rng(1)
    hit = np.argsort(rng.random(new.shape), axis=1) < 30
    new[hit] += 100 * rng.standard_normal(hit.sum())
    model = RobustPCA(5).fit(Y[:300])
    truth = (Y[300:] - model.mean_) @ model.components_.T
    error = np.abs(model.transform(new) - truth).max() / np.abs(truth).max()
    assert error < 1e-8
    clean_rows = model.inverse_transform(model.transform(new))
    assert np.abs(clean_rows - Y[300:]).max() < 1e-6
    mask = model.outlier_mask(new)
    assert (mask & ~hit).sum() == 0 and (mask & hit).sum() > 0.999 * hit.sum()
    d = model.decompose(new)
    np.testing.assert_allclose(d.low_rank, clean_rows, atol=1e-9)
    np.testing.assert_allclose(np.where(hit, d.low_rank + d.sparse, new), new, atol=1e-6)


@pytest.mark.parametrize("noise", (0.0, 0.01))
def test_a_row_is_transformed_and_rated_by_itself(noise: float) -> None:
    Y, _, _ = table(200, 60, noise=noise, outliers=0.1)
    Y[3, :10] = np.nan
    model = RobustPCA(3).fit(Y)
    together = model.transform(Y)
    np.testing.assert_array_equal(np.vstack([model.transform(row[None]) for row in Y[:20]]), together[:20])
    np.testing.assert_array_equal(RobustPCA(3).fit_transform(Y), together)
    far = np.vstack([Y[:5], 1e3 * Y[5:6]])
    np.testing.assert_allclose(model.score_samples(far)[:5], model.score_samples(Y[:5]), rtol=1e-12)


def test_low_rank_fills_gaps_and_corrects_outliers() -> None:
    Y, clean, _ = table(300, 60, noise=0.0, outliers=0.1)
    rng = np.random.default_rng(2)
    Y[rng.random(Y.shape) < 0.3] = np.nan
    Y[50:120, 7] = np.nan  # a stretch of a column
    model = RobustPCA(3).fit(Y)
    assert np.abs(model.low_rank_ - clean).max() < 1e-5
    assert not model.outliers_[np.isnan(Y)].any() and not model.sparse_[np.isnan(Y)].any()
    observed = ~np.isnan(Y)
    np.testing.assert_allclose((model.low_rank_ + model.sparse_)[observed], Y[observed], atol=1e-5)


@pytest.mark.parametrize(
    ("n_components", "expected"), (("auto", 4), (0.5, 1), (0.6, 2), (0.9, 3), (0.99, 4), (4, 4), (7, 7), (40, 40))
)
def test_how_many_components(n_components: Any, expected: int) -> None:
    Y, _, V = table(400, 40, 4, outliers=0.02, spread=np.array([4.0, 3.0, 2.0, 1.0]))
    model = RobustPCA(n_components).fit(Y)
    assert model.n_components_ == expected == len(model.components_) == model.transform(Y[:3]).shape[1]
    np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(expected), atol=1e-10)
    assert (np.diff(model.singular_values_) <= 0).all()
    if expected >= 4:
        # The strongest components do not depend on how many follow them.
        assert subspace_angles(model.components_[:4].T, V).max() < 5e-3


def test_more_components_than_structure_are_those_of_the_noise() -> None:
    Y, _, _ = table(3000, 40, 2, noise=0.3)
    Y = Y + 0.5 * np.random.default_rng(1).standard_normal((3000, 1)) * (np.arange(40) == 5)
    model, pca = RobustPCA(6).fit(Y), PCA(6).fit(Y)
    # The loudest entries of the loud column pass for outliers.
    np.testing.assert_allclose(model.singular_values_, pca.singular_values_, rtol=0.06)


def test_large_tables_are_random_and_small_ones_are_not() -> None:
    Y, _, V = table(800, 400, 4, outliers=0.1)
    one, other = RobustPCA(4, random_state=0).fit(Y), RobustPCA(4, random_state=1).fit(Y)
    assert angle(one, V) < 3e-3 and angle(one, other.components_.T) < 2e-4
    more = RobustPCA(8).fit(Y)
    assert subspace_angles(more.components_[:4].T, V).max() < 3e-3
    one, other = RobustPCA(4, random_state=0).fit(Y[:200]), RobustPCA(4, random_state=1).fit(Y[:200])
    np.testing.assert_array_equal(one.components_, other.components_)


@quiet
@pytest.mark.parametrize("center", (True, False, "median"))
@pytest.mark.parametrize("n_components", ("auto", 4))
def test_weights_repeat_rows(n_components: Any, center: Any) -> None:
    Y, _, _ = table(80, 30, outliers=0.1)
    weight = np.random.default_rng(0).integers(0, 4, 80)
    order = np.random.default_rng(1).permutation(weight.sum())
    repeated = np.repeat(Y, weight, axis=0)[order]
    by_weight = RobustPCA(n_components, center=center).fit(Y, sample_weight=weight)
    by_rows = RobustPCA(n_components, center=center).fit(repeated)
    for name in ("components_", "mean_", "singular_values_", "explained_variance_", "noise_variance_"):
        np.testing.assert_allclose(getattr(by_weight, name), getattr(by_rows, name), rtol=2e-6, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(by_weight.transform(Y), by_rows.transform(Y), rtol=1e-7, atol=1e-8)
    assert by_weight.low_rank_.shape == Y.shape
    np.testing.assert_allclose(np.repeat(by_weight.low_rank_, weight, axis=0)[order], by_rows.low_rank_, atol=1e-7)


def test_weights_that_are_not_whole_numbers() -> None:
    """The weighted iteration itself, against repeated rows: the two sample other entries."""
    Y, _, _ = table(400, 60, outliers=0.1)
    weight = np.random.default_rng(0).integers(0, 4, 400)
    by_weight = RobustPCA(3).fit(Y, sample_weight=weight + 1e-12)
    by_rows = RobustPCA(3).fit(np.repeat(Y, weight, axis=0))
    # A quarter of the error that the noise leaves.
    assert angle(by_weight, by_rows.components_.T) < 3e-4
    np.testing.assert_allclose(by_weight.singular_values_, by_rows.singular_values_, rtol=1e-4)
    np.testing.assert_allclose(by_weight.mean_, by_rows.mean_, atol=2e-3)


def test_score_samples_tells_odd_rows() -> None:
    Y, _, _ = table(300, 40)
    model = RobustPCA(3).fit(Y)
    one, many, larger = Y[:50].copy(), Y[:50].copy(), Y[:50].copy()
    one[:, 3] += 5
    larger[:, 3] += 50
    many[:, :8] += 5
    normal, with_one, with_larger, with_many = (model.score_samples(rows) for rows in (Y[:50], one, larger, many))
    assert (normal > with_one).all() and (with_one > with_larger).all() and (with_larger > with_many).all()
    far = model.mean_ + 30 * np.sqrt(model.explained_variance_[0]) * model.components_[:1]
    assert model.score_samples(far)[0] < normal.min()
    half = Y[:50].copy()
    half[:, ::2] = np.nan
    assert abs(np.median(model.score_samples(half)) - np.median(normal)) < 0.2 * abs(np.median(normal))
    assert model.score(Y) == pytest.approx(model.score_samples(Y).mean())
    assert np.isfinite(model.score_samples(np.full((1, 40), np.nan))).all()


def test_frames_names_and_outputs() -> None:
    Y, _, _ = table(100, 5, 2)
    names = list("abcde")
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = pd.DataFrame(Y, columns=names)
    model = RobustPCA(2).fit(frame)
    assert list(model.feature_names_in_) == names
    assert list(model.get_feature_names_out()) == ["robustpca0", "robustpca1"]
    assert list(model.set_output(transform="pandas").transform(frame).columns) == ["robustpca0", "robustpca1"]
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame[names[::-1]])
    lines = RobustPCA(2).set_output(transform="polars").fit_transform(pl.DataFrame(Y, schema=names))
    assert isinstance(lines, pl.DataFrame)
    np.testing.assert_allclose(lines.to_numpy(), RobustPCA(2).fit_transform(Y))
    gaps = frame.astype("Float64")
    gaps.iloc[3, 2] = pd.NA
    assert np.isfinite(RobustPCA(2).fit(gaps).low_rank_).all()
    with pytest.raises(ValueError, match="could not convert|Unable to convert|non-numeric|dtype"):
        RobustPCA().fit(pd.DataFrame({"a": ["x", "y", "z"], "b": [1.0, 2.0, 3.0]}))


@quiet
def test_pipelines_grids_clones_and_processes() -> None:
    Y, _, _ = table(120, 20, outliers=0.05)
    y = (np.arange(120) % 2).astype(int)
    pipeline = make_pipeline(StandardScaler(), RobustPCA(3), LogisticRegression())
    assert pipeline.fit(Y, y).predict(Y).shape == (120,)
    grid = GridSearchCV(RobustPCA(), {"n_components": [1, 2, 3]}, n_jobs=2).fit(Y)
    assert grid.best_params_["n_components"] == 3
    copied = clone(RobustPCA(4, center="median", tol=1e-5, forgetting_factor=0.9))
    assert copied.get_params() == RobustPCA(4, center="median", tol=1e-5, forgetting_factor=0.9).get_params()
    fits = Parallel(n_jobs=2)(delayed(RobustPCA(3).fit)(Y) for _ in range(2))
    np.testing.assert_array_equal(fits[0].components_, RobustPCA(3).fit(Y).components_)


def test_metadata_routing_of_weights() -> None:
    Y, _, _ = table(100, 20)
    weight = np.arange(100) % 3
    with sklearn.config_context(enable_metadata_routing=True):
        step = RobustPCA(3).set_fit_request(sample_weight=True)
        routed = make_pipeline(step).fit(Y, sample_weight=weight)
    np.testing.assert_array_equal(routed[0].components_, RobustPCA(3).fit(Y, sample_weight=weight).components_)


def test_pickles_leave_the_data_behind() -> None:
    Y, _, _ = table(500, 80, outliers=0.1)
    model = RobustPCA(3).fit(Y)
    restored = pickle.loads(pickle.dumps(model))
    assert len(pickle.dumps(model)) < 0.2 * Y.nbytes
    np.testing.assert_array_equal(restored.transform(Y), model.transform(Y))
    np.testing.assert_array_equal(restored.low_rank_, model.low_rank_)
    assert model.sparse_.any()
    for other in (restored, copy.deepcopy(model)):
        with pytest.raises(AttributeError, match=r"^sparse_ needs the training data, .*; use decompose\(X\)$"):
            other.sparse_  # noqa: B018


def test_fitting_does_not_copy_the_data(tmp_path: Any) -> None:
    Y = planted((3000, 1000), rank=3, dtype=np.float32, random_state=0).Y
    np.save(tmp_path / "table.npy", Y)
    stored = np.load(tmp_path / "table.npy", mmap_mode="r")
    for data in (Y, np.asfortranarray(Y), stored, (Y / np.abs(Y).mean() * 100).astype(np.int16)):
        RobustPCA(3).fit(data[:200])  # compiles
        tracemalloc.start()
        RobustPCA(3).fit(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 0.8 * data.nbytes


@pytest.mark.parametrize("dtype", (np.float32, np.float16, np.uint8, np.int64, bool))
def test_number_types(dtype: Any) -> None:
    Y, _, V = table(300, 40, 2, offset=0.0)
    data = (Y > 0) if dtype is bool else (Y * 20 + 100).astype(dtype)
    model = RobustPCA(2).fit(data)
    assert model.components_.dtype == (np.float32 if dtype in (np.float32, np.float16, np.uint8, bool) else np.float64)
    assert model.transform(data).dtype == model.components_.dtype
    if dtype is not bool:
        assert angle(model, V) < 2e-2


def test_sparse_matrices() -> None:
    Y, _, _ = table(100, 30)
    Y[np.random.default_rng(0).random(Y.shape) < 0.05] = 0
    dense, sparse = RobustPCA(3).fit(Y), RobustPCA(3).fit(scipy.sparse.csr_array(Y))
    np.testing.assert_allclose(sparse.components_, dense.components_, atol=1e-9)
    np.testing.assert_allclose(sparse.transform(scipy.sparse.csc_array(Y)), dense.transform(Y), atol=1e-9)


def test_warnings_are_those_of_both_libraries() -> None:
    Y, _, _ = table(200, 60, 8, outliers=0.3)
    with pytest.warns(SklearnConvergenceWarning, match="not converged") as caught:
        RobustPCA(8, max_iter=2).fit(Y)
    assert any(issubclass(w.category, lrpca.ConvergenceWarning) for w in caught)
    assert {w.filename for w in caught} == {__file__}


@pytest.mark.parametrize(
    ("parameters", "message"),
    (
        ({"n_components": 0}, "n_components=0 is not between 1"),
        ({"n_components": 41}, "n_components=41 is not between 1 and min.X.shape.=40; choose"),
        ({"n_components": 1.5}, "n_components=1.5 is not between 0 and 1"),
        ({"n_components": "mle"}, "n_components='mle' is unknown; use 'auto'"),
        ({"n_components": None}, "n_components=None is not a number"),
        ({"n_components": True}, "n_components=True is not a number"),
        ({"center": "mean"}, "center='mean' is unknown; use True, False or 'median'"),
        ({"method": "pca"}, "method='pca'"),
        ({"tol": -1.0}, "tol=-1.0"),
        ({"max_iter": 0}, "max_iter=0"),
        ({"schedule": 3}, "schedule=int"),
        ({"random_state": -1}, "random_state=-1"),
    ),
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        RobustPCA(**parameters).fit(table(100, 40)[0])


def test_bad_data() -> None:
    Y, _, _ = table(60, 12)
    model = RobustPCA(2).fit(Y)
    for unfitted in (lambda m: m.transform(Y), lambda m: m.low_rank_, lambda m: m.decompose(Y)):
        with pytest.raises(NotFittedError):
            unfitted(RobustPCA())
    for empty in (Y.copy(), table(100, 60)[0]):
        empty[:, 4] = np.nan
        with pytest.raises(ValueError, match=r"X\[:, 4\] has no observed entry"):
            RobustPCA(3).fit(empty)
    infinite = Y.copy()
    infinite[5, 5] = np.inf
    for bad in (RobustPCA(2).fit, RobustPCA(2).partial_fit, model.transform, model.score_samples):
        with pytest.raises(ValueError, match=r"^X(\[5, 5\]=inf is not finite| contains inf); mark missing entries "):
            bad(infinite)
    for message, call, data in (
        ("11 features", model.transform, Y[:, :11]),
        ("does not have 2 columns", model.inverse_transform, Y),
        (r"^X\.dtype=<U1 is not a real number type; pass what transform", model.inverse_transform, [["a", "b"]]),
        ("1 sample", RobustPCA().fit, Y[:1]),
        ("Complex data not supported", RobustPCA().fit, Y + 1j),
    ):
        with pytest.raises(ValueError, match=message):
            call(data)
    for message, weight in (
        ("sample_weight of shape", np.ones(3)),
        (r"^sample_weight\[2\]=-1\.0 is not .* at least 0; give weights of 0 or more$", 1 - 2 * (np.arange(60) == 2)),
        ("^sample_weight=list has parts of several lengths; pass one array$", [1.0, [2.0]]),
        (r"^sample_weight\[0\]=1e\+308 is beyond what can be summed; divide", np.full(60, 1e308)),
    ):
        with pytest.raises(ValueError, match=message):
            RobustPCA().fit(Y, sample_weight=weight)


def test_what_fails_changes_nothing() -> None:
    Y, _, _ = table(100, 40)
    infinite = np.where(np.eye(100, 30) > 0, np.inf, Y[:, :30])
    model = RobustPCA(3).fit(Y)
    before = model.transform(Y)
    for change, bad in (({}, infinite), ({"n_components": 35}, Y[:, :30])):
        with pytest.raises(ValueError):
            model.set_params(**change).fit(bad)
        assert model.n_features_in_ == 40
        np.testing.assert_array_equal(model.transform(Y), before)
    for fit in ("fit", "partial_fit"):
        new = RobustPCA(3)
        with pytest.raises(ValueError, match=r"X(\[0, 0\]=inf is not finite| contains inf)"):
            getattr(new, fit)(infinite)
        with pytest.raises(NotFittedError):
            new.transform(Y)
        # The next rows may have another number of columns.
        np.testing.assert_array_equal(new.partial_fit(Y).components_, RobustPCA(3).partial_fit(Y).components_)


def test_constant_columns_and_rows_without_entries() -> None:
    Y, clean, V = table(100, 12, 2, noise=0.0)
    Y[:, 3] = 7.0
    Y[8] = np.nan
    model = RobustPCA(2).fit(Y)
    assert np.abs(model.components_[:, 3]).max() < 1e-6 and model.mean_[3] == pytest.approx(7.0)
    assert not model.transform(Y)[8].any()
    constant = RobustPCA(2).fit(np.full((30, 6), 3.0))
    np.testing.assert_allclose(constant.mean_, 3.0)
    np.testing.assert_allclose(constant.low_rank_, 3.0)
    np.testing.assert_allclose(constant.explained_variance_, 0.0, atol=1e-20)


@quiet
@pytest.mark.parametrize("shape", ((2, 1), (2, 5), (50, 1), (50, 2), (50, 3), (3, 50)))
def test_narrow_tables(shape: tuple[int, int]) -> None:
    Y = np.random.default_rng(0).standard_normal(shape) + 3
    for n_components in ("auto", 1):
        model = RobustPCA(n_components).fit(Y)
        assert np.isfinite(model.transform(Y)).all() and model.components_.shape[0] >= 1
        np.testing.assert_allclose(np.linalg.norm(model.components_, axis=1), 1.0)


@pytest.mark.parametrize("k", (10, 30, 60))
def test_many_components_do_not_cost_robustness(k: int) -> None:
    """Half as many components as columns, and more: a row has no majority to spare, but variances to go by."""
    Y, clean, _ = table(300, 60, outliers=0.05)
    model = RobustPCA(k).fit(Y)
    truth = np.abs(Y - clean) > 0.1
    for rows in (model.low_rank_, model.inverse_transform(model.transform(Y))):
        assert np.sqrt(np.mean((rows - clean) ** 2)) < 0.02
    assert (model.outlier_mask(Y) != truth).mean() < 2e-3 and (model.outliers_ != truth).mean() < 2e-3


def test_rows_of_few_entries_stay_in_the_range_of_the_others() -> None:
    Y, _, _ = table(300, 60, 5)
    model = RobustPCA(5).fit(Y)
    few = np.where(np.arange(60) % 20 == 0, Y[:50], np.nan)
    assert np.abs(model.transform(few)).max() < 2 * np.abs(model.transform(Y)).max()
    nothing = model.score_samples(np.full((1, 60), np.nan))[0]
    assert model.score_samples(Y).min() < nothing < model.score_samples(Y).max() + 10


@pytest.mark.parametrize("scale", (1e-4, 1.0, 100.5))
def test_scale_of_weights_is_no_reason_for_more_components(scale: float) -> None:
    Y, _, _ = table(300, 60, 6, noise=0.3)
    model = RobustPCA().fit(Y, sample_weight=np.full(300, scale))
    assert model.n_components_ == 6


@pytest.mark.parametrize("seed", range(3))
def test_component_for_the_centre(seed: int) -> None:
    # It is left out where it would go to outliers of centred data, and kept where it is needed, also without noise.
    Y, _, V = table(200, 200, 10, offset=0.0, outliers=0.05, seed=seed)
    assert angle(RobustPCA(10).fit(Y), V) < 6e-3
    Y, _, V = table(64, 50, 1, noise=0.0, offset=1.0, outliers=0.1, seed=seed)
    model = RobustPCA(1).fit(Y)
    assert model.converged_ and angle(model, V) < 1e-6


def test_masked_arrays_keep_their_mask() -> None:
    Y, _, _ = table(200, 50, outliers=0.1)
    hidden = np.abs(Y) > 15
    masked = np.ma.masked_array(np.where(hidden, 1e3, Y), hidden)
    one, other = (RobustPCA(3).fit(data) for data in (masked, np.where(hidden, np.nan, Y)))
    np.testing.assert_array_equal(one.components_, other.components_)


def test_rows_of_garbage_do_not_move_centre_and_variances() -> None:
    Y, clean, _ = table(300, 60)
    Y[::30] = 50 * np.random.default_rng(0).standard_normal((10, 60))
    model = RobustPCA(3).fit(Y)
    good = np.arange(300) % 30 != 0
    assert np.abs(model.mean_ - clean[good].mean(axis=0)).max() < 0.01
    np.testing.assert_allclose(model.singular_values_, RobustPCA(3).fit(Y[good]).singular_values_, rtol=1e-2)


def test_threads_do_not_lose_warnings() -> None:
    tables = [table(120, 60, outliers=0.05, seed=seed)[0] for seed in range(6)]
    before = warnings.filters[:]
    Parallel(4, backend="threading")(delayed(RobustPCA(3).fit)(Y) for Y in tables)
    assert warnings.filters == before
    with pytest.warns(UserWarning, match="still heard"):
        warnings.warn("still heard", UserWarning, stacklevel=1)


def test_messages_speak_of_the_estimator() -> None:
    noise = np.random.default_rng(0).standard_normal((300, 60))
    with pytest.warns(lrpca.DiagnosisWarning, match="n_components='auto' found no component.*X looks like noise"):
        RobustPCA().fit(noise)


def test_without_scikit_learn_the_message_says_what_to_install() -> None:
    script = "import sys; sys.modules['sklearn'] = None; import lrpca; lrpca.RobustPCA"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "pip install 'lrpca[sklearn]'" in done.stderr


class TestCallbacks:
    """scikit-learn's protocol."""

    class Recorder:
        def __init__(self, stop_after: int | None = None) -> None:
            self.stop_after = stop_after
            self.told: list[str] = []
            self.errors: list[float] = []

        def setup(self, estimator: Any, context: Any) -> None:
            self.told.append("setup")

        def teardown(self, estimator: Any, context: Any) -> None:
            self.told.append("teardown")

        def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
            self.told.append(context.task_name)

        def on_fit_task_end(self, estimator: Any, context: Any, *, X: Any, fitted_estimator: Any) -> bool:
            self.told.append(f"/{context.task_name}")
            if fitted_estimator is not None:
                rows = fitted_estimator.inverse_transform(fitted_estimator.transform(X[:5]))
                self.errors.append(float(np.abs(rows - X[:5]).max()))
            return self.told.count("/iteration") == self.stop_after

    def setup_method(self) -> None:
        pytest.importorskip("sklearn.callback", reason="scikit-learn before 1.9 has no callbacks")

    def test_every_iteration_is_told_and_can_be_the_last(self) -> None:
        Y, _, _ = table(200, 60)
        callback = self.Recorder()
        model = RobustPCA(3).set_callbacks(callback).fit(Y)
        iterations = ["iteration", "/iteration"] * model.n_iter_
        assert callback.told == ["setup", "fit", *iterations, "/fit", "teardown"] and callback.errors[-1] < 0.1
        model = RobustPCA(3).set_callbacks(self.Recorder(stop_after=4)).fit(Y)
        assert model.n_iter_ == 4 and not model.converged_

    def test_progress_bar_in_a_pipeline(self) -> None:
        from sklearn.callback import ProgressBar

        pytest.importorskip("rich")
        Y, _, _ = table(100, 60)
        pipeline = make_pipeline(RobustPCA(3)).set_callbacks(ProgressBar())
        assert pipeline.fit(Y)[0].n_components_ == 3


def follow(model: Any, Y: Any, batch: int = 50) -> Any:
    for start in range(0, len(Y), batch):
        model.partial_fit(Y[start : start + batch])
    return model


class TestPartialFit:
    """Streams: the tracker itself is tested in test_streaming.py."""

    @pytest.mark.parametrize("batch", (7, 100))
    def test_any_batches(self, batch: int) -> None:
        Y, clean, V = table(1000, 40, outliers=0.1)
        model = follow(RobustPCA(3), Y, batch)
        assert model.n_samples_ == 1000 and model.components_.shape == (3, 40)
        assert angle(model, V) < 2 * max(angle(RobustPCA(3).fit(Y), V), 1e-6)
        assert np.abs(model.mean_ - clean.mean(axis=0)).max() < 0.05

    def test_goes_on_from_a_fit(self) -> None:
        Y, _, V = table(1200, 40, outliers=0.1)
        model = RobustPCA(3).fit(Y[:200])
        before = angle(model, V)
        assert angle(follow(model, Y[200:]), V) < 0.7 * before and model.n_samples_ == 1200
        with pytest.raises(AttributeError, match="low_rank_ is of the rows given to fit"):
            model.low_rank_  # noqa: B018

    def test_fit_forgets_the_stream(self) -> None:
        Y, _, _ = table(300, 20)
        model = RobustPCA(3).partial_fit(-5 * Y).fit(Y)
        np.testing.assert_array_equal(model.components_, RobustPCA(3).fit(Y).components_)
        assert model.low_rank_.shape == Y.shape

    def test_few_columns(self) -> None:
        Y, _, V = table(1000, 6, 2, outliers=0.05)
        model = follow(RobustPCA(2), Y)
        assert model.converged_ and angle(model, V) < 5e-3

    def test_a_share_is_of_what_is_shown(self) -> None:
        Y, _, _ = table(400, 60, spread=np.array([3.0, 2.0, 1.0]))
        stream, batch = RobustPCA(0.5).partial_fit(Y), RobustPCA(0.5).fit(Y)
        assert stream.n_components_ == batch.n_components_ == 1
        np.testing.assert_allclose(stream.explained_variance_ratio_, batch.explained_variance_ratio_, rtol=0.02)
        np.testing.assert_allclose(stream.noise_variance_, batch.noise_variance_, rtol=0.1)

    def test_refusals(self) -> None:
        Y, _, _ = table(100, 20)
        for message, model, rows in (
            ("method='altproj' has no streaming form", RobustPCA(3, method="altproj"), Y),
            ("forgetting_factor=1.5", RobustPCA(2, forgetting_factor=1.5), Y),
            ("19 features", RobustPCA(3).partial_fit(Y), Y[:, :19]),
        ):
            with pytest.raises(ValueError, match=message):
                model.partial_fit(rows)
