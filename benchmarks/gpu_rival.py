"""The published method in plain torch, on whatever device Y is, and the paper's problem there."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lrpca.core.influence import Levels
from lrpca.schedule import Schedule

# The published model, in the folder LRPCA_DATA; a shipped one of the same form, with a tail.
PUBLISHED, SHIPPED = "published-lrpca/lrpcanet_alpha0.1.mat", "frmnn-0.1"
# Iterations at most, and those without a smaller error after which it has come to a stand.
_MOST, _PATIENCE = 60, 6
_BLOCK = 1 << 24


@dataclass(frozen=True)
class Planted:
    """Y = U Vᵀ + outliers on a device, and the truth as factors."""

    Y: Any  # (n1, n2) float32
    U: Any  # (n1, r) float64
    V: Any  # (n2, r) float64
    typical: float  # mean|U Vᵀ|

    def error(
        self,
        L: Any,  # (n1, r)
        R: Any,  # (n2, r)
    ) -> float:
        """Return ‖L Rᵀ - U Vᵀ‖ / ‖U Vᵀ‖ from the factors, without cancellation: [L, -U] [R, V]ᵀ by two QRs."""
        import torch

        left, right = (
            torch.linalg.qr(torch.hstack([mine.double(), true]))[1] for mine, true in ((L, -self.U), (R, self.V))
        )
        size = ((self.U.T @ self.U) * (self.V.T @ self.V)).sum().sqrt()
        return float(torch.linalg.norm(left @ right.T) / size)


def planted(shape: tuple[int, int], *, rank: int, outlier_fraction: float, device: Any) -> Planted:
    """Return the paper's problem: factors N(0, 1/n), outliers uniform in ±mean|U Vᵀ|; drawn block by block."""
    import torch

    generator = torch.Generator(device).manual_seed(0)

    def draw(function: Any, *size: int, dtype: Any = torch.float32) -> Any:
        return function(size, generator=generator, dtype=dtype, device=device)

    U, V = (draw(torch.randn, n, rank, dtype=torch.float64) / n**0.5 for n in shape)
    Y = torch.empty(shape, device=device)
    typical = float((U[:128] @ V.T).abs().mean())
    for part, rows in zip(*(whole.split(max(1, _BLOCK // shape[1])) for whole in (Y, U)), strict=True):
        hit = draw(torch.rand, *part.shape) < outlier_fraction
        part.copy_(rows @ V.T + hit * typical * (2 * draw(torch.rand, *part.shape) - 1))
    return Planted(Y, U, V, typical)


def plain_products(
    Y: Any,  # (n1, n2)
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    level: Levels,
) -> tuple[Any, Any]:
    """Return C R and Cᵀ L as everyone writes it: every matrix as a whole, in the precision of Y."""
    import torch

    D = Y - L @ R.T
    C = torch.where(D.abs() <= level.cutoff, D.clamp(-level.clip, level.clip), 0.0)
    return C @ R, C.T @ L


def schedules() -> dict[str, Schedule]:
    """Return what the published method runs with, by name: the published model too, where LRPCA_DATA has it."""
    found = {f"shipped {SHIPPED}": Schedule.load(SHIPPED)}
    default = Path(__file__).parents[2] / "shared" / "data"
    path = Path(os.environ.get("LRPCA_DATA", default)) / PUBLISHED
    if path.is_file():
        found["published model"] = Schedule.from_mat(path, shape=(1000, 1000), rank=5)
    return found


def soft(
    D: Any,  # (n1, n2)
    threshold: float,
) -> Any:
    """Return the soft threshold of a matrix."""
    import torch

    return torch.sign(D) * torch.relu(torch.abs(D) - threshold)


def start(
    Y: Any,  # (n1, n2)
    rank: int,
    threshold: float,
) -> tuple[Any, Any]:
    """Return the factors that the iteration begins with, from a randomised SVD of the thresholded Y."""
    import torch

    torch.manual_seed(0)
    U, sizes, V = torch.svd_lowrank(Y - soft(Y, threshold), q=rank, niter=4)
    return U * sizes.sqrt(), V * sizes.sqrt()


def iterate(
    Y: Any,  # (n1, n2)
    L: Any,  # (n1, r)
    R: Any,  # (n2, r)
    threshold: float,
    step: float,
) -> tuple[Any, Any]:
    """Return the factors after one scaled gradient step."""
    import torch

    D = Y - L @ R.T
    E = D - soft(D, threshold)
    return (
        L + step * (E @ R) @ torch.inverse(R.T @ R),
        R + step * (E.T @ L) @ torch.inverse(L.T @ L),
    )


def solve(
    Y: Any,  # (n1, n2)
    rank: int,
    schedule: Schedule,
    iterations: int,
) -> tuple[Any, Any]:
    """Return the factors after so many iterations, by a schedule that is scaled to Y."""
    L, R = start(Y, rank, schedule.thresholds[0])
    for k in range(1, iterations + 1):
        numbers = schedule.at(k)
        if numbers is None:
            break
        L, R = iterate(Y, L, R, *numbers)
    return L, R


def reach(problem: Planted, schedule: Schedule, target: float) -> tuple[int, float]:
    """Return how many iterations it takes to an error, or to the least one that there is, and that error."""
    rank = problem.U.shape[1]
    L, R = start(problem.Y, rank, schedule.thresholds[0])
    best, least = 0, problem.error(L, R)
    for k in range(1, _MOST + 1):
        numbers = schedule.at(k)
        if numbers is None or least <= target or k - best > _PATIENCE:
            break
        L, R = iterate(problem.Y, L, R, *numbers)
        error = problem.error(L, R)
        if not error < float("inf"):
            break
        if error < least:
            best, least = k, error
    return best, least
