"""Stable principal component pursuit [1]_: PCP for data with noise, which needs no rank either.

    min ‖X‖_* + λ ‖S‖_1 + ‖Y - X - S‖² / (2 μ),      λ = 1/√max(n1, n2),   μ = √(2 max(n1, n2)) σ

The best S for a given X is ``soft(Y - X, λμ)``, so that ``Y - S = X + clip(Y - X, λμ)``. What is left is a smooth
problem in X plus the nuclear norm, solved by accelerated proximal steps [2]_

    X = shrink(Z + clip(Y - Z, λμ), μ),   Z = X + momentum (X - X_before),

with μ falling from σ_1(Y) to its value. A missing entry has no residual. Both parts come out shrunk by about μ; with
``debias`` the singular values are refitted to the entries that are not in S.

References
----------
.. [1] Z. Zhou, X. Li, J. Wright, E. Candès, Y. Ma, "Stable Principal Component Pursuit", ISIT 2010.
.. [2] A. Beck, M. Teboulle, "A Fast Iterative Shrinkage-Thresholding Algorithm for Linear Inverse Problems", SIAM
   Journal on Imaging Sciences 2, 2009.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lrpca.core import factors as iteration
from lrpca.core.influence import levels
from lrpca.solvers.base import Solution
from lrpca.solvers.options import flag, number
from lrpca.solvers.outlier_share import probe_block
from lrpca.solvers.run import Run
from lrpca.solvers.shrinkage import Shrinkage
from lrpca.solvers.step import directions, take_pass

OPTIONS = {"weight": number(above=0), "noise_level": number(above=0), "debias": flag()}

# Continuation: the first μ in units of σ_1(Y), and by what it falls per iteration.
_FIRST, _FALL = 0.99, 0.8
# No entry moves by more than λμ in a step: where μ is small, X is stationary when ‖X - Z‖ is small in units of √r μ,
# not of ‖X‖. μ falls once that is nearly so.
_STATIONARY, _NEARLY = 1e-4, 0.03
_ROUNDINGS = 4.0
# σ is at least this part of the median entry: without noise the program is PCP, and μ has to end somewhere.
_LEAST_NOISE = {"single": 1e-5, "double": 1e-7}
_DEBIASING_PASSES = 20
# Error of the SVD, in units of what singular values are shrunk by.
_SVD_ACCURACY = 1e-4
_PROBED_RANK = 20


def solve(run: Run, *, weight: float | None = None, noise_level: float | None = None, debias: bool = False) -> Solution:
    """Run stable principal component pursuit.

    Parameters
    ----------
    run : Run
    weight : float, optional
        λ, the weight of S; ``1/√(p max(n1, n2))`` if not given, p being the observed share.
    noise_level : float, optional
        σ, the standard deviation of the noise; estimated from a block of Y if not given.
    debias : bool
        Refit the low-rank part on the entries that are not in S, with the components that exceed the noise.
    """
    longest = max(run.matrix.shape)
    weight = weight or 1 / math.sqrt(run.counts.observed * longest)
    run.settle(weight=weight)
    if noise_level is None:
        noise_level = _estimate_noise(run)
        run.settle(estimated=True, noise_level=noise_level)
    mu = math.sqrt(2 * longest) * noise_level
    L, R, reason = _pursue(run, weight, mu)
    if debias and reason != "callback":
        # Noise alone makes singular values of up to σ (√n1 + √n2) <= √2 μ, and what is left of them is less than μ.
        strong = np.linalg.norm(L, axis=0) * np.linalg.norm(R, axis=0) > mu
        L, R = _debiased(run, L[:, strong], R[:, strong], weight * mu)
    return run.end(L, R, reason)


def _pursue(run: Run, weight: float, last_mu: float) -> tuple[Any, Any, str]:
    smooth = _SmoothPart(run)
    shrinkage = Shrinkage(run.matrix.shape, run.rng)
    n1, n2 = run.matrix.shape
    L, R = np.zeros((n1, 0)), np.zeros((n2, 0))
    smooth.step(L, R, math.inf)  # M = Y
    mu = max(last_mu, _FIRST * shrinkage.largest(smooth.M))
    before_L, before_R, momentum, t = L, R, 0.0, 1.0
    for _ in run.iterations():
        # Z = (1 + m) X - m X_before, as one product.
        left, right = np.hstack([(1 + momentum) * L, -momentum * before_L]), np.hstack([R, before_R])
        norm, kept = smooth.step(left, right, weight * mu)
        svd = shrinkage.apply(smooth.M, mu, _SVD_ACCURACY * mu)
        before_L, before_R = L, R
        L, R = svd.factors()
        reason = run.record(L, R, threshold=weight * mu, step=1.0, residual=norm, kept=kept)
        distance = _distance(run, left, right, L, R) / (mu * math.sqrt(max(1, L.shape[1])))
        if reason is not None and (reason != "tol" or (mu == last_mu and distance <= _STATIONARY)):
            return L, R, reason
        t, t_before = (1 + math.sqrt(1 + 4 * t * t)) / 2, t
        momentum = (t_before - 1) / t
        falls = mu > last_mu and distance <= _NEARLY
        if falls or _points_back(left, right, L, R, before_L, before_R):
            momentum, t = 0.0, 1.0
        mu = max(last_mu, _FALL * mu) if falls else mu
    return L, R, "max_iter"


def _distance(run: Run, Z_left: Any, Z_right: Any, L: Any, R: Any) -> float:
    """Return ‖X - Z‖ beyond what may be rounding."""
    moved = iteration.product_distance(L, R, Z_left, Z_right)
    rounding = _ROUNDINGS * float(np.finfo(run.matrix.arithmetic).eps)
    return max(0.0, moved - rounding * iteration.product_norm(L, R))


def _points_back(Z_left: Any, Z_right: Any, L: Any, R: Any, before_L: Any, before_R: Any) -> bool:
    """Tell whether the momentum points back: ⟨Z - X, X - X_before⟩ > 0."""
    Z, X, before = (Z_left, Z_right), (L, R), (before_L, before_R)
    return math.fsum([_inner(*Z, *X), -_inner(*Z, *before), -_inner(*X, *X), _inner(*X, *before)]) > 0


def _inner(A: Any, B: Any, C: Any, D: Any) -> float:
    """Return the real part of ⟨A Bᵀ, C Dᵀ⟩."""
    return float(np.sum((A.conj().T @ C) * (B.conj().T @ D)).real)


class _SmoothPart:
    """The smooth part of the objective: the step along its gradient at Z."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._missing = run.counts.observed < 1
        self._count = float(run.counts.observed_by_row.sum())
        self.M = np.zeros(run.matrix.shape, run.matrix.arithmetic)

    def step(self, left: Any, right: Any, level: float) -> tuple[float, float]:
        """Set M = Z + clip(Y - Z, level), Z = left rightᵀ; return ‖Y - Z - S‖/‖Y‖ and the share of clean entries."""
        from lrpca.kernels.clipping import add_clipped

        dtype = self.M.dtype
        np.matmul(left.astype(dtype), right.T.astype(dtype), out=self.M)
        limit = self.M.real.dtype.type(level)
        parts = self._run.matrix.map_rows(
            lambda rows, block, observed: add_clipped(block, observed, self.M[rows], limit), missing=self._missing
        )
        norm = math.sqrt(math.fsum(total for total, _ in parts))
        within = sum(count for _, count in parts)
        return norm / self._run.counts.norm if self._run.counts.norm else 0.0, within / self._count


def _debiased(run: Run, L: Any, R: Any, level: float) -> tuple[Any, Any]:
    """Return the least-squares fit of the same rank to the entries that are not in S, by tangent passes."""
    if L.shape[1] == 0:
        return L, R
    for _ in range(_DEBIASING_PASSES):
        result = take_pass(run.matrix, L, R, levels("hard", level), None)
        share = max(iteration.kept_share(result), 1e-6)
        dL, dR = (direction / share for direction in directions(L, R, result, "tangent", None))
        L, R = iteration.retract(L, R, dL, dR).factors()
    return L, R


def _estimate_noise(run: Run) -> float:
    """Return the noise level of a block of Y, solved with a rank that is surely enough."""
    sigma, _ = probe_block(run, _PROBED_RANK)
    typical = float(run.sample.typical or np.abs(run.sample.values).max(initial=0.0)) or 1.0
    single = run.matrix.arithmetic in (np.float32, np.complex64)
    return max(sigma, _LEAST_NOISE["single" if single else "double"] * typical)
