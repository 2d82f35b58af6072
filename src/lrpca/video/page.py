"""The page about a separated video: one self-contained HTML file that plays, scrubs and makes no request."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass, field
from html import escape
from importlib import resources
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from lrpca.report import Number, Page
from lrpca.video.preview import PreviewContents

VIEWS = ("original", "background", "foreground", "mask")  # in the order of the preview, row by row
SPEEDS = (0.25, 0.5, 1, 2, 4, 8)  # of the preview, relative to its normal speed
# More points are not visible on a screen.
POINTS = 800
# The page opens at the busiest moment that leaves at least so many seconds of the preview to play.
LEAD = 2.0


@dataclass(frozen=True)
class Report:
    """What the page shows."""

    title: str
    n_frames: int
    rate: float  # frames per second of the clip
    area: NDArray[np.floating]  # (n_frames,), share of the pixels of each frame that are foreground
    figures: list[tuple[str, str]]  # names and values of the run's figures
    notes: list[str]  # warnings
    preview: PreviewContents  # the video and the busiest moments
    files: list[str] = field(default_factory=list)  # names of the output files, relative to the page


def render_page(report: Report) -> str:
    """Return the page: a complete HTML document of at most 20 MB."""
    area = np.nan_to_num(np.asarray(report.area, np.float64))
    frames = "One frame" if report.n_frames == 1 else f"{report.n_frames:,} frames".replace(",", "\u202f")
    summary = f"{frames}, split into the background and what moves in front of it."
    page = Page(report.title, summary, script=_resource("page.js"))
    page.notes(report.notes)
    page.add(_player(report, area) if report.preview.video else "<p>There is no preview.</p>")
    page.numbers(_numbers(report, area))
    if report.preview.moments:
        page.section("Busiest moments")
        page.add(_moments(report))
    page.section("The run")
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in report.figures)
    page.add(f'<dl class="run">{rows}</dl>')
    if report.files:
        page.section("Files")
        # "./" keeps a name with a colon from being read as a scheme.
        items = "".join(f'<li><a href="./{escape(quote(name))}">{escape(name)}</a></li>' for name in report.files)
        page.add(f'<ul class="files">{items}</ul>')
    page.add(_data(report, area))
    return page.html()


def _numbers(report: Report, area: NDArray[np.float64]) -> list[Number]:
    n = report.n_frames
    cards = [
        Number("Length", _clock(n / report.rate), f"{n} frames, {report.rate:.4g} a second"),
        Number("Foreground", _percent(area.mean() if area.size else 0.0), "of the picture, on average"),
        Number("Frames with foreground", f"{int((area > 0).sum())}", f"of {n}"),
    ]
    if area.any():
        busiest = int(area.argmax())
        place = f"at {_clock(busiest / report.rate)}, frame {busiest + 1}"
        cards.append(Number("Busiest moment", _percent(area[busiest]), place))
    return cards


def _player(report: Report, area: NDArray[np.float64]) -> str:
    preview = report.preview
    top, ticks = _scale(area)
    points, binned = _curve(area, top)
    line = "M" + "L".join(points)
    speed_up = preview.rate * preview.step / report.rate
    last = max(1, report.n_frames - 1)
    marks = [
        f'<i class="tick" style="bottom:{100 * tick / top:.2f}%"><span>{100 * tick:.3g} %</span></i>' for tick in ticks
    ]
    marks += [
        f'<i class="dot" style="left:{100 * m.index / last:.2f}%;bottom:calc({100 * m.area / top:.2f}% - 4px)"></i>'
        for m in preview.moments
    ]
    return _resource("player_template.html").format(
        ratio=f"{preview.width / preview.height:.5f}",
        views="".join(
            f'<button type="button" data-view="{name}" aria-pressed="false" aria-label="{name.capitalize()}, enlarge"'
            f' title="Enlarge ({number})"><span>{name.capitalize()}</span></button>'
            for number, name in enumerate(VIEWS, 1)
        ),
        speeds="".join(
            f'<option value="{s}"{" selected" if s == 1 else ""}>{_fraction(s * speed_up)}×</option>' for s in SPEEDS
        ),
        last=str(len(preview.frame_indices) - 1),
        described=f"Share of foreground over time; on average {_percent(area.mean())}, at most {_percent(area.max())}",
        area=f"{line}L1000,100L0,100Z",
        line=line,
        ticks="".join(marks),
        times=_times(report),
        binned=", the largest of neighbouring frames" if binned else "",
        thinned=f" The preview holds one frame in {preview.step}." if preview.step > 1 else "",
    )


def _moments(report: Report) -> str:
    items = "".join(
        f'<li><button type="button" data-frame="{moment.index}" aria-current="false"'
        f' aria-label="Go to {_clock(moment.index / report.rate)}, frame {moment.index + 1}">'
        f'<img src="data:image/jpeg;base64,{base64.b64encode(moment.jpeg).decode()}"'
        f' alt="Frame {moment.index + 1} with the outline of its foreground">'
        f"<span><b>{_clock(moment.index / report.rate)}</b><i>frame {moment.index + 1}</i>"
        f"<i>{_percent(moment.area)}</i></span></button></li>"
        for moment in report.preview.moments
    )
    return f'<ul class="strip">{items}</ul>'


def _data(report: Report, area: NDArray[np.float64]) -> str:
    """Return the numbers and the video for the script, as blocks that a browser does not run."""
    preview = report.preview
    data = {
        "rate": preview.rate,
        "step": preview.step,
        "clipRate": report.rate,
        "nFrames": report.n_frames,
        "shares": [round(float(area[index]), 7) for index in preview.frame_indices if index < len(area)],
        "start": _opening(report),
    }
    text = json.dumps(data, separators=(",", ":"))  # numbers only: nothing to escape
    video = base64.b64encode(preview.video).decode()
    return (
        f'<script type="application/json" id="data">{text}</script>\n'
        f'<script type="text/plain" id="video-data">{video}</script>'
    )


def _opening(report: Report) -> int:
    """Return the frame of the preview at which the page opens: a busy one, with something left to play."""
    preview = report.preview
    latest = len(preview.frame_indices) - LEAD * preview.rate
    early = [moment for moment in preview.moments if moment.index / preview.step <= latest]
    return round(max(early, key=lambda moment: moment.area).index / preview.step) if early else 0


def _scale(area: NDArray[np.float64]) -> tuple[float, list[float]]:
    """Return the top of the chart and the round numbers at which it has lines."""
    peak = max(float(area.max()), 1e-4)
    power = 10.0 ** math.floor(math.log10(peak / 2))
    interval = max(f * power for f in (1, 2, 5) if f * power <= peak / 2)  # two to four lines
    return 1.08 * peak, [k * interval for k in range(1, math.floor(1.001 * peak / interval) + 1)]


def _curve(area: NDArray[np.float64], top: float) -> tuple[list[str], bool]:
    """Return the points of the curve in a box of 1000 by 100, and whether a point represents several frames."""
    n = len(area)
    edges = np.unique(np.linspace(0, n, min(n, POINTS) + 1).astype(int))
    height = 100 * (1 - np.maximum.reduceat(area, edges[:-1]) / top)
    middle = (edges[:-1] + edges[1:] - 1) / 2
    place = 1000 * middle / max(1, n - 1)
    place[0], place[-1] = 0.0, 1000.0 if n > 1 else 0.0
    points = [f"{x:.1f},{y:.2f}" for x, y in zip(place.tolist(), height.tolist(), strict=True)]
    return points if n > 1 else [points[0], f"1000,{points[0].split(',')[1]}"], n > POINTS


def _times(report: Report) -> str:
    """Return the labels of the time axis, at round times."""
    seconds = max(0, report.n_frames - 1) / report.rate
    if seconds <= 0:
        return "<span style='left:0'>0:00</span>"
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
    interval = next((step for step in steps if seconds / step <= 8), seconds / 8)
    marks = np.arange(0, 0.97 * seconds, interval).tolist()
    whole = interval >= 1
    return "".join(f'<span style="left:{100 * t / seconds:.2f}%">{_clock(t, whole=whole)}</span>' for t in marks)


def _clock(seconds: float, *, whole: bool = False) -> str:
    """Return a time as 1:02:03.4, without the hours where there are none."""
    tenths = round(seconds) * 10 if whole else round(seconds * 10)
    minutes, rest = divmod(tenths, 600)
    end = f"{rest // 10:02d}" + ("" if whole else f".{rest % 10}")
    return f"{minutes // 60}:{minutes % 60:02d}:{end}" if minutes >= 60 else f"{minutes}:{end}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %" if share < 0.1 else f"{100 * share:.1f} %"


def _fraction(speed: float) -> str:
    text = f"{speed:.3g}" if speed < 100 else f"{speed:.0f}"
    return {"0.25": "¼", "0.5": "½"}.get(text, text)


def _resource(name: str) -> str:
    return resources.files("lrpca.video").joinpath(name).read_text(encoding="utf-8")
