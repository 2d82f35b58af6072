"""Gradient descent on the residual without its largest entries, which `gd` and `scaledgd` share, and its start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lrpca.core.passes import Pass
from lrpca.solvers.base import Solution
from lrpca.solvers.initialise import completed
from lrpca.solvers.listed import ListedResidual
from lrpca.solvers.options import number
from lrpca.solvers.outlier_share import settle_share
from lrpca.solvers.partial_svd import OVERSAMPLING, PartialSVD, leading_svd, random_basis
from lrpca.solvers.run import Factors, Run
from lrpca.solvers.sparsify import DenseResidual

# Below this observed share, a list of entries is quicker than the whole matrix.
FEW = 0.3
# The first SVD takes at most this many steps, and ends when the singular values are stationary.
_SVD_STEPS, _SVD_RTOL = 12, 1e-3
# Both factors move at once, each by the whole error: a step of more than 1 over the kept share would overshoot.
_STEP, _LEAST_KEPT = 0.9, 0.1
# Entries are rejected at the start if that lowers the median residual this much.
_RATHER_NONE = 1.5

Residual = DenseResidual | ListedResidual


# Options of a descent, as `gd` and `scaledgd` document them: alpha, gamma, init and step.
DescentOptions = tuple[float | None, float | None, float | None, float | None]
OPTIONS = {
    "alpha": number(least=0, below=1),
    "gamma": number(least=1),
    "init": number(least=0, below=1),
    "step": number(above=0),
}


def residual_of(run: Run, sample: float | None = None) -> Residual:
    """Return the residual of a random share of the entries if asked for, else of all observed ones."""
    return listed_residual_of(run, sample) or DenseResidual(run.matrix, run.counts.norm, run.counts.observed)


def listed_residual_of(run: Run, sample: float | None = None) -> ListedResidual | None:
    """Return the residual on a list of entries: a random share if asked for, or all where few are observed, or None."""
    if sample is not None and sample < 1:
        return ListedResidual(run.matrix, run.rng, sample)
    return ListedResidual(run.matrix, run.rng) if run.counts.observed < FEW else None


def descend(
    run: Run,
    residual: Residual,
    options: DescentOptions,
    update: Callable[[Any, Any, Pass, float], Factors],
    is_stationary: Callable[[Factors, Factors], bool] = lambda before, after: False,
) -> Solution:
    """Iterate ``L, R = update(L, R, pass, step)`` on the pass of E = D - T(D), and close the residual."""
    result, reason = None, "max_iter"
    alpha, gamma, init, length = options
    try:
        alpha, share = settle_share(run, alpha, gamma, residual.observed)
        L, R = _first_factors(run, residual, (alpha, share), init)
        entries = max(1.0, residual.observed * residual.shape[0] * residual.shape[1])
        for _ in run.iterations():
            result = residual.sparsified(L, R, share)
            kept = float(result.kept_by_row.sum()) / entries
            step = length or _STEP / max(kept, _LEAST_KEPT)
            with np.errstate(over="ignore", invalid="ignore"):
                new = update(L, R, result, step)
            if not all(np.isfinite(factor).all() for factor in new):
                reason = "runaway"
                break
            before, (L, R) = (L, R), new
            size = result.norm_C / residual.norm if residual.norm else 0.0
            verdict = run.record(L, R, step=step, residual=size, kept=kept)
            if verdict is not None or is_stationary(before, new):
                reason = verdict or "tol"
                break
    finally:
        residual.close()
    whole = run.settings.get("sample") in (None, 1.0)
    return run.end(L, R, reason, result.kept if result and whole else None)


def _first_factors(run: Run, residual: Residual, shares: tuple[float, ...], init: float | None) -> Factors:
    """Return the given factors, or those of SVD_r((Y - T(Y)) / p), T rejecting the share `init`.

    Without `init` it is zero or one of `shares`, by the median residual. Where outliers are no larger than the entries
    of X, T removes the largest of those, and with them weak components; gross outliers have to be removed.
    """
    if run.start is not None:
        return completed(*run.start, run.rng)
    if init is not None:
        return _first_svd(residual, run.rank, init, run.rng).factors()
    found = [(share, _first_svd(residual, run.rank, share, run.rng).factors()) for share in (0.0, *shares)]
    left = [float(np.median(run.sample.residuals(*factors))) for _, factors in found]
    left[0] /= _RATHER_NONE
    init, factors = found[int(np.argmin(left))]
    run.settle(init=init, estimated=True)
    return factors


def _first_svd(residual: Residual, rank: int, share: float, rng: np.random.Generator) -> PartialSVD:
    residual.hold(share)
    basis = random_basis(residual.shape[1], min(rank + OVERSAMPLING, *residual.shape), rng)
    svd = leading_svd(residual.times, residual.adjoint_times, basis, steps=_SVD_STEPS, rtol=_SVD_RTOL).cut(rank)
    return svd._replace(values=svd.values / max(residual.observed, np.finfo(float).tiny))
