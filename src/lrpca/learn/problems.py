"""Problems to train on, and the sources that draw them: here generated ones, in `lrpca.learn.data` users' data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from lrpca.core.linalg import svd
from lrpca.testing.problems import Problem, column_space, planted

# Components of a label below this part of the largest are rounding.
_NEGLIGIBLE = 1e-7


@dataclass(frozen=True)
class TrainingProblem:
    """A matrix to decompose and, if known, the answer.

    Attributes
    ----------
    Y : ndarray (n1, n2)
        The data, NaN where missing.
    rank : int
        Rank the network is to use.
    truth : (A, B) or None
        The label as factors, ``X = A Bᵀ`` with orthonormal columns of A (n1, q) and any B (n2, q).
    held_out : (rows, columns, values) or None
        Entries of Y that the network is not shown, to validate a fit by where the answer is not known.
    observed : ndarray of bool (n1, n2) or None
        Which entries the network is shown, beside NaN: integers have none.
    power_steps : int or None
        Power steps of the initialisation; enough for an exact one if not given.
    scales : bool
        Whether thresholds go with the size of the matrix, as in the paper's instances; those of real data do not.
    """

    Y: Any
    rank: int
    truth: tuple[Any, Any] | None = None
    held_out: tuple[Any, Any, Any] | None = None
    observed: Any = None
    power_steps: int | None = None
    scales: bool = True


class Source(Protocol):
    """Something that draws problems."""

    @property
    def variety(self) -> int:
        """Number of problems that covers all kinds of them; a quarter as many validate."""
        ...

    def draw(self, rng: np.random.Generator) -> TrainingProblem:
        """Return a problem; the same state of `rng` gives the same one."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what is drawn, as JSON can hold it."""
        ...

    def split(self) -> tuple[Source, Source]:
        """Return a source to train on and one to validate on."""
        ...


class _Generated:
    """A source whose problems never repeat, neither in training nor in validation."""

    variety = 16

    def split(self) -> tuple[Any, Any]:
        """Return the source twice."""
        return self, self


@dataclass(frozen=True)
class PaperProblems(_Generated):
    """The paper's instances: Gaussian factors, and uniform outliers in ±`outlier_size` mean|X| anywhere.

    Parameters
    ----------
    shape : tuple of int
    rank : int
    outlier_fraction : float
        The share α of entries that are outliers.
    outlier_size : float

    Examples
    --------
    >>> problem = PaperProblems((40, 30), rank=2, outlier_fraction=0.1).draw(np.random.default_rng(0))
    >>> problem.Y.shape, problem.truth[0].shape
    ((40, 30), (40, 2))
    """

    shape: tuple[int, int] = (1000, 1000)
    rank: int = 5
    outlier_fraction: float = 0.1
    outlier_size: float = 1.0

    def draw(self, rng: np.random.Generator) -> TrainingProblem:
        """Return a fresh instance."""
        n1, n2 = self.shape
        # As `lrpca.testing.planted`, which needs ten times as long to choose the places without replacement.
        U = rng.standard_normal((n1, self.rank)) / np.sqrt(n1)
        V = rng.standard_normal((n2, self.rank)) / np.sqrt(n2)
        Y = U @ V.T
        size = self.outlier_size * float(np.abs(Y).mean())
        where = np.flatnonzero(rng.random(n1 * n2, dtype=np.float32) < self.outlier_fraction)
        Y.ravel()[where] += rng.uniform(-size, size, len(where))
        return TrainingProblem(Y, self.rank, orthonormal_factors(U, V))

    def describe(self) -> dict[str, Any]:
        """Return the parameters."""
        return {"source": "paper", **asdict(self), "shape": list(self.shape)}


@dataclass(frozen=True)
class Mixture(_Generated):
    """Planted problems of many kinds: each draw chooses one value of everything.

    Parameters
    ----------
    shapes : sequence of tuple of int
    ranks : sequence of int
    outlier_fractions, outlier_sizes, conditions, noises, missing : sequence of float
        As `lrpca.testing.planted` takes them.
    one_sided : sequence of bool
    placements : sequence of str
    extra_rank : sequence of int
        By how much the network's rank is above that of X.

    Examples
    --------
    >>> mixture = Mixture(shapes=[(60, 50)], ranks=[1, 2], outlier_fractions=[0.0, 0.3])
    >>> mixture.draw(np.random.default_rng(0)).rank
    2
    """

    variety = 64

    shapes: Sequence[tuple[int, int]] = ((300, 300), (600, 150), (150, 600), (400, 400))
    ranks: Sequence[int] = (1, 2, 3, 5, 10)
    outlier_fractions: Sequence[float] = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
    outlier_sizes: Sequence[float] = (1.0, 1.0, 3.0, 10.0, 100.0)
    conditions: Sequence[float] = (1.0, 1.0, 3.0, 10.0)
    noises: Sequence[float] = (0.0, 0.0, 0.0, 0.01, 0.05)
    missing: Sequence[float] = (0.0, 0.0, 0.0, 0.1, 0.3)
    one_sided: Sequence[bool] = (False, False, True)
    placements: Sequence[str] = ("uniform",)
    extra_rank: Sequence[int] = (0,)

    def draw(self, rng: np.random.Generator) -> TrainingProblem:
        """Return a problem of a random kind."""

        def one(choices: Sequence[Any]) -> Any:
            return choices[int(rng.integers(len(choices)))]

        shape = one(self.shapes)
        rank = max(1, min(one(self.ranks), min(shape) // 4))
        problem = planted(
            shape,
            rank=rank,
            outlier_fraction=one(self.outlier_fractions),
            outlier_size=one(self.outlier_sizes),
            condition=one(self.conditions) if rank > 1 else 1.0,
            noise=one(self.noises),
            missing=one(self.missing),
            one_sided=one(self.one_sided),
            placement=one(self.placements),
            random_state=int(rng.integers(2**31)),
        )
        return of_problem(problem, min(rank + one(self.extra_rank), max(1, min(shape) // 2)))

    def describe(self) -> dict[str, Any]:
        """Return the choices."""
        return {"source": "mixture", **{name: list(choices) for name, choices in asdict(self).items()}}


def of_problem(problem: Problem, rank: int | None = None) -> TrainingProblem:
    """Return a planted problem as one to train on."""
    A = column_space(problem.X, problem.rank)
    return TrainingProblem(problem.Y, rank or problem.rank, (A, problem.X.T @ A))


def orthonormal_factors(U: Any, V: Any) -> tuple[Any, Any]:  # U (n1, q); V (n2, q)
    """Return factors of the same product, the first with orthonormal columns."""
    Q, T = np.linalg.qr(np.asarray(U, np.float64))
    return Q, np.asarray(V, np.float64) @ T.T


def factors_of(X: Any) -> tuple[Any, Any]:  # X (n1, n2)
    """Return factors of a matrix, the first with orthonormal columns; components that are rounding are left out."""
    U, values, Vh = svd(np.asarray(X, np.float64), full_matrices=False)
    keep = max(1, int((values > _NEGLIGIBLE * values[0]).sum()))
    return U[:, :keep], Vh[:keep].T * values[:keep]
