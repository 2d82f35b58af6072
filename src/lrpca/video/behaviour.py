"""How pixels behave: how noisy they are, and where the background itself moves and in which colours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lrpca.kernels.threads import Threads
from lrpca.video.scene import WEIGHTS, Scene

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Pieces that a 5x5 square does not fit into, gone a moment later: a pixel where they come this often is dynamic.
_OFTEN, _OFTEN_REACH = 0.03, 3
_PIECE_REACH = 2
# Thin parts so near to what a square fits into belong to it: the legs of a walker are no pieces.
_AROUND = 3
# What a 9x9 square fits into is large, and no background colour to begin with.
_LARGE_REACH = 4
# Colours that are kept of a dynamic pixel; where fewer of them are free of objects, all are.
_COLOURS = 64
_LEAST_FREE = 0.3
# The noise of the camera is that of quiet pixels; a pixel is believed to have at most so many times that.
_QUIET = 0.2
_NOISE_PICTURES = 12
_MOST_NOISE, _LEAST_NOISE = 2.0, 2.0
_MOST_CAMERA_NOISE = 12.0
_TO_SIGMA = 1.4826
# Samples are dealt out to threads in so many hands.
_HANDS = 8


def measure_noise(
    pictures: Bytes,  # (m, N)
    reference: Bytes,  # (N,)
    spread: Bytes,  # (N,) median distance from the median picture
    shape: tuple[int, int, int],  # height, width, channels
) -> tuple[float, Floats]:  # of the camera, and (pixels,)
    """Return the noise level of the camera, and that of each pixel as far as it can be noise."""
    camera = _camera_noise(pictures, reference, shape)
    noise = _TO_SIGMA * spread.reshape(-1, shape[2]).mean(axis=1, dtype=np.float32)
    return camera, np.minimum(noise, max(_MOST_NOISE * camera, _LEAST_NOISE))


def _camera_noise(pictures: Bytes, reference: Bytes, shape: tuple[int, int, int]) -> float:
    """Return the noise of quiet pixels against their neighbours: what water and leaves do, neighbours do as well."""
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
    from lrpca.kernels.binary import square_vote
    from lrpca.kernels.scene import candidates

    large = np.empty((len(pictures), height, width), np.uint8)

    def pieces(i: int) -> Bytes:
        here, then = np.empty((height, width), np.uint8), np.empty((height, width), np.uint8)
        candidates(pictures[i].reshape(reference.shape), reference, limit, WEIGHTS, here.reshape(-1))
        candidates(later[i].reshape(reference.shape), reference, limit, WEIGHTS, then.reshape(-1))
        eroded, opened = np.empty_like(here), np.empty_like(here)
        square_vote(here, _LARGE_REACH, 0.999, eroded)
        square_vote(eroded, _LARGE_REACH + 1, 0.0, large[i])
        square_vote(here, _PIECE_REACH, 0.999, eroded)
        square_vote(eroded, _PIECE_REACH + _AROUND, 0.0, opened)
        return np.asarray(here & ~opened & ~then & 1, np.uint8)

    hands = [range(k, len(pictures), _HANDS) for k in range(min(_HANDS, len(pictures)))]
    often = sum(threads.map(lambda hand: sum(pieces(i).astype(np.float32) for i in hand), hands))
    share = _box_mean(np.asarray(often, np.float32) / np.float32(len(pictures)), _OFTEN_REACH)
    return np.flatnonzero((share > _OFTEN).reshape(-1) & np.isfinite(limit)), large.reshape(len(pictures), -1)


def keep_colours(
    scene: Scene,
    free: NDArray[np.bool_],  # (D, m)
    colours: Bytes,  # (D, channels, m)
) -> None:
    """Keep the free colours of every dynamic pixel, or all where few are free: so it looks most of the time."""
    few = free.sum(axis=1) < _LEAST_FREE * free.shape[1]
    free = free | few[:, None]
    order = np.argsort(~free, axis=1, kind="stable")
    scene.samples[:] = np.take_along_axis(colours, order[:, None, :], axis=2)
    scene.counts[:] = free.sum(axis=1)


def drop_objects(
    scene: Scene, samples: Bytes, lights: Floats, colours: Bytes, dynamic: NDArray[np.intp], threads: Threads
) -> None:
    """Take the objects that the samples themselves show out of the background colours."""
    from lrpca.kernels.binary import square_vote

    masks = scene.masks(samples, lights, threads)
    grown = np.empty_like(masks)
    threads.map(lambda i: square_vote(masks[i], 1, 0.0, grown[i]), range(len(masks)))
    keep_colours(scene, grown.reshape(len(masks), -1)[:, dynamic].T == 0, colours)


def _box_mean(picture: Floats, reach: int) -> Floats:
    from scipy.ndimage import uniform_filter

    return np.asarray(uniform_filter(picture, 2 * reach + 1, mode="nearest"))
