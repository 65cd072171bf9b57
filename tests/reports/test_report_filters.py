"""``report model= judge= category= benchmark=``: which rows and verdicts a table shows."""

import json

import pytest
from command import Cli
from questions import QUESTIONS
from stub_server import StubServer

from mtbench_ray.cli.main import main


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A workspace: three models, one at two settings and under two judges; a fourth's answers."""
    folder = tmp_path_factory.mktemp("made")
    rows = [{"question_id": n, "category": name, "turns": turns} for n, name, turns in QUESTIONS]
    (folder / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with StubServer() as stub:
        usual = ["engine=fake", f"question_path={folder / 'q.jsonl'}", f"workspace={folder / 'w'}",
                 "judge=openai", "judge.model=stub", f"judge.base_url={stub.url}"]  # fmt: skip
        main([*usual, "-m", "model=org/step_1,org/step_2,other"])
        main([*usual, "model=other", "judge.model=second", "limit=2"])
        main([*usual, "model=other", "sampling.max_tokens=5"])
        main([*usual, "model=bare", "stage=answers"])
    return folder / "w"


@pytest.fixture
def full(made, stub, capsys):
    return Cli(stub, "", "", made, capsys)


def table(cli, *words):
    cli.verb("report", "format=json", *words)
    found = json.loads(cli.out)
    return [result for part in (found, *found["other_modes"]) for result in part["results"]]


def who(results):
    return [(result["model"], result["judge"]) for result in results]


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (["model=org/*"], [("org/step_1", "stub"), ("org/step_2", "stub")]),
        (["model=*step_[13]"], [("org/step_1", "stub")]),
        (["model=org/step_2", "judge=st?b"], [("org/step_2", "stub")]),
        (["judge=second"], [("other", "second")]),
        (["model=bare"], [("bare", None)]),
        (["model=other", "judge=stub"], [("other", "stub"), ("other", "stub")]),
        (["report.model=other", "judge=sec*", "benchmark=mt_*"], [("other", "second")]),
        (["model=", "judge=second"], [("other", "second")]),
    ],
)
def test_rows_are_chosen_by_patterns(words, rows, full):
    assert who(table(full, *words)) == rows


def test_a_row_is_chosen_by_its_settings_and_keeps_them(full):
    (result,) = table(full, "model=other (*max_tokens=5)")
    assert result["settings"]["sampling.max_tokens"] == 5
    (same,) = table(full, "model=other (max_tokens=5)", "category=math")
    assert same["id"] == result["id"]


@pytest.mark.parametrize("typed", ["category=math", "category=MATH", "category=math,math"])
def test_a_category_restricts_what_counts(typed, full):
    (before,) = table(full, "model=org/step_1")
    (after,) = table(full, "model=org/step_1", typed)
    assert list(after["categories"]) == ["math"]
    assert after["categories"]["math"] == before["categories"]["math"]
    assert after["average"]["mean"] == before["categories"]["math"]["mean"]
    assert (after["average"]["scored"], after["average"]["planned"]) == (4, 4)
    assert (after["answers"]["answered"], after["answers"]["planned"]) == (4, 4)
    assert after["id"] == before["id"]
    (both,) = table(full, "model=org/step_1", "category=math,writing")
    assert both == before


def test_a_row_without_the_category_is_not_shown(cli):
    cli("model=a", "categories=[math]")
    cli("model=b")
    assert who(table(cli, "category=writing")) == [("b", "stub")]
    assert who(table(cli, "category=math")) == [("a", "stub"), ("b", "stub")]


@pytest.mark.parametrize("format", ["table", "markdown"])
def test_tables_are_filtered_too(format, full):
    assert full.verb("report", f"format={format}", "model=org/*", "category=math") == 0
    assert "4/4" in full.out
    assert "writing" not in full.out
    assert "other" not in full.out
    assert "bare" not in full.out
    full.verb("report", f"format={format}", "model=org/*", "judge=stub")
    assert full.out.count("8/8") == 2


def test_coverage_is_of_the_category(cli):
    cli("model=org/m", "engine.fake_faults={error_on: [2]}")
    cli.verb("report", "category=writing")
    assert "4/4" in cli.out
    assert cli.verb("report", "category=writing") == 0, "all of what is asked for is there"
    assert cli.verb("report", "category=math") == 3
    assert "2/4" in cli.out


def test_matches_are_chosen_by_model_and_category(cli):
    cli("-m", "model=a,b,c", "mode=pairwise-all")
    (one,) = table(cli, "model=b")
    everything = {result["model"]: result for result in table(cli)}
    assert one == everything["b"]
    (math,) = table(cli, "model=b", "category=math")
    assert (math["n"], math["planned"], one["n"]) == (8, 8, 16)


def test_imported_scores_are_filtered(cli, tmp_path):
    cli("-m", "model=org/a,org/b")
    cli.verb("export", "fastchat", str(tmp_path / "out"))
    cli.workspace = tmp_path / "imported"
    cli.verb("import", "fastchat", str(tmp_path / "out"))
    (result,) = table(cli, "model=org/a", "category=math")
    assert (list(result["categories"]), result["average"]["planned"]) == (["math"], 4)
    assert result["answers"]["planned"] == 4


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("model=zzz*", "no model here matches zzz*\n  there are: org/step_1, org/step_2, other ("),
        ("judge=gpt*", "no judge here matches gpt*\n  there are: stub"),
        ("benchmark=arena", "no benchmark here matches arena\n  there are: mt_bench"),
        ("category=maths", "no category here is called maths\n  there are: "),
        ("category=math,poetry", "no category here is called poetry"),
    ],
)
def test_a_filter_that_fits_nothing_names_what_is_there(word, said, full):
    assert full.verb("report", word) == 2
    assert said in full.err


def test_filters_that_fit_nothing_together_are_told(full):
    assert full.verb("report", "model=org/*", "judge=second") == 2
    assert "no row of the table fits model=org/* judge=second together" in full.err


def test_filters_are_of_all_reports(full):
    assert full.verb("report", "compare", "org/step_1", "org/step_2", "judge=second") == 2
    assert full.verb("report", "compare", "org/*", "judge=stub", "category=ma*", "format=json") == 0
    (found,) = json.loads(full.out)
    assert list(found["categories"]) == ["math"]
    assert full.verb("report", "curve", "category=math", "by=all", f"out={full.workspace}/c") == 0
    lines = (full.workspace / "c" / "curve.csv").read_text().splitlines()
    assert [line.split(",")[4] for line in lines[1:]] == ["all", "all"]
    assert full.verb("report", "curve", "model=other") == 2


@pytest.mark.parametrize(
    ("typed", "right"), [("modell=a", "model"), ("judges=a", "judge"), ("categories=a", "category"),
                         ("benchmarks=a", "benchmark")]
)  # fmt: skip
def test_a_filter_typed_wrongly_is_answered_with_the_right_one(typed, right, cli):
    assert cli.verb("report", typed) == 2
    assert f"did you mean {right}=?" in cli.err


@pytest.mark.runs
def test_a_category_with_a_comma_stands_in_quotes(cli, tmp_path):
    rows = [{"question_id": n, "category": name, "turns": ["Why?"]}
            for n, name in enumerate(("law, public", "law", "art"))]  # fmt: skip
    path = tmp_path / "commas.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli("model=a", f"question_path={path}", "reference_path=null") == 0, cli.err
    (found,) = table(cli, 'category="law, public",art')
    assert list(found["categories"]) == ["law, public", "art"]
    (found,) = table(cli, "category=law")
    assert list(found["categories"]) == ["law"]
    assert cli.verb("report", "category=sea") == 2
    assert 'there are: "law, public", law, art' in cli.err
