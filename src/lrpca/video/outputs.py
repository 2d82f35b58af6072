"""The files of a separated clip: videos while it passes, then the figures and the page."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.files.atomic import cannot_write, check_folder, exchange, hidden_in, remove
from lrpca.video.page import Report, render_page
from lrpca.video.preview import Preview
from lrpca.video.reading import FrameReader
from lrpca.video.scene import Bytes
from lrpca.video.windows import Part, Windows
from lrpca.video.writing import ClipWriter, PictureFolder, VideoFile, numbered_pictures

# Colour and strength of objects in the overlay.
_TINT = np.array([255, 48, 32], np.float32)
_STRENGTH = 0.45
RESULT, PAGE = "result.json", "report.html"
# Names of what a run may write.
NAMES = ("background.mp4", "foreground.mp4", "overlay.mp4", "mask.mp4", "mask", RESULT, PAGE)


def check_output(folder: str | os.PathLike[str], source: Any, masks: str, *, overwrite: bool) -> None:
    """Raise OSError for a folder that takes no files, holds a result, or in which the clip would be replaced."""
    target = Path(folder)
    if isinstance(source, str | os.PathLike):
        whole = Path(source).resolve()
        if any(whole == (target / name).resolve() for name in NAMES):
            raise FileExistsError(
                f"output={os.fspath(folder)!r} is where {os.fspath(source)!r} lies, which would be replaced; "
                "choose another folder"
            )
    check_folder(target, [name for name in NAMES if name != "mask"], overwrite=overwrite)
    if masks == "pictures":
        check_folder(target / "mask", numbered_pictures(target / "mask"), overwrite=overwrite)


class Outputs:
    """The files of a run. They are written to a hidden folder, and moved to their place together by `close`.

    An existing result is replaced by a complete one. A partial result replaces only a partial one, and only if the run
    was not interrupted; otherwise it goes to a subfolder ``partial``.
    """

    def __init__(self, folder: str | os.PathLike[str], reader: FrameReader, masks: str, began: float) -> None:
        self.folder = Path(folder)
        self.files: list[str] = []
        self.n_frames = 0
        self._staging = hidden_in(self.folder)
        self._reader, self._began = reader, began
        self._preview = Preview(reader.height, reader.width, reader.rate, reader.n_frames, self._staging)
        self._clips: dict[str, ClipWriter] = {}
        try:
            self._staging.mkdir(parents=True)
            size = (reader.height, reader.width, reader.rate)
            for name, channels in (("background", reader.channels), ("foreground", reader.channels), ("overlay", 3)):
                self._clips[name] = VideoFile(self._staging / f"{name}.mp4", *size, channels=channels)
            if masks == "video":
                self._clips["mask"] = VideoFile(self._staging / "mask.mp4", *size, channels=1, lossless=True)
            else:
                self._clips["mask"] = PictureFolder(self._staging / "mask", *size, channels=1)
        except BaseException:
            self._discard()
            raise

    def add(self, part: Part) -> None:
        """Write separated frames."""
        for i, (frame, mask) in enumerate(zip(part.frames, part.masks, strict=True)):
            marked = mask.view(bool)
            background = part.background(i)
            foreground = np.where(marked if frame.ndim == 2 else marked[:, :, None], frame, np.uint8(0))
            with _naming(self.folder):
                self._clips["background"].write(background)
                self._clips["foreground"].write(foreground)
                self._clips["mask"].write(marked)
                self._clips["overlay"].write(overlay(frame, marked))
                self._preview.add(self.n_frames, frame, background, foreground, mask, part.area[i])
            self.n_frames += 1

    def close(self, windows: Windows, notes: list[str], *, interrupted: bool = False) -> None:
        """Finish the files; the notes say why the result is not complete, if it is not."""
        if self.n_frames == 0:
            self._discard()
            return
        try:
            with _naming(self.folder):
                self._finish(windows, notes)
                self._put_in_place(complete=not notes, interrupted=interrupted)
        except BaseException:
            self._discard()
            raise

    def close_after(self, error: BaseException, windows: Windows) -> None:
        """Finish the files of a run that an error ended, and add a note to the error that says where they are."""
        asked = self.folder
        reason = f"stopped after {self.n_frames} frames: {str(error) or type(error).__name__}"
        self.close(windows, [reason], interrupted=True)
        if self.files:
            stays = "" if self.folder == asked else f"; what was in {str(asked)!r} stays"
            error.add_note(f"the first {self.n_frames} frames are finished, in {str(self.folder)!r}{stays}")

    def _finish(self, windows: Windows, notes: list[str]) -> None:
        for clip in self._clips.values():
            clip.close()
        # On a full disk one of them may be missing.
        self.files = [clip.path.name for clip in self._clips.values() if clip.path.exists()]
        figures, area = self._figures(windows, complete=not notes), windows.area[: self.n_frames]
        report = Report(
            title=self._reader.name,
            n_frames=self.n_frames,
            rate=self._reader.rate,
            area=np.asarray(area, np.float64),
            figures=[(name.replace("_", " "), _as_text(name, value)) for name, value in figures.items()],
            notes=notes,
            preview=self._preview.finish(),
            files=[*self.files, RESULT],
        )
        (self._staging / PAGE).write_text(render_page(report), encoding="utf-8")
        figures |= {"notes": notes, "files": [*self.files, PAGE], "area": [round(a, 6) for a in area]}
        (self._staging / RESULT).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        self.files += [RESULT, PAGE]

    def _put_in_place(self, *, complete: bool, interrupted: bool) -> None:
        """Move the files to the folder, or to one of their own if a partial result must not replace the earlier one."""
        try:
            earlier = json.loads((self.folder / RESULT).read_text(encoding="utf-8"))
            written, partial = earlier["files"], earlier["complete"] is False
        except (OSError, ValueError, KeyError, TypeError):  # no result of a video
            written, partial = [], False
        # Masks in the other format are removed only if an earlier run recorded that it wrote them.
        masks = ["mask.mp4"] if "mask.mp4" in written else []
        if "mask" in (*written, *self.files):
            masks += [f"mask/{name}" for name in numbered_pictures(self.folder / "mask")]
        taken = any(os.path.lexists(self.folder / name) for name in (*self.files, *masks))
        if taken and not complete and (interrupted or not partial):
            names = (f"partial-{number}" if number > 1 else "partial" for number in count(1))
            self.folder = next(path for name in names if not os.path.lexists(path := self.folder / name))
            os.replace(self._staging, self.folder)
            return
        exchange(self._staging, self.folder, masks, last=RESULT)
        remove(self._staging)
        if "mask" in written and "mask" not in self.files and not any((self.folder / "mask").glob("*")):
            remove(self.folder / "mask")

    def _figures(self, windows: Windows, *, complete: bool) -> dict[str, Any]:
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
            "rank": len(scene.basis),
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
        self._preview.discard()
        remove(self._staging)


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Name the folder of the user in errors, not the hidden one."""
    try:
        yield
    except OSError as error:
        raise cannot_write(folder, error) from error


def overlay(
    frame: Bytes,  # (height, width[, 3])
    marked: NDArray[np.bool_],  # (height, width)
) -> Bytes:  # (height, width, 3)
    """Return the frame in colour with the marked pixels tinted."""
    picture = np.repeat(frame[:, :, None], 3, axis=2) if frame.ndim == 2 else frame.copy()
    picture[marked] = np.rint((1 - _STRENGTH) * picture[marked] + _STRENGTH * _TINT).astype(np.uint8)
    return picture


def _as_text(name: str, value: Any) -> str:
    if name in ("moving_background", "mean_foreground"):
        return f"{100 * value:.2f} %"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
