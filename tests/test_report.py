import base64
import io
import re
import subprocess

import numpy as np
import pytest

from lrpca import report
from tests.helpers.html import BROWSER, Resources, needs_chromium

Image = pytest.importorskip("PIL.Image", reason="needs the extra plot")

MAGENTA, GREEN = (255, 0, 255), (0, 200, 0)


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


def test_numbers_stand_right_and_none_is_a_dash():
    page = report.Page("T")
    page.table(["text", "number"], [["a", 0.123456789], ["b", None], ["c", np.float32(2.5)], ["d", True]])
    cells = re.findall(r'<td( class="figure")?>(.*?)</td>', page.html())
    assert [text for right, text in cells if right] == ["0.1235", "–", "2.5"] and ("", "True") in cells


def test_bad_parts_are_refused():
    page = report.Page("T")
    for message, call, *arguments in (
        ("not a PNG", page.pictures, [report.Picture(b"GIF89a", "x")]),
        ("columns=7", lambda pictures: page.pictures(pictures, columns=7), []),
        ("2 cells", page.table, ["a", "b"], [[1]]),
        ("colour", page.legend, [("red;background:url(x)", "x")]),
        ("shape", report.image_png, np.zeros(5)),
    ):
        with pytest.raises(ValueError, match=message):
            call(*arguments)


def test_image_png_keeps_the_pixels():
    rng = np.random.default_rng(0)
    grey, colour = (rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((7, 9), (7, 9, 3)))
    for given, shown in (
        *((grey, grey), (colour, colour), (np.array([[True, False]]), [[255, 0]])),
        (np.array([[-5.0, 0.4, 100.6, 300.0]]), [[0, 0, 101, 255]]),
    ):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(report.image_png(given)))), shown)


def test_save_replaces_whole_files_and_leaves_no_other(page, tmp_path):
    path = tmp_path / "index.html"
    path.write_text("old")
    assert page.save(path) == path
    assert path.read_text(encoding="utf-8") == page.html()
    assert [file.name for file in tmp_path.iterdir()] == ["index.html"]


@needs_chromium
@pytest.mark.parametrize(("scheme", "shown", "hidden"), [(1, MAGENTA, GREEN), (0, GREEN, MAGENTA)])
def test_page_renders_in_a_browser_in_light_and_dark(page, tmp_path, scheme, shown, hidden):
    shot, path = tmp_path / "shot.png", page.save(tmp_path / "index.html")
    flags = f"--blink-settings=preferredColorScheme={scheme} --window-size=800,1400".split()
    folder = f"--user-data-dir={tmp_path / 'profile'}"
    command = [*BROWSER, *flags, folder, f"--screenshot={shot}", path.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with Image.open(shot) as image:
        picture = np.asarray(image.convert("RGB"))
    assert count(picture, shown) > 10_000  # the picture fills the width of its card
    assert count(picture, hidden) == 0
    ground = picture[5, 5].mean()
    assert ground > 230 if scheme == 1 else ground < 40


def count(picture, colour):
    return int(np.count_nonzero((np.abs(picture.astype(int) - colour) <= 3).all(axis=2)))
