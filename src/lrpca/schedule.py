"""Schedules: the few numbers that steer the iteration, learned or set by hand, saved as JSON.

An *absolute* schedule is the paper's: thresholds ζ_0 … ζ_K and steps η_1 … η_K as plain numbers, for the shape and rank
they were trained for. An *adaptive* one holds multipliers: ζ_k is a multiple of the inlier scale σ, η_k a multiple of
1 / (kept fraction). So it fits any scale, shape and outlier fraction.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from lrpca.core.influence import KINDS
from lrpca.files.atomic import found_with, replacing, with_ending

# The models published with the paper were trained at this size: their files say neither shape nor rank.
PUBLISHED_SHAPE, PUBLISHED_RANK = (1000, 1000), 5
_FORMAT = "lrpca-schedule"
_VERSION = 1
_UPDATES = ("scaled", "tangent", "own_gram")
_SEVERAL, _SINGLE = ("thresholds", "steps", "tail", "shape"), ("rank", "cutoff", "floor", "decay")
_REQUIRED = ("thresholds", "steps", "decay")
# The largest floating-point number, and an integer that no shape or rank reaches.
_LARGEST, _TOO_MANY = float(np.finfo(float).max), 1 << 63


@dataclass(frozen=True)
class Schedule:
    """Thresholds and steps of the iteration.

    Parameters
    ----------
    thresholds : sequence of float (K + 1,)
        ζ_0 is the initialisation's. Absolute: in the units of Y. Adaptive: ζ_0 in units of median|Y|, the others in
        units of the inlier scale σ, measured in each pass.
    steps : sequence of float (K + 1,)
        η_0 is not used. Absolute: the step itself. Adaptive: in units of 1 / (share of all entries kept), or the step
        itself in passes that solve per-row normal equations.
    kind : {"absolute", "adaptive"}
    shape : tuple of int, optional
        Absolute only: the shape of the matrices the numbers are meant for.
    rank : int, optional
        Absolute only: the rank they are meant for. On another problem the paper's rule multiplies the thresholds by
        ``(n_base / n) (r / r_base)`` with ``n = √(n1 n2)``.
    influence : {"soft", "hard", "redescending"}
        The influence function ψ.
    cutoff : float, optional
        Where a redescending ψ has fallen to zero, in units of ζ (2 if not given).
    update : {"scaled", "tangent", "own_gram"}
        The paper's scaled gradient step; the tangent step, which counts the shared part of both sides once; or the
        tangent step with per-row normal equations, from the kept entries of each row and column.
    tail : (beta, phi), optional
        What follows the last layer: ``η_k = beta η_{k-1}``, ``ζ_k = phi ζ_{k-1}`` (the recurrent part of FRMNN). For an
        adaptive schedule the multipliers go on this way. None: the schedule ends after its last step.
    decay : float
        Adaptive only: the fastest the threshold falls, ``ζ_k = max(decay ζ_{k-1}, min(thresholds[k] σ, ζ_{k-1}))``.
    floor : float, optional
        Absolute only: thresholds of the tail never fall below this multiple of the inlier scale σ of the present fit,
        and fall slowly while there are low-inlier rows or columns. Then a φ that is slightly too small does no harm.
        None: the recurrence alone, as in the paper.
    meta : dict, optional
        Where the numbers come from: command, seed, versions, scores.

    Examples
    --------
    >>> s = Schedule([0.01, 5e-4, 1e-4], [0, 1.4, 0.9], shape=(1000, 1000), rank=5, tail=(1.0, 0.6))
    >>> s.layers, s.at(2), s.at(3)
    (2, (0.0001, 0.9), (6e-05, 0.9))
    """

    thresholds: Sequence[float]
    steps: Sequence[float]
    kind: str = "absolute"
    shape: Sequence[int] | None = None
    rank: int | None = None
    influence: str = "soft"
    cutoff: float | None = None
    update: str = "scaled"
    tail: Sequence[float] | None = None
    decay: float = 0.35
    floor: float | None = None
    meta: dict[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for name in (*_SEVERAL, *_SINGLE):
            value, read = getattr(self, name), _integers if name in ("shape", "rank") else _numbers
            if value is not None or name in _REQUIRED:
                object.__setattr__(self, name, read(name, [value])[0] if name in _SINGLE else read(name, value))
        _check(self)

    @property
    def layers(self) -> int:
        """Number of iterations with numbers of their own, K."""
        return len(self.thresholds) - 1

    def at(self, iteration: int) -> tuple[float, float] | None:
        """Return (threshold, step) of an iteration counted from 1, or None past the end of a schedule without tail."""
        k = min(iteration, self.layers)
        threshold, step = self.thresholds[k], self.steps[k]
        if iteration > k:
            if self.tail is None:
                return None
            beta, phi = self.tail
            threshold, step = _grown(threshold, phi, iteration - k), _grown(step, beta, iteration - k)
        return threshold, step

    def scaled_to(self, shape: tuple[int, int], rank: int) -> Schedule:
        """Return the schedule for another shape and rank, by the paper's rule; adaptive ones stay as they are."""
        if self.kind == "adaptive" or self.shape is None or self.rank is None:
            return self
        factor = math.sqrt(math.prod(self.shape) / math.prod(shape)) * rank / self.rank
        thresholds = [factor * threshold for threshold in self.thresholds]
        return replace(self, thresholds=thresholds, shape=shape, rank=rank)

    def in_units(self, unit: float) -> Schedule:
        """Return the schedule for data divided by `unit`; adaptive ones stay as they are."""
        if self.kind == "adaptive" or unit == 1:
            return self
        return replace(self, thresholds=[min(threshold / unit, _LARGEST) for threshold in self.thresholds])

    def save(self, path: str | Path) -> None:
        """Write the schedule as JSON (to a temporary name, then renamed).

        Parameters
        ----------
        path : str or Path
            Ends in ``.json``, which is added where there is no ending.
        """
        content = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        with replacing(with_ending(path, ".json")) as temporary:
            Path(temporary).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, name: str | Path) -> Schedule:
        """Read a shipped schedule by name, or a JSON file by path.

        Examples
        --------
        >>> Schedule.load("default").kind
        'adaptive'
        """
        if isinstance(name, str) and name in shipped():
            text = resources.files("lrpca.models").joinpath(f"{name}.json").read_text(encoding="utf-8")
            return _from_json(text, name)
        path = found_with(name, ".json")
        if not path.is_file():
            raise FileNotFoundError(
                f"schedule={str(name)!r} is neither a file nor a shipped model; shipped models: {', '.join(shipped())}"
            )
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(
                f"schedule={str(name)!r} is not a text file; .mat models are read by Schedule.from_mat"
            ) from None
        return _from_json(text, str(name))

    @classmethod
    def from_mat(cls, path: str | Path, *, shape: tuple[int, int], rank: int) -> Schedule:
        """Read a model published with the paper (``ths``, ``step`` in a .mat file).

        Parameters
        ----------
        path : str or Path
        shape : tuple of int
            The shape the model was trained for; the files do not say. (1000, 1000) for the published ones.
        rank : int
            The rank it was trained for; 5 for the published ones.
        """
        from scipy.io import loadmat

        if not Path(path).is_file():
            raise FileNotFoundError(f"path={str(path)!r} is not a file; pass the path of a published .mat model")
        try:
            content = loadmat(str(path))
        except Exception as error:  # scipy raises whatever it stumbles over in a foreign or truncated file
            raise ValueError(f"path={str(path)!r} cannot be read as .mat ({error}); is the file complete?") from None
        if "ths" not in content or "step" not in content:
            names = ", ".join(key for key in content if not key.startswith("__")) or "nothing"
            raise ValueError(f"path={str(path)!r} holds {names}; a published model holds 'ths' and 'step'")
        thresholds, steps = (np.ravel(content[name]).tolist() for name in ("ths", "step"))
        try:
            return cls(thresholds, steps, shape=shape, rank=rank, meta={"source": Path(path).name})
        except ValueError as error:
            raise ValueError(f"path={str(path)!r} holds no schedule: {error}") from None


def shipped() -> list[str]:
    """Return the names of the schedules that come with the library."""
    folder = resources.files("lrpca.models")
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


@cache
def default_schedule() -> Schedule:
    """Return the shipped adaptive default."""
    return Schedule.load("default")


def _grown(value: float, factor: float, times: int) -> float:
    """Return a number multiplied by a factor so many times; infinity beyond the range of numbers."""
    try:
        return value * factor**times
    except OverflowError:
        return math.inf if value else 0.0


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    try:
        if isinstance(values, str):
            raise TypeError(values)
        numbers = tuple(float(value) for value in values)
    except OverflowError:
        raise ValueError(f"{name}=... contains an integer beyond {_LARGEST:.1e}; pass smaller numbers") from None
    except (TypeError, ValueError):
        raise ValueError(f"{name}={values!r} is not made of numbers; pass e.g. [0.01, 0.001]") from None
    for number in numbers:
        if not math.isfinite(number):
            raise ValueError(f"{name}={list(numbers)} contains {number}; every number must be finite")
    return numbers


def _integers(name: str, values: Any) -> tuple[int, ...]:
    try:
        numbers = tuple(int(value) for value in values if value == int(value))
    except (TypeError, ValueError, OverflowError):
        numbers = ()
    if max(numbers, default=0) >= _TOO_MANY:
        raise ValueError(f"{name}=... contains an integer of at least 2⁶³; pass those of the data it is meant for")
    if len(numbers) == 0 or len(numbers) != len(values):
        raise ValueError(f"{name}={values!r} is not made of whole numbers; pass e.g. rank=5, shape=(1000, 1000)")
    return numbers


def _check(s: Schedule) -> None:
    if s.kind not in ("absolute", "adaptive"):
        raise ValueError(f"kind={s.kind!r} is unknown; use 'absolute' or 'adaptive'")
    if len(s.thresholds) != len(s.steps) or len(s.thresholds) < 2:
        raise ValueError(
            f"thresholds, steps of length {len(s.thresholds)}, {len(s.steps)} do not fit; give both the same "
            "length, at least 2 (index 0 is the initialisation's)"
        )
    if min(s.thresholds) < 0:
        raise ValueError(f"thresholds={list(s.thresholds)} contains a negative number; thresholds are at least 0")
    if min(s.steps[1:]) <= 0:
        raise ValueError(f"steps={list(s.steps)} contains one that is not positive; only steps[0] is not used")
    if s.kind == "adaptive" and min(s.thresholds) == 0:
        raise ValueError(f"thresholds={list(s.thresholds)} contains 0; adaptive thresholds are positive multiples")
    if not isinstance(s.meta, dict):
        raise ValueError(f"meta={s.meta!r} is not a dict; leave it out, or pass e.g. {{'source': 'by hand'}}")
    if s.influence not in KINDS:
        raise ValueError(f"influence={s.influence!r} is unknown; use one of {', '.join(KINDS)}")
    if s.cutoff is not None and not s.cutoff >= 1:
        raise ValueError(f"cutoff={s.cutoff} is below 1; it is in units of the threshold, 2 is usual")
    if s.update not in _UPDATES:
        raise ValueError(f"update={s.update!r} is unknown; use one of {', '.join(_UPDATES)}")
    if s.tail is not None and (len(s.tail) != 2 or min(s.tail) <= 0):
        raise ValueError(f"tail={list(s.tail)} is not a pair (beta, phi) of positive numbers; e.g. (1.0, 0.6)")
    if s.shape is not None and (len(s.shape) != 2 or min(s.shape) < 1):
        raise ValueError(f"shape={s.shape} is not a pair of positive integers; e.g. (1000, 1000)")
    if s.rank is not None and s.rank < 1:
        raise ValueError(f"rank={s.rank} is below 1; give the rank the thresholds are meant for")
    if s.floor is not None and (s.floor <= 0 or s.kind != "absolute" or s.tail is None):
        raise ValueError(
            f"floor={s.floor} does not fit; give a positive multiple, to an absolute schedule with a tail, e.g. 2.0"
        )
    if not 0 < s.decay < 1:
        raise ValueError(f"decay={s.decay} is not between 0 and 1; e.g. 0.35")


def _from_json(text: str, name: str) -> Schedule:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:  # JSON's own error is a ValueError, as that of too many digits
        raise ValueError(f"schedule={name!r} is not valid JSON ({error}); is the file complete?") from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f'schedule={name!r} is not an lrpca schedule; expected "format": "{_FORMAT}"')
    if content.get("version") != _VERSION:
        raise ValueError(
            f"schedule={name!r} has version {content.get('version')}; this lrpca reads {_VERSION}, upgrade it"
        )
    known = set(Schedule.__dataclass_fields__)
    unknown = sorted(set(content) - known - {"format", "version"})
    if unknown or not {"thresholds", "steps"} <= set(content):
        wrong = f"unknown fields {unknown}" if unknown else "no 'thresholds' and 'steps'"
        raise ValueError(f"schedule={name!r} has {wrong}; known fields: {', '.join(sorted(known))}")
    try:
        return Schedule(**{key: value for key, value in content.items() if key in known})
    except ValueError as error:
        raise ValueError(f"schedule={name!r} holds none: {error}") from None
