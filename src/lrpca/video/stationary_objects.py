"""Stationary objects are no background: which of two lasting appearances of a place is the background.

A robust fit takes the appearance that lasts longest, so a person who stays for most of the clip becomes background.
Here a place with two lasting appearances is decided as a region. An appearance that is seen both before and after the
other one is the background. Otherwise it is the one without edges along its outline: an object has an outline, the
ground does not. Otherwise it is the first one, if it lasted. If the usual appearance is the first one, the last one
replaces it only by its outline.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lrpca.kernels.threads import Threads

# Stretches of time whose medians are compared; movement shorter than half a stretch has no effect.
_STRETCHES = 24
# Appearances that differ by more than this in a channel are different.
_DIFFERENT = 18
# An appearance lasts if it is seen in so many stretches; the first one begins in the first third of the clip.
_LASTING = 3
_EARLY = 3
# Smaller regions are ignored, and larger ones too: they are changes of light.
_LEAST_PIXELS = 25
_MOST_OF_PICTURE = 0.5
# Decisive ratios of edge strength along the outline; share of the time that a first appearance must last otherwise.
_CLEARLY_WEAKER, _NOT_STRONGER = 0.8, 1.25
_LASTED = 0.2


def find_background(
    pictures: NDArray[np.uint8],  # (m, N) under one light, in the order of time
    majority: NDArray[np.uint8],  # (N,) their median
    height: int,
    width: int,
    threads: Threads,
) -> NDArray[np.uint8]:  # (N,)
    """Return the background: the usual appearance, except for regions where that is a stationary object."""
    stretches = min(_STRETCHES, len(pictures) // 3)
    if stretches < 2 * _LASTING:
        return majority
    appearances = _appearances(pictures, stretches, threads).reshape(stretches, height * width, -1)
    usual = majority.reshape(height * width, -1)
    changing = np.flatnonzero((np.ptp(appearances, axis=0) > _DIFFERENT).any(axis=1))
    early, late = (_Alternative(order[:, changing], usual[changing]) for order in (appearances, appearances[::-1]))
    # The last appearance is considered where the first one is the usual one.
    late.differs &= ~early.differs
    chosen = usual.copy()
    _choose(chosen, usual, changing, early, (height, width), may_be_first=True)
    _choose(chosen, usual, changing, late, (height, width), may_be_first=False)
    return chosen.reshape(-1)


class _Alternative:
    """The first lasting appearance of every pixel, in the given order of time, compared with the usual one."""

    def __init__(self, appearances: NDArray[np.uint8], usual: NDArray[np.uint8]) -> None:
        self.appearance, found, when = _first_appearances(appearances)  # (q, channels)
        self.differs = found & ~_alike(self.appearance[None], usual)[0]  # (q,): whether there is another one
        # (q,): whether it is seen both before and after all of the usual one
        self.surrounds = self.differs & _surrounds(when, _alike(appearances, usual))
        self.lasted = when.mean(axis=0)  # (q,): share of the time


def _choose(
    chosen: NDArray[np.uint8],  # (pixels, channels), changed
    usual: NDArray[np.uint8],
    changing: NDArray[np.intp],  # (q,)
    other: _Alternative,
    size: tuple[int, int],
    *,
    may_be_first: bool,
) -> None:
    """Put the other appearance where it is the background, region by region."""
    places = changing[other.differs]
    if not len(places):
        return
    appearance, surrounds, lasted = (part[other.differs] for part in (other.appearance, other.surrounds, other.lasted))
    candidate = usual.copy()
    candidate[places] = appearance
    for members, outline in _regions(places, *size):
        weaker = _edges(candidate, outline, *size) / max(_edges(usual, outline, *size), 1.0)
        was_first = may_be_first and weaker < _NOT_STRONGER and np.median(lasted[members]) > _LASTED
        if surrounds[members].mean() > 0.5 or weaker < _CLEARLY_WEAKER or was_first:
            chosen[places[members]] = appearance[members]


def _appearances(pictures: NDArray[np.uint8], stretches: int, threads: Threads) -> NDArray[np.uint8]:
    """Return the median of every stretch of time (stretches, N)."""
    from lrpca.kernels.scene import few_middle_values

    edges = np.linspace(0, len(pictures), stretches + 1).round().astype(int)
    appearances = np.empty((stretches, pictures.shape[1]), np.uint8)
    threads.map(lambda k: few_middle_values(pictures[edges[k] : edges[k + 1]], appearances[k]), range(stretches))
    return appearances


def _alike(
    appearances: NDArray[np.uint8],  # (stretches, q, channels)
    appearance: NDArray[np.uint8],  # (q, channels)
) -> NDArray[np.bool_]:  # (stretches, q)
    return np.asarray((np.abs(appearances.astype(np.int16) - appearance) <= _DIFFERENT).all(axis=2))


def _first_appearances(
    appearances: NDArray[np.uint8],  # (stretches, q, channels)
) -> tuple[NDArray[np.uint8], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the first lasting appearance of every pixel (q, channels), whether there is one (q,), and when."""
    first, found = appearances[0].copy(), np.zeros(appearances.shape[1], bool)
    when = np.zeros(appearances.shape[:2], bool)
    for k in range(len(appearances) // _EARLY):
        alike = _alike(appearances, appearances[k])
        new = ~found & (alike.sum(axis=0) >= _LASTING)
        first[new], when[:, new] = appearances[k, new], alike[:, new]
        found |= new
    return first, found, when


def _surrounds(outer: NDArray[np.bool_], inner: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell for every column (stretches, q) whether `outer` is seen both before and after all of `inner`."""
    earlier = outer.argmax(axis=0) < inner.argmax(axis=0)
    later = outer[::-1].argmax(axis=0) < inner[::-1].argmax(axis=0)
    return np.asarray(earlier & later & inner.any(axis=0))


def _regions(places: NDArray[np.intp], height: int, width: int) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Return, for every region that counts, which of the `places` are in it, and the pixels of its outline."""
    from scipy.ndimage import label

    from lrpca.kernels.binary import square_vote

    mask = np.zeros((height, width), np.uint8)
    mask.reshape(-1)[places] = 1
    grown, closed = np.empty_like(mask), np.empty_like(mask)
    square_vote(mask, 2, 0.0, grown)
    square_vote(grown, 2, 0.999, closed)
    closed |= mask
    labels, count = label(closed, np.ones((3, 3)))
    regions = []
    for number in range(1, count + 1):
        region = (labels == number).astype(np.uint8)
        if not _LEAST_PIXELS <= region.sum() <= _MOST_OF_PICTURE * region.size:
            continue
        square_vote(region, 1, 0.0, grown)
        square_vote(region, 1, 0.999, closed)
        outline = np.flatnonzero(grown.reshape(-1) & ~closed.reshape(-1) & 1)
        regions.append((np.flatnonzero(labels.reshape(-1)[places] == number), outline))
    return regions


def _edges(picture: NDArray[np.uint8], outline: NDArray[np.intp], height: int, width: int) -> float:
    """Return the mean difference between the neighbours left and right, and above and below, along the outline."""
    image = picture.reshape(height, width, -1).astype(np.int16)
    y, x = np.divmod(outline, width)
    across = image[y, np.minimum(x + 1, width - 1)] - image[y, np.maximum(x - 1, 0)]
    down = image[np.minimum(y + 1, height - 1), x] - image[np.maximum(y - 1, 0), x]
    return float(np.hypot(across, down).max(axis=1).mean()) if len(outline) else 0.0
