"""Writing a decomposition to a file, a folder or a zarr store."""

from __future__ import annotations

import json
import math
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lrpca.core.devices import bytes_in_words
from lrpca.decomposition.file import SMALL_FILE, all_parts, small_parts
from lrpca.files.atomic import check_new_files, replacing, replacing_files
from lrpca.files.stored import ZARR_FILES

if TYPE_CHECKING:
    from lrpca.decomposition.result import Decomposition
    from lrpca.matrices.chunked.progress import Reading

Matrix: TypeAlias = NDArray[Any]  # (n1, n2)

RESULT_FILES = ("L.npy", "R.npy", "S.npy", "low_rank.npy", SMALL_FILE, "result.json")
NUMBERS = (
    *("method", "rank", "n_iter", "n_reads", "converged", "reason"),
    *("noise_level", "outlier_fraction", "outlier_threshold"),
)
SINGLE_FILES = (".npz", ".mat")
UNWRITTEN = (".npy", ".csv", ".tsv", ".txt", ".gz", ".parquet", ".json", ".h5", ".hdf5", ".zip", ".xlsx")
BLOCK_ENTRIES = 1 << 20
MAT_LIMIT = 2**31  # bytes of one array in a MATLAB 5 file


def check_writable(
    path: str | os.PathLike[str], *, overwrite: bool = False, sources: Sequence[str | os.PathLike[str]] = ()
) -> None:
    """Raise, before a long computation, what `write_result` would: also if it would replace one of the `sources`."""
    target = Path(path)
    single = target.suffix.lower() in SINGLE_FILES
    files = [target] if single else [target / name for name in RESULT_FILES]
    if target.suffix.lower() in UNWRITTEN and not target.is_dir():
        raise ValueError(f"path={str(target)!r} ends in {target.suffix}; use .npz, .mat, .zarr or the name of a folder")
    _refuse_sources(target, files, sources)
    folder = Path(os.path.realpath(target)).parent
    if _is_store(target):
        from lrpca.decomposition.zarr import RESULT
        from lrpca.decomposition.zarr_stores import check_replaceable, require_zarr

        require_zarr()
        check_replaceable(target, overwrite=overwrite, form=RESULT)
    else:
        if target.exists() and not (target.is_file() if single else target.is_dir()):
            raise FileExistsError(f"path={str(target)!r} is in the way of the result; choose another name")
        for file in files:
            if file.exists() and not overwrite:
                raise FileExistsError(f"path={str(file)!r} exists; choose another name or overwrite it (--force)")
        folder = target if target.is_dir() else folder
    if not folder.is_dir():
        raise FileNotFoundError(f"path={str(target)!r} has no folder {str(folder)!r} to be in; make it first")
    check_new_files(folder, target)


def _is_store(target: Path) -> bool:
    return target.suffix.lower() == ".zarr"


def _refuse_sources(target: Path, files: list[Path], sources: Sequence[str | os.PathLike[str]]) -> None:
    """Raise where the result would replace the input, or lie in it."""
    real = Path(os.path.realpath(target))
    for source in sources:
        given = Path(os.path.realpath(source))
        within = any((given / name).exists() for name in ZARR_FILES) and (
            real.is_relative_to(given) or (_is_store(target) and given.is_relative_to(real))
        )
        if within or any(file.exists() and given.exists() and file.samefile(given) for file in files):
            raise ValueError(f"path={str(target)!r} would replace the input {str(source)!r}; choose another name")


def check_disk_space(path: str | os.PathLike[str], Y: Any, n_matrices: int) -> None:
    """Raise, before a long computation, if so many full matrices like Y do not fit where the result goes.

    A compressed S, in a zarr store, does not count: its size is not known yet.
    """
    target = Path(path)
    n_bytes = math.prod(Y.shape) * np.result_type(Y.dtype, np.float32).itemsize
    size = bytes_in_words(n_bytes)
    if target.suffix.lower() == ".mat" and n_matrices and n_bytes >= MAT_LIMIT:
        raise ValueError(
            f"path={str(target)!r} is to hold a matrix of {size}, .mat takes 2.1 at most; use .npz or a folder"
        )
    free = shutil.disk_usage(target if target.is_dir() else Path(os.path.realpath(target)).parent).free
    if n_matrices * n_bytes > free:
        raise OSError(
            f"path={str(target)!r} has {bytes_in_words(free)} free for {n_matrices} matrices of {size}; "
            "free space or leave the full matrices out"
        )


def summarize(decomposition: Decomposition) -> dict[str, Any]:
    """Return the numbers of a run, without its matrices, ready for JSON: what is unknown or not finite is None."""
    history = [plain(asdict(record)) for record in decomposition.history]
    return {name: plain(getattr(decomposition, name)) for name in NUMBERS} | {
        "seconds": math.fsum(record["seconds"] or 0.0 for record in history),
        "components": decomposition.diagnosis.components,
        "messages": list(decomposition.diagnosis.messages),
        "settings": decomposition.settings,
        "estimated": list(decomposition.estimated),
        "history": history,
    }


def write_result(
    decomposition: Decomposition,
    path: str | os.PathLike[str],
    *,
    sparse: bool = False,
    low_rank: bool = False,
    layout: str = "coordinates",
    tell: Callable[[str, Reading], object] | None = None,
) -> list[Path]:
    """Write a decomposition for other programs, whole or not at all.

    Parameters
    ----------
    decomposition : Decomposition
        The result of :func:`lrpca.decompose`.
    path : str or path-like
        ``*.npz`` or ``*.mat`` make one file with the arrays ``L``, ``R``, ``singular_values``,
        ``outlier_threshold``, if asked for ``S`` and ``low_rank``, and the text ``result`` (numbers of the run as
        JSON). ``*.zarr`` makes a zarr group with ``L``, ``R``, ``singular_values``, ``outlier_threshold``, if asked
        for ``sparse`` and ``low_rank``, and the same numbers as attributes. Any other name makes a folder with
        ``L.npy``, ``R.npy``, ``result.json``, ``diagnosis.npz`` and, if asked for, ``S.npy`` and ``low_rank.npy``. An
        existing result is replaced. `Decomposition.load` reads all but ``*.mat``.
    sparse : bool
        Write the sparse matrix S as a full (n1, n2) array.
    low_rank : bool
        Write the low-rank matrix L Rᵀ as a full (n1, n2) array.
    layout : {"coordinates", "dense"}
        How a zarr group holds S; the other formats always have it as a full array.
    tell : callable, optional
        Called after every block of a zarr group, with what is being written and a `Reading`.

    Returns
    -------
    list of pathlib.Path
        The files written.

    Raises
    ------
    OSError
        The file system refused; nothing half-written is left, and an older result stays. A new zarr group without
        space for S or L Rᵀ holds the other parts, with ``complete`` false.
    """
    target, decomposition = Path(path), decomposition.to_numpy()
    if _is_store(target):
        from lrpca.decomposition.zarr import write_store

        facts: dict[str, Any] = json.loads(json.dumps(summarize(decomposition), allow_nan=False))
        if isinstance(facts["outlier_threshold"], list):  # an array of its own
            facts["outlier_threshold"] = None
        chosen = layout if sparse else None
        return write_store(decomposition, target, facts, sparse=chosen, low_rank=low_rank, tell=tell)
    full = [name for name, wanted in (("S", sparse), ("low_rank", low_rank)) if wanted]
    if target.suffix.lower() in SINGLE_FILES:
        _write_file(decomposition, target, full)
        return [target]
    return _write_folder(decomposition, target, full)


def plain(value: Any) -> Any:
    """Return settings and numbers as JSON can hold them; what is not a finite number becomes None."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _write_file(decomposition: Decomposition, target: Path, full: list[str]) -> None:
    """Write everything into one .npz file, which `Decomposition.load` reads too, or one .mat file."""
    arrays = all_parts(decomposition) | {"result": json.dumps(summarize(decomposition), allow_nan=False)}
    with replacing(target) as temporary:
        if target.suffix.lower() == ".npz":
            with open(temporary, "xb") as stream:
                np.savez(stream, **arrays)
            with zipfile.ZipFile(temporary, "a") as archive:
                for name in full:
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        _write_npy(decomposition, name, member)
        else:
            from scipy.io import savemat

            named = {name: arrays[name] for name in ("L", "R", "outlier_threshold", "singular_values", "result")}
            named |= {name: np.concatenate([*_blocks(decomposition, name)]) for name in full}
            with open(temporary, "xb") as stream:
                savemat(stream, named)


def _write_folder(decomposition: Decomposition, target: Path, full: list[str]) -> list[Path]:
    """Write one file per matrix; a new folder appears at once, in an existing one the files are replaced."""
    names = ("L", "R", *full)
    with replacing_files(target, RESULT_FILES, last="result.json") as staging:  # no S of an earlier run stays
        for name in names:
            with open(staging / f"{name}.npy", "xb") as stream:
                _write_npy(decomposition, name, stream)
        with open(staging / SMALL_FILE, "xb") as stream:
            np.savez(stream, **small_parts(decomposition))
        text = json.dumps(summarize(decomposition), indent=1, allow_nan=False)
        (staging / "result.json").write_text(text + "\n", encoding="utf-8")
    return [target / name for name in (*(f"{name}.npy" for name in names), SMALL_FILE, "result.json")]


def _write_npy(decomposition: Decomposition, name: str, stream: IO[bytes]) -> None:
    """Write a factor or a full matrix in the .npy format, by blocks of rows: it need not fit into memory."""
    L, R = decomposition.L, decomposition.R
    shape = {"L": L.shape, "R": R.shape}.get(name, (len(L), len(R)))
    header = {"descr": np.lib.format.dtype_to_descr(L.dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    for block in _blocks(decomposition, name):
        # NumPy's own writer does not say why the system refused.
        stream.write(np.ascontiguousarray(block, L.dtype).data)


def _blocks(decomposition: Decomposition, name: str) -> Iterator[Matrix]:
    """Yield a factor, S or the low-rank matrix by blocks of rows."""
    L, R = decomposition.L, decomposition.R
    if name in ("L", "R"):
        yield getattr(decomposition, name)
    elif name == "S":
        for _, residual, outlying in decomposition.residual_blocks():
            yield np.where(outlying, residual, residual.dtype.type(0))
    else:
        n_rows = max(1, BLOCK_ENTRIES // len(R))
        for first in range(0, len(L), n_rows):
            yield L[first : first + n_rows] @ R.T
