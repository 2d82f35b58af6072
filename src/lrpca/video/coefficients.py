"""The coefficients of frames and the background that they give: ``X_t = R l_t``, row t of the low-rank part.

The coefficients l_t of samples come from a robust low-rank fit of a few thousand of their numbers. Every pixel is then
fitted to them separately. One pass over all frames of the window, whose bytes are read in place, refines the fit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.core.linalg import least_squares
from lrpca.kernels.threads import Threads, thread_count

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Columns (pixels times channels) from which the coefficients of a frame are estimated.
_PICKED = 2048
# Residuals above this are left out of the fit of a pixel; ridge on components after the first, in samples.
_CUT, _RIDGE = 24.0, 4.0
_FIT_STEPS = 2
_ITERATIONS = 40
_NOTHING, _TINY = 1e-4, 1e-30
# A change of light affects the whole picture: a component in a smaller share of the pixels is an object.
_EVERYWHERE = 0.3
# It changes steadily or rarely: a component that goes up and down from sample to sample is moving leaves.
_STEADY = 0.45
# The correction is limited to that of a frame with this share of the usual brightness.
_DIM = 0.1
# Gains closer to one are not applied.
_EVEN = 0.01


def pick_columns(size: int) -> NDArray[np.int64]:
    """Return columns spread over the picture, the same for the same picture."""
    if size <= _PICKED:
        return np.arange(size)
    return np.sort(np.random.default_rng(0).choice(size, _PICKED, replace=False))


def sample_coefficients(
    picked: Bytes,  # (m, K)
    rank: int,
) -> Floats:  # (m, r)
    """Return the coefficients of the samples: left factors of a robust low-rank fit, of mean square one."""
    from lrpca.decompose import Arguments, decompose_with_warnings

    flat = np.ones((len(picked), 1), np.float32)
    rank = min(rank, max(1, len(picked) // 4), picked.shape[1] // 4)
    if rank < 1 or not (picked != picked[0]).any():
        return flat
    options = {"without": ["residual_structure", "other_fits"]}
    arguments = Arguments(max_iter=_ITERATIONS, random_state=0, options=options)
    while True:
        result, _ = decompose_with_warnings(picked, rank, arguments)
        others = np.abs(result.R[:, 1:])
        touched = np.mean(others > 0.5 * np.sqrt(np.mean(others**2, axis=0)), axis=0)
        waver = np.abs(np.diff(result.L[:, 1:], axis=0)).mean(axis=0) / np.maximum(result.L[:, 1:].std(axis=0), _TINY)
        everywhere = 1 + int(np.sum((touched > _EVERYWHERE) & (waver < _STEADY)))
        if everywhere >= result.R.shape[1]:
            break
        rank = everywhere
    sizes = np.sqrt(np.mean(result.L**2, axis=0))
    there = sizes > _NOTHING * max(float(sizes[0]), _TINY)
    found = np.asarray(result.L[:, there] / sizes[there], np.float32)
    # The first coefficient is the brightness; if that changes sign, the component is no background.
    return found if found.shape[1] and (found[:, 0] > _DIM * np.median(found[:, 0])).all() else flat


def frame_coefficients(
    frames: Bytes,  # (n, N)
    picked: NDArray[np.int64],  # (K,)
    factor: Any,  # (K, r): these rows of R
    noise: float,
) -> Floats:  # (n, r)
    """Return the coefficients of each frame by robust regression on the picked columns."""
    from lrpca.matrices.dense import DenseMatrix
    from lrpca.solvers.rows import robust_coefficients

    matrix = DenseMatrix(np.ascontiguousarray(frames[:, picked]))
    return np.asarray(robust_coefficients(matrix, np.asarray(factor, np.float64), noise), np.float32)


def fit_basis(samples: Bytes, coefficients: Floats, before: Floats | None, threads: Threads) -> Floats:
    """Return Rᵀ (r, N): every pixel fitted to the coefficients.

    The fit starts from the one before, or from the median of the brightness-corrected samples.
    """
    from lrpca.kernels.scene import fit_columns

    level = max(float(np.median(coefficients[:, 0])), _TINY)
    gains = level / np.maximum(coefficients[:, :1], _DIM * level)
    even = samples
    if before is None and np.abs(gains - 1).max() > _EVEN:
        even = np.empty_like(samples)
        for sample, gain, out in zip(samples, gains, even, strict=True):  # all samples as floats would be large
            out[:] = np.clip(np.rint(sample * gain), 0, 255)
    start = np.zeros((coefficients.shape[1], samples.shape[1]), np.float32)
    if before is None:
        start[0] = take_medians(even, threads)[0] / level
    else:
        start[:] = before
    ridge = np.where(np.arange(coefficients.shape[1]) > 0, _RIDGE, 0).astype(np.float32)
    basis = np.empty_like(start)
    threads.map(
        lambda part: fit_columns(samples, coefficients, start, *part, _CUT, _FIT_STEPS, ridge, basis),
        _column_ranges(samples.shape[1]),
    )
    return basis


def refine_basis(window: Bytes, samples: Bytes, picked: NDArray[np.int64], basis: Floats) -> tuple[Floats, Floats]:
    """Refine Rᵀ by a pass over the bytes of the window; return it and the coefficients of the samples."""
    from lrpca.decompose import Arguments, decompose_with_warnings
    from lrpca.schedule import Schedule

    R = np.ascontiguousarray(basis.T)
    coefficients = frame_coefficients(window, picked, R[picked], 0.0)
    rank = R.shape[1]
    if min(window.shape) > 4 * rank and np.linalg.matrix_rank(coefficients) == rank:
        schedule = Schedule(
            thresholds=[_CUT / 2] * 2,
            steps=[1.0] * 2,
            shape=window.shape,
            rank=rank,
            influence="redescending",
            cutoff=2.0,
        )
        arguments = Arguments(schedule=schedule, start=(coefficients, R), tol=0.0, max_iter=1)
        result, _ = decompose_with_warnings(window, rank, arguments)
        # The factors come back in another gauge. Going back to the old one lets the next window start from here.
        gauge = least_squares(coefficients, result.L)
        R = result.R @ gauge.T
    basis = np.ascontiguousarray(R.T, np.float32)
    return basis, frame_coefficients(samples, picked, R[picked], 0.0)


def relight_frames(frames: Bytes, coefficients: Floats, reference: Floats, basis: Floats, threads: Threads) -> Bytes:
    """Return the frames as they would look under the light of the reference coefficients."""
    from lrpca.kernels.scene import relight

    pictures = np.empty_like(frames)
    changes = np.ascontiguousarray(reference - coefficients, np.float32)
    one_by_one = [slice(i, i + 1) for i in range(len(frames))]
    threads.map(lambda i: relight(frames[i], changes[i], basis, pictures[i]), one_by_one)
    return pictures


def take_medians(pictures: Bytes, threads: Threads) -> tuple[Bytes, Bytes]:
    """Return the median picture (N,), and the median distance from it."""
    from lrpca.kernels.scene import middle_values

    middle, spread = np.empty((2, pictures.shape[1]), np.uint8)
    threads.map(lambda part: middle_values(pictures, *part, middle, spread), _column_ranges(pictures.shape[1]))
    return middle, spread


def _column_ranges(size: int) -> list[tuple[int, int]]:
    edges = np.linspace(0, size, 4 * thread_count() + 1).astype(int).tolist()
    return [(a, b) for a, b in pairwise(edges) if b > a]
