"""Arena-Hard v2 with prompts, answers and judge prompts of our own."""

import hashlib
import json
import random
import statistics
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.optimize import minimize
from verdicts import judged

from mtbench_ray.benchmarks import arena_battles, grader_of, official_tokens, style_control
from mtbench_ray.benchmarks.arena_battles import battles_of, read_label, worth
from mtbench_ray.benchmarks.arena_hard import ArenaHard
from mtbench_ray.benchmarks.style_control import Battles, Style, difference, style_of
from mtbench_ray.cli.main import main
from mtbench_ray.config import JudgeConfig
from mtbench_ray.planning.plan import render, view_of
from mtbench_ray.schema import Slot
from mtbench_ray.system.assets import Asset
from mtbench_ray.workspace.workspace import Workspace

HARD, CREATIVE = arena_battles.HARD, arena_battles.CREATIVE
ASKED = [
    (f"q{number}", HARD if number < 5 else CREATIVE, f"Task {number}: {text}")
    for number, text in enumerate(
        ("sort a list", "prove it", "count the ways", "mend the loop", "find the root",
         "sing of tin", "a tale of moss", "a letter to rain"))
]  # fmt: skip
OURS = ("benchmark=arena_hard", "question_path=null", "reference_path=null")
LABELS = ("A>>B", "A>B", "A=B", "B>A", "B>>A")


def strong(model, number):
    return f"## {model}\n\n- point {number}\n- **bold**\n" + "word " * (3 + 7 * number)


def asset(folder, name, text):
    path = folder / name
    path.write_text(text, "utf-8")
    return Asset(name, hashlib.sha256(path.read_bytes()).hexdigest(), url=path.as_uri())


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The benchmark's files replaced by small ones of our own."""
    folder = tmp_path / "files"
    folder.mkdir()
    lines = [{"uid": uid, "category": category, "subcategory": "x", "prompt": text}
             for uid, category, text in ASKED]  # fmt: skip
    found = {"questions": asset(folder, "q.jsonl", "".join(json.dumps(x) + "\n" for x in lines))}
    for model in ("o3-mini-2025-01-31", "gemini-2.0-flash-001"):
        rows = []
        for number, (uid, _, text) in enumerate(ASKED):
            said = strong(model, number)
            content = {"answer": said, "thought": "hm"} if number % 2 else said
            rows.append({"uid": uid, "model": model, "messages": [
                {"role": "user", "content": text}, {"role": "assistant", "content": content}
            ]})  # fmt: skip
        found[model] = asset(folder, f"{model}.jsonl", "".join(json.dumps(x) + "\n" for x in rows))
    found[HARD] = asset(folder, "hard.txt", "Judge this hard one.")
    found[CREATIVE] = asset(folder, "creative.txt", "Judge this tale.")
    template = "ASKED {QUESTION} ONE<{ANSWER_A}> TWO<{ANSWER_B}>"
    found["template"] = asset(folder, "template.txt", template)
    monkeypatch.setattr(ArenaHard, "files", found)
    monkeypatch.setenv("MTBENCH_RAY_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def arena(cli, files):
    """The command line on the small benchmark; the judge's labels follow from the prompt."""
    cli.stub.written = written.__get__(cli.stub)

    def run(*args):
        return cli(*OURS, "report.resamples=20", *args)

    run.cli, run.stub, run.workspace = cli, cli.stub, cli.workspace
    return run


def label_of(prompt):
    return LABELS[int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % 5]


def written(self, body, prompt, digest):
    from stub_server import completion

    text = self.script.text or f"I see. My verdict: [[{label_of(prompt)}]]"
    return completion(text, "stop", len(prompt) // 4, 9), 9


def sent(stub):
    """The label of each game by question and by which answer was shown first."""
    found = {}
    for body in stub.seen.bodies:
        prompt = body["messages"][-1]["content"]
        uid = next(uid for uid, _, text in ASKED if text in prompt)
        whole = "\n".join(message["content"] for message in body["messages"])
        theirs_first = "ONE<## " in prompt
        found[uid, 2 if theirs_first else 1] = label_of(whole)
    return found


# Labels -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("My final verdict is tie: [[A=B]]", "A=B"),
        ("first [[A>B]]\n then I change my mind.\nFinal: [[B>>A]]", "B>>A"),
        ("[[A>>B]] again [[A>>B]]", "A>>B"),
        ("in single brackets [b>a]", "B>A"),
        ("[A>B] but in double ones [[A<<B]]", "A<<B"),
        ("mirrored [[B<A]]", "B<A"),
        ("mirrored [[b=a]]", "B=A"),
    ],
)
def test_the_last_label_counts_in_double_brackets_first(text, label):
    assert read_label(text).text == label


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no verdict at all", "no_label"),
        ("cut [[A>", "no_label"),
        ("[[A>B or B>A]]", "no_label"),
        ("[[A]]", "no_such_label"),
        ("[[=]]", "no_such_label"),
        ("[[A>>>B]]", "no_such_label"),
        ("either [[A>B]] or [[B>A]]", "two_labels"),
        ("", "no_label"),
    ],
)
def test_half_a_label_no_label_or_two_are_a_reason(text, reason):
    assert read_label(text) == arena_battles.Label(reason=reason)


def test_the_official_script_takes_the_last_of_two():
    assert read_label("either [[A>B]] or [[B>A]]", last=True).text == "B>A"


@pytest.mark.parametrize(
    ("label", "value", "battles"),
    [("A>>B", 100, 3), ("A>B", 100, 1), ("A=B", 50, 1), ("B>A", 0, 1), ("B>>A", 0, 3),
     ("A<<B", 0, 3), ("A<B", 0, 1), ("B=A", 50, 1), ("B<A", 100, 1), ("B<<A", 100, 3)],
)  # fmt: skip
def test_what_labels_are_worth(label, value, battles):
    assert (worth(label, 1), worth(label, 2)) == (value, 100 - value)
    assert battles_of(label) == battles


# Style --------------------------------------------------------------------------------------


def test_style_counts_marks_outside_blocks_of_code():
    text = (
        "# Top\n\n## Below\n1. one\n 2. two\n- three\n* four\n**bold** and __under__ and **no\n**\n"
        "```\n# not\n- not\n**not**\n```\n#not a header\n"
    )
    assert style_of(text, 7) == Style(7, 2, 4, 2)
    assert style_of("", 0) == Style(0, 0, 0, 0)


def test_differences_of_equal_or_empty_answers_are_nothing():
    one = Style(10, 1, 2, 3)
    assert difference(one, one) == (0.0, 0.0, 0.0, 0.0)
    assert difference(Style(0), Style(0)) == (0.0, 0.0, 0.0, 0.0)
    assert difference(Style(30), Style(10))[0] == 0.5


def made_battles(models=3, count=400, seed=5):
    chance = np.random.default_rng(seed)
    style = chance.normal(size=(count, 4)) * [1, 0.1, 0.1, 0.1]
    model = chance.integers(models, size=count)
    logit = np.linspace(-1, 1, models)[model] + style @ [0.8, 1.0, -2.0, 0.0]
    won = (chance.random(count) < 1 / (1 + np.exp(-logit))).astype(float)
    won[::9] = 0.5
    return Battles(model, style, won, chance.choice([1.0, 3.0], size=count))


def test_the_converged_fit_is_that_of_a_general_optimiser():
    battles = made_battles()
    style = style_control.standardised(battles)
    found = style_control.converged(battles, style)

    def loss(x):
        logit = x[battles.model] + style @ x[3:]
        return battles.weight @ (np.logaddexp(0, logit) - battles.won * logit)

    best = minimize(loss, np.zeros(7), method="BFGS", options={"gtol": 1e-9}).x
    assert np.concatenate([found.models, found.style]) == pytest.approx(best, abs=1e-4)


def test_weights_are_repeated_battles():
    battles = made_battles(count=120)
    rows = np.repeat(np.arange(120), battles.weight.astype(int))
    every = Battles(battles.model[rows], battles.style[rows], battles.won[rows], np.ones(len(rows)))
    one, two = (style_control.standardised(some) for some in (battles, every))
    assert two == pytest.approx(one[rows])
    assert every.style.std(axis=0, ddof=1) == pytest.approx(
        (battles.style[rows]).std(axis=0, ddof=1)
    )
    assert style_control.converged(every, two).models == pytest.approx(
        style_control.converged(battles, one).models
    )


def test_the_early_stopped_fit_is_that_of_torch():
    """What ``torch.optim.LBFGS(lr=0.1, max_iter=50)`` makes of these battles, in float64."""
    battles = made_battles(count=300)
    found = style_control.early_stopped(battles, style_control.standardised(battles))
    assert found.models == pytest.approx([-0.9199124, -0.1110131, 1.036197], abs=2e-6)
    assert found.style == pytest.approx([0.5843606, 0.1956762, -0.1041176, 0.0591865], abs=2e-6)
    converged = style_control.converged(battles, style_control.standardised(battles))
    assert abs(converged.models - found.models).max() > 1e-3


def test_a_model_that_wins_everything_has_a_finite_strength():
    battles = made_battles(count=60)
    everything = Battles(battles.model, battles.style, np.ones(60), battles.weight)
    found = style_control.converged(everything, style_control.standardised(everything))
    assert np.isfinite(found.models).all()
    assert (found.win_rates > 0.99).all()


# Graders ------------------------------------------------------------------------------------


def game(order, label, uid="q1", model="m"):
    slot = Slot(model, uid, HARD, uid, 1, 0, ("a", "b"), order=order, opponent="base")
    value = None if label is None else worth(label, order)
    return judged(slot, "no_label" if label is None else value, label=label)


def test_a_question_with_a_failed_game_counts_nowhere():
    grader = grader_of("arena_hard", "battles")
    found = grader.items([game(1, "A>>B"), game(2, None), game(1, "A=B", "q2"),
                          game(2, "B>>A", "q2")])  # fmt: skip
    assert [(item.value, item.reason) for item in found] == [
        (None, "no_label"), (50, ""), (100, ""), (100, ""), (100, ""),
    ]  # fmt: skip


# A run --------------------------------------------------------------------------------------


def expected(stub, category=None):
    """Win rate over battles, from what the service really sent."""
    found = sent(stub)
    values = []
    for uid, kind, _ in ASKED:
        if category in (None, kind):
            for order in (1, 2):
                label = found[uid, order]
                values += [worth(label, order)] * battles_of(label)
    return statistics.fmean(values), len(values)


def test_a_run_plays_two_games_with_the_baseline_and_the_prompt_of_each_category(arena):
    assert arena("model=org/a") == 0, arena.cli.err
    assert arena.cli.calls == 2 * len(ASKED)
    for body in arena.stub.seen.bodies:
        system, prompt = (message["content"] for message in body["messages"])
        _, category, _ = next(row for row in ASKED if row[2] in prompt)
        strong_one = "gemini-2.0-flash-001" if category == CREATIVE else "o3-mini-2025-01-31"
        assert f"## {strong_one}" in prompt
        assert system == ("Judge this tale." if category == CREATIVE else "Judge this hard one.")
        assert body["max_tokens"] == arena_battles.MAX_TOKENS
        assert "thought" not in prompt
    (result,) = arena.cli.summary["results"]
    mean, battles = expected(arena.stub)
    assert (result["win_rate"], result["n"]) == (pytest.approx(mean), battles)
    assert result["complete"]
    assert result["baseline"] == "o3-mini+gemini-2.0-flash"
    shown = {name: part["mean"] for name, part in result["categories"].items()}
    assert shown == pytest.approx(
        {name: expected(arena.stub, name)[0] for name in (HARD, CREATIVE)}
    )
    assert arena("model=org/a") == 0
    assert (arena.cli.calls, "nothing was pending" in arena.cli.err) == (0, True)
    # A cap of one's own is kept.
    assert arena("model=org/b", "judge.max_tokens=500") == 0
    assert arena.stub.seen.bodies[-1]["max_tokens"] == 500


@pytest.mark.parametrize(
    ("judge", "asked"),
    [
        (JudgeConfig(kind="openai"), {"max_tokens": arena_battles.MAX_TOKENS}),
        # The window of a local one may be smaller than the official cap.
        (JudgeConfig(kind="local"), {}),
        (JudgeConfig(kind="openai", max_tokens=500), {}),
    ],
)
def test_a_local_judge_keeps_the_cap_that_its_window_has_room_for(arena, judge, asked):
    assert arena("model=org/a") == 0, arena.cli.err
    with Workspace.open(arena.workspace, write=False) as workspace:
        (row,) = workspace.run_records()[-1].evaluations
        view = view_of(row, workspace.load_data(row.data), workspace.turns)
        view = replace(view, judge=judge)
        sent = [json.loads(render(view, slot).params) for slot in view.grader.wanted(view)]
    assert sent == [asked] * 2 * len(ASKED)


def test_style_control_is_fitted_over_the_set_and_carries_its_digest(arena):
    assert arena("model=run/a") == 0, arena.cli.err
    (alone,) = arena.cli.summary["results"]
    assert alone["hard_style"] is not None
    assert arena("model=run/b") == 0, arena.cli.err
    results = {result["model"]: result for result in arena.cli.summary["results"]}
    assert results["run/a"]["set"] == results["run/b"]["set"] != alone["set"]
    assert results["run/a"]["win_rate"] == alone["win_rate"]
    # By hand, over both.
    answers = {(row["model"], row["question_id"]): row["content"]
               for row in arena.cli.rows("answers.jsonl")}  # fmt: skip
    rows = []
    games = {(row["model"], row["question_id"], row["order"]): row["label"]
             for row in arena.cli.rows("judgments.jsonl")}  # fmt: skip
    for (model, uid, order), label in games.items():
        if uid in {one for one, kind, _ in ASKED if kind == HARD}:
            theirs = answers["o3-mini+gemini-2.0-flash", uid]
            apart = difference(style_of(answers[model, uid]), style_of(theirs))
            rows.append((model == "run/b", apart, worth(label, order) / 100, battles_of(label)))
    model, style, won, weight = zip(*rows, strict=True)
    battles = Battles(np.array(model, int), np.array(style), np.array(won), np.array(weight, float))
    fit = style_control.converged(battles, style_control.standardised(battles)).win_rates
    for name, rate in zip(("run/a", "run/b"), fit, strict=True):
        assert results[name]["hard_style"] == pytest.approx(100 * rate, abs=1e-6)
        low, high = results[name]["hard_style_ci"]
        assert low <= results[name]["hard_style"] <= high
    assert "fitted over all models here" in arena.cli.out
    table = pq.read_table(arena.workspace / "scores.parquet").to_pylist()
    digests = {row["metric"]: row["set_digest"] for row in table if row["model"] == "run/a"}
    assert digests["style_win_rate"] == results["run/a"]["set"]
    assert digests["win_rate"] == ""


def test_reports_show_it_and_a_fitted_score_is_not_compared_question_by_question(arena, tmp_path):
    assert arena("-m", "model=run/step_1,run/step_2") == 0, arena.cli.err
    assert "hard, style" in arena.cli.out
    assert "protocol: default; other than lmarena/arena-hard-auto" in arena.cli.out
    assert arena.cli.verb("report", "compare", "step_1", "step_2", "format=json") == 0
    json.loads(arena.cli.out)
    assert arena.cli.verb("report", "compare", "step_1", "step_2", "metric=hard_style") == 2
    assert "fitted over all models" in arena.cli.err
    assert arena.cli.verb("report", "by=category") == 0
    assert arena.cli.verb("report", "format=csv") == 0
    pytest.importorskip("nh3")
    assert arena.cli.verb("report", "html", f"out={tmp_path / 'page.html'}") == 0, arena.cli.err
    assert main(["plan", *arena.cli.judge, *arena.cli.usual, *OURS, "model=org/new"]) == 0


def test_a_baseline_of_ones_own_for_models_that_the_official_ones_leave_at_nothing(arena):
    arena.stub.script.text = "[[B>>A]]"
    assert arena("-m", "model=run/a,run/b", "baseline=run/b") == 0, arena.cli.err
    (result,) = arena.cli.summary["results"]
    assert (result["model"], result["baseline"], result["win_rate"]) == ("run/a", "run/b", 50.0)
    arena.stub.written = lambda body, prompt, digest: one_sided(body)
    assert arena("model=run/c") == 0, arena.cli.err
    assert "too far apart to tell models from one another; baseline=MODEL" in arena.cli.out
    assert arena("model=run/c", "baseline=gemini-2.0-flash-001") == 0, arena.cli.err


def one_sided(body):
    """The shipped answer always wins."""
    from stub_server import completion

    theirs_first = "ONE<## " in body["messages"][-1]["content"]
    return completion(f"[[{'A>>B' if theirs_first else 'B>>A'}]]", "stop", 9, 9), 9


def test_bad_labels_and_cut_replies_are_asked_again_and_then_a_reason(arena):
    replies = iter(["either [[A>B]] or [[B>A]]", "[[A>", "<think>[[A>B]]</think>", "fine [[A=B]]"])

    def few(body, prompt, digest):
        from stub_server import completion

        return completion(next(replies, "fine [[A=B]]"), "stop", 9, 9), 9

    arena.stub.written = few
    assert arena("model=org/a", "limit=1", "judge.concurrency=1") == 3
    attempts = {row["order"]: (row["attempts"], row["status"], row["label"], row["error"])
                for row in arena.cli.rows("judgments.jsonl")}  # fmt: skip
    assert sorted(attempts.values()) == [(1, "ok", "A=B", None), (3, "empty", None, "no_label")]
    (result,) = arena.cli.summary["results"]
    assert result["win_rate"] is None, "a question with a failed game counts nowhere"
    assert result["failed"] == {"no_label": 1}

    def cut(body, prompt, digest):
        from stub_server import completion

        return completion("[[A>>B]] seems right at first, but", "length", 9, 16000), 16000

    arena.stub.written = cut
    assert arena("model=org/a", "limit=1") == 3
    failed = [row for row in arena.cli.rows("judgments.jsonl") if row["status"] == "truncated"]
    assert failed
    assert all(row["value"] is None for row in failed)


def test_protocol_official_is_its_own_fit_and_its_own_row(arena, monkeypatch):
    monkeypatch.setattr(arena_battles, "tokenizer", lambda: len)
    assert arena("model=org/a") == 0, arena.cli.err
    assert arena("model=org/a", "protocol=official") == 0, arena.cli.err
    assert arena.cli.calls == 0, "the same verdicts"
    found = {one["protocol"]: one for one in arena.cli.summary["results"]}
    assert found["default"]["id"] != found["official"]["id"]
    assert found["default"]["set"] != found["official"]["set"]
    assert found["official"]["ci_method"] == "100 resamples of battles, 5 to 95%"
    assert found["official"]["win_rate"] == pytest.approx(found["default"]["win_rate"], abs=6)
    assert "protocol: official, as lmarena/arena-hard-auto 196f6b8" in arena.cli.out


def test_official_style_without_its_tokenizer_is_missing_with_a_reason(arena, monkeypatch):
    from mtbench_ray.errors import UserError

    def missing():
        raise UserError("tiktoken's vocabulary could not be fetched")

    monkeypatch.setattr(arena_battles, "tokenizer", missing)
    assert arena("model=org/a", "protocol=official") == 0, arena.cli.err
    (result,) = arena.cli.summary["results"]
    assert result["win_rate"] is not None
    assert result["hard_style"] is None
    assert "no style-controlled win rate: tiktoken's vocabulary" in arena.cli.out


def test_a_vocabulary_is_made_from_its_packed_form():
    import base64
    import struct

    tokens = [b"a", b"bc", bytes([200])]
    packed = struct.pack("<I", 3) + b"".join(
        struct.pack("<H", len(raw)) + raw + struct.pack("<I", rank)
        for rank, raw in random.Random(1).sample(list(enumerate(tokens)), 3)
    )
    made = official_tokens.tiktoken_file(packed)
    assert [base64.b64decode(line.split()[0]) for line in made.splitlines()] == tokens
    with pytest.raises(ValueError, match="buffer"):
        official_tokens.tiktoken_file(packed[:-3])
