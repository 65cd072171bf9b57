"""How fast the page of a workspace is made, opened and filtered in Chromium.

    python tests/bench/page_speed.py WORKSPACE|FILE.html [PICTURES]

Prints one line a step. Filters are timed from the input to the next drawn frame. With a folder,
pictures of each view at 1280 and 390 pixels, light and dark, are put there.
"""

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports.page import view

ROUNDS = 5
FILTERS = {
    "category": "() => pick('category', 1)",
    "category off": "() => pick('category', 0)",
    "score": "() => type('low', '8')",
    "score off": "() => type('low', '')",
    "order": "() => { byId('order').value = 'differ'; send('order'); }",
    "status": "() => pick('status', 1)",
    "status off": "() => pick('status', 0)",
    "model": "() => document.querySelector('#models input').click()",
    "model off": "() => document.querySelector('#models input').click()",
    "search": "() => type('find', 'because')",
    "search two": "() => type('find', 'because the')",
    "search off": "() => type('find', '')",
}
HELP = """
const byId = (id) => document.getElementById(id);
const send = (id) => byId(id).dispatchEvent(new Event('input', { bubbles: true }));
const pick = (id, at) => { byId(id).selectedIndex = at; send(id); };
const type = (id, text) => { byId(id).value = text; send(id); };
"""
FRAME = """
async () => {
  %s
  const begun = performance.now();
  (%s)();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - begun;
}
"""


def main(workspace, pictures=""):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        begun = time.monotonic()
        if workspace.endswith(".html"):
            path = Path(workspace)
        else:
            view.write([str(workspace)], str(path), ScoreOptions())
        print(f"made in {time.monotonic() - begun:.1f} s, {path.stat().st_size / 1e6:.1f} MB")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            opened = []
            for place in ("", "#view=answers", "#view=pair") * 3:
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                begun = time.monotonic()
                page.goto(path.as_uri() + place)
                page.wait_for_selector("#main .turn" if place else ".scores td")
                opened.append(time.monotonic() - begun)
                page.close()
            print(
                f"opened in {statistics.median(opened):.2f} s median, {max(opened):.2f} s at most"
            )
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(path.as_uri() + "#view=answers")
            page.wait_for_selector("#main .turn")
            begun = time.monotonic()
            page.focus("#find")
            page.wait_for_timeout(3000)
            took: dict[str, list[float]] = {}
            for _ in range(ROUNDS):
                for name, act in FILTERS.items():
                    took.setdefault(name, []).append(page.evaluate(FRAME % (HELP, act)))
                    page.wait_for_timeout(300)
            for name, found in took.items():
                print(f"filter {name:<13} {statistics.median(found):6.1f} ms median,"
                      f" {max(found):6.1f} at most")  # fmt: skip
            page.close()
            for width in (1280, 390) if pictures else ():
                for scheme in ("light", "dark"):
                    context = browser.new_context(
                        viewport={"width": width, "height": 860}, color_scheme=scheme
                    )
                    for name in ("scores", "answers", "pair"):
                        page = context.new_page()
                        page.goto(f"{path.as_uri()}#view={name}")
                        page.wait_for_timeout(1200)
                        page.screenshot(path=f"{pictures}/{name}-{width}-{scheme}.png")
                        page.close()
                    context.close()
            browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:3])
