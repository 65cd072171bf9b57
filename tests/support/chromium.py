"""A real Chromium, and a page in it."""

import shutil
import time
from contextlib import contextmanager

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


@contextmanager
def chromium():
    """The browser; the test is skipped where there is none."""
    if not CHROMIUM:
        pytest.skip("Chromium is not installed")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        started.close()


class Shown:
    """An open page, with all that it said and asked for."""

    def __init__(self, tab, address):
        self.tab, self.address = tab, address
        self.said, self.asked = [], []
        tab.set_default_timeout(10_000)
        tab.on("console", lambda message: self.said.append(message.text))
        tab.on("pageerror", lambda error: self.said.append(str(error)))
        tab.on("request", lambda request: self.asked.append(request.url))

    def open(self, place=""):
        self.tab.goto("about:blank")
        self.tab.goto(self.address + place)
        self.tab.wait_for_selector("body[data-ready]")
        return self

    def ids(self):
        """Ids of the listed questions."""
        return self._drawn().locator("#list .id").all_inner_texts()

    def cards(self):
        """Models of the shown answers."""
        return self._drawn().locator("#main .card h3").all_inner_texts()

    def text(self, selector):
        """What is to be read in the first element that is selected."""
        return self._drawn().locator(selector).first.inner_text()

    def _drawn(self):
        # Rows and cards with content-visibility: auto have no text to read before they are drawn.
        self.tab.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        return self.tab

    def until(self, expression, arg=None):
        """Until an expression holds. Playwright's own wait evaluates texts inside the page, which
        its policy forbids."""
        end = time.monotonic() + 30
        while not self.tab.evaluate(expression, arg):
            assert time.monotonic() < end, expression
            time.sleep(0.02)

    def wait(self, selector, count):
        """Until so many elements are there."""
        self.until(
            "([what, count]) => document.querySelectorAll(what).length === count",
            arg=[selector, count],
        )

    def wait_for(self, question):
        """Until a question is shown."""
        self.until(
            "(what) => document.querySelector('#main h2')?.textContent === what",
            arg=f"Question {question}",
        )

    def place(self):
        """The hash of the address."""
        return self.tab.evaluate("decodeURIComponent(location.hash.replaceAll('+', ' '))")
