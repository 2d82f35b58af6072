"""The residual of methods that remove its largest entries, dense or on a list of entries, and where they start."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from lrpca.core.passes import Pass
from lrpca.solvers.initialise import completed
from lrpca.solvers.listed import ListedResidual
from lrpca.solvers.partial_svd import OVERSAMPLING, PartialSVD, leading_svd, random_basis
from lrpca.solvers.run import Run
from lrpca.solvers.sparsify import DenseResidual

# Below this observed share, a list of entries is quicker than the whole matrix.
FEW = 0.3
# The first SVD starts from nothing: it may take this many steps, and ends when the singular values stand still.
_SVD_STEPS, _SVD_RTOL = 12, 1e-3
# Both factors move at once, each by the whole error: a step of more than 1 over the kept share would overshoot.
_STEP, _LEAST_KEPT = 0.9, 0.1
# To reject entries at the start has to lower the median residual this much.
_RATHER_NONE = 1.5


class Residual(Protocol):
    """Y - L Rᵀ where it is observed, without its largest entries.

    Attributes
    ----------
    shape : tuple of int
        Of Y.
    norm : float
        ‖Y‖ over the entries that count.
    observed : float
        Share of the entries that count.
    """

    shape: tuple[int, int]
    norm: float
    observed: float

    def sparsified(self, L: Any, R: Any, share: float) -> Pass:
        """Return the pass of E = D - T(D), with the products E R̄ and Eᵀ L̄."""
        ...

    def hold(self, share: float) -> None:
        """Make E = Y - T(Y) the matrix that `times` and `adjoint_times` multiply with."""
        ...

    def times(self, A: Any) -> Any:
        """Return E A."""
        ...

    def adjoint_times(self, B: Any) -> Any:
        """Return E^H B."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


def residual_of(run: Run, sample: float | None = None) -> Residual:
    """Return the residual of a run: of a random share of the entries if asked for, else of all observed ones."""
    listed = listed_residual_of(run, sample)
    return DenseResidual(run.matrix, run.survey.norm, run.survey.observed) if listed is None else listed


def listed_residual_of(run: Run, sample: float | None = None) -> ListedResidual | None:
    """Return the residual on a list of entries: a random share if asked for, or all where few are observed, or None."""
    if sample is not None and sample < 1:
        return ListedResidual(run.matrix, run.rng, sample)
    return ListedResidual(run.matrix, run.rng) if run.survey.observed < FEW else None


def first_factors(run: Run, residual: Residual, shares: tuple[float, ...], init: float | None) -> tuple[Any, Any]:
    """Return the factors to start from: those given, or of SVD_r((Y - T(Y)) / p), T rejecting the share `init`.

    Without `init` it is nothing or one of `shares`, by the median residual. Where outliers are no larger than the
    entries of X, T removes the largest of those, and with them weak components; gross outliers have to go.
    """
    if run.start is not None:
        return completed(*run.start, run.rng)
    if init is not None:
        return first_svd(residual, run.rank, init, run.rng).factors()
    found = [(share, first_svd(residual, run.rank, share, run.rng).factors()) for share in (0.0, *shares)]
    left = [float(np.median(run.sample.residuals(*factors))) for _, factors in found]
    left[0] /= _RATHER_NONE
    init, factors = found[int(np.argmin(left))]
    run.settle(init=init, estimated=True)
    return factors


def first_svd(residual: Residual, rank: int, share: float, rng: np.random.Generator) -> PartialSVD:
    """Return SVD_r((Y - T(Y)) / p), the spectral start."""
    residual.hold(share)
    basis = random_basis(residual.shape[1], min(rank + OVERSAMPLING, *residual.shape), rng)
    svd = leading_svd(residual.times, residual.adjoint_times, basis, steps=_SVD_STEPS, rtol=_SVD_RTOL).cut(rank)
    return svd._replace(values=svd.values / max(residual.observed, np.finfo(float).tiny))


def full_step(kept: float) -> float:
    """Return the step where none is given: what a gradient that saw the share `kept` of the entries calls for."""
    return _STEP / max(kept, _LEAST_KEPT)


def relative(residual: Residual, result: Pass) -> tuple[float, float]:
    """Return ‖Y - X - S‖ / ‖Y‖ of a pass, and the share of entries it kept."""
    entries = residual.observed * residual.shape[0] * residual.shape[1]
    kept = float(result.kept_by_row.sum()) / max(1.0, entries)
    return (result.norm_C / residual.norm if residual.norm else 0.0), kept
