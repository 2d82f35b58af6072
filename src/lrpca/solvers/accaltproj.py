"""AccAltProj: accelerated alternating projections [1]_.

    S = hard(Y - X, ζ),   X = SVD_r(P_T(Y - S)),   ζ = β (σ_{r+1} + γ^k σ_1),

P_T being the projection on the tangent space of the rank-r matrices at X, so that the SVD is one of 2r x 2r numbers. On
entries that the hard threshold keeps, Y - S is Y; on the others it is X. So ``Y - S = X + C`` with the influence
``C = hard-kept residual``, and an iteration is one pass over Y. Of missing entries C is 0; with a share p observed, it
counts 1 / p times.

References
----------
.. [1] H. Cai, J.-F. Cai, K. Wei, "Accelerated Alternating Projections for Robust Principal Component Analysis",
   Journal of Machine Learning Research 20, 2019.
"""

from __future__ import annotations

from lrpca.core import factors as iteration
from lrpca.core.influence import levels
from lrpca.core.passes import Pass
from lrpca.solvers.base import Solution
from lrpca.solvers.hard import clean_spread, first_svd
from lrpca.solvers.initialise import completed
from lrpca.solvers.options import number
from lrpca.solvers.run import Run
from lrpca.solvers.step import directions, take_pass

OPTIONS = {
    "gamma": number(above=0, below=1),
    "beta": number(above=0),
    "beta_init": number(above=0),
    "floor": number(least=0),
}


def solve(
    run: Run, *, gamma: float = 0.7, beta: float | None = None, beta_init: float | None = None, floor: float = 3.0
) -> Solution:
    """Run accelerated alternating projections.

    Parameters
    ----------
    run : Run
    gamma : float
        By what factor the threshold falls, in (0, 1): 0.5 is fast, 0.9 slow and robust to more outliers.
    beta : float, optional
        Threshold in units of singular values; ``1 / (2 (n1 n2)^¼)`` if not given.
    beta_init : float, optional
        The same at the initialisation; 4 `beta` if not given.
    floor : float
        The threshold is held above so many times the spread of clean residuals: in noise it would otherwise fall until
        S takes in everything. 0 lets it, as in the paper.
    """
    n1, n2 = run.matrix.shape
    beta = beta or 0.5 / (n1 * n2) ** 0.25
    run.settle(beta=beta)
    if run.start is None:
        beta_init = beta_init or 4 * beta
        run.settle(beta_init=beta_init)
        L, R = first_svd(run, run.rank, beta_init)[0].cut(run.rank).factors()
    else:
        run.refuse("with a start", beta_init=beta_init)
        L, R = completed(*run.start, run.rng)
    counts = run.counts
    threshold = beta * iteration.product_norm(L[:, :1], R[:, :1])
    result: Pass | None = None
    reason: str | None = None
    for k in run.iterations():
        result = take_pass(run.matrix, L, R, levels("hard", threshold), None)
        dL, dR = (direction / counts.observed for direction in directions(L, R, result, "tangent", None))
        new = iteration.retract(L, R, dL, dR)
        L, R = new.factors()
        residual, kept = counts.relative(result)
        reason = run.record(L, R, threshold=threshold, step=1.0, residual=residual, kept=kept)
        if reason is not None:
            break
        wanted = beta * (new.next_value + gamma**k * float(new.values[0]))
        threshold = max(wanted, min(threshold, floor * clean_spread(run.sample, L, R)))
    return run.end(L, R, reason or "max_iter", result.kept if result else None)
