"""The result of a decomposition."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lrpca.core.units import unit_of
from lrpca.solvers.base import Record
from lrpca.solvers.rank.choice import RankChoice

if TYPE_CHECKING:
    from lrpca.matrices.chunked.progress import Reading

REASONS = ("tol", "noise_floor", "max_iter", "schedule_end", "stalled", "runaway", "callback")
# Rows of the lazy matrices are made in blocks of about this many entries.
_BLOCK = 1 << 20

Kind = TypeVar("Kind", bound="Decomposition")


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of the fit.

    Attributes
    ----------
    kept_by_row, kept_by_column : ndarray
        Share of observed entries that counted as clean in the last pass; NaN where nothing is observed, and throughout
        where the method does not tell ("pcp", "stable_pcp", "ircur", "grassmann").
    rows_without_influence, columns_without_influence : ndarray of int
        Rows and columns whose entries are all missing, or were all rejected: no data support their part of the
        low-rank matrix. "pcp" and "stable_pcp" list only the missing ones, "ircur" those without a sampled entry.
    components : int
        Number of components that exceed the noise; the others of the `rank` asked for are zero.
    messages : list of str
        Warnings, with advice.
    """

    kept_by_row: Any  # (n1,)
    kept_by_column: Any  # (n2,)
    rows_without_influence: Any
    columns_without_influence: Any
    components: int
    messages: list[str]


@dataclass(eq=False, repr=False)
class Decomposition:
    """Y = L Rᵀ + S (+ noise), and how it was found.

    Attributes
    ----------
    L, R : ndarray (n1, rank), (n2, rank)
        U Σ^½ and V Σ^½ of the low-rank part, largest first; the largest entry of each column of R is positive.
    low_rank : ndarray (n1, n2)
        L Rᵀ, computed when first asked for.
    sparse : ndarray (n1, n2)
        Y - L Rᵀ where its modulus exceeds `outlier_threshold`, 0 elsewhere and where Y is missing; lazy.
    outliers : ndarray of bool (n1, n2)
        Where `sparse` is not zero; lazy.
    outlier_threshold : float
        About five times `noise_level`; never below rounding, the quantisation step of integer data, or what the
        low-rank part still moved in the last iteration.
    noise_level : float
        Robust standard deviation of the residual.
    outlier_fraction : float
        Share of observed entries beyond the threshold, estimated from the sample.
    n_iter : int
        Iterations.
    n_reads : int or float
        Number of passes over the data, with the initialisation. Methods that sample rows and columns take fractions.
    converged : bool
        True only for reasons "tol" and "noise_floor".
    reason : str
        "tol", "noise_floor", "max_iter", "schedule_end", "stalled", "runaway" or "callback".
    history : list of Record
    diagnosis : Diagnosis
    rank : int
    rank_choice : RankChoice or None
        How the rank was found, where it was not given.
    method : str
    settings : dict
        The method's parameters as used: options given and defaults, ``tol`` and ``max_iter``.
    estimated : tuple of str
        Which of the settings were found from the data, e.g. ``("alpha",)``.
    fingerprint : str or None
        Of a loaded decomposition: a hash of some entries of the Y it was made from.
    matrix : DenseMatrix or None
        Y as the solvers see it, kept by reference, not copied: use the lazy matrices before you change Y in place. A
        loaded decomposition has none, unless `load` is given Y.
    """

    L: Any  # (n1, rank)
    R: Any  # (n2, rank)
    _: KW_ONLY
    history: list[Record]
    reason: str
    noise_level: float
    outlier_threshold: Any
    outlier_fraction: float
    n_reads: int | float
    diagnosis: Diagnosis
    method: str = "lrpca"
    settings: dict[str, Any] = field(default_factory=dict)
    estimated: tuple[str, ...] = ()
    rank_choice: RankChoice | None = None
    fingerprint: str | None = None
    matrix: Any = None

    @property
    def rank(self) -> int:
        """Number of columns of L and R."""
        return int(self.L.shape[1])

    @property
    def n_iter(self) -> int:
        """Number of iterations."""
        return len(self.history)

    @property
    def converged(self) -> bool:
        """Whether the iteration reached its tolerance or the noise floor."""
        return self.reason in ("tol", "noise_floor")

    @cached_property
    def low_rank(self) -> Any:
        """L Rᵀ, (n1, n2); a dask array with the chunks of Y if Y is read in blocks."""
        return self._product()

    @cached_property
    def sparse(self) -> Any:
        """The outliers' values, (n1, n2): zero where Y is explained by the low-rank part or missing.

        A dask array with the chunks of Y if Y is read in blocks.
        """
        return self._outlying(values=True)

    @cached_property
    def outliers(self) -> Any:
        """Where Y departs from the low-rank part by more than `outlier_threshold`, (n1, n2) of bool.

        A dask array with the chunks of Y if Y is read in blocks.
        """
        return self._outlying(values=False)

    def _product(self) -> Any:
        matrix = self.data_in_blocks()
        return self.L @ self.R.T if matrix is None else matrix.lazy_low_rank(self.L, self.R)

    def _outlying(self, *, values: bool) -> Any:
        """Return the values of the outliers, or where they are."""
        matrix = self.data_in_blocks()
        if matrix is not None:
            return matrix.lazy_outliers(self.L, self.R, self.outlier_threshold, values=values)
        found = np.zeros(self.data().shape, self.L.dtype if values else bool)
        for rows, residual, outlying in self.residual_blocks():
            np.copyto(found[rows], residual if values else outlying, where=outlying)
        return found

    def transform(self, Y: Any) -> Any:
        """Return robust coefficients of new rows with R fixed: outliers in them are rejected, NaN is missing.

        Parameters
        ----------
        Y : array-like (m, n2)
            New rows; integers, floats or complex, NaN = missing.

        Returns
        -------
        ndarray (m, rank)
            Coefficients A such that ``A @ R.T`` is the low-rank part of the new rows. Rows of the training data get
            their rows of L, up to the accuracy of the fit. A row without observed entries gets zeros.
        """
        from lrpca.matrices.accept import accept
        from lrpca.solvers.rows import robust_coefficients

        matrix = accept(Y)
        if matrix.shape[1] != len(self.R):
            raise ValueError(
                f"Y.shape={matrix.shape} has {matrix.shape[1]} columns, not {len(self.R)}; pass rows like those of Y"
            )
        # R is as large as the root of what it explains.
        root = math.sqrt(unit_of(float(np.abs(self.R).max()) ** 2))
        rows, R = matrix.in_units(root**2), self.R / root
        coefficients = robust_coefficients(rows, R, self.noise_level / root**2) * root
        return coefficients.astype(np.result_type(self.L.dtype, matrix.result))

    def to_numpy(self) -> Decomposition:
        """Return the same with NumPy arrays on the host: itself, unless Y is a tensor."""
        return self

    def write_sparse(
        self,
        path: str | Path,
        *,
        layout: str = "coordinates",
        overwrite: bool = False,
        tell: Callable[[Reading], object] | None = None,
    ) -> None:
        """Write S to a zarr store in one pass over the data, on the CPU; S need not fit into memory.

        The store appears at `path` when it is complete; an S that it replaces goes then, not before. Its attributes
        are ``format``, ``version``, ``layout``, ``shape``, ``dtype``, ``outlier_threshold`` (None where it varies) and
        ``entries``, the number of outliers.

        Parameters
        ----------
        path : str or Path
            A new folder.
        layout : {"coordinates", "dense"}
            "coordinates": a group with the arrays ``row``, ``column`` and ``value``, one number each per outlier, which
            `lrpca.decomposition.zarr.read_sparse` reads. "dense": an array like Y, with its chunks.
        overwrite : bool
            Replace an S that was written before. Anything else at `path` is left alone.
        tell : callable, optional
            Called with a `Reading` after every block.

        Raises
        ------
        OSError
            Something is at `path` already, a block of Y cannot be read, or the disk is full. `path` stays as it was.
        """
        from lrpca.decomposition.zarr import write_sparse

        write_sparse(self, path, layout=layout, overwrite=overwrite, tell=tell)

    def save(self, path: str | Path) -> None:
        """Write everything but Y, of which there is a fingerprint, to an .npz file (as a whole; no pickle).

        Parameters
        ----------
        path : str or Path
            Ends in ``.npz``, which is added where there is no ending.
        """
        from lrpca.decomposition.file import write_decomposition

        write_decomposition(self, path)

    @staticmethod
    def load(path: str | Path, Y: Any = None, mask: Any = None) -> Decomposition:
        """Read a saved decomposition.

        Parameters
        ----------
        path : str or Path
            What `save` wrote, or ``lrpca decompose -o``: an .npz file, a folder or a zarr group.
        Y : array-like, optional
            The data it was made from, needed for `sparse` and `outliers`. If it is a torch tensor, so are the results.
            Some entries are compared with a fingerprint in the file; a warning says if they differ.
        mask : array-like of bool, optional
            As it was given to `decompose`.

        Returns
        -------
        Decomposition
        """
        from lrpca.decomposition.file import fingerprint_of, read_decomposition
        from lrpca.matrices.accept import accept
        from lrpca.matrices.accept_tensor import results_device

        result = read_decomposition(path)
        if Y is not None:
            matrix = accept(Y, mask)
            if matrix.shape != (len(result.L), len(result.R)):
                raise ValueError(
                    f"Y.shape={matrix.shape} is not {(len(result.L), len(result.R))}; pass the data it was made from"
                )
            if result.fingerprint and fingerprint_of(matrix) not in (None, result.fingerprint):
                warnings.warn(
                    f"Y is not what path={str(path)!r} was made from (entries differ, or are missing in one of them); "
                    "pass the same data and mask, or sparse and outliers mean nothing",
                    stacklevel=2,
                )
            result.matrix = matrix
            device = results_device(Y, matrix)
            if device is not None:
                from lrpca.decomposition.tensor import TensorDecomposition

                return TensorDecomposition.of(result, device)
        return result

    @property
    def has_data(self) -> bool:
        """Whether Y is at hand, from which `sparse` and `outliers` are computed."""
        return self.matrix is not None

    def with_data(self, matrix: Any) -> Decomposition:
        """Return the same with another matrix for `sparse` and `outliers`."""
        return replace(self, matrix=matrix)

    def without_data(self) -> Decomposition:
        """Return the same without Y: it has neither `sparse` nor `outliers`."""
        return replace(self, matrix=None)

    def converted(self, kind: type[Kind], **changes: Any) -> Kind:
        """Return the same as an object of another kind, with some attributes changed."""
        return kind(**{part.name: getattr(self, part.name) for part in fields(self)} | changes)

    def in_units(self, unit: float) -> Decomposition:
        """Return the decomposition of Y divided by a power of four, without that Y."""
        from lrpca.solvers.methods import find_method

        if unit == 1:
            return self.without_data()
        method, root = find_method(self.method), math.sqrt(unit)
        return replace(
            self,
            matrix=None,
            L=self.L / root,
            R=self.R / root,
            noise_level=self.noise_level / unit,
            outlier_threshold=self.outlier_threshold / unit,
            settings=method.in_units(self.settings, unit),
            history=[
                Record(**method.in_units(asdict(record), unit) | {"threshold": record.threshold_in_units(unit)})
                for record in self.history
            ],
            rank_choice=None if self.rank_choice is None else self.rank_choice.in_units(unit),
        )

    def __repr__(self) -> str:
        n1, n2 = len(self.L), len(self.R)
        state = "converged" if self.converged else "not converged"
        return (
            f"<{type(self).__name__} {n1} x {n2}{self._where()}, rank {self.rank}, {state} ({self.reason}) after "
            f"{self.n_iter} iterations, {100 * self.outlier_fraction:.1f}% outliers>"
        )

    def _where(self) -> str:
        return ""

    def data(self) -> Any:
        """Return the matrix for `sparse` and `outliers`; raise ValueError if there is none."""
        if self.matrix is None:
            raise ValueError(
                "Y=None: this decomposition was loaded without its data; use Decomposition.load(path, Y) for "
                "sparse and outliers"
            )
        return self.matrix

    def data_in_blocks(self) -> Any:
        """Return the matrix if it is read in blocks, otherwise None."""
        from lrpca.matrices.chunked.matrix import ChunkedMatrix

        return self.matrix if isinstance(self.matrix, ChunkedMatrix) else None

    def residual_blocks(self) -> Any:
        """Yield (rows, Y - L Rᵀ, where it is an outlier) block by block; missing entries are never outliers."""
        matrix = self.data()
        count = max(1, _BLOCK // matrix.shape[1])
        right = np.ascontiguousarray(self.R.T)
        limits = np.broadcast_to(self.outlier_threshold, matrix.shape)
        for start, block, mask in matrix.blocks(count):
            # Bands of a chunked matrix are larger, and what is bytes there is floats here.
            for first in range(0, len(block), count):
                part = slice(first, min(first + count, len(block)))
                rows = slice(start + part.start, start + part.stop)
                residual = np.asarray(block[part], self.L.dtype) - self.L[rows] @ right
                outlying = np.abs(residual) > limits[rows]
                if mask is not None:
                    outlying &= mask[part]
                yield rows, residual, outlying
