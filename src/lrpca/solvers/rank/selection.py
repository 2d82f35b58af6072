"""The rank of a block: fits of several ranks are compared by their description length."""

from __future__ import annotations

from collections.abc import Sequence

from lrpca.solvers.block import Block, Fit, fits, narrowed, reannealed, refitted, widened

# Starts are tried up to this rank; beyond, where they take long, fits of neighbouring ranks lead further.
_WITH_STARTS = 12
# Ranks are doubled until one is so many times the best, or no better from the second number on.
_BEYOND, _ENOUGH = 4, 16
_MOST, _MOST_PART = 10, 6
# Ranks closer than this part are not told apart.
_RESOLUTION = 12


def most_components(shape: tuple[int, int]) -> int:
    """Return how many components are looked for at most: beyond, surplus ones may settle on outliers."""
    short = min(shape)
    return max(1, min(short // 2, max(_MOST, short // _MOST_PART)))


def doubled(most: int) -> list[int]:
    """Return 1, 2, 4, ... and the most."""
    return [2**k for k in range((most - 1).bit_length())] + [most]


def select_fit(block: Block, ranks: Sequence[int], *others: Fit, thorough: bool = True) -> Fit:
    """Return the best fit of a block, of these ranks or those between them and below.

    Other fits take part; the first is returned as it is where none is better. A search that is not `thorough` tries
    these ranks only: for a first fit that rejects nothing, so that no component is made of outliers.
    """
    known: dict[int, Fit] = {}
    for rank in ranks:
        known[rank] = _fit(block, rank, known, others)
        best = _best(block, known)
        if rank >= _BEYOND * best or (rank > best and rank >= _ENOUGH):
            break
    while thorough or len(ranks) > 2:
        best = _best(block, known)
        below = max((rank for rank in known if rank < best), default=best - 2)
        above = min((rank for rank in known if rank > best), default=best)
        between = [rank for rank in ((below + best) // 2, (best + above) // 2) if rank > 0 and rank not in known]
        between = [rank for rank in between if abs(rank - best) > best // _RESOLUTION]
        if not between:
            break
        known[between[0]] = _fit(block, between[0], known, others)
    found = known[_best(block, known)]
    return found if not thorough and others and found is others[0] else improved(block, found, max(ranks))


def improved(block: Block, fit: Fit, most: int) -> Fit:
    """Return the best fit that moves from one lead to: refits, slower annealing, one component fewer or more."""
    moves = (refitted, reannealed, _narrower, lambda block, fit: _wider(block, fit, most))
    idle, k = 0, 0
    left: set[int] = set()  # ranks: to prefer one fit to another is not transitive
    while idle < len(moves):
        other, rank = moves[k % len(moves)](block, fit), fit.L.shape[1]
        better = other.L.shape[1] not in left and block.is_better(other, fit)
        if better and other.L.shape[1] != rank:
            left.add(rank)
        idle, k, fit = 0 if better else idle + 1, k + 1, other if better else fit
    return fit


def _narrower(block: Block, fit: Fit) -> Fit:
    rank = fit.L.shape[1] - max(1, fit.L.shape[1] // _RESOLUTION)
    return narrowed(block, fit, rank) if rank > 0 else fit


def _wider(block: Block, fit: Fit, most: int) -> Fit:
    rank = min(fit.L.shape[1] + max(1, fit.L.shape[1] // _RESOLUTION), most)
    return widened(block, fit, rank) if rank > fit.L.shape[1] else fit


def _fit(block: Block, rank: int, known: dict[int, Fit], others: Sequence[Fit]) -> Fit:
    candidates = [fit for fit in others if fit.L.shape[1] == rank]
    below, above = [k for k in known if k < rank], [k for k in known if k > rank]
    if below:
        candidates.append(widened(block, known[max(below)], rank))
    if above:
        candidates.append(narrowed(block, known[min(above)], rank))
    if rank <= _WITH_STARTS or not candidates:
        # Next to fits that are nearly right, two starts do.
        candidates += fits(block, rank, 2 if candidates else None)
    return _best_of(block, candidates)


def _best_of(block: Block, candidates: Sequence[Fit]) -> Fit:
    best = candidates[0]
    for fit in candidates[1:]:
        best = fit if block.is_better(fit, best) else best
    return best


def _best(block: Block, known: dict[int, Fit]) -> int:
    """Return the rank that is preferred, each compared with the best of the lower ones."""
    best, *others = sorted(known)
    for rank in others:
        best = rank if block.prefers(known[rank], known[best]) else best
    return best
