"""Small clips with known objects, for the tests of `lrpca.video`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
# Where an object is in frame t: its top left pixel (y, x), or None if it is not there.
Way = Callable[[int], tuple[int, int] | None]


@dataclass(frozen=True)
class Box:
    """A rectangle of one colour (grey, or three channels) on its way through the picture."""

    path: Way
    size: tuple[int, int] = (12, 10)
    colour: int | tuple[int, int, int] = 230


@dataclass(frozen=True)
class Clip:
    """Frames (n, height, width[, 3]) and where there is an object in them (n, height, width)."""

    frames: Bytes
    truth: NDArray[np.bool_]


def crossing(y: int, speed: float = 1.0, start: int = -10, turn: int | None = None) -> Way:
    """A walk from left to right; with `turn` it begins again after so many frames."""
    return lambda t: (y, start + round(speed * (t if turn is None else t % turn)))


def staying(y: int, x: int, first: int = 0, last: int = 10**9) -> Way:
    """A stay at one place from frame `first` to before `last`."""
    return lambda t: (y, x) if first <= t < last else None


def ground(height: int, width: int, channels: int = 1, seed: int = 0) -> NDArray[np.float64]:
    """An empty scene (height, width[, 3]): soft texture and a few edges, between 60 and 180."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    picture = 110 + 25 * np.sin(x / 7.0) * np.cos(y / 9.0) + 15 * (x > width // 2) - 20 * (y > 2 * height // 3)
    picture = picture + rng.uniform(-6, 6, picture.shape)
    if channels == 1:
        return picture
    return picture[:, :, None] * np.array([1.0, 0.92, 0.8]) + np.array([0.0, 6.0, 12.0])


def render(
    n_frames: int,
    height: int = 60,
    width: int = 80,
    *,
    channels: int = 1,
    boxes: Sequence[Box] = (),
    noise: float = 2.0,
    gains: Any = None,  # (n_frames,): the light of each frame
    flicker: NDArray[np.bool_] | None = None,  # (height, width): where pixels have one of two looks, at random
    shade: Callable[[int], NDArray[np.float64]] | None = None,  # t to a factor (height, width): shadows
    seed: int = 0,
) -> Clip:
    """Render a clip: ground, flicker, shadows, boxes, light, camera noise."""
    rng = np.random.default_rng(seed + 1)
    empty = ground(height, width, channels, seed)
    shape = (n_frames, *empty.shape)
    frames, truth = np.empty(shape, np.uint8), np.zeros((n_frames, height, width), bool)
    for t in range(n_frames):
        picture = empty.copy()
        if flicker is not None:
            picture[flicker & (rng.random((height, width)) < 0.4)] += 50
        if shade is not None:
            factor = shade(t)
            picture *= factor if channels == 1 else factor[:, :, None]
        for box in boxes:
            place = box.path(t)
            if place is not None:
                here = _slices(place, box.size)
                picture[here] = box.colour
                truth[t][here] = True
        picture *= 1.0 if gains is None else gains[t]
        frames[t] = np.clip(np.rint(picture + noise * rng.standard_normal(picture.shape)), 0, 255)
    return Clip(frames, truth)


def _slices(place: tuple[int, int], size: tuple[int, int]) -> tuple[slice, slice]:
    (y, x), (h, w) = place, size
    return slice(max(y, 0), max(y + h, 0)), slice(max(x, 0), max(x + w, 0))


def f_score(masks: NDArray[Any], truth: NDArray[np.bool_]) -> float:
    """Return the F-measure over all pixels; 1 where nothing is there and nothing is marked."""
    marked = masks.astype(bool)
    hits, total = np.count_nonzero(marked & truth), np.count_nonzero(marked) + np.count_nonzero(truth)
    return 2 * hits / total if total else 1.0


def interior(truth: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the pixels (n, height, width) whose 5x5 square is all object: clear of the outline."""
    from scipy.ndimage import minimum_filter

    return np.asarray(minimum_filter(truth, (1, 5, 5)))


def one_by_one(frames: Bytes) -> Iterator[Bytes]:
    """Give the frames once, as a camera does."""
    yield from frames
