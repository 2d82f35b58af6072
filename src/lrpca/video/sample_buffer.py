"""The frames a scene is learned from: a fixed number, spread over the clip so far, in the order of time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# Number of frames that a scene is learned from; fewer if frames are large.
MOST_SAMPLES, _LEAST_SAMPLES = 120, 40
_MOST_BYTES = 72 << 20
# Frames between a sample and its follower, which shows what stayed. Leaves and ripples do not.
FOLLOWS_AFTER = 4
# Largest spacing of samples. From there on the oldest samples are dropped, and the scene forgets.
WIDEST_SPACING = 50


class SampleBuffer:
    """At most `most` samples of a clip and, if `followed`, for each a frame shortly after it; `size` bytes per frame.

    While the clip is short, the samples are spread over all of it: a full buffer drops every second one, and the
    spacing doubles. Once the spacing is `WIDEST_SPACING`, the oldest one is dropped instead.
    """

    def __init__(self, size: int, *, most: int = MOST_SAMPLES, followed: bool = True) -> None:
        self.capacity = min(most, max(_LEAST_SAMPLES, min(MOST_SAMPLES, _MOST_BYTES // size)))
        self.samples = np.empty((0, size), np.uint8)
        self.followers = np.empty((0, size if followed else 0), np.uint8)
        self.followed = followed
        self.times: list[int] = []
        self.spacing = 1

    def add_window(self, frames: Bytes, first: int) -> int:  # (n, size), number of the first one in the clip
        """Take samples from consecutive frames, spread over them in a first window; return their number."""
        if not self.times:
            self.spacing = max(1, min(-(-len(frames) // self.capacity), WIDEST_SPACING))
        due = first if not self.times else max(first, self.times[-1] + self.spacing)
        chosen = list(range(due - first, len(frames), self.spacing))
        # At most half of the buffer is replaced at a time, so earlier frames keep their weight.
        most = self.capacity if not self.times else max(1, self.capacity // 2)
        if len(chosen) > most:
            chosen = [chosen[k] for k in np.linspace(0, len(chosen) - 1, most).round().astype(int)]
        for i in chosen:
            self.add(frames[i], frames[min(i + FOLLOWS_AFTER, len(frames) - 1)], first + i)
        return len(chosen)

    def add(self, frame: Bytes, follower: Bytes, time: int) -> None:
        """Take one sample."""
        if len(self.times) == self.capacity:
            self._drop()
        used = len(self.times)
        if used == len(self.samples):
            size = min(self.capacity, max(16, 2 * used))
            self.samples, self.followers = _enlarged(self.samples, size), _enlarged(self.followers, size)
        self.samples[used] = frame
        if self.followed:
            self.followers[used] = follower
        self.times.append(time)

    def follow(self, frame: Bytes, time: int) -> None:
        """Make a frame the follower of the sample `FOLLOWS_AFTER` frames before it, if there is one."""
        if time - FOLLOWS_AFTER in self.times:
            self.followers[self.times.index(time - FOLLOWS_AFTER)] = frame

    @property
    def filled(self) -> tuple[Bytes, Bytes]:
        """The samples and their followers, oldest first."""
        return self.samples[: len(self.times)], self.followers[: len(self.times)]

    def _drop(self) -> None:
        """Drop every second sample, or the oldest one once the spacing is the widest."""
        kept = np.arange(0, self.capacity, 2) if self.spacing < WIDEST_SPACING else np.arange(1, self.capacity)
        for pictures in (self.samples, self.followers):
            for new, old in enumerate(kept):  # in place: a second buffer would double the memory
                pictures[new] = pictures[old]
        self.times = [self.times[k] for k in kept]
        self.spacing = min(2 * self.spacing, WIDEST_SPACING)


def _enlarged(pictures: Bytes, size: int) -> Bytes:
    large = np.empty((size, pictures.shape[1]), np.uint8)
    large[: len(pictures)] = pictures
    return large
