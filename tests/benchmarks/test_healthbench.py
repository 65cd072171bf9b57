"""HealthBench on small examples and a judge prompt of our own, and on oracles where they are."""

import json
from dataclasses import replace

import pytest
from own_files import Line, Saying, with_own_files
from paths import SHARED
from stub_server import StubServer

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.benchmarks.healthbench import SYSTEM
from mtbench_ray.config import JudgeConfig, ModelConfig
from mtbench_ray.errors import UserError
from mtbench_ray.judges.base import EvaluationView, Reply, ScoreOptions
from mtbench_ray.judges.shared_prefixes import PREFIX
from mtbench_ray.schema import AnswerSet, Evaluation, Judgment, Message, Outcome, Turn, Unit
from mtbench_ray.system.assets import cache_dir

ORACLE = SHARED / "benchmarks" / "healthbench"


def item(word, points, *tags):
    return {"criterion": f"Says {word}", "points": points, "tags": list(tags)}


EXAMPLES = [
    {"prompt_id": "one", "example_tags": ["theme:hedging", "physician_agreed_category:simple"],
     "prompt": [{"role": "user", "content": "My foot hurts."}],
     "rubrics": [item("rest", 6, "level:cluster", "axis:accuracy"),
                 item("ice", 4, "level:example", "axis:completeness"),
                 item("sugar", -5, "level:example", "axis:accuracy")]},
    {"prompt_id": "two", "example_tags": ["theme:communication"],
     "prompt": [{"role": "user", "content": "Can I run?"},
                {"role": "assistant", "content": "Does it hurt?"},
                {"role": "user", "content": "No."}],
     "rubrics": [item("run", 5, "level:cluster", "axis:accuracy"),
                 item("sugar", -8, "level:example", "axis:completeness")]},
]  # fmt: skip
PROMPT = "Look at this:\n<<conversation>>\n\nAnd say of this whether it is met: <<rubric_item>>."
ANSWERS = {"one": "Take a rest, and ice, no sugar.", "two": "You can run on sugar."}
"""Scores: (6 + 4 - 5) / 10 and (5 - 8) / 5."""


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def judge(prompt):
    """Whether the answer has the word that the criterion asks for."""
    answer = prompt.rpartition("assistant: ")[2].partition("\n\n")[0]
    word = prompt.rpartition("Says ")[2].rstrip(".")
    found = {"explanation": f"I looked for {{{word}}}.", "criteria_met": word in answer}
    return f"```json\n{json.dumps(found)}\n```"


@pytest.fixture
def own(tmp_path, monkeypatch):
    files = {"questions": lines(EXAMPLES), "grader": PROMPT}
    return with_own_files(monkeypatch, tmp_path, "healthbench", files)


@pytest.fixture
def line(own, tmp_path, capsys):
    with Saying(judge) as stub:
        yield Line(stub, "healthbench", tmp_path / "work", capsys)


def found(rows=EXAMPLES):
    benchmark = get_benchmark("healthbench")
    questions = benchmark.read(lines(rows), None, {"questions": "q.jsonl"})
    return benchmark.complete(questions, {"grader": PROMPT})


def view(data, protocol="default", mode="rubric"):
    benchmark = get_benchmark("healthbench")
    if protocol == "official":
        data = benchmark.officially(data)
    units = tuple(Unit(one.question_id, 0, f"a{one.question_id}") for one in data.questions)
    turns = {
        (unit.answer_id, 1): Turn(unit.answer_id, 1, "healthbench", unit.question_id, "m", 0,
                                  ANSWERS.get(unit.question_id, "An answer."), "ok")
        for unit in units
    }  # fmt: skip
    evaluation = Evaluation(AnswerSet("m", "{}", units), "j", "{}", mode, "d",
                            benchmark="healthbench", protocol=protocol)  # fmt: skip
    questions = {one.question_id: one for one in data.questions}
    (grader,) = (one for one in benchmark.graders if one.name == mode)
    return EvaluationView(evaluation, grader, questions, turns, JudgeConfig(), kept=data.kept)


def judged(seen, met):
    """Outcomes; ``met`` says of a slot true, false or None."""
    outcomes = []
    for slot in seen.grader.wanted(seen):
        value = met(slot)
        row = Judgment("", "", "rubric", "healthbench", slot.question_id, "", 1, "m", "j", "",
                       "unparsed" if value is None else "ok",
                       value=None if value is None else float(value))  # fmt: skip
        outcomes.append(Outcome(slot, row, "no_json" if value is None else ""))
    return outcomes


def by_words(slot):
    """What the judge above says."""
    words = {"one": ["rest", "ice", "sugar"], "two": ["run", "sugar"]}[slot.question_id]
    return words[int(slot.criterion.split()[0])] in ANSWERS[slot.question_id]


def figures(seen, met):
    scores = seen.grader.reduce([seen], judged(seen, met), ScoreOptions(resamples=0))
    return {(one.metric, one.dimension, one.name): one for one in scores}


def test_an_example_is_a_question_with_its_history_and_its_rubric():
    one, two = found().questions
    assert (two.context, two.turns) == (
        (Message("user", "Can I run?"), Message("assistant", "Does it hurt?")),
        ("No.",),
    )
    assert (one.category, one.tags[1]) == ("hedging", "physician_agreed_category:simple")
    benchmark = get_benchmark("healthbench")
    assert (benchmark.temperature(one), benchmark.max_tokens(ModelConfig())) == (0.5, 2048)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt_id": None}, "prompt_id must be"),
        ({"prompt": []}, "prompt must be a list"),
        ({"prompt": [{"role": "tool", "content": "x"}]}, "a message has a role"),
        ({"prompt": [{"role": "user", "content": 3}]}, "a message has a role"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "must be the user's"),
        ({"example_tags": ["a b"]}, "without spaces"),
        ({"rubrics": []}, "rubrics must be"),
        ({"rubrics": [{"points": 3}]}, "needs the text criterion"),
        ({"rubrics": [item("x", 0)]}, "points must be"),
        ({"rubrics": [item("x", True)]}, "points must be"),
        ({"rubrics": [item("x", 3, "a b")]}, "without spaces"),
    ],
)
def test_a_row_that_is_no_example_is_named_with_its_line(change, said):
    with pytest.raises(UserError, match=f"q.jsonl line 1: .*{said}"):
        found([EXAMPLES[0] | change])


def test_the_judge_is_shown_the_conversation_with_the_answer_and_one_criterion():
    seen = view(found())
    requests = [seen.grader.grade(slot, seen) for slot in seen.grader.wanted(seen)]
    assert len({one.judgment_id for one in requests}) == 5
    (user,) = requests[3].messages
    assert user.content == (
        "Look at this:\nuser: Can I run?\n\nassistant: Does it hurt?\n\nuser: No.\n\n"
        "assistant: You can run on sugar.\n\nAnd say of this whether it is met: [5] Says run."
    )
    assert (requests[3].want, requests[3].params) == ("json", "{}")


def test_the_official_protocol_has_a_system_message_for_all_and_its_own_sampling():
    seen = view(found(), "official")
    request = seen.grader.grade(seen.grader.wanted(seen)[0], seen)
    system, user = request.messages
    assert system == Message("system", SYSTEM)
    assert user.content.startswith(f"Look at this:\nsystem: {SYSTEM}\n\nuser: My foot hurts.")
    assert json.loads(request.params) == {"temperature": 0.5, "max_tokens": 2048}
    assert seen.questions["one"].context == (Message("system", SYSTEM),)


@pytest.mark.parametrize(
    ("text", "default", "official"),
    [
        ('{"criteria_met": true}', 1.0, 1.0),
        ('```json\n{"explanation": "x", "criteria_met": false}\n```', 0.0, 0.0),
        ('So: {"criteria_met": true}', 1.0, "bad_json"),
        ('<think>{"criteria_met": false}</think>{"criteria_met": true}', 1.0, "bad_json"),
        ('{"criteria_met": "true"}', "wrong_type", "wrong_type"),
        ('{"criteria_met": 1}', "wrong_type", "wrong_type"),
        ('{"explanation": "x"}', "no_verdict", "wrong_type"),
        ("true", "no_json", "bad_json"),
        ("", "empty", "empty"),
    ],
)
def test_a_verdict_is_true_or_false_in_json(text, default, official):
    for protocol, wanted in (("default", default), ("official", official)):
        seen = view(found(), protocol)
        request = seen.grader.grade(seen.grader.wanted(seen)[0], seen)
        reading = seen.grader.read(request, seen, Reply(text, "stop"))
        assert (reading.reason or reading.value) == wanted


def test_points_are_signed_and_only_the_mean_is_clipped():
    seen = view(found())
    scores = figures(seen, by_words)
    assert scores["score", "category", "hedging"].mean == 0.5
    assert scores["score", "category", "communication"].mean == 0.0, "-0.6, clipped"
    assert scores["score", "all", ""].mean == 0.0, "(0.5 - 0.6) / 2, clipped"
    assert [one.value for one in seen.grader.items(judged(seen, by_words))] == pytest.approx(
        [0.5, -0.6]
    )
    assert seen.grader.item_scale(seen) == (-8 / 5, 1.0)


def test_tags_have_their_own_ratios_and_none_without_positive_points():
    scores = figures(view(found()), by_words)
    assert scores["axis", "axis", "accuracy"].mean == pytest.approx((1 / 6 + 5 / 5) / 2)
    completeness = scores["axis", "axis", "completeness"]
    assert (completeness.mean, completeness.planned) == (1.0, 1)
    assert scores["level", "level", "cluster"].mean == 1.0
    assert scores["score", "physician_agreed_category", "simple"].scored == 1
    assert not any(name == "" for _, dimension, name in scores if dimension != "all")


def test_an_answer_without_all_of_its_verdicts_has_no_score_and_is_no_zero():
    def met(slot):
        return None if slot.question_id == "two" and slot.weight < 0 else by_words(slot)

    total = figures(view(found()), met)["score", "all", ""]
    assert (total.mean, total.planned, total.scored) == (0.5, 2, 1)
    assert total.failed == '{"no_json": 1}'


def test_consensus_counts_the_criteria_of_several_physicians_alone():
    seen = view(found(), mode="consensus")
    assert [slot.weight for slot in seen.grader.wanted(seen)] == [6.0, 5.0]


def imported(line, tmp_path, model, answers):
    path = tmp_path / f"{model}.jsonl"
    rows = [{"question_id": key, "response": text} for key, text in answers.items()]
    path.write_text(lines(rows))
    code = line.verb("import", "answers", str(path), f"model={model}", "benchmark=healthbench")
    assert code == 0, line.err


def test_a_run_scores_resumes_and_every_report_shows_it(line, tmp_path):
    imported(line, tmp_path, "mine", ANSWERS)
    imported(line, tmp_path, "good", ANSWERS | {"two": "You can run."})
    assert line("-m", "model=mine,good", "stage=judge") == 0, line.err
    assert line.calls == 5 + 2
    good, mine = line.summary["results"][::-1] if (
        line.summary["results"][0]["model"] == "mine"
    ) else line.summary["results"]  # fmt: skip
    assert mine["score"]["mean"] == 0.0
    assert good["score"]["mean"] == pytest.approx((0.5 + 1.0) / 2)
    assert good["themes"]["communication"]["mean"] == 1.0
    assert (good["score"]["planned"], good["score"]["scored"]) == (2, 2)
    assert line.summary["complete"]
    assert "other than simple-evals ee3b031" in line.out
    assert "score: of 2 examples; published figures are of all 5,000" in line.out
    assert line("-m", "model=mine,good", "stage=judge") == 0
    assert line.calls == 0
    assert line.verb("report", "compare", "good", "mine", "format=json") == 0, line.err
    assert json.loads(line.out)[0]["all"]["mean"] == pytest.approx(1.6 / 2)
    assert line.verb("report", "by=category") == 0, line.err
    assert line.verb("report", "html") == 0, line.err
    shown = line.criteria()
    assert shown["one"] == {"[6] Says rest": 1.0, "[4] Says ice": 1.0, "[-5] Says sugar": 1.0}
    assert set(shown["two"]) == {"[5] Says run", "[-8] Says sugar"}
    assert line.verb("export", "models", str(tmp_path / "out")) == 0, line.err


def test_consensus_is_a_row_of_its_own(line, tmp_path):
    imported(line, tmp_path, "mine", ANSWERS)
    assert line("model=mine", "stage=judge", "mode=consensus") == 0, line.err
    assert line.calls == 2
    assert line.summary["results"][0]["score"]["mean"] == 1.0
    assert line("model=mine", "stage=judge") == 0, line.err
    assert line.calls == 3, "verdicts of criteria that both ask for are shared"


def test_the_official_answer_is_asked_with_the_system_message(line):
    assert line("model=org/m", "protocol=official", "limit=1") == 0, line.err
    assert {body["messages"][0]["content"] for body in line.stub.seen.bodies} == {SYSTEM}
    assert {body["temperature"] for body in line.stub.seen.bodies} == {0.5}
    assert "protocol: official, as simple-evals ee3b031" in line.out
    assert "rubric, protocol official" in line.err, "and no judge prompts by name"


def test_the_plan_has_a_call_for_each_criterion_and_its_price(line):
    prices = ("judge.price_prompt=2", "judge.price_completion=8")
    assert line.plan("model=org/m", *prices) == 0, line.err
    assert "0/5" in line.out
    assert "counts 500 tokens" in line.out
    assert "dollars" in line.out
    assert line.stub.stats()["calls"] == 0


def test_many_calls_are_told_before_they_are_made():
    (one, _) = found().questions
    questions = [replace(one, question_id=str(number)) for number in range(500)]
    (rubric, consensus) = get_benchmark("healthbench").graders
    assert rubric.warnings(questions)[0].startswith("healthbench: 1,500 judge calls for each model")
    assert consensus.warnings(questions) == []


@pytest.mark.parametrize(
    ("text", "reason", "attempts"),
    [
        ('{"criteria_met": "yes"}', "wrong_type", 3),
        ("It is met.", "no_json", 3),
        ('<think>{"criteria_met": true}</think>', "empty", 3),
        ('{"criteria_met": true} {"criteria_met": false}', "two_verdicts", 3),
        ("{'criteria_met': True}", "bad_json", 3),
    ],
)
def test_a_bad_reply_is_asked_again_and_then_has_a_reason(
    own, tmp_path, capsys, text, reason, attempts
):
    with StubServer(text=text) as stub:
        line = Line(stub, "healthbench", tmp_path / "work", capsys)
        assert line("model=org/m", "limit=1", "judge.max_retries=0") == 3, line.err
    (result,) = line.summary["results"]
    assert (result["score"]["mean"], result["score"]["failed"]) == (None, {reason: 1})
    rows = line.rows("judgments.jsonl")
    assert {(row["value"], row["attempts"]) for row in rows} == {(None, attempts)}


def test_a_reply_that_was_cut_is_asked_again_with_more_room(own, tmp_path, capsys):
    """The stub counts words, and its text has more than the first cap."""
    text = '{"explanation": "' + "word " * 30 + '", "criteria_met": true}'
    with StubServer(text=text) as stub:
        line = Line(stub, "healthbench", tmp_path / "work", capsys)
        assert line("model=org/m", "limit=1", "judge.max_tokens=10") == 0, line.err
    assert {row["attempts"] for row in line.rows("judgments.jsonl")} == {2}
    assert line.summary["results"][0]["score"]["mean"] == 0.5


def test_the_criteria_of_a_long_answer_find_its_conversation_cached(own, tmp_path, capsys):
    """Of two answers: the first call on the second one ends before its others begin."""
    latency = 0.15
    long = {key: text + " word" * PREFIX for key, text in ANSWERS.items()}
    with Saying(judge, latency=latency) as stub:
        line = Line(stub, "healthbench", tmp_path / "work", capsys)
        imported(line, tmp_path, "mine", long)
        assert line("model=mine", "stage=judge") == 0, line.err
        times = {}
        for when, body in zip(stub.seen.arrivals, stub.seen.bodies, strict=True):
            times.setdefault("foot" in body["messages"][0]["content"], []).append(when)
    for first, *others in times.values():
        assert min(others) - first >= latency
    assert abs(times[True][0] - times[False][0]) < 4 * latency


def oracle(name):
    path = ORACLE / name
    if not path.exists():
        pytest.skip(f"no oracle {path}")
    return json.loads(path.read_text())


def test_all_metrics_of_a_public_run_come_out():
    rows, wanted = oracle("rubric_verdicts_100.json"), oracle("expected_metrics.json")
    examples = [
        {"prompt_id": row["prompt_id"], "example_tags": row["example_tags"],
         "prompt": [{"role": "user", "content": "x"}],
         "rubrics": [{"criterion": f"c{place}", "points": one["points"], "tags": one["tags"]}
                     for place, one in enumerate(row["items"])]}
        for row in rows
    ]  # fmt: skip
    verdicts = {row["prompt_id"]: [one["met"] for one in row["items"]] for row in rows}
    seen = view(found(examples))
    scores = figures(seen, lambda slot: verdicts[slot.question_id][int(slot.criterion.split()[0])])
    names = {}
    for (_, dimension, name), score in scores.items():
        kind = "theme" if dimension == "category" else dimension
        names[f"{kind}:{name}"] = score
    names["overall_score"] = names["score"] = names["all:"]
    assert len(seen.grader.wanted(seen)) == 1157
    checked = 0
    for name, value in wanted.items():
        score = names[name.removesuffix(":n_samples")]
        if name.endswith(":n_samples"):
            assert score.scored == value, name
        else:
            assert score.mean == pytest.approx(value, abs=1e-12), name
            checked += 1
    assert checked == 70, "69, and the score by its second name"


def test_the_official_files_are_what_they_are_known_to_be():
    benchmark = get_benchmark("healthbench")
    folder = cache_dir() / "healthbench"
    paths = {part: folder / one.name for part, one in benchmark.files.items()}
    if not all(path.exists() for path in paths.values()):
        pytest.skip("the official files are not in the cache")
    read = benchmark.read(paths["questions"].read_text(), None, {})
    data = benchmark.complete(read, {"grader": paths["grader"].read_text()})
    assert len(data.questions) == benchmark.size
    assert {one.category for one in data.questions} == set(benchmark.categories)
    seen = view(data)
    assert len(seen.grader.wanted(seen)) == benchmark.calls
    prompt = data.kept["grader"]
    assert prompt == prompt.strip()
    assert (prompt.count("<<conversation>>"), prompt.count("<<rubric_item>>")) == (1, 1)
