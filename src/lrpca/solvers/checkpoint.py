"""Where a run stands, on disk: a run that was killed goes on from its last iteration.

One .npz file without pickle: facts as JSON, arrays beside them. It is replaced as a whole, so that the last good one
always loads, and says which run it belongs to, so that no other one goes on with it.
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
from lrpca.schedule import Schedule
from lrpca.solvers.base import Record

if TYPE_CHECKING:
    from lrpca.solvers.base import State
    from lrpca.solvers.problem import Problem
    from lrpca.solvers.rank.scan import Watch

_FORMAT, _VERSION = "lrpca-run", 2
# Iterations that are faster than this many seconds are not all written.
_PAUSE = 1.0
# In the facts, an array is this key with its name in the file.
_ARRAY = "array"
# What differs from solve to solve of one search for the rank.
_OF_A_SOLVE = ("rank", "start", "random_state")


class Checkpoint:
    """The file of one run.

    Parameters
    ----------
    path : str or path-like
    fingerprint : dict
        What makes this run this one (`fingerprint_of`). The file of another one is refused.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: dict[str, Any]) -> None:
        self.name = os.fspath(path)
        # Wherever a callback may change to.
        self._path = Path(os.path.realpath(path))
        self._fingerprint = json.loads(json.dumps(fingerprint))
        self._kept: dict[str, Any] | None = None  # not written yet
        self._ours = False  # whether the file that is there may be removed
        self._written = time.monotonic()

    def load(self) -> dict[str, Any] | None:
        """Return the state that was saved last, None if there is none; raise where the file is of something else."""
        if not self._path.exists():
            return None
        facts, arrays = self._read()
        if not self._is_mine(facts["fingerprint"]):
            return None
        self._ours = True
        try:
            state: dict[str, Any] = _joined(facts["state"], arrays)
        except (KeyError, TypeError) as error:
            raise self.damaged(error) from None
        return state

    def keep(self, state: dict[str, Any]) -> None:
        """Take the state after an iteration, and save it unless that was done a moment ago."""
        self._kept = state
        if time.monotonic() - self._written >= _PAUSE:
            self.save()

    def save(self) -> None:
        """Write the state that was kept last, if it is not on disk; the file before it stays until the new is whole."""
        if self._kept is None:
            return
        arrays: dict[str, Any] = {}
        state = _split(self._kept, "state", arrays)
        facts = {"format": _FORMAT, "version": _VERSION, "fingerprint": self._fingerprint, "state": state}
        try:
            with replacing(self._path) as temporary, open(temporary, "wb") as file:
                np.savez(file, facts=np.array(json.dumps(facts)), **arrays)
        except OSError as error:
            before = "; the state saved before is still there" if self._ours else ""
            raise OSError(
                f"checkpoint={self.name!r} cannot be written ({error.strerror or error}); make room or choose another "
                f"place{before}"
            ) from error
        self._kept, self._ours, self._written = None, True, time.monotonic()

    def save_for(self, error: BaseException) -> None:
        """Save on the way out of a run that an error ends; the error is the one that comes through."""
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
        """Return what to raise of a file that cannot be gone on with."""
        return ValueError(
            f"checkpoint={self.name!r} is damaged, or no checkpoint ({error}); delete it or choose another path"
        )

    def resumed(self, state: dict[str, Any], seen: State) -> bool:
        """Tell whether a run that goes on from this `state`, of which the callback had `seen` that, has to stop."""
        return False

    def _read(self) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            arrays = read_archive(self._path)
            facts = json.loads(str(arrays["facts"]))
            if facts["format"] != _FORMAT:
                raise ValueError(f"format {facts['format']!r}")
            version = facts["version"]
            if version == _VERSION and not (isinstance(facts["fingerprint"], dict) and "state" in facts):
                raise ValueError("no state")
        except Exception:  # what is missing or of another form shows in many ways
            raise self.damaged("it cannot be read") from None
        if version != _VERSION:
            raise ValueError(
                f"checkpoint={self.name!r} has version {version}; this lrpca reads {_VERSION}, delete it or choose "
                "another path"
            )
        return facts, arrays

    def _is_mine(self, theirs: dict[str, Any]) -> bool:
        """Tell whether to go on with a file of this fingerprint; raise where it has to be left alone."""
        self._compare(theirs, tuple(self._fingerprint))
        return True

    def _compare(self, theirs: dict[str, Any], names: tuple[str, ...]) -> None:
        for name in names:
            mine, other = self._fingerprint[name], theirs.get(name)
            if mine != other:
                hashed = isinstance(mine, dict) or isinstance(other, dict)
                what = f"its {name} is another" if hashed else f"its {name} is {_plain(other)}, not {_plain(mine)}"
                raise ValueError(
                    f"checkpoint={self.name!r} belongs to another run ({what}); delete it or choose another path"
                )


class SearchCheckpoint(Checkpoint):
    """The file of a search for the rank, which solves with one rank after the other, each larger than those before.

    Solves before the one that was interrupted are made again, and leave its file alone.

    Parameters
    ----------
    path : str or path-like
    fingerprint : dict
        That of one solve.
    watch : Watch
        What the search has its solves watched by.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: dict[str, Any], watch: Watch) -> None:
        super().__init__(path, fingerprint)
        self._watch = watch
        self._idle = False

    def keep(self, state: dict[str, Any]) -> None:
        """Take the state after an iteration; not where a later solve is further."""
        if not self._idle:
            super().keep(state | {"crowded": self._watch.crowded})

    def resumed(self, state: dict[str, Any], seen: State) -> bool:
        """Tell whether the watch stops the run; it looks once more, the callback behind it does not."""
        callback, self._watch.callback = self._watch.callback, None
        self._watch.crowded = state["crowded"]
        stopped = self._watch(seen)
        self._watch.callback = callback
        return stopped

    def _is_mine(self, theirs: dict[str, Any]) -> bool:
        self._compare(theirs, tuple(name for name in self._fingerprint if name not in _OF_A_SOLVE))
        mine, other = self._fingerprint["rank"], theirs.get("rank")
        if mine == other:
            self._compare(theirs, _OF_A_SOLVE)
            return True
        self._idle = isinstance(other, int) and other > mine
        # That of an earlier solve has served.
        self._ours = not self._idle
        return False


def checkpoint_of(problem: Problem, path: str | None, options: dict[str, Any]) -> Checkpoint | None:
    """Return the checkpoint of a problem, None if there is no path; `options` are its other options."""
    if path is None:
        return None
    from lrpca.solvers.rank.scan import Watch

    watch = problem.callback
    fingerprint = fingerprint_of(problem, options) | {"search for the rank": isinstance(watch, Watch)}
    if isinstance(watch, Watch):
        return SearchCheckpoint(path, fingerprint, watch)
    return Checkpoint(path, fingerprint)


def fingerprint_of(problem: Problem, options: dict[str, Any]) -> dict[str, Any]:
    """Return what makes a run this one: all but `max_iter`, Y by its sampled entries, long things hashed."""
    assert problem.schedule is not None
    plain = {name: sorted(value) if isinstance(value, frozenset) else value for name, value in options.items()}
    sample = problem.sample
    return {
        "shape": list(problem.matrix.shape),
        "dtype": str(problem.matrix.stored),
        "method": problem.method.name,
        "rank": problem.rank,
        "tol": problem.tol,
        **{f"options[{name!r}]": value for name, value in plain.items()},
        "schedule": _digest(_numbers_of(problem.schedule)),
        "Y": _digest(sample.rows, sample.columns, sample.values),
        "row_weight": None if problem.row_weight is None else _digest(problem.row_weight),
        "start": None if problem.start is None else _digest(*problem.start),
        "random_state": _digest(problem.rng.bit_generator.state),
    }


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


def _numbers_of(schedule: Schedule) -> dict[str, Any]:
    return {name: value for name, value in asdict(schedule).items() if name != "meta"}


def _digest(*values: Any) -> dict[str, str]:
    """Return the hash of arrays, or of what JSON can hold."""
    total = hashlib.sha256()
    arrays: dict[str, Any] = {}
    facts = _split(list(values), "value", arrays)
    total.update(json.dumps(facts, sort_keys=True).encode())
    for name, array in arrays.items():
        total.update(f"{name} {array.dtype} {array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return {"sha256": total.hexdigest()}


def _split(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """Return a nested state as JSON can hold it; its arrays go into `arrays`, by names."""
    if isinstance(value, np.ndarray) or hasattr(value, "__array_function__"):
        # Arrays of other devices, too.
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
