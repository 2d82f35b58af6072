"""Every format is read back as written; every broken or foreign file is refused by name, with a remedy."""

import copy
import functools
import io
import json
import os
import pickle
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse

import lrpca
from lrpca.decomposition.file import DIAGNOSIS_ARRAYS
from lrpca.decomposition.writing import check_disk_space, check_writable, summarize, write_result
from lrpca.files import read_matrix
from lrpca.files.atomic import cannot_write, replacing, replacing_files
from tests.helpers.full_disk import full_disk

Y = np.random.default_rng(0).standard_normal((7, 4))
Y_MISSING = np.where(np.arange(28).reshape(7, 4) % 5 == 3, np.nan, Y)


def write_mat73(path: Path, **arrays: np.ndarray) -> None:
    """Write arrays as MATLAB 7.3 does: 512 bytes in front, dimensions reversed, complex as pairs."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w", userblock_size=512) as content:
        for name, values in arrays.items():
            if np.iscomplexobj(values):
                pairs = np.empty(values.T.shape, [("real", "f8"), ("imag", "f8")])
                pairs["real"], pairs["imag"] = values.T.real, values.T.imag
                values = pairs.T
            item = content.create_dataset(name, data=values.T)
            item.attrs["MATLAB_class"] = np.bytes_("char" if values.dtype == np.uint16 else "double")
    with open(path, "r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")


# --- .npy, .npz --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f8", "u1", "i2", "c8", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_is_mapped_and_read_only(tmp_path: Path, dtype: str, order: str) -> None:
    expected = np.asarray(Y * 10).astype(dtype, order=order)
    np.save(tmp_path / "Y.npy", expected)
    found = read_matrix(tmp_path / "Y.npy")
    np.testing.assert_array_equal(found, expected)
    assert isinstance(found, np.memmap) and not found.flags.writeable
    assert found.dtype == expected.dtype and found.flags.f_contiguous == expected.flags.f_contiguous


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_takes_the_only_matrix(tmp_path: Path, save: object) -> None:
    save(tmp_path / "Y.npz", rank=3, weights=np.ones(7), names=np.array([["a", "b"], ["c", "d"]]), data=Y)
    np.testing.assert_array_equal(read_matrix(tmp_path / "Y.npz"), Y)


def test_several_matrices_need_a_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "Y.npz", first=Y, second=2 * Y)
    scipy.io.savemat(tmp_path / "Y.mat", {"first": Y, "second": 2 * Y})
    write_mat73(tmp_path / "Y73.mat", first=Y, second=2 * Y)
    for name in ("Y.npz", "Y.mat", "Y73.mat"):
        with pytest.raises(ValueError, match=r"several matrices \(first 7x4, second 7x4\); choose one with --key"):
            read_matrix(tmp_path / name)
        np.testing.assert_array_equal(read_matrix(tmp_path / name, key="second"), 2 * Y)
        with pytest.raises(ValueError, match="key='third' is not in .*; it holds first 7x4, second 7x4"):
            read_matrix(tmp_path / name, key="third")


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    trap = np.array([[Trap(), Trap()]], dtype=object)
    np.save(tmp_path / "object.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "object.npz", trap=trap, allow_pickle=True)
    (tmp_path / "plain.npy").write_bytes(pickle.dumps(Trap()))
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Trap()))
    for name in ("object.npy", "object.npz", "plain.npy", "plain.npz"):
        with pytest.raises(ValueError, match=name):
            read_matrix(tmp_path / name)
    with pytest.raises(ValueError, match="object"):
        read_matrix(tmp_path / "object.npz", key="trap")
    assert not (tmp_path / "sprung").exists()


# --- text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "1,2.5\n,-4e0\n",
        "1,2.5\nnan,-4\n",
        "1 , 2.5\n NA,-4\n",
        "a,b\n1,2.5\nNaN,-4\n",
        '"a","b"\r\n1,2.5\r\n"",-4\r\n',
        "\ufeffa;b\n1;2.5\nnull;-4",
        ",a,b\n0,1,2.5\n1,,-4\n",
        ",0,1\n0,1,2.5\n1,,-4\n",
        '"","V1","V2"\n"r1",1,2.5\n"r2",NA,-4\n',
        "a,b\n\n1,2.5\n\n,-4\n\n",
    ],
)
def test_csv_with_and_without_names(tmp_path: Path, text: str) -> None:
    (tmp_path / "Y.csv").write_text(text, encoding="utf-8", newline="")
    np.testing.assert_array_equal(read_matrix(tmp_path / "Y.csv"), [[1, 2.5], [np.nan, -4]])


def test_text_of_other_programs(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    pd.DataFrame(Y_MISSING, columns=list("abcd")).to_csv(tmp_path / "pandas.csv")
    pd.DataFrame(Y_MISSING).to_csv(tmp_path / "ranged.csv.gz")
    pd.DataFrame(Y_MISSING, columns=list("abcd")).to_csv(tmp_path / "tabs.tsv", sep="\t", index=False, na_rep="NA")
    np.savetxt(tmp_path / "spaces.txt", Y_MISSING, header="a b c d", fmt="%.17g")
    np.savetxt(tmp_path / "commas.txt.gz", Y_MISSING, delimiter=",", fmt="%.17g")
    for name in ("pandas.csv", "ranged.csv.gz", "tabs.tsv", "spaces.txt", "commas.txt.gz"):
        np.testing.assert_array_equal(read_matrix(tmp_path / name), Y_MISSING, err_msg=name)


TABLES = {"floats": np.linspace(-3, 3, 60).reshape(20, 3) ** 3, "counts": np.arange(60).reshape(20, 3) ** 2 % 97}
COLUMNS = {
    **{"years": [2001, 2002, 2003], "count": [0, 1, 2], "wavelengths": [400.5, 401.0, 401.5]},
    **{"codes": [17, 3, 205], "mixed": ["a", 2002, 2003], "names": ["a", "b", "c"]},
}
# Each of pandas' kinds of row names, made with pandas where it is installed.
INDICES: dict[str, Any] = {
    "count": lambda pd: pd.RangeIndex(20),
    "later": lambda pd: pd.RangeIndex(7, 27),
    "days": lambda pd: pd.date_range("2020-02-01", periods=20),
    "filtered": lambda pd: pd.Index([*range(0, 20, 2), *range(21, 51, 3)]),
    "named": lambda pd: pd.RangeIndex(20, name="station"),
    "pairs": lambda pd: pd.MultiIndex.from_product([range(4), list("uvwxy")]),
}


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.filterwarnings("ignore:.*mixes names and numbers in its first line, which is taken as column names")
def test_tables_of_pandas_with_an_index(tmp_path: Path, kind: str, index: str, columns: str) -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(TABLES[kind], index=INDICES[index](pd), columns=COLUMNS[columns])
    table.to_csv(tmp_path / "Y.csv")
    ambiguous = kind == "counts" and {index, columns} <= {"filtered", "wavelengths", "codes"}
    if ambiguous:  # as far as anyone can tell
        with pytest.warns(UserWarning, match="taken as data") if columns == "codes" else nullcontext():
            assert read_matrix(tmp_path / "Y.csv").shape == (21, 4)
    if index == "named" and columns in ("names", "mixed"):  # a column like any other
        table = table.reset_index()
    header = True if ambiguous else None
    np.testing.assert_array_equal(read_matrix(tmp_path / "Y.csv", header=header), table)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("columns", ["years", "count", "codes", "names"])
def test_tables_without_an_index(tmp_path: Path, kind: str, columns: str) -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    names = COLUMNS[columns]
    found = columns in ("years", "names") or (columns == "count" and kind == "floats")
    taken = "column names; if it is data, give header=False" if found else "data; if it holds"
    pd.DataFrame(TABLES[kind], columns=names).to_csv(tmp_path / "pandas.csv", index=False)
    pl.DataFrame(TABLES[kind], schema=[*map(str, names)]).write_csv(tmp_path / "polars.csv")
    for name in ("pandas.csv", "polars.csv"):
        file, expected = tmp_path / name, TABLES[kind] if found else np.vstack([names, TABLES[kind]])
        with nullcontext() if columns in ("codes", "names") else pytest.warns(UserWarning, match=f"taken as {taken}"):
            np.testing.assert_array_equal(read_matrix(file), expected)
        np.testing.assert_array_equal(read_matrix(file, header=True), TABLES[kind])
        if columns != "names":
            assert read_matrix(file, header=False).shape == (21, 3)


def test_first_lines_of_data_stay_data(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    counted = np.arange(60.0).reshape(20, 3)
    tables = {
        **{"normal": random.standard_normal((20, 3)), "counts": random.integers(0, 3000, (20, 3))},
        **{"ramp": np.outer(np.linspace(1, 2, 11), [1, 2, 3]), "zeros": np.vstack([np.zeros(3), counted + 0.5])},
        **{"pair": np.vstack([[1.0, 2.0], random.standard_normal((20, 2))]), "spread": counted[1:] ** 2},
        "one": counted[:, :1],
    }
    for name, table in tables.items():
        for form in ("%g", "%.17g", "%.3f"):
            np.savetxt(tmp_path / "Y.csv", table, fmt=form, delimiter=",")
            expected = np.loadtxt(tmp_path / "Y.csv", delimiter=",", ndmin=2)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", ".*1.*, which is taken as data")  # 1, 2, 3 of the ramp
                np.testing.assert_array_equal(read_matrix(tmp_path / "Y.csv"), expected, err_msg=f"{name} {form}")
    for text in (",5,7\n3,4,1\n8,2,2\n", ",1,2\n3,4,5\n6,7,8\n", ",2\n3,4\n"):
        (tmp_path / "Y.csv").write_text(text)
        with pytest.warns(UserWarning, match=r"begins with the line \(empty\), \d.*, which is taken as data; if it"):
            assert np.isnan(read_matrix(tmp_path / "Y.csv")[0, 0])
    (tmp_path / "Y.csv").write_text(",0.5,0.25\n0.125,4.5,0.75\n0.25,1.5,2.5\n")
    assert np.isnan(read_matrix(tmp_path / "Y.csv")[0, 0])


def test_a_heading_is_told_and_can_be_given(tmp_path: Path) -> None:
    told: list[str] = []
    for text in ("5,1\n6,5\n", "a,,\n0,1,5\n1,2,5\n", ",a\nx,5\n", ",,a\nx,y,5\n"):
        (tmp_path / "Y.csv").write_text(text)
        assert read_matrix(tmp_path / "Y.csv", tell=told.append)[0, -1] == (1 if text[0] == "5" else 5)
    rows = ["", ", row names in the first column", ", row names in the first 2 columns"]
    assert told == ["no names", *(f"column names in the first line{row}" for row in rows)]
    np.save(tmp_path / "Y.npy", Y)
    with pytest.raises(ValueError, match=r"header=True has no meaning for a \.npy file; leave it out"):
        read_matrix(tmp_path / "Y.npy", header=True)
    (tmp_path / "Y.csv").write_text("a,b\n1,5\n")
    with pytest.raises(ValueError, match="holds the text 'a' in line 1"):
        read_matrix(tmp_path / "Y.csv", header=False)


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ("0,1,2\n5,6,7\n", (2, 3), "begins with the line 0, 1, 2, which is taken as data; if it holds"),
        ("2001,2002,2003,2004,2005\n2,2019,5,6,7\n", (2, 5), "begins with the line 2001, 2002, 2003, 2004, ..., which"),
        ("0,1x,2\n5,6,7\n", (1, 3), "mixes names and numbers in its first line"),
    ],
)
def test_ambiguous_first_lines_are_pointed_out(tmp_path: Path, text: str, shape: tuple, message: str) -> None:
    (tmp_path / "Y.csv").write_text(text)
    with pytest.warns(UserWarning, match=rf"Y\.csv' {message}"):
        assert read_matrix(tmp_path / "Y.csv").shape == shape


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("day,b\nMonday,2\n", r"the text 'Monday' in line 2, column 1 \('day'\); leave that column out"),
        ("1,2\n3,4\n5,six\n", r"the text 'six' in line 3, column 2; leave that column out"),
        ("a;b\n1,5;2\n", r"the text '1,5' in line 2.*decimal point"),
        ("1,2\n3\n", "has 1 cells in line 2 but 2 in its first; give all lines the same number"),
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("a,b\n", "one line of names and no numbers"),
    ],
)
def test_bad_text_is_refused_by_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "Y.csv").write_text(text)
    with pytest.raises(ValueError, match=r"path='.*Y\.csv' .*" + message):
        read_matrix(tmp_path / "Y.csv")


# --- .mat --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4", "5"])
def test_mat_takes_the_matrix_beside_numbers_and_texts(tmp_path: Path, version: str) -> None:
    scipy.io.savemat(tmp_path / "Y.mat", {"r": 3, "w": np.ones((1, 7)), "note": "text", "Y": Y}, format=version)
    np.testing.assert_array_equal(read_matrix(tmp_path / "Y.mat"), Y)


def test_mat_keeps_dtype_and_opens_sparse(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "bytes.mat", {"Y": np.arange(6, dtype=np.uint8).reshape(2, 3)})
    assert read_matrix(tmp_path / "bytes.mat").dtype == np.uint8
    scipy.io.savemat(tmp_path / "sparse.mat", {"Y": scipy.sparse.csc_matrix(np.eye(3))})
    np.testing.assert_array_equal(read_matrix(tmp_path / "sparse.mat"), np.eye(3))


@pytest.mark.parametrize("matrix", [Y, Y_MISSING, Y + 2j * Y[::-1]])
def test_mat73_is_as_matlab_shows_it(tmp_path: Path, matrix: np.ndarray) -> None:
    note = np.array([[ord(c) for c in "text"], [32] * 4], dtype=np.uint16)
    write_mat73(tmp_path / "Y.mat", r=np.ones((1, 1)), note=note, Y=matrix)
    found = read_matrix(tmp_path / "Y.mat")
    assert found.dtype == matrix.dtype
    np.testing.assert_array_equal(found, matrix)
    with pytest.raises(ValueError, match="key='note' is not a full matrix of numbers"):
        read_matrix(tmp_path / "Y.mat", key="note")


# --- .parquet ----------------------------------------------------------------------------------------------


def test_parquet_nulls_are_missing_and_the_index_is_left_out(tmp_path: Path) -> None:
    pd, pa, pq = (pytest.importorskip(name) for name in ("pandas", "pyarrow", "pyarrow.parquet"))
    frame = pd.DataFrame(Y_MISSING, columns=list("abcd"), index=[f"row {i}" for i in range(7)])
    frame.to_parquet(tmp_path / "pandas.parquet")
    np.testing.assert_array_equal(read_matrix(tmp_path / "pandas.parquet"), Y_MISSING)
    pq.write_table(pa.table({"a": [1, None], "b": [2.5, -4.0], "c": pa.nulls(2)}), tmp_path / "nulls.parquet")
    expected = [[1, 2.5, np.nan], [np.nan, -4, np.nan]]
    np.testing.assert_array_equal(read_matrix(tmp_path / "nulls.parquet"), expected)


def test_parquet_keeps_small_integers_and_refuses_text(tmp_path: Path) -> None:
    pd, pa, pq = (pytest.importorskip(name) for name in ("pandas", "pyarrow", "pyarrow.parquet"))
    pq.write_table(
        pa.table({"a": pa.array([1, 2], pa.uint8()), "b": pa.array([3, 4], pa.uint8())}), tmp_path / "i.parquet"
    )
    assert read_matrix(tmp_path / "i.parquet").dtype == np.uint8
    for values in (["x", "y"], pd.to_datetime(["2020-01-01", "2020-01-02"])):
        pd.DataFrame({"a": [1, 2], "when": values}).to_parquet(tmp_path / "t.parquet")
        with pytest.raises(ValueError, match=r"t\.parquet' has column 'when' of type .*; leave it out"):
            read_matrix(tmp_path / "t.parquet")


# --- what cannot be read -----------------------------------------------------------------------------------


WRITERS: dict[str, Any] = {
    ".npy": np.save,
    ".npz": lambda file, Y: np.savez_compressed(file, Y=Y),
    ".mat": lambda file, Y: scipy.io.savemat(file, {"Y": Y}, do_compression=True),
    "73.mat": lambda file, Y: write_mat73(file, Y=Y),
    ".parquet": lambda file, Y: pytest.importorskip("pandas").DataFrame(Y).rename(columns=str).to_parquet(file),
    ".csv.gz": lambda file, Y: np.savetxt(file, Y, delimiter=","),
}


def valid_file(folder: Path, ending: str) -> Path:
    file = folder / f"Y{ending}"
    WRITERS[ending](file, np.random.default_rng(1).standard_normal((60, 40)))
    return file


@pytest.mark.parametrize("ending", WRITERS)
def test_truncated_and_foreign_files_are_refused(tmp_path: Path, ending: str) -> None:
    file = valid_file(tmp_path, ending)
    assert read_matrix(file).ndim == 2
    content = file.read_bytes()
    message = rf"path='.*Y{ending}' is not a readable \.\S+ file \(.+\); it is truncated, damaged or of another"
    foreign = b"\x00\x01 something else " * 99
    for wrong in [content[: int(len(content) * share)] for share in (0.02, 0.3, 0.97)] + [foreign]:
        file.write_bytes(wrong)
        with pytest.raises(ValueError, match=message):
            read_matrix(file)
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=rf"path='.*Y{ending}' "):
        read_matrix(file)


def odd_files(good: bytes) -> dict[str, bytes]:
    """Return what may lie where a file was expected."""
    whole = io.BytesIO()
    np.savez(whole, facts=np.array([object()], dtype=object), format=np.array([object()], dtype=object))
    single = io.BytesIO()
    np.save(single, np.array([object()], dtype=object))
    return {
        "empty": b"",
        "text": b"hello world\n" * 10,
        "zeros": bytes(3000),
        "noise": np.random.default_rng(0).bytes(3000),
        "pickle": pickle.dumps({"a": 1}),
        "cut": good[: len(good) // 2],
        "short": good[:-3],
        "objects": whole.getvalue(),
        "object": single.getvalue(),
    }


def encrypted(good: bytes) -> bytes:
    """Return an .npz file whose first member says that it is encrypted."""
    content = bytearray(good)
    content[good.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def test_loaders_refuse_odd_files_by_name_and_never_advise_to_unpickle(tmp_path: Path) -> None:
    separator = lrpca.video.Separator()
    separator.apply(np.zeros((32, 40), np.uint8))
    for save, ending in (
        (lrpca.decompose(lrpca.testing.planted((60, 40), rank=2).Y, 2).save, "d.npz"),
        (separator.save, "v.npz"),
        (lrpca.Schedule([1, 1], [0, 1]).save, "s.json"),
    ):
        save(tmp_path / ending)
    np.savez(tmp_path / "y.npz", Y=Y)
    loaders: dict[str, Any] = {
        "d.npz": lrpca.Decomposition.load,
        "v.npz": lrpca.video.Separator.load,
        "s.json": lrpca.Schedule.load,
        "y.npz": read_matrix,
        "c.npz": lambda path: lrpca.decompose(Y, 1, options={"checkpoint": path}),
        "m.mat": lambda path: lrpca.Schedule.from_mat(path, shape=(9, 9), rank=1),
    }
    for name, load in loaders.items():
        good = tmp_path / name
        for kind, content in odd_files(good.read_bytes() if good.exists() else b"PK").items():
            path = tmp_path / f"{kind}-{name}"
            path.write_bytes(content)
            with pytest.raises(ValueError, match=rf"^(path|schedule|checkpoint)={str(path)!r} [^;]*; ") as refused:
                load(path)
            assert "pickle" not in str(refused.value).replace(str(path), ""), (name, kind)
        with pytest.raises((OSError, ValueError), match=rf"={str(tmp_path)!r} .*; "):
            load(tmp_path)
    for name in ("d.npz", "v.npz", "y.npz"):
        path = tmp_path / f"encrypted-{name}"
        path.write_bytes(encrypted((tmp_path / name).read_bytes()))
        with pytest.raises(ValueError, match=rf"^path={str(path)!r} [^;]*; "):
            loaders[name](path)
    with pytest.raises(ValueError, match=r"key='facts' is not a full matrix of numbers in .*; name one that is"):
        read_matrix(tmp_path / "objects-y.npz", key="facts")


def test_wrong_places(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"path='.*none\.npy' does not exist; check the name"):
        read_matrix(tmp_path / "none.npy")
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(ValueError, match=r"folder\.npy' is a folder; name a file in it"):
        read_matrix(tmp_path / "folder.npy")
    for name in ("Y.docx", "Y"):
        (tmp_path / name).write_text("1,2\n")
        with pytest.raises(ValueError, match=r"has (the ending '\.docx'|no ending); use one of \.npy, \.npz"):
            read_matrix(tmp_path / name)
    np.save(tmp_path / "Y.npy", Y)
    with pytest.raises(ValueError, match=r"key='a' has no meaning for a \.npy file; leave it out"):
        read_matrix(tmp_path / "Y.npy", key="a")


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_arrays_that_are_no_matrix(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "Y.npy", np.ones(shape))
    with pytest.raises(ValueError, match=r"Y\.npy' holds an array of shape \(.*\); reshape it"):
        read_matrix(tmp_path / "Y.npy")
    np.savez(tmp_path / "Y.npz", Y=np.ones(shape))
    with pytest.raises(ValueError, match=r"Y\.npz' holds no 2-D array of numbers \(Y .*\)"):
        read_matrix(tmp_path / "Y.npz")


@pytest.mark.parametrize(("ending", "module"), [("73.mat", "h5py"), (".parquet", "pyarrow")])
def test_missing_extra_names_the_pip_line(
    tmp_path: Path, ending: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = valid_file(tmp_path, ending)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}.*pip install lrpca\[cli\]"):
        read_matrix(file)


# --- writing results -----------------------------------------------------------------------------------------


@functools.cache
def solved(dtype: str) -> lrpca.Decomposition:
    problem = lrpca.testing.planted((120, 100), rank=3, missing=0.05, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lrpca.DiagnosisWarning)  # how good the fit is does not matter here
        return lrpca.decompose(np.asfortranarray(problem.Y), rank=3)


@pytest.fixture(params=["float32", "float64", "complex128"])
def result(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> lrpca.Decomposition:
    """Return a decomposition of a matrix with missing entries, its full matrices made in several blocks."""
    monkeypatch.setattr("lrpca.decomposition.result._BLOCK", 2000)
    monkeypatch.setattr("lrpca.decomposition.writing.BLOCK_ENTRIES", 2000)
    return copy.copy(solved(request.param))


@pytest.mark.parametrize("name", ["out", "out.npz", "out.mat"])
def test_full_matrices_are_those_of_the_decomposition(tmp_path: Path, result: lrpca.Decomposition, name: str) -> None:
    files = write_result(result, tmp_path / name, sparse=True, low_rank=True)
    assert all(file.is_file() for file in files)
    expected = {"L": result.L, "R": result.R, "S": result.sparse, "low_rank": result.low_rank}
    assert np.count_nonzero(expected["S"]) > 500
    for key, matrix in expected.items():
        found = read_matrix(tmp_path / "out" / f"{key}.npy") if name == "out" else read_matrix(files[0], key=key)
        assert found.dtype == matrix.dtype
        np.testing.assert_allclose(found, matrix, rtol=0, atol=1e-6 * np.abs(matrix).max(), err_msg=key)
    np.testing.assert_array_equal(expected["S"] != 0, result.outliers)


@pytest.mark.parametrize("name", ["out", "out.zarr", "out.npz"])
def test_results_are_also_saved_decompositions(tmp_path: Path, result: lrpca.Decomposition, name: str) -> None:
    write_result(result, tmp_path / name, sparse=True, low_rank=True)
    loaded = lrpca.Decomposition.load(tmp_path / name)
    for part in ("L", "R"):
        np.testing.assert_array_equal(getattr(loaded, part), getattr(result, part))
    for part in DIAGNOSIS_ARRAYS:
        np.testing.assert_array_equal(getattr(loaded.diagnosis, part), getattr(result.diagnosis, part))
    for part in ("history", "reason", "outlier_threshold", "noise_level", "n_reads", "settings", "method"):
        assert getattr(loaded, part) == getattr(result, part), part


def test_folders_that_hold_no_result(tmp_path: Path, result: lrpca.Decomposition) -> None:
    with pytest.raises(FileNotFoundError, match=r"is neither a file nor a folder of results; pass what Decomposition"):
        lrpca.Decomposition.load(tmp_path)
    write_result(result, tmp_path / "out")
    (tmp_path / "out" / "L.npy").write_bytes(b"hello")
    with pytest.raises(ValueError, match=r"^path='.*out' is not a saved decomposition \(.*\); is the file complete\?"):
        lrpca.Decomposition.load(tmp_path / "out")
    pytest.importorskip("zarr").create_group(tmp_path / "other.zarr")
    with pytest.raises(ValueError, match=r"^path='.*other\.zarr' is not a saved decomposition \(format None\)"):
        lrpca.Decomposition.load(tmp_path / "other.zarr")


def test_numbers_are_strict_json(result: lrpca.Decomposition) -> None:
    result.noise_level = np.float32("nan")
    result.outlier_threshold = np.array([[1.0, np.inf]])
    numbers = json.loads(json.dumps(summarize(result), allow_nan=False))
    assert numbers["noise_level"] is None and numbers["outlier_threshold"] == [[1.0, None]]
    assert len(numbers["history"]) == numbers["n_iter"] == result.n_iter
    assert numbers["seconds"] == pytest.approx(sum(record.seconds for record in result.history))


def test_a_failing_writer_leaves_the_old_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = copy.copy(solved("float64"))
    for name in ("out", "out.npz", "out.mat"):
        write_result(result, tmp_path / name, sparse=True)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.*")}

    def fail(self: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lrpca.Decomposition, "residual_blocks", fail)
    for name in ("out", "out.npz", "out.mat", "new", "new.npz", "new.mat"):
        message = rf"path='.*{name}' cannot be written \(No space left on device\); choose another place"
        with pytest.raises(OSError, match=message):
            write_result(result, tmp_path / name, sparse=True)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.*")} == before


def test_room_is_checked_beforehand(tmp_path: Path) -> None:
    huge = np.broadcast_to(np.float32(0), (10**7, 10**7))
    with pytest.raises(OSError, match=r"GB free for 2 matrices of 400 TB; free space or leave"):
        check_disk_space(tmp_path / "out", huge, 2)
    check_disk_space(tmp_path / "out", huge, 0)
    check_disk_space(tmp_path / "out.mat", huge[:20_000, :20_000], 1)
    with pytest.raises(ValueError, match=r"out\.mat' is to hold a matrix of 2\.3 GB, .*; use \.npz or a folder"):
        check_disk_space(tmp_path / "out.mat", huge[:24_000, :24_000], 1)


def test_checking_leaves_nothing_behind(tmp_path: Path) -> None:
    for name in ("out", "out.npz", "run.0.5"):
        check_writable(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    check_writable(tmp_path / "out")
    (tmp_path / "out" / "R.npy").touch()
    with pytest.raises(FileExistsError, match=r"R\.npy' exists; choose another name or overwrite it \(--force\)"):
        check_writable(tmp_path / "out")
    check_writable(tmp_path / "out", overwrite=True)


# --- atomic writing ----------------------------------------------------------------------------------------


def test_replacing_is_all_or_nothing(tmp_path: Path) -> None:
    target = tmp_path / "note.txt"
    with replacing(target) as temporary:
        assert temporary.parent == tmp_path and temporary.suffix == ".txt" and not temporary.exists()
        temporary.write_text("old")
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), replacing(target) as temporary:
            temporary.write_text("half")
            raise error
        assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]
    with replacing(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("failing", range(6))
def test_replacing_files_is_all_or_nothing(tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"a.txt": "old", "result.json": "old", "gone.txt": "old", "mine.txt": "mine"}
    for name, text in old.items():
        (tmp_path / name).write_text(text)
    replace, order = os.replace, []

    def interrupted(source: Path, destination: Path) -> None:
        order.append(destination.relative_to(tmp_path))
        if len(order) == failing:
            raise KeyboardInterrupt
        replace(source, destination)

    def write() -> None:
        with replacing_files(tmp_path, ["gone.txt", "never.txt"], last="result.json") as staging:
            (staging / "z").mkdir()
            for name in ("a.txt", "result.json", "z/b.txt"):
                (staging / name).write_text("new")

    monkeypatch.setattr(os, "replace", interrupted)
    if failing:
        with pytest.raises(KeyboardInterrupt):
            write()
        assert {file.name: file.read_text() for file in tmp_path.iterdir() if file.is_file()} == old
    else:
        write()
        new = {"a.txt": "new", "result.json": "new", "mine.txt": "mine"}
        assert {file.name: file.read_text() for file in tmp_path.iterdir() if file.is_file()} == new
        assert (tmp_path / "z" / "b.txt").read_text() == "new"
        assert order[0].name == "result.json" == order[-1].name
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_errors_of_the_system_name_the_path(tmp_path: Path) -> None:
    target = tmp_path / "note.txt"
    target.write_text("old")
    for error, kind in ((OSError(28, "No space left on device"), OSError), (OSError(13, "No right"), PermissionError)):
        message = rf"^path={str(target)!r} cannot be written \({error.strerror}\); choose another place or free space$"
        with pytest.raises(kind, match=message), replacing(target) as outer, replacing(outer) as temporary:
            temporary.write_text("half")
            raise error
        with pytest.raises(kind, match=message), replacing(target):
            raise cannot_write(tmp_path / "part", error)
    # An error that speaks for itself is left as it is.
    with pytest.raises(OSError, match="^Y could not be read; mend it$"), replacing(target):
        raise OSError("Y could not be read; mend it")
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("name", ["d.npz", "s.json", "v.npz", "r.html", "old", "plain", "r.npz", "r.mat"])
def test_a_full_disk_is_told_by_the_path(tmp_path: Path, result: lrpca.Decomposition, name: str) -> None:
    separator = lrpca.video.Separator()
    separator.apply(np.zeros((32, 40), np.uint8))
    (tmp_path / "old").mkdir()
    writers = {
        "d.npz": result.save,
        "s.json": lrpca.Schedule.load("default").save,
        "v.npz": separator.save,
        "r.html": lrpca.report.Page("a page").save,
    }
    path = tmp_path / name
    message = rf"^path={str(path)!r} cannot be written \(File too large\); choose another place or free space$"
    with full_disk(100), pytest.raises(OSError, match=message):
        writers.get(name, lambda path: write_result(result, path))(path)
    assert [*tmp_path.iterdir()] == [tmp_path / "old"] and not list((tmp_path / "old").iterdir())


def test_replacing_keeps_links_devices_and_permissions(tmp_path: Path) -> None:
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    with replacing(tmp_path / "link.txt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real.txt").read_text() == "new"
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "real.txt").stat().st_mode & 0o777 == 0o666 & ~umask
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileExistsError, match="neither a file nor a folder"), replacing(tmp_path / "pipe"):
        pytest.fail("must not be reached")
    with pytest.raises(FileNotFoundError, match="folder that does not exist; make"), replacing(tmp_path / "a" / "b"):
        pytest.fail("must not be reached")
