"""A problem as tensors, and what the iteration reads off them.

Where Y is on a device, all that has its size stays there: passes, products of the initialisation, sampled residuals.
Factors and numbers stay on the CPU. They are small, the rules of the solver look at them after every pass, and a
hundred operations on matrices of a few columns take longer on a device, which has to be called for each.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lrpca.learn.operations import Entries, inlier_scale, matrix_of, send, spectral_start
from lrpca.learn.problems import TrainingProblem
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.differentiable import DifferentiableMatrix
from lrpca.matrices.sample import draw_sample
from lrpca.schedule import Schedule
from lrpca.solvers.initialise import ObservationCounts
from lrpca.solvers.thresholds import AdaptiveThresholds

# The solver's rules on rounding and the noise are the same for every adaptive schedule.
_ANY = Schedule([20.0, 2.5], [0.0, 1.0], kind="adaptive")


@dataclass(frozen=True)
class Data:
    """A problem ready for the network; `truth` and `held_out` are those of the problem, as tensors."""

    problem: TrainingProblem
    Y: Any  # (n1, n2), 0 where missing; on a device in double precision
    observed: Any  # (n1, n2) bool, or None for everything
    rules: AdaptiveThresholds  # the solver's: what counts as rounding, which entries tell of the noise
    entries: Entries  # a sample of Y
    truth: tuple[Any, Any] | None
    held_out: tuple[Any, Any, Any] | None
    dtype: Any  # of the factors
    by_torch: bool  # whether Y is read by torch, as on a device, rather than by the solver's kernels

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of Y."""
        return tuple(self.Y.shape)

    @property
    def rank(self) -> int:
        """Rank r of the iterates."""
        return self.problem.rank

    @functools.cached_property
    def matrix(self) -> DifferentiableMatrix | None:
        """Y on the same memory, as the solver's kernels read it; None on a device."""
        return None if self.by_torch else matrix_of(self.Y, self.observed)

    def placed(self, number: Any) -> Any:
        """Return a number of the network where factors are, and in their type."""
        return number.to("cpu", self.dtype)

    @functools.cached_property
    def counts(self) -> ObservationCounts:
        """The counts of observed entries and the norm, as in the solver."""
        n1, n2 = self.shape
        if self.observed is None:
            by_row, by_column = np.full(n1, n2), np.full(n2, n1)
        else:
            by_row, by_column = (self.observed.sum(dim=dim).cpu().numpy() for dim in (1, 0))
        return ObservationCounts(by_row, by_column, float(torch.linalg.matrix_norm(self.Y)))

    def unit(self, kind: str) -> float:
        """Return the unit of ζ_0: 1 for absolute schedules, median|Y| for adaptive ones."""
        return 1.0 if kind == "absolute" else (self.rules.typical or 1.0)

    def start(self, clip: Any) -> tuple[Any, Any]:
        """Return factors of ``SVD_r(clip(Y, ζ_0) / p)``, differentiable in ζ_0."""
        share, steps = self.counts.observed, self.problem.power_steps
        return spectral_start(self.Y, share, self.rank, self.placed(clip), steps)

    def inlier_scale(self, L: Any, R: Any) -> Any:
        """Return σ of the clean residuals, differentiable in L and R."""
        return inlier_scale(self.entries, L, R, self.rules.rounding)

    def kept(self, L: Any, R: Any, limit: Any) -> Any:
        """Return which entries are observed and within a limit of L Rᵀ, as ones and zeros beside Y."""
        with torch.no_grad():
            here_L, here_R = send((L, R), self.Y)
            kept = (self.Y - here_L @ here_R.T).abs_() <= limit
            return (kept if self.observed is None else kept & self.observed).to(self.Y.dtype)

    def log_loss(self, L: Any, R: Any) -> Any:
        """Return what training minimises: the logarithm of the error, or of the held-out residuals without a label."""
        return self.log_error(L, R) if self.held_out is None else self._log_residual(L, R)

    def _log_residual(self, L: Any, R: Any) -> Any:
        """Return the logarithm of the middle of |Y - L Rᵀ| over the held-out entries, relative to their mean |Y|.

        The mean of the middle half of the sizes: outliers, which nothing should predict, do not count, and it is
        smoother than the median.
        """
        assert self.held_out is not None
        rows, columns, values = self.held_out
        sizes = torch.sort((values - (L[rows] * R[columns]).sum(dim=1)).abs()).values
        quarter = len(sizes) // 4
        tiny = torch.finfo(self.dtype).tiny
        scale = torch.clamp(values.abs().mean(), min=tiny)
        return torch.log(torch.clamp(sizes[quarter : len(sizes) - quarter].mean() / scale, min=tiny))

    def first_counted(self, depth: int) -> int:
        """Return the first of `depth` layers whose error counts.

        Errors against a label fall from layer to layer, and all count. Those of held-out entries end at the noise, and
        layers that are quick to get near it are not those that end lowest: the last third counts.
        """
        return 1 if self.held_out is None else depth - depth // 3

    def log_error(self, L: Any, R: Any) -> Any:
        """Return ``log(‖L Rᵀ - X‖ / ‖X‖)``, from the factors of the label.

        With ``L = A P + L⊥`` the error has two orthogonal parts, ``A (P Rᵀ - Bᵀ)`` and ``L⊥ Rᵀ``: small numbers that
        come from differences of small matrices, not of norms, and keep their digits down to rounding.
        """
        assert self.truth is not None
        A, B = self.truth
        P = A.T @ L
        off = L - A @ P
        along = R @ P.T - B
        square = (along**2).sum() + ((off.T @ off) * (R.T @ R)).sum()
        size = (B**2).sum()
        return 0.5 * torch.log(torch.clamp(square / size, min=torch.finfo(self.dtype).tiny))


def prepare(problem: TrainingProblem, *, dtype: Any = torch.float64, device: Any = "cpu", seed: int = 0) -> Data:
    """Return a problem as tensors, Y on a device, with a seeded sample of its entries."""
    device = torch.device(device)
    by_torch = reads_by_torch(device)
    values = np.asarray(problem.Y)
    matrix = DenseMatrix(values, problem.observed)
    rules = AdaptiveThresholds(_ANY, draw_sample(matrix, np.random.default_rng(seed)), matrix)
    seen = ~np.isnan(values) if problem.observed is None else problem.observed & (values == values)
    observed = None if seen.all() else torch.as_tensor(seen, device=device)
    # The kernels sum in double precision whatever they read, torch in the precision it reads.
    wide = torch.float64 if by_torch else dtype
    Y = torch.as_tensor(np.where(seen, values, 0) if observed is not None else values).to(wide).to(device)
    truth = held_out = None
    if problem.truth is not None:
        A, B = (torch.as_tensor(np.asarray(factor)).to(dtype) for factor in problem.truth)
        truth = A, B
    if problem.held_out is not None:
        rows, columns, hidden = (torch.as_tensor(part) for part in problem.held_out)
        held_out = rows, columns, hidden.to(dtype)
    sample = rules.sample
    rows, columns = (torch.as_tensor(part, device=device) for part in (sample.rows, sample.columns))
    entries = Entries(rows, columns, torch.as_tensor(sample.values, device=device).to(wide))
    return Data(problem, Y, observed, rules, entries, truth, held_out, dtype, by_torch)


def reads_by_torch(device: Any) -> bool:
    """Tell whether Y is read by torch on a device; the CPU has kernels, which are several times as fast."""
    return bool(device.type != "cpu")
