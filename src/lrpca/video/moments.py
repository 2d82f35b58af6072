"""The busiest moments of a clip of any length, found while it goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av import VideoFrame

MOMENTS = 8
# More candidates than moments, so that what is left after keeping a distance is still busy.
CANDIDATES = 64
SPAN = 8
THUMBNAIL = 320
OUTLINE = (255, 92, 20)
# A thin limb that covers a third of a small pixel still belongs to its outline.
COVERED = 85


@dataclass(frozen=True)
class Moment:
    """A busy frame.

    Attributes
    ----------
    index : int
        Number of the frame in the clip, from 0.
    area : float
        Share of its pixels that are foreground.
    jpeg : bytes
        The frame, small, with the outline of its mask.
    """

    index: int
    area: float
    jpeg: bytes


class BusiestMoments:
    """Keeps the busiest frame of each of at most `CANDIDATES` stretches of the clip.

    The stretches start short; whenever there are too many, two neighbours become one. Only the leader of the current
    stretch is held as pictures, the others as JPEG.

    Examples
    --------
    >>> from lrpca.video.moments import BusiestMoments
    >>> BusiestMoments().choose(0)
    []
    """

    def __init__(self) -> None:
        self._span = SPAN  # frames offered, in one stretch
        self._offered = 0
        self._stretches: list[Moment | None] = []
        self._leader: tuple[int, float, VideoFrame, VideoFrame] | None = None

    def offer(self, index: int, area: float, picture: VideoFrame, mask: VideoFrame) -> None:
        """Look at one frame more.

        Parameters
        ----------
        index : int
            Its number in the clip.
        area : float
            Share of foreground.
        picture, mask : av.VideoFrame
            The frame and its mask, of one size; kept as they are, so they must not change afterwards.
        """
        if area > (self._leader[1] if self._leader else 0.0):
            self._leader = (index, area, picture, mask)
        self._offered += 1
        if self._offered % self._span == 0:
            self._end_stretch()

    def choose(self, n_frames: int) -> list[Moment]:
        """Return the busiest moments in the order of time, none close to another.

        Parameters
        ----------
        n_frames : int
            Length of the clip, which says what is close.

        Returns
        -------
        list of Moment
            At most `MOMENTS`; frames without any foreground are not among them.
        """
        if self._leader is not None:
            self._end_stretch()
        distance = n_frames / (2.5 * MOMENTS)
        chosen: list[Moment] = []
        for moment in sorted(filter(None, self._stretches), key=lambda m: (-m.area, m.index)):
            if len(chosen) < MOMENTS and all(abs(moment.index - other.index) >= distance for other in chosen):
                chosen.append(moment)
        return sorted(chosen, key=lambda m: m.index)

    def _end_stretch(self) -> None:
        leader, self._leader = self._leader, None
        if leader is None:
            self._stretches.append(None)
        else:
            index, area, picture, mask = leader
            self._stretches.append(Moment(index, area, _thumbnail(picture, mask)))
        if len(self._stretches) == CANDIDATES:
            pairs = zip(self._stretches[::2], self._stretches[1::2], strict=True)
            self._stretches = [_busier(first, second) for first, second in pairs]
            self._span *= 2


def _busier(first: Moment | None, second: Moment | None) -> Moment | None:
    if first is None or (second is not None and second.area > first.area):
        return second
    return first


def _thumbnail(picture: VideoFrame, mask: VideoFrame) -> bytes:
    """Return a small picture with the outline of what moves as JPEG."""
    from lrpca.video.writing import encode_picture

    width = min(THUMBNAIL, picture.width)
    height = max(1, round(picture.height * width / picture.width))
    small = picture.reformat(width, height, "rgb24", interpolation="AREA", threads=1).to_ndarray()
    covered = mask.reformat(width, height, "gray", interpolation="AREA", threads=1).to_ndarray() > COVERED
    small[outline(covered)] = OUTLINE
    return encode_picture(small, "jpeg")


def outline(
    mask: NDArray[np.bool_],  # (height, width)
) -> NDArray[np.bool_]:
    """Return the pixels on both sides of the border of a mask; the frame of the picture is no border.

    Parameters
    ----------
    mask : ndarray of bool, (height, width)

    Returns
    -------
    ndarray of bool, (height, width)

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.video.moments import outline
    >>> outline(np.array([[False, False, True, True, True]])).astype(int)
    array([[0, 1, 1, 0, 0]])
    """
    border = np.zeros_like(mask)
    across, down = mask[:, 1:] != mask[:, :-1], mask[1:] != mask[:-1]
    border[:, 1:] |= across
    border[:, :-1] |= across
    border[1:] |= down
    border[:-1] |= down
    return border
