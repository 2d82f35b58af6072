"""The result: normal form, lazy parts, files."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lrpca
from lrpca import Decomposition
from lrpca.decomposition.result import REASONS
from lrpca.testing import Problem, planted

SHAPE, RANK = (90, 70), 3


@pytest.fixture(scope="module")
def problem() -> Problem:
    return planted(SHAPE, rank=RANK, outlier_fraction=0.1, outlier_size=5, missing=0.1, random_state=1)


@pytest.fixture(scope="module")
def result(problem: Problem) -> Decomposition:
    return lrpca.decompose(problem.Y, RANK)


@pytest.mark.parametrize("dtype", (np.float64, np.float32, np.complex128))
def test_factors_are_in_normal_form(dtype: Any) -> None:
    case = planted(SHAPE, rank=RANK, outlier_fraction=0.1, outlier_size=5, condition=4, dtype=dtype)
    d = lrpca.decompose(case.Y, RANK)
    tolerance = 50 * np.finfo(dtype).eps
    values = np.linalg.svd(d.low_rank, compute_uv=False)[:RANK]
    for factor, rows in ((d.L, SHAPE[0]), (d.R, SHAPE[1])):
        assert factor.shape == (rows, RANK)
        assert factor.dtype == dtype
        np.testing.assert_allclose(factor.conj().T @ factor, np.diag(values), atol=tolerance * values[0])
    assert np.all(np.diff(values) < 0)
    peaks = d.R[np.abs(d.R).argmax(axis=0), np.arange(RANK)]
    assert np.all(peaks.real > 0)
    np.testing.assert_allclose(peaks.imag, 0, atol=tolerance * np.abs(peaks).max())


def test_facts(result: Decomposition) -> None:
    assert result.rank == RANK and result.method == "lrpca"
    assert result.n_reads > result.n_iter == len(result.history) > 0
    assert result.converged and result.reason == "tol"
    assert result.outlier_fraction == pytest.approx(0.1, abs=0.02)
    assert f"{SHAPE[0]} x {SHAPE[1]}, rank {RANK}, converged (tol)" in repr(result)


@pytest.mark.parametrize("reason", REASONS)
def test_converged_means_tolerance_or_noise_floor(result: Decomposition, reason: str) -> None:
    assert replace(result, reason=reason).converged is (reason in ("tol", "noise_floor"))


def test_lazy_parts_are_made_once_and_only_when_asked(problem: Problem) -> None:
    d = lrpca.decompose(problem.Y, RANK)
    big = ("low_rank", "sparse", "outliers")
    assert not [name for name in big if name in vars(d)]
    for name in big:
        assert getattr(d, name) is getattr(d, name)
        assert getattr(d, name).shape == SHAPE


def test_parts_add_up(problem: Problem, result: Decomposition) -> None:
    np.testing.assert_array_equal(result.low_rank, result.L @ result.R.T)
    seen = problem.observed
    residual = np.abs(problem.Y - result.low_rank - result.sparse)
    assert residual[seen].max() <= result.outlier_threshold
    on = result.outliers
    np.testing.assert_allclose(result.sparse[on], (problem.Y - result.low_rank)[on], rtol=0, atol=1e-15)
    assert np.abs(result.sparse[on]).min() > result.outlier_threshold
    assert not result.sparse[~on].any()
    assert np.isfinite(result.sparse).all()


def test_missing_entries_are_never_outliers(problem: Problem, result: Decomposition) -> None:
    assert not result.outliers[~problem.observed].any()
    mask = np.random.default_rng(0).random(SHAPE) < 0.8
    d = lrpca.decompose(np.nan_to_num(problem.Y), RANK, mask=mask & problem.observed)
    assert not d.outliers[~mask].any()
    assert d.outliers.any()


def test_outliers_are_the_planted_ones(problem: Problem, result: Decomposition) -> None:
    gross = np.abs(problem.S) > result.outlier_threshold * 2
    assert np.mean(result.outliers & ~problem.outliers) < 1e-3
    assert np.all(result.outliers[gross & problem.observed])


def test_threshold_is_the_line_between_noise_and_outliers() -> None:
    """With noise and small outliers there are residuals just above and just below it."""
    case = planted((200, 150), rank=RANK, outlier_fraction=0.3, noise=0.1, random_state=2)
    d = lrpca.decompose(case.Y, RANK)
    sizes = np.abs(case.Y - d.low_rank)
    assert np.any((sizes > 0.95 * d.outlier_threshold) & (sizes < d.outlier_threshold))
    np.testing.assert_array_equal(d.outliers, sizes > d.outlier_threshold)


@pytest.mark.filterwarnings("ignore::lrpca.DiagnosisWarning")
@pytest.mark.parametrize(("dtype", "expected"), [(np.uint8, np.float32), (np.int64, np.float64), ("c8", np.complex64)])
def test_dtypes_of_the_parts(dtype: Any, expected: Any) -> None:
    rng = np.random.default_rng(0)
    Y = (60 + 100 * np.outer(rng.random(60), rng.random(50))).astype(dtype)
    Y[rng.random(Y.shape) < 0.1] = 255
    d = lrpca.decompose(Y, 2)
    assert d.L.dtype == d.R.dtype == d.low_rank.dtype == d.sparse.dtype == expected
    assert d.outliers.dtype == bool
    assert np.all(np.abs(Y - d.low_rank - d.sparse) <= d.outlier_threshold * (1 + 1e-5))


def test_thresholds_of_their_own_for_rows_or_columns(problem: Problem, result: Decomposition) -> None:
    """The threshold may be anything that broadcasts to Y."""
    level = np.full((1, SHAPE[1]), result.outlier_threshold)
    level[0, 5] = np.inf
    d = replace(result, outlier_threshold=level)
    expected = result.outliers.copy()
    expected[:, 5] = False
    np.testing.assert_array_equal(d.outliers, expected)


def test_diagnosis_counts_kept_entries(problem: Problem, result: Decomposition) -> None:
    share = result.diagnosis.kept_by_row
    assert share.shape == (SHAPE[0],) and result.diagnosis.kept_by_column.shape == (SHAPE[1],)
    assert np.all((share > 0.5) & (share <= 1))
    assert np.mean(share) == pytest.approx(0.9, abs=0.03)
    assert len(result.diagnosis.rows_without_influence) == len(result.diagnosis.columns_without_influence) == 0
    assert result.diagnosis.messages == []


def assert_equal(a: Decomposition, b: Decomposition) -> None:
    for name in ("L", "R"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert getattr(a, name).dtype == getattr(b, name).dtype
    for name in ("reason", "converged", "noise_level", "outlier_fraction", "n_reads", "n_iter", "method", "history"):
        assert getattr(a, name) == getattr(b, name), name
    np.testing.assert_array_equal(a.outlier_threshold, b.outlier_threshold)
    assert a.diagnosis.messages == b.diagnosis.messages
    for name in ("kept_by_row", "kept_by_column", "rows_without_influence", "columns_without_influence"):
        np.testing.assert_array_equal(getattr(a.diagnosis, name), getattr(b.diagnosis, name))


@pytest.mark.parametrize("name", ("result.npz", "no-ending", "ünïcode name.npz"))
def test_save_and_load(tmp_path: Path, problem: Problem, result: Decomposition, name: str) -> None:
    path = tmp_path / name
    result.save(path)
    assert [file.name for file in tmp_path.iterdir()] == [f"{name.removesuffix('.npz')}.npz"]
    loaded = Decomposition.load(path)
    assert_equal(loaded, result)
    np.testing.assert_array_equal(loaded.low_rank, result.low_rank)
    np.testing.assert_allclose(loaded.transform(problem.Y[:5]), result.transform(problem.Y[:5]))
    assert_equal(Decomposition.load(str(path)), result)


@pytest.fixture
def things(result: Decomposition) -> tuple[Any, ...]:
    """Return what can be saved."""
    separator = lrpca.video.Separator()
    separator.apply(np.zeros((32, 40), np.uint8))
    return result, lrpca.Schedule.load("default"), separator


def test_names_end_as_their_content_says(tmp_path: Path, things: Any) -> None:
    for thing, ending in zip(things, (".npz", ".json", ".npz"), strict=True):
        for foreign in ("a.csv", "a.npy", "a.json" if ending == ".npz" else "a.npz"):
            message = rf"^path='.*{foreign}' does not end in {ending}; name it a{ending}$"
            with pytest.raises(ValueError, match=message):
                thing.save(tmp_path / foreign)
        assert not list(tmp_path.iterdir())
        # What was saved last under a name is loaded by it, whatever else is there.
        (tmp_path / "plain").write_text("mine")
        thing.save(str(tmp_path / "plain"))
        type(thing).load(tmp_path / "plain")
        assert (tmp_path / "plain").read_text() == "mine"
        thing.save(tmp_path / f"A{ending.upper()}")
        assert {file.name for file in tmp_path.iterdir()} == {"plain", f"plain{ending}", f"A{ending.upper()}"}
        for file in tmp_path.iterdir():
            file.unlink()


def test_folders_are_no_files_to_save_to(tmp_path: Path, things: Any) -> None:
    for thing in things:
        with pytest.raises(IsADirectoryError, match=r"^path='.*' is a folder; name a file, e\.g\. one in it$"):
            thing.save(tmp_path)
    assert not list(tmp_path.iterdir()) and not list(tmp_path.parent.glob(f".{tmp_path.name}*"))
    for wrong in (tmp_path, tmp_path / "nowhere.npz"):
        with pytest.raises(FileNotFoundError, match=r"^path='.*' is not a file; pass what Separator\.save wrote$"):
            lrpca.video.Separator.load(wrong)


def test_loaded_with_and_without_data(tmp_path: Path, problem: Problem, result: Decomposition) -> None:
    result.save(tmp_path / "result.npz")
    loaded = Decomposition.load(tmp_path / "result.npz")
    for name in ("sparse", "outliers"):
        with pytest.raises(ValueError, match=r"loaded without its data.*load\(path, Y\)"):
            getattr(loaded, name)
        with_data = Decomposition.load(tmp_path / "result.npz", problem.Y)
        np.testing.assert_array_equal(getattr(with_data, name), getattr(result, name))
    with pytest.raises(ValueError, match=r"Y\.shape=\(70, 90\) is not \(90, 70\)"):
        Decomposition.load(tmp_path / "result.npz", problem.Y.T)


def test_load_with_data_and_mask(tmp_path: Path, problem: Problem) -> None:
    mask = np.random.default_rng(0).random((SHAPE[0], 1)) < 0.8
    with pytest.warns(lrpca.DiagnosisWarning, match="without influence"):
        d = lrpca.decompose(problem.Y, RANK, mask=mask)
    d.save(tmp_path / "result.npz")
    loaded = Decomposition.load(tmp_path / "result.npz", problem.Y, mask=mask)
    np.testing.assert_array_equal(loaded.outliers, d.outliers)
    assert not loaded.outliers[~mask[:, 0]].any()


def test_odd_results_can_be_saved(tmp_path: Path) -> None:
    """Zeros have thresholds and shares of their own; all-missing rows have NaN shares."""
    d = lrpca.decompose(planted((40, 30), rank=2, dtype=complex).Y, 2)
    d.save(tmp_path / "complex.npz")
    assert_equal(Decomposition.load(tmp_path / "complex.npz"), d)
    Y = np.zeros((12, 9))
    Y[3] = np.nan
    with pytest.warns(lrpca.DiagnosisWarning):
        d = lrpca.decompose(Y, 2)
    d.save(tmp_path / "zeros.npz")
    assert_equal(Decomposition.load(tmp_path / "zeros.npz"), d)


def rewrite(path: Path, **changes: Any) -> None:
    with np.load(path) as content:
        arrays = dict(content)
    facts = json.loads(str(arrays.pop("facts")))
    for key, value in changes.items():
        if key in arrays and value is None:
            del arrays[key]
        elif key in arrays:
            arrays[key] = value
        else:
            facts[key] = value
    with open(path, "wb") as file:
        np.savez(file, facts=np.array(json.dumps(facts)), **arrays)


def test_foreign_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "foreign.npz", a=np.ones(3))
    np.save(tmp_path / "array.npy", np.ones(3))
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as archive:
        archive.writestr("facts", "{}")
    for name in ("foreign.npz", "array.npy", "zip.npz"):
        with pytest.raises(ValueError, match=rf"{name}.*not a saved decomposition"):
            Decomposition.load(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.npz"):
        Decomposition.load(tmp_path / "nowhere.npz")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 99},
        {"history": [{"surprise": 1}]},
        {"L": None},
        {"kept_by_row": None},
        {"R": np.ones((SHAPE[1], RANK + 1))},
        {"L": np.ones(SHAPE[0])},
        {"reason": 7},
    ],
    ids=lambda change: "-".join(change),
)
def test_files_whose_content_does_not_fit(tmp_path: Path, result: Decomposition, change: dict[str, Any]) -> None:
    path = tmp_path / "odd.npz"
    result.save(path)
    rewrite(path, **change)
    with pytest.raises(ValueError, match=r"odd\.npz.*version 99.*upgrade" if "version" in change else r"odd\.npz"):
        Decomposition.load(path)
