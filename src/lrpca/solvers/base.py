"""What every solver tells of its iterations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Record:
    """Numbers of one iteration; what a method lacks is None.

    Attributes
    ----------
    iteration : int
        Counted from 1; the initialisation is not counted.
    threshold, step : float
        ζ_k and η_k.
    residual : float
        ‖C‖ / ‖Y‖ at the iterate that entered the pass.
    change : float
        ‖X_k - X_{k-1}‖ / ‖X_k‖.
    kept : float
        Share of observed entries that counted as clean.
    seconds : float
        Time of this iteration, callback excluded.
    """

    iteration: int
    threshold: float | None = None
    step: float | None = None
    residual: float | None = None
    change: float | None = None
    kept: float | None = None
    seconds: float | None = None

    def threshold_in_units(self, unit: float) -> float | None:
        """Return the threshold for data that were divided by this."""
        return None if self.threshold is None else self.threshold / unit


@dataclass(frozen=True)
class State(Record):
    """What a callback sees: the numbers of the iteration and copies of the factors."""

    L: Any = None  # (n1, r)
    R: Any = None  # (n2, r)

    @classmethod
    def of(cls, record: Record, L: Any, R: Any) -> State:
        """Return a record with the factors added."""
        return cls(**asdict(record), L=L, R=R)
