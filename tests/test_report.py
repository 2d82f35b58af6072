import base64
import io
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from lrpca import report

Image = pytest.importorskip("PIL.Image", reason="needs the extra plot")

MAGENTA, GREEN = (255, 0, 255), (0, 200, 0)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; apt-get install chromium")


class Resources(HTMLParser):
    """Collects everything a browser would fetch, and the tags."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.links = [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        fetched = ("src", "srcset", "href", "data", "action", "background", "poster")
        self.links += [value for name, value in attributes if name in fetched]


def plain(colour, size=64):
    return report.image_png(np.full((size, size, 3), colour, np.uint8))


@pytest.fixture
def page():
    page = report.Page("Title", "Summary")
    page.section("Section", "Text")
    page.numbers([report.Number("error", "1e-7", "small")])
    page.pictures([report.Picture(plain(MAGENTA), "Square", "a caption", dark_png=plain(GREEN))], columns=1)
    page.legend([("#123456", "blue")])
    page.table(["name", "value"], [["a", 1.0], ["b", None]], caption="Numbers")
    page.code("lrpca.decompose(Y, rank=5)")
    return page


def test_page_is_one_file_without_network_or_script(page):
    html = page.html()
    found = Resources(html)
    assert found.links and all(link.startswith("data:") for link in found.links)
    assert "script" not in found.tags and "iframe" not in found.tags
    assert not re.search(r"https?://|@import|url\(", html)
    assert "default-src 'none'" in html


def test_every_embedded_image_decodes(page):
    links = [link for link in Resources(page.html()).links if link.startswith("data:image/png;base64,")]
    assert len(links) == 2
    for link in links:
        image = Image.open(io.BytesIO(base64.b64decode(link.partition(",")[2], validate=True)))
        image.load()
        assert image.size == (64, 64)


def test_all_text_is_escaped():
    evil = '<script>alert("x")</script>&{body}{title}'
    page = report.Page(evil, evil)
    page.section(evil, evil)
    page.text(evil)
    page.code(evil)
    page.numbers([report.Number(evil, evil, evil)])
    page.pictures([report.Picture(plain(MAGENTA), evil, evil, alt=evil)])
    page.legend([("#000000", evil)])
    page.table([evil], [[evil]], caption=evil)
    page.table([evil], [[evil]], caption=evil, folded=True)
    html = page.html()
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;{body}{title}") == 20


def test_tags_are_balanced(page):
    html = page.html()
    for tag in "main header dl div figure picture table tr td th p pre style".split():
        opened = len(re.findall(rf"<{tag}[ >]", html))
        assert opened and opened == html.count(f"</{tag}>"), tag


def test_numbers_stand_right_and_none_is_a_dash():
    page = report.Page("T")
    page.table(["text", "number"], [["a", 0.123456789], ["b", None], ["c", np.float32(2.5)], ["d", True]])
    html = page.html()
    assert '<th>text</th><th class="figure">number</th>' in html
    assert '<td class="figure">0.1235</td>' in html
    assert '<td class="figure">–</td>' in html
    assert '<td class="figure">2.5</td>' in html
    assert "<td>True</td>" in html


def test_bad_parts_are_refused():
    page = report.Page("T")
    with pytest.raises(ValueError, match="not a PNG"):
        page.pictures([report.Picture(b"GIF89a", "x")])
    with pytest.raises(ValueError, match="columns=7"):
        page.pictures([], columns=7)
    with pytest.raises(ValueError, match="2 cells"):
        page.table(["a", "b"], [[1]])
    with pytest.raises(ValueError, match="colour"):
        page.legend([("red;background:url(x)", "x")])
    with pytest.raises(ValueError, match="shape"):
        report.image_png(np.zeros(5))


def test_image_png_keeps_the_pixels():
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, (7, 9), dtype=np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(report.image_png(grey)))), grey)
    colour = rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(report.image_png(colour)))), colour)
    floats = np.array([[-5.0, 0.4, 100.6, 300.0]])
    assert np.asarray(Image.open(io.BytesIO(report.image_png(floats)))).tolist() == [[0, 0, 101, 255]]
    mask = np.array([[True, False]])
    assert np.asarray(Image.open(io.BytesIO(report.image_png(mask)))).tolist() == [[255, 0]]


def test_save_replaces_whole_files_and_leaves_no_other(page, tmp_path):
    path = tmp_path / "index.html"
    path.write_text("old")
    assert page.save(path) == path
    assert path.read_text(encoding="utf-8") == page.html()
    assert [file.name for file in tmp_path.iterdir()] == ["index.html"]


@needs_chromium
@pytest.mark.parametrize(("scheme", "shown", "hidden"), [(1, MAGENTA, GREEN), (0, GREEN, MAGENTA)])
def test_page_renders_in_a_browser_in_light_and_dark(page, tmp_path, scheme, shown, hidden):
    picture = screenshot(page.save(tmp_path / "index.html"), tmp_path, 800, scheme)
    assert count(picture, shown) > 10_000  # the picture fills the width of its card
    assert count(picture, hidden) == 0
    ground = picture[5, 5].mean()
    assert ground > 230 if scheme == 1 else ground < 40


@needs_chromium
def test_a_phone_shows_one_column(tmp_path):
    page = report.Page("T")
    page.pictures([report.Picture(plain(MAGENTA), "left"), report.Picture(plain(GREEN), "right")])
    path = page.save(tmp_path / "index.html")
    wide, narrow = (screenshot(path, tmp_path, width, 1) for width in (1000, 520))
    assert rows(wide, MAGENTA) & rows(wide, GREEN)  # side by side
    assert not rows(narrow, MAGENTA) & rows(narrow, GREEN)  # one below the other


def screenshot(path, folder, width, scheme):
    target = folder / f"shot-{width}-{scheme}.png"
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    flags += "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
    subprocess.run(
        [
            CHROMIUM,
            *flags.split(),
            "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser's own habits stay off the network too
            f"--user-data-dir={folder / 'profile'}",
            f"--blink-settings=preferredColorScheme={scheme}",
            f"--window-size={width},1400",
            f"--screenshot={target}",
            path.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    with Image.open(target) as image:
        return np.asarray(image.convert("RGB"))


def count(picture, colour):
    return int(np.count_nonzero((np.abs(picture.astype(int) - colour) <= 3).all(axis=2)))


def rows(picture, colour):
    return set(np.flatnonzero((np.abs(picture.astype(int) - colour) <= 3).all(axis=2).any(axis=1)).tolist())
