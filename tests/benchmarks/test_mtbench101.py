"""MT-Bench-101 on small dialogues and judge prompts of our own, and on oracles where they are."""

import csv
import hashlib
import json
from dataclasses import replace

import pytest
from own_files import Line, with_own_files
from paths import SHARED
from stub_server import StubServer

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.benchmarks.mtbench101 import AVERAGE, DIALOGUE, NEEDS_REFERENCE, TASKS
from mtbench_ray.config import JudgeConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import EvaluationView, Reply, ScoreOptions
from mtbench_ray.schema import AnswerSet, Evaluation, Judgment, Message, Outcome, Turn, Unit
from mtbench_ray.system.assets import cache_dir

ORACLE = SHARED / "benchmarks" / "mt_bench_101"

DIALOGUES = [
    {"task": "GR", "id": 1, "history": [
        {"user": "Is a bee an insect?", "bot": "It is."},
        {"user": "And a spider?", "bot": "No, it has eight legs."},
    ]},
    {"task": "CM", "id": 2, "history": [
        {"user": "My cat is called Ink.", "bot": "A good name."},
        {"user": "What is it called?", "bot": "Ink."},
        {"user": "And what animal is it?", "bot": "A cat."},
    ]},
    {"task": "GR", "id": 3, "history": [{"user": "Is rain wet?", "bot": "Yes."}]},
]  # fmt: skip

PROMPTS = f"""
judge = "Judge. "
score_format = " End with 'Mark: [[n]]', as in 'Mark: [[6]]'."
{chr(10).join(f'eval_{task} = "About {task}."' for task in TASKS)}


def eval_prompt_construct(task, ref_answer, history):
    if task in need_ref_tasks:
        prompt_template = "<{{history}}|{{prediction}}> known: {{ref_answer}}".format(
            history=history, prediction="{{prediction}}", ref_answer=ref_answer)
    else:
        prompt_template = "<{{history}}|{{prediction}}>".format(
            history=history, prediction="{{prediction}}")
    return prompt_template
"""


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def own(tmp_path, monkeypatch):
    files = {"questions": lines(DIALOGUES), "prompts": PROMPTS}
    return with_own_files(monkeypatch, tmp_path, "mt_bench_101", files)


@pytest.fixture
def line(own, stub, tmp_path, capsys):
    stub.script.worth = True
    return Line(stub, "mt_bench_101", tmp_path / "work", capsys)


def read(rows):
    return get_benchmark("mt_bench_101").read(lines(rows), None, {"questions": "q.jsonl"})


def view(found, protocol="default", answer="It is so."):
    """Every question answered by one model."""
    units = tuple(Unit(one.question_id, 0, f"a{one.question_id}") for one in found.questions)
    turns = {
        (unit.answer_id, 1): Turn(unit.answer_id, 1, "mt_bench_101", unit.question_id, "m", 0,
                                  answer, "ok")
        for unit in units
    }  # fmt: skip
    evaluation = Evaluation(AnswerSet("m", "{}", units), "j", "{}", "single", "d",
                            benchmark="mt_bench_101", protocol=protocol)  # fmt: skip
    questions = {one.question_id: one for one in found.questions}
    (grader,) = get_benchmark("mt_bench_101").graders
    return EvaluationView(evaluation, grader, questions, turns, JudgeConfig(), kept=found.kept)


def whole(rows=DIALOGUES):
    return get_benchmark("mt_bench_101").complete(read(rows), {"prompts": PROMPTS})


def judged(seen, ratings):
    """Outcomes with these ratings by question id; None is one that could not be read."""
    found = []
    for slot in seen.grader.wanted(seen):
        value = ratings[slot.question_id]
        request = seen.grader.grade(slot, seen)
        row = Judgment(request.judgment_id, "", "single", "mt_bench_101", slot.question_id, "", 1,
                       "m", "j", "", "ok" if value else "unparsed", value=value)  # fmt: skip
        found.append(Outcome(slot, row, "" if value else "no_rating"))
    return found


def figures(seen, ratings):
    scores = seen.grader.reduce([seen], judged(seen, ratings), ScoreOptions(resamples=0))
    return {(one.metric, one.name): one for one in scores}


def test_each_judged_turn_is_a_question_after_the_answers_of_the_data():
    found = read(DIALOGUES).questions
    assert [one.question_id for one in found] == ["1-1", "1-2", "2-2", "2-3", "3-1"]
    assert [one.group for one in found] == ["1", "1", "2", "2", "3"]
    assert {one.category for one in found} == {"GR", "CM"}
    last = found[3]
    assert last.turns == ("And what animal is it?",)
    assert last.context == (
        Message("user", "My cat is called Ink."),
        Message("assistant", "A good name."),
        Message("user", "What is it called?"),
        Message("assistant", "Ink."),
    )
    assert [one.references for one in found] == [
        ("It is.",), ("No, it has eight legs.",), (), (), ("Yes.",),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"task": "XX", "id": 1, "history": DIALOGUES[0]["history"]}, "task 'XX' is none"),
        ({"task": "GR", "history": DIALOGUES[0]["history"]}, "id must be"),
        ({"task": "GR", "id": True, "history": DIALOGUES[0]["history"]}, "id must be"),
        ({"task": "GR", "id": 1, "history": []}, "history must be"),
        ({"task": "GR", "id": 1, "history": [{"user": "x"}]}, "turn 1 needs"),
        ({"task": "CM", "id": 1, "history": [{"user": "x", "bot": "y"}]}, "the first turn is not"),
    ],
)
def test_a_row_that_is_no_dialogue_is_named_with_its_line(row, said):
    with pytest.raises(UserError, match=f"q.jsonl line 1: .*{said}"):
        read([row])


def test_a_dialogue_that_comes_twice_and_references_are_mistakes():
    with pytest.raises(UserError, match="line 2: question 1-1 comes twice"):
        read([DIALOGUES[0], DIALOGUES[0]])
    with pytest.raises(UserError, match="has no reference file"):
        get_benchmark("mt_bench_101").read(lines(DIALOGUES), "{}", {})


def test_the_judge_sees_the_dialogue_the_criteria_of_the_task_and_a_reference_where_it_has_one():
    seen = view(whole())
    requests = {
        slot.question_id: seen.grader.grade(slot, seen) for slot in seen.grader.wanted(seen)
    }
    system, user = requests["2-3"].messages
    assert system.content == "Judge. About CM. End with 'Mark: [[n]]', as in 'Mark: [[6]]'."
    assert user.content == (
        "<\n\n Human: My cat is called Ink.\n\nAssistant: A good name."
        "\n\n Human: What is it called?\n\nAssistant: Ink."
        "\n\n Human: And what animal is it?\n\nAssistant: |It is so.>"
    )
    assert requests["1-2"].messages[1].content.endswith("known: No, it has eight legs.")
    assert len({one.judgment_id for one in requests.values()}) == 5


def test_the_official_judge_sees_a_list_of_messages_in_place_of_the_reference():
    requests = {}
    for protocol in ("default", "official"):
        seen = view(whole(), protocol)
        requests[protocol] = [seen.grader.grade(slot, seen) for slot in seen.grader.wanted(seen)]
    for one, two in zip(requests["default"], requests["official"], strict=True):
        assert (one.messages == two.messages) == (one.category not in NEEDS_REFERENCE)
        assert one.judgment_id != two.judgment_id, "its reply is read otherwise"
    (_, user) = requests["official"][1].messages
    said = [{"role": "user", "content": "Is a bee an insect?"},
            {"role": "assistant", "content": "It is."},
            {"role": "user", "content": "And a spider?"},
            {"role": "assistant", "content": "No, it has eight legs."}]  # fmt: skip
    assert user.content.endswith(f"known: {said}")


@pytest.mark.parametrize(
    ("text", "default", "official"),
    [
        ("Good. Mark: [[7]]", 7.0, 7.0),
        ("Better than the [5] before. Rating: [[7]]", 7.0, 5.0),
        ("Rating: [[11]]", "out_of_range", 11.0),
        ("<think>Rating: [[3]]</think>Rating: [[8]]", 8.0, 3.0),
        ("As in 'Mark: [[6]]'", "no_rating", 6.0),
        ("Seven", "no_rating", "no_rating"),
        ("", "empty", "no_rating"),
    ],
)
def test_a_rating_is_read_where_it_is_stated_or_officially_at_the_first_bracket(
    text, default, official
):
    for protocol, wanted in (("default", default), ("official", official)):
        seen = view(whole(), protocol)
        request = seen.grader.grade(seen.grader.wanted(seen)[0], seen)
        found = seen.grader.read(request, seen, Reply(text, "stop"))
        assert (found.reason or found.value) == wanted
        assert (found.value is None) == bool(found.reason)


def test_a_dialogue_has_the_rating_of_its_worst_turn_and_the_average_is_over_tasks():
    seen = view(whole())
    ratings = {"1-1": 9.0, "1-2": 4.0, "2-2": 8.0, "2-3": 7.0, "3-1": 10.0}
    found = figures(seen, ratings)
    assert found[DIALOGUE, "GR"].mean == 7.0
    assert found[DIALOGUE, "CM"].mean == 7.0
    ratings["2-3"] = 1.0
    found = figures(seen, ratings)
    assert found[DIALOGUE, ""].mean == 5.0
    assert (found[AVERAGE, ""].mean, found[AVERAGE, ""].planned) == (4.0, 3)
    assert found[AVERAGE, ""].method.startswith("none: a part has 1 question")
    assert seen.grader.remarks(seen, list(found.values())) == [
        "average: of 2 of the 13 tasks (CM, GR)"
    ]


def test_a_dialogue_that_lacks_a_turn_has_no_score_and_officially_that_of_the_others():
    ratings = {"1-1": 9.0, "1-2": None, "2-2": 8.0, "2-3": 7.0, "3-1": 10.0}
    found = figures(view(whole()), ratings)
    total = found[DIALOGUE, ""]
    assert (total.planned, total.scored, total.failed) == (3, 2, '{"no_rating": 1}')
    assert found[AVERAGE, ""].mean == (10.0 + 7.0) / 2
    found = figures(view(whole(), "official"), ratings)
    assert (found[DIALOGUE, ""].scored, found[AVERAGE, ""].mean) == (3, (9.5 + 7.0) / 2)


def test_a_task_of_which_nothing_is_scored_leaves_no_average():
    ratings = {"1-1": 9.0, "1-2": 9.0, "2-2": None, "2-3": 7.0, "3-1": 10.0}
    average = figures(view(whole()), ratings)[AVERAGE, ""]
    assert (average.mean, average.method) == (None, "none: nothing of CM")


def answers(tmp_path, marks):
    path = tmp_path / "answers.jsonl"
    path.write_text(
        lines({"question_id": name, "response": f"This is worth {mark}."}
              for name, mark in marks.items())
    )  # fmt: skip
    return path


MARKS = {"1-1": 9, "1-2": 4, "2-2": 8, "2-3": 7, "3-1": 10}


def test_a_run_scores_dialogues_resumes_and_is_reported(line, tmp_path):
    for model, marks in (("mine", MARKS), ("other", MARKS | {"1-2": 6})):
        assert line.verb("import", "answers", str(answers(tmp_path, marks)), f"model={model}",
                         "benchmark=mt_bench_101") == 0, line.err  # fmt: skip
    assert line("-m", "model=mine,other", "stage=judge") == 0, line.err
    assert line.calls == 5 + 1, "equal answers to a question are judged once"
    best, result = line.summary["results"][::-1] if (
        line.summary["results"][0]["model"] == "mine"
    ) else line.summary["results"]  # fmt: skip
    assert (result["average"]["mean"], result["dialogues"]["mean"]) == (7.0, 7.0)
    assert (result["average"]["planned"], result["average"]["scored"]) == (3, 3)
    assert {name: one["mean"] for name, one in result["tasks"].items()} == {"CM": 7.0, "GR": 7.0}
    assert best["average"]["mean"] == 7.5
    assert line.summary["complete"]
    assert "protocol: default; other than OpenCompass 0.5.4" in line.out
    assert "average: of 2 of the 13 tasks (CM, GR)" in line.out
    assert line("-m", "model=mine,other", "stage=judge") == 0
    assert line.calls == 0
    assert line.verb("report", "compare", "mine", "other", "format=json") == 0, line.err
    (compared,) = json.loads(line.out)
    assert compared["metric"] == "dialogues"
    assert compared["all"]["mean"] == pytest.approx(-2 / 3)
    assert line.verb("report", "by=category") == 0, line.err
    assert line.verb("report", "html") == 0, line.err
    assert line.verb("report", "curve", "format=csv") in (0, 2)


def test_an_answer_to_a_prompt_that_several_turns_have_must_name_its_turn(own, line, tmp_path):
    path = tmp_path / "same.jsonl"
    path.write_text(lines([DIALOGUES[0], DIALOGUES[0] | {"id": 9}]))
    given = tmp_path / "answers.jsonl"
    row = {"prompt": "And a spider?", "response": "No."}
    given.write_text(lines([row]))
    command = ("import", "answers", str(given), "model=mine", "benchmark=mt_bench_101")
    assert line.verb(*command, f"question_path={path}") == 2
    assert "prompt is of 2 questions of the benchmark" in line.err
    given.write_text(lines([row | {"question_id": "9-2"}]))
    assert line.verb(*command, f"question_path={path}") == 0, line.err


def test_official_is_another_row_and_says_so(line, tmp_path):
    path = answers(tmp_path, MARKS)
    assert line.verb("import", "answers", str(path), "model=mine", "benchmark=mt_bench_101") == 0
    assert line("model=mine", "stage=judge") == 0, line.err
    assert line("model=mine", "stage=judge", "protocol=official") == 0, line.err
    assert line.calls == 5
    assert sorted(one["protocol"] for one in line.summary["results"]) == ["default", "official"]
    assert "protocol: official, as OpenCompass 0.5.4" in line.out


def test_a_limit_counts_dialogues_and_takes_none_apart(line):
    assert line("model=org/m", "limit=1", "stage=answers") == 0, line.err
    assert {row["question_id"] for row in line.rows("answers.jsonl")} == {"1-1", "1-2"}
    assert line.plan("model=org/m", "limit=2") == 0
    assert "0/4" in line.out


@pytest.mark.parametrize(
    ("script", "reason", "calls"),
    [
        ({"text": "I would rather not say."}, "no_rating", 6),
        ({"text": "Rating: [[12]]"}, "out_of_range", 6),
        ({"text": "<think>Rating: [[2]]</think>Fine."}, "no_rating", 6),
        ({"always": "cut"}, "truncated", 2),
    ],
)
def test_a_reply_without_a_rating_is_asked_again_and_then_has_a_reason(
    own, tmp_path, capsys, script, reason, calls
):
    with StubServer(**script) as stub:
        line = Line(stub, "mt_bench_101", tmp_path / "work", capsys)
        settings = ("judge.max_retries=0", "judge.max_tokens_retry=0")
        assert line("model=org/m", "limit=1", "categories=[CM]", *settings) == 3, line.err
    (result,) = line.summary["results"]
    assert result["average"]["mean"] is None
    assert result["dialogues"]["failed"] == {reason: 1}
    assert {row["value"] for row in line.rows("judgments.jsonl")} == {None}
    assert line.calls == calls


def oracle(name):
    path = ORACLE / name
    if not path.exists():
        pytest.skip(f"no oracle {path}")
    return path.read_text()


def test_the_averages_of_opencompass_come_out():
    data = json.loads(oracle("synthetic_min_mean.json"))
    rows = [
        {"task": row["task"], "id": row["id"], "history": [
            {"user": "x", "bot": "y"} for _ in range(max(map(int, row["scores"])))
        ]}
        for row in data["rows"]
    ]  # fmt: skip
    seen = view(whole(rows))
    ratings = {
        f"{row['id']}-{turn}": float(score)
        for row in data["rows"]
        for turn, score in row["scores"].items()
    }
    assert len(ratings) == len(seen.questions) == 3615
    found = figures(seen, ratings)
    for task, mean in data["expected"]["tasks"].items():
        assert found[DIALOGUE, task].mean == pytest.approx(mean, abs=1e-12)
    assert round(found[AVERAGE, ""].mean, 3) == data["expected"]["avg"]


def test_the_published_average_is_the_plain_mean_of_the_tasks():
    table = list(csv.DictReader(oracle("published_table.csv").splitlines()))
    assert len(table) == 18
    for row in table:
        assert sum(float(row[task]) for task in TASKS) / 13 == pytest.approx(
            float(row["Avg"]), abs=0.0051
        )


@pytest.fixture(scope="module")
def official():
    files = [cache_dir() / "mt_bench_101" / one.name
             for one in get_benchmark("mt_bench_101").files.values()]  # fmt: skip
    if not all(path.exists() for path in files):
        pytest.skip("the official files are not in the cache")
    questions, prompts = (path.read_text() for path in files)
    benchmark = get_benchmark("mt_bench_101")
    return benchmark.complete(benchmark.read(questions, None, {}), {"prompts": prompts})


def test_the_official_dialogues_have_the_known_turns(official):
    index = json.loads(oracle("index.json"))
    groups = {one.group: one.category for one in official.questions}
    assert len(official.questions) == index["judged_turns"] == get_benchmark("mt_bench_101").size
    assert groups == {str(number): task for task, number, _ in index["items"]}


def test_all_official_judge_prompts_are_those_of_opencompass(official):
    """The digest is that of the 3,615 prompts which OpenCompass' own functions make."""
    seen = view(official, "official")
    turns = {key: replace(one, content=f"My {{prediction}} to {one.question_id}")
             for key, one in seen.turns.items()}  # fmt: skip
    seen = replace(seen, turns=turns)
    digest = hashlib.sha256()
    for slot in seen.grader.wanted(seen):
        messages = seen.grader.grade(slot, seen).messages
        digest.update(json.dumps([[one.role, one.content] for one in messages]).encode())
    assert digest.hexdigest() == "f909ca94f79ff6878f8c8d62ae4d5215a174bc63ad0b6c098b8a04740a41a723"
