"""AlpacaEval 2 with instructions, answers and a judge prompt of our own."""

import csv
import hashlib
import io
import json
import math
import random
import re
import statistics

import pyarrow.parquet as pq
import pytest

from mtbench_ray.benchmarks import alpaca_preference
from mtbench_ray.benchmarks.alpaca_eval import AlpacaEval
from mtbench_ray.benchmarks.alpaca_preference import first_is_better, switched
from mtbench_ray.cli.main import main
from mtbench_ray.system.assets import Asset

TEMPLATE = """<|im_start|>system
You say which is better.
<|im_end|>
<|im_start|>user
{ "asked": "{instruction}" }
{ "m": "{output_1}" }
{ "M": "{output_2}" }
Which?
<|im_end|>"""
ASKED = [f"Write line {number} about {thing}." for number, thing in enumerate(
    ("rain", "tin", "moss", "salt", "a gate", "smoke", "bells", "a map", "wool", "rust", "ink",
     "a well"))]  # fmt: skip
OURS = ("benchmark=alpaca_eval", "question_path=null", "reference_path=null")


def rows():
    """The question file: answers of many lengths."""
    return [
        {"dataset": ("koala", "oasst")[number % 2], "instruction": text,
         "output": "A fine line. " * (1 + number * 5 % 7), "generator": "gpt4_1106_preview"}
        for number, text in enumerate(ASKED)
    ]  # fmt: skip


def gamed():
    """Two versions of the baseline, as in the file of the hub."""
    chance = random.Random(3)
    hard = [chance.gauss(0, 1) for _ in ASKED]
    text = io.StringIO()
    out = csv.writer(text)
    out.writerow(["model", "index", "preference", "std_delta_len", "instruction_difficulty",
                  "not_gamed_baseline"])  # fmt: skip
    for model, side in (("long", -2.0), ("short", 2.0)):
        for index, difficulty in enumerate(hard):
            row = [chance.random(), side + chance.gauss(0, 1), difficulty, False]
            out.writerow([model, index, *row])
    return text.getvalue()


def asset(folder, name, text):
    path = folder / name
    path.write_text(text, "utf-8")
    return Asset(name, hashlib.sha256(path.read_bytes()).hexdigest(), url=path.as_uri())


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The benchmark's files replaced by small ones of our own."""
    folder = tmp_path / "files"
    folder.mkdir()
    found = {
        "questions": asset(folder, "alpaca_eval_gpt4_baseline.json", json.dumps(rows())),
        "judge_prompt": asset(folder, "alpaca_eval_clf.txt", TEMPLATE),
        "gamed": asset(folder, "df_gamed.csv", gamed()),
    }
    monkeypatch.setattr(AlpacaEval, "files", found)
    monkeypatch.setenv("MTBENCH_RAY_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def lc(cli, files):
    """The command line on the small benchmark, with a judge that gives log-probabilities."""
    cli.stub.script.tokens = ("m", "M")

    def run(*args):
        return cli(*OURS, *args)

    run.cli, run.stub, run.workspace = cli, cli.stub, cli.workspace
    return run


def expected(stub):
    """Win probabilities by instruction, from what the service really sent."""
    found = {}
    for body in stub.seen.bodies:
        prompt = body["messages"][-1]["content"]
        asked = next(text for text in ASKED if f'"{text}"' in prompt)
        text = "\n".join(message["content"] for message in body["messages"])
        share = (1 + int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) % 98) / 100
        found[asked] = share if switched(asked) else 1 - share
    return found


# What the judge says ----------------------------------------------------------------------


def logprobs(*top, sampled=None):
    rows = [{"token": token, "logprob": math.log(chance)} for token, chance in top]
    return json.dumps({"content": [(sampled or rows[0]) | {"top_logprobs": rows}]})


@pytest.mark.parametrize(
    ("top", "value"),
    [
        ([("m", 0.6), ("M", 0.2), ("The", 0.1)], 0.75),
        ([("M", 0.9), ("m", 0.1)], 0.1),
        ([("M", 0.9), ("Both", 0.05)], 0.0),
        ([("m", 0.9)], 1.0),
        ([("The", 0.9), ("Both", 0.1)], None),
    ],
)
def test_the_first_token_says_how_probable_each_answer_is(top, value):
    found = first_is_better(logprobs(*top))
    assert found == (value if value is None else pytest.approx(value))


def test_spaces_around_an_identifier_count_only_by_default_and_only_without_a_bare_one():
    spaced = logprobs((" m", 0.3), ("M ", 0.1), ("A", 0.6))
    assert first_is_better(spaced) is None
    assert first_is_better(spaced, exact=False) == pytest.approx(0.75)
    both = logprobs(("m", 0.3), (" M", 0.6), ("M", 0.1))
    assert first_is_better(both, exact=False) == first_is_better(both) == pytest.approx(0.75)


def test_a_token_that_was_drawn_but_is_not_among_the_top_ones_counts():
    """As vLLM sends it where the reply is forced into a pattern."""
    drawn = {"token": "m", "logprob": math.log(0.001)}
    assert first_is_better(logprobs(("The", 0.9), sampled=drawn)) == 1.0


@pytest.mark.parametrize("text", ["", "null", "{}", '{"content": []}', '{"content": [3]}', "[1]",
                                  '{"content": [{"top_logprobs": [{"token": "m"}]}]}'])  # fmt: skip
def test_what_is_no_list_of_probabilities_is_none(text):
    assert first_is_better(text) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("m", 1.0), ("M", 0.0), (" `M`.", 0.0), ("Model m", 1.0), ("m or M", None), ("", None),
     ("I'm sure", None), ("Mm", None)],
)  # fmt: skip
def test_an_identifier_that_is_written(text, value):
    assert alpaca_preference._written(text) == value


def test_about_half_of_the_orders_are_switched_and_each_is_seeded_by_the_text():
    drawn = [switched(f"Do {number}.") for number in range(400)]
    assert drawn == [switched(f"Do {number}.") for number in range(400)]
    assert 160 < sum(drawn) < 240


# A run --------------------------------------------------------------------------------------


def test_a_run_asks_one_token_of_each_instruction_in_the_order_of_its_text(lc):
    assert lc("model=org/a") == 0, lc.cli.err
    assert lc.cli.calls == len(ASKED)
    body = lc.stub.seen.bodies[0]
    sent = {name: body[name] for name in ("max_tokens", "temperature", "logprobs", "top_logprobs")}
    assert sent == {"max_tokens": 1, "temperature": 1.0, "logprobs": True, "top_logprobs": 5}
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["messages"][0]["content"] == "You say which is better."
    answers = {row["question_id"]: row for row in lc.cli.rows("answers.jsonl")
               if row["model"] == "org/a"}  # fmt: skip
    for one in lc.stub.seen.bodies:
        prompt = one["messages"][-1]["content"]
        number = next(n for n, text in enumerate(ASKED) if f'"{text}"' in prompt)
        theirs = json.dumps(rows()[number]["output"])[1:-1]
        theirs_first = prompt.index(f'"{theirs}"') < prompt.index(answers[number]["content"])
        assert theirs_first != switched(ASKED[number])
    by_question = expected(lc.stub)
    (result,) = lc.cli.summary["results"]
    wins = [100 * by_question[text] for text in ASKED]
    assert result["win_rate"] == pytest.approx(statistics.fmean(wins))
    assert result["standard_error"] == pytest.approx(statistics.stdev(wins) / math.sqrt(len(wins)))
    discrete = [50.0 if win == 50 else 100.0 * (win > 50) for win in wins]
    assert result["discrete_win_rate"] == pytest.approx(statistics.fmean(discrete))
    lengths = [len(row["content"]) for row in answers.values()]
    assert result["average_length"] == round(statistics.fmean(lengths))
    assert (result["baseline"], result["n"], result["complete"]) == ("gpt4_1106_preview", 12, True)
    assert list(result["categories"]) == ["koala", "oasst"]
    assert lc("model=org/a") == 0
    assert (lc.cli.calls, "nothing was pending" in lc.cli.err) == (0, True)


def test_the_answers_that_ship_are_rows_like_any_other(lc):
    assert lc("model=org/a", "limit=4") == 0, lc.cli.err
    theirs = [row for row in lc.cli.rows("answers.jsonl") if row["model"] == "gpt4_1106_preview"]
    assert [row["content"] for row in theirs] == [row["output"] for row in rows()[:4]]
    assert lc("model=org/a") == 0
    table = pq.read_table(lc.workspace / "answers.parquet").to_pylist()
    assert sum(row["model"] == "gpt4_1106_preview" for row in table) == len(ASKED)
    # The few are part of the whole: one row of the table.
    assert len(lc.cli.summary["results"]) == 1


def test_plan_counts_one_token_a_call_and_writes_nothing(lc, capsys):
    prices = ("judge.price_prompt=10", "judge.price_completion=1000000")
    line = [*lc.cli.judge, *lc.cli.usual, *OURS, "model=org/a", *prices]
    assert main(["plan", *line]) == 0
    told = capsys.readouterr().out
    assert "0/12" in told
    (dollars,) = {float(found) for found in re.findall(r"\$?(12\.\d\d)", told)}
    assert 12 <= dollars < 13, "a dollar for each of 12 tokens, and some cents for the prompts"
    assert lc.stub.stats()["calls"] == 0
    assert not lc.workspace.exists()


def test_the_length_control_is_made_from_stored_rows_in_any_order(lc):
    from mtbench_ray.benchmarks.length_control import Gamed, length_controlled
    from mtbench_ray.judges.base import ScoreOptions
    from mtbench_ray.reports.results import Results, current
    from mtbench_ray.workspace.workspace import Workspace

    pytest.importorskip("sklearn")
    assert lc("model=org/a") == 0, lc.cli.err
    by_question = expected(lc.stub)
    answers = {row["question_id"]: row["content"] for row in lc.cli.rows("answers.jsonl")
               if row["model"] == "org/a"}  # fmt: skip
    table = list(csv.DictReader(io.StringIO(gamed())))
    columns = ("preference", "std_delta_len", "instruction_difficulty")
    held = Gamed(*([float(row[name]) for row in table] for name in columns))
    hard = [float(row["instruction_difficulty"]) for row in table[: len(ASKED)]]

    def fit(numbers):
        return length_controlled(
            [by_question[ASKED[n]] for n in numbers],
            [len(rows()[n]["output"]) for n in numbers],
            [len(answers[n]) for n in numbers],
            [hard[n] for n in numbers],
            held,
        )

    (result,) = lc.cli.summary["results"]
    assert result["lc_win_rate"] == pytest.approx(fit(range(12)).win_rate, abs=1e-9)
    assert result["lc_standard_error"] == pytest.approx(fit(range(12)).standard_error, abs=1e-9)
    with Workspace.open(lc.workspace, write=False) as workspace:
        results = Results(workspace, ScoreOptions(resamples=0))
        (row,) = current(workspace)
        found, view = results.outcomes(row), results.view(row)
        grader = results.grader(row)
        for some in (found[::-1], random.Random(1).sample(found, 12), found[6:]):
            scores = {one.place: one.mean for one in grader.reduce([view], some, results.options)}
            asked = sorted(one.slot.question_id for one in some)
            wanted = fit(asked).win_rate
            assert scores["lc_win_rate", "all", ""] == pytest.approx(wanted, abs=1e-9)


def test_equal_answers_are_a_draw_without_a_call(lc, tmp_path):
    same = tmp_path / "same.jsonl"
    texts = [row["output"] for row in rows()]
    texts[3] = "Something else."
    same.write_text(
        "".join(json.dumps({"question_id": n, "response": t}) + "\n" for n, t in enumerate(texts))
    )
    assert lc.cli.verb("import", "answers", str(same), "benchmark=alpaca_eval", "model=copy") == 0
    assert lc("model=copy", "stage=judge") == 0, lc.cli.err
    assert lc.cli.calls == 1
    values = {row["question_id"]: row["value"] for row in lc.cli.rows("judgments.jsonl")}
    assert [values[n] for n in range(12) if n != 3] == [50.0] * 11
    (result,) = lc.cli.summary["results"]
    assert result["n"] == 12


def test_every_report_shows_it(lc, tmp_path):
    line = ("-m", "model=run/step_1,run/step_2")
    assert lc.cli(*line, *OURS) == 0, lc.cli.err
    assert "LC win rate" in lc.cli.out
    assert "is not gpt-4-1106-preview" in lc.cli.out
    assert "protocol: default; other than alpaca_eval 0.6.6" in lc.cli.out
    results = {result["model"]: result for result in lc.cli.summary["results"]}
    assert {result["protocol"] for result in results.values()} == {"default"}
    assert lc.cli.verb("report", "compare", "step_1", "step_2", "format=json") == 0
    (found,) = json.loads(lc.cli.out)
    assert found["all"]["mean"] == pytest.approx(
        results["run/step_1"]["win_rate"] - results["run/step_2"]["win_rate"]
    )
    assert lc.cli.verb("report", "compare", "step_1", "step_2", "metric=discrete_win_rate") == 0
    assert lc.cli.verb("report", "by=category", "format=markdown") == 0
    assert "koala" in lc.cli.out
    pytest.importorskip("nh3")
    assert lc.cli.verb("report", "html", f"out={tmp_path / 'page.html'}") == 0, lc.cli.err
    assert "gpt4_1106_preview" in (tmp_path / "page.html").read_text("utf-8")
    scores = pq.read_table(lc.workspace / "scores.parquet").to_pylist()
    assert {row["metric"] for row in scores} >= {"win_rate", "lc_win_rate", "discrete_win_rate"}
    assert lc.cli.verb("export", "fastchat", str(tmp_path / "out")) == 0
    assert len(list((tmp_path / "out").rglob("model_answer/*.jsonl"))) == 3


def test_two_protocols_are_two_evaluations_of_the_same_verdicts(lc):
    assert lc("model=org/a") == 0, lc.cli.err
    assert lc("model=org/a", "protocol=official") == 0, lc.cli.err
    assert lc.cli.calls == 0
    found = {one["protocol"]: one for one in lc.cli.summary["results"]}
    assert found["default"]["id"] != found["official"]["id"]
    assert found["official"]["settings"] == {"protocol": "official"}
    assert found["default"]["win_rate"] == found["official"]["win_rate"]
    assert "protocol: official, as alpaca_eval 0.6.6" in lc.cli.out


def test_a_baseline_of_ones_own_and_instructions_of_ones_own(lc, tmp_path):
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps({"instruction": text}) + "\n" for text in ASKED[:5]))
    mine = (f"question_path={own}", "reference_path=null", "benchmark=alpaca_eval")
    assert lc.cli("model=org/a", *mine) == 2
    assert "nothing is known of the baseline 'gpt4_1106_preview'" in lc.cli.err
    assert lc.cli("-m", "model=org/a,org/b", "baseline=org/b", *mine) == 0, lc.cli.err
    (result,) = lc.cli.summary["results"]
    assert (result["model"], result["baseline"], result["n"]) == ("org/a", "org/b", 5)
    assert result["lc_win_rate"] is None
    assert "no LC win rate: difficulties are known of the benchmark's own" in lc.cli.out


def test_without_the_hub_the_win_rate_stays_and_the_reason_is_said(lc, files):
    (files / "df_gamed.csv").unlink()
    assert lc("model=org/a") == 0, lc.cli.err
    assert "df_gamed.csv" in lc.cli.err
    (result,) = lc.cli.summary["results"]
    assert result["complete"]
    assert result["win_rate"] is not None
    assert result["lc_win_rate"] is None
    assert "no LC win rate: df_gamed.csv, with the difficulties, could not be had" in lc.cli.out
    # Once it is there, no verdict is asked again.
    (files / "df_gamed.csv").write_text(gamed(), "utf-8")
    assert lc("model=org/a") == 0
    assert lc.cli.calls == 0
    (result,) = lc.cli.summary["results"]
    assert result["lc_win_rate"] is not None


# Judges that cannot -------------------------------------------------------------------------


def test_a_judge_that_is_known_to_give_none_is_refused_before_anything_is_paid(lc):
    judge = ("judge.base_url=https://api.anthropic.com/v1", "judge.model=claude-x",
             "judge.api_key_env=null")  # fmt: skip
    assert lc("model=org/a", *judge) == 2
    assert "gives none" in lc.cli.err
    assert "mode=clf" in lc.cli.err
    assert lc.cli.calls == 0
    assert not (lc.workspace / "answers.jsonl").exists() or not lc.cli.rows("answers.jsonl")


def test_a_service_that_gives_none_is_stopped_at_once_and_mode_clf_needs_none(lc):
    lc.stub.script.tokens = ()
    lc.stub.script.text = "m"
    assert lc("model=org/a") == 3
    assert "gives no log-probabilities" in lc.cli.err
    assert "mode=clf" in lc.cli.err
    assert lc("model=org/a", "mode=clf") == 0, lc.cli.err
    assert lc.cli.calls == 12
    assert "logprobs" not in lc.stub.seen.bodies[-1]
    (result,) = lc.cli.summary["results"]
    first = [switched(text) for text in ASKED]
    assert result["win_rate"] == pytest.approx(100 * statistics.fmean(first))
    assert "not those of the leaderboard" in lc.cli.out


def test_a_verdict_for_neither_is_a_reason_and_never_a_loss(lc):
    lc.stub.script.tokens = ("The", "Both")
    assert lc("model=org/a") == 3
    assert lc.cli.calls == 12, "the same prompt has the same probabilities: asked once"
    (result,) = lc.cli.summary["results"]
    assert result["win_rate"] is None
    assert result["failed"] == {"neither_identifier": 12}


def test_it_is_listed_with_its_calls_and_the_version_of_its_protocol(capsys):
    assert main(["list", "benchmarks"]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "alpaca_eval " in one]
    assert line.split()[:4] == ["alpaca_eval", "805", "yes", "805"]
    assert "protocol=official: alpaca_eval 0.6.6" in line


def test_a_benchmark_of_one_protocol_says_what_to_type_instead(cli):
    assert cli("model=org/a", "protocol=official") == 2
    assert "mt_bench has one protocol only" in cli.err
    assert "parity=fastchat" in cli.err
    assert cli("model=org/a", "protocol=offical") == 2
    assert "did you mean protocol=official?" in cli.err
