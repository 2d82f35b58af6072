"""Saved decompositions, without Y: one .npz file, or a folder or zarr group of `lrpca.decomposition.writing`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lrpca.decomposition.result import REASONS, Decomposition, Diagnosis
from lrpca.files.atomic import found_with, replacing, with_ending
from lrpca.files.formats import read_archive
from lrpca.solvers.base import Record
from lrpca.solvers.rank.choice import load_choice

if TYPE_CHECKING:
    from lrpca.matrices.dense import DenseMatrix

_FORMAT, _VERSION = "lrpca-decomposition", 1
# Attributes that JSON holds as they are.
_STORED = ("reason", "noise_level", "outlier_fraction", "n_reads", "method")
DIAGNOSIS_ARRAYS = ("kept_by_row", "kept_by_column", "rows_without_influence", "columns_without_influence")
# Everything but L.npy, R.npy and full matrices, in a folder of results.
SMALL_FILE = "diagnosis.npz"
# The entries of Y in a fingerprint: all of them, or so many squares of so many rows and columns.
_WHOLE, _SQUARES, _SIDE = 1 << 12, 8, 16


def write_decomposition(decomposition: Decomposition, path: str | Path) -> None:
    """Write everything but Y to an .npz file."""
    with replacing(with_ending(path, ".npz")) as temporary, open(temporary, "wb") as file:
        np.savez(file, **all_parts(decomposition))


def all_parts(decomposition: Decomposition) -> dict[str, Any]:
    """Return everything but Y as arrays; ``facts`` is a text."""
    host = decomposition.without_data().to_numpy()
    norms = [np.linalg.norm(factor.astype(complex), axis=0) for factor in (host.L, host.R)]
    return {"L": host.L, "R": host.R, "singular_values": norms[0] * norms[1]} | small_parts(decomposition)


def fingerprint_of(matrix: DenseMatrix | None) -> str | None:
    """Return a hash of some entries of Y in single precision, at places that depend on its shape alone.

    It is the same for every container of the same numbers. None without Y, or if Y cannot be read.
    """
    if matrix is None:
        return None
    rows, columns = _fingerprint_places(*matrix.shape)
    try:
        values, observed = matrix.entries(rows, columns)
    except Exception:  # a store that is gone, a cluster that is closed: an error is raised when Y is needed
        return None
    with np.errstate(over="ignore"):
        # By way of double precision, like integers. Zero has one sign.
        numbers = np.asarray(values).astype(np.complex128).astype("<c8") + np.complex64(0)
    numbers[~observed] = np.nan
    return hashlib.sha256(numbers.tobytes()).hexdigest()


def _fingerprint_places(n1: int, n2: int) -> tuple[Any, Any]:
    """Return the rows and the columns of the entries in a fingerprint."""
    if n1 * n2 <= _WHOLE:
        rows, columns = np.divmod(np.arange(n1 * n2), n2)
        return rows, columns
    high, wide, steps = min(n1, _SIDE), min(n2, _SIDE), np.arange(_SQUARES)
    top = steps * (n1 - high) // (_SQUARES - 1)
    # In another order, so that the squares are not all on the diagonal of the matrix.
    left = 3 * steps % _SQUARES * (n2 - wide) // (_SQUARES - 1)
    i, j = np.divmod(np.arange(high * wide), wide)
    return (top[:, None] + i).ravel(), (left[:, None] + j).ravel()


def small_parts(decomposition: Decomposition) -> dict[str, Any]:
    """Return everything but Y, L and R as arrays; ``facts`` is a text."""
    d = decomposition
    facts = {
        "format": _FORMAT,
        "version": _VERSION,
        **{name: getattr(d, name) for name in _STORED},
        "settings": d.settings,
        "estimated": list(d.estimated),
        "history": [asdict(record) for record in d.history],
        "components": d.diagnosis.components,
        "messages": d.diagnosis.messages,
        "rank_choice": None if d.rank_choice is None else asdict(d.rank_choice),
        "fingerprint": d.fingerprint or fingerprint_of(d.data() if d.has_data else None),
    }
    arrays = {name: getattr(d.diagnosis, name) for name in DIAGNOSIS_ARRAYS}
    return {"facts": np.array(json.dumps(facts)), "outlier_threshold": np.asarray(d.outlier_threshold), **arrays}


def read_decomposition(path: str | Path) -> Decomposition:
    """Return a saved decomposition, without Y; raise ValueError for a file that holds none."""
    path = found_with(path, ".npz")
    read = _reader_of(path)
    if read is None:
        raise FileNotFoundError(
            f"path={str(path)!r} is neither a file nor a folder of results; pass what Decomposition.save or "
            "lrpca decompose wrote"
        )
    try:
        arrays = read(path)
        facts = json.loads(str(arrays["facts"]))
        if facts.get("format") != _FORMAT:
            raise ValueError(f"format {facts.get('format')!r}")
        if facts.get("version") == _VERSION:
            return _assembled(arrays, facts)
    except ImportError:
        raise
    except Exception as error:  # a damaged file can raise nearly anything
        raise ValueError(f"path={str(path)!r} is not a saved decomposition ({error}); is the file complete?") from None
    raise ValueError(f"path={str(path)!r} has version {facts.get('version')}; this lrpca reads {_VERSION}, upgrade it")


def _reader_of(path: Path) -> Callable[[Path], dict[str, Any]] | None:
    """Return the function that reads the arrays at a path; None if nothing there can hold them."""
    if path.is_file():
        return read_archive
    if (path / SMALL_FILE).is_file():
        return _read_folder
    if (path / "zarr.json").is_file():
        from lrpca.decomposition.zarr import read_store

        return read_store
    return None


def _read_folder(path: Path) -> dict[str, Any]:
    arrays = read_archive(path / SMALL_FILE)
    for name in ("L", "R"):
        with open(path / f"{name}.npy", "rb") as file:
            arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays


def _assembled(arrays: dict[str, Any], facts: dict[str, Any]) -> Decomposition:
    """Return the decomposition of these parts; raise ValueError where they do not belong together."""
    diagnosed = {name: arrays[name] for name in DIAGNOSIS_ARRAYS}
    d = Decomposition(
        arrays["L"],
        arrays["R"],
        **{name: facts[name] for name in _STORED},
        history=[Record(**record) for record in facts["history"]],
        outlier_threshold=arrays["outlier_threshold"][()],
        diagnosis=Diagnosis(**diagnosed, components=facts["components"], messages=facts["messages"]),
        settings=facts.get("settings", {}),
        estimated=tuple(facts.get("estimated", ())),
        rank_choice=load_choice(facts.get("rank_choice")),
        fingerprint=facts.get("fingerprint"),
    )
    shapes = (d.L.shape, d.R.shape)
    if d.L.ndim != 2 or d.R.ndim != 2 or d.L.shape[1] != d.R.shape[1]:
        raise ValueError(f"factors of shapes {shapes}")
    if (len(d.diagnosis.kept_by_row), len(d.diagnosis.kept_by_column)) != (len(d.L), len(d.R)):
        raise ValueError(f"a diagnosis that does not fit factors of shapes {shapes}")
    if d.reason not in REASONS:
        raise ValueError(f"reason {d.reason!r}")
    return d
