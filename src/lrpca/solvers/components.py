"""Which components of X are there: those that exceed what noise alone would make.

A rank given too large would otherwise be filled with noise and, worse, with outliers: a surplus component ends as one
row or column with all its outliers in it, fitted exactly. Components that do not exceed it are kept as probes: so weak
that X does not feel them, yet updated like the others, which makes them follow the leading singular vectors of the
residual (a power iteration). A weak component of a badly conditioned X waits as a probe until the error has fallen
below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.core.factors import Retracted, normal_form

# How many times a component has to exceed the largest singular value that noise would have ...
EXCEEDS = 1.3
# ... at the start, where outliers are in the data, and while thresholds are still far above the noise, since the
# influence is then sparse and its singular values larger than those of Gaussian noise of the same energy.
EXCEEDS_AT_START = 2.0
EXCEEDS_EARLY = 8.0
EARLY_SLOPE = 4.0
# Size of a probe, in units of the noise's largest singular value.
PROBE = 1e-3
# A component with more than this share of its energy in one row or column is localised (the second number is for
# matrices of a few rows, where nothing else is possible).
LOCALISED, LOCALISED_SMALL = 0.25, 2.0


@dataclass
class Components:
    """The factors L (n1, r) and R (n2, r) with orthogonal columns: the `present` ones first, then probes."""

    L: Any
    R: Any
    present: int
    known_values: Any = None  # (r,) singular values, if they are known already

    @property
    def values(self) -> Any:
        """Singular values (for orthogonal columns)."""
        if self.known_values is not None:
            return self.known_values
        if not isinstance(self.L, np.ndarray):
            return self.L.column_sizes_with(self.R)
        return np.linalg.norm(self.L, axis=0) * np.linalg.norm(self.R, axis=0)

    def copy(self) -> Components:
        """Return a copy that later steps do not change."""
        return Components(self.L.copy(), self.R.copy(), self.present, self.known_values)

    def state(self) -> dict[str, Any]:
        """Return the parts, copies in the same order in memory: sums over another one are rounded differently."""
        factors = {"L": self.L.copy(order="K"), "R": self.R.copy(order="K")}
        return {**factors, "present": self.present, "values": self.known_values}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Components:
        """Return the components of a state."""
        return cls(state["L"], state["R"], state["present"], state["values"])

    @property
    def is_present(self) -> Any:
        """Which components are there (r,)."""
        return np.arange(self.L.shape[1]) < self.present

    def factors(self) -> tuple[Any, Any]:
        """Return L and R of the components that are there, zero for the others; not to be changed in place."""
        if not isinstance(self.L, np.ndarray) and self.present == self.L.shape[1]:
            return self.L, self.R
        return np.where(self.is_present, self.L, 0.0), np.where(self.is_present, self.R, 0.0)

    def localised(self) -> Any:
        """Return which present components live in one row or column."""
        if not isinstance(self.L, np.ndarray):
            peaks, energies = self.L.column_peaks_with(self.R)
            shares = [LOCALISED + LOCALISED_SMALL / len(factor) for factor in (self.L, self.R)]
            return self.is_present & (peaks > np.array(shares)[:, None] * energies).any(axis=0)
        return self.localised_in_rows() | self.localised_in_columns()

    def localised_in_rows(self) -> Any:
        """Return which present components live in one row."""
        return self.is_present & _is_localised(self.L)

    def localised_in_columns(self) -> Any:
        """Return which present components live in one column."""
        return self.is_present & _is_localised(self.R)

    def replaced(self, L: Any, R: Any, edge: float, place: Callable[[Any], Any]) -> Components:
        """Return other factors as the present components, with probes of these where there were more."""
        present = L.shape[1]
        L, R = (np.hstack([new, np.asarray(old[:, present:])]) for new, old in ((L, self.L), (R, self.R)))
        wide = Components(L, R, L.shape[1])
        if present < L.shape[1]:
            wide = wide.without(np.arange(L.shape[1]) >= present, edge)
        return Components(place(wide.L), place(wide.R), present)

    def without(self, dropped: Any, edge: float) -> Components:
        """Return the same with some components made probes; the strongest stays if all were dropped."""
        return _arranged(self.L, self.R, self.values, ~self.is_present | dropped, edge)


def noise_edge(norm: float, shape: tuple[int, int], share: float) -> float:
    """Return the largest singular value of noise of norm ‖C‖, as a step sees it: (√n1 + √n2) ‖C‖ / √(n1 n2) / kp."""
    return norm / max(share, 1e-6) * sum(1.0 / math.sqrt(n) for n in shape)


def all_present(L: Any, R: Any) -> Components:
    """Return factors of any form as components, all present."""
    L, R, _ = normal_form(L, R)
    return Components(L, R, L.shape[1])


def first_components(L: Any, R: Any, edge: float) -> Components:
    """Return the components of a start, those that exceed the `edge` of its residual first."""
    values = Components(L, R, 0).values
    return _arranged(L, R, values, values <= EXCEEDS_AT_START * edge, edge)


def updated(before: Components, new: Retracted, edge: float, ahead: float) -> tuple[Components, float]:
    """Return the components after a step, and how far X moved.

    `edge` is the noise's largest singular value in that step, `ahead` by what factor the threshold was above the one
    that the noise calls for. A component that was not there before must not live in one row or column: that is what
    outliers look like.
    """
    limit = min(EXCEEDS_EARLY, EXCEEDS + EARLY_SLOPE * max(0.0, ahead - 1.0))
    # Without any noise, only zero does not exceed it.
    absent = new.values <= limit * edge
    fresh = ~before.is_present & ~absent
    if fresh.any():
        U, V = new.vectors()
        absent |= fresh & (_is_localised(U) | _is_localised(V))
    parts = _arranged(*new.factors(), new.values, absent, edge)
    return parts, new.moved(absent & (np.arange(len(absent)) >= min(parts.present, 1)))


def all_of(new: Retracted) -> tuple[Components, float]:
    """Return all components after a step as present, and how far X moved."""
    rank = len(new.values)
    return Components(*new.factors(), rank), new.moved(np.zeros(rank, bool))


def _arranged(L: Any, R: Any, values: Any, absent: Any, edge: float) -> Components:
    """Return components with the absent ones last and as weak as probes are."""
    if absent.all():
        absent = np.arange(len(absent)) > 0
    if not isinstance(L, np.ndarray) and not absent.any():
        return Components(L, R, len(absent), values)
    order = np.argsort(absent, kind="stable")
    probe = np.sqrt(np.divide(PROBE * edge, values, out=np.zeros(len(values)), where=values > 0))
    scale = np.where(absent, np.minimum(probe, 1.0), 1.0)
    return Components((L * scale)[:, order], (R * scale)[:, order], int((~absent).sum()))


def _is_localised(
    factor: Any,  # (n, r)
) -> Any:
    """Return which columns have much of their energy in one entry."""
    energy = np.abs(factor) ** 2
    return energy.max(axis=0, initial=0.0) > (LOCALISED + LOCALISED_SMALL / len(factor)) * energy.sum(axis=0)
