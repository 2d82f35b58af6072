"""A scene is learnt as the clip goes by: samples are collected, and it is fitted to them again and again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.kernels.threads import Threads
from lrpca.video.behaviour import background_colours, drop_objects, find_dynamic, keep_colours, measure_noise
from lrpca.video.coefficients import (
    fit_panels,
    pick_columns,
    read_lights,
    refine,
    relight_frames,
    sample_lights,
    take_medians,
)
from lrpca.video.sample_buffer import MOST_SAMPLES, SampleBank
from lrpca.video.scene import Scene, allowed_distance
from lrpca.video.stationary_objects import find_background

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# The scene is fitted again once this share of the bank is new.
_NEW_SHARE = 0.2
# Pixels beyond the region that is looked at, in which neighbours count.
_BEYOND = 8


def learn_scene(
    samples: Bytes,  # (m, N) frames in the order of time
    followers: Bytes,  # (m, N) a frame shortly after each
    shape: tuple[int, int, int],  # height, width, channels
    *,
    rank: int,
    sensitivity: float,
    looked_at: NDArray[np.bool_] | None,  # (pixels,)
    window: Bytes | None = None,  # (n, N) all frames of a window
    before: Scene | None = None,
    threads: Threads,
) -> Scene:
    """Learn a scene from samples of its frames, starting from the one before where there is one."""
    height, width, channels = shape
    picked, lights, panels = _fit(samples, rank, window, before, threads)
    light = np.median(lights, axis=0).astype(np.float32)
    pictures = relight_frames(samples, lights, light, panels, threads)
    majority, spread = take_medians(pictures, threads)
    reference = find_background(pictures, majority, height, width, threads)
    # The background under the reference light is that picture to the grey level, also where a visitor stayed.
    if light[0] > 0:
        panels[0] += (reference - light @ panels) / light[0]
    factor = panels[:, picked].T.astype(np.float64)
    camera, noise = measure_noise(pictures, reference, spread, shape)
    limit = allowed_distance(noise, channels, sensitivity, looked_at)
    later = relight_frames(followers, read_lights(followers, picked, factor, camera), light, panels, threads)
    dynamic, large = find_dynamic(pictures, later, reference.reshape(-1, channels), limit, height, width, threads)
    place = np.full(height * width, -1, np.int32)
    place[dynamic] = np.arange(len(dynamic), dtype=np.int32)
    taken, colours = background_colours(pictures, dynamic, channels)
    scene = Scene(
        height=height,
        width=width,
        channels=channels,
        panels=panels,
        light=light,
        picked=picked,
        picked_factor=factor,
        noise=camera,
        reference=reference.reshape(-1, channels),
        limit=limit,
        place=place,
        samples=np.empty_like(colours),
        counts=np.empty(len(dynamic), np.int32),
        sensitivity=sensitivity,
    )
    if len(dynamic):
        keep_colours(scene, large[taken][:, dynamic].T == 0, colours)
        drop_objects(scene, samples[taken], lights[taken], colours, dynamic, threads)
    return scene


def _fit(
    samples: Bytes,
    rank: int,
    window: Bytes | None,
    before: Scene | None,
    threads: Threads,
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Return the picked columns (K,), the lights of the samples (m, r), and Rᵀ (r, N)."""
    if before is None:
        picked = pick_columns(samples.shape[1])
        lights = sample_lights(np.ascontiguousarray(samples[:, picked]), rank)
        panels = fit_panels(samples, lights, None, threads)
    else:
        picked = before.picked
        lights = before.lights(samples)
        panels = fit_panels(samples, lights, before.panels, threads)
    if window is not None:
        panels, lights = refine(window, samples, picked, panels)
    return picked, lights, panels


class SceneLearner:
    """Collects samples and keeps the scene up to date.

    Parameters
    ----------
    height, width, channels : int
        Of the frames that are solved.
    rank : int
        Components of the background.
    sensitivity : float
    looked_at : ndarray of bool (height, width), optional
        Where objects are looked for.
    most_samples : int
        Frames that the scene is learnt from at a time.
    """

    def __init__(
        self,
        height: int,
        width: int,
        channels: int,
        *,
        rank: int,
        sensitivity: float,
        looked_at: NDArray[np.bool_] | None = None,
        most_samples: int = MOST_SAMPLES,
    ) -> None:
        self.shape = (height, width, channels)
        self.rank = rank
        self.sensitivity = sensitivity
        self.looked_at = looked_at
        self.bank = SampleBank(height * width * channels, most=most_samples)
        self.scene: Scene | None = None
        self.threads = Threads()
        # Samples ever taken, how many of them are new to the scene, and at which of them all lights were looked for.
        self._taken = self._new = self._searched = 0

    def take(self, frame: Bytes, time: int) -> None:
        """Take one frame as a sample."""
        self.bank.add(frame, frame, time)
        self._taken += 1

    def take_window(self, frames: Bytes, first: int) -> None:  # (n, N)
        """Take samples of a window, and learn the scene again where they are many."""
        count = self.bank.add_window(frames, first)
        self._taken += count
        self._new += count
        if self.scene is None or self._new >= _NEW_SHARE * min(len(self.bank), self.bank.capacity):
            self.learn(frames)

    def learn(self, frames: Bytes | None = None) -> None:
        """Fit the scene to the samples, starting from the last one; frames (n, N) are all there are of this window."""
        samples, followers = self.bank.filled
        # Where fewer lights than asked for were found, they are looked for again once as many samples have come.
        known = 0 if self.scene is None else len(self.scene.light)
        if known < self.rank and self._taken - self._searched >= min(self._searched, self.bank.capacity):
            before, self._searched = None, self._taken
        else:
            before = self.scene
        self.scene = learn_scene(
            samples,
            followers,
            self.shape,
            rank=self.rank,
            sensitivity=self.sensitivity,
            looked_at=self._near_region(),
            window=frames,
            before=before,
            threads=self.threads,
        )
        self._new = 0

    def _near_region(self) -> NDArray[np.bool_] | None:  # (pixels,)
        """Return where pixels are compared: in the region and a little beyond, so that its edge has neighbours."""
        if self.looked_at is None:
            return None
        from lrpca.kernels.binary import square_vote

        near = np.empty(self.looked_at.shape, np.uint8)
        square_vote(self.looked_at.astype(np.uint8), _BEYOND, 0.0, near)
        return near.reshape(-1) > 0

    def close(self) -> None:
        """End the threads."""
        self.threads.close()

    def state(self) -> dict[str, Any]:
        """Return what was learnt as arrays."""
        samples, followers = self.bank.filled
        arrays: dict[str, Any] = {
            "shape": np.array(self.shape),
            "rank": np.array(self.rank),
            "sensitivity": np.array(self.sensitivity),
            "samples": samples,
            "followers": followers,
            "times": np.array(self.bank.times, np.int64),
            "spacing": np.array(self.bank.spacing),
            "most_samples": np.array(self.bank.capacity),
            "counters": np.array([self._taken, self._new, self._searched]),
        }
        if self.looked_at is not None:
            arrays["looked_at"] = self.looked_at
        if self.scene is not None:
            arrays |= {f"scene_{name}": value for name, value in self.scene.arrays().items()}
        return arrays

    @classmethod
    def from_state(cls, arrays: dict[str, Any]) -> SceneLearner:
        """Rebuild what `state` gave."""
        height, width, channels = (int(k) for k in arrays["shape"])
        looked_at = arrays.get("looked_at")
        learner = cls(
            height,
            width,
            channels,
            rank=int(arrays["rank"]),
            sensitivity=float(arrays["sensitivity"]),
            looked_at=looked_at,
            most_samples=int(arrays["most_samples"]),
        )
        if looked_at is not None and looked_at.shape != (height, width):
            raise ValueError(f"looked_at.shape={looked_at.shape} is not {(height, width)}; learn the scene again")
        if arrays["samples"].shape[1:] != (height * width * channels,):
            raise ValueError(
                f"samples.shape={arrays['samples'].shape} is not that of the frames; learn the scene again"
            )
        for sample, follower, time in zip(arrays["samples"], arrays["followers"], arrays["times"], strict=True):
            learner.bank.add(sample, follower, int(time))
        learner.bank.spacing = int(arrays["spacing"])
        learner._taken, learner._new, learner._searched = (int(k) for k in arrays["counters"])
        scene = {name.removeprefix("scene_"): value for name, value in arrays.items() if name.startswith("scene_")}
        if scene:
            learner.scene = Scene.from_arrays(scene)
        return learner
