"""Where the batched iteration starts: the leading components of the clipped data of every problem."""

from __future__ import annotations

import math
from typing import Any

import torch

from lrpca.batch.algebra import leading_vectors, orthonormal, random_basis, thin_svd
from lrpca.batch.stack import Stack, pieces

# Shorter sides than this have their Gram matrix formed; longer ones are multiplied with.
_SHORT = 512
# Power steps where there is no Gram, and vectors to spare.
_POWERS, _SPARE = 4, 5
# Entries that are worked on in double precision at a time.
_PIECE = 1 << 27


def exact_starts(stack: Stack, rank: int, clip: Any) -> tuple[Any, Any]:  # (b,)
    """Return L = U Σ^½ and R = V Σ^½ of SVD_r(clip(Y) / p) of every problem, (b, n1, r) and (b, n2, r)."""
    parts = pieces(len(stack.Y), math.prod(stack.shape), _PIECE)
    found = [_start_of(stack.Y[part].double(), clip[part, None, None], rank) for part in parts]
    U, values, V = (torch.cat(same) for same in zip(*found, strict=True))
    scale = torch.sqrt(values / torch.clamp(stack.share, min=torch.finfo(torch.float64).tiny)[:, None])
    return U * scale[:, None, :], V * scale[:, None, :]


def _start_of(Y: Any, clip: Any, rank: int) -> tuple[Any, Any, Any]:  # (b, n1, n2) float64, (b, 1, 1)
    """Return U (b, n1, r), the singular values (b, r) and V (b, n2, r) of clipped data."""
    Y = torch.clamp(Y, min=-clip, max=clip)
    n1, n2 = Y.shape[1:]
    # By a power of two, so that squares stay in range.
    top = torch.clamp(Y.abs().amax(dim=(1, 2)), min=torch.finfo(torch.float64).tiny)
    unit = torch.exp2(torch.floor(torch.log2(top)))[:, None, None]
    Y = Y / unit
    short = Y if n1 <= n2 else Y.transpose(1, 2)
    if min(n1, n2) <= _SHORT:
        vectors = leading_vectors(torch.bmm(short, short.transpose(1, 2)), rank)[1]
    else:
        vectors = _by_products(short, rank)
    V = orthonormal(torch.bmm(Y.transpose(1, 2), vectors)) if n1 <= n2 else vectors
    U, values, Vh = thin_svd(torch.bmm(Y, V))
    return U, values * unit[:, 0], torch.bmm(V, Vh.transpose(1, 2))


def _by_products(short: Any, rank: int) -> Any:  # (b, s, n)
    """Return the leading left singular vectors by power steps, (b, s, rank)."""
    basis = random_basis(len(short), short.shape[2], min(rank + _SPARE, short.shape[1]), short)
    for _ in range(_POWERS):
        basis = torch.bmm(short.transpose(1, 2), orthonormal(torch.bmm(short, basis)))
    return thin_svd(torch.bmm(short, orthonormal(basis)))[0][:, :, :rank]
