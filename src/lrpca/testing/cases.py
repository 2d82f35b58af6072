"""The grid: planted problems from easy to nasty, each with its own seed."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

from lrpca.testing.problems import Problem, planted

# A case is recovered below this error, or within this many times the oracle's.
EXACT, NEAR_ORACLE = 1e-5, 1.6
# A result is wrong above this error, and above this many times the oracle's.
WRONG, FAR_FROM_ORACLE = 1e-3, 5.0

_BASE: dict[str, Any] = {"shape": (600, 600), "rank": 5, "outlier_fraction": 0.1, "outlier_size": 1.0}


@dataclass(frozen=True)
class Case:
    """One problem of the grid.

    Attributes
    ----------
    kind : str
        What makes it hard, e.g. "noise" or "missing entries".
    name : str
        What it is made of.
    arguments : dict
        Keyword arguments of `planted`.
    rank : int
        The rank to tell the solver; that of X unless the case is about a wrong one.
    """

    kind: str
    name: str
    arguments: dict[str, Any] = field(hash=False)
    rank: int

    def problem(self, repeat: int = 0) -> Problem:
        """Return the problem, seeded by its name; `repeat` draws another of the same kind."""
        return planted(**self.arguments, random_state=zlib.crc32(self.name.encode()) + repeat)


def recovered(problem: Problem, error: float) -> bool:
    """Tell whether an error counts as recovery: below 1e-5, or within 1.6 times the oracle's.

    Parameters
    ----------
    problem : Problem
    error : float
        Relative error of a solver's low-rank part, `Problem.error`.

    Returns
    -------
    bool
    """
    return error < max(EXACT, NEAR_ORACLE * problem.oracle_error)


def wrong(problem: Problem, error: float) -> bool:
    """Tell whether an error is so large that no solver should have called it converged.

    That is above 1e-3 and above five times the oracle's.

    Parameters
    ----------
    problem : Problem
    error : float
        Relative error of a solver's low-rank part, `Problem.error`.

    Returns
    -------
    bool
    """
    return not error <= max(WRONG, FAR_FROM_ORACLE * problem.oracle_error)


def grid() -> list[Case]:
    """Return the grid.

    Returns
    -------
    list of Case
        From outliers, low-rank parts, shapes and scales to noise, missing entries and ranks too large.

    Examples
    --------
    >>> cases = grid()
    >>> cases[1].name, cases[1].rank
    ('10% outliers', 5)
    >>> problem = cases[1].problem()
    >>> problem.Y.shape, problem.oracle_error
    ((600, 600), 0.0)
    """
    return [
        *_outliers(),
        *_low_rank_parts(),
        *_shapes_and_scales(),
        *_noise(),
        *_missing(),
        *_ranks_too_large(),
    ]


def _case(kind: str, share: float, size: float = 1, *, given: int | None = None, **more: Any) -> Case:
    arguments = {**_BASE, **more, "outlier_fraction": share, "outlier_size": size}
    return Case(kind, _name(arguments, given), arguments, given or arguments["rank"])


def _name(arguments: dict[str, Any], given: int | None) -> str:
    """Return everything that differs from the plain case, in words."""
    size = arguments["outlier_size"]
    sort = "constant " if arguments.get("law") == "constant" else ""
    side = "one-sided " if arguments.get("one_sided") else ""
    words = [f"{100 * arguments['outlier_fraction']:g}% {side}{sort}outliers" + (f" x{size:g}" if size != 1 else "")]
    where = arguments.get("placement", "uniform")
    if where != "uniform":
        words[0] += " in moving blocks" if where == "blocks" else f" gathered in {where}"
    if arguments["shape"] != _BASE["shape"]:
        words.insert(0, "x".join(map(str, arguments["shape"])))
    if arguments["rank"] != _BASE["rank"]:
        words.append(f"rank {arguments['rank']}")
    if given is not None:
        words.append(f"rank {given} given for {arguments['rank']}")
    if "condition" in arguments:
        words.append(f"condition {arguments['condition']:g}")
    for key in ("noise", "missing"):
        if key in arguments:
            words.append(f"{100 * arguments[key]:g}% {key}")
    if "offset" in arguments:
        words.append(f"offset x{arguments['offset']:g}")
    if "scale" in arguments:
        words.append(f"scaled to {arguments['scale']:g}")
    return ", ".join(words)


def _outliers() -> list[Case]:
    cases = [_case("outlier fraction", share) for share in (0, 0.1, 0.3, 0.5, 0.6)]
    for share, size in ((0.1, 0.3), (0.3, 0.3), (0.1, 10), (0.3, 10), (0.5, 10), (0.1, 100), (0.3, 100)):
        cases.append(_case("outlier size", share, size))
    for share, size in ((0.1, 1e4), (0.3, 1e4)):
        cases.append(_case("outlier size", share, size))
    for share, size in ((0.1, 1), (0.3, 1), (0.5, 1), (0.1, 10), (0.3, 10), (0.1, 1000), (0.3, 1000)):
        cases.append(_case("one-sided", share, size, one_sided=True))
    for share, size in ((0.1, 3), (0.3, 3)):
        cases.append(_case("one-sided", share, size, one_sided=True, law="constant"))
    for where, share, size in (("rows", 0.1, 1), ("rows", 0.2, 10), ("rows", 0.1, 1000)):
        cases.append(_case("gathered", share, size, placement=where))
    for where, share, size in (("columns", 0.1, 1), ("columns", 0.3, 10)):
        cases.append(_case("gathered", share, size, placement=where))
    cases.append(_case("gathered", 0.2, 7, placement="columns", one_sided=True))
    for share, size in ((0.05, 10), (0.1, 1), (0.2, 3), (0.2, 10)):
        cases.append(_case("moving blocks", share, size, placement="blocks", one_sided=True))
    cases.append(_case("moving blocks", 0.1, 10, placement="blocks"))
    return cases


def _low_rank_parts() -> list[Case]:
    cases = []
    for condition, share in ((10, 0.1), (100, 0.1), (1000, 0.1), (10, 0.3), (100, 0.3), (1000, 0.3)):
        cases.append(_case("condition", share, condition=condition))
    for rank, share in ((1, 0.1), (1, 0.5), (2, 0.3), (10, 0.3), (20, 0.1), (20, 0.3), (40, 0.1), (40, 0.2)):
        cases.append(_case("rank", share, rank=rank))
    cases += [_case("offset", share, offset=5.0) for share in (0.1, 0.3)]
    cases += [_case("offset", 0.1, 10, offset=5.0), _case("offset", 0.3, offset=5.0, noise=0.05)]
    return cases


def _shapes_and_scales() -> list[Case]:
    cases = []
    for shape, share, size, rank in (
        ((4000, 80), 0.1, 1, 5),
        ((4000, 80), 0.3, 10, 3),
        ((80, 4000), 0.1, 1, 5),
        ((80, 4000), 0.3, 10, 3),
        ((150, 150), 0.1, 1, 5),
        ((150, 150), 0.3, 1, 5),
        ((150, 150), 0.3, 10, 5),
    ):
        cases.append(_case("shape", share, size, shape=shape, rank=rank))
    cases += [_case("scale", 0.2, scale=scale) for scale in (1e-8, 1e5)]
    return cases


def _noise() -> list[Case]:
    cases = []
    for noise, share, size in (
        (0.001, 0.1, 1),
        (0.01, 0.3, 1),
        (0.05, 0.1, 10),
        (0.1, 0, 1),
        (0.1, 0.1, 1),
        (0.1, 0.4, 1),
        (0.1, 0.3, 10),
        (0.1, 0.5, 10),
        (0.1, 0.1, 1000),
    ):
        cases.append(_case("noise", share, size, noise=noise))
    cases += [
        _case("noise", 0.2, 10, noise=0.05, condition=10),
        _case("noise", 0.2, 10, noise=0.05, rank=20),
        _case("noise", 0.2, 10, noise=0.1, shape=(150, 150)),
        _case("noise", 0.2, 10, noise=0.1, shape=(4000, 80)),
        _case("noise", 0.4, 1, noise=0.1, shape=(80, 4000)),
    ]
    return cases


def _missing() -> list[Case]:
    cases = []
    for missing, share, size in (
        (0.2, 0.1, 1),
        (0.5, 0.1, 1),
        (0.5, 0.3, 1),
        (0.5, 0.1, 10),
        (0.8, 0.1, 1),
        (0.8, 0.2, 10),
    ):
        cases.append(_case("missing entries", share, size, missing=missing))
    cases += [_case("missing entries", 0.1, 10, missing=missing, noise=0.05) for missing in (0.5, 0.8)]
    cases.append(_case("missing entries", 0.1, missing=0.5, condition=100))
    return cases


def _ranks_too_large() -> list[Case]:
    cases = []
    for given, share, size in ((6, 0.1, 1), (8, 0.1, 1), (10, 0.1, 1), (10, 0.3, 10)):
        cases.append(_case("rank too large", share, size, given=given))
    for given, share, size, noise in ((6, 0.1, 1, 0.05), (10, 0.1, 10, 0.05), (10, 0.3, 10, 0.1)):
        cases.append(_case("rank too large", share, size, given=given, noise=noise))
    cases.append(_case("rank too large", 0.1, rank=1, given=2))
    gathered = {"placement": "rows", "one_sided": True, "shape": (150, 150), "rank": 2}
    cases.append(_case("rank too large", 0.05, 10, given=4, **gathered))
    return cases
