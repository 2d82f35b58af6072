"""One self-contained HTML page: no network, light and dark, for phone and desktop.

All text is escaped, all pictures are embedded. Every page of this library has this template and this stylesheet.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lrpca import plot
from lrpca.core.extras import require
from lrpca.files.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Number", "Page", "Picture", "figure_png", "image_png", "plotted"]

# A table cell of more characters is broken into lines.
LONG = 60
_FIGURE = ' class="figure"'


@dataclass(frozen=True)
class Number:
    """A number to show large: what it is, the number as text, and a few words below it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A PNG with title and caption; `dark_png` is for dark pages, `alt` (or the title) for screen readers."""

    png: bytes
    title: str
    caption: str = ""
    dark_png: bytes | None = None
    alt: str = ""


class Page:
    """An HTML page, built from top to bottom.

    Parameters
    ----------
    title : str
        Its heading.
    summary : str
        One or two sentences below the heading.
    script : str
        A script that runs after the page is read. The page's policy lets no other run.

    Examples
    --------
    >>> from lrpca.report import Number, Page
    >>> page = Page("Result", "How it went.")
    >>> page.section("Numbers")
    >>> page.numbers([Number("error", "1.2e-7")])
    >>> "<h2>Numbers</h2>" in page.html()
    True
    """

    def __init__(self, title: str, summary: str = "", *, script: str = "") -> None:
        self._title, self._script = title, script
        text = f"<p>{escape(summary)}</p>" if summary else ""
        self._body = [f"<header><h1>{escape(title)}</h1>{text}</header>"]

    def add(self, html: str) -> None:
        """Add HTML as it is; the caller has escaped its text."""
        self._body.append(html)

    def section(self, heading: str, text: str = "") -> None:
        """Begin a section, with a first paragraph if there is a text."""
        self.add(f"<h2>{escape(heading)}</h2>")
        if text:
            self.text(text)

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self.add(f"<p>{escape(text)}</p>")

    def code(self, text: str) -> None:
        """Add lines of code as they are."""
        self.add(f"<pre><code>{escape(text)}</code></pre>")

    def notes(self, notes: Sequence[str]) -> None:
        """Add a box of warnings, if there are any."""
        if notes:
            texts = "".join(f"<p>{escape(note)}</p>" for note in notes)
            self.add(f'<div class="notes" role="note">{texts}</div>')

    def numbers(self, numbers: Sequence[Number]) -> None:
        """Add a row of large numbers."""
        cards = "".join(
            f'<div class="number"><dt>{escape(n.label)}</dt><dd>{escape(n.value)}</dd>'
            + (f"<dd>{escape(n.note)}</dd>" if n.note else "")
            + "</div>"
            for n in numbers
        )
        self.add(f'<dl class="numbers">{cards}</dl>')

    def pictures(self, pictures: Sequence[Picture], *, columns: int = 2) -> None:
        """Add pictures, up to six side by side; a phone shows fewer in a row."""
        if not 1 <= columns <= 6:
            raise ValueError(f"columns={columns} is not between 1 and 6; choose how many pictures stand in a row")
        self.add(f'<div class="pictures columns-{columns}">{"".join(map(_figure, pictures))}</div>')

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """Add a legend: pairs of a colour ``"#rrggbb"`` and a text."""
        for colour, _ in entries:
            if not re.fullmatch("#[0-9a-fA-F]{6}", colour):
                raise ValueError(f"entries={colour!r} is not a colour; write it as '#rrggbb'")
        items = "".join(f'<span><i style="background:{colour}"></i>{escape(text)}</span>' for colour, text in entries)
        self.add(f'<p class="legend">{items}</p>')

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        caption: str = "",
        folded: bool = False,
        figures: Sequence[int] = (),
        bold: Sequence[int] = (),
        wrapped: bool = False,
    ) -> None:
        """Add a table; numbers are right-aligned, None is a dash.

        `folded` tables show only the caption until the reader opens them. `figures` are columns to right-align although
        they are text, `bold` are rows. `wrapped` tables break long cells into lines, also after a comma without a
        space, so that the table fits the window.
        """
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"rows={list(row)!r} has not {len(columns)} cells; give one for each column")
        right = {k for k in range(len(columns)) if k in figures or any(_is_number(row[k]) for row in rows)}
        head = "".join(f"<th{_FIGURE if k in right else ''}>{escape(name)}</th>" for k, name in enumerate(columns))
        body = "".join(
            ('<tr class="bold">' if i in bold else "<tr>")
            + "".join(_cell(value, k in figures, wrapped) for k, value in enumerate(row))
            + "</tr>"
            for i, row in enumerate(rows)
        )
        title = f"<caption>{escape(caption)}</caption>" if caption and not folded else ""
        opened = '<table class="wrapped">' if wrapped else "<table>"
        content = f"{opened}{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        table = f'<div class="wide">{content}</div>'
        self.add(f"<details><summary>{escape(caption or 'Table')}</summary>{table}</details>" if folded else table)

    def html(self) -> str:
        """Return the page: a complete HTML document."""
        digest = base64.b64encode(hashlib.sha256(self._script.encode()).digest()).decode()
        template, style = (
            resources.files("lrpca").joinpath(f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "css")
        )
        # The policy forbids every request: nothing can be fetched even if a text slipped through the escaping.
        return template.format(
            policy=f"; media-src blob:; script-src 'sha256-{digest}'" if self._script else "",
            style=style,
            title=escape(self._title),
            body="\n".join(self._body),
            script=f"<script>{self._script}</script>\n" if self._script else "",
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, the whole page or nothing, and return its path."""
        with replacing(path) as temporary:
            temporary.write_text(self.html(), encoding="utf-8")
        return Path(path)


def image_png(image: NDArray[Any]) -> bytes:
    """Return a picture (height, width) or (height, width, 3) as PNG. Needs the extra ``plot``.

    Grey levels or red, green, blue are clipped to 0 to 255; booleans are black and white.

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.report import image_png
    >>> image_png(np.eye(4, dtype=bool))[1:4]
    b'PNG'
    """
    pillow = require("PIL.Image", "plot", "pictures need pillow, which is not installed")
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3) or image.size == 0:
        raise ValueError(f"image.shape={image.shape} is not (height, width) or (height, width, 3); give one picture")
    scaled = image * np.uint8(255) if image.dtype == np.bool_ else np.clip(np.rint(image), 0, 255)
    buffer = io.BytesIO()
    pillow.fromarray(np.ascontiguousarray(scaled, dtype=np.uint8)).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def figure_png(draw: Callable[[Figure], object], size: tuple[float, float], *, dark: bool = False) -> bytes:
    """Return a figure of a size in inches, drawn by `draw` in the style of the pages, as PNG."""
    plot.require_matplotlib()
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with plot.style(dark=dark):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(buffer, format="png", dpi=160)
    return buffer.getvalue()


def plotted(draw: Callable[[Figure], object], size: tuple[float, float], title: str, caption: str = "") -> Picture:
    """Return a figure drawn by `draw`, for light and for dark pages."""
    return Picture(figure_png(draw, size), title, caption, figure_png(draw, size, dark=True))


def _figure(picture: Picture) -> str:
    """Return one picture as HTML."""
    image = f'<img src="{_data(picture.png)}" alt="{escape(picture.alt or picture.title)}">'
    if picture.dark_png is not None:
        dark = f'<source media="(prefers-color-scheme: dark)" srcset="{_data(picture.dark_png)}">'
        image = f"<picture>{dark}{image}</picture>"
    caption = f"<b>{escape(picture.title)}</b> {escape(picture.caption)}".strip()
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _data(png: bytes) -> str:
    if not png.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError(f"png={png[:8]!r}... is not a PNG file; encode it with image_png or figure_png")
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _cell(value: object, figure: bool, wrapped: bool) -> str:
    if value is None or figure or _is_number(value):
        text = f"{value:.4g}" if isinstance(value, float | np.floating) else "–" if value is None else str(value)
        return f"<td{_FIGURE}>{escape(text)}</td>"
    text = escape(str(value))
    if wrapped:
        # Lines break after a comma, but not after the minus sign of 1e-6.
        whole = re.sub(r"[^\s,]*\de-\d+", r'<span class="whole">\g<0></span>', text)
        return f"<td>{re.sub(',(?=[^ ])', ',<wbr>', whole)}</td>"
    return f'<td class="long">{text}</td>' if len(text) > LONG else f"<td>{text}</td>"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
