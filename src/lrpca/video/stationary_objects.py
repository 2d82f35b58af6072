"""Who stands still is no background: which of two lasting looks of a place was there without the visitor.

A robust fit takes the look that lasts longest, so a person who stays for most of the clip melts into the background.
Here a place that shows two lasting looks is decided as a region: a look seen both before and after the other one is
the background; else the look whose outline shows no edges (an object has an outline, the ground behind it goes on);
else the first one, if it lasted. Where the usual look was the first, the last one can win, by its outline alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lrpca.kernels.threads import Threads

# Stretches of time whose medians are compared; movement shorter than half a stretch does not show.
_STRETCHES = 24
# Looks that differ by more than this in a channel are different.
_DIFFERENT = 18
# A look lasts if it is seen in so many stretches; a first look begins in this part of the clip.
_LASTING = 3
_EARLY = 3
# A region of fewer pixels is left alone, and one that fills more of the picture: that is a change of light.
_LEAST_PIXELS = 25
_MOST_OF_PICTURE = 0.5
# Ratios of edge strength along the outline that decide, and how long a first look must last where edges do not.
_CLEARLY_WEAKER, _NOT_STRONGER = 0.8, 1.25
_LASTED = 0.2


def find_background(
    pictures: NDArray[np.uint8],  # (m, N) under one light, in the order of time
    majority: NDArray[np.uint8],  # (N,) their median
    height: int,
    width: int,
    threads: Threads,
) -> NDArray[np.uint8]:  # (N,)
    """Return the background: the majority's look, but for regions where that is a visitor who stayed."""
    stretches = min(_STRETCHES, len(pictures) // 3)
    if stretches < 2 * _LASTING:
        return majority
    looks = _looks(pictures, stretches, threads).reshape(stretches, height * width, -1)
    usual = majority.reshape(height * width, -1)
    changing = np.flatnonzero((np.ptp(looks, axis=0) > _DIFFERENT).any(axis=1))
    early = _Alternative(looks[:, changing], usual[changing])
    late = _Alternative(looks[::-1, changing], usual[changing])
    # The last look is asked about where the first one is the usual.
    late.differs &= ~early.differs
    chosen = usual.copy()
    _choose(chosen, usual, changing, early, (height, width), may_be_first=True)
    _choose(chosen, usual, changing, late, (height, width), may_be_first=False)
    return chosen.reshape(-1)


class _Alternative:
    """The first lasting look of every pixel, in the order of time that the looks come in.

    Attributes
    ----------
    look : ndarray (q, channels)
    differs : ndarray of bool (q,)
        Whether there is one, and it is not the usual look.
    surrounds : ndarray of bool (q,)
        Whether it is seen both before and after all of the usual look.
    lasted : ndarray (q,)
        Share of the time.
    """

    def __init__(self, looks: NDArray[np.uint8], usual: NDArray[np.uint8]) -> None:
        self.look, seen, when = _first_looks(looks)
        self.differs = seen & (np.abs(self.look.astype(np.int16) - usual) > _DIFFERENT).any(axis=1)
        self.surrounds = self.differs & _surrounds(when, _alike(looks, usual))
        self.lasted = when.mean(axis=0)


def _choose(
    chosen: NDArray[np.uint8],  # (pixels, channels), changed
    usual: NDArray[np.uint8],
    changing: NDArray[np.intp],  # (q,)
    other: _Alternative,
    size: tuple[int, int],
    *,
    may_be_first: bool,
) -> None:
    """Put the other look where it is the background, region by region."""
    places = changing[other.differs]
    if not len(places):
        return
    look, surrounds, lasted = other.look[other.differs], other.surrounds[other.differs], other.lasted[other.differs]
    candidate = usual.copy()
    candidate[places] = look
    for members, outline in _regions(places, *size):
        weaker = _edges(candidate, outline, *size) / max(_edges(usual, outline, *size), 1.0)
        was_first = may_be_first and weaker < _NOT_STRONGER and np.median(lasted[members]) > _LASTED
        if surrounds[members].mean() > 0.5 or weaker < _CLEARLY_WEAKER or was_first:
            chosen[places[members]] = look[members]


def _looks(pictures: NDArray[np.uint8], stretches: int, threads: Threads) -> NDArray[np.uint8]:
    """Return the median of every stretch of time (stretches, N)."""
    from lrpca.kernels.scene import few_middle_values

    edges = np.linspace(0, len(pictures), stretches + 1).round().astype(int)
    looks = np.empty((stretches, pictures.shape[1]), np.uint8)

    threads.map(lambda k: few_middle_values(pictures[edges[k] : edges[k + 1]], looks[k]), range(stretches))
    return looks


def _alike(
    looks: NDArray[np.uint8],  # (stretches, q, channels)
    look: NDArray[np.uint8],  # (q, channels)
) -> NDArray[np.bool_]:  # (stretches, q)
    near: NDArray[np.bool_] = (np.abs(looks.astype(np.int16) - look) <= _DIFFERENT).all(axis=2)
    return near


def _first_looks(
    looks: NDArray[np.uint8],  # (stretches, q, channels)
) -> tuple[NDArray[np.uint8], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the first lasting look of every pixel (q, channels), whether there is one (q,), and when it is seen."""
    first, found = looks[0].copy(), np.zeros(looks.shape[1], bool)
    when = np.zeros(looks.shape[:2], bool)
    for k in range(len(looks) // _EARLY):
        alike = _alike(looks, looks[k])
        new = ~found & (alike.sum(axis=0) >= _LASTING)
        first[new], when[:, new] = looks[k, new], alike[:, new]
        found |= new
    return first, found, when


def _surrounds(outer: NDArray[np.bool_], inner: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tell for every column (stretches, q) whether `outer` is seen both before and after all of `inner`."""
    earlier = outer.argmax(axis=0) < inner.argmax(axis=0)
    later = outer[::-1].argmax(axis=0) < inner[::-1].argmax(axis=0)
    both: NDArray[np.bool_] = earlier & later & inner.any(axis=0)
    return both


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
