"""Bad input: a clear error that names the value and the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lrpca import Schedule, decompose
from lrpca.testing import planted

GOOD = planted((60, 50), rank=2, outlier_fraction=0.1, outlier_size=5, random_state=1)


def spoiled(value: Any, dtype: Any = float) -> Any:
    Y = GOOD.Y.astype(dtype)
    Y[3, 4] = value
    return Y


@pytest.mark.parametrize(
    ("Y", "message"),
    [
        (np.zeros((0, 5)), r"Y\.shape=\(0, 5\).*at least one row"),
        (np.zeros((5, 0)), r"Y\.shape=\(5, 0\).*at least one row and one column"),
        ([], r"Y\.shape=\(0,\) has no entries; pass at least one row"),
        (np.ones(7), r"Y\.ndim=1 is not 2; pass Y\[None\] for one row, or Y\[:, None\] for one column$"),
        ([1.0, 2.0], r"Y\.ndim=1 is not 2; pass numpy\.asarray\(Y\)\[None\] for one row"),
        (np.ones((2, 3, 4)), r"Y\.ndim=3 is not 2; reshape .*, e\.g\. Y\.reshape\(len\(Y\), -1\) for images$"),
        (5.0, r"Y\.ndim=0 is not 2; pass a matrix \(samples, features\)$"),
        (np.ones((3, 3), object), r"Y\.dtype=object is not numeric; convert"),
        (np.full((3, 3), "a"), r"Y\.dtype=<U1 is not numeric; convert"),
        (np.full((3, 3), b"a"), r"Y\.dtype=\|S1 is not numeric; convert"),
        (np.zeros((3, 3), "M8[s]"), r"Y\.dtype=datetime64\[s\] is not numeric; convert"),
        (np.zeros((3, 3), [("a", float)]), r"Y\.dtype=.*is not numeric; convert"),
        ([["a", "b"], ["c", "d"]], r"Y\.dtype=<U1 is not numeric; convert"),
        ([[1.0, 2.0], [3.0]], r"Y=list is not rectangular.*pass a 2-D"),
        (None, r"Y\.dtype=object"),
        ({"a": 1}, r"Y\.dtype=object"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_what_is_no_matrix(Y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decompose(Y, 1)


@pytest.mark.parametrize("dtype", ("float64", "float32", "complex128"))
@pytest.mark.parametrize("value", (np.inf, -np.inf))
def test_infinite_entries_are_located(value: float, dtype: str) -> None:
    with pytest.raises(ValueError, match=r"Y\[3, 4\]=\(?-?inf.*is not finite; mark missing entries with NaN"):
        decompose(spoiled(value, dtype), 2)


def test_infinite_entries_are_located_in_every_layout_and_with_a_start() -> None:
    Y = spoiled(np.inf)
    d = decompose(GOOD.Y, 2)
    schedule = Schedule([0.1, 0.05], [0, 1])
    for bad, keywords in ((np.asfortranarray(Y), {}), (Y, {"start": (d.L, d.R)}), (Y, {"schedule": schedule})):
        with pytest.raises(ValueError, match=r"Y\[3, 4\]=inf"):
            decompose(bad, 2, **keywords)


def test_hidden_infinite_entries_are_allowed() -> None:
    Y = spoiled(np.inf)
    d = decompose(Y, 2, mask=np.isfinite(Y))
    assert GOOD.error(d.low_rank) < 1e-6
    assert np.isfinite(d.sparse).all() and not d.outliers[3, 4]


def test_no_observed_entry() -> None:
    message = r"Y has no observed entry \(all NaN or masked\); pass data"
    for Y in (np.full((6, 5), np.nan), np.full((300, 400), np.nan, np.float32), np.ma.masked_all((6, 5))):
        with pytest.raises(ValueError, match=message):
            decompose(Y, 1)
    with pytest.raises(ValueError, match=message):
        decompose(GOOD.Y, 2, mask=np.zeros((60, 1), bool))


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (0, r"rank=0 is not between 1 and min\(Y\.shape\)=50; choose"),
        (-1, r"rank=-1 is not between 1 and min\(Y\.shape\)=50"),
        (51, r"rank=51 is not between 1 and min\(Y\.shape\)=50"),
        ("five", r"rank='five' is not an integer; give one from 1 to 50"),
        (2.0, r"rank=2\.0 is not an integer"),
        (True, r"rank=True is not an integer"),
        ([2], r"rank=\[2\] is not an integer"),
        (np.nan, r"rank=nan is not an integer"),
    ],
)
def test_rank(rank: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decompose(GOOD.Y, rank)


def test_rank_of_numpy_integers() -> None:
    assert decompose(GOOD.Y, np.int64(2)).rank == 2


def test_frames_with_text() -> None:
    """Text is refused even where it could be parsed: "007" may be a name."""
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = pd.DataFrame(GOOD.Y)
    for bad in (frame.assign(name="x"), frame.assign(when=pd.Timestamp("2026-01-01")), frame.astype(str)):
        with pytest.raises(ValueError, match="not numeric.*drop text columns"):
            decompose(bad, 2)
    with pytest.raises(ValueError, match=r"Y\.ndim=1"):
        decompose(frame[0], 2)
    with pytest.raises(ValueError, match="not numeric"):
        decompose(pl.DataFrame({"a": ["x", "y"], "b": [1, 2]}), 1)


def test_sparse_without_entries_or_with_inf() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ValueError, match=r"Y\.shape=\(0, 5\)"):
        decompose(sparse.csr_array((0, 5)), 1)
    with pytest.raises(ValueError, match=r"Y\[3, 4\]=inf"):
        decompose(sparse.csr_array(spoiled(np.inf)), 2)


BAD_KEYWORDS: list[tuple[dict[str, Any], str]] = [
    ({"method": "magic"}, r"method='magic' is unknown; use one of lrpca"),
    ({"tol": -1}, r"tol=-1 is not a number from 0 to below 1"),
    ({"tol": np.nan}, r"tol=nan"),
    ({"tol": "small"}, r"tol='small'"),
    ({"tol": 1.0}, r"tol=1\.0"),
    ({"tol": True}, r"tol=True"),
    ({"max_iter": 0}, r"max_iter=0 is not a positive integer"),
    ({"max_iter": 1.5}, r"max_iter=1\.5 is not a positive integer"),
    ({"max_iter": "many"}, r"max_iter='many'"),
    ({"random_state": -1}, r"random_state=-1.*e\.g\. 0"),
    ({"random_state": "seed"}, r"random_state='seed'"),
    ({"options": {"gamma": 0.9}}, r"options=\{'gamma'.*power_steps, sample_size"),
    ({"options": {"power_steps": -1}}, r"options\['power_steps'\]=-1"),
    ({"options": {"sample_size": 5}}, r"options\['sample_size'\]=5.*at least 100"),
    ({"options": {"power_steps": "two"}}, r"options\['power_steps'\]='two'"),
    ({"row_weight": np.ones(59)}, r"^row_weight\.shape=\(59,\) is not \(60,\); pass one real number for each row$"),
    ({"row_weight": -np.ones(60)}, r"^row_weight\[0\]=-1\.0 is not .* at least 0; give weights of 0 or more$"),
    ({"row_weight": np.zeros(60)}, r"row_weight=0"),
    ({"row_weight": np.full(60, np.nan)}, r"row_weight.*finite"),
    ({"row_weight": ["a"] * 60}, r"^row_weight\.dtype=<U1 is not a real number type; pass e\.g\. floats$"),
    ({"row_weight": [1.0, [2.0]]}, r"^row_weight=list has parts of several lengths; pass one array$"),
    ({"mask": [[True], [True, False]]}, r"^mask=list has parts of several lengths; pass one array$"),
    ({"mask": np.ones((60, 50))}, r"mask\.dtype=float64 is not bool; pass True where observed"),
    ({"mask": np.ones((50, 60), bool)}, r"mask\.shape=\(50, 60\) does not fit Y\.shape=\(60, 50\); use"),
    ({"mask": np.ones(50, bool)}, r"mask\.shape=\(50,\) does not fit"),
    ({"start": np.ones((60, 2))}, r"start.*pair \(L, R\)"),
    (
        {"start": (np.ones((50, 2)), np.ones((60, 2)))},
        r"^start\.shapes=\(\(50, 2\), \(60, 2\)\) do not fit Y\.shape=\(60, 50\) with rank=2; pass \(60, 2\) and "
        r"\(50, 2\)$",
    ),
    ({"start": (np.full((60, 2), np.nan), np.ones((50, 2)))}, r"start contains NaN"),
    ({"start": (np.zeros((60, 2)), np.ones((50, 2)))}, r"start is all zero.*omit start"),
    ({"start": (np.full((60, 2), 1e200), np.full((50, 2), 1e-200))}, r"^max\|start\[0\]\|=1\.0e\+200 is beyond .*; r"),
    ({"start": (np.ones((60, 2)), np.full((50, 2), 1e-200))}, r"^max\|start\[1\]\|=1\.0e-200 is beyond .*; rescale"),
]


@pytest.mark.parametrize(
    ("keywords", "message"), BAD_KEYWORDS, ids=lambda value: "" if isinstance(value, str) else None
)
def test_keywords(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decompose(GOOD.Y, 2, **keywords)


def test_masks_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^mask='nowhere' does not exist; check the name and the folder$"):
        decompose(GOOD.Y, 2, mask="nowhere")
    text = tmp_path / "mask.txt"
    text.write_text("one two")
    with pytest.raises(ValueError, match=r"^mask='.*mask\.txt' "):
        decompose(GOOD.Y, 2, mask=text)
    np.save(tmp_path / "mask.npy", np.ones(50, bool))
    with pytest.raises(ValueError, match=r"^mask='.*mask\.npy' holds an array of shape \(50,\); reshape"):
        decompose(GOOD.Y, 2, mask=tmp_path / "mask.npy")


def test_complex_start_of_real_data_is_refused() -> None:
    with pytest.raises(ValueError, match="start.*complex"):
        decompose(GOOD.Y, 2, start=(np.ones((60, 2)) * 1j, np.ones((50, 2))))


def test_schedules(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="schedule='nonesuch'.*shipped models: .*default"):
        decompose(GOOD.Y, 2, schedule="nonesuch")
    with pytest.raises(TypeError, match="schedule=.*not a Schedule, a name or a path"):
        decompose(GOOD.Y, 2, schedule=3)  # type: ignore[arg-type]
    broken = tmp_path / "broken.json"
    broken.write_text('{"format": "lrpca-sch')
    with pytest.raises(ValueError, match=r"broken\.json.*not valid JSON"):
        decompose(GOOD.Y, 2, schedule=broken)
    with pytest.raises(ValueError, match="nan"):
        Schedule([0.1, np.nan], [0, 1])


def test_the_scale_of_weights_does_not_matter() -> None:
    want = decompose(GOOD.Y, 2, row_weight=np.ones(60))
    np.testing.assert_array_equal(decompose(GOOD.Y, 2, row_weight=np.full(60, 1e308)).L, want.L)
