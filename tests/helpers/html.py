"""Pages as a browser sees them."""

import shutil
from html.parser import HTMLParser
from typing import Any

import pytest

CHROMIUM: Any = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# A browser that shows nothing, and whose own habits stay off the network.
BROWSER = [CHROMIUM, "--host-resolver-rules=MAP * ~NOTFOUND", "--headless", "--no-sandbox", "--disable-gpu"]
BROWSER += ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
BROWSER += ["--disable-dev-shm-usage", "--hide-scrollbars"]
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; apt-get install chromium")


class Resources(HTMLParser):
    """The tags of a page, its anchors, and everything else that a browser would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.anchors: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        fetched = ("src", "srcset", "href", "data", "action", "background", "poster")
        (self.anchors if tag == "a" else self.links).extend(value for name, value in attributes if name in fetched)
