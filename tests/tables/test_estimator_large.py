"""`RobustPCA` on tables that are not in memory: read in blocks; what is made of dask arrays is lazy."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="needs the extra sklearn")
import lrpca.matrices.chunked.matrix
import lrpca.tables.bands
import lrpca.tables.centre
from lrpca import RobustPCA
from lrpca.matrices.chunked.large import accept_large
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.tables.input import validated

da = pytest.importorskip("dask.array")
zarr = pytest.importorskip("zarr")
h5py = pytest.importorskip("h5py")

CONTAINERS = ("dask by rows", "dask by columns", "dask by both", "zarr", "zarr path", "dataset", "list of files")


def table(rows: int = 300, features: int = 60, *, gaps: float = 0.0, seed: int = 0) -> Any:
    """Return rows of 3 components about a centre, 5% noise, 5% outliers."""
    rng = np.random.default_rng(seed)
    Y = 3 * rng.standard_normal(features) + rng.standard_normal((rows, 3)) @ rng.standard_normal((3, features))
    Y += 0.05 * rng.standard_normal(Y.shape)
    hit = rng.random(Y.shape) < 0.05
    Y[hit] += 20 * rng.choice([-1.0, 1.0], hit.sum())
    Y[rng.random(Y.shape) < gaps] = np.nan
    return Y


def stored(Y: Any, kind: str, folder: Path) -> Any:
    """Return Y in one of the containers."""
    n1, n2 = Y.shape
    high, wide = n1 // 3, n2 // 2
    chunks = {"dask by rows": (high, -1), "dask by columns": (-1, wide), "dask by both": (high, wide)}
    if kind in chunks:
        return da.from_array(Y, chunks=chunks[kind])
    if kind.startswith("zarr"):
        array = zarr.open(str(folder / "table.zarr"), mode="w", shape=Y.shape, dtype=Y.dtype, chunks=(high, wide))
        array[:] = Y
        return folder / "table.zarr" if kind == "zarr path" else array
    if kind == "dataset":
        with h5py.File(folder / "table.h5", "w") as file:
            file.create_dataset("Y", data=Y, chunks=(high, n2))
        return h5py.File(folder / "table.h5", "r")["Y"]
    paths = [folder / f"part{k}.npy" for k in range(3)]
    for path, part in zip(paths, np.split(Y, [high, 2 * high]), strict=True):
        np.save(path, part)
    return paths


@pytest.fixture
def never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read tables of any size in blocks, and fail where one is read whole."""

    def refuse(self: Any) -> Any:
        raise AssertionError("the table was read into memory")

    monkeypatch.setattr(lrpca.tables.bands, "LOADED_BELOW", 0)
    monkeypatch.setattr(ChunkedMatrix, "loaded", refuse)


def assert_same(model: Any, expected: Any, tolerance: float = 1e-9) -> None:
    """Check the numbers of two fits."""
    assert model.n_components_ == expected.n_components_
    assert model.n_features_in_ == expected.n_features_in_ and model.n_samples_ == expected.n_samples_
    assert model.components_.dtype == expected.components_.dtype
    for name in ("components_", "mean_", "explained_variance_ratio_"):
        assert np.abs(getattr(model, name) - getattr(expected, name)).max() < tolerance, name
    for name in ("noise_variance_", "outlier_threshold_"):
        assert getattr(model, name) == pytest.approx(getattr(expected, name), rel=100 * tolerance), name


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("shape", ((300, 60), (1500, 12)), ids=("wide", "narrow"))
def test_fit_is_that_of_the_table_in_memory(kind: str, shape: tuple[int, int], tmp_path: Path) -> None:
    Y = table(*shape)
    X = stored(Y, kind, tmp_path)
    expected, model = RobustPCA(3).fit(Y), RobustPCA(3).fit(X)
    assert_same(model, expected)
    for name in ("low_rank_", "sparse_", "outliers_"):
        lazy = getattr(model, name)
        assert isinstance(lazy, da.Array), name
    assert np.abs(model.low_rank_.compute() - expected.low_rank_).max() < 1e-6
    assert (model.outliers_.compute() == expected.outliers_).all()
    assert np.abs(model.sparse_.compute() - expected.sparse_).max() < 1e-6


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.parametrize(
    "parameters",
    (
        {"n_components": "auto"},
        {"n_components": 0.9},
        {"n_components": 5},
        {"n_components": 4, "center": False},
        {"n_components": 3, "center": "median"},
        {"n_components": 3, "method": "ircur"},
    ),
    ids=str,
)
@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning", "ignore::lrpca.ConvergenceWarning")
def test_parameters_mean_the_same(parameters: dict[str, Any]) -> None:
    Y = table()
    model = RobustPCA(**parameters).fit(da.from_array(Y, chunks=(200, 50)))
    assert_same(model, RobustPCA(**parameters).fit(Y), tolerance=1e-7)


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.parametrize("shape", ((300, 60), (1500, 12)), ids=("wide", "narrow"))
def test_gaps_and_single_precision(shape: tuple[int, int]) -> None:
    Y = table(*shape, gaps=0.2).astype(np.float32)
    model = RobustPCA(3).fit(da.from_array(Y, chunks=(shape[0] // 4, -1)))
    assert_same(model, RobustPCA(3).fit(Y), tolerance=1e-4)
    filled = model.low_rank_.compute()
    assert filled.dtype == np.float32 and np.isfinite(filled).all()


@pytest.mark.usefixtures("never_loaded")
def test_fit_transform_is_lazy_where_the_table_is(tmp_path: Path) -> None:
    Y = table()
    expected = RobustPCA(3).fit_transform(Y)
    for kind, container in (("dask by both", da.Array), ("zarr path", np.ndarray)):
        found = RobustPCA(3).fit_transform(stored(Y, kind, tmp_path))
        assert isinstance(found, container)
        assert np.abs(np.asarray(found) - expected).max() < 1e-9


def test_small_tables_are_read_at_once_and_nothing_differs(tmp_path: Path) -> None:
    Y = table(gaps=0.1)
    expected = RobustPCA(3).fit(Y)
    for kind in ("dask by both", "zarr"):
        model = RobustPCA(3).fit(stored(Y, kind, tmp_path))
        np.testing.assert_array_equal(model.components_, expected.components_)
        np.testing.assert_array_equal(model.mean_, expected.mean_)
        # The posterior mean of the gaps is there, too.
        np.testing.assert_allclose(model.low_rank_.compute(), expected.low_rank_, atol=1e-12)


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.parametrize("kind", CONTAINERS)
def test_new_rows(kind: str, tmp_path: Path) -> None:
    model = RobustPCA(3).fit(table())
    Y = table(seed=1, gaps=0.05)
    X = stored(Y, kind, tmp_path)
    for name in ("transform", "score_samples", "outlier_mask"):
        found = getattr(model, name)(X)
        lazy = kind.startswith("dask") or name == "outlier_mask"
        assert isinstance(found, da.Array if lazy else np.ndarray), name
        np.testing.assert_allclose(np.asarray(found), getattr(model, name)(Y), rtol=1e-10, atol=1e-10)
    split = model.decompose(X)
    assert np.abs(split.low_rank.compute() - model.decompose(Y).low_rank).max() < 1e-10
    assert model.score(X) == pytest.approx(model.score(Y))


def test_what_is_made_of_dask_arrays_is_lazy() -> None:
    model = RobustPCA(3).fit(table())
    seen: list[Any] = []

    def note(block: Any) -> Any:
        seen.append(block.shape)
        return block

    Y = table(seed=1)
    X = da.from_array(Y, chunks=(200, 30)).map_blocks(note, meta=np.zeros((0, 0)))
    scores = model.transform(X)
    clean, rated, flagged = model.inverse_transform(scores), model.score_samples(X), model.outlier_mask(X)
    assert not seen
    assert scores.chunks == ((200, 100), (3,)) and scores.dtype == np.float64
    assert rated.chunks == ((200, 100),)
    assert flagged.chunks == X.chunks and flagged.dtype == bool
    assert clean.shape == X.shape
    np.testing.assert_array_equal(scores[:200].compute(), model.transform(Y[:200]))
    assert len(seen) == 2  # the chunks of those rows, and no others
    np.testing.assert_allclose(clean.compute(), model.inverse_transform(model.transform(Y)))
    assert model.transform(X.astype(np.float32)).dtype == np.float32


def test_rows_of_unknown_number_and_empty_chunks() -> None:
    model = RobustPCA(3).fit(table())
    Y = table(seed=1)
    keep = np.zeros(len(Y), bool)
    keep[:120] = True
    X = da.from_array(Y, chunks=(100, -1))[da.from_array(keep, chunks=100)]
    np.testing.assert_array_equal(model.transform(X).compute(), model.transform(Y[:120]))
    assert model.score_samples(X).compute().shape == (120,)
    assert model.outlier_mask(X).compute().shape == (120, 60)
    with pytest.raises(ValueError, match=r"X.chunks=.*unknown sizes.*compute_chunk_sizes"):
        RobustPCA(3).fit(X)


def test_inverse_transform_of_scores_on_disk(tmp_path: Path) -> None:
    model = RobustPCA(3).fit(table())
    scores = model.transform(table(seed=1))
    expected = model.inverse_transform(scores)
    for kind in ("zarr", "dataset", "list of files", "dask by both"):
        np.testing.assert_allclose(np.asarray(model.inverse_transform(stored(scores, kind, tmp_path))), expected)
    with pytest.raises(ValueError, match=r"X.shape=\(300, 2\) does not have 3 columns"):
        model.inverse_transform(da.from_array(scores[:, :2]))


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.parametrize("kind", ("dask by both", "zarr", "list of files", "mapped"))
@pytest.mark.parametrize("shape", ((300, 60), (1500, 12)), ids=("wide", "narrow"))
def test_rows_without_weight(kind: str, shape: tuple[int, int], tmp_path: Path) -> None:
    Y = table(*shape)
    rng = np.random.default_rng(0)
    weight, idle = rng.uniform(0.2, 2.0, len(Y)), rng.random(len(Y)) < 0.4
    # Garbage, which moves nothing and is nothing to warn of.
    Y[idle] = 1e3 * rng.standard_normal(Y[idle].shape)
    weight[idle] = 0
    np.save(tmp_path / "table.npy", Y)
    X = np.load(tmp_path / "table.npy", mmap_mode="r") if kind == "mapped" else stored(Y, kind, tmp_path)
    expected = RobustPCA(3).fit(Y[~idle], sample_weight=weight[~idle])
    model = RobustPCA(3).fit(X, sample_weight=weight)
    assert np.abs(model.components_ - expected.components_).max() < 1e-7
    assert np.abs(model.mean_ - expected.mean_).max() < 1e-7
    # They are decomposed with the others.
    assert model.low_rank_.shape == Y.shape and np.abs(np.asarray(model.low_rank_)[idle]).max() > 1
    assert np.abs(np.asarray(model.low_rank_)[~idle] - expected.low_rank_).max() < 1e-6


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning", "ignore::lrpca.ConvergenceWarning")
def test_medians_of_some_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Y = table(4000, 50)
    in_memory, exact = RobustPCA(3, center="median").fit(Y), np.median(Y, axis=0)
    for kind in ("zarr", "dask by both"):
        X = stored(Y, kind, tmp_path)
        monkeypatch.setattr(lrpca.tables.centre, "_SAMPLE", 1 << 24)
        assert_same(RobustPCA(3, center="median").fit(X), in_memory, 1e-7)
        monkeypatch.setattr(lrpca.tables.centre, "_SAMPLE", 1000 * 50)
        off = np.abs(RobustPCA(3, center="median").fit(X).mean_ - exact) / Y.std(axis=0)
        assert 0 < off.max() < 4 * 1.25 / np.sqrt(1000)
        monkeypatch.setattr(lrpca.tables.centre, "_SAMPLE", 900 * 50)
        with pytest.raises(ValueError, match=r"center='median' needs 1000 rows in memory.*use center=True"):
            RobustPCA(3, center="median").fit(X)


def test_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lrpca.matrices.chunked.matrix, "_BAND", 1 << 15)
    Y = table(400)
    expected = RobustPCA(3).partial_fit(Y)
    for kind in ("zarr", "dask by both", "list of files"):
        model = RobustPCA(3).partial_fit(stored(Y, kind, tmp_path))
        np.testing.assert_allclose(model.components_, expected.components_, atol=1e-12)
        assert model.n_samples_ == 400


def test_pickles_are_small(tmp_path: Path) -> None:
    Y = table()
    model = RobustPCA(3).fit(da.from_array(Y, chunks=(200, 50)))
    content = pickle.dumps(model)
    assert len(content) < Y.nbytes / 4
    restored = pickle.loads(content)
    np.testing.assert_array_equal(restored.transform(Y), model.transform(Y))
    assert isinstance(restored.low_rank_, np.ndarray)
    with pytest.raises(AttributeError, match="needs the training data"):
        restored.sparse_  # noqa: B018


@pytest.mark.parametrize("limit", (0, 1 << 22), ids=("in blocks", "loaded"))
@pytest.mark.parametrize("shape", ((300, 60), (1500, 12)), ids=("wide", "narrow"))
@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning", "ignore::lrpca.ConvergenceWarning")
def test_prepared_matrices_with_masks(
    limit: int, shape: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lrpca.tables.bands, "LOADED_BELOW", limit)
    Y = table(*shape)
    hidden = np.random.default_rng(0).random(Y.shape) < 0.1
    wrong, weight = np.where(hidden, 1e4, Y), np.ones(len(Y))
    weight[::7] = 0.0
    weight[::5] = 1.5
    both = "dask by both"
    for kind, center, weights in ((both, "median", None), (both, True, weight), ("zarr", True, weight)):
        matrix = accept_large(stored(wrong, kind, tmp_path), ~hidden)
        model = RobustPCA(3, center=center).fit(matrix, sample_weight=weights)
        expected = RobustPCA(3, center=center).fit(np.where(hidden, np.nan, Y), sample_weight=weights)
        assert_same(model, expected, 1e-6)


@pytest.mark.parametrize("dtype", (np.uint8, bool, np.float32))
def test_mapped_files_are_not_copied(dtype: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Y = table(3000, 12)
    data = Y > 0 if dtype is bool else (Y * 8 + 128).clip(0, 255).astype(dtype)
    np.save(tmp_path / "table.npy", data)
    mapped = np.load(tmp_path / "table.npy", mmap_mode="r")
    assert np.shares_memory(validated(RobustPCA(), mapped, reset=True), mapped)
    expected = RobustPCA(2).fit(data)
    monkeypatch.setattr(lrpca.tables.bands, "LOADED_BELOW", 1 << 10)
    assert_same(RobustPCA(2).fit(mapped), expected, 1e-6)


def test_refusals(tmp_path: Path) -> None:
    Y = table()
    for count, X, message in (
        (3, da.from_array(Y.astype(complex)), "X.dtype=complex128 is not a real number type; convert"),
        (3, da.zeros((3, 4, 5)), r"X.ndim=3 .*is not 2"),
        (3, da.from_array(Y[:1]), r"X.shape=\(1, 60\) has 1 row\(s\); pass at least 2"),
        (3, tmp_path / "nowhere.zarr", "does not exist"),
        (61, da.from_array(Y), r"n_components=61 is not between 1 and min\(X.shape\)=60"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            RobustPCA(count).fit(X)
    model = RobustPCA(3).fit(Y)
    for method in (model.transform, model.score_samples, model.decompose, model.outlier_mask):
        with pytest.raises(ValueError, match="X has 40 features, but RobustPCA is expecting 60 features"):
            method(da.from_array(Y[:, :40], chunks=(200, -1)))
    with pytest.raises(ValueError, match="X has 40 features"):
        model.partial_fit(da.from_array(Y[:, :40], chunks=(200, -1)))


@pytest.mark.usefixtures("never_loaded")
@pytest.mark.parametrize("shape", ((300, 60), (1500, 12)), ids=("wide", "narrow"))
def test_infinite_and_absent_entries(shape: tuple[int, int]) -> None:
    Y = table(*shape)
    Y[77, 5] = np.inf
    with pytest.raises(ValueError, match=r"X.*(inf|not finite).*NaN"):
        RobustPCA(3).fit(da.from_array(Y, chunks=(100, -1)))
    Y[:, 5] = np.nan
    with pytest.raises(ValueError, match=r"X\[:, 5\] has no observed entry"):
        RobustPCA(3).fit(da.from_array(Y, chunks=(100, -1)))
