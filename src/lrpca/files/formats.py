"""Reading a matrix from a file: one reader for each format."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lrpca.core.extras import require
from lrpca.files.text import RefusedError, read_table

Array: TypeAlias = NDArray[Any]
Reader: TypeAlias = Callable[[Path, str | None], Array]

NUMERIC_KINDS = "biufc"


def ending(file: Path) -> str:
    """Return the ending in lower case, with the one before it if the file is compressed.

    Examples
    --------
    >>> from pathlib import Path
    >>> from lrpca.files.formats import ending
    >>> ending(Path("run.1.NPY")), ending(Path("table.csv.gz"))
    ('.npy', '.csv.gz')
    """
    endings = [suffix.lower() for suffix in file.suffixes[-2:]]
    return "".join(endings) if endings and endings[-1] == ".gz" else "".join(endings[-1:])


def _refuse_key(file: Path, key: str | None) -> None:
    """Raise if a key was given for a format whose files hold one unnamed matrix."""
    if key is not None:
        raise RefusedError(f"key={key!r} has no meaning for a {ending(file)} file; leave it out")


def choose(file: Path, arrays: dict[str, tuple[tuple[int, ...], bool]], key: str | None) -> str:
    """Return the name of the matrix to read; ``arrays`` gives (shape, is it numeric) by name."""
    listing = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, (shape, _) in arrays.items()) or "nothing"
    if key is not None:
        if key not in arrays:
            raise RefusedError(f"key={key!r} is not in {str(file)!r}; it holds {listing}")
        if not arrays[key][1]:
            raise RefusedError(f"key={key!r} is not a full matrix of numbers in {str(file)!r}; name one that is")
        return key
    matrices = [name for name, (shape, numeric) in arrays.items() if numeric and len(shape) == 2]
    # In MATLAB numbers and vectors are 1 x n; a matrix beside them is preferred.
    matrices = [name for name in matrices if min(arrays[name][0]) > 1] or matrices
    if not matrices:
        raise RefusedError(f"path={str(file)!r} holds no 2-D array of numbers ({listing}); reshape or store one")
    if len(matrices) > 1:
        raise RefusedError(
            f"path={str(file)!r} holds several matrices ({listing}); choose one with --key, or key= of read_matrix"
        )
    return matrices[0]


def read_archive(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays of an .npz file; raise ValueError if it cannot be read."""
    try:
        # Opened here, because numpy leaves a damaged file open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
            return dict(content)
    except Exception as error:  # zipfile and numpy raise many kinds of errors for a damaged file
        # Not with numpy's message, which recommends to load a pickle.
        raise ValueError("it is no .npz file, or a damaged one") from error


def _read_npy(file: Path, key: str | None) -> Array:
    _refuse_key(file, key)
    return map_npy(file)


def map_npy(file: Path | str) -> Array:
    """Map a file of NumPy's own format into memory; one of Python objects is refused, so nothing is unpickled."""
    try:
        return np.lib.format.open_memmap(file, mode="r")
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"too little memory to map {str(file)!r}") from error
        raise


def _read_npz(file: Path, key: str | None) -> Array:
    headers = {}
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            if member.endswith(".npy"):
                with archive.open(member) as stream:
                    headers[member.removesuffix(".npy")] = _npy_header(stream)
    name = choose(file, headers, key)
    with np.load(file, allow_pickle=False) as arrays:
        return np.asarray(arrays[name])


def _npy_header(stream: Any) -> tuple[tuple[int, ...], bool]:
    """Return the shape of a .npy stream and whether it holds numbers, without reading the data."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    read = readers.get(np.lib.format.read_magic(stream))
    if read is None:  # version 3 exists for field names outside Latin-1, hence for tables
        return (), False
    shape, _, dtype = read(stream)
    return shape, dtype.kind in NUMERIC_KINDS


def _read_mat(file: Path, key: str | None) -> Array:
    with open(file, "rb") as stream:
        start = stream.read(520)
    if b"\x89HDF\r\n\x1a\n" in (start[:8], start[512:]):
        return _read_mat_hdf5(file, key)
    from scipy.io import loadmat, whosmat

    numeric = {"double", "single", "logical", "sparse"} | {f"{u}int{b}" for u in ("", "u") for b in (8, 16, 32, 64)}
    name = choose(file, {name: (shape, kind in numeric) for name, shape, kind in whosmat(file)}, key)
    matrix = loadmat(file, variable_names=[name])[name]
    return np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)


def _read_mat_hdf5(file: Path, key: str | None) -> Array:
    """Read MATLAB 7.3, where the dimensions are stored in reverse and complex numbers as pairs."""
    h5py = require("h5py", "cli", f"path={str(file)!r} is MATLAB 7.3, which needs h5py")
    with h5py.File(file, "r") as content:
        arrays = {name: _hdf5_header(item) for name, item in content.items() if name != "#refs#"}
        name = choose(file, arrays, key)
        values = content[name][()].T
    if values.dtype.names is None:
        return np.asarray(values)
    pair = np.empty(values.shape, np.result_type(values["real"].dtype, np.complex64), order="F")
    pair.real, pair.imag = values["real"], values["imag"]
    return pair


def _hdf5_header(item: Any) -> tuple[tuple[int, ...], bool]:
    """Return the shape of an HDF5 item as MATLAB shows it, and whether it is a full array of numbers."""
    if not hasattr(item, "dtype"):  # a group: a struct, or a sparse matrix
        return (), False
    numeric = item.dtype.kind in NUMERIC_KINDS or item.dtype.names == ("real", "imag")
    is_text = item.attrs.get("MATLAB_class") == b"char"
    return item.shape[::-1], numeric and not is_text and "MATLAB_empty" not in item.attrs


def _read_parquet(file: Path, key: str | None) -> Array:
    _refuse_key(file, key)
    pa = require("pyarrow", "cli", f"path={str(file)!r} needs pyarrow to be read")
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file).read()
    pandas_index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name in pandas_index:
            continue
        if pa.types.is_decimal(column.type) or pa.types.is_null(column.type):
            column = column.cast(pa.float64())
        values = column.to_numpy()  # integers with nulls become float64 with NaN
        if values.dtype.kind not in NUMERIC_KINDS:
            raise RefusedError(f"path={str(file)!r} has column {name!r} of type {column.type}; leave it out")
        columns.append(values)
    if not columns:
        raise RefusedError(f"path={str(file)!r} has no columns; store a table of numbers in it")
    matrix = np.empty((len(table), len(columns)), np.result_type(*columns), order="F")
    for position, values in enumerate(columns):
        matrix[:, position] = values
    return matrix


def _read_text(
    file: Path, key: str | None, header: bool | None = None, tell: Callable[[str], object] | None = None
) -> Array:
    """Read a text table; see `lrpca.files.text.read_table`."""
    _refuse_key(file, key)
    return read_table(file, ending(file), header=header, tell=tell)


READERS: dict[str, Reader] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".mat": _read_mat,
    ".parquet": _read_parquet,
    **{kind + gz: _read_text for kind in (".csv", ".tsv", ".txt") for gz in ("", ".gz")},
}


def read_matrix(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    header: bool | None = None,
    tell: Callable[[str], object] | None = None,
) -> Array:  # (n1, n2)
    r"""Read a matrix from a NumPy, text, MATLAB or Parquet file.

    Parameters
    ----------
    path : str or path-like
        The file. Its ending decides how it is read:

        - ``.npy``: mapped into memory, read-only; the file may be larger than memory;
        - ``.npz``: the only matrix in it, or the one named by ``key``;
        - ``.csv``, ``.tsv``, ``.txt``, also with ``.gz``: one row of the matrix per line, with or without a
          line of column names. Empty cells, ``nan``, ``NA``, ``null`` and ``none`` are missing (NaN), blank
          lines are skipped. Where the first column name is empty, the first column holds row names and is
          left out, as pandas and R write it. A first line of numbers is data, unless it counts or is years and the
          other lines hold no such numbers, or the first column counts the rows below an empty cell; doubtful cases
          give a warning;
        - ``.mat``: all versions, 7.3 with h5py; the matrix is as MATLAB shows it. ``key`` as for ``.npz``;
        - ``.parquet``: with pyarrow, one column of the matrix per column of the file, nulls are NaN.
    key : str, optional
        Name of the array in an ``.npz`` or ``.mat`` file. Without it the file must hold exactly one matrix;
        single numbers and vectors beside it do not count.
    header : bool, optional
        Whether the first line of a text file holds column names; detected by default.
    tell : callable, optional
        Called with a description of the names in a text file.

    Returns
    -------
    numpy.ndarray, shape (n1, n2)
        The matrix, in the dtype of the file (float64 from text).

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        The file is of an unknown or another kind, is truncated, or holds no matrix of numbers or several.
    ImportError
        The file needs h5py or pyarrow (``pip install lrpca[cli]``).

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from lrpca.files import read_matrix
    >>> file = Path(tempfile.mkdtemp()) / "table.csv"
    >>> _ = file.write_text("a,b\n1,2\n,4\n")
    >>> read_matrix(file)
    array([[ 1.,  2.],
           [nan,  4.]])
    """
    file = Path(path)
    reader = _reader_of(file)
    if header is not None and reader is not _read_text:
        raise ValueError(f"header={header} has no meaning for a {ending(file)} file; leave it out")
    try:
        matrix = _read_text(file, key, header, tell) if reader is _read_text else reader(file, key)
    except (RefusedError, ImportError, MemoryError, Warning):
        raise
    except Exception as error:  # parsers of damaged files raise nearly anything: IndexError, struct.error ...
        cause = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise ValueError(
            f"path={str(file)!r} is not a readable {ending(file)} file ({cause}); "
            "it is truncated, damaged or of another kind: write it again"
        ) from error
    if matrix.dtype.kind not in NUMERIC_KINDS:
        raise ValueError(f"path={str(file)!r} holds dtype {matrix.dtype}; store the matrix as numbers")
    if matrix.ndim != 2:
        raise ValueError(
            f"path={str(file)!r} holds an array of shape {matrix.shape}; reshape it to two dimensions first"
        )
    return matrix


def _reader_of(file: Path) -> Reader:
    """Return the function that reads ``file``, after the checks that do not open it."""
    if file.is_dir():
        raise ValueError(f"path={str(file)!r} is a folder; name a file in it")
    if not file.exists():
        raise FileNotFoundError(f"path={str(file)!r} does not exist; check the name and the folder")
    if not os.access(file, os.R_OK):
        raise PermissionError(f"path={str(file)!r} may not be read; ask for the right to read it")
    if ending(file) not in READERS:
        found = f"the ending {ending(file)!r}" if file.suffix else "no ending"
        raise ValueError(f"path={str(file)!r} has {found}; use one of {', '.join(READERS)}, .h5 or a zarr store")
    return READERS[ending(file)]
