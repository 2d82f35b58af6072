"""The checks of a run at rest: it continues from what one of them proposes, or it ends.

In turn: rows and columns with few inliers are refitted; the residual is tested for structure; a fit that may be wrong
is compared with fits of other starts and ranks. A run has converged if no check still objects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrpca.core.passes import Pass
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.checks.low_inlier_rows import (
    FEW_KEPT,
    REFITTED,
    SURELY,
    keeping_less,
    keeps_majorities,
    refit_low_inlier_rows,
    unexplained_rows,
)
from lrpca.solvers.checks.other_fits import OtherFit, OtherFits
from lrpca.solvers.checks.residual_structure import STRUCTURED, SUSPICIOUS
from lrpca.solvers.checks.unsupported_directions import exchange, exposed_rows, may_be_unsupported
from lrpca.solvers.components import Components
from lrpca.solvers.initialise import ObservationCounts
from lrpca.solvers.thresholds import AdaptiveThresholds

# Times that rows and columns are refitted; more often where there is no noise, and each is explained or not.
REFITS, _EXACT_REFITS = 2, 4
# Times that entries are exchanged.
_EXCHANGES = 4
# Times that a run continues from another fit.
_RESTARTS = 2
# Below this many times the rounding level, or what X moved in the last pass, what is left is no noise.
ABOVE_ROUNDING = 4.0
MOVING = 10.0


@dataclass
class Candidate:
    """A fit that a run could end with: `result` is the last pass over its components, `change` what X moved in it."""

    parts: Components
    result: Pass
    change: float
    verdict: str
    unreliable: bool = False  # not to be called converged
    structure: float = 0.0

    @property
    def reason(self) -> str:
        """Why the run ended, as users are told."""
        return "stalled" if self.unreliable else self.verdict

    @property
    def factors(self) -> tuple[Any, Any]:
        """L and R of the components that are present."""
        m = self.parts.present
        return self.parts.L[:, :m], self.parts.R[:, :m]

    def state(self) -> dict[str, Any]:
        """Return the numbers and arrays that it is made of; of the pass only the counts."""
        return {
            "parts": self.parts.state(),
            "kept": list(self.result.kept),
            "change": self.change,
            "verdict": self.verdict,
            "unreliable": self.unreliable,
            "structure": self.structure,
        }

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Candidate:
        """Return the candidate of a state."""
        parts, result = Components.of_state(state["parts"]), counts_only(*state["kept"])
        return cls(parts, result, state["change"], state["verdict"], state["unreliable"], state["structure"])


class Checks:
    """The checks of one run.

    Parameters
    ----------
    matrix : DenseMatrix
    counts : ObservationCounts
    thresholds : AdaptiveThresholds
    rules : set of str
        Those of the default to follow (`lrpca.solvers.rules.RULES`).
    weight : array of shape (n1,), optional
        Weights of the rows.
    free_rank : bool
        Whether another rank may be proposed than the one given.
    """

    def __init__(
        self,
        matrix: DenseMatrix,
        counts: ObservationCounts,
        thresholds: AdaptiveThresholds,
        rules: frozenset[str],
        weight: Any = None,  # (n1,)
        *,
        free_rank: bool = False,
    ) -> None:
        self._matrix, self._counts, self._thresholds, self._rules = matrix, counts, thresholds, rules
        # Rows of weight 0 are fitted like the others, but they do not decide whether a run has converged.
        self._weighted_counts = counts if weight is None else counts.without_rows(weight == 0)
        self._free_rank = free_rank
        self._refits = self._exchanges = 0
        self._compared = self._suspicious = False
        self._restarts = 0
        self._first: Candidate | None = None
        self._others = OtherFits(matrix, weight, thresholds.least, free_rank=free_rank)

    def state(self) -> dict[str, Any]:
        """Return what was checked so far."""
        return {
            "refits": self._refits,
            "exchanges": self._exchanges,
            "compared": self._compared,
            "suspicious": self._suspicious,
            "restarts": self._restarts,
            "others": self._others.state(),
            "first": None if self._first is None else self._first.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._refits, self._exchanges = state["refits"], state["exchanges"]
        self._compared = state["compared"]
        self._suspicious, self._restarts = state["suspicious"], state["restarts"]
        self._others.restore(state["others"])
        self._first = None if state["first"] is None else Candidate.of_state(state["first"])

    def refit(self, candidate: Candidate) -> bool:
        """Refit rows and columns with few inliers; tell whether any became better."""
        exact = candidate.verdict == "tol"
        if "low_inlier_rows" not in self._rules or self._refits >= (_EXACT_REFITS if exact else REFITS):
            return False
        reads = self._matrix.reads
        asked = *candidate.factors, candidate.result, self._counts, self._thresholds.cutoff
        better = refit_low_inlier_rows(self._matrix, *asked, exact=exact)  # changed in place
        candidate.parts.known_values = None
        self._refits += self._matrix.reads > reads
        # Rows of weight 0 are no reason to continue.
        return better and any(map(len, keeping_less(candidate.result.kept, self._weighted_counts, REFITTED, SURELY)))

    def wants_exchange(self, candidate: Candidate) -> bool:
        """Tell whether entries should be exchanged after the next pass, which then has to have normal equations.

        Once, or again where without noise the exchange found something.
        """
        if "unsupported_directions" not in self._rules or self._exchanges >= _EXCHANGES:
            return False
        return may_be_unsupported(*candidate.factors, self._counts)

    def exchange(self, candidate: Candidate, last: Pass, seen: tuple[Any, Any]) -> bool:
        """Exchange entries of rows and columns with a direction of few entries; tell whether any became better.

        The `last` pass has the normal equations of the factors that it has `seen`.
        """
        exposed = exposed_rows(*seen, last, self._counts)
        better = exchange(self._matrix, *candidate.factors, exposed, self._thresholds.wide_cutoff)
        candidate.parts.known_values = None
        self._exchanges += 1 if better and not self._thresholds.is_refined else _EXCHANGES
        return better

    def __call__(self, candidate: Candidate, edge: float) -> Components | Candidate:
        """Return the components to continue with, or what the run ends with; `edge` is that of the noise."""
        candidate.parts = candidate.parts.copy()
        if "residual_structure" in self._rules:
            self._test_residual(candidate)
        if not self._compared and "other_fits" in self._rules:
            self._compared = True
            other = self._other_fit(candidate, edge)
            if other is not None:
                return other
        candidate = self.best(candidate)
        # A fit without noise of the majority of every row and column is right.
        majorities = keeps_majorities(candidate.result.kept, self._weighted_counts, candidate.parts.present)
        if self._suspicious and not (candidate.unreliable or (majorities and candidate.verdict == "tol")):
            better, found_again = self._others.from_halves(*candidate.factors, self._restarts)
            if better is not None and self._restarts < _RESTARTS:
                return self._restarted(candidate, better, edge)
            candidate.unreliable |= not found_again
        # No component is absent: the rank that was given may be too small.
        full = candidate.parts.present == candidate.parts.L.shape[1] and not self._free_rank
        if self._suspicious and full and not candidate.unreliable and candidate.verdict != "tol":
            candidate.unreliable = self._others.is_too_narrow(*candidate.factors)
        # A fit that explains few entries more than zero does is no low-rank part of Y.
        few = candidate.result.n_kept < FEW_KEPT * self._counts.entries
        if self._others.is_read and (few or candidate.verdict == "tol"):
            candidate.unreliable |= self._others.is_pointless(*candidate.factors)
        return candidate

    def _test_residual(self, candidate: Candidate) -> None:
        """Look for structure in the residual."""
        L, R = candidate.parts.factors()
        sigma, thresholds = self._thresholds.measure(L, R).sigma, self._thresholds
        moved = MOVING * candidate.change * thresholds.typical if candidate.verdict == "tol" else 0.0
        if sigma <= max(ABOVE_ROUNDING * thresholds.rounding, moved, thresholds.least):
            return
        candidate.structure = self._others.structure(L, R)
        # Once something was found wrong, half-hidden signs are enough not to believe that it was put right.
        wary = self._first is not None and self._first.unreliable
        candidate.unreliable = candidate.structure > (SUSPICIOUS if wary else STRUCTURED)

    def _other_fit(self, candidate: Candidate, edge: float) -> Components | None:
        """Return the components of a fit that describes the data better, where this one may be wrong."""
        stalled = candidate.verdict == "stalled"
        unexplained = unexplained_rows(candidate.result.kept, self._weighted_counts, candidate.parts.present)
        # A component in one row or column may be made of its outliers.
        localised = candidate.parts.localised().any()
        if not (stalled or unexplained or localised or candidate.structure > SUSPICIOUS):
            level = self._thresholds.core.sigma, self._thresholds.cutoff
            if not self._others.suspicious(*candidate.factors, candidate.result.kept, self._weighted_counts, *level):
                return None
        self._suspicious = True
        other = self._others.better_than(*candidate.factors, candidate.parts.L.shape[1], stalled=stalled)
        return None if other is None else self._restarted(candidate, other, edge)

    def _restarted(self, candidate: Candidate, other: OtherFit, edge: float) -> Components:
        """Return the components of another fit, to continue with in place of a candidate's."""
        self._first, self._refits, self._exchanges = candidate, 0, 0
        self._restarts += 1
        self._thresholds.restart(other.threshold)
        return candidate.parts.replaced(other.L, other.R, edge, self._matrix.place)

    def best(self, candidate: Candidate) -> Candidate:
        """Return the better one of this candidate and the first, if there was another."""
        first = self._first
        if first is None:
            return candidate
        best = candidate if self._others.prefers(candidate.factors, first.factors) else first
        # Outliers that a component explains may be one of X: there is more than one answer.
        best.unreliable |= best is candidate and self._others.is_longer(candidate.factors, first.factors)
        if best.unreliable:
            # What the first fit left is said even where the second one hides it.
            best.structure = max(first.structure, candidate.structure)
        return best


def counts_only(
    by_row: Any,  # (n1,)
    by_column: Any,  # (n2,)
) -> Pass:
    """Return a pass of which nothing is left but the counts of kept entries."""
    return Pass(np.zeros((len(by_row), 0)), np.zeros((len(by_column), 0)), by_row, by_column, math.nan)
