"""A clip split into background and moving objects."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.video.outputs import Outputs, check_output
from lrpca.video.reading import open_frames
from lrpca.video.request import Request
from lrpca.video.resolution import Resolution
from lrpca.video.scene import Bytes, Floats, Scene
from lrpca.video.windows import Windows


@dataclass(frozen=True)
class Progress:
    """Progress of a separation.

    Attributes
    ----------
    done : int
        Frames whose mask is finished.
    n_frames : int or None
        Frames the clip announced.
    seconds : float
        Since the start.
    """

    done: int
    n_frames: int | None
    seconds: float


@dataclass(frozen=True)
class Separation:
    """A separated clip.

    Attributes
    ----------
    name : str
        The clip.
    n_frames, height, width, channels : int
        channels is 1 for grey, 3 for colour.
    rate : float
        Frames per second.
    area : ndarray (n_frames,)
        Share of the region that is foreground.
    masks : ndarray of bool (n_frames, height, width) or None
        True where something is in front of the background; None if they were written to a folder.
    coefficients : ndarray (n_frames, r)
        Left factor of the low-rank part: the coefficients of every frame.
    scenes : list of (int, Scene)
        First frame of each learned scene, and the scene, which holds the right factor; only the last one if the
        outputs were written to a folder.
    downscale : int
        Side of the squares that were averaged before solving.
    seconds : float
        The whole run.
    complete : bool
        False if the clip broke off or the run was interrupted.
    notes : list of str
        Why the result is not complete.
    folder, files : Path or None, list of str
        The folder of the files, and their names.
    """

    name: str
    n_frames: int
    height: int
    width: int
    channels: int
    rate: float
    area: Floats = field(repr=False)
    masks: NDArray[np.bool_] | None = field(repr=False)
    coefficients: Floats = field(repr=False)
    scenes: list[tuple[int, Scene]] = field(repr=False)
    downscale: int
    seconds: float
    complete: bool
    notes: list[str]
    folder: Path | None
    files: list[str]

    def background(self, frame: int) -> Bytes:
        """Return the background of a frame (height, width[, 3]); a smaller solution is enlarged by squares."""
        if not -self.n_frames <= frame < self.n_frames:
            raise IndexError(f"frame={frame} is not in a clip of {self.n_frames} frames; count from 0")
        frame %= self.n_frames
        scene = next((scene for first, scene in reversed(self.scenes) if first <= frame), None)
        if scene is None:
            raise ValueError(f"frame={frame} has its background in the folder only; read it from background.mp4")
        picture = scene.background(self.coefficients[frame, : len(scene.basis)])
        return np.asarray(Resolution(self.height, self.width, self.downscale).enlarge(picture), np.uint8)


def separate(
    source: Any,
    output: str | os.PathLike[str] | None = None,
    *,
    rank: int = 2,
    grey: bool | None = None,
    downscale: int | None = None,
    roi: Any = None,
    ignore: Any = None,
    sensitivity: float = 1.0,
    clean: bool = True,
    window: int | None = None,
    masks: str = "video",
    overwrite: bool = False,
    callback: Callable[[Progress], object] | None = None,
) -> Separation:
    """Split a clip into background and moving objects.

    The frames are rows of a matrix of bytes, which is read in place. Its low-rank part is the background under changing
    light. Differences from it are tested pixel by pixel. A long clip is processed in windows, each starting from the
    scene of the last one, so memory is bounded.

    Parameters
    ----------
    source : path, array or iterable of arrays
        A video file, a folder of pictures, an array (n, height, width) or (n, height, width, 3) of bytes, or frames one
        by one.
    output : path, optional
        Folder for background.mp4, foreground.mp4, mask.mp4, overlay.mp4, result.json and report.html, which appear
        together at the end. Without it the masks are kept in memory.
    rank : int
        Components of the background: 2 covers a scene under changing light.
    grey : bool, optional
        Whether to use grey frames; default: as in the source. Each channel is fitted separately, and the mask is
        decided over all channels together.
    downscale : int, optional
        Side of the squares that are averaged before solving; the outputs have full size. By default, frames of more
        than 480 000 pixels are reduced.
    roi, ignore : box, array or path, optional
        Where objects are marked, and where not: (left, top, right, bottom), an array (height, width), or a picture that
        is white there.
    sensitivity : float
        From 0.1 to 10. Above 1, fainter objects are marked; below 1, only clearer ones.
    clean : bool
        Whether masks are cleaned: a vote over 5x5 pixels, no specks, no small holes.
    window : int, optional
        Frames per window; default: as many as fit into half a gigabyte.
    masks : {"video", "pictures"}
        Whether the masks are written as lossless mask.mp4 or as PNGs in the folder ``mask``.
    overwrite : bool
        Whether the files of an earlier run in the folder may be replaced. A complete result is replaced only by a
        complete one: if the run is interrupted, or the clip breaks off, the finished frames go to a new subfolder
        ``partial``.
    callback : callable, optional
        Called with a `Progress` after every few frames; if it returns True, the run ends and the finished part is kept.

    Returns
    -------
    Separation

    Raises
    ------
    FileExistsError
        The folder holds files of an earlier run, and `overwrite` is False.

    Examples
    --------
    >>> import lrpca
    >>> scene = lrpca.datasets.street_scene(n_frames=60, height=48, width=80)
    >>> result = lrpca.video.separate(scene.frames)
    >>> result.masks.shape
    (60, 48, 80)
    """
    began = time.perf_counter()
    request = Request(rank, sensitivity, clean, downscale, roi, ignore, window)
    if masks not in ("video", "pictures"):
        raise ValueError(f'masks={masks!r} is unknown; use "video" or "pictures"')
    if callback is not None and not callable(callback):
        raise ValueError(f"callback={callback!r} cannot be called; pass a function of one Progress")
    if output is not None:
        check_output(output, source, masks, overwrite=overwrite)
    with open_frames(source, grey=grey) as reader:
        windows = Windows(reader, source, request, keep_scenes=output is None)
        outputs = None if output is None else Outputs(output, reader, masks, began)

        def report() -> object:
            progress = Progress(windows.done, reader.n_frames, time.perf_counter() - began)
            return callback is not None and callback(progress)

        kept, notes = _run(windows, outputs, report)
        if reader.problem:
            notes.append(reader.problem)
        if outputs is not None:
            outputs.close(windows, notes)
    rank = max(part.shape[1] for part in windows.coefficients)
    return Separation(
        name=reader.name,
        n_frames=windows.done,
        height=reader.height,
        width=reader.width,
        channels=reader.channels,
        rate=reader.rate,
        area=np.asarray(windows.area, np.float32),
        masks=np.concatenate(kept).view(bool) if outputs is None else None,
        # The coefficients that a scene of lower rank lacks are zero.
        coefficients=np.vstack([np.pad(part, ((0, 0), (0, rank - part.shape[1]))) for part in windows.coefficients]),
        scenes=windows.scenes,
        downscale=windows.resolution.factor,
        seconds=time.perf_counter() - began,
        complete=not notes,
        notes=notes,
        folder=None if outputs is None else outputs.folder,
        files=[] if outputs is None else outputs.files,
    )


def _run(windows: Windows, outputs: Outputs | None, report: Callable[[], object]) -> tuple[list[Bytes], list[str]]:
    """Separate all windows; return the masks, if they are not written, and why the run ended early."""
    kept: list[Bytes] = []
    try:
        for part in windows:
            if outputs is None:
                kept.append(part.masks)
            else:
                outputs.add(part)
            if report():
                return kept, [f"stopped after {windows.done} frames by the callback"]
    except BaseException as error:
        if outputs is not None:
            outputs.close_after(error, windows)
        raise
    finally:
        windows.close()
    return kept, []
