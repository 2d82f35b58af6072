"""Example data made by code: a rendered street scene whose background and foreground are known exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lrpca.datasets import street

__all__ = ["StreetScene", "street_scene"]

NOISE_LEVEL = 2.0  # standard deviation of the sensor noise, in grey levels


@dataclass(frozen=True)
class StreetScene:
    """A rendered clip of a street, seen by a fixed camera, with its exact truth.

    Attributes
    ----------
    frames : ndarray of uint8, shape (n_frames, height, width)
        What the camera records: background, figures and cars, their faint contact shadows, sensor noise.
    background : ndarray of float32, shape (n_frames, height, width)
        The empty street without noise, in the light of that frame. The waving tree is background.
    foreground : ndarray of bool, shape (n_frames, height, width)
        True where figures or cars cover more than half of the pixel. Shadows and the tree do not count.
    """

    frames: NDArray[np.uint8]
    background: NDArray[np.float32]
    foreground: NDArray[np.bool_]


def street_scene(n_frames: int = 300, height: int = 160, width: int = 240, random_state: int | None = 0) -> StreetScene:
    """Render a street with walking figures and cars in front of a fixed camera.

    The background is a textured street in slowly changing light, with a tree that waves in the wind. A dozen figures
    and cars of different size, speed and contrast cover about a twentieth of the picture. With one frame per row, the
    true background has nearly low rank: two components describe the light, a few weak ones the tree.

    Parameters
    ----------
    n_frames, height, width : int
        Number and size of the frames, at least 32 x 32 pixels. The height sets the scale.
    random_state : int or None
        Seed of houses, textures and noise; None gives a new clip each time. The traffic is always the same.

    Returns
    -------
    StreetScene

    Examples
    --------
    >>> from lrpca.datasets import street_scene
    >>> scene = street_scene(n_frames=3, height=80, width=120)
    >>> scene.frames.shape, scene.frames.dtype
    ((3, 80, 120), dtype('uint8'))
    """
    for name, value, least in (("n_frames", n_frames, 1), ("height", height, 32), ("width", width, 32)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name}={value!r} is not an integer of at least {least}; use {name}={least} or more")
    rng = np.random.default_rng(random_state)
    scale, shape = height / street.DESIGN_HEIGHT, (int(height), int(width))
    backdrop, tree = street.backdrop(shape, scale, rng), street.Tree(shape, scale, rng)
    scene = StreetScene(
        frames=np.empty((n_frames, *shape), np.uint8),
        background=np.empty((n_frames, *shape), np.float32),
        foreground=np.empty((n_frames, *shape), np.bool_),
    )
    for k in range(n_frames):
        empty, image, cover = backdrop.copy(), backdrop.copy(), np.zeros_like(backdrop)
        for actor in street.FAR_FIGURES:
            street.draw(actor, k, image, cover, scale)
        shade, alpha = tree.at(k)
        for picture in (empty, image):
            window = picture[tree.rows, tree.columns]
            window += alpha * (shade - window)
        cover[tree.rows, tree.columns] *= 1 - alpha
        for actor in street.NEAR_ACTORS:
            street.draw(actor, k, image, cover, scale)
        light = street.light(shape, k)
        noise = NOISE_LEVEL * rng.standard_normal(shape, dtype=np.float32)
        scene.background[k] = empty * light
        scene.frames[k] = np.clip(np.rint(image * light + noise), 0, 255)
        scene.foreground[k] = cover > 0.5
    return scene
