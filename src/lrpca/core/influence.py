"""The influence functions ψ: how much a residual may contribute to the gradient.

The paper's soft threshold leaves ``D - soft(D, ζ) = clip(D, -ζ, ζ)`` in the gradient, so a gross outlier pulls with the
full weight ζ for ever. A redescending ψ takes it out altogether beyond ``c ζ`` (Hampel), the hard threshold being the
limit c = 1. All three are one formula with two numbers:

    ψ(d) = d min(1, clip / |d|)   where |d| <= cutoff,   0 elsewhere and where d is missing.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

Kind = Literal["soft", "hard", "redescending"]
KINDS: tuple[str, ...] = get_args(Kind)
DEFAULT_CUTOFF = 2.0


class Levels(NamedTuple):
    """The numbers a pass needs: residuals are clipped at `clip`, dropped beyond `cutoff`, counted up to `keep`."""

    clip: float
    cutoff: float
    keep: float


def levels(kind: str, threshold: float, cutoff: float | None = None) -> Levels:
    """Return the levels of an influence function at a threshold ζ.

    soft: clip at ζ. hard: zero beyond ζ. redescending: clip at ζ, zero beyond ``cutoff * ζ``, twice ζ if not given.
    Kept entries are those with ``|D| <= c ζ`` (c = 1 for soft and hard).

    Examples
    --------
    >>> levels("redescending", 0.5)
    Levels(clip=0.5, cutoff=1.0, keep=1.0)
    """
    if kind not in KINDS:
        raise ValueError(f"influence={kind!r} is unknown; use one of {', '.join(KINDS)}")
    factor = 1.0 if kind != "redescending" else DEFAULT_CUTOFF if cutoff is None else cutoff
    limit = threshold * factor
    return Levels(threshold, math.inf if kind == "soft" else limit, limit)


def everything(clip: float = math.inf) -> Levels:
    """Return the levels of the initialisation: clip, drop nothing, count every observed entry."""
    return Levels(clip, math.inf, math.inf)


def apply(
    D: Any,  # (n1, n2) residuals, NaN where missing
    level: Levels,
) -> Any:
    """Return C = ψ(D) in plain NumPy, the specification of what the kernels do; works on the modulus of complex D."""
    size = np.abs(D)
    with np.errstate(divide="ignore", invalid="ignore"):
        shrink = np.where(size > level.clip, level.clip / size, 1.0)
        return np.where(size <= level.cutoff, D * shrink, 0.0).astype(D.dtype)
