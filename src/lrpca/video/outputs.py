"""The files of a separated clip: videos while it goes by, then the figures and the page."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.atomic import check_folder, remove, replacing
from lrpca.video.page import Report, render_page
from lrpca.video.preview import Preview
from lrpca.video.reading import FrameReader
from lrpca.video.windows import Part, Windows
from lrpca.video.writing import NUMBERED, ClipWriter, PictureFolder, VideoFile

Bytes = NDArray[np.uint8]

# Objects in the overlay: this colour, this strong.
_TINT = np.array([255, 48, 32], np.float32)
_STRENGTH = 0.45
RESULT, PAGE = "result.json", "report.html"
_SHARES = ("moving_background", "mean_foreground")


# Names of what a run may write.
NAMES = ("background.mp4", "foreground.mp4", "overlay.mp4", "mask.mp4", "mask", RESULT, PAGE)


def check_output(folder: str | os.PathLike[str], source: Any) -> None:
    """Refuse a folder that takes no files, or in which the clip itself would be replaced."""
    check_folder(folder, [name for name in NAMES if name != "mask"])
    if not isinstance(source, str | os.PathLike):
        return
    whole = Path(source).resolve()
    if any(whole == (Path(folder) / name).resolve() for name in NAMES):
        raise FileExistsError(
            f"output={os.fspath(folder)!r} is where {os.fspath(source)!r} lies, which would be replaced; "
            "choose another folder"
        )


class Outputs:
    """The folder of a run. Every file appears when it is finished; `close` finishes what was begun.

    Parameters
    ----------
    folder : path-like
    reader : FrameReader
        The clip.
    masks : {"video", "pictures"}
    began : float
        When the run began, by `time.perf_counter`.
    """

    def __init__(self, folder: str | os.PathLike[str], reader: FrameReader, masks: str, began: float) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.files: list[str] = []
        self.n_frames = 0
        self._reader, self._began = reader, began
        size = (reader.height, reader.width, reader.rate)
        self._clips: dict[str, ClipWriter] = {}
        self._preview: Preview | None = None
        try:
            for name in ("background", "foreground", "overlay"):
                channels = 3 if name == "overlay" else reader.channels
                self._clips[name] = VideoFile(self.folder / f"{name}.mp4", *size, channels=channels)
            if masks == "video":
                self._clips["mask"] = VideoFile(self.folder / "mask.mp4", *size, channels=1, lossless=True)
            else:
                self._clips["mask"] = PictureFolder(self.folder / "mask", *size, channels=1)
            self._preview = Preview(
                reader.height, reader.width, reader.channels, reader.rate, reader.n_frames, self.folder
            )
        except BaseException:
            self._discard()
            raise

    def add(self, part: Part) -> None:
        """Write separated frames."""
        assert self._preview is not None
        for i, (frame, mask) in enumerate(zip(part.frames, part.masks, strict=True)):
            marked = mask.view(bool)
            background = part.background(i)
            foreground = np.where(marked if frame.ndim == 2 else marked[:, :, None], frame, np.uint8(0))
            self._clips["background"].write(background)
            self._clips["foreground"].write(foreground)
            self._clips["mask"].write(marked)
            self._clips["overlay"].write(overlay(frame, marked))
            self._preview.add(self.n_frames, frame, background, foreground, mask, part.area[i])
            self.n_frames += 1

    def close(self, windows: Windows, notes: list[str], *, complete: bool) -> None:
        """Finish the files: what was written so far is kept, also of a run that was stopped."""
        assert self._preview is not None
        if self.n_frames == 0:
            self._discard()
            return
        try:
            self._finish(windows, notes, complete)
        except BaseException:
            self._discard()
            raise

    def _finish(self, windows: Windows, notes: list[str], complete: bool) -> None:
        assert self._preview is not None
        for clip in self._clips.values():
            clip.close()
        self.files = [clip.path.name for clip in self._clips.values()]
        self._remove_other_masks()
        figures = self._figures(windows, complete)
        area = np.asarray(windows.area[: self.n_frames], np.float64)
        report = Report(
            title=self._reader.name,
            n_frames=self.n_frames,
            rate=self._reader.rate,
            area=area,
            figures=[(name.replace("_", " "), _say(name, value)) for name, value in figures.items()],
            notes=notes,
            preview=self._preview.finish(),
            files=[*self.files, RESULT],
        )
        with replacing(self.folder / PAGE) as path:
            path.write_text(render_page(report), encoding="utf-8")
        figures |= {"notes": notes, "files": [*self.files, PAGE], "area": [round(float(a), 6) for a in area]}
        with replacing(self.folder / RESULT) as path:
            path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        self.files += [RESULT, PAGE]

    def _remove_other_masks(self) -> None:
        """Remove the masks that an earlier run wrote here in the other form, by its own account."""
        video, pictures = self.folder / "mask.mp4", self.folder / "mask"
        other = video if self._clips["mask"].path == pictures else pictures
        try:
            earlier = json.loads((self.folder / RESULT).read_text(encoding="utf-8"))["files"]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if other.name not in earlier:
            return
        if other == video:
            remove(video)
        elif pictures.is_dir():
            for picture in pictures.iterdir():
                if NUMBERED.fullmatch(picture.name):
                    remove(picture)
            if not any(pictures.iterdir()):
                pictures.rmdir()

    def _figures(self, windows: Windows, complete: bool) -> dict[str, Any]:
        reader, seconds = self._reader, time.perf_counter() - self._began
        scene = windows.scenes[-1][1]
        return {
            "clip": reader.name,
            "complete": complete,
            "frames": self.n_frames,
            "width": reader.width,
            "height": reader.height,
            "colour": reader.channels == 3,
            "frames_per_second_of_the_clip": round(reader.rate, 3),
            "solved_at": f"{scene.width}x{scene.height}",
            "rank": int(scene.panels.shape[0]),
            "sensitivity": scene.sensitivity,
            "noise_level": round(scene.noise, 2),
            "moving_background": round(float(scene.dynamic.mean()), 4),
            "mean_foreground": round(float(np.mean(windows.area[: self.n_frames])), 6),
            "seconds": round(seconds, 2),
            "frames_per_second": round(self.n_frames / max(seconds, 1e-9), 1),
        }

    def _discard(self) -> None:
        for clip in self._clips.values():
            clip.discard()
        if self._preview is not None:
            self._preview.discard()


def overlay(
    frame: Bytes,  # (height, width[, 3])
    marked: NDArray[np.bool_],  # (height, width)
) -> Bytes:  # (height, width, 3)
    """Return the frame in colour with the marked pixels tinted."""
    picture = np.repeat(frame[:, :, None], 3, axis=2) if frame.ndim == 2 else frame.copy()
    picture[marked] = np.rint((1 - _STRENGTH) * picture[marked] + _STRENGTH * _TINT).astype(np.uint8)
    return picture


def _say(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _SHARES:
        return f"{100 * value:.2f} %"
    return str(value)
