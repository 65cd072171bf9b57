"""Verdicts of official programs on stored answers: ours are the same.

Needs the folder ``shared`` beside the checkout, and the official questions (fetched on first use).
"""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from paths import SHARED

from mtbench_ray.benchmarks import get_benchmark
from mtbench_ray.benchmarks.check_pool import Check, fetch_data, pool
from mtbench_ray.cli.main import main
from mtbench_ray.errors import UserError
from mtbench_ray.schema import canonical
from mtbench_ray.system import assets

ORACLES = SHARED / "benchmarks"
UNSTABLE = {1122, 1129}
"""Ask for a character that is no letter: the official checker then draws a letter."""

pytest.importorskip("if_verifiable", reason="needs the extra ifeval")
if not (ORACLES / "ifeval").is_dir():
    pytest.skip("the oracle files of ../shared are not here", allow_module_level=True)


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def questions(name):
    benchmark = get_benchmark(name)
    try:
        path = assets.fetch(name, benchmark.files)["questions"]
        fetch_data()
    except UserError as error:
        pytest.skip(f"the official files are not to be had: {error}")
    return benchmark.read(path.read_text("utf-8"), None, {}).questions


def verdicts(family, rows):
    """Strict and loose verdicts by question id, of (question, answer) pairs."""

    def one(pair):
        question, answer = pair
        asked = json.loads(question.grading)["instructions"]
        found = [
            pool().verdict(
                Check(family, one["id"], canonical(one["kwargs"]), question.turns[0], answer)
            )
            for one in asked
        ]
        return question.question_id, found

    with ThreadPoolExecutor(4) as threads:
        return dict(threads.map(one, rows))


IFEVAL = ("gpt4_20231107_responses_verdicts", "mifeval_en_gpt-4o-2024-08-06",
          "mifeval_en_Qwen__Qwen2.5-7B-Instruct-GPTQ-Int4")  # fmt: skip


def test_ifeval_verdicts_are_those_of_the_official_programs():
    by_id = {question.question_id: question for question in questions("ifeval")}
    differing = {"strict": [], "loose": []}
    count = 0
    for name in IFEVAL:
        rows = {row["key"]: row for row in lines(ORACLES / "ifeval" / f"{name}.jsonl")}
        pairs = [(by_id[key], row["response"]) for key, row in rows.items()]
        for key, found in verdicts("ifeval", pairs).items():
            assert not [one.error for one in found if one.error], key
            for level in differing:
                mine = [getattr(one, level) for one in found]
                count += len(mine)
                if key not in UNSTABLE:
                    asked = json.loads(by_id[key].grading)["instructions"]
                    differing[level] += [
                        (name, key, one["id"])
                        for one, ours, theirs in zip(asked, mine, rows[key][level], strict=True)
                        if ours != theirs
                    ]
    assert count == 2 * (834 + 2 * 832)
    # Language or case, by langdetect, which the official programs do not seed.
    assert len(differing["strict"]) <= 1
    assert len(differing["loose"]) <= 2


def test_the_totals_of_gpt_4_are_the_published_ones(tmp_path, capsys):
    """Its answers are imported and graded by the command line."""
    questions("ifeval")
    answers = tmp_path / "answers.jsonl"
    answers.write_text((ORACLES / "ifeval" / f"{IFEVAL[0]}.jsonl").read_text("utf-8"), "utf-8")
    place = f"workspace={tmp_path / 'work'}"
    assert main(["import", "answers", str(answers), "benchmark=ifeval", "model=gpt-4", place]) == 0
    assert "541 answers to ifeval, 541 new\n" in capsys.readouterr().out
    assert main(["stage=judge", "benchmark=ifeval", "model=gpt-4", "judge=none", place]) == 0
    (result,) = json.loads((tmp_path / "work" / "summary.json").read_text())["results"]
    expected = json.loads((ORACLES / "ifeval" / "expected.json").read_text())
    for name, total in expected["gpt4_recomputed_lm_eval_0_4_13"].items():
        found = result[name.replace("inst_", "instruction_")]
        assert found["scored"] == found["planned"]
        # Two keys are drawn: one prompt is 0.18, one instruction 0.12.
        assert 100 * found["mean"] == pytest.approx(total, abs=0.4), name


def test_ifbench_verdicts_are_those_of_its_authors():
    by_prompt = {question.turns[0].strip(): question for question in questions("ifbench")}
    folder = ORACLES / "ifbench"
    answers = [
        (row["prompt"].strip(), row["response"]) for row in lines(folder / "sample_output.jsonl")
    ]
    pairs = [(by_prompt[prompt], answer) for prompt, answer in answers if prompt in by_prompt]
    found = verdicts("ifbench", pairs)
    untagged = {key for key, some in found.items() for one in some if one.error}
    reasons = {one.error for some in found.values() for one in some if one.error}
    same = compared = 0
    for level in ("strict", "loose"):
        for row in lines(folder / f"official_eval_{level}.jsonl"):
            question = by_prompt.get(row["prompt"].strip())
            if question is None or question.question_id in untagged:
                continue
            ids = [one["id"] for one in json.loads(question.grading)["instructions"]]
            if ids != row["instruction_id_list"]:
                continue
            mine = [getattr(one, level) for one in found[question.question_id]]
            compared += len(mine)
            same += sum(a == b for a, b in zip(mine, row["follow_instruction_list"], strict=True))
    assert len(untagged) <= 6
    assert all("NLTK data" in reason for reason in reasons)
    assert compared >= 2 * 300
    assert same == compared
