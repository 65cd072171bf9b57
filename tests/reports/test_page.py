"""The page to browse a workspace: what is in it, and that no text in it can do anything."""

import base64
import hashlib
import html
import http.client
import json
import re
import shutil
import sys
import threading
import time
import zlib
from html.parser import HTMLParser

import pytest
from command import Cli
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import HOSTILE, LONG, PROSE, contents
from questions import QUESTIONS
from stub_server import StubServer

from mtbench_ray.cli.main import main
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.judges.pairwise import Pairwise
from mtbench_ray.reports.page import page, render, view
from mtbench_ray.reports.page.collect import collect
from mtbench_ray.workspace.workspace import Workspace

VOID = {"br", "hr", "img", "meta", "link", "input"}


class Elements(HTMLParser):
    """Every element and attribute of a text, as a browser's parser meets them."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.found, self.text, self.open = [], "", []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def check_harmless(made):
    for tag, attributes in Elements(made).found:
        assert tag in render.TAGS
        allowed = set(render.ATTRIBUTES.get(tag, ())) | ({"rel"} if tag == "a" else set())
        assert set(attributes) <= allowed
        if "href" in attributes:
            assert attributes["href"].partition(":")[0].lower() in render.SCHEMES


def squeezed(text):
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_is_rendered_without_anything_that_acts(text):
    check_harmless(render.rich(text))


@pytest.mark.parametrize("text", [text for text in HOSTILE if text.startswith("<")])
def test_html_of_a_model_is_shown_as_what_it_wrote(text):
    assert squeezed(text) in squeezed(Elements(render.rich(text)).text)


PIECES = [*HOSTILE, *PROSE.splitlines(), "$", "$$", "\\(", "\\)", "\\[", "\\]", "\\begin{align}",
          "\\end{align}", "```", "> ", "- ", "    ", "\n", "\n\n", "|", "&lt;script&gt;", "&#x3c;",
          "[", "](", ")", "<", ">", '"', "'", "javascript:", "on", "=", "\\", "\\frac", "{", "}",
          "\\mathrm", "\\href", "\\color", "^", "_"]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)))
def test_no_text_becomes_anything_that_acts(text):
    check_harmless(render.rich(text))
    check_harmless(render.plain(text))


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), max_size=60))
def test_words_are_not_lost(text):
    shown = squeezed(Elements(render.plain(text)).text)
    assert shown == squeezed(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
    | st.sampled_from(HOSTILE),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(JSON)
def test_data_survives_its_island_and_cannot_leave_it(value):
    text = page.island(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029]|[^\x20-\x7e]", text)
    packed = page.pack(value)
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == value
    assert re.fullmatch(r"[A-Za-z0-9+/=]*", packed)


def test_markdown_code_tables_and_formulas_are_rendered():
    made = render.rich(PROSE)
    for piece in ("<h1>A heading</h1>", "<em>emphasis</em>", "<li>one</li>", "<strong>strong",
                  '<td class="right">1</td>', '<span class="k">def</span>',
                  '<span class="lang">python</span>', "<msup>", "<mfrac>", "<msub>",
                  "It costs $5 and then $6."):  # fmt: skip
        assert piece in made, piece
    assert made.count("<math") == 3
    assert '<math display="block"' in made


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("$x$", 1),
        ("\\(x\\)", 1),
        ("\\[x\\]", 1),
        ("$$\nx + y\n$$", 1),
        ("\\begin{align}\na &= b\\\\\nc &= d\n\\end{align}", 1),
        ("so\n\\[\nx = 1\n\\]\nand $y$", 2),
        ("- an item\n\n  $$x$$\n", 1),
        ("$5 or $6", 0),
        ("US$5 to US$7", 0),
        ("$ x $", 0),
        ("\\$x\\$", 0),
        ("`$x$`", 0),
        ("    $x$", 0),
        ("$$\nnever closed", 0),
        ("\\(never closed", 0),
    ],
)
def test_formulas_are_told_from_prices(text, formulas):
    assert render.rich(text).count("<math") == formulas


def test_signs_of_html_in_a_formula_are_text():
    made = render.rich("$a < b$ and $\\text{<script>}$ and the rest")
    assert "<mo>&lt;</mo>" in made
    assert Elements(made).text.split() == ["a<b", "and", "<script>", "and", "the", "rest"]


def test_a_formula_that_cannot_be_read_is_shown_as_it_is():
    made = render.rich("so \\(\\begin{array}<b>\\)")
    assert '<code class="math">\\begin{array}&lt;b&gt;</code>' in made


@pytest.mark.parametrize(
    "text", [LONG, "[" * 60_000, "$" * 60_000], ids=["prose", "links", "money"]
)
def test_a_megabyte_is_shown_as_it_is(text):
    begun = time.monotonic()
    assert render.rich(text) == f'<pre class="source">{html.escape(text)}</pre>'
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    "piece", ["[", "![", "*a ", "**a _b ", "`", "\\(", "$a", "$$\n", "\\begin{align}\n", "> ",
              "- ", "<a ", "&", "|a", "~~a", "[a](", "[a][", "\\[\n", "{", "$\\frac{$ "],
)  # fmt: skip
@pytest.mark.runs
def test_the_longest_rendered_text_takes_seconds_at_most(piece):
    text = (piece * render.LONGEST)[: render.LONGEST]
    begun = time.monotonic()
    check_harmless(render.rich(text))
    assert time.monotonic() - begun < 20


def whole(made):
    return "".join(page.parts(made))


def block(text, number):
    found = re.search(f'<script type="text/plain" id="item-{number}">([^<]*)</script>', text)
    return json.loads(zlib.decompress(base64.b64decode(found[1])))


def test_the_page_holds_every_text():
    text = whole(contents())
    first = block(text, 0)
    assert first["answers"]["0"][0][1][0]["c"] == "\n\n".join(HOSTILE)
    assert block(text, 1)["answers"]["2"][0][1][0]["c"] == LONG
    third = block(text, 2)
    assert third["answers"]["1"][0][1][0]["r"] == "Let me think about <b>lighthouses</b>."
    assert third["judgments"][0]["c"].startswith("The answer is **clear**.")
    assert third["judgments"][0]["p"].startswith("Rate this answer: ")
    failed = third["verdicts"]["1"][1]
    assert (failed["w"], "v" in failed, "j" in failed) == ("answer_error", False, False)
    match = third["verdicts"]["0"][2]
    assert (match["c"], match["l"], match["v"], match["o"], match["f"]) == (
        "depth",
        "A",
        1.0,
        1,
        True,
    )


def test_the_index_has_values_and_states_of_each_pair():
    index = page.index(contents())
    at = next(
        place
        for place, (item, model) in enumerate(
            zip(index["pairs"]["item"], index["pairs"]["model"], strict=True)
        )
        if (item, model) == (2, 1)
    )
    bits = {name: 1 << place for place, name in enumerate(index["states"])}
    assert index["graders"][0]["values"][at] == [7.0]
    assert index["graders"][1]["values"][at] is None
    assert index["pairs"]["states"][at] == bits["answer truncated"] | bits["answer missing"]
    assert index["graders"][0]["states"][at] == bits["judgment ok"] | bits["judgment answer_error"]


def test_the_page_allows_its_own_script_and_style_and_nothing_else():
    text = whole(contents())
    head = Elements(text)
    (csp,) = [
        attributes["content"]
        for tag, attributes in head.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(part.split(" ", 1) for part in csp.split("; "))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in csp
    assert "http" not in csp
    scripts = [attributes for tag, attributes in head.found if tag == "script"]
    running = [one for one in scripts if "type" not in one]
    assert running == [{}], "one script that runs, in the page itself"
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.S)
    for name, piece in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(piece.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    for tag, attributes in head.found:
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
        assert attributes.get("src") is None
        assert attributes.get("href", "#").startswith(("#", "data:,"))


def test_a_title_is_text():
    text = whole(contents(title="</title><script>x</script>{{texts}}\ud800"))
    assert "</title><script>" not in text.replace("</title>\n", "")
    assert "<script>x" not in text


def test_the_page_of_equal_rows_is_equal():
    assert whole(contents()) == whole(contents())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A workspace of two models."""
    folder = tmp_path_factory.mktemp("made")
    rows = [{"question_id": n, "category": name, "turns": turns} for n, name, turns in QUESTIONS]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with StubServer() as stub:
        usual = ["engine=fake", f"question_path={folder / 'q.jsonl'}", f"workspace={folder / 'w'}",
                 "judge=openai", "judge.model=stub", f"judge.base_url={stub.url}"]  # fmt: skip
        main([*usual, "-m", "model=org/a,org/b"])
    return folder / "w"


@pytest.fixture
def judged(made, stub, tmp_path, capsys):
    shutil.copytree(made, tmp_path / "w")
    return Cli(stub, made.parent / "q.jsonl", "", tmp_path / "w", capsys)


def test_report_html_writes_one_file(judged, tmp_path):
    assert judged.verb("report", "html") == 0
    path = judged.workspace / "report.html"
    assert judged.out.strip() == str(path)
    assert judged.verb("report", "html", f"out={tmp_path / 'own.html'}") == 0
    assert (tmp_path / "own.html").read_bytes() == path.read_bytes()
    assert judged.verb("report", "html", f"out={tmp_path}") == 2
    assert "is a folder" in judged.err


def test_a_run_is_shown_as_the_table_shows_it(judged):
    with Workspace.open(judged.workspace, write=False) as workspace:
        found = collect(workspace, ScoreOptions())
        index = page.index(found)
        first = page.item_texts(found, found.items[0], render.rich)
    assert found.models == ["org/a", "org/b"]
    assert [item.id for item in found.items] == ["1", "3", "2", "4"]
    assert (found.items[0].category, len(found.items[0].turns)) == ("writing", 2)
    by_model = {result["model"]: result for result in judged.summary["results"]}
    (table,) = index["tables"]
    for _, name, cells in table["rows"]:
        means = dict(zip((column[0] for column in table["columns"]), cells, strict=True))
        assert means["average"][0] == by_model[name]["average"]["mean"]
        assert means["second turn"][0] == by_model[name]["second_turn"]["mean"]
        assert means["math"][0] == by_model[name]["categories"]["math"]["mean"]
    answers = {
        (row["model"], row["question_id"], row["turn"]): row for row in judged.rows("answers.jsonl")
    }
    rows = {row["judgment_id"]: row for row in judged.rows("judgments.jsonl")}
    turns = first["answers"]["1"][0][1]
    assert [turn["c"] for turn in turns] == [answers["org/b", 1, at]["content"] for at in (1, 2)]
    texts = {row["text"] for row in rows.values()}
    prompts = {row["user_prompt"] for row in rows.values()}
    assert all(one["c"] in texts and one["p"] in prompts for one in first["judgments"])
    for number, values in enumerate(index["graders"][0]["values"]):
        item, model = (index["pairs"][key][number] for key in ("item", "model"))
        wanted = [
            row["value"]
            for row in rows.values()
            if (str(row["question_id"]), row["model"])
            == (found.items[item].id, found.models[model])
        ]
        assert sorted(values) == sorted(wanted)


def test_both_sides_of_a_match_are_shown(cli):
    cli("-m", "model=a,b", "mode=pairwise-all")
    with Workspace.open(cli.workspace, write=False) as workspace:
        found = collect(workspace, ScoreOptions())
    for item in found.items:
        mine, other = (item.verdicts[at] for at in (0, 1))
        assert [one.opponent for one in mine] == [1] * 4
        assert [one.opponent for one in other] == [0] * 4
        assert [one.first for one in mine] == [not one.first for one in other]
        for one, two in zip(mine, other, strict=True):
            assert one.judgment_id == two.judgment_id
            assert (one.value is None) == (two.value is None)
            assert one.value is None or one.value + two.value == 1


@pytest.mark.runs
def test_the_other_side_of_a_match_has_the_value_from_the_other_end_of_the_scale(cli, monkeypatch):
    cli("-m", "model=a,b", "mode=pairwise-all")
    monkeypatch.setattr(Pairwise, "scale", lambda self, view: (-1.0, 1.0))
    with Workspace.open(cli.workspace, write=False) as workspace:
        found = collect(workspace, ScoreOptions())
    assert (found.graders[0].low, found.graders[0].high) == (-1.0, 1.0)
    for item in found.items:
        for one, two in zip(item.verdicts[0], item.verdicts[1], strict=True):
            assert one.value + two.value == 0


@pytest.mark.runs
def test_comparisons_of_all_by_judges_of_one_label_are_in_the_table_of_their_own_judge(cli):
    cli("-m", "model=a,b", "mode=pairwise-all")
    cli("-m", "model=a,b", "mode=pairwise-all", "judge.temperature=0.5")
    with Workspace.open(cli.workspace, write=False) as workspace:
        found = collect(workspace, ScoreOptions())
    assert len({grader.name for grader in found.graders}) == 2
    assert [table.grader for table in found.tables] == [0, 1]
    for table in found.tables:
        assert sorted((row.name, found.models[row.model]) for row in table.rows) == [
            ("a", "a"), ("b", "b"),
        ]  # fmt: skip
        assert all(row.cells[0].planned == 8 for row in table.rows)


def test_answers_alone_can_be_browsed(cli):
    assert cli("model=a", "judge=none", judge=False) == 0
    assert cli.verb("report", "html") == 0
    with Workspace.open(cli.workspace, write=False) as workspace:
        found = collect(workspace, ScoreOptions())
    assert (found.graders, found.tables, found.models) == ([], [], ["a"])
    assert all(item.answers[0][0] for item in found.items)


def test_failures_are_shown_with_their_reason(cli):
    cli("model=a", "engine.fake_faults={error_on: [2]}")
    with Workspace.open(cli.workspace, write=False) as workspace:
        index = page.index(collect(workspace, ScoreOptions()))
    assert "answer error" in index["states"]
    assert any(name.startswith("judgment answer_") for name in index["states"])


def test_models_of_one_label_have_two_names(cli):
    cli("model=a")
    cli("model=a", "sampling.max_tokens=5")
    with Workspace.open(cli.workspace, write=False) as workspace:
        found = collect(workspace, ScoreOptions())
    assert len(found.models) == 2
    assert len(set(found.models)) == 2
    assert "a (max_tokens=5)" in found.models


def test_imported_files_are_shown(judged, tmp_path):
    judged.verb("export", "fastchat", str(tmp_path / "out"))
    judged.workspace = tmp_path / "imported"
    judged.verb("import", "fastchat", str(tmp_path / "out"))
    with Workspace.open(judged.workspace, write=False) as workspace:
        found = collect(workspace, ScoreOptions())
    assert len(found.items) == 4
    assert all(item.verdicts[0] and item.answers[0][0] for item in found.items)


def test_an_empty_workspace_says_what_to_do(tmp_path, capsys):
    (tmp_path / "w").mkdir()
    assert main(["report", "html", f"workspace={tmp_path / 'w'}"]) == 2
    assert "holds no evaluation" in capsys.readouterr().err


def test_without_the_libraries_it_is_said_how_to_get_them(judged, monkeypatch):
    monkeypatch.setitem(sys.modules, "nh3", None)
    assert judged.verb("report", "html") == 2
    assert "the page needs nh3\n  pip install 'mtbench_ray[html]'" in judged.err
    assert not (judged.workspace / "report.html").exists()


def test_view_opens_the_file(judged, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    assert judged.verb("view") == 0
    assert opened == [(judged.workspace / "report.html").resolve().as_uri()]
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert judged.verb("view") == 0
    assert "no browser here" in judged.err


@pytest.mark.parametrize("word", ["port=x", "port=99999", "extra"])
def test_view_says_what_it_does_not_take(word, judged):
    assert judged.verb("view", word) == 2


def test_the_served_page_is_of_this_machine_alone_and_follows_the_run(judged):
    ready, servers = threading.Event(), []

    def started(server):
        servers.append(server)
        ready.set()

    thread = threading.Thread(
        target=view.serve, args=([str(judged.workspace)], 0, ScoreOptions(), started)
    )
    thread.start()
    try:
        assert ready.wait(20)
        host, port = servers[0].server_address
        assert host == "127.0.0.1"

        def get(path="/", name=f"127.0.0.1:{port}"):
            line = http.client.HTTPConnection(host, port, timeout=20)
            line.request("GET", path, headers={"Host": name})
            answer = line.getresponse()
            return answer.status, answer.read().decode()

        status, before = get()
        assert (status, before.count("item-")) == (200, get()[1].count("item-"))
        assert "org/b" in before
        assert get("/answers.jsonl")[0] == 404
        assert get("/", "evil.example")[0] == 421
        judged("model=org/third")
        assert "org/third" in get("/", f"localhost:{port}")[1]
    finally:
        servers[0].shutdown()
        thread.join(20)
