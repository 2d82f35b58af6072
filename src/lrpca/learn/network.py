"""The LRPCA iteration as a network: a module whose parameters are the numbers of a `Schedule`.

One layer is one pass of the solver, with the same formulas: ``ζ_k`` and ``η_k`` of the schedule, the influence
``C = ψ(Y - L Rᵀ)``, the scaled or tangent direction or that of per-row normal equations, the step. There are three
models:

=======  ==========================================================================================
fnn      every layer has its own numbers
rnn      layer 0 has numbers, ``η_k = β η_{k-1}`` and ``ζ_k = φ ζ_{k-1}`` from there on
frmnn    layers 0 to K have numbers, the recurrence follows: it runs for any number of iterations
=======  ==========================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from lrpca.core.factors import OWN_GRAM_DAMPING, kept_share
from lrpca.core.influence import levels
from lrpca.core.passes import Pass
from lrpca.learn.operations import influence_pass, multiply, retract
from lrpca.learn.tensors import Data
from lrpca.schedule import Schedule
from lrpca.solvers.adaptive import LEAST_KEPT_SOFT
from lrpca.solvers.checks.low_inlier_rows import low_inlier_rows, needs_row_normal_equations
from lrpca.solvers.thresholds import HELD, LONGEST_HELD, PATIENT_DECAY, PATIENT_TAIL

MODELS = ("fnn", "rnn", "frmnn")


@dataclass(frozen=True)
class Layer:
    """An iterate and how it was reached; layer 0 is the initialisation."""

    L: Any  # (n1, r)
    R: Any  # (n2, r)
    threshold: Any  # () ζ_k as applied
    step: Any  # () η_k as applied
    kept: float  # share of the observed entries


class Numbers(NamedTuple):
    """Threshold and step of a layer."""

    threshold: Any
    step: Any


class UnrolledNetwork(torch.nn.Module):
    """The iteration of `lrpca.decompose` with trainable numbers.

    Parameters
    ----------
    schedule : Schedule
        The numbers to start from, and the parametrisation: kind, influence, update, shape and rank.
    model : {"fnn", "rnn", "frmnn"}
        fnn: no tail. frmnn: the schedule's tail is trained. rnn: only layer 0 (adaptive schedules: layer 1) and the
        tail are trained, and the numbers of all later layers follow from them.
    positive : bool
        Train logarithms, so that no number can turn negative; else the numbers themselves, as the paper does.

    Examples
    --------
    >>> from lrpca import Schedule
    >>> network = UnrolledNetwork(Schedule([0.01, 5e-4], [0, 1.4], tail=(1.0, 0.6)), "frmnn")
    >>> [f"{network.numbers(k).threshold.item():.1e}" for k in (1, 2, 3)]
    ['5.0e-04', '3.0e-04', '1.8e-04']
    """

    def __init__(self, schedule: Schedule, model: str = "frmnn", *, positive: bool = True) -> None:
        super().__init__()
        if model not in MODELS:
            raise ValueError(f"model={model!r} is unknown; use one of {', '.join(MODELS)}")
        if model != "fnn" and schedule.tail is None:
            raise ValueError(f"model={model!r} needs a recurrent tail; pass a schedule with tail=(beta, phi)")
        self.model = model
        self.form = schedule if model != "fnn" else replace(schedule, tail=None, floor=None)
        self._positive = positive
        # The last layer with numbers of its own. ζ_0 of an adaptive schedule has another unit than the others: the
        # recurrence of an rnn begins at layer 1 there.
        self._free = schedule.layers if model != "rnn" else int(schedule.kind == "adaptive")
        thresholds, steps = list(schedule.thresholds), list(schedule.steps)
        # Index 0 of the steps is not used, but a recurrence from layer 0 starts there.
        steps[0] = steps[1] if self._free else steps[1] / schedule.tail[0]  # type: ignore[index]
        # A threshold of 0 (no clipping of nothing) has no logarithm.
        tiny = np.finfo(float).tiny
        self.thresholds = self._parameter([max(value, tiny) for value in thresholds[: self._free + 1]])
        self.steps = self._parameter(steps[: self._free + 1])
        self.tail = self._parameter(schedule.tail or (1.0, 1.0))
        self.tail.requires_grad_(model != "fnn")

    def _parameter(self, values: Any) -> torch.nn.Parameter:
        numbers = torch.tensor([float(value) for value in values], dtype=torch.float64)
        return torch.nn.Parameter(torch.log(numbers) if self._positive else numbers)

    def _value(self, parameter: Any) -> Any:
        return torch.exp(parameter) if self._positive else parameter

    def numbers(self, k: int) -> Numbers:
        """Return threshold and step of layer k, as `Schedule.at`; 0 is the initialisation's threshold."""
        free = min(k, self._free)
        threshold, step = self._value(self.thresholds[free]), self._value(self.steps[free])
        if k > free:
            if self.form.tail is None:
                raise ValueError(f"depth={k} is beyond the {self._free} layers of the network; a tail would go on")
            beta, phi = self._value(self.tail)
            threshold, step = threshold * phi ** (k - free), step * beta ** (k - free)
        return Numbers(threshold, step)

    def layers(
        self, data: Data, depth: int, *, start: tuple[Any, Any] | None = None, after: int = 0
    ) -> Iterator[Layer]:
        """Run the iteration, from the initialisation (layer 0) to layer `depth`.

        Parameters
        ----------
        data : Data
            The problem, see `lrpca.learn.tensors.prepare`.
        depth : int
            Last layer.
        start : (L, R), optional
            Factors to begin with instead of the spectral initialisation.
        after : int
            The layer that `start` is the outcome of. Only for absolute schedules without a floor: other thresholds
            depend on the layers before.

        Raises
        ------
        FloatingPointError
            An iterate has become infinite, or has lost its rank.
        """
        clip = data.placed(self.numbers(0).threshold) * data.unit(self.form.kind)
        L, R = data.start(clip) if start is None else start
        check_finite(L, R, after)
        yield Layer(L, R, clip, torch.zeros((), dtype=data.dtype), 1.0)
        last: Any = None
        result: Pass | None = None
        for k in range(after + 1, depth + 1):
            threshold, number = (data.placed(value) for value in self.numbers(k))
            # Thresholds wait for low-inlier rows and columns.
            waits = self.form.kind == "adaptive" or self.form.floor is not None
            low_inlier = waits and low_inlier_rows(result, data.counts)
            by_recurrence = threshold
            last = threshold = self._threshold(threshold, data, L, R, last, k, patient=low_inlier)
            if self.form.floor is not None and bool(threshold > HELD * by_recurrence):
                number = torch.clamp(number, max=LONGEST_HELD)
            grams = self._wants_grams(result, data, low_inlier)
            try:
                dL, dR, result = self._directions(data, L, R, threshold, grams=grams)
                step = self._step(number, result, data, grams=grams)
                dL, dR = step * dL, step * dR
                L, R = (L + dL, R + dR) if self.form.kind == "absolute" else retract(L, R, dL, dR)
            except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
                raise FloatingPointError(f"layer {k} cannot be computed ({error})") from error
            check_finite(L, R, k)
            yield Layer(L, R, threshold, step, data.counts.relative(result)[1])

    def forward(self, data: Data, depth: int) -> tuple[Any, Any]:
        """Return the factors after `depth` layers."""
        *_, last = self.layers(data, depth)
        return last.L, last.R

    def _threshold(self, number: Any, data: Data, L: Any, R: Any, last: Any, k: int, *, patient: bool) -> Any:
        """Return ζ_k: the number itself, or a multiple of the inlier scale."""
        if self.form.kind == "absolute":
            if self.form.floor is None or k <= max(1, self._free):
                return number
            phi = data.placed(self._value(self.tail)[1])
            held = torch.clamp(phi, min=PATIENT_TAIL) if patient else phi
            return torch.maximum(held * last, self.form.floor * data.inlier_scale(L, R))
        wanted = torch.clamp(number * data.inlier_scale(L, R), min=data.rules.least)
        if last is None:
            return wanted
        decay = max(self.form.decay, PATIENT_DECAY) if patient else self.form.decay
        return torch.maximum(decay * last, torch.minimum(wanted, last))

    def _wants_grams(self, last: Pass | None, data: Data, low_inlier: bool) -> bool:
        """Tell whether rows and columns are solved by per-row normal equations, by the solver's rule."""
        if self.form.update == "own_gram":
            return True
        may = self.form.kind == "adaptive" and self.form.update == "tangent" and self.form.influence != "soft"
        return may and needs_row_normal_equations(last, data.counts, data.rank, low_inlier=low_inlier)

    def _step(self, number: Any, result: Pass, data: Data, *, grams: bool) -> Any:
        if self.form.kind == "absolute" or grams:
            return number
        share = kept_share(result)
        if self.form.influence == "soft":
            share = max(share, LEAST_KEPT_SOFT * data.counts.observed)
        return number / max(share, 1e-6)

    def _directions(self, data: Data, L: Any, R: Any, threshold: Any, *, grams: bool) -> tuple[Any, Any, Pass]:
        """Return ΔL and ΔR of a step of length 1, and what the pass has kept."""
        # The cutoff's multiple of ζ is not trained: single problems give it no gradient.
        cutoff = levels(self.form.influence, 1.0, self.form.cutoff).cutoff * threshold.detach()
        CA, CtB, by_row, by_column = influence_pass(data.Y, data.observed, L, R, threshold, cutoff, matrix=data.matrix)
        result = Pass(None, None, by_row.cpu().numpy(), by_column.cpu().numpy(), math.nan)
        if grams:
            kept = data.kept(L, R, cutoff if bool(torch.isfinite(cutoff)) else threshold)
            damping = kept_share(result) * OWN_GRAM_DAMPING
            dL, dR = _solve_rows(kept, R, CA, damping), _solve_rows(kept.T, L, CtB, damping)
        else:
            dL, dR = CA @ torch.linalg.inv(R.T @ R), CtB @ torch.linalg.inv(L.T @ L)
        if self.form.update != "scaled":
            dL, dR = dL - 0.5 * _project(L, dL), dR - 0.5 * _project(R, dR)
        return dL, dR, result

    def schedule(self, meta: dict[str, Any] | None = None) -> Schedule:
        """Return the numbers as they are now."""
        with torch.no_grad():
            layers = max(1, self._free)
            pairs = [self.numbers(k) for k in range(layers + 1)]
            thresholds = [float(pair.threshold) for pair in pairs]
            steps = [0.0, *(float(pair.step) for pair in pairs[1:])]
            tail = None if self.form.tail is None else [float(value) for value in self._value(self.tail)]
        return replace(self.form, thresholds=thresholds, steps=steps, tail=tail, meta=meta or dict(self.form.meta))


def check_finite(L: Any, R: Any, k: int) -> None:
    """Raise where norms, and the squares that errors are computed from, are beyond the range of the type."""
    size = torch.linalg.matrix_norm(L.detach()) * torch.linalg.matrix_norm(R.detach())
    if not bool(torch.isfinite(size**2)):
        raise FloatingPointError(f"the factors after layer {k} are not finite")


def _solve_rows(
    kept: Any,  # (n, m), ones and zeros beside Y
    other: Any,  # (m, r)
    products: Any,  # (n, r)
    damping: float,
) -> Any:
    """Return the direction of each row by the Gram of its kept entries, as `lrpca.core.factors.solve_each`."""
    r = other.shape[1]
    outer = (other[:, :, None] * other[:, None, :]).reshape(len(other), -1)
    grams = multiply(kept, outer).reshape(-1, r, r) + damping * (other.T @ other)
    tiny = torch.finfo(grams.dtype).tiny
    diagonal = torch.diagonal(grams.detach(), dim1=1, dim2=2)
    scale = torch.rsqrt(torch.clamp(diagonal.mean(dim=0), min=tiny))
    ridge = 1e-12 * (diagonal * scale**2).sum(dim=1) + tiny
    scaled = grams * (scale[:, None] * scale) + torch.diag_embed(ridge[:, None].expand_as(products))
    return torch.linalg.solve(scaled, (products * scale)[:, :, None])[:, :, 0] * scale


def _project(M: Any, dM: Any) -> Any:
    return M @ torch.linalg.solve(M.T @ M, M.T @ dM)
