"""What is measured on videos: plain records that go to JSON and come back, pictures included."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lrpca.bench.experiments.measurement import Fact, Table, listing
from lrpca.bench.experiments.video_clips import Clip


@dataclass(frozen=True)
class VideoSetup:
    """How large the experiment is.

    Attributes
    ----------
    clips : tuple of Clip
    repeat : int
        Runs of every method on every clip.
    max_iter : int
        Most iterations of every method.
    seed : int
        Of the methods' random numbers; run i has `seed` + i.
    rank : int
    limit : float
        Every method stops when X and S both change by less than this part of themselves.
    videos : tuple of str
        Footage, in turn for the clips; that of ``LRPCA_DATA/video`` if empty.
    """

    clips: tuple[Clip, ...]
    repeat: int
    max_iter: int
    seed: int = 0
    rank: int = 2
    limit: float = 1e-3
    # Whatever the footage, the comparison is the paper's.
    videos: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return f"rank {self.rank}, " + ", ".join(str(clip) for clip in self.clips)

    def caption(self) -> str:
        """Return what was measured, for the line below a figure."""
        return f"{self}; one frame of each clip"

    def facts(self) -> list[Fact]:
        """Return the sizes to show large."""
        entries = sum(clip.width * clip.height * clip.n_frames for clip in self.clips)
        return [
            Fact("Clips", str(len(self.clips)), f"{entries / 1e6:.0f} million pixels, uint8"),
            Fact("Rank", str(self.rank), f"stopped at a change of {self.limit:g}"),
        ]

    def describe(self) -> str:
        """Return what the clips are."""
        made = ", ".join(
            f"{clip.name} ({clip.size}) of {name}" for clip, name in zip(self.clips, self._names(), strict=True)
        )
        return (
            "The paper's VIRAT videos are not distributed with it. Clips of their sizes are made of other footage: "
            "grey, cropped to the shape around the middle, scaled by averaging, cut where it is longer, and played "
            f"forward and backward in turn where it is shorter: {made}. One frame is one row, uint8. Methods take "
            f"turns in shuffled order; at most {self.max_iter} iterations."
        )

    def _names(self) -> list[str]:
        given = [self.videos[k % len(self.videos)] for k in range(len(self.clips))] if self.videos else []
        return [name.replace("\\", "/").rpartition("/")[2] for name in given] or [clip.footage for clip in self.clips]


@dataclass(frozen=True)
class VideoTrial:
    """One method on one clip.

    Attributes
    ----------
    label, clip : str
        Names of the contestant and the clip.
    seed : int
    seconds : float
        Wall time of the whole call.
    iterations : int
    seconds_per_iteration : float
        Median, without the initialisation.
    met : bool
        Whether the stopping rule was met.
    distance : float or None
        ``‖X - X_a‖ / ‖X_a‖``, X_a being AltProj's answer on the same clip.
    residual : float
        Median of ``|Y - X|`` over sampled pixels, in grey levels.
    """

    label: str
    clip: str
    seed: int
    seconds: float
    iterations: int
    seconds_per_iteration: float
    met: bool
    distance: float | None
    residual: float


@dataclass(frozen=True)
class View:
    """A picture: a frame of a clip, or what a method makes of it.

    Attributes
    ----------
    clip, label : str
    part : {"frame", "background", "foreground"}
    jpeg : str
        The content of the file, in base64.
    """

    clip: str
    label: str
    part: str
    jpeg: str

    @property
    def content(self) -> bytes:
        """The content of the file."""
        return base64.b64decode(self.jpeg)


@dataclass(frozen=True)
class VideoMeasurement:
    """All trials of the experiment, and pictures of what they came to.

    Attributes
    ----------
    setup : VideoSetup
    contestants : dict of str to str
        What each was told, by label.
    trials : tuple of VideoTrial
    views : tuple of View
    notes : tuple of str
    """

    setup: VideoSetup
    contestants: Mapping[str, str]
    trials: tuple[VideoTrial, ...]
    views: tuple[View, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, label: str, clip: str) -> list[VideoTrial]:
        """Return the trials of one contestant on one clip."""
        return [trial for trial in self.trials if (trial.label, trial.clip) == (label, clip)]

    def view(self, clip: str, label: str, part: str) -> View | None:
        """Return a picture, None where there is none."""
        found = (view for view in self.views if (view.clip, view.label, view.part) == (clip, label, part))
        return next(found, None)

    def listings(self) -> list[Table]:
        """Return all runs."""
        return [listing("All runs", self.trials)]

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold, and `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> VideoMeasurement:
        """Make it again from what was stored; other keys are passed over."""
        setup = dict(content["setup"])
        setup["clips"] = tuple(Clip(**clip) for clip in setup["clips"])
        setup["videos"] = tuple(setup["videos"])
        return cls(
            VideoSetup(**setup),
            content["contestants"],
            tuple(VideoTrial(**trial) for trial in content["trials"]),
            tuple(View(**view) for view in content["views"]),
            tuple(content["notes"]),
        )
