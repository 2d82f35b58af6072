"""The state of a run on disk, from which a run that was interrupted resumes.

The file is one .npz without pickle: values as JSON, arrays beside them. It is replaced as a whole, so that the last
complete state can always be read. A fingerprint prevents other runs from resuming from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lrpca.files.atomic import check_folder, replacing
from lrpca.files.formats import read_archive
from lrpca.solvers.base import Record, State

if TYPE_CHECKING:
    from lrpca.solvers.problem import Problem
    from lrpca.solvers.rank.scan import Watch

_FORMAT, _VERSION = "lrpca-run", 6
# States are written at most once in so many seconds.
_PAUSE = 1.0
# In the JSON values, an array is this key with its name in the file.
_ARRAY = "array"
# What differs between the solves of one search for the rank.
_OF_A_SOLVE = ("rank", "start", "random_state")


class Checkpoint:
    """The file of one run, or of a search for the rank.

    A search solves with one rank after the other, each larger than those before. After an interruption it makes the
    earlier solves again, without a checkpoint, and resumes the one that was interrupted.

    The `fingerprint` identifies the run (`checkpoint_of`); the file of another run raises an error. `watch` is the
    callback of a search for the rank.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: dict[str, Any], watch: Watch | None = None) -> None:
        self.name = os.fspath(path)
        # A callback may change the working directory.
        self._path = Path(os.path.realpath(path))
        self._fingerprint = json.loads(json.dumps(fingerprint))
        self._watch = watch
        self._kept: dict[str, Any] | None = None  # not written yet
        self._ours = False  # whether the file that is there may be removed
        self._idle = False  # whether the file belongs to a later solve of the search
        self._written = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """Return the state that was saved last, None if there is none; raise where the file is of something else."""
        if not self._path.exists():
            return None
        values, arrays = self._read()
        if not self._is_mine(values["fingerprint"]):
            return None
        self._ours = True
        try:
            state: dict[str, Any] = _joined(values["state"], arrays)
        except (KeyError, TypeError) as error:
            raise self.damaged(error) from None
        return state

    def keep(self, state: dict[str, Any]) -> None:
        """Take the state after an iteration, and save it unless that was done a moment ago."""
        if self._idle:
            return
        self._kept = state if self._watch is None else state | {"saturated": self._watch.saturated}
        if time.monotonic() - self._written >= _PAUSE:
            self.save()

    def save(self) -> None:
        """Write the last state unless it is on disk; the file before it stays until the new one is complete."""
        if self._kept is None:
            return
        arrays: dict[str, Any] = {}
        state = _split(self._kept, "state", arrays)
        values = {"format": _FORMAT, "version": _VERSION, "fingerprint": self._fingerprint, "state": state}
        try:
            with replacing(self._path) as temporary, open(temporary, "wb") as file:
                np.savez(file, facts=np.array(json.dumps(values)), **arrays)
        except OSError as error:
            before = "; the state saved before is still there" if self._ours else ""
            raise OSError(
                f"checkpoint={self.name!r} cannot be written ({error.strerror or error}); free space or choose "
                f"another place{before}"
            ) from error
        self._kept, self._ours, self._written = None, True, time.monotonic()

    def save_for(self, error: BaseException) -> None:
        """Save the state of a run that an error ends; the error is raised, a failure to save is a note in it."""
        try:
            self.save()
        except OSError as failure:
            error.add_note(str(failure))

    def remove(self) -> None:
        """Delete the file of a run that is finished."""
        self._kept = None
        if self._ours:
            self._path.unlink(missing_ok=True)

    def damaged(self, error: object) -> ValueError:
        """Return the error of a file from which no run can resume."""
        return ValueError(
            f"checkpoint={self.name!r} is damaged, or no checkpoint ({error}); delete it or choose another path"
        )

    def resumed(self, state: dict[str, Any], seen: State) -> bool:
        """Tell whether the watch stops a run that resumes; the user's callback has `seen` this state already."""
        if self._watch is None:
            return False
        callback, self._watch.callback = self._watch.callback, None
        self._watch.saturated = state["saturated"]
        stopped = self._watch(seen)
        self._watch.callback = callback
        return stopped

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            arrays = read_archive(self._path)
            values = json.loads(str(arrays["facts"]))
            if values["format"] != _FORMAT:
                raise ValueError(f"format {values['format']!r}")
            version = values["version"]
            if version == _VERSION and not (isinstance(values["fingerprint"], dict) and "state" in values):
                raise ValueError("no state")
        except Exception:  # damaged files raise many errors
            raise self.damaged("it cannot be read") from None
        if version != _VERSION:
            raise ValueError(
                f"checkpoint={self.name!r} has version {version}; this lrpca reads {_VERSION}, delete it or choose "
                "another path"
            )
        return values, arrays

    def _is_mine(self, theirs: dict[str, Any]) -> bool:
        """Tell whether to resume from a file of this fingerprint; raise where it belongs to another run."""
        rank, other_rank = self._fingerprint["rank"], theirs.get("rank")
        another_solve = self._watch is not None and rank != other_rank
        for name, mine in self._fingerprint.items():
            other = theirs.get(name)
            if mine != other and not (another_solve and name in _OF_A_SOLVE):
                hashed = isinstance(mine, dict) or isinstance(other, dict)
                what = f"its {name} is " + ("another" if hashed else f"{_plain(other)}, not {_plain(mine)}")
                raise ValueError(
                    f"checkpoint={self.name!r} belongs to another run ({what}); delete it or choose another path"
                )
        if another_solve:
            self._idle = isinstance(other_rank, int) and other_rank > rank
            # The file of an earlier solve is no longer needed.
            self._ours = not self._idle
        return not another_solve


def checkpoint_of(problem: Problem, path: str | None, options: dict[str, Any]) -> Checkpoint | None:
    """Return the checkpoint of a problem, None if there is no path; `options` are its other options.

    The fingerprint has everything but `max_iter`: Y by its sampled entries, long values hashed.
    """
    from lrpca.solvers.rank.scan import Watch

    if path is None:
        return None
    assert problem.schedule is not None
    sample, weight, start = problem.sample, problem.row_weight, problem.start
    watch = problem.callback if isinstance(problem.callback, Watch) else None
    schedule = {name: value for name, value in asdict(problem.schedule).items() if name != "meta"}
    fingerprint = {
        "shape": list(problem.matrix.shape),
        "dtype": str(problem.matrix.stored),
        "method": problem.method.name,
        "rank": problem.rank,
        "tol": problem.tol,
        **{f"options[{name!r}]": sorted(v) if isinstance(v, frozenset) else v for name, v in options.items()},
        "schedule": _digest(schedule),
        "Y": _digest(sample.rows, sample.columns, sample.values),
        "row_weight": None if weight is None else _digest(weight),
        "start": None if start is None else _digest(*start),
        "random_state": _digest(problem.rng.bit_generator.state),
        "search for the rank": watch is not None,
    }
    return Checkpoint(path, fingerprint, watch)


def check_path(name: str, value: Any) -> str:
    """Return the path of a file that can be written; the check of the option."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str) or not os.fspath(value):
        raise ValueError(f"options[{name!r}]={value!r} is not a path; give the name of a file, e.g. 'run.npz'")
    target = Path(os.path.realpath(value))
    said = f"options[{name!r}]={os.fspath(value)!r}"
    if target.is_dir():
        raise IsADirectoryError(f"{said} is a folder; give the name of a file in it")
    if target.exists() and not target.is_file():
        raise FileExistsError(f"{said} is neither a file nor a folder; give another name")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{said} is in a folder that does not exist; make {str(target.parent)!r} first")
    check_folder(target.parent)
    return os.fspath(value)


def _digest(*values: Any) -> dict[str, str]:
    """Return the hash of arrays, or of JSON values."""
    arrays: dict[str, Any] = {}
    total = hashlib.sha256(json.dumps(_split(list(values), "value", arrays), sort_keys=True).encode())
    for name, array in arrays.items():
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return {"sha256": total.hexdigest()}


def _split(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """Return a nested state as JSON values; its arrays, also those of other devices, go into `arrays` by name."""
    if isinstance(value, np.ndarray) or hasattr(value, "__array_function__"):
        arrays[name] = np.asarray(value)
        return {_ARRAY: name}
    if isinstance(value, Record):
        return asdict(value)
    if isinstance(value, dict):
        return {key: _split(part, f"{name}.{key}", arrays) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_split(part, f"{name}.{index}", arrays) for index, part in enumerate(value)]
    return value.item() if isinstance(value, np.generic) else value


def _joined(value: Any, arrays: dict[str, Any]) -> Any:
    """Return what `_split` took apart."""
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return arrays[value[_ARRAY]]
        return {key: _joined(part, arrays) for key, part in value.items()}
    return [_joined(part, arrays) for part in value] if isinstance(value, list) else value


def _plain(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, list) and len(value) == 2 else str(value)
