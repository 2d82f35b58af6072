"""One pass over Y and the directions it gives: what every loop of the LRPCA family shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lrpca.core import factors as iteration
from lrpca.core.influence import Levels
from lrpca.core.passes import Pass
from lrpca.matrices.dense import DenseMatrix


def take_pass(matrix: DenseMatrix, L: Any, R: Any, level: Levels, weight: Any, *, grams: bool = False) -> Pass:
    """Return the pass at L Rᵀ with the products C R̄ and Cᵀ W L̄ of the update."""
    A = R.conj() if np.iscomplexobj(R) else R
    B = L.conj() if weight is None else L.conj() * weight[:, None]
    return matrix.run_pass(L, R, level, A=A, B=B, grams=grams)


def without_sides(result: Pass) -> Pass:
    """Return a pass whose step is made: a device need not hold any longer what came along for it."""
    return result if result.report is None else replace(result, report=result.report.counts_only())


def directions(L: Any, R: Any, result: Pass, update: str, weight: Any, present: int | None = None) -> tuple[Any, Any]:
    """Return ΔL and ΔR of a step of length 1 along the scaled or the tangent direction."""
    if not isinstance(L, np.ndarray) or not isinstance(result.CA, np.ndarray):
        from lrpca.matrices.device import step as device_step

        return device_step.directions(L, R, result, update, weight, present)
    if update == "scaled":
        return iteration.scaled_directions(L, R, result, weight)
    inverses = iteration.inverse_grams(L, R, weight)
    if result.row_grams is None:
        dL, dR = iteration.scaled_directions(L, R, result, weight, inverses)
    else:
        dL, dR = iteration.own_gram_directions(L, R, result, weight, present)
    return iteration.without_double_counting(L, R, dL, dR, weight, inverses)


class Momentum:
    """Nesterov's momentum: the step continues part of the last change of X, and starts anew where it opposes that."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start anew."""
        self._before: tuple[Any, Any] | None = None
        self._steps = 0

    def state(self) -> dict[str, Any]:
        """Return the factors before the last step, and for how many steps there has been momentum."""
        return {"factors": None if self._before is None else list(self._before), "steps": self._steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._before = None if state["factors"] is None else tuple(state["factors"])
        self._steps = state["steps"]

    def remember(self, L: Any, R: Any, present: int) -> None:
        """Keep the present components before a step."""
        self._before = (L[:, :present], R[:, :present])

    def add_to(self, dL: Any, dR: Any, L: Any, R: Any, present: int, weight: Any) -> None:
        """Add momentum to a step of the present components."""
        if self._before is None:
            return
        here = L[:, :present], R[:, :present]
        mL, mR = iteration.tangent_change(*self._before, *here, weight)
        if iteration.tangent_product(*here, (dL[:, :present], dR[:, :present]), (mL, mR)) <= 0:
            self._steps = 0
            return
        self._steps += 1
        for step, change in ((dL, mL), (dR, mR)):
            step[:, :present] = step[:, :present] + self._steps / (self._steps + 3) * change


def stepped(
    L: Any,
    R: Any,
    result: Pass,
    update: str,
    weight: Any,
    present: int,
    length: float,
    momentum: Momentum | None = None,
) -> iteration.Retracted | None:
    """Return the best matrix of the same rank after a step of some length, or None where numbers ran away."""
    if not isinstance(L, np.ndarray) and momentum is None:
        from lrpca.matrices.device import step as device_step

        found = device_step.stepped(L, R, result, update, weight, present, length)
        if found is not None:
            return found
    dL, dR = directions(L, R, result, update, weight, present)
    if not iteration.all_finite(dL, dR):
        return None
    try:
        # The step itself may be too long for numbers.
        with np.errstate(over="ignore", invalid="ignore"):
            dL, dR = length * dL, length * dR
            if momentum is not None:
                momentum.add_to(dL, dR, L, R, present, weight)
            return iteration.retract(L, R, dL, dR, weight)
    except np.linalg.LinAlgError:
        return None
