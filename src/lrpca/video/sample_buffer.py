"""The frames a scene is learnt from: a fixed number, spread over what was seen, in the order of time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

# A scene is learnt from so many frames, fewer where frames are large.
MOST_SAMPLES, _LEAST_SAMPLES = 120, 40
_MOST_BYTES = 72 << 20
# Frames between a sample and the one that shows what stayed. Leaves and ripples do not.
FOLLOWS_AFTER = 4
# The widest spacing of samples: with it the oldest ones go, and the scene forgets.
WIDEST_SPACING = 50


class SampleBank:
    """Samples of a clip and, for each, a frame shortly after it.

    While the clip is short the samples are spread over all of it: whenever the bank is full every other one goes, and
    their spacing doubles. Once that is `WIDEST_SPACING` the oldest one goes instead.

    Parameters
    ----------
    size : int
        Bytes of a frame.
    most : int
        Samples at most.
    followed : bool
        Whether followers are kept.
    """

    def __init__(self, size: int, *, most: int = MOST_SAMPLES, followed: bool = True) -> None:
        self.capacity = min(most, max(_LEAST_SAMPLES, min(MOST_SAMPLES, _MOST_BYTES // size)))
        self.samples = np.empty((0, size), np.uint8)
        self.followers = np.empty((0, size if followed else 0), np.uint8)
        self.followed = followed
        self.times: list[int] = []
        self.spacing = 1

    def __len__(self) -> int:
        return len(self.times)

    def add_window(self, frames: Bytes, first: int) -> int:  # (n, size), number of the first one in the clip
        """Take samples from consecutive frames, of a first window spread over it; return how many were taken."""
        if not self.times:
            self.spacing = max(1, min(-(-len(frames) // self.capacity), WIDEST_SPACING))
        due = first if not self.times else max(first, self.times[-1] + self.spacing)
        chosen = list(range(due - first, len(frames), self.spacing))
        # Half of the bank at most is replaced at a time: what was seen before has its say.
        most = self.capacity if not self.times else max(1, self.capacity // 2)
        if len(chosen) > most:
            chosen = [chosen[k] for k in np.linspace(0, len(chosen) - 1, most).round().astype(int)]
        for i in chosen:
            self.add(frames[i], frames[min(i + FOLLOWS_AFTER, len(frames) - 1)], first + i)
        return len(chosen)

    def add(self, frame: Bytes, follower: Bytes, time: int) -> None:
        """Take one sample."""
        if len(self.times) == self.capacity:
            self._make_room()
        used = len(self.times)
        if used == len(self.samples):
            self._grow()
        self.samples[used] = frame
        if self.followed:
            self.followers[used] = follower
        self.times.append(time)

    def follow(self, frame: Bytes, time: int) -> None:
        """Make a frame the follower of the sample `FOLLOWS_AFTER` frames before it, if that is one."""
        for k in range(len(self.times) - 1, -1, -1):
            if self.times[k] <= time - FOLLOWS_AFTER:
                if self.times[k] == time - FOLLOWS_AFTER:
                    self.followers[k] = frame
                return

    @property
    def filled(self) -> tuple[Bytes, Bytes]:
        """The samples and their followers, oldest first."""
        return self.samples[: len(self.times)], self.followers[: len(self.times)]

    def _grow(self) -> None:
        size = min(self.capacity, max(16, 2 * len(self.samples)))
        for name in ("samples", "followers"):
            old = getattr(self, name)
            new = np.empty((size, old.shape[1]), np.uint8)
            new[: len(old)] = old
            setattr(self, name, new)

    def _make_room(self) -> None:
        kept = np.arange(0, self.capacity, 2) if self.spacing < WIDEST_SPACING else np.arange(1, self.capacity)
        for pictures in (self.samples, self.followers):
            for new, old in enumerate(kept):  # in place: a second bank would double the memory
                pictures[new] = pictures[old]
        self.times = [self.times[k] for k in kept]
        self.spacing = min(2 * self.spacing, WIDEST_SPACING)
