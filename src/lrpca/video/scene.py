"""A learned scene: the background under any light, the behaviour of each pixel, and the masks that follow.

The background of frame t is row t of the low-rank part, ``X_t = R l_t``: the columns of R are basis pictures, l_t are
the coefficients of that frame. All decisions are made under one reference light, ``y - R l_t + R l_ref``, in bytes. A
pixel is marked if

1. it is farther from the reference than its own noise and a minimum distance allow,
2. its colour is rare in the background around it. A quiet pixel of the neighbourhood has one colour; a dynamic one
   (leaves, water: it changes often, quickly and in small pieces) has those of its samples,
3. it is no halo of something much stronger beside it,
4. and it is not the ground in a soft shadow: a little darker, same colour, same texture.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.kernels.threads import Threads, thread_count
from lrpca.video.coefficients import frame_coefficients

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Distance from the reference: FAR times the root of a floor and the pixel's own noise, in grey levels.
_FAR, _FLOOR_COLOUR, _FLOOR_GREY = 3.5, 4.5, 6.0
# Weights of grey and of colour in a squared distance: brightness varies more than colour.
WEIGHTS = np.array([0.5, 1.0], np.float32)
# Two colours are alike within this distance; a colour is rare below this share of the background around a pixel.
_ALIKE_COLOUR, _ALIKE_GREY = 12.0, 7.0
_RARE_COLOUR, _RARE_GREY = 0.012, 0.05
_REACH = 2
# Weight of a quiet neighbour of that colour.
_QUIET_WEIGHT = 0.08
# A marked pixel is a halo if a much stronger one is near: reach and ratio, then both for a change of colour alone,
# which compression spreads over whole blocks.
_HALO_COLOUR = np.array([2, 0.3, 6, 0.35], np.float32)
_HALO_GREY = np.array([2, 0.2, 0, 0], np.float32)
# A soft shadow keeps at least this share of the light; colour and texture agree to so many grey levels.
_SHADOW_COLOUR = np.array([0.6, 14.0, 6.0], np.float32)
# In grey it must be softer, because many dark objects would pass for shadows.
_SHADOW_GREY = np.array([0.75, 14.0, 6.0], np.float32)
_COLOUR = (_ALIKE_COLOUR, _RARE_COLOUR, _SHADOW_COLOUR, _HALO_COLOUR)
_GREY = (_ALIKE_GREY, _RARE_GREY, _SHADOW_GREY, _HALO_GREY)
# Smaller objects are removed and smaller holes are filled; shares of the picture.
_SMALLEST, _LARGEST_HOLE = 6e-4, 2.6e-3
# In a large picture objects may be smaller than that share: the limit grows with the root of its pixels.
_SMALLEST_SIDE = 0.41
_VOTE_REACH = 2
# Weight of a dynamic pixel in the size of an object.
_DYNAMIC_WEIGHT = 0.25


@dataclass(frozen=True)
class Scene:
    """A learned background, and how to tell objects from it."""

    height: int
    width: int
    channels: int
    basis: Floats  # (r, N): Rᵀ; N is the number of pixels times channels
    reference_coefficients: Floats  # (r,): those of the reference light
    picked: NDArray[np.int64]  # (K,): columns from which the coefficients of a frame are estimated
    picked_factor: NDArray[np.float64]  # (K, r): their rows of R
    noise: float  # typical noise level of a pixel, in grey levels
    reference: Bytes  # (pixels, channels): the background under the reference light
    limit: Floats  # (pixels,): squared distance from the reference that passes for noise; infinite outside the region
    place: NDArray[np.int32]  # (pixels,): row of a dynamic pixel among the samples, -1 for a quiet one
    samples: Bytes  # (D, channels, m): background colours of the dynamic pixels
    counts: NDArray[np.int32]  # (D,): their number
    sensitivity: float

    @property
    def dynamic(self) -> NDArray[np.bool_]:
        """Where the background itself moves (height, width)."""
        return (self.place >= 0).reshape(self.height, self.width)

    def coefficients(self, frames: Bytes) -> Floats:
        """Return the coefficients of each frame: (n, N) to (n, r)."""
        return frame_coefficients(frames, self.picked, self.picked_factor, self.noise)

    def background(self, coefficients: Floats) -> Bytes:
        """Return the background for the coefficients of a frame (height, width[, 3])."""
        picture = np.clip(np.rint(coefficients @ self.basis), 0, 255).astype(np.uint8)
        colours = () if self.channels == 1 else (self.channels,)
        return np.asarray(picture.reshape(self.height, self.width, *colours), np.uint8)

    def masks(
        self,
        frames: Bytes,  # (n, N)
        coefficients: Floats,  # (n, r)
        threads: Threads,
        *,
        clean: bool = True,
    ) -> Bytes:  # (n, height, width) of 0 and 1
        """Return where each frame shows objects."""
        masks = np.empty((len(frames), self.height, self.width), np.uint8)
        changes = np.ascontiguousarray(self.reference_coefficients - coefficients, np.float32)
        # Each thread takes a few frames in turn, because neighbouring frames need about the same time.
        share = max(1, min(16, len(frames) // (2 * thread_count())))
        blocks = [range(first, min(first + share, len(frames))) for first in range(0, len(frames), share)]
        work = float(len(frames)) * self.limit.size * 16
        threads.map(lambda block: self._mark(frames, changes, block, masks, clean), blocks, work=work)
        return masks

    def _mark(self, frames: Bytes, changes: Floats, block: range, masks: Bytes, clean: bool) -> None:
        from lrpca.kernels.binary import square_vote
        from lrpca.kernels.scene import mark_frame

        picture = np.empty(self.reference.shape, np.uint8)
        raw, near = np.empty((2, self.height, self.width), np.uint8)
        square_vote(self.dynamic.astype(np.uint8), _REACH, 0.0, near)
        lonely = 1 - near.reshape(-1)
        alike, rare, shadow, halo = _GREY if self.channels == 1 else _COLOUR
        weight = np.where(self.dynamic, np.float32(_DYNAMIC_WEIGHT), np.float32(1.0))
        for i in block:
            mark_frame(
                frames[i],
                changes[i],
                self.basis,
                self.reference,
                self.limit,
                WEIGHTS,
                self.place,
                lonely,
                self.samples,
                self.counts,
                int(alike**2 * (1 + (self.noise / _FLOOR_COLOUR) ** 2)),
                _QUIET_WEIGHT,
                rare * self.sensitivity,
                _REACH,
                shadow,
                halo,
                self.height,
                self.width,
                picture,
                raw.reshape(-1),
            )
            _finish(raw, weight, masks[i], clean)

    def arrays(self) -> dict[str, Any]:
        """Return all fields as arrays, for a file."""
        return {f.name: np.asarray(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any]) -> Scene:
        """Return the scene that `arrays` describes."""
        plain = {name: value.item() if value.ndim == 0 else value for name, value in arrays.items()}
        scene = cls(**plain)
        scene._check()
        return scene

    def _check(self) -> None:
        """Raise ValueError for arrays that do not fit together: kernels do not check bounds."""
        pixels, rank = self.height * self.width, len(self.reference_coefficients)
        size, dynamic = pixels * self.channels, len(self.counts)
        fits = (
            self.basis.shape == (rank, size)
            and self.reference.shape == (pixels, self.channels)
            and self.limit.shape == self.place.shape == (pixels,)
            and self.samples.shape[:2] == (dynamic, self.channels)
            and self.picked_factor.shape == (len(self.picked), rank)
            and 0 <= self.picked.min(initial=0) <= self.picked.max(initial=0) < size
            and self.place.max(initial=-1) < dynamic
            and self.counts.max(initial=0) <= self.samples.shape[2]
        )
        if not fits:
            raise ValueError("the arrays of the scene do not fit together; learn it again")


def allowed_distance(
    noise: Floats,  # (pixels,)
    channels: int,
    sensitivity: float,
    region: NDArray[np.bool_] | None,  # (pixels,)
) -> Floats:
    """Return the largest squared distance from the reference that passes for noise."""
    floor = _FLOOR_GREY if channels == 1 else _FLOOR_COLOUR
    limit = np.asarray((_FAR**2 / sensitivity) * (floor**2 + noise**2), np.float32)
    if region is not None:
        limit[~region] = np.inf
    return limit


def _finish(raw: Bytes, weight: Floats, mask: Bytes, clean: bool) -> None:
    """Clean a mask: a vote over 5x5 squares, no specks, no holes."""
    from lrpca.kernels.binary import square_vote, tidy

    if not clean:
        mask[:] = raw
        return
    square_vote(raw, _VOTE_REACH, 0.5, mask)
    smallest = min(_SMALLEST * mask.size, _SMALLEST_SIDE**2 * mask.size**0.5)
    tidy(mask, weight, max(2.0, smallest), round(_LARGEST_HOLE * mask.size))
