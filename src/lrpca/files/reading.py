"""Reading a matrix from a file, whatever wrote it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from numpy.typing import NDArray

from lrpca.files.formats import NUMERIC_KINDS, READERS, Reader, ending, read_text
from lrpca.files.text import RefusedError

Matrix: TypeAlias = NDArray[Any]  # (n1, n2)


def read_matrix(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    header: bool | None = None,
    tell: Callable[[str], object] | None = None,
) -> Matrix:
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
    >>> from lrpca.files.reading import read_matrix
    >>> file = Path(tempfile.mkdtemp()) / "table.csv"
    >>> _ = file.write_text("a,b\n1,2\n,4\n")
    >>> read_matrix(file)
    array([[ 1.,  2.],
           [nan,  4.]])
    """
    file = Path(path)
    reader = _reader_of(file)
    if header is not None and reader is not read_text:
        raise ValueError(f"header={header} has no meaning for a {ending(file)} file; leave it out")
    try:
        matrix = read_text(file, key, header, tell) if reader is read_text else reader(file, key)
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
