"""The elementwise half of the convex methods: clip a residual and add it to the low-rank part, in place.

Both kernels read Y once, are serial and release the GIL; the caller runs threads over blocks of rows. Entries that are
not observed have no residual. Complex numbers are clipped in modulus.
"""

from __future__ import annotations

from lrpca.kernels.cpu import outer


@outer
def dual_step(Y, observed, dual, M, mu, next_mu, weight):
    """Update the dual and the matrix whose singular values are shrunk next; return Σ|Λ' - Λ|².

    On entry M = X, the low-rank part; ``Λ' = clip(μ (Y - X) + Λ, λ)``, which is Λ + μ (Y - X - S) for
    ``S = soft(Y - X + Λ/μ, λ/μ)``; on return ``M = Y - S + Λ'/μ' = X + (Λ' - Λ)/μ + Λ'/μ'``.
    """
    total = 0.0
    for i in range(Y.shape[0]):
        for j in range(Y.shape[1]):
            x, old = M[i, j], dual[i, j]
            z = (Y[i, j] - x) * mu + old
            size = abs(z)
            new = z if size <= weight else z * (weight / size)
            if observed is not None and not observed[i, j]:
                new = old * 0  # Y may be NaN there
            moved = new - old
            total += moved.real * moved.real + moved.imag * moved.imag
            M[i, j] = x + moved / mu + new / next_mu
            dual[i, j] = new
    return total


@outer
def add_clipped(Y, observed, M, level):
    """Set M = X + clip(Y - X, level) where M = X on entry: that is Y - S for S = soft(Y - X, level).

    Returns Σ|clip(Y - X, level)|² and how many entries are within the level.
    """
    total, within = 0.0, 0
    for i in range(Y.shape[0]):
        for j in range(Y.shape[1]):
            if observed is not None and not observed[i, j]:
                continue
            d = Y[i, j] - M[i, j]
            size = abs(d)
            within += size <= level
            c = d if size <= level else d * (level / size)
            total += c.real * c.real + c.imag * c.imag
            M[i, j] += c
    return total, within
