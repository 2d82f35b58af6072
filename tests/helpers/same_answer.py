"""What it means that two decompositions of the same numbers, held in different ways, are the same."""

from __future__ import annotations

import numpy as np

from lrpca import Decomposition


def assert_same(got: Decomposition, want: Decomposition, within: float = 1e-5) -> None:
    """Factors, low-rank part and sparse part agree; outliers too, but for entries at the threshold itself."""
    for ours, theirs in ((got.L, want.L), (got.R, want.R), (got.low_rank, want.low_rank)):
        assert np.linalg.norm(np.asarray(ours) - theirs) <= within * np.linalg.norm(theirs)
        assert ours.dtype == theirs.dtype
    sparse, outliers = np.asarray(got.sparse), np.asarray(got.outliers)
    rounding = within * np.abs(want.sparse).max()
    differ = outliers != want.outliers
    assert (np.abs(np.abs(sparse + want.sparse)[differ] - want.outlier_threshold) <= rounding).all()
    np.testing.assert_allclose(sparse[~differ], want.sparse[~differ], rtol=0, atol=rounding)
    assert sparse.dtype == want.sparse.dtype
    assert (got.n_iter, got.reason) == (want.n_iter, want.reason)
