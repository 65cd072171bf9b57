"""The page of real evaluations: FastChat's published judgments, with hostile answers planted."""

import csv
import json
import re
import shutil

import pytest
from chromium import Shown, chromium
from pages import HOSTILE, LONG
from paths import SHARED

from mtbench_ray.cli.main import main

pytestmark = pytest.mark.runs
ORACLE, FIXTURES = SHARED / "oracle", SHARED / "fixtures"
if not (ORACLE.is_dir() and FIXTURES.is_dir()):
    pytest.skip("the oracle and fixtures of ../shared are not here", allow_module_level=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The page of 34 models with single judgments, votes, and two fixtures with answers."""
    folder = tmp_path_factory.mktemp("shared")
    judged = folder / "oracle" / "model_judgment"
    judged.mkdir(parents=True)
    for name, kind in (("single_scoreonly", "single"), ("pair_votes_fastchat", "pair")):
        (judged / f"gpt-4_{kind}.jsonl").symlink_to(ORACLE / f"lmsys_gpt4_{name}.jsonl")
    shutil.copytree(FIXTURES / "phi3_dpo", folder / "planted")
    answers = folder / "planted" / "model_answer" / "phi-3.jsonl"
    rows = [json.loads(line) for line in answers.read_text("utf-8").splitlines()]
    planted = {81: "\n\n".join(HOSTILE), 82: LONG}
    for row in rows:
        if row["question_id"] in planted:
            row["choices"][0]["turns"][0] = planted[row["question_id"]]
    answers.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    for source in (folder / "oracle", folder / "planted", FIXTURES / "wgm_errors"):
        assert main(["import", "fastchat", str(source), f"workspace={folder / 'w'}"]) == 0
    out = folder / "report.html"
    assert main(["report", "html", f"workspace={folder / 'w'}", f"out={out}"]) == 0
    return out


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def shown(browser, path):
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    made = Shown(context.new_page(), path.as_uri())
    yield made
    said, asked, harmed = made.said, made.asked, made.tab.evaluate("window.harmed")
    context.close()
    assert (said, harmed) == ([], None)
    assert {url.partition("#")[0] for url in asked} <= {made.address, "about:blank", "data:,"}


def test_the_scores_are_those_of_fastchat(shown):
    shown.open()
    with (ORACLE / "expected_single.csv").open() as file:
        wanted = {row["model"]: row for row in csv.DictReader(file)}
    table = shown.tab.locator(".scores").filter(has_text="single").first
    found = {}
    for row in table.locator("tbody tr").all():
        cells = row.locator("td").all_inner_texts()
        found[row.locator("th").inner_text()] = cells
    key = next(name for name in wanted["gpt-4"] if name in ("average", "score", "avg"))
    for model, row in wanted.items():
        assert f"{float(row[key]):.2f}" in found[model][0].split(), model
    assert len(found) >= 34


def test_each_view_shows_something_and_asks_for_nothing(shown):
    for view, what in (
        ("scores", ".scores td"),
        ("plots", "#plots svg text"),
        ("answers", ".card .text"),
        ("pair", ".pair .turn"),
    ):
        shown.open(f"#view={view}&q=83")
        shown.tab.wait_for_selector(what)
    shown.open("#view=plots")
    shown.until("document.querySelectorAll('.plot').length =="
                " document.querySelectorAll('.plot svg').length")  # fmt: skip
    assert shown.tab.locator(".plot").count() >= 6


def test_planted_texts_do_nothing(shown):
    shown.open("#view=answers&q=81&model=phi-3")
    shown.tab.wait_for_selector(".card .text")
    shown.tab.keyboard.press("v")
    text = shown.text(".card .text")
    for piece in ("<script>window.harmed = 'script'</script>", "onerror=", "@import url("):
        assert piece in text
    links = "[...document.querySelectorAll('.card a[href]')].map(one => one.getAttribute('href'))"
    assert not [one for one in shown.tab.evaluate(links) if re.match(r"\s*(java|data)", one, re.I)]
    assert shown.tab.evaluate("document.querySelectorAll('#main script, #main style, #main img,"
                              " #main iframe, #main form, #main link').length") == 0  # fmt: skip
    shown.open("#view=answers&q=82&model=phi-3")
    shown.tab.wait_for_selector(".card .text")
    shown.tab.get_by_role("button", name="Show all").first.click()
    assert shown.tab.locator(".card .text").first.evaluate("one => one.textContent.length") == len(
        LONG
    )


def test_filters_and_the_search_leave_what_fits(shown):
    shown.open("#view=answers&model=phi-3&model=phi-3-dpo")
    assert len(shown.ids()) == 80
    shown.tab.select_option("#category", "math")
    assert shown.ids() == [str(number) for number in range(111, 121)]
    shown.tab.select_option("#order", "differ")
    spread = shown.tab.evaluate(
        "[...document.querySelectorAll('#list .bar')].map(bar => { const one ="
        " bar.querySelector('i'); return one ? one.style.getPropertyValue('--to') -"
        " one.style.getPropertyValue('--from') : 0; })"
    )
    assert spread == sorted(spread, reverse=True)
    shown.tab.locator("#reset").click()
    shown.tab.fill("#find", "onfocus=")
    shown.until("!document.getElementById('found').textContent.includes('Reading')")
    assert shown.ids() == ["81"]


def test_two_models_side_by_side_and_the_link_after_a_reload(shown):
    shown.open("#view=pair&q=95&a=phi-3&b=phi-3-dpo")
    shown.tab.wait_for_selector(".pair .turn")
    before = (shown.place(), shown.text(".pair"))
    shown.tab.reload()
    shown.tab.wait_for_selector(".pair .turn")
    assert (shown.place(), shown.text(".pair")) == before
    boxes = [one.bounding_box() for one in shown.tab.locator(".pair-row >> nth=1 >> .turn").all()]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"] + 1
