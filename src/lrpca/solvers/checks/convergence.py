"""What a run is asked before it may end: whether everyone is on board, every component real, no better answer near.

Easy problems pass every question at once and pay nothing. In turn: components that live on rejected entries alone are
left out; lost rows and columns, also those that are lost in one direction only, are fitted anew; fits that are divided
are brought together; components that live in one row or column must prove themselves; a run whose residual still holds
structure, or that left rows behind, starts again from a more resistant start; and at the noise floor thresholds are
sharpened for a last polish.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.passes import Pass
from lrpca.matrices.dense import DenseMatrix
from lrpca.solvers.checks.inconsistent_scaling import MAY_BE_DIVIDED, divided, reconcile
from lrpca.solvers.checks.low_inlier_rows import left_behind, rescue_lost
from lrpca.solvers.checks.other_fits import OtherFits
from lrpca.solvers.checks.residual_structure import STRUCTURED, SUSPICIOUS, structure_left
from lrpca.solvers.checks.spurious_components import without_unfounded
from lrpca.solvers.checks.unsupported_directions import support
from lrpca.solvers.components import Components
from lrpca.solvers.initialise import Survey
from lrpca.solvers.thresholds import AdaptiveThresholds

# Times that lost rows and columns are fitted anew; more often where there is no noise, and each is explained or lost.
_RESCUES, _EXACT_RESCUES = 2, 4
_RECONCILED = 2
# What other fits explain, they explain to this part of a rejected residual: thresholds may be down to rounding by then.
FITTED_TO = 1e-3
_TRIALS = 4
# A trial without a component costs less than this part of its row or column in explained entries, or it is undone: a
# component that fits outliers explains as much as there are (60%), one that is real all of it.
_WORTH = 0.75
# Threshold of the trial, in units of what the dropped component contributes to an entry of its row.
_TRIAL_THRESHOLD = 3.0
# Below this many times the rounding level, or what X moved in the last pass, what is left is no noise.
_ABOVE_ROUNDING = 4.0
_MOVING = 10.0
# Noise as loud as the data may be outliers. One-sided ones make the residual lean, which is worth another start; two
# peaks of it, where nothing is beyond five σ, are those of clean entries and of outliers, with the fit in between.
_LOUD = 0.3
_LEANS = 0.25
_TWO_PEAKS = 0.58
_NO_OUTLIERS = 0.995
_WITHIN = 5.0


@dataclass
class End:
    """Where a run could end: `result` is the last pass over these components, `change` what X moved in it."""

    parts: Components
    result: Pass
    change: float
    verdict: str
    worth_another_start: bool = False
    in_doubt: bool = False  # not to be called converged
    structure: float = 0.0
    divided: bool = False
    unfounded: bool = False

    @property
    def kept(self) -> float:
        """Number of entries that it explains."""
        return self.result.n_kept

    @property
    def reason(self) -> str:
        """Why the run ended, as users are told."""
        return "stalled" if self.in_doubt else self.verdict

    def state(self) -> dict[str, Any]:
        """Return the numbers and arrays that it is made of; of the pass only the counts."""
        return {
            "parts": self.parts.state(),
            "kept": list(self.result.kept),
            "change": self.change,
            "verdict": self.verdict,
            "worth_another_start": self.worth_another_start,
            "in_doubt": self.in_doubt,
            "structure": self.structure,
            "divided": self.divided,
            "unfounded": self.unfounded,
        }

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> End:
        """Return the end of a state."""
        return cls(
            Components.of_state(state["parts"]),
            counts_only(*state["kept"]),
            state["change"],
            state["verdict"],
            state["worth_another_start"],
            state["in_doubt"],
            state["structure"],
            state.get("divided", False),
            state.get("unfounded", False),
        )


class SecondLooks:
    """The questions of one run; `ask` tells whether the iteration has to continue, and with what."""

    def __init__(
        self,
        matrix: DenseMatrix,
        survey: Survey,
        thresholds: AdaptiveThresholds,
        rng: np.random.Generator,
        rules: frozenset[str],
        weight: Any = None,  # (n1,)
    ) -> None:
        self._matrix, self._survey, self._thresholds = matrix, survey, thresholds
        # Rows of weight 0 are fitted like the others, but a run is not judged by them.
        self._judged = survey if weight is None else survey.without_rows(weight == 0)
        self._rng, self._rules, self._weight = rng, rules, weight
        self._rescues = self._trials = self._reconciled = 0
        self._fewest: float = math.inf  # components that were left without unfounded ones
        self._before_trial: End | None = None
        self._first_end: End | None = None
        self._compared = False
        self._others = OtherFits(matrix, np.random.default_rng(0), weight, thresholds.least)

    def state(self) -> dict[str, Any]:
        """Return what was asked so far."""
        before, first = self._before_trial, self._first_end
        return {
            "rescues": self._rescues,
            "trials": self._trials,
            "reconciled": self._reconciled,
            "fewest": self._fewest,
            "compared": self._compared,
            "block_read": self._others.is_read,
            "before_trial": None if before is None else before.state(),
            "first_end": None if first is None else first.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._rescues, self._trials = state["rescues"], state["trials"]
        # Older files do not know of these.
        self._reconciled, self._fewest = state.get("reconciled", 0), state.get("fewest", math.inf)
        self._compared, self._others.is_read = state.get("compared", False), state.get("block_read", False)
        before, first = state["before_trial"], state["first_end"]
        self._before_trial = None if before is None else End.of_state(before)
        self._first_end = None if first is None else End.of_state(first)

    def rescue(self, parts: Components, result: Pass, verdict: str | None = None) -> bool:
        """Fit lost rows and columns anew; tell whether any became better.

        Where a run has come to rest, with a verdict, those that are lost in some direction only are looked for, too.
        """
        most = _EXACT_RESCUES if verdict == "tol" else _RESCUES
        if "low_inlier_rows" not in self._rules or self._rescues >= most:
            return False
        m = parts.present
        L, R = parts.L[:, :m], parts.R[:, :m]  # views: changed in place
        reads = self._matrix.reads
        asked = (self._matrix, L, R, result, self._survey, self._thresholds.cutoff)
        better = rescue_lost(*asked, thorough=verdict == "tol")
        looked = self._matrix.reads > reads
        # Directions that a fit as loud as the data keeps nothing of are not its worst trouble.
        loud = self._thresholds.core.sigma > _LOUD * self._thresholds.typical
        if verdict is not None and not better and not loud:
            better = support(*asked)
        parts.known_values = None
        self._rescues += looked or better
        return better

    def _reconcile(self, end: End) -> bool:
        """Bring the parts of a divided fit together; tell whether that made it better."""
        if "low_inlier_rows" not in self._rules or end.kept >= MAY_BE_DIVIDED * self._survey.entries:
            return False
        m = end.parts.present
        L, R = end.parts.L[:, :m], end.parts.R[:, :m]  # views: changed in place
        residuals, cutoff = self._thresholds.sample.residuals(L, R), self._thresholds.cutoff
        rejected = residuals[residuals > cutoff]
        limit = max(cutoff, FITTED_TO * float(np.median(rejected))) if len(rejected) else cutoff
        end.divided = divided(self._matrix, L, R, limit)
        if not end.divided or self._reconciled >= _RECONCILED:
            return False
        self._reconciled += 1
        end.parts.known_values = None
        if not reconcile(self._matrix, L, R, limit):
            return False
        self._thresholds.restart(limit)
        self._rescues = 0  # rows that were lost to a divided fit need not be to this one
        return True

    def ask(self, end: End, edge: float) -> Components | End:
        """Return the components to go on with, or where the run ends."""
        if self._thresholds.sharp_passes:
            if not self._thresholds.floor_gave_way:
                return end
            self._thresholds.restart(math.inf)
            return end.parts
        first = self._first_end is None
        if first:
            founded = self._without_unfounded(end, edge)
            if founded is not None:
                return founded
        if self.rescue(end.parts, end.result, end.verdict):
            return end.parts
        if first and self._reconcile(end):
            return end.parts
        end.parts = end.parts.copy()
        trial = self._trial(end, edge) if first else None
        if trial is not None:
            return trial
        if self._before_trial is not None and self._explains_less(end, self._before_trial):
            end = self._before_trial
        self._before_trial = None
        if "residual_structure" in self._rules:
            self._doubt(end)
        # A run that does not come to rest may do so elsewhere.
        end.worth_another_start |= end.verdict == "stalled"
        if not self._compared and "other_fits" in self._rules:
            self._compared = True
            other = self._other_fit(end)
            if other is not None:
                return other
        end = self.best(end)
        m = end.parts.present
        if self._others.is_read and end.verdict == "tol":
            # Exact, but on few entries more than zero: X is no low-rank part of Y.
            end.in_doubt |= self._others.is_pointless(end.parts.L[:, :m], end.parts.R[:, :m])
        if end.reason == "noise_floor" and "refine_cutoff" in self._rules:
            self._thresholds.sharpen(end.parts.L[:, :m], end.parts.R[:, :m], self._survey.observed)
            return end.parts
        return end

    def _other_fit(self, end: End) -> Components | None:
        """Return the components of a fit that describes the data better, where this one may be wrong."""
        m = end.parts.present
        L, R = end.parts.L[:, :m], end.parts.R[:, :m]
        level = self._thresholds.core.sigma, self._thresholds.cutoff
        if not end.worth_another_start and not self._others.suspicious(L, R, end.result.kept, self._survey, *level):
            return None
        other = self._others.better_than(L, R, stalled=end.verdict == "stalled")
        if other is None:
            return None
        self._first_end = end
        self._thresholds.restart(other.threshold)
        self._rescues = 0
        parts = end.parts.copy()
        parts.L[:, :m], parts.R[:, :m] = self._matrix.place(other.L), self._matrix.place(other.R)
        parts.known_values = None
        return parts

    def _description_length(self, end: End) -> float:
        m = end.parts.present
        return self._others.score(end.parts.L[:, :m], end.parts.R[:, :m]).score

    def best(self, end: End) -> End:
        """Return the better one of this end and that of the first start, if there was a second."""
        first = self._first_end
        if first is None:
            return end
        best = min(first, end, key=self._description_length)
        if best.in_doubt:
            # What the first start left is said even where the second one hides it.
            best.structure = max(first.structure, end.structure)
        return best

    def _explains_less(self, end: End, than: End) -> bool:
        """Tell whether a trial lost more entries than outliers fill of the row or column that was tried without."""
        n1, n2 = self._survey.shape
        in_rows, in_columns = than.parts.localised_in_rows(), than.parts.localised_in_columns()
        length = max(n2 * bool(in_rows.any()), n1 * bool(in_columns.any()))
        return end.kept < than.kept - _WORTH * length

    def _without_unfounded(self, end: End, edge: float) -> Components | None:
        """Return the components without those that live on rejected entries alone; None if there are none.

        Once there were as few components as that, it leads nowhere, and is a reason for doubt.
        """
        if "spurious_components" not in self._rules:
            return None
        found = without_unfounded(end.parts, self._thresholds.sample, self._thresholds.cutoff, edge)
        end.unfounded = found is not None and found.parts.present >= self._fewest
        if found is None or end.unfounded:
            return None
        self._fewest = found.parts.present
        self._thresholds.restart(self._thresholds.cutoff + _TRIAL_THRESHOLD * found.moved)
        return found.parts

    def _trial(self, end: End, edge: float) -> Components | None:
        """Return the components without those that live in one row or column, to see whether they are needed."""
        localised = end.parts.localised()
        if "spurious_components" not in self._rules or self._trials >= _TRIALS:
            return None
        if localised.sum() in (0, end.parts.present):
            return None
        if self._before_trial is not None and self._explains_less(end, self._before_trial):
            return None
        self._trials += 1
        self._before_trial = end
        strength = float(end.parts.values[localised].max())
        self._thresholds.restart(_TRIAL_THRESHOLD * strength / math.sqrt(min(self._survey.shape)))
        return end.parts.without(localised, edge)

    def _doubt(self, end: End) -> None:
        """Look for signs that an end is none: rows left behind, structure or two peaks in the residual."""
        L, R = end.parts.factors()
        core = self._thresholds.measure(L, R)
        thresholds = self._thresholds
        exact = max(_ABOVE_ROUNDING * thresholds.rounding, _MOVING * end.change * thresholds.typical, thresholds.least)
        if core.sigma <= exact:
            left = left_behind(end.result.kept, self._judged, end.parts.present)
            end.in_doubt = left or end.divided or end.unfounded
            end.worth_another_start = end.in_doubt
            return
        end.structure = structure_left(self._matrix, L, R)
        core_shape = _distribution(self._thresholds.sample.signed_residuals(L, R), core.sigma)
        loud = core.sigma > _LOUD * self._thresholds.typical
        # Once something was found wrong, half-hidden signs are enough not to believe that it was put right.
        wary = self._first_end is not None and self._first_end.in_doubt
        one_sided = loud and core_shape.bimodality > _TWO_PEAKS and (core_shape.share > _NO_OUTLIERS or wary)
        end.worth_another_start = end.structure > SUSPICIOUS or one_sided or (loud and core_shape.skewness > _LEANS)
        end.worth_another_start |= end.unfounded
        end.in_doubt = end.structure > (SUSPICIOUS if wary else STRUCTURED) or one_sided or end.unfounded


def counts_only(
    by_row: Any,  # (n1,)
    by_column: Any,  # (n2,)
) -> Pass:
    """Return a pass of which nothing is left but the counts of kept entries."""
    return Pass(np.zeros((len(by_row), 0)), np.zeros((len(by_column), 0)), by_row, by_column, math.nan)


class _Distribution(NamedTuple):
    """How residuals within five σ are distributed."""

    skewness: float  # its modulus
    bimodality: float  # Sarle's coefficient (skewness² + 1) / kurtosis: Gaussian 1/3, uniform 5/9, more for two peaks
    share: float  # of all residuals


def _distribution(
    residuals: Any,  # (m,) signed
    sigma: float,
) -> _Distribution:
    core = residuals[np.abs(residuals) <= _WITHIN * sigma]
    spread = float(np.std(core)) if len(core) else 0.0
    if spread == 0 or np.iscomplexobj(core):
        return _Distribution(0.0, 0.0, 1.0)
    standard = (core - core.mean()) / spread
    skewness, kurtosis = abs(float(np.mean(standard**3))), float(np.mean(standard**4))
    return _Distribution(skewness, (skewness**2 + 1) / kurtosis, len(core) / len(residuals))
