"""What a fitted `RobustPCA` says of rows: those it was fitted to and new ones, in memory, on disk or in dask arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lrpca.decomposition.result import Decomposition
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.tables.input import check_table, in_our_words, is_lazy, is_stored, of_tensor, unwrapped, validated
from lrpca.tables.model import RowModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from lrpca.matrices.dense import DenseMatrix


class FittedRows:
    """The methods of a fitted estimator that look at rows, and its attributes that do.

    What is made of a dask array is a dask array, lazily. Tables on disk are read band by band.
    """

    mean_: Any
    components_: Any
    outlier_threshold_: float
    n_components_: int
    _unit: float
    _variances: Any
    _noise_level: float
    _noise_variance: float
    _filled: Decomposition

    def inverse_transform(self, X: Any) -> Any:
        """Return the clean rows of which `transform` gave the coefficients.

        Parameters
        ----------
        X : array-like (n_samples, n_components)

        Returns
        -------
        ndarray (n_samples, n_features)
            A dask array of dask's scores.
        """
        model = self._row_model()
        scores = unwrapped(X)
        if not is_lazy(scores):
            scores = _loaded(scores) if is_stored(scores) else np.asarray(of_tensor(scores))
        if scores.ndim != 2 or scores.shape[1] != self.n_components_:
            raise ValueError(
                f"X.shape={scores.shape} does not have {self.n_components_} columns; pass what transform returned"
            )
        if scores.dtype.kind not in "biuf":
            raise ValueError(f"X.dtype={scores.dtype} is not a real number type; pass what transform returned")
        return model.lazy_rows(scores) if is_lazy(scores) else model.rows(scores)

    def decompose(self, X: Any) -> Decomposition:
        """Split rows, of the training data or never seen, with the fitted components fixed.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            Or a dask or zarr array, HDF5 dataset, path, list of paths: read once, in bands of rows.

        Returns
        -------
        Decomposition
            Its ``low_rank`` are the clean rows, the centre included.
        """
        result: Decomposition = self._of_rows(X, RowModel.decompose)
        return result

    def outlier_mask(self, X: Any) -> Any:
        """Return which entries of rows are outliers.

        Parameters
        ----------
        X : array-like (n_samples, n_features)

        Returns
        -------
        ndarray of bool (n_samples, n_features)
            Missing entries are none. A dask array where X is one, or is read in blocks.
        """
        return self._of_rows(X, RowModel.outliers, RowModel.lazy_outliers)

    def score_samples(self, X: Any) -> Any:
        """Return the log-likelihood of rows: the higher, the more normal.

        That of a Gaussian model as in `PCA.score_samples`, but residuals beyond three noise levels count by
        ``9 (1 + log(d²/9σ²))`` in place of ``d²/σ²``: what one outlier costs is bounded in practice, and more outliers
        cost more. Rows with missing entries are rated by those observed.

        Parameters
        ----------
        X : array-like (n_samples, n_features)

        Returns
        -------
        ndarray (n_samples,)
            A dask array of a dask array.
        """
        return self._of_rows(X, RowModel.likelihood, RowModel.lazy_likelihood)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of rows, see `score_samples`.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
        y : None
            Not used.

        Returns
        -------
        float
        """
        return float(np.mean(self.score_samples(X)))

    @property
    def low_rank_(self) -> Any:
        """The training rows without outliers, noise and gaps."""
        self._training("low_rank_")
        return self._filled.low_rank

    @property
    def sparse_(self) -> Any:
        """The outliers of the training rows."""
        return self._training("sparse_").sparse

    @property
    def outliers_(self) -> Any:
        """Where the training rows have outliers."""
        return self._training("outliers_").outliers

    def _training(self, name: str) -> Decomposition:
        from sklearn.utils.validation import check_is_fitted

        fitted = self.__dict__.get("_decomposition")
        if fitted is None:
            check_is_fitted(self, "components_")
            raise AttributeError(f"{name} is of the rows given to fit; after partial_fit use decompose(X)")
        if name != "low_rank_" and not fitted.has_data:
            raise AttributeError(f"{name} needs the training data, which copies of a model lack; use decompose(X)")
        return fitted  # type: ignore[no-any-return]

    def _row_model(self) -> RowModel:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "components_")
        unit = self._unit
        return RowModel(
            self.mean_ / unit,
            self.components_,
            self._variances,
            self._noise_level / unit,
            self._noise_variance,
            self.outlier_threshold_ / unit,
            unit,
        )

    def _of_rows(
        self,
        X: Any,
        made: Callable[[RowModel, DenseMatrix], Any],
        lazily: Callable[[RowModel, Any], Any] | None = None,
    ) -> Any:
        """Return what is made of rows: of a dask array lazily, if that is possible."""
        model = self._row_model()
        if lazily is not None and is_lazy(X):
            rows = unwrapped(X)
            check_table(self, rows, reset=False)
            return lazily(model, rows)
        matrix = accept(validated(self, X, reset=False))
        try:
            return made(model, matrix)
        except ValueError as error:
            raise ValueError(in_our_words(str(error))) from None
        finally:
            matrix.close()


def _loaded(scores: Any) -> Any:
    """Return scores that are on disk, read whole: there are few of them beside the rows they make."""
    matrix = accept(scores)
    return matrix.loaded().array if isinstance(matrix, ChunkedMatrix) else matrix.array
