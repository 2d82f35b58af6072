"""How a rank was chosen: the record that a decomposition carries, and what may be odd about it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

# From here on there is a gap. A weakest component closer to what follows is the last that was seen, not the last there
# is: spectra that decay slowly end so.
CLEAR = 2.0
# So far above the edge a component has to be to count (`lrpca.solvers.components`).
_EXCEEDS = 1.3


@dataclass(frozen=True)
class RankTrial:
    """One try on the way to the rank.

    Attributes
    ----------
    shape : tuple of int
        Of Y, or of the block of it that was read.
    rank, components : int
        How many components the fit could have, and how many it had.
    reason : str
        Why it ended; "saturated" if it was ended because no component was absent.
    """

    shape: tuple[int, int]
    rank: int
    components: int
    reason: str


@dataclass(frozen=True)
class RankChoice:
    """How the rank was chosen.

    Attributes
    ----------
    asked : str or float
        "auto", or the share of the energy that was asked for.
    found : int
        The rank of the result: all `components`, or as many as explain that share.
    components : int
        How many components exceed what noise alone would make.
    singular_values : tuple of float
        Theirs, largest first.
    edge : float
        The largest singular value that noise alone would make, σ (√n1 + √n2) / √(share of entries that count).
    next_value : float
        The largest singular value of what the components leave, outliers aside (seen in a block, where Y is large);
        the edge itself where the weakest component is more than 20 times above that.
    explained : float
        Share of the energy ‖X‖² + n1 n2 σ², of all components and the noise, that the result explains.
    tried : tuple of RankTrial
        The way there; the last ones are solutions of Y itself.
    """

    asked: str | float
    found: int
    components: int
    singular_values: tuple[float, ...]
    edge: float
    next_value: float
    explained: float
    tried: tuple[RankTrial, ...]

    @property
    def gap(self) -> float:
        """The weakest singular value over what follows: the edge of the noise, or the next value if that is larger."""
        return _ratio(self.singular_values[-1], max(self.edge, self.next_value))

    def in_units(self, unit: float) -> RankChoice:
        """Return the choice for data divided by this."""
        values = tuple(value / unit for value in self.singular_values)
        return replace(self, singular_values=values, edge=self.edge / unit, next_value=self.next_value / unit)

    @property
    def saturated(self) -> bool:
        """Whether there are as many components as were looked for, and more than one."""
        return 1 < self.components >= max(trial.rank for trial in self.tried)


def concerns(choice: RankChoice) -> list[str]:
    """Return what is odd about a choice, with advice."""
    messages = []
    count, strongest = choice.components, _ratio(choice.singular_values[0], choice.edge)
    if count == 1 and strongest < _EXCEEDS:
        messages.append(
            f"rank={choice.asked!r} found no component: the strongest is {strongest:.2g} times what noise alone would "
            "make; Y looks like noise and outliers, rank 1 is returned"
        )
    elif choice.gap < CLEAR or choice.saturated:
        some = "as many as were looked for" if choice.saturated else "those that exceed the noise"
        messages.append(
            f"rank={choice.asked!r} found no gap in the spectrum: the weakest of {count} components, {some}, is "
            f"{choice.gap:.2g} times what follows; look at rank_choice.singular_values and give a rank"
        )
    if not isinstance(choice.asked, str) and choice.explained < choice.asked:
        messages.append(
            f"rank={choice.asked} is more than the {count} components explain, {choice.explained:.4f} (the rest is "
            "noise); all of them are returned, ask for a smaller share"
        )
    return messages


def _ratio(value: float, other: float) -> float:
    if other:
        return value / other
    return math.inf if value else 0.0


def load_choice(facts: dict[str, Any] | None) -> RankChoice | None:
    """Return a choice from what `dataclasses.asdict` made of it; older files have none."""
    if facts is None:
        return None
    tried = tuple(RankTrial(**{**trial, "shape": tuple(trial["shape"])}) for trial in facts["tried"])
    return RankChoice(**{**facts, "singular_values": tuple(facts["singular_values"]), "tried": tried})
