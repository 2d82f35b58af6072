"""Components that nobody speaks for: they live on entries that are rejected.

Outliers that fill a block of some rows and columns look like a component, and where the rank leaves room, one is fitted
to them. Once the entries of the block are rejected, nothing speaks for it any more, and nothing against it: X is right
on every entry that counts, and arbitrary on the block. The simpler X is the one without it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lrpca.core.linalg import some_eigh, svd
from lrpca.matrices.sample import Sample
from lrpca.solvers.components import PROBE, Components

# Entries of the first, quick look, and the part of the kept share that every component has there if all is well.
_FEW, _USUAL = 4000, 0.8
# Components with less than this part of the kept share of their energy on kept entries are unfounded, if their energy
# is shared by so many sampled entries at least.
_UNFOUNDED, _SHOWN_BY = 0.25, 5.0
# The same of combinations of components, of which there are many: of so many components at most, and the sample has to
# show at least this part of the energy.
_WIDTH, _UNFOUNDED_MIX, _MIX_SHOWN_BY, _SHOWN_PART = 8, 0.03, 8.0, 0.25
# Of kept entries so many are outside of the block; the others are kept by chance.
_NEARLY_ALL = 0.99
# What is left of a component that is taken out, which stays as a probe.
_REST = 1e-6
_TINY = float(np.finfo(float).tiny)


class Without(NamedTuple):
    """Components without what was unfounded, and how far that moves nearly all kept entries of X, at most."""

    parts: Components
    moved: float


def without_unfounded(parts: Components, sample: Sample, cutoff: float, edge: float) -> Without | None:
    """Return the components without what lives on rejected entries alone, made a probe; None if there is no such.

    Parameters
    ----------
    parts : Components
    sample : Sample
        Random observed entries.
    cutoff : float
        The residual beyond which entries are rejected.
    edge : float
        The largest singular value of noise.
    """
    m = parts.present
    if m < 2:
        return None
    support = _Support.of(parts, sample.thinned(_FEW), cutoff)
    shares, kept = support.by_component(), float(np.mean(support.kept))
    if kept == 1 or shares.min() >= _USUAL * kept:
        return None
    support = _Support.of(parts, sample, cutoff)
    return _without_combination(parts, support, edge) or _without_single_ones(parts, support, edge)


def _without_single_ones(parts: Components, support: _Support, edge: float) -> Without | None:
    """Return the components without those that are unfounded by themselves, or None."""
    m, alone = parts.present, support.unfounded()
    if not alone.any() or alone.all():
        return None
    dropped = parts.is_present
    dropped[:m] = alone
    return Without(parts.without(dropped, edge), support.moved(np.diag(parts.values[:m] * alone)))


def _without_combination(parts: Components, support: _Support, edge: float) -> Without | None:
    """Return the components without a combination of some of them that is unfounded, or None."""
    m = parts.present
    chosen = np.sort(np.argsort(support.by_component(), kind="stable")[:_WIDTH])
    found = support.only(chosen).least(parts.values[chosen], (len(parts.L), len(parts.R)))
    if found is None:
        return None
    core = np.diag(parts.values[:m]).astype(found.dtype)
    core[np.ix_(chosen, chosen)] -= (1 - _REST) * found
    return Without(_of_core(parts, core, edge), support.only(chosen).moved(found))


class _Support(NamedTuple):
    """Components of length one at some entries, and which of these are kept."""

    left: Any  # (n, q) u_ik
    right: Any  # (n, q) v_jk
    kept: Any  # (n,) bool

    @classmethod
    def of(cls, parts: Components, sample: Sample, cutoff: float) -> _Support:
        m = parts.present
        left, right = np.asarray(parts.L[sample.rows])[:, :m], np.asarray(parts.R[sample.columns])[:, :m]
        kept = np.abs(sample.values - np.einsum("nk,nk->n", left, right)) <= cutoff
        # L = U Σ^½ and R = V Σ^½.
        root = np.sqrt(np.maximum(parts.values[:m], _TINY))
        return cls(left / root, right / root, kept)

    def only(self, chosen: Any) -> _Support:
        """Return the same of some components."""
        return _Support(self.left[:, chosen], self.right[:, chosen], self.kept)

    def by_component(self) -> Any:
        """Return the share of its energy that each component has on kept entries (q,)."""
        energy = np.abs(self.left * self.right) ** 2
        return energy[self.kept].sum(axis=0) / np.maximum(energy.sum(axis=0), _TINY)

    def unfounded(self) -> Any:
        """Return which components have hardly any of their energy on kept entries (q,)."""
        entries = _shared_by(np.abs(self.left * self.right) ** 2)
        return (self.by_component() < _UNFOUNDED * np.mean(self.kept)) & (entries >= _SHOWN_BY)

    def moved(
        self,
        M: Any,  # (q, q)
    ) -> float:
        """Return what nearly all kept entries of ``U M Vᵀ`` are below."""
        there = np.einsum("nk,nk->n", self.left[self.kept] @ M, self.right[self.kept])
        return float(np.quantile(np.abs(there), _NEARLY_ALL)) if len(there) else 0.0

    def least(
        self,
        values: Any,  # (q,) singular values
        shape: tuple[int, int],
    ) -> Any:
        """Return what is to be taken off Σ so that X has a rank less, (q, q).

        None if there is nothing of which hardly anything is on kept entries. ``U M Vᵀ`` has the energy ``m^H F m`` on
        all entries and ``m^H K m`` on kept ones: the least ratio of the two is an eigenvalue. ``Σ - t M`` is singular
        where 1 / t is an eigenvalue of ``Σ⁻¹ M``.
        """
        (n, q), kept = self.left.shape, float(np.mean(self.kept))
        products = (self.left[:, :, None] * self.right[:, None, :]).reshape(n, q * q)
        energy = products.conj().T @ products
        on_kept = products[self.kept].conj().T @ products[self.kept]
        ridge = 1e-9 * float(np.trace(energy).real) / (q * q) * np.eye(q * q)
        ratios, vectors = some_eigh(on_kept, 0, 0, energy + ridge)
        if ratios[0] > _UNFOUNDED_MIX * kept:
            return None
        M = vectors[:, 0].reshape(q, q)
        there = np.abs(products @ vectors[:, 0]) ** 2
        expected = float(np.linalg.norm(M)) ** 2 * n / (shape[0] * shape[1])
        if _shared_by(there) < _MIX_SHOWN_BY or there.sum() < _SHOWN_PART * expected:
            return None
        inverse_steps = np.linalg.eigvals(M / values[:, None])
        step = inverse_steps[np.abs(inverse_steps).argmax()]
        if not np.iscomplexobj(M):
            if abs(step.imag) > 1e-6 * abs(step):
                return None
            step = step.real
        # What is not a part of X cannot be taken off it.
        if np.linalg.norm(M) > abs(step) * np.linalg.norm(values):
            return None
        return M / step


def _of_core(parts: Components, core: Any, edge: float) -> Components:
    """Return ``U core Vᵀ`` as components, the weakest of them as a probe; those that were probes stay so."""
    m = parts.present
    P, values, Qh = svd(core)
    present = values.copy()
    present[-1] = min(values[-1], PROBE * edge) or _TINY
    root = np.sqrt(present)
    scale = 1.0 / np.sqrt(parts.values[:m])[:, None]
    L, R = parts.L[:, :m] @ (scale * P * root), parts.R[:, :m] @ (scale * Qh.T * root)
    if m < parts.L.shape[1]:
        L, R = (np.concatenate([new, old[:, m:]], axis=1) for new, old in ((L, parts.L), (R, parts.R)))
    return Components(L, R, m - 1)


def _shared_by(
    energy: Any,  # (n, ...)
) -> Any:
    """Return how many entries share an energy: all of them if it is the same everywhere, one if one has it all."""
    return energy.sum(axis=0) ** 2 / np.maximum((energy**2).sum(axis=0), _TINY)
