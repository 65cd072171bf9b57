"""The plots of the page: matplotlib's SVG without what a strict policy forbids."""

import json
import re
import sys
from html.parser import HTMLParser

import pytest
from pages import HOSTILE, plot
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports.joined import opened
from mtbench_ray.reports.page import page
from mtbench_ray.reports.page.collect import collect
from mtbench_ray.reports.page.inline_svg import inline


class Seen(HTMLParser):
    """Tags with their attributes, and texts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.texts.append(data)


def test_a_drawing_keeps_its_texts_and_has_no_style_script_or_address():
    seen = Seen(plot("g", HOSTILE[1]).svg)
    assert {tag for tag, _ in seen.tags} <= {"svg", "g", "path", "defs", "use", "text", "rect",
                                             "clippath", "tspan"}  # fmt: skip
    for _, attributes in seen.tags:
        assert not any(name == "style" or name.startswith("on") for name in attributes)
        assert attributes.get("href", "#p-").startswith("#p-")
        assert attributes.get("clip-path", "url(#p-").startswith("url(#p-")
    assert HOSTILE[3] in seen.texts
    assert "$" + HOSTILE[0] in seen.texts
    (svg,) = (attributes for tag, attributes in seen.tags if tag == "svg")
    assert svg["aria-label"] == HOSTILE[1]
    ids = {attributes["id"] for _, attributes in seen.tags if "id" in attributes}
    used = {attributes["href"][1:] for _, attributes in seen.tags if "href" in attributes}
    assert used <= ids


def test_what_matplotlib_does_not_draw_is_left_out():
    made = inline(
        b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 20" onload="x()">
        <script>x()</script><style>@import url(x)</style><foreignObject><b>x</b></foreignObject>
        <a href="javascript:x()"><text>in a link</text></a><image href="http://a/b.png"/>
        <use href="http://a/b#c"/><path d="M 0 0" style="fill: url(http://a/b); stroke: #222222;
        stroke-opacity: 0.5; behavior: url(x)" clip-path="url(http://a)"/>
        <text style="font: bold 12px 'A'; text-anchor: middle" fill="#ffffff">&lt;b&gt;</text>
        </svg>""",
        "n", "t",
    )  # fmt: skip
    assert "x()" not in made
    assert "http" not in made
    assert "in a link" not in made
    assert '<path d="M 0 0" stroke="currentColor" stroke-opacity="0.5">' in made
    assert (
        '<text font-size="12" font-weight="bold" text-anchor="middle" fill="#ffffff">&lt;b&gt;'
        in made
    )
    assert 'width="10" height="20"' in made


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two checkpoints and another model, six own questions of three categories."""
    folder = tmp_path_factory.mktemp("plots")
    rows = ({"question_id": n, "category": ("math", "writing", "stem")[n % 3],
             "turns": [f"How high is {n}?", "Why?"]} for n in range(6))  # fmt: skip
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with StubServer() as stub:
        usual = ["engine=fake", f"question_path={folder / 'q.jsonl'}", "judge=openai",
                 "judge.model=stub", f"judge.base_url={stub.url}"]  # fmt: skip
        main(["-m", *usual, f"workspace={folder / 'w'}", "model=run/step_1,run/step_2"])
        main([*usual, f"workspace={folder / 'v'}", "model=other"])
    return folder


@pytest.mark.runs
def test_the_page_has_the_plots_that_the_scores_allow(made):
    with opened([str(made / "w")]) as workspace:
        found = collect(workspace, ScoreOptions(resamples=50), plotted=lambda draw: draw())
    titles = [re.sub(", judge.*|, stub.*", "", one.title) for one in found.plots]
    assert titles == [
        "Score and training step", "Score by category and training step", "average",
        "By category", "By category", "turn 1 against turn 2", "Score and answer length",
    ]  # fmt: skip
    assert found.plots[0].group == "Training steps"
    text = "".join(page.parts(found))
    assert text.count('<script type="text/plain" id="plot-') == 7
    ids = re.findall(r' id="([^"]+)"', "".join(one.svg for one in found.plots))
    assert len(ids) == len(set(ids))


@pytest.mark.runs
def test_without_matplotlib_the_page_has_none_and_it_is_said(made, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", "html", f"workspace={made / 'w'}", f"out={tmp_path / 'p.html'}"]) == 0
    said = capsys.readouterr().err
    assert "the page has no plots: plots need matplotlib" in said
    assert 'id="plot-' not in (tmp_path / "p.html").read_text()


@pytest.mark.runs
def test_view_takes_several_workspaces(made, capsys, monkeypatch):
    opened_ = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened_.append(address) or True)
    assert main(["view", f"workspace={made / 'w'}", f"workspace={made / 'v'}"]) == 0
    path = made / "w" / "report.html"
    assert capsys.readouterr().out.strip() == str(path)
    assert opened_ == [path.resolve().as_uri()]
    text = path.read_text()
    assert all(json.dumps(name) in text for name in ("run/step_1", "run/step_2", "other"))
