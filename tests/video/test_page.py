"""The preview of a separated video and its page, the latter in a real browser where there is one."""

import base64
import io
import json
import os
import re
import select
import subprocess

import numpy as np
import pytest

av = pytest.importorskip("av", reason="needs the extra video")

from lrpca.video import preview as preview_module
from lrpca.video.page import Report, render_page
from lrpca.video.preview import MOMENTS, Moment, Preview, PreviewContents, outline, tile_size
from tests.helpers.html import BROWSER, Resources, needs_chromium

HEIGHT, WIDTH, RATE, N = 120, 160, 30.0, 75
DARKEST, LEVELS, GREYS = 30, 8, 25
EDGE = 16  # where a tile may look like its neighbour


def views(index):
    """Return four views that tell the number of the frame: the mask by its width, the others by grey, modulo 25."""
    grey = np.full((HEIGHT, WIDTH), DARKEST + LEVELS * (index % GREYS), np.uint8)
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[:, : index + 10] = True  # up to frame 150
    return grey, grey, grey, mask


def numbers(brightness):
    """Return the numbers that four tiles show, given the mean brightness of their middle rows."""
    *grey, mask = brightness
    return [round((value - DARKEST) / LEVELS) for value in grey] + [round(mask / 255 * WIDTH) - 10]


def expected(index):
    """Return the numbers that the tiles show if all of them show one frame."""
    return [index % GREYS] * 3 + [index]


def shown(picture):
    """Return the numbers that the tiles of a picture show."""
    *grey, mask = tiles(picture)
    inner = slice(EDGE, -EDGE)
    return numbers([tile[inner, inner].mean() for tile in grey] + [mask[inner].mean()])


def fill(preview, n, area=lambda index: 0.01):
    for index in range(n):
        preview.add(index, *views(index), area(index))
    return preview.finish()


def pictures(video):
    with av.open(io.BytesIO(video)) as container:
        return [picture.to_ndarray(format="rgb24") for picture in container.decode(video=0)]


def tiles(picture):
    h, w = picture.shape[0] // 2, picture.shape[1] // 2
    return [picture[row * h : (row + 1) * h, column * w : (column + 1) * w] for row in (0, 1) for column in (0, 1)]


def test_the_four_tiles_show_the_same_frame(tmp_path):
    contents = fill(Preview(HEIGHT, WIDTH, RATE, N, tmp_path), N)
    assert (contents.step, contents.rate, contents.height, contents.width) == (1, RATE, HEIGHT, WIDTH)
    assert contents.frame_indices == list(range(N))
    assert [shown(picture) for picture in pictures(contents.video)] == [expected(index) for index in range(N)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("announced", [None, 90, 3, 10**6])
@pytest.mark.parametrize("n", [1, 32, 33, 90])
def test_of_a_long_clip_every_step_th_frame_is_kept(tmp_path, monkeypatch, announced, n):
    monkeypatch.setattr(preview_module, "MAX_FRAMES", 32)
    monkeypatch.setattr(preview_module, "EARLY_FRAMES", 8)
    contents = fill(Preview(HEIGHT, WIDTH, RATE, announced, tmp_path), n)
    assert contents.frame_indices == list(range(0, n, contents.step))
    # Also where the announced length was wrong; where it is yet to be borne out, little is spent.
    assert min(n, 5) <= len(contents.frame_indices) <= (8 if announced == 10**6 else 32)
    assert [shown(picture) for picture in pictures(contents.video)] == [
        expected(index) for index in contents.frame_indices
    ]
    assert contents.rate >= preview_module.SMOOTH_RATE
    speed_up = contents.rate * contents.step / RATE
    assert speed_up == 2 ** round(np.log2(speed_up))
    assert list(tmp_path.iterdir()) == []


def test_keyframes_are_close_and_frames_in_the_order_of_showing(tmp_path):
    contents = fill(Preview(HEIGHT, WIDTH, RATE, N, tmp_path), N)
    with av.open(io.BytesIO(contents.video)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        packets = [packet for packet in container.demux(stream) if packet.size]
    keys = [k for k, packet in enumerate(packets) if packet.is_keyframe]
    assert max(np.diff([*keys, len(packets)])) <= preview_module.KEYFRAMES
    assert all(packet.pts == packet.dts for packet in packets)
    assert [float(packet.pts * packet.time_base * 30) for packet in packets] == pytest.approx(range(N))
    assert contents.video.index(b"moov") < contents.video.index(b"mdat")


@pytest.mark.parametrize(
    ("announced", "most", "thinned"),
    [
        (None, 200_000, False),
        (120, 200_000, False),
        (4, 200_000, False),  # too few: encoded with too many bytes for each, and once more at the end
        (4, 4_000, True),  # less than the worst quality needs
    ],
)
def test_bytes_are_bounded(tmp_path, monkeypatch, announced, most, thinned):
    monkeypatch.setattr(preview_module, "MAX_BYTES", most)
    monkeypatch.setattr(preview_module, "EARLY_FRAMES", 20)
    noise = np.random.default_rng(0).integers(0, 256, (8, HEIGHT, WIDTH, 3), np.uint8)
    preview = Preview(HEIGHT, WIDTH, RATE, announced, tmp_path)
    for k in range(120):
        preview.add(k, noise[k % 8], noise[k // 8 % 8], noise[(k + 3) % 8], noise[k % 8, ..., 0] > 127, 0.5)
    contents = preview.finish()
    assert len(contents.video) <= most
    assert len(pictures(contents.video)) == len(contents.frame_indices)
    assert (contents.step > 1) == thinned
    assert list(tmp_path.iterdir()) == []


def test_colours_survive(tmp_path):
    colours = np.array([(200, 40, 40), (40, 160, 60), (50, 70, 220), (250, 250, 250), (128, 90, 60)], np.uint8)
    frame = np.repeat(np.repeat(colours[None], 32, axis=1), HEIGHT, axis=0)  # (120, 160, 3)
    preview = Preview(HEIGHT, WIDTH, RATE, 3, tmp_path)
    for index in range(3):
        preview.add(index, frame, frame[:, ::-1], frame, np.zeros((HEIGHT, WIDTH), np.uint8), 0.0)
    first, second, _, mask = tiles(pictures(preview.finish().video)[1])
    assert np.abs(first[60, 16::32].astype(int) - colours).max() <= 6
    assert np.abs(second[60, 16::32].astype(int) - colours[::-1]).max() <= 6
    assert mask[EDGE:-EDGE, EDGE:-EDGE].max() <= 2


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((240, 320), (240, 320)),
        ((241, 321), (240, 320)),
        ((720, 1280), (360, 640)),
        ((1280, 720), (480, 270)),
        ((2, 4000), (16, 640)),
        ((1, 1), (96, 96)),
        ((9, 15), (72, 120)),
    ],
)
def test_tiles_are_even_and_keep_their_proportions(tmp_path, shape, tile):
    assert tile_size(*shape, (480, 640)) == tile
    preview = Preview(*shape, RATE, 2, tmp_path)
    grey = np.full((*shape, 3), 90, np.uint8)
    for index in range(2):
        preview.add(index, grey, grey, grey, np.ones(shape, bool), 1.0)
    contents = preview.finish()
    levels = [np.median(tile) for tile in tiles(pictures(contents.video)[1])]
    assert levels == pytest.approx([90, 90, 90, 255], abs=3)


def test_views_may_be_read_only_and_strided_and_a_mask_whatever_is_not_zero(tmp_path):
    preview = Preview(HEIGHT, WIDTH, RATE, 2, tmp_path)
    frozen, *_, mask = views(5)
    frozen.setflags(write=False)
    strided = np.repeat(frozen, 2, axis=1)[:, ::2]
    preview.add(0, frozen, strided, np.asfortranarray(frozen), -7 * mask.astype(np.int64), 0.5)
    assert shown(pictures(preview.finish().video)[0]) == expected(5)


def test_nothing_stays_behind(tmp_path):
    assert Preview(HEIGHT, WIDTH, RATE, 9, tmp_path).finish().video == b""
    preview = Preview(HEIGHT, WIDTH, RATE, 9, tmp_path)
    preview.discard()
    for index in range(60):
        preview.add(index, *views(index), 0.5)
    assert len(list(tmp_path.iterdir())) == 1
    preview.discard()
    preview.discard()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rate", [0.0, 0.2, 24000 / 1001, 5000.0, float("nan"), float("inf")])
def test_any_rate_gives_a_video(tmp_path, rate):
    contents = fill(Preview(HEIGHT, WIDTH, rate, 3, tmp_path), 3)
    assert len(pictures(contents.video)) == 3
    with av.open(io.BytesIO(contents.video)) as container:
        assert float(container.streams.video[0].average_rate) == pytest.approx(contents.rate, rel=1e-4)


def bumpy(index):
    """Three hills over a plain without foreground."""
    return sum(top * max(0.0, 1 - abs(index - where) / 20) for where, top in ((100, 0.3), (400, 0.5), (430, 0.2)))


def test_moments_are_the_busiest_frames_and_apart(tmp_path):
    n = 1029
    contents = fill(Preview(HEIGHT, WIDTH, RATE, n, tmp_path), n, area=bumpy)
    assert {100, 400} <= {moment.index for moment in contents.moments}
    assert all(moment.area == bumpy(moment.index) > 0 for moment in contents.moments)
    gaps = np.diff([moment.index for moment in contents.moments])
    assert (gaps >= n / (2.5 * MOMENTS)).all()
    assert len(contents.moments) == 2  # what else is left of the hills is too close to their tops


def test_a_still_clip_has_no_moments_and_a_busy_one_no_more_than_fit(tmp_path):
    assert fill(Preview(HEIGHT, WIDTH, RATE, 20, tmp_path), 20, area=lambda index: 0.0).moments == []
    busy = fill(Preview(HEIGHT, WIDTH, RATE, 400, tmp_path), 400, area=lambda index: 0.1 + index / 1000)
    assert len(busy.moments) == MOMENTS
    assert busy.moments[-1].index == 399


def test_a_moment_shows_the_outline_of_its_mask(tmp_path):
    preview = Preview(HEIGHT, WIDTH, RATE, 1, tmp_path)
    grey = np.full((HEIGHT, WIDTH), 120, np.uint8)
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[30:90, 40:120] = True
    preview.add(0, grey, grey, grey, mask, 0.25)
    (moment,) = preview.finish().moments
    with av.open(io.BytesIO(moment.jpeg)) as container:
        small = next(container.decode(video=0)).to_ndarray(format="rgb24").astype(int)
    coloured = np.ptp(small, axis=2) > 60
    assert small.shape == (HEIGHT, WIDTH, 3)
    assert np.corrcoef(small[60, 40], preview_module.OUTLINE)[0, 1] > 0.9  # JPEG makes it paler
    assert (coloured & outline(mask)).sum() > 0.95 * outline(mask).sum()
    assert not coloured[35:85, 45:115].any() and not coloured[:25].any()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    area = np.array([0.02 + 0.05 * np.exp(-((k - 30) ** 2) / 50) for k in range(N)])
    preview = Preview(HEIGHT, WIDTH, RATE, N, tmp_path_factory.mktemp("preview"))
    contents = fill(preview, N, area=lambda index: float(area[index]))
    return Report(
        "Clip <1> & more", N, RATE, area, [("Rank", "2"), ("<b>", "</b>")], ["The file broke off <here>."], contents,
        ["background.mp4", "masks/00 1.png", "a:b?.json"],
    )  # fmt: skip


def test_page_is_self_contained_and_escaped(report):
    html = render_page(report)
    found = Resources(html)
    assert found.anchors == ["./background.mp4", "./masks/00%201.png", "./a%3Ab%3F.json"]
    assert all(link.startswith("data:") for link in found.links) and len(found.links) > len(report.preview.moments)
    assert "<h1>Clip &lt;1&gt; &amp; more</h1>" in html
    assert "broke off &lt;here&gt;" in html and "<dt>&lt;b&gt;</dt>" in html
    assert not re.search(r"https?://", html)
    assert "{{" not in html
    video = re.search(r'id="video-data">([^<]*)<', html)[1]
    assert base64.b64decode(video, validate=True) == report.preview.video


def test_page_of_a_long_clip_is_bounded_and_keeps_its_peaks():
    area = np.zeros(50_000)
    area[31_234] = 0.4
    moments = [Moment(k, 0.5, bytes(60_000)) for k in range(MOMENTS)]
    video = bytes(preview_module.MAX_BYTES)
    contents = PreviewContents(video, 12.5, 360, 640, 32, list(range(0, 50_000, 32)), moments)
    html = render_page(Report("Peak", 50_000, 25.0, area, [], [], contents))
    assert len(html.encode()) <= 20_000_000
    assert "The preview holds one frame in 32." in html and "33:20.0" in html  # 50000 frames at 25 a second
    line = re.search(r'class="line" d="M([^"]*)"', html)[1]
    points = np.array([[float(number) for number in point.split(",")] for point in line.split("L")])
    assert len(points) <= 800
    highest = points[points[:, 1].argmin()]
    assert highest[0] == pytest.approx(1000 * 31_234 / 50_000, abs=2)
    assert highest[1] < 10 and (np.delete(points[:, 1], points[:, 1].argmin()) == 100).all()
    assert points[0, 0] == 0 and points[-1, 0] == 1000


def test_a_page_without_a_preview_says_so():
    nothing = PreviewContents(b"", RATE, HEIGHT, WIDTH, 1, [])
    html = render_page(Report("Nothing", 0, RATE, np.zeros(0), [("Rank", "2")], [], nothing))
    assert "There is no preview" in html and "<video" not in html and "Busiest" not in html


class Browser:
    """Chromium without a window, driven through its debugging pipe."""

    def __init__(self, folder):
        flags = "--mute-audio --remote-debugging-pipe --autoplay-policy=no-user-gesture-required"
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        command = [*BROWSER, *flags.split(), f"--user-data-dir={folder}"]
        # Chromium reads commands from descriptor 3 and answers on 4.
        shell = f'exec "$@" 3<&{read} 4>&{write}'
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, "bash", *command, "about:blank"],
            pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read)
        os.close(write)
        self._unread, self._number, self._session, self._events = b"", 0, {}, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _receive(self):
        while b"\0" not in self._unread:
            assert select.select([self._from], [], [], 60)[0], "Chromium does not answer"
            chunk = os.read(self._from, 1 << 20)
            assert chunk, "Chromium ended"
            self._unread += chunk
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)

    def run(self, code):
        """Return the value of an expression; of a promise, what it resolves to."""
        answer = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition):
        """Wait until an expression is true."""
        wait = f"new Promise((go, no) => {{ const end = Date.now() + 30000; const look = () => {condition} ? go(true) :"
        assert self.run(f"{wait} Date.now() > end ? go(false) : setTimeout(look, 20); look(); }})"), condition

    def open(self, path):
        self._events.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=path.as_uri())
        self.until(f"location.href === {json.dumps(path.as_uri())} && document.readyState === 'complete'")

    def events(self, *methods):
        return [event["params"] for event in self._events if event.get("method") in methods]

    def press(self, key, shift=False):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=8 if shift else 0)

    def click(self, selector, across=0.5):
        """Click into an element, at its middle height."""
        place = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center'});"
            " const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )
        x, y = place[0] + across * place[2], place[1] + place[3] / 2
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def close(self):
        self._session = {}
        self.call("Browser.close")
        self._process.wait(30)
        os.close(self._to)
        os.close(self._from)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render_page(report), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser, page):
    browser.open(page)
    browser.until("video.readyState >= 2 && !video.seeking")
    browser.press("Home")
    browser.until(f"place.textContent === 'frame 1 of {N}' && !video.seeking")
    return browser


TILES = """(() => {
  const canvas = document.createElement("canvas"), w = video.videoWidth / 2, h = video.videoHeight / 2;
  canvas.width = 2 * w; canvas.height = 2 * h;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(video, 0, 0);
  return [[0, 0, EDGE], [w, 0, EDGE], [0, h, EDGE], [w, h, 0]].map(([x, y, side]) => {
    const pixels = context.getImageData(x + side, y + EDGE, w - 2 * side, h - 2 * EDGE).data;
    let sum = 0;
    for (let k = 0; k < pixels.length; k += 4) sum += pixels[k + 1];
    return 4 * sum / pixels.length;
  });
})()""".replace("EDGE", str(EDGE))


def at_frame(browser, index):
    """Wait until the page shows a frame, then return the numbers that its tiles show."""
    browser.until(f"place.textContent === 'frame {index + 1} of {N}' && !video.seeking && video.readyState >= 2")
    at = f"Math.min({N - 1}, Math.floor(video.currentTime * {RATE}))"
    browser.until(f"!video.seeking && {at} === {index}")  # nor is it an older seek that ended
    return numbers(browser.run(TILES))


@needs_chromium
def test_page_scrubs_with_the_four_views_in_step(opened):
    for index in (40, 3, 74, 41, 0, 19, 20):
        opened.run(f"scrubber.value = {index}, scrubber.dispatchEvent(new Event('input', {{bubbles: true}}))")
        assert at_frame(opened, index) == expected(index)
        assert opened.run("document.getElementById('time').textContent") == f"0:0{index / 30:.1f} / 0:02.5"
        assert float(opened.run("cursor.style.left")[:-1]) == pytest.approx(100 * index / (N - 1), abs=0.01)
    # A drag is many wishes at once; the last one counts.
    opened.run(
        "[...Array(60).keys()].forEach((k) => {"
        " scrubber.value = k; scrubber.dispatchEvent(new Event('input', {bubbles: true})); })"
    )
    assert at_frame(opened, 59) == expected(59)


@needs_chromium
def test_page_opens_at_a_busy_moment_that_leaves_something_to_play(browser, page, report):
    browser.open(page)
    busiest = max((m for m in report.preview.moments if m.index + 2 * RATE <= N), key=lambda m: m.area)
    assert 0 < busiest.index < 30
    assert at_frame(browser, busiest.index) == expected(busiest.index)


@needs_chromium
def test_page_plays_and_pauses(opened):
    assert opened.run("[video.paused, video.duration]") == [True, pytest.approx(N / RATE, abs=0.01)]
    opened.run("speed.value = '0.25', speed.dispatchEvent(new Event('change'))")
    opened.click("#play")
    opened.until("video.currentTime > 0.1")
    assert opened.run("[video.paused, play.getAttribute('aria-label')]") == [False, "Pause"]
    opened.until("!video.paused && Number(scrubber.value) > 4")  # the scrubber follows
    opened.press(" ")
    opened.until("video.paused && play.getAttribute('aria-label') === 'Play'")
    opened.click("#forward")
    index = int(opened.run("scrubber.value"))
    assert index > 5 and at_frame(opened, index) == expected(index)
    # At the end, playing begins anew.
    opened.run("speed.value = '8', speed.dispatchEvent(new Event('change'))")
    opened.click("#play")
    opened.until("video.paused")
    assert at_frame(opened, N - 1) == expected(N - 1)
    opened.press("Home")
    assert at_frame(opened, 0) == expected(0)
    opened.run("video.dispatchEvent(new Event('ended'))")  # a late one, of the seek to the last picture
    assert at_frame(opened, 0) == expected(0)
    opened.run("['play', 'ended'].forEach((name) => video.dispatchEvent(new Event(name)))")  # the last ones left out
    assert at_frame(opened, N - 1) == expected(N - 1)
    opened.run("speed.value = '0.25', speed.dispatchEvent(new Event('change'))")
    opened.click("#play")
    opened.until("!video.paused && video.currentTime < 1 && video.currentTime > 0.03")


@needs_chromium
def test_keys_and_buttons_step_through_the_frames(opened):
    for action, index in [
        (lambda: opened.click("#forward"), 1),
        (lambda: opened.press("ArrowRight"), 2),
        (lambda: opened.press("ArrowRight", shift=True), 32),
        (lambda: opened.click("#back"), 31),
        (lambda: opened.press("ArrowLeft"), 30),
        (lambda: opened.press("End"), N - 1),
        (lambda: opened.press("ArrowRight"), N - 1),
        (lambda: opened.press("Home"), 0),
        (lambda: opened.run("scrubber.focus()"), 0),
        (lambda: opened.press("ArrowRight"), 1),  # once, although the scrubber knows the key too
    ]:
        action()
        assert at_frame(opened, index) == expected(index)


@needs_chromium
def test_chart_and_moments_lead_to_their_frames(opened, report):
    opened.click("#plot", across=0.5)
    assert at_frame(opened, (N - 1) // 2) == expected((N - 1) // 2)
    assert opened.run("tip.hidden")
    x, y = opened.run("(() => { const b = plot.getBoundingClientRect(); return [b.left + 1, b.top + 20]; })()")
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    opened.until("!tip.hidden && tip.textContent === '0:00.0 · 2.00 %'")
    moment = max(report.preview.moments, key=lambda m: m.area)
    assert moment.index == 30
    selector = f".strip button[data-frame='{moment.index}']"
    assert opened.run(f'document.querySelector("{selector} img").naturalWidth') == WIDTH
    opened.click(selector)
    assert at_frame(opened, 30) == expected(30)
    assert opened.run(f"document.querySelector(\"{selector}\").getAttribute('aria-current')") == "true"


@needs_chromium
def test_a_view_can_be_enlarged(opened):
    ratio = "video.getBoundingClientRect().width / stage.getBoundingClientRect().width"
    assert opened.run(ratio) == pytest.approx(1, abs=0.01)
    opened.click("[data-view=mask]")
    assert opened.run(ratio) == pytest.approx(2, abs=0.01)
    opened.press("2")
    assert opened.run("stage.dataset.view") == "background"
    opened.click("[data-view=background]")
    assert opened.run("stage.dataset.view") == "all"


@needs_chromium
def test_page_makes_no_request_and_no_complaint(opened):
    opened.click("#play")
    opened.until("video.currentTime > 0.1")
    asked = {event["request"]["url"].split(":")[0] for event in opened.events("Network.requestWillBeSent")}
    assert asked == {"file", "data", "blob"}
    of_files = [e for e in opened.events("Network.requestWillBeSent") if e["request"]["url"].startswith("file:")]
    assert len(of_files) == 1  # the page itself
    assert opened.events("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []
    assert opened.run("problem.hidden")


@needs_chromium
def test_a_clip_of_one_frame_and_none(browser, tmp_path):
    contents = fill(Preview(HEIGHT, WIDTH, RATE, 1, tmp_path), 1)
    one = Report("One", 1, RATE, np.array([0.01]), [], [], contents)
    none = Report("None", 0, RATE, np.zeros(0), [], [], PreviewContents(b"", RATE, HEIGHT, WIDTH, 1, []))
    for report in (one, none):
        path = tmp_path / f"{report.title}.html"
        path.write_text(render_page(report), encoding="utf-8")
        browser.open(path)
        if report is one:
            browser.until("video.readyState >= 2 && !video.seeking && place.textContent === 'frame 1 of 1'")
            browser.press("ArrowRight")
            assert numbers(browser.run(TILES)) == expected(0)
        assert browser.events("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []


@needs_chromium
def test_a_video_that_does_not_play_is_told(browser, report, tmp_path):
    broken = PreviewContents(b"no video at all", RATE, HEIGHT, WIDTH, 1, list(range(N)))
    path = tmp_path / "broken.html"
    path.write_text(render_page(Report("Broken", N, RATE, report.area, [], [], broken)), encoding="utf-8")
    browser.open(path)
    browser.until("!problem.hidden && problem.textContent.startsWith('The preview does not play here')")


@needs_chromium
def test_nothing_that_slipped_into_the_page_can_run(browser, page, tmp_path):
    injected = page.read_text(encoding="utf-8").replace("<main>", '<main><script>document.title = "bad"</script>')
    path = tmp_path / "injected.html"
    path.write_text(injected, encoding="utf-8")
    browser.open(path)
    browser.until("video.readyState >= 2")
    assert browser.run("document.title") == "Clip <1> & more"
