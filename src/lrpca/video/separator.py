"""Live separation: one frame in, its mask out, like OpenCV's background subtractors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.files.atomic import found_with, replacing, with_ending
from lrpca.files.formats import read_archive
from lrpca.video.learning import SceneLearner
from lrpca.video.request import Request, check_learning_rate
from lrpca.video.resolution import Resolution
from lrpca.video.sample_buffer import WIDEST_SPACING
from lrpca.video.scene import Bytes, Floats

_FORMAT, _VERSION = "lrpca-separator", 1
# The scene is learned again when the number of frames has grown by this factor, later every so many samples.
_GROWTH = 1.5
_SAMPLES_BETWEEN = 12
# The time for learning grows with the number of samples, and a live frame waits for it.
_SAMPLES = 60


class Separator:
    """A background subtractor for frames that come one by one.

    The first frame counts as background. The scene is learned again as more frames come, less and less often, from
    samples spread over the frames so far.

    Parameters
    ----------
    rank : int
        Components of the background.
    sensitivity : float
        From 0.1 to 10. Above 1, fainter objects are marked; below 1, only clearer ones.
    downscale : int, optional
        Side of the squares that are averaged before solving. By default, frames of more than 480 000 pixels are
        reduced.
    roi, ignore : box, array or path, optional
        Where objects are marked, and where not; see `separate`.
    clean : bool
        Whether masks are cleaned: a vote over 5x5 pixels, no specks, no small holes.

    Attributes
    ----------
    n_frames : int
        Number of frames seen, frozen ones excluded.

    Examples
    --------
    >>> import lrpca
    >>> frames = lrpca.datasets.street_scene(n_frames=30, height=48, width=80).frames
    >>> separator = lrpca.video.Separator()
    >>> for frame in frames:
    ...     mask = separator.apply(frame)
    >>> mask.shape, separator.background().shape
    ((48, 80), (48, 80))
    """

    def __init__(
        self,
        *,
        rank: int = 2,
        sensitivity: float = 1.0,
        downscale: int | None = None,
        roi: Any = None,
        ignore: Any = None,
        clean: bool = True,
    ) -> None:
        self._request = Request(rank, sensitivity, clean, downscale, roi, ignore)
        self.rank, self.sensitivity, self.clean = int(rank), float(sensitivity), bool(clean)
        self.n_frames = 0
        self._learner: SceneLearner | None = None
        self._shape: tuple[int, ...] = ()
        self._resolution = Resolution(0, 0, 1)
        self._next_learning = 1
        self._coefficients: Floats | None = None  # of the last frame
        self._region: NDArray[np.bool_] | None = None

    def apply(
        self,
        frame: Any,  # (height, width) or (height, width, 3) uint8
        learning_rate: float | None = None,
    ) -> Bytes:  # (height, width)
        """Return the mask of a frame, 255 where something is in front of the background, and learn from it.

        Parameters
        ----------
        frame : array of uint8 (height, width) or (height, width, 3)
        learning_rate : float, optional
            0 freezes the scene: no learned number changes. Up to 1: every ``1 / learning_rate``-th frame is learned
            from. None or a negative number is automatic.
        """
        rate = check_learning_rate(learning_rate)
        picture = self._check(frame)
        learner = self._learner or self._begin(picture.shape)
        row = np.ascontiguousarray(self._resolution.reduce(picture)).reshape(1, -1)
        if rate != 0 or learner.scene is None:
            self._learn(learner, row[0], rate)
        scene = learner.scene
        assert scene is not None
        coefficients = scene.coefficients(row)
        self._coefficients = coefficients[0]
        mask = scene.masks(row, coefficients, learner.threads, clean=self.clean)[0]
        return np.asarray(self._resolution.enlarge_mask(mask, self._region) * np.uint8(255), np.uint8)

    def background(self) -> Bytes:
        """Return the background in the light of the last frame (height, width[, 3])."""
        if self._learner is None or self._learner.scene is None:
            raise ValueError("no frame was seen yet; call apply(frame) first")
        scene = self._learner.scene
        known = scene.reference_coefficients if self._coefficients is None else self._coefficients
        return np.asarray(self._resolution.enlarge(scene.background(known)), np.uint8)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the learned scene and the settings to an .npz file.

        Parameters
        ----------
        path : str or path-like
            Ends in ``.npz``, which is added if there is no ending.
        """
        if self._learner is None:
            raise ValueError("no frame was seen yet; call apply(frame) first")
        state: dict[str, Any] = {
            "format": np.array(_FORMAT),
            "version": np.array(_VERSION),
            "frame_shape": np.array(self._shape),
            "factor": np.array(self._resolution.factor),
            "clean": np.array(self.clean),
            "n_frames": np.array(self.n_frames),
            "next_learning": np.array(self._next_learning),
        }
        optional = {"region": self._region, "coefficients": self._coefficients}
        state |= {name: value for name, value in optional.items() if value is not None}
        with replacing(with_ending(path, ".npz")) as temporary, open(temporary, "wb") as file:
            np.savez(file, **state, **{f"learner_{k}": v for k, v in self._learner.state().items()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Separator:
        """Read what `save` wrote."""
        path = found_with(path, ".npz")
        if not path.is_file():
            raise FileNotFoundError(f"path={str(path)!r} is not a file; pass what Separator.save wrote")
        try:
            return cls._from_state(read_archive(path))
        except Exception as error:  # missing and wrong entries raise many kinds of errors
            raise ValueError(f"path={str(path)!r} is no saved Separator; write one with Separator.save") from error

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Separator:
        if str(state["format"]) != _FORMAT or int(state["version"]) != _VERSION:
            raise ValueError(f"format={state['format']} {state['version']} is not {_FORMAT} {_VERSION}; save it again")
        learner = SceneLearner.from_state(
            {name.removeprefix("learner_"): v for name, v in state.items() if name.startswith("learner_")}
        )
        separator = cls(rank=learner.rank, sensitivity=learner.sensitivity, clean=bool(state["clean"]))
        separator._learner = learner
        separator._shape = tuple(int(k) for k in state["frame_shape"])
        separator._resolution = Resolution(separator._shape[0], separator._shape[1], int(state["factor"]))
        separator.n_frames = int(state["n_frames"])
        separator._next_learning = int(state["next_learning"])
        separator._region = state.get("region")
        separator._coefficients = state.get("coefficients")
        return separator

    def _check(self, frame: Any) -> Bytes:
        picture = np.asarray(frame)
        if picture.dtype != np.uint8:
            raise ValueError(f"frame.dtype={picture.dtype} is not uint8; convert the frame to bytes first")
        if picture.ndim not in (2, 3) or picture.shape[2:] not in ((), (1,), (3,)) or not picture.size:
            raise ValueError(f"frame.shape={picture.shape} is no picture; pass (height, width) or (height, width, 3)")
        if picture.shape[2:] == (1,):
            picture = picture[:, :, 0]
        if self._learner is not None and picture.shape != self._shape:
            raise ValueError(
                f"frame.shape={picture.shape} is not that of the first, {self._shape}; use a new Separator"
            )
        return np.ascontiguousarray(picture)

    def _begin(self, shape: tuple[int, ...]) -> SceneLearner:
        """Set up everything for frames of a shape."""
        height, width, channels = (*shape, 1)[:3]
        found = self._request.begin(height, width, channels, most_samples=_SAMPLES)
        self._shape, (self._resolution, self._region, self._learner) = shape, found
        return found[2]

    def _learn(self, learner: SceneLearner, row: Bytes, rate: float | None) -> None:
        """Take the frame as a sample if one is due, and learn the scene again if that is due."""
        buffer = learner.buffer
        spacing = buffer.spacing if rate is None else max(1, round(1 / max(rate, 1 / WIDEST_SPACING)))
        buffer.follow(row, self.n_frames)
        if not buffer.times or self.n_frames >= buffer.times[-1] + spacing:
            learner.take(row, self.n_frames)
        self.n_frames += 1
        if self.n_frames >= self._next_learning:
            learner.learn()
            wait = min(_GROWTH * self.n_frames, self.n_frames + _SAMPLES_BETWEEN * spacing)
            self._next_learning = max(self.n_frames + 2, int(wait))
