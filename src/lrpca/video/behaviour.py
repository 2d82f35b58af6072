"""Behaviour of pixels: their noise, where the background itself moves, and in which colours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lrpca.kernels.threads import Threads
from lrpca.video.scene import WEIGHTS, Bytes, Floats, Scene

# A pixel is dynamic if pieces without a 5x5 square, gone a moment later, cover it this often.
_OFTEN, _OFTEN_REACH = 0.03, 3
_PIECE_REACH = 2
# Thin parts this close to a part with such a square belong to it: the legs of a walker are no pieces.
_AROUND = 3
# A part that contains a 9x9 square is large, and its colours are not used as background at first.
_LARGE_REACH = 4
# Number of colours kept for a dynamic pixel; if fewer than this share are free of objects, all are kept.
_COLOURS = 64
_LEAST_FREE = 0.3
# The noise of the camera is that of quiet pixels; the noise of a pixel is limited to a multiple of it.
_QUIET = 0.2
_NOISE_PICTURES = 12
_MOST_NOISE, _LEAST_NOISE = 2.0, 2.0
_MOST_CAMERA_NOISE = 12.0
_TO_SIGMA = 1.4826
# Number of groups of samples that are given to threads.
_GROUPS = 8


def measure_noise(
    pictures: Bytes,  # (m, N)
    reference: Bytes,  # (N,)
    spread: Bytes,  # (N,) median distance from the median picture
    shape: tuple[int, int, int],  # height, width, channels
) -> tuple[float, Floats]:  # of the camera, and (pixels,)
    """Return the noise level of the camera, and the limited noise level of each pixel."""
    camera = _camera_noise(pictures, reference, shape)
    noise = _TO_SIGMA * spread.reshape(-1, shape[2]).mean(axis=1, dtype=np.float32)
    return camera, np.minimum(noise, max(_MOST_NOISE * camera, _LEAST_NOISE))


def _camera_noise(pictures: Bytes, reference: Bytes, shape: tuple[int, int, int]) -> float:
    """Return the noise of quiet pixels against their neighbours, which move together in water and leaves."""
    height, width, _ = shape
    if height < 3 or width < 3:
        return 0.0
    taken = np.linspace(0, len(pictures) - 1, min(len(pictures), _NOISE_PICTURES)).round().astype(int)
    rough = np.empty((len(taken), height - 2, width - 2), np.float32)
    for k, i in enumerate(taken):
        e = (pictures[i].astype(np.int16) - reference).reshape(shape)
        around = e[:-2, 1:-1] + e[2:, 1:-1] + e[1:-1, :-2] + e[1:-1, 2:]
        rough[k] = np.abs(4 * e[1:-1, 1:-1] - around).mean(axis=2) / 4
    # The difference of a pixel and the mean of four has 5/4 of the variance.
    level = _TO_SIGMA / np.sqrt(1.25) * np.quantile(np.median(rough, axis=0), _QUIET)
    return min(float(level), _MOST_CAMERA_NOISE)


def background_colours(
    pictures: Bytes,  # (m, N)
    dynamic: NDArray[np.intp],  # (D,)
    channels: int,
) -> tuple[NDArray[np.intp], Bytes]:
    """Return which pictures are taken (k,), and the colours that dynamic pixels have in them (D, channels, k)."""
    taken = np.linspace(0, len(pictures) - 1, min(len(pictures), _COLOURS)).round().astype(np.intp)
    colours = pictures.reshape(len(pictures), -1, channels)[taken][:, dynamic].transpose(1, 2, 0)
    return taken, np.ascontiguousarray(colours)


def find_dynamic(
    pictures: Bytes,  # (m, N)
    later: Bytes,  # (m, N)
    reference: Bytes,  # (pixels, channels)
    limit: Floats,
    height: int,
    width: int,
    threads: Threads,
) -> tuple[NDArray[np.intp], Bytes]:
    """Return the pixels where the background moves, and where each picture shows something large.

    The background moves where pieces too small for objects come often and do not stay.
    """
    from scipy.ndimage import uniform_filter

    from lrpca.kernels.binary import square_vote
    from lrpca.kernels.scene import candidates

    large = np.empty((len(pictures), height, width), np.uint8)

    def pieces(i: int) -> Bytes:
        here, then, eroded, opened = np.empty((4, height, width), np.uint8)
        for picture, found in ((pictures[i], here), (later[i], then)):
            candidates(picture.reshape(reference.shape), reference, limit, WEIGHTS, found.reshape(-1))
        square_vote(here, _LARGE_REACH, 0.999, eroded)
        square_vote(eroded, _LARGE_REACH + 1, 0.0, large[i])
        square_vote(here, _PIECE_REACH, 0.999, eroded)
        square_vote(eroded, _PIECE_REACH + _AROUND, 0.0, opened)
        return np.asarray(here & ~opened & ~then & 1, np.uint8)

    groups = [range(k, len(pictures), _GROUPS) for k in range(min(_GROUPS, len(pictures)))]
    often = sum(threads.map(lambda group: sum(pieces(i).astype(np.float32) for i in group), groups))
    mean = np.asarray(often, np.float32) / np.float32(len(pictures))
    share = uniform_filter(mean, 2 * _OFTEN_REACH + 1, mode="nearest")
    return np.flatnonzero((share > _OFTEN).reshape(-1) & np.isfinite(limit)), large.reshape(len(pictures), -1)


def keep_colours(
    scene: Scene,
    free: NDArray[np.bool_],  # (D, m)
    colours: Bytes,  # (D, channels, m)
) -> None:
    """Keep the free colours of every dynamic pixel; if few are free, all."""
    few = free.sum(axis=1) < _LEAST_FREE * free.shape[1]
    free = free | few[:, None]
    order = np.argsort(~free, axis=1, kind="stable")
    scene.samples[:] = np.take_along_axis(colours, order[:, None, :], axis=2)
    scene.counts[:] = free.sum(axis=1)


def drop_objects(
    scene: Scene, samples: Bytes, coefficients: Floats, colours: Bytes, dynamic: NDArray[np.intp], threads: Threads
) -> None:
    """Remove the colours of objects that the samples show from the background colours."""
    from lrpca.kernels.binary import square_vote

    masks = scene.masks(samples, coefficients, threads)
    grown = np.empty_like(masks)
    threads.map(lambda i: square_vote(masks[i], 1, 0.0, grown[i]), range(len(masks)))
    keep_colours(scene, grown.reshape(len(masks), -1)[:, dynamic].T == 0, colours)
