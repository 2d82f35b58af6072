"""What `lrpca.decompose` was asked to do, checked; a run of a solver is made of it once the rank is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lrpca.core.units import unit_of
from lrpca.matrices.dense import DenseMatrix
from lrpca.matrices.sample import SAMPLE_SIZE, Sample, draw_sample
from lrpca.schedule import Schedule, default_schedule
from lrpca.solvers.base import State
from lrpca.solvers.methods import METHODS, Method
from lrpca.solvers.outcome import Outcome
from lrpca.solvers.run import Run

# Precise enough to tell how many components there are.
_COUNTING_TOL = 1e-6

Factors = tuple[Any, Any]


@dataclass(frozen=True)
class Task:
    """Data, method and settings; see `lrpca.solvers.run.Run`."""

    matrix: DenseMatrix
    method: Method
    schedule: Schedule | None
    options: dict[str, Any]
    tol: float
    max_iter: int
    rng: np.random.Generator
    sample: Sample
    row_weight: Any = None  # (n1,)

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
    ) -> Task:
        """Return a task whose sample is drawn from the matrix, both in units whose squares are numbers."""
        # What is too small to be sampled is solved by the default, to the bit.
        exact = method.schedule or method.name == "sampled"
        size = options.get("sample_size", SAMPLE_SIZE)
        sample = draw_sample(matrix, rng, size=size, row_weight=row_weight, exact=exact)
        unit = unit_of(sample.values)
        matrix, sample = matrix.in_units(unit), sample.in_units(unit)
        matrix.fit_range_to(sample.values)
        if schedule is not None:
            schedule = schedule.in_units(unit)
        options = method.in_units(options, unit)
        return cls(matrix, method, schedule, options, *limits, rng, sample, row_weight)

    @property
    def prunes(self) -> bool:
        """Whether the method, called like this, leaves out components that are not there."""
        adaptive = self.schedule is not None and self.schedule.kind == "adaptive" and self.schedule.tail is not None
        return self.method.name == "lrpca" and adaptive and "significance" not in self.options.get("without", ())

    def by_default(self) -> Task:
        """Return the same for the default method and schedule, which prune."""
        method = METHODS["lrpca"]
        return replace(
            self,
            method=method,
            schedule=default_schedule(),
            options={},
            tol=_COUNTING_TOL,
            max_iter=method.max_iter,
            row_weight=self.row_weight,
        )

    def solve(
        self, rank: int | None, start: Factors | None = None, callback: Callable[[State], object] | None = None
    ) -> tuple[Run, Outcome]:
        """Return a run of this rank, None for methods that find it, and what came of it."""
        schedule = self.schedule
        if schedule is not None and rank is not None:
            schedule = schedule.scaled_to(self.matrix.shape, rank)
        run = Run(
            self.matrix,
            self.method,
            rank,
            tol=self.tol,
            max_iter=self.max_iter,
            rng=self.rng,
            sample=self.sample,
            settings=self.method.defaults() | self.options | {"tol": self.tol, "max_iter": self.max_iter},
            callback=callback,
            start=start,
            row_weight=self.row_weight,
            schedule=schedule,
        )
        try:
            return run, self.method.solve(run, **self.options)
        except np.linalg.LinAlgError:
            return run, run.overflow()
