"""`RobustPCA`: the scikit-learn front."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.exceptions import ConvergenceWarning as SklearnConvergenceWarning
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise ImportError(f"RobustPCA needs scikit-learn 1.6 or newer ({error}); pip install 'lrpca[sklearn]'") from error

from lrpca.core.units import unit_of
from lrpca.decompose import check_settings
from lrpca.decomposition.result import Decomposition
from lrpca.exceptions import ConvergenceWarning, DiagnosisWarning
from lrpca.kernels.scale import outlier_threshold, rounding_level
from lrpca.matrices.accept import accept
from lrpca.matrices.chunked.large import is_dask
from lrpca.matrices.chunked.matrix import ChunkedMatrix
from lrpca.matrices.dense import DenseMatrix, arithmetic_dtype, native_dtype
from lrpca.solvers.methods import find_method
from lrpca.tables.axes import principal_axes
from lrpca.tables.bands import with_gaps
from lrpca.tables.callbacks import FRAMES, CallbackSupport, FitProgress, with_callbacks
from lrpca.tables.fit import RobustFit, Settings, robust_fit
from lrpca.tables.input import (
    check_table,
    checked_n_components,
    checked_weight,
    errors_in_our_words,
    in_our_words,
    is_stored,
    of_tensor,
    unwrapped,
    validated,
)
from lrpca.tables.row_model import RowModel
from lrpca.tables.streaming import SubspaceTracker

_OFTEN_WANTED = "S is empty"


class FitConvergenceWarning(ConvergenceWarning, SklearnConvergenceWarning):
    """A fit that stopped short: the warning of lrpca, and that of scikit-learn."""


class RobustPCA(CallbackSupport, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Principal component analysis of data with outlying entries and missing values.

    The model is ``X = 1 meanᵀ + scores components + S + noise``, where S is sparse and of any size. The components are
    those that `sklearn.decomposition.PCA` would find without S. `transform` solves for the scores of each row by robust
    regression, without its outlying and its missing (NaN) entries.

    Parameters
    ----------
    n_components : int, float or "auto"
        Number of components; or the share of the variance, between 0 and 1, that they have to explain; or as many as
        exceed the noise.
    center : bool or "median"
        Origin of the components. True: the mean of the clean rows, found together with them. "median": the median of
        every column, subtracted first. This copies X, unless X is read in blocks or is a large mapped file; then
        medians are those of some rows if X has more than 2²⁴ entries. False: zero.
    schedule : Schedule, str or Path, optional
        Numbers of the iteration, see `lrpca.decompose`.
    method : str
        The solver, see `lrpca.decompose`.
    tol : float, optional
        Tolerance of the solver, see `lrpca.decompose`.
    max_iter : int, optional
        Maximum number of iterations. Narrow tables (at most 40 columns, five times as many rows) use neither this nor
        `tol`.
    random_state : int, RandomState or Generator, optional
        Seed for sampling large data, 0 by default. Below 100 000 entries nothing is random.
    forgetting_factor : float or "auto"
        For `partial_fit`: the weight that a row keeps with every later row, at most 1, which forgets nothing. "auto"
        forgets when newer rows are better explained without the oldest.

    Attributes
    ----------
    components_ : ndarray (n_components, n_features)
        Orthonormal rows, strongest first, the largest entry of each positive.
    singular_values_ : ndarray (n_components,)
        Of the centred clean rows.
    explained_variance_, explained_variance_ratio_ : ndarray (n_components,)
        Variance of the clean rows along each component, and its share of that of clean rows and noise.
    mean_ : ndarray (n_features,)
        Centre.
    noise_variance_ : float
        Variance of the noise: what is neither explained nor an outlier.
    outlier_threshold_ : float
        Entries with a larger residual are outliers.
    n_components_, n_features_in_, n_samples_ : int
    feature_names_in_ : ndarray of str
        Where X had names of columns.
    low_rank_ : ndarray (n_samples, n_features)
        Training rows with NaN imputed and outliers corrected. This and the next two are computed on first use, after
        `fit` only, and are dask arrays if X was read in blocks. If X has NaN, and fewer than 2²² entries, this is a
        posterior mean.
    sparse_ : ndarray (n_samples, n_features)
        Outliers of the plain fit, zero elsewhere. Without NaN, ``low_rank_ + sparse_`` is X at the outliers.
    outliers_ : ndarray of bool (n_samples, n_features)
        True at the outliers.
    n_iter_, converged_, history_
        See `lrpca.Decomposition`. After `partial_fit` only `converged_`: whether the first rows of the stream were
        solved.

    See Also
    --------
    lrpca.decompose : The solver itself.

    Notes
    -----
    Each iteration calls scikit-learn's callbacks, if its version has any: ``RobustPCA().set_callbacks(ProgressBar())``.

    Examples
    --------
    >>> import lrpca
    >>> table = lrpca.testing.planted((200, 30), rank=2, outlier_fraction=0.1, outlier_size=10, random_state=0).Y
    >>> model = lrpca.RobustPCA(n_components=2).fit(table[:150])
    >>> model.components_.shape, model.transform(table[150:]).shape
    ((2, 30), (50, 2))
    >>> bool(abs(model.outlier_mask(table[150:]).mean() - 0.1) < 0.02)
    True
    """

    def __init__(
        self,
        n_components: int | float | str = "auto",
        *,
        center: bool | str = True,
        schedule: Any = None,
        method: str = "lrpca",
        tol: float | None = None,
        max_iter: int | None = None,
        random_state: Any = None,
        forgetting_factor: float | str = "auto",
    ) -> None:
        self.n_components = n_components
        self.center = center
        self.schedule = schedule
        self.method = method
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.forgetting_factor = forgetting_factor

    @with_callbacks
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> RobustPCA:
        """Fit the model.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            NaN is missing. Integers and single precision are not copied. A dask or zarr array, HDF5 dataset, path or
            list of paths is read in blocks, or into memory if it has fewer than 2²² entries.
        y : None
            Not used.
        sample_weight : array-like (n_samples,), optional
            A row of weight w counts as w equal rows.

        Returns
        -------
        RobustPCA
            Itself.
        """
        with _unchanged_by_failure(self):
            Y = validated(self, X, reset=True, least_samples=2)
            settings = self._checked_settings(min(Y.shape))
            weight = checked_weight(sample_weight, Y.shape[0])
            self._stream: SubspaceTracker | None = None
            most = self.max_iter or find_method("lrpca" if self.method == "auto" else self.method).max_iter
            progress = FitProgress(self, X, most, self._attributes_of)
            fit = self._fitted(Y, replace(settings, callback=progress.solver_callback), weight)
        self._take(fit)
        progress.end()
        return self

    def fit_transform(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Fit the model and return the scores (n_samples, n_components) of its rows; arguments as of `fit`."""
        return self.fit(X, sample_weight=sample_weight).transform(X)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> RobustPCA:
        """Learn from any number of further rows, in memory that does not grow.

        Continues from `fit` or earlier calls. With too few rows there are fewer components than requested.

        Arguments are those of `fit`. Arrays that are read in blocks are read band by band.
        """
        first = not hasattr(self, "components_")
        with _unchanged_by_failure(self):
            Y = validated(self, X, reset=first)
            if first:
                self._checked_settings(None)
            if self.method not in ("lrpca", "auto"):
                raise ValueError(f"method={self.method!r} has no streaming form; use 'lrpca', or fit")
            weight = checked_weight(sample_weight, Y.shape[0])
            if getattr(self, "_stream", None) is None:
                self._stream = self._new_stream()
            assert self._stream is not None
            with errors_in_our_words():
                for start, rows in _portions(Y):
                    self._stream.update(rows, None if weight is None else weight[start : start + len(rows)])
        self._follow(self._stream, Y.stored if isinstance(Y, ChunkedMatrix) else Y.dtype)
        return self

    def transform(self, X: Any) -> Any:
        """Return the scores of rows on the components, by robust regression without outlying and missing entries.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            As in `fit`.

        Returns
        -------
        ndarray (n_samples, n_components)
            Each row depends on that row of X alone. A lazy dask array if X is a dask array.
        """
        return self._of_rows(X, RowModel.scores)

    def inverse_transform(self, X: Any) -> Any:
        """Return the clean rows that belong to scores.

        Parameters
        ----------
        X : array-like (n_samples, n_components)

        Returns
        -------
        ndarray (n_samples, n_features)
            A lazy dask array if X is a dask array.
        """
        model = self._row_model()
        scores = unwrapped(X)
        if is_stored(scores) and not is_dask(scores):
            # Scores on disk are read whole: there are few of them beside the rows they make.
            matrix = accept(scores)
            scores = matrix.loaded().array if isinstance(matrix, ChunkedMatrix) else matrix.array
        elif not is_dask(scores):
            scores = np.asarray(of_tensor(scores))
        if scores.ndim != 2 or scores.shape[1] != self.n_components_:
            raise ValueError(
                f"X.shape={scores.shape} does not have {self.n_components_} columns; pass what transform returned"
            )
        if scores.dtype.kind not in "biuf":
            raise ValueError(f"X.dtype={scores.dtype} is not a real number type; pass what transform returned")
        if not is_dask(scores):
            return model.rows(scores)
        dtype = np.result_type(scores.dtype, self.components_.dtype, self.mean_.dtype)
        return _map_blocks(model.rows, scores, np.zeros((0, self.n_features_in_), dtype))

    def decompose(self, X: Any) -> Decomposition:
        """Split rows, old or new, with the fitted components fixed.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            As in `fit`; data that are not in memory are read once, in bands of rows.

        Returns
        -------
        Decomposition
            Its ``low_rank`` holds the clean rows, the centre included.
        """
        return self._of_matrix(X, RowModel.decompose)  # type: ignore[no-any-return]

    def outlier_mask(self, X: Any) -> Any:
        """Return which entries of rows are outliers.

        Parameters
        ----------
        X : array-like (n_samples, n_features)

        Returns
        -------
        ndarray of bool (n_samples, n_features)
            False where missing. A dask array if X is one, or is read in blocks.
        """
        rows = unwrapped(X)
        found = self._of_rows(X, RowModel.outliers, np.zeros((0, self._row_model().mean.size), bool))
        return found.rechunk({1: rows.chunks[1]}) if is_dask(rows) else found

    def score_samples(self, X: Any) -> Any:
        """Return the log-likelihood of rows: the higher, the more normal.

        The model is Gaussian as in `PCA.score_samples`, but a residual d beyond three noise levels σ costs
        ``9 (1 + log(d²/9σ²))`` instead of ``d²/σ²``. So one outlier does not dominate its row, and several cost more
        than one. Rows with missing entries are rated by their observed entries.

        Parameters
        ----------
        X : array-like (n_samples, n_features)

        Returns
        -------
        ndarray (n_samples,)
            A lazy dask array if X is a dask array.
        """
        return self._of_rows(X, RowModel.log_likelihood, np.zeros(0))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-likelihood of rows, see `score_samples`; `y` is not used."""
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
        fitted = self.__dict__.get("_decomposition")
        if fitted is None:
            check_is_fitted(self, "components_")
            raise AttributeError(f"{name} is of the rows given to fit; after partial_fit use decompose(X)")
        if name != "low_rank_" and not fitted.has_data:
            raise AttributeError(f"{name} needs the training data, which copies of a model lack; use decompose(X)")
        return fitted  # type: ignore[no-any-return]

    def _row_model(self) -> RowModel:
        check_is_fitted(self, "components_")
        unit = self._unit
        scales = self._noise_level / unit, self._noise_variance, self.outlier_threshold_ / unit, unit
        return RowModel(self.mean_ / unit, self.components_, self._variances, *scales)

    def _of_rows(self, X: Any, work: Callable[[RowModel, DenseMatrix], Any], empty: Any = None) -> Any:
        """Return what is made of rows, lazily of a dask array; `empty` is that of no rows, scores by default."""
        rows = unwrapped(X)
        if not is_dask(rows):
            return self._of_matrix(X, work)
        model = self._row_model()
        check_table(self, rows, reset=False)
        if empty is None:
            empty = np.zeros((0, self.n_components_), arithmetic_dtype(native_dtype(rows.dtype)))

        def of_block(block: Any) -> Any:
            # Filters of dask leave chunks without any row.
            return work(model, accept(np.asarray(block))) if len(block) else empty

        return _map_blocks(of_block, rows, empty)

    def _of_matrix(self, X: Any, work: Callable[[RowModel, DenseMatrix], Any]) -> Any:
        model = self._row_model()
        matrix = accept(validated(self, X, reset=False))
        try:
            with errors_in_our_words():
                return work(model, matrix)
        finally:
            matrix.close()

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def _checked_settings(self, most: int | None) -> Settings:
        """Return the parameters of a fit of at most so many components, or raise what is wrong with one."""
        count = checked_n_components(self.n_components, "min(X.shape)", most)
        if not (isinstance(self.center, bool | np.bool_) or self.center == "median"):
            raise ValueError(f"center={self.center!r} is unknown; use True, False or 'median'")
        # Narrow tables and streams do not pass through the solver's own checks.
        check_settings(self.method, self.schedule, self.tol, self.max_iter, self.random_state)
        center = self.center if isinstance(self.center, str) else bool(self.center)
        solver = self.method, self.schedule, self.tol, self.max_iter, self.random_state
        return Settings(*solver, n_components=count, center=center)

    def _fitted(self, Y: Any, settings: Settings, weight: Any) -> RobustFit:
        with errors_in_our_words():
            fit = robust_fit(Y, settings, weight)
        for category, message in fit.warnings:
            if category is DiagnosisWarning and message.startswith(_OFTEN_WANTED):
                continue
            kind = FitConvergenceWarning if category is ConvergenceWarning else category
            warnings.warn(in_our_words(message), kind, stacklevel=3 + FRAMES)
        return fit

    def _take(self, fit: RobustFit) -> None:
        decomposition = fit.decomposition
        self._set_axes(fit.axes.mean, fit.axes.components, fit.axes.singular_values, fit.unit, decomposition.L.dtype)
        self.n_samples_ = decomposition.L.shape[0]
        self._set_variances(fit.noise_variance, fit.total_weight)
        self._noise_level, self.outlier_threshold_ = fit.noise_level, fit.outlier_threshold
        self._total_weight = fit.total_weight
        self.n_iter_ = max(1, fit.n_iter)
        self.converged_, self.history_ = fit.converged, decomposition.history
        self._decomposition: Decomposition | None = decomposition
        self._filled = fit.filled

    def _set_axes(self, mean: Any, components: Any, singular_values: Any, unit: float, dtype: Any) -> None:
        self.mean_, self.components_ = mean.astype(dtype), components.astype(dtype)
        self.n_components_ = len(components)
        # Squares are taken in units in which they are numbers.
        self._unit, self._values = unit, (singular_values / unit).astype(dtype)
        with np.errstate(over="ignore"):
            self.singular_values_ = self._values * dtype.type(unit)

    def _set_variances(self, noise_variance: float, rows: float) -> None:
        """Set the variances, given that of the noise in units of `_unit` squared."""
        unit, self._variances = self._values.dtype.type(self._unit), self._values**2 / max(rows - 1, 1)
        self._noise_variance = noise_variance
        rest = (self.components_.shape[1] - self.n_components_) * noise_variance
        total = float(self._variances.sum()) + rest
        self.explained_variance_ratio_ = self._variances / (total or 1.0)
        with np.errstate(over="ignore", under="ignore"):
            self.explained_variance_ = self._variances * unit * unit
        self.noise_variance_ = noise_variance * self._unit * self._unit
        squares = self.explained_variance_[self._variances > 0]
        if not (np.isfinite(squares).all() and (squares >= np.finfo(squares.dtype).tiny).all()):
            typical = f"{self._unit:.0e}"
            warnings.warn(
                f"explained_variance_ leaves the range of {squares.dtype}, since X has entries of about {typical}; "
                f"explained_variance_ratio_ is right; for the variances, rescale X, e.g. X / {typical}",
                DiagnosisWarning,
                stacklevel=4 + FRAMES,
            )

    def _new_stream(self) -> SubspaceTracker:
        fitted = hasattr(self, "components_")
        stream = SubspaceTracker(
            self.n_features_in_,
            max(1, self.n_components_) if fitted else self.n_components,
            center=bool(self.center),
            forgetting_factor=self.forgetting_factor,
            schedule=self.schedule,
            tol=self.tol,
            max_iter=self.max_iter,
            random_state=self.random_state,
        )
        if fitted:
            values = self._values.astype(np.float64) * self._unit
            stream.start_from(self.mean_, self.components_, values, self._total_weight, self._noise_level)
        return stream

    def _follow(self, stream: SubspaceTracker, dtype: Any) -> None:
        result = arithmetic_dtype(np.dtype(dtype))
        mean, values, rows = stream.mean, stream.singular_values, max(stream.effective_rows, 1.0)
        unit = unit_of(max(np.abs(mean).max(), values.max(initial=0.0) / math.sqrt(rows)), result)
        self._set_axes(mean, stream.components, values, unit, result)
        seen = stream.n_rows_seen
        self.n_samples_ = int(seen) if float(seen).is_integer() else seen
        self._noise_level = stream.noise_level
        # How far the clean rows are from their centre, by feature.
        spread = np.sqrt((self._values**2 / rows) @ self.components_**2)
        rounding = rounding_level(result, float(np.abs(self.mean_).max(initial=0.0) + np.abs(spread).max() * unit))
        self.outlier_threshold_ = outlier_threshold(self._noise_level, np.dtype(dtype), rounding)
        self._set_variances((self._noise_level / unit) ** 2, stream.effective_rows)
        for name in ("_decomposition", "_filled", "n_iter_", "history_"):
            self.__dict__.pop(name, None)
        if stream.converged is False and getattr(self, "converged_", True):
            warnings.warn(
                "not converged: the first rows of the stream could not be solved, and what follows builds on them; fit "
                "a larger batch first, or check n_components",
                FitConvergenceWarning,
                stacklevel=3,
            )
        # Whether the first rows were solved; before there are enough of them, nothing is wrong yet.
        self.converged_ = stream.converged is not False

    def _attributes_of(self, state: Any) -> dict[str, Any]:
        """Return what the attributes would be if the solver stopped at a state."""
        unit = unit_of(float(np.abs(state.L).max()) * float(np.abs(state.R).max()))
        root = math.sqrt(unit)
        axes = principal_axes(state.L / root, state.R / root, center=self.center is True)
        count = checked_n_components(self.n_components, "min(X.shape)", None)
        if isinstance(count, int):
            axes = axes.first(count)
        shown = copy(self)
        shown._set_axes(axes.mean * unit, axes.components, axes.singular_values * unit, unit, np.dtype(float))
        shown._set_variances(0.0, len(state.L))
        shown._noise_level, shown.outlier_threshold_ = 0.0, math.inf
        return {name: value for name, value in vars(shown).items() if value is not vars(self).get(name)}

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        # A pickled model is small: it does not bring the training data along.
        for name in ("_decomposition", "_filled"):
            if state.get(name) is not None:
                state[name] = state[name].without_data()
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@contextmanager
def _unchanged_by_failure(estimator: RobustPCA) -> Iterator[None]:
    names = ("n_features_in_", "feature_names_in_", "_stream")
    before = {name: value for name, value in estimator.__dict__.items() if name in names}
    try:
        yield
    except BaseException:
        for name in names:
            estimator.__dict__.pop(name, None)
        estimator.__dict__.update(before)
        raise


def _portions(Y: Any) -> Iterator[tuple[int, Any]]:
    """Yield (first row, rows) of a table: all of them at once, or in bands where it is not in memory."""
    if isinstance(Y, ChunkedMatrix):
        for start, band, mask in Y.blocks(1):
            yield start, with_gaps(band, mask)
        Y.close()
    else:
        yield 0, Y.toarray() if hasattr(Y, "toarray") else Y


def _map_blocks(work: Callable[[Any], Any], rows: Any, empty: Any) -> Any:
    """Return ``work(block)`` of blocks of whole rows of a dask array as another one, of the kind of `empty`."""
    whole = rows.rechunk({1: -1})
    chunks = (whole.chunks[0], *((n,) for n in empty.shape[1:]))
    drop = [1] if empty.ndim == 1 else []
    return whole.map_blocks(work, dtype=empty.dtype, chunks=chunks, drop_axis=drop, meta=empty)
