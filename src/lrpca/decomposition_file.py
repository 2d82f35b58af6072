"""Decompositions in .npz files: everything but Y."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from lrpca.atomic import found_with, replacing, with_ending
from lrpca.decomposition import REASONS, Decomposition, Diagnosis, Record
from lrpca.file_formats import read_archive
from lrpca.rank.choice import load_choice

_FORMAT, _VERSION = "lrpca-decomposition", 1
_DIAGNOSIS_ARRAYS = (
    "kept_by_row",
    "kept_by_column",
    "rows_without_influence",
    "columns_without_influence",
)


class _VersionError(Exception):
    """A file of a version this library does not know."""


def write_decomposition(decomposition: Decomposition, path: str | Path) -> None:
    """Write everything but Y to an .npz file."""
    d, path = decomposition, with_ending(path, ".npz")
    facts = {
        "format": _FORMAT,
        "version": _VERSION,
        "reason": d.reason,
        "noise_level": d.noise_level,
        "outlier_fraction": d.outlier_fraction,
        "n_reads": d.n_reads,
        "method": d.method,
        "settings": d.settings,
        "estimated": list(d.estimated),
        "history": [asdict(record) for record in d.history],
        "components": d.diagnosis.components,
        "messages": d.diagnosis.messages,
        "rank_choice": None if d.rank_choice is None else asdict(d.rank_choice),
    }
    arrays = {name: getattr(d.diagnosis, name) for name in _DIAGNOSIS_ARRAYS}
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(
            file,
            facts=np.array(json.dumps(facts)),
            L=d.L,
            R=d.R,
            outlier_threshold=d.outlier_threshold,
            **arrays,
        )


def read_decomposition(path: str | Path, kind: type[Decomposition] = Decomposition) -> Decomposition:
    """Return a saved decomposition, without Y; raise ValueError for a file that holds none."""
    path = found_with(path, ".npz")
    if not path.is_file():
        raise FileNotFoundError(f"path={str(path)!r} is not a file; pass what Decomposition.save wrote")
    try:
        return _assembled(read_archive(path), kind)
    except _VersionError as error:
        raise ValueError(f"path={str(path)!r} has version {error}; this lrpca reads {_VERSION}, upgrade it") from None
    except Exception as error:  # what is missing or of another form shows in many ways
        raise ValueError(f"path={str(path)!r} is not a saved decomposition ({error}); is the file complete?") from None


def _assembled(arrays: dict[str, Any], kind: type[Decomposition]) -> Decomposition:
    facts = json.loads(str(arrays["facts"]))
    if facts.get("format") != _FORMAT:
        raise ValueError(f"format {facts.get('format')!r}")
    if facts.get("version") != _VERSION:
        raise _VersionError(facts.get("version"))
    result = kind(
        arrays["L"],
        arrays["R"],
        history=[Record(**record) for record in facts["history"]],
        reason=facts["reason"],
        noise_level=facts["noise_level"],
        outlier_threshold=arrays["outlier_threshold"][()],
        outlier_fraction=facts["outlier_fraction"],
        n_reads=facts["n_reads"],
        diagnosis=Diagnosis(
            **{name: arrays[name] for name in _DIAGNOSIS_ARRAYS},
            components=facts["components"],
            messages=facts["messages"],
        ),
        method=facts["method"],
        settings=facts.get("settings", {}),
        estimated=tuple(facts.get("estimated", ())),
        rank_choice=load_choice(facts.get("rank_choice")),
    )
    _check(result)
    return result


def _check(d: Decomposition) -> None:
    """Raise ValueError where the parts do not belong together."""
    shapes = (d.L.shape, d.R.shape)
    if d.L.ndim != 2 or d.R.ndim != 2 or d.L.shape[1] != d.R.shape[1]:
        raise ValueError(f"factors of shapes {shapes}")
    if (len(d.diagnosis.kept_by_row), len(d.diagnosis.kept_by_column)) != (len(d.L), len(d.R)):
        raise ValueError(f"a diagnosis that does not fit factors of shapes {shapes}")
    if d.reason not in REASONS:
        raise ValueError(f"reason {d.reason!r}")
