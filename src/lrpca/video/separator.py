"""Live: one frame in, its mask out, in the shape of OpenCV's background subtractors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.files.atomic import found_with, replacing, with_ending
from lrpca.files.formats import read_archive
from lrpca.video import request
from lrpca.video.learning import SceneLearner
from lrpca.video.resolution import choose_factor, enlarge, enlarge_mask, reduce_frame, reduce_region, reduced_size
from lrpca.video.sample_buffer import WIDEST_SPACING

Bytes = NDArray[np.uint8]

_FORMAT, _VERSION = "lrpca-separator", 1
# The scene is learnt again when the number of frames seen has grown by this factor, then every so many samples.
_GROWTH = 1.5
_SAMPLES_BETWEEN = 12
# Learning takes as long as there are samples, and a live frame waits for it.
_SAMPLES = 60


class Separator:
    """A background subtractor for frames that come one by one.

    The first frame is taken for background; the scene is learnt again as more come, ever more rarely, from samples
    spread over what was seen.

    Parameters
    ----------
    rank : int
        Components of the background.
    sensitivity : float
        The one knob: above 1 fainter things are marked, below 1 only clearer ones.
    downscale : int, optional
        Solve on frames averaged over squares of this side; unless given, frames above 480 000 pixels are reduced.
    roi, ignore : box, array or path, optional
        Where to look for objects, and where not, see `separate`.
    clean : bool
        Whether masks are voted over 5x5 squares, freed of specks, and their holes filled.

    Attributes
    ----------
    n_frames : int
        Frames that were learnt from.

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
        self.rank = request.check_rank(rank)
        self.sensitivity = request.check_sensitivity(sensitivity)
        self.clean = bool(clean)
        self.n_frames = 0
        self._downscale, self._regions = downscale, (roi, ignore)
        self._learner: SceneLearner | None = None
        self._shape: tuple[int, ...] = ()
        self._factor = 1
        self._next_learning = 1
        self._light: NDArray[np.float32] | None = None
        self._looked_at: NDArray[np.bool_] | None = None

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
            0 freezes: nothing that was learnt changes, to the bit. Up to 1: every ``1 / learning_rate``-th frame is
            learnt from. None or a negative number is automatic.
        """
        rate = request.check_learning_rate(learning_rate)
        picture = self._check(frame)
        small = reduce_frame(picture, self._factor)
        row = np.ascontiguousarray(small).reshape(1, -1)
        learner = self._learner
        assert learner is not None
        if rate != 0 or learner.scene is None:
            self._learn(learner, row[0], rate)
        scene = learner.scene
        assert scene is not None
        lights = scene.lights(row)
        self._light = lights[0]
        mask = scene.masks(row, lights, learner.threads, clean=self.clean)[0]
        large = enlarge_mask(mask, self._factor, *self._shape[:2])
        if self._looked_at is not None:
            large = large & self._looked_at
        return np.asarray(large * np.uint8(255), np.uint8)

    def background(self) -> Bytes:
        """Return the background under the light of the last frame (height, width[, 3])."""
        if self._learner is None or self._learner.scene is None:
            raise ValueError("no frame was seen yet; call apply(frame) first")
        scene = self._learner.scene
        picture = scene.background(scene.light if self._light is None else self._light)
        return np.asarray(enlarge(picture, self._factor, *self._shape[:2]), np.uint8)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that was learnt to an .npz file.

        Parameters
        ----------
        path : str or path-like
            Ends in ``.npz``, which is added where there is no ending.
        """
        if self._learner is None:
            raise ValueError("no frame was seen yet; call apply(frame) first")
        state: dict[str, Any] = {
            "format": np.array(_FORMAT),
            "version": np.array(_VERSION),
            "frame_shape": np.array(self._shape),
            "factor": np.array(self._factor),
            "clean": np.array(self.clean),
            "n_frames": np.array(self.n_frames),
            "next_learning": np.array(self._next_learning),
        }
        if self._looked_at is not None:
            state["looked_at"] = self._looked_at
        if self._light is not None:
            state["light"] = self._light
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
        except Exception as error:  # what is missing or of another form shows in many ways
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
        separator._factor = int(state["factor"])
        separator.n_frames = int(state["n_frames"])
        separator._next_learning = int(state["next_learning"])
        separator._looked_at = state.get("looked_at")
        separator._light = state.get("light")
        return separator

    def _check(self, frame: Any) -> Bytes:
        picture = np.asarray(frame)
        if picture.dtype != np.uint8:
            raise ValueError(f"frame.dtype={picture.dtype} is not uint8; convert the frame to bytes first")
        if picture.ndim not in (2, 3) or (picture.ndim == 3 and picture.shape[2] not in (1, 3)) or not picture.size:
            raise ValueError(f"frame.shape={picture.shape} is no picture; pass (height, width) or (height, width, 3)")
        if picture.ndim == 3 and picture.shape[2] == 1:
            picture = picture[:, :, 0]
        if self._learner is None:
            self._begin(picture.shape)
        elif picture.shape != self._shape:
            raise ValueError(
                f"frame.shape={picture.shape} is not that of the first, {self._shape}; use a new Separator"
            )
        return np.ascontiguousarray(picture)

    def _begin(self, shape: tuple[int, ...]) -> None:
        height, width = shape[:2]
        asked = request.check_downscale(self._downscale, height, width)
        looked_at = request.read_regions(*self._regions, height, width)
        self._shape, self._factor, self._looked_at = shape, choose_factor(height, width, asked), looked_at
        if looked_at is not None:
            looked_at = reduce_region(looked_at, self._factor)
        self._learner = SceneLearner(
            *reduced_size(height, width, self._factor),
            3 if len(shape) == 3 else 1,
            rank=self.rank,
            sensitivity=self.sensitivity,
            looked_at=looked_at,
            most_samples=_SAMPLES,
        )

    def _learn(self, learner: SceneLearner, row: Bytes, rate: float | None) -> None:
        """Take the frame as a sample if one is due, and learn the scene again if that is."""
        bank = learner.bank
        spacing = bank.spacing if rate is None else max(1, round(1 / max(rate, 1 / WIDEST_SPACING)))
        bank.follow(row, self.n_frames)
        if not bank.times or self.n_frames >= bank.times[-1] + spacing:
            learner.take(row, self.n_frames)
        self.n_frames += 1
        if self.n_frames >= self._next_learning:
            learner.learn()
            wait = min(_GROWTH * self.n_frames, self.n_frames + _SAMPLES_BETWEEN * spacing)
            self._next_learning = max(self.n_frames + 2, int(wait))
