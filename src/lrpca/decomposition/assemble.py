"""The result of a finished run: normal form, noise level, outliers, diagnosis."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.core.factors import longest_rows, normal_form
from lrpca.decomposition.result import Decomposition, Diagnosis
from lrpca.kernels.scale import outlier_threshold, rounding_level
from lrpca.solvers.base import Solution
from lrpca.solvers.checks.residual_structure import STRUCTURED
from lrpca.solvers.rank.choice import RankChoice, concerns
from lrpca.solvers.run import Run

# Remaining distance of X from its limit when the changes have fallen below the tolerance, in units of the last one.
LEFT_OF_CHANGE = 2.0
# From these shares of outliers and of zeros on, the diagnosis has a message.
MANY_OUTLIERS, MANY_ZEROS = 0.45, 0.5
# Numbers of passes that differ by less from a whole number are rounded to it.
_NEARLY = 0.01
# A component this much weaker than the strongest is rounding.
_ABSENT = 1e-12


def assemble(run: Run, outcome: Solution, choice: RankChoice | None = None) -> Decomposition:
    """Return the decomposition of a finished run, without Y; `choice` is that of its rank, if it was to be found."""
    matrix, sample = run.matrix, run.sample
    L, R, values = normal_form(outcome.L, outcome.R)
    found = int(np.count_nonzero(values > _ABSENT * values[0])) if values[0] else 0
    L, R = L[:, : outcome.rank], R[:, : outcome.rank]
    # A device has computed the residuals of the factors of the outcome; the normal form has the same, unless columns
    # are cut off.
    fit = (L, R) if outcome.rank is not None or isinstance(L, np.ndarray) else (outcome.L, outcome.R)
    residuals, measured = sample.residuals(*fit), sample.telling
    scale = float(measured.typical or np.abs(sample.values).max(initial=0.0))
    sigma = measured.core(*fit, rounding_level(matrix.result, scale)).sigma
    change = _remaining_change(run, outcome)
    # |L_i| |R_j| bounds the entries of X, and with them the rounding of a residual.
    largest = longest_rows(L, R)
    rounding = rounding_level(matrix.result, largest)
    threshold = outlier_threshold(sigma, matrix.stored, rounding, change * scale, max(matrix.shape))
    fraction = float(np.mean(residuals > threshold))
    zeros, fallback = float(np.mean(sample.values == 0)), run.settings.get("fallback")
    diagnosis = diagnose(outcome, matrix.shape, found, fraction, threshold * matrix.unit, zeros, choice, fallback)
    result = Decomposition(
        L.astype(matrix.result),
        R.astype(matrix.result),
        history=outcome.history,
        reason=outcome.reason,
        noise_level=sigma,
        outlier_threshold=threshold,
        outlier_fraction=fraction,
        n_reads=_counted(matrix.reads),
        diagnosis=diagnosis,
        method=run.method.name,
        settings=told_settings(run.settings),
        estimated=tuple(run.estimated),
        rank_choice=choice,
    )
    return result.in_units(1 / matrix.unit)


def told_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings for users and files: sets as sorted lists."""
    return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in settings.items()}


def _counted(reads: float) -> int | float:
    """Return a number of passes: an integer if it is nearly one, otherwise with four decimals."""
    whole = round(reads)
    return whole if whole and abs(reads - whole) < _NEARLY else round(float(reads), 4)


def _remaining_change(run: Run, outcome: Solution) -> float:
    """Return the distance of X from its limit, relative to X, as far as the stopping rule bounds it."""
    by_residual = run.method.measure == "residual"
    if outcome.reason == "tol":
        # A small residual says less about X than a small change.
        return max(outcome.change, run.tol) if by_residual else LEFT_OF_CHANGE * outcome.change
    if outcome.reason == "max_iter" and by_residual and outcome.history:
        return max(outcome.change, (outcome.history[-1].residual or 0.0) / math.sqrt(max(run.matrix.shape)))
    # At the noise floor X moves within the noise, which σ includes.
    return 0.0


def diagnose(
    outcome: Solution,
    shape: tuple[int, int],
    found: int,
    fraction: float,
    threshold: float,
    zeros: float,
    choice: RankChoice | None = None,
    fallback: str | None = None,
) -> Diagnosis:
    """Return the diagnosis of rows, columns, components and S, with messages on what is unusual."""
    # NaN, and no rows or columns, if a method does not read every entry.
    shares, idle = [np.full(n, np.nan) for n in shape], [np.zeros(0, int)] * 2
    counts = outcome.counts
    observed = None if counts is None else (counts.observed_by_row, counts.observed_by_column)
    # If a method does not report what it kept, rows and columns without observed entries are known.
    if (kept := observed if outcome.kept is None else outcome.kept) is not None:
        idle = [np.flatnonzero(np.asarray(part) == 0) for part in kept]
    if observed is not None and outcome.kept is not None:
        shares = [_share(part, whole) for part, whole in zip(outcome.kept, observed, strict=True)]
    components = found if outcome.components is None else outcome.components
    messages = [] if choice is None else concerns(choice)
    if fallback is not None:
        messages.append(f"the sampled solution was not used: {fallback}; Y was solved by the full method")
    for name, axis in (("row", idle[0]), ("column", idle[1])):
        if len(axis):
            some = ", ".join(str(i) for i in axis[:5]) + (", ..." if len(axis) > 5 else "")
            messages.append(
                f"{len(axis)} {name}(s) without influence ({some}): all entries are missing or were rejected; no data "
                "support their part of low_rank, drop them"
            )
    if outcome.reason == "stalled" and outcome.structure > STRUCTURED:
        messages.append(
            f"the residual still has low-rank structure (its singular values have a gap of a factor of "
            f"{outcome.structure:.1f}); the rank is probably too small, try a larger one"
        )
    if MANY_ZEROS < zeros < 1:
        messages.append(
            f"{100 * zeros:.0f}% of the entries of Y are exactly zero and count as data; if they mean missing, pass "
            "mask=(Y != 0)"
        )
    if fraction > MANY_OUTLIERS:
        messages.append(
            f"S holds {100 * fraction:.0f}% of the entries: Y has that many outliers, or the low-rank part is wrong; "
            "check the rank, and look at what S holds"
        )
    elif fraction == 0:
        messages.append(
            f"S is empty: no sampled residual exceeds {threshold:.2g}; Y has no outliers, the rank is so large that "
            "they are fitted, or they are so many that they pass for noise"
        )
    if choice is None and outcome.rank is not None and found > outcome.rank:
        messages.append(
            f"the low-rank part has {found} components, of which the {outcome.rank} asked for are returned; leave rank "
            "out to get them all"
        )
    return Diagnosis(shares[0], shares[1], idle[0], idle[1], components, messages)


def _share(part: Any, whole: Any) -> Any:  # part (n,) int; whole (n,) int
    part, whole = np.asarray(part), np.asarray(whole)
    with np.errstate(invalid="ignore"):
        return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
