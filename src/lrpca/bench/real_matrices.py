"""Real matrices, from a folder of videos and traffic counts that is not part of the project.

The folder is named by LRPCA_DATA (``../shared/data`` beside the repository unless set). Files that are absent are left
out, and `available` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lrpca
from lrpca.bench.measuring import data_folder

# Frames are averaged over squares of 2 x 2 or 4 x 4 pixels until a clip has at most so many entries.
MOST_ENTRIES = 40_000_000
VIDEO, TRAFFIC = "video", "traffic"


@dataclass(frozen=True)
class Real:
    """A real matrix; its rows are frames or pairs of places."""

    name: str
    kind: str  # "video" or "traffic"
    Y: Any  # (n1, n2) uint8 for video, float64 with NaN for traffic
    shrunk: int = 1  # side of the squares of pixels that were averaged

    @property
    def observed(self) -> Any:
        """Where Y has a value (n1, n2)."""
        return np.ones(self.Y.shape, bool) if self.Y.dtype.kind in "iu" else ~np.isnan(self.Y)


def available(names: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Return the names whose files are there, and a message for each that is left out."""
    found, missing = [], []
    for name in names or SOURCES:
        if (data_folder() / SOURCES[name][0]).exists():
            found.append(name)
        else:
            missing.append(f"{name} is left out: {SOURCES[name][0]} is not in the data folder (set LRPCA_DATA)")
    return found, missing


def load(name: str) -> Real:
    """Read one matrix."""
    path, loader = SOURCES[name]
    return loader(name, data_folder() / path)


def shrink(frame: Any, side: int) -> Any:  # frame (height, width) uint8
    """Return the frame averaged over squares of `side` pixels; what does not fill a square at the edge is cut off.

    Examples
    --------
    >>> shrink(np.array([[1, 2, 9], [3, 5, 9]], np.uint8), 2)
    array([[3]], dtype=uint8)
    """
    if side == 1:
        return frame
    height, width = (n // side for n in frame.shape)
    squares = frame[: height * side, : width * side].reshape(height, side, width, side)
    return np.round(squares.mean(axis=(1, 3))).astype(np.uint8)


def _clip(name: str, path: Path) -> Real:
    with lrpca.video.open_frames(path, grey=True) as reader:
        frames = list(reader)
    side = 1
    while len(frames) * (frames[0].shape[0] // side) * (frames[0].shape[1] // side) > MOST_ENTRIES:
        side *= 2
    return Real(name, VIDEO, np.stack([shrink(frame, side).ravel() for frame in frames]), side)


def _escalator(name: str, path: Path) -> Real:
    from scipy.io import loadmat

    stored = loadmat(path)
    height, width = int(stored["m"].item()), int(stored["n"].item())
    # One frame per column, stored column by column.
    frames = stored["X"].T.reshape(-1, width, height).transpose(0, 2, 1)
    return Real(name, VIDEO, np.ascontiguousarray(frames.reshape(len(frames), -1)))


def _traffic(name: str, path: Path) -> Real:
    if path.suffix == ".npy":
        return Real(name, TRAFFIC, np.load(path).astype(float))
    if name == "taxi":
        from scipy.io import loadmat

        tensor = loadmat(path)["tensor"].astype(float)
    else:
        import h5py

        with h5py.File(path) as file:
            tensor = np.asarray(file["Abilene"], float)
    return Real(name, TRAFFIC, tensor.reshape(-1, tensor.shape[-1]))


SOURCES: dict[str, tuple[str, Callable[[str, Path], Real]]] = {
    "vtest": ("video/vtest.avi", _clip),
    "bgs_video": ("video/bgs_video.avi", _clip),
    "bgs_video02": ("video/bgs_video02.avi", _clip),
    "cdnet_pedestrians": ("video/cdnet_pedestrians/input", _clip),
    "escalator": ("video/escalator_data.mat", _escalator),
    "abilene": ("timeseries/Abilene.mat", _traffic),
    "taxi": ("timeseries/nyc_tensor.mat", _traffic),
    "ngsim": ("timeseries/NGSIM_full.npy", _traffic),
}
