"""The problems on which the arena is held, each the answer to a question that people ask."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from lrpca.bench.contest import parse_specs
from lrpca.testing import planted

# The error that counts as exact.
EXACT = 1e-4
# Where there is noise: within so many times the error of an oracle who knows the outliers' places.
NEAR_ORACLE = 1.6
# Rows and columns of a problem in its small form.
SMALL = 240
# Contestants that need many times as long as the others: they run once.
_SLOW_NAMES = ("stable_pcp", "grassmann", "pyrpca", "tensorly")
_SLOW_SPECS = ("pcp:algorithm=admm", "gd:sample=0.2")
_USUAL = (
    *("lrpca", "ircur", "accaltproj:gamma=0.5", "accaltproj:gamma=0.7", "accaltproj:gamma=0.9", "scaledgd"),
    *("altproj:variant=paper", "altproj:variant=ncrpca", "gd", "pcp:algorithm=ialm", "pgrmc", "godec"),
)
_FEW = ("lrpca", "ircur", "accaltproj:gamma=0.5", "pcp:algorithm=ialm", "stable_pcp", "pyrpca", "sklearn")
_FASTEST = ("lrpca", "ircur", "accaltproj:gamma=0.5")

QUESTIONS = {
    "few": "Few outliers, no noise",
    "many": "Many outliers",
    "noise": "Noise everywhere",
    "missing": "Missing entries",
    "rank": "No idea of the rank",
    "glance": "Only a glance at Y",
    "narrow": "Narrow matrices",
    "condition": "Strong and weak components together",
    "moving": "Objects that move",
    "video": "A real video",
}


@dataclass(frozen=True)
class Scenario:
    """A problem (arguments of `planted`; none for real data) and who takes part, as `parse_specs` takes them."""

    name: str
    question: str
    title: str
    arguments: dict[str, Any] = field(default_factory=dict)
    contestants: tuple[str, ...] = (*_USUAL, "pyrpca", "sklearn")
    rank: int | None = None  # what contestants are told, if not the true rank
    time_limit: float = 60.0  # of a call, in seconds
    repeat: int = 3  # calls of each contestant; slow ones are called once
    rounds: int = 1  # how often the fastest are run anew, so that ratios have neighbours in time
    short: str = ""  # heading of a column
    headline: bool = False  # whether the project's goals are stated for it
    every: int = 1  # of real data only every so many columns are used

    def make(self) -> Any:
        """Return the planted problem."""
        return planted(**self.arguments)

    def target(self, problem: Any) -> float:
        """Return the error that counts as having arrived."""
        return NEAR_ORACLE * problem.oracle_error if self.arguments.get("noise") else EXACT

    def small(self) -> Scenario:
        """Return the small form: the same kind of problem, and a few contestants of each kind."""
        kept = tuple(spec for spec in self.contestants if spec in _FEW)
        small = replace(self, contestants=kept, time_limit=10.0, rounds=1)
        if not self.arguments:
            return replace(small, every=8)
        shape = tuple(min(SMALL, n) for n in self.arguments["shape"])
        # Fewer entries carry less of it.
        rank = max(2, self.arguments["rank"] - 2)
        told = None if self.rank is None else 2 * rank
        title = self.title.replace(_size(self.arguments["shape"]), _size(shape))
        title = title.replace(f"rank {self.arguments['rank']}", f"rank {rank}").replace(
            f"told {self.rank}", f"told {told}"
        )
        return replace(small, arguments={**self.arguments, "shape": shape, "rank": rank}, rank=told, title=title)


def is_slow(spec: str) -> bool:
    """Return whether a contestant runs once only."""
    return spec in _SLOW_SPECS or parse_specs(spec)[0].name in _SLOW_NAMES


def in_rounds(scenario: Scenario) -> tuple[str, ...]:
    """Return the contestants that further rounds measure again."""
    return tuple(spec for spec in _FASTEST if spec in scenario.contestants)


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _planted(
    name: str, question: str, shape: tuple[int, int], what: str, short: str, *, rank: int = 5, **others: Any
) -> Scenario:
    """Return a scenario whose further arguments are those of `planted`, or those of `Scenario`."""
    own = {key: others.pop(key) for key in ("contestants", "told", "time_limit", "rounds", "headline") if key in others}
    told = own.pop("told", None)
    arguments = {"shape": shape, "rank": rank, "random_state": 0, **others}
    title = f"{_size(shape)}, rank {rank}, {what}"
    return Scenario(name, question, title, arguments, rank=told, short=short, **own)


def _all() -> tuple[str, ...]:
    """Return everybody; ADMM, which takes a thousand iterations, is in another scenario."""
    return tuple(spec.text for spec in parse_specs("all") if spec.text != "pcp:algorithm=admm")


def _scenarios() -> tuple[Scenario, ...]:
    large, medium = (3000, 3000), (1000, 1000)
    few: dict[str, Any] = {"rounds": 3, "headline": True}
    leading = tuple(spec for spec in _USUAL if spec not in ("gd", "godec"))
    rivals: dict[str, Any] = {"contestants": (*leading, "pyrpca", "tensorly"), "time_limit": 20.0, **few}
    return (
        _planted("few-10", "few", large, "10% outliers", "10%", outlier_fraction=0.1, contestants=_all(), **few),
        _planted("few-20", "few", large, "20% outliers", "20%", outlier_fraction=0.2, **rivals),
        _planted("few-30", "few", large, "30% outliers", "30%", outlier_fraction=0.3, **rivals),
        _planted("many-50", "many", medium, "50% outliers", "50%", outlier_fraction=0.5),
        _planted("many-80", "many", medium, "80% outliers", "80%", outlier_fraction=0.8, contestants=_USUAL),
        _planted(
            *("noise", "noise", medium, "noise of 5%, 20% outliers ten times the signal", "noise"),
            **{"outlier_fraction": 0.2, "outlier_size": 10.0, "noise": 0.05},
            contestants=(*_USUAL, "stable_pcp", "stable_pcp:debias=true", "grassmann", "pyrpca", "sklearn"),
        ),
        _planted(
            *("missing", "missing", medium, "10% outliers, half of the entries missing", "missing"),
            **{"outlier_fraction": 0.1, "missing": 0.5},
            contestants=(*_USUAL, "stable_pcp", "grassmann", "pyrpca", "tensorly", "sklearn"),
        ),
        _planted(
            *("rank", "rank", medium, "10% outliers; methods that need a rank are told 10", "rank"),
            told=10,
            outlier_fraction=0.1,
            contestants=(*_USUAL, "pcp:algorithm=admm", "stable_pcp", "pyrpca", "sklearn"),
        ),
        _planted(
            *("glance", "glance", (5000, 5000), "10% outliers", "glance"),
            outlier_fraction=0.1,
            rounds=2,
            contestants=("lrpca", "ircur", "gd:sample=0.2", "accaltproj:gamma=0.5", "pgrmc:sample=0.2"),
        ),
        _planted("narrow", "narrow", (4000, 80), "10% outliers", "narrow", outlier_fraction=0.1),
        _planted(
            *("condition", "condition", medium, "10% outliers, σ_1 = 100 σ_r", "condition"),
            **{"outlier_fraction": 0.1, "condition": 100.0},
        ),
        _planted(
            *("moving", "moving", medium, "10% outliers of one sign in blocks that move", "moving"),
            **{"outlier_fraction": 0.1, "one_sided": True, "placement": "blocks", "outlier_size": 3.0},
        ),
        Scenario(
            *("video", "video", "the escalator video, frames as rows, uint8, rank 3"),
            contestants=(*leading, "godec", "grassmann", "stable_pcp", "sklearn"),
            rank=3,
            time_limit=20.0,
            repeat=1,
        ),
    )


SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _scenarios()}
# Which of the real matrices it is.
VIDEO = "escalator"


def read_video(every: int = 1) -> tuple[Any, str]:
    """Return the frames of the video as rows, only every so many pixels, or None and why they are not here."""
    from lrpca.bench.real_matrices import available, load

    found, missing = available([VIDEO])
    return (load(VIDEO).Y[:, ::every].copy(), "") if found else (None, missing[0])
