"""IFEval and IFBench: small prompts of our own, checked by the real if-verifiable."""

import ast
import importlib.util
import json
import os
import re
import time
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("if_verifiable", reason="needs the extra ifeval")

from mtbench_ray.benchmarks import check_process, get_benchmark, grader_of
from mtbench_ray.benchmarks.check_pool import (
    NLTK_FILES,
    TAGGED,
    TAGGER,
    Check,
    CheckPool,
    fetch_data,
    pool,
)
from mtbench_ray.benchmarks.instructions import Criterion
from mtbench_ray.cli.main import main
from mtbench_ray.errors import UserError
from mtbench_ray.system import assets

PROMPTS = [
    ("a", "Name three trees.", {"punctuation:no_comma": {}}),
    ("b", "Describe rain.", {"change_case:english_lowercase": {"x": None},
                             "length_constraints:number_words": {"relation": "at least",
                                                                 "num_words": 3}}),
    ("c", "Say it shortly.", {"length_constraints:number_words": {"relation": "less than",
                                                                  "num_words": 2}}),
]  # fmt: skip
NO_COMMA = Check("ifeval", "punctuation:no_comma", "{}", "Name three trees.", "Oak and elm")


def line(key, prompt, asked):
    return json.dumps(
        {"key": key, "prompt": prompt, "instruction_id_list": list(asked),
         "kwargs": list(asked.values())}
    ) + "\n"  # fmt: skip


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(line(*one) for one in PROMPTS))
    return path


@pytest.fixture
def run(prompts, tmp_path, capsys):
    """The command line with these prompts."""
    need_data()

    def call(*args, own=True):
        path = [f"question_path={prompts}"] if own else []
        code = main([*args, *path, f"workspace={tmp_path / 'work'}"])
        call.out, call.err = capsys.readouterr()
        return code

    call.workspace = tmp_path / "work"
    call.rows = lambda name: [
        json.loads(text) for text in (call.workspace / name).read_text().splitlines()
    ]
    return call


def need_data():
    try:
        fetch_data()
    except UserError as error:
        pytest.skip(f"NLTK's data is not to be had: {error}")


USUAL = ("model=org/a", "engine=fake", "benchmark=ifeval", "sampling.max_tokens=60")


def test_a_run_without_a_judge_is_a_whole_evaluation_and_its_scores_add_up(run):
    assert run(*USUAL) == 0, run.err
    rows = run.rows("judgments.jsonl")
    assert len(rows) == 2 * 4
    assert {row["judge"] for row in rows} == {
        f"if-verifiable {metadata.version('if-verifiable')} patch 1"
    }
    assert {(row["attempts"], row["cost_usd"]) for row in rows} == {(0, None)}
    by_prompt = {}
    for row in rows:
        criterion = Criterion.of(row["criterion"])
        by_prompt.setdefault((criterion.level, row["question_id"]), []).append(row["value"])
    (result,) = json.loads((run.workspace / "summary.json").read_text())["results"]
    for level in ("strict", "loose"):
        kept = [values for (which, _), values in by_prompt.items() if which == level]
        assert result[f"prompt_{level}"]["mean"] == pytest.approx(
            sum(all(values) for values in kept) / 3
        )
        assert result[f"instruction_{level}"]["mean"] == pytest.approx(sum(map(sum, kept)) / 4)
    assert result["prompt_strict"]["planned"] == 3
    assert set(result["types"]) == {"punctuation", "change_case", "length_constraints"}
    assert result["types"]["length_constraints"]["planned"] == 2
    assert run(*USUAL) == 0
    assert "nothing was pending" in run.err
    assert len(run.rows("judgments.jsonl")) == 8


def test_the_answers_are_greedy_with_room_to_think_and_both_can_be_set(run):
    assert run("model=org/a", "engine=fake", "benchmark=ifeval", "limit=1") == 0
    assert run("model=org/b", "engine=fake", "benchmark=ifeval", "limit=1", "model.thinking=on",
               "sampling.temperature=0.5") == 0, run.err  # fmt: skip
    settings = [
        json.loads(row["answers"]["settings"])["sampling"]
        for path in sorted(run.workspace.glob("runs/*/record.json"))
        for row in json.loads(path.read_text())["evaluations"]
    ]
    assert sorted(settings, key=len) == [
        {"max_tokens": 4096},
        {"max_tokens": 32768, "temperature": 0.5},
    ]
    used = [json.loads(row["sampling"]) for row in run.rows("answers.jsonl")]
    assert [one["temperature"] for one in used] == [0.0, 0.5]


def test_an_unknown_instruction_is_an_error_that_names_it(run, prompts):
    prompts.write_text(line(7, "Whistle.", {"sound:whistling": {}}))
    assert run(*USUAL) == 2
    assert "question 7" in run.err
    assert "sound:whistling" in run.err
    assert not run.rows("answers.jsonl")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1 is not JSON"),
        ("[]", "line 1 is not a JSON object"),
        ('{"key": 1}', "line 1: prompt must be a text"),
        ('{"prompt": "x"}', "line 1: key must be"),
        ('{"key": 1, "prompt": "x"}', "instruction_id_list must be"),
        ('{"key": 1, "prompt": "x", "instruction_id_list": ["a:b"], "kwargs": []}', "kwargs must"),
        (line(1, "x", {"a:b": {}}) + line(1, "y", {"a:b": {}}), "line 2: question 1 comes twice"),
        ("", "holds no questions"),
    ],
)
def test_a_broken_question_file_is_named_with_its_line(text, said):
    with pytest.raises(UserError, match=said):
        get_benchmark("ifeval").read(text, None, {"questions": "mine.jsonl"})


def test_without_the_package_a_run_says_what_to_install(run, monkeypatch):
    version = metadata.version

    def missing(name):
        if name == "if-verifiable":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert run(*USUAL) == 2
    assert "pip install 'mtbench-ray[ifeval]'" in run.err
    assert run(*USUAL, "stage=answers") == 0, "answers need no checker"


def test_an_empty_answer_follows_nothing():
    grader = grader_of("ifeval", "")

    class View:
        questions = {  # noqa: RUF012
            one.question_id: one
            for one in get_benchmark("ifeval").read(line(*PROMPTS[0]), None, {}).questions
        }

        def content(self, answer_id, turn):
            return " \n"

    class Asked:
        answer_ids, turn, question_id = ("x",), 1, "a"
        criterion = str(Criterion(0, "punctuation:no_comma", "loose"))

    assert grader.read(Asked(), View(), None).value == 0.0


def test_loose_verdicts_forgive_stars_and_a_first_and_a_last_line():
    assert len(check_process.variants("a\nb\nc")) == 8
    assert set(check_process.variants("*a*\nb\n*c*")) == {
        "*a*\nb\n*c*", "b\n*c*", "*a*\nb", "b", "a\nb\nc", "b\nc", "a\nb",
    }  # fmt: skip


def test_strict_and_loose_differ_where_they_should():
    need_data()
    answer = "Sure, here they are:\nOak and elm"
    found = pool().verdict(Check("ifeval", "punctuation:no_comma", "{}", "p", answer))
    assert (found.strict, found.loose, found.error) == (False, True, "")
    assert pool().verdict(NO_COMMA).strict


def test_a_checker_that_draws_draws_the_same_in_every_process():
    """The instruction asks for a character that is no letter; the checker draws one instead."""
    kwargs = json.dumps({"let_relation": "at least", "letter": "#", "let_frequency": 1})
    answers = ["abcdefgh", "ijklmnop", "qrstuvwxyz"]
    asked = [Check("ifeval", "keywords:letter_frequency", kwargs, "p", text) for text in answers]
    found = []
    for _ in range(2):
        own = CheckPool(processes=1)
        found.append([own.verdict(one).strict for one in asked])
        own.close()
    assert found[0] == found[1]
    assert sum(found[0]) == 1, "one letter for all answers to a prompt"


SCRIPT = """
import json, os, sys, time, signal
from pathlib import Path
signal.signal(signal.SIGALRM, signal.SIG_DFL)
for line in sys.stdin:
    asked = json.loads(line)
    signal.setitimer(signal.ITIMER_REAL, asked["limit_s"])
    if "id" not in asked:
        print(json.dumps({"known": []}), flush=True)
        continue
    if asked["answer"] == "hang":
        while True:
            pass
    if asked["answer"] == "crash":
        os._exit(7)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps({"strict": True, "loose": True}), flush=True)
"""


def test_a_check_that_hangs_or_crashes_costs_its_own_verdict_alone(tmp_path):
    script = tmp_path / "checks.py"
    script.write_text(SCRIPT)
    own = CheckPool(limit_s=0.3, processes=1, script=script)

    def verdict(answer):
        return own.verdict(Check("ifeval", "x:y", "{}", "p", answer))

    began = time.monotonic()
    assert verdict("hang").error == "the check took more than 0.3 s"
    assert time.monotonic() - began < 10
    assert verdict("crash").error == "the check ended its process (exit code 7)"
    assert verdict("fine").strict
    assert not verdict("fine").error
    (process,) = own._running
    own.close()
    assert process.code is not None


def test_the_real_process_ends_a_check_that_hangs_in_c_code(monkeypatch):
    """The timer is the system's: no Python code has to run for it."""
    own = CheckPool(limit_s=0.5, processes=1)
    kwargs = {"keywords": ["(a+)+$"]}  # a pattern that takes for ever
    answer = "a" * 40 + "b"
    check = Check("ifeval", "keywords:existence", json.dumps(kwargs), "p", answer)
    assert "took more than 0.5 s" in own.verdict(check).error
    assert own.verdict(NO_COMMA).strict, "the next check has a process"
    own.close()


def test_a_failed_check_is_a_failed_verdict_with_its_reason_and_is_pending_again(
    run, prompts, monkeypatch
):
    broken = line("z", "Count.", {"length_constraints:number_words": {"relation": "about",
                                                                      "num_words": 2}})  # fmt: skip
    prompts.write_text(line(*PROMPTS[0]) + broken)
    assert run(*USUAL) == 3, run.err
    rows = {row["question_id"]: row for row in run.rows("judgments.jsonl")}
    assert rows["a"]["status"] == "ok"
    assert (rows["z"]["status"], rows["z"]["value"]) == ("error", None)
    assert "ValueError" in rows["z"]["error"]
    (result,) = json.loads((run.workspace / "summary.json").read_text())["results"]
    assert (result["prompt_strict"]["planned"], result["prompt_strict"]["scored"]) == (2, 1)


def test_the_data_of_nltk_comes_into_the_cache_and_nothing_is_downloaded_at_import(
    monkeypatch, tmp_path
):
    need_data()
    cache = assets.cache_dir() / "nltk"
    assert all((cache / name).is_file() for name in NLTK_FILES)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MTBENCH_RAY_CACHE", str(cache.parent))
    own = CheckPool(processes=1)
    assert "stop:words" not in own.known("ifbench")
    sentence = Check("ifbench", "words:consonants", "{}", "p", "Strength lasts.")
    assert not own.verdict(sentence).error
    own.close()
    assert not os.listdir(tmp_path)


def test_a_stored_evaluation_is_shown_whatever_version_is_installed(run, monkeypatch):
    assert run(*USUAL) == 0
    monkeypatch.setattr(metadata, "version", lambda name: "9.9")
    assert run("report", own=False) == 0, run.err
    assert "3/3" in run.out
    assert "9.9" not in run.out


def test_repeats_have_a_mean_with_its_spread_and_a_pass_at_k(run):
    assert run(*USUAL, "sampling.samples=4", "sampling.temperature=1.0") == 0, run.err
    (result,) = json.loads((run.workspace / "summary_agg.json").read_text())["results"]
    values = {}
    for row in run.rows("judgments.jsonl"):
        if row["criterion"].endswith("strict"):
            values.setdefault((row["question_id"], row["sample"]), []).append(row["value"])
    mean = sum(all(some) for some in values.values()) / 12
    assert result["mean"] == pytest.approx(mean)
    assert result["pass_at"]["1"] == pytest.approx(mean)
    some = {key for (key, _), kept in values.items() if all(kept)}
    assert result["pass_at"]["4"] == pytest.approx(len(some) / 3)
    assert result["std"] is not None
    assert len(result["per_sample"]) == 4


def test_two_models_are_compared_on_each_benchmark_that_both_have(run, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(line("d", "Use many words.", {"count:unique_word_count": {"N": 3}}))
    models = ("-m", "model=run/step_1,run/step_2", "benchmark=[ifeval,ifbench]", "engine=fake")
    assert run(*models, "sampling.max_tokens=60", f"benchmark.ifbench.question_path={other}") == 0
    assert run("report", "compare", "step_1", "step_2", "format=json", own=False) == 0, run.err
    found = json.loads(run.out)
    assert [(one["a"], one["b"]) for one in found] == [("run/step_1", "run/step_2")] * 2
    assert sorted(one["all"]["n_questions"] for one in found) == [1, 3]


@pytest.mark.parametrize("metric", ["instruction_strict", "prompt_loose", "instruction_loose"])
def test_models_are_compared_on_each_metric(metric, run):
    models = ("-m", "model=run/one,run/two", "benchmark=ifeval", "engine=fake")
    assert run(*models, "sampling.max_tokens=60") == 0, run.err
    line = ("report", "compare", "one", "two", f"metric={metric}")
    assert run(*line, "format=json", own=False) == 0, run.err
    (found,) = json.loads(run.out)
    of, level = metric.split("_")
    values = {}
    for row in run.rows("judgments.jsonl"):
        if row["criterion"].endswith(level):
            key = row["question_id"], row["criterion"] if of == "instruction" else ""
            values.setdefault(row["model"], {}).setdefault(key, []).append(row["value"])
    one, two = ({key: min(all_) for key, all_ in values[f"run/{name}"].items()}
                for name in ("one", "two"))  # fmt: skip
    assert found["all"]["n_turns"] == len(one) == (4 if of == "instruction" else 3)
    assert found["all"]["mean"] == pytest.approx(sum(one[key] - two[key] for key in one) / len(one))
    assert found["by"] == ("type" if of == "instruction" else "category")
    assert set(found["categories"]) == {"punctuation", "change_case", "length_constraints"}
    assert run(*line, own=False) == 0
    said = {"instruction": "instr."}.get(of, of)
    assert run.out.startswith(f"ifeval, {said} {level}: run/one minus run/two, judge if-verifiable")
    assert run("report", "judges", f"metric={metric}", own=False) == 0, run.err
    assert f"length, own family and agreement: of {metric}" in run.out


def test_prompts_that_need_the_tagger_are_counted_once_before_anything_is_answered(
    run, prompts, monkeypatch, tmp_path
):
    if pool().has("ifbench", TAGGER):
        pytest.skip("NLTK's tagger is installed")
    prompts.write_text(
        "".join(line(key, f"Order {key}.", {"words:start_verb": {}}) for key in ("d", "e"))
        + line("f", "Use many words.", {"count:unique_word_count": {"N": 3}})
    )
    said = (
        "ifbench: 2 prompts (words:start_verb) cannot be checked here: NLTK's tagger is missing."
        " To install it: python -m nltk.downloader averaged_perceptron_tagger_eng"
    )
    line_ = ("-m", "model=org/a,org/b", "engine=fake", "benchmark=ifbench",
             "sampling.max_tokens=60")  # fmt: skip
    assert run("plan", *line_) == 0
    assert run.err.count(said) == 1
    assert run(*line_) == 3
    assert run.err.count(said) == 1
    assert run.err.index(said) < run.err.index("pending")
    rows = {row["question_id"]: row["error"] for row in run.rows("judgments.jsonl")}
    assert set(rows.values()) == {
        None,
        "NLTK data 'averaged_perceptron_tagger_eng' is not installed",
    }
    assert {key for key, error in rows.items() if error} == {"d", "e"}
    prompts.write_text(line("f", "Use many words.", {"count:unique_word_count": {"N": 3}}))
    assert run("plan", *line_) == 0
    assert "tagger" not in run.err


def test_only_the_checkers_that_are_known_to_need_the_tagger_do():
    """Found in the package itself, so that another version of it cannot differ in silence."""
    tagged = set()
    for family in ("ifeval", "ifbench"):
        folder = Path(importlib.util.find_spec("if_verifiable").origin).parent / family
        text = (folder / "instructions.py").read_text()
        classes = [
            node.name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ClassDef)
            and "pos_tag" in (ast.get_source_segment(text, node) or "")
        ]
        known = (folder / "instructions_registry.py").read_text()
        for name in classes:
            found = re.findall(rf'"?([\w:]+)"\s*:\s*instructions\.{name}\b', known)
            assert found, name
            tagged |= set(found)
    assert tagged == TAGGED
