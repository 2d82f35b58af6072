"""A clip split into its background and what moves in front of it, window by window."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrpca.video import request
from lrpca.video.outputs import Outputs, check_output
from lrpca.video.reading import FrameReader, open_frames
from lrpca.video.resolution import enlarge
from lrpca.video.scene import Scene
from lrpca.video.windows import Windows

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Progress:
    """How far a separation is.

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
        Share of the pixels looked at that are foreground.
    masks : ndarray of bool (n_frames, height, width) or None
        True where something is in front of the background; None if they were written to a folder.
    lights : ndarray (n_frames, r)
        Left factor of the low-rank part: the light of every frame.
    scenes : list of (int, Scene)
        First frame from which it holds, and the right factor with all that was learnt; only the last one where the
        outputs were written to a folder.
    downscale : int
        Side of the squares that were averaged for the solution.
    seconds : float
        The whole run.
    complete : bool
        False where the clip broke off or the run was interrupted.
    notes : list of str
        What went wrong, if anything.
    folder, files : Path or None, list of str
        Where the files are, and their names.
    """

    name: str
    n_frames: int
    height: int
    width: int
    channels: int
    rate: float
    area: Floats = field(repr=False)
    masks: NDArray[np.bool_] | None = field(repr=False)
    lights: Floats = field(repr=False)
    scenes: list[tuple[int, Scene]] = field(repr=False)
    downscale: int
    seconds: float
    complete: bool
    notes: list[str]
    folder: Path | None
    files: list[str]

    def background(self, frame: int) -> Bytes:
        """Return the background of a frame (height, width[, 3]); where the solution is smaller, enlarged by squares."""
        if not -self.n_frames <= frame < self.n_frames:
            raise IndexError(f"frame={frame} is not in a clip of {self.n_frames} frames; count from 0")
        frame %= self.n_frames
        known = [scene for first, scene in self.scenes if first <= frame]
        if not known:
            raise ValueError(f"frame={frame} has its background in the folder only; read it from background.mp4")
        picture = known[-1].background(self.lights[frame, : len(known[-1].light)])
        return np.asarray(enlarge(picture, self.downscale, self.height, self.width), np.uint8)


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

    The frames are rows of a matrix of bytes, read in place; its low-rank part is the background under changing light,
    and what differs from it is judged pixel by pixel. A long clip is taken window by window, each starting from what
    was learnt before, so memory is bounded.

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
        Whether to drop the colours; unless given, what the source has is kept. The solution is entrywise, the mask is
        decided over the channels together.
    downscale : int, optional
        Solve on frames averaged over squares of this side; the outputs have full size. Unless given, frames above
        480 000 pixels are reduced below.
    roi, ignore : box, array or path, optional
        Where to look for objects, and where not: (left, top, right, bottom), an array (height, width), or a picture
        that is white there.
    sensitivity : float
        The one knob: above 1 fainter things are marked, below 1 only clearer ones.
    clean : bool
        Whether masks are voted over 5x5 squares, freed of specks, and their holes filled.
    window : int, optional
        Frames per window; unless given, as many as fit into half a gigabyte.
    masks : {"video", "pictures"}
        Whether the masks are written as lossless mask.mp4 or as PNGs in the folder ``mask``.
    overwrite : bool
        Whether the files of an earlier run in the folder may be replaced. A complete result is replaced only by a
        complete one: if the run is interrupted, or the clip breaks off, the finished frames go to a new folder
        ``partial`` in it.
    callback : callable, optional
        Called with a `Progress` after every few frames; returning True stops, and what is finished is kept.

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
    rank, sensitivity = request.check_rank(rank), request.check_sensitivity(sensitivity)
    window = request.check_window(window)
    if masks not in ("video", "pictures"):
        raise ValueError(f'masks={masks!r} is unknown; use "video" or "pictures"')
    if callback is not None and not callable(callback):
        raise ValueError(f"callback={callback!r} cannot be called; pass a function of one Progress")
    if output is not None:
        check_output(output, source, masks, overwrite=overwrite)
    with open_frames(source, grey=grey) as reader:
        windows = Windows(
            reader,
            source,
            rank=rank,
            sensitivity=sensitivity,
            clean=clean,
            downscale=request.check_downscale(downscale, reader.height, reader.width),
            looked_at=request.read_regions(roi, ignore, reader.height, reader.width),
            window=window,
            keep_scenes=output is None,
        )
        outputs = None if output is None else Outputs(output, reader, masks, began)
        kept, notes = _run(windows, reader, outputs, callback, began)
    return Separation(
        name=reader.name,
        n_frames=windows.done,
        height=reader.height,
        width=reader.width,
        channels=reader.channels,
        rate=reader.rate,
        area=np.asarray(windows.area, np.float32),
        masks=np.concatenate(kept).view(bool) if outputs is None else None,
        lights=_stack_lights(windows.lights),
        scenes=windows.scenes,
        downscale=windows.factor,
        seconds=time.perf_counter() - began,
        complete=not notes,
        notes=notes,
        folder=None if outputs is None else outputs.folder,
        files=[] if outputs is None else outputs.files,
    )


def _run(
    windows: Windows,
    reader: FrameReader,
    outputs: Outputs | None,
    callback: Callable[[Progress], object] | None,
    began: float,
) -> tuple[list[Bytes], list[str]]:
    """Go through the windows; return the masks, where they are not written, and what went wrong."""
    kept: list[Bytes] = []
    notes: list[str] = []
    try:
        for part in windows:
            if outputs is None:
                kept.append(part.masks)
            else:
                outputs.add(part)
            if callback is not None and callback(Progress(windows.done, reader.n_frames, time.perf_counter() - began)):
                notes.append(f"stopped after {windows.done} frames by the callback")
                break
        if reader.problem:
            notes.append(reader.problem)
    except BaseException as error:
        if outputs is not None:
            reason = f"stopped after {outputs.n_frames} frames: {str(error) or type(error).__name__}"
            asked = outputs.folder
            outputs.close(windows, [reason], interrupted=True)
            if outputs.files:
                stays = "" if outputs.folder == asked else f"; what was in {str(asked)!r} stays"
                error.add_note(f"the first {outputs.n_frames} frames are finished, in {str(outputs.folder)!r}{stays}")
        raise
    finally:
        windows.close()
    if outputs is not None:
        outputs.close(windows, notes)
    return kept, notes


def _stack_lights(parts: list[Floats]) -> Floats:
    """Return all lights (n, r); where a scene has fewer of them, the others are zero."""
    widest = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(part, ((0, 0), (0, widest - part.shape[1]))) for part in parts])
