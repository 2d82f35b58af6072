"""One self-contained HTML page: no script, no network, light and dark, for phone and desktop.

A page is built from top to bottom; all text is escaped, all pictures are embedded.
"""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lrpca.files.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Number", "Page", "Picture", "figure_png", "image_png"]

# A cell of more characters is set in several lines.
LONG = 60
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Number:
    """A figure to show large.

    Attributes
    ----------
    label : str
        What it is.
    value : str
        The figure itself, as it shall be read.
    note : str
        A few words below it, e.g. what would be good.
    """

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture with its caption.

    Attributes
    ----------
    png : bytes
        The picture, see `image_png` and `figure_png`.
    title : str
        Short title below it; also its text for those who cannot see it, unless `alt` is given.
    caption : str
        A sentence after the title.
    dark_png : bytes or None
        Another version for readers who prefer dark pages.
    alt : str
        What the picture shows, for screen readers.
    """

    png: bytes
    title: str
    caption: str = ""
    dark_png: bytes | None = None
    alt: str = ""


class Page:
    """An HTML page in the making.

    Parameters
    ----------
    title : str
        Its heading.
    summary : str
        One or two sentences below the heading.

    Examples
    --------
    >>> from lrpca.report import Number, Page
    >>> page = Page("Result", "How it went.")
    >>> page.section("Numbers")
    >>> page.numbers([Number("error", "1.2e-7")])
    >>> "<h2>Numbers</h2>" in page.html()
    True
    """

    def __init__(self, title: str, summary: str = "") -> None:
        self._title = title
        self._body: list[str] = [f"<header><h1>{escape(title)}</h1>"]
        if summary:
            self._body.append(f"<p>{escape(summary)}</p>")
        self._body.append("</header>")

    def section(self, heading: str, text: str = "") -> None:
        """Begin a new section.

        Parameters
        ----------
        heading : str
            Its heading.
        text : str
            A first paragraph.
        """
        self._body.append(f"<h2>{escape(heading)}</h2>")
        if text:
            self.text(text)

    def text(self, text: str) -> None:
        """Add a paragraph.

        Parameters
        ----------
        text : str
            Plain text.
        """
        self._body.append(f"<p>{escape(text)}</p>")

    def code(self, text: str) -> None:
        """Add lines of code as they are.

        Parameters
        ----------
        text : str
            The code.
        """
        self._body.append(f"<pre><code>{escape(text)}</code></pre>")

    def numbers(self, numbers: Sequence[Number]) -> None:
        """Add a row of large figures.

        Parameters
        ----------
        numbers : sequence of Number
            The figures.
        """
        cards = "".join(
            f'<div class="number"><dt>{escape(n.label)}</dt><dd>{escape(n.value)}</dd>'
            + (f"<dd>{escape(n.note)}</dd>" if n.note else "")
            + "</div>"
            for n in numbers
        )
        self._body.append(f'<dl class="numbers">{cards}</dl>')

    def pictures(self, pictures: Sequence[Picture], *, columns: int = 2) -> None:
        """Add pictures side by side; a phone shows fewer in a row.

        Parameters
        ----------
        pictures : sequence of Picture
            The pictures.
        columns : int
            How many in a row, where the window is wide enough.
        """
        if not 1 <= columns <= 6:
            raise ValueError(f"columns={columns} is not between 1 and 6; choose how many pictures stand in a row")
        figures = "".join(_figure(picture) for picture in pictures)
        self._body.append(f'<div class="pictures columns-{columns}">{figures}</div>')

    def legend(self, entries: Sequence[tuple[str, str]]) -> None:
        """Add a legend of colours.

        Parameters
        ----------
        entries : sequence of (colour, text)
            Colours as ``"#rrggbb"``.
        """
        for colour, _ in entries:
            if not re.fullmatch("#[0-9a-fA-F]{6}", colour):
                raise ValueError(f"entries={colour!r} is not a colour; write it as '#rrggbb'")
        items = "".join(f'<span><i style="background:{colour}"></i>{escape(text)}</span>' for colour, text in entries)
        self._body.append(f'<p class="legend">{items}</p>')

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
        """Add a table.

        Parameters
        ----------
        columns : sequence of str
            Headings.
        rows : sequence of sequences
            Cells; numbers are set right-aligned, None as a dash.
        caption : str
            Title of the table.
        folded : bool
            Show only the caption until the reader opens it.
        figures : sequence of int
            Columns to set right-aligned although they are text.
        bold : sequence of int
            Rows that stand out.
        wrapped : bool
            Set every cell in several lines where it is long, also after a comma without a space, instead of letting
            the table grow beyond the window.
        """
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"rows={list(row)!r} has not {len(columns)} cells; give one for each column")
        numeric = [k in figures or any(_is_number(row[k]) for row in rows) for k in range(len(columns))]
        head = "".join(
            f'<th class="figure">{escape(name)}</th>' if right else f"<th>{escape(name)}</th>"
            for name, right in zip(columns, numeric, strict=True)
        )
        body = "".join(
            ('<tr class="bold">' if i in bold else "<tr>")
            + "".join(_cell(value, k in figures, wrapped) for k, value in enumerate(row))
            + "</tr>"
            for i, row in enumerate(rows)
        )
        title = f"<caption>{escape(caption)}</caption>" if caption and not folded else ""
        content = f"{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        opened = '<table class="wrapped">' if wrapped else "<table>"
        table = f'<div class="wide">{opened}{content}</table></div>'
        if folded:
            table = f"<details><summary>{escape(caption or 'Table')}</summary>{table}</details>"
        self._body.append(table)

    def html(self) -> str:
        """Return the page.

        Returns
        -------
        str
            A complete HTML document.
        """
        style = resources.files("lrpca").joinpath("report.css").read_text(encoding="utf-8")
        return TEMPLATE.format(style=style, title=escape(self._title), body="\n".join(self._body))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file: the whole page or nothing.

        Parameters
        ----------
        path : str or path-like
            The file, usually ending in ``.html``. An existing one is replaced.

        Returns
        -------
        pathlib.Path
            The same path.
        """
        with replacing(path) as temporary:
            temporary.write_text(self.html(), encoding="utf-8")
        return Path(path)


def image_png(image: NDArray[Any]) -> bytes:
    """Encode a picture as PNG. Needs the extra ``plot``.

    Parameters
    ----------
    image : ndarray, (height, width) or (height, width, 3)
        Grey levels or red, green, blue, from 0 to 255 (clipped to that), or booleans: black and white.

    Returns
    -------
    bytes
        The content of a PNG file.

    Examples
    --------
    >>> import numpy as np
    >>> from lrpca.report import image_png
    >>> image_png(np.eye(4, dtype=bool))[1:4]
    b'PNG'
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("pictures need pillow, which is not installed; pip install lrpca[plot]") from error
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3) or image.size == 0:
        raise ValueError(f"image.shape={image.shape} is not (height, width) or (height, width, 3); give one picture")
    scaled = image * np.uint8(255) if image.dtype == np.bool_ else np.clip(np.rint(image), 0, 255)
    picture = Image.fromarray(np.ascontiguousarray(scaled, dtype=np.uint8))
    buffer = io.BytesIO()
    picture.save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def figure_png(figure: Figure, *, dpi: int = 160) -> bytes:
    """Encode a matplotlib figure as PNG.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure. Make and encode it inside ``lrpca.plot.style()`` for the look of the page.
    dpi : int
        Pixels per inch of the figure's size.

    Returns
    -------
    bytes
        The content of a PNG file.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def _figure(picture: Picture) -> str:
    """Return one picture as HTML."""
    alt = escape(picture.alt or picture.title)
    image = f'<img src="{_data(picture.png)}" alt="{alt}">'
    if picture.dark_png is not None:
        dark = f'<source media="(prefers-color-scheme: dark)" srcset="{_data(picture.dark_png)}">'
        image = f"<picture>{dark}{image}</picture>"
    caption = f"<b>{escape(picture.title)}</b> {escape(picture.caption)}".strip()
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _data(png: bytes) -> str:
    if not png.startswith(PNG_SIGNATURE):
        raise ValueError(f"png={png[:8]!r}... is not a PNG file; encode it with image_png or figure_png")
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _cell(value: object, figure: bool = False, wrapped: bool = False) -> str:
    if value is None:
        return '<td class="figure">–</td>'
    if _is_number(value):
        text = f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
        return f'<td class="figure">{escape(text)}</td>'
    text = escape(str(value))
    if figure:
        return f'<td class="figure">{text}</td>'
    if wrapped:
        # A break may come after a comma, not after the minus sign of 1e-6.
        whole = re.sub(r"[^\s,]*\de-\d+", r'<span class="whole">\g<0></span>', text)
        return f"<td>{re.sub(',(?=[^ ])', ',<wbr>', whole)}</td>"
    return f'<td class="long">{text}</td>' if len(text) > LONG else f"<td>{text}</td>"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


# The policy forbids every request: nothing can be fetched even if a text slipped through the escaping.
TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
