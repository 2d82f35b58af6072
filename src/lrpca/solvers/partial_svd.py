"""The leading singular triplets of a matrix that is only known by its products with a few vectors.

Subspace iteration from a basis at hand: iterations of a solver change the matrix little, so the last right singular
vectors are an excellent start and one step does, where a fresh random basis needs several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lrpca.core.factors import orthonormal, thin_svd
from lrpca.core.influence import Levels
from lrpca.core.passes import Pass

# Columns beyond those wanted: they take the blame for what the iteration has not yet resolved.
OVERSAMPLING = 5

Product = Callable[[Any], Any]


class PartialSVD(NamedTuple):
    """M ≈ U diag(values) V^H, largest first."""

    U: Any  # (n1, k) orthonormal
    values: Any  # (k,)
    V: Any  # (n2, k) orthonormal

    def cut(self, rank: int) -> PartialSVD:
        """Return the leading `rank` triplets."""
        return PartialSVD(self.U[:, :rank], self.values[:rank], self.V[:, :rank])

    def value(self, k: int) -> float:
        """Return σ_{k+1}, 0 where there are no more."""
        return float(self.values[k]) if k < len(self.values) else 0.0

    def factors(self) -> tuple[Any, Any]:
        """Return L = U Σ^½ and R = V̄ Σ^½, so that M ≈ L Rᵀ."""
        root = np.sqrt(self.values)
        return self.U * root, self.V.conj() * root


def half_pass(data: Any, factors: Any, level: Levels, *, A: Any = None, B: Any = None, energy: bool = False) -> Pass:
    """Return a pass at X = L Rᵀ, or zero without `factors`, with C A or CᵀB, or none of them."""
    none_1, none_2 = (np.zeros((n, 0)) for n in data.shape)
    L, R = factors or (none_1, none_2)
    more = {"energy": True} if energy else {}
    result: Pass = data.run_pass(L, R, level, A=none_2 if A is None else A, B=none_1 if B is None else B, **more)
    return result


def leading_svd(
    times: Product,  # (n2, k) -> (n1, k): M A
    adjoint_times: Product,  # (n1, k) -> (n2, k): M^H B
    basis: Any,  # (n2, k) to start from, k of them beyond what is wanted
    *,
    steps: int = 1,
    rtol: float = 0.0,
) -> PartialSVD:
    """Return as many leading singular triplets as `basis` has columns, by at most `steps` steps of two products each.

    Ends early once every singular value changes by less than `rtol` times the largest.
    """
    V, values = basis, None
    for _ in range(steps):
        Q = orthonormal(times(V))
        V, new, Wh = thin_svd(adjoint_times(Q))
        if values is not None and np.abs(new - values).max() <= rtol * new[0]:
            values = new
            break
        values = new
    # M^H Q = V diag(values) Wh, so M ≈ Q (M^H Q)^H = (Q Wh^H) diag(values) V^H.
    return PartialSVD(Q @ Wh.conj().T, values, V)


def random_basis(n: int, width: int, rng: np.random.Generator) -> Any:
    """Return a Gaussian test matrix (n, width)."""
    return rng.standard_normal((n, min(width, n)))


def widened(basis: Any, width: int, rng: np.random.Generator) -> Any:  # basis (n, k)
    """Return a basis of `width` columns: those given, and Gaussian ones of their size."""
    n, k = basis.shape
    if width <= k:
        return basis[:, :width]
    extra = rng.standard_normal((n, width - k)).astype(basis.dtype) / np.sqrt(n).astype(basis.real.dtype)
    return np.concatenate([basis, extra], axis=1)
