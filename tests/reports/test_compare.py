"""``report compare``: gates, what would detect a difference, and many models at once."""

import json

import numpy as np
import pytest
from stub_server import StubServer
from verdict_rows import evaluation, verdict

from mtbench_ray.benchmarks import grader_of
from mtbench_ray.cli.main import main
from mtbench_ray.judges.base import ScoreOptions
from mtbench_ray.reports.comparison import compare
from mtbench_ray.reports.comparison import verdict as verdict_of
from mtbench_ray.reports.differences import (
    difference,
    gate,
    needed,
    paired,
    ranking,
    valued,
)

OPTIONS = ScoreOptions(resamples=400)


def rows(values, model="m"):
    return [verdict(value, number, model=model) for number, value in enumerate(values)]


def pairs_of(a, b):
    return paired(valued(rows(a, "a")), valued(rows(b, "b")))


@pytest.mark.parametrize(
    ("low", "high", "margin", "said"),
    [
        (-0.05, 0.4, 0.1, "not worse"),
        (0.2, 0.4, 0.0, "not worse"),
        (-0.5, -0.2, 0.1, "worse"),
        (-0.5, -0.1, 0.1, "worse"),
        (-0.3, -0.05, 0.1, "cannot tell"),
        (-0.1, 0.4, 0.1, "cannot tell"),
        (-0.0, 0.0, 0.0, "worse"),  # all questions equal: worse by 0 or more
        (None, None, 0.1, "cannot tell"),
    ],
)
def test_a_gate_is_decided_by_the_interval(low, high, margin, said):
    assert gate({"ci_low": low, "ci_high": high}, margin) == said


def test_a_gate_and_a_verdict_know_where_less_is_better():
    total = {"ci_low": 0.2, "ci_high": 0.4}
    assert gate(total, 0.1, lower_is_better=True) == "worse"
    assert gate({"ci_low": -0.4, "ci_high": -0.2}, 0.1, lower_is_better=True) == "not worse"
    assert gate({"ci_low": -0.4, "ci_high": 0.2}, 0.1, lower_is_better=True) == "cannot tell"
    column = grader_of("mt_bench", "pairwise-baseline").measures["loss_rate"]
    found = verdict_of("a", "b", total | {"mean": 0.3, "p_value": 0.01, "n_questions": 9}, column)
    assert found == "b is better than a by 0.300 on 9 questions (p = 0.010)"
    ranked = ranking({"a": valued(rows([1.0] * 6)), "b": valued(rows([0.0] * 6))}, OPTIONS, True)
    assert [one["model"] for one in ranked.models] == ["b", "a"]


def test_samples_that_would_detect_a_difference_follow_from_the_parts_of_the_variance():
    # 100 questions with differences of 2.5**0.5 to either side, and repeats 1 above and below
    gaps = [2.5**0.5 * (-1) ** q for q in range(100)]

    def repeats(values, model):
        return valued(
            [
                verdict(value + move, q, sample=sample, model=model)
                for q, value in enumerate(values)
                for sample, move in enumerate((1, -1))
            ]
        )

    pairs = paired(repeats(gaps, "a"), repeats([0.0] * 100, "b"))
    total = difference(pairs, OPTIONS)
    found = needed(pairs, total, total["detectable"] / 2)
    # of the variance of the mean, 2.5 / 99, repeats are (2 / 2 + 2 / 2) / 100: a share of 0.792;
    # half the difference wants a quarter of the variance: 0.208 + 0.792 / m = 0.25, m = 18.9
    assert found == {"difference": total["detectable"] / 2, "questions": 400, "samples": 38,
                     "samples_known": True}  # fmt: skip
    # without noise of repeats no number of them is enough
    pairs = paired(
        valued([verdict(g, q, sample=s, model="a") for q, g in enumerate(gaps) for s in (0, 1)]),
        valued([verdict(0.0, q, sample=s, model="b") for q in range(100) for s in (0, 1)]),
    )
    total = difference(pairs, OPTIONS)
    found = needed(pairs, total, total["detectable"] / 2)
    assert (found["samples"], found["questions"]) == (None, 400)


def test_few_questions_have_no_interval_and_say_so():
    a, b = evaluation("a"), evaluation("b")
    found = compare(a, b, rows([8, 8, 8], "a"), rows([5, 5, 5], "b"), OPTIONS, wanted=0.1)
    total = found["all"]
    assert (total["mean"], total["ci_low"], total["p_value"], total["detectable"]) == (
        3, None, None, None,
    )  # fmt: skip
    assert total["ci_method"] == "none: 3 questions, 5 are needed"
    assert found["verdict"].endswith("(3 questions, 5 are needed)")
    assert found["needed"]["questions"] is None


def test_many_models_keep_enough_sign_flips_for_their_correction():
    """30 models are 435 pairs: with 10,000 flips no corrected p could be below 0.05."""
    rng = np.random.default_rng(0)
    base = rng.normal(5, 1, 40)
    models = {
        f"m{n}": valued(rows((base + (3.0 if n < 3 else 0.0) + rng.normal(0, 0.3, 40)).tolist()))
        for n in range(30)
    }
    found = ranking(models, ScoreOptions(resamples=20))
    assert set(found.with_best) == {"m0", "m1", "m2"}
    assert len(found.pairs) == 435
    assert all(pair["p_holm"] < 0.05 for pair in found.pairs
               if (pair["a"] in found.with_best) != (pair["b"] in found.with_best))  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three models, eight own questions, one judge."""
    folder = tmp_path_factory.mktemp("compare")
    (folder / "q.jsonl").write_text(
        "".join(
            json.dumps({"question_id": n, "category": "math", "turns": [f"Is {n} high?"]}) + "\n"
            for n in range(8)
        )
    )
    with StubServer() as stub:
        main(["-m", "engine=fake", f"question_path={folder / 'q.jsonl'}", "judge.model=stub",
              f"workspace={folder / 'w'}", "judge=openai", f"judge.base_url={stub.url}",
              "model=a,b,c"])  # fmt: skip
    return folder / "w"


@pytest.mark.runs
def test_the_exit_code_of_a_gate(made, capsys):
    line = ["report", "compare", "a", "b", f"workspace={made}"]
    capsys.readouterr()
    assert main([*line, "format=json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    low, high = found["all"]["ci_low"], found["all"]["ci_high"]
    assert low < high
    assert main([*line, "gate=20"]) == 0
    assert "gate 20: not worse" in capsys.readouterr().out
    inside = -(low + high) / 2
    if inside < 0:  # a negative margin is no gate: turn the two round
        line[2:4], low, high, inside = ["b", "a"], -high, -low, -inside
    assert main([*line, f"gate={inside}"]) == 3
    if -high > 0:
        assert main([*line, f"gate={-high * 0.99}"]) == 1
    assert main([*line, "gate=-1"]) == 2
    assert main(["report", "compare", "*", "gate=1", f"workspace={made}"]) == 2
    assert main(["report", "curve", "gate=1", f"workspace={made}"]) == 2
    assert "gate=1 is of `report compare or best`" in capsys.readouterr().err


@pytest.mark.runs
def test_a_worse_model_ends_with_1(stub, tmp_path, capsys):
    questions = tmp_path / "questions.jsonl"
    rows = ({"question_id": n, "category": "own", "turns": [f"Say {n}."]} for n in range(8))
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for model, rating in (("old", 9), ("new", 3)):
        stub.script.text = f"Rating: [[{rating}]]"
        line = ["engine=fake", "judge=openai", "judge.model=stub", f"judge.base_url={stub.url}",
                f"question_path={questions}", f"workspace={tmp_path}/work"]  # fmt: skip
        assert main([f"model={model}", *line]) == 0
    capsys.readouterr()
    gate = ["gate=0.1", f"workspace={tmp_path}/work"]
    assert main(["report", "compare", "new", "old", *gate]) == 1
    assert "gate 0.1: worse" in capsys.readouterr().out
    assert main(["report", "compare", "old", "new", *gate]) == 0
    assert "gate 0.1: not worse" in capsys.readouterr().out


@pytest.mark.runs
@pytest.mark.parametrize("format", ["table", "markdown", "latex", "csv", "json"])
def test_each_format_of_a_comparison_has_all_models(format, made, capsys):
    for words in (["a", "b"], ["a", "b", "c"], ["[abc]"]):
        capsys.readouterr()
        assert main(["report", "compare", *words, f"format={format}", f"workspace={made}"]) == 0
        assert capsys.readouterr().out
