"""The page in a real Chromium: hostile texts do nothing, and what a reader does works."""

import functools
import http.server
import json
import threading
from pathlib import Path

import pytest
from chromium import Shown, chromium
from pages import HOSTILE, LONG, MODELS, contents

from mtbench_ray.reports.page import page

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("page") / "report.html"
    found.write_text("".join(page.parts(contents())), "utf-8")
    return found


@pytest.fixture
def shown(browser, path):
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    made = Shown(context.new_page(), path.as_uri())
    yield made
    said, asked = made.said, made.asked
    context.close()
    assert said == [], "nothing on the console"
    assert {url.partition("#")[0] for url in asked} <= {made.address, "about:blank", "data:,"}


def test_the_scores_come_first_and_lead_to_the_answers(shown):
    shown.open()
    assert shown.tab.locator(".scores tbody th").all_inner_texts() == MODELS[::-1]
    shown.tab.locator(".scores thead button", has_text="model").click()
    assert shown.tab.locator(".scores tbody th").all_inner_texts() == MODELS
    shown.tab.locator(".scores tbody tr").nth(1).locator("td a").first.click()
    shown.tab.wait_for_selector(".card")
    assert shown.cards() == ["org/second"]
    assert shown.ids() == ["1", "3", "5"]
    assert "category=math" in shown.place()


def test_figures_are_rounded_as_python_rounds_them(shown):
    values = [4.625, 4.615, 4.635, 2.675, 1.005, 0.125, 0.375, 7.0, 9.995, 8.345, -0.125, 0.0625]
    shown.open()
    cells = [[value, None, None, 1, 1, ""] for value in values]
    text = shown.tab.evaluate("document.getElementById('index').textContent")
    index = json.loads(text)
    index["tables"][0]["rows"] = [[None, str(at), [None, cell, None]]
                                  for at, cell in enumerate(cells)]  # fmt: skip
    source = shown.address.removeprefix("file://")
    changed = Path(source).with_name("rounded.html")
    changed.write_text(Path(source).read_text("utf-8").replace(text, page.island(index)), "utf-8")
    shown.address = changed.as_uri()
    shown.open()
    rows = shown.tab.locator(".scores tbody tr")
    said = {row.locator("th").inner_text(): row.locator("td").nth(1).inner_text()
            for row in rows.all()}  # fmt: skip
    assert said == {str(at): f"{value:.2f}" for at, value in enumerate(values)}
    shown.asked = [url for url in shown.asked if "report.html" not in url]


def test_hostile_texts_do_nothing_and_can_be_read(shown):
    shown.open("#view=answers&q=1")
    shown.tab.wait_for_selector(".card")
    shown.tab.keyboard.press("v")
    for summary in shown.tab.locator(".prompt > summary").all()[:3]:
        summary.click()
    for view in ("pair", "answers"):
        shown.tab.locator(f"[data-view={view}]").click()
        shown.tab.wait_for_timeout(150)
    assert shown.tab.evaluate("window.harmed") is None
    assert shown.tab.evaluate("document.querySelectorAll('#main script, #main style, #main img,"
                              " #main iframe, #main form, #main link, #main svg, #main [style]"
                              ":not(.chip):not(.bar *)').length") == 0  # fmt: skip
    text = shown.text(".card .text")
    for piece in (
        "<script>window.harmed = 'script'</script>",
        "onerror=",
        "@import url(",
        "{{script}}",
    ):
        assert piece in text
    links = shown.tab.evaluate(
        "[...document.querySelectorAll('.card .text a[href]')].map(a => a.href)"
    )
    assert links
    assert all(link.startswith("http://127.0.0.1:9/") for link in links), links
    assert shown.tab.title() == "own <b>workspace</b> · mtbench_ray"


def test_the_policy_stops_what_would_get_through(browser, path, shown):
    """The second line: even if the sanitiser let a script through, it would not run."""
    shown.open("#view=answers&q=3")
    done = shown.tab.evaluate(
        """() => {
            const tried = [];
            const box = document.createElement("div");
            document.body.append(box);
            try { box.innerHTML = "<img src=x onerror='window.harmed=1'>"; tried.push("html"); }
            catch { /* only the page's own policy may */ }
            try { box.setAttribute("onclick", "window.harmed = 2"); } catch { /* the same */ }
            box.click();
            const script = document.createElement("script");
            try { script.textContent = "window.harmed = 3"; } catch { tried.push("text refused"); }
            document.body.append(script);
            return tried;
        }"""
    )
    assert "html" not in done
    assert shown.tab.evaluate("window.harmed") is None
    assert all("Content Security Policy" in one or "Trusted" in one or "trusted" in one
               or "TrustedHTML" in one for one in shown.said), shown.said  # fmt: skip
    shown.said.clear()


def test_a_megabyte_is_there_as_it_is(shown):
    shown.open("#view=answers&q=2")
    shown.tab.wait_for_selector(".card")
    assert len(shown.tab.locator(".card .text").first.evaluate("one => one.textContent")) == len(
        LONG
    )
    shown.tab.get_by_role("button", name="Show all").first.click()
    box = shown.tab.locator(".card .text > pre").first.bounding_box()
    assert box["height"] < 800


def test_plots_are_in_the_page_and_hostile_names_in_them_do_nothing(shown):
    shown.open()
    shown.tab.keyboard.press("g")
    shown.wait("#plots .plot svg", 2)
    assert "view=plots" in shown.place()
    assert shown.tab.locator("#plots h2").all_inner_texts() == ["judge-x", "<i>two</i>"]
    texts = shown.tab.locator("#plots svg text").all_text_contents()
    assert any(HOSTILE[3][:12] in text for text in texts)
    assert shown.tab.evaluate("window.harmed") is None
    inside = "document.querySelectorAll('#plots script, #plots style, #plots [style], #plots img,"
    assert shown.tab.evaluate(inside + " #plots foreignObject, #plots image').length") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_ink_of_plots_is_that_of_the_page(browser, path, scheme):
    context = browser.new_context(color_scheme=scheme)
    shown = Shown(context.new_page(), path.as_uri()).open("#view=plots")
    shown.wait("#plots .plot svg", 2)
    fills = shown.tab.evaluate(
        "[...document.querySelectorAll('#plots svg text')].map(one => getComputedStyle(one).fill)"
    )
    assert set(fills) == {shown.tab.evaluate("getComputedStyle(document.body).color")}
    assert shown.said == []
    context.close()


def test_filters_leave_what_fits(shown):
    shown.open("#view=answers")
    assert shown.ids() == ["1", "2", "3", "4", "5", "6"]
    shown.tab.select_option("#category", "writing")
    assert shown.ids() == ["2", "4", "6"]
    shown.tab.locator("#reset").click()
    shown.tab.select_option("#status", "answer truncated")
    assert shown.ids() == ["3"]
    shown.tab.wait_for_selector(".card .tag.bad")
    assert shown.cards() == ["org/second"]
    assert "truncated" in shown.text(".card .tag.bad")
    shown.tab.locator("#reset").click()
    shown.tab.fill("#low", "10")
    # Values are (3 model + question turn) mod 10 + 1.
    right = sorted(str(q) for q in range(1, 7) if any((3 * m + q * t) % 10 == 9 for m in range(3)
                   for t in (1, 2)))  # fmt: skip
    assert shown.ids() == right
    shown.tab.locator("#reset").click()
    shown.tab.locator("#models-field > summary").click()
    shown.tab.fill("#models-find", "third")
    shown.tab.locator("#models label:visible input").check()
    shown.tab.keyboard.press("Escape")
    shown.wait("#main .card", 1)
    assert shown.cards() == [MODELS[2]]
    shown.tab.select_option("#grader", "1")
    assert shown.text("#found") == "6 questions, 6 answers"


def test_they_differ_most_comes_first(shown):
    shown.open("#view=answers&order=differ")

    def spread(question):
        means = [sum((3 * m + question * t) % 10 + 1 for t in (1, 2)) / 2 for m in range(3)]
        if question == 3:  # the second model's turn 2 failed
            means[1] = (3 + 3) % 10 + 1
        return max(means) - min(means)

    wanted = sorted(range(1, 7), key=lambda question: (-spread(question), question))
    assert shown.ids() == list(map(str, wanted))
    shown.open("#view=pair&order=differ&a=org/first&b=org/second")
    assert shown.text("#list .value") not in ("", "n/a")


def test_search_finds_words_of_questions_answers_reasoning_and_judgments(shown):
    shown.open("#view=answers")
    for words, ids, cards in (
        ("number 4:", ["4"], 3),
        ("LIGHTHOUSES", ["3"], 1),
        ("zebra-1-5-2", ["5"], 1),
        ("zebra-1-5-2 nowhere", ["Nothing fits these filters."], 0),
        ('"deep 2-6."', ["6"], 1),
    ):
        shown.tab.fill("#find", words)
        shown.until("!document.getElementById('found').textContent.includes('Reading')")
        found = shown.ids() or [shown.text("#list .empty")]
        assert found == ids
        if cards:
            shown.tab.locator("#list a").first.click()
            shown.until(f"document.querySelectorAll('#main .card').length === {cards}")
    shown.tab.fill("#find", "zebra-1-5-2")
    shown.tab.locator("#list a").first.click()
    shown.tab.wait_for_selector(".verdict[open]")
    shown.until("CSS.highlights.get('found')?.size >= 1")


def test_two_models_stand_side_by_side(shown):
    shown.open("#view=answers&q=4")
    shown.tab.wait_for_selector(".card")
    shown.tab.locator(".card", has_text="org/first").locator("header button").click()
    shown.tab.wait_for_selector(".pair")
    shown.tab.select_option("#side-a", label="org/second")
    shown.tab.select_option("#side-b", label=MODELS[2])
    shown.wait(".pair-row", 3)
    second = shown.text(":nth-match(.pair-row:not(.heads), 2)")
    assert "Deep 1-4." in second
    assert "Deep 2-4." in second
    rows = shown.tab.locator(".pair-row:not(.heads)").all()
    boxes = [one.bounding_box() for one in rows[0].locator("> .turn").all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"] + 1
    shown.tab.keyboard.press("x")
    shown.until("location.hash.includes('b=org%2Fsecond')")
    assert f"a={MODELS[2]}" in shown.place()


def test_reasoning_prompts_and_judgments_are_folded_and_open(shown):
    shown.open("#view=answers&q=3&model=org/second")
    shown.tab.wait_for_selector(".card")
    assert "lighthouses" not in shown.text(".card")
    shown.tab.keyboard.press("r")
    shown.tab.wait_for_selector(".reasoning[open]")
    assert "Let me think about <b>lighthouses</b>." in shown.text(".card")
    shown.tab.locator(".verdict > summary").first.click()
    shown.tab.locator(".prompt > summary").first.click()
    shown.tab.locator(".card", has_text="zebra-1-3-1").wait_for()  # filled once it is open
    text = shown.text(".card")
    assert "zebra-1-3-1" in text
    assert f"Rate this answer: {HOSTILE[1]}" in text
    assert "answer_error" in text
    shown.tab.get_by_role("button", name="Source").first.click()
    assert shown.text(".answer pre.source") == "cut"


def test_a_link_shows_the_same_after_a_reload(shown):
    shown.open("#view=answers&q=5&at=org/second&category=math&min=2&order=highest&find=deep")
    shown.tab.wait_for_selector(".card.at")
    before = (shown.ids(), shown.cards(), shown.place(), shown.tab.input_value("#find"))
    assert "5" in before[0]
    shown.tab.reload()
    shown.tab.wait_for_selector(".card.at")
    after = (shown.ids(), shown.cards(), shown.place(), shown.tab.input_value("#find"))
    assert after == before
    assert shown.text(".card.at h3") == "org/second"
    top = shown.tab.locator(".card.at").bounding_box()["y"]
    assert -10 < top < 300
    shown.tab.evaluate("location.hash = 'view=answers&q=6'")
    shown.wait_for(6)


def test_back_goes_back(shown):
    shown.open("#view=answers&q=1")
    shown.tab.wait_for_selector(".card")
    shown.tab.locator("#list a").nth(3).click()
    shown.wait_for(4)
    shown.tab.go_back()
    shown.wait_for(1)


def test_the_keyboard_is_enough(shown):
    tab = shown.open().tab
    tab.keyboard.press("a")
    tab.wait_for_selector(".card")
    tab.keyboard.press("j")
    shown.wait_for(2)
    tab.keyboard.press("k")
    shown.wait_for(1)
    tab.keyboard.press("n")
    tab.keyboard.press("n")
    assert shown.text(".card.at h3") == "org/second"
    tab.keyboard.press("p")
    assert shown.text(".card.at h3") == "org/first"
    tab.keyboard.press("d")
    assert "order=differ" in shown.place()
    tab.keyboard.press("/")
    tab.keyboard.type("kjd")
    assert tab.input_value("#find") == "kjd", "letters in a field are letters"
    tab.keyboard.press("Escape")
    tab.keyboard.press("c")
    assert "view=pair" in shown.place()
    tab.keyboard.press("?")
    assert tab.locator("#help").is_visible()
    tab.keyboard.press("Escape")
    tab.keyboard.press("s")
    assert tab.locator(".scores").first.is_visible()


@pytest.mark.parametrize("system", ["light", "dark"])
def test_the_theme_follows_the_system_until_one_is_chosen(browser, path, system):
    context = browser.new_context(color_scheme=system)
    shown = Shown(context.new_page(), path.as_uri()).open()
    ground = "getComputedStyle(document.body).backgroundColor"
    automatic = shown.tab.evaluate(ground)
    shown.tab.keyboard.press("t")
    light = shown.tab.evaluate(ground)
    shown.tab.keyboard.press("t")
    dark = shown.tab.evaluate(ground)
    assert light != dark
    assert automatic == {"light": light, "dark": dark}[system]
    context.close()


@pytest.mark.parametrize("view", ["scores", "plots", "answers", "pair"])
def test_a_phone_needs_no_sideways_scrolling(browser, path, view):
    context = browser.new_context(viewport={"width": 390, "height": 800})
    shown = Shown(context.new_page(), path.as_uri()).open(f"#view={view}&q=4")
    shown.tab.wait_for_timeout(200)
    assert shown.tab.evaluate("document.documentElement.scrollWidth") <= 390
    if view in ("answers", "pair"):
        assert not shown.tab.locator("#list").is_visible()
        shown.tab.locator("#side > summary").click()
        shown.tab.locator("#list a").first.click()
        shown.until("document.querySelector('#main h2')?.textContent === 'Question 1'")
        assert not shown.tab.locator("#list").is_visible()
    context.close()


def test_it_works_from_a_server_too(browser, path):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=path.parent)
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        context = browser.new_context()
        shown = Shown(
            context.new_page(), f"http://127.0.0.1:{server.server_address[1]}/report.html"
        )
        shown.open("#view=answers&q=5")
        shown.tab.wait_for_selector(".card")
        assert shown.said == []
        context.close()
        server.shutdown()
        thread.join()
