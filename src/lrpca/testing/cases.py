"""The grid: planted problems from easy to hard, each with its own seed."""

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
_SMALL = {"shape": (150, 150)}
# What makes cases hard, further arguments of `planted` (`given` is the rank to tell the solver), and the share and size
# of the outliers of each.
_GROUPS: tuple[tuple[str, dict[str, Any], tuple[tuple[float, float], ...]], ...] = (
    ("outlier fraction", {}, ((0, 1), (0.1, 1), (0.3, 1), (0.5, 1), (0.6, 1))),
    (
        "outlier size",
        {},
        ((0.1, 0.3), (0.3, 0.3), (0.1, 10), (0.3, 10), (0.5, 10), (0.1, 100), (0.3, 100), (0.1, 1e4), (0.3, 1e4)),
    ),
    ("one-sided", {"one_sided": True}, ((0.1, 1), (0.3, 1), (0.5, 1), (0.1, 10), (0.3, 10), (0.1, 1000), (0.3, 1000))),
    ("one-sided", {"one_sided": True, "law": "constant"}, ((0.1, 3), (0.3, 3))),
    ("gathered", {"placement": "rows"}, ((0.1, 1), (0.2, 10), (0.1, 1000))),
    ("gathered", {"placement": "columns"}, ((0.1, 1), (0.3, 10))),
    ("gathered", {"placement": "columns", "one_sided": True}, ((0.2, 7),)),
    ("moving blocks", {"placement": "blocks", "one_sided": True}, ((0.05, 10), (0.1, 1), (0.2, 3), (0.2, 10))),
    ("moving blocks", {"placement": "blocks"}, ((0.1, 10),)),
    *(("condition", {"condition": ratio}, ((share, 1),)) for share in (0.1, 0.3) for ratio in (10, 100, 1000)),
    ("rank", {"rank": 1}, ((0.1, 1), (0.5, 1))),
    ("rank", {"rank": 2}, ((0.3, 1),)),
    ("rank", {"rank": 10}, ((0.3, 1),)),
    ("rank", {"rank": 20}, ((0.1, 1), (0.3, 1))),
    ("rank", {"rank": 40}, ((0.1, 1), (0.2, 1))),
    ("offset", {"offset": 5.0}, ((0.1, 1), (0.3, 1), (0.1, 10))),
    ("offset", {"offset": 5.0, "noise": 0.05}, ((0.3, 1),)),
    ("shape", {"shape": (4000, 80)}, ((0.1, 1),)),
    ("shape", {"shape": (4000, 80), "rank": 3}, ((0.3, 10),)),
    ("shape", {"shape": (80, 4000)}, ((0.1, 1),)),
    ("shape", {"shape": (80, 4000), "rank": 3}, ((0.3, 10),)),
    ("shape", _SMALL, ((0.1, 1), (0.3, 1), (0.3, 10))),
    *(("scale", {"scale": scale}, ((0.2, 1),)) for scale in (1e-8, 1e5)),
    ("noise", {"noise": 0.001}, ((0.1, 1),)),
    ("noise", {"noise": 0.01}, ((0.3, 1),)),
    ("noise", {"noise": 0.05}, ((0.1, 10),)),
    ("noise", {"noise": 0.1}, ((0, 1), (0.1, 1), (0.4, 1), (0.3, 10), (0.5, 10), (0.1, 1000))),
    ("noise", {"noise": 0.05, "condition": 10}, ((0.2, 10),)),
    ("noise", {"noise": 0.05, "rank": 20}, ((0.2, 10),)),
    ("noise", {"noise": 0.1, **_SMALL}, ((0.2, 10),)),
    ("noise", {"noise": 0.1, "shape": (4000, 80)}, ((0.2, 10),)),
    ("noise", {"noise": 0.1, "shape": (80, 4000)}, ((0.4, 1),)),
    ("missing entries", {"missing": 0.2}, ((0.1, 1),)),
    ("missing entries", {"missing": 0.5}, ((0.1, 1), (0.3, 1), (0.1, 10))),
    ("missing entries", {"missing": 0.8}, ((0.1, 1), (0.2, 10))),
    ("missing entries", {"missing": 0.5, "noise": 0.05}, ((0.1, 10),)),
    ("missing entries", {"missing": 0.8, "noise": 0.05}, ((0.1, 10),)),
    ("missing entries", {"missing": 0.5, "condition": 100}, ((0.1, 1),)),
    *(("rank too large", {"given": given}, ((0.1, 1),)) for given in (6, 8)),
    ("rank too large", {"given": 10}, ((0.1, 1), (0.3, 10))),
    ("rank too large", {"given": 6, "noise": 0.05}, ((0.1, 1),)),
    ("rank too large", {"given": 10, "noise": 0.05}, ((0.1, 10),)),
    ("rank too large", {"given": 10, "noise": 0.1}, ((0.3, 10),)),
    ("rank too large", {"given": 2, "rank": 1}, ((0.1, 1),)),
    ("rank too large", {"given": 4, "placement": "rows", "one_sided": True, **_SMALL, "rank": 2}, ((0.05, 10),)),
)


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
    """Tell whether a relative error counts as recovery: below 1e-5, or within 1.6 times the oracle's.

    Parameters
    ----------
    problem : Problem
    error : float
        `Problem.error` of a solver's low-rank part.
    """
    return error < max(EXACT, NEAR_ORACLE * problem.oracle_error)


def wrong(problem: Problem, error: float) -> bool:
    """Tell whether a result with this relative error is wrong: above 1e-3 and above five times the oracle's.

    Parameters
    ----------
    problem : Problem
    error : float
        `Problem.error` of a solver's low-rank part.
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
    return [_case(kind, share, size, more) for kind, more, outliers in _GROUPS for share, size in outliers]


def _case(kind: str, share: float, size: float, more: dict[str, Any]) -> Case:
    arguments = {**_BASE, **more, "outlier_fraction": share, "outlier_size": size}
    given = arguments.pop("given", None)
    return Case(kind, _name(arguments, given), arguments, given or arguments["rank"])


def _name(arguments: dict[str, Any], given: int | None) -> str:
    """Return everything that differs from the plain case, in words."""
    size, rank, where = arguments["outlier_size"], arguments["rank"], arguments.get("placement", "uniform")
    kind = ("one-sided " if "one_sided" in arguments else "") + ("constant " if "law" in arguments else "")
    outliers = f"{100 * arguments['outlier_fraction']:g}% {kind}outliers" + (f" x{size:g}" if size != 1 else "")
    outliers += {"uniform": "", "blocks": " in moving blocks"}.get(where, f" gathered in {where}")
    words = ["x".join(map(str, arguments["shape"]))] if arguments["shape"] != _BASE["shape"] else []
    words += [outliers, f"rank {rank}"] if rank != _BASE["rank"] else [outliers]
    if given is not None:
        words.append(f"rank {given} given for {rank}")
    for key, text, unit in (
        ("condition", "condition {:g}", 1),
        ("noise", "{:g}% noise", 100),
        ("missing", "{:g}% missing", 100),
        ("offset", "offset x{:g}", 1),
        ("scale", "scaled to {:g}", 1),
    ):
        if key in arguments:
            words.append(text.format(unit * arguments[key]))
    return ", ".join(words)
