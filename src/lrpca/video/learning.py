"""A scene is learned while the clip passes: samples are collected, and it is fitted to them again and again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.kernels.threads import Threads
from lrpca.video.behaviour import background_colours, drop_objects, find_dynamic, keep_colours, measure_noise
from lrpca.video.coefficients import (
    fit_basis,
    frame_coefficients,
    pick_columns,
    refine_basis,
    relight_frames,
    sample_coefficients,
    take_medians,
)
from lrpca.video.sample_buffer import SampleBuffer
from lrpca.video.scene import Bytes, Floats, Scene, allowed_distance
from lrpca.video.stationary_objects import find_background

# The scene is fitted again once this share of the buffer is new.
_NEW_SHARE = 0.2
# Pixels beyond the region in which neighbours count.
_BEYOND = 8


class SceneLearner:
    """Collects samples and keeps the scene up to date.

    `shape` is height, width and channels of the frames that are solved, `region` (height, width) where objects are
    marked, `most_samples` the number of frames that the scene is learned from.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        rank: int,
        sensitivity: float,
        region: NDArray[np.bool_] | None,
        most_samples: int,
    ) -> None:
        self.shape = shape
        self.rank = int(rank)
        self.sensitivity = float(sensitivity)
        self.region = region
        self.buffer = SampleBuffer(shape[0] * shape[1] * shape[2], most=most_samples)
        self.scene: Scene | None = None
        self.threads = Threads()
        # Samples taken so far, how many of them the scene has not seen, and their number at the last full search.
        self._taken = self._new = self._searched = 0

    def take(self, frame: Bytes, time: int) -> None:
        """Take one frame as a sample."""
        self.buffer.add(frame, frame, time)
        self._taken += 1

    def take_window(self, frames: Bytes, first: int) -> Scene:  # (n, N)
        """Take samples of a window, learn the scene again if they are many, and return it."""
        count = self.buffer.add_window(frames, first)
        self._taken += count
        self._new += count
        if self.scene is None or self._new >= _NEW_SHARE * len(self.buffer.times):
            return self.learn(frames)
        return self.scene

    def learn(self, window: Bytes | None = None) -> Scene:
        """Fit the scene to the samples, starting from the last one; a window (n, N) refines it."""
        # If fewer components than asked for were found, they are searched again once the samples have doubled.
        before, due = self.scene, self._taken - self._searched >= min(self._searched, self.buffer.capacity)
        if due and (before is None or len(before.basis) < self.rank):
            before, self._searched = None, self._taken
        self.scene = self._learn(before, window)
        self._new = 0
        return self.scene

    def _learn(self, before: Scene | None, window: Bytes | None) -> Scene:
        """Learn a scene from the samples, starting from the one before if there is one."""
        samples, followers = self.buffer.filled
        (height, width, channels), threads = self.shape, self.threads
        picked, coefficients, basis = self._fit(samples, before, window)
        usual = np.median(coefficients, axis=0).astype(np.float32)
        pictures = relight_frames(samples, coefficients, usual, basis, threads)
        majority, spread = take_medians(pictures, threads)
        reference = find_background(pictures, majority, height, width, threads)
        # The background under the reference light is exactly that picture, also behind stationary objects.
        if usual[0] > 0:
            basis[0] += (reference - usual @ basis) / usual[0]
        factor = basis[:, picked].T.astype(np.float64)
        camera, noise = measure_noise(pictures, reference, spread, self.shape)
        limit = allowed_distance(noise, channels, self.sensitivity, self._near_region())
        later = relight_frames(followers, frame_coefficients(followers, picked, factor, camera), usual, basis, threads)
        dynamic, large = find_dynamic(pictures, later, reference.reshape(-1, channels), limit, height, width, threads)
        place = np.full(height * width, -1, np.int32)
        place[dynamic] = np.arange(len(dynamic), dtype=np.int32)
        taken, colours = background_colours(pictures, dynamic, channels)
        scene = Scene(
            height=height,
            width=width,
            channels=channels,
            basis=basis,
            reference_coefficients=usual,
            picked=picked,
            picked_factor=factor,
            noise=camera,
            reference=reference.reshape(-1, channels),
            limit=limit,
            place=place,
            samples=np.empty_like(colours),
            counts=np.empty(len(dynamic), np.int32),
            sensitivity=self.sensitivity,
        )
        if len(dynamic):
            keep_colours(scene, large[taken][:, dynamic].T == 0, colours)
            drop_objects(scene, samples[taken], coefficients[taken], colours, dynamic, threads)
        return scene

    def _fit(
        self, samples: Bytes, before: Scene | None, window: Bytes | None
    ) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Return the picked columns (K,), the coefficients of the samples (m, r), and Rᵀ (r, N)."""
        if before is None:
            picked = pick_columns(samples.shape[1])
            coefficients = sample_coefficients(np.ascontiguousarray(samples[:, picked]), self.rank)
            basis = fit_basis(samples, coefficients, None, self.threads)
        else:
            picked = before.picked
            coefficients = before.coefficients(samples)
            basis = fit_basis(samples, coefficients, before.basis, self.threads)
        if window is not None:
            basis, coefficients = refine_basis(window, samples, picked, basis)
        return picked, coefficients, basis

    def _near_region(self) -> NDArray[np.bool_] | None:  # (pixels,)
        """Return where pixels are compared: in the region and a little beyond, so that its edge has neighbours."""
        if self.region is None:
            return None
        from lrpca.kernels.binary import square_vote

        near = np.empty(self.region.shape, np.uint8)
        square_vote(self.region.astype(np.uint8), _BEYOND, 0.0, near)
        return near.reshape(-1) > 0

    def state(self) -> dict[str, Any]:
        """Return what was learned as arrays."""
        samples, followers = self.buffer.filled
        arrays: dict[str, Any] = {
            "shape": np.array(self.shape),
            "rank": np.array(self.rank),
            "sensitivity": np.array(self.sensitivity),
            "samples": samples,
            "followers": followers,
            "times": np.array(self.buffer.times, np.int64),
            "spacing": np.array(self.buffer.spacing),
            "most_samples": np.array(self.buffer.capacity),
            "counters": np.array([self._taken, self._new, self._searched]),
        }
        if self.region is not None:
            arrays["region"] = self.region
        scene = {} if self.scene is None else self.scene.arrays()
        return arrays | {f"scene_{name}": value for name, value in scene.items()}

    @classmethod
    def from_state(cls, arrays: dict[str, Any]) -> SceneLearner:
        """Return the learner that `state` describes."""
        height, width, channels = (int(k) for k in arrays["shape"])
        region, size = arrays.get("region"), height * width * channels
        if arrays["samples"].shape[1:] != (size,) or (region is not None and region.shape != (height, width)):
            raise ValueError("the samples or the region are not of the size of the frames; learn the scene again")
        learner = cls(
            (height, width, channels),
            rank=int(arrays["rank"]),
            sensitivity=float(arrays["sensitivity"]),
            region=region,
            most_samples=int(arrays["most_samples"]),
        )
        for sample, follower, time in zip(arrays["samples"], arrays["followers"], arrays["times"], strict=True):
            learner.buffer.add(sample, follower, int(time))
        learner.buffer.spacing = int(arrays["spacing"])
        learner._taken, learner._new, learner._searched = (int(k) for k in arrays["counters"])
        scene = {name.removeprefix("scene_"): value for name, value in arrays.items() if name.startswith("scene_")}
        if scene:
            learner.scene = Scene.from_arrays(scene)
        return learner
