"""The result of a decomposition."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lrpca.core.units import unit_of
from lrpca.solvers.base import Record
from lrpca.solvers.rank.choice import RankChoice

if TYPE_CHECKING:
    from lrpca.matrices.chunked.progress import Reading

REASONS = ("tol", "noise_floor", "max_iter", "schedule_end", "stalled", "runaway", "callback")
# Rows of the lazy matrices are made in blocks of about this many entries.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Diagnosis:
    """How the fit looks from inside.

    Attributes
    ----------
    kept_by_row, kept_by_column : ndarray
        Share of observed entries that counted as clean in the last pass; NaN where nothing is observed, and throughout
        where the method does not tell ("pcp", "stable_pcp", "ircur", "grassmann").
    rows_without_influence, columns_without_influence : ndarray of int
        Rows and columns whose entries are all missing, or were all rejected: their part of the low-rank matrix rests
        on nothing. Of "pcp" and "stable_pcp" only the missing ones; of "ircur" those that miss all entries it sampled.
    components : int
        How many components stand out of what noise alone would make; the others of the `rank` asked for are zero.
    messages : list of str
        What looks odd, with advice.
    """

    kept_by_row: Any  # (n1,)
    kept_by_column: Any  # (n2,)
    rows_without_influence: Any
    columns_without_influence: Any
    components: int
    messages: list[str]


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
        How many times Y was read, with the initialisation: a whole number but for methods that sample rows and
        columns, where it is to four decimals.
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
        Where it was loaded: by which `load` knows the Y it was made from.

    Notes
    -----
    The lazy matrices are computed from `Y` itself, which is kept by reference, not copied: ask for them before
    changing Y in place. A loaded decomposition has no Y unless `load` is given one.
    """

    def __init__(
        self,
        L: Any,
        R: Any,
        *,
        matrix: Any = None,
        history: list[Record],
        reason: str,
        noise_level: float,
        outlier_threshold: Any,
        outlier_fraction: float,
        n_reads: int | float,
        diagnosis: Diagnosis,
        method: str = "lrpca",
        settings: dict[str, Any] | None = None,
        estimated: tuple[str, ...] = (),
        rank_choice: RankChoice | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self.L = L
        self.R = R
        self.history = history
        self.reason = reason
        self.noise_level = noise_level
        self.outlier_threshold = outlier_threshold
        self.outlier_fraction = outlier_fraction
        self.n_reads = n_reads
        self.diagnosis = diagnosis
        self.method = method
        self.settings = dict(settings or {})
        self.estimated = estimated
        self.rank_choice = rank_choice
        self.fingerprint = fingerprint
        self._matrix = matrix

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
        """L Rᵀ, (n1, n2); a dask array cut like Y where that is read in blocks."""
        matrix = self.data_in_blocks()
        return self.L @ self.R.T if matrix is None else matrix.lazy_low_rank(self.L, self.R)

    @cached_property
    def sparse(self) -> Any:
        """The outliers' values, (n1, n2): zero where Y is explained by the low-rank part or missing.

        A dask array cut like Y where that is read in blocks.
        """
        matrix = self.data_in_blocks()
        if matrix is not None:
            return matrix.lazy_outliers(self.L, self.R, self.outlier_threshold, values=True)
        sparse = np.zeros(self.data().shape, self.L.dtype)
        for rows, residual, outlying in self.residual_blocks():
            np.copyto(sparse[rows], residual, where=outlying)
        return sparse

    @cached_property
    def outliers(self) -> Any:
        """Where Y departs from the low-rank part by more than `outlier_threshold`, (n1, n2) of bool.

        A dask array cut like Y where that is read in blocks.
        """
        matrix = self.data_in_blocks()
        if matrix is not None:
            return matrix.lazy_outliers(self.L, self.R, self.outlier_threshold, values=False)
        outliers = np.zeros(self.data().shape, bool)
        for rows, _, outlying in self.residual_blocks():
            outliers[rows] = outlying
        return outliers

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
        """Return the same with NumPy arrays on the host: itself, unless Y is a tensor.

        Returns
        -------
        Decomposition
        """
        return self

    def write_sparse(
        self,
        path: str | Path,
        *,
        layout: str = "coordinates",
        overwrite: bool = False,
        tell: Callable[[Reading], object] | None = None,
    ) -> None:
        """Write S straight to a zarr store, in one more read of Y: it need not fit into memory.

        The CPU makes it, also where Y is on another device.

        Parameters
        ----------
        path : str or Path
            A folder to be made.
        layout : {"coordinates", "dense"}
            "coordinates": rows, columns and values of the outliers, which `lrpca.decomposition.zarr.read_sparse` reads;
            "dense": an array like Y.
        overwrite : bool
            Replace an S that was written before.
        tell : callable, optional
            Is called after every block, with how far it has come.

        See Also
        --------
        lrpca.decomposition.zarr.write_sparse : What the store holds.
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

    @classmethod
    def load(cls, path: str | Path, Y: Any = None, mask: Any = None) -> Decomposition:
        """Read a saved decomposition.

        Parameters
        ----------
        path : str or Path
            What `save` wrote, or ``lrpca decompose -o``: an .npz file, a folder or a zarr group.
        Y : array-like, optional
            The data it was made from, if `sparse` and `outliers` are wanted. With a torch tensor, all is tensors on its
            device. Some entries are compared with a fingerprint in the file: a warning says where they are others.
        mask : array-like of bool, optional
            As it was given to `decompose`.

        Returns
        -------
        Decomposition
        """
        from lrpca.decomposition.file import fingerprint_of, read_decomposition
        from lrpca.matrices.accept import accept
        from lrpca.matrices.accept_tensor import results_device

        result = read_decomposition(path, cls)
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
            result._matrix = matrix
            device = results_device(Y, matrix)
            if device is not None:
                from lrpca.decomposition.tensor import TensorDecomposition

                return TensorDecomposition.of(result, device)
        return result

    @property
    def has_data(self) -> bool:
        """Whether Y is at hand, of which `sparse` and `outliers` are made."""
        return self._matrix is not None

    def with_factors(
        self,
        L: Any,  # (n1, r)
        R: Any,  # (n2, r)
    ) -> Decomposition:
        """Return the same with another low-rank part."""
        other = self._bare_copy()
        other.L, other.R = L, R
        return other

    def with_data(self, matrix: Any) -> Decomposition:
        """Return the same, with `sparse` and `outliers` made of this matrix."""
        other = self._bare_copy()
        other._matrix = matrix
        return other

    def in_units(self, unit: float) -> Decomposition:
        """Return the decomposition of Y divided by a power of four, without that Y."""
        from lrpca.solvers.methods import find_method

        other, root = self.without_data(), math.sqrt(unit)
        if unit == 1:
            return other
        other.L, other.R = self.L / root, self.R / root
        other.noise_level, other.outlier_threshold = self.noise_level / unit, self.outlier_threshold / unit
        method = find_method(self.method)
        other.settings = method.in_units(self.settings, unit)
        other.history = [
            Record(**method.in_units(asdict(record), unit) | {"threshold": record.threshold_in_units(unit)})
            for record in self.history
        ]
        if self.rank_choice is not None:
            other.rank_choice = self.rank_choice.in_units(unit)
        return other

    def without_data(self) -> Decomposition:
        """Return the same without Y: `sparse` and `outliers` cannot be made from it."""
        return self.with_data(None)

    def _bare_copy(self) -> Decomposition:
        """Return a copy without the matrices that were made of it."""
        other = copy.copy(self)
        for name in ("low_rank", "sparse", "outliers"):
            other.__dict__.pop(name, None)
        return other

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
        """Return the matrix that `sparse` and `outliers` are made of."""
        if self._matrix is None:
            raise ValueError(
                "Y=None: this decomposition was loaded without its data; use Decomposition.load(path, Y) for "
                "sparse and outliers"
            )
        return self._matrix

    def data_in_blocks(self) -> Any:
        """Return the matrix if it is read in blocks, else None."""
        from lrpca.matrices.chunked.matrix import ChunkedMatrix

        return self._matrix if isinstance(self._matrix, ChunkedMatrix) else None

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
