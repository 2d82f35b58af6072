"""The problem that a solver is given; a `lrpca.solvers.base.Solution` is what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lrpca.core.units import unit_of
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import SAMPLE_SIZE, Sample, draw_sample
from lrpca.schedule import Schedule, default_schedule
from lrpca.solvers.base import Solution, State
from lrpca.solvers.methods import METHODS, Method
from lrpca.solvers.run import Factors, Run

# Precise enough to count the components.
_COUNTING_TOL = 1e-6


@dataclass(frozen=True)
class Problem:
    """Data, method and settings, checked."""

    matrix: DenseMatrix
    rank: int | None  # None if the method finds it, or before it is known
    schedule: Schedule | None
    sample: Sample  # random observed entries
    tol: float
    max_iter: int
    rng: np.random.Generator
    method: Method = METHODS["lrpca"]
    options: dict[str, Any] = field(default_factory=dict)  # those that were given
    callback: Callable[[State], object] | None = None
    start: Factors | None = None
    row_weight: Any = None  # (n1,)
    free_rank: bool = False  # whether the solution may have another rank

    @classmethod
    def drawn(
        cls,
        matrix: DenseMatrix,
        method: Method,
        schedule: Schedule | None,
        options: dict[str, Any],
        limits: tuple[float, int],  # tol and max_iter
        rng: np.random.Generator,
        row_weight: Any,  # (n1,)
    ) -> Problem:
        """Return a problem of unknown rank with a sample of the matrix, in units in which squares are finite."""
        # A matrix too small to be sampled is solved by the default, with the same bits.
        exact = method.schedule or method.name == "sampled"
        size = options.get("sample_size", SAMPLE_SIZE)
        sample = draw_sample(matrix, rng, size=size, row_weight=row_weight, exact=exact)
        unit = unit_of(sample.values)
        matrix, sample = matrix.in_units(unit), sample.in_units(unit)
        matrix.fit_range_to(sample.values)
        if schedule is not None:
            schedule = schedule.in_units(unit)
        options = method.in_units(options, unit)
        return cls(matrix, None, schedule, sample, *limits, rng, method, options, row_weight=row_weight)

    @property
    def prunes(self) -> bool:
        """Whether the method, called like this, leaves out components that are not there."""
        adaptive = self.schedule is not None and self.schedule.kind == "adaptive" and self.schedule.tail is not None
        return self.method.name == "lrpca" and adaptive and "significance" not in self.options.get("without", ())

    def by_default(self) -> Problem:
        """Return the same for the default method and schedule, which prune."""
        method = METHODS["lrpca"]
        return replace(
            self, method=method, schedule=default_schedule(), options={}, tol=_COUNTING_TOL, max_iter=method.max_iter
        )

    def solve(
        self, rank: int | None, start: Factors | None = None, callback: Callable[[State], object] | None = None
    ) -> tuple[Run, Solution]:
        """Solve for a rank, None for methods that find it; return the run and its solution."""
        schedule = self.schedule
        if schedule is not None and rank is not None:
            schedule = schedule.scaled_to(self.matrix.shape, rank)
        run = Run(replace(self, rank=rank, schedule=schedule, start=start, callback=callback))
        try:
            return run, self.method.solve(run, **self.options)
        except np.linalg.LinAlgError:
            return run, run.overflow()
