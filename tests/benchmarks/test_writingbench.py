"""WritingBench on small tasks and a judge prompt of our own, and on oracles where they are."""

import json
from dataclasses import replace

import pytest
from own_files import Line, Saying, with_own_files
from paths import SHARED
from stub_server import StubServer

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.benchmarks.writing_criteria import CRITERION, REQUIREMENTS, SCORE
from mtbench_ray.benchmarks.writingbench import LEVELS
from mtbench_ray.config import JudgeConfig, ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import EvaluationView, Reply, ScoreOptions
from mtbench_ray.schema import AnswerSet, Evaluation, Judgment, Message, Outcome, Turn, Unit
from mtbench_ray.system.assets import cache_dir
from mtbench_ray.system.python_constants import constant

ORACLE = SHARED / "benchmarks" / "writingbench"


def criterion(name):
    return {"name": name, "criteria_description": f"Is it {name}?"} | {
        level: f"{level} of {name}" for level in LEVELS
    }


TASKS = [
    {"index": 1, "domain1": "Education", "domain2": "Letter", "lang": "en",
     "query": "Write to my {teacher}.", "checklist": [criterion("polite"), criterion("short")]},
    {"index": 2, "domain1": "Politics & Law", "domain2": "Contract", "lang": "zh",
     "query": "Draw up a contract.", "checklist": [criterion("exact"), criterion("long")]},
]  # fmt: skip
SUBSETS = {
    "style": [{"index": 1, "query": TASKS[0]["query"], "checklist": [criterion("polite")]}],
    "length": [
        {"index": 1, "query": TASKS[0]["query"], "checklist": [criterion("short")]},
        {"index": 2, "query": TASKS[1]["query"], "checklist": [criterion("long")]},
    ],
    "format": [{"index": 2, "query": "another query", "checklist": [criterion("exact")]}],
}
PROMPTS = '''
evaluate_system = """
Be a critic.
""".strip()
evaluate_prompt = """
By this: {criteria}
Of this: {query}
Judge this: {response}
As this: {{"score": n, "reason": "why"}}
""".strip()
'''


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


FURTHER = {"prompts": PROMPTS} | {name: lines(rows) for name, rows in SUBSETS.items()}


def judge(prompt):
    """As many points as the answer has letters, and one more for the criterion 'polite'."""
    answer = prompt.rpartition("Judge this: ")[2].partition("\n")[0]
    points = min(len(answer), 9) + ("'name': 'polite'" in prompt)
    return json.dumps({"score": points, "reason": f"It has {{{len(answer)}}} letters."})


@pytest.fixture
def own(tmp_path, monkeypatch):
    files = {"questions": lines(TASKS)} | FURTHER
    return with_own_files(monkeypatch, tmp_path, "writingbench", files)


@pytest.fixture
def line(own, tmp_path, capsys):
    with Saying(judge) as stub:
        yield Line(stub, "writingbench", tmp_path / "work", capsys)


def found(rows=TASKS, further=FURTHER):
    benchmark = get_benchmark("writingbench")
    read = benchmark.read(lines(rows), None, {"questions": "q.jsonl"})
    return benchmark.complete(read, further)


def view(data, protocol="default", answer="Dear you."):
    (grader,) = get_benchmark("writingbench").graders
    units = tuple(Unit(one.question_id, 0, f"a{one.question_id}") for one in data.questions)
    turns = {
        (unit.answer_id, 1): Turn(unit.answer_id, 1, "writingbench", unit.question_id, "m", 0,
                                  answer, "ok")
        for unit in units
    }  # fmt: skip
    evaluation = Evaluation(AnswerSet("m", "{}", units), "j", "{}", "criteria", "d",
                            benchmark="writingbench", protocol=protocol)  # fmt: skip
    questions = {one.question_id: one for one in data.questions}
    return EvaluationView(evaluation, grader, questions, turns, JudgeConfig(), kept=data.kept)


def figures(seen, points):
    """Scores; ``points`` by question and place, None is a verdict that could not be read."""
    outcomes = []
    for slot in seen.grader.wanted(seen):
        value = points[slot.question_id][int(slot.criterion.split()[0])]
        row = Judgment("", "", "criteria", "writingbench", slot.question_id, "", 1, "m", "j", "",
                       "ok" if value else "unparsed", value=value)  # fmt: skip
        outcomes.append(Outcome(slot, row, "" if value else "bad_json"))
    scores = seen.grader.reduce([seen], outcomes, ScoreOptions(resamples=0))
    return {(one.metric, one.dimension, one.name): one for one in scores}


def test_a_task_knows_its_requirements_and_the_criteria_about_them():
    one, two = found().questions
    assert one.tags == ("domain2:Letter", "lang:en", "requirement:style", "requirement:length")
    assert two.tags == ("domain2:Contract", "lang:zh", "requirement:length"), "another query's"
    seen = view(found())
    assert [slot.criterion for slot in seen.grader.wanted(seen)] == [
        "0 style", "1 length", "0", "1 length",
    ]  # fmt: skip
    benchmark = get_benchmark("writingbench")
    assert (benchmark.temperature(one), benchmark.max_tokens(ModelConfig())) == (0.7, 16000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"index": None}, "index must be"),
        ({"query": " "}, "query must be"),
        ({"domain1": None}, "domain1 must be"),
        ({"checklist": []}, "checklist must be"),
        ({"checklist": [{"name": "x"}]}, "a criterion has texts"),
        ({"checklist": [criterion("x") | {"1-2": 3}]}, "a criterion has texts"),
        ({"checklist": [criterion("x"), criterion("x")]}, "two criteria have one name"),
    ],
)
def test_a_row_that_is_no_task_is_named_with_its_line(change, said):
    with pytest.raises(UserError, match=f"q.jsonl line 1: .*{said}"):
        found([TASKS[0] | change])


def test_the_judge_is_shown_the_criterion_as_python_writes_it():
    seen = view(found())
    request = seen.grader.grade(seen.grader.wanted(seen)[0], seen)
    system, user = request.messages
    assert system == Message("system", "Be a critic.")
    assert user.content == (
        f"By this: {criterion('polite')}\nOf this: Write to my {{teacher}}.\n"
        'Judge this: Dear you.\nAs this: {"score": n, "reason": "why"}'
    )
    assert (request.want, request.params) == ("json", "{}")


def test_the_official_judge_has_its_own_sampling_and_sees_no_thinking():
    seen = view(found(), "official", "<think>Hm.</think>\n\nDear you.")
    request = seen.grader.grade(seen.grader.wanted(seen)[0], seen)
    assert "Judge this: Dear you.\n" in request.messages[1].content
    assert json.loads(request.params) == {"temperature": 1.0, "top_p": 0.95, "max_tokens": 2048}


@pytest.mark.parametrize(
    ("text", "default", "official"),
    [
        ('{"score": 7, "reason": "x"}', 7.0, 7.0),
        ('```json\n{"score": 7, "reason": "x"}\n```', 7.0, 7.0),
        ('json|{"score": 10, "reason": "x"}', 10.0, 10.0),
        ('{"score": 7}', 7.0, "no_reason"),
        ('I say {"score": 7, "reason": "x"}', 7.0, "bad_json"),
        ('{"score": 7.5, "reason": "x"}', "wrong_type", "out_of_range"),
        ('{"score": "7", "reason": "x"}', "wrong_type", "wrong_type"),
        ('{"score": 0, "reason": "x"}', "out_of_range", "out_of_range"),
        ('{"score": 11, "reason": "x"}', "out_of_range", "out_of_range"),
        ("{'score': 7, 'reason': 'x'}", "bad_json", "bad_json"),
        ("7", "no_json", "bad_json"),
        ("", "empty", "empty"),
    ],
)
def test_a_score_is_a_whole_number_in_json(text, default, official):
    for protocol, wanted in (("default", default), ("official", official)):
        seen = view(found(), protocol)
        request = seen.grader.grade(seen.grader.wanted(seen)[0], seen)
        reading = seen.grader.read(request, seen, Reply(text, "stop"))
        assert (reading.reason or reading.value) == wanted


@pytest.mark.parametrize("protocol", ["default", "official"])
def test_a_reply_is_never_run(protocol, tmp_path):
    mark = tmp_path / "was_run"
    seen = view(found(), protocol)
    request = seen.grader.grade(seen.grader.wanted(seen)[0], seen)
    text = f"{{'score': len(open({str(mark)!r}, 'w').name) and 7, 'reason': 'x'}}"
    assert seen.grader.read(request, seen, Reply(text, "stop")).value is None
    assert not mark.exists()


def test_answers_domains_requirements_and_named_criteria_have_their_means():
    scores = figures(view(found()), {1: [8.0, 5.0], 2: [6.0, 2.0]})
    assert scores[SCORE, "all", ""].mean == 5.25
    assert scores[SCORE, "category", "Education"].mean == 6.5
    assert scores[SCORE, "lang", "zh"].mean == 4.0
    assert scores[SCORE, "requirement", "style"].mean == 6.5
    assert scores[SCORE, "requirement", "length"].mean == 5.25
    assert scores[CRITERION, "requirement", "style"].mean == 8.0
    assert scores[CRITERION, "requirement", "length"].mean == 3.5
    assert (SCORE, "requirement", "format") not in scores


def test_an_answer_without_all_of_its_verdicts_has_no_score():
    scores = figures(view(found()), {1: [8.0, None], 2: [6.0, 2.0]})
    total = scores[SCORE, "all", ""]
    assert (total.mean, total.planned, total.scored) == (4.0, 2, 1)
    assert total.failed == '{"bad_json": 1}'
    assert scores[CRITERION, "requirement", "style"].mean == 8.0


@pytest.mark.parametrize(
    ("model", "table"),
    [
        ("claude-3-7-sonnet-20250219", "April 2025"),
        ("anthropic/claude-3.7-sonnet", "April 2025"),
        ("claude-sonnet-4-20250514", "September 2025"),
        ("anthropic/claude-sonnet-4", "September 2025"),
        ("claude-sonnet-4-5-20250929", "November 2025"),
        ("anthropic/claude-sonnet-4.5", "November 2025"),
        ("AQuarterMile/WritingBench-Critic-Model-Qwen-7B", "its own 7B critic"),
        ("gpt-4.1", ""),
        ("claude-opus-4", ""),
    ],
)
def test_each_judge_has_a_table_of_its_own_or_none(model, table):
    (grader,) = get_benchmark("writingbench").graders
    settings = JudgeConfig(model=model)
    said = grader.remarks(replace(view(found()), judge=settings), [])
    if table:
        assert table in said[0]
        assert grader.judge_warnings(settings) == []
    else:
        assert "has no published table" in said[0]
        assert grader.judge_warnings(settings) == said


def imported(line, tmp_path, model, answers):
    path = tmp_path / f"{model}.jsonl"
    rows = [{"question_id": key, "response": text} for key, text in answers.items()]
    path.write_text(lines(rows))
    code = line.verb("import", "answers", str(path), f"model={model}", "benchmark=writingbench")
    assert code == 0, line.err


def test_a_run_scores_resumes_and_every_report_shows_it(line, tmp_path):
    imported(line, tmp_path, "mine", {1: "abcd", 2: "abcdef"})
    imported(line, tmp_path, "long", {1: "abcdefgh", 2: "abcdef"})
    assert line("-m", "model=mine,long", "stage=judge") == 0, line.err
    assert line.calls == 4 + 2
    by_model = {one["model"]: one for one in line.summary["results"]}
    mine = by_model["mine"]
    assert mine["score"]["mean"] == pytest.approx((4.5 + 6) / 2)
    assert mine["domains"]["Education"]["mean"] == 4.5
    assert mine["requirements"]["length"]["mean"] == pytest.approx((4.5 + 6) / 2)
    assert mine["requirement_criteria"]["style"]["mean"] == 5.0
    assert by_model["long"]["score"]["mean"] == pytest.approx((8.5 + 6) / 2)
    assert line.summary["complete"]
    assert "has no published table" in line.out + line.err
    assert "other than WritingBench ae2d517" in line.out
    assert line("-m", "model=mine,long", "stage=judge") == 0
    assert line.calls == 0
    assert line.verb("report", "compare", "long", "mine", "format=json") == 0, line.err
    assert json.loads(line.out)[0]["all"]["mean"] == pytest.approx(2.0)
    assert line.verb("report", "by=category") == 0, line.err
    assert line.verb("report", "html") == 0, line.err
    assert set(line.criteria()["1"]) == {"polite", "short"}
    assert line.verb("export", "models", str(tmp_path / "out")) == 0, line.err


def test_the_plan_has_a_call_for_each_criterion(line):
    assert line.plan("model=org/m") == 0, line.err
    assert "0/4" in line.out
    assert "has no published table" in line.out + line.err
    assert line.stub.stats()["calls"] == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"score": 12, "reason": "x"}', "out_of_range"),
        ('{"score": 7, "reason": "a "good" one"}', "bad_json"),
        ('<think>{"score": 7, "reason": "x"}</think>Fine.', "no_json"),
        ('{"score": 7} or {"score": 8}', "two_verdicts"),
    ],
)
def test_a_bad_reply_is_asked_again_and_then_has_a_reason(own, tmp_path, capsys, text, reason):
    with StubServer(text=text) as stub:
        line = Line(stub, "writingbench", tmp_path / "work", capsys)
        assert line("model=org/m", "limit=1", "judge.max_retries=0") == 3, line.err
    (result,) = line.summary["results"]
    assert (result["score"]["mean"], result["score"]["failed"]) == (None, {reason: 1})
    rows = line.rows("judgments.jsonl")
    assert {(row["value"], row["attempts"]) for row in rows} == {(None, 3)}


def oracle(name):
    path = ORACLE / name
    if not path.exists():
        pytest.skip(f"no oracle {path}")
    return json.loads(path.read_text())


def test_the_figures_of_the_official_script_come_out():
    points = oracle("synthetic_scores.json")["scores"]
    wanted = oracle("expected_from_official_script.json")
    rows, subsets = [], {name: [] for name in REQUIREMENTS}
    for one in oracle("index_domains_requirements.json"):
        index = one["index"]
        checklist = [criterion(f"c{place}") for place in range(5)]
        rows.append({key: one[key] for key in ("index", "domain1", "domain2", "lang")}
                    | {"query": f"q{index}", "checklist": checklist})  # fmt: skip
        for name in one["requirement"]:
            named = [checklist[place] for place in one["requirement_criteria"][name]]
            subsets[name].append({"index": index, "query": f"q{index}", "checklist": named})
    further = {"prompts": PROMPTS} | {name: lines(some) for name, some in subsets.items()}
    seen = view(found(rows, further))
    scores = figures(seen, {int(key): list(map(float, some)) for key, some in points.items()})
    assert scores[SCORE, "all", ""].scored == wanted["n"] == 1000
    assert scores[SCORE, "all", ""].mean == pytest.approx(wanted["overall_avg"], abs=1e-12)
    places = {
        "domain1": (SCORE, "category"),
        "domain2": (SCORE, "domain2"),
        "requirement_R": (SCORE, "requirement"),
        "requirement_C": (CRITERION, "requirement"),
    }
    checked = 0
    for part, place in places.items():
        for name, mean in wanted[part].items():
            assert scores[*place, name].mean == pytest.approx(mean, abs=1e-12), (part, name)
            checked += 1
    assert checked == 6 + 100 + 3 + 3


def test_the_official_prompts_are_those_of_the_official_program():
    """Filled by ``str.format``, as there."""
    benchmark = get_benchmark("writingbench")
    folder = cache_dir() / "writingbench"
    paths = {part: folder / one.name for part, one in benchmark.files.items()}
    if not all(path.exists() for path in paths.values()):
        pytest.skip("the official files are not in the cache")
    texts = {part: path.read_text() for part, path in paths.items()}
    data = benchmark.complete(benchmark.read(texts["questions"], None, {}), texts)
    seen = view(data)
    slots = seen.grader.wanted(seen)
    assert (len(data.questions), len(slots)) == (benchmark.size, benchmark.calls)
    counts = [sum(f"requirement:{one}" in q.tags for q in data.questions) for one in REQUIREMENTS]
    assert counts == [442, 498, 222]
    rows = {row["index"]: row for row in map(json.loads, texts["questions"].splitlines())}
    template = constant(texts["prompts"].encode(), "evaluate_prompt")
    for slot in slots[::97]:
        row = rows[slot.question_id]
        shown = row["checklist"][int(slot.criterion.split()[0])]
        filled = template.format(criteria=shown, query=row["query"], response="Dear you.")
        user = seen.grader.grade(slot, seen).messages[1].content
        assert user == filled
